/* The second half of core_test: the thread pool, contexts used from many threads, fork, and memory running out. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/call.h"
#include "core/errors.h"
#include "core/kernel.h"
#include "core/threads.h"
#include "core_test.h"

enum { TASKS = 1000, THREADS = 8 };

#define OK_OR_RELEASED(expr) core_check(is_ok_or_released(expr), #expr, __FILE__, __LINE__)
static int is_ok_or_released(int32_t status) { return status == TORCHLEAN_OK || status == TORCHLEAN_RELEASED; }

typedef struct tally {
    _Atomic int done[TASKS];
    _Atomic int bad_worker, inner;
} tally;

static void count_inner(void *arg, int64_t task, int32_t worker)
{
    (void)task;
    if (worker < 0 || worker >= tl_workers()) ((tally *)arg)->bad_worker++;
    ((tally *)arg)->inner++;
}

static void count(void *arg, int64_t task, int32_t worker)
{
    tally *t = arg;
    t->done[task]++;
    if (worker < 0 || worker >= tl_workers()) t->bad_worker++;
    if (task % 100 == 0) tl_parallel(10, count_inner, t);
}

static void run_tally(int64_t tasks)
{
    static _Thread_local tally t;
    for (int threads = 0; threads < 4; threads++) { /* 0: all of them, in no order */
        memset(&t, 0, sizeof t);
        if (threads)
            tl_parallel_in_order(tasks, threads, count, &t);
        else
            tl_parallel(tasks, count, &t);
        int wrong = 0;
        for (int i = 0; i < TASKS; i++)
            wrong += t.done[i] != (i < tasks);
        CHECK(wrong == 0 && t.bad_worker == 0 && t.inner == (tasks + 99) / 100 * 10);
    }
}

typedef struct queue {
    _Atomic int begun[TASKS];
    _Atomic int early;
} queue;

/* A task that has begun leaves at most one for each other worker that has been taken and has not begun. */
static void queue_up(void *arg, int64_t task, int32_t worker)
{
    queue *q = arg;
    int missing = 0;
    (void)worker;
    q->begun[task] = 1;
    for (int64_t i = 0; i < task; i++)
        missing += !q->begun[i];
    q->early += missing >= tl_workers();
}

static void test_order(void)
{
    static queue q;
    OK(torchlean_cuda_set_threads(THREADS));
    for (int round = 0; round < 50; round++) {
        memset(&q, 0, sizeof q);
        tl_parallel_in_order(TASKS, THREADS, queue_up, &q);
        CHECK(q.early == 0);
    }
}

static void pause_for(int64_t microseconds)
{
    const struct timespec time = {0, microseconds * 1000};
    nanosleep(&time, NULL);
}

static void note_worker(void *arg, int64_t task, int32_t worker)
{
    (void)task;
    ((_Atomic int *)arg)[worker] = 1;
    pause_for(2000);
}

/* Of a pool that sleeps, no more threads take part than are asked for; all of them do where enough are. */
static void test_threads_asked_for(void)
{
    OK(torchlean_cuda_set_threads(THREADS));
    tl_parallel_in_order(TASKS, THREADS, count, &(tally){0}); /* starts them */
    for (int threads = 1; threads <= THREADS; threads++) {
        _Atomic int seen[THREADS] = {0};
        int workers = 0;
        pause_for(50000); /* until all sleep */
        tl_parallel_in_order(16, threads, note_worker, seen);
        for (int i = 0; i < THREADS; i++)
            workers += seen[i];
        CHECK(workers <= threads && (threads == 1 || workers > 1));
    }
}

static void test_parallel(void)
{
    static const uint32_t numbers[] = {1, 2, 3, 8, 17, 4};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        OK(torchlean_cuda_set_threads(numbers[k]));
        CHECK(torchlean_cuda_threads() == numbers[k]);
        for (int64_t tasks = 0; tasks < 12; tasks++)
            run_tally(tasks);
        for (int i = 0; i < 200; i++)
            run_tally(TASKS);
        usleep(1000); /* long enough for the workers to fall asleep */
        run_tally(TASKS);
        usleep(1000);
        run_tally(2);
    }
    CHECK_STATUS(torchlean_cuda_set_threads(100000), TORCHLEAN_ARGUMENT);
    tl_parallel(-1, count, NULL);
}

/* Workers that are stopped at every moment of falling asleep, after 20 µs without a job: none misses it. */
static void test_stopping(void)
{
    for (int i = 0; i < 4000; i++) {
        struct timespec start, now;
        OK(torchlean_cuda_set_threads(2));
        run_tally(2); /* makes the worker */
        clock_gettime(CLOCK_MONOTONIC, &start);
        do
            clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec < i % 400 * 100);
        alarm(20);
        OK(torchlean_cuda_set_threads(1));
    }
    alarm(0);
}

/* ---- contexts from many threads -------------------------------------------------------------------------------- */

typedef struct hammer {
    torchlean_context *context;
    torchlean_buffer **common; /* released by whoever comes first */
    int number, rounds;
} hammer;

static void *swing(void *arg)
{
    hammer *h = arg;
    float host[300], back[300];
    for (int i = 0; i < 300; i++)
        host[i] = (float)(h->number * 1000 + i);
    for (int round = 0; round < h->rounds; round++) {
        uint32_t n = 1 + (uint32_t)(round * 7 + h->number) % 300, got = 0;
        torchlean_buffer *a = NULL, *b = NULL, *s = NULL;
        torchlean_memory m;
        OK(torchlean_cuda_buffer_upload(h->context, host, n, &a));
        OK(torchlean_cuda_buffer_copy(a, &b));
        OK(torchlean_cuda_buffer_share(b, &s));
        OK(torchlean_cuda_buffer_release(b));
        OK(torchlean_cuda_buffer_length(s, &got));
        OK(torchlean_cuda_buffer_download(s, back, n));
        CHECK(got == n && memcmp(host, back, n * sizeof(float)) == 0);
        OK(torchlean_cuda_memory_stats(h->context, &m));
        if (round % 16 == 0) OK(torchlean_cuda_memory_collect(h->context));
        if (h->common) {
            /* the same handle used and released by all threads at once: success or RELEASED, never more */
            torchlean_buffer *c = h->common[round % 64];
            OK_OR_RELEASED(torchlean_cuda_buffer_fill(c, round));
            int32_t status = torchlean_cuda_buffer_length(c, &got);
            CHECK((status == TORCHLEAN_OK && got == 11) || status == TORCHLEAN_RELEASED);
            OK(torchlean_cuda_buffer_release(c));
        }
        OK(torchlean_cuda_buffer_release(a));
        OK(torchlean_cuda_buffer_release(s));
        run_tally(round % 8 ? 1 : 150);
    }
    return NULL;
}

static void run_hammers(int contexts, int rounds)
{
    torchlean_context *context[THREADS] = {0};
    torchlean_buffer *common[64] = {0};
    hammer hammers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < contexts; i++)
        OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context[i]));
    for (int i = 0; i < 64; i++)
        OK(torchlean_cuda_buffer_empty(context[0], 11, &common[i]));
    for (int i = 0; i < THREADS; i++) {
        hammers[i] = (hammer){context[i % contexts], common, i, rounds};
        CHECK(pthread_create(&threads[i], NULL, swing, &hammers[i]) == 0);
    }
    for (int i = 0; i < 5; i++) { /* while they run */
        OK(torchlean_cuda_set_threads((uint32_t)(i % 3 + 1)));
        OK(torchlean_cuda_set_cpu_variant(i % 2 ? "base" : NULL));
        usleep(2000);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < contexts; i++) {
        torchlean_memory m;
        OK(torchlean_cuda_memory_stats(context[i], &m));
        CHECK(m.live_bytes == 0 && m.live_buffers == 0);
        OK(torchlean_cuda_context_destroy(context[i]));
    }
    OK(torchlean_cuda_set_cpu_variant(NULL));
}

/* Contexts that come and go under the feet of threads that use them. */
static _Atomic(torchlean_context *) current;
static _Atomic(torchlean_buffer *) current_buffer;
static _Atomic int stop;

static void *use_current(void *arg)
{
    (void)arg;
    float host[5];
    while (!stop) {
        torchlean_context *context = current;
        torchlean_buffer *buffer = current_buffer, *made = NULL;
        OK_OR_RELEASED(torchlean_cuda_buffer_zeros(context, 100, &made));
        OK_OR_RELEASED(torchlean_cuda_buffer_download(buffer, host, 5));
        if (made) OK(torchlean_cuda_buffer_release(made));
        OK_OR_RELEASED(torchlean_cuda_buffer_context(buffer, &context));
    }
    return NULL;
}

static void test_destroy_in_use(void)
{
    pthread_t threads[4];
    torchlean_context *context = NULL;
    for (int round = 0; round < 200; round++) {
        torchlean_context *fresh = NULL;
        torchlean_buffer *buffer = NULL;
        OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &fresh));
        OK(torchlean_cuda_buffer_zeros(fresh, 5, &buffer));
        current = fresh;
        current_buffer = buffer;
        if (round == 0) {
            for (int i = 0; i < 4; i++)
                CHECK(pthread_create(&threads[i], NULL, use_current, NULL) == 0);
        } else {
            OK(torchlean_cuda_context_destroy(context));
        }
        context = fresh;
        sched_yield();
    }
    stop = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(torchlean_cuda_context_destroy(context));
}

/* Calls that wait for a context's lock while the context ends. */
enum { KINDS = 6 };

typedef struct waiter {
    torchlean_context *context;
    torchlean_buffer *buffer, *made;
    int32_t kind, status;
    _Atomic pid_t thread;
} waiter;

static void *call_and_wait(void *arg)
{
    waiter *w = arg;
    torchlean_context *own = NULL;
    torchlean_memory memory;
    float host[5];
    w->thread = (pid_t)syscall(SYS_gettid);
    switch (w->kind) {
    case 0:
    case 1: w->status = torchlean_cuda_context_destroy(w->context); break;
    case 2: w->status = torchlean_cuda_buffer_zeros(w->context, 100, &w->made); break;
    case 3: w->status = torchlean_cuda_buffer_download(w->buffer, host, 5); break;
    case 4: w->status = torchlean_cuda_memory_stats(w->context, &memory); break;
    default: w->status = torchlean_cuda_buffer_release(w->buffer);
    }
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &own)); /* a call that was refused leaves no mark on its thread */
    OK(torchlean_cuda_context_destroy(own));
    return NULL;
}

/* Waits until a thread sleeps, or not for ever: a lock that it waits for is then taken in the order of waiting. */
static void wait_for_sleep(const waiter *w)
{
    char path[64], state = 0;
    for (int i = 0; i < 100000 && state != 'S'; i++, sched_yield()) {
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)w->thread);
        FILE *file = w->thread ? fopen(path, "r") : NULL;
        if (file && fscanf(file, "%*d %*s %c", &state) != 1) state = 0;
        if (file) fclose(file);
    }
}

static void test_destroy_before_a_waiting_call(void)
{
    for (int32_t round = 0; round < 8; round++) {
        waiter waiters[KINDS] = {{0}};
        pthread_t threads[KINDS];
        torchlean_context *context = NULL;
        torchlean_buffer *buffer = NULL;
        uint32_t n;
        tl_call call;
        OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
        OK(torchlean_cuda_buffer_zeros(context, 5, &buffer));
        tl_enter_context(&call, "fake", context);
        alarm(20); /* a lock that is kept ends as a failure */
        for (int i = 0; i < KINDS; i++) {
            waiters[i].kind = i;
            waiters[i].context = context;
            waiters[i].buffer = buffer;
            CHECK(pthread_create(&threads[i], NULL, call_and_wait, &waiters[i]) == 0);
            wait_for_sleep(&waiters[i]);
        }
        OK(tl_end(&call));
        for (int i = 0; i < KINDS; i++)
            pthread_join(threads[i], NULL);
        alarm(0);
        OK(waiters[0].status);
        for (int i = 1; i < KINDS; i++)
            OK_OR_RELEASED(waiters[i].status);
        if (waiters[2].made) CHECK_STATUS(torchlean_cuda_buffer_length(waiters[2].made, &n), TORCHLEAN_RELEASED);
        CHECK_STATUS(torchlean_cuda_buffer_length(buffer, &n), TORCHLEAN_RELEASED);
    }
}

/* ---- fork ------------------------------------------------------------------------------------------------------ */

static void test_fork(void)
{
    torchlean_context *context = NULL;
    torchlean_buffer *a = NULL;
    hammer h = {NULL, NULL, 1, 400};
    pthread_t thread;
    OK(torchlean_cuda_set_threads(4));
    run_tally(TASKS);
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    OK(torchlean_cuda_buffer_zeros(context, 5, &a));
    h.context = context;
    CHECK(pthread_create(&thread, NULL, swing, &h) == 0); /* a busy context must not leave locks taken in the child */
    for (int i = 0; i < 10; i++) {
        uint32_t serial = tl_fork_serial();
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            int before = core_failures;
            float host[5];
            alarm(60); /* a deadlock ends as a failure */
            CHECK(tl_fork_serial() == serial + 1);
            run_tally(TASKS);
            run_tally(TASKS);
            OK(torchlean_cuda_buffer_download(a, host, 5));
            OK(torchlean_cuda_context_destroy(context));
            _exit(core_failures != before);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        run_tally(TASKS);
    }
    pthread_join(thread, NULL);
    OK(torchlean_cuda_context_destroy(context));
}

/* ---- memory running out ---------------------------------------------------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they reserve address space by the terabyte */
static uint64_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    if (file) fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void test_exhaustion(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        torchlean_context *context = NULL;
        torchlean_buffer *kept = NULL, *refused = NULL;
        int before = core_failures;
        OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
        OK(torchlean_cuda_buffer_zeros(context, 1000, &kept));
        rlim_t most = address_space() + (UINT64_C(1) << 30);
        CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_cur = most, .rlim_max = most}) == 0);
        CHECK(torchlean_cuda_buffer_zeros(context, 300000000, &refused) == TORCHLEAN_NO_MEMORY);
        CHECK(refused == NULL && strstr(torchlean_cuda_last_error(), "asked for 1200000000 bytes") != NULL);
        /* what the cache holds is given up for a request that does not fit beside it */
        OK(torchlean_cuda_buffer_empty(context, 130000000, &refused));
        OK(torchlean_cuda_buffer_release(refused));
        refused = NULL;
        OK(torchlean_cuda_buffer_empty(context, 150000000, &refused));
        /* small requests until nothing is left: a status, and the context still works */
        int32_t status;
        torchlean_buffer *one;
        do {
            one = NULL;
            status = torchlean_cuda_buffer_empty(context, 16000, &one);
        } while (status == TORCHLEAN_OK);
        CHECK(status == TORCHLEAN_NO_MEMORY && one == NULL);
        OK(torchlean_cuda_buffer_fill(kept, 1));
        OK(torchlean_cuda_context_destroy(context));
        /* handles without storage of their own, until their table cannot grow; one that is given back serves again */
        context = NULL;
        kept = NULL;
        OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
        OK(torchlean_cuda_buffer_zeros(context, 1000, &kept));
        most = address_space() + (UINT64_C(1) << 24);
        CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_cur = most, .rlim_max = most}) == 0);
        torchlean_buffer *before_last, *last = NULL;
        do {
            before_last = last;
            last = NULL;
            status = torchlean_cuda_buffer_share(kept, &last);
        } while (status == TORCHLEAN_OK);
        CHECK(status == TORCHLEAN_NO_MEMORY && last == NULL);
        CHECK(strstr(torchlean_cuda_last_error(), "buffer_share: out of host memory for a buffer handle") != NULL);
        OK(torchlean_cuda_buffer_release(before_last));
        OK(torchlean_cuda_buffer_share(kept, &last));
        OK(torchlean_cuda_context_destroy(context));
        _exit(core_failures != before);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}
#else
static void test_exhaustion(void) {}
#endif

/* ---- signals ---------------------------------------------------------------------------------------------------- */

static torchlean_context *interrupted;
static torchlean_buffer *its_buffer;
static char handler_text[160];

/* Calls of a handler while a call of its thread has the context. */
static void call_again(int signal)
{
    (void)signal;
    torchlean_context *other = NULL;
    torchlean_buffer *out = NULL;
    CHECK_STATUS(torchlean_cuda_buffer_copy(its_buffer, &out), TORCHLEAN_UNAVAILABLE);
    CHECK_STATUS(torchlean_cuda_buffer_release(its_buffer), TORCHLEAN_UNAVAILABLE);
    CHECK_STATUS(torchlean_cuda_context_destroy(interrupted), TORCHLEAN_UNAVAILABLE);
    CHECK_STATUS(torchlean_cuda_set_threads(1), TORCHLEAN_UNAVAILABLE);
    CHECK_STATUS(torchlean_cuda_set_cpu_variant("base"), TORCHLEAN_UNAVAILABLE);
    CHECK_STATUS(torchlean_cuda_context_create(TORCHLEAN_CPU, &other), TORCHLEAN_UNAVAILABLE);
    torchlean_cuda_take_error(TORCHLEAN_UNAVAILABLE, handler_text, sizeof handler_text);
}

static void test_signals(void)
{
    char text[160];
    uint32_t n;
    float one = 1;
    interrupted = NULL;
    its_buffer = NULL;
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &interrupted));
    OK(torchlean_cuda_buffer_upload(interrupted, &one, 1, &its_buffer));
    signal(SIGUSR1, call_again);
    tl_call call;
    tl_enter(&call, "fake", "a", its_buffer);
    tl_require(&call, 0, TORCHLEAN_SHAPE, "a", "got what the interrupted call refuses");
    raise(SIGUSR1);
    CHECK_STATUS(tl_end(&call), TORCHLEAN_SHAPE);
    CHECK(strcmp(handler_text,
                 "torchlean_cuda_context_create: got a call within another of its thread, expected none") == 0);
    /* between a call and its text: each status has its own */
    CHECK_STATUS(torchlean_cuda_buffer_length(NULL, &n), TORCHLEAN_NULL);
    CHECK(torchlean_cuda_take_error(TORCHLEAN_SHAPE, text, sizeof text) == strlen(text));
    CHECK(strcmp(text, "fake: a: got what the interrupted call refuses") == 0);
    CHECK(torchlean_cuda_take_error(TORCHLEAN_SHAPE, text, sizeof text) == 0 && !*text);
    CHECK(strstr(torchlean_cuda_last_error(), "torchlean_cuda_buffer_length: ") != NULL);
    OK(torchlean_cuda_context_destroy(interrupted));
}

/* A pool counts its blocks, and has buckets enough for them. */
static void test_blocks_of_a_pool(void)
{
    enum { BLOCKS = 3000 };
    torchlean_context *context = NULL;
    tl_context *ctx;
    static void *p[BLOCKS];
    uint64_t chained = 0;
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    CHECK(tl_lock_context(context, &ctx) == TL_LIVE);
    for (int i = 0; i < BLOCKS; i++)
        OK(tl_pool_alloc(ctx, 300, &p[i]));
    for (uint64_t i = 0; i < ctx->pool.bucket_count; i++)
        for (const tl_block *block = ctx->pool.buckets[i]; block; block = block->chain)
            chained++;
    CHECK(chained == BLOCKS && ctx->pool.blocks == BLOCKS);
    CHECK(ctx->pool.bucket_count >= BLOCKS && ctx->pool.bucket_count <= 4 * BLOCKS);
    tl_unlock(ctx);
    OK(torchlean_cuda_context_destroy(context));
}

void core_test_concurrency(void)
{
    test_blocks_of_a_pool();
    test_parallel();
    test_order();
    test_threads_asked_for();
    test_stopping();
    run_hammers(1, 300);
    run_hammers(THREADS, 300);
    test_destroy_in_use();
    test_destroy_before_a_waiting_call();
    test_fork();
    test_exhaustion();
    test_signals();
}
