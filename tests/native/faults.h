/* Allocations that fail on demand: included before every C file of a build with FAULTS=1, and of no other.
 *
 * Host memory, pages, threads and device memory all come through the macros below. faults.c counts them and lets the ones a
 * test has chosen fail, as the system would. The macros of the host's call functions there, so that the code around an
 * allocation has the branches that it has without the switch. */
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

void *tl_fault_malloc(const char *file, int line, size_t bytes);
void *tl_fault_calloc(const char *file, int line, size_t count, size_t size);
void *tl_fault_aligned_alloc(const char *file, int line, size_t alignment, size_t bytes);
int tl_fault_posix_memalign(const char *file, int line, void **p, size_t alignment, size_t bytes);
void *tl_fault_mmap(const char *file, int line, void *at, size_t bytes, int protection, int flags, int fd,
                    off_t offset);
int tl_fault_pthread_create(const char *file, int line, pthread_t *thread, const pthread_attr_t *attributes,
                            void *(*run)(void *), void *arg);

#define malloc(...) tl_fault_malloc(__FILE__, __LINE__, __VA_ARGS__)
#define calloc(...) tl_fault_calloc(__FILE__, __LINE__, __VA_ARGS__)
#define aligned_alloc(...) tl_fault_aligned_alloc(__FILE__, __LINE__, __VA_ARGS__)
#define posix_memalign(...) tl_fault_posix_memalign(__FILE__, __LINE__, __VA_ARGS__)
#define mmap(...) tl_fault_mmap(__FILE__, __LINE__, __VA_ARGS__)
#define pthread_create(...) tl_fault_pthread_create(__FILE__, __LINE__, __VA_ARGS__)
#ifdef TL_WITH_CUDA
#define tl_cuda_malloc(state, bytes, p) \
    (tl_fault(__FILE__, __LINE__) ? (*(p) = NULL, TORCHLEAN_NO_MEMORY) : tl_cuda_malloc(state, bytes, p))
#endif

#endif
