/* A context that works for a host: buffers over the host's memory, its allocator, its stream and its threads. */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/call.h"
#include "core/dlpack.h"
#include "core/errors.h"
#include "core/float_mode.h"
#include "core/kernel.h"
#include "core/threads.h"
#include "core_test.h"
#include "torchlean_cuda_ops.h"

enum { N = 24, TASKS = 500, TEAM = 4 };
#define SAYS(expr, wanted, text) \
    (CHECK_STATUS(expr, wanted), CHECK(strstr(torchlean_cuda_last_error(), text) != NULL))

static torchlean_context *context;
static _Alignas(64) float numbers[64];

static torchlean_memory stats(void)
{
    torchlean_memory m = {0};
    OK(torchlean_cuda_memory_stats(context, &m));
    return m;
}

static uint64_t live(void) { return stats().live_bytes + stats().live_buffers; }

static torchlean_buffer *wrap(void *memory, uint32_t n, int32_t is_index)
{
    torchlean_buffer *out = NULL;
    OK(torchlean_cuda_buffer_wrap(context, memory, n, is_index, &out));
    return out;
}

static uint32_t references(torchlean_buffer *buffer)
{
    uint32_t count = 0;
    OK(torchlean_cuda_buffer_references(buffer, &count));
    return count;
}

static void release(torchlean_buffer *buffer) { OK(torchlean_cuda_buffer_release(buffer)); }

static void count(dl_managed *t) { ++*(int *)t->manager; }

/* ---- wrapping ---------------------------------------------------------------------------------------------------- */

static void refuse_wrap(void *memory, uint32_t n, int32_t is_index, int32_t status, const char *text)
{
    const uint64_t before = live();
    torchlean_buffer *out = NULL;
    SAYS(torchlean_cuda_buffer_wrap(context, memory, n, is_index, &out), status, text);
    CHECK(!out && live() == before);
}

static void test_refused_wraps(void)
{
    torchlean_buffer *out = NULL, *taken = (torchlean_buffer *)8;
    refuse_wrap(NULL, 1, 0, TORCHLEAN_NULL, "memory: got NULL, expected 1 elements");
    refuse_wrap(numbers + 1, 1, 0, TORCHLEAN_ARGUMENT,
                "memory: got an address at a multiple of 4 bytes, expected of 16");
    refuse_wrap(numbers + 2, 0, 0, TORCHLEAN_ARGUMENT, "at a multiple of 8 bytes");
    refuse_wrap(numbers, 1, 2, TORCHLEAN_ARGUMENT, "is_index: got 2, expected 0 or 1");
    refuse_wrap(numbers, 1, -1, TORCHLEAN_ARGUMENT, "is_index: got -1");
    SAYS(torchlean_cuda_buffer_wrap(context, numbers, 1, 0, NULL), TORCHLEAN_NULL, "out: got NULL");
    SAYS(torchlean_cuda_buffer_wrap(context, numbers, 1, 0, &taken), TORCHLEAN_ARGUMENT, "out: got a handle");
    SAYS(torchlean_cuda_buffer_wrap(NULL, numbers, 1, 0, &out), TORCHLEAN_NULL, "context: got NULL");
    CHECK(!out);
}

/* Handles to one address are one storage for the checks of a call, whatever they are of. */
static void test_aliases(torchlean_buffer *a, torchlean_buffer *b, torchlean_buffer *separate)
{
    torchlean_buffer *out = b, *other = a;
    OK(torchlean_cuda_buffer_add(a, a, &out));
    SAYS(torchlean_cuda_buffer_transpose2d(a, 4, N / 4, &out), TORCHLEAN_ALIAS, "out: got storage of input x");
    SAYS(torchlean_cuda_buffer_mul_bwd(separate, separate, separate, &out, &other), TORCHLEAN_ALIAS,
         "got storage of output");
    torchlean_buffer *ps[2] = {a, separate}, *gs[2] = {separate, b}, *outs[2] = {a, separate};
    SAYS(torchlean_cuda_buffer_sgd_step(context, ps, gs, 2, 0.1, 0, outs), TORCHLEAN_ALIAS, "got storage of");
    gs[0] = a, gs[1] = separate;
    OK(torchlean_cuda_buffer_sgd_step(context, ps, gs, 2, 0.1, 0, outs));
}

static void test_wrapping(void)
{
    const uint64_t before = live();
    float host[N];
    uint32_t indices[4];
    torchlean_buffer *a = wrap(numbers, N, 0), *b = wrap(numbers, N, 0), *rest = wrap(numbers + N, N, 0);
    torchlean_buffer *longer = wrap(numbers, 2 * N, 0), *typed = wrap(numbers, 4, 1);
    CHECK(references(a) == 4 && references(rest) == 1 && stats().live_bytes + stats().live_buffers == before + 5);
    OK(torchlean_cuda_buffer_fill(longer, 1.0));
    OK(torchlean_cuda_buffer_fill(b, 3.0));
    CHECK(numbers[0] == 3 && numbers[N - 1] == 3 && numbers[N] == 1 && numbers[2 * N - 1] == 1);
    OK(torchlean_cuda_index_download(typed, indices, 4));
    CHECK(indices[3] == 0x40400000);
    SAYS(torchlean_cuda_buffer_download(typed, host, 4), TORCHLEAN_ARGUMENT, "got an index buffer");
    test_aliases(a, b, rest);
    SAYS(torchlean_cuda_buffer_add(a, a, &longer), TORCHLEAN_SHAPE, "got 48 elements");
    release(a), release(typed), release(longer), release(b), release(rest);

    /* no elements: nothing is read there, and nothing is an alias */
    torchlean_buffer *none = wrap(NULL, 0, 0), *empty = wrap(numbers, 0, 1), *out = wrap(numbers, 0, 0), *sum = NULL;
    OK(torchlean_cuda_buffer_transpose2d(none, 0, 5, &out));
    OK(torchlean_cuda_buffer_reduce_sum(none, 0, &sum));
    OK(torchlean_cuda_buffer_download(sum, host, 1));
    OK(torchlean_cuda_index_download(empty, indices, 0));
    CHECK(host[0] == 0);
    release(none), release(empty), release(out), release(sum);

    /* more handles than a context has slots of its own for */
    torchlean_buffer *many[200];
    for (int i = 0; i < 200; i++)
        many[i] = wrap(numbers, (uint32_t)(i % N), i & 1);
    for (int i = 0; i < 200; i++)
        release(many[i]);
    SAYS(torchlean_cuda_buffer_fill(many[7], 0), TORCHLEAN_RELEASED, "released buffer");
    CHECK(live() == before);
}

/* Memory that the context has already: its own, which the handle keeps, or of a lender, who has it back after the last handle. */
static void test_known_memory(void)
{
    const uint64_t before = live();
    const uint32_t shape[1] = {N};
    torchlean_buffer *own = NULL, *borrowed = NULL;
    void *tensor = NULL;
    OK(torchlean_cuda_buffer_zeros(context, N, &own));
    OK(torchlean_cuda_buffer_lend(own, shape, 1, 0, &tensor));
    dl_managed *const lent = tensor;
    float *const data = lent->tensor.data;
    lent->deleter(lent);
    torchlean_buffer *a = wrap(data, N, 0), *rest = wrap(numbers, N, 0);
    CHECK(references(own) == 2);
    test_aliases(own, a, rest);
    refuse_wrap(data, 4096, 0, TORCHLEAN_ALIAS, "memory: got 16384 bytes from where");
    release(own);
    OK(torchlean_cuda_buffer_fill(a, 5.0));
    CHECK(data[N - 1] == 5);
    release(a);
    refuse_wrap(data, N, 0, TORCHLEAN_ALIAS, "which are free");
    release(rest);

    for (int wrapped_first = 0; wrapped_first < 2; wrapped_first++) {
        int64_t length[1] = {N};
        static int deleted;
        deleted = 0;
        int32_t device = 0;
        OK(torchlean_cuda_context_device(context, &device));
        dl_managed m = {
            {numbers, device < 0 ? DL_CPU : DL_CUDA, 0, 1, DL_FLOAT, 32, 1, length, NULL, 0}, &deleted, count};
        if (wrapped_first) a = wrap(numbers, 2 * N, 0);
        borrowed = NULL;
        OK(torchlean_cuda_buffer_borrow(context, &m, 0, &borrowed));
        if (!wrapped_first) a = wrap(numbers, 2 * N, 0);
        CHECK(references(a) == 2);
        release(borrowed);
        CHECK(deleted == 0);
        OK(torchlean_cuda_buffer_fill(a, 1.0));
        release(a);
        CHECK(deleted == 1);
    }
    CHECK(live() == before);
}

/* ---- the host's allocator ------------------------------------------------------------------------------------------ */

/* Memory at odd multiples of 16 bytes, as not all allocators know larger alignments; it counts what is out. */
typedef struct allocator {
    int out, calls, refuse;
    uint64_t asked;
    int32_t inner; /* status of a call made within */
} allocator;

static void *allocate(void *user, uint64_t bytes)
{
    allocator *const a = user;
    a->calls++;
    a->asked = bytes;
    torchlean_buffer *made = NULL;
    a->inner = torchlean_cuda_buffer_zeros(context, 1, &made);
    if (a->refuse) return NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, 256, bytes + 16)) return NULL;
    a->out++;
    return (char *)memory + 16;
}

static void give_back(void *user, void *memory)
{
    ((allocator *)user)->out--;
    free((char *)memory - 16);
}

static int32_t adopt(uint64_t stream, allocator *a)
{
    return torchlean_cuda_context_adopt(context, stream, a ? allocate : NULL, a ? give_back : NULL, a);
}

/* Blocks that kernels take for a call. */
static void test_scratch(allocator *a)
{
    const int before = a->out;
    const tl_content content = {{1, 2, 3, 4}};
    void *p, *q, *rest, *same;
    tl_call call;
    tl_enter_context(&call, "fake", context);
    OK(tl_pool_alloc(call.ctx, 1000, &p));
    OK(tl_pool_alloc(call.ctx, 0, &q));
    OK(tl_pool_alloc_for_call(call.ctx, 100, &rest));
    OK(tl_pool_alloc_for_call(call.ctx, 100, &same));
    CHECK(a->out == before + 3 && rest == same && p != q && (uintptr_t)p % 256 == 0 && (uintptr_t)q % 256 == 0);
    CHECK(a->inner == TORCHLEAN_UNAVAILABLE);
    memset(p, 1, 1000);
    tl_pool_free(call.ctx, q);
    CHECK(a->out == before + 2);
    tl_pool_keep(call.ctx, p, content); /* a host's memory is not kept */
    CHECK(a->out == before + 1 && !tl_pool_kept(call.ctx, 1000, content));
    OK(tl_end(&call));
    CHECK(a->out == before);
}

static void test_allocator(uint64_t stream)
{
    allocator a = {0}, b = {0};
    torchlean_buffer *before = NULL, *x = NULL, *y = NULL, *cached = NULL;
    OK(torchlean_cuda_buffer_zeros(context, N, &before));
    OK(torchlean_cuda_buffer_zeros(context, 4 * N, &cached));
    release(cached);
    const torchlean_memory own = stats();
    CHECK(own.cached_bytes > 0);
    SAYS(torchlean_cuda_context_adopt(context, stream, allocate, NULL, &a), TORCHLEAN_NULL, "release: got NULL");
    SAYS(torchlean_cuda_context_adopt(context, stream, NULL, give_back, &a), TORCHLEAN_NULL, "allocate: got NULL");
    SAYS(torchlean_cuda_context_adopt(context, 7, NULL, NULL, NULL), TORCHLEAN_ARGUMENT, "stream: got 7, expected 0");
    OK(adopt(stream, &a));
    OK(adopt(stream, &a));
    CHECK(stats().cached_bytes == 0); /* of no use to the host */
    OK(torchlean_cuda_buffer_add(before, before, &x));
    CHECK(a.out == 1 && stats().live_bytes == own.live_bytes + 256);
    test_scratch(&a);
    a.refuse = 1;
    SAYS(torchlean_cuda_buffer_add(x, x, &y), TORCHLEAN_NO_MEMORY, "the host's allocator has none");
    CHECK(!y && a.out == 1);
    a.refuse = 0;
    OK(torchlean_cuda_memory_cap(context, stats().live_bytes + 255));
    SAYS(torchlean_cuda_buffer_add(x, x, &y), TORCHLEAN_NO_MEMORY, "cap is reached");
    OK(torchlean_cuda_memory_cap(context, 0));
    a.calls = 0;
    for (int i = 0; i < 3; i++) {
        y = NULL;
        OK(torchlean_cuda_buffer_add(x, x, &y));
        release(y);
    }
    CHECK(a.calls == 3 && a.out == 1 && stats().cached_bytes == 0);

    /* a block goes back to where it is from, whoever is the host by then */
    OK(adopt(stream, &b));
    y = NULL;
    OK(torchlean_cuda_buffer_add(x, x, &y));
    CHECK(a.out == 1 && b.out == 1);
    release(before);
    CHECK(stats().cached_bytes > 0);
    release(x);
    CHECK(a.out == 0);
    OK(adopt(0, NULL));
    x = NULL;
    OK(torchlean_cuda_buffer_copy(y, &x));
    CHECK(b.out == 1);
    release(y);
    CHECK(b.out == 0 && stats().live_bytes == 256);
    release(x);

    OK(adopt(stream, &b));
    OK(torchlean_cuda_buffer_zeros(context, N, &(torchlean_buffer *){NULL}));
    CHECK(b.out == 1);
    OK(torchlean_cuda_context_destroy(context));
    CHECK(b.out == 0);
}

/* ---- the host's stream --------------------------------------------------------------------------------------------- */

static void test_stream(void)
{
    allocator a = {0};
    uint64_t own = 0, now = 0;
    float host[N];
    torchlean_buffer *x = NULL, *y = NULL;
    torchlean_graph *graph = NULL;
    OK(torchlean_cuda_context_create(0, &context));
    OK(torchlean_cuda_buffer_zeros(context, N, &x));
    OK(torchlean_cuda_context_stream(context, &own));
    OK(torchlean_cuda_capture_begin(context));
    SAYS(adopt(5, &a), TORCHLEAN_UNAVAILABLE, "during its capture");
    OK(torchlean_cuda_buffer_add(x, x, &y));
    OK(torchlean_cuda_capture_end(context, &graph));
    fake_cuda_fail(TORCHLEAN_CUDA, 0);
    SAYS(adopt(5, &a), TORCHLEAN_CUDA, "says no");
    OK(torchlean_cuda_context_stream(context, &now));
    CHECK(now == own);
    SAYS(adopt(2, &a), TORCHLEAN_ARGUMENT, "stream: got 2, which is another in each thread");
    OK(adopt(5, &a));
    OK(torchlean_cuda_context_stream(context, &now));
    CHECK(now == 5);
    OK(adopt(0, &a));
    OK(torchlean_cuda_context_stream(context, &now));
    CHECK(now == 0);
    SAYS(torchlean_cuda_capture_begin(context), TORCHLEAN_UNAVAILABLE, "expected the host to capture it");
    SAYS(torchlean_cuda_graph_launch(graph), TORCHLEAN_UNAVAILABLE, "expected the host to capture it");

    fake_cuda_host_captures = 1;
    OK(torchlean_cuda_buffer_add(x, x, &x));
    SAYS(torchlean_cuda_buffer_download(x, host, N), TORCHLEAN_UNAVAILABLE, "cannot be captured");
    SAYS(torchlean_cuda_buffer_upload(context, host, N, &x), TORCHLEAN_UNAVAILABLE, "cannot be captured");
    SAYS(torchlean_cuda_context_synchronize(context), TORCHLEAN_UNAVAILABLE, "cannot be captured");
    SAYS(torchlean_cuda_context_mark(context, 0), TORCHLEAN_UNAVAILABLE, "cannot be captured");
    SAYS(torchlean_cuda_context_order(context, 1, 0), TORCHLEAN_UNAVAILABLE, "cannot be captured");
    /* what is lent is not asked after, and goes back later */
    int64_t length[1] = {N};
    int deleted = 0;
    dl_managed m = {{numbers, DL_CUDA, 0, 1, DL_FLOAT, 32, 1, length, NULL, 0}, &deleted, count};
    torchlean_buffer *borrowed = NULL;
    OK(torchlean_cuda_buffer_borrow(context, &m, 0, &borrowed));
    release(borrowed);
    OK(torchlean_cuda_buffer_add(x, x, &x));
    CHECK(deleted == 0);
    fake_cuda_host_captures = 0;
    OK(torchlean_cuda_buffer_add(x, x, &x));
    CHECK(deleted == 1);

    OK(adopt(0, NULL));
    OK(torchlean_cuda_context_stream(context, &now));
    CHECK(now == own);
    OK(torchlean_cuda_graph_launch(graph));
    OK(torchlean_cuda_context_destroy(context));
    CHECK(a.out == 0 && fake_cuda_blocks == 0 && fake_cuda_graphs == 0);
}

/* ---- the host's threads -------------------------------------------------------------------------------------------- */

static _Atomic int teams, bodies,
    mode_changes;           /* runs of the fake below; bodies in them; threads whose mode was not kept */
static int members_at_most; /* a smaller team than is asked for */

typedef struct member {
    void (*body)(void *);
    void *data;
} member;

/* Threads that flush subnormals to zero and round up, as a program may have set them. */
static void *join(void *argument)
{
    const member *const m = argument;
    const uint32_t before = tl_get_mode();
    tl_set_mode((before & ~(uint32_t)TL_MODE_BITS) | TL_STANDARD_MODE | 0x8040u);
    const uint32_t set = tl_get_mode() & TL_MODE_BITS;
    m->body(m->data);
    bodies++;
    mode_changes += (tl_get_mode() & TL_MODE_BITS) != set;
    tl_set_mode(before);
    return NULL;
}

static void fake_run(void (*body)(void *), void *data, uint32_t threads, uint32_t flags)
{
    member m = {body, data};
    pthread_t others[64];
    teams++;
    CHECK(threads >= 1 && threads <= 64 && flags == 0);
    if ((int)threads > members_at_most) threads = (uint32_t)members_at_most;
    for (uint32_t i = 1; i < threads; i++)
        CHECK(!pthread_create(&others[i], NULL, join, &m));
    if (threads) join(&m);
    for (uint32_t i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
}

typedef struct tally {
    _Atomic int done[TASKS], at_work[TEAM], bad, inner;
    volatile float tiny; /* a subnormal, which is 0 where it is flushed */
} tally;

/* A task does those of its own itself, but where another thread owned the pool when the task began and has left it meanwhile. */
static void count_inner(void *arg, int64_t task, int32_t worker)
{
    ((tally *)arg)->bad += worker < 0 || worker >= tl_workers() || task < 0;
    ((tally *)arg)->inner++;
}

static void count_task(void *arg, int64_t task, int32_t worker)
{
    tally *const t = arg;
    t->done[task]++;
    if (worker < 0 || worker >= tl_workers() || t->at_work[worker]++) t->bad++;
    if (t->tiny * 0.5f == 0) t->bad++;
    if (task % 100 == 0) tl_parallel(10, count_inner, t);
    if (task % 50 == 0) sched_yield();
    t->at_work[worker]--;
}

static void run_tally(void)
{
    static _Thread_local tally t;
    for (int in_order = 0; in_order < 2; in_order++) {
        memset(&t, 0, sizeof t);
        t.tiny = 0x1p-140f;
        if (in_order)
            tl_parallel_in_order(TASKS, 2, count_task, &t);
        else
            tl_parallel(TASKS, count_task, &t);
        int wrong = 0;
        for (int i = 0; i < TASKS; i++)
            wrong += t.done[i] != 1;
        CHECK(wrong == 0 && t.bad == 0 && t.inner == TASKS / 100 * 10);
    }
}

static void *run_tallies(void *argument)
{
    for (int i = 0; i < 20; i++)
        run_tally();
    return argument;
}

static int threads_of_process(void)
{
    int count = 0;
    DIR *const tasks = opendir("/proc/self/task");
    while (tasks && readdir(tasks))
        count++;
    if (tasks) closedir(tasks);
    return count - 2;
}

/* Whether no more threads are left within a second: the system lists one for a moment after it was joined. */
static int has_at_most(int threads)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < 1000 && threads_of_process() > threads; i++)
        nanosleep(&moment, NULL);
    return threads_of_process() <= threads;
}

/* The child of a fork has the library's own threads, as many. */
static void test_fork(void)
{
    const int before = teams;
    const pid_t child = fork();
    if (child == 0) {
        const int failed = core_failures;
        run_tally();
        CHECK(teams == before && torchlean_cuda_threads() == TEAM);
        OK(torchlean_cuda_set_threads(2));
        run_tally();
        _exit(core_failures != failed);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    run_tally();
    CHECK(teams > before);
}

static void test_threads(void)
{
    OK(torchlean_cuda_set_threads(TEAM));
    run_tally();
    members_at_most = 64;
    SAYS(torchlean_cuda_set_parallel(fake_run, 0), TORCHLEAN_ARGUMENT, "threads: got 0, expected 1 to 1024");
    SAYS(torchlean_cuda_set_parallel(fake_run, 1025), TORCHLEAN_ARGUMENT, "threads: got 1025, expected 1 to 1024");
    SAYS(torchlean_cuda_set_parallel(NULL, 1025), TORCHLEAN_ARGUMENT, "threads: got 1025, expected 0 to 1024");
    const int others = threads_of_process() - (TEAM - 1);
    OK(torchlean_cuda_set_parallel(fake_run, TEAM));
    CHECK(torchlean_cuda_threads() == TEAM && has_at_most(others)); /* the library's have ended */
    SAYS(torchlean_cuda_set_threads(2), TORCHLEAN_ARGUMENT, "got 2 while a host's threads do the work");
    run_tally();
    CHECK(teams == 2 && bodies == 2 * TEAM && mode_changes == 0);
    tl_parallel(1, count_inner, &(tally){0});
    CHECK(teams == 2); /* the caller alone does it */
    for (members_at_most = 0; members_at_most < TEAM; members_at_most++)
        run_tally();
    members_at_most = 64;
    OK(torchlean_cuda_set_parallel(fake_run, 1));
    const int before = teams;
    run_tally();
    CHECK(teams == before && torchlean_cuda_threads() == 1);
    OK(torchlean_cuda_set_parallel(fake_run, TEAM));
    OK(torchlean_cuda_set_parallel(fake_run, TEAM));

    pthread_t callers[4];
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&callers[i], NULL, run_tallies, NULL));
    for (int i = 0; i < 4; i++)
        pthread_join(callers[i], NULL);
    CHECK(mode_changes == 0);
    test_fork();

    OK(torchlean_cuda_set_parallel(NULL, 3));
    CHECK(torchlean_cuda_threads() == 3);
    const int last = teams;
    run_tally();
    CHECK(teams == last);
}

/* GNU OpenMP's own function, where it is installed. ThreadSanitizer does not see its barriers. */
static void test_openmp(void)
{
#ifndef __SANITIZE_THREAD__
    void *const openmp = dlopen("libgomp.so.1", RTLD_NOW);
    void *const found = openmp ? dlsym(openmp, "GOMP_parallel") : NULL;
    tl_run_fn run;
    memcpy(&run, &found, sizeof run);
    if (!run) return;
    OK(torchlean_cuda_set_parallel(run, TEAM));
    for (int i = 0; i < 50; i++)
        run_tally();
    OK(torchlean_cuda_set_parallel(NULL, 0));
#endif
}

void core_test_hosts(void)
{
    for (int32_t device = TORCHLEAN_CPU; device <= 0; device++) {
        OK(torchlean_cuda_context_create(device, &context));
        test_refused_wraps();
        test_wrapping();
        test_known_memory();
        test_allocator(device < 0 ? 0 : 9);
    }
    test_stream();
    test_threads();
    test_openmp();
    OK(torchlean_cuda_set_threads(0));
}
