/* Real transforms of short odd lengths with a large prime on CUDA in the mode `fast`, by their definition: with sums and differences p_j
 * and m_j of what lies at j and n - j, bin k is Σ p_j·cos(2·pi·j·k/n) - i·Σ m_j·sin(2·pi·j·k/n). On the way back the parts of the bins
 * take their place, and the two sums make the numbers at k and n - k. A convolution would take more arithmetic, and several times the
 * latency, which is most of the time of few rows.
 *
 * A thread owns k of a row; both sums run over j in order. A row becomes NaN where an element, or the sum or difference of a pair, is
 * not finite. */
#include "cuda/spectral/own.cuh"
#include "cuda/spectral/plan.cuh"
#include "formula/dft_tile.h"

namespace {

constexpr int THREADS = 128;
/* Up to here a row's (n/2)² pairs of multiply-adds, of some eight instructions, are fewer instructions than 25 for each number of the
 * five passes over a convolution. */
constexpr int SHORT_MOST = 63, PAIRS_MOST = (SHORT_MOST + 1) / 2;

using Real = tl_own_real_rows;

/* A block owns `count` rows; by_bins divides by n/2 + 1, the pairs of a row with the one at 0. */
template <bool INVERSE>
__global__ void __launch_bounds__(THREADS) short_kernel(const Real t, tl_fastdiv by_bins, int count)
{
    __shared__ float2 root[SHORT_MOST], pair[THREADS];
    __shared__ int bad[THREADS];
    const int n = (int)t.n, bins = (int)by_bins.divisor;
    uint32_t at;
    const int c = (int)by_bins.divmod(threadIdx.x, &at), k = (int)at;
    const int64_t row = (int64_t)blockIdx.x * count + c;
    const bool present = c < count && row < t.batch;
    float2 v = make_float2(0.0f, 0.0f);
    if (present) {
        if constexpr (INVERSE) {
            v = reinterpret_cast<const float2 *>(t.from)[row * bins + k];
            v.x *= k > 0 ? 2.0f * t.inner : t.edge;
            v.y = k > 0 ? v.y * (2.0f * t.inner) : 0.0f;
        } else {
            const float *const from = t.from + row * n;
            const float a = from[k], b = from[k > 0 ? n - k : 0];
            v = k > 0 ? make_float2(a + b, a - b) : make_float2(a, 0.0f);
        }
    }
    if (k == 0) bad[c] = 0;
    if ((int)threadIdx.x < n) {
        double co, si;
        tl_root(threadIdx.x, (uint64_t)n, &co, &si);
        root[threadIdx.x] = make_float2((float)co, (float)si);
    }
    pair[threadIdx.x] = v;
    __syncthreads();
    if (tl_not_finite(v.x) || tl_not_finite(v.y)) bad[c] = 1;
    const float2 *const of_row = pair + c * bins;
    float even = of_row[0].x, odd = 0.0f;
    int power = 0;
    if (present)
#pragma unroll 4
        for (int j = 1; j < bins; j++) {
            power += k;
            power = power >= n ? power - n : power;
            even = fmaf(of_row[j].x, root[power].x, even);
            odd = fmaf(of_row[j].y, root[power].y, odd);
        }
    __syncthreads();
    if (!present) return;
    const bool poisoned = bad[c] != 0;
    if constexpr (INVERSE) {
        float *const to = t.to + row * n;
        to[k] = poisoned ? TL_NAN : even - odd;
        if (k > 0) to[n - k] = poisoned ? TL_NAN : even + odd;
    } else {
        const float factor = k > 0 ? t.inner : t.edge;
        reinterpret_cast<float2 *>(t.to)[row * bins + k] =
            poisoned ? make_float2(TL_NAN, TL_NAN) : make_float2(even * factor, k > 0 ? -odd * factor : 0.0f);
    }
}

} /* namespace */

bool tl_short_serves(int64_t n) { return n % 2 != 0 && n <= SHORT_MOST; }

int32_t tl_short_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse)
{
    static_assert(SHORT_MOST <= THREADS && PAIRS_MOST <= THREADS,
                  "a block has a thread for each root and each pair of a row");
    const int count = (int)(THREADS / t.bins);
    const unsigned grid = tl_grid(t.batch, count);
    const tl_fastdiv by_bins((uint64_t)t.bins);
    return inverse ? tl_launch(ctx, "short rows", short_kernel<true>, grid, THREADS, t, by_bins, count)
                   : tl_launch(ctx, "short rows", short_kernel<false>, grid, THREADS, t, by_bins, count);
}
