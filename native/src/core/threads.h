/* The host threads of the CPU path. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "interrupt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TL_MAX_THREADS = 1024 };

/* ---- for kernels ------------------------------------------------------------------------------------------------- */

/* Marks a parameter that the signature demands and the function does not read. */
#define TL_UNUSED __attribute__((unused))

typedef void (*tl_task_fn)(void *arg, int64_t task, int32_t worker);
/* Runs fn(arg, task, worker) for task 0..tasks-1 and returns when all are done, or, once the call is interrupted, those
 * begun. Which worker runs which task is not fixed, so results may not depend on it: cut tasks by the data's shape, never
 * by the number of workers. Called from inside one of several tasks, or while another thread's tasks run, it runs all
 * tasks on the caller (worker 0); inside a single task it may still spread out. To be called between tl_enter and tl_end:
 * workers inherit the floating-point mode of the thread that starts them. */
void tl_parallel(int64_t tasks, tl_task_fn fn, void *arg);
/* The same, and tasks begin in the order of their numbers; tl_parallel gives each worker a range of its own to begin with. No more
 * sleeping threads are woken than make `threads` with the caller. */
void tl_parallel_in_order(int64_t tasks, int32_t threads, tl_task_fn fn, void *arg);
/* worker is always in 0..tl_workers()-1 */
int32_t tl_workers(void);
/* memcpy, cut into tasks when it is large, for which no more than `threads` threads are woken. */
void tl_copy(void *to, const void *from, size_t bytes, int32_t threads);

/* ---- for the core ------------------------------------------------------------------------------------------------ */

/* What runs body(data) once in each of `threads` threads, the caller among them, and returns when all have returned: GOMP_parallel. */
typedef void (*tl_run_fn)(void (*body)(void *), void *data, uint32_t threads, uint32_t flags);
/* Changes the number of threads, 0 restores the default, and who runs jobs: `run`, a host's, or with NULL the pool's own threads. No
 * call may be running: a kernel may size scratch by tl_workers(). */
void tl_threads_set(int32_t threads, tl_run_fn run);
/* What runs jobs now; NULL: the pool's own threads. */
tl_run_fn tl_threads_run(void);
/* ARGUMENT if TORCHLEAN_CPU_THREADS was no number of threads when it was read: when the library loaded, where nothing
 * can be reported. context_create asks. */
int32_t tl_threads_environment(void);
/* Called with all contexts locked. */
void tl_threads_before_fork(void);
void tl_threads_after_fork(int in_child);

#ifdef __cplusplus
}
#endif
