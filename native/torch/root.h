/* Roots of float64. */
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <limits>

#include "block.h"

namespace tlrt {

/* The correctly rounded root of 0, an infinity or numbers from 2^-500 to 2^500. That of PyTorch on a CPU may be a neighbour of it:
 * findings/torch-sqrt-rounds-wrong.sh. The square of a root splits without an error as in Dekker, Numer. Math. 18 (1971). */
inline at::Tensor root(const at::Tensor &x)
{
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    const at::Tensor y = x.sqrt(), scaled = y.mul(134217729.0), high = scaled.sub(scaled.sub(y)), low = y.sub(high);
    const at::Tensor square = y.mul(y), cross = high.mul(low).mul(2);
    const at::Tensor rest = x.sub(square).sub(high.mul(high).sub(square).add(cross).add(low.mul(low)));
    const double ends[] = {std::numeric_limits<double>::infinity(), 0.0};
    const at::Tensor above = at::nextafter(y, at::full({}, ends[0], y.options()));
    const at::Tensor below = at::nextafter(y, at::full({}, ends[1], y.options()));
    const at::Tensor nearest = at::where(rest.gt(y.mul(above.sub(y))), above, y);
    return at::where(rest.le(y.mul(below.sub(y))), below, nearest);
}

} // namespace tlrt
