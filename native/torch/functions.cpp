/* Functions of one or two arguments that the library has no kernel for, from those that it has: within a few roundings of float32,
 * over the whole range. What is written in float64 is +, -, *, / and roots, which round alike everywhere. */
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "call.h"
#include "sums.h"

namespace tlrt {
namespace {

using Maybe = std::optional<at::Tensor>;
using Tensor = at::Tensor;

Tensor scalar_zero(const Tensor &like) { return at::zeros({}, like.options()); }
Tensor floats(const Tensor &x) { return x.to(at::kFloat); }
Tensor doubles(const Tensor &x) { return x.to(at::kDouble); }

/* e^(x/2), whose square is in range a little longer than e^x. */
Tensor root_exp(const Tensor &x) { return x.mul(0.5).exp(); }

Maybe sinh(const Tensor &x)
{
    const Tensor a = x.abs(), e = a.expm1(), h = root_exp(a);
    const Tensor near = e.add(e.div(e.add(1))).mul(0.5);
    return at::where(a.lt(60), near, h.mul(0.5).mul(h)).copysign(x);
}
Maybe cosh(const Tensor &x)
{
    const Tensor a = x.abs(), e = a.exp(), h = root_exp(a);
    return at::where(a.lt(60), e.add(e.reciprocal()).mul(0.5), h.mul(0.5).mul(h));
}
Maybe tan(const Tensor &x) { return x.sin().div(x.cos()); }
Maybe atan(const Tensor &x) { return at::atan2(x, at::ones({}, x.options())); }
Maybe asin(const Tensor &x) { return at::atan2(x, at::rsub(x, 1).mul(x.add(1)).sqrt()); }
Maybe acos(const Tensor &x) { return at::atan2(at::rsub(x, 1).sqrt(), x.add(1).sqrt()).mul(2); }

constexpr double LN2 = 0.69314718055994530942, LN10 = 2.302585092994045684, PI = 3.14159265358979323846;

Maybe asinh(const Tensor &x)
{
    const Tensor a = x.abs(), s = a.mul(a);
    const Tensor near = a.add(s.div(s.add(1).sqrt().add(1))).log1p();
    return at::where(a.lt(1e8), near, a.log().add(LN2)).copysign(x);
}
Maybe acosh(const Tensor &x)
{
    const Tensor t = x.sub(1);
    const Tensor y = at::where(x.lt(1e8), t.add(t.mul(t.add(2)).sqrt()).log1p(), x.log().add(LN2));
    return at::where(x.lt(1), at::full({}, std::nan(""), x.options()), y);
}
Maybe atanh(const Tensor &x)
{
    const Tensor a = x.abs();
    return a.mul(2).div(at::rsub(a, 1)).log1p().mul(0.5).copysign(x);
}

Maybe exp2(const Tensor &x) { return at::pow(at::full_like(x, 2), x); }
/* The exponent apart, so that powers of two are exact. */
Maybe log2(const Tensor &x)
{
    auto [m, e] = [&] {
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY); /* exact */
        return at::frexp(x);
    }();
    const Tensor low = m.lt(0.70710678);
    const Tensor part = floats(doubles(at::where(low, m.mul(2), m).log()).mul(1 / LN2));
    return at::where(x.gt(0).logical_and(x.lt(std::numeric_limits<double>::infinity())),
                     part.add(floats(e.sub(low.to(e.scalar_type())))), x.log());
}
Maybe log10(const Tensor &x) { return floats(doubles(x.log()).mul(1 / LN10)); }

Maybe sinc(const Tensor &x)
{
    const Tensor a = x.mul(PI);
    return at::where(x.eq(0), at::ones({}, x.options()), a.sin().div(a));
}

/* Giles, Approximating the erfinv function, GPU Computing Gems 2 (2010): of w = -ln(1 - x²). */
Maybe erfinv(const Tensor &x)
{
    constexpr double NEAR[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                               -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
    constexpr double FAR[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                              -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
    const Tensor d = doubles(x), w = doubles(floats(at::rsub(d, 1).mul(d.add(1))).log().neg());
    const auto series = [](const double (&c)[9], const Tensor &t) {
        Tensor p = t.mul(c[0]).add(c[1]);
        for (int i = 2; i < 9; i++)
            p = p.mul(t).add(c[i]);
        return p;
    };
    const Tensor y = floats(at::where(w.lt(5), series(NEAR, w.sub(2.5)), series(FAR, w.sqrt().sub(3))).mul(d));
    return at::where(x.abs().eq(1), x.mul(std::numeric_limits<double>::infinity()), y);
}

Maybe logit(const Tensor &x, std::optional<double> eps)
{
    /* the lower bound first: from eps = 0.5 on the bounds cross */
    const Tensor z = eps ? at::where(x.lt(*eps), at::full({}, *eps, x.options()), x.clamp_max(1 - *eps)) : x;
    return z.div(at::rsub(z, 1)).log();
}
Maybe logit_backward(const Tensor &g, const Tensor &x, std::optional<double> eps)
{
    const Tensor slope = g.div(x.mul(at::rsub(x, 1)));
    const Tensor out = x.lt(eps.value_or(0)).logical_or(x.gt(1 - eps.value_or(0)));
    return at::where(out, eps ? scalar_zero(x) : at::full({}, std::nan(""), x.options()), slope);
}

/* ---- two arguments -------------------------------------------------------------------------------------------------------- */

/* ln(e^x + e^y) in the unit of the logarithm: the larger, and the rest of it. */
Maybe logaddexp(const Tensor &x, const Tensor &y)
{
    const Tensor most = x.maximum(y), d = x.sub(y).abs().neg();
    const Tensor same = x.eq(y).logical_and(x.abs().eq(std::numeric_limits<double>::infinity()));
    return at::where(same, most, most.add(d.exp().log1p()));
}
Maybe logaddexp2(const Tensor &x, const Tensor &y)
{
    const Tensor most = x.maximum(y), d = at::pow(2, x.sub(y).abs().neg());
    const Tensor same = x.eq(y).logical_and(x.abs().eq(std::numeric_limits<double>::infinity()));
    return at::where(same, most, most.add(floats(doubles(d.log1p()).mul(1 / LN2))));
}
Tensor xlog(const Tensor &x, const Tensor &y, const Tensor &log)
{
    const Tensor found = at::where(x.eq(0), at::zeros({}, log.options()), x.mul(log));
    return at::where(x.isnan().logical_or(y.isnan()), at::full({}, std::nan(""), log.options()), found);
}
Maybe xlogy(const Tensor &x, const Tensor &y) { return xlog(x, y, floats(y).log()); }
Maybe xlog1py(const Tensor &x, const Tensor &y) { return xlog(x, y, floats(y).log1p()); }
Maybe hypot(const Tensor &x, const Tensor &y)
{
    const Tensor a = doubles(x), b = doubles(y);
    const Tensor infinite = x.isinf().logical_or(y.isinf()); /* beside NaN, too */
    return at::where(infinite, at::full({}, std::numeric_limits<double>::infinity(), x.options()),
                     floats(a.mul(a).add(b.mul(b)).sqrt()));
}

/* ---- products and running results ----------------------------------------------------------------------------------------- */

/* Neighbours first, in a tree that the length alone fixes. */
Tensor product(Tensor x)
{
    if (!x.size(-1)) return at::ones(x.sizes().slice(0, (size_t)x.dim() - 1), x.options());
    while (x.size(-1) > 1) {
        const int64_t n = x.size(-1), even = n / 2 * 2;
        const Tensor pairs = x.slice(-1, 0, even, 2).mul(x.slice(-1, 1, even, 2));
        x = n == even ? pairs : at::cat({pairs, x.slice(-1, even, n)}, -1);
    }
    return x.squeeze(-1);
}
Maybe prod_axis(const Tensor &x, int64_t axis, bool keep, std::optional<at::ScalarType> type)
{
    if (type && at::isIntegralType(*type, true)) return x.to(*type).prod(axis, keep, type);
    costs(x.numel());
    if (x.dim() == 0) return typed(x, type).clone();
    const Tensor y = product(typed(x, type).movedim(axis, -1));
    return keep ? y.unsqueeze(at::maybe_wrap_dim(axis, x.dim())).contiguous() : y.contiguous();
}
Maybe prod_all(const Tensor &x, std::optional<at::ScalarType> type)
{
    if (type && at::isIntegralType(*type, true)) return x.to(*type).prod(type);
    costs(x.numel());
    return product(typed(x, type).reshape(-1));
}

/* Each element with all before it: as many rounds as the length has bits. */
template <class F> Tensor running(Tensor y, int64_t axis, F f)
{
    if (y.dim() == 0) return y.clone();
    const int64_t n = y.size(axis);
    for (int64_t step = 1; step < n; step *= 2)
        y = at::cat({y.narrow(axis, 0, step), f(y.narrow(axis, step, n - step), y.narrow(axis, 0, n - step))}, axis);
    return n > 1 ? y.contiguous() : y.clone();
}
Maybe cumprod(const Tensor &x, int64_t axis, std::optional<at::ScalarType> type)
{
    if (type && at::isIntegralType(*type, true)) return x.to(*type).cumprod(axis, type);
    return running(typed(x, type), at::maybe_wrap_dim(axis, x.dim()),
                   [](const Tensor &a, const Tensor &b) { return a.mul(b); });
}
Maybe logcumsumexp(const Tensor &x, int64_t axis)
{
    return running(x, at::maybe_wrap_dim(axis, x.dim()),
                   [](const Tensor &a, const Tensor &b) { return at::logaddexp(a, b); });
}
Maybe nansum(const Tensor &x, at::OptionalIntArrayRef axes, bool keep, std::optional<at::ScalarType> type)
{
    const bool whole = type && at::isIntegralType(*type, true);
    return at::where(x.isnan(), scalar_zero(x), x).sum(axes, keep, whole ? type : std::nullopt);
}

/* ---- products of vectors -------------------------------------------------------------------------------------------------- */

Maybe cross(const Tensor &x, const Tensor &y, int64_t axis)
{
    TORCH_CHECK(
        x.dim() == y.dim() && x.size(axis) == 3 && y.size(axis) == 3,
        message("linalg.cross: inputs dimension ", axis, " must have length 3. Got ", x.sizes(), " and ", y.sizes()));
    const auto turned = [axis](const Tensor &t, int64_t by) { return t.roll({-by}, {axis}); };
    return turned(x, 1).mul(turned(y, 2)).sub(turned(x, 2).mul(turned(y, 1)));
}
Maybe addr(const Tensor &x, const Tensor &a, const Tensor &b, const at::Scalar &beta, const at::Scalar &alpha)
{
    return scaled_sum(x, beta, a.unsqueeze(1).mul(b), alpha);
}
Maybe addbmm(const Tensor &x, const Tensor &a, const Tensor &b, const at::Scalar &beta, const at::Scalar &alpha)
{
    return scaled_sum(x, beta, at::bmm(a, b).sum(0), alpha);
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_KERNEL(m, sinh, sinh);
    TLRT_KERNEL(m, cosh, cosh);
    TLRT_KERNEL(m, tan, tan);
    TLRT_KERNEL(m, atan, atan);
    TLRT_KERNEL(m, asin, asin);
    TLRT_KERNEL(m, acos, acos);
    TLRT_KERNEL(m, asinh, asinh);
    TLRT_KERNEL(m, acosh, acosh);
    TLRT_KERNEL(m, atanh, atanh);
    TLRT_KERNEL(m, exp2, exp2);
    TLRT_KERNEL(m, log2, log2);
    TLRT_KERNEL(m, log10, log10);
    TLRT_KERNEL(m, sinc, sinc);
    TLRT_KERNEL(m, erfinv, erfinv);
    TLRT_KERNEL(m, logit, logit);
    TLRT_KERNEL(m, logit_backward, logit_backward);
    TLRT_KERNEL(m, logaddexp, logaddexp);
    TLRT_KERNEL(m, logaddexp2, logaddexp2);
    TLRT_KERNEL(m, xlogy_Tensor, xlogy);
    TLRT_KERNEL(m, special_xlog1py, xlog1py);
    TLRT_KERNEL(m, hypot, hypot);
    TLRT_COMPOSED(m, prod, prod_all);
    TLRT_COMPOSED(m, prod_dim_int, prod_axis);
    TLRT_COMPOSED(m, cumprod, cumprod);
    TLRT_KERNEL(m, logcumsumexp, logcumsumexp);
    TLRT_COMPOSED(m, nansum, nansum);
    TLRT_COMPOSED(m, linalg_cross, cross);
    TLRT_COMPOSED(m, addr, addr);
    TLRT_KERNEL(m, addbmm, addbmm);
}

} // namespace
} // namespace tlrt
