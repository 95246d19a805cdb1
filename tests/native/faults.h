/* Allocations that fail on demand: included before every C file of a build with FAULTS=1, and of no other.
 *
 * Host memory, pages, threads and device memory all come through the macros below. faults.c counts them and lets the ones a
 * test has chosen fail, as the system would. */
#pragma once

#ifndef __cplusplus

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h> /* declares posix_memalign once more, so before the macro */
#endif

#include "core/api.h"
#include "core/backend.h"

/* Counts an allocation; 1 if it is to fail. */
int tl_fault(const char *file, int line);

#define TL_FAULT tl_fault(__FILE__, __LINE__)
#define malloc(bytes) (TL_FAULT ? NULL : malloc(bytes))
#define calloc(count, size) (TL_FAULT ? NULL : calloc(count, size))
#define aligned_alloc(alignment, bytes) (TL_FAULT ? NULL : aligned_alloc(alignment, bytes))
#define posix_memalign(p, alignment, bytes) (TL_FAULT ? ENOMEM : posix_memalign(p, alignment, bytes))
#define mmap(...) (TL_FAULT ? MAP_FAILED : mmap(__VA_ARGS__))
#define pthread_create(...) (TL_FAULT ? EAGAIN : pthread_create(__VA_ARGS__))
#ifdef TL_WITH_CUDA
#define tl_cuda_malloc(state, bytes, p) (TL_FAULT ? (*(p) = NULL, TORCHLEAN_NO_MEMORY) : tl_cuda_malloc(state, bytes, p))
#endif

#endif
