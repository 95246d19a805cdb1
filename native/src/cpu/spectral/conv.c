/* The spectral convolution on the CPU. Channels are contiguous, so they are the lanes.
 *
 * Few modes are computed as a truncated transform in tiles (formula/dft_tile.h): the grid is read once, a tile's
 * cosines and sines are the same for every tile, and a root per tile and mode turns the share into place. Many modes
 * come from whole transforms of the channels, as rows (spectral.c). Which of the two follows from the shape. The small spectra
 * stay in scratch, as planes (modes, width) of real and of imaginary parts. */
#include "core/threads.h"
#include "cpu/spectral/chain.h"
#include "cpu/spectral/fft.h"
#include "cpu/sum_tree.h"
#include "cpu/vector64.h"
#include "formula/chain.h"
#include "formula/dft_tile.h"
#include "formula/integer.h"
#include "generated/shape.h"
#include "generated/spectral.h"

/* A task takes CHANNELS channels at a time, whatever the vectors' width. */
enum { CHANNELS = 64, GROUPS = CHANNELS / TL_W, TILE = TL_DFT_TILE, HALF = TL_DFT_HALF };
/* The choice counts channels by LANES. */
enum { LANES = 16, MAX_SUMMED_MODES = 32 };
enum { MIXED = 2 }; /* enough sums to hide an addition's latency */

static int64_t up(int64_t n, int64_t to) { return tl_ceil_div(n, to) * to; }

/* A product and a sum per mode and element against about 5·log2(n)/2 butterflies' operations, twice over memory; of few channels
 * many lanes are idle, as those of a whole transform are not. */
static int truncated(int64_t grid, int64_t width, int64_t modes)
{
    const int64_t most = MAX_SUMMED_MODES + 4 * (64 - __builtin_clzll((unsigned long long)grid));
    const double lanes = (double)up(width, LANES) / (double)width;
    return (double)modes * lanes * lanes <= (double)most;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* One truncated transform or its adjoint. `table` holds for mode k and pair j cos(pi·k·(2j+1)/n), and after all of them
 * the sines, [k][j] for synthesis, [j][k] for analysis with the modes padded to a multiple of 4. */
struct tiles {
    const tl_fft *roots;             /* TL_FFT_ROOTS */
    int64_t n, width, modes, padded; /* padded: modes to a multiple of 4 */
    const float *table;
    const float *x;    /* analysis: (n, width) */
    float *sums;       /* analysis: [block][mode][re, im][width] */
    const float *bins; /* synthesis: (modes, re and im, width) */
    float *y;
    char *scratch;
    int64_t per_worker;
};

static void fill_table(const struct tiles *t, float *table, int by_pair)
{
    const uint64_t m = 2 * (uint64_t)t->n;
    for (int64_t k = 0; k < t->padded; k++)
        for (int64_t j = 0; j < HALF; j++) {
            double c = 0, s = 0;
            if (k < t->modes) tl_root_at(&t->roots->roots, (uint64_t)k * (uint64_t)(2 * j + 1) % m, &c, &s);
            const int64_t at = by_pair ? j * t->padded + k : k * HALF + j;
            table[at] = (float)c;
            table[HALF * t->padded + at] = (float)-s;
        }
}

/* e^(-i·pi·k·(2·t0 + TILE - 1)/n) for the modes of the tile at t0. */
static void tile_roots(const struct tiles *t, int64_t t0, float *roots)
{
    const uint64_t m = 2 * (uint64_t)t->n, step = (uint64_t)(2 * t0 + TILE - 1) % m;
    uint64_t at = 0;
    for (int64_t k = 0; k < t->modes; k++) {
        double c, s;
        tl_root_at(&t->roots->roots, at, &c, &s);
        roots[2 * k] = (float)c;
        roots[2 * k + 1] = (float)s;
        at += step;
        at = at >= m ? at - m : at;
    }
}

/* Sums and differences of a tile's pairs for TL_W channels; rows and channels past the end are 0. */
static void fold_tile(const struct tiles *t, int64_t t0, int64_t channel, tl_vec *plus, tl_vec *minus)
{
    const float *x = t->x + t0 * t->width + channel;
    const int64_t rows = t->n - t0 < TILE ? t->n - t0 : TILE;
    const int64_t lanes = t->width - channel < TL_W ? t->width - channel : TL_W;
    for (int64_t j = 0; j < HALF; j++) {
        tl_vec a = {0}, b = {0};
        if (HALF + j < rows) a = tl_load_first(x + (HALF + j) * t->width, lanes);
        if (HALF - 1 - j < rows) b = tl_load_first(x + (HALF - 1 - j) * t->width, lanes);
        plus[j] = a + b;
        minus[j] = a - b;
    }
}

/* A task owns a block of tiles and CHANNELS channels. */
static void analysis_task(void *arg, int64_t task, int32_t worker)
{
    const struct tiles *t = arg;
    const int64_t chunks = tl_ceil_div(t->width, CHANNELS), block = task / chunks, first = task % chunks * CHANNELS;
    const int64_t end = (block + 1) * TL_DFT_TILES * TILE < t->n ? (block + 1) * TL_DFT_TILES * TILE : t->n;
    float *sums = t->sums + block * 2 * t->modes * t->width + first;
    tl_vec *total = (tl_vec *)(t->scratch + worker * t->per_worker); /* [group][mode][re, im] */
    float *roots = (float *)(total + 2 * GROUPS * t->padded);
    const float *cosines = t->table, *sines = t->table + HALF * t->padded;
    memset(total, 0, (size_t)(2 * GROUPS * t->padded) * sizeof *total);
    for (int64_t t0 = block * TL_DFT_TILES * TILE; t0 < end; t0 += TILE) {
        tile_roots(t, t0, roots);
        for (int64_t g = 0; g < GROUPS && first + g * TL_W < t->width; g++) {
            tl_vec plus[HALF], minus[HALF];
            fold_tile(t, t0, first + g * TL_W, plus, minus);
            for (int64_t k = 0; k < t->modes; k += 4) {
                tl_vec e[4] = {{0}}, o[4] = {{0}};
                const float *c = cosines + k, *s = sines + k;
                for (int64_t j = 0; j < HALF; j++, c += t->padded, s += t->padded)
                    for (int q = 0; q < 4; q++) {
                        e[q] = tl_vec_fma(c[q], plus[j], e[q]);
                        o[q] = tl_vec_fma(s[q], minus[j], o[q]);
                    }
                tl_vec *sum = total + 2 * (g * t->padded + k);
                for (int64_t q = 0; q < 4 && k + q < t->modes; q++) {
                    const float rc = roots[2 * (k + q)], rs = roots[2 * (k + q) + 1];
                    sum[2 * q] += e[q] * rc + o[q] * rs;
                    sum[2 * q + 1] += e[q] * rs - o[q] * rc;
                }
            }
        }
    }
    for (int64_t k = 0; k < t->modes; k++)
        for (int64_t g = 0; g < GROUPS && first + g * TL_W < t->width; g++)
            for (int64_t part = 0; part < 2; part++)
                tl_store_first(sums + (2 * k + part) * t->width + g * TL_W, total[2 * (g * t->padded + k) + part],
                               tl_imin(t->width - first - g * TL_W, TL_W));
}

/* A task owns a block of tiles and CHANNELS channels of y. */
static void synthesis_task(void *arg, int64_t task, int32_t worker)
{
    const struct tiles *t = arg;
    const int64_t chunks = tl_ceil_div(t->width, CHANNELS), block = task / chunks, first = task % chunks * CHANNELS;
    const int64_t end = (block + 1) * TL_DFT_TILES * TILE < t->n ? (block + 1) * TL_DFT_TILES * TILE : t->n;
    tl_vec *coefficients = (tl_vec *)(t->scratch + worker * t->per_worker); /* [group][mode][re, im] */
    tl_vec *turned = coefficients + 2 * GROUPS * t->padded;
    float *roots = (float *)(turned + 2 * t->padded);
    const float *cosines = t->table, *sines = t->table + HALF * t->padded;
    for (int64_t g = 0; g < GROUPS && first + g * TL_W < t->width; g++)
        for (int64_t k = 0; k < t->modes; k++) {
            const int64_t channel = first + g * TL_W, lanes = tl_imin(t->width - channel, TL_W);
            tl_vec *to = coefficients + 2 * (g * t->padded + k);
            to[0] = tl_load_first(t->bins + 2 * k * t->width + channel, lanes);
            to[1] = tl_load_first(t->bins + (2 * k + 1) * t->width + channel, lanes);
        }
    for (int64_t t0 = block * TL_DFT_TILES * TILE; t0 < end; t0 += TILE) {
        const int64_t rows = t->n - t0 < TILE ? t->n - t0 : TILE;
        tile_roots(t, t0, roots);
        for (int64_t g = 0; g < GROUPS && first + g * TL_W < t->width; g++) {
            const tl_vec *a = coefficients + 2 * g * t->padded;
            for (int64_t k = 0; k < t->modes; k++) {
                const float rc = roots[2 * k], rs = roots[2 * k + 1];
                turned[2 * k] = a[2 * k] * rc + a[2 * k + 1] * rs;
                turned[2 * k + 1] = a[2 * k + 1] * rc - a[2 * k] * rs;
            }
            const int64_t channel = first + g * TL_W, lanes = t->width - channel < TL_W ? t->width - channel : TL_W;
            float *y = t->y + t0 * t->width + channel;
            for (int64_t j = 0; j < HALF; j += 4) {
                tl_vec e[4] = {{0}}, o[4] = {{0}};
                const float *c = cosines + j, *s = sines + j;
                for (int64_t k = 0; k < t->modes; k++, c += HALF, s += HALF)
                    for (int q = 0; q < 4; q++) {
                        e[q] = tl_vec_fma(c[q], turned[2 * k], e[q]);
                        o[q] = tl_vec_fma(s[q], turned[2 * k + 1], o[q]);
                    }
                for (int q = 0; q < 4; q++) {
                    const int64_t at[2] = {HALF + j + q, HALF - 1 - j - q};
                    const tl_vec v[2] = {e[q] - o[q], e[q] + o[q]};
                    for (int side = 0; side < 2; side++)
                        if (at[side] < rows) tl_store_first(y + at[side] * t->width, v[side], lanes);
                }
            }
        }
    }
}

/* ---- a transform of every channel, and its adjoint --------------------------------------------------------------- */

/* to (columns, rows) from `from` (rows, columns). */
static int32_t transpose(tl_context *ctx, const float *from, int64_t rows, int64_t columns, float *to)
{
    const tl_dims size = {2, {rows, columns}}, axes = {2, {1, 0}};
    return tl_cpu_permute(ctx, from, &size, &axes, to);
}

/* X (modes, re and im, width) from x, or y from Z; the other pointers are NULL. Channels become rows (width, n), whose packed
 * spectra are transposed whole. */
static int32_t whole(tl_context *ctx, const tl_mix *m, const float *x, float *X, const float *Z, float *y)
{
    const int64_t n = m->n, width = m->width, packed = 2 * (n / 2 + 1), kept = 2 * m->modes * width;
    float *rows;
    int32_t status = tl_pool_alloc(ctx, (size_t)(width * (n + 2 * packed)) * sizeof(float), (void **)&rows);
    if (status) return status;
    float *const spectra = rows + width * n, *const bins = spectra + width * packed;
    if (x) {
        status = transpose(ctx, x, n, width, rows);
        if (!status) status = tl_real_transform(ctx, rows, spectra, width, n, 0, 1.0, 1.0);
        if (!status) status = transpose(ctx, spectra, width, packed, bins);
        if (!status) memcpy(X, bins, (size_t)kept * sizeof(float));
    } else {
        memcpy(bins, Z, (size_t)kept * sizeof(float));
        memset(bins + kept, 0, (size_t)(packed * width - kept) * sizeof(float));
        status = transpose(ctx, bins, packed, width, spectra);
        if (!status) status = tl_real_transform(ctx, spectra, rows, width, n, 1, 1.0, 0.5);
        if (!status) status = transpose(ctx, rows, width, n, y);
    }
    tl_pool_free(ctx, rows);
    return status;
}

static int32_t tiled(tl_context *ctx, const tl_mix *m, const float *x, float *X, const float *Z, float *y)
{
    const int64_t n = m->n, width = m->width, modes = m->modes, plane = 2 * modes * width;
    const tl_fft *roots = tl_fft_get(n, TL_FFT_ROOTS);
    if (!roots)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the roots of unity of %lld points", (long long)n);
    struct tiles job = {roots, n, width, modes, up(modes, 4), NULL, x, X, Z, y, NULL, 0};
    const int64_t blocks = tl_ceil_div(n, TILE * TL_DFT_TILES), parts = x && blocks > 1 ? blocks : 0;
    const int64_t table = up(2 * HALF * job.padded * 4, 64), sums = up(parts * plane * 4, 64);
    job.per_worker = (2 * GROUPS + 2) * job.padded * (int64_t)sizeof(tl_vec) + up(2 * job.padded * 4, 64);
    char *memory;
    int32_t status = tl_pool_alloc(ctx, (size_t)(table + sums + job.per_worker * tl_workers()), (void **)&memory);
    if (!status) {
        fill_table(&job, (float *)memory, x != NULL);
        job.table = (float *)memory;
        job.scratch = memory + table + sums;
        if (parts) job.sums = (float *)(memory + table);
        tl_parallel(blocks * tl_ceil_div(width, CHANNELS), x ? analysis_task : synthesis_task, &job);
        if (parts) status = tl_column_sums(ctx, job.sums, 1, blocks, plane, 0, X);
        for (int64_t c = 0; x && !status && c < width; c++) { /* bin 0 takes every element with factor 1 */
            const float poison = X[c] - X[c];
            for (int64_t row = 0; poison != 0.0f && row < 2 * modes; row++)
                X[row * width + c] = poison;
        }
    }
    tl_pool_free(ctx, memory);
    tl_fft_put(roots);
    return status;
}

/* X[k, c] = sum over t of x[t, c]·e^(-i·theta), k < modes. A channel that is not finite has a spectrum of NaN. */
static int32_t analyse(tl_context *ctx, const tl_mix *m, const float *x, float *X)
{
    if (m->roots) return tl_mix_analyse(ctx, m, x, X);
    return (truncated(m->n, m->width, m->modes) ? tiled : whole)(ctx, m, x, X, NULL, NULL);
}

/* y[t, c] = sum over k of re[k, c]·cos(theta) - im[k, c]·sin(theta). Before it parts of Z that are not finite become NaN both, and the
 * imaginary parts that meet a sine of 0 are set to 0. */
static int32_t synthesise(tl_context *ctx, const tl_mix *m, float *Z, float *y)
{
    for (int64_t k = 0; k < m->modes; k++)
        for (int64_t c = 0; c < m->width; c++)
            tl_bin_prepare(k, m->n, &Z[2 * k * m->width + c], &Z[(2 * k + 1) * m->width + c]);
    if (m->roots) return tl_mix_synthesise(ctx, m, Z, y);
    return (truncated(m->n, m->width, m->modes) ? tiled : whole)(ctx, m, NULL, NULL, Z, y);
}

/* ---- the mix of channels ----------------------------------------------------------------------------------------- */

/* Mode k of Z[o] = weight·Σ_c X[c]·w[c, o], or if it goes `back` of dX[c] = weight·Σ_o dZ[o]·conj(w[c, o]): chains in segments
 * (formula/chain.h), of every product of complex numbers two terms after each other. A lane of MIXED vectors has a sum; segments are
 * whole blocks of TL_W terms. */
TL_INLINE void mix_mode(const tl_mix *m, int64_t k, const float *from, double weight, const int back, float *to)
{
    const int64_t width = m->width, segment = tl_chain_segment(2 * width);
    const float *x = from + 2 * k * width, *w[2] = {m->wRe + k * width * width, m->wIm + k * width * width};
    for (int64_t first = 0; first < width; first += MIXED * TL_W) {
        tl_vec64 total[2][2 * MIXED] = {{{0}}}, re[2 * MIXED] = {{0}}, im[2 * MIXED] = {{0}};
        for (int64_t j = 0; j < width; j += TL_W) {
            const int64_t terms = tl_imin(width - j, TL_W);
            tl_vec block[2][TL_W][MIXED];
            for (int i = 0; i < 2 * MIXED; i++) {
                const int64_t channel = first + i / 2 * TL_W, lanes = tl_imin(tl_imax(width - channel, 0), TL_W);
                if (back)
                    tl_lanes_in(w[i % 2] + channel * width + j, width, lanes, terms, &block[i % 2][0][i / 2], MIXED);
                else
                    for (int64_t l = 0; l < terms; l++)
                        block[i % 2][l][i / 2] = tl_load_first(w[i % 2] + (j + l) * width + channel, lanes);
            }
            for (int i = 0; j > 0 && 2 * j % segment == 0 && i < 2 * MIXED; i++) {
                total[0][i] += re[i], total[1][i] += im[i];
                re[i] = im[i] = (tl_vec64){0};
            }
            for (int64_t l = 0; l < terms; l++) {
                const double a = (double)x[j + l], b = (double)x[width + j + l];
                for (int i = 0; i < 2 * MIXED; i++) {
                    const tl_vec64 r = tl_vec64_widen((const float *)block[0][l] + i * TL_W / 2);
                    const tl_vec64 t = tl_vec64_widen((const float *)block[1][l] + i * TL_W / 2);
                    re[i] = (re[i] + a * r) + (back ? b : -b) * t;
                    im[i] = back ? (im[i] + b * r) - a * t : (im[i] + a * t) + b * r;
                }
            }
        }
        tl_vec out[2][MIXED];
        for (int i = 0; i < 2 * MIXED; i++) {
            tl_vec64_round((float *)out[0] + i * TL_W / 2, (total[0][i] + re[i]) * weight);
            tl_vec64_round((float *)out[1] + i * TL_W / 2, (total[1][i] + im[i]) * weight);
        }
        for (int i = 0; i < 2 * MIXED && first + i / 2 * TL_W < width; i++)
            tl_store_first(to + (2 * k + i % 2) * width + first + i / 2 * TL_W, out[i % 2][i / 2],
                           tl_imin(width - first - i / 2 * TL_W, TL_W));
    }
}

/* A task owns a mode. */
static void mix_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const tl_mix *m = arg;
    mix_mode(m, k, m->X, tl_bin_weight(k, m->n), 0, m->Z);
}

static void mix_bwd_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const tl_mix *m = arg;
    mix_mode(m, k, m->Z, 1.0, 1, m->D);
}

/* A task owns a mode of the weights' gradients. */
static void weights_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const tl_mix *m = arg;
    const int64_t width = m->width;
    const float *X = m->X + 2 * k * width, *Z = m->Z + 2 * k * width;
    for (int64_t c = 0; c < width; c++) {
        const double xr = (double)X[c], xi = (double)X[width + c];
        const int64_t at = (k * width + c) * width;
        for (int64_t o = 0; m->gr && o < width; o++)
            m->gr[at + o] = (float)(xr * (double)Z[o] + xi * (double)Z[width + o]);
        for (int64_t o = 0; m->gi && o < width; o++)
            m->gi[at + o] = (float)(xr * (double)Z[width + o] - xi * (double)Z[o]);
    }
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

/* Planes X, Z and D, and the roots of a reproducible context. */
static int32_t begin(tl_context *ctx, tl_mix *m)
{
    const int64_t plane = 2 * m->modes * m->width, planes = up(3 * plane * (int64_t)sizeof(float), 64);
    const int64_t roots = tl_is_reproducible(ctx) ? m->n * (int64_t)sizeof *m->roots : 0;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(planes + roots), (void **)&m->X);
    if (status) return status;
    m->Z = m->X + plane, m->D = m->Z + plane;
    if (roots) tl_mix_roots(m, (tl_root_parts *)((char *)m->X + planes));
    return TORCHLEAN_OK;
}

int32_t tl_cpu_spectral_conv1d_rfft(tl_context *ctx, const float *x, const float *wRe, const float *wIm, int64_t grid,
                                    int64_t width, int64_t modes, float *y)
{
    if (modes == 0) {
        memset(y, 0, (size_t)(grid * width) * sizeof *y);
        return TORCHLEAN_OK;
    }
    tl_mix m = {.n = grid, .width = width, .modes = modes, .wRe = wRe, .wIm = wIm};
    int32_t status = begin(ctx, &m);
    if (status) return status;
    status = analyse(ctx, &m, x, m.X);
    if (!status) {
        tl_parallel(modes, mix_task, &m);
        status = synthesise(ctx, &m, m.Z, y);
    }
    tl_pool_free(ctx, m.X);
    return status;
}

int32_t tl_cpu_spectral_conv1d_rfft_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm,
                                        const float *g, int64_t grid, int64_t width, int64_t modes, float *gx,
                                        float *gwRe, float *gwIm)
{
    if (modes == 0) { /* the other gradients have no element */
        if (gx) memset(gx, 0, (size_t)(grid * width) * sizeof *gx);
        return TORCHLEAN_OK;
    }
    tl_mix m = {.n = grid, .width = width, .modes = modes, .wRe = wRe, .wIm = wIm, .gr = gwRe, .gi = gwIm};
    int32_t status = begin(ctx, &m);
    if (status) return status;
    status = analyse(ctx, &m, g, m.Z);
    for (int64_t row = 0; !status && row < 2 * modes; row++)
        for (int64_t o = 0; o < width; o++)
            m.Z[row * width + o] = (float)((double)m.Z[row * width + o] * tl_bin_weight(row / 2, grid));
    if (!status && gx) {
        tl_parallel(modes, mix_bwd_task, &m);
        status = synthesise(ctx, &m, m.D, gx);
    }
    if (!status && (gwRe || gwIm)) {
        status = analyse(ctx, &m, x, m.X);
        if (!status) tl_parallel(modes, weights_task, &m);
    }
    tl_pool_free(ctx, m.X);
    return status;
}
