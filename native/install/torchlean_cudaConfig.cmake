# find_package(torchlean_cuda) defines the imported target torchlean_cuda::torchlean_cuda.
if(NOT TARGET torchlean_cuda::torchlean_cuda)
  get_filename_component(torchlean_cuda_prefix "@PREFIX@" ABSOLUTE)
  add_library(torchlean_cuda::torchlean_cuda SHARED IMPORTED)
  set_target_properties(torchlean_cuda::torchlean_cuda PROPERTIES
    IMPORTED_LOCATION "@LIBDIR@/libtorchlean_cuda.so.@VERSION@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "@INCLUDEDIR@")
endif()
