/* Pooling: averages over windows of any size, and gradients of maxima. */
#include "call.h"

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "sums.h"

namespace tlrt {
namespace {

/* ---- sums over windows of an axis ---------------------------------------------------------------------------------------- */

/* Windows of an axis: window i holds the places from first[i] to last[i] - 1, which are `longest` or fewer. */
struct Windows {
    at::Tensor first, last;
    int64_t longest;
};

at::Tensor range(const at::Tensor &like, int64_t n) { return at::arange(n, like.options().dtype(at::kLong)); }

at::Tensor floored(const at::Tensor &x, int64_t n) { return x.div(n, "floor"); }

/* The windows of `to` results over `from` elements, between which each has its share. The results that an element counts in are
 * the same with the two numbers changed over. */
Windows adaptive(const at::Tensor &like, int64_t from, int64_t to)
{
    const at::Tensor i = range(like, to);
    int64_t longest = 0;
    for (int64_t k = 0; k < to; k++)
        longest = std::max(longest, ((k + 1) * from + to - 1) / to - k * from / to);
    return {floored(i.mul(from), to), floored(i.add(1).mul(from).add(to - 1), to), longest};
}

/* The sum over each window of an axis. */
at::Tensor sums(const at::Tensor &x, int64_t axis, const Windows &w)
{
    const int64_t n = w.first.numel();
    std::vector<int64_t> shape((size_t)x.dim() + 1, 1), sizes = x.sizes().vec();
    shape[axis] = n, shape[axis + 1] = w.longest;
    sizes[axis] = n, sizes.insert(sizes.begin() + axis + 1, w.longest);
    const at::Tensor place = w.first.unsqueeze(1).add(range(x, w.longest));
    const at::Tensor inside = place.lt(w.last.unsqueeze(1)).view(shape);
    const at::Tensor taken = x.index_select(axis, place.clamp_max(x.size(axis) - 1).view(-1)).view(sizes);
    return at::where(inside, taken, at::zeros({}, x.options())).sum(axis + 1);
}

/* The number of elements of each window of several axes. */
at::Tensor sizes_of(const at::Tensor &like, const std::vector<at::Tensor> &lengths)
{
    at::Tensor product = at::ones({}, like.options().dtype(at::kLong));
    for (const at::Tensor &n : lengths)
        product = product.unsqueeze(-1).mul(n);
    return product.to(at::kFloat);
}

/* ---- the library's averages over windows of one size ----------------------------------------------------------------- */

using Axes = std::vector<uint32_t>;

struct Geometry {
    Axes spatial, kernel, stride, padding;
    std::vector<int64_t> out; /* lengths of the results */
};

int64_t channels(const at::Tensor &x, size_t axes)
{
    int64_t n = 1;
    for (int64_t d = 0; d < x.dim() - (int64_t)axes; d++)
        n *= x.size(d);
    return n;
}

#define AXES(v) (v).data(), (uint32_t)(v).size()

at::Tensor averages(const at::Tensor &x, const Geometry &g)
{
    std::vector<int64_t> sizes = x.sizes().vec();
    std::copy(g.out.begin(), g.out.end(), sizes.end() - (int64_t)g.out.size());
    const at::Tensor from = plain(x);
    at::Tensor y = fresh(x, sizes);
    torchlean_context *const context = context_of(x);
    Buffer out(context, y);
    check(torchlean_cuda_buffer_avg_pool(Buffer(context, from), u32(channels(x, g.out.size())), AXES(g.spatial),
                                         AXES(g.kernel), AXES(g.stride), AXES(g.padding), out.out()));
    return y;
}

at::Tensor averages_backward(const at::Tensor &cotangent, const Geometry &g)
{
    const at::Tensor from = plain(cotangent);
    std::vector<int64_t> sizes = from.sizes().vec();
    std::copy(g.spatial.begin(), g.spatial.end(), sizes.end() - (int64_t)g.spatial.size());
    at::Tensor gx = fresh(from, sizes);
    torchlean_context *const context = context_of(from);
    Buffer out(context, gx);
    check(torchlean_cuda_buffer_avg_pool_bwd(Buffer(context, from), u32(channels(from, g.out.size())), AXES(g.spatial),
                                             AXES(g.kernel), AXES(g.stride), AXES(g.padding), out.out()));
    return gx;
}

/* ---- average pooling -------------------------------------------------------------------------------------------------------- */

int64_t at_axis(at::IntArrayRef values, size_t i) { return values.size() == 1 ? values[0] : values[i]; }

struct Pool {
    Geometry library;
    std::vector<int64_t> behind; /* zeros behind each axis that the last windows reach in ceil mode */
    bool in_part = false;        /* some windows count with a part of their size */
    bool count_padding;
    double factor = 1; /* of all averages, where the divisor is given */

    Pool(size_t axes, const at::Tensor &x, at::IntArrayRef k, at::IntArrayRef s, at::IntArrayRef p, bool ceil,
         bool count, std::optional<int64_t> by)
        : count_padding(count)
    {
        TORCH_CHECK(x.dim() == (int64_t)axes + 1 || x.dim() == (int64_t)axes + 2,
                    message("avg_pool: Expected ", axes + 1, "D or ", axes + 2,
                            "D (batch mode) tensor for input, but got ", x.sizes()));
        for (const at::IntArrayRef list : {k, s, p})
            TORCH_CHECK(list.size() == 1 || list.size() == axes || (list.empty() && list.data() == s.data()),
                        "avg_pool: kernel_size, stride and padding must be one int or one for each axis");
        TORCH_CHECK(!by || *by != 0, "divisor must be not zero");
        if (by) factor /= (double)*by;
        for (size_t i = 0; i < axes; i++) {
            const int64_t n = x.size(x.dim() - (int64_t)axes + (int64_t)i), size = at_axis(k, i), pad = at_axis(p, i);
            const int64_t step = s.empty() ? size : at_axis(s, i);
            TORCH_CHECK(size > 0 && step > 0, "kernel size and stride should be greater than zero");
            TORCH_CHECK(pad >= 0 && pad <= size / 2,
                        message("pad should be at most half of effective kernel size, but got pad=", pad,
                                ", kernel_size=", size));
            int64_t out = (n + 2 * pad - size + (ceil ? step - 1 : 0)) / step + 1;
            if (ceil && (out - 1) * step >= n + pad) out--;
            TORCH_CHECK(n + 2 * pad + (ceil ? step - 1 : 0) >= size && out > 0 && n > 0,
                        message("avg_pool: the output of input ", x.sizes(), " is too small"));
            behind.push_back(std::max(INT64_C(0), (out - 1) * step + size - n - 2 * pad));
            in_part = in_part || (!by && (behind.back() || (pad && !count)));
            if (by) factor *= (double)size;
            library.spatial.push_back(u32(n + behind.back())), library.kernel.push_back(u32(size));
            library.stride.push_back(u32(step)), library.padding.push_back(u32(pad)), library.out.push_back(out);
        }
    }

    at::Tensor padded(const at::Tensor &x) const
    {
        std::vector<int64_t> zeros;
        for (size_t i = behind.size(); i-- > 0;)
            zeros.insert(zeros.end(), {0, behind[i]});
        return std::all_of(behind.begin(), behind.end(), [](int64_t n) { return n == 0; })
                   ? x
                   : at::constant_pad_nd(x, zeros);
    }
    at::Tensor without_padding(at::Tensor x) const
    {
        for (size_t i = 0; i < behind.size(); i++) {
            const int64_t axis = x.dim() - (int64_t)(behind.size() - i);
            x = x.narrow(axis, 0, x.size(axis) - behind[i]);
        }
        return x;
    }
    /* The share of each window that counts: an average of ones. */
    at::Tensor shares(const at::Tensor &like) const
    {
        Geometry g = library;
        std::vector<int64_t> counted{1};
        for (size_t i = 0; i < behind.size(); i++) {
            const int64_t sides = count_padding ? 2 * (int64_t)g.padding[i] : 0;
            counted.push_back((int64_t)g.spatial[i] - behind[i] + sides);
            g.spatial[i] += u32(sides), g.padding[i] -= u32(sides / 2);
        }
        return averages(padded(at::ones(counted, like.options())), g).squeeze(0);
    }
    at::Tensor scaled(const at::Tensor &y) const
    {
        return in_part ? y.div(shares(y)) : factor == 1 ? y : y.mul(factor);
    }
};

/* In the memory format of `like`. */
at::Tensor formatted(const at::Tensor &y, const at::Tensor &like) { return y.contiguous(like.suggest_memory_format()); }

template <size_t Rank>
std::optional<at::Tensor> avg_pool(const at::Tensor &x, at::IntArrayRef kernel, at::IntArrayRef stride,
                                   at::IntArrayRef padding, bool ceil, bool count, std::optional<int64_t> divisor)
{
    const Pool pool(Rank, x, kernel, stride, padding, ceil, count, divisor);
    return formatted(pool.scaled(averages(pool.padded(x), pool.library)), x);
}

template <size_t Rank>
std::optional<at::Tensor> avg_pool_backward(const at::Tensor &g, const at::Tensor &x, at::IntArrayRef kernel,
                                            at::IntArrayRef stride, at::IntArrayRef padding, bool ceil, bool count,
                                            std::optional<int64_t> divisor)
{
    const Pool pool(Rank, x, kernel, stride, padding, ceil, count, divisor);
    return formatted(pool.without_padding(averages_backward(pool.scaled(g), pool.library)), x);
}

/* ---- adaptive average pooling ------------------------------------------------------------------------------------------- */

/* The windows where all are of one size. */
std::optional<Geometry> even(const at::Tensor &x, at::IntArrayRef out)
{
    Geometry g;
    for (size_t i = 0; i < out.size(); i++) {
        const int64_t n = x.size(x.dim() - (int64_t)(out.size() - i));
        if (out[i] == 0 || n == 0 || n % out[i]) return std::nullopt;
        g.spatial.push_back(u32(n)), g.out.push_back(out[i]), g.padding.push_back(0);
        g.kernel.push_back(u32(n / out[i])), g.stride.push_back(u32(n / out[i]));
    }
    return g;
}

template <size_t Rank> std::optional<at::Tensor> adaptive_avg_pool(const at::Tensor &x, c10::SymIntArrayRef sizes)
{
    const at::IntArrayRef out = C10_AS_INTARRAYREF_SLOW(sizes);
    TORCH_CHECK(out.size() == Rank, message("adaptive_avg_pool", Rank, "d: output_size must be ", Rank));
    TORCH_CHECK(x.dim() == (int64_t)Rank + 1 || x.dim() == (int64_t)Rank + 2,
                message("adaptive_avg_pool", Rank, "d(): Expected ", Rank + 1, "D or ", Rank + 2, "D tensor, but got ",
                        x.sizes()));
    if (!x.numel() || at::multiply_integers(out) == 0) return std::nullopt;
    if (const auto g = even(x, out)) return formatted(averages(x, *g), x);
    at::Tensor y = x;
    std::vector<at::Tensor> lengths(Rank);
    for (size_t i = Rank; i-- > 0;) {
        const int64_t axis = x.dim() - (int64_t)(Rank - i);
        const Windows w = adaptive(x, x.size(axis), out[i]);
        y = sums(y, axis, w);
        lengths[i] = w.last.sub(w.first);
    }
    return formatted(y.div(sizes_of(x, lengths)), x);
}

template <size_t Rank> std::optional<at::Tensor> adaptive_avg_pool_backward(const at::Tensor &g, const at::Tensor &x)
{
    if (!x.numel() || !g.numel()) return at::zeros_like(x);
    const at::IntArrayRef out = g.sizes().slice(g.dim() - (int64_t)Rank);
    if (const auto same = even(x, out)) return formatted(averages_backward(g, *same), x);
    std::vector<at::Tensor> lengths(Rank);
    for (size_t i = 0; i < Rank; i++) {
        const Windows w = adaptive(x, x.size(x.dim() - (int64_t)(Rank - i)), out[i]);
        lengths[i] = w.last.sub(w.first);
    }
    at::Tensor gx = g.div(sizes_of(x, lengths));
    for (size_t i = Rank; i-- > 0;) {
        const int64_t axis = x.dim() - (int64_t)(Rank - i);
        gx = sums(gx, axis, adaptive(x, out[i], x.size(axis)));
    }
    return formatted(gx, x);
}

/* ---- maxima --------------------------------------------------------------------------------------------------------------------- */

/* The gradient of maxima: each goes to the place of the element that was chosen, counted over the last axes. */
at::Tensor to_places(const at::Tensor &g, const at::Tensor &x, const at::Tensor &index, int64_t axes)
{
    TORCH_CHECK(g.sizes() == index.sizes(),
                message("max_pool backward: got a gradient of ", g.sizes(), ", expected ", index.sizes()));
    const int64_t rows = channels(x, (size_t)axes), n = rows ? x.numel() / rows : 0, k = rows ? g.numel() / rows : 0;
    if (!x.numel() || !g.numel()) return at::zeros_like(x);
    const at::Tensor from = plain(g), place = plain(index.to(at::kInt));
    at::Tensor gx = fresh(x, x.sizes());
    torchlean_context *const context = context_of(x);
    Buffer out(context, gx);
    check(torchlean_cuda_buffer_take_axis_bwd(Buffer(context, place, AS_INDEX), Buffer(context, from), u32(rows),
                                              u32(n), 1, u32(rows), u32(k), 1, out.out()));
    return formatted(gx, x);
}

template <int64_t Rank>
std::optional<at::Tensor> max_pool_backward(const at::Tensor &g, const at::Tensor &x, at::IntArrayRef, at::IntArrayRef,
                                            at::IntArrayRef, at::IntArrayRef, bool, const at::Tensor &index)
{
    return to_places(g, x, index, Rank);
}
template <int64_t Rank>
std::optional<at::Tensor> adaptive_max_pool_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &index)
{
    return to_places(g, x, index, Rank);
}
template <int64_t Rank>
std::optional<at::Tensor> fractional_max_pool_backward(const at::Tensor &g, const at::Tensor &x, at::IntArrayRef,
                                                       at::IntArrayRef, const at::Tensor &index)
{
    return to_places(g, x, index, Rank);
}

/* Where windows overlap a place is named twice, and the last one counts: see scatter. */
at::Tensor unpooled(const at::Tensor &x, const at::Tensor &index, std::vector<int64_t> sizes, size_t axes)
{
    TORCH_CHECK(x.sizes() == index.sizes(), message("max_unpooling: Expected shape of indices to be that of the input ",
                                                    x.sizes(), ", but got ", index.sizes()));
    const int64_t rows = channels(x, axes), n = at::multiply_integers(sizes);
    std::vector<int64_t> lead = x.sizes().slice(0, x.dim() - (int64_t)axes).vec();
    lead.insert(lead.end(), sizes.begin(), sizes.end());
    if (!x.numel()) return at::zeros(lead, x.options());
    return at::zeros({rows, n}, x.options()).scatter(1, index.reshape({rows, -1}), x.reshape({rows, -1})).view(lead);
}
std::optional<at::Tensor> max_unpool2d(const at::Tensor &x, const at::Tensor &index, c10::SymIntArrayRef out)
{
    return formatted(unpooled(x, index, C10_AS_INTARRAYREF_SLOW(out).vec(), 2), x);
}
std::optional<at::Tensor> max_unpool3d(const at::Tensor &x, const at::Tensor &index, c10::SymIntArrayRef out,
                                       at::IntArrayRef, at::IntArrayRef)
{
    return unpooled(x, index, C10_AS_INTARRAYREF_SLOW(out).vec(), 3);
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_KERNEL(m, avg_pool2d, avg_pool<2>);
    TLRT_KERNEL(m, avg_pool3d, avg_pool<3>);
    TLRT_KERNEL(m, avg_pool2d_backward, avg_pool_backward<2>);
    TLRT_KERNEL(m, avg_pool3d_backward, avg_pool_backward<3>);
    TLRT_KERNEL(m, _adaptive_avg_pool2d, adaptive_avg_pool<2>);
    TLRT_KERNEL(m, _adaptive_avg_pool3d, adaptive_avg_pool<3>);
    TLRT_KERNEL(m, _adaptive_avg_pool2d_backward, adaptive_avg_pool_backward<2>);
    TLRT_KERNEL(m, _adaptive_avg_pool3d_backward, adaptive_avg_pool_backward<3>);
    TLRT_KERNEL(m, max_pool2d_with_indices_backward, max_pool_backward<2>);
    TLRT_KERNEL(m, max_pool3d_with_indices_backward, max_pool_backward<3>);
    TLRT_KERNEL(m, adaptive_max_pool2d_backward, adaptive_max_pool_backward<2>);
    TLRT_KERNEL(m, adaptive_max_pool3d_backward, adaptive_max_pool_backward<3>);
    TLRT_KERNEL(m, fractional_max_pool2d_backward, fractional_max_pool_backward<2>);
    TLRT_KERNEL(m, fractional_max_pool3d_backward, fractional_max_pool_backward<3>);
    TLRT_KERNEL(m, max_unpool2d, max_unpool2d);
    TLRT_KERNEL(m, max_unpool3d, max_unpool3d);
}

} // namespace
} // namespace tlrt
