/* Attention on CUDA of rows that are no whole 16 bytes, or do not begin at one: arrays are copied so that each row ends in
 * zeros, which add nothing to a product, kernels that read 16 bytes at a time compute the results, and these are copied back.
 * Copies go with n·d and products with n²·d: of rows that are long enough for warp group products, copies take a few hundredths
 * of the time. */
#include "cuda/attention/padded.cuh"

namespace attention {
namespace padded {

/* LANES threads have a row's quads, as many as rows of 64 elements have. */
constexpr int THREADS = 256, LANES = 16, ROWS = THREADS / LANES;

/* Arrays (rows, d) and their copies (rows, width), those of an index side by side. */
struct Arrays {
    const float *from[5];
    float *to[5];
    int64_t rows;
    int d, width;
};

/* To the copies, or BACK. */
template <bool BACK> __global__ void __launch_bounds__(THREADS) copy_kernel(const __grid_constant__ Arrays a)
{
    const int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES;
    if (row >= a.rows) return;
    const float *const from = a.from[blockIdx.y] + row * (BACK ? a.width : a.d);
    float *const to = a.to[blockIdx.y] + row * (BACK ? a.d : a.width);
    for (int c = (int)threadIdx.x % LANES * 4; c < a.width; c += 4 * LANES) {
        float x[4];
        if (BACK) tl_load4(from + c, x);
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            if (BACK) {
                if (c + e < a.d) to[c + e] = x[e];
            } else {
                x[e] = c + e < a.d ? from[c + e] : 0.0f;
            }
        if (!BACK) tl_store4(to + c, make_float4(x[0], x[1], x[2], x[3]));
    }
}

template <bool BACK> static int32_t copy(tl_context *ctx, const char *name, const Arrays &a, int count)
{
    const dim3 grid((unsigned)tl_ceil_div(a.rows, ROWS), (unsigned)count);
    return tl_launch(ctx, name, copy_kernel<BACK>, grid, THREADS, a);
}

static Arrays arrays(const Problem &p) { return {{}, {}, p.batch * p.n, (int)p.d, (int)tl_ceil_div(p.d, 4) * 4}; }

} /* namespace padded */

int32_t forward_padded(tl_context *ctx, const Problem &p, float *out)
{
    constexpr const char *OF = "flash_attention";
    padded::Arrays in = padded::arrays(p), back = in;
    const int64_t size = in.rows * in.width;
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate(4 * size));
    const float *const from[3] = {p.Q, p.K, p.V};
    for (int i = 0; i < 3; i++) {
        in.from[i] = from[i];
        in.to[i] = scratch + i * size;
    }
    back.from[0] = scratch + 3 * size;
    back.to[0] = out;
    TL_TRY(padded::copy<false>(ctx, OF, in, 3));
    TL_TRY(tl_cuda_flash_attention(ctx, in.to[0], in.to[1], in.to[2], p.mask, p.batch, p.n, in.width, p.mode, p.scale,
                                   scratch + 3 * size));
    return padded::copy<true>(ctx, OF, back, 1);
}

int32_t backward_padded(tl_context *ctx, const BackwardArgs &a)
{
    const Problem &p = a.p;
    padded::Arrays in = padded::arrays(p), back = in;
    const int64_t size = in.rows * in.width;
    const float *const from[5] = {p.Q, p.K, p.V, a.out, a.g};
    float *const to[3] = {a.gQ, a.gK, a.gV};
    float *results[3] = {};
    int wanted = 0;
    for (const float *const x : to)
        wanted += x != nullptr;
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate((5 + wanted) * size));
    for (int i = 0; i < 5; i++) {
        in.from[i] = from[i];
        in.to[i] = scratch + i * size;
    }
    for (int i = 0, k = 0; i < 3; i++) {
        if (!to[i]) continue;
        results[i] = scratch + (5 + k) * size;
        back.from[k] = results[i];
        back.to[k++] = to[i];
    }
    TL_TRY(padded::copy<false>(ctx, NAME, in, 5));
    TL_TRY(tl_cuda_flash_attention_bwd(ctx, in.to[0], in.to[1], in.to[2], p.mask, in.to[3], in.to[4], p.batch, p.n,
                                       in.width, p.mode, p.scale, results[0], results[1], results[2]));
    return wanted ? padded::copy<true>(ctx, NAME, back, wanted) : TORCHLEAN_OK;
}

} /* namespace attention */
