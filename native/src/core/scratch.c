/* Blocks of the context's pool as kernels use them: by pointer. */
#include "scratch.h"

#include "context.h"
#include "kept.h"

static int32_t take(tl_context *ctx, size_t bytes, int constant, void **p)
{
    tl_block *block;
    int32_t status = tl_pool_take(&ctx->pool, bytes, constant, &block);
    *p = status ? NULL : block->p;
    return status;
}

int32_t tl_pool_alloc(tl_context *ctx, size_t bytes, void **p) { return take(ctx, bytes, 0, p); }
int32_t tl_pool_alloc_constant(tl_context *ctx, size_t bytes, void **p) { return take(ctx, bytes, 1, p); }

int32_t tl_pool_alloc_for_call(tl_context *ctx, size_t bytes, void **p)
{
    struct tl_pool *const pool = &ctx->pool;
    const int32_t status = pool->of_call ? TORCHLEAN_OK : tl_pool_take(pool, bytes, 0, &pool->of_call);
    *p = status ? NULL : pool->of_call->p;
    return status;
}

int tl_pool_owns(tl_context *ctx, const void *p) { return tl_pool_find(&ctx->pool, p) != NULL; }

void tl_pool_free(tl_context *ctx, void *p)
{
    tl_block *block = p ? tl_pool_find(&ctx->pool, p) : NULL;
    if (block && block->references) tl_pool_drop(&ctx->pool, block);
}

void tl_pool_keep(tl_context *ctx, void *p, tl_content content)
{
    tl_pool_put_kept(&ctx->pool, tl_pool_find(&ctx->pool, p), content);
}

void *tl_pool_kept(tl_context *ctx, size_t bytes, tl_content content)
{
    tl_block *block = tl_pool_take_kept(&ctx->pool, bytes, content);
    return block ? block->p : NULL;
}

int32_t tl_pool_collect(tl_context *ctx) { return tl_pool_trim(&ctx->pool); }
