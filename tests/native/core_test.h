/* The checks of core_test and its parts, which any thread makes. */
#pragma once

#include "core/api.h"

extern _Atomic int core_checks, core_failures;
void core_check(int good, const char *text, const char *file, int line);
void core_check_status(int32_t got, int32_t wanted, const char *text, const char *file, int line);

#define CHECK(condition) core_check((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_STATUS(expr, wanted) core_check_status((expr), wanted, #expr, __FILE__, __LINE__)
#define OK(expr) CHECK_STATUS(expr, TORCHLEAN_OK)

/* core_threads_test.c: the thread pool, contexts used from many threads, fork, memory running out. */
void core_test_concurrency(void);
/* core_interrupt_test.c: calls and conversions that interrupts end. */
void core_test_interrupts(void);
/* core_arguments_test.c: arguments that functions of the core refuse, and the texts that say so. */
void core_test_arguments(void);
/* core_capture_test.c: what the core does for a CUDA device, captures and graphs above all. */
void core_test_captures(void);

/* core_exchange_test.c: memory lent to others and borrowed from them. */
void core_test_exchange(void);
/* core_host_test.c: a host's memory, allocator, stream and threads. */
void core_test_hosts(void);

/* fake_cuda.c: blocks of memory and graphs that the device has given out, and the status of its next call but `calls`. */
extern int fake_cuda_blocks, fake_cuda_graphs;
/* Whether marks in its stream are not passed yet. */
extern int fake_cuda_busy;
/* Whether the host captures the stream that a context has of it. */
extern int fake_cuda_host_captures;
void fake_cuda_fail(int32_t status, int calls);
/* Whether realloc of the core fails. */
extern int fake_realloc_fails;
