/* The spectral convolution on the CPU. Channels are contiguous, so they are the lanes.
 *
 * Few modes are computed as a truncated transform in tiles (formula/dft_tile.h): the grid is read once, a tile's
 * cosines and sines are the same for every tile, and a root per tile and mode turns the share into place. Many modes
 * come from whole transforms of TL_W channels at a time. Which of the two follows from the shape. Of few channels
 * narrow.c makes the same numbers. The small spectra stay in scratch, as planes (modes, width) of real and of imaginary
 * parts. */
#include "core/threads.h"
#include "cpu/spectral/chain.h"
#include "cpu/spectral/fft.h"
#include "cpu/spectral/narrow.h"
#include "cpu/sum_tree.h"
#include "formula/dft_tile.h"
#include "formula/integer.h"
#include "generated/spectral.h"

/* A task takes CHANNELS channels at a time, whatever the vectors' width. */
enum { CHANNELS = 64, GROUPS = CHANNELS / TL_W, FEW_MODES = 32 };

static int64_t up(int64_t n, int64_t to) { return tl_ceil_div(n, to) * to; }

/* A product and a sum per mode and element against about 5·log2(n)/2 butterflies' operations, twice over memory. */
static int truncated(int64_t grid, int64_t modes)
{
    return modes <= FEW_MODES + 4 * (64 - __builtin_clzll((unsigned long long)grid));
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Sums and differences of a tile's pairs for TL_W channels; rows and channels past the end are 0. */
static void fold_tile(const tl_tiles *t, int64_t t0, int64_t channel, tl_vec *plus, tl_vec *minus)
{
    const float *x = t->x + t0 * t->width + channel;
    const int64_t rows = t->n - t0 < TILE ? t->n - t0 : TILE;
    const int64_t lanes = t->width - channel < TL_W ? t->width - channel : TL_W;
    if (rows == TILE && lanes == TL_W) {
        for (int64_t j = 0; j < HALF; j++) {
            const tl_vec a = *(const tl_vec_any *)(x + (HALF + j) * t->width);
            const tl_vec b = *(const tl_vec_any *)(x + (HALF - 1 - j) * t->width);
            plus[j] = a + b;
            minus[j] = a - b;
        }
        return;
    }
    for (int64_t j = 0; j < HALF; j++) {
        tl_vec a = {0}, b = {0};
        for (int64_t l = 0; l < lanes; l++) {
            a[l] = HALF + j < rows ? x[(HALF + j) * t->width + l] : 0.0f;
            b[l] = HALF - 1 - j < rows ? x[(HALF - 1 - j) * t->width + l] : 0.0f;
        }
        plus[j] = a + b;
        minus[j] = a - b;
    }
}

/* A task owns a block of tiles and CHANNELS channels. */
static void analysis_task(void *arg, int64_t task, int32_t worker)
{
    const tl_tiles *t = arg;
    const int64_t chunks = t->columns / CHANNELS, block = task / chunks, first = task % chunks * CHANNELS;
    const int64_t end = (block + 1) * TL_DFT_TILES * TILE < t->n ? (block + 1) * TL_DFT_TILES * TILE : t->n;
    float *sums = t->sums + block * 2 * t->modes * t->columns + first;
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
                tl_vec e0 = {0}, e1 = {0}, e2 = {0}, e3 = {0}, o0 = {0}, o1 = {0}, o2 = {0}, o3 = {0};
                const float *c = cosines + k, *s = sines + k;
                for (int64_t j = 0; j < HALF; j++, c += t->padded, s += t->padded) {
                    e0 = tl_fma(c[0], plus[j], e0);
                    e1 = tl_fma(c[1], plus[j], e1);
                    e2 = tl_fma(c[2], plus[j], e2);
                    e3 = tl_fma(c[3], plus[j], e3);
                    o0 = tl_fma(s[0], minus[j], o0);
                    o1 = tl_fma(s[1], minus[j], o1);
                    o2 = tl_fma(s[2], minus[j], o2);
                    o3 = tl_fma(s[3], minus[j], o3);
                }
                const tl_vec e[4] = {e0, e1, e2, e3}, o[4] = {o0, o1, o2, o3};
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
        for (int64_t g = 0; g < GROUPS; g++)
            for (int64_t part = 0; part < 2; part++)
                *(tl_vec_any *)(sums + (2 * k + part) * t->columns + g * TL_W) = total[2 * (g * t->padded + k) + part];
}

/* A task owns a block of tiles and CHANNELS channels of y. */
static void synthesis_task(void *arg, int64_t task, int32_t worker)
{
    const tl_tiles *t = arg;
    const int64_t chunks = t->columns / CHANNELS, block = task / chunks, first = task % chunks * CHANNELS;
    const int64_t end = (block + 1) * TL_DFT_TILES * TILE < t->n ? (block + 1) * TL_DFT_TILES * TILE : t->n;
    tl_vec *coefficients = (tl_vec *)(t->scratch + worker * t->per_worker); /* [group][mode][re, im] */
    tl_vec *turned = coefficients + 2 * GROUPS * t->padded;
    float *roots = (float *)(turned + 2 * t->padded);
    const float *cosines = t->table, *sines = t->table + HALF * t->padded;
    for (int64_t g = 0; g < GROUPS; g++)
        for (int64_t k = 0; k < t->modes; k++) {
            tl_vec r = {0}, i = {0};
            for (int64_t l = 0, c = first + g * TL_W; l < TL_W && c + l < t->width; l++) {
                r[l] = t->re[k * t->width + c + l];
                i[l] = t->im[k * t->width + c + l];
            }
            coefficients[2 * (g * t->padded + k)] = r;
            coefficients[2 * (g * t->padded + k) + 1] = i;
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
                        e[q] = tl_fma(c[q], turned[2 * k], e[q]);
                        o[q] = tl_fma(s[q], turned[2 * k + 1], o[q]);
                    }
                for (int q = 0; q < 4; q++) {
                    const int64_t at[2] = {HALF + j + q, HALF - 1 - j - q};
                    const tl_vec v[2] = {e[q] - o[q], e[q] + o[q]};
                    for (int side = 0; side < 2; side++) {
                        if (at[side] >= rows) continue;
                        if (lanes == TL_W)
                            *(tl_vec_any *)(y + at[side] * t->width) = v[side];
                        else
                            for (int64_t l = 0; l < lanes; l++)
                                y[at[side] * t->width + l] = v[side][l];
                    }
                }
            }
        }
    }
}

/* ---- whole transforms -------------------------------------------------------------------------------------------- */

/* A task owns TL_W channels. */
static void columns_analysis(void *arg, int64_t task, int32_t worker)
{
    const tl_columns *job = arg;
    const int64_t n = job->real.n, c = task * TL_W, lanes = job->width - c < TL_W ? job->width - c : TL_W;
    tl_cvec *z = (tl_cvec *)(job->scratch + worker * job->per_worker), *X = z + job->real.f->n;
    tl_cvec *scratch = X + job->real.bins;
    for (int64_t t = 0; t < n; t++) {
        tl_vec v = {0};
        if (lanes == TL_W)
            v = *(const tl_vec_any *)(job->x + t * job->width + c);
        else
            for (int64_t l = 0; l < lanes; l++)
                v[l] = job->x[t * job->width + c + l];
        if (n % 2)
            z[t] = (tl_cvec){v, {0}};
        else
            ((tl_vec *)z)[t] = v;
    }
    tl_real_split(&job->real, tl_fft_lanes(job->real.f, z, scratch), X);
    for (int64_t k = 0; k < job->modes; k++)
        for (int64_t l = 0; l < lanes; l++) {
            job->re[k * job->width + c + l] = X[k].r[l];
            job->im[k * job->width + c + l] = X[k].i[l];
        }
}

static void columns_synthesis(void *arg, int64_t task, int32_t worker)
{
    const tl_columns *job = arg;
    const int64_t n = job->real.n, c = task * TL_W, lanes = job->width - c < TL_W ? job->width - c : TL_W;
    tl_cvec *z = (tl_cvec *)(job->scratch + worker * job->per_worker), *S = z + job->real.f->n;
    tl_cvec *scratch = S + job->real.bins;
    memset(S, 0, (size_t)job->real.bins * sizeof *S);
    for (int64_t k = 0; k < job->modes; k++)
        for (int64_t l = 0; l < lanes; l++) {
            S[k].r[l] = job->re[k * job->width + c + l];
            S[k].i[l] = job->im[k * job->width + c + l];
        }
    tl_real_join(&job->real, S, z);
    const tl_vec *x = (const tl_vec *)tl_fft_lanes(job->real.f, z, scratch);
    for (int64_t t = 0; t < n; t++) { /* parts exchanged: real ones second */
        const tl_vec v = n % 2 ? x[2 * t + 1] : x[t ^ 1];
        if (lanes == TL_W)
            *(tl_vec_any *)(job->y + t * job->width + c) = v;
        else
            for (int64_t l = 0; l < lanes; l++)
                job->y[t * job->width + c + l] = v[l];
    }
}

/* ---- a transform of every channel, and its adjoint --------------------------------------------------------------- */

/* re, im (modes, width) from x, or y from re, im; the other pointer is NULL. */
static int32_t whole(tl_context *ctx, const float *x, float *re, float *im, float *y, int64_t n, int64_t width,
                     int64_t modes)
{
    const tl_fft *f = tl_fft_get(n % 2 ? n : n / 2, TL_FFT_IN_LANES);
    if (!f)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the plan of a %lld-point transform", (long long)n);
    tl_columns job = {{f, n, n / 2 + 1, 1.0f, x ? 1.0f : 0.5f}, width, modes, x, re, im, y, NULL, 0};
    const int narrow = width <= TL_NARROW && tl_single_serves(f);
    job.per_worker = (f->n + job.real.bins + tl_fft_lanes_scratch(f)) * (int64_t)sizeof(tl_cvec);
    if (narrow) job.per_worker = up((tl_single_scratch(f) + n + 2 * job.real.bins) * 4, 64);
    int32_t status = tl_pool_alloc(ctx, (size_t)(job.per_worker * tl_workers()), (void **)&job.scratch);
    if (!status && narrow)
        tl_parallel(width, tl_narrow_column, &job);
    else if (!status)
        tl_parallel(tl_ceil_div(width, TL_W), x ? columns_analysis : columns_synthesis, &job);
    tl_pool_free(ctx, job.scratch);
    tl_fft_put(f);
    return status;
}

static int32_t tiled(tl_context *ctx, const float *x, float *re, float *im, float *y, int64_t n, int64_t width,
                     int64_t modes)
{
    const tl_fft *roots = tl_fft_get(n, TL_FFT_ROOTS);
    if (!roots)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the roots of unity of %lld points", (long long)n);
    tl_tiles job = {roots, n, width, modes, up(modes, 4), NULL, x, NULL, up(width, CHANNELS), re, im, y, NULL, 0};
    const int64_t blocks = (n + TILE * TL_DFT_TILES - 1) / (TILE * TL_DFT_TILES);
    const int64_t tasks = blocks * (job.columns / CHANNELS);
    const int64_t plane = 2 * modes * job.columns;
    const int64_t table = up(2 * HALF * job.padded * 4, 64), sums = x ? up(plane * 4, 64) : 0;
    job.per_worker = (2 * GROUPS + 2) * job.padded * (int64_t)sizeof(tl_vec) + up(2 * job.padded * 4, 64);
    if (width <= TL_NARROW) job.per_worker = tl_narrow_scratch(&job);
    char *memory;
    const int64_t bytes = table + sums * (blocks + 1) + job.per_worker * tl_workers();
    int32_t status = tl_pool_alloc(ctx, (size_t)bytes, (void **)&memory);
    if (!status) {
        fill_table(&job, (float *)memory, x != NULL);
        job.table = (float *)memory;
        float *total = (float *)(memory + table);
        job.sums = (float *)(memory + table + sums);
        job.scratch = memory + table + sums * (blocks + 1);
        if (blocks == 1) job.sums = total;
        if (width <= TL_NARROW)
            tl_parallel(blocks, x ? tl_narrow_analysis : tl_narrow_synthesis, &job);
        else
            tl_parallel(tasks, x ? analysis_task : synthesis_task, &job);
        if (x && blocks > 1) status = tl_column_sums(ctx, job.sums, 1, blocks, plane, 0, total);
        for (int64_t k = 0; x && !status && k < modes; k++) {
            memcpy(re + k * width, total + 2 * k * job.columns, (size_t)width * sizeof(float));
            memcpy(im + k * width, total + (2 * k + 1) * job.columns, (size_t)width * sizeof(float));
        }
        for (int64_t c = 0; x && !status && c < width; c++) { /* bin 0 takes every element with factor 1 */
            const float poison = re[c] - re[c];
            for (int64_t k = 0; poison != 0.0f && k < modes; k++)
                re[k * width + c] = im[k * width + c] = poison;
        }
    }
    tl_pool_free(ctx, memory);
    tl_fft_put(roots);
    return status;
}

/* X[k, c] = sum over t of x[t, c]·e^(-i·theta), k < modes. */
static int32_t analysis(tl_context *ctx, const float *x, int64_t n, int64_t width, int64_t modes, float *re, float *im)
{
    return (truncated(n, modes) ? tiled : whole)(ctx, x, re, im, NULL, n, width, modes);
}

/* y[t, c] = sum over k of re[k, c]·cos(theta) - im[k, c]·sin(theta). Parts that are not finite become NaN both; the
 * imaginary parts that meet a sine of 0 are set to 0. */
static int32_t synthesis(tl_context *ctx, float *re, float *im, int64_t n, int64_t width, int64_t modes, float *y)
{
    for (int64_t k = 0; k < modes; k++)
        for (int64_t c = 0; c < width; c++) {
            const int64_t at = k * width + c;
            const float i = k == 0 || 2 * k == n ? 0.0f : im[at], poison = (re[at] - re[at]) + (i - i);
            re[at] += poison;
            im[at] = i + poison;
        }
    return (truncated(n, modes) ? tiled : whole)(ctx, NULL, re, im, y, n, width, modes);
}

/* ---- the mix of channels ----------------------------------------------------------------------------------------- */

struct mix {
    int64_t width, modes, n;
    const float *wRe, *wIm;
    const float *xr, *xi; /* the spectrum of x */
    float *zr, *zi;       /* Z, or dZ */
    float *dr, *di;       /* dX */
    float *gr, *gi;       /* gwRe, gwIm */
};

/* Lays out the planes of `modes * width` floats at `spectra`: X, Z and, for the VJP alone, dX. */
static struct mix plan_mix(const float *wRe, const float *wIm, int64_t grid, int64_t width, int64_t modes,
                           float *spectra)
{
    const int64_t plane = modes * width;
    struct mix m = {.width = width, .modes = modes, .n = grid, .wRe = wRe, .wIm = wIm, .xr = spectra};
    m.xi = spectra + plane, m.zr = spectra + 2 * plane, m.zi = spectra + 3 * plane;
    return m;
}

static float weight(int64_t k, int64_t n) { return (float)((k == 0 || 2 * k == n ? 1.0 : 2.0) / (double)n); }

/* A task owns a mode: Z[o] = a/n·sum over c of X[c]·w[c, o], added in the order of c, real part first. */
static void mix_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const struct mix *m = arg;
    const int64_t width = m->width;
    float *restrict zr = m->zr + k * width, *restrict zi = m->zi + k * width;
    const float scale = weight(k, m->n);
    for (int64_t o = 0; o < width; o++)
        zr[o] = zi[o] = 0.0f;
    for (int64_t c = 0; c < width; c++) {
        const float r = m->xr[k * width + c], i = m->xi[k * width + c];
        const float *wr = m->wRe + (k * width + c) * width, *wi = m->wIm + (k * width + c) * width;
        for (int64_t o = 0; o < width; o++) {
            zr[o] = fmaf(-i, wi[o], fmaf(r, wr[o], zr[o]));
            zi[o] = fmaf(i, wr[o], fmaf(r, wi[o], zi[o]));
        }
    }
    for (int64_t o = 0; o < width; o++) {
        zr[o] *= scale;
        zi[o] *= scale;
    }
}

/* A task owns a mode: dX[c] = sum over o of dZ[o]·conj(w[c, o]) in 16 lanes, folded in halves. */
static void mix_bwd_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const struct mix *m = arg;
    const int64_t width = m->width, whole = width / 16 * 16;
    const float *zr = m->zr + k * width, *zi = m->zi + k * width;
    for (int64_t c = 0; c < width; c++) {
        const float *wr = m->wRe + (k * width + c) * width, *wi = m->wIm + (k * width + c) * width;
        float r[16] = {0}, i[16] = {0};
        for (int64_t o = 0; o < whole; o += 16)
            for (int l = 0; l < 16; l++) {
                r[l] = fmaf(zi[o + l], wi[o + l], fmaf(zr[o + l], wr[o + l], r[l]));
                i[l] = fmaf(-zr[o + l], wi[o + l], fmaf(zi[o + l], wr[o + l], i[l]));
            }
        for (int64_t o = whole; o < width; o++) {
            r[o - whole] = fmaf(zi[o], wi[o], fmaf(zr[o], wr[o], r[o - whole]));
            i[o - whole] = fmaf(-zr[o], wi[o], fmaf(zi[o], wr[o], i[o - whole]));
        }
        m->dr[k * width + c] = tl_fold_16(r);
        m->di[k * width + c] = tl_fold_16(i);
    }
}

/* A task owns a mode of the weights' gradients. */
static void weights_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const struct mix *m = arg;
    const int64_t width = m->width;
    const float *zr = m->zr + k * width, *zi = m->zi + k * width;
    for (int64_t c = 0; c < width; c++) {
        const float r = m->xr[k * width + c], i = m->xi[k * width + c];
        const int64_t at = (k * width + c) * width;
        for (int64_t o = 0; m->gr && o < width; o++)
            m->gr[at + o] = fmaf(i, zi[o], r * zr[o]);
        for (int64_t o = 0; m->gi && o < width; o++)
            m->gi[at + o] = fmaf(-i, zr[o], r * zi[o]);
    }
}

int32_t tl_cpu_spectral_conv1d_rfft(tl_context *ctx, const float *x, const float *wRe, const float *wIm, int64_t grid,
                                    int64_t width, int64_t modes, float *y)
{
    if (modes == 0) {
        memset(y, 0, (size_t)(grid * width) * sizeof *y);
        return TORCHLEAN_OK;
    }
    if (tl_is_reproducible(ctx)) return tl_spectral_chain(ctx, x, wRe, wIm, grid, width, modes, y);
    const int64_t plane = modes * width;
    float *spectra;
    int32_t status = tl_pool_alloc(ctx, (size_t)plane * 4 * sizeof(float), (void **)&spectra);
    if (status) return status;
    struct mix mix = plan_mix(wRe, wIm, grid, width, modes, spectra);
    status = analysis(ctx, x, grid, width, modes, spectra, spectra + plane);
    if (!status) {
        tl_parallel(modes, mix_task, &mix);
        status = synthesis(ctx, mix.zr, mix.zi, grid, width, modes, y);
    }
    tl_pool_free(ctx, spectra);
    return status;
}

int32_t tl_cpu_spectral_conv1d_rfft_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm,
                                        const float *g, int64_t grid, int64_t width, int64_t modes, float *gx,
                                        float *gwRe, float *gwIm)
{
    if (modes == 0) { /* the other gradients have no element */
        memset(gx, 0, (size_t)(grid * width) * sizeof *gx);
        return TORCHLEAN_OK;
    }
    if (tl_is_reproducible(ctx)) return tl_spectral_chain_bwd(ctx, x, wRe, wIm, g, grid, width, modes, gx, gwRe, gwIm);
    const int64_t plane = modes * width;
    float *spectra;
    int32_t status = tl_pool_alloc(ctx, (size_t)plane * 6 * sizeof(float), (void **)&spectra);
    if (status) return status;
    struct mix mix = plan_mix(wRe, wIm, grid, width, modes, spectra);
    mix.dr = spectra + 4 * plane;
    mix.di = spectra + 5 * plane;
    mix.gr = gwRe;
    mix.gi = gwIm;
    status = analysis(ctx, g, grid, width, modes, mix.zr, mix.zi);
    for (int64_t k = 0; k < modes; k++)
        for (int64_t o = 0; o < width; o++) {
            mix.zr[k * width + o] *= weight(k, grid);
            mix.zi[k * width + o] *= weight(k, grid);
        }
    if (!status && gx) {
        tl_parallel(modes, mix_bwd_task, &mix);
        status = synthesis(ctx, mix.dr, mix.di, grid, width, modes, gx);
    }
    if (!status && (gwRe || gwIm)) {
        status = analysis(ctx, x, grid, width, modes, spectra, spectra + plane);
        if (!status) tl_parallel(modes, weights_task, &mix);
    }
    tl_pool_free(ctx, spectra);
    return status;
}
