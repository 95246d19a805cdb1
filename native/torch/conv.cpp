/* Convolutions of any rank, grouped, dilated and transposed, and pooling. */
#include "call.h"

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

namespace tlrt {
namespace {

using Axes = std::vector<uint32_t>;

Axes axes(at::IntArrayRef values, size_t count)
{
    Axes out;
    for (size_t i = 0; i < count; i++)
        out.push_back(u32(values[values.size() == 1 ? 0 : i]));
    return out;
}

/* The numbers of a convolution as the C library has them; x is (batch, groups·in, spatial...). */
struct Geometry {
    uint32_t batch, groups, in, out;
    Axes spatial, kernel, stride, dilation, padding, output_padding;
    std::vector<int64_t> result; /* the shape of the output */
    int64_t work;
};

Geometry geometry(const at::Tensor &x, const at::Tensor &w, at::IntArrayRef stride, at::IntArrayRef padding,
                  at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups)
{
    const size_t n = (size_t)x.dim() - 2;
    TORCH_CHECK(groups > 0 && x.dim() >= 3 && w.dim() == x.dim(),
                message("convolution: got operands of ", x.dim(), " and ", w.dim(),
                        " axes, expected the same number, 3 or more"));
    TORCH_CHECK(
        x.size(1) == (transposed ? w.size(0) : w.size(1) * groups) && w.size(0) % groups == 0,
        message("convolution: got an input of ", x.sizes(), " and weights of ", w.sizes(), " for ", groups, " groups"));
    Geometry g{u32(x.size(0)),
               u32(groups),
               u32(x.size(1) / groups),
               u32(transposed ? w.size(1) : w.size(0) / groups),
               {},
               {},
               axes(stride, n),
               axes(dilation, n),
               axes(padding, n),
               {},
               {},
               2};
    if (transposed) g.output_padding = axes(output_padding, n);
    g.result = {x.size(0), (int64_t)g.out * groups};
    for (size_t i = 0; i < n; i++) {
        const int64_t size = x.size(2 + i), k = w.size(2 + i);
        g.spatial.push_back(u32(size));
        g.kernel.push_back(u32(k));
        const int64_t reach = g.dilation[i] * (k - 1) + 1, step = g.stride[i], pad = g.padding[i];
        TORCH_CHECK(step > 0 && k > 0, "convolution: stride and kernel must be positive");
        const int64_t length = transposed ? (size - 1) * step - 2 * pad + reach + g.output_padding[i]
                                          : (size + 2 * pad - reach) / step + 1;
        TORCH_CHECK(transposed ? length > 0 : size + 2 * pad >= reach,
                    message("Calculated padded input size per channel: (", size + 2 * pad, "). Kernel size: (", reach,
                            "). Kernel size can't be greater than actual input size"));
        g.result.push_back(length);
        g.work *= transposed ? size * k : length * k;
    }
    g.work *= x.size(0) * x.size(1) * g.out;
    return g;
}

/* A list of lengths as two arguments. */
#define AXES(v) (v).data(), (uint32_t)(v).size()

std::optional<at::Tensor> convolution(const at::Tensor &x, const at::Tensor &w, const std::optional<at::Tensor> &b,
                                      c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                      c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
                                      c10::SymInt groups)
{
    const Geometry g = geometry(x, w, C10_AS_INTARRAYREF_SLOW(stride), C10_AS_INTARRAYREF_SLOW(padding),
                                C10_AS_INTARRAYREF_SLOW(dilation), transposed, C10_AS_INTARRAYREF_SLOW(output_padding),
                                groups.expect_int());
    costs(g.work);
    at::Tensor y = fresh(x, g.result);
    const at::Tensor from = plain(x), weights = plain(w), bias = b && b->defined() ? plain(*b) : at::Tensor();
    torchlean_context *const context = context_of(x);
    Buffer out(context, y), in(context, from), by(context, weights);
    std::optional<Buffer> add;
    if (bias.defined()) add.emplace(context, bias);
    torchlean_buffer *const plus = add ? (torchlean_buffer *)*add : nullptr;
    check(transposed ? torchlean_cuda_buffer_conv_transpose_grouped(in, by, plus, g.batch, g.groups, g.in,
                                                                    AXES(g.spatial), g.out, AXES(g.kernel),
                                                                    AXES(g.stride), AXES(g.dilation), AXES(g.padding),
                                                                    AXES(g.padding), AXES(g.output_padding), out.out())
                     : torchlean_cuda_buffer_conv_grouped(in, by, plus, g.batch, g.groups, g.in, AXES(g.spatial), g.out,
                                                          AXES(g.kernel), AXES(g.stride), AXES(g.dilation),
                                                          AXES(g.padding), AXES(g.padding), out.out()));
    const auto format = x.suggest_memory_format(), of_weights = w.suggest_memory_format();
    const auto wanted = format != at::MemoryFormat::Contiguous ? format : of_weights;
    return wanted == at::MemoryFormat::Contiguous ? y : y.contiguous(wanted);
}

std::optional<std::tuple<at::Tensor, at::Tensor, at::Tensor>> convolution_backward(
    const at::Tensor &cotangent, const at::Tensor &x, const at::Tensor &w, at::OptionalSymIntArrayRef,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> want)
{
    const Geometry g = geometry(x, w, C10_AS_INTARRAYREF_SLOW(stride), C10_AS_INTARRAYREF_SLOW(padding),
                                C10_AS_INTARRAYREF_SLOW(dilation), transposed, C10_AS_INTARRAYREF_SLOW(output_padding),
                                groups.expect_int());
    costs(g.work * (want[0] + want[1]));
    std::tuple<at::Tensor, at::Tensor, at::Tensor> found;
    if (!want[0] && !want[1] && !want[2]) return found;
    auto &[gx, gw, gb] = found;
    const at::Tensor from = plain(x), weights = plain(w), upstream = plain(cotangent);
    torchlean_context *const context = context_of(x);
    Buffer in(context, from), by(context, weights), above(context, upstream);
    std::optional<Buffer> outs[3];
    torchlean_buffer **places[3] = {};
    at::Tensor *const results[3] = {&gx, &gw, &gb};
    for (int i = 0; i < 3; i++) {
        if (!want[i]) continue;
        *results[i] = i == 0 ? fresh(x, x.sizes()) : i == 1 ? fresh(w, w.sizes()) : fresh(w, {cotangent.size(1)});
        outs[i].emplace(context, *results[i]);
        places[i] = outs[i]->out();
    }
    check(transposed ? torchlean_cuda_buffer_conv_transpose_grouped_bwd(
                           in, by, above, g.batch, g.groups, g.in, AXES(g.spatial), g.out, AXES(g.kernel),
                           AXES(g.stride), AXES(g.dilation), AXES(g.padding), AXES(g.padding), AXES(g.output_padding),
                           places[0], places[1], places[2])
                     : torchlean_cuda_buffer_conv_grouped_bwd(in, by, above, g.batch, g.groups, g.in, AXES(g.spatial),
                                                              g.out, AXES(g.kernel), AXES(g.stride), AXES(g.dilation),
                                                              AXES(g.padding), AXES(g.padding), places[0], places[1],
                                                              places[2]));
    return found;
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_KERNEL(m, convolution, convolution);
    TLRT_KERNEL(m, convolution_backward, convolution_backward);
}

} // namespace
} // namespace tlrt
