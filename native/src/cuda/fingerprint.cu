/* Fingerprints of buffers on CUDA, over a list of tensors (device/lists.cuh): a block owns a piece of one tensor and adds its
 * two sums to the tensor's by atomics on integers, whose order does not matter modulo 2^64. Bound by the three 64-bit
 * multiplications for every eight bytes. */
#include "cuda/device/lists.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/fingerprint.h"

#include "formula/fingerprint.h"

namespace {

/* Thread t has elements 4t..4t+3 of each round of 1024, AHEAD rounds of loads in flight. */
constexpr int THREADS = 256, ROUND = 4 * THREADS, AHEAD = 4, PIECE = 4 * AHEAD * ROUND;

/* Adds word j. */
__device__ __forceinline__ void add_word(tl_sums &s, tl_places places, uint64_t j, float even, float odd)
{
    const uint64_t z =
        tl_fingerprint_word(places, j, (uint64_t)tl_fingerprint_bits(odd) << 32 | tl_fingerprint_bits(even));
    s.first += z;
    s.second += z * z;
}

template <int BYTES>
__global__ void __launch_bounds__(THREADS)
    fingerprint_pieces(const __grid_constant__ tl_rows<BYTES> t, unsigned long long *out)
{
    const int i = tl_find_tensor(t, blockIdx.x);
    const uint32_t start = (blockIdx.x - t.first[i]) * PIECE, left = min(t.n[i] - start, (uint32_t)PIECE);
    const float *x = t.at[i][0] + start;
    const bool aligned = tl_aligned4(x);
    const tl_places places = tl_fingerprint_places();
    tl_sums s = {0, 0};
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
            const uint64_t j = ((uint64_t)start + e) / 2;
            if (e < left) add_word(s, places, j, v[r][0], v[r][1]);
            if (e < left && left - e > 2) add_word(s, places, j + 1, v[r][2], v[r][3]);
        }
    }
    if (start == 0 && threadIdx.x == 0) {
        const uint64_t z = tl_fingerprint_length(t.n[i]);
        s.first += z;
        s.second += z * z;
    }
    __shared__ tl_sums shared[THREADS / 32];
    TL_UNROLL_FOR (int d = 16; d > 0; d /= 2) {
        s.first += __shfl_xor_sync(0xffffffffu, s.first, d);
        s.second += __shfl_xor_sync(0xffffffffu, s.second, d);
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x < 2) {
        uint64_t sum = 0;
        TL_UNROLL_FOR (int w = 0; w < THREADS / 32; w++)
            sum += threadIdx.x == 0 ? shared[w].first : shared[w].second;
        atomicAdd(out + 2 * i + threadIdx.x, (unsigned long long)sum);
    }
}

/* Launches for the tensors from *next on, as many as the table holds. */
template <int BYTES>
int32_t launch(tl_context *ctx, const float *const *xs, int64_t count, const int64_t *lengths, int64_t *next,
               unsigned long long *out)
{
    tl_rows<BYTES> t;
    const int64_t begin = *next;
    const uint32_t blocks = t.fill({xs}, count, lengths, PIECE, next);
    return tl_launch(ctx, "fingerprint_pieces", fingerprint_pieces<BYTES>, blocks, THREADS, t, out + 2 * begin);
}

} // namespace

/* A sum's two words in `out` are its 64 bits in memory; pool memory starts on 256 bytes. */
extern "C" int32_t tl_cuda_fingerprint(tl_context *ctx, const float *const *xs, int64_t count, const int64_t *lengths,
                                       uint32_t *out)
{
    const size_t bytes = (size_t)count * sizeof(tl_sums);
    TL_CUDA_TRY(ctx, cudaMemsetAsync(out, 0, bytes, tl_cuda_stream(ctx)));
    for (int64_t next = 0; next < count;) {
        const auto send = count - next <= tl_rows<SMALL>::ROOM ? launch<SMALL> : launch<LARGE>;
        TL_TRY(send(ctx, xs, count, lengths, &next, (unsigned long long *)out));
    }
    return TORCHLEAN_OK;
}
