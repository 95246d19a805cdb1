/* Complex numbers: products, quotients, sums, and Fourier transforms by real ones of the library. */
#include "complex.h"

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <torch/library.h>

#include <numeric>

#include "call.h"

namespace tlrt {
namespace pairs {

namespace {

/* (..., 2) of a tensor of complex64. */
at::Tensor floats(const at::Tensor &z) { return at::view_as_real(z.resolve_conj().resolve_neg()); }

/* The parts of a number; im is undefined where it is real. */
struct Parts {
    at::Tensor re, im;
    explicit Parts(const at::Tensor &x)
    {
        if (!x.is_complex()) {
            re = x.to(at::kFloat);
            return;
        }
        const at::Tensor both = floats(x.to(at::kComplexFloat));
        re = both.select(-1, 0), im = both.select(-1, 1);
    }
};

/* re² + im² of float32, which float64 holds but for one rounding. */
at::Tensor square(const Parts &x)
{
    const at::Tensor re = x.re.to(at::kDouble), im = x.im.to(at::kDouble);
    return re.mul(re).add(im.mul(im));
}

/* The axes of a complex tensor, counted from the first one. */
std::vector<int64_t> axes_of(const at::Tensor &x, at::OptionalIntArrayRef given)
{
    std::vector<int64_t> axes((size_t)x.dim());
    std::iota(axes.begin(), axes.end(), 0);
    if (!given || given->empty()) return axes;
    axes = given->vec();
    at::maybe_wrap_dims(axes, x.dim());
    return axes;
}

} // namespace

at::Tensor mul(const at::Tensor &x, const at::Tensor &y)
{
    const Parts a(x), b(y);
    if (!a.im.defined()) return pairs::mul(y, x);
    if (!b.im.defined()) return at::complex(a.re.mul(b.re), a.im.mul(b.re));
    return at::complex(a.re.mul(b.re).sub(a.im.mul(b.im)), a.re.mul(b.im).add(a.im.mul(b.re)));
}

at::Tensor div(const at::Tensor &x, const at::Tensor &y)
{
    const Parts a(x), b(y);
    if (!b.im.defined()) return at::complex(a.re.div(b.re), a.im.div(b.re));
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY); /* float64, each operation of which rounds once */
    const at::Tensor of = square(b), re = b.re.to(at::kDouble), im = b.im.to(at::kDouble), r = a.re.to(at::kDouble);
    if (!a.im.defined()) return at::complex(r.mul(re).div(of).to(at::kFloat), r.mul(im).neg().div(of).to(at::kFloat));
    const at::Tensor i = a.im.to(at::kDouble);
    return at::complex(r.mul(re).add(i.mul(im)).div(of).to(at::kFloat),
                       i.mul(re).sub(r.mul(im)).div(of).to(at::kFloat));
}

at::Tensor reciprocal(const at::Tensor &x) { return pairs::div(at::ones({}, x.options().dtype(at::kFloat)), x); }

at::Tensor abs(const at::Tensor &x)
{
    const Parts parts(x);
    return square(parts).sqrt().to(at::kFloat);
}

at::Tensor angle(const at::Tensor &x)
{
    const Parts parts(x);
    return at::atan2(parts.im, parts.re);
}

at::Tensor sgn(const at::Tensor &x)
{
    const at::Tensor size = pairs::abs(x);
    return pairs::div(x, size.masked_fill(size.eq(0), 1));
}

Found exp(const at::Tensor &x)
{
    const Parts parts(x);
    const at::Tensor size = parts.re.exp();
    return at::complex(size.mul(parts.im.cos()), size.mul(parts.im.sin()));
}

/* One product of real matrices: rows (a, b) of A, and for each number c + id of B the rows (c, d) and (-d, c). */
Found bmm(const at::Tensor &a, const at::Tensor &b)
{
    TORCH_CHECK(a.dim() == 3 && b.dim() == 3, "batch1 must be a 3D tensor, and batch2");
    TORCH_CHECK(a.size(0) == b.size(0) && a.size(2) == b.size(1),
                message("batches of matrices of ", a.sizes(), " and ", b.sizes(), " have no product"));
    const int64_t batch = a.size(0), m = a.size(1), n = a.size(2), p = b.size(2);
    const Parts right(b);
    const at::Tensor rows =
        at::stack({at::stack({right.re, right.im}, -1), at::stack({right.im.neg(), right.re}, -1)}, 2);
    const at::Tensor y = at::bmm(floats(a).reshape({batch, m, 2 * n}), rows.view({batch, 2 * n, 2 * p}));
    costs(8 * batch * m * n * p);
    return at::view_as_complex(y.view({batch, m, p, 2}));
}

Found mm(const at::Tensor &a, const at::Tensor &b)
{
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0),
                message("mat1 and mat2 shapes cannot be multiplied (", a.sizes(), " and ", b.sizes(), ")"));
    return pairs::bmm(a.unsqueeze(0), b.unsqueeze(0))->squeeze(0);
}

Found addmm(const at::Tensor &x, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
            const at::Scalar &alpha)
{
    if (!beta.equal(1) || !alpha.equal(1)) return std::nullopt;
    return x.add(*pairs::mm(a, b));
}

/* The sum or mean of each part. */
template <class Op>
Found folded(const at::Tensor &x, at::OptionalIntArrayRef axes, bool keep, std::optional<at::ScalarType> type)
{
    if (type && *type != at::kComplexFloat) return std::nullopt;
    costs(2 * x.numel());
    return at::view_as_complex(Op::call(floats(x), axes_of(x, axes), keep, std::nullopt));
}

Found sum_axes(const at::Tensor &x, at::OptionalIntArrayRef axes, bool keep, std::optional<at::ScalarType> type)
{
    return folded<at::_ops::sum_dim_IntList>(x, axes, keep, type);
}
Found sum_all(const at::Tensor &x, std::optional<at::ScalarType> type)
{
    return sum_axes(x, std::nullopt, false, type);
}
Found mean_axes(const at::Tensor &x, at::OptionalIntArrayRef axes, bool keep, std::optional<at::ScalarType> type)
{
    return folded<at::_ops::mean_dim>(x, axes, keep, type);
}
Found mean_all(const at::Tensor &x, std::optional<at::ScalarType> type)
{
    return mean_axes(x, std::nullopt, false, type);
}

Found vector_norm(const at::Tensor &x, const at::Scalar &order, at::OptionalIntArrayRef axes, bool keep,
                  std::optional<at::ScalarType> type)
{
    if (order.toDouble() != 2 || type) return std::nullopt;
    std::vector<int64_t> over = axes_of(x, axes);
    over.push_back(x.dim());
    const at::Tensor y = at::linalg_vector_norm(floats(x), order, over, keep);
    return keep ? y.squeeze(-1) : y;
}

/* ---- Fourier transforms ------------------------------------------------------------------------------------------------- */

namespace {

/* The axis as the last one of row-major memory. */
at::Tensor rows(const at::Tensor &x, int64_t axis) { return plain(x.movedim(axis, -1)); }
at::Tensor back(const at::Tensor &rows, int64_t axis) { return rows.movedim(-1, axis).contiguous(); }

/* The half spectra of real rows, as pairs: (..., n) -> (..., n/2 + 1, 2). */
at::Tensor spectra(const at::Tensor &x)
{
    const int64_t n = x.size(-1);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = n / 2 + 1;
    sizes.push_back(2);
    at::Tensor y = fresh(x, sizes);
    torchlean_context *const context = context_of(x);
    Buffer out(context, y);
    check(torchlean_cuda_buffer_rfft1d_packed(Buffer(context, x), u32(n ? x.numel() / n : 0), u32(n), out.out()));
    return y;
}

/* Bins 0 to n/2 of `low`, and behind them bins (n-1)/2 to 1 of `high`, as complex numbers. */
at::Tensor joined(const at::Tensor &low, const at::Tensor &high, int64_t n)
{
    return at::view_as_complex(at::cat({low, high.slice(-2, 1, (n + 1) / 2).flip(-2)}, -2));
}

/* A + iB of half spectra of real numbers at the bins k, or at -k. Each sum rounds once, on every device alike. */
void combine(const at::Tensor &a, const at::Tensor &b, bool mirrored, const at::Tensor &into)
{
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    const at::Tensor ar = a.select(-1, 0), ai = a.select(-1, 1), br = b.select(-1, 0), bi = b.select(-1, 1);
    at::Tensor real = into.select(-1, 0), imaginary = into.select(-1, 1);
    mirrored ? at::add_out(real, ar, bi) : at::sub_out(real, ar, bi);
    mirrored ? at::sub_out(imaginary, br, ai) : at::add_out(imaginary, ai, br);
}

/* An axis of complex numbers, by the half spectra of their parts. */
at::Tensor transformed(const at::Tensor &z, int64_t axis, bool forward)
{
    const int64_t n = z.size(axis), half = n / 2 + 1;
    const at::Tensor both = spectra(plain(floats(z).movedim({axis, -1}, {-1, 0})));
    const at::Tensor a = both[0], b = both[1], inner_a = a.slice(-2, 1, (n + 1) / 2),
                     inner_b = b.slice(-2, 1, (n + 1) / 2);
    std::vector<int64_t> sizes = a.sizes().vec();
    sizes[sizes.size() - 2] = n;
    const at::Tensor y = fresh(a, sizes), high = at::empty_like(inner_a);
    combine(a, b, !forward, y.slice(-2, 0, half));
    combine(inner_a, inner_b, forward, high);
    y.slice(-2, half).copy_(high.flip(-2));
    return back(at::view_as_complex(y), axis);
}

/* Several axes, one after the other. */
at::Tensor transformed(at::Tensor z, at::IntArrayRef axes, bool forward)
{
    for (const int64_t axis : axes)
        z = transformed(z, at::maybe_wrap_dim(axis, z.dim()), forward);
    return z;
}

/* What PyTorch divides a transform of `count` numbers by: nothing, a root, or their number. */
at::Tensor normalised(const at::Tensor &x, int64_t mode, double count)
{
    if (mode == 0 || count == 1) return x;
    const at::Tensor y = x.is_complex() ? at::view_as_real(x) : x;
    const at::Tensor z = mode == 2 ? y.div(count) : y.mul(1 / std::sqrt(count));
    return x.is_complex() ? at::view_as_complex(z) : z;
}

/* The numbers of a transform of these axes, which says what it costs. */
double counted(const at::Tensor &x, at::IntArrayRef axes)
{
    double count = 1;
    for (const int64_t axis : axes)
        count *= (double)x.size(axis);
    costs((int64_t)(2.5 * (double)x.numel() * std::log2(std::max(count, 2.0))));
    return count;
}

Found fft_r2c(const at::Tensor &x, at::IntArrayRef axes, int64_t mode, bool onesided)
{
    if (x.scalar_type() != at::kFloat || axes.empty()) return std::nullopt;
    const int64_t last = at::maybe_wrap_dim(axes.back(), x.dim()), n = x.size(last);
    const at::Tensor half = spectra(rows(x, last));
    const at::Tensor z =
        back(onesided ? at::view_as_complex(half) : joined(half, floats(at::view_as_complex(half).conj()), n), last);
    return normalised(transformed(z, axes.slice(0, axes.size() - 1), true), mode, counted(x, axes));
}

Found fft_c2c(const at::Tensor &x, c10::SymIntArrayRef given, int64_t mode, bool forward)
{
    const at::IntArrayRef axes = C10_AS_INTARRAYREF_SLOW(given);
    return normalised(transformed(x, axes, forward), mode, counted(x, axes));
}

Found fft_c2r(const at::Tensor &x, at::IntArrayRef axes, int64_t mode, c10::SymInt length)
{
    if (axes.empty()) return std::nullopt;
    const int64_t last = at::maybe_wrap_dim(axes.back(), x.dim()), n = length.expect_int();
    const at::Tensor z = transformed(x, axes.slice(0, axes.size() - 1), false);
    const at::Tensor from = plain(floats(rows(z.narrow(last, 0, n / 2 + 1), last)));
    std::vector<int64_t> sizes = from.sizes().vec();
    sizes.pop_back();
    sizes.back() = n;
    at::Tensor y = fresh(from, sizes);
    torchlean_context *const context = context_of(from);
    {
        Buffer out(context, y);
        check(torchlean_cuda_buffer_irfft1d_packed(Buffer(context, from), u32(from.numel() / (n / 2 + 1) / 2), u32(n),
                                                   out.out()));
    }
    const double others = counted(x, axes) / (double)x.size(last), all = others * (double)n;
    y = back(y, last); /* divided by n */
    return mode == 2 ? normalised(y, 2, others) : y.mul(mode == 1 ? (double)n / std::sqrt(all) : (double)n);
}

Found polar(const at::Tensor &size, const at::Tensor &angle)
{
    if (size.scalar_type() != at::kFloat || angle.scalar_type() != at::kFloat) return std::nullopt;
    return at::complex(size.mul(angle.cos()), size.mul(angle.sin()));
}

template <class... A> Found none(A...) { return std::nullopt; }

} // namespace
} // namespace pairs

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_MIXED(m, _fft_r2c, pairs::fft_r2c);
    TLRT_COMPLEX(m, _fft_c2c, pairs::none, pairs::fft_c2c);
    TLRT_COMPLEX(m, _fft_c2r, pairs::none, pairs::fft_c2r);
    TLRT_MIXED(m, polar, pairs::polar);
}

} // namespace tlrt
