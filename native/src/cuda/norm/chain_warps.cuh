/* The gradient of rows of up to 512 columns with its sums down the columns: see norm/columns.cu. */
#pragma once

#include "cuda/norm/norm.cuh"

namespace {

struct columns_grad {
    const float *x, *gamma, *g;
    int64_t rows, cols;
    float eps;
    float *gx; /* or NULL */
    float *gamma_parts, *beta_parts;
    tl_given_statistics given;
};

/* Starts copying quadruple q of a row of `cols` elements. The rows of a chain are a multiple of four rows apart, so all begin
 * equally far, `shift`, behind a multiple of 16 bytes, 0 if VECTOR. Whole quadruples arrive from there on, so that the row lies
 * `shift` elements after `to`, and zeros past its end, of which nothing is read. */
template <bool VECTOR>
__device__ __forceinline__ void request_quad(float *to, const float *row, int shift, int cols, int q)
{
    if constexpr (VECTOR)
        tl_copy_async<16>(to + 4 * q, row + 4 * q, 4 * q < cols);
    else
        tl_copy_async_first(to + 4 * q, row - shift + 4 * q, 4 * min(4, max(0, shift + cols - 4 * q)));
}

/* A warp finishes a row whose x and g lie in shared memory. */
template <tl_norm_kind KIND, bool GIVEN, class Row>
__device__ __forceinline__ void finish_row(const columns_grad &p, int64_t row, int cols, const float *x, const float *g,
                                           float2 *statistics)
{
    const Row r(tl_given(), row, cols);
    tl_held<Row, false> v, scaled;
    v.load(r, x);
    float mean, istd;
    tl_row_statistics<KIND, GIVEN>(r, v, cols, p.eps, p.given, row, &mean, &istd);
    if (r.leads()) *statistics = make_float2(mean, istd);
    if (!p.gx) return;
    typename Row::terms terms_a, terms_ax;
    float xhat[Row::W], a[Row::W], gamma[Row::W], ax[Row::W];
    TL_UNROLL_FOR (int i = 0; i < Row::K; i++) {
        const int k = Row::order(i);
        v.get(k, xhat);
        r.piece(g, k, a);
        r.piece(p.gamma, k, gamma);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            xhat[j] = r.inside(k * Row::W + j) ? xhat[j] * istd : 0.0f;
            a[j] *= gamma[j];
            ax[j] = a[j] * xhat[j];
        }
        if (KIND != TL_NORM_RMS) terms_a.add(i, a);
        terms_ax.add(i, ax);
        v.put(k, xhat);
        scaled.put(k, a);
    }
    float sum_a = 0.0f, sum_ax;
    if constexpr (KIND == TL_NORM_RMS)
        sum_ax = terms_ax.sum();
    else
        Row::sum2(terms_a, terms_ax, &sum_a, &sum_ax);
    const float mean_a = tl_per_count(sum_a, cols), mean_ax = tl_per_count(sum_ax, cols);
    TL_UNROLL_FOR (int k = 0; k < Row::K; k++) {
        v.get(k, xhat);
        scaled.get(k, a);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            a[j] = tl_norm_grad(a[j], xhat[j], mean_a, mean_ax, istd);
        r.store(p.gx + row * p.cols, k, a);
    }
}

/* A block owns a chain of a chunk. Its warps finish ROWS rows of it side by side (Row: a warp's); then all threads add these rows
 * to the chain's sums, each thread for its own columns, in the chain's order, from x, g and the rows' statistics. Meanwhile the
 * next ROWS rows arrive in the other half of the stage, a row in `pitch` elements. Parts are (chunk, chain, cols). */
struct side_by_side {
    static constexpr int ROWS = 8, THREADS = 32 * ROWS;
};
template <tl_norm_kind KIND, bool GIVEN, class Row>
__global__ void __launch_bounds__(side_by_side::THREADS, Row::N > 8 ? 3 : 4) chain_warps(columns_grad p, int pitch)
{
    constexpr int SIDE = side_by_side::ROWS, THREADS = side_by_side::THREADS, STEP = SIDE * TL_COLUMN_CHAINS;
    constexpr int OWN = (32 * Row::N + THREADS - 1) / THREADS;
    __shared__ float2 statistics[SIDE];
    float *const stage = reinterpret_cast<float *>(tl_dynamic_shared);
    const int64_t top = (int64_t)(blockIdx.x / TL_COLUMN_CHAINS) * TL_COLUMN_CHUNK; /* rows count from here */
    const int end = (int)min((int64_t)TL_COLUMN_CHUNK, p.rows - top), cols = (int)p.cols;
    __builtin_assume(cols > 0 && cols <= 32 * Row::N);
    const int t = (int)threadIdx.x, warp = t / 32, chain = (int)(blockIdx.x % TL_COLUMN_CHAINS);
    const int shift = Row::VECTOR ? 0 : chain * cols % 4;
    const auto place = [&](int half, int array, int w) { return stage + ((half * 2 + array) * SIDE + w) * pitch; };
    const auto request = [&](int row, int half) {
        TL_UNROLL_FOR (int k = 0; k < Row::N / 4 + !Row::VECTOR; k++) {
            const int q = 32 * k + t % 32;
            if (row < end && 4 * q < shift + cols) {
                request_quad<Row::VECTOR>(place(half, 0, warp), p.x + (top + row) * p.cols, shift, cols, q);
                request_quad<Row::VECTOR>(place(half, 1, warp), p.g + (top + row) * p.cols, shift, cols, q);
            }
        }
        tl_copy_commit();
    };
    float sum_gamma[OWN] = {}, sum_beta[OWN] = {};
    int row = chain + TL_COLUMN_CHAINS * warp, half = 0; /* the warp's */
    request(row, 0);
    request(row + STEP, 1);
#pragma unroll 1
    for (int first = chain; first < end; first += STEP, row += STEP, half ^= 1) {
        tl_copy_wait<1>();
        __syncwarp();
        if (row < end)
            finish_row<KIND, GIVEN, Row>(p, top + row, cols, place(half, 0, warp) + shift, place(half, 1, warp) + shift,
                                         &statistics[warp]);
        __syncthreads();
        TL_UNROLL_FOR (int w = 0; w < SIDE; w++) {
            if (first + TL_COLUMN_CHAINS * w >= end) break;
            const float2 s = statistics[w];
            const float *const x = place(half, 0, w) + shift + t, *const g = place(half, 1, w) + shift + t;
            TL_UNROLL_FOR (int i = 0; i < OWN; i++)
                if (t + THREADS * i < cols) {
                    sum_gamma[i] += g[THREADS * i] * tl_normalised(x[THREADS * i], s.x, s.y);
                    if (KIND != TL_NORM_RMS) sum_beta[i] += g[THREADS * i];
                }
        }
        __syncthreads(); /* all have read the half that is filled next */
        request(row + 2 * STEP, half);
    }
    tl_copy_wait<0>();
    const int64_t at = (int64_t)blockIdx.x * p.cols + t;
    TL_UNROLL_FOR (int i = 0; i < OWN; i++)
        if (t + THREADS * i < cols) {
            p.gamma_parts[at + THREADS * i] = sum_gamma[i];
            if (KIND != TL_NORM_RMS) p.beta_parts[at + THREADS * i] = sum_beta[i];
        }
}

} // namespace
