/* Scaled dot-product attention as one operation, without an array of queries by keys. */
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "call.h"
#include "differentiable.h"
#include "front.h"

namespace tlrt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/* The mask as the kernel reads it: four axes, 1 where all share it, keys last. */
struct Mask {
    at::Tensor values; /* undefined: none */
    uint32_t mode = 0, batch = 1, heads = 1, queries = 1;
};

enum { BOOLEAN = 1, ADDED = 2 };

Mask mask_of(const at::Tensor &given, int64_t keys)
{
    Mask m;
    if (!given.defined()) return m;
    at::Tensor t = given;
    while (t.dim() < 4)
        t = t.unsqueeze(0);
    for (int64_t axis = 0; axis < 3; axis++)
        if (t.size(axis) > 1 && t.stride(axis) == 0) t = t.narrow(axis, 0, 1);
    if (t.size(3) != keys) t = t.expand({-1, -1, -1, keys});
    m.mode = t.scalar_type() == at::kBool ? BOOLEAN : ADDED;
    m.values = plain(t.to(at::kFloat));
    m.batch = u32(t.size(0)), m.heads = u32(t.size(1)), m.queries = u32(t.size(2));
    return m;
}

constexpr uint32_t ALL = 0xffffffff; /* no key is too far before or after */

/* What is added to the scores, for PyTorch's own formula, which adds a boolean mask as it is. */
std::optional<at::Tensor> added(const at::Tensor &mask, at::ScalarType type)
{
    if (!mask.defined()) return std::nullopt;
    if (mask.scalar_type() != at::kBool) return mask.to(type);
    const at::TensorOptions options = mask.options().dtype(type);
    return at::where(mask, at::zeros({}, options), at::full({}, -std::numeric_limits<double>::infinity(), options));
}

/* (batch, heads, rows, d) as it lies in memory, the numbers of a row side by side. */
struct Operand {
    at::Tensor memory;
    uint32_t size, batch, head, row;
    bool by_rows; /* the heads of a row lie side by side */
};

Operand operand(const at::Tensor &t)
{
    const bool readable = t.stride(3) == 1 && (uintptr_t)t.const_data_ptr() % 16 == 0 &&
                          extent(t) <= INT64_C(0xffffffff);
    const at::Tensor m = readable ? t : t.clone(at::MemoryFormat::Contiguous);
    return {m, u32(extent(m)), u32(m.stride(0)), u32(m.stride(1)), u32(m.stride(2)), m.stride(1) < m.stride(2)};
}

/* (batch, heads, rows, d), over memory that is (batch, rows, heads, d) with `by_rows`. */
at::Tensor result(const at::Tensor &like, at::IntArrayRef sizes, bool by_rows)
{
    if (!by_rows) return at::empty(sizes, like.options());
    return at::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, like.options()).transpose(1, 2);
}

struct Attention : torch::autograd::Function<Attention> {
    static at::Tensor forward(AutogradContext *ctx, const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                              const std::optional<at::Tensor> &given, double scale, bool causal, bool grouped)
    {
        const at::Tensor mask = given.value_or(at::Tensor());
        const Operand from = operand(q), keys = operand(k), values = operand(v);
        const bool by_rows = q.is_cuda() || from.by_rows; /* as PyTorch's own kernels: .view works after them */
        at::Tensor y = result(q, {q.size(0), q.size(1), q.size(2), v.size(3)}, by_rows);
        const Mask m = mask_of(mask, k.size(2));
        torchlean_context *const context = context_of(q);
        Buffer out(context, y);
        check(torchlean_cuda_buffer_attention_strided(
            Buffer(context, from.memory, from.size), Buffer(context, keys.memory, keys.size),
            Buffer(context, values.memory, values.size), Buffer(context, m.values), from.size, keys.size, values.size,
            u32(q.size(0)), u32(q.size(1)), u32(q.size(2)), u32(k.size(2)), u32(v.size(3)), u32(q.size(3)),
            u32(k.size(1)), from.batch, from.head, from.row, keys.batch, keys.head, keys.row, values.batch, values.head,
            values.row, m.mode, m.batch, m.heads, m.queries, ALL, causal ? 0 : ALL, 0, scale, (uint32_t)by_rows,
            out.out()));
        ctx->save_for_backward({q, k, v, mask, y});
        ctx->saved_data["scale"] = scale;
        ctx->saved_data["causal"] = causal;
        ctx->saved_data["grouped"] = grouped;
        return y;
    }

    static variable_list backward(AutogradContext *ctx, variable_list above)
    {
        const auto saved = ctx->get_saved_variables();
        const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &mask = saved[3];
        const double scale = ctx->saved_data["scale"].toDouble();
        const bool causal = ctx->saved_data["causal"].toBool(), grouped = ctx->saved_data["grouped"].toBool();
        variable_list found(7);
        if (!above[0].defined()) return found;
        if (at::GradMode::is_enabled()) { /* a gradient that will be differentiated: of products and a softmax */
            const variable_list grads = differentiable({q, k, v}, above, [&](const variable_list &x) {
                return variable_list{std::get<0>(at::_scaled_dot_product_attention_math(
                    x[0], x[1], x[2], added(mask, q.scalar_type()), 0.0, causal, std::nullopt, scale, grouped))};
            });
            std::copy(grads.begin(), grads.end(), found.begin());
            return found;
        }
        const Operand from = operand(q), keys = operand(k), values = operand(v), y = operand(saved[4]),
                      g = operand(above[0]);
        const Mask m = mask_of(mask, k.size(2));
        torchlean_context *const context = context_of(q);
        found[0] = result(q, q.sizes(), from.by_rows);
        found[1] = result(k, k.sizes(), keys.by_rows);
        found[2] = result(v, v.sizes(), values.by_rows);
        Buffer gq(context, found[0]), gk(context, found[1]), gv(context, found[2]);
        check(torchlean_cuda_buffer_attention_strided_gradients(
            Buffer(context, from.memory, from.size), Buffer(context, keys.memory, keys.size),
            Buffer(context, values.memory, values.size), Buffer(context, m.values), Buffer(context, y.memory, y.size),
            Buffer(context, g.memory, g.size), from.size, keys.size, values.size, y.size, g.size, u32(q.size(0)),
            u32(q.size(1)), u32(q.size(2)), u32(k.size(2)), u32(v.size(3)), u32(q.size(3)), u32(k.size(1)), from.batch,
            from.head, from.row, keys.batch, keys.head, keys.row, values.batch, values.head, values.row, y.batch,
            y.head, y.row, g.batch, g.head, g.row, m.mode, m.batch, m.heads, m.queries, ALL, causal ? 0 : ALL, 0, scale,
            (uint32_t)from.by_rows | (uint32_t)keys.by_rows << 1 | (uint32_t)values.by_rows << 2, gq.out(), gk.out(),
            gv.out()));
        if (Block *const block = current())
            block->add("scaled_dot_product_attention_backward", true, 10 * q.numel() * k.size(2));
        return found;
    }
};

/* Four axes, of which the first two are those of q. */
at::Tensor four(const at::Tensor &t)
{
    return t.dim() == 4 ? t : t.reshape({-1, t.dim() > 2 ? t.size(-3) : 1, t.size(-2), t.size(-1)});
}

/* The tensor expanded to leading axes, which all but its last `own` axes are. */
at::Tensor led(const at::Tensor &t, at::IntArrayRef lead, int64_t own)
{
    std::vector<int64_t> sizes = lead.vec();
    sizes.insert(sizes.end(), t.sizes().end() - own, t.sizes().end());
    return t.sizes() == at::IntArrayRef(sizes) ? t : t.expand(sizes);
}

at::Tensor attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                     const std::optional<at::Tensor> &attn_mask, double dropout_p, bool is_causal,
                     std::optional<double> scale, bool enable_gqa)
{
    using Op = at::_ops::scaled_dot_product_attention;
    if (current() && (query.is_neg() || key.is_neg() || value.is_neg()))
        return attention(query.resolve_neg(), key.resolve_neg(), value.resolve_neg(), attn_mask, dropout_p, is_causal,
                         scale, enable_gqa);
    const at::Tensor mask = attn_mask.value_or(at::Tensor());
    if (is_transformed() && query.is_floating_point() && query.scalar_type() != at::kDouble)
        return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, added(mask, query.scalar_type()),
                                                                  dropout_p, is_causal, std::nullopt, scale,
                                                                  enable_gqa));
    if (!is_ours({query, key, value}, /*takes_tangents=*/true) || query.dim() < 3 || key.dim() < 3 || value.dim() < 3)
        return as_without<Op>(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
    TORCH_CHECK(!(is_causal && mask.defined()),
                "scaled_dot_product_attention: explicit attn_mask should not be set when is_causal=True");
    const at::Tensor q = autocast(query), k = autocast(key), v = autocast(value);
    const at::ScalarType type = q.scalar_type();
    TORCH_CHECK(type == k.scalar_type() && type == v.scalar_type(),
                message("scaled_dot_product_attention: got query, key and value of ", type, ", ", k.scalar_type(),
                        " and ", v.scalar_type(), ", expected one type"));
    TORCH_CHECK(!mask.defined() || mask.scalar_type() == at::kBool || mask.scalar_type() == at::kFloat ||
                    mask.scalar_type() == query.scalar_type() || mask.scalar_type() == type,
                message("scaled_dot_product_attention: attn_mask: got ", mask.scalar_type(),
                        ", expected bool, float32 or the type of query"));
    TORCH_CHECK(q.size(-1) == k.size(-1) && k.size(-2) == v.size(-2),
                message("scaled_dot_product_attention: got query of ", q.sizes(), ", key of ", k.sizes(),
                        " and value of ", v.sizes(), ", expected keys as long as queries, and a value for each key"));
    const bool grouped = enable_gqa && (q.size(-3) != k.size(-3) || q.size(-3) != v.size(-3));
    const int64_t own = grouped ? 3 : 2;
    const auto lead = [own](const at::Tensor &t) { return t.sizes().slice(0, (size_t)(t.dim() - own)); };
    const std::vector<int64_t> common = at::infer_size(at::infer_size(lead(q), lead(k)), lead(v));
    std::vector<int64_t> sizes = common;
    if (grouped) sizes.push_back(q.size(-3));
    sizes.insert(sizes.end(), {q.size(-2), k.size(-2)});
    TORCH_CHECK(!mask.defined() || at::is_expandable_to(mask.sizes(), sizes),
                message("scaled_dot_product_attention: attn_mask: got ", mask.sizes(),
                        ", expected one that expands to ", sizes));
    const bool is_plain_case = dropout_p == 0 && type != at::kDouble && q.numel() && k.numel() && v.numel() &&
                               !(mask.defined() && (mask.requires_grad() || sizes.size() > 4)) &&
                               (!grouped || (q.size(-3) % k.size(-3) == 0 && k.size(-3) == v.size(-3))) &&
                               !have_tangents({q, k, v, mask});
    if (!is_plain_case)
        return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, added(mask, type), dropout_p, is_causal,
                                                                  std::nullopt, scale, enable_gqa));
    /* what one sample has and another shares is the same operation for both */
    const auto operand_of = [&](const at::Tensor &t) { return four(led(t.to(at::kFloat), common, own)); };
    const at::Tensor q4 = operand_of(q), k4 = operand_of(k), v4 = operand_of(v);
    const at::Tensor y =
        Attention::apply(q4, k4, v4, attn_mask, scale.value_or(1 / std::sqrt((double)q.size(-1))), is_causal, grouped);
    current()->add(Op::name, true, 4 * q4.numel() * k4.size(2));
    sizes.back() = v.size(-1);
    return y.reshape(sizes).to(type);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m)
{
    m.impl(TLRT_NAME(scaled_dot_product_attention), TORCH_FN(attention));
}

} // namespace
} // namespace tlrt
