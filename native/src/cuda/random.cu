/* Random numbers on CUDA: each thread makes four consecutive elements and stores them in 16 bytes; element i depends on
 * the key and i alone. Bound by the two 64-bit multiplications per word as much as by memory, so words share what they
 * can. */
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/random.h"

#include "formula/random.h"

namespace {

constexpr int THREADS = 256, ELEMENTS = 4;

/* tl_random_bits(stream, first + w) for all w. The sums x that tl_mix starts from are consecutive, so all but the lower 30
 * bits are mostly the same: then so are the low word of x >> 30, and in the first product the part of the upper word.
 * The products are taken modulo 2^64, whose terms may be added in any order. */
template <int WORDS>
__device__ __forceinline__ void random_words(uint64_t stream, uint64_t first, uint32_t (&bits)[WORDS])
{
    constexpr uint64_t FIRST = UINT64_C(0xbf58476d1ce4e5b9), SECOND = UINT64_C(0x94d049bb133111eb);
    const uint64_t x = stream + first + UINT64_C(0x9e3779b97f4a7c15);
    const uint32_t low = (uint32_t)x, high = (uint32_t)(x >> 32);
    if ((low & 0x3fffffffu) <= 0x40000000u - WORDS) {
        const uint32_t shifted = (uint32_t)(x >> 30);
        const uint64_t upper = (uint64_t)((high ^ high >> 30) * (uint32_t)FIRST) << 32;
        TL_UNROLL_FOR (int w = 0; w < WORDS; w++) {
            const uint32_t z = (low + w) ^ shifted;
            uint64_t y = (uint64_t)z * (uint32_t)FIRST + upper;
            y += (uint64_t)(z * (uint32_t)(FIRST >> 32)) << 32;
            y = (y ^ y >> 27) * SECOND;
            bits[w] = (uint32_t)(y ^ y >> 31) >> 8;
        }
    } else {
        TL_UNROLL_FOR (int w = 0; w < WORDS; w++)
            bits[w] = tl_random_bits(stream, first + w);
    }
}

struct Uniform {
    static constexpr int WORDS = 1; /* per element */
    uint64_t stream;
    __device__ float operator()(const uint32_t *bits) const { return tl_uniform_of(bits[0]); }
};

struct Bernoulli {
    static constexpr int WORDS = 1;
    uint64_t stream;
    float keep;
    __device__ float operator()(const uint32_t *bits) const { return tl_bernoulli_of(bits[0], keep); }
};

struct Normal {
    static constexpr int WORDS = 2;
    uint64_t stream;
    float mean, std;
    __device__ float operator()(const uint32_t *bits) const { return tl_normal_of(bits[0], bits[1], mean, std); }
};

template <class Draw> __global__ void __launch_bounds__(THREADS) draw_kernel(Draw draw, int64_t n, float *out)
{
    constexpr int WORDS = Draw::WORDS;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * ELEMENTS;
    if (i >= n) return;
    uint32_t bits[ELEMENTS * WORDS];
    random_words(draw.stream, (uint64_t)i * WORDS, bits);
    const float v[ELEMENTS] = {draw(bits), draw(bits + WORDS), draw(bits + 2 * WORDS), draw(bits + 3 * WORDS)};
    if (i + ELEMENTS <= n)
        tl_store4(out + i, v);
    else
        for (int j = 0; j < ELEMENTS; j++)
            if (i + j < n) out[i + j] = v[j];
}

template <class Draw> int32_t run(tl_context *ctx, const char *name, Draw draw, int64_t n, float *out)
{
    return tl_launch(ctx, name, draw_kernel<Draw>, tl_grid(n, THREADS * ELEMENTS), THREADS, draw, n, out);
}

} /* namespace */

extern "C" int32_t tl_cuda_rand_uniform(tl_context *ctx, int64_t n, uint64_t key, float *out)
{
    return run(ctx, "tl_cuda_rand_uniform", Uniform{tl_random_stream(key)}, n, out);
}

extern "C" int32_t tl_cuda_bernoulli_mask(tl_context *ctx, int64_t n, uint64_t key, float keep, float *out)
{
    return run(ctx, "tl_cuda_bernoulli_mask", Bernoulli{tl_random_stream(key), keep}, n, out);
}

extern "C" int32_t tl_cuda_rand_normal(tl_context *ctx, int64_t n, uint64_t key, float mean, float std, float *out)
{
    return run(ctx, "tl_cuda_rand_normal", Normal{tl_random_stream(key), mean, std}, n, out);
}
