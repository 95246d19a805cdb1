/* Functions of one argument, their gradients, and what a compiler may fuse on a GPU: one operation after the other. */
#include "call.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "complex.h"

namespace tlrt {
namespace {

/* A tensor whose memory has no gaps, and one of the same strides for what is computed of it, element by element. */
struct Pair {
    at::Tensor x, y;
};

at::Tensor dense(const at::Tensor &x)
{
    return x.is_non_overlapping_and_dense() && (uintptr_t)x.const_data_ptr() % 16 == 0
               ? x
               : x.clone(at::MemoryFormat::Preserve);
}

at::Tensor like(const at::Tensor &x) { return at::empty_strided(x.sizes(), x.strides(), x.options()); }

/* The tensor with the strides of another that has no gaps. */
at::Tensor as(const at::Tensor &g, const at::Tensor &x)
{
    if (g.strides() == x.strides() && (uintptr_t)g.const_data_ptr() % 16 == 0) return g;
    return like(x).copy_(g);
}

template <auto Entry, class... V> at::Tensor of_one(const at::Tensor &x, V... values)
{
    const at::Tensor from = dense(x);
    at::Tensor y = like(from);
    torchlean_context *const context = context_of(x);
    Buffer out(context, y);
    check(Entry(Buffer(context, from), values..., out.out()));
    return y;
}

/* Entry(first, second, values..., out) of operands that broadcast. The result has the strides of the first operand of its shape. */
template <auto Entry, class... V> at::Tensor of_two(const at::Tensor &first, const at::Tensor &second, V... values)
{
    if (first.sizes() != second.sizes()) { /* of vmap one alone has the axis that is mapped */
        const auto shape = at::infer_size(first.sizes(), second.sizes());
        const at::Tensor x = second.sizes().equals(shape) ? at::empty_like(second).copy_(first) : first.expand(shape);
        return of_two<Entry>(x, second.expand(shape), values...);
    }
    const at::Tensor from = dense(first), with = as(second, from);
    at::Tensor y = like(from);
    torchlean_context *const context = context_of(first);
    Buffer out(context, y);
    check(Entry(Buffer(context, from), Buffer(context, with), values..., out.out()));
    return y;
}

template <auto Entry> std::optional<at::Tensor> unary(const at::Tensor &x) { return of_one<Entry>(x); }
template <auto Entry> std::optional<at::Tensor> unary_in_place(const at::Tensor &x)
{
    const at::Tensor from = dense(x);
    torchlean_context *const context = context_of(x);
    Buffer buffer(context, from);
    check(Entry(buffer, buffer.out()));
    return from;
}

#define TL(name) torchlean_cuda_buffer_##name

std::optional<at::Tensor> rsqrt(const at::Tensor &x) { return of_one<TL(sqrt)>(x).reciprocal(); }

bool by_tanh(std::string_view approximate)
{
    TORCH_CHECK(approximate == "tanh" || approximate == "none", "approximate argument must be either none or tanh.");
    return approximate == "tanh";
}
std::optional<at::Tensor> gelu(const at::Tensor &x, std::string_view approximate)
{
    return by_tanh(approximate) ? of_one<TL(gelu)>(x) : of_one<TL(gelu_erf)>(x);
}
std::optional<at::Tensor> gelu_backward(const at::Tensor &g, const at::Tensor &x, std::string_view approximate)
{
    return by_tanh(approximate) ? of_two<TL(gelu_bwd)>(x, g) : of_two<TL(gelu_erf_bwd)>(x, g);
}
template <auto Entry> std::optional<at::Tensor> by_input(const at::Tensor &g, const at::Tensor &x)
{
    return of_two<Entry>(x, g);
}

std::optional<at::Tensor> softplus(const at::Tensor &x, const at::Scalar &beta, const at::Scalar &threshold)
{
    const double b = beta.toDouble();
    const at::Tensor scaled = b == 1 ? x : x.mul(beta);
    at::Tensor y = of_one<TL(softplus)>(scaled);
    if (b != 1) y = y.div(b);
    return at::where(scaled.gt(threshold), x, y);
}
std::optional<at::Tensor> softplus_backward(const at::Tensor &g, const at::Tensor &x, const at::Scalar &beta,
                                            const at::Scalar &threshold)
{
    const at::Tensor scaled = beta.toDouble() == 1 ? x : x.mul(beta);
    return at::where(scaled.gt(threshold), g, g.mul(of_one<TL(sigmoid)>(scaled)));
}

std::optional<at::Tensor> elu(const at::Tensor &x, const at::Scalar &alpha, const at::Scalar &scale,
                              const at::Scalar &input_scale)
{
    const at::Tensor inner = input_scale.toDouble() == 1 ? x : x.mul(input_scale);
    at::Tensor y = of_one<TL(elu)>(inner, alpha.toDouble());
    if (input_scale.toDouble() != 1) y = at::where(x.gt(0), x, y);
    return scale.toDouble() == 1 ? y : y.mul(scale);
}
/* Where x > 0 the slope is scale; elsewhere it is alpha·scale·input_scale·exp(input_scale·x), which a result of the forward
 * pass, y, holds as (y + alpha·scale)·input_scale. */
std::optional<at::Tensor> elu_backward(const at::Tensor &g, const at::Scalar &alpha, const at::Scalar &scale,
                                       const at::Scalar &input_scale, bool is_result, const at::Tensor &x)
{
    if (!is_result && scale.toDouble() == 1 && input_scale.toDouble() == 1)
        return of_two<TL(elu_bwd)>(x, g, alpha.toDouble());
    const at::Tensor below = is_result ? x.add(alpha.toDouble() * scale.toDouble()).mul(input_scale)
                                       : of_one<TL(exp)>(input_scale.toDouble() == 1 ? x : x.mul(input_scale))
                                             .mul(alpha.toDouble() * scale.toDouble() * input_scale.toDouble());
    return at::where(x.gt(0), g.mul(scale), g.mul(below));
}

std::optional<at::Tensor> pow_scalar(const at::Tensor &x, const at::Scalar &p)
{
    if (p.isComplex()) return std::nullopt;
    const double e = p.toDouble();
    if (e == 2) return x.mul(x);
    if (e == 1) return x.clone();
    if (e == 0.5) return of_one<TL(sqrt)>(x);
    return of_one<TL(pow_scalar)>(x, e);
}
std::optional<at::Tensor> pow_tensor(const at::Tensor &x, const at::Tensor &p)
{
    if (!x.is_floating_point() && x.dim() > 0) return std::nullopt;
    const at::Device device = (x.dim() ? x : p).device();
    return of_two<TL(pow)>(x.to(device, at::kFloat), p.to(device, at::kFloat));
}
std::optional<at::Tensor> pow_of_scalar(const at::Scalar &x, const at::Tensor &p)
{
    if (x.isComplex() || !p.is_floating_point()) return std::nullopt;
    return of_two<TL(pow)>(at::full(p.sizes(), x, p.options()), p);
}
std::optional<at::Tensor> atan2(const at::Tensor &y, const at::Tensor &x)
{
    return of_two<TL(atan2)>(y.to(at::kFloat), x.to(at::kFloat));
}

std::optional<at::Tensor> add(const at::Tensor &x, const at::Tensor &y, const at::Scalar &alpha)
{
    return x.add(y.mul(alpha));
}
std::optional<at::Tensor> sub(const at::Tensor &x, const at::Tensor &y, const at::Scalar &alpha)
{
    return x.sub(y.mul(alpha));
}
std::optional<at::Tensor> rsub(const at::Tensor &x, const at::Tensor &y, const at::Scalar &alpha)
{
    return y.sub(alpha.toDouble() == 1 ? x : x.mul(alpha));
}
std::optional<at::Tensor> addcmul(const at::Tensor &x, const at::Tensor &a, const at::Tensor &b,
                                  const at::Scalar &value)
{
    const at::Tensor product = a.mul(b);
    return x.add(value.toDouble() == 1 ? product : product.mul(value));
}
std::optional<at::Tensor> addcdiv(const at::Tensor &x, const at::Tensor &a, const at::Tensor &b,
                                  const at::Scalar &value)
{
    TORCH_CHECK(a.is_floating_point() || b.is_floating_point(),
                message("Integer division with addcdiv is no longer supported: got tensor1 of ", a.scalar_type(),
                        " and tensor2 of ", b.scalar_type(), ", expected one of floating-point numbers"));
    return x.add(
        (value.toDouble() == 1 ? a : a.mul(value)).div(b)); /* in this order optimisers agree with their loops */
}
/* PyTorch's formula, from whichever end is nearer: a weight of 1 gives y. */
std::optional<at::Tensor> lerp_scalar(const at::Tensor &x, const at::Tensor &y, const at::Scalar &weight)
{
    const bool is_double = x.scalar_type() == at::kDouble;
    const double w = is_double ? weight.toDouble() : weight.to<float>();
    const at::Tensor d = y.sub(x);
    return std::abs(w) < 0.5 ? x.add(d.mul(weight)) : y.sub(d.mul(is_double ? 1 - w : 1.0f - (float)w));
}
std::optional<at::Tensor> lerp_tensor(const at::Tensor &x, const at::Tensor &y, const at::Tensor &weight)
{
    const at::Tensor d = y.sub(x);
    return at::where(weight.abs().lt(0.5), x.add(d.mul(weight)), y.sub(d.mul(weight.neg().add(1))));
}
std::optional<at::Tensor> hardsigmoid(const at::Tensor &x) { return x.add(3).clamp(0, 6).div(6); }
std::optional<at::Tensor> hardsigmoid_backward(const at::Tensor &g, const at::Tensor &x)
{
    return at::where(x.gt(-3).logical_and(x.lt(3)), g.div(6), at::zeros({}, g.options()));
}

/* ---- operators whose plain form is PyTorch's own ------------------------------------------------------------------------ */

/* Whether an operand without axes is of another type than float16 or bfloat16, which the result has. A processor rounds it to that
 * type before it adds; a GPU does not where the host holds it, and does before each operation where its own memory holds it. Here it is
 * float32. */
bool has_number(const at::Tensor &x, const at::Tensor &y)
{
    if ((x.dim() && y.dim()) || !is_plain(x) || !is_plain(y) || !current()) return false;
    const at::ScalarType type = at::result_type(x, y);
    const auto differs = [type](const at::Tensor &t) { return t.dim() == 0 && t.scalar_type() != type; };
    return (type == at::kHalf || type == at::kBFloat16) && (differs(x) || differs(y));
}

/* Op of both in float32, rounded once to the type of the result. */
template <class Op, class... V> at::Tensor rounded_once(const at::Tensor &x, const at::Tensor &y, V... values)
{
    return Op::call(x.to(at::kFloat), y.to(at::kFloat), values...).to(at::result_type(x, y));
}

/* What C makes of operands whose result is complex64, in a block; nothing of others. */
template <class Op, auto C, class... T> std::optional<at::Tensor> of_pairs(const at::Tensor &x, const T &...y)
{
    Block *const block = current();
    if (!block || !is_plain(x) || !(is_plain(y) && ...)) return std::nullopt;
    at::ScalarType type = x.scalar_type();
    ((type = at::result_type(x, y)), ...);
    if (type != at::kComplexFloat) return std::nullopt;
    at::Tensor z = C(x, y...);
    block->add(Op::name, true, z.numel());
    return z;
}

/* Whether the result is complex, in a block. */
bool is_complex(const at::Tensor &x, const at::Tensor &y)
{
    return current() && is_plain(x) && is_plain(y) && at::isComplexType(at::result_type(x, y));
}

/* Without a factor PyTorch's kernel rounds once; with one each operation is to round. */
template <class Op, auto F>
at::Tensor scaled(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y, const at::Scalar &alpha)
{
    if (!alpha.equal(1) && is_complex(x, y)) return Op::redispatch(after(keys), x, y.mul(alpha), 1);
    if (!alpha.equal(1)) return Kernel<Op, typename Op::schema>::template run<F, true>(keys, x, y, alpha);
    return has_number(x, y) ? rounded_once<Op>(x, y, alpha) : Op::redispatch(after(keys), x, y, alpha);
}
/* Whole: the operator that makes a new tensor. */
template <class Op, class Whole, auto F>
at::Tensor &scaled_in_place(c10::DispatchKeySet keys, at::Tensor &x, const at::Tensor &y, const at::Scalar &alpha)
{
    if (alpha.equal(1)) {
        if (x.is_floating_point() && has_number(x, y)) return x.copy_(rounded_once<Whole>(x, y, alpha));
        return Op::redispatch(after(keys), x, y, alpha);
    }
    if (is_complex(x, y) ||
        (current() && is_plain(x) && x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat))
        return Op::redispatch(after(keys), x, y.mul(alpha), 1);
    return Kernel<Op, typename Op::schema>::template in_place<F, true>(keys, x, y, alpha);
}

/* Whether y is a number that the host holds, by whose inverse a GPU multiplies. */
bool is_number(const at::Tensor &x, const at::Tensor &y)
{
    return is_plain(x) && y.dim() == 0 && y.device().is_cpu() && !x.device().is_cpu() &&
           !at::isComplexType(at::result_type(x, y));
}
/* Op of x and y, or of a tensor in the place of a number. That is float32 beside float16 and bfloat16, of which a processor computes
 * in float32, too. */
template <class Op, class... V>
at::Tensor quotient(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y, V... rounding)
{
    if (!is_number(x, y))
        return has_number(x, y) ? rounded_once<Op>(x, y, rounding...) : Op::redispatch(after(keys), x, y, rounding...);
    const at::ScalarType type = at::result_type(x, y);
    const bool real = at::isFloatingType(type);
    if (!real && sizeof...(V)) return Op::redispatch(after(keys), x, y, rounding...);
    const at::Tensor from = real ? (type == at::kDouble ? x.to(type) : wide(x.to(type))) : x;
    const at::Tensor number = at::full({}, y.item(), from.options().dtype(real ? from.scalar_type() : at::kFloat));
    return Op::redispatch(after(keys), from, number, rounding...).to(real ? type : at::kFloat);
}
at::Tensor div(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y)
{
    if (const auto z = of_pairs<at::_ops::div_Tensor, &pairs::div>(x, y)) return *z;
    if (is_complex(x, y)) current()->leave("aten::div", x.numel());
    return quotient<at::_ops::div_Tensor>(keys, x, y);
}
at::Tensor &div_(c10::DispatchKeySet keys, at::Tensor &x, const at::Tensor &y)
{
    if (x.is_complex() && is_complex(x, y)) {
        if (const auto z = of_pairs<at::_ops::div__Tensor, &pairs::div>(x, y)) return x.copy_(*z);
        current()->leave("aten::div_", x.numel());
    }
    if (!x.is_floating_point() || !(is_number(x, y) || has_number(x, y)))
        return at::_ops::div__Tensor::redispatch(after(keys), x, y);
    return x.copy_(quotient<at::_ops::div_Tensor>(keys, x, y));
}
at::Tensor div_mode(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y,
                    std::optional<std::string_view> rounding)
{
    if (!rounding) return quotient<at::_ops::div_Tensor>(keys, x, y);
    return quotient<at::_ops::div_Tensor_mode>(keys, x, y, rounding);
}
at::Tensor floor_divide(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y)
{
    if (!x.is_floating_point() && !y.is_floating_point()) return at::_ops::floor_divide::redispatch(after(keys), x, y);
    return quotient<at::_ops::floor_divide>(keys, x, y);
}

/* An operator that is several operations on complex numbers, which devices fuse in their own ways. */
template <class Op, class Schema = typename Op::schema> struct RealOnly;
template <class Op, class R, class... A> struct RealOnly<Op, R(A...)> {
    static R run(c10::DispatchKeySet keys, A... arguments)
    {
        Block *const block = current();
        if (!block || !(is_complex(arguments) || ...))
            return Op::redispatch(after(keys), std::forward<A>(arguments)...);
        block->leave(Op::name, (count(arguments) + ...));
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY); /* it is made of its form with an argument `out` */
        return Op::redispatch(after(keys), std::forward<A>(arguments)...);
    }
    /* Of complex64 C computes it. */
    template <auto C> static R of_one(c10::DispatchKeySet keys, A... arguments)
    {
        if (const auto z = of_pairs<Op, C>(arguments...)) {
            if constexpr (std::is_same_v<R, at::Tensor>)
                return *z;
            else
                return (arguments, ...).copy_(*z);
        }
        return run(keys, arguments...);
    }
    static bool is_complex(const at::Tensor &t) { return t.is_complex() && is_plain(t); }
    static int64_t count(const at::Tensor &t) { return t.numel(); }
};

/* A number that the host holds becomes the second factor: beside float16 and bfloat16 a processor rounds one that is the first to
 * that type. */
template <class Op, class... Out>
decltype(auto) product(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y, Out &...out)
{
    const bool is_first = x.dim() == 0 && y.dim() > 0 && x.device().is_cpu();
    return RealOnly<Op>::run(keys, is_first ? y : x, is_first ? x : y, out...);
}
/* A GPU rounds numbers that its memory holds. */
bool is_number_of_gpu(const at::Tensor &x, const at::Tensor &y)
{
    return has_number(x, y) && !(x.dim() ? y : x).device().is_cpu();
}
at::Tensor mul(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y)
{
    if (const auto z = of_pairs<at::_ops::mul_Tensor, &pairs::mul>(x, y)) return *z;
    return is_number_of_gpu(x, y) ? rounded_once<at::_ops::mul_Tensor>(x, y)
                                  : product<at::_ops::mul_Tensor>(keys, x, y);
}
at::Tensor &mul_(c10::DispatchKeySet keys, at::Tensor &x, const at::Tensor &y)
{
    if (is_number_of_gpu(x, y)) return x.copy_(rounded_once<at::_ops::mul_Tensor>(x, y));
    if (x.is_complex())
        if (const auto z = of_pairs<at::_ops::mul__Tensor, &pairs::mul>(x, y)) return x.copy_(*z);
    return RealOnly<at::_ops::mul__Tensor>::run(keys, x, y);
}

/* What numbers are multiplied by in place, too. */
at::Tensor &mul_out(c10::DispatchKeySet keys, const at::Tensor &x, const at::Tensor &y, at::Tensor &out)
{
    const auto z = out.scalar_type() == at::kComplexFloat ? of_pairs<at::_ops::mul_out, &pairs::mul>(x, y)
                                                          : std::nullopt;
    if (!z) return product<at::_ops::mul_out>(keys, x, y, out);
    at::native::resize_output(out, z->sizes());
    return out.copy_(*z);
}

/* Steps between fractions, which round on a GPU in its own way: a product and a sum in float64. */
at::Tensor &arange(c10::DispatchKeySet keys, const at::Scalar &start, const at::Scalar &end, const at::Scalar &step,
                   at::Tensor &out)
{
    Block *const block = current();
    const auto is_whole = [](const at::Scalar &s) {
        return !s.isFloatingPoint() || s.toDouble() == std::trunc(s.toDouble());
    };
    at::_ops::arange_start_out::redispatch(after(keys), start, end, step, out);
    if (!block || !is_plain(out) || !out.is_floating_point() || (is_whole(start) && is_whole(step))) return out;
    block->add("aten::arange", true, out.numel());
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    return out.copy_(at::arange(out.numel(), out.options().dtype(at::kDouble)).mul(step).add(start).view(out.sizes()));
}

/* Numbers out of an integer's range become 0, where devices differ. */
at::Tensor to_copy(c10::DispatchKeySet keys, const at::Tensor &x, std::optional<at::ScalarType> type,
                   std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pinned,
                   bool non_blocking, std::optional<at::MemoryFormat> format)
{
    const at::Tensor *from = &x;
    at::Tensor inside;
    if (type && at::isIntegralType(*type, false) && x.is_floating_point() && is_plain(x) && current()) {
        const bool is_signed = at::isSignedType(*type);
        const int64_t bits = 8 * (int64_t)c10::elementSize(*type) - is_signed;
        const double end = std::ldexp(1.0, (int)bits), begin = is_signed ? -end : 0;
        const at::Tensor fits = x.trunc().ge(begin).logical_and(x.lt(end));
        inside = at::where(fits, x, at::zeros({}, x.options()));
        from = &inside;
    }
    return at::_ops::_to_copy::redispatch(after(keys), *from, type, layout, device, pinned, non_blocking, format);
}

#define REAL_ONLY(op) m.impl(TLRT_NAME(op), TORCH_FN((RealOnly<at::_ops::op>::run)))
#define OF_PAIRS(op, function) m.impl(TLRT_NAME(op), TORCH_FN((RealOnly<at::_ops::op>::of_one<&pairs::function>)))

#define UNARY(op, entry) \
    TLRT_KERNEL(m, op, unary<TL(entry)>); \
    TLRT_IN_PLACE(m, op##_, unary_in_place<TL(entry)>)

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    UNARY(sqrt, sqrt);
    TLRT_COMPLEX(m, exp, unary<TL(exp)>, pairs::exp);
    TLRT_IN_PLACE(m, exp_, unary_in_place<TL(exp)>);
    UNARY(expm1, expm1);
    UNARY(log, log);
    UNARY(log1p, log1p);
    UNARY(sin, sin);
    UNARY(cos, cos);
    UNARY(tanh, tanh);
    UNARY(sigmoid, sigmoid);
    UNARY(erf, erf);
    UNARY(silu, silu);
    UNARY(mish, mish);
    UNARY(hardswish, hardswish);
    TLRT_KERNEL(m, rsqrt, rsqrt);
    TLRT_IN_PLACE(m, rsqrt_, rsqrt);
    TLRT_COMPOSED(m, hardsigmoid, hardsigmoid);
    TLRT_COMPOSED_IN_PLACE(m, hardsigmoid_, hardsigmoid);
    TLRT_COMPOSED(m, hardsigmoid_backward, hardsigmoid_backward);
    TLRT_KERNEL(m, gelu, gelu);
    TLRT_IN_PLACE(m, gelu_, gelu);
    TLRT_KERNEL(m, gelu_backward, gelu_backward);
    TLRT_KERNEL(m, silu_backward, by_input<TL(silu_bwd)>);
    TLRT_KERNEL(m, mish_backward, by_input<TL(mish_bwd)>);
    TLRT_KERNEL(m, hardswish_backward, by_input<TL(hardswish_bwd)>);
    TLRT_KERNEL(m, tanh_backward, by_input<TL(tanh_bwd)>);
    TLRT_KERNEL(m, sigmoid_backward, by_input<TL(sigmoid_bwd)>);
    TLRT_KERNEL(m, softplus, softplus);
    TLRT_KERNEL(m, softplus_backward, softplus_backward);
    TLRT_KERNEL(m, elu, elu);
    TLRT_IN_PLACE(m, elu_, elu);
    TLRT_KERNEL(m, elu_backward, elu_backward);
    TLRT_KERNEL(m, pow_Tensor_Scalar, pow_scalar);
    TLRT_IN_PLACE(m, pow__Scalar, pow_scalar);
    TLRT_KERNEL(m, pow_Tensor_Tensor, pow_tensor);
    TLRT_IN_PLACE(m, pow__Tensor, pow_tensor);
    TLRT_KERNEL(m, pow_Scalar, pow_of_scalar);
    TLRT_KERNEL(m, atan2, atan2);
    TLRT_IN_PLACE(m, atan2_, atan2);
    TLRT_COMPOSED(m, rsub_Tensor, rsub);
    TLRT_COMPOSED(m, addcmul, addcmul);
    TLRT_COMPOSED_IN_PLACE(m, addcmul_, addcmul);
    TLRT_COMPOSED(m, addcdiv, addcdiv);
    TLRT_COMPOSED_IN_PLACE(m, addcdiv_, addcdiv);
    TLRT_COMPOSED(m, lerp_Scalar, lerp_scalar);
    TLRT_COMPOSED_IN_PLACE(m, lerp__Scalar, lerp_scalar);
    TLRT_COMPOSED(m, lerp_Tensor, lerp_tensor);
    TLRT_COMPOSED_IN_PLACE(m, lerp__Tensor, lerp_tensor);
    m.impl("add.Tensor", TORCH_FN((scaled<at::_ops::add_Tensor, &add>)));
    m.impl("sub.Tensor", TORCH_FN((scaled<at::_ops::sub_Tensor, &sub>)));
    m.impl("add_.Tensor", TORCH_FN((scaled_in_place<at::_ops::add__Tensor, at::_ops::add_Tensor, &add>)));
    m.impl("sub_.Tensor", TORCH_FN((scaled_in_place<at::_ops::sub__Tensor, at::_ops::sub_Tensor, &sub>)));
    m.impl("div.Tensor", TORCH_FN(div));
    m.impl("div_.Tensor", TORCH_FN(div_));
    m.impl("div.Tensor_mode", TORCH_FN(div_mode));
    m.impl("floor_divide", TORCH_FN(floor_divide));
    m.impl("arange.start_out", TORCH_FN(arange));
    m.impl("_to_copy", TORCH_FN(to_copy));
    m.impl("mul.Tensor", TORCH_FN(mul));
    m.impl("mul_.Tensor", TORCH_FN(mul_));
    m.impl("mul.out", TORCH_FN(mul_out));
    OF_PAIRS(reciprocal, reciprocal);
    OF_PAIRS(reciprocal_, reciprocal);
    REAL_ONLY(reciprocal_out);
    OF_PAIRS(abs, abs);
    REAL_ONLY(abs_out);
    OF_PAIRS(angle, angle);
    REAL_ONLY(angle_out);
    OF_PAIRS(sgn, sgn);
    OF_PAIRS(sgn_, sgn);
    REAL_ONLY(sgn_out);
}

} // namespace
} // namespace tlrt
