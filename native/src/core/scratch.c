/* Blocks of the context's pool as kernels use them: by pointer. */
#include "scratch.h"

#include "context.h"

static int32_t pointer_of(int32_t status, const tl_block *block, void **p)
{
    *p = status ? NULL : block->p;
    return status;
}

int32_t tl_pool_alloc(tl_context *ctx, size_t bytes, void **p)
{
    tl_block *block;
    int32_t status = tl_pool_take(&ctx->pool, bytes, &block);
    return pointer_of(status, block, p);
}

int32_t tl_pool_alloc_constant(tl_context *ctx, size_t bytes, void **p)
{
    tl_block *block;
    int32_t status = tl_pool_take_constant(&ctx->pool, bytes, &block);
    return pointer_of(status, block, p);
}

void tl_pool_free(tl_context *ctx, void *p)
{
    tl_block *block = p ? tl_pool_find(&ctx->pool, p) : NULL;
    if (block && block->references)
        tl_pool_drop(&ctx->pool, block);
}

int32_t tl_pool_collect(tl_context *ctx) { return tl_pool_trim(&ctx->pool); }
