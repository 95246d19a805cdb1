/* Scatter-adds of arrays, one behind the other, that share a list of up to TL_TILE_INDICES indices, on CUDA, in two launches.
 *
 * The list is put in order once for all arrays. Blocks of the first launch own some of the rows: each looks through the list for the
 * hits of its rows, and puts these in order of row and then position. The blocks behind them copy the arrays meanwhile.
 *
 * In the second launch a thread owns a column of a run of equal rows, of several arrays. It reads the run once, and has values of all
 * arrays on their way together. Longer runs the sorting blocks have listed: of these a warp or a block owns all columns, or 32. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/narrow_run.cuh"
#include "cuda/index/rank.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
static_assert(THREADS == TL_LONG_THREADS);

/* ---- the list in order, and a copy of the arrays ------------------------------------------------------------------------ */

/* One for nearly every multiprocessor. A block's rows, of up to 2^14 in all, are then sorted by their bits in one step; and four
 * blocks for each lane of a warp that looks up what they have listed. */
constexpr uint32_t SORTERS = 128;
constexpr uint32_t POSITION_BITS = 13; /* of a word that is sorted: the row among the block's, then the position */
static_assert(TL_TILE_INDICES <= 1 << POSITION_BITS);
constexpr int64_t MOST_ROWS = (int64_t)SORTERS << (31 - POSITION_BITS);
constexpr int64_t MOST_ARRAYS = 1 << 16; /* numbers of runs of all are words */
/* Hits, from which on tiles, which would sort the list anew for each, take longer than two launches: of uneven lists, if one tile has
 * most of them. Those of one array are smaller, and more rarely meet so many. */
constexpr int64_t LEAST_HITS = 1025, LEAST_ALONE = 4097;
/* Narrow rows of all arrays: tiles of fewer have few rows each, whose hits are in order as they are found. */
constexpr int64_t LEAST_ROWS = 1024;
/* Hits of arrays that are too small for tiles, from which on they are not added one after the other: that takes about half a
 * microsecond for four of them, and two launches ten. */
constexpr int64_t LEAST_SMALL = 81;
/* Values of wide rows, which are brought in the time of a launch or two. */
constexpr int64_t MOST_WIDE = (int64_t)1 << 22;
constexpr int FEW_ITEMS = 8, MOST_ITEMS = (int)(TL_TILE_INDICES / THREADS); /* indices of a thread */
constexpr uint32_t MANY = 32, LONG = 256; /* hits: longer runs are left to a warp, or to a block */
constexpr int COPIED = 8;                 /* vectors that a thread copies */

struct left_run {
    uint32_t begin, hits, row;
};

struct arrays {
    const float *base; /* NULL for sums that start from +0 */
    float *out;
    const float *values;
    const uint32_t *indices;
    uint32_t *positions; /* of the hits in order, and behind them PAD words */
    /* Short runs. Of every row, where these are fewer than hits, where the run begins and its hits; else of every place of the list
     * the row and the hits of the run that begins there. Those of no short run have no hits. */
    uint2 *runs;
    bool by_row;
    /* Of every sorting block: runs that it has left, and where these begin in the lists. */
    uint32_t *many, *longs, *from;
    left_run *many_runs, *long_runs;
    uint32_t rows, cols, k, part; /* rows of a sorting block */
    int64_t total;
    bool aligned; /* base and output, to 16 bytes */
};
constexpr uint32_t PAD = 64; /* more than a thread reads at a time */

__device__ __forceinline__ void copy_piece(const arrays &s, int64_t piece)
{
    const int64_t from = piece * (4 * COPIED * THREADS);
    const bool vectors = s.aligned && s.total - from >= 4 * COPIED * THREADS;
    if (vectors) {
        float4 v[COPIED];
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            v[i] = s.base ? tl_load4(s.base + from + 4 * (threadIdx.x + i * THREADS)) : float4{};
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            tl_store4(s.out + from + 4 * (threadIdx.x + i * THREADS), v[i]);
        return;
    }
    for (int part = 0; part < 4; part++) {
        const int64_t first = from + part * (COPIED * THREADS) + threadIdx.x;
        float v[COPIED];
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            v[i] = s.base && first + i * THREADS < s.total ? s.base[first + i * THREADS] : 0.0f;
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            if (first + i * THREADS < s.total) s.out[first + i * THREADS] = v[i];
    }
}

template <int ITEMS> struct sort_room {
    tl_placing placing;
    uint32_t list[ITEMS * THREADS], lower, many, longs;
};

template <int ITEMS> __global__ void __launch_bounds__(THREADS, 2) sort_and_copy_kernel(arrays s)
{
    __shared__ sort_room<ITEMS> room;
    if (blockIdx.x >= SORTERS) {
        copy_piece(s, blockIdx.x - SORTERS);
        return;
    }
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
    const uint32_t first_row = min(blockIdx.x * s.part, s.rows), rows = min(s.part, s.rows - first_row);
    const uint32_t rounds = (s.k + THREADS - 1) / THREADS, mine = warp * 32 * rounds + lane;
    uint32_t row[ITEMS]; /* among the block's; above them also of those before */
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        row[i] = i < rounds && mine + i * 32 < s.k ? s.indices[mine + i * 32] : UINT32_MAX;
    if (threadIdx.x == 0) room.lower = room.many = room.longs = 0;
    for (uint32_t i = threadIdx.x; s.by_row && i < rows; i += THREADS)
        s.runs[first_row + i] = make_uint2(0, 0);
    uint32_t lower = 0, own = 0; /* hits of the blocks before, and of the warp's lanes */
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        lower += row[i] < first_row;
        row[i] -= first_row;
        own += __popc(__ballot_sync(~0u, row[i] < rows));
    }
    if (lane == 0) room.placing.of_warps[warp] = own;
    __syncthreads();
    lower = tl_sum_to_lane(lower, lane);
    if (lane == 31 && lower) atomicAdd(&room.lower, lower);
    uint32_t place = 0, hits = 0;
    TL_UNROLL_FOR (uint32_t w = 0; w < WARPS; w++) {
        if (w < warp) place += room.placing.of_warps[w];
        hits += room.placing.of_warps[w];
    }
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        const bool is_own = row[i] < rows;
        const uint32_t together = __ballot_sync(~0u, is_own);
        if (is_own) room.list[place + __popc(together & below)] = row[i] << POSITION_BITS | (mine + i * 32);
        place += __popc(together);
    }
    __syncthreads();
    const uint32_t before = room.lower, bits = rows > 1 && hits > 1 ? 32 - __clz((int)rows - 1) : 0;
    const uint32_t steps = (bits + TL_PLACED_BITS - 1) / TL_PLACED_BITS;
    for (uint32_t step = 0, done = 0; step < steps; step++) {
        const uint32_t now = (bits - done + steps - step - 1) / (steps - step);
        uint32_t word[ITEMS];
        const uint32_t words = tl_take_words(room.list, hits, word);
        tl_place_hits(room.list, room.placing, word, words, POSITION_BITS + done, now);
        done += now;
    }

    /* The blocks before have left fewer runs than one for MANY + 1 hits each, rounded down, and so has this one. */
    const uint32_t from = before / (MANY + 1);
    const auto row_at = [&](uint32_t i) { return room.list[i] >> POSITION_BITS; };
    for (uint32_t i = threadIdx.x; i < hits; i += THREADS) {
        const uint32_t of = row_at(i);
        const bool begins = i == 0 || row_at(i - 1) != of, is_left = i + MANY < hits && row_at(i + MANY) == of;
        s.positions[before + i] = room.list[i] & ((1u << POSITION_BITS) - 1);
        uint32_t count = 0;
        while (begins && !is_left && i + count < hits && row_at(i + count) == of)
            count++;
        if (!s.by_row)
            s.runs[before + i] = make_uint2(first_row + of, count);
        else if (count > 0)
            s.runs[first_row + of] = make_uint2(before + i, count);
        if (!begins || !is_left) continue;
        uint32_t last = i + MANY, behind = hits; /* of the run, not of it */
        while (behind - last > 1) {
            const uint32_t middle = (last + behind) / 2;
            (row_at(middle) == of ? last : behind) = middle;
        }
        const left_run run = {before + i, behind - i, first_row + of};
        if (behind - i > LONG)
            s.long_runs[from + atomicAdd(&room.longs, 1u)] = run;
        else
            s.many_runs[from + atomicAdd(&room.many, 1u)] = run;
    }
    if (blockIdx.x == SORTERS - 1)
        for (uint32_t i = before + hits + threadIdx.x; i < s.k + PAD; i += THREADS) {
            s.positions[i] = 0;
            if (!s.by_row && i < s.k) s.runs[i] = make_uint2(0, 0);
        }
    __syncthreads();
    if (threadIdx.x == 0) {
        s.many[blockIdx.x] = room.many;
        s.longs[blockIdx.x] = room.longs;
        s.from[blockIdx.x] = from;
    }
}

/* ---- runs --------------------------------------------------------------------------------------------------------------- */

constexpr uint32_t LEFT_BLOCKS = 264; /* of runs that are left: two on every multiprocessor */
constexpr uint32_t AT_ONCE = 4;       /* hits of another run whose values are on their way together */
static_assert(AT_ONCE <= PAD);

/* The runs that all sorting blocks have left, one after the other. A lane has the counts of four blocks. */
struct left_runs {
    uint4 count, from;
    uint32_t end, total; /* runs up to the lane's last block, and all */

    __device__ __forceinline__ left_runs(const uint32_t *counts, const uint32_t *begins)
    {
        static_assert(SORTERS == 4 * 32);
        const uint32_t lane = threadIdx.x % 32;
        count = reinterpret_cast<const uint4 *>(counts)[lane];
        from = reinterpret_cast<const uint4 *>(begins)[lane];
        end = tl_sum_to_lane(count.x + count.y + count.z + count.w, lane);
        total = __shfl_sync(~0u, end, 31);
    }
    /* Where run i, the same for the warp, is in the list. */
    __device__ __forceinline__ uint32_t place_of(uint32_t i) const
    {
        const uint32_t begin = end - (count.x + count.y + count.z + count.w);
        uint32_t rest = i - begin, place; /* the lane's, if it has the run's block */
        if (rest < count.x)
            place = from.x + rest;
        else if ((rest -= count.x) < count.y)
            place = from.y + rest;
        else if ((rest -= count.y) < count.z)
            place = from.z + rest;
        else
            place = from.w + rest - count.z;
        return __shfl_sync(~0u, place, __popc(__ballot_sync(~0u, end <= i)));
    }
};

/* A block owns some columns of a long run of an array: up to LONG_COLUMNS of a narrow row, of which more would be brought slower than
 * they are added, or 32. A warp owns all columns of another run of a narrow row, or 32. */
constexpr uint32_t LONG_COLUMNS = 16;

template <bool WIDE>
__device__ __forceinline__ void add_left(const arrays &s, const tl_fastdiv &outer, const tl_fastdiv &cols,
                                         const tl_fastdiv &piece)
{
    __shared__ union {
        struct {
            float4 ring[(28 << 10) / sizeof(float4)];
            uint16_t list[WIDE ? 1 : TL_TILE_INDICES];
        } narrow;
        float4 of_warp[WIDE ? 1 : WARPS][TL_WARP_STAGE];
        float stage[WIDE ? TL_LONG_STAGE : 1][32];
    } room;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto add_unit = [&](const left_run *runs, const left_runs &left, uint32_t unit, uint32_t first,
                              uint32_t width, bool is_long) {
        uint32_t o;
        const uint32_t number = outer.divmod(unit, &o), own = min(width, s.cols - first);
        const left_run run = runs[left.place_of(number)];
        const uint32_t col = first + min(lane, own - 1);
        const float *const values = s.values + (int64_t)o * s.k * s.cols;
        float *const element = s.out + ((int64_t)o * s.rows + run.row) * s.cols + col;
        float sum = *element;
        if constexpr (WIDE) {
            const tl_hits hits = {s.positions, UINT32_MAX, values, s.cols};
            sum = is_long ? tl_add_staged(hits, run.begin, run.begin + run.hits, col, sum, room.stage)
                          : tl_add_walk(hits, run.begin, run.begin + run.hits, col, sum);
        } else {
            const uint32_t *const positions = s.positions + run.begin;
            if (is_long) { /* the ring waits for one stage's positions after the other: so all come before */
                for (uint32_t hit = threadIdx.x; hit < run.hits; hit += THREADS)
                    room.narrow.list[hit] = (uint16_t)positions[hit];
                __syncthreads();
                sum = tl_add_narrow_block<THREADS>(values + first, s.cols, piece, own, run.hits, sum, room.narrow.ring,
                                                   [&](uint32_t hit) { return (uint32_t)room.narrow.list[hit]; });
            } else {
                sum = tl_add_narrow_warp(values, s.cols, cols, s.cols, run.hits, sum, room.of_warp[warp],
                                         [=](uint32_t hit) { return positions[hit]; });
            }
        }
        if ((!is_long || warp == 0) && lane < own) *element = sum;
    };
    const left_runs longs(s.longs, s.from), many(s.many, s.from);
    const int64_t pieces = (s.cols + piece.divisor - 1) / piece.divisor, strips = WIDE ? pieces : 1;
    for (int64_t unit = blockIdx.x; unit < longs.total * outer.divisor * pieces; unit += LEFT_BLOCKS)
        add_unit(s.long_runs, longs, (uint32_t)(unit / pieces), (uint32_t)(unit % pieces) * piece.divisor,
                 piece.divisor, true);
    /* Those of a run sit in different blocks, from the last on, where no long run is. */
    for (int64_t unit = (int64_t)warp * LEFT_BLOCKS + (LEFT_BLOCKS - 1 - blockIdx.x);
         unit < many.total * outer.divisor * strips; unit += LEFT_BLOCKS * WARPS)
        add_unit(s.many_runs, many, (uint32_t)(unit / strips), (uint32_t)(unit % strips) * 32, WIDE ? 32 : s.cols,
                 false);
}

/* Arrays of a thread: sixteen floats, or eight fours, are on their way together. */
template <class Vector> constexpr uint32_t TOGETHER = sizeof(Vector) == sizeof(float) ? 4 : 2;

/* A thread owns a Vector of the run of its row, or that begins at its place of the list, if there is one, of TOGETHER arrays. The output
 * holds the base. `units` are those of an array, `chunks` the blocks of these; rows have width.divisor vectors. */
template <class Vector, bool WIDE>
__global__ void __launch_bounds__(THREADS, 3)
    add_runs_kernel(arrays s, tl_fastdiv outer, tl_fastdiv cols, tl_fastdiv piece, tl_fastdiv width, tl_fastdiv chunks,
                    uint32_t units)
{
    constexpr uint32_t ARRAYS = TOGETHER<Vector>;
    tl_wait_for_earlier();
    if (blockIdx.x < LEFT_BLOCKS) {
        add_left<WIDE>(s, outer, cols, piece);
        return;
    }
    uint32_t chunk, col;
    const uint32_t o = chunks.divmod(blockIdx.x - LEFT_BLOCKS, &chunk) * ARRAYS, unit = chunk * THREADS + threadIdx.x;
    if (unit >= units) return;
    const uint32_t number = width.divmod(unit, &col);
    const uint2 run = s.runs[number];
    uint32_t left = run.y;
    if (left == 0) return;
    const uint32_t row = s.by_row ? number : run.x;
    const uint32_t *positions = s.positions + (s.by_row ? run.x : number);
    uint32_t position[AT_ONCE];
    TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++)
        position[e] = positions[e];

    /* The thread's last array takes the place of those behind it. */
    const uint32_t last = min(ARRAYS, outer.divisor - o) - 1;
    const int64_t out_size = (int64_t)s.rows * width.divisor, values_size = (int64_t)s.k * width.divisor;
    Vector *const out = reinterpret_cast<Vector *>(s.out) + (o * out_size + (int64_t)row * width.divisor + col);
    const Vector *values[ARRAYS];
    Vector sum[ARRAYS];
    TL_UNROLL_FOR (uint32_t a = 0; a < ARRAYS; a++) {
        sum[a] = out[min(a, last) * out_size];
        values[a] = reinterpret_cast<const Vector *>(s.values) + ((o + min(a, last)) * values_size + col);
    }
    for (;;) {
        Vector v[ARRAYS][AT_ONCE];
        TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++)
            TL_UNROLL_FOR (uint32_t a = 0; a < ARRAYS; a++) {
                tl_set_nothing(v[a][e]);
                if (e < left) v[a][e] = values[a][position[e] * width.divisor];
            }
        const bool more = left > AT_ONCE;
        left -= AT_ONCE, positions += AT_ONCE;
        if (more) /* while the values are on their way */
            TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++)
                position[e] = positions[e];
        TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++)
            TL_UNROLL_FOR (uint32_t a = 0; a < ARRAYS; a++)
                tl_add_to(sum[a], v[a][e]);
        if (!more) break;
    }
    TL_UNROLL_FOR (uint32_t a = 0; a < ARRAYS; a++)
        if (a <= last) out[a * out_size] = sum[a];
}

template <class Vector> int32_t launch_runs(tl_context *ctx, const char *name, const arrays &s, int64_t outer)
{
    const int64_t width = s.cols * sizeof(float) / sizeof(Vector), units = (s.by_row ? s.rows : s.k) * width,
                  chunks = tl_ceil_div(units, THREADS), groups = tl_ceil_div(outer, TOGETHER<Vector>);
    const int64_t piece = s.cols < 32 ? tl_ceil_div(s.cols, tl_ceil_div(s.cols, LONG_COLUMNS)) : 32;
    const auto kernel = s.cols < 32 ? add_runs_kernel<Vector, false> : add_runs_kernel<Vector, true>;
    return tl_launch_ahead(ctx, name, kernel, tl_grid(LEFT_BLOCKS + groups * chunks, 1), THREADS, 0, s,
                           tl_fastdiv(outer), tl_fastdiv(s.cols), tl_fastdiv(piece), tl_fastdiv(width),
                           tl_fastdiv(chunks), (uint32_t)units);
}

} /* namespace */

bool tl_axis_serves(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    const bool small = outer > 1 && cols < 32 && rows * cols < TL_LARGE_ARRAY;
    if (k < (small ? LEAST_SMALL : LEAST_HITS) || k > TL_TILE_INDICES || rows > MOST_ROWS || outer > MOST_ARRAYS)
        return false;
    if (small) return true;
    if (cols < 32) return outer * rows >= LEAST_ROWS && (outer > 1 || k >= LEAST_ALONE);
    return outer > 1 && outer * rows * cols < TL_SMALL_TABLE && outer * k * cols <= MOST_WIDE &&
           !tl_strips_serve(outer, rows, cols, k);
}

int32_t tl_scatter_axis(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, float *out)
{
    if (outer * rows * cols == 0) return TORCHLEAN_OK;
    const int64_t words = tl_ceil_div(k + PAD, 64) * 64, left = k / (MANY + 1) + 1;
    static_assert(sizeof(left_run) == 3 * sizeof(uint32_t));
    tl_scratch<uint32_t> scratch(ctx);
    TL_TRY(scratch.allocate(3 * words + 3 * SORTERS + 2 * 3 * left));
    arrays s = {base, out, values, indices, scratch, reinterpret_cast<uint2 *>(scratch + words), rows < k};
    s.many = scratch + 3 * words, s.longs = s.many + SORTERS, s.from = s.longs + SORTERS;
    s.many_runs = reinterpret_cast<left_run *>(s.from + SORTERS), s.long_runs = s.many_runs + left;
    s.rows = (uint32_t)rows, s.cols = (uint32_t)cols, s.k = (uint32_t)k, s.part = (uint32_t)tl_ceil_div(rows, SORTERS);
    s.total = outer * rows * cols, s.aligned = tl_aligned4(base) && tl_aligned4(out);
    const auto sort = k <= FEW_ITEMS * THREADS ? sort_and_copy_kernel<FEW_ITEMS> : sort_and_copy_kernel<MOST_ITEMS>;
    TL_TRY(tl_launch(ctx, name, sort, SORTERS + tl_grid(s.total, 4 * COPIED * THREADS), THREADS, s));
    const bool vectors = cols % 4 == 0 && s.aligned && tl_aligned4(values);
    return (vectors ? launch_runs<float4> : launch_runs<float>)(ctx, name, s, outer);
}
