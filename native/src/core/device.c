/* The exported functions of devices and contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"
#include "call.h"
#include "dispatch.h"
#include "errors.h"
#include "threads.h"

/* ---- devices --------------------------------------------------------------------------------------------------- */

TL_API uint32_t torchlean_cuda_device_count(void) { return tl_cuda_device_count(); }

static void cpu_name(char *name, size_t capacity)
{
    snprintf(name, capacity, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
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
        uint64_t serial = tl_error_serial();
        int32_t status = tl_cuda_device_describe(device, text, capacity);
        if (status) tl_error_name(__func__, status, serial);
        return status;
    }
    if (device != TORCHLEAN_CPU)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "%s: device: got %d, expected -1 (CPU) or a CUDA ordinal", __func__,
                       device);
    char name[128];
    cpu_name(name, sizeof name);
    uint64_t tenths = tl_gib_tenths((uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
    snprintf(text, capacity, "CPU, %s, SIMD variant %s, %u threads, %u.%u GiB", name, tl_variant_name(),
             (uint32_t)tl_workers(), (uint32_t)(tenths / 10), (uint32_t)(tenths % 10));
    return TORCHLEAN_OK;
}

uint64_t tl_gib_tenths(uint64_t bytes) { return (bytes * 10 + (1 << 29)) >> 30; }

/* ---- contexts -------------------------------------------------------------------------------------------------- */

/* What TORCHLEAN_MATH asks for. */
static int32_t math_environment(int32_t *math)
{
    const char *text = getenv("TORCHLEAN_MATH");
    *math = text && strcmp(text, "reproducible") == 0 ? TORCHLEAN_REPRODUCIBLE : TORCHLEAN_FAST;
    if (!text || !*text || *math == TORCHLEAN_REPRODUCIBLE || strcmp(text, "fast") == 0) return TORCHLEAN_OK;
    return tl_fail(TORCHLEAN_ARGUMENT, "TORCHLEAN_MATH: got \"%.40s\", expected fast or reproducible", text);
}

static int32_t create(int32_t device, torchlean_context **out)
{
    int32_t status, math;
    if ((status = tl_threads_environment()) || (status = tl_variant_environment()) ||
        (status = math_environment(&math)))
        return status;
    tl_context *ctx = (tl_context *)tl_table_take(&tl_contexts);
    if (!ctx) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a context");
    atomic_store_explicit(&ctx->ordinal, device, memory_order_relaxed);
    ctx->math = math;
    ctx->cuda = NULL;
    ctx->buffers = NULL;
    ctx->graphs = NULL;
    ctx->captures = 0;
    ctx->live_buffers = 0;
    ctx->spare_slots = NULL;
    ctx->spare_count = 0;
    for (int32_t i = 0; i < TL_MARKS; i++)
        ctx->marks[i] = (struct timespec){.tv_nsec = -1};
    status = device >= 0 ? tl_cuda_open(device, &ctx->cuda) : TORCHLEAN_OK;
    if (!status) {
        status = tl_pool_open(&ctx->pool, ctx->cuda);
        if (status && ctx->cuda) tl_cuda_close(ctx->cuda);
    }
    if (status)
        tl_table_give(&tl_contexts, &ctx->slot);
    else
        *out = (torchlean_context *)(uintptr_t)tl_slot_publish(&tl_contexts, &ctx->slot);
    return status;
}

TL_API int32_t torchlean_cuda_context_create(int32_t device, torchlean_context **out)
{
    uint64_t serial = tl_error_serial();
    if (!out) return tl_fail(TORCHLEAN_NULL, "%s: out: got NULL, expected a place for a context", __func__);
    if (device < TORCHLEAN_CPU)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "%s: device: got %d, expected -1 (CPU) or a CUDA ordinal", __func__,
                       device);
    int32_t status = tl_enter_thread(__func__);
    if (status) return status;
    status = create(device, out);
    if (status) tl_error_name(__func__, status, serial);
    tl_inside = 0;
    return status;
}

TL_API int32_t torchlean_cuda_context_destroy(torchlean_context *context)
{
    tl_context *ctx;
    tl_verdict verdict = tl_lock_context(context, &ctx);
    if (verdict == TL_WAS_RELEASED) return TORCHLEAN_OK;
    if (verdict != TL_LIVE) return tl_fail_handle(__func__, "context", &tl_contexts, context, verdict);
    tl_slot_retire(&ctx->slot);
    if (ctx->pool.capture) tl_capture_drop(ctx);
    while (ctx->graphs)
        tl_graph_end(ctx, (tl_graph *)ctx->graphs);
    while (ctx->buffers)
        tl_buffer_end(ctx, (tl_buffer *)ctx->buffers);
    tl_buffer_slots_end(ctx);
    tl_pool_close(&ctx->pool);
    tl_block *const lent = tl_lent_done(&ctx->pool, 1);
    if (ctx->cuda) tl_cuda_close(ctx->cuda);
    ctx->cuda = NULL;
    pthread_mutex_unlock(&ctx->lock); /* before the table's lock, see the lock order */
    tl_table_give(&tl_contexts, &ctx->slot);
    tl_inside = 0;
    tl_lent_return(lent);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_context_device(torchlean_context *context, int32_t *device)
{
    if (!device) return tl_fail(TORCHLEAN_NULL, "%s: device: got NULL, expected a place for the number", __func__);
    tl_context *ctx;
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    *device = tl_context_ordinal(ctx);
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_context_set_math(torchlean_context *context, int32_t math)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_require(&call, math == TORCHLEAN_FAST || math == TORCHLEAN_REPRODUCIBLE, TORCHLEAN_ARGUMENT, "math",
               "got %d, expected 0 (fast) or 1 (reproducible)", math);
    if (!call.status) call.ctx->math = math;
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_context_math(torchlean_context *context, int32_t *math)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_host(&call, "math", math, 1);
    if (!call.status) *math = call.ctx->math;
    return tl_end(&call);
}

TL_API int32_t torchlean_cuda_context_synchronize(torchlean_context *context)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    if (!call.status && call.ctx->cuda) call.status = tl_cuda_synchronize(call.ctx->cuda);
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
