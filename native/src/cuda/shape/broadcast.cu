/* Broadcasts and their adjoint on CUDA, over the merged axes of formula/broadcast_axes.h.
 *
 * A broadcast is bound by its writes: 16 bytes per thread and store, and the input, which is smaller, comes from the
 * caches. The index arithmetic is one fast division per merged axis. An index fits 32 bits (a buffer has fewer than 2^32 elements). */
#include "cuda/device/division.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/shape/shape.cuh"

namespace {

struct Broadcast {
    const float *x;
    float *out;
    int64_t n;
    tl_fastdiv inner;                   /* the last merged axis */
    int32_t outer;                      /* the number of those before it, at least one */
    tl_fastdiv size[TL_BROADCAST_RANK]; /* and for each its size */
    uint32_t stride[TL_BROADCAST_RANK]; /* and its stride in x, 0 where it is repeated */
};

/* Where run q of the last axis starts in x. OUTER = 0: any number of outer axes. */
template <int OUTER> __device__ __forceinline__ uint32_t run_start(const Broadcast &b, uint32_t q)
{
    uint32_t start = 0;
    TL_UNROLL_FOR (int j = (OUTER ? OUTER : b.outer) - 1; j > 0; j--) {
        uint32_t at;
        q = b.size[j].divmod(q, &at);
        start += at * b.stride[j];
    }
    return start + q * b.stride[0];
}

/* REPEATED: the last axis reads one element again and again. ALIGNED: a quadruple never crosses the end of a run, so it
 * is one element four times or one 16-byte load; else the thread walks over it and looks up a run whenever one ends. */
template <int OUTER, bool REPEATED, bool ALIGNED>
__global__ void __launch_bounds__(TL_QUADS_THREADS) broadcast_kernel(Broadcast b)
{
    tl_write_quads(b.out, b.n, [&](int64_t first, float (&v)[4]) {
        uint32_t at;
        uint32_t q = b.inner.divmod((uint32_t)first, &at);
        const float *x = b.x + run_start<OUTER>(b, q);
        if constexpr (ALIGNED) {
            tl_unpack4(REPEATED ? make_float4(x[0], x[0], x[0], x[0]) : tl_load4(x + at), v);
        } else {
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                v[e] = first + e < b.n ? x[REPEATED ? 0 : at] : 0.0f;
                if (++at == b.inner.divisor && first + e + 1 < b.n) {
                    at = 0;
                    x = b.x + run_start<OUTER>(b, ++q);
                }
            }
        }
    });
}

template <int OUTER> auto pick_kernel(bool repeated, bool aligned)
{
    return repeated  ? aligned ? broadcast_kernel<OUTER, true, true> : broadcast_kernel<OUTER, true, false>
           : aligned ? broadcast_kernel<OUTER, false, true>
                     : broadcast_kernel<OUTER, false, false>;
}

int32_t run_broadcast(tl_context *ctx, const char *name, const float *x, const tl_broadcast_axes &axes, float *out)
{
    Broadcast b = {};
    const int last = axes.count - 1;
    const int64_t n = tl_sizes_product(axes.size, axes.count), inner = last >= 0 ? axes.size[last] : 1;
    if (axes.count == 0 || (axes.count == 1 && !axes.repeated[0]))
        return tl_cuda_copy(tl_context_cuda(ctx), out, x, (size_t)n * sizeof(float));
    b.x = x, b.out = out, b.n = n, b.inner = tl_fastdiv((uint64_t)inner);
    b.outer = last > 0 ? last : 1;
    b.size[0] = tl_fastdiv(1);
    int64_t stride = axes.repeated[last] ? 1 : inner;
    for (int j = last - 1; j >= 0; j--) {
        b.size[j] = tl_fastdiv((uint64_t)axes.size[j]);
        b.stride[j] = axes.repeated[j] ? 0 : (uint32_t)stride;
        stride *= axes.repeated[j] ? 1 : axes.size[j];
    }
    const bool aligned = inner % 4 == 0 && tl_aligned4(out) && (axes.repeated[last] || tl_aligned4(x));
    const auto pick = b.outer == 1 ? pick_kernel<1> : b.outer == 2 ? pick_kernel<2> : pick_kernel<0>;
    return tl_launch(ctx, name, pick(axes.repeated[last], aligned), tl_quads_grid(n), TL_QUADS_THREADS, b);
}

/* Pass after pass from x through scratch to the n elements of out; a pass is far smaller than the one before it. */
int32_t sum_repeated(tl_context *ctx, const float *x, tl_broadcast_axes axes, int64_t n, float *out)
{
    tl_sum_pass pass;
    int left = 0;
    for (int j = 0; j < axes.count; j++) {
        if (axes.size[j] == 0) /* sums over nothing: out has elements, x has none */
            return tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, n);
        left += axes.repeated[j];
    }
    if (left == 0) return run_broadcast(ctx, "tl_cuda_reduce_from_broadcast", x, axes, out);
    tl_scratch<float> scratch[2] = {tl_scratch<float>(ctx), tl_scratch<float>(ctx)};
    for (int i = 0; tl_next_sum(&axes, &pass); i ^= 1) {
        float *to = out;
        if (--left > 0) {
            if (!scratch[i]) TL_TRY(scratch[i].allocate(pass.outer * pass.inner));
            to = scratch[i];
        }
        TL_TRY(pass.inner == 1 ? tl_cuda_row_sums(ctx, x, pass.outer, pass.length, 0, to)
                               : tl_cuda_column_sums(ctx, x, pass.outer, pass.length, pass.inner, 0, to));
        x = to;
    }
    return TORCHLEAN_OK;
}

} // namespace

extern "C" int32_t tl_cuda_broadcast_to(tl_context *ctx, const float *x, const tl_dims *in_dims,
                                        const tl_dims *out_dims, const tl_dims *axis_map, float *out)
{
    const auto order = tl_order_of_output(in_dims->d, in_dims->rank, axis_map->d, out_dims->rank);
    tl_scratch<float> ordered(ctx);
    if (!tl_is_ordered(&order)) {
        TL_TRY(ordered.allocate(tl_sizes_product(order.size, order.count)));
        TL_TRY(tl_cuda_order_axes(ctx, order, x, ordered));
        x = ordered;
    }
    return run_broadcast(ctx, "tl_cuda_broadcast_to", x,
                         tl_merge_axes(in_dims->d, out_dims->d, axis_map->d, out_dims->rank), out);
}

/* The sums lie as the output reads the input; where the input's axes lie otherwise they go through scratch. */
extern "C" int32_t tl_cuda_reduce_from_broadcast(tl_context *ctx, const float *x, const tl_dims *in_dims,
                                                 const tl_dims *out_dims, const tl_dims *axis_map, float *out)
{
    const auto axes = tl_merge_axes(in_dims->d, out_dims->d, axis_map->d, out_dims->rank);
    const auto order = tl_order_of_input(in_dims->d, axis_map->d, out_dims->rank);
    const int64_t n = tl_sizes_product(in_dims->d, in_dims->rank);
    if (tl_is_ordered(&order)) return sum_repeated(ctx, x, axes, n, out);
    tl_scratch<float> sums(ctx);
    TL_TRY(sums.allocate(n));
    TL_TRY(sum_repeated(ctx, x, axes, n, sums));
    return tl_cuda_order_axes(ctx, order, sums, out);
}
