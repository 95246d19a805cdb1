/* Attention on CUDA, forward. See attention_tiles.cuh for who owns what.
 *
 * A tile of keys: S = Q·Kᵀ in registers, the softmax brought up to date, weights through shared memory to the lanes
 * that need them (a row's weights are read by the warp that wrote them), sums += P·V. V is copied while S is computed,
 * the next K while P·V is. A tile that the mask blocks whole is skipped, unless its values hold an infinity or NaN,
 * which a weight of 0 does not silence, or the fill still has weight. */
#include "attention_tiles.cuh"

namespace attention {

struct ForwardArgs {
    Problem p;
    const uint8_t *finite; /* of V */
    float *out;
};

template <class C> constexpr size_t forward_shared()
{
    return sizeof(float) * (size_t)((C::ROWS + 2 * C::COLS) * C::LD + C::ROWS * C::LP + 2 * C::ROWS * C::COLS / 32);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) forward_kernel(const ForwardArgs a)
{
    extern __shared__ __align__(16) float shared[];
    const Problem &p = a.p;
    float *Qs = shared, *Ks = Qs + C::ROWS * C::LD, *Vs = Ks + C::COLS * C::LD, *Ps = Vs + C::COLS * C::LD;
    uint32_t *bits = (uint32_t *)(Ps + C::ROWS * C::LP);
    constexpr int BITS = C::ROWS * C::COLS / 32;
    const int tx = threadIdx.x % C::TX, ty = threadIdx.x / C::TX;
    const int64_t b = blockIdx.x / p.blocks, rank = blockIdx.x % p.blocks;
    /* under a causal mask the last rows have the most to do and start first */
    const int64_t i0 = (p.mode == CAUSAL ? p.blocks - 1 - rank : rank) * C::ROWS, rows = p.n - i0;
    const int64_t from = C::MANY ? (int64_t)blockIdx.y * C::DP : 0;
    const float *Q = p.Q + b * p.n * p.d, *K = p.K + b * p.n * p.d, *V = p.V + b * p.n * p.d;
    const int64_t chunk = p.d < C::DP ? p.d : C::DP;
    const int steps = (int)(chunk + 3) / 4;

    float sums[C::RM][C::RC] = {};
    Softmax<C> softmax;
    /* The first key of the next tile that counts; its mask is then in words[]. */
    auto next = [&](int64_t j, uint32_t *words) {
        for (; j < p.n && p.mode != NO_MASK; j += C::COLS) {
            bool counts = read_mask<C, C::ROWS, C::COLS>(words, p, b, i0, j);
            counts |= !all_finite<C::COLS>(a.finite, p, b, j) || (p.mode == FILL && softmax.fill_counts(rows));
            if (__syncthreads_or(counts))
                break;
        }
        return j;
    };

    int64_t j0 = next(0, bits);
    if (!C::MANY) {
        copy_rows<C, C::ROWS>(Qs, Q, i0, p, 0);
        if (j0 < p.n)
            copy_rows<C, C::COLS>(Ks, K, j0, p, 0);
        commit();
    }
    for (int turn = 0; j0 < p.n; turn ^= 1) {
        copy_rows<C, C::COLS>(Vs, V, j0, p, from);
        commit();
        float s[C::RM][C::RK] = {};
        if (C::MANY) {
            for (int64_t k = 0; k < p.d; k += C::DP) {
                copy_rows<C, C::ROWS>(Qs, Q, i0, p, k);
                copy_rows<C, C::COLS>(Ks, K, j0, p, k);
                commit();
                wait_copies<0>();
                __syncthreads();
                product<C>(Qs, Ks, C::DP / 4, s);
                __syncthreads();
            }
        } else {
            wait_copies<1>();
            __syncthreads();
            product<C>(Qs, Ks, steps, s);
            __syncthreads();
        }
        const int64_t j1 = next(j0 + C::COLS, bits + (turn ^ 1) * BITS);
        if (!C::MANY && j1 < p.n)
            copy_rows<C, C::COLS>(Ks, K, j1, p, 0);
        commit();
        query_scores<C>(s, p, bits + turn * BITS, j0);
#pragma unroll
        for (int i = 0; i < C::RM; i++) {
            const float factor = softmax.step(i, s[i]);
#pragma unroll
            for (int c = 0; c < C::RC; c++)
                sums[i][c] *= factor;
#pragma unroll
            for (int j = 0; j < C::RK; j++)
                Ps[(ty + C::TY * i) * C::LP + tx + C::TX * j] = s[i][j];
        }
        wait_copies<1>();
        __syncthreads();
        accumulate<C>(Ps, Vs, sums);
        __syncthreads();
        j0 = j1;
    }
    wait_copies<0>();
#pragma unroll
    for (int i = 0; i < C::RM; i++) {
        const float total = softmax.total(i);
        const int64_t row = ty + C::TY * i;
#pragma unroll
        for (int c = 0; c < C::RC; c++)
            sums[i][c] = sums[i][c] / total;
        if (row < rows)
            store_row<C>(a.out + (b * p.n + i0 + row) * p.d, sums[i], p, from);
    }
}

/* A warp owns a granule of rows: contiguous memory. */
__global__ void __launch_bounds__(256) finite_kernel(const float *__restrict__ x, int64_t batch, int64_t n, int64_t d,
                                                     int64_t granules, uint8_t *__restrict__ finite)
{
    const int64_t granule = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (granule >= batch * granules)
        return;
    const int64_t b = granule / granules, first = granule % granules * GRANULE;
    const int64_t rows = n - first < GRANULE ? n - first : GRANULE;
    const float *from = x + (b * n + first) * d;
    bool odd = false;
#pragma unroll 8
    for (int64_t i = threadIdx.x % 32; i < rows * d; i += 32)
        odd |= !(fabsf(from[i]) <= FLT_MAX);
    odd = __any_sync(0xffffffffu, odd);
    if (threadIdx.x % 32 == 0)
        finite[granule] = !odd;
}

int32_t find_finite(tl_context *ctx, const float *x, const Problem &p, uint8_t *finite)
{
    finite_kernel<<<tl_grid(p.batch * p.granules, 8), 256, 0, tl_cuda_stream(ctx)>>>(x, p.batch, p.n, p.d,
                                                                                        p.granules, finite);
    return tl_cuda_launched(ctx, "finite");
}

template <class C> static int32_t forward(tl_context *ctx, ForwardArgs &a)
{
    const dim3 grid = pass_grid<C>(a.p);
    return launch(ctx, forward_kernel<C>, a, grid, C::THREADS, forward_shared<C>(), "flash_attention");
}

} /* namespace attention */

extern "C" int32_t tl_cuda_flash_attention(tl_context *ctx, const float *Q, const float *K, const float *V,
                                           const float *mask, int64_t batch, int64_t n, int64_t d, int64_t mask_mode,
                                           float scale, float *out)
{
    using namespace attention;
    const bool wide = d % 4 == 0 && tl_aligned4(Q) && tl_aligned4(K) && tl_aligned4(V) && tl_aligned4(out);
    ForwardArgs a{{Q, K, V, mask, batch, n, d, (int)mask_mode, scale, wide, 0, tl_ceil_div(n, GRANULE)}, nullptr, out};
    void *finite = nullptr;
    if (a.p.mode != NO_MASK) {
        TL_TRY(tl_pool_alloc(ctx, (size_t)(batch * a.p.granules), &finite));
        a.finite = (const uint8_t *)finite;
        const int32_t status = find_finite(ctx, V, a.p, (uint8_t *)finite);
        if (status) {
            tl_pool_free(ctx, finite);
            return status;
        }
    }
    /* Two blocks of 128 threads share a multiprocessor up to d = 64, one of 256 beyond: bound by shared memory. */
    const int32_t status = d <= 32    ? forward<Config<32, 128, 64, 16, 8, 2>>(ctx, a)
                           : d <= 64  ? forward<Config<64, 128, 64, 16, 8, 2>>(ctx, a)
                           : d <= 128 ? forward<Config<128, 128, 64, 16, 16, 1>>(ctx, a)
                           : d <= 256 ? forward<Config<256, 64, 64, 16, 16, 1>>(ctx, a)
                                      : forward<Config<128, 128, 64, 16, 16, 1, true>>(ctx, a);
    tl_pool_free(ctx, finite);
    return status;
}
