"""The generator: from the registry's rows to the C ABI and its Python functions. Nothing imports it at run time.

``make abi`` writes the files below. They are committed, so C compiles without Python and a review sees what an edit of a row
changes.

==============================================  ==========================================================================
``native/include/torchlean_cuda_ops.h``         one declaration per entry point
``native/generated/FAMILY_entry_points.c``      the exported functions of a family: checks, then dispatch
``native/generated/FAMILY.h``                   the prototypes of its kernels on both devices
``native/generated/FAMILY_table.c``             the table of its CPU kernels, compiled once per SIMD variant
``native/generated/cpu_kernels.h``, ``.c``      the families' tables in one
``native/include/torchlean_cuda_version.h``      version, and SHA-256 over all declarations
``tlrt/kernels.py``                             one documented, typed function per entry point
==============================================  ==========================================================================
"""
