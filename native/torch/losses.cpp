/* Losses, norms of weights and distances, made of operators that have kernels here. */
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

#include "call.h"
#include "front.h"
#include "sums.h"

namespace tlrt {
namespace {

using Maybe = std::optional<at::Tensor>;

/* The gradient of one term. */
at::Tensor share(const at::Tensor &g, const at::Tensor &terms, int64_t reduction)
{
    return reduction == 1 ? g.div((double)terms.numel()) : g;
}
at::Tensor scalar_zero(const at::Tensor &like) { return at::zeros({}, like.options()); }

Maybe binary_cross_entropy(const at::Tensor &x, const at::Tensor &y, const Maybe &weight, int64_t reduction)
{
    TORCH_CHECK(!x.device().is_cpu() || x.ge(0).logical_and(x.le(1)).all().item<bool>(),
                "all elements of input should be between 0 and 1");
    const at::Tensor left = x.neg().log1p().clamp_min(-100), right = x.log().clamp_min(-100);
    at::Tensor terms = y.sub(1).mul(left).sub(y.mul(right));
    if (weight && weight->defined()) terms = terms.mul(*weight);
    return reduced(terms, reduction);
}
Maybe binary_cross_entropy_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &y, const Maybe &weight,
                                    int64_t reduction)
{
    at::Tensor gx = g.mul(x.sub(y)).div(at::rsub(x, 1).mul(x).clamp_min(1e-12));
    if (weight && weight->defined()) gx = gx.mul(*weight);
    return share(gx, x, reduction);
}

Maybe smooth_l1(const at::Tensor &x, const at::Tensor &y, int64_t reduction, double beta)
{
    TORCH_CHECK(beta >= 0, "smooth_l1_loss does not support negative values for beta.");
    const at::Tensor d = x.sub(y).abs();
    if (beta == 0) return reduced(d, reduction);
    return reduced(at::where(d.lt(beta), d.mul(d).mul(0.5).div(beta), d.sub(0.5 * beta)), reduction);
}
Maybe smooth_l1_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &y, int64_t reduction, double beta)
{
    const at::Tensor d = x.sub(y), s = d.sgn();
    const at::Tensor slope = beta == 0 ? s : at::where(d.abs().lt(beta), d.div(beta), s);
    return share(slope.mul(g), d, reduction);
}
Maybe huber(const at::Tensor &x, const at::Tensor &y, int64_t reduction, double delta)
{
    TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
    const at::Tensor d = x.sub(y).abs();
    return reduced(at::where(d.le(delta), d.mul(d).mul(0.5), d.sub(0.5 * delta).mul(delta)), reduction);
}
Maybe huber_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &y, int64_t reduction, double delta)
{
    const at::Tensor d = x.sub(y);
    return share(d.clamp(-delta, delta).mul(g), d, reduction);
}

Maybe kept(const Maybe &weight) { return weight && weight->defined() ? weight : std::nullopt; }

/* max(0, margin - x[label] + x[i]) of every other class, and the label's place. */
struct Margins {
    at::Tensor x, labels, is_label, slack;
};
Margins margins(const at::Tensor &given, const at::Tensor &target, const at::Scalar &margin)
{
    const at::Tensor x = given.dim() < 2 ? given.reshape({1, -1}) : given, labels = target.reshape({-1, 1});
    TORCH_CHECK(target.scalar_type() == at::kLong,
                message("expected scalar type Long but found ", target.scalar_type()));
    TORCH_CHECK(given.dim() <= 2 && target.dim() <= 1 && labels.size(0) == x.size(0),
                message("multi_margin_loss: target: got ", target.sizes(), ", expected ", x.size(0), " labels"));
    const at::Tensor is_label = at::arange(x.size(1), labels.options()).eq(labels);
    const at::Tensor slack = at::rsub(x.gather(1, labels), margin).add(x).masked_fill(is_label, 0).clamp_min(0);
    return {x, labels, is_label, slack};
}
Maybe multi_margin(const at::Tensor &x, const at::Tensor &target, const at::Scalar &p, const at::Scalar &margin,
                   const Maybe &weight, int64_t reduction)
{
    const Margins m = margins(x, target, margin);
    at::Tensor terms = p.toDouble() == 1 ? m.slack : m.slack.mul(m.slack);
    if (kept(weight)) terms = terms.mul(weight->index({m.labels}));
    const at::Tensor rows = terms.sum(1).div((double)m.x.size(1));
    return reduced(target.dim() ? rows : rows.reshape({}), reduction);
}
Maybe multi_margin_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &target, const at::Scalar &p,
                            const at::Scalar &margin, const Maybe &weight, int64_t reduction)
{
    const Margins m = margins(x, target, margin);
    at::Tensor slope = p.toDouble() == 1 ? m.slack.gt(0).to(at::kFloat) : m.slack.mul(2);
    if (kept(weight)) slope = slope.mul(weight->index({m.labels}));
    slope = slope.div((double)m.x.size(1));
    slope = at::where(m.is_label, slope.sum(1, true).neg(), slope);
    const at::Tensor above = reduction == 1 ? g.div((double)m.x.size(0)) : g;
    return slope.mul(above.reshape({-1, 1})).reshape(x.sizes());
}

/* max(0, 1 - x[label] + x[i]) of each label of a row, up to the first that is negative, and each i that is no label. */
struct Labels {
    at::Tensor x, at, is_label, slack; /* samples x classes, and samples x labels x classes */
    explicit Labels(const at::Tensor &given, const at::Tensor &target)
    {
        TORCH_CHECK(given.dim() <= 2 && target.sizes() == given.sizes(),
                    message("multilabel_margin_loss: target: got ", target.sizes(), ", expected ", given.sizes()));
        TORCH_CHECK(target.scalar_type() == at::kLong,
                    message("expected scalar type Long but found ", target.scalar_type()));
        x = given.dim() < 2 ? given.reshape({1, -1}) : given;
        const at::Tensor labels = target.reshape(x.sizes()), holds = labels.lt(0).cumsum(1).eq(0);
        at = labels.masked_fill(holds.logical_not(), 0);
        is_label = at::zeros(x.sizes(), holds.options().dtype(at::kLong)).scatter_add(1, at, holds.to(at::kLong)).gt(0);
        const at::Tensor takes_part = holds.unsqueeze(2).logical_and(is_label.logical_not().unsqueeze(1));
        slack = at::rsub(x.gather(1, at), 1).unsqueeze(2).add(x.unsqueeze(1)).clamp_min(0);
        slack = at::where(takes_part, slack, scalar_zero(x));
    }
};
std::optional<std::tuple<at::Tensor, at::Tensor>> multilabel_margin(const at::Tensor &x, const at::Tensor &target,
                                                                    int64_t reduction)
{
    const Labels l(x, target);
    const at::Tensor rows = l.slack.sum(at::IntArrayRef({1, 2})).div((double)l.x.size(1));
    return std::tuple(reduced(x.dim() < 2 ? rows.reshape({}) : rows, reduction),
                      l.is_label.to(x.scalar_type()).reshape(target.sizes()));
}
Maybe multilabel_margin_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &target, int64_t reduction,
                                 const at::Tensor &)
{
    const Labels l(x, target);
    const at::Tensor slope = l.slack.gt(0).to(at::kFloat).div((double)l.x.size(1));
    const at::Tensor above = reduction == 1 ? g.div((double)l.x.size(0)) : g;
    return slope.sum(1).scatter_add(1, l.at, slope.sum(2).neg()).mul(above.reshape({-1, 1})).reshape(x.sizes());
}

/* ---- gates -------------------------------------------------------------------------------------------------------------- */

Maybe glu(const at::Tensor &x, int64_t axis)
{
    TORCH_CHECK(x.dim() > 0, "glu does not support 0-dimensional tensors");
    const int64_t at_axis = at::maybe_wrap_dim(axis, x.dim());
    TORCH_CHECK(x.size(at_axis) % 2 == 0,
                message("Halving dimension must be even, but dimension ", at_axis, " is size ", x.size(at_axis)));
    const int64_t n = x.size(at_axis) / 2;
    return x.narrow(at_axis, 0, n).mul(x.narrow(at_axis, n, n).sigmoid());
}
Maybe glu_backward(const at::Tensor &g, const at::Tensor &x, int64_t axis)
{
    const int64_t n = x.size(axis) / 2;
    const at::Tensor s = x.narrow(axis, n, n).sigmoid(), gs = g.mul(s);
    return at::cat({gs, gs.mul(at::rsub(s, 1)).mul(x.narrow(axis, 0, n))}, axis);
}

std::optional<std::tuple<at::Tensor, at::Tensor>> log_sigmoid(const at::Tensor &x)
{
    return std::tuple(at::softplus(x.neg()).neg(), at::empty({0}, x.options()));
}
Maybe log_sigmoid_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &)
{
    return g.mul(x.neg().sigmoid());
}

/* ---- norms of weights --------------------------------------------------------------------------------------------------- */

std::vector<int64_t> others(const at::Tensor &x, int64_t axis)
{
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < x.dim(); i++)
        if (i != axis) axes.push_back(i);
    return axes;
}

std::optional<std::tuple<at::Tensor, at::Tensor>> weight_norm(const at::Tensor &v, const at::Tensor &g, int64_t axis)
{
    const at::Tensor norms = at::linalg_vector_norm(v, 2, others(v, at::maybe_wrap_dim(axis, v.dim())), true);
    return std::tuple(v.mul(g.div(norms)), norms.view_as(g));
}
std::optional<std::tuple<at::Tensor, at::Tensor>> weight_norm_backward(const at::Tensor &gw, const at::Tensor &v,
                                                                       const at::Tensor &g, const at::Tensor &norms,
                                                                       int64_t axis)
{
    const at::Tensor sums = gw.mul(v).sum(others(v, at::maybe_wrap_dim(axis, v.dim())), true);
    const at::Tensor gv = g.div(norms).mul(gw.sub(v.mul(sums.div(norms.mul(norms)))));
    return std::tuple(gv, sums.div(norms));
}

at::Tensor shortened(const at::Tensor &norms, const at::Scalar &longest)
{
    const at::Tensor most = at::full({}, longest, norms.options());
    return at::where(norms.gt(longest), most.div(norms.add(1e-7)), at::ones({}, norms.options()));
}
Maybe renorm(const at::Tensor &x, const at::Scalar &p, int64_t axis, const at::Scalar &longest)
{
    TORCH_CHECK(p.toDouble() > 0, "renorm: non-positive norm not supported");
    TORCH_CHECK(x.dim() > 1, message("renorm: input needs at least 2 dimensions, got ", x.dim(), " dimensions"));
    return x.mul(shortened(at::linalg_vector_norm(x, p, others(x, at::maybe_wrap_dim(axis, x.dim())), true), longest));
}
/* Rows that are named twice are written twice, with the same bits. */
at::Tensor &embedding_renorm(c10::DispatchKeySet keys, at::Tensor &weight, const at::Tensor &indices, double longest,
                             double p)
{
    Block *const block = is_plain(weight) ? current() : nullptr;
    if (!block || weight.scalar_type() == at::kDouble) {
        if (block) block->leave("aten::embedding_renorm_", weight.numel());
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
        return at::_ops::embedding_renorm_::redispatch(after(keys), weight, indices, longest, p);
    }
    const at::Tensor index = indices.reshape(-1), rows = weight.index_select(0, index).to(at::kFloat);
    const at::Tensor factor = shortened(at::linalg_vector_norm(rows, p, at::IntArrayRef({1}), true), longest);
    const at::Tensor written = rows.mul(factor).to(weight.scalar_type());
    {
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
        weight.index_copy_(0, index, written);
    }
    block->add("embedding_renorm_", true, rows.numel());
    return weight;
}

/* linalg_vector_norm by its old name. */
Maybe norm(const at::Tensor &x, const std::optional<at::Scalar> &p, at::IntArrayRef axes, bool keep)
{
    return at::linalg_vector_norm(x, p.value_or(2), axes, keep);
}
Maybe norm_typed(const at::Tensor &x, const std::optional<at::Scalar> &p, at::IntArrayRef axes, bool keep,
                 at::ScalarType type)
{
    return at::linalg_vector_norm(x, p.value_or(2), axes, keep, type);
}

/* ---- distances ---------------------------------------------------------------------------------------------------------- */

/* Rows of the first operand at a time, so that no more than this many differences stand in memory. */
constexpr int64_t DIFFERENCES = INT64_C(1) << 24;

template <class F> at::Tensor by_rows(const at::Tensor &x, const at::Tensor &y, F f)
{
    const int64_t each = std::max<int64_t>(1, y.numel()), step = std::max<int64_t>(1, DIFFERENCES / each);
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; i < x.size(-2); i += step)
        parts.push_back(f(i, std::min(step, x.size(-2) - i)));
    return parts.size() == 1 ? parts[0] : at::cat(parts, -2);
}
at::Tensor differences(const at::Tensor &x, const at::Tensor &y, int64_t first, int64_t count)
{
    return x.narrow(-2, first, count).unsqueeze(-2).sub(y.unsqueeze(-3));
}

Maybe distances(const at::Tensor &x, const at::Tensor &y, double p, std::optional<int64_t>)
{
    TORCH_CHECK(p >= 0, message("cdist only supports non-negative p values, but got ", p));
    if (p > 0 && p < 1) return std::nullopt;
    costs(3 * x.numel() * y.size(-2));
    if (!x.size(-2) || !y.numel() || !x.numel()) {
        std::vector<int64_t> sizes = at::infer_size(x.sizes().slice(0, x.dim() - 2), y.sizes().slice(0, y.dim() - 2));
        sizes.push_back(x.size(-2));
        sizes.push_back(y.size(-2));
        return at::zeros(sizes, x.options());
    }
    return by_rows(x, y, [&](int64_t i, int64_t n) {
        return at::linalg_vector_norm(differences(x, y, i, n), p, at::IntArrayRef({-1}));
    });
}
Maybe cdist_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &y, double p, const at::Tensor &found)
{
    if (p < 1 && p != 0) return std::nullopt;
    if (!x.numel() || !y.numel() || p == 0) return at::zeros_like(x, at::MemoryFormat::Contiguous);
    costs(5 * x.numel() * y.size(-2));
    return by_rows(x, y, [&](int64_t i, int64_t n) {
        const at::Tensor d = differences(x, y, i, n), s = d.sgn();
        const at::Tensor gs = g.narrow(-2, i, n).unsqueeze(-1), l = found.narrow(-2, i, n).unsqueeze(-1);
        if (p == 1) return s.mul(gs).sum(-2);
        if (std::isinf(p)) return s.mul(d.abs().eq(l)).mul(gs).sum(-2);
        const at::Tensor along = p == 2 ? d.div(l) : s.mul(d.abs().div(l).pow(p - 1));
        return at::where(l.eq(0), scalar_zero(d), along).mul(gs).sum(-2);
    });
}

/* PyTorch takes another formula from 26 rows on, so that a distance would depend on the rows beside it. Its gradient of a batch
 * under torch.func.vmap is another sample's. */
at::Tensor cdist(const at::Tensor &x, const at::Tensor &y, double p, std::optional<int64_t> mode)
{
    if (is_transformed() && x.dim() > 1 && y.dim() > 1)
        return at::linalg_vector_norm(x.unsqueeze(-2).sub(y.unsqueeze(-3)), p, at::IntArrayRef({-1}));
    constexpr int64_t BY_DIFFERENCES = 2;
    return as_without<at::_ops::cdist>(x, y, p, mode.value_or(0) == 0 && current() ? BY_DIFFERENCES : mode);
}

/* The places of the pairs (i, j), i < j, in an n x n matrix laid out row by row. */
at::Tensor pairs(const at::Tensor &x)
{
    const at::Tensor at_pairs = at::triu_indices(x.size(0), x.size(0), 1, x.options().dtype(at::kLong));
    return at_pairs[0].mul(x.size(0)).add(at_pairs[1]);
}
Maybe pair_distances(const at::Tensor &x, double p)
{
    if (p > 0 && p < 1) return std::nullopt;
    return distances(x, x, p, std::nullopt)->reshape(-1).index_select(0, pairs(x));
}
Maybe pdist_backward(const at::Tensor &g, const at::Tensor &x, double p, const at::Tensor &found)
{
    const int64_t n = x.size(0);
    const at::Tensor at_pairs = pairs(x);
    const auto square = [&](const at::Tensor &values) {
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY); /* copies, and sums with 0 */
        const at::Tensor upper = at::zeros({n * n}, x.options()).index_copy(0, at_pairs, values).view({n, n});
        return upper.add(upper.t());
    };
    return cdist_backward(square(g), x, x, p, square(found));
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_COMPOSED(m, binary_cross_entropy, binary_cross_entropy);
    TLRT_COMPOSED(m, binary_cross_entropy_backward, binary_cross_entropy_backward);
    TLRT_COMPOSED(m, smooth_l1_loss, smooth_l1);
    TLRT_COMPOSED(m, smooth_l1_loss_backward, smooth_l1_backward);
    TLRT_COMPOSED(m, huber_loss, huber);
    TLRT_COMPOSED(m, huber_loss_backward, huber_backward);
    TLRT_KERNEL(m, multi_margin_loss, multi_margin);
    TLRT_KERNEL(m, multi_margin_loss_backward, multi_margin_backward);
    TLRT_KERNEL(m, multilabel_margin_loss_forward, multilabel_margin);
    TLRT_KERNEL(m, multilabel_margin_loss_backward, multilabel_margin_backward);
    TLRT_KERNEL(m, glu, glu);
    TLRT_KERNEL(m, glu_backward, glu_backward);
    TLRT_KERNEL(m, log_sigmoid_forward, log_sigmoid);
    TLRT_KERNEL(m, log_sigmoid_backward, log_sigmoid_backward);
    TLRT_KERNEL(m, _weight_norm_interface, weight_norm);
    TLRT_KERNEL(m, _weight_norm_interface_backward, weight_norm_backward);
    TLRT_KERNEL(m, renorm, renorm);
    TLRT_COMPOSED(m, norm_ScalarOpt_dim, norm);
    TLRT_COMPOSED(m, norm_ScalarOpt_dim_dtype, norm_typed);
    m.impl(TLRT_NAME(embedding_renorm_), TORCH_FN(embedding_renorm));
    TLRT_KERNEL(m, _cdist_forward, distances);
    TLRT_KERNEL(m, _cdist_backward, cdist_backward);
    TLRT_KERNEL(m, _pdist_forward, pair_distances);
    TLRT_KERNEL(m, _pdist_backward, pdist_backward);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) { m.impl(TLRT_NAME(cdist), TORCH_FN(cdist)); }

} // namespace
} // namespace tlrt
