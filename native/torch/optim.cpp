/* Fused optimisers and gradient scaling, made of operators that round once each: what PyTorch's kernels fuse in one pass. */
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "call.h"

namespace tlrt {
namespace {

/* Runs `update` in the block, or the operator as PyTorch has it where the block does not compute it. */
template <class Op, class F, class... A>
void updated(c10::DispatchKeySet keys, at::TensorList params, at::TensorList grads, F update, A &&...arguments)
{
    const Types types(params, grads);
    Block *const block = types.real && !types.foreign ? current() : nullptr;
    int64_t elements = 0;
    for (const at::Tensor &p : params)
        elements += p.numel();
    if (block && !types.other) {
        update();
        block->add(Op::name, true, elements);
        return;
    }
    if (block) block->leave(Op::name, elements);
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    Op::redispatch(after(keys), std::forward<A>(arguments)...);
}

/* A number of float64 on the device of `like`: of the host, or of a tensor. */
at::Tensor number(double value, const at::Tensor &like)
{
    return at::full({}, value, like.options().dtype(at::kDouble));
}
at::Tensor number(const at::Tensor &value, const at::Tensor &like)
{
    return value.device() == like.device() ? value.to(at::kDouble) : number(value.item().toDouble(), like);
}

at::Tensor single(const at::Tensor &t) { return t.to(at::kFloat); }

/* What an update reads of a parameter's gradient, and how it writes. */
struct Update {
    bool maximize;
    at::Tensor scale, skip; /* or undefined */

    Update(bool maximize, const std::optional<at::Tensor> &scale, const std::optional<at::Tensor> &found)
        : maximize(maximize), scale(scale.value_or(at::Tensor())),
          skip(found && found->defined() ? found->ne(0) : at::Tensor())
    {}
    /* The gradient without its scale, which is written back unless the step is skipped. */
    at::Tensor gradient(const at::Tensor &grad) const
    {
        at::Tensor g = single(grad);
        if (scale.defined()) {
            g = g.div(scale.to(g.device()));
            write(grad, g);
        }
        return maximize ? g.neg() : g;
    }
    void write(const at::Tensor &target, const at::Tensor &value) const
    {
        target.copy_(skip.defined() ? at::where(skip.to(target.device()), single(target), value) : value);
    }
};

/* 1 - beta^step of each step, in float64 of a value that float32 holds: accurate where beta^step is near 1. */
at::Tensor correction(const at::Tensor &steps, double beta)
{
    return single(steps.to(at::kDouble).mul(std::log(beta))).expm1().neg().to(at::kDouble);
}

at::Tensor all_steps(at::TensorList steps, const at::Tensor &like) { return at::stack(steps).to(like.device()); }

/* torch.optim.Adam and AdamW: one addition after the other, as the loop over parameters has it. */
void adam(bool decoupled, at::TensorList params, at::TensorList grads, at::TensorList means, at::TensorList squares,
          at::TensorList largest, at::TensorList steps, const at::Tensor &rate, double beta1, double beta2,
          double decay, double eps, bool amsgrad, const Update &update)
{
    const at::Tensor step = all_steps(steps, params[0]);
    const at::Tensor sizes = single(rate.div(correction(step, beta1)));
    const at::Tensor roots = single(correction(step, beta2)).sqrt();
    const at::Tensor shrink = single(at::rsub(rate.mul(decay), 1));
    for (size_t i = 0; i < params.size(); i++) {
        at::Tensor g = update.gradient(grads[i]), p = single(params[i]);
        if (decay != 0) {
            if (decoupled)
                p = p.mul(shrink);
            else
                g = g.add(p, decay);
        }
        const at::Tensor m = single(means[i]).lerp(g, 1 - beta1);
        const at::Tensor v = single(squares[i]).mul(beta2).addcmul(g, g, 1 - beta2);
        update.write(means[i], m);
        update.write(squares[i], v);
        at::Tensor size = v;
        if (amsgrad) {
            size = single(largest[i]).maximum(v);
            update.write(largest[i], size);
        }
        const at::Tensor divisor = size.sqrt().div(roots[(int64_t)i]).add(eps);
        update.write(params[i], p.sub(m.mul(sizes[(int64_t)i]).div(divisor)));
    }
}

void sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, double decay, double momentum,
         const at::Tensor &rate, double dampening, bool nesterov, bool first, const Update &update)
{
    const at::Tensor step = single(rate);
    for (size_t i = 0; i < params.size(); i++) {
        at::Tensor g = update.gradient(grads[i]);
        const at::Tensor p = single(params[i]);
        if (decay != 0) g = g.add(p, decay);
        if (momentum != 0) {
            const at::Tensor buffer = first ? g : single(buffers[i]).mul(momentum).add(g, 1 - dampening);
            update.write(buffers[i], buffer);
            g = nesterov ? g.add(buffer, momentum) : buffer;
        }
        update.write(params[i], p.sub(g.mul(step)));
    }
}

void adagrad(at::TensorList params, at::TensorList grads, at::TensorList sums, at::TensorList steps,
             const at::Tensor &rate, double rate_decay, double decay, double eps, const Update &update)
{
    const at::Tensor step = all_steps(steps, params[0]).to(at::kDouble);
    const at::Tensor sizes = single(rate.div(step.sub(1).mul(rate_decay).add(1)));
    for (size_t i = 0; i < params.size(); i++) {
        at::Tensor g = update.gradient(grads[i]);
        const at::Tensor p = single(params[i]);
        if (decay != 0) g = g.add(p, decay);
        const at::Tensor sum = single(sums[i]).addcmul(g, g, 1);
        update.write(sums[i], sum);
        update.write(params[i], p.sub(g.mul(sizes[(int64_t)i]).div(sum.sqrt().add(eps))));
    }
}

template <class Op, bool Decoupled, class Rate>
void fused_adam(c10::DispatchKeySet keys, at::TensorList p, at::TensorList g, at::TensorList m, at::TensorList v,
                at::TensorList x, at::TensorList steps, Rate rate, double beta1, double beta2, double decay, double eps,
                bool amsgrad, bool maximize, const std::optional<at::Tensor> &scale,
                const std::optional<at::Tensor> &found)
{
    updated<Op>(
        keys, p, g,
        [&] {
            adam(Decoupled, p, g, m, v, x, steps, number(rate, p[0]), beta1, beta2, decay, eps, amsgrad,
                 Update(maximize, scale, found));
        },
        p, g, m, v, x, steps, rate, beta1, beta2, decay, eps, amsgrad, maximize, scale, found);
}
template <class Op, class Rate>
void fused_sgd(c10::DispatchKeySet keys, at::TensorList p, at::TensorList g, at::TensorList buffers, double decay,
               double momentum, Rate rate, double dampening, bool nesterov, bool maximize, bool first,
               const std::optional<at::Tensor> &scale, const std::optional<at::Tensor> &found)
{
    updated<Op>(
        keys, p, g,
        [&] {
            sgd(p, g, buffers, decay, momentum, number(rate, p[0]), dampening, nesterov, first,
                Update(maximize, scale, found));
        },
        p, g, buffers, decay, momentum, rate, dampening, nesterov, maximize, first, scale, found);
}
template <class Op, class Rate>
void fused_adagrad(c10::DispatchKeySet keys, at::TensorList p, at::TensorList g, at::TensorList sums,
                   at::TensorList steps, Rate rate, double rate_decay, double decay, double eps, bool maximize,
                   const std::optional<at::Tensor> &scale, const std::optional<at::Tensor> &found)
{
    updated<Op>(
        keys, p, g,
        [&] { adagrad(p, g, sums, steps, number(rate, p[0]), rate_decay, decay, eps, Update(maximize, scale, found)); },
        p, g, sums, steps, rate, rate_decay, decay, eps, maximize, scale, found);
}

/* ---- gradient scaling --------------------------------------------------------------------------------------------------- */

void unscale(c10::DispatchKeySet keys, at::TensorList grads, at::Tensor &found, const at::Tensor &inverse)
{
    updated<at::_ops::_amp_foreach_non_finite_check_and_unscale_>(
        keys, grads, grads,
        [&] {
            for (const at::Tensor &g : grads) {
                const at::Tensor wide = single(g);
                found.copy_(found.maximum(wide.isfinite().all().logical_not().to(at::kFloat)));
                g.copy_(wide.mul(inverse.to(g.device())));
            }
        },
        grads, found, inverse);
}

/* The scale grows after `interval` steps without an overflow, unless it would overflow itself, and shrinks after one with it. */
std::optional<at::Tensor> next_scale(const at::Tensor &scale, const at::Tensor &tracker, const at::Tensor &found,
                                     double growth, double backoff, int64_t interval)
{
    const at::Tensor overflow = found.ne(0), count = tracker.add(1), due = count.eq(interval);
    const at::Tensor wide = scale.to(at::kDouble), larger = single(wide.mul(growth));
    const at::Tensor kept = at::where(due.logical_and(larger.isfinite()), larger, scale);
    const at::Tensor next = at::where(overflow, single(wide.mul(backoff)), kept);
    tracker.copy_(count.masked_fill(overflow.logical_or(due), 0));
    return next;
}
at::Tensor &update_scale(c10::DispatchKeySet keys, at::Tensor &scale, at::Tensor &tracker, const at::Tensor &found,
                         double growth, double backoff, int64_t interval)
{
    return Kernel<at::_ops::_amp_update_scale_, at::_ops::_amp_update_scale_::schema>::in_place<&next_scale>(
        keys, scale, tracker, found, growth, backoff, interval);
}

#define FUSED(op, ...) m.impl(TLRT_NAME(op), TORCH_FN((__VA_ARGS__)))

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    FUSED(_fused_adam_, fused_adam<at::_ops::_fused_adam_, false, double>);
    FUSED(_fused_adam__tensor_lr, fused_adam<at::_ops::_fused_adam__tensor_lr, false, const at::Tensor &>);
    FUSED(_fused_adamw_, fused_adam<at::_ops::_fused_adamw_, true, double>);
    FUSED(_fused_adamw__tensor_lr, fused_adam<at::_ops::_fused_adamw__tensor_lr, true, const at::Tensor &>);
    FUSED(_fused_sgd_, fused_sgd<at::_ops::_fused_sgd_, double>);
    FUSED(_fused_sgd__tensor_lr, fused_sgd<at::_ops::_fused_sgd__tensor_lr, const at::Tensor &>);
    FUSED(_fused_adagrad_, fused_adagrad<at::_ops::_fused_adagrad_, double>);
    m.impl(TLRT_NAME(_amp_foreach_non_finite_check_and_unscale_), TORCH_FN(unscale));
    m.impl(TLRT_NAME(_amp_update_scale_), TORCH_FN(update_scale));
}

} // namespace
} // namespace tlrt
