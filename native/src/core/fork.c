/* What happens when the process forks: the child must find every lock free and every structure whole, so fork waits for
 * running calls. */
#include <pthread.h>
#include <stdatomic.h>

#include "errors.h"
#include "objects.h"
#include "threads.h"

static _Atomic uint32_t forks;

uint32_t tl_fork_serial(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

static void before_fork(void)
{
    tl_inside = 1;
    tl_lock_all();
    pthread_mutex_lock(&tl_buffers.lock);
    pthread_mutex_lock(&tl_graphs.lock);
    tl_threads_before_fork();
}

static void after_fork(int in_child)
{
    tl_threads_after_fork(in_child);
    pthread_mutex_unlock(&tl_graphs.lock);
    pthread_mutex_unlock(&tl_buffers.lock);
    tl_unlock_all();
    tl_inside = 0;
}

static void after_fork_in_parent(void) { after_fork(0); }

static void after_fork_in_child(void)
{
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
    after_fork(1);
}

__attribute__((constructor)) static void watch_fork(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
