/* Attention of arrays with strides on the CPU: in the mode `reproducible` as they lie (cpu/attention/chain.c), else by contiguous
 * copies of those that are not contiguous. */
#include "core/threads.h"
#include "cpu/attention/chain.h"
#include "cpu/shape.h"
#include "generated/attention.h"

/* An array (batch, heads, rows, width) and where it lies. */
typedef struct array {
    int64_t batch, heads, rows, width;
    layout at;
} array;

/* Copies x to its contiguous place, or with `back` what was made there to x. */
static void copy_array(const array *of, float *x, float *own, int back)
{
    const tl_strided s = {.count = 4,
                          .n = of->batch * of->heads * of->rows * of->width,
                          .size = {of->batch, of->heads, of->rows, of->width},
                          .stride = {of->at.batch, of->at.head, of->at.row, 1}};
    if (own != x && s.n > 0) tl_copy_strided(back ? own : x, s, !back, back ? x : own);
}

/* Places for contiguous copies of `count` arrays, where they are not contiguous; copies the first `read`, which are read. */
static int32_t open_arrays(tl_context *ctx, const array *of, float *const *x, int count, int read, float **own)
{
    int32_t status = TORCHLEAN_OK;
    for (int i = 0; i < count; i++) {
        const layout l = contiguous_layout(of[i].heads, of[i].rows, of[i].width, 0), at = of[i].at;
        own[i] = x[i];
        if (status || !x[i] || (l.batch == at.batch && l.head == at.head && l.row == at.row)) continue;
        void *memory;
        status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(of[i].batch * l.batch), &memory);
        if (!status) own[i] = memory;
        if (!status && i < read) copy_array(&of[i], x[i], own[i], 0);
    }
    return status;
}

/* Copies back those that were made, unless the call failed, and frees the scratch. */
static void close_arrays(tl_context *ctx, const array *of, float *const *x, int count, int read, float **own,
                         int failed)
{
    for (int i = 0; i < count; i++) {
        if (i >= read && !failed) copy_array(&of[i], x[i], own[i], 1);
        if (own[i] != x[i]) tl_pool_free(ctx, own[i]);
    }
}

int32_t tl_cpu_attention_strided(tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask,
                                 TL_UNUSED int64_t q_size, TL_UNUSED int64_t k_size, TL_UNUSED int64_t v_size,
                                 int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t width, int64_t d,
                                 int64_t kv_heads, int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch,
                                 int64_t k_head, int64_t k_row, int64_t v_batch, int64_t v_head, int64_t v_row,
                                 int64_t mask_mode, int64_t mask_batch, int64_t mask_heads, int64_t mask_queries,
                                 int64_t before, int64_t after, int64_t offset, float scale, int64_t by_rows,
                                 float *out)
{
    const layouts at = {.q = {q_batch, q_head, q_row},
                        .k = {k_batch, k_head, k_row},
                        .v = {v_batch, v_head, v_row},
                        .out = contiguous_layout(heads, queries, width, by_rows)};
    const array arrays[] = {{batch, heads, queries, d, at.q},
                            {batch, kv_heads, keys, d, at.k},
                            {batch, kv_heads, keys, width, at.v},
                            {batch, heads, queries, width, at.out}};
    const geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    if (tl_is_reproducible(ctx)) return tl_attention_chain(ctx, &of, &at, Q, K, V, out);
    float *const x[] = {(float *)Q, (float *)K, (float *)V, out}, *own[4];
    int32_t status = open_arrays(ctx, arrays, x, 4, 3, own);
    if (!status)
        status = tl_cpu_grouped_attention(ctx, own[0], own[1], own[2], mask, batch, heads, queries, d, kv_heads, keys,
                                          width, mask_mode, mask_batch, mask_heads, mask_queries, before, after, offset,
                                          scale, own[3]);
    close_arrays(ctx, arrays, x, 4, 3, own, status != TORCHLEAN_OK);
    return status;
}

int32_t tl_cpu_attention_strided_gradients(
    tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask, const float *y, const float *g,
    TL_UNUSED int64_t q_size, TL_UNUSED int64_t k_size, TL_UNUSED int64_t v_size, TL_UNUSED int64_t y_size,
    TL_UNUSED int64_t g_size, int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t width, int64_t d,
    int64_t kv_heads, int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch, int64_t k_head, int64_t k_row,
    int64_t v_batch, int64_t v_head, int64_t v_row, int64_t y_batch, int64_t y_head, int64_t y_row, int64_t g_batch,
    int64_t g_head, int64_t g_row, int64_t mask_mode, int64_t mask_batch, int64_t mask_heads, int64_t mask_queries,
    int64_t before, int64_t after, int64_t offset, float scale, int64_t by_rows, float *gQ, float *gK, float *gV)
{
    const layouts at = {.q = {q_batch, q_head, q_row},
                        .k = {k_batch, k_head, k_row},
                        .v = {v_batch, v_head, v_row},
                        .out = {y_batch, y_head, y_row},
                        .g = {g_batch, g_head, g_row},
                        .gq = contiguous_layout(heads, queries, d, by_rows & 1),
                        .gk = contiguous_layout(kv_heads, keys, d, by_rows >> 1 & 1),
                        .gv = contiguous_layout(kv_heads, keys, width, by_rows >> 2 & 1)};
    const array arrays[] = {{batch, heads, queries, d, at.q},     {batch, kv_heads, keys, d, at.k},
                            {batch, kv_heads, keys, width, at.v}, {batch, heads, queries, width, at.out},
                            {batch, heads, queries, width, at.g}, {batch, heads, queries, d, at.gq},
                            {batch, kv_heads, keys, d, at.gk},    {batch, kv_heads, keys, width, at.gv}};
    const geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    if (tl_is_reproducible(ctx)) return tl_attention_chain_bwd(ctx, &of, &at, Q, K, V, y, g, gQ, gK, gV);
    float *const x[] = {(float *)Q, (float *)K, (float *)V, (float *)y, (float *)g, gQ, gK, gV}, *own[8];
    int32_t status = open_arrays(ctx, arrays, x, 8, 5, own);
    if (!status)
        status = tl_cpu_grouped_attention_bwd(ctx, own[0], own[1], own[2], mask, own[3], own[4], batch, heads, queries,
                                              d, kv_heads, keys, width, mask_mode, mask_batch, mask_heads, mask_queries,
                                              before, after, offset, scale, own[5], own[6], own[7]);
    close_arrays(ctx, arrays, x, 8, 5, own, status != TORCHLEAN_OK);
    return status;
}
