/* Top-k of a long k on CUDA: all elements are sorted, stably, by row and then by order (formula/order.h), by CUB's radix sort, so that of
 * equal elements the first comes first. */
#include "cuda/device/division.cuh"
#include "cuda/index/long_top.cuh"
#include "formula/order.h"

#include <cub/device/device_radix_sort.cuh>

namespace {

constexpr int THREADS = 256;

/* Thread t has element t of x: its row and, below it, its order reversed; and its place in the row. */
__global__ void __launch_bounds__(THREADS)
    make_row_keys_kernel(const float *__restrict__ x, tl_fastdiv n, tl_fastdiv inner, int smallest, uint64_t *keys,
                         uint32_t *places, int64_t total)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= total) return;
    uint32_t c, i;
    const uint32_t o = n.divmod(inner.divmod((uint32_t)t, &c), &i), row = o * inner.divisor + c;
    keys[t] = (uint64_t)row << 32 | ~(uint32_t)(tl_rank(x[t], i, smallest, 0) >> 32);
    places[t] = i;
}

/* Thread t has element t of the result, (outer, k, inner). */
__global__ void __launch_bounds__(THREADS)
    write_top_kernel(const uint32_t *__restrict__ places, tl_fastdiv k, tl_fastdiv inner, int64_t n,
                     uint32_t *__restrict__ out, int64_t total)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= total) return;
    uint32_t c, i;
    const uint32_t o = k.divmod(inner.divmod((uint32_t)t, &c), &i);
    out[t] = places[((int64_t)o * inner.divisor + c) * n + i];
}

} /* namespace */

int32_t tl_sorted_top(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k, int smallest,
                      uint32_t *out)
{
    const int64_t total = outer * n * inner;
    int bits = 32;
    while (bits < 64 && outer * inner - 1 >> (bits - 32))
        bits++;
    tl_scratch<uint64_t> keys(ctx); /* and behind them, in order; likewise places */
    tl_scratch<uint32_t> places(ctx);
    tl_scratch<char> scratch(ctx);
    TL_TRY(keys.allocate(2 * total));
    TL_TRY(places.allocate(2 * total));
    const auto sort = [&](void *room, size_t &bytes) {
        return cub::DeviceRadixSort::SortPairs(room, bytes, (const uint64_t *)keys, keys + total,
                                               (const uint32_t *)places, places + total, (uint32_t)total, 0, bits,
                                               tl_cuda_stream(ctx));
    };
    size_t own = 0;
    TL_CUDA_TRY(ctx, sort(nullptr, own));
    TL_TRY(scratch.allocate((int64_t)own));
    TL_TRY(tl_launch(ctx, "topk", make_row_keys_kernel, tl_grid(total, THREADS), THREADS, x, tl_fastdiv(n),
                     tl_fastdiv(inner), smallest, (uint64_t *)keys, (uint32_t *)places, total));
    TL_CUDA_TRY(ctx, sort((char *)scratch, own));
    return tl_launch(ctx, "topk", write_top_kernel, tl_grid(outer * k * inner, THREADS), THREADS, places + total,
                     tl_fastdiv(k), tl_fastdiv(inner), n, out, outer * k * inner);
}
