/* Handles: what a torchlean_context *, torchlean_buffer * or torchlean_graph * really is.
 *
 * A handle is a token of 64 bits, never an address: an 8-bit tag of its kind, a 28-bit generation and a 28-bit index
 * into a table of slots. Tables grow by chunks and are never freed or moved, so any value whatever can be checked
 * without a lock and without a crash; a slot that is reused gets a new generation, so an old handle to it is
 * recognised. A slot whose generations are used up is retired instead of wrapping.
 *
 * Locking. Taking and giving back slots is serialised by the table's mutex. A slot's `state` and the fields of a
 * live buffer change only while its context is locked, so the pattern is: find the slot, lock its context, look at
 * `state` again. The mutex of a context lives in its slot and therefore outlives it. Lock order: contexts table,
 * contexts, buffers table, graphs table, thread pool. */
#ifndef TL_HANDLES_H
#define TL_HANDLES_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "internal.h"
#include "pool.h"

_Static_assert(sizeof(void *) == 8, "handles need 64-bit pointers");

enum { TL_TAG_CONTEXT = 0xC7, TL_TAG_BUFFER = 0xB7, TL_TAG_GRAPH = 0xA7, TL_CHUNKS = 20, TL_MARKS = 8 };
#define TL_GENERATION_MAX ((1u << 28) - 1)
#define TL_INDEX_MAX ((1u << 28) - 1)

/* Every slot starts with this. */
typedef struct tl_slot {
    _Atomic uint64_t state; /* generation * 2 + live; generation 0 was never issued */
    uint32_t index;
    struct tl_slot *next_free;
} tl_slot;

typedef struct tl_table {
    uint32_t tag;
    uint32_t first_log2; /* chunk k holds 2^(first_log2 + k) slots */
    size_t slot_size;
    void (*init)(tl_slot *slot); /* once per slot, when its chunk is made; may be NULL */
    pthread_mutex_t lock;
    _Atomic(char *) chunks[TL_CHUNKS];
    uint32_t used; /* slots ever taken */
    tl_slot *free;
} tl_table;

typedef enum tl_verdict { TL_LIVE, TL_WAS_RELEASED, TL_NEVER_ISSUED } tl_verdict;

/* A context lives in its slot; the pool and the list of buffers belong to whoever holds `lock`. */
struct tl_context {
    tl_slot slot;
    pthread_mutex_t lock;
    _Atomic int32_t ordinal;
    struct tl_cuda_state *cuda;
    struct tl_pool pool;
    struct tl_buffer *buffers; /* all live buffers, so that destroying the context can release them */
    uint64_t live_buffers;
    struct timespec marks[TL_MARKS]; /* CPU contexts only; tv_nsec = -1 when not yet set */
    struct tl_capture *capture;      /* while calls are captured, else NULL */
    uint64_t captures;               /* begun so far */
    struct tl_graph *graphs;         /* all live graphs */
};

typedef struct tl_buffer {
    tl_slot slot;
    _Atomic(tl_context *) ctx;
    _Atomic uint32_t n;
    tl_block *block; /* reference-counted: shared by all handles to the storage */
    struct tl_buffer *next, *previous;
} tl_buffer;

/* What a capture gathers; all of it becomes the graph's. */
struct tl_capture {
    uint64_t serial; /* of the context's captures, from 1 */
    pthread_t thread;
    int32_t broken; /* a captured call failed in its work */
    tl_block **held; /* one reference to each block that the graph uses */
    uint64_t count, room;
    tl_block *idle[TL_POOL_CLASSES]; /* taken by captured calls and given back: theirs again, nobody else's */
};

typedef struct tl_graph {
    tl_slot slot;
    _Atomic(tl_context *) ctx;
    struct tl_cuda_graph *run;
    tl_block **held;
    uint64_t count;
    struct tl_graph *next, *previous;
} tl_graph;

extern tl_table tl_contexts, tl_buffers, tl_graphs;

/* A free slot, or NULL when host memory or indices are exhausted. It is not live until tl_slot_publish. */
tl_slot *tl_table_take(tl_table *table);
/* Gives a slot that is not live back. */
void tl_table_give(tl_table *table, tl_slot *slot);
/* Starts the slot's next generation and returns its handle. */
uint64_t tl_slot_publish(tl_table *table, tl_slot *slot);
/* Ends the generation: the handle is "released" from here on. */
void tl_slot_retire(tl_slot *slot);

static inline tl_slot *tl_table_slot(tl_table *table, uint32_t index)
{
    uint32_t first = 1u << table->first_log2;
    uint32_t chunk = 31u - (uint32_t)__builtin_clz(index + first) - table->first_log2;
    char *base = chunk < TL_CHUNKS ? atomic_load_explicit(&table->chunks[chunk], memory_order_acquire) : NULL;
    if (!base)
        return NULL;
    return (tl_slot *)(base + (size_t)(index + first - (first << chunk)) * table->slot_size);
}

/* Looks a handle up without a lock. *slot is set unless the verdict is TL_NEVER_ISSUED. */
static inline tl_verdict tl_table_find(tl_table *table, uint64_t handle, tl_slot **slot)
{
    uint64_t generation = handle >> 28 & TL_GENERATION_MAX;
    if (handle >> 56 != table->tag || generation == 0)
        return TL_NEVER_ISSUED;
    tl_slot *found = tl_table_slot(table, (uint32_t)(handle & TL_INDEX_MAX));
    if (!found)
        return TL_NEVER_ISSUED;
    uint64_t state = atomic_load_explicit(&found->state, memory_order_acquire);
    if (generation > state >> 1)
        return TL_NEVER_ISSUED;
    *slot = found;
    return state == generation * 2 + 1 ? TL_LIVE : TL_WAS_RELEASED;
}

/* The handle of a live slot. */
static inline uint64_t tl_slot_handle(const tl_table *table, tl_slot *slot)
{
    uint64_t generation = atomic_load_explicit(&slot->state, memory_order_acquire) >> 1;
    return (uint64_t)table->tag << 56 | generation << 28 | slot->index;
}

static inline tl_verdict tl_find_buffer(const torchlean_buffer *handle, tl_buffer **buffer)
{
    return tl_table_find(&tl_buffers, (uint64_t)(uintptr_t)handle, (tl_slot **)buffer);
}

/* Finds the context of a buffer handle or a context handle, locks it and looks again. Unless TL_LIVE, nothing is
 * locked. */
tl_verdict tl_lock_buffer(const torchlean_buffer *handle, tl_buffer **buffer, tl_context **ctx);
tl_verdict tl_lock_context(const torchlean_context *handle, tl_context **ctx);
static inline void tl_unlock(tl_context *ctx) { pthread_mutex_unlock(&ctx->lock); }

/* Stops every context (no call is running while they are held) for what concerns all of them: fork, the number of
 * threads, the SIMD variant. */
void tl_lock_all(void);
void tl_unlock_all(void);

/* TORCHLEAN_NULL or TORCHLEAN_RELEASED with the message for a handle that is not live. kind is "buffer" or
 * "context". */
int32_t tl_fail_handle(const char *op, const char *name, const char *kind, const void *handle, tl_verdict verdict);

/* A live buffer on a locked context: with fresh storage for n elements, or one more handle to `shared`. */
int32_t tl_buffer_make(tl_context *ctx, uint32_t n, tl_block *shared, tl_buffer **out);
/* The graph keeps the block. NO_MEMORY with a message. */
int32_t tl_capture_hold(tl_context *ctx, tl_block *block);
/* Gives up a locked context's capture. */
void tl_capture_drop(tl_context *ctx);
/* Ends a live graph of a locked context. */
void tl_graph_end(tl_context *ctx, tl_graph *graph);

/* Ends a live buffer of a locked context. */
void tl_buffer_end(tl_context *ctx, tl_buffer *buffer);
static inline torchlean_buffer *tl_buffer_handle(tl_buffer *buffer)
{
    return (torchlean_buffer *)(uintptr_t)tl_slot_handle(&tl_buffers, &buffer->slot);
}

/* Puts "op: " before the calling thread's message unless it already starts with it; a failure without a message of its
 * own (none since `serial`) gets a general one. */
uint32_t tl_error_serial(void);
void tl_error_name(const char *op, int32_t status, uint32_t serial);

/* fork handlers of threads.c, called with all contexts held */
void tl_threads_before_fork(void);
void tl_threads_after_fork(int in_child);
/* Environment variables are read when the library loads, where nothing can be reported: context_create asks here. */
int32_t tl_threads_environment(void);
int32_t tl_variant_environment(void);
/* "base,avx2,avx512": what this build holds */
const char *tl_variant_list(void);

#endif
