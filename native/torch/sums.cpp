/* Sums, means and what is made of them, and running sums. */
#include "call.h"

#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

#include "complex.h"
#include "sums.h"

namespace tlrt {

namespace {

/* What a reduction runs over: a row-major tensor whose neighbouring axes of one kind are one axis. */
struct Reduction {
    at::Tensor x;
    std::vector<uint32_t> dims;
    uint32_t axes = 0; /* a bit for each of dims */
    int64_t count = 1; /* elements that make up one result */
    std::vector<int64_t> kept, with_ones;

    at::Tensor result(bool keep) const { return fresh(x, keep ? with_ones : kept); }
};

constexpr size_t MAX_RANK = 8; /* of the library's arrays */

Reduction reduction(const at::Tensor &x, at::OptionalIntArrayRef chosen)
{
    Reduction r;
    std::vector<bool> reduced((size_t)x.dim(), !chosen || chosen->empty());
    for (const int64_t given : chosen ? *chosen : at::IntArrayRef()) {
        const int64_t axis = at::maybe_wrap_dim(given, x.dim());
        if (x.dim() == 0) continue;
        TORCH_CHECK(!reduced[axis], message("dim ", axis, " appears multiple times in the list of dims"));
        reduced[axis] = true;
    }
    r.x = plain(x);
    for (int64_t i = 0; i < x.dim(); i++) {
        const int64_t n = x.size(i);
        r.with_ones.push_back(reduced[i] ? 1 : n);
        if (!reduced[i]) r.kept.push_back(n);
        if (reduced[i]) r.count *= n;
        if (i && reduced[i] == reduced[i - 1] && r.dims.back() * (uint64_t)n <= 0xffffffff) {
            r.dims.back() *= u32(n);
            continue;
        }
        r.axes |= (uint32_t)reduced[i] << r.dims.size();
        r.dims.push_back(u32(n));
    }
    if (r.dims.size() > MAX_RANK) { /* those that stay before those that are reduced */
        std::vector<int64_t> order;
        for (const bool last : {false, true})
            for (int64_t i = 0; i < x.dim(); i++)
                if (reduced[i] == last) order.push_back(i);
        r.x = plain(x.permute(order));
        r.dims = {u32(c10::multiply_integers(r.kept)), u32(r.count)}, r.axes = 2;
    }
    if (r.dims.empty()) r.dims = {1}, r.axes = 1;
    return r;
}

/* Entry(x, dims, rank, axes, values..., out) */
template <auto Entry, class... V> at::Tensor reduced(const Reduction &r, bool keep, V... values)
{
    at::Tensor y = r.result(keep);
    torchlean_context *const context = context_of(r.x);
    Buffer out(context, y);
    check(Entry(Buffer(context, r.x), r.dims.data(), u32((int64_t)r.dims.size()), r.axes, values..., out.out()));
    return y;
}

/* Axis by axis, the last first. */
at::Tensor sum_of(const Reduction &r, bool keep)
{
    at::Tensor x = r.x;
    std::vector<uint32_t> dims = r.dims;
    torchlean_context *const context = context_of(x);
    for (uint32_t axis = u32((int64_t)dims.size()); axis-- > 0;) {
        if (!(r.axes >> axis & 1)) continue;
        int64_t left = 1;
        for (uint32_t i = 0; i < dims.size(); i++)
            left *= i == axis ? 1 : dims[i];
        at::Tensor y = fresh(x, {left});
        Buffer out(context, y);
        check(torchlean_cuda_buffer_reduce_sum_axis(Buffer(context, x), dims.data(), u32((int64_t)dims.size()), axis,
                                                    out.out()));
        dims[axis] = 1;
        x = y;
    }
    return x.view(keep ? r.with_ones : r.kept);
}

std::optional<at::Tensor> sum_axes(const at::Tensor &x, at::OptionalIntArrayRef axes, bool keep,
                                   std::optional<at::ScalarType> type)
{
    if (type && at::isIntegralType(*type, true)) return x.to(*type).sum(axes, keep, type);
    costs(x.numel());
    return sum_of(reduction(typed(x, type), axes), keep);
}
std::optional<at::Tensor> sum_all(const at::Tensor &x, std::optional<at::ScalarType> type)
{
    return sum_axes(x, std::nullopt, false, type);
}
std::optional<at::Tensor> mean_axes(const at::Tensor &x, at::OptionalIntArrayRef axes, bool keep,
                                    std::optional<at::ScalarType> type)
{
    costs(x.numel());
    TORCH_CHECK(
        !type || at::isFloatingType(*type),
        message("mean(): could not infer output dtype. Optional dtype must be either a floating point or complex "
                "dtype. Got: ",
                *type));
    const Reduction r = reduction(typed(x, type), axes);
    return sum_of(r, keep).div((double)r.count);
}
std::optional<at::Tensor> mean_all(const at::Tensor &x, std::optional<at::ScalarType> type)
{
    return mean_axes(x, std::nullopt, false, type);
}

/* What is subtracted from the count; PyTorch takes a negative one, too. */
double subtracted(const std::optional<at::Scalar> &correction) { return correction ? correction->toDouble() : 1.0; }
at::Tensor variance(const at::Tensor &x, at::OptionalIntArrayRef axes, const std::optional<at::Scalar> &correction,
                    bool keep, uint32_t root)
{
    costs(2 * x.numel());
    return reduced<torchlean_cuda_buffer_var>(reduction(x, axes), keep, subtracted(correction), root);
}
std::optional<at::Tensor> var(const at::Tensor &x, at::OptionalIntArrayRef axes,
                              const std::optional<at::Scalar> &correction, bool keep)
{
    if (subtracted(correction) < 0) return std::nullopt;
    return variance(x, axes, correction, keep, 0);
}
std::optional<at::Tensor> std_(const at::Tensor &x, at::OptionalIntArrayRef axes,
                               const std::optional<at::Scalar> &correction, bool keep)
{
    if (subtracted(correction) < 0) return std::nullopt;
    return variance(x, axes, correction, keep, 1);
}
std::optional<std::tuple<at::Tensor, at::Tensor>> var_mean(const at::Tensor &x, at::OptionalIntArrayRef axes,
                                                           const std::optional<at::Scalar> &correction, bool keep)
{
    if (subtracted(correction) < 0) return std::nullopt;
    return std::tuple(variance(x, axes, correction, keep, 0), *mean_axes(x, axes, keep, std::nullopt));
}
std::optional<std::tuple<at::Tensor, at::Tensor>> std_mean(const at::Tensor &x, at::OptionalIntArrayRef axes,
                                                           const std::optional<at::Scalar> &correction, bool keep)
{
    if (subtracted(correction) < 0) return std::nullopt;
    return std::tuple(variance(x, axes, correction, keep, 1), *mean_axes(x, axes, keep, std::nullopt));
}

std::optional<at::Tensor> vector_norm(const at::Tensor &given, const at::Scalar &order, at::OptionalIntArrayRef axes,
                                      bool keep, std::optional<at::ScalarType> type)
{
    const double p = order.toDouble();
    const at::Tensor x = typed(given, type);
    const Reduction r = reduction(x, axes);
    if (std::isinf(p)) { /* no sum, and no rounding */
        const at::Tensor size = x.abs();
        const at::IntArrayRef over = axes ? *axes : at::IntArrayRef();
        return p > 0 ? size.amax(over, keep) : size.amin(over, keep);
    }
    if (p == 0) return sum_axes(x.ne(0).to(at::kFloat), axes, keep, std::nullopt);
    costs(2 * x.numel());
    if (p < 1) return sum_of(reduction(x.abs().pow(p), axes), keep).pow(1 / p);
    return reduced<torchlean_cuda_buffer_vector_norm>(r, keep, p);
}

std::optional<at::Tensor> logsumexp(const at::Tensor &x, at::IntArrayRef axes, bool keep)
{
    costs(2 * x.numel());
    return reduced<torchlean_cuda_buffer_logsumexp>(reduction(x, axes), keep);
}

std::optional<at::Tensor> trace(const at::Tensor &x)
{
    TORCH_CHECK(x.dim() == 2, message("trace: expected a matrix, but got tensor with dim ", x.dim()));
    return x.diagonal().sum();
}

std::optional<at::Tensor> cumsum(const at::Tensor &given, int64_t axis, std::optional<at::ScalarType> type)
{
    if (type && at::isIntegralType(*type, true)) return given.to(*type).cumsum(axis, type);
    const at::Tensor x = typed(given, type);
    const int64_t at_axis = at::maybe_wrap_dim(axis, x.dim());
    if (x.dim() == 0) return x.clone();
    int64_t outer = 1, inner = 1;
    for (int64_t i = 0; i < x.dim(); i++)
        (i < at_axis ? outer : inner) *= i == at_axis ? 1 : x.size(i);
    const at::Tensor from = plain(x);
    at::Tensor y = fresh(x, x.sizes());
    torchlean_context *const context = context_of(x);
    const uint32_t dims[3] = {u32(outer), u32(x.size(at_axis)), u32(inner)};
    Buffer out(context, y);
    check(torchlean_cuda_buffer_cumsum(Buffer(context, from), dims, 3, 1, 0, out.out()));
    return y;
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_COMPLEX(m, sum, sum_all, pairs::sum_all);
    TLRT_COMPLEX(m, sum_dim_IntList, sum_axes, pairs::sum_axes);
    TLRT_COMPLEX(m, mean, mean_all, pairs::mean_all);
    TLRT_COMPLEX(m, mean_dim, mean_axes, pairs::mean_axes);
    TLRT_KERNEL(m, var_correction, var);
    TLRT_KERNEL(m, std_correction, std_);
    TLRT_KERNEL(m, var_mean_correction, var_mean);
    TLRT_KERNEL(m, std_mean_correction, std_mean);
    TLRT_COMPLEX(m, linalg_vector_norm, vector_norm, pairs::vector_norm);
    TLRT_KERNEL(m, logsumexp, logsumexp);
    TLRT_COMPOSED(m, trace, trace);
    TLRT_KERNEL(m, cumsum, cumsum);
}

} // namespace
} // namespace tlrt
