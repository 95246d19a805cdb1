/* The exported functions of a context's memory. They work on a poisoned context too, so they lock it themselves. */
#include "context.h"
#include "errors.h"

TL_API int32_t torchlean_cuda_memory_stats(torchlean_context *context, torchlean_memory *out)
{
    tl_context *ctx;
    if (!out) return tl_fail(TORCHLEAN_NULL, "%s: out: got NULL, expected a place for the counters", __func__);
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    *out = ctx->pool.counters;
    out->live_buffers = ctx->live_buffers;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_memory_reset_peak(torchlean_context *context)
{
    tl_context *ctx;
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    ctx->pool.counters.peak_bytes = ctx->pool.counters.live_bytes;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_memory_cap(torchlean_context *context, uint64_t bytes)
{
    tl_context *ctx;
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    ctx->pool.counters.cap_bytes = bytes;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_memory_collect(torchlean_context *context)
{
    tl_context *ctx;
    uint64_t serial = tl_error_serial();
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    status = ctx->pool.capture ? tl_fail(TORCHLEAN_UNAVAILABLE, "context: got a capture under way, expected none")
                               : tl_pool_trim(&ctx->pool);
    tl_unlock(ctx);
    if (status) tl_error_name(__func__, status, serial);
    return status;
}
