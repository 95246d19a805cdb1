/* Contexts: creation and destruction, locking, fork, time marks, memory statistics, and the description of devices. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "handles.h"

static void init_context(tl_slot *slot) { pthread_mutex_init(&((tl_context *)slot)->lock, NULL); }

tl_table tl_contexts = {.tag = TL_TAG_CONTEXT, .first_log2 = 3, .slot_size = sizeof(tl_context), .init = init_context,
                        .lock = PTHREAD_MUTEX_INITIALIZER};

int32_t tl_context_ordinal(const tl_context *ctx)
{
    return atomic_load_explicit(&ctx->ordinal, memory_order_relaxed);
}

struct tl_cuda_state *tl_context_cuda(const tl_context *ctx) { return ctx->cuda; }

/* ---- locking --------------------------------------------------------------------------------------------------- */

tl_verdict tl_lock_context(const torchlean_context *handle, tl_context **ctx)
{
    tl_context *found = NULL;
    tl_verdict verdict = tl_table_find(&tl_contexts, (uint64_t)(uintptr_t)handle, (tl_slot **)&found);
    if (verdict != TL_LIVE)
        return verdict;
    pthread_mutex_lock(&found->lock);
    verdict = tl_table_find(&tl_contexts, (uint64_t)(uintptr_t)handle, (tl_slot **)&found);
    if (verdict == TL_LIVE)
        *ctx = found;
    else
        pthread_mutex_unlock(&found->lock);
    return verdict;
}

tl_verdict tl_lock_buffer(const torchlean_buffer *handle, tl_buffer **buffer, tl_context **ctx)
{
    tl_verdict verdict = tl_find_buffer(handle, buffer);
    if (verdict != TL_LIVE)
        return verdict;
    /* If the slot is reused right here this is another context; then the second look sees another generation. */
    tl_context *found = atomic_load_explicit(&(*buffer)->ctx, memory_order_acquire);
    pthread_mutex_lock(&found->lock);
    verdict = tl_find_buffer(handle, buffer);
    if (verdict == TL_LIVE)
        *ctx = found;
    else
        pthread_mutex_unlock(&found->lock);
    return verdict;
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

/* ---- fork ------------------------------------------------------------------------------------------------------ */
/* The child must find every lock free and every structure whole, so fork waits for running calls. */

static _Atomic uint32_t forks;

uint32_t tl_fork_serial(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

static void before_fork(void)
{
    tl_lock_all();
    pthread_mutex_lock(&tl_buffers.lock);
    pthread_mutex_lock(&tl_graphs.lock);
    tl_threads_before_fork();
}

static void after_fork_in_parent(void)
{
    tl_threads_after_fork(0);
    pthread_mutex_unlock(&tl_graphs.lock);
    pthread_mutex_unlock(&tl_buffers.lock);
    tl_unlock_all();
}

static void after_fork_in_child(void)
{
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
    tl_threads_after_fork(1);
    pthread_mutex_unlock(&tl_graphs.lock);
    pthread_mutex_unlock(&tl_buffers.lock);
    tl_unlock_all();
}

__attribute__((constructor)) static void watch_fork(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- devices --------------------------------------------------------------------------------------------------- */

TL_API uint32_t torchlean_cuda_device_count(void) { return tl_cuda_device_count(); }

static void cpu_name(char *name, size_t capacity)
{
    snprintf(name, capacity, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (colon && strncmp(line, "model name", 10) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(name, capacity, "%s", colon + 1 + (colon[1] == ' '));
            break;
        }
    }
    fclose(file);
}

TL_API int32_t torchlean_cuda_device_describe(int32_t device, char *text, uint32_t capacity)
{
    if (!text || capacity == 0)
        return tl_fail(TORCHLEAN_NULL, "%s: text: got %s, expected room for a line", __func__,
                       text ? "capacity 0" : "NULL");
    if (device >= 0) {
        uint32_t serial = tl_error_serial();
        int32_t status = tl_cuda_device_describe(device, text, capacity);
        if (status)
            tl_error_name(__func__, status, serial);
        return status;
    }
    if (device != TORCHLEAN_CPU)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "%s: device: got %d, expected -1 (CPU) or a CUDA ordinal", __func__,
                       device);
    char name[128];
    cpu_name(name, sizeof name);
    double gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1024.0 * 1024 * 1024);
    snprintf(text, capacity, "CPU, %s, SIMD variant %s, %u threads, %.1f GiB", name, torchlean_cuda_cpu_variant(),
             torchlean_cuda_threads(), gib);
    return TORCHLEAN_OK;
}

/* ---- contexts -------------------------------------------------------------------------------------------------- */

TL_API int32_t torchlean_cuda_context_create(int32_t device, torchlean_context **out)
{
    int32_t status;
    uint32_t serial = tl_error_serial();
    if (!out)
        return tl_fail(TORCHLEAN_NULL, "%s: out: got NULL, expected a place for a context", __func__);
    if (device < TORCHLEAN_CPU)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "%s: device: got %d, expected -1 (CPU) or a CUDA ordinal", __func__,
                       device);
    if ((status = tl_threads_environment()) || (status = tl_variant_environment())) {
        tl_error_name(__func__, status, serial);
        return status;
    }
    tl_context *ctx = (tl_context *)tl_table_take(&tl_contexts);
    if (!ctx)
        return tl_fail(TORCHLEAN_NO_MEMORY, "%s: out of host memory for a context", __func__);
    atomic_store_explicit(&ctx->ordinal, device, memory_order_relaxed);
    ctx->cuda = NULL;
    ctx->buffers = NULL;
    ctx->graphs = NULL;
    ctx->capture = NULL;
    ctx->captures = 0;
    ctx->live_buffers = 0;
    for (int32_t i = 0; i < TL_MARKS; i++)
        ctx->marks[i] = (struct timespec){.tv_nsec = -1};
    status = device >= 0 ? tl_cuda_open(device, &ctx->cuda) : TORCHLEAN_OK;
    if (!status) {
        status = tl_pool_open(ctx);
        if (status && ctx->cuda)
            tl_cuda_close(ctx->cuda);
    }
    if (status) {
        tl_table_give(&tl_contexts, &ctx->slot);
        tl_error_name(__func__, status, serial);
        return status;
    }
    *out = (torchlean_context *)(uintptr_t)tl_slot_publish(&tl_contexts, &ctx->slot);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_context_destroy(torchlean_context *context)
{
    tl_context *ctx;
    tl_verdict verdict = tl_lock_context(context, &ctx);
    if (verdict == TL_WAS_RELEASED)
        return TORCHLEAN_OK;
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "context", "context", context, verdict);
    tl_slot_retire(&ctx->slot);
    if (ctx->capture)
        tl_capture_drop(ctx);
    while (ctx->graphs)
        tl_graph_end(ctx, ctx->graphs);
    while (ctx->buffers)
        tl_buffer_end(ctx, ctx->buffers);
    tl_pool_close(ctx);
    if (ctx->cuda)
        tl_cuda_close(ctx->cuda);
    ctx->cuda = NULL;
    tl_unlock(ctx); /* before the table's lock, see the lock order */
    tl_table_give(&tl_contexts, &ctx->slot);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_context_device(torchlean_context *context, int32_t *device)
{
    if (!device)
        return tl_fail(TORCHLEAN_NULL, "%s: device: got NULL, expected a place for the number", __func__);
    tl_context *ctx;
    tl_verdict verdict = tl_lock_context(context, &ctx);
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "context", "context", context, verdict);
    *device = tl_context_ordinal(ctx);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_context_synchronize(torchlean_context *context)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    if (!call.status && call.ctx->cuda)
        call.status = tl_cuda_synchronize(call.ctx->cuda);
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_context_mark(torchlean_context *context, uint32_t slot)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    tl_require(&call, slot < TL_MARKS, TORCHLEAN_ARGUMENT, "slot", "got %u, expected 0 to 7", slot);
    if (!call.status) {
        if (call.ctx->cuda)
            call.status = tl_cuda_mark(call.ctx->cuda, slot);
        else
            clock_gettime(CLOCK_MONOTONIC, &call.ctx->marks[slot]);
    }
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_context_elapsed(torchlean_context *context, uint32_t from, uint32_t to,
                                               double *milliseconds)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    tl_require(&call, from < TL_MARKS, TORCHLEAN_ARGUMENT, "from", "got %u, expected 0 to 7", from);
    tl_require(&call, to < TL_MARKS, TORCHLEAN_ARGUMENT, "to", "got %u, expected 0 to 7", to);
    tl_host(&call, "milliseconds", milliseconds, 1);
    if (!call.status && call.ctx->cuda) {
        call.status = tl_cuda_elapsed(call.ctx->cuda, from, to, milliseconds);
    } else if (!call.status) {
        const struct timespec *a = &call.ctx->marks[from], *b = &call.ctx->marks[to];
        tl_require(&call, a->tv_nsec >= 0, TORCHLEAN_ARGUMENT, "from", "mark %u was never recorded", from);
        tl_require(&call, b->tv_nsec >= 0, TORCHLEAN_ARGUMENT, "to", "mark %u was never recorded", to);
        if (!call.status)
            *milliseconds = (double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6;
    }
    return tl_end(&call);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */
/* These work on a poisoned context too, so they lock it themselves. */

TL_API int32_t torchlean_cuda_memory_stats(torchlean_context *context, torchlean_memory *out)
{
    tl_context *ctx;
    if (!out)
        return tl_fail(TORCHLEAN_NULL, "%s: out: got NULL, expected a place for the counters", __func__);
    tl_verdict verdict = tl_lock_context(context, &ctx);
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "context", "context", context, verdict);
    *out = ctx->pool.counters;
    out->live_buffers = ctx->live_buffers;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_memory_reset_peak(torchlean_context *context)
{
    tl_context *ctx;
    tl_verdict verdict = tl_lock_context(context, &ctx);
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "context", "context", context, verdict);
    ctx->pool.counters.peak_bytes = ctx->pool.counters.live_bytes;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_memory_cap(torchlean_context *context, uint64_t bytes)
{
    tl_context *ctx;
    tl_verdict verdict = tl_lock_context(context, &ctx);
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "context", "context", context, verdict);
    ctx->pool.counters.cap_bytes = bytes;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_memory_collect(torchlean_context *context)
{
    tl_context *ctx;
    uint32_t serial = tl_error_serial();
    tl_verdict verdict = tl_lock_context(context, &ctx);
    if (verdict != TL_LIVE)
        return tl_fail_handle(__func__, "context", "context", context, verdict);
    int32_t status = ctx->capture ? tl_fail(TORCHLEAN_UNAVAILABLE, "context: got a capture under way, expected none")
                                  : tl_pool_collect(ctx);
    tl_unlock(ctx);
    if (status)
        tl_error_name(__func__, status, serial);
    return status;
}
