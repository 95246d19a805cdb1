/* Objects of a context, which handles name: buffers and graphs. How they come and go. */
#pragma once

#include "context.h"

/* Every buffer and every graph starts with this. */
typedef struct tl_object {
    tl_slot slot;
    _Atomic(tl_context *) ctx;
    struct tl_object *next, *previous; /* in its context's list */
} tl_object;

typedef struct tl_buffer {
    tl_object object;
    _Atomic uint32_t n;
    int32_t is_index; /* holds uint32 indices, not float32 */
    tl_block *block;  /* reference-counted: shared by all handles to the storage */
} tl_buffer;

typedef struct tl_graph {
    tl_object object;
    struct tl_cuda_graph *run;
    tl_block **held; /* one reference to each block that its work uses */
    uint64_t count;
} tl_graph;

extern tl_table tl_buffers, tl_graphs;

static inline tl_verdict tl_find_object(tl_table *table, const void *handle, tl_object **object)
{
    return tl_table_find(table, (uint64_t)(uintptr_t)handle, (tl_slot **)object);
}

/* Finds the object, locks its context and looks again. Unless TL_LIVE, nothing is locked. */
tl_verdict tl_lock_object(tl_table *table, const void *handle, tl_object **object, tl_context **ctx);
/* The same, with a status and a message about argument `name` of `op` for a handle that is not live. */
int32_t tl_lock_live_buffer(const char *op, const char *name, const torchlean_buffer *handle, tl_buffer **buffer,
                            tl_context **ctx);
int32_t tl_lock_live_graph(const char *op, const char *name, const torchlean_graph *handle, tl_graph **graph,
                           tl_context **ctx);

/* A live buffer on a locked context: with fresh storage for n elements, or one more handle to `shared`. */
int32_t tl_buffer_make(tl_context *ctx, uint32_t n, int32_t is_index, tl_block *shared, tl_buffer **out);
/* Ends a live buffer of a locked context. */
void tl_buffer_end(tl_context *ctx, tl_buffer *buffer);
/* Gives a locked context's spare slots back to the table. */
void tl_buffer_slots_end(tl_context *ctx);
static inline torchlean_buffer *tl_buffer_handle(tl_buffer *buffer)
{
    return (torchlean_buffer *)(uintptr_t)tl_slot_handle(&tl_buffers, &buffer->object.slot);
}

/* Ends a locked context's capture, which becomes a live graph. Whatever happens, there is no capture afterwards. */
int32_t tl_graph_make(tl_context *ctx, torchlean_graph **out);
/* Ends a live graph of a locked context. */
void tl_graph_end(tl_context *ctx, tl_graph *graph);
/* Gives up a locked context's capture. */
void tl_capture_drop(tl_context *ctx);
