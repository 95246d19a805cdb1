/* Contexts: what a torchlean_context handle names, and their locks. */
#pragma once

#include <time.h>

#include "backend.h"
#include "errors.h"
#include "handles.h"
#include "pool.h"

enum { TL_MARKS = 8 };

struct tl_object;

/* A context lives in its slot; what it holds belongs to whoever holds `lock`. */
struct tl_context {
    tl_slot slot;
    pthread_mutex_t lock;
    _Atomic int32_t ordinal;
    int32_t math; /* TORCHLEAN_FAST or TORCHLEAN_REPRODUCIBLE */
    struct tl_cuda_state *cuda;
    struct tl_pool pool;
    struct tl_object *buffers, *graphs; /* all live ones, so that destroying the context can release them */
    uint64_t live_buffers;
    tl_slot *spare_slots; /* of the table of buffers, free, this context's to use */
    uint32_t spare_count;
    uint64_t captures;               /* begun so far */
    struct timespec marks[TL_MARKS]; /* CPU contexts only; tv_nsec = -1 when not yet set */
};

extern tl_table tl_contexts;

/* Finds the context, locks it and looks again. Unless TL_LIVE, nothing is locked. */
tl_verdict tl_lock_context(const torchlean_context *handle, tl_context **ctx);
/* The same, with a status and a message of `op` for a handle that is not live. */
int32_t tl_lock_live_context(const char *op, const torchlean_context *handle, tl_context **ctx);
static inline void tl_unlock(tl_context *ctx)
{
    tl_block *const lent = ctx->pool.lent ? tl_lent_done(&ctx->pool, 0) : NULL;
    pthread_mutex_unlock(&ctx->lock);
    tl_inside = 0;
    if (lent) tl_lent_return(lent);
}

/* Stops every context (no call is running while they are held) for what concerns all of them: fork, the number of
 * threads, the SIMD variant. */
void tl_lock_all(void);
void tl_unlock_all(void);
