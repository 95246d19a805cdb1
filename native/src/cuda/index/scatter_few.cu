/* Scatter-adds of up to TL_SORTED_HITS hits into few narrow rows on CUDA, in two launches.
 *
 * Blocks of the first sort chunks of the list by row, stably. They write the positions in this order, or the values of one column,
 * and where each row's run begins and ends. A warp of the second owns a column of a row: it looks up the row's runs in all chunks,
 * brings the values side by side to shared memory, and adds them in this order, which is that of the list. More of them than a
 * warp can hold the block adds. */
#include "cuda/device/division.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

#include <cub/block/block_radix_sort.cuh>

namespace {

constexpr uint32_t CHUNK = TL_SORT_CHUNK, MOST_CHUNKS = TL_SORTED_HITS / CHUNK;
constexpr uint32_t MOST_ROWS = 4096, MOST_ELEMENTS = 8192; /* whose runs fit shared memory, and warps of four rounds */
constexpr int SORT_THREADS = 512, SORT_ITEMS = CHUNK / SORT_THREADS;
constexpr int PLACE_BITS = 11; /* of a word: the row, then the place in the chunk */
static_assert(CHUNK == 1 << PLACE_BITS && MOST_CHUNKS == 2 * 32 && MOST_ROWS < 1 << 16);

constexpr uint32_t WARPS = TL_LONG_WARPS, WARP_HITS = TL_LONG; /* hits that a warp adds alone */
constexpr uint32_t BLOCK_HITS = TL_LONG_THREADS * TL_LONG_HITS;
constexpr uint32_t ONE_BY_ONE = 256; /* hits that are added as fast as they are guessed and verified */
constexpr int RUN = 16, AT_ONCE = 8;
static_assert(BLOCK_HITS == WARPS * WARP_HITS && WARP_HITS % (32 * AT_ONCE) == 0);

struct few {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    tl_fastdiv cols;
    uint32_t rows, k, chunks;
    uint32_t *sorted; /* every chunk's positions by row, or the bits of the values at these of one column */
    ushort2 *runs;    /* of every row in every chunk: begin and end */

    __device__ __forceinline__ bool by_value() const { return cols.divisor == 1; }
};

/* An index to ignore has the row `rows`; so have the places behind the list. */
__global__ void __launch_bounds__(SORT_THREADS) sort_runs_kernel(few s, int bits)
{
    using Sort = cub::BlockRadixSort<uint32_t, SORT_THREADS, SORT_ITEMS>;
    union room {
        typename Sort::TempStorage sort;
        struct {
            uint16_t rows[CHUNK];
            ushort2 runs[MOST_ROWS];
        } found;
    };
    __shared__ __align__(16) char storage[sizeof(room)];
    __shared__ uint32_t hits[CHUNK];
    room &shared = *reinterpret_cast<room *>(storage);
    tl_wait_for_earlier();
    const uint32_t from = blockIdx.x * CHUNK;
    uint32_t hit[SORT_ITEMS];
    uint32_t word[SORT_ITEMS];
    TL_UNROLL_FOR (uint32_t i = 0; i < SORT_ITEMS; i++) {
        const uint32_t j = from + i * SORT_THREADS + threadIdx.x, place = threadIdx.x * SORT_ITEMS + i;
        hit[i] = s.by_value() && j < s.k ? __float_as_uint(s.values[j]) : j;
        word[i] = (from + place < s.k ? min(s.indices[from + place], s.rows) : s.rows) << PLACE_BITS | place;
    }
    TL_UNROLL_FOR (uint32_t i = 0; i < SORT_ITEMS; i++)
        hits[i * SORT_THREADS + threadIdx.x] = hit[i];
    Sort(shared.sort).SortBlockedToStriped(word, PLACE_BITS, PLACE_BITS + bits);
    __syncthreads(); /* the room was the sort's */
    TL_UNROLL_FOR (uint32_t i = 0; i < SORT_ITEMS; i++)
        shared.found.rows[i * SORT_THREADS + threadIdx.x] = (uint16_t)(word[i] >> PLACE_BITS);
    for (uint32_t row = threadIdx.x; row < s.rows; row += SORT_THREADS)
        shared.found.runs[row] = make_ushort2(0, 0);
    __syncthreads();
    TL_UNROLL_FOR (uint32_t i = 0; i < SORT_ITEMS; i++) {
        const uint32_t place = i * SORT_THREADS + threadIdx.x, row = word[i] >> PLACE_BITS;
        s.sorted[from + place] = hits[word[i] % CHUNK];
        if (row >= s.rows) continue;
        if (place == 0 || shared.found.rows[place - 1] != row) shared.found.runs[row].x = (uint16_t)place;
        if (place == CHUNK - 1 || shared.found.rows[place + 1] != row) shared.found.runs[row].y = (uint16_t)(place + 1);
    }
    __syncthreads();
    for (uint32_t row = threadIdx.x; row < s.rows; row += SORT_THREADS)
        s.runs[row * s.chunks + blockIdx.x] = shared.found.runs[row];
}

/* Where a row's hits lie: hit h of chunk c, the last with before[c] <= h, is sorted[at[c] + h]. Chunks behind the last have no
 * fewer before them than there are hits. */
struct row_runs {
    uint32_t before[MOST_CHUNKS], at[MOST_CHUNKS], hits;
};

/* Hits of the shared list of a block lie so that neither warps that write neighbours nor threads that read TL_LONG_HITS hits each,
 * four at a time, meet in a bank. */
__device__ __forceinline__ uint32_t swizzled(uint32_t hit) { return hit ^ (hit / TL_LONG_HITS % 8) * 4; }

/* Thread t of THREADS brings values of column `col` at the row's hits first + t, first + t + THREADS ... to the list, up to `end`, which is rounded up to
 * AT_ONCE·THREADS of them. Those behind the last are -0, which changes no sum. */
template <int THREADS>
__device__ __forceinline__ void bring_hits(const few &s, const row_runs &runs, uint32_t col, uint32_t first,
                                           uint32_t end, uint32_t thread, float *list)
{
    for (uint32_t from = first; from < end; from += AT_ONCE * THREADS) {
        uint32_t word[AT_ONCE];
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++) {
            const uint32_t hit = from + u * THREADS + thread;
            uint32_t chunk = 0;
            TL_UNROLL_FOR (uint32_t step = MOST_CHUNKS / 2; step; step /= 2)
                if (runs.before[chunk + step] <= hit) chunk += step;
            word[u] = hit < runs.hits ? s.sorted[runs.at[chunk] + hit] : 0;
        }
        float v[AT_ONCE];
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++) {
            v[u] = -0.0f;
            if (from + u * THREADS + thread < runs.hits)
                v[u] = s.by_value() ? __uint_as_float(word[u]) : s.values[(int64_t)word[u] * s.cols.divisor + col];
        }
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++) {
            const uint32_t place = from - first + u * THREADS + thread;
            list[THREADS == 32 ? place : swizzled(place)] = v[u];
        }
    }
}

/* A warp owns an element; those of a block are far apart, as neighbours may all have many hits. */
__global__ void __launch_bounds__(TL_LONG_THREADS, 2) add_runs_kernel(few s)
{
    __shared__ float4 lists[BLOCK_HITS / 4];
    __shared__ float4 chunks[WARPS][16 * RUN / 4];
    __shared__ row_runs runs[WARPS];
    __shared__ tl_long_room room;
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, element = warp * gridDim.x + blockIdx.x;
    uint32_t col;
    const uint32_t row = s.cols.divmod(element, &col);
    float4 *const own = lists + warp * (WARP_HITS / 4);
    float sum = s.base && row < s.rows ? s.base[element] : 0.0f;

    ushort2 run[2] = {make_ushort2(0, 0), make_ushort2(0, 0)}; /* a lane has two chunks */
    TL_UNROLL_FOR (uint32_t i = 0; i < 2; i++)
        if (row < s.rows && 2 * lane + i < s.chunks) run[i] = s.runs[row * s.chunks + 2 * lane + i];
    const uint32_t lengths[2] = {(uint32_t)(run[0].y - run[0].x), (uint32_t)(run[1].y - run[1].x)};
    uint32_t end = lengths[0] + lengths[1];
    TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += before;
    }
    uint32_t before = end - lengths[1] - lengths[0];
    TL_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
        runs[warp].before[2 * lane + i] = before;
        runs[warp].at[2 * lane + i] = (2 * lane + i) * CHUNK + run[i].x - before;
        before += lengths[i];
    }
    if (lane == 31) runs[warp].hits = end;
    __syncwarp();
    const uint32_t hits = runs[warp].hits;
    if (hits <= WARP_HITS) {
        bring_hits<32>(s, runs[warp], col, 0, hits, lane, reinterpret_cast<float *>(own));
        __syncwarp();
        if (hits <= ONE_BY_ONE) {
#pragma unroll 4
            for (uint32_t hit = 0; hit < hits; hit += 4) {
                const float4 v = own[hit / 4];
                sum += v.x;
                sum += v.y;
                sum += v.z;
                sum += v.w;
            }
        } else {
            const tl_hits list = {reinterpret_cast<const uint32_t *>(own), UINT32_MAX, nullptr, 1};
            sum = tl_add_run<RUN>(list, 0, hits, 0, sum, chunks[warp]);
        }
        if (lane == 0 && row < s.rows) s.out[element] = sum;
    }
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++) {
        const uint32_t length = runs[w].hits, at = w * gridDim.x + blockIdx.x;
        if (length <= WARP_HITS) continue;
        s.cols.divmod(at, &col);
        float all = s.base ? s.base[at] : 0.0f;
        for (uint32_t from = 0; from < length; from += BLOCK_HITS) {
            bring_hits<TL_LONG_THREADS>(s, runs[w], col, from, min(from + BLOCK_HITS, length), threadIdx.x,
                                        reinterpret_cast<float *>(lists));
            __syncthreads();
            float v[TL_LONG_HITS];
            TL_UNROLL_FOR (uint32_t i = 0; i < TL_LONG_HITS; i += 4) {
                const uint32_t first = threadIdx.x * TL_LONG_HITS + i;
                float4 q = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
                if (from + first < length) q = lists[swizzled(first) / 4];
                v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
            }
            all = tl_add_block(all, v, room); /* its barriers let all have read */
        }
        if (threadIdx.x == 0) s.out[at] = all;
    }
}

} /* namespace */

bool tl_few_serve(int64_t rows, int64_t cols, int64_t k)
{
    return rows <= MOST_ROWS && rows * cols <= MOST_ELEMENTS && k <= TL_SORTED_HITS;
}

int32_t tl_scatter_few(tl_context *ctx, const char *name, const float *base, const float *values,
                       const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    const int64_t chunks = tl_ceil_div(k, CHUNK);
    tl_scratch<uint32_t> sorted(ctx);
    tl_scratch<ushort2> runs(ctx);
    TL_TRY(sorted.allocate(chunks * CHUNK));
    TL_TRY(runs.allocate(rows * chunks));
    few s = {base, values, out, indices, tl_fastdiv(cols), (uint32_t)rows, (uint32_t)k, (uint32_t)chunks, sorted, runs};
    const int bits = 32 - __builtin_clz((uint32_t)rows);
    TL_TRY(tl_launch_ahead(ctx, name, sort_runs_kernel, (unsigned)chunks, SORT_THREADS, 0, s, bits));
    /* A block for every element that may have many hits, as far as the device holds them. */
    const int64_t elements = rows * cols, blocks = 2 * tl_cuda_sms(ctx), least = tl_ceil_div(elements, WARPS);
    const unsigned grid = tl_grid(elements < blocks ? elements : least < blocks ? blocks : least, 1);
    return tl_launch_ahead(ctx, name, add_runs_kernel, grid, TL_LONG_THREADS, 0, s);
}
