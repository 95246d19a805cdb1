/* Scatter-adds of many hits into each of few wide rows on CUDA, in one launch.
 *
 * A block owns up to 256 columns of one row: of an array, or of all arrays that share their indices, side by side. It looks through
 * the index list for the row's hits: a warp has a piece of the list and a bit for each of its indices, and sums of the bits' counts
 * say where in the list of the row's hits a bit's position belongs. So these arrive in order, and nothing is sorted. The block brings
 * the values of HITS of them for each warp to shared memory at a time, from where a warp for each 32 columns adds them while the next
 * are on their way: a row costs the latency of its additions, or the bytes of its values, and no more.
 *
 * A block has fewer columns, and more warps for each 32 of them, where a row has no more, or there would be too few blocks. Those of 32
 * columns take turns. Of uneven lists a few rows have most hits, of which one block would bring 256 columns for longer than all others
 * are busy: further blocks, of 32 columns each, look which rows these are, and take them. */
#include "cuda/device/division.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/run_relay.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32, TOGETHER = 3; /* blocks of a multiprocessor */
constexpr int HITS = 24; /* of a warp at a time: 24 KiB of a block are on their way */
constexpr uint32_t AT_ONCE = 8, RELAY_HITS = 64, HEAVY_RELAY = 32; /* the last of a turn of a warp */
/* Rows at most that have more than a part of all hits, and more than so many, which a block brings in 5 us. */
constexpr uint32_t HEAVY_ROWS = 5, LEAST_HEAVY = 128;
constexpr uint32_t LIST =
    TL_TILE_INDICES; /* indices that are looked through at a time: a word of bits for every lane */
static_assert(LIST == THREADS * 32 && LIST <= UINT16_MAX + 1 && HITS % AT_ONCE == 0);

/* Where strips serve. Rows have 32 hits or more on average, so that a block's reading of the list, of k words, is mostly less than
 * that of its values, k / rows · 256 words. Of more than FEW_ROWS rows it may be as much, and beyond MOST_VALUES (64 MiB, or 16 us)
 * that costs more than to sort the list once. Each further part of a list costs a block the latency of looking through it. */
/* Rows of SOME_HITS to FEW_HITS are strips', too, where an H100 holds all blocks, of 256 columns, in two turns: a turn is the latency
 * of the list, of its order and of values, about 3 us, and 0.6 for each further 2,048 indices. Tiles, which meet most of the list then,
 * sort it in 3 us and add four hits of a row at a time at a load's latency: in turns of 12 us at 30 hits of a row, of 6 at 8. */
constexpr int64_t SOME_HITS = 8, MOST_BLOCKS = 2 * TOGETHER * 132;
constexpr int64_t FEW_HITS = 32, FEW_ROWS = 64, MOST_ROWS = 256, MOST_VALUES = (int64_t)1 << 24, MOST_PARTS = 4;

struct strips {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t k, all_cols;          /* of a row in all arrays that share indices */
    tl_fastdiv rows, pieces, cols; /* pieces of a row with all of its columns; columns of an array */
    uint32_t heavy_blocks;         /* the first, HEAVY_ROWS for each list and 32 columns of a row; 0: no row is heavy */
    tl_fastdiv strips;             /* of 32 columns, of a row */

    __device__ __forceinline__ bool is_heavy(uint32_t hits) const
    {
        return hits > max(k / (HEAVY_ROWS + 1), LEAST_HEAVY);
    }
};

/* sum + the first `hits` of a stage's values of a column, in order and AT_ONCE at a time, while the next are read. Those behind
 * the last that a stage holds are -0, and `size`, its rows, is a multiple of AT_ONCE. */
template <int COLUMNS>
__device__ __forceinline__ float add_stage(float sum, const float (*stage)[COLUMNS], uint32_t size, uint32_t column,
                                           uint32_t hits)
{
    float now[AT_ONCE];
    TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
        now[i] = stage[i][column];
    for (uint32_t hit = 0; hit < hits; hit += AT_ONCE) {
        const uint32_t then = min(hit + AT_ONCE, size - AT_ONCE);
        float after[AT_ONCE];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            after[i] = stage[then + i][column];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            sum += now[i];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            now[i] = after[i];
    }
    return sum;
}

/* The heavy row of a list before which there are `earlier`, or the number of rows. Each thread counts the hits of one in `tally`. */
__device__ __forceinline__ uint32_t find_heavy(const strips &s, const uint32_t *indices, uint32_t earlier,
                                               uint32_t *tally, uint32_t *counts)
{
    static_assert(MOST_ROWS == THREADS);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = s.rows.divisor;
    tally[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t from = threadIdx.x; from < s.k; from += AT_ONCE * THREADS) {
        uint32_t index[AT_ONCE];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            index[i] = from + i * THREADS < s.k ? indices[from + i * THREADS] : UINT32_MAX;
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            if (index[i] < rows) atomicAdd(tally + index[i], 1u);
    }
    __syncthreads();
    const uint32_t heavy = __ballot_sync(~0u, s.is_heavy(tally[threadIdx.x]));
    if (lane == 0) counts[warp] = heavy;
    __syncthreads();
    uint32_t found = rows;
    TL_UNROLL_FOR (uint32_t w = 0; w < WARPS; w++)
        for (uint32_t bits = counts[w]; bits; bits &= bits - 1)
            if (earlier-- == 0) found = w * 32 + __ffs((int)bits) - 1;
    __syncthreads();
    return found;
}

/* The hits of a row in the whole list. */
__device__ __forceinline__ uint32_t count_hits(const strips &s, const uint32_t *indices, uint32_t row, uint32_t *counts)
{
    uint32_t hits = 0;
    for (uint32_t from = threadIdx.x; from < s.k; from += AT_ONCE * THREADS)
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            hits += from + i * THREADS < s.k && indices[from + i * THREADS] == row;
    hits = __reduce_add_sync(~0u, hits);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = hits;
    __syncthreads();
    hits = 0;
    TL_UNROLL_FOR (uint32_t w = 0; w < WARPS; w++)
        hits += counts[w];
    __syncthreads();
    return hits;
}

/* Thread t of a block has column t % (32·STRIPS) of the piece. */
template <int STRIPS>
__global__ void __launch_bounds__(THREADS, STRIPS == 1 ? 2 : TOGETHER) scatter_strip_kernel(strips s)
{
    constexpr uint32_t COLUMNS = 32 * STRIPS, STAGE = WARPS / STRIPS * HITS;
    __shared__ float stage[STRIPS == 1 ? 1 : STAGE][COLUMNS];
    __shared__ __align__(4) uint16_t list[LIST];
    __shared__ uint32_t counts[WARPS];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool is_heavy = STRIPS > 1 && blockIdx.x < s.heavy_blocks, by_relay = STRIPS == 1 || is_heavy;
    const uint32_t mine = by_relay ? warp * 32 : threadIdx.x / COLUMNS * HITS,
                   place_in_row = by_relay ? lane : threadIdx.x % COLUMNS;

    uint32_t place, row, list_of;
    if (is_heavy) {
        const uint32_t slot = s.strips.divmod(blockIdx.x, &place);
        list_of = slot / HEAVY_ROWS;
        row = find_heavy(s, s.indices + (int64_t)list_of * s.k, slot % HEAVY_ROWS, reinterpret_cast<uint32_t *>(list),
                         counts);
        if (row == s.rows.divisor) return;
        place = place * 32 + lane;
    } else {
        const uint32_t list_row = s.pieces.divmod(blockIdx.x - s.heavy_blocks, &place);
        list_of = s.rows.divmod(list_row, &row);
        place = place * COLUMNS + place_in_row;
    }
    uint32_t col;
    const uint32_t o = list_of + s.cols.divmod(min(place, s.all_cols - 1), &col), cols = s.cols.divisor;
    const uint32_t *const indices = s.indices + (int64_t)list_of * s.k;
    const bool is_left = STRIPS > 1 && s.heavy_blocks && !is_heavy; /* if the row is heavy */
    if (is_left && s.k > LIST && s.is_heavy(count_hits(s, indices, row, counts))) return;
    const int64_t element = ((int64_t)o * s.rows.divisor + row) * cols + col;
    float sum = s.base && mine == 0 ? s.base[element] : 0.0f;

    for (uint32_t from = 0; from < s.k; from += LIST) {
        const uint32_t length = min(s.k - from, LIST), rounds = (length + THREADS - 1) / THREADS;
        const uint32_t begin = warp * rounds * 32; /* of the warp's piece of the list */
        uint32_t bits = 0;                         /* lane r has those of round r */
        for (uint32_t round = 0; round < rounds; round += AT_ONCE) {
            uint32_t index[AT_ONCE];
            TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++) {
                const uint32_t j = begin + (round + i) * 32 + lane;
                index[i] = round + i < rounds && j < length ? indices[from + j] : UINT32_MAX;
            }
            TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++) {
                const uint32_t hits = __ballot_sync(~0u, index[i] == row);
                if (lane == round + i) bits = hits;
            }
        }
        uint32_t before = tl_sum_to_lane((uint32_t)__popc(bits), lane);
        if (lane == 31) counts[warp] = before;
        __syncthreads();
        uint32_t hits = 0;
        before -= __popc(bits);
        TL_UNROLL_FOR (uint32_t w = 0; w < WARPS; w++) {
            if (w < warp) before += counts[w];
            hits += counts[w];
        }
        if (is_left && s.k <= LIST && s.is_heavy(hits)) return;
        for (; bits; bits &= bits - 1)
            list[before++] = (uint16_t)(begin + lane * 32 + __ffs((int)bits) - 1);
        __syncthreads();

        const float *const values = s.values + ((int64_t)o * s.k + from) * cols + col;
        if (by_relay) {
            constexpr uint32_t TURN = STRIPS == 1 ? RELAY_HITS : HEAVY_RELAY;
            float (&pass)[32] = *reinterpret_cast<float (*)[32]>(&stage[0][0]);
            sum = tl_add_relay<TURN>(values, cols, hits, sum, pass, [&](uint32_t hit) { return list[hit]; });
            continue;
        }
        float next[HITS];
        /* Those behind the last are -0, which changes no sum. */
        const auto fetch = [&](uint32_t first) {
            TL_UNROLL_FOR (int i = 0; i < HITS; i++) {
                next[i] = -0.0f;
                if (first + i < hits) next[i] = values[(int64_t)list[first + i] * cols];
            }
        };
        fetch(mine);
        for (uint32_t at = 0; at < hits; at += STAGE) {
            TL_UNROLL_FOR (int i = 0; i < HITS; i++)
                stage[mine + i][place_in_row] = next[i];
            __syncthreads();
            if (at + STAGE < hits) fetch(at + STAGE + mine);
            if (mine == 0) sum = add_stage(sum, stage, STAGE, place_in_row, min(hits - at, STAGE));
            __syncthreads();
        }
    }
    if (mine == 0 && place < s.all_cols) s.out[element] = sum;
}

} /* namespace */

bool tl_strips_serve(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    const bool few_blocks = outer * rows * tl_ceil_div(cols, 32 * WARPS) <= MOST_BLOCKS;
    return cols >= 32 && outer * cols <= INT32_MAX && rows <= MOST_ROWS &&
           k >= (few_blocks ? SOME_HITS : FEW_HITS) * rows && k <= MOST_PARTS * LIST &&
           (rows <= FEW_ROWS || outer * k * cols <= MOST_VALUES);
}

int32_t tl_scatter_strips(tl_context *ctx, const char *name, const float *base, const float *values,
                          const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, bool by_outer,
                          float *out)
{
    if (outer * rows * cols == 0) return TORCHLEAN_OK;
    const int64_t lists = by_outer ? outer : 1, all_cols = outer / lists * cols;
    const auto blocks = [&](int64_t count) { return lists * rows * tl_ceil_div(all_cols, 32 * count); };
    int64_t count = WARPS; /* strips of 32 columns of a block: no more than there are */
    while (count > 1 && (blocks(count) < TOGETHER * tl_cuda_sms(ctx) || all_cols <= 16 * count))
        count /= 2;
    strips s = {base, values, out, indices, (uint32_t)k, (uint32_t)all_cols};
    s.rows = tl_fastdiv(rows), s.pieces = tl_fastdiv(tl_ceil_div(all_cols, 32 * count)), s.cols = tl_fastdiv(cols);
    const auto kernel = count == 1   ? scatter_strip_kernel<1>
                        : count == 2 ? scatter_strip_kernel<2>
                        : count == 4 ? scatter_strip_kernel<4>
                                     : scatter_strip_kernel<8>;
    /* No more blocks for heavy rows than for others, as many as which look through the list. */
    s.strips = tl_fastdiv(tl_ceil_div(all_cols, 32));
    const int64_t heavy_blocks = count > 1 && k > LEAST_HEAVY ? HEAVY_ROWS * lists * (int64_t)s.strips.divisor : 0;
    s.heavy_blocks = heavy_blocks <= blocks(count) ? (uint32_t)heavy_blocks : 0;
    return tl_launch(ctx, name, kernel, tl_grid(s.heavy_blocks + blocks(count), 1), THREADS, s);
}
