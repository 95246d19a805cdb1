/* Random numbers on CUDA: each thread makes four consecutive elements and stores them in 16 bytes; element i depends on the
 * key and i alone. Bound by the two 64-bit multiplications per element as much as by memory. */
#include "../abi/kernels.h"
#include "common.cuh"

#include "../formula/random.h"

namespace {

constexpr int THREADS = 256;

struct Uniform {
    uint64_t key;
    __device__ float operator()(uint64_t i) const { return tl_random_uniform(key, i); }
};

struct Bernoulli {
    uint64_t key;
    float keep;
    __device__ float operator()(uint64_t i) const { return tl_random_bernoulli(key, i, keep); }
};

struct Normal {
    uint64_t key;
    float mean, std;
    __device__ float operator()(uint64_t i) const { return tl_random_normal(key, i, mean, std); }
};

template <class Draw> __global__ void __launch_bounds__(THREADS) draw_kernel(Draw draw, int64_t n, float *out)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i + 4 <= n)
        tl_store4(out + i, make_float4(draw(i), draw(i + 1), draw(i + 2), draw(i + 3)));
    else
        for (int64_t j = i; j < n; j++)
            out[j] = draw(j);
}

template <class Draw> int32_t run(tl_context *ctx, const char *name, Draw draw, int64_t n, float *out)
{
    draw_kernel<<<tl_grid(n, THREADS * 4), THREADS, 0, tl_cuda_stream(ctx)>>>(draw, n, out);
    return tl_cuda_launched(ctx, name);
}

} /* namespace */

extern "C" int32_t tl_cuda_rand_uniform(tl_context *ctx, int64_t n, uint64_t key, float *out)
{
    return run(ctx, "tl_cuda_rand_uniform", Uniform{key}, n, out);
}

extern "C" int32_t tl_cuda_bernoulli_mask(tl_context *ctx, int64_t n, uint64_t key, float keep, float *out)
{
    return run(ctx, "tl_cuda_bernoulli_mask", Bernoulli{key, keep}, n, out);
}

extern "C" int32_t tl_cuda_rand_normal(tl_context *ctx, int64_t n, uint64_t key, float mean, float std, float *out)
{
    return run(ctx, "tl_cuda_rand_normal", Normal{key, mean, std}, n, out);
}
