/* Attention of arrays with strides on the CPU: in the mode `reproducible` as they lie (cpu/attention/chain.c), else by contiguous
 * copies of those that are not contiguous. */
#include <string.h>

#include "core/threads.h"
#include "cpu/attention/chain.h"
#include "generated/attention.h"

/* An array (batch, heads, rows, width) and where it lies. */
typedef struct array {
    int64_t batch, heads, rows, width;
    layout at;
} array;

/* A copy of an array from one layout to another. */
typedef struct copy {
    array of;
    const float *from;
    layout to_at;
    float *to;
} copy;

static void copy_head(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const copy *c = arg;
    const int64_t b = task / c->of.heads, h = task % c->of.heads;
    const float *from = c->from + b * c->of.at.batch + h * c->of.at.head;
    float *to = c->to + b * c->to_at.batch + h * c->to_at.head;
    for (int64_t i = 0; i < c->of.rows; i++)
        memcpy(to + i * c->to_at.row, from + i * c->of.at.row, sizeof *to * (size_t)c->of.width);
}

static void copy_array(const array *of, const float *from, const layout *to_at, float *to)
{
    copy c = {.of = *of, .from = from, .to_at = *to_at, .to = to};
    if (of->rows > 0 && of->width > 0) tl_parallel(of->batch * of->heads, copy_head, &c);
}

static int64_t elements(const array *of) { return of->batch * of->heads * of->rows * of->width; }

static int is_contiguous(const array *of)
{
    const layout l = contiguous_layout(of->heads, of->rows, of->width, 0);
    return l.batch == of->at.batch && l.head == of->at.head && l.row == of->at.row;
}

/* Contiguous scratch in the place of arrays that are not contiguous. */
typedef struct scratch {
    tl_context *ctx;
    void *memory[8]; /* as many as a call has arrays */
    int count;
} scratch;

static int32_t allocate(scratch *s, const array *of, float **to)
{
    const int32_t status = tl_pool_alloc(s->ctx, sizeof(float) * (size_t)elements(of), &s->memory[s->count]);
    if (!status) *to = s->memory[s->count++];
    return status;
}

static void release(scratch *s)
{
    while (s->count > 0)
        tl_pool_free(s->ctx, s->memory[--s->count]);
}

/* Reads: the array itself, or a copy. */
static int32_t contiguous(scratch *s, const array *of, const float **x)
{
    if (is_contiguous(of)) return TORCHLEAN_OK;
    const layout l = contiguous_layout(of->heads, of->rows, of->width, 0);
    float *to;
    const int32_t status = allocate(s, of, &to);
    if (status) return status;
    copy_array(of, *x, &l, to);
    *x = to;
    return TORCHLEAN_OK;
}

/* The result's place, or scratch for one that is to lie otherwise. */
static int32_t open_result(scratch *s, const array *of, float *x, float **own)
{
    *own = x;
    return is_contiguous(of) ? TORCHLEAN_OK : allocate(s, of, own);
}

static void close_result(const array *of, const float *own, float *x)
{
    const array made = {of->batch, of->heads, of->rows, of->width,
                        contiguous_layout(of->heads, of->rows, of->width, 0)};
    if (own != x) copy_array(&made, own, &of->at, x);
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
    const array q = {batch, heads, queries, d, at.q}, k = {batch, kv_heads, keys, d, at.k};
    const array v = {batch, kv_heads, keys, width, at.v}, y = {batch, heads, queries, width, at.out};
    const geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    if (tl_is_reproducible(ctx)) return tl_attention_chain(ctx, &of, &at, Q, K, V, out);
    scratch s = {.ctx = ctx};
    float *own;
    int32_t status = contiguous(&s, &q, &Q);
    if (!status) status = contiguous(&s, &k, &K);
    if (!status) status = contiguous(&s, &v, &V);
    if (!status) status = open_result(&s, &y, out, &own);
    if (!status)
        status = tl_cpu_grouped_attention(ctx, Q, K, V, mask, batch, heads, queries, d, kv_heads, keys, width,
                                          mask_mode, mask_batch, mask_heads, mask_queries, before, after, offset, scale,
                                          own);
    if (!status) close_result(&y, own, out);
    release(&s);
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
    const array read[] = {{batch, heads, queries, d, at.q},
                          {batch, kv_heads, keys, d, at.k},
                          {batch, kv_heads, keys, width, at.v},
                          {batch, heads, queries, width, at.out},
                          {batch, heads, queries, width, at.g}};
    const array made[] = {
        {batch, heads, queries, d, at.gq}, {batch, kv_heads, keys, d, at.gk}, {batch, kv_heads, keys, width, at.gv}};
    const geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    if (tl_is_reproducible(ctx)) return tl_attention_chain_bwd(ctx, &of, &at, Q, K, V, y, g, gQ, gK, gV);
    scratch s = {.ctx = ctx};
    const float *given[] = {Q, K, V, y, g};
    float *const wanted[] = {gQ, gK, gV}, *own[] = {NULL, NULL, NULL};
    int32_t status = TORCHLEAN_OK;
    for (size_t i = 0; i < sizeof read / sizeof *read && !status; i++)
        status = contiguous(&s, &read[i], &given[i]);
    for (size_t i = 0; i < sizeof made / sizeof *made && !status; i++)
        status = open_result(&s, &made[i], wanted[i], &own[i]);
    if (!status)
        status = tl_cpu_grouped_attention_bwd(ctx, given[0], given[1], given[2], mask, given[3], given[4], batch, heads,
                                              queries, d, kv_heads, keys, width, mask_mode, mask_batch, mask_heads,
                                              mask_queries, before, after, offset, scale, own[0], own[1], own[2]);
    for (size_t i = 0; i < sizeof made / sizeof *made && !status; i++)
        close_result(&made[i], own[i], wanted[i]);
    release(&s);
    return status;
}
