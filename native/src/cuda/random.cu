/* Random numbers on CUDA: each thread makes two or four times four consecutive elements, THREADS * 4 apart, and stores each four in 16
 * bytes; element i depends on the key and i alone. Bound by instructions, most of all by the two 64-bit multiplications per word, so
 * the words of a thread share what they can. */
#include "cuda/device/instructions.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/random.h"

#include "formula/random.h"

namespace {

constexpr int THREADS = 128, ELEMENTS = 4;

/* tl_random_bits(stream, first + w) before their shift, for the words w from `from` on. The sums x that tl_mix starts from are
 * consecutive, so all but the lower 30 bits are mostly the same: then so are the low word of x >> 30, and in the first product the
 * part of the upper word. The products are taken modulo 2^64, whose terms may be added in any order: the upper words are sums of
 * 32-bit products. */
struct Words {
    static constexpr uint32_t FIRST = 0x1ce4e5b9u, FIRST_HIGH = 0xbf58476du, SECOND = 0x133111ebu,
                              SECOND_HIGH = 0x94d049bbu;
    uint64_t x;
    uint32_t shifted, upper;
    bool alike; /* as said, for `count` words */

    __device__ Words(uint64_t stream, uint64_t first, uint32_t count) : x(stream + first + UINT64_C(0x9e3779b97f4a7c15))
    {
        const uint32_t high = (uint32_t)(x >> 32);
        shifted = (uint32_t)(x >> 30);
        upper = (high ^ high >> 30) * FIRST;
        alike = ((uint32_t)x & 0x3fffffffu) <= 0x40000000u - count;
    }

    template <int COUNT> __device__ __forceinline__ void make(uint32_t from, uint32_t (&bits)[COUNT]) const
    {
        TL_UNROLL_FOR (int w = 0; w < COUNT; w++) {
            const uint32_t z = ((uint32_t)x + from + w) ^ shifted;
            const uint64_t a = (uint64_t)z * FIRST + ((uint64_t)upper << 32);
            const uint32_t low = (uint32_t)a, high = (uint32_t)(a >> 32) + z * FIRST_HIGH;
            bits[w] = finish(low ^ __funnelshift_r(low, high, 27), high ^ high >> 27);
        }
    }

    /* The same for words that are not alike. */
    template <int COUNT> __device__ __forceinline__ void make_any(uint32_t from, uint32_t (&bits)[COUNT]) const
    {
        TL_UNROLL_FOR (int w = 0; w < COUNT; w++)
            bits[w] = (uint32_t)tl_mix(x + from + w - UINT64_C(0x9e3779b97f4a7c15));
    }

    /* The low word of the second step of tl_mix from both words of its factor. */
    static __device__ __forceinline__ uint32_t finish(uint32_t low, uint32_t high)
    {
        const uint64_t b = (uint64_t)low * SECOND;
        const uint32_t sum = tl_mad_low(high, SECOND, tl_mad_low(low, SECOND_HIGH, (uint32_t)(b >> 32)));
        return (uint32_t)b ^ __funnelshift_r((uint32_t)b, sum, 31);
    }
};

struct Uniform {
    static constexpr int WORDS = 1; /* per element */
    uint64_t stream;
    __device__ float operator()(const uint32_t *bits) const { return tl_uniform_of(bits[0] >> 8); }
};

struct Bernoulli {
    static constexpr int WORDS = 1;
    uint64_t stream;
    float keep;
    __device__ float operator()(const uint32_t *bits) const { return tl_bernoulli_of(bits[0] >> 8, keep); }
};

struct Normal {
    static constexpr int WORDS = 2;
    uint64_t stream;
    float mean, std;
    __device__ float operator()(const uint32_t *bits) const
    {
        /* cutting off the lower bits in place joins the instruction before, as a shift would not */
        const float odd = (float)(bits[1] & ~UINT32_C(0xff));
        return tl_normal_of(bits[0] >> 8, fmaf(odd, 0x1p-32f, -0.5f), mean, std);
    }
};

template <class Draw, int GROUPS>
__global__ void __launch_bounds__(THREADS) draw_kernel(Draw draw, int64_t n, float *out)
{
    constexpr int WORDS = Draw::WORDS, APART = THREADS * ELEMENTS;
    const int64_t i = (int64_t)blockIdx.x * (GROUPS * APART) + threadIdx.x * ELEMENTS;
    const Words words(draw.stream, (uint64_t)i * WORDS, ((GROUPS - 1) * APART + ELEMENTS) * WORDS);
    const auto fill = [&](const uint32_t (&bits)[ELEMENTS *WORDS], float (&v)[ELEMENTS]) {
        TL_UNROLL_FOR (int j = 0; j < ELEMENTS; j++)
            v[j] = draw(bits + j * WORDS);
    };
    uint32_t bits[ELEMENTS * WORDS];
    float v[ELEMENTS];
    if (words.alike && i + (GROUPS - 1) * APART + ELEMENTS <= n) { /* as nearly everywhere */
        TL_UNROLL_FOR (int g = 0; g < GROUPS; g++) {
            words.make(g * APART * WORDS, bits);
            fill(bits, v);
            tl_store4(out + i + g * APART, v);
        }
        return;
    }
#pragma unroll 1
    for (int64_t first = i; first < min(n, i + GROUPS * APART); first += APART) {
        words.make_any((uint32_t)(first - i) * WORDS, bits);
        fill(bits, v);
        for (int j = 0; j < ELEMENTS; j++)
            if (first + j < n) out[first + j] = v[j];
    }
}

/* Groups of a thread: two, and where there are elements enough for all multiprocessors four, which share what a thread does once. */
constexpr int64_t MANY = 4 << 20;

template <class Draw> int32_t run(tl_context *ctx, const char *name, Draw draw, int64_t n, float *out)
{
    const auto launch = [&](auto kernel, int groups) {
        return tl_launch(ctx, name, kernel, tl_grid(n, THREADS * ELEMENTS * groups), THREADS, draw, n, out);
    };
    return n < MANY ? launch(draw_kernel<Draw, 2>, 2) : launch(draw_kernel<Draw, 4>, 4);
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
