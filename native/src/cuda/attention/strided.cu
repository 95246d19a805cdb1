/* Attention of arrays with strides on CUDA: by chains as they lie (attention/chain.cu), else by contiguous copies of those that are
 * not contiguous. Queries of heads that share keys are rows of one member; where these are not equally far apart, queries and what
 * has their shape are copied for chains, too. */
#include "cuda/attention/engines.cuh"
#include "generated/attention.h"

namespace attention {
namespace {

/* An array (batch, heads, rows, width), and how far apart its samples, heads and rows lie. */
struct Array {
    int64_t batch, heads, rows, width;
    Layout at;

    /* With the heads of a row side by side, or head after head. */
    static Layout contiguous(int64_t heads, int64_t rows, int64_t width, bool by_rows)
    {
        return {heads * rows * width, by_rows ? width : rows * width, by_rows ? heads * width : width};
    }
    int64_t size() const { return batch * heads * rows * width; }
    bool is_contiguous() const
    {
        const Layout l = contiguous(heads, rows, width, false);
        return (batch <= 1 || at.batch == l.batch) && (heads <= 1 || at.head == l.head) &&
               (rows <= 1 || at.row == l.row);
    }
    /* The layout of members whose rows are those of `group` heads; strides of axes of length 1 are those of a contiguous array. */
    Layout of_members(int64_t group) const
    {
        Layout l = contiguous(heads, rows, width, false);
        if (batch > 1) l.batch = at.batch;
        if (heads > 1) l.head = at.head;
        if (rows > 1)
            l.row = at.row;
        else if (group > 1)
            l.row = l.head;
        return {l.batch, group * l.head, l.row};
    }
    /* Whether the rows of a member are equally far apart, and not too far. */
    bool is_regular(int64_t group) const
    {
        return (group == 1 || rows <= 1 || at.head == rows * at.row) && is_near(of_members(group).row);
    }
};

/* A thread owns V neighbouring elements. Numbers of 32 bits count them; `columns`: those of a row. */
template <class Vector>
__global__ void __launch_bounds__(256) copy_kernel(const float *from, Layout at, float *to, Layout to_at,
                                                   tl_fastdiv columns, tl_fastdiv rows, tl_fastdiv heads, int64_t total)
{
    constexpr int V = sizeof(Vector) / sizeof(float);
    const int64_t t = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (t >= total) return;
    uint32_t column, row, head;
    const uint32_t b = heads.divmod(rows.divmod(columns.divmod((uint32_t)t, &column), &row), &head);
    const float *const x = from + b * at.batch + head * at.head + row * at.row + V * (int64_t)column;
    float *const y = to + b * to_at.batch + head * to_at.head + row * to_at.row + V * (int64_t)column;
    *reinterpret_cast<Vector *>(y) = *reinterpret_cast<const Vector *>(x);
}

int32_t copy_array(tl_context *ctx, const Array &of, const float *from, float *to, const Layout &to_at)
{
    if (of.size() == 0) return TORCHLEAN_OK;
    const Layout &at = of.at;
    const int64_t strides = of.width | at.batch | at.head | at.row | to_at.batch | to_at.head | to_at.row;
    const bool wide = strides % 4 == 0 && tl_aligned4(from) && tl_aligned4(to);
    const int64_t columns = wide ? of.width / 4 : of.width, total = of.size() / of.width * columns;
    const auto kernel = wide ? copy_kernel<float4> : copy_kernel<float>;
    return tl_launch(ctx, "attention_copy", kernel, tl_grid(total, 256), 256, from, at, to, to_at,
                     tl_fastdiv((uint64_t)columns), tl_fastdiv((uint64_t)of.rows), tl_fastdiv((uint64_t)of.heads),
                     total);
}

/* An array that is read: as it lies, or a contiguous copy. */
struct Input {
    Array of;
    const float *x;
    tl_scratch<float> scratch;

    Input(tl_context *ctx, const Array &array, const float *data) : of(array), x(data), scratch(ctx) {}
    int32_t copy(tl_context *ctx)
    {
        if (of.is_contiguous() || of.size() == 0) return TORCHLEAN_OK;
        const Layout l = Array::contiguous(of.heads, of.rows, of.width, false);
        TL_TRY(scratch.allocate(of.size()));
        TL_TRY(copy_array(ctx, of, x, scratch, l));
        x = scratch, of.at = l;
        return TORCHLEAN_OK;
    }
};

/* An array that is written: where it lies, or into contiguous scratch first. */
struct Output {
    Array of, made;
    float *x, *own;
    tl_scratch<float> scratch;

    Output(tl_context *ctx, const Array &array, float *data) : of(array), made(array), x(data), own(data), scratch(ctx)
    {}
    int32_t open()
    {
        if (of.is_contiguous() || of.size() == 0) return TORCHLEAN_OK;
        TL_TRY(scratch.allocate(of.size()));
        own = scratch, made.at = Array::contiguous(of.heads, of.rows, of.width, false);
        return TORCHLEAN_OK;
    }
    int32_t close(tl_context *ctx) { return own == x ? (int32_t)TORCHLEAN_OK : copy_array(ctx, made, own, x, of.at); }
};

} /* namespace */
} /* namespace attention */

extern "C" int32_t tl_cuda_attention_strided(
    tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask, int64_t q_size, int64_t k_size,
    int64_t v_size, int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t width, int64_t d,
    int64_t kv_heads, int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch, int64_t k_head, int64_t k_row,
    int64_t v_batch, int64_t v_head, int64_t v_row, int64_t mask_mode, int64_t mask_batch, int64_t mask_heads,
    int64_t mask_queries, int64_t before, int64_t after, int64_t offset, float scale, int64_t by_rows, float *out)
{
    using namespace attention;
    (void)q_size, (void)k_size, (void)v_size;
    const int64_t group = heads / kv_heads;
    Input q(ctx, {batch, heads, queries, d, {q_batch, q_head, q_row}}, Q);
    Input k(ctx, {batch, kv_heads, keys, d, {k_batch, k_head, k_row}}, K);
    Input v(ctx, {batch, kv_heads, keys, width, {v_batch, v_head, v_row}}, V);
    Output y(ctx, {batch, heads, queries, width, Array::contiguous(heads, queries, width, by_rows & 1)}, out);
    const Geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    const bool chains = is_for_chain(ctx, of, false);
    if (!chains || !q.of.is_regular(group)) TL_TRY(q.copy(ctx));
    if (!chains || !k.of.is_regular(1)) TL_TRY(k.copy(ctx));
    if (!chains || !v.of.is_regular(1)) TL_TRY(v.copy(ctx));
    if (!chains || !y.of.is_regular(group)) TL_TRY(y.open());
    if (chains) {
        Layouts at = Layouts::contiguous(of);
        at.q = q.of.of_members(group), at.k = k.of.of_members(1), at.v = v.of.of_members(1);
        at.out = y.made.of_members(group);
        TL_TRY(chain_forward(ctx, of, q.x, k.x, v.x, y.own, &at));
    } else {
        TL_TRY(forward(ctx, of, q.x, k.x, v.x, y.own));
    }
    return y.close(ctx);
}

extern "C" int32_t tl_cuda_attention_strided_gradients(
    tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask, const float *y, const float *g,
    int64_t q_size, int64_t k_size, int64_t v_size, int64_t y_size, int64_t g_size, int64_t batch, int64_t heads,
    int64_t queries, int64_t keys, int64_t width, int64_t d, int64_t kv_heads, int64_t q_batch, int64_t q_head,
    int64_t q_row, int64_t k_batch, int64_t k_head, int64_t k_row, int64_t v_batch, int64_t v_head, int64_t v_row,
    int64_t y_batch, int64_t y_head, int64_t y_row, int64_t g_batch, int64_t g_head, int64_t g_row, int64_t mask_mode,
    int64_t mask_batch, int64_t mask_heads, int64_t mask_queries, int64_t before, int64_t after, int64_t offset,
    float scale, int64_t by_rows, float *gQ, float *gK, float *gV)
{
    using namespace attention;
    (void)q_size, (void)k_size, (void)v_size, (void)y_size, (void)g_size;
    const int64_t group = heads / kv_heads;
    Input q(ctx, {batch, heads, queries, d, {q_batch, q_head, q_row}}, Q);
    Input k(ctx, {batch, kv_heads, keys, d, {k_batch, k_head, k_row}}, K);
    Input v(ctx, {batch, kv_heads, keys, width, {v_batch, v_head, v_row}}, V);
    Input result(ctx, {batch, heads, queries, width, {y_batch, y_head, y_row}}, y);
    Input cotangent(ctx, {batch, heads, queries, width, {g_batch, g_head, g_row}}, g);
    Output gq(ctx, {batch, heads, queries, d, Array::contiguous(heads, queries, d, by_rows & 1)}, gQ);
    Output gk(ctx, {batch, kv_heads, keys, d, Array::contiguous(kv_heads, keys, d, by_rows & 2)}, gK);
    Output gv(ctx, {batch, kv_heads, keys, width, Array::contiguous(kv_heads, keys, width, by_rows & 4)}, gV);
    const Geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    const bool chains = is_for_chain(ctx, of, true);
    for (Input *x : {&q, &result, &cotangent})
        if (!chains || !x->of.is_regular(group)) TL_TRY(x->copy(ctx));
    for (Input *x : {&k, &v})
        if (!chains || !x->of.is_regular(1)) TL_TRY(x->copy(ctx));
    if (!chains || !gq.of.is_regular(group)) TL_TRY(gq.open());
    for (Output *x : {&gk, &gv})
        if (!chains) TL_TRY(x->open());
    if (chains) {
        const Layouts at = {q.of.of_members(group),
                            k.of.of_members(1),
                            v.of.of_members(1),
                            result.of.of_members(group),
                            cotangent.of.of_members(group),
                            gq.made.of_members(group),
                            gk.made.of_members(1),
                            gv.made.of_members(1)};
        TL_TRY(chain_backward(ctx, of, q.x, k.x, v.x, result.x, cotangent.x, gq.own, gk.own, gv.own, &at));
    } else {
        TL_TRY(backward(ctx, of, q.x, k.x, v.x, result.x, cotangent.x, gq.own, gk.own, gv.own));
    }
    TL_TRY(gq.close(ctx));
    TL_TRY(gk.close(ctx));
    return gv.close(ctx);
}
