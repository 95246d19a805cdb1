/* Broadcasts and their adjoint on the CPU, over the merged axes of formula/broadcast_axes.h.
 *
 * The last two merged axes make a block of one of two kinds: tiled (repeated, kept), a run of the input written again
 * and again, or stretched (kept, repeated), each element of a run written several times. The output is cut into tasks
 * by its length alone; a task finds the block it starts in and writes blocks, or parts of them, from there on. */
#include <string.h>

#include "core/threads.h"
#include "cpu/shape.h"
#include "cpu/spans.h"
#include "cpu/stream.h"
#include "cpu/sum_tree.h"

enum {
    TASK = 1 << 15, /* the most elements of a task */
    FEW_TIMES = 16, /* repetitions of a number that one pass over the numbers writes */
    CHUNK = 3072,   /* 12 KiB, which stay in the L1 cache: to which short periods are unrolled */
};

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* n elements of x[0..period-1] repeated, from position `phase` of a period on. */
static void tile(const float *x, int64_t period, int64_t phase, int64_t n, float *out)
{
    const int64_t head = tl_imin(n, period - phase);
    memcpy(out, x + phase, (size_t)head * sizeof(float));
    if (head == n) return;
    if (period >= CHUNK) {
        for (int64_t done = head; done < n; done += period)
            memcpy(out + done, x, (size_t)tl_imin(period, n - done) * sizeof(float));
        return;
    }
    out += head, n -= head;
    int64_t done = tl_imin(n, period); /* a multiple of the period until the end */
    memcpy(out, x, (size_t)done * sizeof(float));
    while (done < n) {
        const int64_t whole = done < CHUNK ? done : CHUNK / period * period;
        const int64_t more = tl_imin(whole, n - done);
        memcpy(out + done, out, (size_t)more * sizeof(float));
        done += more;
    }
}

static inline void fill(float *out, float value, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = value;
}

/* count elements of x, each written `times` times, a constant, so that gcc makes shuffles of the loop. */
static inline __attribute__((always_inline)) void stretch_by(const float *x, int64_t times, int64_t count, float *out)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < times; k++)
            out[i * times + k] = x[i];
}

typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));

/* The same for a few times: fours, whose excess the next element's overwrite; single floats at the end. */
static void stretch_few(const float *x, int64_t times, int64_t count, float *out)
{
    const int64_t whole = (times + 3) / 4 * 4;
    int64_t i = 0;
    for (; i < count && i * times + whole <= count * times; i++) {
        const quad value = {x[i], x[i], x[i], x[i]};
        for (int64_t k = 0; k < whole; k += 4)
            *(quad *)(out + i * times + k) = value;
    }
    for (; i < count; i++)
        fill(out + i * times, x[i], times);
}

/* n elements of x[0], x[0], ..., x[1], ... (each `times` times), from position `phase` on. */
static void stretch(const float *x, int64_t times, int64_t phase, int64_t n, float *out)
{
    x += phase / times;
    if (phase % times) {
        const int64_t head = tl_imin(n, times - phase % times);
        fill(out, *x++, head);
        out += head, n -= head;
    }
    const int64_t count = n / times, rest = n - count * times;
    switch (times) {
    case 1: memcpy(out, x, (size_t)count * sizeof(float)); break;
    case 2: stretch_by(x, 2, count, out); break;
    case 3: stretch_by(x, 3, count, out); break;
    case 4: stretch_by(x, 4, count, out); break;
    default:
        if (times <= FEW_TIMES) {
            stretch_few(x, times, count, out);
            break;
        }
        for (int64_t i = 0; i < count; i++)
            fill(out + i * times, x[i], times);
    }
    if (rest) fill(out + count * times, x[count], rest);
}

/* ---- broadcast_to ------------------------------------------------------------------------------------------------ */

typedef struct broadcast {
    const float *x;
    float *out;
    tl_broadcast_axes axes; /* at least two, of different kinds at the end */
    int64_t total, span;    /* span: elements of a task */
} broadcast;

/* Elements first..end-1 of the output, to `to`. */
static void write_blocks(const broadcast *b, int64_t first, int64_t end, float *to)
{
    const int32_t last = b->axes.count - 1;
    const int64_t width = b->axes.size[last], block = b->axes.size[last - 1] * width;
    const int64_t kept = b->axes.repeated[last] ? b->axes.size[last - 1] : width;
    for (int64_t at = first; at < end;) {
        int64_t index = at / block, offset = 0, stride = kept;
        const int64_t phase = at - index * block, n = tl_imin(block - phase, end - at);
        for (int32_t j = last - 2; j >= 0; j--) {
            const int64_t size = b->axes.size[j];
            if (!b->axes.repeated[j]) {
                offset += index % size * stride;
                stride *= size;
            }
            index /= size;
        }
        if (b->axes.repeated[last])
            stretch(b->x + offset, width, phase, n, to);
        else
            tile(b->x + offset, width, phase % width, n, to);
        at += n, to += n;
    }
}

/* A large output is made in pieces in the L1 cache and stored past it. */
static void broadcast_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const broadcast *b = arg;
    const int64_t first = task * b->span, end = tl_imin(first + b->span, b->total);
    if (b->total < TL_STREAM_FROM) {
        write_blocks(b, first, end, b->out + first);
        return;
    }
    float chunk[CHUNK];
    for (int64_t at = first; at < end; at += CHUNK) {
        const int64_t stop = tl_imin(at + CHUNK, end);
        write_blocks(b, at, stop, chunk);
        tl_stream_copy(b->out + at, chunk, stop - at);
    }
    tl_stream_end();
}

static int32_t run_broadcast(const float *x, tl_broadcast_axes axes, float *out)
{
    broadcast b = {.x = x, .out = out, .axes = axes, .total = tl_sizes_product(axes.size, axes.count)};
    if (axes.count < 2) { /* a copy, or one element everywhere: give it a neighbour of size 1 and of the other kind */
        const int8_t repeated = axes.count == 1 && axes.repeated[0];
        b.axes = (tl_broadcast_axes){2, {1, b.total}, {!repeated, repeated}};
    }
    b.span = tl_even_span(b.total, TASK);
    tl_parallel(tl_ceil_div(b.total, b.span), broadcast_task, &b);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_broadcast_to(tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                            const tl_dims *axis_map, float *out)
{
    const tl_axis_order order = tl_order_of_output(in_dims->d, in_dims->rank, axis_map->d, out_dims->rank);
    const size_t bytes = (size_t)tl_sizes_product(order.size, order.count) * sizeof(float);
    void *ordered = NULL;
    int32_t status = TORCHLEAN_OK;
    if (!tl_is_ordered(&order)) {
        status = tl_pool_alloc(ctx, bytes, &ordered);
        if (!status) status = tl_order_axes(ctx, order, x, ordered);
        x = ordered;
    }
    if (!status) status = run_broadcast(x, tl_merge_axes(in_dims->d, out_dims->d, axis_map->d, out_dims->rank), out);
    tl_pool_free(ctx, ordered);
    return status;
}

/* ---- its adjoint ------------------------------------------------------------------------------------------------- */

/* Pass after pass from x through scratch to the n elements of out; a pass is far smaller than the one before it. */
static int32_t sum_repeated(tl_context *ctx, const float *x, tl_broadcast_axes axes, int64_t n, float *out)
{
    tl_sum_pass pass;
    int64_t left = 0;
    for (int32_t j = 0; j < axes.count; j++) {
        if (axes.size[j] == 0) { /* sums over nothing: out has elements, x has none */
            fill(out, 0.0f, n);
            return TORCHLEAN_OK;
        }
        left += axes.repeated[j];
    }
    if (left == 0) return run_broadcast(x, axes, out);
    void *scratch[TL_BROADCAST_RANK] = {NULL};
    int32_t status = TORCHLEAN_OK;
    for (int32_t i = 0; !status && tl_next_sum(&axes, &pass); i++) {
        void *to = out;
        if (--left > 0) {
            status = tl_pool_alloc(ctx, (size_t)(pass.outer * pass.inner) * sizeof(float), &scratch[i]);
            to = scratch[i];
        }
        if (!status && pass.inner == 1)
            status = tl_row_sums(ctx, x, pass.outer, pass.length, 0, to);
        else if (!status)
            status = tl_column_sums(ctx, x, pass.outer, pass.length, pass.inner, 0, to);
        x = to;
    }
    for (int32_t i = 0; i < TL_BROADCAST_RANK; i++)
        tl_pool_free(ctx, scratch[i]);
    return status;
}

/* The sums lie as the output reads the input; where the input's axes lie otherwise they go through scratch. */
int32_t tl_cpu_reduce_from_broadcast(tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                                     const tl_dims *axis_map, float *out)
{
    const tl_broadcast_axes axes = tl_merge_axes(in_dims->d, out_dims->d, axis_map->d, out_dims->rank);
    const tl_axis_order order = tl_order_of_input(in_dims->d, axis_map->d, out_dims->rank);
    const int64_t n = tl_sizes_product(in_dims->d, in_dims->rank);
    if (tl_is_ordered(&order)) return sum_repeated(ctx, x, axes, n, out);
    void *sums = NULL;
    int32_t status = tl_pool_alloc(ctx, (size_t)n * sizeof(float), &sums);
    if (!status) status = sum_repeated(ctx, x, axes, n, sums);
    if (!status) status = tl_order_axes(ctx, order, sums, out);
    tl_pool_free(ctx, sums);
    return status;
}
