/* The helpers the entry points are made of: open a call, check its arguments, allocate its outputs, close it. The
 * contract of each is in internal.h; the first failure sticks and turns the rest into no-ops. */
#include <stdio.h>

#include "handles.h"

/* Of the calling thread's open call, for messages; a thread has one call open at a time. */
static _Thread_local uint32_t serial_at_enter;
static _Thread_local const char *input_names[TL_MAX_INPUTS];

/* ---- the floating-point mode ----------------------------------------------------------------------------------- */
/* Subnormals are kept and rounding is to nearest whatever the caller's thread was set to: libraries built with
 * -ffast-math switch flush-to-zero on for the thread that loads them. The caller's mode is put back at the end of
 * the call. */

#if defined(__x86_64__)
enum { STANDARD_MODE = 0x1f80, MODE_BITS = 0xffc0 };
static uint32_t get_mode(void) { return __builtin_ia32_stmxcsr(); }
static void set_mode(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
enum { STANDARD_MODE = 0, MODE_BITS = 0x07c80000 };
static uint32_t get_mode(void) { return (uint32_t)__builtin_aarch64_get_fpcr(); }
static void set_mode(uint32_t mode) { __builtin_aarch64_set_fpcr(mode); }
#else
enum { STANDARD_MODE = 0, MODE_BITS = 0 };
static uint32_t get_mode(void) { return 0; }
static void set_mode(uint32_t mode) { (void)mode; }
#endif

void tl_standard_float_mode(void) { set_mode(STANDARD_MODE); }

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* Not `= {0}`: the arrays are large and only their used part is ever read. */
static void open_call(tl_call *call, const char *op)
{
    call->op = op;
    call->ctx = NULL;
    call->status = TORCHLEAN_OK;
    call->inputs = call->outputs = 0;
    call->elementwise = 0;
    call->saved_mode = 0;
    serial_at_enter = tl_error_serial();
}

static void check_health(tl_call *call)
{
    if (call->ctx->cuda && (call->status = tl_cuda_health(call->ctx->cuda)))
        tl_error_name(call->op, call->status, serial_at_enter);
}

void tl_enter(tl_call *call, const char *op, const char *name, torchlean_buffer *first)
{
    tl_buffer *buffer;
    open_call(call, op);
    tl_verdict verdict = tl_lock_buffer(first, &buffer, &call->ctx);
    if (verdict != TL_LIVE)
        call->status = tl_fail_handle(op, name, "buffer", first, verdict);
    else
        check_health(call);
}

void tl_enter_context(tl_call *call, const char *op, torchlean_context *context)
{
    open_call(call, op);
    tl_verdict verdict = tl_lock_context(context, &call->ctx);
    if (verdict != TL_LIVE)
        call->status = tl_fail_handle(op, "context", "context", context, verdict);
    else
        check_health(call);
}

/* ---- sizes ----------------------------------------------------------------------------------------------------- */

uint64_t tl_product(const uint64_t *factors, int32_t count)
{
    uint64_t product = 1;
    int too_large = 0;
    for (int32_t i = 0; i < count; i++) {
        if (factors[i] == 0)
            return 0;
        /* once too large it stays so, unless a zero follows */
        if (!too_large && (__builtin_mul_overflow(product, factors[i], &product) || product > UINT32_MAX))
            too_large = 1;
    }
    return too_large ? UINT64_MAX : product;
}

uint64_t tl_dims_product(const tl_dims *dims)
{
    uint64_t factors[TL_MAX_RANK];
    for (int32_t i = 0; i < dims->rank; i++)
        factors[i] = (uint64_t)dims->d[i];
    return tl_product(factors, dims->rank);
}

tl_dims tl_read_dims(tl_call *call, const char *name, const uint32_t *dims, uint32_t rank, uint32_t min_rank)
{
    tl_dims read = {0};
    tl_require(call, rank >= min_rank && rank <= TL_MAX_RANK, TORCHLEAN_SHAPE, name, "got rank %u, expected %u to %d",
               rank, min_rank, TL_MAX_RANK);
    tl_host(call, name, dims, rank);
    if (call->status)
        return read;
    read.rank = (int32_t)rank;
    for (uint32_t i = 0; i < rank; i++)
        read.d[i] = dims[i];
    return read;
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

/* A live buffer of the call's context, or NULL with the status set. */
static tl_buffer *find(tl_call *call, const char *name, const torchlean_buffer *handle)
{
    tl_buffer *buffer = NULL;
    tl_verdict verdict = tl_find_buffer(handle, &buffer);
    if (verdict != TL_LIVE) {
        call->status = tl_fail_handle(call->op, name, "buffer", handle, verdict);
        return NULL;
    }
    /* Buffers of our context cannot change now; one of another may, but it stays another's. */
    if (atomic_load_explicit(&buffer->ctx, memory_order_relaxed) != call->ctx) {
        call->status = tl_fail(TORCHLEAN_DEVICE, "%s: %s: got a buffer of another context, expected all of one",
                               call->op, name);
        return NULL;
    }
    return buffer;
}

static int fits(tl_call *call, const char *name, const char *expected, uint64_t n)
{
    if (n > UINT32_MAX)
        call->status = tl_fail(TORCHLEAN_OVERFLOW, "%s: %s: got %s >= 2^32, expected fewer than 2^32 elements",
                               call->op, name, expected ? expected : "a length");
    return n <= UINT32_MAX;
}

static int has_length(tl_call *call, const char *name, const tl_buffer *buffer, const char *expected, uint64_t n)
{
    uint32_t got = atomic_load_explicit(&buffer->n, memory_order_relaxed);
    if (got != n)
        call->status = tl_fail(TORCHLEAN_SHAPE, "%s: %s: got %u elements, expected %s%s%llu", call->op, name, got,
                               expected ? expected : "", expected ? " = " : "", (unsigned long long)n);
    return got == n;
}

uint64_t tl_length(tl_call *call, const char *name, torchlean_buffer *buffer)
{
    if (call->status)
        return 0;
    tl_buffer *found = find(call, name, buffer);
    return found ? atomic_load_explicit(&found->n, memory_order_relaxed) : 0;
}

const float *tl_input(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected, uint64_t n)
{
    if (call->status || !fits(call, name, expected, n))
        return NULL;
    tl_buffer *found = find(call, name, buffer);
    if (!found || !has_length(call, name, found, expected, n))
        return NULL;
    if (call->inputs == TL_MAX_INPUTS) {
        call->status = tl_fail(TORCHLEAN_INTERNAL, "%s: %s: more than %d inputs", call->op, name, TL_MAX_INPUTS);
        return NULL;
    }
    input_names[call->inputs] = name;
    call->input_storage[call->inputs++] = found->block;
    return found->block->p;
}

const float *tl_input_optional(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected,
                               uint64_t n)
{
    return buffer ? tl_input(call, name, buffer, expected, n) : NULL;
}

static void add_output(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n)
{
    if (call->outputs == TL_MAX_OUTPUTS) {
        call->status = tl_fail(TORCHLEAN_INTERNAL, "%s: %s: more than %d outputs", call->op, name, TL_MAX_OUTPUTS);
        return;
    }
    int32_t i = call->outputs++;
    call->out[i].name = name;
    call->out[i].slot = slot;
    call->out[i].storage = NULL;
    call->out[i].made = NULL;
    call->out[i].data = NULL;
    call->out[i].n = n;
    call->out[i].wanted = slot != NULL;
    call->out[i].fresh = slot && !*slot;
    if (!slot || !fits(call, name, expected, n))
        return;
    for (int32_t k = 0; k < i; k++) {
        if (call->out[k].slot == slot) {
            call->status = tl_fail(TORCHLEAN_ALIAS, "%s: %s: got the place of output %s, expected one of its own",
                                   call->op, name, call->out[k].name);
            return;
        }
    }
    if (*slot) {
        tl_buffer *found = find(call, name, *slot);
        if (!found || !has_length(call, name, found, expected, n))
            return;
        call->out[i].storage = found->block;
        call->out[i].data = found->block->p;
    }
}

void tl_output(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n)
{
    if (call->status)
        return;
    if (!slot)
        call->status = tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected a place for a buffer", call->op, name);
    else
        add_output(call, name, slot, expected, n);
}

void tl_output_optional(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n)
{
    if (!call->status)
        add_output(call, name, slot, expected, n);
}

void tl_host(tl_call *call, const char *name, const void *array, uint64_t count)
{
    if (!call->status && fits(call, name, NULL, count) && !array && count)
        call->status = tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected %llu values", call->op, name,
                               (unsigned long long)count);
}

void tl_require(tl_call *call, int ok, int32_t status, const char *name, const char *format, ...)
{
    if (call->status || ok)
        return;
    char text[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    call->status = tl_fail(status, "%s: %s: %s", call->op, name, text);
}

float tl_scalar(double value) { return (float)value; }

/* ---- running --------------------------------------------------------------------------------------------------- */

static void check_aliases(tl_call *call)
{
    for (int32_t i = 0; i < call->outputs; i++) {
        const void *storage = call->out[i].storage;
        if (!storage)
            continue;
        for (int32_t k = 0; k < call->inputs && !call->elementwise; k++) {
            if (call->input_storage[k] == storage) {
                call->status = tl_fail(TORCHLEAN_ALIAS, "%s: %s: got storage of input %s, expected its own", call->op,
                                       call->out[i].name, input_names[k]);
                return;
            }
        }
        for (int32_t k = 0; k < i; k++) {
            if (call->out[k].storage == storage) {
                call->status = tl_fail(TORCHLEAN_ALIAS, "%s: %s: got storage of output %s, expected its own", call->op,
                                       call->out[i].name, call->out[k].name);
                return;
            }
        }
    }
}

/* Host code is about to compute: the standard mode, if the caller's differs. */
static void begin_mode(tl_call *call)
{
    uint32_t mode = get_mode();
    if ((mode & MODE_BITS) != STANDARD_MODE) {
        call->saved_mode = UINT64_C(1) << 32 | mode;
        set_mode(STANDARD_MODE);
    }
}

int tl_begin(tl_call *call)
{
    int work = 0;
    if (!call->status)
        check_aliases(call);
    if (call->status)
        return 0;
    for (int32_t i = 0; i < call->outputs; i++) {
        if (call->out[i].fresh) {
            tl_buffer *made;
            call->status = tl_buffer_make(call->ctx, (uint32_t)call->out[i].n, NULL, &made);
            if (call->status)
                return 0; /* tl_end names the operation and releases the earlier ones */
            call->out[i].made = made;
            call->out[i].storage = made->block;
            call->out[i].data = made->block->p;
        }
        work |= call->out[i].wanted && call->out[i].n > 0;
    }
    if (work && !call->ctx->cuda)
        begin_mode(call);
    return work;
}

int tl_begin_host(tl_call *call)
{
    if (call->status)
        return 0;
    begin_mode(call);
    return 1;
}

float *tl_out(const tl_call *call, int32_t i) { return call->out[i].wanted ? call->out[i].data : NULL; }

int32_t tl_end(tl_call *call)
{
    tl_context *ctx = call->ctx;
    if (!ctx)
        return call->status;
    if (call->saved_mode)
        set_mode((uint32_t)call->saved_mode);
    if (ctx->cuda && !call->status)
        call->status = tl_cuda_after(ctx->cuda);
    if (call->status)
        tl_error_name(call->op, call->status, serial_at_enter);
    for (int32_t i = 0; i < call->outputs; i++) {
        tl_buffer *made = call->out[i].made;
        if (!made)
            continue;
        if (call->status)
            tl_buffer_end(ctx, made);
        else
            *call->out[i].slot = tl_buffer_handle(made);
    }
    tl_unlock(ctx);
    return call->status;
}
