/* Scatter-adds of up to TL_TILE_INDICES indices on CUDA, in one launch.
 *
 * A block owns a tile of the output: whole rows of a large one or of narrow rows, some of the columns of a small one. It copies the
 * tile from the input, looks through the whole index list for the hits of its rows, puts them in order of row and then position, and
 * adds every row's in that order. Arrays that lie one behind the other have tiles of their own.
 *
 * Uneven lists name rows beside each other most. So the tiles of wide rows take rows in turns: row r belongs to tile r % tiles. Narrow
 * rows are copied faster side by side. */
#include "cuda/device/division.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/narrow_run.cuh"
#include "cuda/index/rank.cuh"
#include "cuda/index/run_relay.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/index/staged_run.cuh"
#include "cuda/runtime/launch.cuh"

#include <algorithm>

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int MOST_ITEMS = 32;    /* indices of a thread */
constexpr int POSITION_BITS = 13; /* of a word of the list: the row in the tile, then the position */
constexpr uint32_t POSITIONS = (1u << POSITION_BITS) - 1;
constexpr int64_t FEW_COLUMNS = 8;        /* of a small output of wide rows: a sector */
constexpr uint32_t FEW = THREADS;         /* hits that are sorted by counting smaller ones */
constexpr uint32_t MANY = 32, LONG = 256; /* longer runs are left to a warp for 32 columns, or to the block */
constexpr uint32_t LONG_COLUMNS =
    16 * WARPS; /* of wider tiles most warps have 32 columns of a run, and load as much at once */
constexpr int64_t ROW_COLUMNS = 8 * WARPS; /* of a small output that may have tiles of whole rows */
/* Columns of a tile of wide rows that many hits may meet: a warp has 32 of them. A block that had all columns would add at about a
 * 140th of the rate at which all blocks copy, twice as many bytes for each element: if most hits were its own, and rows no more than
 * FEW_ROWS times the hits, it would end long after the others. */
constexpr int64_t PIECE = 32 * WARPS, FEW_ROWS = 64;
/* Columns of a tile of rows of up to LONG_COLUMNS, or of a table whose tiles the device holds at a time, if hits that are spread evenly
 * need no sort then. Of an uneven list most hits are a few rows', which a block would add 32 columns after the others: so as many blocks
 * do. */
constexpr int64_t THIN = 32, SECTOR_COLUMNS = 8;
static_assert(THREADS == TL_LONG_THREADS && THREADS == TL_STAGED_THREADS);

struct tiles {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t rows, cols, k, tile_rows;
    tl_fastdiv count, pieces, width; /* tiles of an array, tiles of a row, columns of a tile */
    tl_fastdiv quads;                /* the last in fours, where rows and tiles start on 16 bytes; else 1 */
    tl_fastdiv inner;                /* fours of a row of a tile, wherever rows start */
    tl_fastdiv step;                 /* from a row of a tile to the next: 1, or the tiles of a column */
    uint32_t row_stride;             /* elements from a row of a tile to the next */
    bool by_outer, aligned, vectors; /* indices of their own for every array; pointers, and rows, start on 16 bytes */
};

/* out[i] = base[i], or +0 without a base, for i < size; `at` is where they lie in the whole array. */
__device__ __forceinline__ void copy_tile(const float *__restrict__ base, float *__restrict__ out, int64_t at,
                                          uint32_t size, bool aligned)
{
    const uint32_t head = aligned ? min((uint32_t)(-at & 3), size) : size, vectors = (size - head) / 4;
    for (uint32_t i = threadIdx.x; i < head; i += THREADS)
        out[i] = base ? base[i] : 0.0f;
    for (uint32_t i = threadIdx.x; i < vectors; i += 8 * THREADS) {
        float4 v[8];
        TL_UNROLL_FOR (int u = 0; u < 8; u++) {
            v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (base && i + u * THREADS < vectors) v[u] = tl_load4(base + head + 4 * (i + u * THREADS));
        }
        TL_UNROLL_FOR (int u = 0; u < 8; u++)
            if (i + u * THREADS < vectors) tl_store4(out + head + 4 * (i + u * THREADS), v[u]);
    }
    for (uint32_t i = head + 4 * vectors + threadIdx.x; i < size; i += THREADS)
        out[i] = base ? base[i] : 0.0f;
}

/* The same for a tile of some of the columns, in vectors of one float or four, whose rows lie `stride` of them apart. */
template <class Vector>
__device__ __forceinline__ void copy_columns(const Vector *base, Vector *out, uint32_t rows, uint32_t cols,
                                             uint32_t stride, const tl_fastdiv &width)
{
    for (uint32_t i = threadIdx.x; i < rows * width.divisor; i += 8 * THREADS) {
        uint32_t element[8];
        Vector v[8];
        TL_UNROLL_FOR (int u = 0; u < 8; u++) {
            uint32_t col;
            const uint32_t row = width.divmod(i + u * THREADS, &col);
            element[u] = row < rows && col < cols ? row * stride + col : UINT32_MAX;
            v[u] = base && element[u] != UINT32_MAX ? base[element[u]] : Vector{};
        }
        TL_UNROLL_FOR (int u = 0; u < 8; u++)
            if (element[u] != UINT32_MAX) out[element[u]] = v[u];
    }
}

/* The same where rows start anywhere, but base and output alike: fours that start on 16 bytes, of which a row has up to
 * inner.divisor, and then what lies before and behind them. `at` is where the tile lies in the whole array. */
__device__ __forceinline__ void copy_any_columns(const float *base, float *out, int64_t at, uint32_t rows,
                                                 uint32_t cols, uint32_t stride, const tl_fastdiv &inner)
{
    constexpr uint32_t EDGE = 4; /* places before the fours of a row, and behind them */
    const uint32_t before = (uint32_t)-at;
    const auto head_of = [&](uint32_t row) { return min((before - row * stride) & 3, cols); };
    for (uint32_t i = threadIdx.x; i < rows * inner.divisor; i += 8 * THREADS) {
        uint32_t element[8];
        float4 v[8];
        TL_UNROLL_FOR (int u = 0; u < 8; u++) {
            uint32_t quad;
            const uint32_t row = inner.divmod(i + u * THREADS, &quad), col = head_of(row) + 4 * quad;
            element[u] = row < rows && col + 4 <= cols ? row * stride + col : UINT32_MAX;
            v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (base && element[u] != UINT32_MAX) v[u] = tl_load4(base + element[u]);
        }
        TL_UNROLL_FOR (int u = 0; u < 8; u++)
            if (element[u] != UINT32_MAX) tl_store4(out + element[u], v[u]);
    }
    for (uint32_t i = threadIdx.x; i < rows * (2 * EDGE); i += 4 * THREADS) {
        uint32_t element[4];
        float v[4];
        TL_UNROLL_FOR (int u = 0; u < 4; u++) {
            const uint32_t row = (i + u * THREADS) / (2 * EDGE), place = (i + u * THREADS) % (2 * EDGE),
                           head = head_of(row);
            const uint32_t col = place < EDGE ? place : head + (cols - head) / 4 * 4 + place - EDGE;
            const bool is_one = row < rows && (place < EDGE ? place < head : col < cols);
            element[u] = is_one ? row * stride + col : UINT32_MAX;
            v[u] = base && is_one ? base[element[u]] : 0.0f;
        }
        TL_UNROLL_FOR (int u = 0; u < 4; u++)
            if (element[u] != UINT32_MAX) out[element[u]] = v[u];
    }
}

/* Hits in order of row and position. PAD words behind the last are of no row. */
constexpr uint32_t PAD = 2 * MANY;

struct sorted_list {
    const uint32_t *words;
    uint32_t count;

    __device__ __forceinline__ uint32_t row(uint32_t i) const { return words[i] >> POSITION_BITS; }
    __device__ __forceinline__ bool begins(uint32_t i) const { return i == 0 || row(i - 1) != row(i); }
    __device__ __forceinline__ uint32_t end(uint32_t first) const
    {
        const uint32_t of = row(first);
        return tl_run_end(first, count, [=](uint32_t i) { return row(i) == of; });
    }
};

/* A thread owns a Vector of each of some of the `runs` short runs. Most have a hit or two, and cost the latency of a load: so all
 * that the thread's begin with are on their way together, and of longer ones the next AT_ONCE. Rows have `cols` vectors in the tile,
 * `stride` in all, and those of the tile lie row_stride apart. */
template <class Vector>
__device__ __forceinline__ void add_short_runs(const Vector *base, const Vector *values, Vector *out, uint32_t stride,
                                               uint32_t row_stride, const tl_fastdiv &width, uint32_t cols,
                                               const sorted_list &sorted, const uint16_t *begins, uint32_t runs)
{
    constexpr uint32_t OWN = 16 / sizeof(Vector) >= 4 ? 4 : 2, AT_ONCE = 4, NONE = UINT32_MAX;
    static_assert(MANY + AT_ONCE <= PAD);
    const uint32_t units = runs * width.divisor;
    for (uint32_t t = threadIdx.x; t < units; t += OWN * THREADS) {
        uint32_t at[OWN], row[OWN], col[OWN];
        Vector sum[OWN];
        TL_UNROLL_FOR (uint32_t u = 0; u < OWN; u++) {
            const uint32_t run = width.divmod(t + u * THREADS, &col[u]);
            const bool is_one = run < runs && col[u] < cols;
            at[u] = begins[is_one ? run : 0];
            row[u] = is_one ? sorted.row(at[u]) : NONE;
            sum[u] = Vector{};
            if (base && is_one) sum[u] = base[row[u] * row_stride + col[u]];
        }
        bool more = true;
        for (uint32_t from = 0; more; from += AT_ONCE) {
            Vector v[OWN][AT_ONCE];
            TL_UNROLL_FOR (uint32_t u = 0; u < OWN; u++)
                TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++) {
                    const uint32_t word = sorted.words[at[u] + from + e];
                    tl_set_nothing(v[u][e]);
                    if (word >> POSITION_BITS == row[u])
                        v[u][e] = values[(int64_t)(word & POSITIONS) * stride + col[u]];
                }
            more = false;
            TL_UNROLL_FOR (uint32_t u = 0; u < OWN; u++) {
                TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++)
                    tl_add_to(sum[u], v[u][e]);
                more |= sorted.row(at[u] + from + AT_ONCE) == row[u];
            }
        }
        TL_UNROLL_FOR (uint32_t u = 0; u < OWN; u++)
            if (row[u] != NONE) out[row[u] * row_stride + col[u]] = sum[u];
    }
}

/* The warp's 128 columns of a row from `first` on: lane l has the position of hit l, of n. */
template <bool VECTORS>
__device__ __forceinline__ void add_group(const float *base, const float *values, float *out, uint32_t stride,
                                          uint32_t mine, uint32_t n, uint32_t first, uint32_t cols)
{
    float4 sum[1] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
    if (base) sum[0] = tl_load_group<VECTORS>(base, first, cols);
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t p[4];
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            p[e] = __shfl_sync(~0u, mine, i + e);
        tl_add_hits<VECTORS>(sum, values, stride, p, min(n - i, 4u), first, cols);
    }
    tl_store_group<VECTORS>(out, first, cols, sum[0]);
}

/* Shared memory of a block. */
template <int ITEMS> struct tile_room {
    uint32_t list[ITEMS * THREADS + PAD];
    union { /* what the list is put in order with; then, after where runs begin, what warps add */
        tl_placing placing;
        uint16_t begins[ITEMS * THREADS];
        float4 of_warp[WARPS][TL_WARP_STAGE];
        tl_long_values stage;
    };
};

static_assert(TL_STAGES <= WARPS * TL_WARP_STAGE && TL_TILE_INDICES <= TL_LONG_ALL);

/* sum + the values of a vector at the positions of these hits, in order; all threads get it. A function of its own, so that its registers
 * are not allotted together with a thread's indices. */
__device__ __noinline__ float add_guessed(const float *values, const uint32_t *words, uint32_t hits, float sum,
                                          tl_long_values &stage, tl_long_room &long_room)
{
    TL_UNROLL_FOR (uint32_t i = 0; i < TL_LONG_ALL / THREADS; i++) {
        const uint32_t hit = i * THREADS + threadIdx.x;
        if (hit < hits) stage.copy(hit, values + (words[hit] & POSITIONS));
    }
    tl_copy_commit();
    stage.complete(hits);
    return tl_add_stage(sum, stage, hits, long_room);
}

template <int ITEMS>
__global__ void __launch_bounds__(THREADS, ITEMS <= MOST_ITEMS / 2 ? 3 : 2) scatter_tile_kernel(tiles s)
{
    constexpr uint32_t LEFT = ITEMS * THREADS / MANY, RELAY_HITS = 32;
    TL_DYNAMIC_SHARED(uint4, shared);
    tile_room<ITEMS> &room = *reinterpret_cast<tile_room<ITEMS> *>(shared);
    __shared__ uint4 few_words[FEW / 4 + 1];
    __shared__ uint32_t left[LEFT]; /* runs that are left: many hits from the front, long ones from the back */
    __shared__ uint32_t count, begun, many, longs;
    __shared__ float pass[32];
    __shared__ tl_long_room long_room;
    uint32_t *const list = room.list;
    uint32_t *const few = reinterpret_cast<uint32_t *>(few_words);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    uint32_t tile, piece;
    const uint32_t o = s.count.divmod(blockIdx.x, &tile), number = s.pieces.divmod(tile, &piece);
    const uint32_t first_row = s.step.divisor > 1 ? number : number * s.tile_rows;
    const uint32_t rows = s.step.divisor > 1 ? s.step.div(s.rows - 1 - first_row) + 1
                                             : min(s.tile_rows, s.rows - first_row);
    const uint32_t first_col = piece * s.width.divisor, cols = min(s.width.divisor, s.cols - first_col);
    const int64_t at = ((int64_t)o * s.rows + first_row) * s.cols + first_col;
    const float *base = s.base ? s.base + at : nullptr;
    const float *const values = s.values + (int64_t)o * s.k * s.cols + first_col;
    float *const out = s.out + at;
    const uint32_t *const indices = s.indices + (s.by_outer ? (int64_t)o * s.k : 0);

    const bool by_quads = s.quads.divisor > 1;
    /* A warp has a piece of the list, of `rounds` indices for each lane. */
    const uint32_t rounds = (s.k + THREADS - 1) / THREADS, mine = warp * 32 * rounds + lane;
    uint32_t word[ITEMS]; /* on their way while the tile is copied */
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        word[i] = i < rounds && mine + i * 32 < s.k ? indices[mine + i * 32] : UINT32_MAX;
    if (threadIdx.x == 0) count = begun = many = longs = 0;
    if (rows == 1 || cols == s.row_stride)
        copy_tile(base, out, at, rows * cols, s.aligned);
    else if (by_quads)
        copy_columns((const float4 *)base, (float4 *)out, rows, cols / 4, s.row_stride / 4, s.quads);
    else if (s.aligned && cols >= THIN)
        copy_any_columns(base, out, at, rows, cols, s.row_stride, s.inner);
    else
        copy_columns(base, out, rows, cols, s.row_stride, s.width);
    uint32_t own = 0; /* hits */
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        uint32_t row = word[i] - first_row; /* of the tile; above it also for those before */
        if (s.step.divisor > 1) {
            uint32_t other;
            const uint32_t turn = s.step.divmod(row, &other);
            row = other == 0 ? turn : UINT32_MAX;
        }
        word[i] = row < rows ? row << POSITION_BITS | (mine + i * 32) : UINT32_MAX;
        own += word[i] != UINT32_MAX;
    }
    __syncthreads();
    const uint32_t before = tl_sum_to_lane(own, lane) - own;
    uint32_t place = 0;
    if (lane == 31) {
        place = atomicAdd(&count, before + own);
        room.placing.of_warps[warp] = before + own;
    }
    place = __shfl_sync(~0u, place, 31) + before;
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        if (word[i] == UINT32_MAX) continue;
        if (place < FEW) few[place] = word[i];
        place++;
    }
    __syncthreads();
    const uint32_t hits = count;

    /* The list in order. Words are distinct. */
    if (hits <= FEW) {
        if (threadIdx.x < 4) few[hits + threadIdx.x] = UINT32_MAX;
        __syncthreads();
        if (threadIdx.x < hits) {
            const uint32_t mine = few[threadIdx.x];
            uint32_t rank = 0;
            for (uint32_t i = 0; i < hits; i += 4) {
                const uint4 w = few_words[i / 4];
                rank += (w.x < mine) + (w.y < mine) + (w.z < mine) + (w.w < mine);
            }
            list[rank] = mine;
        }
    } else if (rows == 1) { /* they are in order, and go behind those of earlier warps */
        uint32_t to = 0;
        for (uint32_t w = 0; w < warp; w++)
            to += room.placing.of_warps[w];
        TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
            const uint32_t with = __ballot_sync(~0u, word[i] != UINT32_MAX);
            if (word[i] != UINT32_MAX) list[to + __popc(with & ((1u << lane) - 1))] = word[i];
            to += __popc(with);
        }
    } else {
        const uint32_t bits = 32 - __clz((int)rows - 1), low = bits > TL_PLACED_BITS ? (bits + 1) / 2 : bits;
        uint32_t words = rounds;
        for (uint32_t done = 0;;) {
            tl_place_hits(list, room.placing, word, words, POSITION_BITS + done, min(low, bits - done));
            done += low;
            if (done >= bits) break;
            words = tl_take_words(list, hits, word);
        }
    }
    if (threadIdx.x < PAD) list[hits + threadIdx.x] = UINT32_MAX;
    __syncthreads();

    const tl_hits column_hits = {list, POSITIONS, values, s.cols};
    const sorted_list sorted = {list, hits};
    const uint32_t looked = rows > 1 ? hits : min(hits, 1u); /* through for where runs begin */
    for (uint32_t i = threadIdx.x; i < looked; i += THREADS) {
        const uint32_t row = sorted.row(i);
        if (!sorted.begins(i)) continue;
        if (sorted.row(i + MANY) != row)
            room.begins[atomicAdd(&begun, 1u)] = (uint16_t)i;
        else if (cols <= LONG_COLUMNS && i + LONG < hits && sorted.row(i + LONG) == row)
            left[LEFT - 1 - atomicAdd(&longs, 1u)] = i;
        else
            left[atomicAdd(&many, 1u)] = i;
    }
    __syncthreads();
    const uint32_t runs = begun;           /* short ones */
    if (by_quads && cols <= ROW_COLUMNS) { /* a thread owns four columns of a run, or one of them */
        add_short_runs((const float4 *)base, (const float4 *)values, (float4 *)out, s.cols / 4, s.row_stride / 4,
                       s.quads, cols / 4, sorted, room.begins, runs);
    } else if (cols <= THIN) {
        add_short_runs(base, values, out, s.cols, s.row_stride, s.width, cols, sorted, room.begins, runs);
    } else { /* a warp owns 128 columns of a run */
        const uint32_t groups = (cols + 127) / 128;
        for (uint32_t unit = warp; unit < runs * groups; unit += WARPS) {
            const uint32_t first = unit % groups * 128, i = room.begins[unit / groups], row = sorted.row(i);
            const uint32_t n = __popc(__ballot_sync(~0u, sorted.row(i + lane) == row));
            const uint32_t mine = lane < n ? list[i + lane] & POSITIONS : 0;
            const int64_t from = (int64_t)row * s.row_stride;
            if (s.vectors)
                add_group<true>(base ? base + from : nullptr, values, out + from, s.cols, mine, n, first, cols);
            else
                add_group<false>(base ? base + from : nullptr, values, out + from, s.cols, mine, n, first, cols);
        }
    }
    __syncthreads();

    /* The block owns a long run, 32 columns after the others. */
    const uint32_t strips = (cols + 31) / 32;
    for (uint32_t unit = 0; unit < longs * strips; unit++) {
        const uint32_t i = left[LEFT - 1 - unit / strips], row = sorted.row(i), end = sorted.end(i);
        const uint32_t col = min(unit % strips * 32 + lane, cols - 1);
        const int64_t element = (int64_t)row * s.row_stride + col;
        float sum = base ? base[element] : 0.0f;
        if (s.cols == 1 && end - i >= TL_LEAST_GUESSED)
            sum = add_guessed(values, list + i, end - i, sum, room.stage, long_room);
        else if (cols <= TL_STAGED_COLUMNS)
            sum = tl_add_staged(
                values, [](uint32_t c) { return c; }, s.cols, cols, end - i, sum, room.of_warp[0],
                column_hits.positions_from(i));
        else
            sum = tl_add_relay<RELAY_HITS>(values + col, s.cols, end - i, sum, pass, column_hits.positions_from(i));
        if (warp == 0) out[element] = sum;
    }
    /* A warp owns all columns of another run, or 32 of them. */
    for (uint32_t run = warp; cols < 32 && run < many; run += WARPS) {
        const uint32_t i = left[run], row = sorted.row(i), end = sorted.end(i);
        const float before = base && lane < cols ? base[row * s.row_stride + lane] : 0.0f;
        const float sum = tl_add_narrow_warp(values, s.cols, s.width, cols, end - i, before, room.of_warp[warp],
                                             [&](uint32_t hit) { return list[i + hit] & POSITIONS; });
        if (lane < cols) out[row * s.row_stride + lane] = sum;
    }
    for (uint32_t unit = warp; cols >= 32 && unit < many * strips; unit += WARPS) {
        const uint32_t i = left[unit / strips], col = min(unit % strips * 32 + lane, cols - 1), row = sorted.row(i);
        const uint32_t end = sorted.end(i);
        const int64_t element = (int64_t)row * s.row_stride + col;
        out[element] = tl_add_walk(column_hits, i, end, col, base ? base[element] : 0.0f);
    }
}

template <int ITEMS> int32_t launch_tiles(tl_context *ctx, const char *name, int64_t blocks, const tiles &s)
{
    /* Without asking, which takes time, a block may have 48 KiB, of which two are for what else it shares. */
    if constexpr (sizeof(tile_room<ITEMS>) > 46 << 10)
        TL_TRY(tl_allow_shared(ctx, scatter_tile_kernel<ITEMS>, sizeof(tile_room<ITEMS>)));
    return tl_launch_dynamic(ctx, name, scatter_tile_kernel<ITEMS>, tl_grid(blocks, 1), THREADS,
                             sizeof(tile_room<ITEMS>), s);
}

} /* namespace */

int32_t tl_scatter_tiles(tl_context *ctx, const char *name, const float *base, const float *values,
                         const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, bool by_outer,
                         float *out)
{
    if (outer * rows * cols == 0) return TORCHLEAN_OK;
    int64_t size = tl_ceil_div(outer * rows * cols, 2 * tl_cuda_sms(ctx));
    size = size < FEW_COLUMNS ? FEW_COLUMNS : size > TL_TILE ? TL_TILE : size;
    const bool aligned = tl_aligned4(base) && tl_aligned4(out);
    const bool vectors = aligned && tl_aligned4(values) && cols % 4 == 0;
    const int64_t piece = rows * PIECE < size ? size / rows : PIECE;
    int64_t width = cols, tile_rows = 0;
    /* Where tiles of few columns have hits that need a sort, those of whole rows, which are fewer, mostly do not. */
    const int64_t whole_rows = size / cols;
    const bool by_rows = cols <= ROW_COLUMNS && whole_rows > 0 && k * (size / FEW_COLUMNS) > FEW * rows &&
                         k * whole_rows <= FEW / 2 * rows;
    if (cols < 32) {
        /* As many tiles as the device holds at a time, of some columns, of whole sectors, if there are more than rows. */
        const int64_t slots = (k <= 16 * THREADS ? 3 : 2) * tl_cuda_sms(ctx) / outer;
        const int64_t parts = std::min(slots / rows, tl_ceil_div(cols, 8));
        if (parts > 1) width = tl_ceil_div(tl_ceil_div(cols, parts), 4) * 4;
        tile_rows = slots < 2 ? rows : tl_ceil_div(rows, slots);
        if (tile_rows > TL_TILE / cols) tile_rows = TL_TILE / cols;
    } else if (outer * rows * cols < TL_SMALL_TABLE && !by_rows) {
        /* Whole columns of an array, if tiles that are filled by them have more than twice as many as others. */
        const int64_t parts = cols * rows < size ? 1 : cols * rows / size;
        const bool by_columns = cols > 2 * FEW_COLUMNS * parts;
        width = by_columns ? tl_ceil_div(tl_ceil_div(cols, parts), 4) * 4 : FEW_COLUMNS;
        /* Of the longest lists a multiprocessor has two tiles at a time: as many as there are then, or the last few would wait. */
        const int64_t parts_of_rows = 2 * tl_cuda_sms(ctx) / outer / tl_ceil_div(cols, width);
        if (by_columns)
            tile_rows = rows;
        else if (k > MOST_ITEMS / 2 * THREADS && parts_of_rows > 0)
            tile_rows = tl_ceil_div(rows, parts_of_rows);
    } else if (cols > THIN && (cols <= LONG_COLUMNS || size < TL_TILE) && size >= THIN && rows * THIN >= size &&
               k * FEW_ROWS > outer * rows && k * (size / THIN) <= FEW * rows) {
        width = tl_ceil_div(tl_ceil_div(cols, tl_ceil_div(cols, THIN)), SECTOR_COLUMNS) * SECTOR_COLUMNS;
    } else if (cols > piece && k * FEW_ROWS > outer * rows) {
        width = tl_ceil_div(tl_ceil_div(cols, tl_ceil_div(cols, piece)), 32) * 32;
    } else if (width > size) {
        width = tl_ceil_div(tl_ceil_div(cols, tl_ceil_div(cols, size)), 4) * 4;
    }
    if (tile_rows == 0) tile_rows = size > width ? size / width : 1;
    if (tile_rows < rows) {
        tile_rows = tl_ceil_div(rows, tl_ceil_div(rows, tile_rows)); /* no last tile of far fewer */
        if (tile_rows > 4) tile_rows = tl_ceil_div(tile_rows, 4) * 4;
    }
    const int64_t pieces = tl_ceil_div(cols, width), steps = tl_ceil_div(rows, tile_rows), count = steps * pieces;
    /* Where a tile's part of a row is no part of a longer one that is copied faster; places in an array have 32 bits. */
    const bool in_turns = cols >= 32 && (width < cols || cols > LONG_COLUMNS) && rows * cols <= UINT32_MAX;
    tiles s = {base, values, out, indices, (uint32_t)rows, (uint32_t)cols, (uint32_t)k, (uint32_t)tile_rows};
    s.count = tl_fastdiv(count), s.pieces = tl_fastdiv(pieces), s.width = tl_fastdiv(width);
    s.quads = tl_fastdiv(vectors && width % 4 == 0 ? width / 4 : 1), s.by_outer = by_outer, s.aligned = aligned,
    s.vectors = vectors, s.step = tl_fastdiv(in_turns ? steps : 1), s.row_stride = s.step.divisor * s.cols,
    s.inner = tl_fastdiv(width < 8 ? 1 : width / 4);
    const auto launch = k <= 8 * THREADS    ? launch_tiles<8>
                        : k <= 16 * THREADS ? launch_tiles<16>
                                            : launch_tiles<MOST_ITEMS>;
    return launch(ctx, name, outer * count, s);
}
