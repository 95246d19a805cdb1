/* Fingerprints of buffers on CUDA, over a list of tensors (device/lists.cuh): a block owns a piece of one tensor and adds its
 * two sums to the tensor's by atomics on integers, whose order does not matter modulo 2^64. Bound by the four 64-bit
 * multiplications for every eight bytes. */
#include "cuda/device/lists.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/fingerprint.h"

#include "formula/fingerprint.h"

namespace {

/* Thread t has elements 4t..4t+3 of each round of 1024, AHEAD rounds of loads in flight. */
constexpr int THREADS = 256, ROUND = 4 * THREADS, AHEAD = 4, PIECE = 4 * AHEAD * ROUND;

struct sums {
    uint64_t of[TL_FINGERPRINT_SUMS];
};

/* Adds the terms of words j and j + 1. */
__device__ __forceinline__ void add_words(sums &s, uint64_t j, const float (&v)[4], bool second)
{
    const uint64_t low = (uint64_t)tl_bits(v[1]) << 32 | tl_bits(v[0]);
    const uint64_t high = (uint64_t)tl_bits(v[3]) << 32 | tl_bits(v[2]);
    TL_UNROLL_FOR (int k = 0; k < TL_FINGERPRINT_SUMS; k++) {
        const tl_lane lane = tl_fingerprint_lane(k);
        s.of[k] += tl_fingerprint_term(lane, j, low);
        if (second) s.of[k] += tl_fingerprint_term(lane, j + 1, high);
    }
}

template <int BYTES>
__global__ void __launch_bounds__(THREADS)
    fingerprint_pieces(const __grid_constant__ tl_rows<BYTES> t, unsigned long long *out)
{
    const int i = tl_find_tensor(t, blockIdx.x);
    const uint32_t start = (blockIdx.x - t.first[i]) * PIECE, left = min(t.n[i] - start, (uint32_t)PIECE);
    const float *x = t.in[i] + start;
    const bool aligned = tl_aligned4(x);
    sums s = {};
#pragma unroll 1
    for (uint32_t first = 4 * threadIdx.x; first < left; first += AHEAD * ROUND) {
        float v[AHEAD][4];
        TL_UNROLL_FOR (int r = 0; r < AHEAD; r++) {
            const uint32_t e = first + r * ROUND;
            if (aligned && e < left && left - e >= 4) {
                tl_load4(x + e, v[r]);
            } else {
                TL_UNROLL_FOR (int c = 0; c < 4; c++)
                    v[r][c] = e + c < left ? x[e + c] : 0.0f;
            }
        }
        TL_UNROLL_FOR (int r = 0; r < AHEAD; r++) {
            const uint32_t e = first + r * ROUND;
            if (e < left) add_words(s, ((uint64_t)start + e) / 2, v[r], left - e > 2);
        }
    }
    __shared__ uint64_t shared[TL_FINGERPRINT_SUMS][THREADS / 32];
    TL_UNROLL_FOR (int k = 0; k < TL_FINGERPRINT_SUMS; k++) {
        TL_UNROLL_FOR (int d = 16; d > 0; d /= 2)
            s.of[k] += __shfl_xor_sync(0xffffffffu, s.of[k], d);
        if (threadIdx.x % 32 == 0) shared[k][threadIdx.x / 32] = s.of[k];
    }
    __syncthreads();
    if (threadIdx.x < TL_FINGERPRINT_SUMS) {
        const int k = (int)threadIdx.x;
        uint64_t sum = start == 0 ? tl_fingerprint_start(tl_fingerprint_lane(k), t.n[i]) : 0;
        for (int w = 0; w < THREADS / 32; w++)
            sum += shared[k][w];
        atomicAdd(out + TL_FINGERPRINT_SUMS * i + k, (unsigned long long)sum);
    }
}

/* Launches for the tensors from *next on, as many as the table holds. */
template <int BYTES>
int32_t launch(tl_context *ctx, const float *const *xs, int64_t count, const int64_t *lengths, int64_t *next,
               unsigned long long *out)
{
    tl_rows<BYTES> t;
    const int64_t begin = *next;
    const uint32_t blocks = t.fill(xs, count, lengths, PIECE, next);
    return tl_launch(ctx, "fingerprint_pieces", fingerprint_pieces<BYTES>, blocks, THREADS, t,
                     out + TL_FINGERPRINT_SUMS * begin);
}

} // namespace

/* A sum's two words in `out` are its 64 bits in memory; pool memory starts on 256 bytes. */
extern "C" int32_t tl_cuda_fingerprint(tl_context *ctx, const float *const *xs, int64_t count, const int64_t *lengths,
                                       uint32_t *out)
{
    const size_t bytes = (size_t)count * TL_FINGERPRINT_SUMS * sizeof(unsigned long long);
    TL_CUDA_TRY(ctx, cudaMemsetAsync(out, 0, bytes, tl_cuda_stream(ctx)));
    for (int64_t next = 0; next < count;) {
        const auto send = count - next <= tl_rows<SMALL>::ROOM ? launch<SMALL> : launch<LARGE>;
        TL_TRY(send(ctx, xs, count, lengths, &next, (unsigned long long *)out));
    }
    return TORCHLEAN_OK;
}
