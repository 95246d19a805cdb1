/* Scatter-adds of arrays, one behind the other, that share a list of up to TL_TILE_INDICES indices, on CUDA, in two launches.
 *
 * The list is put in order once for all arrays. Blocks of the first launch own some of the rows: each looks through the list for the
 * hits of its rows, and puts these in order of row and then position. Where there are more rows than hits, the blocks behind them copy
 * the arrays meanwhile.
 *
 * In the second launch a thread owns a column of a run of equal rows, of several arrays, or, of wide rows of few arrays, some columns of
 * one. It reads the run once, and has values of all of them on their way together. Where rows are fewer than hits it owns a row, and
 * copies one that has no hit. Longer runs the sorting blocks have listed: of these a warp or a block owns all columns, or 32, and of
 * narrow rows those of several arrays. */
#include "cuda/device/division.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/index/column_count.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/narrow_run.cuh"
#include "cuda/index/run_relay.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
static_assert(THREADS == TL_LONG_THREADS);
constexpr int SORT_THREADS = 512, SORT_WARPS = SORT_THREADS / 32; /* of the first launch */

/* ---- the list in order, and a copy of the arrays ------------------------------------------------------------------------ */

/* One for nearly every multiprocessor. A block's rows, of up to 2^14 in all, are then sorted by their bits in one step; and four
 * blocks for each lane of a warp that looks up what they have listed. */
constexpr uint32_t SORTERS = 128;
constexpr uint32_t POSITION_BITS = 13; /* of a word that is sorted: the row among the block's, then the position */
static_assert(TL_TILE_INDICES <= 1 << POSITION_BITS);
constexpr int64_t MOST_ROWS = (int64_t)SORTERS << (31 - POSITION_BITS);
constexpr int64_t MOST_ARRAYS = 1 << 16;       /* numbers of runs of all are words */
constexpr int64_t MOST_VALUES = INT32_MAX / 4; /* their numbers, and a row's bytes, are words */
/* Hits, from which on tiles, which would sort the list anew for each, take longer than two launches: of uneven lists, if one tile has
 * most of them. Those of one array are smaller, and more rarely meet so many. */
constexpr int64_t LEAST_HITS = 1025, LEAST_ALONE = 4097;
/* Narrow rows of all arrays: tiles of fewer have few rows each, whose hits are in order as they are found. */
constexpr int64_t LEAST_ROWS = 1024;
/* Hits of arrays that are too small for tiles, from which on they are not added one after the other: that takes about half a
 * microsecond for four of them, and two launches ten. */
constexpr int64_t LEAST_SMALL = 81;
constexpr int FEW_ITEMS = 4, MOST_ITEMS = (int)(TL_TILE_INDICES / SORT_THREADS); /* indices of a thread */
constexpr uint32_t MANY = 32, LONG = 256; /* hits: longer runs are left to a warp, or to a block */
constexpr int COPIED = 4;                 /* vectors that a thread copies */
constexpr uint32_t NO_RUN = UINT32_MAX;   /* hits, where no short run is */
constexpr int64_t SPARSE_HITS = 2; /* of a row, of no more than which most rows have as many as are added at once */

struct left_run {
    uint32_t begin, hits, row;
};

struct arrays {
    const float *base; /* NULL for sums that start from +0 */
    float *out;
    const float *values;
    const uint32_t *indices;
    uint32_t *positions; /* of the hits in order, and behind them PAD words */
    /* Short runs. Of every row, where these are fewer than hits, where the run begins and its hits, of which a row may have none; else
     * of every place of the list the row and the hits of the run that begins there. */
    uint2 *runs;
    bool by_row;
    /* Of every sorting block: runs that it has left, and where these begin in the lists. */
    uint8_t *many, *longs, *from;
    left_run *many_runs, *long_runs;
    uint32_t rows, cols, k, part; /* rows of a sorting block */
    int64_t total;
    bool aligned; /* base and output, to 16 bytes */
};
constexpr uint32_t PAD = 64; /* more than a thread reads at a time */

__device__ __forceinline__ void copy_piece(const arrays &s, int64_t piece)
{
    const int64_t from = piece * (4 * COPIED * SORT_THREADS);
    const bool vectors = s.aligned && s.total - from >= 4 * COPIED * SORT_THREADS;
    if (vectors) {
        float4 v[COPIED];
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            v[i] = s.base ? tl_load4(s.base + from + 4 * (threadIdx.x + i * SORT_THREADS)) : float4{};
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            tl_store4(s.out + from + 4 * (threadIdx.x + i * SORT_THREADS), v[i]);
        return;
    }
    for (int part = 0; part < 4; part++) {
        const int64_t first = from + part * (COPIED * SORT_THREADS) + threadIdx.x;
        float v[COPIED];
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            v[i] = s.base && first + i * SORT_THREADS < s.total ? s.base[first + i * SORT_THREADS] : 0.0f;
        TL_UNROLL_FOR (int i = 0; i < COPIED; i++)
            if (first + i * SORT_THREADS < s.total) s.out[first + i * SORT_THREADS] = v[i];
    }
}

/* A block's hits are put in order of up to PLACED_BITS bits of their rows at a time: by kind. Of a list that names few rows most are
 * one block's, so what they take in turns, and the instructions that are fetched for them, are kept few: an item of a warp that has
 * no hit of the block is passed over, and one sum over the block says where the hits of a kind and warp go. */
constexpr uint32_t PLACED_BITS = 7, KINDS = 1 << PLACED_BITS;
/* Words of a kind: the hits of each warp, two to a word, of which a thread sums two, and one more, so that kinds are in different
 * banks. */
constexpr uint32_t KIND_WORDS = SORT_WARPS / 2 + 1, KIND_THREADS = SORT_WARPS / 4;
static_assert(KINDS * KIND_THREADS == SORT_THREADS);
constexpr uint32_t NO_HIT = UINT32_MAX, BEHIND = 64; /* words behind the list: of no row */
static_assert(BEHIND >= MANY + 32);

template <int ITEMS> struct sort_room {
    uint32_t tallies[KINDS * KIND_WORDS],
        of_warps[SORT_WARPS]; /* the first, also where hits of a kind and warp begin */
    uint32_t list[ITEMS * SORT_THREADS + BEHIND], lower, many, longs;
};

template <int ITEMS> __device__ __forceinline__ void clear_tallies(sort_room<ITEMS> &room)
{
    for (uint32_t i = threadIdx.x; i < KINDS * KIND_WORDS; i += SORT_THREADS)
        room.tallies[i] = 0;
}

/* Puts words in order of `bits` of their bits from `shift` on, stably, into the list, and gives out how many are hits: `rounds` words of
 * each lane, of which a warp's lie one behind the other. The tallies are 0 before. */
template <int ITEMS>
__device__ __forceinline__ uint32_t place_words(sort_room<ITEMS> &room, const uint32_t (&word)[ITEMS], uint32_t rounds,
                                                uint32_t shift, uint32_t bits)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1, kinds = 1u << bits;
    uint16_t *const of_warp = reinterpret_cast<uint16_t *>(room.tallies) + warp;
    const auto tally_of = [&](int i) -> uint16_t & {
        return of_warp[(word[i] >> shift & (kinds - 1)) * (2 * KIND_WORDS)];
    };
    uint32_t rank[ITEMS] = {}; /* of the hits of its warp and kind */
    TL_UNROLL_FOR (int first = 0; first < ITEMS; first += 4) {
        if (first >= rounds) break;
        uint32_t peers[4]; /* lanes with a hit, and then those of the kind */
        TL_UNROLL_FOR (int u = 0; u < 4; u++)
            peers[u] = __ballot_sync(~0u, word[first + u] != NO_HIT);
        if ((peers[0] | peers[1] | peers[2] | peers[3]) == 0) continue;
#pragma unroll 1
        for (uint32_t bit = shift; bit < shift + bits; bit++)
            TL_UNROLL_FOR (int u = 0; u < 4; u++) {
                const bool set = word[first + u] >> bit & 1;
                const uint32_t with = __ballot_sync(~0u, set);
                peers[u] &= set ? with : ~with;
            }
        TL_UNROLL_FOR (int u = 0; u < 4; u++) {
            uint16_t &tally = tally_of(first + u);
            const uint32_t before = tally;
            __syncwarp();
            if (peers[u] >> lane == 1) tally = (uint16_t)(before + __popc(peers[u])); /* the last lane of the kind */
            __syncwarp();
            rank[first + u] = before + __popc(peers[u] & below);
        }
    }
    __syncthreads();
    uint32_t *const mine = room.tallies + threadIdx.x / KIND_THREADS * KIND_WORDS +
                           threadIdx.x % KIND_THREADS * 2; /* of four warps */
    const bool has_kind = threadIdx.x < kinds * KIND_THREADS;
    const uint32_t two[2] = {has_kind ? mine[0] : 0, has_kind ? mine[1] : 0};
    const uint32_t all = (two[0] & UINT16_MAX) + (two[0] >> 16) + (two[1] & UINT16_MAX) + (two[1] >> 16);
    const uint32_t end = tl_sum_to_lane(all, lane);
    if (lane == 31) room.of_warps[warp] = end;
    __syncthreads();
    uint32_t begin = end - all, hits = 0;
    TL_UNROLL_FOR (uint32_t w = 0; w < SORT_WARPS; w++) {
        if (w < warp) begin += room.of_warps[w];
        hits += room.of_warps[w];
    }
    if (has_kind) { /* where they begin */
        const uint32_t second = begin + (two[0] & UINT16_MAX), third = second + (two[0] >> 16);
        mine[0] = begin | second << 16;
        mine[1] = third | (third + (two[1] & UINT16_MAX)) << 16;
    }
    __syncthreads();
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        if (i < rounds && word[i] != NO_HIT) room.list[tally_of(i) + rank[i]] = word[i];
    if (threadIdx.x < BEHIND) room.list[hits + threadIdx.x] = NO_HIT;
    __syncthreads();
    return hits;
}

/* Lists the runs of a block's hits, of which `before` are of earlier blocks. Those blocks have left fewer runs than one for MANY + 1 hits
 * each, rounded down, and so has this one. */
template <int ITEMS> struct run_lists {
    const arrays &s;
    sort_room<ITEMS> &room;
    uint32_t first_row, before, hits;

    __device__ __forceinline__ uint32_t left_from() const { return before / (MANY + 1); }
    __device__ __forceinline__ void leave(uint32_t begin, uint32_t end, uint32_t row) const
    {
        const bool is_long = end - begin > LONG;
        (is_long ? s.long_runs : s.many_runs)[left_from() + atomicAdd(is_long ? &room.longs : &room.many, 1u)] = {
            before + begin, end - begin, first_row + row};
    }
    /* Of all rows, which are the kinds of the one step that has put them in order. */
    __device__ __forceinline__ void list_rows(uint32_t rows) const
    {
        const uint16_t *const begins = reinterpret_cast<const uint16_t *>(room.tallies);
        for (uint32_t row = threadIdx.x; row < rows; row += SORT_THREADS) {
            const uint32_t begin = begins[row * (2 * KIND_WORDS)];
            const uint32_t end = row + 1 < rows ? begins[(row + 1) * (2 * KIND_WORDS)] : hits;
            const bool is_left = end - begin > MANY;
            s.runs[first_row + row] = make_uint2(before + begin, is_left ? NO_RUN : end - begin);
            if (is_left) leave(begin, end, row);
        }
    }
    /* Of all places. A warp looks at 32, in which at most one run begins that is left: it has the next 32 as well. */
    __device__ __forceinline__ void list_places() const
    {
        const uint32_t lane = threadIdx.x % 32;
        const auto row_at = [&](uint32_t i) { return room.list[i] >> POSITION_BITS; };
        for (uint32_t first = threadIdx.x / 32 * 32; first < hits; first += SORT_THREADS) {
            const uint32_t i = first + lane, row = row_at(i);
            const uint32_t begun = __ballot_sync(~0u, i == 0 || row_at(i - 1) != row);
            const uint32_t begun_then = __ballot_sync(~0u, row_at(i + 32) != row_at(i + 31));
            const uint32_t next = begun & ~((2u << lane) - 1), begins = i < hits && (begun >> lane & 1);
            uint32_t count = 64 - lane; /* to the next place where a run begins, as far as the warp sees */
            if (next)
                count = __ffs((int)next) - 1 - lane;
            else if (begun_then)
                count = 31 + __ffs((int)begun_then) - lane;
            const bool is_left = begins && count > MANY;
            if (i < hits) s.runs[before + i] = make_uint2(first_row + row, begins && !is_left ? count : NO_RUN);
            const uint32_t left = __ballot_sync(~0u, is_left);
            if (left == 0) continue;
            const uint32_t begin = first + __ffs((int)left) - 1, of = row_at(begin);
            const uint32_t end = tl_run_end(begin, hits, [&](uint32_t at) { return row_at(at) == of; });
            if (lane == 0) leave(begin, end, of);
        }
    }
};

/* BY_ROW: rows are fewer than hits, and nothing is copied. */
template <int ITEMS, bool BY_ROW> __global__ void __launch_bounds__(SORT_THREADS, 2) sort_and_copy_kernel(arrays s)
{
    static_assert(TL_TILE_INDICES / SORTERS <= KINDS);
    __shared__ sort_room<ITEMS> room;
    tl_wait_for_earlier();
    if (!BY_ROW && blockIdx.x >= SORTERS) {
        copy_piece(s, blockIdx.x - SORTERS);
        return;
    }
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t first_row = min(blockIdx.x * s.part, s.rows), rows = min(s.part, s.rows - first_row);
    uint32_t rounds = (s.k + SORT_THREADS - 1) / SORT_THREADS, from = warp * 32 * rounds + lane;
    uint32_t word[ITEMS]; /* first, the indices */
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        word[i] = i < rounds && from + i * 32 < s.k ? s.indices[from + i * 32] : UINT32_MAX;
    if (threadIdx.x == 0) room.lower = room.many = room.longs = 0;
    clear_tallies(room);
    uint32_t lower = 0; /* hits of the blocks before */
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        lower += word[i] < first_row;
        const uint32_t row = word[i] - first_row; /* among the block's; above them also of those before */
        word[i] = row < rows ? row << POSITION_BITS | (from + i * 32) : NO_HIT;
    }
    __syncthreads();
    lower = tl_sum_to_lane(lower, lane);
    if (lane == 31 && lower) atomicAdd(&room.lower, lower);
    const uint32_t bits = rows > 1 ? 32 - __clz((int)rows - 1) : 0;
    uint32_t hits;
    if constexpr (BY_ROW) {
        hits = place_words(room, word, rounds, POSITION_BITS, bits);
    } else {
        const uint32_t steps = (bits + PLACED_BITS - 1) / PLACED_BITS,
                       of_step = steps > 1 ? (bits + steps - 1) / steps : bits;
        for (uint32_t done = 0;;) {
            hits = place_words(room, word, rounds, POSITION_BITS + done, min(of_step, bits - done));
            done += of_step;
            if (done >= bits || hits < 2) break;
            rounds = (hits + SORT_THREADS - 1) / SORT_THREADS, from = warp * 32 * rounds + lane;
            TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
                word[i] = i < rounds && from + i * 32 < hits ? room.list[from + i * 32] : NO_HIT;
            clear_tallies(room);
            __syncthreads();
        }
    }

    const run_lists<ITEMS> lists = {s, room, first_row, room.lower, hits};
    for (uint32_t i = threadIdx.x; i < hits; i += SORT_THREADS)
        s.positions[lists.before + i] = room.list[i] & ((1u << POSITION_BITS) - 1);
    if constexpr (BY_ROW)
        lists.list_rows(rows);
    else
        lists.list_places();
    if (blockIdx.x == SORTERS - 1)
        for (uint32_t i = lists.before + hits + threadIdx.x; i < s.k + PAD; i += SORT_THREADS) {
            s.positions[i] = 0;
            if (!BY_ROW && i < s.k) s.runs[i] = make_uint2(0, NO_RUN);
        }
    __syncthreads();
    if (threadIdx.x == 0) {
        s.many[blockIdx.x] = (uint8_t)room.many;
        s.longs[blockIdx.x] = (uint8_t)room.longs;
        s.from[blockIdx.x] = (uint8_t)lists.left_from();
    }
}

/* ---- runs --------------------------------------------------------------------------------------------------------------- */

constexpr uint32_t LEFT_BLOCKS = 264; /* of runs that are left: two on every multiprocessor */
constexpr uint32_t AT_ONCE = 4;       /* hits of another run whose values are on their way together */
constexpr int RUN_BLOCKS = 3;         /* of a multiprocessor */
static_assert(AT_ONCE <= PAD);

/* The runs that all sorting blocks have left, one after the other. A lane has the bytes of four blocks. */
struct left_runs {
    uint32_t count, from;
    uint32_t end, total; /* runs up to the lane's last block, and all */

    static_assert(SORTERS == 4 * 32 && TL_TILE_INDICES / (MANY + 1) <= UINT8_MAX);
    __device__ __forceinline__ uint32_t lane_runs() const
    {
        const uint32_t twos = (count & 0x00ff00ffu) + (count >> 8 & 0x00ff00ffu);
        return (twos & UINT16_MAX) + (twos >> 16);
    }
    __device__ __forceinline__ left_runs(uint32_t count, uint32_t from) : count(count), from(from)
    {
        end = tl_sum_to_lane(lane_runs(), threadIdx.x % 32);
        total = __shfl_sync(~0u, end, 31);
    }
    /* Where run i, the same for the warp, is in the list. */
    __device__ __forceinline__ uint32_t place_of(uint32_t i) const
    {
        uint32_t rest = i - (end - lane_runs()), block = 0; /* the lane's, if it has the run's block */
        TL_UNROLL_FOR (uint32_t b = 0; b < 3; b++) {
            const uint32_t runs = count >> 8 * b & UINT8_MAX;
            if (block == b && rest >= runs) rest -= runs, block++;
        }
        const uint32_t place = (from >> 8 * block & UINT8_MAX) + rest;
        return __shfl_sync(~0u, place, __popc(__ballot_sync(~0u, end <= i)));
    }
};

/* A block owns 32 columns of a long run, or all of narrow rows, and a warp those of another run. Those of several arrays are added as one
 * array's are, at the latency of a chain: so an owner of narrow rows has as many arrays as leave one unit for every owner, if it
 * can, of a long run up to LONG_COLUMNS columns: more, which lie apart, would be brought slower than they are added. */
constexpr uint32_t LONG_COLUMNS = 16, RELAY_HITS = 32; /* the last of a turn of a warp */

struct left_units {
    uint32_t pieces, arrays, groups, total; /* pieces of a row, arrays of a unit, groups of so many, units */

    __device__ __forceinline__ left_units(uint32_t runs, uint32_t outer, uint32_t pieces, uint32_t most_arrays,
                                          uint32_t owners)
        : pieces(pieces), arrays(max(min((runs * outer * pieces + owners - 1) / owners, most_arrays), 1u)),
          groups((outer + arrays - 1) / arrays), total(runs * groups * pieces)
    {}
};

/* Where columns of several arrays lie, those of an array side by side. */
struct array_columns {
    tl_column_count cols; /* of an array */
    uint32_t array;       /* values of an array */

    __device__ __forceinline__ uint32_t operator()(uint32_t of_all) const
    {
        uint32_t col;
        const uint32_t a = cols.divmod(of_all, &col);
        return a * array + col;
    }
};

/* Lane c gets sum + the hits of column c, its own, of up to 32. Lane l brings column l % columns of every so many-th hit, so that it
 * divides but once. Those behind the last hit, up to the next multiple of TL_NARROW_AT_ONCE, are -0, which changes no sum. */
constexpr uint32_t LANE_VALUES = 32,
                   LANE_STAGE = 32 * (LANE_VALUES + 4) / 4; /* of a warp: columns are four floats apart */

__device__ __forceinline__ float add_lanes(const float *values, const array_columns &at_column, uint32_t stride,
                                           uint32_t columns, const uint32_t *positions, uint32_t hits, float sum,
                                           float4 *stage)
{
    static_assert(LANE_VALUES % TL_NARROW_AT_ONCE == 0);
    const uint32_t lane = threadIdx.x % 32;
    const tl_column_count width(columns);
    uint32_t col;
    const uint32_t rows = width.div(32), row = width.divmod(lane, &col),
                   size = LANE_VALUES * rows; /* hits of a stage */
    const bool brings = row < rows;
    const float *const from_column = values + at_column(col);
    float *const to = reinterpret_cast<float *>(stage) + col * (size + 4) + row;
    const float4 *const own = stage + min(lane, columns - 1) * (size / 4 + 1);
    const auto tail_of =
        [=](uint32_t from) { /* hits of the stage, and those behind the last */
                             return min((hits - from + TL_NARROW_AT_ONCE - 1) & ~(TL_NARROW_AT_ONCE - 1), size);
        };
    float next[LANE_VALUES];
    for (uint32_t from = 0; from < hits + size; from += size) {
        const uint32_t stored = from - size; /* the stage that has come */
        int step =
            (int)rows; /* else the products with it of all values are kept in registers, of which there are too few */
        tl_forget_origin(step);
        if (from > 0) {
            const uint32_t end = tail_of(stored);
            TL_UNROLL_FOR (uint32_t u = 0; u < LANE_VALUES; u++) {
                if (u % 8 == 0 && u * step >= end) break;
                if (brings) to[u * step] = stored + u * step + row < hits ? next[u] : -0.0f;
            }
        }
        __syncwarp();
        tl_forget_origin(step);
        if (from < hits) {
            const uint32_t end = tail_of(from);
            TL_UNROLL_FOR (uint32_t u = 0; u < LANE_VALUES; u++) { /* no load is under a condition of its own */
                if (u % 8 == 0 && u * step >= end) break;
                next[u] = from_column[(int64_t)positions[min(from + u * step + row, hits - 1)] * stride];
            }
        }
        if (from > 0) sum = tl_add_column(sum, own, min(hits - stored, size));
        __syncwarp();
    }
    return sum;
}

template <bool WIDE> __device__ __forceinline__ void add_left(const arrays &s, uint32_t outer)
{
    __shared__ float4 of_warp[WIDE ? 1 : WARPS][LANE_STAGE];
    __shared__ float pass[32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = WIDE ? 32 : s.cols;
    const auto add_unit = [&](const left_run *runs, const left_runs &left, const left_units &units, uint32_t unit,
                              bool is_long) {
        const uint32_t of_all = unit / units.pieces, number = of_all / units.groups,
                       o = (of_all - number * units.groups) * units.arrays, first = unit % units.pieces * piece;
        const left_run run = runs[left.place_of(number)];
        const uint32_t cols = min(piece, s.cols - first), own = min(units.arrays, outer - o) * cols;
        const uint32_t mine = min(lane, own - 1);
        const array_columns columns = {tl_column_count(cols), s.k * s.cols};
        const float *const values = s.values + (int64_t)o * s.k * s.cols + first;
        const int64_t array = (int64_t)s.rows * s.cols;
        int64_t element = o * array + (int64_t)run.row * s.cols + first;
        if constexpr (WIDE)
            element += mine;
        else
            element += mine / cols * array + mine % cols;
        const tl_hits hits = {s.positions, UINT32_MAX, values, s.cols};
        float sum = s.base ? s.base[element] : 0.0f;
        if (is_long)
            sum = tl_add_relay<RELAY_HITS>(values + (WIDE ? mine : columns(mine)), s.cols, run.hits, sum, pass,
                                           hits.positions_from(run.begin));
        else if constexpr (WIDE)
            sum = tl_add_walk(hits, run.begin, run.begin + run.hits, mine, sum);
        else
            sum = add_lanes(values, columns, s.cols, own, s.positions + run.begin, run.hits, sum, of_warp[warp]);
        if ((!is_long || warp == 0) && lane < own) s.out[element] = sum;
    };
    const auto of_blocks = [&](const uint8_t *bytes) { return reinterpret_cast<const uint32_t *>(bytes)[lane]; };
    const uint32_t from = of_blocks(s.from), many_count = of_blocks(s.many);
    const left_runs longs(of_blocks(s.longs), from);
    const uint32_t pieces = (s.cols + piece - 1) / piece;
    const left_units long_units(longs.total, outer, pieces, WIDE ? 1 : LONG_COLUMNS / s.cols, LEFT_BLOCKS);
    for (uint32_t unit = blockIdx.x; unit < long_units.total; unit += LEFT_BLOCKS)
        add_unit(s.long_runs, longs, long_units, unit, true);
    /* Those of a run sit in different blocks, from the last on: in those without a long run, if these are most. */
    const uint32_t blocks = 2 * long_units.total <= LEFT_BLOCKS ? LEFT_BLOCKS - long_units.total : LEFT_BLOCKS;
    const uint32_t mine = LEFT_BLOCKS - 1 - blockIdx.x;
    if (mine >= blocks) return;
    const left_runs many(many_count, from);
    const left_units many_units(many.total, outer, pieces, WIDE ? 1 : 32 / s.cols, blocks * WARPS);
    for (uint32_t unit = warp * blocks + mine; unit < many_units.total; unit += blocks * WARPS)
        add_unit(s.many_runs, many, many_units, unit, false);
}

/* Vectors of a thread: sixteen floats, or eight fours, are on their way together. Where most rows have a hit or two a thread has twice
 * as many (SPARSE) of half as many hits, or most of these places would be empty. */
template <class Vector, bool SPARSE>
constexpr uint32_t TOGETHER = (sizeof(Vector) == sizeof(float) ? 4 : 2) * (SPARSE ? 2 : 1);

/* A thread owns TOGETHER vectors of the run of its row, or that begins at its place of the list, if there is one: the same of so many
 * arrays, or, of wide rows of fewer arrays, one of each of so many parts of a row. Blocks of `chunks` have the `units` of an array, or of
 * a part of it, whose rows have width.divisor vectors. */
template <class Vector, bool WIDE, bool SPARSE>
__global__ void __launch_bounds__(THREADS, RUN_BLOCKS)
    add_runs_kernel(arrays s, uint32_t outer, tl_fastdiv width, tl_fastdiv chunks, uint32_t units)
{
    constexpr uint32_t OWNED = TOGETHER<Vector, SPARSE>, HITS = SPARSE ? AT_ONCE / 2 : AT_ONCE;
    tl_wait_for_earlier();
    if (blockIdx.x < LEFT_BLOCKS) {
        add_left<WIDE>(s, outer);
        return;
    }
    uint32_t chunk, col;
    const bool in_parts = WIDE && outer < OWNED;
    const uint32_t o = chunks.divmod(blockIdx.x - LEFT_BLOCKS, &chunk) * (in_parts ? 1 : OWNED),
                   unit = chunk * THREADS + threadIdx.x;
    if (unit >= units) return;
    const uint32_t number = width.divmod(unit, &col);
    const uint2 run = s.runs[number];
    uint32_t left = run.y;
    if (left == NO_RUN) return;
    const uint32_t row = s.by_row ? number : run.x;
    const uint32_t *positions = s.positions + (s.by_row ? run.x : number);
    uint32_t position[HITS];
    TL_UNROLL_FOR (uint32_t e = 0; e < HITS; e++)
        position[e] = positions[e];

    /* The thread's last vector takes the place of those behind it. All steps are of bytes, so that an address is a product and a sum. */
    uint32_t last = min(OWNED, outer - o) - 1;
    const uint32_t row_bytes = s.cols * sizeof(float);
    int64_t out_step = (int64_t)s.rows * row_bytes, values_step = (int64_t)s.k * row_bytes;
    int64_t at = o * out_step + (int64_t)row * row_bytes + col * (int64_t)sizeof(Vector);
    const char *column = reinterpret_cast<const char *>(s.values) + o * values_step + col * (int64_t)sizeof(Vector);
    if (in_parts) {
        out_step = values_step = width.divisor * (int64_t)sizeof(Vector), last = 0;
        TL_UNROLL_FOR (uint32_t a = 1; a < OWNED; a++)
            last += (col + a * width.divisor) * sizeof(Vector) < row_bytes;
    }
    const char *values[OWNED];
    Vector *out[OWNED], sum[OWNED];
    TL_UNROLL_FOR (uint32_t a = 0; a < OWNED; a++) {
        sum[a] = Vector{};
        if (s.base) sum[a] = *reinterpret_cast<const Vector *>(reinterpret_cast<const char *>(s.base) + at);
        out[a] = reinterpret_cast<Vector *>(reinterpret_cast<char *>(s.out) + at), values[a] = column;
        at += a < last ? out_step : 0, column += a < last ? values_step : 0;
    }
    while (left > 0) { /* a row without a hit keeps its bits */
        Vector v[OWNED][HITS];
        TL_UNROLL_FOR (uint32_t e = 0; e < HITS; e++) {
            const uint64_t hit = (uint64_t)position[e] * row_bytes;
            TL_UNROLL_FOR (uint32_t a = 0; a < OWNED; a++) {
                const Vector *const value = reinterpret_cast<const Vector *>(values[a] + hit);
                tl_set_nothing(v[a][e]);
                if (e < left) v[a][e] = *value;
            }
        }
        left -= min(left, HITS), positions += HITS;
        if (left > 0) /* while the values are on their way */
            TL_UNROLL_FOR (uint32_t e = 0; e < HITS; e++)
                position[e] = positions[e];
        TL_UNROLL_FOR (uint32_t e = 0; e < HITS; e++)
            TL_UNROLL_FOR (uint32_t a = 0; a < OWNED; a++)
                tl_add_to(sum[a], v[a][e]);
    }
    TL_UNROLL_FOR (uint32_t a = 0; a < OWNED; a++)
        if (a <= last) *out[a] = sum[a];
}

template <class Vector, bool WIDE, bool SPARSE>
int32_t launch_runs(tl_context *ctx, const char *name, const arrays &s, int64_t outer)
{
    constexpr int64_t OWNED = TOGETHER<Vector, SPARSE>;
    const bool in_parts = WIDE && outer < OWNED;
    const int64_t row_width = s.cols * sizeof(float) / sizeof(Vector),
                  width = in_parts ? tl_ceil_div(row_width, OWNED) : row_width,
                  units = (s.by_row ? s.rows : s.k) * width, chunks = tl_ceil_div(units, THREADS),
                  groups = in_parts ? outer : tl_ceil_div(outer, OWNED);
    /* Where the device holds all blocks at a time, fewer would have less on their way. */
    if constexpr (WIDE && !SPARSE)
        if (s.k <= SPARSE_HITS * s.rows && groups * chunks > RUN_BLOCKS * tl_cuda_sms(ctx))
            return launch_runs<Vector, true, true>(ctx, name, s, outer);
    return tl_launch_ahead(ctx, name, add_runs_kernel<Vector, WIDE, SPARSE>, tl_grid(LEFT_BLOCKS + groups * chunks, 1),
                           THREADS, 0, s, (uint32_t)outer, tl_fastdiv(width), tl_fastdiv(chunks), (uint32_t)units);
}

} /* namespace */

bool tl_axis_holds(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    return k <= TL_TILE_INDICES && rows <= MOST_ROWS && outer <= MOST_ARRAYS && outer * rows * cols <= MOST_VALUES &&
           outer * k * cols <= MOST_VALUES;
}

bool tl_axis_serves(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    const bool small = outer > 1 && cols < 32 && rows * cols < TL_LARGE_ARRAY;
    if (k > TL_TILE_INDICES || rows > MOST_ROWS || outer > MOST_ARRAYS) return false;
    if (small) return k >= LEAST_SMALL;
    if (cols < 32) return k >= LEAST_HITS && outer * rows >= LEAST_ROWS && (outer > 1 || k >= LEAST_ALONE);
    const bool many = tl_many_wide(outer, rows, cols, k);
    if ((k < LEAST_HITS && !many) || tl_strips_serve(outer, rows, cols, k)) return false;
    return tl_few_wide(outer, rows, cols, k) && (outer > 1 || many);
}

int32_t tl_scatter_axis(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, float *out)
{
    if (outer * rows * cols == 0) return TORCHLEAN_OK;
    const int64_t words = tl_ceil_div(k + PAD, 64) * 64, left = k / (MANY + 1) + 1;
    static_assert(sizeof(left_run) == 3 * sizeof(uint32_t));
    tl_scratch<uint32_t> scratch(ctx);
    TL_TRY(scratch.allocate(3 * words + 3 * SORTERS / 4 + 2 * 3 * left));
    arrays s = {base, out, values, indices, scratch, reinterpret_cast<uint2 *>(scratch + words), rows < k};
    s.many = reinterpret_cast<uint8_t *>(scratch + 3 * words), s.longs = s.many + SORTERS, s.from = s.longs + SORTERS;
    s.many_runs = reinterpret_cast<left_run *>(s.from + SORTERS), s.long_runs = s.many_runs + left;
    s.rows = (uint32_t)rows, s.cols = (uint32_t)cols, s.k = (uint32_t)k, s.part = (uint32_t)tl_ceil_div(rows, SORTERS);
    s.total = outer * rows * cols, s.aligned = tl_aligned4(base) && tl_aligned4(out);
    const bool few = k <= FEW_ITEMS * SORT_THREADS;
    const auto kernel = s.by_row ? few ? sort_and_copy_kernel<FEW_ITEMS, true> : sort_and_copy_kernel<MOST_ITEMS, true>
                        : few    ? sort_and_copy_kernel<FEW_ITEMS, false>
                                 : sort_and_copy_kernel<MOST_ITEMS, false>;
    TL_TRY(tl_launch_ahead(ctx, name, kernel, SORTERS + (s.by_row ? 0 : tl_grid(s.total, 4 * COPIED * SORT_THREADS)),
                           SORT_THREADS, 0, s));
    const bool vectors = cols % 4 == 0 && s.aligned && tl_aligned4(values);
    const auto launch = cols >= 32 ? vectors ? launch_runs<float4, true, false> : launch_runs<float, true, false>
                        : vectors  ? launch_runs<float4, false, false>
                                   : launch_runs<float, false, false>;
    return launch(ctx, name, s, outer);
}
