/* What kernels that add, scale or average have in common. */
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tlrt {

/* The tensor in the type that a sum or product is wanted in. float64 comes here where it is that. */
inline at::Tensor typed(const at::Tensor &x, std::optional<at::ScalarType> type)
{
    return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble ? x : x.to(type.value_or(at::kFloat));
}

/* The terms of a loss: each, their mean or their sum. */
inline at::Tensor reduced(const at::Tensor &terms, int64_t reduction)
{
    return reduction == 0 ? terms : reduction == 2 ? terms.sum() : terms.mean();
}

/* beta·x + alpha·y, each operation rounded; a factor of 0 leaves its term out. */
inline at::Tensor scaled_sum(const at::Tensor &x, const at::Scalar &beta, at::Tensor y, const at::Scalar &alpha)
{
    x.expand(y.sizes()); /* an error where it does not fit */
    if (alpha.toDouble() != 1) y = y.mul(alpha);
    if (beta.toDouble() == 0) return y;
    return (beta.toDouble() == 1 ? x : x.mul(beta)).add(y);
}

} // namespace tlrt
