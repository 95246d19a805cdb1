/* Convolution in reproducible contexts, as sums of products that are defined (cpu/linalg/chain.h); a group is a product of
 * the batch there.
 *
 *   tl_conv_chain           target (rows, positions) = w (rows, K)·gathered source (K, positions), K = channels·taps in the
 *                           order of formula/conv_geometry.h, positions numbered through the whole batch
 *   tl_conv_chain_weights   gw (rows, K) = g (rows, positions)·gathered sourceᵀ (positions, K)
 *
 * What lies outside the source is 0 and takes part in the sums, so that 0·inf is NaN as everywhere. */
#include "cpu/conv/gather.h"
#include "cpu/linalg/chain.h"

enum { PART = 128 }; /* rows that are gathered at a time, on the stack */
_Static_assert((int)TL_CHAIN_STRIP == (int)LANES, "a strip is one vector of what is gathered");

typedef struct {
    const conv_view *v;
    const float *w, *bias; /* w: weights, or the cotangent */
    float *target;
    int64_t row_stride, channel_stride, group_stride;
} convolution;

/* The view of a group. */
static conv_view group_of(const convolution *c, int64_t group)
{
    conv_view v = *c->v;
    v.source += group * v.channels * v.gather.source_size;
    return v;
}

/* Rows of g at positions k0 .. k0 + kc - 1 of the batch; an image is contiguous. */
static void pack_cotangent(const tl_chain *x, double *dst, int64_t group, int64_t row, int64_t h, int64_t k0,
                           int64_t kc)
{
    const convolution *c = x->data;
    const int64_t size = c->v->gather.positions;
    for (int64_t k = 0; k < kc;) {
        const int64_t image = (k0 + k) / size, at = (k0 + k) % size, n = tl_imin(kc - k, size - at);
        const float *from = c->w + (image * c->v->target_rows + group * x->m + row) * size + at;
        for (int64_t r = 0; r < h; r++)
            for (int64_t i = 0; i < n; i++)
                dst[(k + i) * h + r] = (double)from[r * size + i];
        k += n;
    }
}

/* Columns are rows of the gathered source: LANES positions of each are gathered, and turned. */
static void pack_turned(const tl_chain *x, double *dst, int64_t width, int64_t group, int64_t column, int64_t w,
                        int64_t k0, int64_t kc)
{
    const conv_view v = group_of(x->data, group);
    _Alignas(64) float part[LANES * LANES] = {0};
    for (int64_t k = 0; k < kc; k += LANES) {
        const int64_t n = tl_imin(kc - k, LANES);
        conv_strip strip;
        open_strip(&v, k0 + k, n, &strip);
        gather_rows(&v, &strip, 1, column, w, part, LANES);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < width; j++)
                dst[(k + i) * width + j] = (double)part[j * LANES + i];
    }
}

static void finish_weights(const tl_chain *x, const double *sums, int64_t group, int64_t row, int64_t column,
                           int64_t columns)
{
    const convolution *c = x->data;
    float *to = c->target + (group * x->m + row) * x->p + column;
    for (int64_t j = 0; j < columns; j++)
        to[j] = (float)sums[j];
}

int32_t tl_conv_chain_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    const convolution c = {.v = v, .w = g, .target = gw};
    const tl_chain x = {groups,
                        v->rows,
                        v->batch * v->gather.positions,
                        v->channels * v->gather.taps_size,
                        &c,
                        pack_cotangent,
                        pack_turned,
                        finish_weights,
                        NULL};
    return tl_chain_multiply(ctx, &x);
}
