/* Softmax, losses and embeddings. */
#include "call.h"
#include "front.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

#include "sums.h"

namespace tlrt {
namespace {

/* A row operation along one axis of a tensor: the axis is moved last, and the result is laid out row by row as PyTorch's is. */
struct Along {
    int64_t axis, rows, columns;
    bool last;
    at::Tensor moved(const at::Tensor &t) const { return last ? plain(t) : plain(t.movedim(axis, -1)); }
};

Along along(const at::Tensor &x, int64_t axis)
{
    const int64_t at_axis = at::maybe_wrap_dim(axis, x.dim());
    const int64_t n = x.dim() ? x.size(at_axis) : 1;
    int64_t rows = 1;
    for (int64_t i = 0; i < x.dim(); i++)
        rows *= i == at_axis ? 1 : x.size(i);
    return {at_axis, rows, n, x.dim() == 0 || at_axis == x.dim() - 1};
}

at::Tensor back(const at::Tensor &y, const Along &a) { return a.last ? y : y.movedim(-1, a.axis).contiguous(); }

/* In float32 of a narrower type with `widened`. */
template <auto Entry> std::optional<at::Tensor> forward(const at::Tensor &x, int64_t axis, bool widened)
{
    const Along a = along(x, axis);
    const at::Tensor from = a.moved(wide(x));
    at::Tensor y = fresh(from, from.sizes());
    torchlean_context *const context = context_of(x);
    Buffer out(context, y);
    check(Entry(Buffer(context, from), u32(a.rows), u32(a.columns), out.out()));
    return narrow(back(y, a), widened ? at::kFloat : x.scalar_type());
}

template <auto Entry>
std::optional<at::Tensor> backward(const at::Tensor &g, const at::Tensor &y, int64_t axis, at::ScalarType type)
{
    TORCH_CHECK(g.scalar_type() == y.scalar_type(),
                message("softmax: got a gradient of ", g.scalar_type(), ", expected ", y.scalar_type()));
    const Along a = along(y, axis);
    const at::Tensor result = a.moved(wide(y)), cotangent = a.moved(wide(g));
    at::Tensor gx = fresh(result, result.sizes());
    torchlean_context *const context = context_of(y);
    Buffer out(context, gx);
    check(Entry(Buffer(context, result), Buffer(context, cotangent), u32(a.rows), u32(a.columns), out.out()));
    return narrow(back(gx, a), type);
}

/* The softmax; a row of -inf alone, of which attention masks every key, gives zeros. */
std::optional<at::Tensor> safe_softmax(const at::Tensor &x, int64_t axis, std::optional<at::ScalarType>)
{
    const at::Tensor y = at::_softmax(x, axis, false);
    return at::where(x.eq(-std::numeric_limits<double>::infinity()).all(axis, true), at::zeros({}, y.options()), y);
}

/* ---- negative log-likelihood ------------------------------------------------------------------------------------------- */

/* The terms are PyTorch's own: a label picks a number, which is negated and weighted, so that no device can round otherwise. Sums and
 * quotients are the block's. */
template <class Op>
std::optional<std::tuple<at::Tensor, at::Tensor>> nll_loss(const at::Tensor &x, const at::Tensor &target,
                                                           const std::optional<at::Tensor> &weight, int64_t reduction,
                                                           c10::SymInt ignored)
{
    const auto terms = [&] {
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
        return std::get<0>(Op::call(x, target, weight, 0, ignored));
    }();
    if (reduction == 0) return std::tuple(terms, at::zeros({}, x.options()));
    const at::Tensor counted = target.ne(ignored.expect_int());
    at::Tensor total;
    if (weight && weight->defined())
        total =
            at::where(counted, weight->index({target.to(at::kLong).masked_fill(counted.logical_not(), 0)}), 0).sum();
    else
        total = counted.sum().to(x.scalar_type());
    const at::Tensor loss = terms.sum();
    return std::tuple(reduction == 2 ? loss : loss.div(total), total);
}

template <class Op>
std::optional<at::Tensor> nll_loss_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &target,
                                            const std::optional<at::Tensor> &weight, int64_t reduction,
                                            c10::SymInt ignored, const at::Tensor &total)
{
    const at::Tensor each = reduction == 1 ? g.div(total) : g;
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    return Op::call(reduction == 0 ? each : each.expand(target.sizes()), x, target, weight, 0, ignored, total);
}

/* Of classes along an inner axis: rows of classes, which softmax, loss and gradients then need no further copies of. */
at::Tensor cross_entropy(const at::Tensor &x, const at::Tensor &target, const std::optional<at::Tensor> &weight,
                         int64_t reduction, c10::SymInt ignored, double smoothing)
{
    using Op = at::_ops::cross_entropy_loss;
    const bool inner = x.dim() > 2 && target.dim() == x.dim() - 1 && !at::isFloatingType(target.scalar_type()) &&
                       is_ours({x}, true) && x.size(1) > 0 && x.select(1, 0).sizes() == target.sizes();
    if (!inner) return as_without<Op>(x, target, weight, reduction, ignored, smoothing);
    const at::Tensor rows = x.movedim(1, -1).reshape({target.numel(), x.size(1)});
    const at::Tensor y = as_without<Op>(rows, target.reshape(-1), weight, reduction, ignored, smoothing);
    return reduction == 0 ? y.view(target.sizes()) : y;
}

/* ---- other losses -------------------------------------------------------------------------------------------------------- */

std::optional<at::Tensor> mse_loss(const at::Tensor &x, const at::Tensor &y, int64_t reduction)
{
    const at::Tensor d = x.sub(y);
    return reduced(d.mul(d), reduction);
}
std::optional<at::Tensor> mse_loss_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &y,
                                            int64_t reduction)
{
    const at::Tensor twice = x.sub(y).mul(2).mul(g);
    return reduction == 1 ? twice.div((double)x.numel()) : twice;
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_MIXED(m, _softmax, forward<torchlean_cuda_buffer_softmax>);
    TLRT_MIXED(m, _log_softmax, forward<torchlean_cuda_buffer_log_softmax>);
    TLRT_MIXED(m, _softmax_backward_data, backward<torchlean_cuda_buffer_softmax_bwd>);
    TLRT_MIXED(m, _log_softmax_backward_data, backward<torchlean_cuda_buffer_log_softmax_bwd>);
    TLRT_KERNEL(m, _safe_softmax, safe_softmax);
    TLRT_KERNEL(m, nll_loss_forward, nll_loss<at::_ops::nll_loss_forward>);
    TLRT_KERNEL(m, nll_loss2d_forward, nll_loss<at::_ops::nll_loss2d_forward>);
    TLRT_KERNEL(m, nll_loss_backward, nll_loss_backward<at::_ops::nll_loss_backward>);
    TLRT_KERNEL(m, nll_loss2d_backward, nll_loss_backward<at::_ops::nll_loss2d_backward>);
    TLRT_COMPOSED(m, mse_loss, mse_loss);
    TLRT_COMPOSED(m, mse_loss_backward, mse_loss_backward);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m)
{
    m.impl(TLRT_NAME(cross_entropy_loss), TORCH_FN(cross_entropy));
}

} // namespace
} // namespace tlrt
