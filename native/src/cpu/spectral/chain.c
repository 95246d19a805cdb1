/* Both transforms are products of linalg/chain.h. Row r of the analysis is part r % 2 of bin r / 2, its columns are channels; row
 * t of the synthesis is a row of the grid. Either way term 2j + e of a sum is number e of a root's part, times row j of
 * what is transformed. */
#include "cpu/spectral/chain.h"

#include <string.h>

#include "cpu/linalg/chain.h"
#include "formula/chain.h"
#include "formula/integer.h"

enum { ROOT_TASK = 1 << 10 };

static void roots_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const tl_mix *m = arg;
    tl_root_parts *roots = m->table;
    for (int64_t k = task * ROOT_TASK; k < tl_imin((task + 1) * ROOT_TASK, m->n); k++)
        roots[k] = tl_split_root((uint64_t)k, (uint64_t)m->n);
}

static void begin(const tl_mix *m) { tl_parallel(tl_ceil_div(m->n, ROOT_TASK), roots_task, (void *)m); }

/* ---- transforms -------------------------------------------------------------------------------------------------- */

typedef struct transform {
    const tl_root_parts *roots;
    int64_t n;
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
    const uint64_t n = (uint64_t)f->n;
    for (int64_t r = 0; r < h; r++) {
        const int64_t i = row + r, first = k0 / 2;
        const uint64_t step = (uint64_t)(f->synthesis ? i : i / 2);
        uint64_t at = step * (uint64_t)(f->synthesis ? first / 2 : first) % n; /* the root's number */
        for (int64_t j = first; j < (k0 + kc) / 2; j++) {
            const float *part = f->roots[at].part[(f->synthesis ? j : i) % 2];
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

static int32_t analyse(tl_context *ctx, const tl_mix *m, const float *x, float *X)
{
    const transform f = {m->table, m->n, 0, x, X, m->width};
    const tl_chain c = {1, 2 * m->modes, 2 * m->n, m->width, &f, pack_rows, pack_columns, finish, NULL};
    const int32_t status = tl_chain_multiply(ctx, &c);
    for (int64_t row = 2 * m->modes - 1; !status && row >= 0; row--) /* bin 0 has every element with factor 1 */
        for (int64_t l = 0; l < m->width; l++)
            X[row * m->width + l] += X[l] - X[l];
    return status;
}

static int32_t synthesise(tl_context *ctx, const tl_mix *m, const float *Z, float *y)
{
    const transform f = {m->table, m->n, 1, Z, y, m->width};
    const tl_chain c = {1, m->n, 4 * m->modes, m->width, &f, pack_rows, pack_columns, finish, NULL};
    return tl_chain_multiply(ctx, &c);
}

/* ---- the mix of channels ----------------------------------------------------------------------------------------- */

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

/* Mode k of Z[o] = weight·Σ_c X[c]·w[c, o], or if it goes `back` of dX[c] = weight·Σ_o dZ[o]·conj(w[c, o]). */
static inline void mix_mode(const tl_mix *m, int64_t k, const float *from, double weight, const int back, float *to)
{
    const int64_t width = m->width, segment = tl_chain_segment(2 * width);
    const float *x = from + 2 * k * width, *re = m->wRe + k * width * width, *im = m->wIm + k * width * width;
    for (int64_t i = 0; i < width; i++) {
        sums s = {{0}, {0}};
        for (int64_t j = 0; j < width; j++) {
            const int64_t at = back ? i * width + j : j * width + i;
            const double a = (double)x[j], b = (double)x[width + j], r = (double)re[at], t = (double)im[at];
            add_terms(&s, 2 * j, segment, a * r, back ? b * t : -(b * t), back ? b * r : a * t,
                      back ? -(a * t) : b * r);
        }
        to[2 * k * width + i] = (float)(sum_of(&s, 0, 2 * width, segment) * weight);
        to[(2 * k + 1) * width + i] = (float)(sum_of(&s, 1, 2 * width, segment) * weight);
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

const tl_mix_way tl_chain_way = {.table_bytes = sizeof(tl_root_parts),
                                 .begin = begin,
                                 .analyse = analyse,
                                 .synthesise = synthesise,
                                 .mix = mix_task,
                                 .mix_bwd = mix_bwd_task,
                                 .weights = weights_task,
                                 .weight = tl_bin_weight};
