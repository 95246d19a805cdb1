/* Transforms of the spectral convolution with few channels. Lanes are tiles, TL_W neighbouring ones of a block, a
 * channel at a time; their shares are added tile by tile. Whole transforms run one by one (single.c). All numbers are
 * those of conv.c. */
#include "cpu/spectral/narrow.h"

/* What a worker has: rows of TL_W tiles (TILE rows of all channels), the roots of their modes, turned coefficients, a
 * tile. */
typedef struct {
    tl_vec *rows, *roots, *turned;
    float *totals, *scalars, *tile;
} work;

static work open_work(const tl_tiles *t, int32_t worker)
{
    work w = {.rows = (tl_vec *)(t->scratch + worker * t->per_worker)};
    w.roots = w.rows + TILE * t->width;
    w.turned = w.roots + 2 * t->padded;
    w.scalars = (float *)(w.turned + 2 * t->padded);
    w.totals = w.scalars + 2 * t->padded;
    w.tile = w.totals + 2 * t->padded * t->width;
    return w;
}

int64_t tl_narrow_scratch(const tl_tiles *t)
{
    const int64_t vectors = TILE * t->width + 4 * t->padded, floats = 2 * t->padded * (1 + t->width) + TILE * t->width;
    return (vectors * (int64_t)sizeof(tl_vec) + floats * 4 + 63) / 64 * 64;
}

/* The roots of `lanes` tiles from t0 on, lane by lane. */
static void find_roots(const tl_tiles *t, const work *w, int64_t t0, int64_t lanes)
{
    for (int64_t l = 0; l < lanes; l++) {
        tile_roots(t, t0 + l * TILE, w->scalars);
        for (int64_t i = 0; i < 2 * t->modes; i++)
            ((float *)&w->roots[i])[l] = w->scalars[i];
    }
}

/* The tiles of a block, TL_W at a time; the last one of all, if it is not full, alone. */
static int64_t count_lanes(int64_t t0, int64_t end)
{
    const int64_t full = (end - t0) / TILE;
    return full == 0 ? 1 : full < TL_W ? full : TL_W;
}

void tl_narrow_analysis(void *arg, int64_t block, int32_t worker)
{
    const tl_tiles *t = arg;
    const work w = open_work(t, worker);
    const int64_t width = t->width, last = (block + 1) * TL_DFT_TILES * TILE, end = last < t->n ? last : t->n;
    const float *cosines = t->table, *sines = t->table + HALF * t->padded;
    memset(w.totals, 0, (size_t)(2 * t->padded * width) * sizeof(float));
    memset(w.roots, 0, (size_t)(2 * t->padded) * sizeof *w.roots);
    for (int64_t t0 = block * TL_DFT_TILES * TILE, lanes; t0 < end; t0 += lanes * TILE) {
        const float *x = t->x + t0 * width;
        lanes = count_lanes(t0, end);
        find_roots(t, &w, t0, lanes);
        if (end - t0 < TILE) {
            memset(w.tile, 0, (size_t)(TILE * width) * sizeof(float));
            memcpy(w.tile, x, (size_t)((end - t0) * width) * sizeof(float));
            x = w.tile;
        }
        tl_lanes_in(x, TILE * width, lanes, TILE * width, w.rows, 1);
        for (int64_t channel = 0; channel < width; channel++) {
            tl_vec plus[HALF], minus[HALF];
            for (int64_t j = 0; j < HALF; j++) {
                const tl_vec a = w.rows[(HALF + j) * width + channel], b = w.rows[(HALF - 1 - j) * width + channel];
                plus[j] = a + b;
                minus[j] = a - b;
            }
            float *total = w.totals + 2 * t->padded * channel;
            for (int64_t k = 0; k < t->modes; k += 4) {
                tl_vec e[4] = {{0}}, o[4] = {{0}};
                const float *c = cosines + k, *s = sines + k;
                for (int64_t j = 0; j < HALF; j++, c += t->padded, s += t->padded)
                    for (int q = 0; q < 4; q++) {
                        e[q] = tl_fma(c[q], plus[j], e[q]);
                        o[q] = tl_fma(s[q], minus[j], o[q]);
                    }
                for (int64_t q = 0; q < 4 && k + q < t->modes; q++) {
                    const tl_vec rc = w.roots[2 * (k + q)], rs = w.roots[2 * (k + q) + 1];
                    const tl_vec re = e[q] * rc + o[q] * rs, im = e[q] * rs - o[q] * rc;
                    float r = total[2 * (k + q)], i = total[2 * (k + q) + 1];
                    for (int64_t l = 0; l < lanes; l++)
                        r += re[l], i += im[l];
                    total[2 * (k + q)] = r, total[2 * (k + q) + 1] = i;
                }
            }
        }
    }
    for (int64_t i = 0; i < 2 * t->modes; i++)
        for (int64_t c = 0; c < t->columns; c++)
            t->sums[(block * 2 * t->modes + i) * t->columns + c] = c < width ? w.totals[2 * t->padded * c + i] : 0.0f;
}

void tl_narrow_synthesis(void *arg, int64_t block, int32_t worker)
{
    const tl_tiles *t = arg;
    const work w = open_work(t, worker);
    const int64_t width = t->width, last = (block + 1) * TL_DFT_TILES * TILE, end = last < t->n ? last : t->n;
    const float *cosines = t->table, *sines = t->table + HALF * t->padded;
    memset(w.roots, 0, (size_t)(2 * t->padded) * sizeof *w.roots);
    for (int64_t t0 = block * TL_DFT_TILES * TILE, lanes; t0 < end; t0 += lanes * TILE) {
        lanes = count_lanes(t0, end);
        find_roots(t, &w, t0, lanes);
        for (int64_t channel = 0; channel < width; channel++) {
            for (int64_t k = 0; k < t->modes; k++) {
                const float r = t->re[k * width + channel], i = t->im[k * width + channel];
                const tl_vec rc = w.roots[2 * k], rs = w.roots[2 * k + 1];
                w.turned[2 * k] = r * rc + i * rs;
                w.turned[2 * k + 1] = i * rc - r * rs;
            }
            for (int64_t j = 0; j < HALF; j += 4) {
                tl_vec e[4] = {{0}}, o[4] = {{0}};
                const float *c = cosines + j, *s = sines + j;
                for (int64_t k = 0; k < t->modes; k++, c += HALF, s += HALF)
                    for (int q = 0; q < 4; q++) {
                        e[q] = tl_fma(c[q], w.turned[2 * k], e[q]);
                        o[q] = tl_fma(s[q], w.turned[2 * k + 1], o[q]);
                    }
                for (int q = 0; q < 4; q++) {
                    w.rows[(HALF + j + q) * width + channel] = e[q] - o[q];
                    w.rows[(HALF - 1 - j - q) * width + channel] = e[q] + o[q];
                }
            }
        }
        const int64_t rows = end - t0 < TILE ? end - t0 : TILE;
        tl_lanes_out(w.rows, 1, 0, lanes, rows * width, t->y + t0 * width, TILE * width);
    }
}

void tl_narrow_column(void *arg, int64_t channel, int32_t worker)
{
    const tl_columns *job = arg;
    const int64_t n = job->real.n, width = job->width;
    float *row = (float *)(job->scratch + worker * job->per_worker), *bins = row + n;
    float *scratch = bins + 2 * job->real.bins;
    if (job->x) {
        for (int64_t t = 0; t < n; t++)
            row[t] = job->x[t * width + channel];
        tl_single_forward(&job->real, row, bins, scratch, 1.0f, 1.0f);
        for (int64_t k = 0; k < job->modes; k++) {
            job->re[k * width + channel] = bins[2 * k];
            job->im[k * width + channel] = bins[2 * k + 1];
        }
        return;
    }
    memset(bins, 0, (size_t)(2 * job->real.bins) * sizeof *bins);
    for (int64_t k = 0; k < job->modes; k++) {
        bins[2 * k] = job->re[k * width + channel];
        bins[2 * k + 1] = job->im[k * width + channel];
    }
    tl_single_inverse(&job->real, bins, row, scratch, 1.0f, 1.0f);
    for (int64_t t = 0; t < n; t++)
        job->y[t * width + channel] = row[t];
}
