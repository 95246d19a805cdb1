/* The truncated transform of few channels on a long grid on CUDA. A tile of them would leave most threads without a channel, so
 * several tiles lie side by side: a column is a channel of one of them. Columns meet the same cosines and sines, as these belong to
 * a tile's middle, and each its own tile's turn. The sums of a channel's columns are added last.
 *
 * Tiles that lie side by side follow one another in memory, whole, and a block reads or writes them as one piece, 16 bytes at a
 * time. In shared memory a tile is followed by as many idle numbers as there are channels, to four: columns side by side then lie in
 * different banks, or in one of 8 at least of a single channel, and vectors in one piece. */
#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/spectral/truncated.cuh"

namespace {

constexpr int THREADS = 256, TILE = TL_DFT_TILE, HALF = TL_DFT_HALF;
/* Columns of a strip, of which a thread owns two a warp apart, and the most tiles that one has: the roots of more would not fit the
 * shared memory of every device. */
constexpr int STRIP = 64, WARP = 32, MOST_TILES = 32;
/* Analysis: a quarter of a block owns a strip, a thread MODES modes of its columns; per pair of rows 4·MODES FMAs meet four reads of
 * numbers and MODES/2 broadcast 16-byte reads of roots. */
constexpr int MODES = 8, BLOCK_MODES = 16, QUARTERS = 4, QUARTER = THREADS / QUARTERS;
/* Synthesis: half of a block owns a strip, a thread PAIRS pairs of rows of its columns; modes pass in chunks. */
constexpr int PAIRS = 8, CHUNK = 16, HALVES = 2, OF_HALF = THREADS / HALVES;

/* The grid, and its tiles in strips; `apart`: floats from a tile to the next one in shared memory; vectors: by those of a tile. */
struct Strips {
    int64_t n, width, modes, tiles_per_block;
    int tiles, apart;
    tl_fastdiv vectors;
    bool aligned; /* the array, to 16 bytes */

    Strips(int64_t n, int64_t width, int64_t modes, int64_t tiles, int64_t others, int strips, const void *array)
        : n(n), width(width), modes(modes),
          tiles_per_block(tiles_of_block(tl_ceil_div(n, TILE), others, strips * tiles)), tiles((int)tiles),
          apart((int)(TILE * width + tl_ceil_div(width, 4) * 4)), vectors((uint64_t)(TILE / 4 * width)),
          aligned(tl_aligned4(static_cast<const float *>(array)))
    {}
    int64_t parts() const { return tl_ceil_div(tl_ceil_div(n, TILE), tiles_per_block); }
    size_t roots_bytes(int strips) const { return (size_t)strips * BLOCK_MODES * tiles * sizeof(float2); }
    size_t strip_bytes() const { return (size_t)tiles * apart * sizeof(float); }
};

/* A column: its tile and its channel, and where its first number lies. Those behind the last one read the first one's. */
struct Column {
    bool present;
    int tile, channel, place;
    __device__ __forceinline__ Column(const Strips &p, int column)
    {
        const int width = (int)p.width;
        present = column < p.tiles * width;
        tile = present ? column / width : 0;
        channel = present ? column - tile * width : 0;
        place = tile * p.apart + channel;
    }
};

/* ---- analysis ---------------------------------------------------------------------------------------------------- */

/* Starts copying a strip that starts at number `first` of the grid's `total`; zeros follow the last one. */
__device__ __forceinline__ void copy_strip(const Strips &p, const float *x, int64_t first, int64_t total, float *to,
                                           int t)
{
    const int vectors = p.tiles * (int)p.vectors.divisor;
    for (int v = t; v < vectors; v += QUARTER) {
        uint32_t rest;
        const int tile = (int)p.vectors.divmod((uint32_t)v, &rest);
        const int64_t at = first + 4 * v, left = total - at;
        float *const place = to + tile * p.apart + 4 * (int)rest;
        if (p.aligned)
            tl_copy_async_first(place, left > 0 ? x + at : x, left >= 4 ? 16 : left > 0 ? 4 * (int)left : 0);
        else
            TL_UNROLL_FOR (int i = 0; i < 4; i++)
                tl_copy_async<4>(place + i, left > i ? x + at + i : x, left > i);
    }
    tl_copy_commit();
}

constexpr int SUMS = BLOCK_MODES * 2 * THREADS; /* [mode][re, im][quarter][column] */

/* Block (x: part of the grid, y: modes). Every quarter adds its strips in order, q, q + 4, ... of the block's; the four sums are added
 * in pairs, then those of a channel's columns in four chains, added in pairs. */
__global__ void __launch_bounds__(THREADS, 2)
    analysis_kernel(const float *__restrict__ x, const __grid_constant__ Strips p, float *__restrict__ shares)
{
    TL_DYNAMIC_SHARED(float, memory);
    float (*const cosine)[BLOCK_MODES] = reinterpret_cast<float (*)[BLOCK_MODES]>(memory);
    float (*const sine)[BLOCK_MODES] = cosine + HALF;
    float2 *const root = reinterpret_cast<float2 *>(memory + 2 * HALF * BLOCK_MODES); /* [quarter][mode][tile] */
    float *const numbers = reinterpret_cast<float *>(root + QUARTERS * BLOCK_MODES * p.tiles);
    const int quarter = (int)threadIdx.x / QUARTER, t = (int)threadIdx.x % QUARTER, lane = t % WARP, group = t / WARP;
    const int first_mode = (int)blockIdx.y * BLOCK_MODES, width = (int)p.width;
    const int count = (int)(p.modes - first_mode < BLOCK_MODES ? p.modes - first_mode : BLOCK_MODES);
    const Column column[2] = {Column(p, lane), Column(p, lane + WARP)};
    float *const own = numbers + quarter * p.tiles * p.apart;
    const int64_t total = p.n * p.width;
    float re[MODES][2] = {}, im[MODES][2] = {};
    for (int64_t i = 0; i < p.tiles_per_block; i += QUARTERS * p.tiles) {
        const int64_t first = blockIdx.x * p.tiles_per_block + i + quarter * p.tiles, start = first * TILE * p.width;
        const bool idle = start >= total;
        __syncthreads(); /* the last strips are used up */
        if (!idle) copy_strip(p, x, start, total, own, t);
        if (i == 0)
            for (int e = (int)threadIdx.x; e < HALF * BLOCK_MODES; e += THREADS) {
                const int j = e / BLOCK_MODES, k = e % BLOCK_MODES;
                if (k >= count) continue;
                const float2 r = half_root(first_mode + k, 2 * j + 1, p.n);
                cosine[j][k] = r.x;
                sine[j][k] = r.y;
            }
        for (int e = t; !idle && e < p.tiles * BLOCK_MODES; e += QUARTER) {
            const int tile = e / BLOCK_MODES, k = e % BLOCK_MODES;
            if (k < count)
                root[(quarter * BLOCK_MODES + k) * p.tiles + tile] =
                    half_root(first_mode + k, 2 * (first + tile) * TILE + TILE - 1, p.n);
        }
        tl_copy_wait<0>();
        __syncthreads();
        if (idle || group * MODES >= count) continue;
        const float *after[2], *before[2];
        TL_UNROLL_FOR (int c = 0; c < 2; c++)
            after[c] = own + column[c].place + HALF * width, before[c] = after[c] - width;
        float even[MODES][2] = {}, odd[MODES][2] = {};
#pragma unroll 4
        for (int j = 0; j < HALF; j++) {
            float plus[2], minus[2], c[MODES], d[MODES];
            TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                plus[h] = *after[h] + *before[h], minus[h] = *after[h] - *before[h];
                after[h] += width, before[h] -= width;
            }
            TL_UNROLL_FOR (int k = 0; k < MODES; k += 4) {
                tl_load4(&cosine[j][group * MODES + k], c + k);
                tl_load4(&sine[j][group * MODES + k], d + k);
            }
            TL_UNROLL_FOR (int k = 0; k < MODES; k++)
                TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                    even[k][h] = fmaf(c[k], plus[h], even[k][h]);
                    odd[k][h] = fmaf(d[k], minus[h], odd[k][h]);
                }
        }
        TL_UNROLL_FOR (int k = 0; k < MODES; k++)
            TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                const float2 r = root[(quarter * BLOCK_MODES + group * MODES + k) * p.tiles + column[h].tile];
                re[k][h] += even[k][h] * r.x - odd[k][h] * r.y;
                im[k][h] -= even[k][h] * r.y + odd[k][h] * r.x;
            }
    }
    __syncthreads();
    TL_UNROLL_FOR (int k = 0; k < MODES; k++)
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            float *const at = numbers + (group * MODES + k) * 2 * THREADS + quarter * STRIP + lane + h * WARP;
            at[0] = re[k][h];
            at[THREADS] = im[k][h];
        }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < SUMS / QUARTERS; e += THREADS) {
        float *const at = numbers + e / STRIP * THREADS + e % STRIP;
        *at = (at[0] + at[STRIP]) + (at[2 * STRIP] + at[3 * STRIP]);
    }
    __syncthreads();
    const int64_t share = ((int64_t)blockIdx.x * p.modes + first_mode) * 2 * width;
    for (int e = (int)threadIdx.x; e < count * 2 * width; e += THREADS) {
        const float *const at = numbers + e / width * THREADS + e % width;
        float sum[4] = {};
        for (int tile = 0; tile < p.tiles; tile += 4)
            TL_UNROLL_FOR (int u = 0; u < 4; u++)
                if (tile + u < p.tiles) sum[u] += at[(tile + u) * width];
        shares[share + e] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

/* ---- synthesis --------------------------------------------------------------------------------------------------- */

struct SynthesisShared {
    float cosine[CHUNK][HALF], sine[CHUNK][HALF];
    float re[HALVES][CHUNK][STRIP], im[HALVES][CHUNK][STRIP]; /* turned to the column's tile's middle */
    /* float2 root[HALVES][CHUNK][tiles] and the strips follow */
};

/* Writes a strip to the grid's numbers from `first` on. */
__device__ __forceinline__ void write_strip(const Strips &p, const float *from, int64_t first, int64_t total, float *y,
                                            int t)
{
    const int vectors = p.tiles * (int)p.vectors.divisor;
    for (int v = t; v < vectors; v += OF_HALF) {
        uint32_t rest;
        const int tile = (int)p.vectors.divmod((uint32_t)v, &rest);
        const int64_t at = first + 4 * v;
        const float4 value = tl_load4(from + tile * p.apart + 4 * (int)rest);
        if (p.aligned && at + 4 <= total) {
            tl_store4(y + at, value);
        } else {
            const float part[4] = {value.x, value.y, value.z, value.w};
            TL_UNROLL_FOR (int i = 0; i < 4; i++)
                if (at + i < total) y[at + i] = part[i];
        }
    }
}

/* A block owns a part of the grid. */
__global__ void __launch_bounds__(THREADS, 2)
    synthesis_kernel(const float *__restrict__ re, const float *__restrict__ im, const __grid_constant__ Strips p,
                     float *__restrict__ y)
{
    TL_DYNAMIC_SHARED(float, memory);
    SynthesisShared &s = *reinterpret_cast<SynthesisShared *>(memory);
    float2 *const roots = reinterpret_cast<float2 *>(&s + 1);
    const int half = (int)threadIdx.x / OF_HALF, t = (int)threadIdx.x % OF_HALF, lane = t % WARP, group = t / WARP;
    float2 *const root = roots + half * CHUNK * p.tiles;
    float *const numbers = reinterpret_cast<float *>(roots + HALVES * CHUNK * p.tiles) + half * p.tiles * p.apart;
    const int width = (int)p.width;
    const Column column[2] = {Column(p, lane), Column(p, lane + WARP)}, turned(p, t % STRIP);
    const int64_t total = p.n * p.width;
    for (int64_t i = 0; i < p.tiles_per_block; i += HALVES * p.tiles) {
        const int64_t first = blockIdx.x * p.tiles_per_block + i + half * p.tiles, start = first * TILE * p.width;
        const bool idle = start >= total;
        float even[PAIRS][2] = {}, odd[PAIRS][2] = {};
        for (int64_t k0 = 0; k0 < p.modes; k0 += CHUNK) {
            const int count = (int)(p.modes - k0 < CHUNK ? p.modes - k0 : CHUNK);
            __syncthreads(); /* the last chunk is used up */
            if (i == 0 || p.modes > CHUNK)
                for (int e = (int)threadIdx.x; e < count * HALF; e += THREADS) {
                    const int k = e / HALF, j = e % HALF;
                    const float2 r = half_root(k0 + k, 2 * j + 1, p.n);
                    s.cosine[k][j] = r.x;
                    s.sine[k][j] = r.y;
                }
            for (int e = t; !idle && e < p.tiles * CHUNK; e += OF_HALF) {
                const int tile = e / CHUNK, k = e % CHUNK;
                if (k < count) root[k * p.tiles + tile] = half_root(k0 + k, 2 * (first + tile) * TILE + TILE - 1, p.n);
            }
            __syncthreads();
            for (int k = t / STRIP; !idle && k < count; k += OF_HALF / STRIP) {
                const int64_t at = (k0 + k) * p.width + turned.channel;
                const float2 r = root[k * p.tiles + turned.tile];
                const float a = re[at], b = im[at];
                s.re[half][k][t % STRIP] = a * r.x - b * r.y;
                s.im[half][k][t % STRIP] = a * r.y + b * r.x;
            }
            __syncthreads();
            if (idle) continue;
#pragma unroll 2
            for (int k = 0; k < count; k++) {
                float a[2], b[2];
                TL_UNROLL_FOR (int h = 0; h < 2; h++)
                    a[h] = s.re[half][k][lane + h * WARP], b[h] = s.im[half][k][lane + h * WARP];
                TL_UNROLL_FOR (int j = 0; j < PAIRS; j += 4) {
                    float c[4], d[4];
                    tl_load4(&s.cosine[k][group * PAIRS + j], c);
                    tl_load4(&s.sine[k][group * PAIRS + j], d);
                    TL_UNROLL_FOR (int u = 0; u < 4; u++)
                        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                            even[j + u][h] = fmaf(c[u], a[h], even[j + u][h]);
                            odd[j + u][h] = fmaf(d[u], b[h], odd[j + u][h]);
                        }
                }
            }
        }
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            if (!column[h].present) continue;
            float *const after = numbers + column[h].place + (HALF + group * PAIRS) * width;
            float *const before = numbers + column[h].place + (HALF - 1 - group * PAIRS) * width;
            TL_UNROLL_FOR (int j = 0; j < PAIRS; j++) {
                after[j * width] = even[j][h] - odd[j][h];
                before[-j * width] = even[j][h] + odd[j][h];
            }
        }
        __syncthreads();
        if (!idle) write_strip(p, numbers, start, total, y, t);
    }
}

/* As many as leave two blocks for each multiprocessor, with `strips` strips each, and as columns have room. */
int64_t tiles_of_strip(int64_t n, int64_t width, int64_t groups, int64_t strips)
{
    const int64_t most = std::min<int64_t>(STRIP / width, MOST_TILES);
    const int64_t wanted = tl_ceil_div(n, TILE) * groups / (strips * (SHARES / 2));
    return std::max<int64_t>(1, std::min(most, wanted));
}

} /* namespace */

int64_t tl_narrow_analysis_tiles(int64_t n, int64_t width, int64_t modes)
{
    return tiles_of_strip(n, width, tl_ceil_div(modes, BLOCK_MODES), QUARTERS);
}

int64_t tl_narrow_synthesis_tiles(int64_t n, int64_t width) { return tiles_of_strip(n, width, 1, HALVES); }

int32_t tl_narrow_analysis(tl_context *ctx, const float *x, int64_t n, int64_t width, int64_t modes,
                           tl_scratch<float> &shares, int64_t *parts)
{
    const int64_t groups = tl_ceil_div(modes, BLOCK_MODES);
    const Strips p(n, width, modes, tl_narrow_analysis_tiles(n, width, modes), groups, QUARTERS, x);
    *parts = p.parts();
    TL_TRY(shares.allocate(*parts * modes * 2 * width));
    const size_t bytes = 2 * HALF * BLOCK_MODES * sizeof(float) + p.roots_bytes(QUARTERS) +
                         std::max(QUARTERS * p.strip_bytes(), SUMS * sizeof(float));
    TL_TRY(tl_allow_shared(ctx, analysis_kernel, bytes));
    return tl_launch_dynamic(ctx, "narrow analysis", analysis_kernel, dim3((unsigned)*parts, (unsigned)groups), THREADS,
                             bytes, x, p, (float *)shares);
}

int32_t tl_narrow_synthesis(tl_context *ctx, const float *re, const float *im, int64_t n, int64_t width, int64_t modes,
                            float *y)
{
    static_assert(CHUNK == BLOCK_MODES, "roots_bytes counts as many roots of each strip");
    const Strips p(n, width, modes, tl_narrow_synthesis_tiles(n, width), 1, HALVES, y);
    const size_t bytes = sizeof(SynthesisShared) + p.roots_bytes(HALVES) + HALVES * p.strip_bytes();
    TL_TRY(tl_allow_shared(ctx, synthesis_kernel, bytes));
    return tl_launch_dynamic(ctx, "narrow synthesis", synthesis_kernel, (unsigned)p.parts(), THREADS, bytes, re, im, p,
                             y);
}
