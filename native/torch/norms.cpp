/* Normalisation: statistics are results, in float32, and gradients come from them. */
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "call.h"
#include "differentiable.h"
#include "front.h"
#include "sums.h"

namespace tlrt {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor given(const std::optional<at::Tensor> &t) { return t && t->defined() ? plain(wide(*t)) : at::Tensor(); }

/* A result in the type of the operand that it belongs to. */
at::Tensor typed_as(const at::Tensor &t, const at::Tensor &like)
{
    return t.defined() && t.scalar_type() != like.scalar_type() ? t.to(like.scalar_type()) : t;
}

at::Tensor vector(const at::Tensor &like, int64_t n) { return at::empty({n}, like.options().dtype(at::kFloat)); }

/* Makes the results that are wanted, of a number of elements each, and hands their places to an entry point. */
struct Wanted {
    at::Tensor t;
    std::optional<Buffer> buffer;
    torchlean_buffer **place = nullptr;
    Wanted(torchlean_context *context, bool wanted, const at::Tensor &like, at::IntArrayRef sizes)
    {
        if (!wanted) return;
        t = at::empty(sizes, like.options().dtype(at::kFloat).memory_format(at::MemoryFormat::Contiguous));
        buffer.emplace(context, t);
        place = buffer->out();
    }
};

/* ---- layer norm ------------------------------------------------------------------------------------------------------------ */

std::optional<Three> layer_norm(const at::Tensor &x, c10::SymIntArrayRef shape, const std::optional<at::Tensor> &weight,
                                const std::optional<at::Tensor> &bias, double eps)
{
    const at::IntArrayRef normalized = C10_AS_INTARRAYREF_SLOW(shape);
    TORCH_CHECK(!normalized.empty(), "Expected normalized_shape to be at least 1-dimensional, but got []");
    TORCH_CHECK((size_t)x.dim() >= normalized.size() && x.sizes().slice(x.dim() - normalized.size()) == normalized,
                message("Given normalized_shape=", normalized,
                        ", expected input with shape ending in it, but got input of size ", x.sizes()));
    const int64_t cols = c10::multiply_integers(normalized),
                  rows = c10::multiply_integers(x.sizes().slice(0, x.dim() - normalized.size()));
    if (eps < 0) return std::nullopt;
    costs(8 * x.numel());
    const at::Tensor from = plain(wide(x)), gamma = given(weight), beta = given(bias);
    at::Tensor y = fresh(from, x.sizes()), mean = vector(x, rows), inverse = vector(x, rows);
    torchlean_context *const context = context_of(x);
    Buffer out(context, y), means(context, mean), inverses(context, inverse);
    check(torchlean_cuda_buffer_layer_norm_stats(Buffer(context, from), Buffer(context, gamma), Buffer(context, beta),
                                                 u32(rows), u32(cols), eps, out.out(), means.out(), inverses.out()));
    std::vector<int64_t> kept = x.sizes().vec();
    for (size_t i = kept.size() - normalized.size(); i < kept.size(); i++)
        kept[i] = 1;
    return Three(typed_as(y, x), mean.view(kept), inverse.view(kept));
}

std::optional<Three> layer_norm_backward(const at::Tensor &g, const at::Tensor &x, c10::SymIntArrayRef shape,
                                         const at::Tensor &mean, const at::Tensor &inverse,
                                         const std::optional<at::Tensor> &weight, const std::optional<at::Tensor> &bias,
                                         std::array<bool, 3> want)
{
    const int64_t cols = c10::multiply_integers(C10_AS_INTARRAYREF_SLOW(shape)), rows = cols ? x.numel() / cols : 0;
    const bool has_weight = weight && weight->defined(), has_bias = bias && bias->defined();
    costs(12 * x.numel());
    const at::Tensor from = plain(wide(x)), above = plain(wide(g)), gamma = given(weight);
    torchlean_context *const context = context_of(x);
    Wanted gx(context, want[0], x, x.sizes()), gw(context, want[1] && has_weight, x, {cols}),
        gb(context, want[2] && has_bias, x, {cols});
    if (gx.place || gw.place || gb.place)
        check(torchlean_cuda_buffer_layer_norm_stats_bwd(Buffer(context, from), Buffer(context, gamma),
                                                         Buffer(context, plain(wide(mean))),
                                                         Buffer(context, plain(wide(inverse))), Buffer(context, above),
                                                         u32(rows), u32(cols), 0, gx.place, gw.place, gb.place));
    return Three(typed_as(gx.t, x), gw.t.defined() ? typed_as(gw.t.view(weight->sizes()), *weight) : gw.t,
                 gb.t.defined() ? typed_as(gb.t.view(bias->sizes()), *bias) : gb.t);
}

/* ---- batch norm ------------------------------------------------------------------------------------------------------------ */

/* (batch, channels, positions) */
struct Channels {
    int64_t batch, channels, positions;
    explicit Channels(const at::Tensor &x)
        : batch(x.size(0)), channels(x.dim() > 1 ? x.size(1) : 1),
          positions(c10::multiply_integers(x.sizes().slice(std::min<int64_t>(2, x.dim()))))
    {}
};

/* Moves running statistics towards those of a batch; one that is not kept is made of what is at hand. */
void follow(const std::optional<at::Tensor> &running_mean, const std::optional<at::Tensor> &running_var,
            const at::Tensor &mean, const at::Tensor &var, double momentum, double count)
{
    const bool has_mean = running_mean && running_mean->defined(), has_var = running_var && running_var->defined();
    if (!has_mean && !has_var) return;
    const at::Tensor kept_mean = has_mean ? plain(wide(*running_mean)) : at::empty_like(mean),
                     kept_var = has_var ? plain(wide(*running_var)) : at::empty_like(var);
    torchlean_context *const context = context_of(mean);
    Buffer means(context, kept_mean), variances(context, kept_var);
    check(torchlean_cuda_buffer_batch_norm_running(Buffer(context, mean), Buffer(context, var), means, variances,
                                                   momentum, count / (count - 1), means.out(), variances.out()));
    if (has_mean && !kept_mean.is_same(*running_mean)) running_mean->copy_(kept_mean);
    if (has_var && !kept_var.is_same(*running_var)) running_var->copy_(kept_var);
}

at::Tensor inverse_of(const at::Tensor &variance, double eps) { return wide(variance).add(eps).rsqrt(); }

at::Tensor in_format(const at::Tensor &y, const at::Tensor &x)
{
    const auto format = x.suggest_memory_format();
    return format == at::MemoryFormat::Contiguous ? y : y.contiguous(format);
}

std::optional<Three> batch_norm(const at::Tensor &x, const std::optional<at::Tensor> &weight,
                                const std::optional<at::Tensor> &bias, const std::optional<at::Tensor> &running_mean,
                                const std::optional<at::Tensor> &running_var, bool train, double momentum, double eps)
{
    const Channels c(x);
    costs(8 * x.numel());
    const at::Tensor from = plain(wide(x)), gamma = given(weight), beta = given(bias);
    at::Tensor y = fresh(from, x.sizes());
    torchlean_context *const context = context_of(x);
    Buffer out(context, y);
    if (train) {
        at::Tensor mean = vector(x, c.channels), var = vector(x, c.channels), inverse = vector(x, c.channels);
        Buffer means(context, mean), variances(context, var), inverses(context, inverse);
        check(torchlean_cuda_buffer_batch_norm_stats(
            Buffer(context, from), Buffer(context, gamma), Buffer(context, beta), u32(c.batch), u32(c.channels),
            u32(c.positions), eps, out.out(), means.out(), variances.out(), inverses.out()));
        follow(running_mean, running_var, mean, var, momentum, (double)c.batch * (double)c.positions);
        return Three(in_format(typed_as(y, x), x), mean, inverse);
    }
    const at::Tensor inverse = inverse_of(*running_var, eps), slope = gamma.defined() ? inverse.mul(gamma) : inverse;
    const at::Tensor shift = beta.defined() ? beta : at::zeros({c.channels}, slope.options());
    check(torchlean_cuda_buffer_channel_affine(Buffer(context, from), Buffer(context, plain(wide(*running_mean))),
                                               Buffer(context, slope), Buffer(context, shift), u32(c.batch),
                                               u32(c.channels), u32(c.positions), out.out()));
    return Three(in_format(typed_as(y, x), x), vector(x, 0), vector(x, 0));
}

std::optional<Three> batch_norm_legit(const at::Tensor &x, const std::optional<at::Tensor> &weight,
                                      const std::optional<at::Tensor> &bias, at::Tensor &running_mean,
                                      at::Tensor &running_var, bool train, double momentum, double eps)
{
    return batch_norm(x, weight, bias, running_mean, running_var, train, momentum, eps);
}
std::optional<Three> batch_norm_no_stats(const at::Tensor &x, const std::optional<at::Tensor> &weight,
                                         const std::optional<at::Tensor> &bias, bool, double momentum, double eps)
{
    return batch_norm(x, weight, bias, std::nullopt, std::nullopt, true, momentum, eps);
}

std::optional<Three> batch_norm_backward(const at::Tensor &g, const at::Tensor &x,
                                         const std::optional<at::Tensor> &weight,
                                         const std::optional<at::Tensor> &running_mean,
                                         const std::optional<at::Tensor> &running_var,
                                         const std::optional<at::Tensor> &save_mean,
                                         const std::optional<at::Tensor> &save_inverse, bool train, double eps,
                                         std::array<bool, 3> want)
{
    const Channels c(x);
    costs(12 * x.numel());
    const at::Tensor from = plain(wide(x)), above = plain(wide(g)), gamma = given(weight);
    const at::Tensor &like = weight && weight->defined() ? *weight : x;
    torchlean_context *const context = context_of(x);
    Wanted gx(context, want[0], x, x.sizes()), gw(context, want[1], x, {c.channels}),
        gb(context, want[2], x, {c.channels});
    if (!gx.place && !gw.place && !gb.place) return Three();
    if (train) {
        check(torchlean_cuda_buffer_batch_norm_stats_bwd(
            Buffer(context, from), Buffer(context, gamma), Buffer(context, plain(wide(*save_mean))),
            Buffer(context, plain(wide(*save_inverse))), Buffer(context, above), u32(c.batch), u32(c.channels),
            u32(c.positions), eps, gx.place, gw.place, gb.place));
    } else {
        const at::Tensor inverse = inverse_of(*running_var, eps),
                         slope = gamma.defined() ? inverse.mul(gamma) : inverse;
        check(torchlean_cuda_buffer_channel_affine_bwd(
            Buffer(context, from), Buffer(context, plain(wide(*running_mean))), Buffer(context, slope),
            Buffer(context, above), u32(c.batch), u32(c.channels), u32(c.positions), gx.place, nullptr, gw.place,
            gb.place));
        if (gw.t.defined()) gw.t = gw.t.mul(inverse);
    }
    return Three(gx.t.defined() ? in_format(typed_as(gx.t, x), x) : gx.t, typed_as(gw.t, like), typed_as(gb.t, like));
}

/* PyTorch takes other ways on other devices, and with cuDNN; all mean this. */
at::Tensor front_batch_norm(const at::Tensor &x, const std::optional<at::Tensor> &weight,
                            const std::optional<at::Tensor> &bias, const std::optional<at::Tensor> &running_mean,
                            const std::optional<at::Tensor> &running_var, bool train, double momentum, double eps,
                            bool cudnn)
{
    if (!is_ours({x}) || !x.numel() || x.dim() < 2)
        return as_without<at::_ops::batch_norm>(x, weight, bias, running_mean, running_var, train, momentum, eps,
                                                cudnn);
    const Channels c(x);
    TORCH_CHECK_VALUE(!train || c.batch * c.positions > 1,
                      message("Expected more than 1 value per channel when training, got input size ", x.sizes()));
    for (const auto *t : {&weight, &bias, &running_mean, &running_var})
        TORCH_CHECK(!*t || !(*t)->defined() || (*t)->numel() == c.channels,
                    message("batch_norm: got parameters of ", (*t)->numel(), " elements, expected one for each of ",
                            c.channels, " channels"));
    TORCH_CHECK(train || (running_mean && running_mean->defined() && running_var && running_var->defined()),
                "batch_norm: running_mean and running_var must be given in evaluation");
    return std::get<0>(at::native_batch_norm(x, weight, bias, running_mean, running_var, train, momentum, eps));
}

/* ---- group norm ------------------------------------------------------------------------------------------------------------ */

std::optional<Three> group_norm(const at::Tensor &x, const std::optional<at::Tensor> &weight,
                                const std::optional<at::Tensor> &bias, c10::SymInt n, c10::SymInt channels,
                                c10::SymInt positions, int64_t groups, double eps)
{
    if (eps < 0) return std::nullopt;
    const int64_t batch = n.expect_int(), each = groups ? channels.expect_int() / groups : 0;
    costs(8 * x.numel());
    const at::Tensor from = plain(wide(x)), gamma = given(weight), beta = given(bias);
    at::Tensor y = fresh(from, x.sizes()), mean = vector(x, batch * groups), inverse = vector(x, batch * groups);
    torchlean_context *const context = context_of(x);
    Buffer out(context, y), means(context, mean), inverses(context, inverse);
    check(torchlean_cuda_buffer_group_norm_stats(Buffer(context, from), Buffer(context, gamma), Buffer(context, beta),
                                                 u32(batch), u32(groups), u32(each), u32(positions.expect_int()), eps,
                                                 out.out(), means.out(), inverses.out()));
    return Three(in_format(typed_as(y, x), x), mean.view({batch, groups}), inverse.view({batch, groups}));
}

std::optional<Three> group_norm_backward(const at::Tensor &g, const at::Tensor &x, const at::Tensor &mean,
                                         const at::Tensor &inverse, const std::optional<at::Tensor> &weight,
                                         c10::SymInt n, c10::SymInt channels, c10::SymInt positions, int64_t groups,
                                         std::array<bool, 3> want)
{
    const int64_t batch = n.expect_int(), count = channels.expect_int(), each = groups ? count / groups : 0;
    costs(12 * x.numel());
    const at::Tensor from = plain(wide(x)), above = plain(wide(g)), gamma = given(weight);
    const at::Tensor &like = weight && weight->defined() ? *weight : x;
    torchlean_context *const context = context_of(x);
    Wanted gx(context, want[0], x, x.sizes()), gw(context, want[1], x, {count}), gb(context, want[2], x, {count});
    if (gx.place || gw.place || gb.place)
        check(torchlean_cuda_buffer_group_norm_stats_bwd(
            Buffer(context, from), Buffer(context, gamma), Buffer(context, plain(wide(mean))),
            Buffer(context, plain(wide(inverse))), Buffer(context, above), u32(batch), u32(groups), u32(each),
            u32(positions.expect_int()), 0, gx.place, gw.place, gb.place));
    return Three(gx.t.defined() ? in_format(typed_as(gx.t, x), x) : gx.t, typed_as(gw.t, like), typed_as(gb.t, like));
}

/* ---- root mean square ------------------------------------------------------------------------------------------------------- */

/* x·istd·weight of rows, from the definition: for gradients that will be differentiated. */
at::Tensor rms_composed(const at::Tensor &x, const at::Tensor &weight, double eps)
{
    const at::Tensor y = x.mul(x.mul(x).mean({-1}, true).add(eps).rsqrt());
    return weight.defined() ? y.mul(weight) : y;
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
    static at::Tensor forward(torch::autograd::AutogradContext *ctx, const at::Tensor &x,
                              const std::optional<at::Tensor> &weight, double eps)
    {
        const at::Tensor from = plain(x), gamma = given(weight);
        at::Tensor y = fresh(from, x.sizes()), inverse = vector(x, x.size(0));
        torchlean_context *const context = context_of(x);
        Buffer out(context, y), inverses(context, inverse);
        check(torchlean_cuda_buffer_rms_norm_stats(Buffer(context, from), Buffer(context, gamma), u32(x.size(0)),
                                                   u32(x.size(1)), eps, out.out(), inverses.out()));
        ctx->save_for_backward({x, weight.value_or(at::Tensor()), inverse});
        ctx->saved_data["eps"] = eps;
        return y;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext *ctx,
                                                   torch::autograd::variable_list above)
    {
        const auto saved = ctx->get_saved_variables();
        const at::Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2];
        const double eps = ctx->saved_data["eps"].toDouble();
        torch::autograd::variable_list found(3);
        if (!above[0].defined()) return found;
        const bool want_x = x.requires_grad(), want_weight = weight.defined() && weight.requires_grad();
        if (at::GradMode::is_enabled()) {
            const auto grads = differentiable({x, weight}, above, [&](const torch::autograd::variable_list &own) {
                return torch::autograd::variable_list{rms_composed(own[0], own[1], eps)};
            });
            std::copy(grads.begin(), grads.end(), found.begin());
            return found;
        }
        const at::Tensor from = plain(x), g = plain(above[0]), gamma = given(weight);
        torchlean_context *const context = context_of(x);
        Wanted gx(context, want_x, x, x.sizes()), gw(context, want_weight, x, {x.size(1)});
        if (gx.place || gw.place)
            check(torchlean_cuda_buffer_rms_norm_stats_bwd(Buffer(context, from), Buffer(context, gamma),
                                                           Buffer(context, inverse), Buffer(context, g), u32(x.size(0)),
                                                           u32(x.size(1)), eps, gx.place, gw.place));
        found[0] = gx.t, found[1] = gw.t;
        if (Block *const block = current()) block->add("rms_norm_backward", true, 10 * x.numel());
        return found;
    }
};

at::Tensor front_rms_norm(const at::Tensor &x, c10::SymIntArrayRef shape, const std::optional<at::Tensor> &weight,
                          std::optional<double> eps)
{
    if (!is_ours({x}) || x.scalar_type() == at::kDouble || !x.numel() || eps.value_or(0) < 0)
        return as_without<at::_ops::rms_norm>(x, shape, weight, eps);
    const at::IntArrayRef normalized = C10_AS_INTARRAYREF_SLOW(shape);
    TORCH_CHECK(!normalized.empty(), "Expected normalized_shape to be at least 1-dimensional, but got []");
    TORCH_CHECK(!weight || !weight->defined() || weight->sizes() == normalized,
                message("Expected weight to be of same shape as normalized_shape, but got weight of shape ",
                        weight->sizes(), " and normalized_shape = ", normalized));
    TORCH_CHECK((size_t)x.dim() >= normalized.size() && x.sizes().slice(x.dim() - normalized.size()) == normalized,
                message("Given normalized_shape=", normalized,
                        ", expected input with shape ending in it, but got input of size ", x.sizes()));
    const int64_t cols = c10::multiply_integers(normalized);
    std::optional<at::Tensor> scale;
    if (weight && weight->defined()) scale = weight->to(at::kFloat).reshape({cols});
    current()->add("rms_norm", true, 6 * x.numel());
    /* PyTorch's number where none is given, of narrow types, too */
    const at::Tensor y = RmsNorm::apply(x.to(at::kFloat).reshape({-1, cols}), scale,
                                        eps.value_or(std::numeric_limits<float>::epsilon()));
    return in_format(y.reshape(x.sizes()).to(x.scalar_type()), x);
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_MIXED(m, native_layer_norm, layer_norm);
    TLRT_MIXED(m, native_layer_norm_backward, layer_norm_backward);
    TLRT_MIXED(m, native_batch_norm, batch_norm);
    TLRT_MIXED(m, _native_batch_norm_legit, batch_norm_legit);
    TLRT_MIXED(m, _native_batch_norm_legit_no_stats, batch_norm_no_stats);
    TLRT_MIXED(m, native_batch_norm_backward, batch_norm_backward);
    TLRT_MIXED(m, native_group_norm, group_norm);
    TLRT_MIXED(m, native_group_norm_backward, group_norm_backward);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m)
{
    m.impl(TLRT_NAME(batch_norm), TORCH_FN(front_batch_norm));
    m.impl(TLRT_NAME(rms_norm), TORCH_FN(front_rms_norm));
}

} // namespace
} // namespace tlrt
