/* The caching pool of one context: same code for CPU memory and device memory.
 *
 * Requests are rounded up to a size class (multiples of 256 bytes up to 2 KiB, then eight steps per octave, so at
 * most 1/8 is lost) and served from the class's free list. A block goes back to its list as soon as it is freed: all
 * work of a context is ordered by its one stream, so whoever gets the block next runs after whoever had it. Nothing
 * here locks; the context is locked by the caller.
 *
 * While calls are captured, what they take stays with the graph: given back, a block serves later calls of the same
 * capture, whose work runs in order too, and nobody else.
 *
 * Where the context works for a host, memory comes from the host's allocator and goes back to it at once: the host knows what its
 * streams do, and another stream may be the context's by the time that a cached block were used again. */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "api.h"
#include "kept.h"

enum { TL_POOL_LOG2_MAX = 47, TL_POOL_CLASSES = 8 + (TL_POOL_LOG2_MAX - 11) * 8 };
/* What memory of others is aligned to: kernels load four numbers at once. */
enum { TL_BORROWED_ALIGNMENT = 16 };

/* Who memory of others goes back to. */
typedef struct tl_lender {
    void *object;
    void (*give_back)(void *object); /* no context is locked: it may come to this library */
    void *event;                     /* CUDA: after the last work that may use the memory */
} tl_lender;

/* Memory of a host. */
typedef struct tl_allocator {
    void *(*allocate)(void *user, uint64_t bytes);
    void (*release)(void *user, void *memory);
    void *user;
} tl_allocator;

/* Whose a block's memory is: the pool's, from the driver or the operating system; that of the host's allocator; or that of a caller
 * or a lender. */
typedef enum tl_owner { TL_OF_POOL, TL_OF_HOST, TL_OF_OTHERS } tl_owner;

/* One block of memory; it is in the pool's pointer map as long as it exists. */
typedef struct tl_block {
    void *p;
    uint64_t bytes; /* of the class; of memory of others what the lender vouches for */
    uint32_t size_class;
    uint32_t references; /* handles that share it; 0 in the cache */
    uint32_t output;     /* while a call looks for aliases: 1 + which of its outputs this is, else 0 */
    tl_owner owner;
    int8_t is_untouched;     /* new pages of the system, all 0, until the call that asked for them writes */
    uint64_t taken_by;       /* the capture that took it from the pool, 0: none; then it may serve that one again */
    uint64_t held_by;        /* the last capture that holds it */
    struct tl_block *cached; /* next in the class's free list */
    struct tl_block *chain;  /* next in the pointer map's bucket */
    tl_lender *lender;       /* of memory of others, or NULL: nobody is told when it is free */
    tl_allocator host;       /* of memory of the host: who gets it back */
    void *memory;            /* what the host gave, of which p is the first multiple of 256 */
} tl_block;

/* What a capture gathers; all of it becomes the graph's. */
struct tl_capture {
    uint64_t serial;  /* of the context's captures, from 1 */
    pthread_t thread; /* the one that captures */
    int32_t broken;   /* a captured call failed in its work */
    int32_t has_inputs;
    tl_block **held; /* one reference to each block that the graph uses */
    uint64_t count, room;
    tl_block *idle[TL_POOL_CLASSES]; /* taken by captured calls and given back: theirs again, nobody else's */
};

struct tl_pool {
    struct tl_cuda_state *cuda; /* the device that memory comes from; NULL on the CPU */
    struct tl_capture *capture; /* while the context's calls are captured, else NULL */
    tl_block *cached[TL_POOL_CLASSES];
    tl_block *kept; /* cached outside of the lists, as its content is still of use, or NULL */
    tl_content content;
    tl_block **buckets; /* pointer -> block, chained */
    tl_block *lent;     /* memory of others that no handle has any more, the latest first */
    tl_block *spare;    /* what is left of blocks whose memory has gone: for the next ones */
    tl_block *of_call;  /* scratch for the rest of the call, or NULL */
    tl_allocator host;  /* where blocks come from; allocate is NULL where the context has no host */
    int pads;           /* the host's memory lies between multiples of 256 bytes */
    uint64_t bucket_count, blocks;
    torchlean_memory counters; /* live_buffers is kept by the context */
};

int32_t tl_pool_open(struct tl_pool *pool, struct tl_cuda_state *cuda);
/* Returns everything, live blocks included; memory of others goes into the list. */
void tl_pool_close(struct tl_pool *pool);
/* A block with one reference. `constant`: for content that a captured call reads at every launch, so no other call of the
 * capture gets the block. */
int32_t tl_pool_take(struct tl_pool *pool, size_t bytes, int constant, tl_block **out);
/* One more reference to the block over a caller's memory that begins at p, which no cache ever holds. ALIAS or NO_MEMORY with a message. */
int32_t tl_pool_wrap(struct tl_pool *pool, void *p, uint64_t bytes, tl_block **out);
/* The same, and the memory goes back to its lender with the last one. The block at p, if there is one, has no lender. NO_MEMORY. */
int32_t tl_pool_borrow(struct tl_pool *pool, void *p, uint64_t bytes, tl_lender *lender, tl_block **out);
/* Gives back the scratch of a call that ends. */
void tl_pool_end_call(struct tl_pool *pool);
/* Drops one reference; the last one puts the block into the cache, or the memory of others into the list of what goes back. */
void tl_pool_drop(struct tl_pool *pool, tl_block *block);
/* Drops the only reference to a block whose content serves again; the one that was kept before goes into the cache. A capture keeps
 * its blocks itself. */
void tl_pool_put_kept(struct tl_pool *pool, tl_block *block, tl_content content);
/* The kept block with one reference, where its content is this one, or NULL. */
tl_block *tl_pool_take_kept(struct tl_pool *pool, size_t bytes, tl_content content);
/* The block that begins at p, or NULL. */
tl_block *tl_pool_find(const struct tl_pool *pool, const void *p);
/* Returns the cached blocks to the driver, after waiting for the stream. Does nothing while calls are captured. */
int32_t tl_pool_trim(struct tl_pool *pool);
/* The capture holds the block, and so will its graph. NO_MEMORY with a message. */
int32_t tl_capture_hold(struct tl_capture *capture, tl_block *block);
/* Takes the blocks whose lenders may have their memory back out of the pool's list: all of them with `finished`, else those whose
 * work is done. */
tl_block *tl_lent_done(struct tl_pool *pool, int finished);
/* Gives them back. */
void tl_lent_return(tl_block *blocks);
