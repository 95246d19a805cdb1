/* Scatter-adds of up to TL_SORTED_HITS hits into few narrow rows on CUDA, in two launches.
 *
 * Blocks of the first sort chunks of the list by row, stably. They write the positions in this order, or the values of one column,
 * and where each row's run begins and ends. A warp of the second owns a row: it looks up the row's runs in all chunks,
 * brings the values side by side to shared memory, and adds them in this order, which is that of the list. More of them than a
 * warp can hold the block adds.
 *
 * Where there are several columns a block of the second launch owns a row, and a lane of each of its warps a column. */
#include "cuda/index/long_run.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/run_relay.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/index/staged_run.cuh"
#include "cuda/runtime/launch.cuh"

#include <cub/block/block_radix_sort.cuh>

namespace {

constexpr uint32_t CHUNK = TL_SORT_CHUNK, MOST_CHUNKS = TL_SORTED_HITS / CHUNK;
constexpr uint32_t MOST_ROWS = 4096, SOME_ROWS = 1024; /* of one column, of several */
constexpr uint32_t MOST_COLUMNS = 31;                  /* a lane for each */
/* Blocks of a multiprocessor that add rows of several columns, by the hits of a turn of a warp: longer turns hand over less often, and
 * take the registers of more blocks. */
constexpr int rows_adding(uint32_t relay_hits) { return relay_hits == 32 ? 4 : relay_hits == 64 ? 2 : 1; }
constexpr int SORT_THREADS = 512, SORT_ITEMS = CHUNK / SORT_THREADS;
constexpr int PLACE_BITS = 11; /* of a word: the row, then the place in the chunk */
static_assert(CHUNK == 1 << PLACE_BITS && MOST_CHUNKS == 2 * 32 && MOST_ROWS < 1 << 16);

constexpr uint32_t WARPS = TL_LONG_WARPS, WARP_HITS = TL_LONG; /* hits that a warp adds alone */
constexpr uint32_t ONE_BY_ONE = 256; /* hits that are added as fast as they are guessed and verified */
/* Blocks of so many rows that each column has one, which leaves at once where the row has not too many hits for a chain: four on each
 * multiprocessor of an H100, four times. */
constexpr int64_t MOST_COLUMN_BLOCKS = 4 * 4 * 132;
constexpr int RUN = 16, AT_ONCE = 8;
static_assert(WARP_HITS % (32 * AT_ONCE) == 0);

struct few {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t rows, cols, k, chunks;
    uint32_t *sorted; /* every chunk's positions by row, or the bits of the values at these of one column */
    ushort2 *runs;    /* of every row in every chunk: begin and end */

    __device__ __forceinline__ bool by_value() const { return cols == 1; }
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

    __device__ __forceinline__ uint32_t chunk_of(uint32_t hit) const
    {
        uint32_t chunk = 0;
        TL_UNROLL_FOR (uint32_t step = MOST_CHUNKS / 2; step; step /= 2)
            if (before[chunk + step] <= hit) chunk += step;
        return chunk;
    }
};

/* The warp looks a row up, of which a lane has two chunks. A row behind the last has no hits. */
__device__ __forceinline__ void find_runs(const few &s, uint32_t row, row_runs &runs)
{
    const uint32_t lane = threadIdx.x % 32;
    ushort2 run[2] = {make_ushort2(0, 0), make_ushort2(0, 0)};
    TL_UNROLL_FOR (uint32_t i = 0; i < 2; i++)
        if (row < s.rows && 2 * lane + i < s.chunks) run[i] = s.runs[row * s.chunks + 2 * lane + i];
    const uint32_t lengths[2] = {(uint32_t)(run[0].y - run[0].x), (uint32_t)(run[1].y - run[1].x)};
    const uint32_t end = tl_sum_to_lane(lengths[0] + lengths[1], lane);
    uint32_t before = end - lengths[1] - lengths[0];
    TL_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
        runs.before[2 * lane + i] = before;
        runs.at[2 * lane + i] = (2 * lane + i) * CHUNK + run[i].x - before;
        before += lengths[i];
    }
    if (lane == 31) runs.hits = end;
    __syncwarp();
}

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

/* The positions of a row's hits. Those that a thread asks for come one after the other. */
struct row_positions {
    const uint32_t *sorted;
    const row_runs &runs;
    uint32_t chunk;

    __device__ __forceinline__ uint32_t place_of(uint32_t hit)
    {
        while (chunk + 1 < MOST_CHUNKS && runs.before[chunk + 1] <= hit)
            chunk++;
        return runs.at[chunk] + hit;
    }
    __device__ __forceinline__ uint32_t operator()(uint32_t hit) { return sorted[place_of(hit)]; }
};

/* sum + the hits of a column of the row; all threads of the block get it. Hits side by side are brought by threads side by side. */
__device__ __forceinline__ float add_column(const few &s, const row_runs &runs, uint32_t col, float sum,
                                            tl_long_values &stage, tl_long_room &room)
{
    constexpr uint32_t ITEMS = TL_LONG_ALL / TL_LONG_THREADS;
    static_assert(ITEMS % AT_ONCE == 0);
    row_positions at = {s.sorted, runs, 0};
    for (uint32_t from = 0; from < runs.hits; from += TL_LONG_ALL) {
        const uint32_t count = min(runs.hits - from, TL_LONG_ALL);
        for (uint32_t first = threadIdx.x; first < count; first += AT_ONCE * TL_LONG_THREADS) {
            const uint32_t *word[AT_ONCE];
            const void *value[AT_ONCE];
            TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++)
                word[u] = s.sorted + at.place_of(from + min(first + u * TL_LONG_THREADS, count - 1));
            TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++)
                value[u] = s.by_value() ? (const void *)word[u] : s.values + ((int64_t)*word[u] * s.cols + col);
            TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++) {
                const uint32_t hit = first + u * TL_LONG_THREADS;
                if (hit < count) stage.copy(hit, value[u]);
            }
        }
        tl_copy_commit();
        stage.complete(count);
        sum = tl_add_stage(sum, stage, count, room);
    }
    return sum;
}

/* A block owns a row, and a lane a column of it. */
template <uint32_t RELAY_HITS>
__global__ void __launch_bounds__(TL_LONG_THREADS, rows_adding(RELAY_HITS)) add_block_rows_kernel(few s)
{
    __shared__ row_runs runs;
    __shared__ float pass[32];
    tl_wait_for_earlier();
    const uint32_t row = blockIdx.x, cols = s.cols, col = min(threadIdx.x % 32, cols - 1), element = row * cols + col;
    const float base = s.base ? s.base[element] : 0.0f;
    if (threadIdx.x < 32) find_runs(s, row, runs);
    __syncthreads();
    const float sum =
        tl_add_relay<RELAY_HITS>(s.values + col, cols, runs.hits, base, pass, row_positions{s.sorted, runs, 0});
    if (threadIdx.x < cols) s.out[element] = sum;
}

/* Functions of their own, so that the registers of a chain of a row and those of a guessed column are not allotted together. The first is
 * of TL_STAGED_COLUMNS at most. */
__device__ __noinline__ float add_staged(const few &s, const row_runs &runs, float base, float4 *stages)
{
    return tl_add_staged(
        s.values, [](uint32_t c) { return c; }, s.cols, s.cols, runs.hits, base, stages,
        row_positions{s.sorted, runs, 0});
}
__device__ __noinline__ float add_relay(const few &s, const row_runs &runs, uint32_t col, float base, float (&pass)[32])
{
    return tl_add_relay<64>(s.values + col, s.cols, runs.hits, base, pass, row_positions{s.sorted, runs, 0});
}

/* A block of a column of a row; that of the first adds all in a chain, where the row has few enough hits. */
__global__ void __launch_bounds__(TL_LONG_THREADS, 2) add_columns_kernel(few s, tl_fastdiv columns)
{
    static_assert(TL_LONG_THREADS == TL_STAGED_THREADS);
    __shared__ row_runs runs;
    __shared__ tl_long_room room;
    __shared__ float pass[32];
    __shared__ union {
        tl_long_values values;
        float4 stages[TL_STAGES];
    } stage;
    tl_wait_for_earlier();
    uint32_t first;
    const uint32_t row = columns.divmod(blockIdx.x, &first), cols = s.cols;
    if (threadIdx.x < 32) find_runs(s, row, runs);
    __syncthreads();
    if (runs.hits > TL_CHAINED_ROW) {
        const uint32_t element = row * cols + first;
        const float sum = add_column(s, runs, first, s.base ? s.base[element] : 0.0f, stage.values, room);
        if (threadIdx.x == 0) s.out[element] = sum;
    } else if (first == 0) {
        const uint32_t col = min(threadIdx.x % 32, cols - 1), element = row * cols + col;
        const float base = s.base ? s.base[element] : 0.0f;
        const float sum = cols <= TL_STAGED_COLUMNS ? add_staged(s, runs, base, stage.stages)
                                                    : add_relay(s, runs, col, base, pass);
        if (threadIdx.x < cols) s.out[element] = sum;
    }
}

/* ---- elements -------------------------------------------------------------------------------------------------------- */

/* Lane l of a warp brings the row's hits l, l + 32 ... to the list, up to their number rounded up to 32·AT_ONCE. Those behind the last
 * are -0, which changes no sum. */
__device__ __forceinline__ void bring_hits(const few &s, const row_runs &runs, uint32_t lane, float *list)
{
    for (uint32_t from = lane; from < lane + runs.hits; from += AT_ONCE * 32) {
        float v[AT_ONCE];
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++) {
            const uint32_t hit = from + u * 32, chunk = runs.chunk_of(hit);
            v[u] = hit < runs.hits ? __uint_as_float(s.sorted[runs.at[chunk] + hit]) : -0.0f;
        }
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++)
            list[from + u * 32] = v[u];
    }
}

/* A warp owns a row of one column; those of a block are far apart, as neighbours may all have many hits. */
__global__ void __launch_bounds__(TL_LONG_THREADS, 2) add_runs_kernel(few s)
{
    __shared__ union {
        float4 lists[WARPS][WARP_HITS / 4];
        tl_long_values stage;
    } shared;
    __shared__ float4 chunks[WARPS][16 * RUN / 4];
    __shared__ row_runs runs[WARPS];
    __shared__ tl_long_room room;
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto base_at = [&](uint32_t row) { return s.base && row < s.rows ? s.base[row] : 0.0f; };
    for (uint32_t first = blockIdx.x; first < s.rows; first += WARPS * gridDim.x) {
        const uint32_t row = first + warp * gridDim.x;
        float sum = base_at(row);
        find_runs(s, row, runs[warp]);
        const uint32_t hits = runs[warp].hits;
        if (hits <= WARP_HITS) {
            bring_hits(s, runs[warp], lane, reinterpret_cast<float *>(shared.lists[warp]));
            __syncwarp();
            if (hits <= ONE_BY_ONE) {
#pragma unroll 4
                for (uint32_t hit = 0; hit < hits; hit += 4)
                    sum = tl_add_quad(sum, shared.lists[warp][hit / 4]);
            } else {
                const tl_hits list = {reinterpret_cast<const uint32_t *>(shared.lists[warp]), UINT32_MAX, nullptr, 1};
                sum = tl_add_run<RUN>(list, 0, hits, 0, sum, chunks[warp]);
            }
            if (lane == 0 && row < s.rows) s.out[row] = sum;
        }
        __syncthreads();
        for (uint32_t w = 0; w < WARPS; w++) {
            if (runs[w].hits <= WARP_HITS) continue;
            const uint32_t long_row = first + w * gridDim.x;
            const float all = add_column(s, runs[w], 0, base_at(long_row), shared.stage, room);
            if (threadIdx.x == 0) s.out[long_row] = all;
        }
        __syncthreads();
    }
}

} /* namespace */

bool tl_few_serve(int64_t rows, int64_t cols, int64_t k)
{
    return rows <= (cols == 1 ? MOST_ROWS : SOME_ROWS) && cols <= MOST_COLUMNS && k <= TL_SORTED_HITS;
}

int32_t tl_scatter_few(tl_context *ctx, const char *name, const float *base, const float *values,
                       const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    const int64_t chunks = tl_ceil_div(k, CHUNK);
    tl_scratch<uint32_t> sorted(ctx);
    tl_scratch<ushort2> runs(ctx);
    TL_TRY(sorted.allocate(chunks * CHUNK));
    TL_TRY(runs.allocate(rows * chunks));
    const few s = {base,        values,           out,    indices, (uint32_t)rows, (uint32_t)cols,
                   (uint32_t)k, (uint32_t)chunks, sorted, runs};
    const int bits = 32 - __builtin_clz((uint32_t)rows);
    TL_TRY(tl_launch_ahead(ctx, name, sort_runs_kernel, (unsigned)chunks, SORT_THREADS, 0, s, bits));
    if (cols > 1 && (cols <= TL_STAGED_COLUMNS || (k > TL_CHAINED_ROW && rows * cols <= MOST_COLUMN_BLOCKS)))
        return tl_launch_ahead(ctx, name, add_columns_kernel, (unsigned)(rows * cols), TL_LONG_THREADS, 0, s,
                               tl_fastdiv(cols));
    if (cols > 1) {
        const int64_t sms = tl_cuda_sms(ctx);
        const auto kernel = rows <= rows_adding(128) * sms  ? add_block_rows_kernel<128>
                            : rows <= rows_adding(64) * sms ? add_block_rows_kernel<64>
                                                            : add_block_rows_kernel<32>;
        return tl_launch_ahead(ctx, name, kernel, (unsigned)rows, TL_LONG_THREADS, 0, s);
    }
    /* A block for every row that may have many hits, as far as the device holds them. */
    const int64_t least = tl_ceil_div(rows, WARPS), blocks = 2 * tl_cuda_sms(ctx);
    return tl_launch_ahead(ctx, name, add_runs_kernel,
                           tl_grid(rows < blocks    ? rows
                                   : least < blocks ? blocks
                                                    : least,
                                   1),
                           TL_LONG_THREADS, 0, s);
}
