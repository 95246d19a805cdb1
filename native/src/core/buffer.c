/* The exported functions of buffers: making, moving, sharing and releasing them. */
#include "call.h"
#include "errors.h"
#include "threads.h"

/* ---- CPU data -------------------------------------------------------------------------------------------------- */

typedef struct fill_job {
    float *data;
    float value;
    int64_t n;
} fill_job;

enum { TL_FILL_TASK = 1 << 18 };

static void fill_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const fill_job *job = arg;
    int64_t from = task * TL_FILL_TASK;
    int64_t to = from + TL_FILL_TASK < job->n ? from + TL_FILL_TASK : job->n;
    for (int64_t i = from; i < to; i++)
        job->data[i] = job->value;
}

static int32_t fill(tl_context *ctx, float *data, float value, int64_t n)
{
    if (ctx->cuda) return tl_cuda_fill(ctx->cuda, data, value, n);
    fill_job job = {data, value, n};
    tl_parallel((n + TL_FILL_TASK - 1) / TL_FILL_TASK, fill_task, &job);
    return TORCHLEAN_OK;
}

static void copy_to_output(tl_call *call, int32_t (*copy)(struct tl_cuda_state *, void *, const void *, size_t),
                           const void *from, uint64_t n)
{
    if (call->ctx->cuda)
        call->status = copy(call->ctx->cuda, tl_out(call, 0), from, (size_t)n * sizeof(float));
    else
        tl_copy(tl_out(call, 0), from, (size_t)n * sizeof(float), tl_workers());
}

/* ---- making ---------------------------------------------------------------------------------------------------- */

TL_API int32_t torchlean_cuda_buffer_empty(torchlean_context *context, uint32_t n, torchlean_buffer **out)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_output(&call, "out", out, "n", n);
    tl_begin(&call);
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_buffer_zeros(torchlean_context *context, uint32_t n, torchlean_buffer **out)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_output(&call, "out", out, "n", n);
    /* new pages of the system are 0, and not there before someone reads or writes them */
    if (tl_begin(&call) && !(call.out->fresh && call.out->storage->is_untouched))
        call.status = fill(call.ctx, tl_out(&call, 0), 0.0f, n);
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_buffer_upload(torchlean_context *context, const float *host, uint32_t n,
                                            torchlean_buffer **out)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    tl_host(&call, "host", host, n);
    tl_output(&call, "out", out, "n", n);
    if (tl_begin(&call)) copy_to_output(&call, tl_cuda_upload, host, n);
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_index_upload(torchlean_context *context, const uint32_t *host, uint32_t n,
                                           torchlean_buffer **out)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    tl_host(&call, "host", host, n);
    tl_output_index(&call, "out", out, "n", n);
    if (tl_begin(&call)) copy_to_output(&call, tl_cuda_upload, host, n);
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_buffer_copy(torchlean_buffer *source, torchlean_buffer **out)
{
    tl_call call;
    tl_enter(&call, __func__, "source", source);
    uint64_t n = tl_length(&call, "source", source);
    const int is_index = tl_is_index(&call, "source", source);
    const void *from = is_index ? (const void *)tl_input_index(&call, "source", source, "n", n)
                                : tl_input(&call, "source", source, "n", n);
    (is_index ? tl_output_index : tl_output)(&call, "out", out, "n", n);
    if (tl_begin(&call)) copy_to_output(&call, tl_cuda_copy, from, n);
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_buffer_share(torchlean_buffer *source, torchlean_buffer **out)
{
    tl_buffer *buffer, *twin;
    tl_context *ctx;
    uint64_t serial = tl_error_serial();
    if (!out) return tl_fail(TORCHLEAN_NULL, "%s: out: got NULL, expected a place for a buffer", __func__);
    if (*out)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: out: got a handle, expected NULL, as a share is always new", __func__);
    int32_t status = tl_lock_live_buffer(__func__, "source", source, &buffer, &ctx);
    if (status) return status;
    uint32_t n = atomic_load_explicit(&buffer->n, memory_order_relaxed);
    status = tl_buffer_make(ctx, n, buffer->is_index, buffer->block, &twin);
    if (status)
        tl_error_name(__func__, status, serial);
    else
        *out = tl_buffer_handle(twin);
    tl_unlock(ctx);
    return status;
}

/* ---- moving ---------------------------------------------------------------------------------------------------- */

/* Elements of both types have four bytes. */
static int32_t download(const char *op, torchlean_buffer *buffer, void *host, uint32_t n, int is_index)
{
    tl_call call;
    tl_enter(&call, op, "buffer", buffer);
    tl_host(&call, "host", host, n);
    const void *from = is_index ? (const void *)tl_input_index(&call, "buffer", buffer, "n", n)
                                : tl_input(&call, "buffer", buffer, "n", n);
    if (tl_begin_host(&call) && call.ctx->cuda)
        call.status = n ? tl_cuda_download(call.ctx->cuda, host, from, (size_t)n * sizeof(float))
                        : tl_cuda_synchronize(call.ctx->cuda);
    else if (!call.status && n)
        tl_copy(host, from, (size_t)n * sizeof(float), tl_workers());
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_buffer_download(torchlean_buffer *buffer, float *host, uint32_t n)
{
    return download(__func__, buffer, host, n, 0);
}

TL_API int32_t torchlean_cuda_index_download(torchlean_buffer *buffer, uint32_t *host, uint32_t n)
{
    return download(__func__, buffer, host, n, 1);
}

TL_API int32_t torchlean_cuda_buffer_fill(torchlean_buffer *buffer, double value)
{
    tl_call call;
    tl_enter(&call, __func__, "buffer", buffer);
    uint64_t n = tl_length(&call, "buffer", buffer);
    tl_output(&call, "buffer", &buffer, "n", n); /* the buffer itself is what the call overwrites */
    if (tl_begin(&call)) call.status = fill(call.ctx, tl_out(&call, 0), tl_scalar(value), (int64_t)n);
    return tl_end(&call);
}

/* ---- releasing and asking -------------------------------------------------------------------------------------- */

TL_API int32_t torchlean_cuda_buffer_release(torchlean_buffer *handle)
{
    tl_buffer *buffer;
    tl_context *ctx;
    tl_verdict verdict = tl_lock_object(&tl_buffers, handle, (tl_object **)&buffer, &ctx);
    if (verdict == TL_WAS_RELEASED) return TORCHLEAN_OK;
    if (verdict != TL_LIVE) return tl_fail_handle(__func__, "buffer", &tl_buffers, handle, verdict);
    tl_buffer_end(ctx, buffer);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_buffer_length(torchlean_buffer *handle, uint32_t *n)
{
    tl_buffer *buffer = NULL;
    if (!n) return tl_fail(TORCHLEAN_NULL, "%s: n: got NULL, expected a place for the length", __func__);
    /* Without the lock, so that it never waits for a running operation: read between two looks at the generation. */
    tl_verdict verdict = tl_find_object(&tl_buffers, handle, (tl_object **)&buffer);
    uint32_t length = buffer ? atomic_load_explicit(&buffer->n, memory_order_acquire) : 0;
    if (verdict == TL_LIVE) verdict = tl_find_object(&tl_buffers, handle, (tl_object **)&buffer);
    if (verdict != TL_LIVE) return tl_fail_handle(__func__, "buffer", &tl_buffers, handle, verdict);
    *n = length;
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_buffer_context(torchlean_buffer *handle, torchlean_context **context)
{
    tl_buffer *buffer;
    tl_context *ctx;
    if (!context) return tl_fail(TORCHLEAN_NULL, "%s: context: got NULL, expected a place for a context", __func__);
    int32_t status = tl_lock_live_buffer(__func__, "buffer", handle, &buffer, &ctx);
    if (status) return status;
    *context = (torchlean_context *)(uintptr_t)tl_slot_handle(&tl_contexts, &ctx->slot);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_buffer_references(torchlean_buffer *handle, uint32_t *references)
{
    tl_buffer *buffer;
    tl_context *ctx;
    if (!references)
        return tl_fail(TORCHLEAN_NULL, "%s: references: got NULL, expected a place for the count", __func__);
    int32_t status = tl_lock_live_buffer(__func__, "buffer", handle, &buffer, &ctx);
    if (status) return status;
    *references = buffer->block->references;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}
