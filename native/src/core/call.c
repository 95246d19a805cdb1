/* Opening a call, checking its arguments, allocating its outputs, closing it. The contract of each function is in call.h. */
#include "call.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "errors.h"
#include "float_mode.h"
#include "interrupt.h"

/* Of the calling thread's open call, for messages; a thread has one call open at a time. */
static _Thread_local uint64_t serial_at_enter;

/* A call on smaller arrays is over within a tenth of a second. Where the work is linear in them that is at 400 ns an element, which
 * the portable variant takes for logarithms. */
enum { LOOKING_SIZE = 1 << 16, LINEAR_LOOKING_SIZE = 1 << 18 };

/* A plain argument's name, or that of an element of a list: "ps[3]". Written for messages only. */
typedef struct argument_name {
    char text[80];
} argument_name;

static const char *name_argument(argument_name *s, const char *name, int64_t index)
{
    if (index < 0) return name;
    snprintf(s->text, sizeof s->text, "%s[%lld]", name, (long long)index);
    return s->text;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* Not `= {0}`: the arrays are large and only their used part is ever read. */
static void open_call(tl_call *call, const char *op)
{
    call->op = op;
    call->ctx = NULL;
    call->status = TORCHLEAN_OK;
    call->inputs = call->outputs = 0;
    call->input_room = TL_MAX_INPUTS;
    call->output_room = TL_MAX_OUTPUTS;
    call->in = call->few_in;
    call->out = call->few_out;
    call->list.memory = NULL;
    call->elementwise = call->linear = call->began = call->in_place = call->looks = 0;
    call->sizes = 0;
    call->interrupts = tl_interrupts();
    call->saved_mode = tl_enter_standard_mode();
    if (!tl_inside) serial_at_enter = tl_error_serial();
}

static void check_health(tl_call *call)
{
    if (call->ctx->cuda && (call->status = tl_cuda_health(call->ctx->cuda)))
        tl_error_name(call->op, call->status, serial_at_enter);
    else if (call->ctx->pool.capture && !pthread_equal(call->ctx->pool.capture->thread, pthread_self()))
        call->status = tl_fail(TORCHLEAN_UNAVAILABLE,
                               "%s: context: got a call while another thread captures, expected none", call->op);
}

void tl_enter(tl_call *call, const char *op, const char *name, torchlean_buffer *first)
{
    tl_buffer *buffer;
    open_call(call, op);
    call->status = tl_lock_live_buffer(op, name, first, &buffer, &call->ctx);
    if (!call->status) check_health(call);
}

void tl_enter_context(tl_call *call, const char *op, torchlean_context *context)
{
    open_call(call, op);
    call->status = tl_lock_live_context(op, context, &call->ctx);
    if (!call->status) check_health(call);
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

tl_dims tl_read_dims(tl_call *call, const char *name, const uint32_t *dims, uint32_t rank, uint32_t min_rank)
{
    tl_dims read = {0};
    tl_require(call, rank >= min_rank && rank <= TL_MAX_RANK, TORCHLEAN_SHAPE, name, "got rank %u, expected %u to %d",
               rank, min_rank, TL_MAX_RANK);
    tl_host(call, name, dims, rank);
    if (call->status) return read;
    read.rank = (int32_t)rank;
    for (uint32_t i = 0; i < rank; i++)
        read.d[i] = dims[i];
    return read;
}

/* A live buffer of the call's context, or NULL with the status set. */
static tl_buffer *find(tl_call *call, const char *name, int64_t index, const torchlean_buffer *handle)
{
    argument_name s;
    tl_buffer *buffer = NULL;
    tl_verdict verdict = tl_find_object(&tl_buffers, handle, (tl_object **)&buffer);
    if (verdict != TL_LIVE) {
        call->status = tl_fail_handle(call->op, name_argument(&s, name, index), &tl_buffers, handle, verdict);
        return NULL;
    }
    /* Buffers of our context cannot change now; one of another may, but it stays another's. */
    if (atomic_load_explicit(&buffer->object.ctx, memory_order_relaxed) != call->ctx) {
        call->status = tl_fail(TORCHLEAN_DEVICE, "%s: %s: got a buffer of another context, expected all of one",
                               call->op, name_argument(&s, name, index));
        return NULL;
    }
    return buffer;
}

/* Float and index buffers are two types: one is refused where the other is expected. */
static int has_type(tl_call *call, const char *name, int64_t index, const tl_buffer *buffer, int is_index)
{
    argument_name s;
    static const char *const types[] = {"a float buffer", "an index buffer"};
    if (buffer->is_index == is_index) return 1;
    call->status = tl_fail(TORCHLEAN_ARGUMENT, "%s: %s: got %s, expected %s", call->op, name_argument(&s, name, index),
                           types[!is_index], types[is_index]);
    return 0;
}

static int fits(tl_call *call, const char *name, const char *expected, uint64_t n)
{
    if (n > UINT32_MAX)
        call->status = tl_fail(TORCHLEAN_OVERFLOW, "%s: %s: got %s >= 2^32, expected fewer than 2^32 elements",
                               call->op, name, expected ? expected : "a length");
    call->sizes |= n;
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
    if (call->status) return 0;
    tl_buffer *found = find(call, name, -1, buffer);
    return found ? atomic_load_explicit(&found->n, memory_order_relaxed) : 0;
}

int tl_is_index(tl_call *call, const char *name, torchlean_buffer *buffer)
{
    const tl_buffer *found = call->status ? NULL : find(call, name, -1, buffer);
    return found && found->is_index;
}

static const void *add_input(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected,
                             uint64_t n, int is_index)
{
    if (call->status || !fits(call, name, expected, n)) return NULL;
    tl_buffer *found = find(call, name, -1, buffer);
    if (!found || !has_type(call, name, -1, found, is_index) || !has_length(call, name, found, expected, n))
        return NULL;
    if (call->inputs == call->input_room) {
        call->status = tl_fail(TORCHLEAN_INTERNAL, "%s: %s: more than %d inputs", call->op, name, TL_MAX_INPUTS);
        return NULL;
    }
    call->in[call->inputs++] = (tl_call_input){name, found->block, -1};
    return found->block->p;
}

const float *tl_input(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected, uint64_t n)
{
    return add_input(call, name, buffer, expected, n, 0);
}

const uint32_t *tl_input_index(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected,
                               uint64_t n)
{
    return add_input(call, name, buffer, expected, n, 1);
}

const float *tl_input_optional(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected,
                               uint64_t n)
{
    return buffer ? tl_input(call, name, buffer, expected, n) : NULL;
}

static void add_output(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n,
                       int8_t is_index)
{
    if (call->outputs == call->output_room) {
        call->status = tl_fail(TORCHLEAN_INTERNAL, "%s: %s: more than %d outputs", call->op, name, TL_MAX_OUTPUTS);
        return;
    }
    int64_t i = call->outputs++;
    call->out[i] = (tl_call_output){.name = name,
                                    .slot = slot,
                                    .n = n,
                                    .index = -1,
                                    .wanted = slot != NULL,
                                    .fresh = slot && !*slot,
                                    .is_index = is_index};
    if (!slot || !fits(call, name, expected, n)) return;
    for (int64_t k = 0; k < i; k++) {
        if (call->out[k].slot == slot) {
            call->status = tl_fail(TORCHLEAN_ALIAS, "%s: %s: got the place of output %s, expected one of its own",
                                   call->op, name, call->out[k].name);
            return;
        }
    }
    if (*slot) {
        tl_buffer *found = find(call, name, -1, *slot);
        if (!found || !has_type(call, name, -1, found, is_index) || !has_length(call, name, found, expected, n)) return;
        call->out[i].storage = found->block;
        call->out[i].data = found->block->p;
    }
}

static void require_output(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n,
                           int8_t is_index)
{
    if (call->status) return;
    if (!slot)
        call->status = tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected a place for a buffer", call->op, name);
    else
        add_output(call, name, slot, expected, n, is_index);
}

void tl_output(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n)
{
    require_output(call, name, slot, expected, n, 0);
}

void tl_output_index(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n)
{
    require_output(call, name, slot, expected, n, 1);
}

void tl_output_optional(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n)
{
    if (!call->status) add_output(call, name, slot, expected, n, 0);
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

void tl_lists(tl_call *call, int32_t inputs, int32_t outputs, uint32_t count)
{
    call->list.count = count;
    call->list.inputs = call->list.outputs = 0;
    call->list.first = NULL;
    call->list.lengths = NULL;
    if (!call->status && count > TL_INDEX_MAX)
        call->status =
            tl_fail(TORCHLEAN_OVERFLOW, "%s: got lists of %u buffers, expected at most 2^28 - 1", call->op, count);
    if (call->status || !count) return;
    const int64_t input_room = (int64_t)inputs * count + TL_MAX_INPUTS;
    const int64_t output_room = (int64_t)outputs * count + TL_MAX_OUTPUTS;
    const size_t ins = (size_t)input_room * sizeof(tl_call_input), outs = (size_t)output_room * sizeof(tl_call_output);
    const size_t lengths = (size_t)count * sizeof(int64_t), data = (size_t)(inputs + outputs) * count * sizeof(float *);
    char *memory = malloc(ins + outs + lengths + data); /* all of 8-byte alignment */
    if (!memory) {
        call->status = tl_fail(TORCHLEAN_NO_MEMORY, "%s: out of host memory for lists of %u buffers", call->op, count);
        return;
    }
    call->list.memory = memory;
    call->sizes |= (uint64_t)count * LOOKING_SIZE / 64;
    call->in = (tl_call_input *)memory;
    call->out = (tl_call_output *)(memory + ins);
    call->list.lengths = (int64_t *)(memory + ins + outs);
    call->list.data = (float **)(memory + ins + outs + lengths);
    call->input_room = input_room;
    call->output_room = output_room;
}

/* The element of a list, if it has the length of the first list's; an element of the first list sets it. */
static tl_buffer *find_element(tl_call *call, const char *name, int64_t i, const torchlean_buffer *handle)
{
    argument_name s, t;
    tl_buffer *found = find(call, name, i, handle);
    if (!found || !has_type(call, name, i, found, 0)) return NULL;
    const int64_t got = atomic_load_explicit(&found->n, memory_order_relaxed);
    if (name == call->list.first) call->list.lengths[i] = got;
    if (got == call->list.lengths[i]) return found;
    call->status = tl_fail(TORCHLEAN_SHAPE, "%s: %s: got %lld elements, expected the length of %s = %lld", call->op,
                           name_argument(&s, name, i), (long long)got, name_argument(&t, call->list.first, i),
                           (long long)call->list.lengths[i]);
    return NULL;
}

const float *const *tl_input_list(tl_call *call, const char *name, torchlean_buffer *const *list)
{
    const int64_t count = call->list.count;
    if (call->status || !count) return NULL;
    float **data = call->list.data + call->list.inputs++ * count;
    if (!call->list.first) call->list.first = name;
    for (int64_t i = 0; i < count; i++) {
        tl_buffer *found = find_element(call, name, i, list[i]);
        if (!found) return NULL;
        call->in[call->inputs++] = (tl_call_input){name, found->block, i};
        data[i] = found->block->p;
    }
    return (const float *const *)data;
}

void tl_output_list(tl_call *call, const char *name, torchlean_buffer **slots)
{
    if (call->status) return;
    const int64_t count = call->list.count;
    for (int64_t k = 0; k < call->outputs; k += count) {
        torchlean_buffer **other = call->out[k].slot;
        if (slots < other + count && other < slots + count) {
            call->status = tl_fail(TORCHLEAN_ALIAS, "%s: %s: got the place of output %s, expected one of its own",
                                   call->op, name, call->out[k].name);
            return;
        }
    }
    call->list.outputs++;
    for (int64_t i = 0; i < count; i++) {
        tl_call_output *out = &call->out[call->outputs++];
        *out = (tl_call_output){.name = name, .slot = &slots[i], .index = i, .wanted = 1, .fresh = !slots[i]};
        out->n = (uint64_t)call->list.lengths[i];
        if (slots[i]) {
            tl_buffer *found = find_element(call, name, i, slots[i]);
            if (!found) return;
            out->storage = found->block;
            out->data = found->block->p;
        }
    }
}

void tl_host(tl_call *call, const char *name, const void *array, uint64_t count)
{
    if (!call->status && fits(call, name, NULL, count) && !array && count)
        call->status = tl_fail(TORCHLEAN_NULL, "%s: %s: got NULL, expected %llu values", call->op, name,
                               (unsigned long long)count);
}

void tl_require(tl_call *call, int ok, int32_t status, const char *name, const char *format, ...)
{
    if (call->status || ok) return;
    char text[384];
    va_list arguments;
    /* numbers with a point, whatever the caller's locale has */
    locale_t plain = newlocale(LC_ALL_MASK, "C", NULL), before = uselocale(plain);
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    uselocale(before);
    freelocale(plain);
    call->status = tl_fail(status, "%s: %s: %s", call->op, name, text);
}

void tl_uncaptured(tl_call *call)
{
    if (!call->status && (call->ctx->pool.capture || (call->ctx->cuda && tl_cuda_host_captures(call->ctx->cuda))))
        call->status = tl_fail(
            TORCHLEAN_UNAVAILABLE,
            "%s: context: got a call that cannot be captured, expected it before or after the capture", call->op);
}

float tl_scalar(double value) { return (float)value; }

/* ---- running --------------------------------------------------------------------------------------------------- */

/* Refuses an output that shares storage with another, or with an input that is not its own counterpart. Each supplied output's
 * storage is marked with the output, so that lists take one look per buffer; the storage is the context's, which is locked. */
static void check_aliases(tl_call *call)
{
    argument_name s, t;
    int64_t marked = 0;
    int any = 0;
    for (; marked < call->outputs; marked++) {
        tl_call_output *out = &call->out[marked];
        if (!out->storage) continue;
        if (out->storage->output) {
            const tl_call_output *other = &call->out[out->storage->output - 1];
            call->status = tl_fail(TORCHLEAN_ALIAS, "%s: %s: got storage of output %s, expected its own", call->op,
                                   name_argument(&s, out->name, out->index),
                                   name_argument(&t, other->name, other->index));
            break;
        }
        out->storage->output = (uint32_t)marked + 1;
        any = 1;
    }
    for (int64_t k = 0; k < call->inputs && any && !call->status; k++) {
        const tl_call_input *in = &call->in[k];
        if (!in->storage->output) continue;
        call->in_place = 1;
        const tl_call_output *out = &call->out[in->storage->output - 1];
        if (!call->elementwise || in->index != out->index)
            call->status = tl_fail(TORCHLEAN_ALIAS, "%s: %s: got storage of input %s, expected its own", call->op,
                                   name_argument(&s, out->name, out->index), name_argument(&t, in->name, in->index));
    }
    for (int64_t i = 0; i < marked; i++)
        if (call->out[i].storage) call->out[i].storage->output = 0;
}

/* The graph keeps what a captured call reads and writes. */
static int32_t hold_storage(tl_call *call)
{
    int32_t status = TORCHLEAN_OK;
    for (int64_t i = 0; i < call->inputs && !status; i++)
        status = tl_capture_hold(call->ctx->pool.capture, call->in[i].storage);
    for (int64_t i = 0; i < call->outputs && !status; i++)
        if (call->out[i].storage) status = tl_capture_hold(call->ctx->pool.capture, call->out[i].storage);
    return status;
}

/* Not in short calls: to look is to replace a signal's handler and to put it back, three calls of the system. */
static inline void look_if_long(tl_call *call)
{
    const uint64_t size = call->linear ? LINEAR_LOOKING_SIZE : LOOKING_SIZE;
    if (call->sizes < size || call->in_place || call->ctx->cuda) return;
    call->looks = 1;
    tl_start_looking(call->interrupts);
}

/* What an interrupted call computed may be anything, its status included. */
static __attribute__((noinline)) void stop_looking(tl_call *call)
{
    const int interrupted = tl_interrupted();
    tl_stop_looking();
    if (interrupted) call->status = tl_fail(TORCHLEAN_INTERRUPTED, "%s: got an interrupt, expected none", call->op);
}

int tl_begin(tl_call *call)
{
    int work = 0;
    if (!call->status) check_aliases(call);
    if (call->status) return 0;
    call->began = 1;
    for (int64_t i = 0; i < call->outputs; i++) {
        if (call->out[i].fresh) {
            tl_buffer *made;
            call->status = tl_buffer_make(call->ctx, (uint32_t)call->out[i].n, call->out[i].is_index, NULL, &made);
            if (call->status) return 0; /* tl_end names the operation and releases the earlier ones */
            call->out[i].made = made;
            call->out[i].storage = made->block;
            call->out[i].data = made->block->p;
        }
        work |= call->out[i].wanted && call->out[i].n > 0;
    }
    if (call->ctx->pool.capture && (call->status = hold_storage(call))) return 0;
    look_if_long(call);
    return work;
}

int tl_begin_host(tl_call *call)
{
    tl_uncaptured(call);
    if (!call->status) look_if_long(call);
    return !call->status;
}

float *tl_out(const tl_call *call, int32_t i) { return call->out[i].wanted ? call->out[i].data : NULL; }

float *const *tl_out_list(const tl_call *call, int32_t i)
{
    const int64_t count = call->list.count;
    float **data = call->list.data + (call->list.inputs + i) * count;
    for (int64_t k = 0; k < count; k++)
        data[k] = call->out[i * count + k].data;
    return data;
}

int32_t tl_end(tl_call *call)
{
    tl_context *ctx = call->ctx;
    if (!ctx) {
        tl_leave_standard_mode(call->saved_mode);
        return call->status;
    }
    if (call->looks) stop_looking(call);
    if (ctx->cuda && !ctx->pool.capture && !call->status) call->status = tl_cuda_after(ctx->cuda);
    if (ctx->pool.capture && call->began && call->status) ctx->pool.capture->broken = 1;
    if (call->status) tl_error_name(call->op, call->status, serial_at_enter);
    for (int64_t i = 0; i < call->outputs; i++) {
        tl_buffer *made = call->out[i].made;
        if (!made) continue;
        if (call->status)
            tl_buffer_end(ctx, made);
        else
            *call->out[i].slot = tl_buffer_handle(made);
    }
    if (ctx->pool.of_call) tl_pool_end_call(&ctx->pool);
    free(call->list.memory);
    tl_unlock(ctx);
    tl_leave_standard_mode(call->saved_mode);
    return call->status;
}
