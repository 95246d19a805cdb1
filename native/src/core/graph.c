/* The exported functions of captures and graphs: what calls use while they are captured becomes a graph's, which keeps it
 * until it is released. The capturing itself is the device's, cuda/runtime/graph.cu. */
#include <stdlib.h>

#include "call.h"
#include "errors.h"
#include "scratch.h"

/* ---- capturing --------------------------------------------------------------------------------------------------- */

static int32_t refuse_host(const tl_context *ctx, const char *name)
{
    if (!ctx->pool.host.allocate) return TORCHLEAN_OK;
    return tl_fail(TORCHLEAN_UNAVAILABLE, "%s: got a context on a host's stream, expected the host to capture it",
                   name);
}

static int32_t begin(tl_context *ctx)
{
    struct tl_capture *capture = calloc(1, sizeof *capture);
    if (!capture) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a capture");
    int32_t status = tl_cuda_capture_begin(ctx->cuda);
    if (status) {
        free(capture);
        return status;
    }
    capture->serial = ++ctx->captures;
    capture->thread = pthread_self();
    ctx->pool.capture = capture;
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_capture_begin(torchlean_context *context)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    tl_require(&call, call.status || call.ctx->cuda, TORCHLEAN_UNAVAILABLE, "context",
               "got one of the CPU, expected one of a CUDA device");
    if (!call.status) call.status = refuse_host(call.ctx, "context");
    if (!call.status) call.status = begin(call.ctx);
    return tl_end(&call);
}

/* Whatever happens, there is no capture afterwards. */
static int32_t finish(tl_context *ctx, torchlean_graph **out)
{
    if (out && !ctx->pool.capture->broken) return tl_graph_make(ctx, out);
    tl_capture_drop(ctx);
    return out ? tl_fail(TORCHLEAN_UNAVAILABLE, "out: got a captured call that failed, expected none") : TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_capture_end(torchlean_context *context, torchlean_graph **out)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_require(&call, call.status || call.ctx->pool.capture, TORCHLEAN_ARGUMENT, "context",
               "got one without a capture, expected capture_begin before");
    tl_require(&call, !out || !*out, TORCHLEAN_ARGUMENT, "out",
               "got a handle, expected NULL, as a graph is always new");
    if (!call.status) call.status = finish(call.ctx, out);
    return tl_end(&call);
}

/* The graph keeps the buffers, and a number of its own on the device. */
static int32_t make_inputs(tl_call *call, float *const *targets, const uint32_t *lengths, uint32_t count)
{
    tl_context *ctx = call->ctx;
    void *turn = NULL;
    int32_t status = tl_pool_alloc_constant(ctx, sizeof(uint32_t), &turn);
    for (uint32_t i = 0; i < count && !status; i++)
        status = tl_capture_hold(ctx->pool.capture, call->in[i].storage);
    if (!status) status = tl_cuda_capture_inputs(ctx->cuda, targets, lengths, count, turn);
    tl_pool_free(ctx, turn);
    return status;
}

TL_API int32_t torchlean_cuda_capture_inputs(torchlean_context *context, torchlean_buffer *const *buffers,
                                             uint32_t count)
{
    tl_call call;
    float *targets[TL_GRAPH_INPUTS];
    uint32_t lengths[TL_GRAPH_INPUTS];
    uint64_t bytes = 0;
    tl_enter_context(&call, __func__, context);
    tl_require(&call, call.status || call.ctx->pool.capture, TORCHLEAN_ARGUMENT, "context",
               "got one without a capture, expected capture_begin before");
    tl_require(&call, call.status || !call.ctx->pool.capture->has_inputs, TORCHLEAN_ARGUMENT, "context",
               "got inputs for a second time, expected all of a capture at once");
    tl_require(&call, count && count <= TL_GRAPH_INPUTS, TORCHLEAN_ARGUMENT, "count", "got %u, expected 1 to %d", count,
               TL_GRAPH_INPUTS);
    tl_host(&call, "buffers", buffers, count);
    for (uint32_t i = 0; i < count && !call.status; i++) {
        const uint64_t n = tl_length(&call, "buffers", buffers[i]);
        targets[i] = (float *)tl_input(&call, "buffers", buffers[i], "n", n);
        lengths[i] = (uint32_t)n;
        bytes += (n * sizeof(float) + 15) / 16 * 16;
        tl_require(&call, n, TORCHLEAN_SHAPE, "buffers", "got one without elements, expected at least 1");
    }
    tl_require(&call, bytes <= TL_GRAPH_INPUT_BYTES, TORCHLEAN_ARGUMENT, "buffers",
               "got %llu bytes, expected at most %d together", (unsigned long long)bytes, TL_GRAPH_INPUT_BYTES);
    if (!call.status) {
        call.status = make_inputs(&call, targets, lengths, count);
        call.ctx->pool.capture->has_inputs = 1;
        call.ctx->pool.capture->broken |= call.status != TORCHLEAN_OK;
    }
    return tl_end(&call);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static int32_t launch(tl_context *ctx, tl_graph *graph)
{
    int32_t status = tl_cuda_health(ctx->cuda);
    if (!status && ctx->pool.capture)
        status = tl_fail(TORCHLEAN_UNAVAILABLE, "graph: got one of a context whose calls are captured, expected none");
    if (!status) status = refuse_host(ctx, "graph");
    if (!status) status = tl_cuda_graph_launch(ctx->cuda, graph->run);
    return status ? status : tl_cuda_after(ctx->cuda);
}

TL_API int32_t torchlean_cuda_graph_launch(torchlean_graph *handle)
{
    tl_graph *graph;
    tl_context *ctx;
    uint64_t serial = tl_error_serial();
    int32_t status = tl_lock_live_graph(__func__, "graph", handle, &graph, &ctx);
    if (status) return status;
    status = launch(ctx, graph);
    if (status) tl_error_name(__func__, status, serial);
    tl_unlock(ctx);
    return status;
}

TL_API int32_t torchlean_cuda_graph_set(torchlean_graph *handle, uint32_t input, const float *values, uint32_t n)
{
    tl_graph *graph;
    tl_context *ctx;
    uint64_t serial = tl_error_serial();
    if (!values) return tl_fail(TORCHLEAN_NULL, "%s: values: got NULL, expected an array", __func__);
    int32_t status = tl_lock_live_graph(__func__, "graph", handle, &graph, &ctx);
    if (status) return status;
    const uint32_t length = tl_cuda_graph_input(graph->run, input);
    if (!length)
        status = tl_fail(TORCHLEAN_ARGUMENT, "input: got %u, expected one that the graph has", input);
    else if (n != length)
        status = tl_fail(TORCHLEAN_SHAPE, "values: got %u elements, expected %u", n, length);
    else
        status = tl_cuda_graph_set(ctx->cuda, graph->run, input, values);
    if (status) tl_error_name(__func__, status, serial);
    tl_unlock(ctx);
    return status;
}

TL_API int32_t torchlean_cuda_graph_nodes(torchlean_graph *handle, uint32_t *nodes)
{
    tl_graph *graph;
    tl_context *ctx;
    if (!nodes) return tl_fail(TORCHLEAN_NULL, "%s: nodes: got NULL, expected a place for the number", __func__);
    int32_t status = tl_lock_live_graph(__func__, "graph", handle, &graph, &ctx);
    if (status) return status;
    *nodes = tl_cuda_graph_nodes(graph->run);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_graph_release(torchlean_graph *handle)
{
    tl_graph *graph;
    tl_context *ctx;
    tl_verdict verdict = tl_lock_object(&tl_graphs, handle, (tl_object **)&graph, &ctx);
    if (verdict == TL_WAS_RELEASED) return TORCHLEAN_OK;
    if (verdict != TL_LIVE) return tl_fail_handle(__func__, "graph", &tl_graphs, handle, verdict);
    tl_graph_end(ctx, graph);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}
