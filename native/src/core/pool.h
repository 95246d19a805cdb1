/* The caching pool of one context: same code for CPU memory and device memory.
 *
 * Requests are rounded up to a size class (multiples of 256 bytes up to 2 KiB, then eight steps per octave, so at
 * most 1/8 is lost) and served from the class's free list. A block goes back to its list as soon as it is freed: all
 * work of a context is ordered by its one stream, so whoever gets the block next runs after whoever had it. Nothing
 * here locks; the context is locked by the caller.
 *
 * While calls are captured, what they take stays with the graph: given back, a block serves later calls of the same
 * capture, whose work runs in order too, and nobody else. */
#ifndef TL_POOL_H
#define TL_POOL_H

#include "internal.h"

enum { TL_POOL_LOG2_MAX = 47, TL_POOL_CLASSES = 8 + (TL_POOL_LOG2_MAX - 11) * 8 };

/* One block from the driver or the operating system; it is in the pool's pointer map as long as it exists. */
typedef struct tl_block {
    void *p;
    uint64_t bytes;          /* of the class */
    uint32_t size_class;
    uint32_t references;     /* handles that share it; 0 in the cache */
    uint32_t output;         /* while a call looks for aliases: 1 + which of its outputs this is, else 0 */
    uint64_t taken_by;       /* the capture that took it from the pool, 0: none; then it may serve that one again */
    uint64_t held_by;        /* the last capture that holds it */
    struct tl_block *cached; /* next in the class's free list */
    struct tl_block *chain;  /* next in the pointer map's bucket */
} tl_block;

struct tl_pool {
    tl_block *cached[TL_POOL_CLASSES];
    tl_block **buckets; /* pointer -> block, chained */
    uint64_t bucket_count, blocks;
    torchlean_memory counters; /* live_buffers is kept by the context */
};

int32_t tl_pool_open(tl_context *ctx);
/* Returns everything, live blocks included. */
void tl_pool_close(tl_context *ctx);
/* A block with one reference. */
int32_t tl_pool_take(tl_context *ctx, size_t bytes, tl_block **out);
/* The same for content that a captured call reads at every launch: no other call of the capture gets the block. */
int32_t tl_pool_take_constant(tl_context *ctx, size_t bytes, tl_block **out);
/* Drops one reference; the last one puts the block into the cache. */
void tl_pool_drop(tl_context *ctx, tl_block *block);

#endif
