/* The exported functions by which a context works for a host, a framework with memory and streams of its own: buffers over the
 * host's memory, and its allocator and stream in place of the context's. The host's threads are threads.c's. */
#include "call.h"
#include "errors.h"
#include "objects.h"

/* ---- wrapping ---------------------------------------------------------------------------------------------------- */

static int32_t wrap(tl_context *ctx, void *memory, uint32_t n, int32_t is_index, torchlean_buffer **out)
{
    tl_block *block = NULL;
    tl_buffer *made;
    /* no elements: storage of its own, as nothing tells what there is at the address */
    int32_t status = n ? tl_pool_wrap(&ctx->pool, memory, (uint64_t)n * sizeof(float), &block) : TORCHLEAN_OK;
    if (status) return status;
    status = tl_buffer_make(ctx, n, is_index, block, &made);
    if (!status) *out = tl_buffer_handle(made);
    if (block) tl_pool_drop(&ctx->pool, block); /* the handle has a reference of its own */
    return status;
}

TL_API int32_t torchlean_cuda_buffer_wrap(torchlean_context *context, void *memory, uint32_t n, int32_t is_index,
                                          torchlean_buffer **out)
{
    tl_context *ctx;
    const uint64_t serial = tl_error_serial();
    if (!out) return tl_fail(TORCHLEAN_NULL, "%s: out: got NULL, expected a place for a buffer", __func__);
    if (*out) return tl_fail(TORCHLEAN_ARGUMENT, "%s: out: got a handle, expected NULL", __func__);
    if (!memory && n) return tl_fail(TORCHLEAN_NULL, "%s: memory: got NULL, expected %u elements", __func__, n);
    if ((uintptr_t)memory % TL_BORROWED_ALIGNMENT)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: memory: got an address at a multiple of %d bytes, expected of %d",
                       __func__, (int)((uintptr_t)memory & -(uintptr_t)memory), TL_BORROWED_ALIGNMENT);
    if (is_index != 0 && is_index != 1)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: is_index: got %d, expected 0 or 1", __func__, is_index);
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    status = wrap(ctx, memory, n, is_index, out);
    tl_unlock(ctx);
    if (status) tl_error_name(__func__, status, serial);
    return status;
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

enum { PER_THREAD_STREAM = 2 }; /* cudaStreamPerThread */

static int is_same(const tl_allocator *a, const tl_allocator *b)
{
    return a->allocate == b->allocate && a->release == b->release && a->user == b->user;
}

static int32_t adopt(tl_context *ctx, uint64_t stream, tl_allocator host)
{
    struct tl_pool *const pool = &ctx->pool;
    if (pool->capture)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "context: got a call during its capture, expected it before or after");
    if (stream && (!ctx->cuda || !host.allocate))
        return tl_fail(TORCHLEAN_ARGUMENT, "stream: got %llu, expected 0 %s", (unsigned long long)stream,
                       ctx->cuda ? "without allocate and release" : "on a CPU context");
    if (stream == PER_THREAD_STREAM)
        return tl_fail(TORCHLEAN_ARGUMENT, "stream: got %d, which is another in each thread, expected one",
                       PER_THREAD_STREAM);
    int32_t status = TORCHLEAN_OK;
    /* what the pool caches is of no use to the host, and the host's work is over when it is of use again */
    if (!pool->host.allocate && host.allocate) status = tl_pool_trim(pool);
    if (!status && ctx->cuda) status = tl_cuda_adopt(ctx->cuda, host.allocate != NULL, stream);
    if (status) return status;
    if (!is_same(&pool->host, &host)) pool->pads = 0;
    pool->host = host;
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_context_adopt(torchlean_context *context, uint64_t stream,
                                            void *(*allocate)(void *user, uint64_t bytes),
                                            void (*release)(void *user, void *memory), void *user)
{
    tl_context *ctx;
    const uint64_t serial = tl_error_serial();
    if (!allocate != !release)
        return tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected allocate and release or neither", __func__,
                       allocate ? "release" : "allocate");
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    const tl_allocator host = {allocate, release, allocate ? user : NULL};
    if (!is_same(&ctx->pool.host, &host) || stream != (ctx->cuda && allocate ? tl_cuda_stream_number(ctx->cuda) : 0))
        status = adopt(ctx, stream, host);
    tl_unlock(ctx);
    if (status) tl_error_name(__func__, status, serial);
    return status;
}
