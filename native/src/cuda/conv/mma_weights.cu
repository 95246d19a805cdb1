/* The gradient of a convolution's weights as an implicit product: gw (rows, K) = small (rows, batch·positions)·gathered
 * large (batch·positions, K), K = channels·taps, with taps CHUNK at a time.
 *
 * A block owns a tile of BM rows by BN columns of gw over one segment of the positions, its warps fragments of the sums
 * in registers. A stage holds SLICE = 16 positions of each row and column; in every other pair of rows the halves of 8
 * are swapped, so that the 16 threads that read 2 positions each of 4 rows meet 32 different banks of shared memory.
 * 16 neighbouring threads copy 16 neighbouring positions. What a position reads (its index and bits) is worked out by
 * one thread for all.
 *
 * Order of additions: chains of CHAIN positions added in order (conv/mma_tile.cuh) within a segment; the segments' sums by
 * the column tree of formula/sum_tree.h. Segments follow from the shape and the device. */
#include "cuda/conv/conv.cuh"
#include "cuda/conv/mma_tile.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"

using namespace tl_conv;

namespace {

constexpr int64_t MIN_SEGMENT = 128; /* positions */
constexpr int64_t RESIDENT = 2;      /* thread blocks of a multiprocessor in a wave */
constexpr int64_t MAX_WAVES = 8;

struct Job {
    tl_conv_gather gather;
    const float *large, *small;
    float *sums;                      /* (segment, rows, channels, taps) */
    int64_t rows, channels, elements; /* elements of gw */
    /* per axis: positions per line; position coordinates low .. low + width - 1 have every tap inside; the source index
     * that a step along the axis adds, modulo 2^32 */
    tl_fastdiv count[TL_CONV_RANK], positions;
    uint32_t low[TL_CONV_RANK], width[TL_CONV_RANK], advance[TL_CONV_RANK];
    uint32_t origin, total, segment, row_tiles, chunk_tiles; /* column tiles of a full chunk */
    int32_t by_four;                                         /* four neighbouring positions of `small` are one access */
};

/* What position q of the batch reads: its index in `large` with tap 0 and in row 0 of `small`, the bits of `taps` taps
 * from tap0 on, and 1. A call, because it is rare. */
static __device__ __noinline__ uint4 position_entry(const Job &job, uint32_t q, int64_t tap0, int taps)
{
    uint32_t at, source = job.origin;
    const uint32_t image = job.positions.divmod(q, &at), whole = at;
    source += image * (uint32_t)(job.channels * job.gather.source_size);
    bool border = false;
#pragma unroll 1
    for (int d = job.gather.rank - 1; d >= 0; d--) {
        uint32_t j;
        at = job.count[d].divmod(at, &j);
        source += j * job.advance[d];
        border |= j - job.low[d] >= job.width[d];
    }
    return make_uint4(source, image * (uint32_t)(job.rows * job.gather.positions) + whole,
                      border ? position_of(job.gather, whole, tap0, taps).inside : (1u << taps) - 1, 1);
}

/* Feeds weights_kernel's tile (run_slices). A stage: BM rows of `small`, then BN columns of `large`, SLICE positions
 * each. mma's columns t and t + 4 are positions 2t and 2t + 1 of a half, in both operands. */
template <class T_> struct WeightsLoader {
    using T = T_;
    static constexpr int STAGES = 4, BM = T::BM, BN = T::BN, THREADS = T::THREADS;
    static constexpr int A = BM * SLICE, STAGE = A + BN * SLICE, GROUPS = THREADS / SLICE;
    static constexpr int AHEAD = THREADS / SLICE; /* slices whose positions are worked out at a time */

    const Job &job;
    uint4 *positions;                   /* of AHEAD slices: index in large, in small, bits, whether there is one */
    const uint2 *columns;               /* (group of threads, column / GROUPS) */
    const uint32_t begin, length, row0; /* of the segment; of the tile */
    const int64_t tap0;
    const int taps, last;
    int next, worked_out; /* slice to fetch; the first whose positions are not worked out */

    __device__ __forceinline__ void seek(int slice) { next = worked_out = slice; }

    /* Element k of a row or column in a stage; 4 rows further on it is 4·SLICE further on. */
    static __device__ __forceinline__ int word(int row, int k) { return row * SLICE + (k ^ row / 2 % 2 * 8); }

    __device__ __forceinline__ void fetch(float *stage)
    {
        if (next < last) {
            if (next == worked_out) { /* uniform; all threads are past the barrier that ends the use of the old ones */
                const uint32_t offset = (uint32_t)next * SLICE + threadIdx.x;
                positions[threadIdx.x] = offset < length ? position_entry(job, begin + offset, tap0, taps)
                                                         : make_uint4(0, 0, 0, 0);
                worked_out += AHEAD;
                __syncthreads();
            }
            const uint4 *here = positions + (next + AHEAD - worked_out) * SLICE;
            const int k = (int)threadIdx.x % SLICE;
            const uint32_t group = threadIdx.x / SLICE;
            const uint32_t size = (uint32_t)job.gather.positions, rows_left = (uint32_t)job.rows - row0;
            const uint32_t to = tl_shared_address(stage), to_k = to + 4 * word((int)group, k);
            /* all before the first copy, above which the compiler moves no load: they are on their way together */
            const uint32_t piece = threadIdx.x % 4 * 4, row = threadIdx.x / 4;
            const uint4 at = here[k], four = here[piece];
            const uint4 *entries = reinterpret_cast<const uint4 *>(columns + group * (BN / GROUPS));
            uint4 two[BN / GROUPS / 2];
            TL_UNROLL_FOR (int i = 0; i < BN / GROUPS / 2; i++)
                two[i] = entries[i];
            if (job.by_four) {
                const uint32_t to_four = to + 4 * word((int)row, (int)piece);
                uint32_t from = four.y + (row0 + row) * size;
                TL_UNROLL_FOR (int i = 0; i < BM; i += THREADS / 4, from += THREADS / 4 * size)
                    if (BM % (THREADS / 4) == 0 || row < BM)
                        tl_copy_async<16, false>(to_four + 4 * i * SLICE, job.small + from,
                                                 four.w && row + i < rows_left);
            } else {
                uint32_t from = at.y + (row0 + group) * size;
                TL_UNROLL_FOR (int i = 0; i < BM; i += GROUPS, from += GROUPS * size)
                    tl_copy_async<4, false>(to_k + 4 * i * SLICE, job.small + from, at.w && group + i < rows_left);
            }
            TL_UNROLL_FOR (int i = 0; i < BN; i += 2 * GROUPS) {
                const uint4 &both = two[i / GROUPS / 2];
                tl_copy_async<4, false>(to_k + 4 * (A + i * SLICE), job.large + (at.x + both.x), (at.z & both.y) != 0);
                tl_copy_async<4, false>(to_k + 4 * (A + (i + GROUPS) * SLICE), job.large + (at.x + both.z),
                                        (at.z & both.w) != 0);
            }
        }
        tl_copy_commit();
        next++;
    }

    template <int HALF>
    static __device__ __forceinline__ void tensor(const float *stage, typename T::Sums &chain, uint32_t &least)
    {
        const int at = word(T::lane() / 4, HALF * 8 + T::lane() % 4 * 2);
        const float *a = stage + T::warp_m() * T::MT * 16 * SLICE + at;
        const float *b = stage + A + T::warp_n() * T::NT * 8 * SLICE + at;
        uint32_t bh[T::NT][2], bl[T::NT][2];
        TL_UNROLL_FOR (int nt = 0; nt < T::NT; nt++) {
            const float2 v = *reinterpret_cast<const float2 *>(b + nt * 8 * SLICE);
            tl_split_keep_least(least, v.x);
            tl_split_keep_least(least, v.y);
            tl_split_dekker(v.x, bh[nt][0], bl[nt][0]);
            tl_split_dekker(v.y, bh[nt][1], bl[nt][1]);
        }
        TL_UNROLL_FOR (int mt = 0; mt < T::MT; mt++) {
            const float2 v[2] = {*reinterpret_cast<const float2 *>(a + mt * 16 * SLICE),
                                 *reinterpret_cast<const float2 *>(a + (mt * 16 + 8) * SLICE)};
            const float x[4] = {v[0].x, v[1].x, v[0].y, v[1].y};
            uint32_t ah[4], al[4];
            TL_UNROLL_FOR (int i = 0; i < 4; i++) {
                tl_split_keep_least(least, x[i]);
                tl_split_dekker(x[i], ah[i], al[i]);
            }
            T::multiply(chain[mt], ah, al, bh, bl);
        }
    }

    static __device__ __forceinline__ void plain(const float *stage, int, typename T::Sums &chain)
    {
#pragma unroll 1
        for (int k = 0; k < SLICE; k++) {
            const float *a = stage + word(T::row(0, 0), k), *b = stage + A + word(T::column(0, 0), k);
            float y[T::NT][2];
            TL_UNROLL_FOR (int i = 0; i < 2 * T::NT; i++)
                y[i / 2][i % 2] = b[(i / 2 * 8 + i % 2) * SLICE];
            TL_UNROLL_FOR (int mt = 0; mt < T::MT; mt++) {
                const float x[2] = {a[mt * 16 * SLICE], a[(mt * 16 + 8) * SLICE]};
                T::fused(chain[mt], x, y);
            }
        }
    }
};

template <class T>
__global__ void __launch_bounds__(T::THREADS, T::RESIDENT) weights_kernel(const __grid_constant__ Job job)
{
    using Loader = WeightsLoader<T>;
    TL_DYNAMIC_SHARED(float, stages);
    __shared__ uint4 positions[Loader::AHEAD * SLICE];
    __shared__ uint32_t targets[T::BN];
    __shared__ __align__(16) uint2 entries[T::BN];
    tl_wait_for_earlier();
    const tl_conv_gather &g = job.gather;

    const uint32_t row0 = blockIdx.x % job.row_tiles * T::BM, tile = blockIdx.x / job.row_tiles;
    const int64_t tap0 = (int64_t)(tile / job.chunk_tiles) * CHUNK;
    const int taps = (int)(g.taps_size - tap0 < CHUNK ? g.taps_size - tap0 : CHUNK);
    const int64_t column0 = (int64_t)(tile % job.chunk_tiles) * T::BN, left = job.channels * taps - column0;
    for (int i = (int)threadIdx.x; i < T::BN; i += T::THREADS) {
        const uint32_t column = (uint32_t)(column0 + i), channel = column / (uint32_t)taps;
        const uint32_t tap = column - channel * (uint32_t)taps;
        entries[i % Loader::GROUPS * (T::BN / Loader::GROUPS) + i / Loader::GROUPS] = column_entry(
            i < left, (uint32_t)(channel * g.source_size) + TapOffsets(g, tap0 + tap).source, (uint32_t)tap);
        targets[i] = (uint32_t)(channel * g.taps_size + tap0 + tap);
    }
    const uint32_t begin = blockIdx.y * job.segment;
    const uint32_t length = job.total - begin < job.segment ? job.total - begin : job.segment;
    const int slices = (int)((length - 1) / CHAIN + 1) * 2;
    Loader loader = {job, positions, entries, begin, length, row0, tap0, taps, slices};
    run_slices(loader, stages, 0, slices, slices, length < TL_CONV_MIN_TENSOR, [&](int, const typename T::Sums &sums) {
        T::store(job.sums + blockIdx.y * job.elements, (uint32_t)(job.channels * g.taps_size), targets,
                 (int)(left < T::BN ? left : T::BN), row0, (uint32_t)job.rows, false, nullptr, sums);
    });
}

/* Column tiles of width BN over all chunks; the tiles of a full chunk. */
int64_t column_tiles(const Job &job, int64_t BN, uint32_t *chunk_tiles)
{
    const int64_t taps = job.gather.taps_size, last_taps = (taps - 1) % CHUNK + 1, full = (taps - last_taps) / CHUNK;
    const int64_t last_tiles = tl_ceil_div(job.channels * last_taps, BN);
    *chunk_tiles = (uint32_t)(full ? tl_ceil_div(job.channels * CHUNK, BN) : last_tiles);
    return full * *chunk_tiles + last_tiles;
}

template <class T> int32_t launch(tl_context *ctx, Job &job, int64_t total, float *gw)
{
    job.row_tiles = (uint32_t)tl_ceil_div(job.rows, T::BM);
    const int64_t tiles = column_tiles(job, T::BN, &job.chunk_tiles) * job.row_tiles;
    const int64_t wave = RESIDENT * tl_cuda_sms(ctx), most = tl_imin(total / MIN_SEGMENT, MAX_WAVES * wave / tiles);
    int64_t segments = tl_conv_segments(tiles, most, wave);
    const int64_t segment = tl_ceil_div(tl_ceil_div(total, segments), CHAIN) * CHAIN;
    segments = tl_ceil_div(total, segment);
    job.segment = (uint32_t)(segment < UINT32_MAX ? segment : UINT32_MAX);
    tl_scratch<float> sums(ctx);
    if (segments > 1) TL_TRY(sums.allocate(segments * job.elements));
    job.sums = sums ? (float *)sums : gw;
    constexpr size_t bytes = sizeof(float) * WeightsLoader<T>::STAGES * WeightsLoader<T>::STAGE;
    const dim3 grid((unsigned)tiles, (unsigned)segments);
    TL_TRY(launch_tiles(ctx, "conv_weights", weights_kernel<T>, grid, T::THREADS, bytes, job));
    return sums ? tl_cuda_column_sums(ctx, sums, 1, segments, job.elements, 0, gw) : TORCHLEAN_OK;
}

} // namespace

int32_t tl_conv_mma_weights(tl_context *ctx, const tl_conv_gradient &p)
{
    const tl_conv_shape &s = p.s;
    Job job = {};
    job.gather = tl_conv_correlate(&s);
    job.large = p.large, job.small = p.small;
    job.rows = p.rows, job.channels = p.channels, job.elements = p.rows * p.channels * s.taps;
    job.positions = tl_fastdiv(s.out_size);
    job.total = (uint32_t)(p.batch * s.out_size);
    int64_t stride = 1;
    for (int d = s.rank - 1; d >= 0; d--) {
        /* 0 <= j·stride - padding and j·stride - padding + (kernel - 1)·dilation < in */
        const int64_t low = tl_ceil_div(s.padding[d], s.stride[d]);
        const int64_t room = s.in[d] - (s.kernel[d] - 1) * s.dilation[d] - 1 + s.padding[d];
        const int64_t high = room < 0 ? 0 : room / s.stride[d] + 1;
        job.count[d] = tl_fastdiv(s.out[d]);
        job.low[d] = (uint32_t)low;
        job.width[d] = (uint32_t)(high > low ? high - low : 0);
        job.advance[d] = (uint32_t)(s.stride[d] * stride);
        job.origin -= (uint32_t)(s.padding[d] * stride);
        stride *= s.in[d];
    }
    job.by_four = s.out_size % 4 == 0 && tl_aligned4(p.small);
    const int64_t total = p.batch * s.out_size;
    /* Few columns in each chunk: the narrowest tiles, of which there are as many, and so are segments. */
    if (p.channels * (s.taps < CHUNK ? s.taps : CHUNK) <= Tile<1, 1, 1>::BN)
        return p.rows <= 16   ? launch<Tile<1, 1, 1>>(ctx, job, total, p.gw)
               : p.rows <= 32 ? launch<Tile<2, 1, 1>>(ctx, job, total, p.gw)
               : p.rows <= 64 ? launch<Tile<4, 1, 1>>(ctx, job, total, p.gw)
                              : launch<Tile<4, 2, 2>>(ctx, job, total, p.gw);
    if (p.rows <= 16) return launch<Tile<1, 4, 1>>(ctx, job, total, p.gw);
    if (p.rows <= 32) return launch<Tile<2, 4, 1>>(ctx, job, total, p.gw);
    if (p.rows > 64) return launch<Tile<4, 4, 2>>(ctx, job, total, p.gw);
    /* half the width where that leaves a fifth of the columns less */
    uint32_t unused;
    const bool narrow = 5 * column_tiles(job, 64, &unused) < 8 * column_tiles(job, 128, &unused);
    return narrow ? launch<Tile<4, 2, 1>>(ctx, job, total, p.gw) : launch<Tile<4, 4, 1>>(ctx, job, total, p.gw);
}
