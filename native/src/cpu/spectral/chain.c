/* Both transforms are products of linalg/chain.h. Row r of the analysis is part r % 2 of bin r / 2, its columns are channels; row
 * t of the synthesis is a row of the grid. Either way term 2j + e of a sum is number e of a root's part, times row j of
 * what is transformed. */
#include "cpu/spectral/chain.h"

#include <string.h>

#include "core/threads.h"
#include "cpu/linalg/chain.h"
#include "formula/chain.h"
#include "formula/integer.h"
#include "formula/spectral_chain.h"

enum { ROOT_TASK = 1 << 10 };

typedef struct roots {
    tl_root_parts *of; /* n */
    int64_t n;
} roots;

static void roots_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const roots *r = arg;
    for (int64_t k = task * ROOT_TASK; k < tl_imin((task + 1) * ROOT_TASK, r->n); k++)
        r->of[k] = tl_split_root((uint64_t)k, (uint64_t)r->n);
}

/* ---- transforms -------------------------------------------------------------------------------------------------- */

typedef struct transform {
    const roots *roots;
    int synthesis;
    const float *from; /* rows of `width`: the grid's, or the parts' of the bins in turn */
    float *to;
    int64_t width;
} transform;

/* Blocks begin at whole pairs of terms. */
static void pack_rows(const tl_chain *c, double *dst, TL_UNUSED int64_t q, int64_t row, int64_t h, int64_t k0,
                      int64_t kc)
{
    const transform *f = c->data;
    const uint64_t n = (uint64_t)f->roots->n;
    for (int64_t r = 0; r < h; r++) {
        const int64_t i = row + r, first = k0 / 2;
        const uint64_t step = (uint64_t)(f->synthesis ? i : i / 2);
        uint64_t at = step * (uint64_t)(f->synthesis ? first / 2 : first) % n; /* the root's number */
        for (int64_t j = first; j < (k0 + kc) / 2; j++) {
            const float *part = f->roots->of[at].part[(f->synthesis ? j : i) % 2];
            for (int64_t e = 0; e < 2; e++)
                dst[(2 * (j - first) + e) * h + r] = (double)part[e];
            at += f->synthesis && j % 2 == 0 ? 0 : step;
            at -= at >= n ? n : 0;
        }
    }
}

static void pack_columns(const tl_chain *c, double *dst, int64_t width, TL_UNUSED int64_t q, int64_t column, int64_t w,
                         int64_t k0, int64_t kc)
{
    const transform *f = c->data;
    if (w < width) memset(dst, 0, (size_t)(width * kc) * sizeof *dst);
    for (int64_t k = 0; k < kc; k++)
        for (int64_t l = 0; l < w; l++)
            dst[k * width + l] = (double)f->from[(k0 + k) / 2 * f->width + column + l];
}

static void finish(const tl_chain *c, const double *sums, TL_UNUSED int64_t q, int64_t row, int64_t column,
                   int64_t columns)
{
    const transform *f = c->data;
    for (int64_t l = 0; l < columns; l++)
        f->to[row * f->width + column + l] = (float)sums[l];
}

/* The bins of x; those of a channel with a NaN or an infinity all become NaN: bin 0 has every element with factor 1. */
static int32_t analyse(tl_context *ctx, const roots *r, const float *x, int64_t width, int64_t modes, float *X)
{
    const transform f = {r, 0, x, X, width};
    const tl_chain c = {1, 2 * modes, 2 * r->n, width, &f, pack_rows, pack_columns, finish, NULL};
    const int32_t status = tl_chain_multiply(ctx, &c);
    for (int64_t row = 2 * modes - 1; !status && row >= 0; row--)
        for (int64_t l = 0; l < width; l++)
            X[row * width + l] += X[l] - X[l];
    return status;
}

/* The grid's values of bins Z, which it prepares. */
static int32_t synthesise(tl_context *ctx, const roots *r, float *Z, int64_t width, int64_t modes, float *y)
{
    for (int64_t k = 0; k < modes; k++)
        for (int64_t l = 0; l < width; l++)
            tl_bin_prepare(k, r->n, &Z[2 * k * width + l], &Z[(2 * k + 1) * width + l]);
    const transform f = {r, 1, Z, y, width};
    const tl_chain c = {1, r->n, 4 * modes, width, &f, pack_rows, pack_columns, finish, NULL};
    return tl_chain_multiply(ctx, &c);
}

/* ---- the mix of channels ----------------------------------------------------------------------------------------- */

typedef struct mix {
    int64_t n, width;
    const float *wRe, *wIm;
    const float *X;
    float *Z, *dX;
    float *gr, *gi;
} mix;

/* Two sums of products that go on with four terms: a chain in segments. */
typedef struct sums {
    double total[2], part[2];
} sums;

static inline void add_terms(sums *s, int64_t term, int64_t segment, double a, double b, double c, double d)
{
    if (term % segment == 0 && term > 0)
        for (int i = 0; i < 2; i++) {
            s->total[i] = term == segment ? s->part[i] : s->total[i] + s->part[i];
            s->part[i] = 0.0;
        }
    s->part[0] = (s->part[0] + a) + b;
    s->part[1] = (s->part[1] + c) + d;
}

static inline double sum_of(const sums *s, int i, int64_t terms, int64_t segment)
{
    return terms > segment ? s->total[i] + s->part[i] : s->part[i];
}

/* A task owns a mode. */
static void mix_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const mix *m = arg;
    const int64_t width = m->width, segment = tl_chain_segment(2 * width);
    const double weight = tl_bin_weight(k, m->n);
    const float *X = m->X + 2 * k * width;
    for (int64_t o = 0; o < width; o++) {
        sums s = {{0}, {0}};
        for (int64_t c = 0; c < width; c++) {
            const double r = (double)X[c], i = (double)X[width + c];
            const double wr = (double)m->wRe[(k * width + c) * width + o];
            const double wi = (double)m->wIm[(k * width + c) * width + o];
            add_terms(&s, 2 * c, segment, r * wr, -(i * wi), r * wi, i * wr);
        }
        m->Z[2 * k * width + o] = (float)(sum_of(&s, 0, 2 * width, segment) * weight);
        m->Z[(2 * k + 1) * width + o] = (float)(sum_of(&s, 1, 2 * width, segment) * weight);
    }
}

/* The same: dX[c] = Σ_o dZ[o]·conj(w[c, o]). */
static void mix_bwd_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const mix *m = arg;
    const int64_t width = m->width, segment = tl_chain_segment(2 * width);
    const float *Z = m->Z + 2 * k * width;
    for (int64_t c = 0; c < width; c++) {
        sums s = {{0}, {0}};
        for (int64_t o = 0; o < width; o++) {
            const double r = (double)Z[o], i = (double)Z[width + o];
            const double wr = (double)m->wRe[(k * width + c) * width + o];
            const double wi = (double)m->wIm[(k * width + c) * width + o];
            add_terms(&s, 2 * o, segment, r * wr, i * wi, i * wr, -(r * wi));
        }
        m->dX[2 * k * width + c] = (float)sum_of(&s, 0, 2 * width, segment);
        m->dX[(2 * k + 1) * width + c] = (float)sum_of(&s, 1, 2 * width, segment);
    }
}

/* A task owns a mode of the weights' gradients. */
static void weights_task(void *arg, int64_t k, TL_UNUSED int32_t worker)
{
    const mix *m = arg;
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

/* Scratch: the roots, and planes of 2·modes·width floats. */
static int32_t begin(tl_context *ctx, int64_t n, int64_t width, int64_t modes, int64_t planes, roots *r, float **memory)
{
    void *scratch;
    const int64_t bytes = n * (int64_t)sizeof(tl_root_parts) + planes * 2 * modes * width * (int64_t)sizeof(float);
    const int32_t status = tl_pool_alloc(ctx, (size_t)bytes, &scratch);
    if (status) return status;
    *r = (roots){scratch, n};
    *memory = (float *)(r->of + n);
    tl_parallel(tl_ceil_div(n, ROOT_TASK), roots_task, r);
    return TORCHLEAN_OK;
}

int32_t tl_spectral_chain(tl_context *ctx, const float *x, const float *wRe, const float *wIm, int64_t grid,
                          int64_t width, int64_t modes, float *y)
{
    roots r;
    float *X;
    int32_t status = begin(ctx, grid, width, modes, 2, &r, &X);
    if (status) return status;
    mix m = {.n = grid, .width = width, .wRe = wRe, .wIm = wIm, .X = X, .Z = X + 2 * modes * width};
    status = analyse(ctx, &r, x, width, modes, X);
    if (!status) {
        tl_parallel(modes, mix_task, &m);
        status = synthesise(ctx, &r, m.Z, width, modes, y);
    }
    tl_pool_free(ctx, r.of);
    return status;
}

int32_t tl_spectral_chain_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm, const float *g,
                              int64_t grid, int64_t width, int64_t modes, float *gx, float *gwRe, float *gwIm)
{
    const int64_t plane = 2 * modes * width;
    roots r;
    float *X;
    int32_t status = begin(ctx, grid, width, modes, 3, &r, &X);
    if (status) return status;
    mix m = {.n = grid, .width = width, .wRe = wRe, .wIm = wIm, .X = X, .Z = X + plane, .dX = X + 2 * plane};
    m.gr = gwRe, m.gi = gwIm;
    status = analyse(ctx, &r, g, width, modes, m.Z);
    for (int64_t row = 0; !status && row < 2 * modes; row++)
        for (int64_t o = 0; o < width; o++)
            m.Z[row * width + o] = (float)((double)m.Z[row * width + o] * tl_bin_weight(row / 2, grid));
    if (!status && gx) {
        tl_parallel(modes, mix_bwd_task, &m);
        status = synthesise(ctx, &r, m.dX, width, modes, gx);
    }
    if (!status && (gwRe || gwIm)) {
        status = analyse(ctx, &r, x, width, modes, X);
        if (!status) tl_parallel(modes, weights_task, &m);
    }
    tl_pool_free(ctx, r.of);
    return status;
}
