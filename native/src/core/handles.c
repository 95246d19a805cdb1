/* The slot tables behind handles: taking, publishing, retiring and giving back slots. See handles.h for the scheme. */
#include "handles.h"

#include <stdlib.h>

#include "errors.h"

uint64_t tl_handle_salt;

/* The place of a variable is the copy's own; the mixing (splitmix64's, a bijection) spreads it over all bits. */
__attribute__((constructor)) static void draw_salt(void)
{
    uint64_t z = (uintptr_t)&tl_handle_salt + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    tl_handle_salt = (z ^ z >> 31) >> 1;
}

tl_slot *tl_table_take(tl_table *table)
{
    pthread_mutex_lock(&table->lock);
    tl_slot *slot = table->free;
    if (slot) {
        table->free = slot->next_free;
    } else if (table->used <= TL_INDEX_MAX) {
        slot = tl_table_slot(table, table->used);
        if (!slot) {
            uint32_t first = 1u << table->first_log2;
            uint32_t chunk = 31u - (uint32_t)__builtin_clz(table->used + first) - table->first_log2;
            uint32_t count = first << chunk;
            char *base = chunk < TL_CHUNKS ? calloc(count, table->slot_size) : NULL;
            if (base) {
                for (uint32_t i = 0; i < count; i++) {
                    tl_slot *new_slot = (tl_slot *)(base + i * table->slot_size);
                    new_slot->index = table->used + i;
                    if (table->init) table->init(new_slot);
                }
                atomic_store_explicit(&table->chunks[chunk], base, memory_order_release);
                slot = (tl_slot *)base;
            }
        }
        if (slot) table->used++;
    }
    pthread_mutex_unlock(&table->lock);
    return slot;
}

void tl_table_give(tl_table *table, tl_slot *slot)
{
    if (tl_slot_used_up(slot)) return;
    pthread_mutex_lock(&table->lock);
    slot->next_free = table->free;
    table->free = slot;
    pthread_mutex_unlock(&table->lock);
}

uint64_t tl_slot_publish(tl_table *table, tl_slot *slot)
{
    uint64_t generation = (atomic_load_explicit(&slot->state, memory_order_relaxed) >> 1) + 1;
    atomic_store_explicit(&slot->state, generation * 2 + 1, memory_order_release);
    return tl_slot_handle(table, slot);
}

void tl_slot_retire(tl_slot *slot)
{
    uint64_t state = atomic_load_explicit(&slot->state, memory_order_relaxed);
    atomic_store_explicit(&slot->state, state & ~UINT64_C(1), memory_order_release);
}

int32_t tl_fail_handle(const char *op, const char *name, const tl_table *table, const void *handle, tl_verdict verdict)
{
    const char *kind = table->kind;
    if (verdict == TL_REENTERED) return tl_fail_reentry(op);
    if (!handle) return tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected a %s", op, name, kind);
    if (verdict == TL_WAS_RELEASED)
        return tl_fail(TORCHLEAN_RELEASED, "%s: %s: got a released %s, expected a live one", op, name, kind);
    return tl_fail(TORCHLEAN_RELEASED, "%s: %s: got a value that was never issued as a handle, expected a live %s", op,
                   name, kind);
}
