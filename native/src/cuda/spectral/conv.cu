/* The spectral convolution on CUDA.
 *
 * Few modes: one kernel streams x once and leaves every block's share of the small spectrum, one sums the shares,
 * one mixes channels, one synthesises y; formula/dft_tile.h has the arithmetic. Many modes: cuFFT over all channels at once,
 * from and to the grid's own layout. Which of the two follows from the shape alone (spectral/select.h), and so does how many blocks
 * share the grid. Small spectra are planes (modes, width) of real and of imaginary parts.
 *
 * A NaN or an infinity reaches every bin of its channel in one part at least; whoever writes a small spectrum makes
 * both parts of such a bin NaN. */
#include "cuda/device/vector.cuh"
#include "cuda/spectral/spectral.cuh"
#include "formula/spectral_chain.h"
#include "generated/spectral.h"

namespace {

constexpr int THREADS = 256, CHANNELS = TL_TILE_CHANNELS, TILE = TL_DFT_TILE, HALF = TL_DFT_HALF;
/* Analysis: a quarter of a block owns a tile; a thread two channels and MODES modes, so per pair of rows 4·MODES FMAs
 * meet two 8-byte and MODES/2 broadcast 16-byte reads of shared memory, in balance. */
constexpr int MODES = 8, BLOCK_MODES = 16, QUARTERS = 4;
/* Synthesis: half of a block owns a tile; a thread two channels and PAIRS pairs of rows; modes pass in chunks. */
constexpr int PAIRS = 8, CHUNK = 16, HALVES = 2;
/* Blocks that share the grid in one pass over it: four for each multiprocessor of an H200. Sums are added in an order that follows
 * from it, so it is the same on every device. */
constexpr int64_t SHARES = 528;

/* (cos, sin) of pi·mode·twice/n, the product reduced exactly: of a mode at half of `twice` numbers from where its angle is 0. */
__device__ __forceinline__ float2 half_root(int64_t mode, int64_t twice, int64_t n)
{
    const uint64_t whole = 2 * (uint64_t)n;
    double c, s;
    tl_root((uint64_t)mode * (uint64_t)twice % whole, whole, &c, &s);
    return make_float2((float)c, (float)s);
}

/* ---- analysis ---------------------------------------------------------------------------------------------------- */

struct AnalysisShared {
    float plus[QUARTERS][HALF][CHANNELS], minus[QUARTERS][HALF][CHANNELS];
    float cosine[HALF][BLOCK_MODES], sine[HALF][BLOCK_MODES];
    float2 root[QUARTERS][BLOCK_MODES]; /* (cos, sin) of the angle by which a tile's share is turned back */
};

__device__ __forceinline__ float4 load_row(const float *x, int64_t row, int64_t n, int64_t channel, int64_t width,
                                           bool vectors)
{
    if (row >= n) return make_float4(0, 0, 0, 0);
    const float *at = x + row * width + channel;
    if (vectors && channel + 4 <= width) return tl_load4(at);
    return make_float4(channel < width ? at[0] : 0.0f, channel + 1 < width ? at[1] : 0.0f,
                       channel + 2 < width ? at[2] : 0.0f, channel + 3 < width ? at[3] : 0.0f);
}

/* shares[block][mode][re, im][width]: block (x: part of the grid, y: modes, z: channels). Every quarter adds its tiles
 * in order, q, q + 4, ... of the block's; the four sums are added in pairs. */
__global__ void __launch_bounds__(THREADS, 2)
    analysis_kernel(const float *__restrict__ x, int64_t n, int64_t width, int64_t modes, int64_t tiles_per_block,
                    bool vectors, float *__restrict__ shares)
{
    TL_DYNAMIC_SHARED(char, memory);
    AnalysisShared &s = *reinterpret_cast<AnalysisShared *>(memory);
    const int quarter = threadIdx.x / 64, t = threadIdx.x % 64, pair = t % 32, group = t / 32;
    const int64_t first_mode = (int64_t)blockIdx.y * BLOCK_MODES, first_channel = (int64_t)blockIdx.z * CHANNELS;
    for (int e = threadIdx.x; e < HALF * BLOCK_MODES; e += THREADS) {
        const int j = e / BLOCK_MODES, k = e % BLOCK_MODES;
        const float2 root = half_root(first_mode + k, 2 * j + 1, n);
        s.cosine[j][k] = root.x;
        s.sine[j][k] = root.y;
    }
    float re[MODES][2] = {}, im[MODES][2] = {};
    const int64_t first_tile = (int64_t)blockIdx.x * tiles_per_block;
    for (int64_t i = 0; i < tiles_per_block; i += QUARTERS) {
        const int64_t t0 = (first_tile + i + quarter) * TILE;
        const bool idle = i + quarter >= tiles_per_block || t0 >= n;
        const int64_t end = idle ? 0 : n;
        __syncthreads(); /* the last tiles are used up */
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            float4 a[4], b[4];
            TL_UNROLL_FOR (int u = 0; u < 4; u++) {
                const int j = h * 16 + u * 4 + t / 16;
                const int64_t channel = first_channel + t % 16 * 4;
                a[u] = load_row(x, t0 + HALF + j, end, channel, width, vectors);
                b[u] = load_row(x, t0 + HALF - 1 - j, end, channel, width, vectors);
            }
            if (h == 0 && t < BLOCK_MODES) s.root[quarter][t] = half_root(first_mode + t, 2 * t0 + TILE - 1, n);
            TL_UNROLL_FOR (int u = 0; u < 4; u++) {
                const int j = h * 16 + u * 4 + t / 16;
                tl_store4(&s.plus[quarter][j][t % 16 * 4],
                          make_float4(a[u].x + b[u].x, a[u].y + b[u].y, a[u].z + b[u].z, a[u].w + b[u].w));
                tl_store4(&s.minus[quarter][j][t % 16 * 4],
                          make_float4(a[u].x - b[u].x, a[u].y - b[u].y, a[u].z - b[u].z, a[u].w - b[u].w));
            }
        }
        __syncthreads();
        if (idle) continue;
        float even[MODES][2] = {}, odd[MODES][2] = {};
#pragma unroll 4
        for (int j = 0; j < HALF; j++) {
            const float2 p = *reinterpret_cast<const float2 *>(&s.plus[quarter][j][2 * pair]);
            const float2 m = *reinterpret_cast<const float2 *>(&s.minus[quarter][j][2 * pair]);
            float c[MODES], d[MODES];
            TL_UNROLL_FOR (int k = 0; k < MODES; k += 4) {
                tl_load4(&s.cosine[j][group * MODES + k], c + k);
                tl_load4(&s.sine[j][group * MODES + k], d + k);
            }
            TL_UNROLL_FOR (int k = 0; k < MODES; k++) {
                even[k][0] = fmaf(c[k], p.x, even[k][0]);
                even[k][1] = fmaf(c[k], p.y, even[k][1]);
                odd[k][0] = fmaf(d[k], m.x, odd[k][0]);
                odd[k][1] = fmaf(d[k], m.y, odd[k][1]);
            }
        }
        TL_UNROLL_FOR (int k = 0; k < MODES; k++) {
            const float2 r = s.root[quarter][group * MODES + k];
            TL_UNROLL_FOR (int c = 0; c < 2; c++) {
                re[k][c] += even[k][c] * r.x - odd[k][c] * r.y;
                im[k][c] -= even[k][c] * r.y + odd[k][c] * r.x;
            }
        }
    }
    __syncthreads();
    float *sums = &s.plus[0][0][0]; /* [quarter][mode][re, im][channel]: 32 KB of plus and minus' 64 */
    TL_UNROLL_FOR (int k = 0; k < MODES; k++) {
        float *at = sums + ((quarter * BLOCK_MODES + group * MODES + k) * 2) * CHANNELS + 2 * pair;
        *reinterpret_cast<float2 *>(at) = make_float2(re[k][0], re[k][1]);
        *reinterpret_cast<float2 *>(at + CHANNELS) = make_float2(im[k][0], im[k][1]);
    }
    __syncthreads();
    constexpr int PART = BLOCK_MODES * 2 * CHANNELS;
    for (int e = threadIdx.x; e < PART; e += THREADS) {
        const int64_t mode = first_mode + e / (2 * CHANNELS), channel = first_channel + e % CHANNELS;
        if (mode < modes && channel < width)
            shares[(((int64_t)blockIdx.x * modes + mode) * 2 + e / CHANNELS % 2) * width + channel] =
                (sums[e] + sums[PART + e]) + (sums[2 * PART + e] + sums[3 * PART + e]);
    }
}

/* re, im (modes, width) from shares[part][mode][re, im][width], times a/n where weighted. A block owns `lanes` neighbouring (k, c); a
 * thread adds every so many-th share of one, and the threads' sums are folded in halves. */
__global__ void __launch_bounds__(THREADS)
    gather_kernel(const float *__restrict__ shares, int64_t parts, int64_t n, int64_t width, int64_t modes, float inner,
                  float edge, int lanes, float *__restrict__ re, float *__restrict__ im)
{
    __shared__ float2 sums[THREADS];
    const int64_t e = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    const int64_t k = e / width, c = e - k * width, size = 2 * modes * width, at = 2 * k * width + c;
    const int chains = THREADS / lanes;
    float r = 0.0f, i = 0.0f;
    if (k < modes)
#pragma unroll 4
        for (int64_t p = threadIdx.x / lanes; p < parts; p += chains)
            r += shares[p * size + at], i += shares[p * size + at + width];
    sums[threadIdx.x] = make_float2(r, i);
    for (int s = THREADS / 2; s >= lanes; s /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < s) {
            const float2 other = sums[threadIdx.x + s];
            sums[threadIdx.x] = make_float2(sums[threadIdx.x].x + other.x, sums[threadIdx.x].y + other.y);
        }
    }
    if ((int)threadIdx.x >= lanes || k >= modes) return;
    const float2 sum = sums[threadIdx.x];
    const bool bad = tl_not_finite(sum.x) || tl_not_finite(sum.y);
    const float factor = k == 0 || 2 * k == n ? edge : inner;
    re[e] = bad ? TL_NAN : sum.x * factor;
    im[e] = bad ? TL_NAN : sum.y * factor;
}

/* ---- the mix of channels ----------------------------------------------------------------------------------------- */

/* Z[k, o] = a/n·sum over c of X[k, c]·w[k, c, o]. Block (mode, 64 channels o); a thread owns one o and every fourth c;
 * the four sums are added in pairs. */
__global__ void __launch_bounds__(THREADS)
    mix_kernel(const float *__restrict__ xr, const float *__restrict__ xi, const float *__restrict__ wRe,
               const float *__restrict__ wIm, int64_t n, int64_t width, float inner, float edge, float *__restrict__ zr,
               float *__restrict__ zi)
{
    __shared__ float2 part[4][CHANNELS];
    const int64_t k = blockIdx.x, o = (int64_t)blockIdx.y * CHANNELS + threadIdx.x % CHANNELS;
    const int quarter = threadIdx.x / CHANNELS;
    float r = 0.0f, i = 0.0f;
    if (o < width)
#pragma unroll 4
        for (int64_t c = quarter; c < width; c += 4) {
            const int64_t at = (k * width + c) * width + o;
            const float a = xr[k * width + c], b = xi[k * width + c], p = wRe[at], q = wIm[at];
            r = fmaf(-b, q, fmaf(a, p, r));
            i = fmaf(b, p, fmaf(a, q, i));
        }
    part[quarter][threadIdx.x % CHANNELS] = make_float2(r, i);
    __syncthreads();
    if (quarter == 0 && o < width) {
        const float2 *p = &part[0][threadIdx.x];
        const float sr = (p[0].x + p[CHANNELS].x) + (p[2 * CHANNELS].x + p[3 * CHANNELS].x);
        const float si = (p[0].y + p[CHANNELS].y) + (p[2 * CHANNELS].y + p[3 * CHANNELS].y);
        const float factor = k == 0 || 2 * k == n ? edge : inner;
        float re = sr * factor, im = si * factor;
        tl_bin_prepare(k, n, &re, &im);
        zr[k * width + o] = re;
        zi[k * width + o] = im;
    }
}

/* dX[k, c] = sum over o of dZ[k, o]·conj(w[k, c, o]). A warp owns one (k, c): a lane every 32nd o, the lanes folded in
 * halves. */
__global__ void __launch_bounds__(THREADS)
    mix_bwd_kernel(const float *__restrict__ zr, const float *__restrict__ zi, const float *__restrict__ wRe,
                   const float *__restrict__ wIm, int64_t n, int64_t width, int64_t rows, float *__restrict__ dr,
                   float *__restrict__ di)
{
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (row >= rows) return;
    const int64_t k = row / width;
    float r = 0.0f, i = 0.0f;
#pragma unroll 4
    for (int64_t o = threadIdx.x % 32; o < width; o += 32) {
        const float a = zr[k * width + o], b = zi[k * width + o], p = wRe[row * width + o], q = wIm[row * width + o];
        r = fmaf(b, q, fmaf(a, p, r));
        i = fmaf(-a, q, fmaf(b, p, i));
    }
    for (int s = 16; s > 0; s /= 2) {
        r += __shfl_down_sync(0xffffffffu, r, s);
        i += __shfl_down_sync(0xffffffffu, i, s);
    }
    if (threadIdx.x % 32 == 0) {
        tl_bin_prepare(k, n, &r, &i);
        dr[row] = r;
        di[row] = i;
    }
}

/* gwRe = Re X·Re dZ + Im X·Im dZ, gwIm = Re X·Im dZ - Im X·Re dZ; either may be NULL. A thread owns one o of four rows
 * (k, c). */
__global__ void __launch_bounds__(THREADS)
    weights_kernel(const float *__restrict__ xr, const float *__restrict__ xi, const float *__restrict__ zr,
                   const float *__restrict__ zi, int64_t width, int64_t total, tl_fastdiv by_width,
                   float *__restrict__ gr, float *__restrict__ gi)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t e = first + u * THREADS;
        if (e >= total) return;
        uint32_t o;
        const uint32_t row = by_width.divmod((uint32_t)e, &o), k = by_width.div(row);
        const float r = xr[row], i = xi[row], a = zr[(int64_t)k * width + o], b = zi[(int64_t)k * width + o];
        if (gr) gr[e] = fmaf(i, b, r * a);
        if (gi) gi[e] = fmaf(-i, a, r * b);
    }
}

/* ---- synthesis --------------------------------------------------------------------------------------------------- */

struct SynthesisShared {
    float re[HALVES][CHUNK][CHANNELS], im[HALVES][CHUNK][CHANNELS]; /* turned to the tile's middle */
    float cosine[CHUNK][HALF], sine[CHUNK][HALF];
};

/* y[t, c] = sum over k of re[k, c]·cos(theta) - im[k, c]·sin(theta). Block (x: part of the grid, y: channels). */
__global__ void __launch_bounds__(THREADS, 2)
    synthesis_kernel(const float *__restrict__ re, const float *__restrict__ im, int64_t n, int64_t width,
                     int64_t modes, int64_t tiles_per_block, float *__restrict__ y)
{
    __shared__ __align__(16) SynthesisShared s;
    const int half = threadIdx.x / 128, t = threadIdx.x % 128, pair = t % 32, group = t / 32;
    const int64_t first_channel = (int64_t)blockIdx.y * CHANNELS, first_tile = (int64_t)blockIdx.x * tiles_per_block;
    const int64_t channel = first_channel + 2 * pair;
    const bool vectors = width % 2 == 0;
    for (int64_t i = 0; i < tiles_per_block; i += HALVES) {
        const int64_t t0 = (first_tile + i + half) * TILE;
        const bool idle = i + half >= tiles_per_block || t0 >= n;
        float even[PAIRS][2] = {}, odd[PAIRS][2] = {};
        for (int64_t k0 = 0; k0 < modes; k0 += CHUNK) {
            const int count = modes - k0 < CHUNK ? (int)(modes - k0) : CHUNK;
            __syncthreads(); /* the last chunk is used up */
            if (i == 0 || modes > CHUNK)
                for (int e = threadIdx.x; e < CHUNK * HALF; e += THREADS) {
                    const float2 r = half_root(k0 + e / HALF, 2 * (e % HALF) + 1, n);
                    s.cosine[e / HALF][e % HALF] = r.x;
                    s.sine[e / HALF][e % HALF] = r.y;
                }
            /* a warp's four modes, each turned by a root that one lane computes */
            float2 root = make_float2(1.0f, 0.0f);
            if (pair < 4) root = half_root(k0 + group * 4 + pair, 2 * t0 + TILE - 1, n);
            TL_UNROLL_FOR (int q = 0; q < 4; q++) {
                const int k = group * 4 + q;
                const float c = __shfl_sync(0xffffffffu, root.x, q), d = __shfl_sync(0xffffffffu, root.y, q);
                TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                    const int64_t at = (k0 + k) * width + channel + h;
                    const bool there = k < count && channel + h < width;
                    const float a = there ? re[at] : 0.0f, b = there ? im[at] : 0.0f;
                    s.re[half][k][2 * pair + h] = a * c - b * d;
                    s.im[half][k][2 * pair + h] = a * d + b * c;
                }
            }
            __syncthreads();
#pragma unroll 2
            for (int k = 0; k < count; k++) {
                const float2 a = *reinterpret_cast<const float2 *>(&s.re[half][k][2 * pair]);
                const float2 b = *reinterpret_cast<const float2 *>(&s.im[half][k][2 * pair]);
                TL_UNROLL_FOR (int j = 0; j < PAIRS; j += 4) {
                    float c[4], d[4];
                    tl_load4(&s.cosine[k][group * PAIRS + j], c);
                    tl_load4(&s.sine[k][group * PAIRS + j], d);
                    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
                        even[j + u][0] = fmaf(c[u], a.x, even[j + u][0]);
                        even[j + u][1] = fmaf(c[u], a.y, even[j + u][1]);
                        odd[j + u][0] = fmaf(d[u], b.x, odd[j + u][0]);
                        odd[j + u][1] = fmaf(d[u], b.y, odd[j + u][1]);
                    }
                }
            }
        }
        if (idle || channel >= width) continue;
        TL_UNROLL_FOR (int j = 0; j < PAIRS; j++)
            TL_UNROLL_FOR (int side = 0; side < 2; side++) {
                const int64_t row = side ? t0 + HALF + group * PAIRS + j : t0 + HALF - 1 - group * PAIRS - j;
                const float v0 = side ? even[j][0] - odd[j][0] : even[j][0] + odd[j][0];
                const float v1 = side ? even[j][1] - odd[j][1] : even[j][1] + odd[j][1];
                if (row >= n) continue;
                float *at = y + row * width + channel;
                if (vectors)
                    *reinterpret_cast<float2 *>(at) = make_float2(v0, v1);
                else {
                    at[0] = v0;
                    if (channel + 1 < width) at[1] = v1;
                }
            }
    }
}

/* ---- launchers --------------------------------------------------------------------------------------------------- */

/* Tiles of a block, a multiple of `together`, such that about SHARES blocks share the grid. */
int64_t tiles_of_block(int64_t tiles, int64_t others, int64_t together)
{
    const int64_t blocks = SHARES / others > 1 ? SHARES / others : 1;
    return tl_ceil_div(tl_ceil_div(tiles, blocks), together) * together;
}

/* re, im = the first modes of x's transform along the grid, times edge at bins 0 and n/2, else inner. */
int32_t analysis(tl_context *ctx, const float *x, int64_t n, int64_t width, int64_t modes, double edge, double inner,
                 float *re, float *im)
{
    if (tl_select_spectral_conv(n, width, modes, 0) == TL_SPECTRAL_LIBRARY)
        return tl_library_forward(ctx, n, width, tl_real_rows{const_cast<float *>(x), 1, width},
                                  tl_half_spectra{re, im, 1, width, modes, (float)edge, (float)inner});
    tl_scratch<float> shares(ctx);
    const int64_t tiles = tl_ceil_div(n, TILE), chunks = tl_ceil_div(width, CHANNELS);
    const int64_t groups = tl_ceil_div(modes, BLOCK_MODES);
    const int64_t per_block = tiles_of_block(tiles, chunks * groups, QUARTERS), parts = tl_ceil_div(tiles, per_block);
    TL_TRY(shares.allocate(parts * modes * 2 * width));
    static_assert(sizeof(AnalysisShared) <= 100 * 1024, "two blocks on a multiprocessor");
    /* a grid's z reaches 65535, which is more than 2^22 channels: weights of that width do not fit any memory */
    const dim3 grid((unsigned)parts, (unsigned)groups, (unsigned)chunks);
    TL_TRY(tl_launch_shared(ctx, "analysis", analysis_kernel, grid, THREADS, sizeof(AnalysisShared), x, n, width, modes,
                            per_block, width % 4 == 0 && tl_aligned4(x), shares));
    /* A thread adds four shares at least, as far as a block's threads go, and eight neighbours lie in a sector. */
    int lanes = THREADS / 4;
    while (lanes > 8 && THREADS / lanes * 4 < parts)
        lanes /= 2;
    return tl_launch(ctx, "gather", gather_kernel, tl_grid(modes * width, lanes), THREADS, shares, parts, n, width,
                     modes, (float)inner, (float)edge, lanes, re, im);
}

int32_t synthesis(tl_context *ctx, const float *re, const float *im, int64_t n, int64_t width, int64_t modes, float *y)
{
    if (tl_select_spectral_conv(n, width, modes, 0) == TL_SPECTRAL_LIBRARY)
        return tl_library_inverse(
            ctx, n, width,
            tl_half_spectra{const_cast<float *>(re), const_cast<float *>(im), 1, width, modes, 1.0f, 0.5f},
            tl_real_rows{y, 1, width});
    const int64_t tiles = tl_ceil_div(n, TILE), chunks = tl_ceil_div(width, CHANNELS);
    const int64_t per_block = tiles_of_block(tiles, chunks, HALVES);
    const dim3 grid((unsigned)tl_ceil_div(tiles, per_block), (unsigned)chunks);
    return tl_launch(ctx, "synthesis", synthesis_kernel, grid, THREADS, re, im, n, width, modes, per_block, y);
}

} /* namespace */

extern "C" int32_t tl_cuda_spectral_conv1d_rfft(tl_context *ctx, const float *x, const float *wRe, const float *wIm,
                                                int64_t grid, int64_t width, int64_t modes, float *y)
{
    if (modes == 0) return tl_cuda_fill(tl_context_cuda(ctx), y, 0.0f, grid * width);
    if (tl_is_reproducible(ctx)) return tl_spectral_chain(ctx, x, wRe, wIm, grid, width, modes, y);
    const int64_t plane = modes * width;
    tl_scratch<float> spectra(ctx);
    TL_TRY(spectra.allocate(4 * plane));
    float *const xr = spectra, *const xi = xr + plane, *const zr = xi + plane, *const zi = zr + plane;
    TL_TRY(analysis(ctx, x, grid, width, modes, 1.0, 1.0, xr, xi));
    const dim3 blocks((unsigned)modes, (unsigned)tl_ceil_div(width, CHANNELS));
    TL_TRY(tl_launch(ctx, "mix", mix_kernel, blocks, THREADS, xr, xi, wRe, wIm, grid, width,
                     (float)(2.0 / (double)grid), (float)(1.0 / (double)grid), zr, zi));
    return synthesis(ctx, zr, zi, grid, width, modes, y);
}

extern "C" int32_t tl_cuda_spectral_conv1d_rfft_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm,
                                                    const float *g, int64_t grid, int64_t width, int64_t modes,
                                                    float *gx, float *gwRe, float *gwIm)
{
    if (modes == 0) return gx ? tl_cuda_fill(tl_context_cuda(ctx), gx, 0.0f, grid * width) : TORCHLEAN_OK;
    if (tl_is_reproducible(ctx)) return tl_spectral_chain_bwd(ctx, x, wRe, wIm, g, grid, width, modes, gx, gwRe, gwIm);
    const int64_t plane = modes * width;
    tl_scratch<float> spectra(ctx);
    TL_TRY(spectra.allocate(6 * plane));
    float *xr = spectra, *xi = xr + plane, *zr = xi + plane, *zi = zr + plane, *dr = zi + plane, *di = dr + plane;
    TL_TRY(analysis(ctx, g, grid, width, modes, 1.0 / (double)grid, 2.0 / (double)grid, zr, zi));
    if (gx) {
        TL_TRY(tl_launch(ctx, "mix_bwd", mix_bwd_kernel, tl_grid(plane, THREADS / 32), THREADS, zr, zi, wRe, wIm, grid,
                         width, plane, dr, di));
        TL_TRY(synthesis(ctx, dr, di, grid, width, modes, gx));
    }
    if (!gwRe && !gwIm) return TORCHLEAN_OK;
    TL_TRY(analysis(ctx, x, grid, width, modes, 1.0, 1.0, xr, xi));
    return tl_launch(ctx, "weights", weights_kernel, tl_grid(plane * width, 4 * THREADS), THREADS, xr, xi, zr, zi,
                     width, plane * width, tl_fastdiv(width), gwRe, gwIm);
}
