/* Which algorithm CUDA takes, and why, for people: the functions of the families' select.h, called with numbers. It is plain C, in the build
 * without CUDA too. */
#include <string.h>

#include "core/api.h"
#include "cuda/attention/select.h"
#include "cuda/conv/select.h"
#include "cuda/device/row_select.h"
#include "cuda/index/select.h"
#include "cuda/linalg/select.h"
#include "cuda/norm/select.h"
#include "cuda/reduce/select.h"
#include "cuda/spectral/select.h"

/* Beyond any number of a shape, and what stands for a window without an end. */
static const int64_t MOST = INT64_C(1) << 32, UNLIMITED = (INT64_C(1) << 61) - 1;

struct setting {
    int64_t multiprocessors, block_bytes;
    int has_clusters, has_wgmma, has_fast_double, has_fast_chains, is_reproducible;
};

static const char *explain_product(const int64_t *v, struct setting on)
{
    const tl_product_shape x = {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11]};
    const tl_product_device device = {(int)on.multiprocessors, on.has_wgmma, on.has_fast_double, on.has_fast_chains};
    return tl_product_reason(tl_select_product(x, device, on.is_reproducible));
}

static const char *explain_attention(const int64_t *v, struct setting on)
{
    const struct tl_attention_window window = {v[2], v[3], v[4], v[7], v[8], v[9]};
    const struct tl_attention_shape x =
        tl_attention_shape_of(window, v[1], v[5], v[6], v[10] != 0, v[11] != 0, 1.0f, 1);
    const struct tl_attention_device device = {on.is_reproducible, on.has_wgmma, on.has_fast_chains};
    return tl_attention_reason((v[0] ? tl_attention_backward_engine : tl_attention_forward_engine)(&x, &device));
}

static const char *explain_conv(const int64_t *v, int32_t rank, struct setting on)
{
    const int64_t *const a = v + 5;
    const tl_conv_shape s = tl_conv_merge(rank, a, a + rank, a + 2 * rank, a + 3 * rank, a + 4 * rank, a + 5 * rank);
    const tl_conv_device device = {on.multiprocessors, on.is_reproducible, on.has_fast_chains, on.has_wgmma};
    return tl_conv_reason(v[0] == 2 ? tl_conv_select_weights(&s, v[1], v[2], v[3], v[4], 1, device)
                                    : tl_conv_select_product(&s, (int)v[0], v[1], v[2], v[3], v[4], device));
}

/* A row tree where rows are contiguous. */
static const char *explain_sums(int64_t outer, int64_t length, int64_t inner, struct setting on)
{
    if (inner == 1) return "rows: teams of threads own rows, whose elements are neighbours";
    return tl_columns_reason(tl_select_columns(outer, length, inner, inner % 4 == 0 ? 4 : 1, on.multiprocessors));
}

static const char *explain_fold(const int64_t *v, int32_t rank, int is_extreme, struct setting on)
{
    const tl_fold_axes f = tl_fold_of(rank, v + 1, v[0]);
    return is_extreme && f.reduced <= 1 ? explain_sums(f.outer, f.length, f.inner, on)
                                        : tl_fold_reason(tl_select_fold(&f));
}

static const char *explain_row(const int64_t *v, struct setting on)
{
    const enum tl_row_algorithm algorithm = tl_select_row(v[0]);
    return tl_row_reason(algorithm == TL_ROW_CLUSTER && !(v[1] && on.has_clusters) ? TL_ROW_LEAVES : algorithm);
}

static int all_positive(const int64_t *sizes, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && sizes[i] > 0)
        i++;
    return i == count;
}

TL_API const char *torchlean_cuda_explain(const char *choice, const int64_t *v, uint32_t count, const int64_t *device)
{
    if (!choice || !v || !device || device[0] < 1 || device[0] >= MOST || device[1] < 0 || device[1] >= MOST)
        return NULL;
    for (uint32_t i = 0; i < count && i < 5 + 6 * TL_CONV_RANK; i++)
        if (v[i] <= -MOST || (v[i] >= MOST && v[i] != UNLIMITED)) return NULL;
    const int clusters = device[2] >= 90, doubles = device[3] != 0;
    const struct setting on = {device[0], device[1],           clusters,      device[2] == 90,
                               doubles,   doubles && clusters, device[4] != 0};
    const tl_spectral_device spectral = {(int)device[0], device[1]};
#define IS(name, numbers, first, sizes)                                                                                \
    (count == (numbers) && strcmp(choice, name) == 0 && all_positive(v + (first), sizes))
    /* batch, m, n, p; ta, tb, bias, contiguous, overlaps; whether rows of A, B and C are whole 16 bytes */
    if (IS("product", 12, 0, 4)) return explain_product(v, on);
    /* backward, members, group, queries, keys, d, v, before, after, offset, limited, plain; of a positive scale */
    if (IS("attention", 12, 1, 6)) return explain_attention(v, on);
    /* 0 a correlation, 1 a spread, 2 the weights' gradient; batch, groups, channels, rows; then lists, of each axis the extent of the large
     * and of the small array, the kernel's, the stride, the padding and the dilation */
    if (count > 5 && count <= 5 + 6 * TL_CONV_RANK && count % 6 == 5 && strcmp(choice, "conv") == 0 &&
        all_positive(v + 1, 4 + 4 * (count - 5) / 6) && all_positive(v + count - (count - 5) / 6, (count - 5) / 6))
        return explain_conv(v, (int32_t)(count - 5) / 6, on);
    /* the bits of the axes, then the extents */
    if (count > 1 && count <= 1 + TL_FOLD_RANK && (strcmp(choice, "fold") == 0 || strcmp(choice, "extreme") == 0) &&
        all_positive(v + 1, count - 1))
        return explain_fold(v, (int32_t)count - 1, *choice == 'e', on);
    if (IS("sums", 3, 0, 3)) return explain_sums(v[0], v[1], v[2], on);               /* outer, length, inner */
    if (IS("cumsum", 2, 0, 2)) return tl_cumsum_reason(tl_select_cumsum(v[0], v[1])); /* length, inner */
    if (IS("row", 2, 0, 1)) return explain_row(v, on); /* cols, whether the operation has clusters */
    if (IS("norm_columns", 2, 0, 2)) return tl_norm_columns_reason(tl_select_norm_columns(v[0], v[1])); /* rows, cols */
    if (IS("scatter", 3, 0, 3))
        return tl_scatter_reason(tl_select_scatter(v[0], v[1], v[2]));       /* rows, a list's, hits */
    if (IS("top", 2, 0, 2)) return tl_top_reason(tl_select_top(v[0], v[1])); /* n, k */
    if (IS("real", 3, 0, 2))                                                 /* batch, n, plain */
        return tl_real_reason(tl_select_real(spectral, v[0], v[1], v[2] != 0, on.is_reproducible));
    if (IS("spectral_conv", 3, 0, 3)) /* grid, width, modes */
        return tl_spectral_conv_reason(tl_select_spectral_conv(v[0], v[1], v[2], on.is_reproducible));
#undef IS
    return NULL;
}
