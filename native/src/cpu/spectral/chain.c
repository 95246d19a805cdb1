/* Both transforms are products of linalg/chain.h. Row r of the analysis is part r % 2 of bin r / 2, its columns are channels; row
 * t of the synthesis is a row of the grid. Either way term 2j + e of a sum is number e of a root's part, times row j of
 * what is transformed. */
#include "cpu/spectral/chain.h"

#include <string.h>

#include "cpu/linalg/chain.h"
#include "formula/integer.h"

enum { ROOT_TASK = 1 << 10 };

static void roots_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const tl_mix *m = arg;
    for (int64_t k = task * ROOT_TASK; k < tl_imin((task + 1) * ROOT_TASK, m->n); k++)
        m->roots[k] = tl_split_root((uint64_t)k, (uint64_t)m->n);
}

void tl_mix_roots(tl_mix *m, tl_root_parts *roots)
{
    m->roots = roots;
    tl_parallel(tl_ceil_div(m->n, ROOT_TASK), roots_task, m);
}

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

int32_t tl_mix_analyse(tl_context *ctx, const tl_mix *m, const float *x, float *X)
{
    const transform f = {m->roots, m->n, 0, x, X, m->width};
    const tl_chain c = {1, 2 * m->modes, 2 * m->n, m->width, &f, pack_rows, pack_columns, finish, NULL};
    const int32_t status = tl_chain_multiply(ctx, &c);
    for (int64_t row = 2 * m->modes - 1; !status && row >= 0; row--) /* bin 0 has every element with factor 1 */
        for (int64_t l = 0; l < m->width; l++)
            X[row * m->width + l] += X[l] - X[l];
    return status;
}

int32_t tl_mix_synthesise(tl_context *ctx, const tl_mix *m, const float *Z, float *y)
{
    const transform f = {m->roots, m->n, 1, Z, y, m->width};
    const tl_chain c = {1, m->n, 4 * m->modes, m->width, &f, pack_rows, pack_columns, finish, NULL};
    return tl_chain_multiply(ctx, &c);
}
