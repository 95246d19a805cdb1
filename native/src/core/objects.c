/* How buffers and graphs come and go: a slot is taken, filled, entered in its context's list and published; later it is
 * retired, taken out of the list, emptied and given back. */
#include "objects.h"

#include <stdlib.h>

#include "errors.h"

tl_table tl_buffers = TL_TABLE("buffer", TL_TAG_BUFFER, 10, tl_buffer, NULL);
tl_table tl_graphs = TL_TABLE("graph", TL_TAG_GRAPH, 6, tl_graph, NULL);

/* ---- both kinds -------------------------------------------------------------------------------------------------- */

tl_verdict tl_lock_object(tl_table *table, const void *handle, tl_object **object, tl_context **ctx)
{
    tl_verdict verdict = tl_find_object(table, handle, object);
    if (verdict != TL_LIVE || tl_inside) return verdict == TL_LIVE ? TL_REENTERED : verdict;
    /* If the slot is reused right here this is another context; then the second look sees another generation. */
    tl_context *found = atomic_load_explicit(&(*object)->ctx, memory_order_acquire);
    tl_inside = 1;
    pthread_mutex_lock(&found->lock);
    verdict = tl_slot_verdict(&(*object)->slot, (uint64_t)(uintptr_t)handle);
    if (verdict == TL_LIVE)
        *ctx = found;
    else
        tl_unlock(found);
    return verdict;
}

static int32_t lock_live(const char *op, const char *name, tl_table *table, const void *handle, tl_object **object,
                         tl_context **ctx)
{
    tl_verdict verdict = tl_lock_object(table, handle, object, ctx);
    return verdict == TL_LIVE ? TORCHLEAN_OK : tl_fail_handle(op, name, table, handle, verdict);
}

int32_t tl_lock_live_buffer(const char *op, const char *name, const torchlean_buffer *handle, tl_buffer **buffer,
                            tl_context **ctx)
{
    return lock_live(op, name, &tl_buffers, handle, (tl_object **)buffer, ctx);
}

int32_t tl_lock_live_graph(const char *op, const char *name, const torchlean_graph *handle, tl_graph **graph,
                           tl_context **ctx)
{
    return lock_live(op, name, &tl_graphs, handle, (tl_object **)graph, ctx);
}

/* Enters a filled object in the context's list; returns its handle, which is live from here on. */
static uint64_t begin_object(tl_context *ctx, tl_object **list, tl_table *table, tl_object *object)
{
    atomic_store_explicit(&object->ctx, ctx, memory_order_relaxed);
    object->previous = NULL;
    object->next = *list;
    if (*list) (*list)->previous = object;
    *list = object;
    return tl_slot_publish(table, &object->slot);
}

/* The handle is released from here on; what the object holds goes next, then its slot. */
static void end_object(tl_object **list, tl_object *object)
{
    tl_slot_retire(&object->slot);
    if (object->next) object->next->previous = object->previous;
    if (object->previous)
        object->previous->next = object->next;
    else
        *list = object->next;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* A context has a few slots of its own, so that making and ending a buffer takes no other lock than the context's. */
enum { TL_SPARE_SLOTS = 64 };

static tl_slot *take_slot(tl_context *ctx)
{
    tl_slot *const slot = ctx->spare_slots;
    if (!slot) return tl_table_take(&tl_buffers);
    ctx->spare_slots = slot->next_free;
    ctx->spare_count--;
    return slot;
}

static void give_slot(tl_context *ctx, tl_slot *slot)
{
    if (ctx->spare_count == TL_SPARE_SLOTS || tl_slot_used_up(slot)) {
        tl_table_give(&tl_buffers, slot);
        return;
    }
    slot->next_free = ctx->spare_slots;
    ctx->spare_slots = slot;
    ctx->spare_count++;
}

void tl_buffer_slots_end(tl_context *ctx)
{
    while (ctx->spare_slots)
        tl_table_give(&tl_buffers, take_slot(ctx));
}

int32_t tl_buffer_make(tl_context *ctx, uint32_t n, int32_t is_index, tl_block *shared, tl_buffer **out)
{
    *out = NULL;
    tl_buffer *buffer = (tl_buffer *)take_slot(ctx);
    if (!buffer) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a buffer handle");
    if (shared) {
        shared->references++;
        buffer->block = shared;
    } else {
        int32_t status = tl_pool_take(&ctx->pool, (size_t)n * sizeof(float), 0, &buffer->block);
        if (status) {
            give_slot(ctx, &buffer->object.slot);
            return status;
        }
    }
    buffer->is_index = is_index;
    atomic_store_explicit(&buffer->n, n, memory_order_relaxed);
    ctx->live_buffers++;
    begin_object(ctx, &ctx->buffers, &tl_buffers, &buffer->object);
    *out = buffer;
    return TORCHLEAN_OK;
}

void tl_buffer_end(tl_context *ctx, tl_buffer *buffer)
{
    end_object(&ctx->buffers, &buffer->object);
    ctx->live_buffers--;
    tl_pool_drop(&ctx->pool, buffer->block);
    give_slot(ctx, &buffer->object.slot);
}

/* ---- captures and graphs ----------------------------------------------------------------------------------------- */

static void drop_blocks(tl_context *ctx, tl_block **held, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        tl_pool_drop(&ctx->pool, held[i]);
    free(held);
}

void tl_capture_drop(tl_context *ctx)
{
    struct tl_capture *capture = ctx->pool.capture;
    tl_cuda_capture_drop(ctx->cuda);
    ctx->pool.capture = NULL; /* before the blocks go, so that they go to the pool */
    drop_blocks(ctx, capture->held, capture->count);
    free(capture);
}

int32_t tl_graph_make(tl_context *ctx, torchlean_graph **out)
{
    struct tl_capture *capture = ctx->pool.capture;
    struct tl_cuda_graph *run = NULL;
    tl_graph *graph = (tl_graph *)tl_table_take(&tl_graphs);
    int32_t status = graph ? tl_cuda_capture_end(ctx->cuda, &run)
                           : tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a graph");
    if (status) {
        tl_capture_drop(ctx);
        if (graph) tl_table_give(&tl_graphs, &graph->object.slot);
        return status;
    }
    ctx->pool.capture = NULL;
    graph->run = run;
    graph->held = capture->held;
    graph->count = capture->count;
    free(capture);
    *out = (torchlean_graph *)(uintptr_t)begin_object(ctx, &ctx->graphs, &tl_graphs, &graph->object);
    return TORCHLEAN_OK;
}

void tl_graph_end(tl_context *ctx, tl_graph *graph)
{
    end_object(&ctx->graphs, &graph->object);
    tl_cuda_graph_free(ctx->cuda, graph->run);
    drop_blocks(ctx, graph->held, graph->count);
    tl_table_give(&tl_graphs, &graph->object.slot);
}
