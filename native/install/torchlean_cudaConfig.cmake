# find_package(torchlean_cuda) defines the imported target torchlean_cuda::torchlean_cuda.
if(NOT TARGET torchlean_cuda::torchlean_cuda)
  add_library(torchlean_cuda::torchlean_cuda SHARED IMPORTED)
  get_filename_component(torchlean_cuda_libdir "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
  set_target_properties(torchlean_cuda::torchlean_cuda PROPERTIES
    IMPORTED_LOCATION "${torchlean_cuda_libdir}/libtorchlean_cuda.so.@VERSION@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "@INCLUDEDIR@")
endif()
