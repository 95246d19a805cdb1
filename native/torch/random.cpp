/* Random numbers and dropout: the same on every device.
 *
 * Each draw has a key, and element i of it is a function of the key and i alone. The key is 64 bits of PyTorch's generator on the
 * CPU, on a GPU too, so that torch.manual_seed, saved states and checkpointing mean what they do elsewhere; of a CUDA generator
 * that is given, its seed and offset. */
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "call.h"
#include "front.h"

namespace tlrt {
namespace {

uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

uint64_t next_key(const std::optional<at::Generator> &given)
{
    at::Generator generator = given && given->defined() ? *given : at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> guard(generator.mutex());
    if (generator.device().is_cpu()) return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
    const uint64_t offset = generator.get_offset();
    generator.set_offset(offset + 4);
    return mixed(generator.current_seed()) + offset;
}

/* A tensor of the shape of `like`, in float32, that the entry point fills. */
template <auto Entry, class... V> at::Tensor drawn(const at::Tensor &like, V... values)
{
    at::Tensor y = at::empty(like.sizes(), like.options().dtype(at::kFloat));
    torchlean_context *const context = context_of(like);
    Buffer out(context, y);
    check(Entry(context, u32(y.numel()), values..., out.out()));
    return y;
}

std::optional<at::Tensor> uniform(const at::Tensor &x, double from, double to, std::optional<at::Generator> generator)
{
    const at::Tensor u = drawn<torchlean_cuda_buffer_rand_uniform>(x, next_key(generator));
    return from == 0 && to == 1 ? u : u.mul(to - from).add(from);
}
std::optional<at::Tensor> normal(const at::Tensor &x, double mean, double std, std::optional<at::Generator> generator)
{
    TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
    return drawn<torchlean_cuda_buffer_rand_normal>(x, next_key(generator), mean, std);
}
std::optional<at::Tensor> bernoulli(const at::Tensor &x, double p, std::optional<at::Generator> generator)
{
    TORCH_CHECK(p >= 0 && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
    return drawn<torchlean_cuda_buffer_bernoulli_mask>(x, next_key(generator), p);
}
std::optional<at::Tensor> bernoulli_of(const at::Tensor &x, const at::Tensor &p, std::optional<at::Generator> generator)
{
    return drawn<torchlean_cuda_buffer_rand_uniform>(x, next_key(generator)).lt(p.to(x.device())).to(at::kFloat);
}
/* -ln(1 - u)/rate: u is below 1. */
std::optional<at::Tensor> exponential(const at::Tensor &x, double rate, std::optional<at::Generator> generator)
{
    TORCH_CHECK(rate > 0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
    const at::Tensor u = drawn<torchlean_cuda_buffer_rand_uniform>(x, next_key(generator));
    return u.neg().log1p().neg().div(rate);
}

/* ---- dropout --------------------------------------------------------------------------------------------------------------- */

/* 1/(1 - p) where an element is kept, and 0 where it is not. */
at::Tensor noise(const at::Tensor &like, double p)
{
    TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
    if (p == 1) return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
    return drawn<torchlean_cuda_buffer_bernoulli_mask>(like, next_key(std::nullopt), 1 - p).div_(1 - p);
}

at::Tensor dropped(const at::Tensor &x, const at::Tensor &mask)
{
    return x.scalar_type() == at::kFloat ? x.mul(mask) : x.to(at::kFloat).mul(mask).to(x.scalar_type());
}

bool is_dropped(const at::Tensor &x, double p, bool train)
{
    return train && p != 0 && x.numel() && x.scalar_type() != at::kDouble && is_ours({x});
}

at::Tensor dropout(const at::Tensor &x, double p, bool train)
{
    if (!is_dropped(x, p, train)) return as_without<at::_ops::dropout>(x, p, train);
    current()->add("dropout", true, x.numel());
    return dropped(x, noise(x, p));
}
at::Tensor &dropout_(at::Tensor &x, double p, bool train)
{
    if (!is_dropped(x, p, train)) return as_without<at::_ops::dropout_>(x, p, train);
    current()->add("dropout", true, x.numel());
    return x.scalar_type() == at::kFloat ? x.mul_(noise(x, p)) : x.copy_(dropped(x, noise(x, p)));
}
/* Whole channels. */
at::Tensor feature_dropout(const at::Tensor &x, double p, bool train)
{
    if (!is_dropped(x, p, train) || x.dim() < 2) return as_without<at::_ops::feature_dropout>(x, p, train);
    std::vector<int64_t> sizes(x.dim(), 1);
    sizes[0] = x.size(0), sizes[1] = x.size(1);
    current()->add("feature_dropout", true, x.numel());
    return dropped(x, noise(at::empty(sizes, x.options()), p));
}

std::optional<std::tuple<at::Tensor, at::Tensor>> native_dropout(const at::Tensor &x, double p, std::optional<bool> train)
{
    if (!train.value_or(true) || p == 0) return std::tuple(x.clone(), at::ones(x.sizes(), x.options().dtype(at::kBool)));
    const at::Tensor mask = noise(x, p);
    return std::tuple(x.mul(mask), mask.ne(0));
}
std::optional<at::Tensor> native_dropout_backward(const at::Tensor &g, const at::Tensor &mask, double scale)
{
    return at::where(mask, g.mul(scale), at::zeros({}, g.options()));
}

#define IN_PLACE(op, function) TLRT_IN_PLACE(m, op, function)

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    IN_PLACE(uniform_, uniform);
    IN_PLACE(normal_, normal);
    IN_PLACE(bernoulli__float, bernoulli);
    IN_PLACE(bernoulli__Tensor, bernoulli_of);
    IN_PLACE(exponential_, exponential);
    TLRT_KERNEL(m, native_dropout, native_dropout);
    TLRT_KERNEL(m, native_dropout_backward, native_dropout_backward);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m)
{
    m.impl(TLRT_NAME(dropout), TORCH_FN(dropout));
    m.impl(TLRT_NAME(dropout_), TORCH_FN(dropout_));
    m.impl(TLRT_NAME(feature_dropout), TORCH_FN(feature_dropout));
}

} // namespace
} // namespace tlrt
