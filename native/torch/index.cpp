/* Sums and writes at indices. Elements that are named twice: sums take them in the order of the indices, and of several writes the
 * last counts, on every device and with any number of threads. */
#include "call.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

namespace tlrt {
namespace {

using Keys = c10::DispatchKeySet;
using Guard = c10::impl::ExcludeDispatchKeyGuard; /* what runs under it computes with integers, moves or compares */

bool is_ours(const at::Tensor &x) { return current() && is_plain(x); }

bool is_left(const at::Tensor &x) { return x.is_complex() || x.scalar_type() == at::kDouble; }

/* Whether sums of this type may depend on their order and are left, which the block notes. */
bool leaves(Block *block, const char *op, const at::Tensor &x, int64_t count)
{
    if (is_left(x)) block->leave(op, count);
    return is_left(x);
}

/* ---- groups of equal indices ------------------------------------------------------------------------------------------ */

/* The indices of each row in order; those that are equal keep their order and are one run. */
struct Runs {
    at::Tensor sorted, order;
    at::Tensor last; /* the place in `sorted` where the run of each element ends */

    explicit Runs(const at::Tensor &index)
    {
        std::tie(sorted, order) = at::sort(index, /*stable=*/true, -1, false);
        last = at::searchsorted(sorted, sorted, false, /*right=*/true).sub_(1);
    }
    /* What belongs to the sorted indices, in the order of the indices. */
    at::Tensor restore(const at::Tensor &x) const { return at::empty_like(x).scatter_(-1, order, x); }
};

/* For each index of a row the place of the last one that is equal to it. */
at::Tensor winners(const at::Tensor &index)
{
    const Runs runs(index);
    return runs.restore(runs.order.gather(-1, runs.last));
}

/* A tensor without axes as one of a single element. */
at::Tensor with_axis(const at::Tensor &x) { return x.dim() ? x : x.unsqueeze(0); }

at::Tensor narrowed(at::Tensor x, at::IntArrayRef sizes, int64_t but = -1)
{
    for (int64_t d = 0; d < x.dim(); d++)
        if (d != but && x.size(d) != sizes[d]) x = x.narrow(d, 0, sizes[d]);
    return x;
}

/* ---- sums ---------------------------------------------------------------------------------------------------------------- */

/* Indices from 0 to n - 1 as the library takes them. Others are an error: on a GPU a failed assertion of PyTorch's. */
at::Tensor checked(const at::Tensor &index, int64_t n, int64_t axis, bool is_index_error)
{
    const Guard guard(KEY);
    const at::Tensor from = index.to(at::kLong).contiguous();
    if (!index.device().is_cpu())
        return at::arange(n, from.options().dtype(at::kInt)).gather(0, from.view(-1)).view(from.sizes());
    at::Tensor to = at::empty(from.sizes(), from.options().dtype(at::kInt));
    const int64_t *const in = from.const_data_ptr<int64_t>(), count = from.numel();
    int32_t *const out = to.mutable_data_ptr<int32_t>();
    for (int64_t i = 0; i < count; i++) {
        if (in[i] < 0 || in[i] >= n) {
            TORCH_CHECK_INDEX(!is_index_error, "index out of range in self");
            TORCH_CHECK(false, message("index ", in[i], " is out of bounds for dimension ", axis, " with size ", n));
        }
        out[i] = (int32_t)in[i];
    }
    return to;
}

/* The lengths before, along and after an axis. */
struct Lengths {
    int64_t outer = 1, n = 1, inner = 1;
    Lengths(const at::Tensor &x, int64_t axis)
    {
        for (int64_t d = 0; d < x.dim(); d++)
            (d < axis ? outer : d == axis ? n : inner) *= x.size(d);
    }
};

/* x plus values at places of its axis; `place` is of the shape of `values`, or of 1 before or after the axis. */
at::Tensor add_at(const at::Tensor &x, int64_t axis, const at::Tensor &place, const at::Tensor &values)
{
    const Lengths of_x(x, axis), of_index(place, axis);
    const at::Tensor from = plain(x), more = plain(values), index = plain(place);
    at::Tensor y = fresh(x, x.sizes());
    torchlean_context *const context = context_of(x);
    Buffer out(context, y);
    check(torchlean_cuda_buffer_scatter_add_axis(
        Buffer(context, from), Buffer(context, more), Buffer(context, index, AS_INDEX), u32(of_x.outer), u32(of_x.n),
        u32(of_x.inner), u32(of_index.n), u32(of_index.outer), u32(of_index.inner), out.out()));
    return y;
}

/* The part of an index that differs: neighbouring axes along which it repeats have the length 1. */
at::Tensor shared(at::Tensor index, int64_t axis)
{
    const auto shrink = [&](int64_t begin, int64_t end) {
        for (int64_t d = begin; d < end; d++)
            if (index.stride(d) != 0 && index.size(d) != 1) return;
        for (int64_t d = begin; d < end; d++)
            index = index.narrow(d, 0, 1);
    };
    shrink(0, axis);
    shrink(axis + 1, index.dim());
    return index;
}

void check_scatter(const at::Tensor &x, int64_t axis, const at::Tensor &index, const at::Tensor &values)
{
    TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                "scatter(): Expected dtype int32/int64 for index");
    TORCH_CHECK(x.scalar_type() == values.scalar_type(), "scatter(): Expected self.dtype to be equal to src.dtype");
    TORCH_CHECK(x.dim() == index.dim() && x.dim() == values.dim(),
                "Index tensor must have the same number of dimensions as self tensor");
    for (int64_t d = 0; d < x.dim(); d++)
        TORCH_CHECK(index.size(d) <= values.size(d) && (d == axis || index.size(d) <= x.size(d)),
                    message("Expected index ", index.sizes(), " to be no larger than self ", x.sizes(),
                            " apart from dimension ", axis, " and to be no larger size than src ", values.sizes()));
}

std::optional<at::Tensor> add_scattered(const at::Tensor &given, int64_t given_axis, const at::Tensor &given_index,
                                        const at::Tensor &given_values)
{
    const int64_t axis = at::maybe_wrap_dim(given_axis, given.dim());
    const at::Tensor x = with_axis(given), index = with_axis(given_index), all = with_axis(given_values);
    if (!index.numel()) return given.contiguous().clone();
    check_scatter(x, axis, index, all);
    if (x.size(axis) > INT32_MAX) return std::nullopt;
    const at::Tensor values = narrowed(all, index.sizes()), part = narrowed(x, index.sizes(), axis);
    const at::Tensor sum = add_at(part, axis, checked(shared(index, axis), x.size(axis), axis, false), values);
    if (part.sizes() == x.sizes()) return sum.view(given.sizes());
    at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
    narrowed(y, index.sizes(), axis).copy_(sum);
    return y;
}

/* The index of an axis in the form of scatter's. */
at::Tensor along(const at::Tensor &index, const at::Tensor &x, int64_t axis)
{
    std::vector<int64_t> sizes((size_t)x.dim(), 1);
    sizes[axis] = index.numel();
    return index.reshape(sizes);
}

struct Rows {
    int64_t axis;
    at::Tensor x, index, values;
};

Rows rows(const char *op, const at::Tensor &x, int64_t axis, const at::Tensor &index, const at::Tensor &values)
{
    const int64_t at_axis = at::maybe_wrap_dim(axis, x.dim());
    TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                message(op, "(): Expected dtype int32/int64 for index"));
    TORCH_CHECK_INDEX(index.dim() <= 1,
                      message(op, "(): Index is supposed to be a vector, but got dim: ", index.dim()));
    TORCH_CHECK(x.scalar_type() == values.scalar_type(),
                message(op, "(): self and source expected to have the same dtype, but got (self) ", x.scalar_type(),
                        " and (source) ", values.scalar_type()));
    const Rows r{at_axis, with_axis(x), index.reshape(-1), with_axis(values)};
    bool fits = r.values.dim() == r.x.dim();
    for (int64_t d = 0; fits && d < r.x.dim(); d++)
        fits = r.values.size(d) == (d == at_axis ? r.index.numel() : r.x.size(d));
    TORCH_CHECK(fits, message(op, "(): source of ", values.sizes(), " does not match ", index.numel(),
                              " indices of axis ", axis, " of self of ", x.sizes()));
    return r;
}

std::optional<at::Tensor> add_rows(const at::Tensor &x, int64_t axis, const at::Tensor &index, const at::Tensor &values,
                                   const at::Scalar &alpha)
{
    const Rows r = rows("index_add", x, axis, index, values);
    if (!values.numel()) return x.contiguous().clone();
    if (r.x.size(r.axis) > INT32_MAX) return std::nullopt;
    const at::Tensor scaled = alpha.toDouble() == 1 ? r.values : r.values.mul(alpha);
    const at::Tensor place = checked(r.index, r.x.size(r.axis), r.axis, x.dim() < 2);
    return add_at(r.x, r.axis, along(place, r.x, r.axis), scaled).view(x.sizes());
}

/* What stands at places that are named again holds all sums: x at each place, and the values of equal places. */
at::Tensor sums_of_runs(const at::Tensor &at_places, int64_t axis, const at::Tensor &winner, const at::Tensor &values)
{
    const at::Tensor sums = add_at(at_places, axis, along(winner.to(at::kInt), at_places, axis), values);
    return sums.index_select(axis, winner);
}

/* In place few rows of many are written, and the others not copied. */
at::Tensor &index_add_(Keys keys, at::Tensor &x, int64_t axis, const at::Tensor &index, const at::Tensor &values,
                       const at::Scalar &alpha)
{
    Block *const block = is_ours(x) ? current() : nullptr;
    if (!block || !(at::isFloatingType(x.scalar_type()) || x.is_complex()) || !values.numel())
        return at::_ops::index_add_::redispatch(after(keys), x, axis, index, values, alpha);
    if (leaves(block, "aten::index_add_", x, values.numel()))
        return at::_ops::index_add_::redispatch(after(keys), x, axis, index, values, alpha);
    const Rows r = rows("index_add", x, axis, index, values);
    checked(r.index, r.x.size(r.axis), r.axis, x.dim() < 2);
    block->add("aten::index_add_", true, values.numel());
    const at::Tensor wanted = wide(r.values), scaled = alpha.toDouble() == 1 ? wanted : wanted.mul(alpha);
    if (2 * r.index.numel() >= r.x.size(r.axis))
        return x.copy_(add_rows(wide(r.x), r.axis, r.index, scaled, 1)->view(x.sizes()));
    at::Tensor winner;
    {
        const Guard guard(KEY);
        winner = winners(r.index.to(at::kLong));
    }
    const at::Tensor sums = sums_of_runs(wide(r.x.index_select(r.axis, r.index)), r.axis, winner, scaled);
    const Guard guard(KEY);
    at::Tensor target = r.x;
    target.index_copy_(r.axis, r.index.to(at::kLong), sums.to(x.scalar_type()));
    return x;
}

std::optional<at::Tensor> embedding_backward(const at::Tensor &g, const at::Tensor &given, c10::SymInt count,
                                             c10::SymInt padding, bool by_frequency)
{
    const int64_t n = count.expect_int(), without = padding.expect_int(), columns = g.size(-1), k = given.numel();
    if (n > INT32_MAX) return std::nullopt;
    at::Tensor index = given.reshape(-1), values = g.reshape({k, columns});
    {
        const Guard guard(KEY);
        if (without >= 0)
            index = index.masked_fill(index.eq(without), n); /* the library passes over what is out of range */
        if (by_frequency) {
            const at::Tensor at_long = index.to(at::kLong);
            const at::Tensor counts =
                at::zeros({n + 1}, at_long.options()).scatter_add_(0, at_long, at::ones_like(at_long));
            values = values.div(counts.index_select(0, at_long).unsqueeze(1).to(at::kFloat));
        }
        index = index.to(at::kInt);
    }
    const at::Tensor from = plain(values), place = plain(index);
    at::Tensor y = fresh(g, {n, columns});
    torchlean_context *const context = context_of(g);
    Buffer out(context, y);
    check(torchlean_cuda_buffer_gather_rows_bwd_indexed(Buffer(context, place, AS_INDEX), Buffer(context, from), u32(n),
                                                        u32(columns), u32(k), out.out()));
    return y;
}

/* ---- other reductions --------------------------------------------------------------------------------------------------- */

/* The products of runs by a scan that doubles its reach: the order depends on the indices alone. */
at::Tensor products_of_runs(const Runs &runs, at::Tensor v)
{
    const int64_t n = v.size(-1);
    for (int64_t reach = 1; reach < n; reach *= 2) {
        const auto head = [&](const at::Tensor &t) { return t.narrow(-1, 0, n - reach); };
        const auto tail = [&](const at::Tensor &t) { return t.narrow(-1, reach, n - reach); };
        const at::Tensor product = at::where(head(runs.sorted).eq(tail(runs.sorted)), tail(v).mul(head(v)), tail(v));
        v = at::cat({v.narrow(-1, 0, reach), product}, -1);
    }
    return v.gather(-1, runs.last);
}

at::Tensor scatter_product(const at::Tensor &x, int64_t axis, const at::Tensor &index, const at::Tensor &values,
                           bool include)
{
    const Guard guard(KEY);
    const at::Tensor lanes = index.to(at::kLong).movedim(axis, -1).contiguous();
    const Runs runs(lanes);
    at::Tensor v = narrowed(values, index.sizes()).movedim(axis, -1).gather(-1, runs.order);
    v = products_of_runs(runs, v);
    if (include) v = narrowed(x, index.sizes(), axis).movedim(axis, -1).gather(-1, runs.sorted).mul(v);
    return x.scatter(axis, index, runs.restore(v).movedim(-1, axis));
}

std::optional<at::Tensor> reduce_scattered(const at::Tensor &given, int64_t given_axis, const at::Tensor &given_index,
                                           const at::Tensor &given_values, std::string_view how, bool include)
{
    const int64_t axis = at::maybe_wrap_dim(given_axis, given.dim());
    const at::Tensor x = with_axis(given), index = with_axis(given_index), values = with_axis(given_values);
    if (!index.numel()) return given.contiguous().clone();
    check_scatter(x, axis, index, values);
    const Guard guard(KEY);
    if (how == "amax" || how == "amin") return at::scatter_reduce(given, axis, given_index, given_values, how, include);
    if (how == "prod") return scatter_product(x, axis, index, values, include).view(given.sizes());
    TORCH_CHECK(how == "sum" || how == "mean",
                message("reduce argument must be either sum, prod, mean, amax or amin, got ", how, "."));
    const std::optional<at::Tensor> sum = add_scattered(include ? x : x.scatter(axis, index, 0), axis, index, values);
    if (!sum || how == "sum") return sum ? sum->view(given.sizes()) : sum;
    const auto whole = x.options().dtype(at::kLong);
    const at::Tensor counts =
        at::full(x.sizes(), include ? 1 : 0, whole).scatter_add_(axis, index, at::ones(index.sizes(), whole));
    return sum->div(counts.clamp_min(1).to(at::kFloat)).view(given.sizes());
}

std::string_view reduction(std::string_view how)
{
    TORCH_CHECK(how == "add" || how == "multiply", "reduce argument must be either add or multiply.");
    return how == "add" ? "sum" : "prod";
}
std::optional<at::Tensor> scatter_by(const at::Tensor &x, int64_t axis, const at::Tensor &index,
                                     const at::Tensor &values, std::string_view how)
{
    return reduce_scattered(x, axis, index, values, reduction(how), true);
}
std::optional<at::Tensor> scatter_number_by(const at::Tensor &x, int64_t axis, const at::Tensor &index,
                                            const at::Scalar &value, std::string_view how)
{
    return reduce_scattered(x, axis, index, at::full({}, value, x.options()).expand_as(index), reduction(how), true);
}
std::optional<at::Tensor> index_reduce(const at::Tensor &x, int64_t axis, const at::Tensor &index,
                                       const at::Tensor &values, std::string_view how, bool include)
{
    const Rows r = rows("index_reduce", x, axis, index, values);
    if (!values.numel()) return x.contiguous().clone();
    checked(r.index, r.x.size(r.axis), r.axis, true);
    const at::Tensor place = along(r.index.to(at::kLong), r.x, r.axis).expand_as(r.values);
    return reduce_scattered(r.x, r.axis, place, r.values, how, include)->view(x.sizes());
}

/* ---- writes ------------------------------------------------------------------------------------------------------------------ */

/* What each of the indices is to write, along an axis: equal ones write what the last of them has. */
at::Tensor last_of_scatter(int64_t given_axis, const at::Tensor &index, const at::Tensor &values)
{
    if (!index.dim() || index.dim() != values.dim() || !index.numel()) return values;
    const int64_t axis = at::maybe_wrap_dim(given_axis, index.dim());
    if (index.size(axis) < 2) return values;
    for (int64_t d = 0; d < index.dim(); d++)
        if (index.size(d) > values.size(d)) return values; /* an error of the operator's */
    const Guard guard(KEY);
    const at::Tensor winner = winners(index.to(at::kLong).movedim(axis, -1).contiguous()).movedim(-1, axis);
    return narrowed(values, index.sizes(), axis).gather(axis, winner);
}
template <class Op, class X>
auto scatter(Keys keys, X x, int64_t axis, const at::Tensor &index, const at::Tensor &values)
    -> decltype(Op::redispatch(keys, x, axis, index, values))
{
    return Op::redispatch(after(keys), x, axis, index, is_ours(x) ? last_of_scatter(axis, index, values) : values);
}

template <class Op, class X>
auto index_copy(Keys keys, X x, int64_t axis, const at::Tensor &index, const at::Tensor &values)
    -> decltype(Op::redispatch(keys, x, axis, index, values))
{
    if (!is_ours(x) || index.dim() != 1 || index.numel() < 2 || !values.dim())
        return Op::redispatch(after(keys), x, axis, index, values);
    const int64_t at_axis = at::maybe_wrap_dim(axis, values.dim());
    if (values.size(at_axis) != index.numel()) return Op::redispatch(after(keys), x, axis, index, values);
    const Guard guard(KEY);
    return Op::redispatch(after(keys), x, axis, index,
                          values.index_select(at_axis, winners(index.to(at::kLong).contiguous())));
}

at::Tensor &put_(Keys keys, at::Tensor &x, const at::Tensor &index, const at::Tensor &values, bool accumulate)
{
    const auto as_is = [&](const at::Tensor &v, bool add) -> at::Tensor & {
        return at::_ops::put_::redispatch(after(keys), x, index, v, add);
    };
    Block *const block = is_ours(x) ? current() : nullptr;
    const int64_t k = index.numel(), n = x.numel();
    const bool exact = !at::isFloatingType(x.scalar_type()) && !x.is_complex();
    if (!block || k < 2 || n == 0 || values.numel() != k || values.scalar_type() != x.scalar_type() ||
        (accumulate && exact))
        return as_is(values, accumulate);
    if (accumulate && leaves(block, "aten::put_", x, k)) return as_is(values, true);
    at::Tensor winner, there;
    {
        const Guard guard(KEY);
        there = x.take(index); /* which says when an index is out of range */
        winner = winners(index.to(at::kLong).remainder(n).reshape(-1));
        if (!accumulate) return as_is(values.reshape(-1).index_select(0, winner).view(index.sizes()), false);
    }
    block->add("aten::put_", true, k);
    const at::Tensor sums = sums_of_runs(wide(there.reshape(-1)), 0, winner, wide(values.reshape(-1)));
    return as_is(sums.to(x.scalar_type()).view(index.sizes()), false);
}

/* ---- index_put ------------------------------------------------------------------------------------------------------------- */

using Indices = c10::List<std::optional<at::Tensor>>;

/* The tensors of an index, masks as the places where they hold, and where their axes stand among the values'. */
struct Chosen {
    std::vector<at::Tensor> at; /* an undefined tensor for an axis that is taken whole */
    std::vector<int64_t> shape; /* of the indices */
    int64_t before = 0, count = 1;
    int64_t axes = 0;      /* those of x that the indices name, where they stand side by side */
    bool distinct = false; /* one mask, which names nothing twice */

    Chosen(const at::Tensor &x, const Indices &indices)
    {
        int64_t tensors = 0, masks = 0;
        for (const std::optional<at::Tensor> &i : indices) {
            if (!i || !i->defined()) {
                at.emplace_back();
            } else if (tensors++; i->scalar_type() == at::kBool || i->scalar_type() == at::kByte) {
                masks++;
                for (int64_t d = 0; d < i->dim(); d++)
                    TORCH_CHECK_INDEX((int64_t)at.size() + d < x.dim() && i->size(d) == x.size((int64_t)at.size() + d),
                                      message("The shape of the mask ", i->sizes(), " at index ", d,
                                              " does not match the shape of the indexed tensor ", x.sizes()));
                for (const at::Tensor &places : i->nonzero().unbind(1))
                    at.push_back(places.to(x.device()));
            } else {
                at.push_back(i->to(x.device(), at::kLong));
            }
        }
        distinct = tensors == 1 && masks == 1;
        TORCH_CHECK_INDEX((int64_t)at.size() <= x.dim(), message("too many indices for tensor of dimension ", x.dim()));
        std::vector<at::Tensor> given;
        int64_t first = -1, final = -1;
        for (int64_t d = 0; d < (int64_t)at.size(); d++) {
            if (!at[d].defined()) continue;
            if (first < 0) first = d;
            final = d;
            given.push_back(at[d]);
        }
        if (given.empty()) return;
        const bool adjacent = final - first + 1 == (int64_t)given.size();
        before = adjacent ? first : 0;
        axes = adjacent ? (int64_t)given.size() : 0;
        std::vector<at::Tensor> same = at::broadcast_tensors(given);
        shape = same[0].sizes().vec();
        count = same[0].numel();
        for (size_t d = 0, k = 0; d < at.size(); d++)
            if (at[d].defined()) at[d] = same[k++];
    }

    /* The number of the element or row that each index names. */
    at::Tensor place(const at::Tensor &x) const
    {
        at::Tensor p;
        for (int64_t d = 0; d < (int64_t)at.size(); d++) {
            if (!at[d].defined()) continue;
            const at::Tensor here = at[d].remainder(x.size(d));
            p = p.defined() ? p.mul(x.size(d)).add(here) : here;
        }
        return p.reshape(-1);
    }
    /* The shape of what the index names. */
    std::vector<int64_t> sizes(const at::Tensor &x) const
    {
        std::vector<int64_t> out;
        for (int64_t d = 0; d < x.dim(); d++)
            if (d >= (int64_t)at.size() || !at[d].defined()) out.push_back(x.size(d));
        out.insert(out.begin() + before, shape.begin(), shape.end());
        return out;
    }
    /* The same elements with one axis for all of the indices' at `before`. */
    at::Tensor flat(const at::Tensor &values) const
    {
        std::vector<int64_t> sizes = values.sizes().vec();
        sizes.erase(sizes.begin() + before, sizes.begin() + before + (int64_t)shape.size());
        sizes.insert(sizes.begin() + before, count);
        return values.reshape(sizes);
    }
};

/* x plus values at indices of neighbouring axes, which are one axis of the sum. */
at::Tensor add_chosen(const at::Tensor &x, const Indices &indices, const Chosen &chosen, int64_t n,
                      const at::Tensor &all)
{
    at::Tensor place;
    {
        const Guard guard(KEY);
        at::Tensor slim = x;
        for (int64_t d = 0; d < x.dim(); d++)
            if (d < chosen.before || d >= chosen.before + chosen.axes) slim = slim.narrow(d, 0, 1);
        slim.index(indices); /* which says when an index is out of range */
        place = chosen.place(x).to(at::kInt).view({1, chosen.count, 1});
    }
    const int64_t outer = at::multiply_integers(x.sizes().slice(0, (size_t)chosen.before)),
                  inner = x.numel() / (outer * n);
    return add_at(wide(x).reshape({outer, n, inner}), 1, place, wide(all).reshape({outer, chosen.count, inner}))
        .view(x.sizes());
}

at::Tensor &index_put(Keys keys, at::Tensor &x, const Indices &indices, const at::Tensor &values, bool accumulate,
                      bool unsafe)
{
    const auto as_is = [&](const at::Tensor &v, bool add) -> at::Tensor & {
        return at::_ops::_index_put_impl_::redispatch(after(keys), x, indices, v, add, unsafe);
    };
    Block *const block = is_ours(x) ? current() : nullptr;
    const bool exact = !at::isFloatingType(x.scalar_type()) && !x.is_complex();
    if (!block || x.numel() == 0 || values.scalar_type() != x.scalar_type() ||
        (accumulate ? exact : values.numel() == 1))
        return as_is(values, accumulate);
    if (indices.size() == 1 && indices.get(0) && indices.get(0)->numel() < 2) return as_is(values, accumulate);
    std::optional<Chosen> chosen;
    {
        const Guard guard(KEY);
        chosen.emplace(x, indices);
        if (chosen->count < 2 || chosen->distinct) return as_is(values, accumulate);
        if (accumulate && leaves(block, "aten::index_put_", x, values.numel())) return as_is(values, true);
    }
    const std::vector<int64_t> sizes = chosen->sizes(x);
    const at::Tensor all = chosen->flat(values.expand(sizes));
    if (accumulate) block->add("aten::index_put_", true, all.numel());
    const int64_t n = at::multiply_integers(x.sizes().slice((size_t)chosen->before, (size_t)chosen->axes));
    if (accumulate && chosen->axes && 2 * chosen->count >= n && n <= INT32_MAX)
        return x.copy_(add_chosen(x, indices, *chosen, n, all));
    at::Tensor winner;
    {
        const Guard guard(KEY);
        winner = winners(chosen->place(x));
    }
    if (!accumulate) return as_is(all.index_select(chosen->before, winner).view(sizes), false);
    const at::Tensor there = chosen->flat(x.index(indices));
    const at::Tensor sums = sums_of_runs(wide(there), chosen->before, winner, wide(all));
    return as_is(sums.to(x.scalar_type()).view(sizes), false);
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_KERNEL(m, scatter_add, add_scattered);
    TLRT_IN_PLACE(m, scatter_add_, add_scattered);
    TLRT_KERNEL(m, scatter_reduce_two, reduce_scattered);
    TLRT_IN_PLACE(m, scatter_reduce__two, reduce_scattered);
    TLRT_KERNEL(m, scatter_reduce, scatter_by);
    TLRT_IN_PLACE(m, scatter__reduce, scatter_by);
    TLRT_KERNEL(m, scatter_value_reduce, scatter_number_by);
    TLRT_IN_PLACE(m, scatter__value_reduce, scatter_number_by);
    TLRT_KERNEL(m, index_add, add_rows);
    m.impl("index_add_", TORCH_FN(index_add_));
    TLRT_KERNEL(m, index_reduce, index_reduce);
    TLRT_IN_PLACE(m, index_reduce_, index_reduce);
    TLRT_KERNEL(m, embedding_dense_backward, embedding_backward);
    for (const char *op :
         {"scatter.value", "scatter_.value", "scatter.value_out"}) /* writes one number wherever it writes */
        m.impl(op, torch::CppFunction::makeFallthrough());
    m.impl("scatter.src", TORCH_FN((scatter<at::_ops::scatter_src, const at::Tensor &>)));
    m.impl("scatter_.src", TORCH_FN((scatter<at::_ops::scatter__src, at::Tensor &>)));
    m.impl("index_copy", TORCH_FN((index_copy<at::_ops::index_copy, const at::Tensor &>)));
    m.impl("index_copy_", TORCH_FN((index_copy<at::_ops::index_copy_, at::Tensor &>)));
    m.impl("put_", TORCH_FN(put_));
    m.impl("_index_put_impl_", TORCH_FN(index_put));
}

} // namespace
} // namespace tlrt
