/* The table of contexts, and their locks. */
#include "context.h"

static void init_context(tl_slot *slot) { pthread_mutex_init(&((tl_context *)slot)->lock, NULL); }

tl_table tl_contexts = TL_TABLE("context", TL_TAG_CONTEXT, 3, tl_context, init_context);

int32_t tl_context_ordinal(const tl_context *ctx) { return atomic_load_explicit(&ctx->ordinal, memory_order_relaxed); }

int tl_is_reproducible(const tl_context *ctx) { return ctx->math == TORCHLEAN_REPRODUCIBLE; }

struct tl_cuda_state *tl_context_cuda(const tl_context *ctx) { return ctx->cuda; }

tl_verdict tl_lock_context(const torchlean_context *handle, tl_context **ctx)
{
    tl_context *found = NULL;
    tl_verdict verdict = tl_table_find(&tl_contexts, (uint64_t)(uintptr_t)handle, (tl_slot **)&found);
    if (verdict != TL_LIVE || tl_inside) return verdict == TL_LIVE ? TL_REENTERED : verdict;
    tl_inside = 1;
    pthread_mutex_lock(&found->lock);
    verdict = tl_slot_verdict(&found->slot, (uint64_t)(uintptr_t)handle);
    if (verdict == TL_LIVE)
        *ctx = found;
    else
        tl_unlock(found);
    return verdict;
}

int32_t tl_lock_live_context(const char *op, const torchlean_context *handle, tl_context **ctx)
{
    tl_verdict verdict = tl_lock_context(handle, ctx);
    return verdict == TL_LIVE ? TORCHLEAN_OK : tl_fail_handle(op, "context", &tl_contexts, handle, verdict);
}

void tl_lock_all(void)
{
    pthread_mutex_lock(&tl_contexts.lock);
    for (uint32_t i = 0; i < tl_contexts.used; i++)
        pthread_mutex_lock(&((tl_context *)tl_table_slot(&tl_contexts, i))->lock);
}

void tl_unlock_all(void)
{
    for (uint32_t i = tl_contexts.used; i-- > 0;)
        pthread_mutex_unlock(&((tl_context *)tl_table_slot(&tl_contexts, i))->lock);
    pthread_mutex_unlock(&tl_contexts.lock);
}
