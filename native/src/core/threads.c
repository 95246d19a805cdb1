/* The CPU path's thread pool: tl_parallel, the number of threads, and what fork needs.
 *
 * One job runs at a time; whoever holds `busy` owns the pool, anyone else (a task, another context's thread) runs its tasks
 * itself. Workers are made when first needed. A job is offered through one 64-bit word, the gate:
 *
 *     epoch (32 bits) | open (1 bit) | workers inside (31 bits)
 *
 * A worker enters by incrementing the gate while it is open, takes tasks from counters until none are left, and leaves by
 * decrementing it. The caller takes tasks too, then closes the gate and waits until nobody is inside. So it never waits for a
 * worker that is still asleep: one that wakes too late finds the gate closed and touches nothing.
 *
 * The tasks are cut into as many ranges as there are workers. A worker takes those of its own range first and then what is left
 * of the others': so it reads and writes, in call after call, the part of the buffers that its core's caches still hold, and
 * who comes late or is slow costs no more than one task. Whoever needs the first tasks done first asks for one range.
 *
 * Where a host's threads do the work there is no gate and there are no workers: the host runs a job's body in each thread of its
 * team, where it takes the next number and tasks from the ranges. The team always has the same size, since GNU OpenMP ends threads
 * where one shrinks. */
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "errors.h"
#include "float_mode.h"
#include "interrupt.h"

enum { TL_SPIN_NANOSECONDS = 20000, TL_SPINS = 32, TL_COPY_TASK = 1 << 18 };

#define GATE_OPEN (UINT64_C(1) << 31)
#define GATE_INSIDE (GATE_OPEN - 1)
#define GATE_EPOCH(gate) ((uint32_t)((gate) >> 32))

static struct {
    atomic_flag busy;
    _Alignas(64) _Atomic uint64_t gate;
    _Alignas(64) int32_t ranges; /* the job: written while the gate is closed and empty */
    tl_task_fn fn;
    void *arg;
    tl_look look; /* the caller's */
    _Atomic int32_t sleepers, caller_sleeps, stopping;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int32_t started; /* workers 1..started exist */
    pthread_t threads[TL_MAX_THREADS];
    struct {
        _Alignas(64) _Atomic int64_t next;
        int64_t end;
    } range[TL_MAX_THREADS]; /* the job's as well, each on a line of its own */
} pool = {.busy = ATOMIC_FLAG_INIT,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static _Atomic int32_t wanted = 1;  /* threads including the caller */
static _Atomic(tl_run_fn) host_run; /* whose threads they are; NULL: the pool's. Changes with `busy` held */
static _Atomic int32_t numbers;     /* of the host's threads that have begun the job */
static char bad_environment[48];    /* TORCHLEAN_CPU_THREADS where it is no number of threads; under pool.lock */

/* ---- waiting --------------------------------------------------------------------------------------------------- */

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Is there a job worker has not yet taken part in? */
static inline int offered(uint64_t gate, uint32_t seen) { return (gate & GATE_OPEN) && GATE_EPOCH(gate) != seen; }

/* Waits for a job and enters it; returns its epoch, or 0 when the pool stops. */
static uint32_t enter_job(uint32_t seen)
{
    for (;;) {
        int64_t deadline = now() + TL_SPIN_NANOSECONDS;
        uint64_t gate;
        do {
            for (int32_t i = 0; i < TL_SPINS; i++) {
                gate = atomic_load_explicit(&pool.gate, memory_order_relaxed);
                while (offered(gate, seen))
                    if (atomic_compare_exchange_weak_explicit(&pool.gate, &gate, gate + 1, memory_order_acquire,
                                                              memory_order_relaxed))
                        return GATE_EPOCH(gate);
                relax();
            }
            if (atomic_load_explicit(&pool.stopping, memory_order_relaxed)) return 0;
        } while (now() < deadline);
        pthread_mutex_lock(&pool.lock);
        /* Sequentially consistent on both sides: either the caller sees the sleeper or the sleeper sees the gate. */
        atomic_fetch_add(&pool.sleepers, 1);
        while (!offered(atomic_load(&pool.gate), seen) && !atomic_load(&pool.stopping))
            pthread_cond_wait(&pool.work, &pool.lock);
        atomic_fetch_sub(&pool.sleepers, 1);
        pthread_mutex_unlock(&pool.lock);
    }
}

static void run_tasks(int32_t worker)
{
    const tl_task_fn fn = pool.fn;
    void *const arg = pool.arg;
    const int32_t ranges = pool.ranges;
    for (int32_t k = 0, r = worker % ranges; k < ranges; k++, r = r + 1 < ranges ? r + 1 : 0) {
        const int64_t end = pool.range[r].end;
        int64_t task;
        /* The load first: a range that is done stays in the caches of all. */
        while (atomic_load_explicit(&pool.range[r].next, memory_order_relaxed) < end &&
               (task = atomic_fetch_add_explicit(&pool.range[r].next, 1, memory_order_relaxed)) < end) {
            if (tl_interrupted()) return;
            fn(arg, task, worker);
        }
    }
}

static void *work(void *number)
{
    uint32_t seen = 0;
    while ((seen = enter_job(seen))) {
        tl_set_look(pool.look);
        run_tasks((int32_t)(intptr_t)number);
        uint64_t gate = atomic_fetch_sub(&pool.gate, 1) - 1;
        if (!(gate & (GATE_OPEN | GATE_INSIDE)) && atomic_load(&pool.caller_sleeps)) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_signal(&pool.done);
            pthread_mutex_unlock(&pool.lock);
        }
    }
    return NULL;
}

/* ---- starting and stopping ------------------------------------------------------------------------------------- */

/* With `busy` held. Fewer threads than wanted is no error: the tasks are done by those there are. */
static void start_workers(int32_t workers)
{
    sigset_t all, previous;
    sigfillset(&all); /* signals stay with the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    while (pool.started < workers) {
        int32_t number = pool.started + 1;
        if (pthread_create(&pool.threads[number], NULL, work, (void *)(intptr_t)number)) break;
        pool.started = number;
    }
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
}

static void stop_workers(void)
{
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.stopping, 1);
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    for (int32_t i = 1; i <= pool.started; i++)
        pthread_join(pool.threads[i], NULL);
    pool.started = 0;
    atomic_store(&pool.stopping, 0);
}

/* ---- running a job --------------------------------------------------------------------------------------------- */

/* What each thread of the host's team runs. It may be one that computes in another mode, or that is in a call of its own. */
static void join_team(void *workers)
{
    const int32_t number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed);
    if (number >= *(const int32_t *)workers) return; /* a team larger than asked for */
    const uint64_t mode = tl_enter_standard_mode();
    const tl_look look = tl_get_look();
    tl_set_look(pool.look);
    run_tasks(number);
    tl_set_look(look);
    tl_leave_standard_mode(mode);
}

/* A team may be smaller than asked for: GNU OpenMP gives one thread within a team of the program's. Whoever is in it does all tasks,
 * and the caller where nobody is. */
static void run_by_host(tl_run_fn run, int32_t workers)
{
    atomic_store_explicit(&numbers, 0, memory_order_relaxed);
    run(join_team, &workers, (uint32_t)workers, 0);
    run_tasks(0);
}

static void close_gate(void)
{
    uint64_t gate = atomic_fetch_and(&pool.gate, ~GATE_OPEN) & ~GATE_OPEN;
    if (!(gate & GATE_INSIDE)) return;
    int64_t deadline = now() + TL_SPIN_NANOSECONDS;
    do {
        for (int32_t i = 0; i < TL_SPINS; i++) {
            if (!(atomic_load_explicit(&pool.gate, memory_order_acquire) & GATE_INSIDE)) return;
            relax();
        }
    } while (now() < deadline);
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.caller_sleeps, 1);
    while (atomic_load(&pool.gate) & GATE_INSIDE)
        pthread_cond_wait(&pool.done, &pool.lock);
    atomic_store(&pool.caller_sleeps, 0);
    pthread_mutex_unlock(&pool.lock);
}

static void run_job(int64_t tasks, int32_t ranges, int32_t threads, tl_task_fn fn, void *arg)
{
    int32_t workers = tl_workers() - 1;
    if (tasks <= 1 || workers == 0 || atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) {
        for (int64_t task = 0; task < tasks && !tl_interrupted(); task++)
            fn(arg, task, 0);
        return;
    }
    const tl_run_fn run = atomic_load_explicit(&host_run, memory_order_relaxed);
    if (!run && pool.started < workers) start_workers(workers);
    pool.fn = fn;
    pool.arg = arg;
    pool.look = tl_get_look();
    pool.ranges = tasks < ranges ? (int32_t)tasks : ranges;
    int64_t first = 0;
    for (int32_t r = 0; r < pool.ranges; r++) {
        atomic_store_explicit(&pool.range[r].next, first, memory_order_relaxed);
        first += tasks / pool.ranges + (r < tasks % pool.ranges);
        pool.range[r].end = first;
    }
    if (run) {
        run_by_host(run, workers + 1);
        atomic_flag_clear_explicit(&pool.busy, memory_order_release);
        return;
    }
    uint32_t epoch = GATE_EPOCH(atomic_load_explicit(&pool.gate, memory_order_relaxed)) + 1;
    if (epoch == 0) /* 0 is "nothing seen yet" */
        epoch = 1;
    atomic_store(&pool.gate, (uint64_t)epoch << 32 | GATE_OPEN);
    const int32_t sleepers = atomic_load(&pool.sleepers);
    const int64_t useful = tasks < threads ? tasks : threads;
    if (sleepers) {
        pthread_mutex_lock(&pool.lock);
        if (useful - 1 >= sleepers)
            pthread_cond_broadcast(&pool.work);
        else
            for (int64_t i = 1; i < useful; i++)
                pthread_cond_signal(&pool.work);
        pthread_mutex_unlock(&pool.lock);
    }
    run_tasks(0);
    close_gate();
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
}

void tl_parallel(int64_t tasks, tl_task_fn fn, void *arg) { run_job(tasks, tl_workers(), tl_workers(), fn, arg); }

void tl_parallel_in_order(int64_t tasks, int32_t threads, tl_task_fn fn, void *arg)
{
    run_job(tasks, 1, threads, fn, arg);
}

typedef struct copy_job {
    char *to;
    const char *from;
    size_t bytes;
} copy_job;

static void copy_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const copy_job *job = arg;
    size_t start = (size_t)task * TL_COPY_TASK, left = job->bytes - start;
    memcpy(job->to + start, job->from + start, left < TL_COPY_TASK ? left : TL_COPY_TASK);
}

void tl_copy(void *to, const void *from, size_t bytes, int32_t threads)
{
    copy_job job = {to, from, bytes};
    run_job((int64_t)((bytes + TL_COPY_TASK - 1) / TL_COPY_TASK), threads, threads, copy_task, &job);
}

/* ---- the number of threads ------------------------------------------------------------------------------------- */

int32_t tl_workers(void) { return atomic_load_explicit(&wanted, memory_order_relaxed); }

static int32_t default_threads(void)
{
    const char *text = getenv("TORCHLEAN_CPU_THREADS");
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;
    int good = text && *text && *end == 0 && n >= 1 && n <= TL_MAX_THREADS;
    pthread_mutex_lock(&pool.lock);
    snprintf(bad_environment, sizeof bad_environment, "%s", text && !good ? text : "");
    pthread_mutex_unlock(&pool.lock);
    if (good) return (int32_t)n;
    n = 0;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
    if (n < 1) n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > TL_MAX_THREADS ? TL_MAX_THREADS : (int32_t)n;
}

__attribute__((constructor)) static void count_threads(void) { atomic_store(&wanted, default_threads()); }

int32_t tl_threads_environment(void)
{
    char text[sizeof bad_environment];
    pthread_mutex_lock(&pool.lock);
    memcpy(text, bad_environment, sizeof text);
    pthread_mutex_unlock(&pool.lock);
    if (!*text) return TORCHLEAN_OK;
    return tl_fail(TORCHLEAN_ARGUMENT, "TORCHLEAN_CPU_THREADS: got \"%s\", expected a whole number from 1 to %d", text,
                   TL_MAX_THREADS);
}

tl_run_fn tl_threads_run(void) { return atomic_load_explicit(&host_run, memory_order_relaxed); }

void tl_threads_set(int32_t threads, tl_run_fn run)
{
    while (atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire))
        sched_yield();
    if (pool.started) stop_workers();
    atomic_store(&wanted, threads ? threads : default_threads());
    atomic_store(&host_run, run);
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
}

/* ---- fork ------------------------------------------------------------------------------------------------------ */

void tl_threads_before_fork(void) { pthread_mutex_lock(&pool.lock); }

void tl_threads_after_fork(int in_child)
{
    pthread_mutex_unlock(&pool.lock); /* which the calling thread has locked, in the child too */
    if (!in_child) return;
    /* The workers stayed behind, the host's too. Nobody waits on these any more, so they are simply made anew. */
    atomic_store(&host_run, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    atomic_store(&pool.gate, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.caller_sleeps, 0);
    atomic_flag_clear(&pool.busy);
    pool.started = 0;
}
