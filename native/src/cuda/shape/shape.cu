/* Permutations of axes on CUDA.
 *
 * A permutation is a few exchanges of two neighbouring groups of axes, most often one: an array (outer, rows, cols, inner)
 * becomes (outer, cols, rows, inner). Four ways share the work, all bound by memory:
 *
 *   squares   inner = 1, rows and cols multiples of 4: tiles of 64 by 64, 16 bytes per thread on both sides
 *   ragged    inner = 1, any other matrix that fills such tiles: 4 bytes per thread, 16 loads in flight
 *   bricks    short runs (inner), thin matrices, and batches of small ones: tiles of whatever form fits 16 KiB
 *   runs      long runs: a strided copy (slices.cu)
 *
 * An element's index fits 32 bits (a buffer has fewer than 2^32 elements); sums that may pass it are 64-bit. */
#include "cuda/device/division.cuh"
#include "cuda/shape/shape.cuh"

namespace {

constexpr int THREADS = 256;

/* ---- exchanges of axes ------------------------------------------------------------------------------------------- */

/* out[o,c,r,i] = x[o,r,c,i] */
struct Exchange {
    const float *x;
    float *out;
    int64_t outer, rows, cols, inner;
};

/* ---- tiles of 64 by 64 ------------------------------------------------------------------------------------------- */

constexpr int TILE = 64;
/* Consecutive blocks go down GROUP tiles before they go one to the right, so the blocks that run together read long
 * pieces of some rows and write long pieces of others: device memory pages stay open on both sides. */
constexpr int GROUP = 16;

struct Tiles {
    const float *x;
    float *out;
    uint32_t rows, cols;
    tl_fastdiv matrix;     /* tiles of a matrix */
    tl_fastdiv band;       /* tiles of GROUP rows of tiles */
    tl_fastdiv full, last; /* rows of tiles in a group; in the matrix's last group */
    uint32_t groups;

    /* The block's tile: its first row and column, and where its matrix starts. */
    __device__ __forceinline__ void locate(uint32_t *row, uint32_t *col, int64_t *start) const
    {
        uint32_t rest, down, across;
        const uint32_t o = matrix.divmod(blockIdx.x, &rest);
        const uint32_t group = band.divmod(rest, &rest);
        if (group + 1 == groups)
            across = last.divmod(rest, &down);
        else
            across = full.divmod(rest, &down);
        *row = (group * GROUP + down) * TILE;
        *col = across * TILE;
        *start = (int64_t)o * rows * cols;
    }
};

/* A thread owns the 4 by 4 block (rows 4·i.., columns 4·q..) of the tile, where q = lane mod 16 and i counts
 * half-warps: half a warp loads 256 consecutive bytes of a row. It transposes the block by naming registers and puts
 * its four columns into shared memory as the output's rows, 16 slots of 16 bytes each. Column 4·q + k has its slot i
 * at i ^ (q mod 8): the eight lanes that a 16-byte access serves together have eight different q when they write and
 * eight different slots of one row when they read, so both touch all 32 banks once. Then half a warp stores 256 bytes
 * of an output row. */
__global__ void __launch_bounds__(THREADS) squares_kernel(Tiles t)
{
    __shared__ float4 tile[TILE][TILE / 4];
    uint32_t row, col;
    int64_t start;
    t.locate(&row, &col, &start);
    const uint32_t q = threadIdx.x % 16, i = threadIdx.x / 16;
    if (row + 4 * i < t.rows && col + 4 * q < t.cols) {
        const float *x = t.x + start + (int64_t)(row + 4 * i) * t.cols + col + 4 * q;
        const int64_t next = t.cols;
        const float4 a = tl_load4(x), b = tl_load4(x + next), c = tl_load4(x + 2 * next), d = tl_load4(x + 3 * next);
        const uint32_t slot = i ^ (q & 7);
        tile[4 * q][slot] = make_float4(a.x, b.x, c.x, d.x);
        tile[4 * q + 1][slot] = make_float4(a.y, b.y, c.y, d.y);
        tile[4 * q + 2][slot] = make_float4(a.z, b.z, c.z, d.z);
        tile[4 * q + 3][slot] = make_float4(a.w, b.w, c.w, d.w);
    }
    __syncthreads();
    float *out = t.out + start + (int64_t)(col + i) * t.rows + row + 4 * q;
    if (row + 4 * q < t.rows) {
        TL_UNROLL_FOR (uint32_t k = 0; k < TILE / 16; k++) {
            const uint32_t c = 16 * k + i;
            if (col + c < t.cols) tl_store4(out + (int64_t)(16 * k) * t.rows, tile[c][q ^ ((c >> 2) & 7)]);
        }
    }
}

/* The same tile by single floats: a warp loads 32 consecutive columns of a row, 16 loads per thread in flight, and
 * stores 32 consecutive elements of an output row. Rows of 65 floats in shared memory put a column's elements in
 * different banks. */
__global__ void __launch_bounds__(THREADS) ragged_kernel(Tiles t)
{
    __shared__ float tile[TILE][TILE + 1];
    uint32_t row, col;
    int64_t start;
    t.locate(&row, &col, &start);
    const uint32_t lane = threadIdx.x % TILE, i = threadIdx.x / TILE;
    constexpr uint32_t STEP = THREADS / TILE, STEPS = TILE / STEP;
    float v[STEPS];
    const float *x = t.x + start + (int64_t)(row + i) * t.cols + col + lane;
    TL_UNROLL_FOR (uint32_t k = 0; k < STEPS; k++)
        v[k] = row + i + k * STEP < t.rows && col + lane < t.cols ? x[(int64_t)(k * STEP) * t.cols] : 0.0f;
    TL_UNROLL_FOR (uint32_t k = 0; k < STEPS; k++)
        tile[lane][i + k * STEP] = v[k];
    __syncthreads();
    float *out = t.out + start + (int64_t)(col + i) * t.rows + row + lane;
    if (row + lane < t.rows) {
        TL_UNROLL_FOR (uint32_t k = 0; k < STEPS; k++)
            if (col + i + k * STEP < t.cols) out[(int64_t)(k * STEP) * t.rows] = tile[i + k * STEP][lane];
    }
}

int32_t run_tiles(tl_context *ctx, const char *name, const Exchange &e)
{
    const int64_t down = tl_ceil_div(e.rows, TILE), across = tl_ceil_div(e.cols, TILE);
    Tiles t = {};
    t.x = e.x, t.out = e.out, t.rows = (uint32_t)e.rows, t.cols = (uint32_t)e.cols;
    t.groups = (uint32_t)tl_ceil_div(down, GROUP);
    t.matrix = tl_fastdiv((uint64_t)(down * across)), t.band = tl_fastdiv((uint64_t)(GROUP * across));
    t.full = tl_fastdiv(GROUP), t.last = tl_fastdiv((uint64_t)(down - (t.groups - 1) * (int64_t)GROUP));
    const bool by_four = e.rows % 4 == 0 && e.cols % 4 == 0 && tl_aligned4(e.x) && tl_aligned4(e.out);
    return tl_launch(ctx, name, by_four ? squares_kernel : ragged_kernel, tl_grid(e.outer * down * across, 1), THREADS,
                     t);
}

/* ---- bricks ------------------------------------------------------------------------------------------------------ */

/* A block owns a brick of `down` rows by `across` columns by all of inner, or, where a matrix is that small, BATCH
 * matrices that lie side by side in both arrays; at most BRICK bytes. The array's unit is T: float, or float4 where
 * inner allows. Threads run over the brick in the input's order to load it and in the output's order to store it, so
 * both sides are coalesced in pieces as long as the brick's rows. In shared memory the rows have an odd pitch, so
 * that a walk down a column meets all banks; rows of less than eight units are left as they are, because a warp
 * covers them whole. */
constexpr int BRICK = 16384;

template <class T> struct Bricks {
    const T *x;
    T *out;
    uint32_t outer, rows, cols, inner;
    uint32_t outers, down, across, pitch;
    uint32_t units;                      /* of a full brick */
    tl_fastdiv by_across, by_down;       /* bricks of a matrix across, down */
    tl_fastdiv line, height, width, run; /* across·inner, down, across, inner */
};

template <class T, bool BATCH, bool RUN> __global__ void __launch_bounds__(THREADS) bricks_kernel(Bricks<T> b)
{
    constexpr int UNITS = BRICK / sizeof(T), STEPS = UNITS / THREADS;
    __shared__ T brick[UNITS + UNITS / 8];
    uint32_t o = blockIdx.x, r0 = 0, c0 = 0, units = b.units;
    if (BATCH) {
        o *= b.outers;
        units = min(b.outers, b.outer - o) * (b.rows * b.cols * b.inner);
    } else {
        o = b.by_down.divmod(b.by_across.divmod(o, &c0), &r0);
        c0 *= b.across, r0 *= b.down;
    }
    const uint32_t rows = min(b.down, b.rows - r0), cols = min(b.across, b.cols - c0);
    if (!BATCH) units = rows * b.cols * b.inner;
    const uint32_t x_stride = b.cols * b.inner, out_stride = b.rows * b.inner;
    const T *x = b.x + (int64_t)o * b.rows * x_stride + (int64_t)r0 * x_stride + c0 * b.inner;
    T *out = b.out + (int64_t)o * b.rows * x_stride + (int64_t)c0 * out_stride + r0 * b.inner;

    T v[STEPS];
    if (BATCH || b.across == b.cols) { /* whole rows of x, or matrices */
        TL_UNROLL_FOR (int k = 0; k < STEPS; k++) {
            const uint32_t e = k * THREADS + threadIdx.x;
            v[k] = e < units ? x[e] : T();
        }
    } else {
        TL_UNROLL_FOR (int k = 0; k < STEPS; k++) {
            uint32_t w;
            const uint32_t r = b.line.divmod(k * THREADS + threadIdx.x, &w);
            v[k] = r < rows && w < cols * b.inner ? x[(int64_t)r * x_stride + w] : T();
        }
    }
    TL_UNROLL_FOR (int k = 0; k < STEPS; k++) {
        const uint32_t e = k * THREADS + threadIdx.x;
        uint32_t w;
        const uint32_t r = b.line.divmod(e, &w);
        /* of a part past the end, too: there is room, and a branch would set the loads above apart */
        if (!BATCH || e < units) brick[r * b.pitch + w] = v[k];
    }
    __syncthreads();
    TL_UNROLL_FOR (int k = 0; k < STEPS; k++) {
        const uint32_t e = k * THREADS + threadIdx.x;
        uint32_t i = 0, r, c, m = 0;
        c = b.height.divmod(RUN ? b.run.divmod(e, &i) : e, &r);
        if (BATCH) m = b.width.divmod(c, &c);
        const uint32_t from = (m * b.down + r) * b.pitch + (RUN ? c * b.inner + i : c);
        if (BATCH) {
            if (e < units) out[e] = brick[from];
        } else if (r < rows && c < cols) {
            out[(int64_t)c * out_stride + (RUN ? r * b.inner + i : r)] = brick[from];
        }
    }
}

template <class T> int32_t run_bricks(tl_context *ctx, const char *name, const Exchange &e)
{
    const int64_t rows = e.rows, cols = e.cols, inner = e.inner / (int64_t)(sizeof(T) / sizeof(float));
    constexpr int64_t UNITS = BRICK / sizeof(T);
    const bool batch = rows * cols * inner <= UNITS;
    int64_t outers = 1, down = rows, across = cols;
    if (batch) {
        outers = UNITS / (rows * cols * inner);
    } else {
        /* Rows of the brick are read in pieces of across·inner and written in pieces of down·inner units: as square
         * as the array allows, in whole lines where there is a choice. */
        const int64_t area = UNITS / inner;
        int64_t side = 1;
        while ((side + 1) * (side + 1) <= area)
            side++;
        down = rows < side ? rows : side;
        across = cols < area / down ? cols : area / down;
        if (across < side) down = rows < area / across ? rows : area / across;
        if (inner == 1 && across < cols && across >= 32) across -= across % 32;
        if (inner == 1 && down < rows && down >= 32) down -= down % 32;
        if (inner > 1) { /* all bricks of one size, as far as it goes */
            across = tl_ceil_div(cols, tl_ceil_div(cols, across));
            down = rows < area / across ? rows : area / across;
            down = tl_ceil_div(rows, tl_ceil_div(rows, down));
        }
    }
    Bricks<T> b = {};
    b.x = reinterpret_cast<const T *>(e.x), b.out = reinterpret_cast<T *>(e.out);
    b.outer = (uint32_t)e.outer, b.rows = (uint32_t)rows, b.cols = (uint32_t)cols, b.inner = (uint32_t)inner;
    b.outers = (uint32_t)outers, b.down = (uint32_t)down, b.across = (uint32_t)across;
    b.pitch = (uint32_t)(across * inner < 8 ? across * inner : (across * inner) | 1);
    b.units = (uint32_t)(outers * down * across * inner);
    const int64_t bricks_across = tl_ceil_div(cols, across), bricks_down = tl_ceil_div(rows, down);
    b.by_across = tl_fastdiv((uint64_t)bricks_across), b.by_down = tl_fastdiv((uint64_t)bricks_down);
    b.line = tl_fastdiv((uint64_t)(across * inner)), b.height = tl_fastdiv((uint64_t)down);
    b.width = tl_fastdiv((uint64_t)across), b.run = tl_fastdiv((uint64_t)inner);
    const unsigned grid = tl_grid(tl_ceil_div(e.outer, outers) * bricks_down * bricks_across, 1);
    const auto kernel = batch       ? inner > 1 ? bricks_kernel<T, true, true> : bricks_kernel<T, true, false>
                        : inner > 1 ? bricks_kernel<T, false, true>
                                    : bricks_kernel<T, false, false>;
    return tl_launch(ctx, name, kernel, grid, THREADS, b);
}

/* ---- long runs --------------------------------------------------------------------------------------------------- */

/* A strided copy: every unit comes straight from its place. */
int32_t run_runs(tl_context *ctx, const char *name, const Exchange &e)
{
    const int64_t size[4] = {e.outer, e.cols, e.rows, e.inner};
    const int64_t stride[4] = {e.rows * e.cols * e.inner, e.inner, e.cols * e.inner, 1};
    tl_strided s = {0, 0, e.outer * e.rows * e.cols * e.inner, {}, {}};
    for (int k = e.outer == 1; k < 4; k++)
        s.size[s.count] = size[k], s.stride[s.count++] = stride[k];
    return tl_cuda_copy_strided(ctx, name, s, e.x, e.out);
}

/* ---- the choice among them --------------------------------------------------------------------------------------- */

int32_t exchange_axes(tl_context *ctx, const char *name, const Exchange &e)
{
    if (e.inner == 1) {
        /* Below 32 rows or columns, or half a tile of elements, most of a tile's threads would idle. */
        if (e.rows < 32 || e.cols < 32 || e.rows * e.cols <= TILE * TILE / 2) return run_bricks<float>(ctx, name, e);
        return run_tiles(ctx, name, e);
    }
    /* Runs of 128 bytes fill whole lines, so nothing is gained by collecting neighbours first. */
    if (e.inner % 4 == 0 && tl_aligned4(e.x) && tl_aligned4(e.out))
        return e.inner >= 32 ? run_runs(ctx, name, e) : run_bricks<float4>(ctx, name, e);
    return e.inner >= 128 ? run_runs(ctx, name, e) : run_bricks<float>(ctx, name, e);
}

} // namespace

int32_t tl_cuda_order_axes(tl_context *ctx, tl_axis_order order, const float *x, float *out)
{
    const int64_t n = tl_sizes_product(order.size, order.count);
    int64_t size[4]; /* of an exchange: outer, rows, cols, inner */
    if (n == 0) return TORCHLEAN_OK;
    if (tl_is_ordered(&order)) return tl_cuda_copy(tl_context_cuda(ctx), out, x, (size_t)n * sizeof(float));
    tl_scratch<float> scratch[2] = {tl_scratch<float>(ctx), tl_scratch<float>(ctx)};
    for (int i = 0; tl_next_move(&order, size); i ^= 1) {
        float *to = out;
        if (!tl_is_ordered(&order)) {
            if (!scratch[i]) TL_TRY(scratch[i].allocate(n));
            to = scratch[i];
        }
        TL_TRY(exchange_axes(ctx, "tl_cuda_permute", Exchange{x, to, size[0], size[1], size[2], size[3]}));
        x = to;
    }
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_permute(tl_context *ctx, const float *x, const tl_dims *dims, const tl_dims *axes,
                                   float *out)
{
    int64_t map[TL_MAX_RANK];
    for (int32_t k = 0; k < axes->rank; k++)
        map[k] = axes->d[k] + 1;
    return tl_cuda_order_axes(ctx, tl_order_of_output(dims->d, dims->rank, map, axes->rank), x, out);
}
