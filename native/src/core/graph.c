/* Captures and graphs: what calls use while they are captured becomes a graph's, which keeps it until it is released. The
 * capturing itself is the device's, cuda/runtime/graph.cu. */
#include <stdlib.h>
#include <string.h>

#include "handles.h"

tl_table tl_graphs = {.tag = TL_TAG_GRAPH, .first_log2 = 6, .slot_size = sizeof(tl_graph),
                      .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what a capture holds ---------------------------------------------------------------------------------------- */

int32_t tl_capture_hold(tl_context *ctx, tl_block *block)
{
    struct tl_capture *capture = ctx->capture;
    if (block->held_by == capture->serial)
        return TORCHLEAN_OK;
    if (capture->count == capture->room) {
        const uint64_t room = capture->room ? 2 * capture->room : 64;
        tl_block **held = realloc(capture->held, room * sizeof *held);
        if (!held)
            return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a capture of %llu blocks",
                           (unsigned long long)room);
        capture->held = held;
        capture->room = room;
    }
    capture->held[capture->count++] = block;
    block->references++;
    block->held_by = capture->serial;
    return TORCHLEAN_OK;
}

static void let_go(tl_context *ctx, tl_block **held, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        tl_pool_drop(ctx, held[i]);
    free(held);
}

void tl_capture_drop(tl_context *ctx)
{
    struct tl_capture *capture = ctx->capture;
    tl_cuda_capture_drop(ctx->cuda);
    ctx->capture = NULL; /* before the blocks go, so that they go to the pool */
    let_go(ctx, capture->held, capture->count);
    free(capture);
}

int32_t tl_pool_alloc_constant(tl_context *ctx, size_t bytes, void **p)
{
    tl_block *block;
    int32_t status = tl_pool_take_constant(ctx, bytes, &block);
    *p = status ? NULL : block->p;
    return status;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

static int32_t begin(tl_context *ctx)
{
    struct tl_capture *capture = calloc(1, sizeof *capture);
    if (!capture)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a capture");
    int32_t status = tl_cuda_capture_begin(ctx->cuda);
    if (status) {
        free(capture);
        return status;
    }
    capture->serial = ++ctx->captures;
    capture->thread = pthread_self();
    ctx->capture = capture;
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_capture_begin(torchlean_context *context)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    tl_require(&call, call.status || call.ctx->cuda, TORCHLEAN_UNAVAILABLE, "context",
               "got one of the CPU, expected one of a CUDA device");
    if (!call.status)
        call.status = begin(call.ctx);
    return tl_end(&call);
}

/* The capture as a graph; whatever happens, there is no capture afterwards. */
static int32_t finish(tl_context *ctx, torchlean_graph **out)
{
    struct tl_capture *capture = ctx->capture;
    struct tl_cuda_graph *run = NULL;
    int32_t status = TORCHLEAN_OK;
    tl_graph *graph = out && !capture->broken ? (tl_graph *)tl_table_take(&tl_graphs) : NULL;
    if (capture->broken && out)
        status = tl_fail(TORCHLEAN_UNAVAILABLE, "out: got a captured call that failed, expected none");
    else if (out && !graph)
        status = tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a graph");
    else if (out)
        status = tl_cuda_capture_end(ctx->cuda, &run);
    if (!run) {
        tl_capture_drop(ctx);
        if (graph)
            tl_table_give(&tl_graphs, &graph->slot);
        return status;
    }
    ctx->capture = NULL;
    atomic_store_explicit(&graph->ctx, ctx, memory_order_relaxed);
    graph->run = run;
    graph->held = capture->held;
    graph->count = capture->count;
    free(capture);
    graph->previous = NULL;
    graph->next = ctx->graphs;
    if (ctx->graphs)
        ctx->graphs->previous = graph;
    ctx->graphs = graph;
    *out = (torchlean_graph *)(uintptr_t)tl_slot_publish(&tl_graphs, &graph->slot);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_capture_end(torchlean_context *context, torchlean_graph **out)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_require(&call, call.status || call.ctx->capture, TORCHLEAN_ARGUMENT, "context",
               "got one without a capture, expected capture_begin before");
    tl_require(&call, !out || !*out, TORCHLEAN_ARGUMENT, "out", "got a handle, expected NULL, as a graph is always new");
    if (!call.status)
        call.status = finish(call.ctx, out);
    return tl_end(&call);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

void tl_graph_end(tl_context *ctx, tl_graph *graph)
{
    tl_slot_retire(&graph->slot);
    if (graph->next)
        graph->next->previous = graph->previous;
    if (graph->previous)
        graph->previous->next = graph->next;
    else
        ctx->graphs = graph->next;
    tl_cuda_graph_free(ctx->cuda, graph->run);
    let_go(ctx, graph->held, graph->count);
    graph->run = NULL;
    graph->held = NULL;
    tl_table_give(&tl_graphs, &graph->slot);
}

static tl_verdict find_graph(const torchlean_graph *handle, tl_graph **graph)
{
    return tl_table_find(&tl_graphs, (uint64_t)(uintptr_t)handle, (tl_slot **)graph);
}

/* Finds the graph, locks its context and looks again, as tl_lock_buffer does. */
static tl_verdict lock_graph(const torchlean_graph *handle, tl_graph **graph, tl_context **ctx)
{
    tl_verdict verdict = find_graph(handle, graph);
    if (verdict != TL_LIVE)
        return verdict;
    tl_context *found = atomic_load_explicit(&(*graph)->ctx, memory_order_acquire);
    pthread_mutex_lock(&found->lock);
    verdict = find_graph(handle, graph);
    if (verdict == TL_LIVE)
        *ctx = found;
    else
        pthread_mutex_unlock(&found->lock);
    return verdict;
}

static int32_t launch(tl_context *ctx, tl_graph *graph)
{
    int32_t status = tl_cuda_health(ctx->cuda);
    if (!status && ctx->capture)
        status = tl_fail(TORCHLEAN_UNAVAILABLE, "graph: got one of a context whose calls are captured, expected none");
    if (!status)
        status = tl_cuda_graph_launch(ctx->cuda, graph->run);
    return status ? status : tl_cuda_after(ctx->cuda);
}

TL_API int32_t torchlean_cuda_graph_launch(torchlean_graph *handle)
{
    tl_graph *graph;
    tl_context *ctx;
    uint32_t serial = tl_error_serial();
    tl_verdict verdict = lock_graph(handle, &graph, &ctx);
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "graph", "graph", handle, verdict);
    int32_t status = launch(ctx, graph);
    if (status)
        tl_error_name(__func__, status, serial);
    tl_unlock(ctx);
    return status;
}

TL_API int32_t torchlean_cuda_graph_nodes(torchlean_graph *handle, uint32_t *nodes)
{
    tl_graph *graph;
    tl_context *ctx;
    if (!nodes)
        return tl_fail(TORCHLEAN_NULL, "%s: nodes: got NULL, expected a place for the number", __func__);
    tl_verdict verdict = lock_graph(handle, &graph, &ctx);
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "graph", "graph", handle, verdict);
    *nodes = tl_cuda_graph_nodes(graph->run);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_graph_release(torchlean_graph *handle)
{
    tl_graph *graph;
    tl_context *ctx;
    tl_verdict verdict = lock_graph(handle, &graph, &ctx);
    if (verdict == TL_WAS_RELEASED)
        return TORCHLEAN_OK;
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "graph", "graph", handle, verdict);
    tl_graph_end(ctx, graph);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}
