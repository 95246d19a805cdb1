/* Handles: what a torchlean_context *, torchlean_buffer * or torchlean_graph * really is.
 *
 * A handle is a token of 64 bits, never an address: an 8-bit tag of its kind, a 28-bit generation and a 28-bit index
 * into a table of slots, with the salt of this copy of the library over them, so that the handles of another copy in the
 * process are no handles here. Tables grow by chunks and are never freed or moved, so any value whatever can be checked
 * without a lock and without a crash; a slot that is reused gets a new generation, so an old handle to it is
 * recognised. A slot whose generations are used up is retired instead of wrapping.
 *
 * Locking. Taking slots of a table and giving them back is serialised by the table's mutex. A slot's `state` and the fields of a
 * live buffer change only while its context is locked, so the pattern is: find the slot, lock its context, look at
 * `state` again. The mutex of a context lives in its slot and therefore outlives it. Lock order: contexts table,
 * contexts, buffers table, graphs table, thread pool. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert(sizeof(void *) == 8, "handles need 64-bit pointers");

enum { TL_TAG_CONTEXT = 0xC7, TL_TAG_BUFFER = 0xB7, TL_TAG_GRAPH = 0xA7, TL_CHUNKS = 20 };
#define TL_GENERATION_MAX ((1u << 28) - 1)
#define TL_INDEX_MAX ((1u << 28) - 1)

/* Every slot starts with this. */
typedef struct tl_slot {
    _Atomic uint64_t state; /* generation * 2 + live; generation 0 was never issued */
    uint32_t index;
    struct tl_slot *next_free;
} tl_slot;

typedef struct tl_table {
    const char *kind; /* of what its handles name: "buffer" */
    uint32_t tag;
    uint32_t first_log2; /* chunk k holds 2^(first_log2 + k) slots */
    size_t slot_size;
    void (*init)(tl_slot *slot); /* once per slot, when its chunk is made; may be NULL */
    pthread_mutex_t lock;
    _Atomic(char *) chunks[TL_CHUNKS];
    uint32_t used; /* slots ever taken */
    tl_slot *free;
} tl_table;

#define TL_TABLE(name, its_tag, log2, type, its_init) \
    {.kind = name, .tag = its_tag, .first_log2 = log2, .slot_size = sizeof(type), .init = its_init, \
     .lock = PTHREAD_MUTEX_INITIALIZER}

/* TL_REENTERED: live, but the calling thread is within a call of the library already. */
typedef enum tl_verdict { TL_LIVE, TL_WAS_RELEASED, TL_NEVER_ISSUED, TL_REENTERED } tl_verdict;

/* Differs between copies of the library in a process. Its top bit is 0 and that of every tag 1, so no handle is NULL. */
extern uint64_t tl_handle_salt;

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
    if (!base) return NULL;
    return (tl_slot *)(base + (size_t)(index + first - (first << chunk)) * table->slot_size);
}

/* What a handle is that names this slot, in one of its generations. */
static inline tl_verdict tl_slot_verdict(tl_slot *slot, uint64_t handle)
{
    const uint64_t generation = (handle ^ tl_handle_salt) >> 28 & TL_GENERATION_MAX;
    const uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
    if (generation == 0 || generation > state >> 1) return TL_NEVER_ISSUED;
    return state == generation * 2 + 1 ? TL_LIVE : TL_WAS_RELEASED;
}

/* Looks a handle up without a lock. *slot is set unless the verdict is TL_NEVER_ISSUED. */
static inline tl_verdict tl_table_find(tl_table *table, uint64_t handle, tl_slot **slot)
{
    const uint64_t token = handle ^ tl_handle_salt;
    if (token >> 56 != table->tag) return TL_NEVER_ISSUED;
    tl_slot *found = tl_table_slot(table, (uint32_t)(token & TL_INDEX_MAX));
    const tl_verdict verdict = found ? tl_slot_verdict(found, handle) : TL_NEVER_ISSUED;
    if (verdict != TL_NEVER_ISSUED) *slot = found;
    return verdict;
}

/* The handle of a live slot. */
static inline uint64_t tl_slot_handle(const tl_table *table, tl_slot *slot)
{
    uint64_t generation = atomic_load_explicit(&slot->state, memory_order_acquire) >> 1;
    return ((uint64_t)table->tag << 56 | generation << 28 | slot->index) ^ tl_handle_salt;
}

/* With its generations used up a slot is abandoned: 2^28 uses for some 80 bytes. */
static inline int tl_slot_used_up(const tl_slot *slot)
{
    return atomic_load_explicit(&slot->state, memory_order_relaxed) >> 1 >= TL_GENERATION_MAX;
}

/* NULL, RELEASED or UNAVAILABLE with the message for argument `name` of `op`, a handle that is not live. */
int32_t tl_fail_handle(const char *op, const char *name, const tl_table *table, const void *handle, tl_verdict verdict);
