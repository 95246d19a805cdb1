#pragma once

#include <ATen/core/Tensor.h>

namespace tlrt {

/* x / n, divided: a GPU multiplies by the inverse of a number of the host. */
at::Tensor divided(const at::Tensor &x, double n);

} // namespace tlrt
