/* The exported functions of captures and graphs: what calls use while they are captured becomes a graph's, which keeps it
 * until it is released. The capturing itself is the device's, cuda/runtime/graph.cu. */
#include <stdlib.h>

#include "call.h"
#include "errors.h"

/* ---- capturing --------------------------------------------------------------------------------------------------- */

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

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static int32_t launch(tl_context *ctx, tl_graph *graph)
{
    int32_t status = tl_cuda_health(ctx->cuda);
    if (!status && ctx->pool.capture)
        status = tl_fail(TORCHLEAN_UNAVAILABLE, "graph: got one of a context whose calls are captured, expected none");
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
