/* Scatter-adds of up to TL_TILE_INDICES indices on CUDA, in one launch.
 *
 * A block owns a tile of the output: whole rows of a large one, some of the columns of a small one. It copies the tile from
 * the input, looks through the whole index list for the hits of its rows, sorts them by row and then position, and adds every row's
 * in that order. Arrays that lie one behind the other have tiles of their own. */
#include "cuda/device/division.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

#include <cub/block/block_radix_sort.cuh>

namespace {

static_assert(TL_TILE_INDICES == 32 * 256);
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int POSITION_BITS = 17; /* of a word of the list: the row in the tile, then the position */
constexpr uint32_t POSITIONS = (1u << POSITION_BITS) - 1;
constexpr int64_t FEW_COLUMNS = WARPS;    /* of a small output: a warp for each column of a long run */
constexpr uint32_t FEW = THREADS;         /* hits that are sorted by counting smaller ones */
constexpr uint32_t MANY = 32, LONG = 256; /* longer runs are left to a warp for 32 columns, or to the block */
constexpr uint32_t LONG_COLUMNS =
    16 * WARPS;                      /* of wider tiles most warps have 32 columns of a run, and load as much at once */
constexpr uint32_t NARROW_LONG = 64; /* the same of narrow tiles: to a warp for each column */
constexpr int RUN = 16;
constexpr int64_t ROW_COLUMNS = 8 * WARPS; /* of a small output that may have tiles of whole rows */
/* Columns of a tile of wide rows that many hits may meet: a warp has 32 of them. A block that had all columns would add at about a
 * 140th of the rate at which all blocks copy, twice as many bytes for each element: if most hits were its own, and rows no more than
 * FEW_ROWS times the hits, it would end long after the others. */
constexpr int64_t PIECE = 32 * WARPS, FEW_ROWS = 64;
static_assert(THREADS == TL_LONG_THREADS);

struct tiles {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t rows, cols, k, tile_rows;
    tl_fastdiv count, pieces, width; /* tiles of an array, tiles of a row, columns of a tile */
    tl_fastdiv quads;                /* the last in fours, where rows and tiles start on 16 bytes; else 1 */
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

/* The same for a tile of some of the columns of a small output, whose rows lie `stride` apart. */
__device__ __forceinline__ void copy_columns(const float *base, float *out, uint32_t rows, uint32_t cols,
                                             uint32_t stride, const tl_fastdiv &width)
{
    for (uint32_t i = threadIdx.x; i < rows * width.divisor; i += 8 * THREADS) {
        uint32_t element[8];
        float v[8];
        TL_UNROLL_FOR (int u = 0; u < 8; u++) {
            uint32_t col;
            const uint32_t row = width.divmod(i + u * THREADS, &col);
            element[u] = row < rows && col < cols ? row * stride + col : UINT32_MAX;
            v[u] = base && element[u] != UINT32_MAX ? base[element[u]] : 0.0f;
        }
        TL_UNROLL_FOR (int u = 0; u < 8; u++)
            if (element[u] != UINT32_MAX) out[element[u]] = v[u];
    }
}

/* The same for a tile of some of the columns of a large one, whose rows are aligned. */
__device__ __forceinline__ void copy_quads(const float *base, float *out, uint32_t rows, uint32_t cols, uint32_t stride,
                                           const tl_fastdiv &quads)
{
    for (uint32_t i = threadIdx.x; i < rows * quads.divisor; i += 8 * THREADS) {
        uint32_t element[8];
        float4 v[8];
        TL_UNROLL_FOR (int u = 0; u < 8; u++) {
            uint32_t quad;
            const uint32_t row = quads.divmod(i + u * THREADS, &quad);
            element[u] = row < rows && 4 * quad < cols ? row * stride + 4 * quad : UINT32_MAX;
            v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (base && element[u] != UINT32_MAX) v[u] = tl_load4(base + element[u]);
        }
        TL_UNROLL_FOR (int u = 0; u < 8; u++)
            if (element[u] != UINT32_MAX) tl_store4(out + element[u], v[u]);
    }
}

struct sorted_list {
    const uint32_t *words;
    uint32_t count;

    __device__ __forceinline__ uint32_t row(uint32_t i) const { return words[i] >> POSITION_BITS; }
    __device__ __forceinline__ bool in_run(uint32_t i, uint32_t of) const { return i < count && row(i) == of; }
    __device__ __forceinline__ bool begins(uint32_t i) const { return i == 0 || row(i - 1) != row(i); }
    __device__ __forceinline__ uint32_t end(uint32_t first) const
    {
        const uint32_t of = row(first);
        return tl_run_end(first, count, [=](uint32_t i) { return row(i) == of; });
    }
};

__device__ __forceinline__ void add_to(float &sum, float v) { sum += v; }
__device__ __forceinline__ void add_to(float4 &sum, float4 v)
{
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
}

/* A thread owns a Vector of a run of up to LONGEST hits, of `runs` of which start(run) says where they may begin; longer ones are
 * left. Rows have `cols` vectors in the tile, `stride` in all. */
template <uint32_t LONGEST, class Vector, class Start, class Leave>
__device__ __forceinline__ void add_short_runs(const Vector *base, const Vector *values, Vector *out, uint32_t stride,
                                               const tl_fastdiv &width, uint32_t cols, const sorted_list &sorted,
                                               uint32_t runs, Start start, Leave leave)
{
    constexpr int AT_ONCE = 8;
    for (uint32_t t = threadIdx.x; t < runs * width.divisor; t += THREADS) {
        uint32_t col;
        const uint32_t i = start(width.divmod(t, &col)), row = sorted.row(i);
        if (col >= cols || !sorted.begins(i)) continue;
        if (sorted.in_run(i + LONGEST, row)) {
            if (col == 0) leave(i, row);
            continue;
        }
        const int64_t element = (int64_t)row * stride + col;
        Vector sum = base ? base[element] : Vector{};
        for (uint32_t from = i; sorted.in_run(from, row); from += AT_ONCE) {
            Vector v[AT_ONCE];
            TL_UNROLL_FOR (int e = 0; e < AT_ONCE; e++)
                if (sorted.in_run(from + e, row))
                    v[e] = values[(int64_t)(sorted.words[from + e] & POSITIONS) * stride + col];
            TL_UNROLL_FOR (int e = 0; e < AT_ONCE; e++)
                if (sorted.in_run(from + e, row)) add_to(sum, v[e]);
        }
        out[element] = sum;
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
    using Sort = cub::BlockRadixSort<uint32_t, THREADS, ITEMS>;
    union {
        typename Sort::TempStorage sort;
        uint32_t list[ITEMS * THREADS];
    };
    union { /* what warps or the block add, after where runs begin */
        float4 chunk[WARPS][16 * RUN / 4];
        float stage[TL_LONG_STAGE][32];
        uint16_t begins[WARPS * 16 * RUN * 2];
    };
};

template <int ITEMS> __global__ void __launch_bounds__(THREADS, ITEMS < 32 ? 3 : 2) scatter_tile_kernel(tiles s)
{
    using Sort = typename tile_room<ITEMS>::Sort;
    constexpr uint32_t LEFT = ITEMS * THREADS / MANY;
    TL_DYNAMIC_SHARED(uint4, shared);
    tile_room<ITEMS> &room = *reinterpret_cast<tile_room<ITEMS> *>(shared);
    __shared__ uint4 few_words[FEW / 4 + 1];
    __shared__ uint32_t left[LEFT]; /* runs that are left: many hits from the front, long ones from the back */
    __shared__ uint32_t count, begun, many, longs;
    uint32_t *const list = room.list;
    uint32_t *const few = reinterpret_cast<uint32_t *>(few_words);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    uint32_t tile, piece;
    const uint32_t o = s.count.divmod(blockIdx.x, &tile), first_row = s.pieces.divmod(tile, &piece) * s.tile_rows;
    const uint32_t rows = min(s.tile_rows, s.rows - first_row), first_col = piece * s.width.divisor;
    const uint32_t cols = min(s.width.divisor, s.cols - first_col);
    const int64_t at = ((int64_t)o * s.rows + first_row) * s.cols + first_col;
    const float *const base = s.base ? s.base + at : nullptr;
    const float *const values = s.values + (int64_t)o * s.k * s.cols + first_col;
    float *const out = s.out + at;
    const uint32_t *const indices = s.indices + (s.by_outer ? (int64_t)o * s.k : 0);

    const bool by_quads = s.quads.divisor > 1;
    if (threadIdx.x == 0) count = begun = many = longs = 0;
    uint32_t index[ITEMS]; /* on their way while the tile is copied */
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        index[i] = i * THREADS + threadIdx.x < s.k ? indices[i * THREADS + threadIdx.x] : UINT32_MAX;
    if (rows == 1 || cols == s.cols) {
        copy_tile(base, out, at, rows * cols, s.aligned);
    } else if (by_quads) {
        copy_quads(base, out, rows, cols, s.cols, s.quads);
    } else {
        copy_columns(base, out, rows, cols, s.cols, s.width);
    }
    __syncthreads();
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        const uint32_t row = index[i] - first_row; /* of the tile; above it also for those before */
        if (row < rows) {
            const uint32_t place = atomicAdd(&count, 1u);
            if (place < FEW) few[place] = row << POSITION_BITS | (i * THREADS + threadIdx.x);
        }
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
    } else {
        uint32_t key[ITEMS];
        TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
            const uint32_t j = threadIdx.x * ITEMS + i;
            key[i] = min(j < s.k ? indices[j] - first_row : UINT32_MAX, rows) << POSITION_BITS | j;
        }
        Sort(room.sort).SortBlockedToStriped(key, POSITION_BITS, POSITION_BITS + 32 - __clz((int)rows));
        __syncthreads();
        TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
            list[i * THREADS + threadIdx.x] = key[i];
    }
    __syncthreads();

    const tl_hits column_hits = {list, POSITIONS, values, s.cols};
    const sorted_list sorted = {list, hits};
    /* Where runs begin, as far as there is room; where there are more of them, most hits begin one. */
    constexpr uint32_t BEGINS = sizeof room.begins / sizeof(uint16_t);
    uint16_t *const begins = room.begins;
    for (uint32_t i = threadIdx.x; i < hits; i += THREADS) {
        if (!sorted.begins(i)) continue;
        const uint32_t place = atomicAdd(&begun, 1u);
        if (place < BEGINS) begins[place] = (uint16_t)i;
    }
    __syncthreads();
    const uint32_t starts = begun <= BEGINS ? begun : hits;
    const auto start = [&](uint32_t run) { return begun <= BEGINS ? (uint32_t)begins[run] : run; };
    const auto leave = [&](uint32_t i, bool is_long) {
        if (is_long)
            left[LEFT - 1 - atomicAdd(&longs, 1u)] = i;
        else
            left[atomicAdd(&many, 1u)] = i;
    };
    if (cols < 32) { /* a thread owns a column of a run, or four of them */
        const auto leave_long = [&](uint32_t i, uint32_t) { leave(i, true); };
        if (by_quads)
            add_short_runs<NARROW_LONG>((const float4 *)base, (const float4 *)values, (float4 *)out, s.cols / 4,
                                        s.quads, cols / 4, sorted, starts, start, leave_long);
        else
            add_short_runs<NARROW_LONG>(base, values, out, s.cols, s.width, cols, sorted, starts, start, leave_long);
    } else if (by_quads && cols <= ROW_COLUMNS) {
        add_short_runs<MANY>((const float4 *)base, (const float4 *)values, (float4 *)out, s.cols / 4, s.quads, cols / 4,
                             sorted, starts, start,
                             [&](uint32_t i, uint32_t row) { leave(i, sorted.in_run(i + LONG, row)); });
    } else { /* a warp owns 128 columns of a run */
        const uint32_t groups = (cols + 127) / 128;
        for (uint32_t unit = warp; unit < starts * groups; unit += WARPS) {
            const uint32_t first = unit % groups * 128, i = start(unit / groups), row = sorted.row(i);
            if (!sorted.begins(i)) continue;
            if (sorted.in_run(i + MANY, row)) {
                if (first == 0 && lane == 0) leave(i, sorted.in_run(i + LONG, row) && cols <= LONG_COLUMNS);
                continue;
            }
            const uint32_t n = __popc(__ballot_sync(~0u, sorted.in_run(i + lane, row)));
            const uint32_t mine = lane < n ? list[i + lane] & POSITIONS : 0;
            const int64_t from = (int64_t)row * s.cols;
            if (s.vectors)
                add_group<true>(base ? base + from : nullptr, values, out + from, s.cols, mine, n, first, cols);
            else
                add_group<false>(base ? base + from : nullptr, values, out + from, s.cols, mine, n, first, cols);
        }
    }
    __syncthreads();

    const uint32_t strips = (cols + 31) / 32;
    if (cols < 32) { /* a warp owns a column of a long run */
        for (uint32_t unit = warp; unit < longs * cols; unit += WARPS) {
            const uint32_t i = left[LEFT - 1 - unit / cols], col = unit % cols, row = sorted.row(i);
            const uint32_t end = sorted.end(i);
            const int64_t element = (int64_t)row * s.cols + col;
            const float sum = tl_add_run<RUN>(column_hits, i, end, col, base ? base[element] : 0.0f, room.chunk[warp]);
            if (lane == 0) out[element] = sum;
        }
    } else { /* the block owns it, 32 columns after the others */
        for (uint32_t unit = 0; unit < longs * strips; unit++) {
            const uint32_t i = left[LEFT - 1 - unit / strips], row = sorted.row(i), end = sorted.end(i);
            const uint32_t col = min(unit % strips * 32 + lane, cols - 1);
            const int64_t element = (int64_t)row * s.cols + col;
            const float sum = tl_add_staged(column_hits, i, end, col, base ? base[element] : 0.0f, room.stage);
            if (warp == 0) out[element] = sum;
        }
    }
    /* A warp owns 32 columns of another run. */
    for (uint32_t unit = warp; unit < many * strips; unit += WARPS) {
        const uint32_t i = left[unit / strips], col = min(unit % strips * 32 + lane, cols - 1), row = sorted.row(i);
        const uint32_t end = sorted.end(i);
        const int64_t element = (int64_t)row * s.cols + col;
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
    if (outer * rows * cols < TL_SMALL_TABLE && cols > FEW_COLUMNS && !by_rows) {
        /* Whole columns of an array, if tiles that are filled by them have more than twice as many as others. */
        const int64_t parts = cols * rows < size ? 1 : cols * rows / size;
        const bool by_columns = cols > 2 * FEW_COLUMNS * parts;
        width = by_columns ? tl_ceil_div(tl_ceil_div(cols, parts), 4) * 4 : FEW_COLUMNS;
        if (by_columns) tile_rows = rows;
    } else if (vectors && cols > piece && k * FEW_ROWS > outer * rows) {
        width = tl_ceil_div(tl_ceil_div(cols, tl_ceil_div(cols, piece)), 32) * 32;
    } else if (width > size) {
        width = tl_ceil_div(tl_ceil_div(cols, tl_ceil_div(cols, size)), 4) * 4;
    }
    if (tile_rows == 0) {
        tile_rows = size > width ? size / width : 1;
        tile_rows = tl_ceil_div(rows, tl_ceil_div(rows, tile_rows)); /* no last tile of far fewer */
        if (tile_rows > 4) tile_rows = tl_ceil_div(tile_rows, 4) * 4;
    }
    const int64_t pieces = tl_ceil_div(cols, width), count = tl_ceil_div(rows, tile_rows) * pieces;
    tiles s = {base, values, out, indices, (uint32_t)rows, (uint32_t)cols, (uint32_t)k, (uint32_t)tile_rows};
    s.count = tl_fastdiv(count), s.pieces = tl_fastdiv(pieces), s.width = tl_fastdiv(width);
    s.quads = tl_fastdiv(vectors && width % 4 == 0 ? width / 4 : 1), s.by_outer = by_outer, s.aligned = aligned,
    s.vectors = vectors;
    const auto launch = k <= 8 * THREADS ? launch_tiles<8> : k <= 16 * THREADS ? launch_tiles<16> : launch_tiles<32>;
    return launch(ctx, name, outer * count, s);
}
