/* Sorts and what is chosen by rank. Equal elements keep their order and -0 is equal to 0; NaN, whatever its bits, is above all. */
#include "call.h"

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

namespace tlrt {
namespace {

using Keys = c10::DispatchKeySet;
using Guard = c10::impl::ExcludeDispatchKeyGuard; /* nothing here rounds */
using Pair = std::tuple<at::Tensor, at::Tensor>;

bool is_ours(const at::Tensor &x)
{
    return current() && is_plain(x) &&
           (at::isFloatingType(x.scalar_type()) || at::isIntegralType(x.scalar_type(), true));
}

/* The tensor with one form of zero and of NaN: sorts on a GPU compare bits. */
at::Tensor canonical(const at::Tensor &x)
{
    if (!at::isFloatingType(x.scalar_type())) return x;
    return x.add(0.0).masked_fill_(x.isnan(), std::numeric_limits<double>::quiet_NaN());
}

Pair sort(Keys keys, const at::Tensor &x, std::optional<bool>, int64_t axis, bool descending)
{
    using Op = at::_ops::sort_stable;
    if (!is_ours(x)) return Op::redispatch(after(keys), x, true, axis, descending);
    const Guard guard(KEY);
    const bool real = at::isFloatingType(x.scalar_type());
    auto [values, order] = Op::redispatch(after(keys), canonical(x), true, axis, descending);
    if (real) at::gather_out(values, x, axis, order);
    return {values, order};
}

/* The sorted elements of each row, and where they stand in x; the axis is the last. */
Pair sorted_rows(const at::Tensor &x, int64_t axis, bool descending = false)
{
    const at::Tensor rows = (x.dim() ? x.movedim(axis, -1) : x.unsqueeze(0)).contiguous();
    return at::sort(canonical(rows), /*stable=*/true, -1, descending);
}

/* Elements of x at places along the last axis, as results of the operator have them. */
Pair chosen(const at::Tensor &x, int64_t axis, const at::Tensor &places, bool keep)
{
    if (!x.dim()) return {x.clone(), places.view(at::IntArrayRef{})};
    const at::Tensor index = places.movedim(-1, axis).contiguous(), values = x.gather(axis, index);
    return keep ? Pair{values, index} : Pair{values.squeeze(axis), index.squeeze(axis)};
}

Pair topk(Keys keys, const at::Tensor &x, c10::SymInt count, int64_t given_axis, bool largest, bool sorted)
{
    const int64_t axis = at::maybe_wrap_dim(given_axis, x.dim()), k = count.expect_int();
    TORCH_CHECK(k >= 0 && k <= (x.dim() ? x.size(axis) : 1), "selected index k out of range");
    if (!is_ours(x)) return at::_ops::topk::redispatch(after(keys), x, count, axis, largest, sorted);
    const Guard guard(KEY);
    return chosen(x, axis, std::get<1>(sorted_rows(x, axis, largest)).narrow(-1, 0, k), true);
}

Pair kthvalue(Keys keys, const at::Tensor &x, c10::SymInt which, int64_t given_axis, bool keep)
{
    const int64_t axis = at::maybe_wrap_dim(given_axis, x.dim()), k = which.expect_int();
    if (!is_ours(x) || !x.numel()) return at::_ops::kthvalue::redispatch(after(keys), x, which, axis, keep);
    TORCH_CHECK(k >= 1 && k <= (x.dim() ? x.size(axis) : 1),
                message("kthvalue(): selected number k out of range for dimension ", axis));
    const Guard guard(KEY);
    return chosen(x, axis, std::get<1>(sorted_rows(x, axis)).narrow(-1, k - 1, 1), keep);
}

/* The lower median: of NaN the first one, or of the others alone. */
template <class Op, bool PassOverNaN> Pair median(Keys keys, const at::Tensor &x, int64_t given_axis, bool keep)
{
    const int64_t axis = at::maybe_wrap_dim(given_axis, x.dim());
    const Guard guard(KEY); /* PyTorch's own form is made of the one with `out`, which has a kernel here */
    if (!is_ours(x) || !x.numel()) return Op::redispatch(after(keys), x, axis, keep);
    const auto [values, order] = sorted_rows(x, axis);
    const int64_t n = values.size(-1);
    const at::Tensor nans = values.isnan().sum(-1, true);
    const at::Tensor rank = PassOverNaN ? nans.neg().add(n - 1).clamp_min(0).div(2, "floor")
                                        : at::where(nans.gt(0), nans.neg().add(n), at::full_like(nans, (n - 1) / 2));
    return chosen(x, axis, order.gather(-1, rank), keep);
}

/* The smallest of the elements that occur most often, where it stands last. */
Pair mode(Keys keys, const at::Tensor &x, int64_t given_axis, bool keep)
{
    const int64_t axis = at::maybe_wrap_dim(given_axis, x.dim());
    if (!is_ours(x) || !x.numel()) return at::_ops::mode::redispatch(after(keys), x, axis, keep);
    const Guard guard(KEY);
    const auto [values, order] = sorted_rows(x, axis);
    const int64_t n = values.size(-1);
    const at::Tensor i = at::arange(n, order.options()).expand_as(order);
    at::Tensor start = at::zeros_like(order);
    if (n > 1)
        start.narrow(-1, 1, n - 1)
            .copy_(i.narrow(-1, 1, n - 1).mul(values.narrow(-1, 1, n - 1).ne(values.narrow(-1, 0, n - 1))));
    const at::Tensor length = i.sub(std::get<0>(start.cummax(-1)));
    return chosen(x, axis, order.gather(-1, length.argmax(-1, true)), keep);
}

/* Sorted, as a GPU does whatever is said. */
std::tuple<at::Tensor, at::Tensor, at::Tensor> unique(Keys keys, const at::Tensor &x, bool, bool inverse, bool counts)
{
    return at::_ops::_unique2::redispatch(after(keys), x, true, inverse, counts);
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    m.impl("sort.stable", TORCH_FN(sort));
    m.impl("topk", TORCH_FN(topk));
    m.impl("kthvalue", TORCH_FN(kthvalue));
    m.impl("median.dim", TORCH_FN((median<at::_ops::median_dim, false>)));
    m.impl("nanmedian.dim", TORCH_FN((median<at::_ops::nanmedian_dim, true>)));
    m.impl("mode", TORCH_FN(mode));
    m.impl("_unique2", TORCH_FN(unique));
}

} // namespace
} // namespace tlrt
