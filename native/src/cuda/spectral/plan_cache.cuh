/* The plans of one kind that a context keeps: those used last, and all that a graph holds.
 *
 * A Plan is plain data with is(key), make(ctx, key), which leaves nothing behind when it fails, and destroy(). */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "cuda/runtime/launch.cuh"

template <class Plan> class tl_plan_cache {
  public:
    /* The plan of a key; where there is no room, the one unused longest gives way. */
    template <class Key>
    static int32_t find(tl_context *ctx, enum tl_attachment attachment, const Key &key, Plan **plan)
    {
        tl_plan_cache *cache = static_cast<tl_plan_cache *>(tl_cuda_attached(ctx, attachment));
        if (!cache) {
            cache = static_cast<tl_plan_cache *>(calloc(1, sizeof *cache));
            if (!cache) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for FFT plans");
            tl_cuda_attach(ctx, attachment, cache, close);
        }
        return cache->find(ctx, key, plan);
    }

  private:
    /* Plans that no graph uses; the cache grows by those that one does. */
    static constexpr int CACHED_PLANS = 24;

    struct Entry {
        Plan plan;
        uint64_t stamp; /* 0: free */
        int captured;   /* a graph reads its tables: it stays */
    } *entries;
    int count;
    uint64_t now;

    static void close(void *object)
    {
        tl_plan_cache *cache = static_cast<tl_plan_cache *>(object);
        for (int i = 0; i < cache->count; i++)
            if (cache->entries[i].stamp) cache->entries[i].plan.destroy();
        free(cache->entries);
        free(cache);
    }

    /* Room for CACHED_PLANS more; the first of them. */
    Entry *widen()
    {
        Entry *more =
            static_cast<Entry *>(realloc(static_cast<void *>(entries), (count + CACHED_PLANS) * sizeof *more));
        if (!more) return nullptr;
        memset(static_cast<void *>(more + count), 0, CACHED_PLANS * sizeof *more);
        entries = more;
        count += CACHED_PLANS;
        return entries + count - CACHED_PLANS;
    }

    template <class Key> int32_t find(tl_context *ctx, const Key &key, Plan **plan)
    {
        const int capturing = tl_cuda_capturing(ctx);
        Entry *place = nullptr;
        for (int i = 0; i < count; i++) {
            Entry &e = entries[i];
            if (e.stamp && e.plan.is(key)) {
                e.stamp = ++now;
                e.captured |= capturing;
                *plan = &e.plan;
                return TORCHLEAN_OK;
            }
            if (!e.captured && (!place || e.stamp < place->stamp)) place = &e;
        }
        if (capturing) /* making one waits for the device */
            return tl_fail(
                TORCHLEAN_UNAVAILABLE,
                "a transform of %lld points for which there is no plan cannot be captured; run it once before",
                (long long)key.n);
        if (!place && !(place = widen())) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for FFT plans");
        if (place->stamp) place->plan.destroy();
        place->stamp = 0;
        TL_TRY(place->plan.make(ctx, key));
        place->captured = 0;
        place->stamp = ++now;
        *plan = &place->plan;
        return TORCHLEAN_OK;
    }
};
