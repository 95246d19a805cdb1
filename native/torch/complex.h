/* Numbers of complex64 as pairs of float32: each operation on their parts rounds by itself, on every device in the same order. */
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tlrt {

/* The part of an operator's kernel that computes complex64; it gets operands of float32 beside it. */
namespace pairs {

using Found = std::optional<at::Tensor>;

at::Tensor mul(const at::Tensor &x, const at::Tensor &y);
at::Tensor div(const at::Tensor &x, const at::Tensor &y);
at::Tensor reciprocal(const at::Tensor &x);
at::Tensor abs(const at::Tensor &x);
at::Tensor angle(const at::Tensor &x);
at::Tensor sgn(const at::Tensor &x);
Found exp(const at::Tensor &x);
Found mm(const at::Tensor &a, const at::Tensor &b);
Found bmm(const at::Tensor &a, const at::Tensor &b);
Found addmm(const at::Tensor &x, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
            const at::Scalar &alpha);
Found sum_all(const at::Tensor &x, std::optional<at::ScalarType> type);
Found sum_axes(const at::Tensor &x, at::OptionalIntArrayRef axes, bool keep, std::optional<at::ScalarType> type);
Found mean_all(const at::Tensor &x, std::optional<at::ScalarType> type);
Found mean_axes(const at::Tensor &x, at::OptionalIntArrayRef axes, bool keep, std::optional<at::ScalarType> type);
Found vector_norm(const at::Tensor &x, const at::Scalar &order, at::OptionalIntArrayRef axes, bool keep,
                  std::optional<at::ScalarType> type);

} // namespace pairs
} // namespace tlrt
