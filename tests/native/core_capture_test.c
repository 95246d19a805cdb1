/* What the core does for a CUDA device, on that of fake_cuda.c: memory that comes from the device and goes back to it, captures,
 * the blocks that their graphs keep, and what all of them leave behind when a call fails. */
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/call.h"
#include "core/context.h"
#include "core/errors.h"
#include "core/kept.h"
#include "core/scratch.h"
#include "core_test.h"
#include "torchlean_cuda_ops.h"

enum {
    N = 100,
    BYTES = 512,
    MANY = 200
}; /* elements and bytes of a block; more blocks than a capture has room for at first */

#define SAYS(expr, wanted, text) \
    (CHECK_STATUS(expr, wanted), CHECK(strstr(torchlean_cuda_last_error(), text) != NULL))

static torchlean_context *context;
static torchlean_buffer *first;

static uint64_t live(void)
{
    torchlean_memory m = {0};
    OK(torchlean_cuda_memory_stats(context, &m));
    return m.live_bytes;
}

static torchlean_buffer *copy(void)
{
    torchlean_buffer *out = NULL;
    OK(torchlean_cuda_buffer_copy(first, &out));
    return out;
}

/* Two blocks of scratch in one call, the first given back before the second: whether they are one. */
static int scratch_serves_again(int constant)
{
    void *p, *q;
    tl_call call;
    tl_enter_context(&call, "fake", context);
    OK((constant ? tl_pool_alloc_constant : tl_pool_alloc)(call.ctx, BYTES, &p));
    tl_pool_free(call.ctx, p);
    OK(tl_pool_alloc(call.ctx, BYTES, &q));
    tl_pool_free(call.ctx, q);
    OK(tl_end(&call));
    return p == q;
}

/* Nobody gets a kept block but who asks for its content, until another takes its place or memory is collected. */
static void test_kept_block(void)
{
    enum { SIZE = 70000 };
    const tl_content content = {{1, 2, 3, 4}}, other = {{1, 2, 3, 5}};
    void *p, *q, *again;
    tl_call call;
    tl_enter_context(&call, "fake", context);
    const torchlean_memory *const m = &call.ctx->pool.counters;
    const uint64_t before = m->live_bytes;
    OK(tl_pool_alloc(call.ctx, SIZE, &p));
    CHECK(!tl_pool_kept(call.ctx, SIZE, content));
    tl_pool_keep(call.ctx, p, content);
    CHECK(m->live_bytes == before && m->cached_bytes >= SIZE && !tl_pool_kept(call.ctx, SIZE, other));
    OK(tl_pool_alloc(call.ctx, SIZE, &q));
    CHECK(q != p && tl_pool_kept(call.ctx, SIZE, content) == p && !tl_pool_kept(call.ctx, SIZE, content));
    tl_pool_keep(call.ctx, p, content);
    tl_pool_keep(call.ctx, q, other);
    CHECK(!tl_pool_kept(call.ctx, SIZE, content));
    OK(tl_pool_alloc(call.ctx, SIZE, &again));
    CHECK(again == p);
    tl_pool_free(call.ctx, again);
    OK(tl_pool_collect(call.ctx));
    CHECK(!tl_pool_kept(call.ctx, SIZE, other) && m->cached_bytes == 0 && m->live_bytes == before);
    OK(tl_end(&call));
}

static void *copy_elsewhere(void *arg)
{
    torchlean_buffer *out = NULL;
    (void)arg;
    SAYS(torchlean_cuda_buffer_copy(first, &out), TORCHLEAN_UNAVAILABLE,
         "context: got a call while another thread captures");
    return NULL;
}

/* Of each capture: a block that calls hand on, one that is constant, and MANY that outlive the calls. */
static void test_graph(void)
{
    torchlean_graph *graph = NULL;
    torchlean_buffer *many[MANY];
    float host[N];
    uint32_t nodes = 0;
    pthread_t thread;
    const uint64_t before = live();
    OK(torchlean_cuda_capture_begin(context));
    SAYS(torchlean_cuda_capture_begin(context), TORCHLEAN_UNAVAILABLE, "got a call that cannot be captured");
    SAYS(torchlean_cuda_buffer_download(first, host, N), TORCHLEAN_UNAVAILABLE, "got a call that cannot be captured");
    double one = 1, product;
    SAYS(torchlean_cuda_dgemm(context, &one, &one, 1, 1, 1, &product), TORCHLEAN_UNAVAILABLE,
         "got a call that cannot be captured");
    pthread_create(&thread, NULL, copy_elsewhere, NULL);
    pthread_join(thread, NULL);
    CHECK(scratch_serves_again(0) && live() == before + BYTES);
    for (int i = 0; i < 3; i++) { /* released, it serves the next call of the capture */
        torchlean_buffer *passed = copy();
        CHECK(live() == before + BYTES);
        OK(torchlean_cuda_buffer_release(passed));
        CHECK(live() == before + BYTES);
    }
    CHECK(!scratch_serves_again(1) || live() > before + BYTES);
    const uint64_t scratch = live();
    for (int i = 0; i < MANY; i++)
        many[i] = copy();
    const uint64_t held = live();
    CHECK(held >= scratch + (MANY - 2) * BYTES && held <= scratch + MANY * BYTES);
    SAYS(torchlean_cuda_memory_collect(context), TORCHLEAN_UNAVAILABLE, "context: got a capture under way");
    OK(torchlean_cuda_capture_end(context, &graph));
    for (int i = 0; i < MANY; i++)
        OK(torchlean_cuda_buffer_release(many[i]));
    CHECK(live() == held); /* the graph's */
    OK(torchlean_cuda_graph_nodes(graph, &nodes));
    CHECK(nodes == 3 + MANY);
    OK(torchlean_cuda_graph_launch(graph));
    fake_cuda_fail(TORCHLEAN_CUDA, 0);
    SAYS(torchlean_cuda_graph_launch(graph), TORCHLEAN_CUDA, "torchlean_cuda_graph_launch: the device says no");
    SAYS(torchlean_cuda_graph_nodes(graph, NULL), TORCHLEAN_NULL, "graph_nodes: nodes: got NULL");
    /* what a graph keeps no call gets, within a capture either */
    torchlean_buffer *own = copy();
    CHECK(live() == held + BYTES);
    OK(torchlean_cuda_capture_begin(context));
    SAYS(torchlean_cuda_graph_launch(graph), TORCHLEAN_UNAVAILABLE,
         "graph: got one of a context whose calls are captured");
    OK(torchlean_cuda_capture_end(context, NULL));
    OK(torchlean_cuda_buffer_release(own));
    OK(torchlean_cuda_graph_release(graph));
    OK(torchlean_cuda_graph_release(graph));
    CHECK_STATUS(torchlean_cuda_graph_launch(graph), TORCHLEAN_RELEASED);
    CHECK(live() == before && fake_cuda_graphs == 0);
}

/* Host memory runs out for the list of a capture's blocks, where an output is made and where an input is held. */
static void test_capture_without_host_memory(void)
{
    torchlean_graph *graph = NULL;
    torchlean_buffer *many[MANY], *out = NULL;
    const uint64_t before = live();
    for (int i = 0; i < MANY; i++)
        many[i] = copy();
    for (int given = 0; given < 2; given++) {
        torchlean_buffer *made[MANY] = {NULL};
        int32_t status = TORCHLEAN_OK;
        out = copy();
        OK(torchlean_cuda_capture_begin(context));
        OK(torchlean_cuda_buffer_copy(first, &out));
        fake_realloc_fails = 1;
        int n = 0;
        while (n < MANY && !status) {
            status = torchlean_cuda_buffer_copy(given ? many[n] : first, given ? &out : &made[n]);
            n++;
        }
        fake_realloc_fails = 0;
        CHECK_STATUS(status, TORCHLEAN_NO_MEMORY);
        CHECK(strstr(torchlean_cuda_last_error(), "out of host memory for a capture of") != NULL);
        SAYS(torchlean_cuda_capture_end(context, &graph), TORCHLEAN_UNAVAILABLE, "got a captured call that failed");
        for (int i = 0; i < MANY; i++)
            if (made[i]) OK(torchlean_cuda_buffer_release(made[i]));
        OK(torchlean_cuda_buffer_release(out));
    }
    for (int i = 0; i < MANY; i++)
        OK(torchlean_cuda_buffer_release(many[i]));
    CHECK(live() == before && !graph);
}

/* Inputs: what is refused, that the graph keeps them and a number of its own, and what it is given. */
static void test_inputs(void)
{
    torchlean_graph *graph = NULL;
    torchlean_buffer *given = copy(), *large = NULL, *none = NULL, *many[17] = {given};
    float values[N] = {0};
    const uint64_t before = live();
    OK(torchlean_cuda_buffer_zeros(context, 1 << 15, &large));
    OK(torchlean_cuda_buffer_empty(context, 0, &none));
    SAYS(torchlean_cuda_capture_inputs(context, many, 1), TORCHLEAN_ARGUMENT, "context: got one without a capture");
    OK(torchlean_cuda_capture_begin(context));
    SAYS(torchlean_cuda_capture_inputs(context, many, 0), TORCHLEAN_ARGUMENT, "count: got 0, expected 1 to 16");
    SAYS(torchlean_cuda_capture_inputs(context, many, 17), TORCHLEAN_ARGUMENT, "count: got 17, expected 1 to 16");
    SAYS(torchlean_cuda_capture_inputs(context, NULL, 1), TORCHLEAN_NULL, "buffers: got NULL");
    SAYS(torchlean_cuda_capture_inputs(context, many, 2), TORCHLEAN_NULL, "buffers: got NULL");
    SAYS(torchlean_cuda_capture_inputs(context, &none, 1), TORCHLEAN_SHAPE, "got one without elements");
    SAYS(torchlean_cuda_capture_inputs(context, &large, 1), TORCHLEAN_ARGUMENT, "got 131072 bytes");
    OK(torchlean_cuda_capture_inputs(context, many, 1));
    SAYS(torchlean_cuda_capture_inputs(context, many, 1), TORCHLEAN_ARGUMENT, "got inputs for a second time");
    OK(torchlean_cuda_capture_end(context, &graph));
    OK(torchlean_cuda_buffer_release(large));
    OK(torchlean_cuda_buffer_release(none));
    OK(torchlean_cuda_buffer_release(given));
    CHECK(live() > before); /* the graph's */
    OK(torchlean_cuda_graph_set(graph, 0, values, N));
    SAYS(torchlean_cuda_graph_set(graph, 0, values, N - 1), TORCHLEAN_SHAPE, "values: got 99 elements, expected 100");
    SAYS(torchlean_cuda_graph_set(graph, 1, values, N), TORCHLEAN_ARGUMENT, "input: got 1, expected one that");
    SAYS(torchlean_cuda_graph_set(graph, 0, NULL, N), TORCHLEAN_NULL, "values: got NULL");
    fake_cuda_fail(TORCHLEAN_CUDA, 0);
    SAYS(torchlean_cuda_graph_set(graph, 0, values, N), TORCHLEAN_CUDA, "graph_set: the device says no");
    OK(torchlean_cuda_graph_launch(graph));
    OK(torchlean_cuda_graph_release(graph));
    CHECK_STATUS(torchlean_cuda_graph_set(graph, 0, values, N), TORCHLEAN_RELEASED);
    many[0] = first;
    OK(torchlean_cuda_capture_begin(context));
    fake_cuda_fail(TORCHLEAN_CUDA, 0);
    SAYS(torchlean_cuda_capture_inputs(context, many, 1), TORCHLEAN_CUDA, "capture_inputs: the device says no");
    graph = NULL;
    SAYS(torchlean_cuda_capture_end(context, &graph), TORCHLEAN_UNAVAILABLE, "got a captured call that failed");
    CHECK(!graph && live() < before);
}

static void test_captures_that_fail(void)
{
    torchlean_graph *graph = NULL, *given = (torchlean_graph *)&graph;
    torchlean_buffer *out = NULL;
    const uint64_t before = live();
    SAYS(torchlean_cuda_capture_end(context, &graph), TORCHLEAN_ARGUMENT, "got one without a capture");
    fake_cuda_fail(TORCHLEAN_CUDA, 0);
    SAYS(torchlean_cuda_capture_begin(context), TORCHLEAN_CUDA, "the device says no");
    for (int how = 0; how < 4; how++) {
        OK(torchlean_cuda_capture_begin(context));
        OK(torchlean_cuda_buffer_release(copy()));
        SAYS(torchlean_cuda_capture_end(context, &given), TORCHLEAN_ARGUMENT, "out: got a handle");
        if (how == 0) { /* work that fails */
            fake_cuda_fail(TORCHLEAN_CUDA, 0);
            CHECK_STATUS(torchlean_cuda_buffer_copy(first, &out), TORCHLEAN_CUDA);
            SAYS(torchlean_cuda_capture_end(context, &graph), TORCHLEAN_UNAVAILABLE, "got a captured call that failed");
        } else if (how == 1) { /* a call that is refused is none of the capture's */
            CHECK_STATUS(torchlean_cuda_buffer_copy(NULL, &out), TORCHLEAN_NULL);
            OK(torchlean_cuda_capture_end(context, &graph));
            OK(torchlean_cuda_graph_release(graph));
            graph = NULL;
        } else if (how == 2) {
            fake_cuda_fail(TORCHLEAN_CUDA, 0);
            SAYS(torchlean_cuda_capture_end(context, &graph), TORCHLEAN_CUDA,
                 "torchlean_cuda_capture_end: the device says no");
        } else {
            OK(torchlean_cuda_capture_end(context, NULL));
        }
        CHECK(!graph && !out && live() == before && fake_cuda_graphs == 0);
    }
}

/* Memory of the device and of the host after calls that fail for want of the former. */
static void test_no_memory(void)
{
    torchlean_buffer *out = NULL;
    OK(torchlean_cuda_memory_collect(context));
    CHECK(fake_cuda_blocks == 1);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const size_t before = mallinfo2().uordblks;
#endif
    for (int i = 0; i < 1000; i++) {
        fake_cuda_fail(TORCHLEAN_NO_MEMORY, 0);
        CHECK_STATUS(torchlean_cuda_buffer_copy(first, &out), TORCHLEAN_NO_MEMORY);
    }
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(mallinfo2().uordblks <= before + 4096);
#endif
    CHECK(strstr(torchlean_cuda_last_error(), "out of device memory: asked for 400 bytes") != NULL && !out);
    /* what is cached is given up, and the device asked once more */
    OK(torchlean_cuda_buffer_release(copy()));
    torchlean_buffer *large = NULL;
    fake_cuda_fail(TORCHLEAN_NO_MEMORY, 0);
    OK(torchlean_cuda_buffer_zeros(context, 5000, &large));
    CHECK(fake_cuda_blocks == 2);
    OK(torchlean_cuda_buffer_release(large));
    /* that serves against a want of memory alone */
    large = NULL;
    fake_cuda_fail(TORCHLEAN_CUDA, 0);
    CHECK_STATUS(torchlean_cuda_buffer_zeros(context, 50000, &large), TORCHLEAN_CUDA);
    CHECK(fake_cuda_blocks == 2 && !large);
    /* a device that fails while what is cached is given up, as a cap asks for */
    torchlean_memory now;
    OK(torchlean_cuda_buffer_release(copy()));
    OK(torchlean_cuda_memory_stats(context, &now));
    OK(torchlean_cuda_memory_cap(context, now.live_bytes + now.cached_bytes));
    fake_cuda_fail(TORCHLEAN_CUDA, 0);
    CHECK_STATUS(torchlean_cuda_buffer_zeros(context, 50000, &large), TORCHLEAN_CUDA);
    OK(torchlean_cuda_memory_cap(context, 0));
    CHECK(fake_cuda_blocks == 1 && !large);
}

void core_test_captures(void)
{
    const float host[N] = {1, 2, 3};
    float back[N];
    double ms = 0;
    int32_t ordinal = -1;
    for (int end = 0; end < 3; end++) {
        torchlean_graph *graph = NULL;
        context = NULL;
        first = NULL;
        OK(torchlean_cuda_context_create(0, &context));
        char text[] = "as before";
        OK(torchlean_cuda_device_describe(0, text, sizeof text));
        CHECK(!*text);
        OK(torchlean_cuda_context_device(context, &ordinal));
        CHECK(ordinal == 0);
        OK(torchlean_cuda_buffer_upload(context, host, N, &first));
        OK(torchlean_cuda_buffer_download(first, back, N));
        CHECK(memcmp(host, back, sizeof host) == 0 && fake_cuda_blocks == 1);
        OK(torchlean_cuda_context_mark(context, 1));
        OK(torchlean_cuda_context_elapsed(context, 1, 3, &ms));
        CHECK(ms == 2);
        test_kept_block();
        test_graph();
        test_inputs();
        test_captures_that_fail();
        test_capture_without_host_memory();
        test_graph();
        test_no_memory();
        /* a context that ends takes along what is left: blocks, a graph, a capture */
        for (int i = 0; i < MANY; i++)
            copy();
        if (end) OK(torchlean_cuda_capture_begin(context));
        copy();
        if (end == 2) OK(torchlean_cuda_capture_end(context, &graph));
        OK(torchlean_cuda_context_destroy(context));
        CHECK(fake_cuda_blocks == 0 && fake_cuda_graphs == 0);
    }
    context = NULL;
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    SAYS(torchlean_cuda_capture_begin(context), TORCHLEAN_UNAVAILABLE,
         "got one of the CPU, expected one of a CUDA device");
    OK(torchlean_cuda_context_destroy(context));
}
