/* Random numbers and dropout: the same on every device.
 *
 * Each draw has a key, and element i of it is a function of the key and i alone. The key is 64 bits of PyTorch's generator on the
 * CPU, on a GPU too, so that torch.manual_seed, saved states and checkpointing mean what they do elsewhere. A CUDA generator that
 * is given has the keys of one on the CPU with its seed, in the order of its offsets. */
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "call.h"
#include "front.h"

#include <mutex>
#include <unordered_map>

namespace tlrt {
namespace {

/* The number-th key of a generator on the CPU that has the seed. The generators that were asked last are kept where they are. */
uint64_t key_of_seed(uint64_t seed, uint64_t number)
{
    struct Kept {
        at::Generator generator;
        uint64_t next = 0;
    };
    static std::mutex lock;
    static std::unordered_map<uint64_t, Kept> kept;
    const std::lock_guard<std::mutex> guard(lock);
    if (kept.size() >= 64 && !kept.count(seed)) kept.clear();
    Kept &of = kept[seed];
    if (!of.generator.defined() || of.next > number) of = {at::detail::createCPUGenerator(seed), 0};
    auto *const engine = at::check_generator<at::CPUGeneratorImpl>(of.generator);
    for (; of.next < number; of.next++)
        engine->random64();
    of.next++;
    return engine->random64();
}

uint64_t next_key(const std::optional<at::Generator> &given)
{
    at::Generator generator = given && given->defined() ? *given : at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> guard(generator.mutex());
    if (generator.device().is_cpu()) return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
    const uint64_t offset = generator.get_offset();
    generator.set_offset(offset + 4);
    return key_of_seed(generator.current_seed(), offset / 4);
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

/* Draws that are no whole numbers fill no integers. */
void check_real(const char *op, const at::Tensor &x)
{
    TORCH_CHECK(at::isFloatingType(x.scalar_type()), message(op, ": got ", x.scalar_type(), ", expected a real type"));
}

std::optional<at::Tensor> uniform(const at::Tensor &x, double from, double to, std::optional<at::Generator> generator)
{
    check_real("uniform_", x);
    TORCH_CHECK(from <= to,
                message("uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to));
    const at::Tensor u = drawn<torchlean_cuda_buffer_rand_uniform>(x, next_key(generator));
    return from == 0 && to == 1 ? u : u.mul(to - from).add(from);
}
std::optional<at::Tensor> normal(const at::Tensor &x, double mean, double std, std::optional<at::Generator> generator)
{
    check_real("normal_", x);
    TORCH_CHECK(std >= 0, message("normal expects std >= 0.0, but found std ", std));
    return drawn<torchlean_cuda_buffer_rand_normal>(x, next_key(generator), mean, std);
}
std::optional<at::Tensor> bernoulli(const at::Tensor &x, double p, std::optional<at::Generator> generator)
{
    TORCH_CHECK(p >= 0 && p <= 1, message("bernoulli_ expects p to be in [0, 1], but got p=", p));
    return drawn<torchlean_cuda_buffer_bernoulli_mask>(x, next_key(generator), p);
}
std::optional<at::Tensor> bernoulli_of(const at::Tensor &x, const at::Tensor &p, std::optional<at::Generator> generator)
{
    if (p.device().is_cpu() && p.numel()) { /* of NaN both ends are NaN */
        const auto [low, high] = at::aminmax(p);
        TORCH_CHECK(low.item<double>() >= 0 && high.item<double>() <= 1,
                    "bernoulli expects all probabilities to be in [0, 1]");
    }
    return drawn<torchlean_cuda_buffer_rand_uniform>(x, next_key(generator)).lt(p.to(x.device())).to(at::kFloat);
}
/* -ln(1 - u), never 0 though u may be, in float16 neither; u is below 1. */
at::Tensor exponential_of(const at::Tensor &like, const std::optional<at::Generator> &generator)
{
    const at::Tensor u = drawn<torchlean_cuda_buffer_rand_uniform>(like, next_key(generator));
    return u.neg().log1p().neg().clamp_min(std::ldexp(1.0, -24));
}
std::optional<at::Tensor> exponential(const at::Tensor &x, double rate, std::optional<at::Generator> generator)
{
    check_real("exponential_", x);
    TORCH_CHECK(rate > 0, message("exponential_ expects lambda > 0.0, but found lambda=", rate));
    return exponential_of(x, generator).div(rate);
}

std::optional<at::Tensor> log_normal(const at::Tensor &x, double mean, double std,
                                     std::optional<at::Generator> generator)
{
    TORCH_CHECK(std > 0, message("log_normal_ expects std > 0.0, but found std=", std));
    return normal(x, mean, std, generator)->exp();
}
std::optional<at::Tensor> cauchy(const at::Tensor &x, double median, double width,
                                 std::optional<at::Generator> generator)
{
    check_real("cauchy_", x);
    TORCH_CHECK(width > 0, message("cauchy_ expects sigma > 0.0, but found sigma=", width));
    const at::Tensor u = drawn<torchlean_cuda_buffer_rand_uniform>(x, next_key(generator));
    return u.sub(0.5).mul(3.14159265358979323846).tan().mul(width).add(median);
}
/* The number of trials up to the first that succeeds. */
std::optional<at::Tensor> geometric(const at::Tensor &x, double p, std::optional<at::Generator> generator)
{
    TORCH_CHECK(p > 0 && p < 1, message("geometric_ expects p to be in (0, 1), but got p=", p));
    const at::Tensor u = drawn<torchlean_cuda_buffer_rand_uniform>(x, next_key(generator));
    return u.neg().log1p().div(at::full({}, 1 - p, u.options()).log()).ceil().clamp_min(1);
}
at::Tensor scaled(const at::Tensor &z, const at::Tensor &mean, const at::Tensor &std)
{
    TORCH_CHECK(!std.device().is_cpu() || !std.numel() || std.min().item<double>() >= 0,
                "normal expects all elements of std >= 0.0");
    return z.mul(std).add(mean);
}
std::optional<at::Tensor> normal_about(const at::Tensor &mean, double std, std::optional<at::Generator> generator)
{
    TORCH_CHECK(std >= 0, message("normal expects std >= 0.0, but found std ", std));
    return normal(mean, 0, 1, generator)->mul(std).add(mean);
}
std::optional<at::Tensor> normal_as_wide_as(double mean, const at::Tensor &std, std::optional<at::Generator> generator)
{
    return scaled(*normal(std, 0, 1, generator), at::full({}, mean, std.options()), std);
}
std::optional<at::Tensor> normal_of(const at::Tensor &mean, const at::Tensor &std,
                                    std::optional<at::Generator> generator)
{
    const at::Tensor like = at::empty(at::infer_size(mean.sizes(), std.sizes()), mean.options());
    return scaled(*normal(like, 0, 1, generator), mean, std);
}

/* The largest finite number of a type. */
double greatest(at::ScalarType type)
{
    switch (type) {
    case at::kHalf: return std::numeric_limits<at::Half>::max();
    case at::kBFloat16: return std::numeric_limits<at::BFloat16>::max();
    case at::kFloat: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
    }
}

/* A complex number has two parts, of which each has half of the variance. A uniform number that is rounded up to the end of its
 * interval becomes the beginning, as on a GPU of PyTorch's. */
template <class Op, auto F>
at::Tensor &of_parts(c10::DispatchKeySet keys, at::Tensor &x, double first, double second,
                     std::optional<at::Generator> generator)
{
    constexpr bool is_normal = std::is_same_v<Op, at::_ops::normal_>;
    if (current() && is_plain(x) && x.scalar_type() == at::kComplexFloat) {
        at::Tensor parts = at::view_as_real(x);
        Op::call(parts, first, is_normal ? second * std::sqrt(0.5) : second, generator);
        return x;
    }
    const double most = greatest(x.scalar_type());
    TORCH_CHECK(
        is_normal || !current() || (first >= -most && second <= most && second - first <= most),
        message("uniform_ expects a range of ", x.scalar_type(), ", but found from=", first, " and to=", second));
    Kernel<Op, typename Op::schema>::template in_place<F>(keys, x, first, second, generator);
    const bool is_exact = x.scalar_type() == at::kFloat && first == 0 && second == 1;
    if (!is_normal && current() && is_plain(x) && first < second && !is_exact) {
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
        x.masked_fill_(x.ge(second), first);
    }
    return x;
}

/* ---- integers -------------------------------------------------------------------------------------------------------------- */

uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* 64 bits for each of n elements, by the rule of the library's generator: mix(mix(key) + i). */
at::Tensor words(int64_t n, const at::TensorOptions &options, uint64_t key)
{
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY); /* of integers nothing depends on the device */
    const auto shifted = [](const at::Tensor &x, int64_t bits) {
        return x.__rshift__(bits).bitwise_and((int64_t)(UINT64_MAX >> bits));
    };
    at::Tensor z =
        at::arange(n, options.dtype(at::kLong).requires_grad(false)).add((int64_t)(mixed(key) + 0x9e3779b97f4a7c15));
    z = z.bitwise_xor(shifted(z, 30)).mul((int64_t)0xbf58476d1ce4e5b9);
    z = z.bitwise_xor(shifted(z, 27)).mul((int64_t)0x94d049bb133111eb);
    return z.bitwise_xor(shifted(z, 31));
}

using Keys = c10::DispatchKeySet;

/* The largest number that a type holds, and all smaller ones. */
uint64_t largest(at::ScalarType type)
{
    switch (type) {
    case at::kDouble: return UINT64_C(1) << 53;
    case at::kFloat: return 1 << 24;
    case at::kHalf: return 1 << 11;
    case at::kBFloat16: return 1 << 8;
    case at::kBool: return 1;
    default: return UINT64_MAX >> (64 - 8 * c10::elementSize(type) + at::isSignedType(type));
    }
}

/* Whether a number lies in the range of a type. */
bool holds(at::ScalarType type, int64_t n)
{
    if (at::isFloatingType(type)) return std::abs((double)n) <= greatest(type);
    return n < 0 ? at::isSignedType(type) && n >= -1 - (int64_t)largest(type) : (uint64_t)n <= largest(type);
}

/* Integers from `from` to from + span; of a span of 2^63 or more all bits count. */
at::Tensor &fill(at::Tensor &x, int64_t from, uint64_t span, const std::optional<at::Generator> &generator)
{
    at::Tensor w = words(x.numel(), x.options(), next_key(generator));
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    if (span < (uint64_t)INT64_MAX)
        w = w.bitwise_and(INT64_MAX).remainder((int64_t)span + 1);
    else if (span == (uint64_t)INT64_MAX)
        w = w.bitwise_and(INT64_MAX);
    current()->add("aten::random_", true, x.numel());
    return x.copy_(w.add(from).view(x.sizes()));
}

bool is_drawn(const at::Tensor &x) { return current() && is_plain(x) && !x.is_complex(); }

at::Tensor &random_(Keys keys, at::Tensor &x, std::optional<at::Generator> generator)
{
    if (!is_drawn(x)) return at::_ops::random_::redispatch(after(keys), x, generator);
    return fill(x, 0, largest(x.scalar_type()), generator);
}
at::Tensor &random_from(Keys keys, at::Tensor &x, int64_t from, std::optional<int64_t> to,
                        std::optional<at::Generator> generator)
{
    if (!is_drawn(x)) return at::_ops::random__from::redispatch(after(keys), x, from, to, generator);
    TORCH_CHECK(!to || from < *to,
                message("random_ expects 'from' to be less than 'to', but got from=", from, " >= to=", to.value_or(0)));
    const uint64_t end = to ? (uint64_t)*to - 1 : largest(x.scalar_type());
    const bool some = to || from < 0 || (uint64_t)from + at::isFloatingType(x.scalar_type()) <= end;
    TORCH_CHECK(some && holds(x.scalar_type(), from) && holds(x.scalar_type(), to ? *to - 1 : 0),
                message("from and to - 1 are out of bounds for ", x.scalar_type()));
    return fill(x, from, end - (uint64_t)from, generator);
}
at::Tensor &random_to(Keys keys, at::Tensor &x, int64_t to, std::optional<at::Generator> generator)
{
    if (!is_drawn(x)) return at::_ops::random__to::redispatch(after(keys), x, to, generator);
    return random_from(keys, x, 0, to, generator);
}

at::Tensor &randperm(Keys keys, c10::SymInt n, std::optional<at::Generator> generator, at::Tensor &out)
{
    if (!is_drawn(out)) return at::_ops::randperm_generator_out::redispatch(after(keys), n, generator, out);
    const int64_t count = n.expect_int();
    TORCH_CHECK(count >= 0, message("n must be non-negative, got", count));
    TORCH_CHECK(!count || (uint64_t)count - 1 <= largest(out.scalar_type()),
                message("n is too large for ", out.scalar_type(), ", got ", count));
    current()->add("aten::randperm", true, count);
    const at::Tensor drawn_words = words(count, out.options(), next_key(generator));
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    return out.resize_({count}).copy_(std::get<1>(at::sort(drawn_words, /*stable=*/true, 0, false)));
}

/* Without replacement the largest of p divided by exponential numbers; with it where a number falls among the running sums. */
std::optional<at::Tensor> multinomial(const at::Tensor &p, c10::SymInt samples, bool replacement,
                                      std::optional<at::Generator> generator)
{
    const int64_t count = samples.expect_int(), n = p.dim() ? p.size(-1) : 0;
    TORCH_CHECK(p.dim() == 1 || p.dim() == 2, "prob_dist must be 1 or 2 dim");
    TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
    TORCH_CHECK(replacement || count <= n, "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
    if (!p.numel()) return std::nullopt;
    const at::Tensor valid = p.isfinite().logical_and(p.ge(0)).all().logical_and(p.gt(0).any(-1).all());
    if (p.device().is_cpu()) {
        TORCH_CHECK(valid.item<bool>(), "probability tensor contains either `inf`, `nan` or element < 0, or sums to 0");
    } else {
        at::_assert_async(valid);
    }
    if (!replacement || count == 1) return std::get<1>(p.div(exponential_of(p, generator)).topk(count));
    std::vector<int64_t> sizes = p.sizes().vec();
    sizes.back() = count;
    const at::Tensor sums = p.cumsum(-1),
                     u = drawn<torchlean_cuda_buffer_rand_uniform>(at::empty(sizes, p.options()), next_key(generator));
    return at::searchsorted(sums, u.mul(sums.narrow(-1, n - 1, 1)), false, /*right=*/true).clamp_max(n - 1);
}

/* ---- dropout --------------------------------------------------------------------------------------------------------------- */

/* 1/(1 - p) where an element is kept, and 0 where it is not. */
at::Tensor noise(const at::Tensor &like, double p)
{
    TORCH_CHECK(p >= 0 && p <= 1, message("dropout probability has to be between 0 and 1, but got ", p));
    if (p == 1) return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
    return drawn<torchlean_cuda_buffer_bernoulli_mask>(like, next_key(std::nullopt), 1 - p).div_(1 - p);
}

at::Tensor dropped(const at::Tensor &x, const at::Tensor &mask)
{
    return x.scalar_type() == at::kFloat ? x.mul(mask) : x.to(at::kFloat).mul(mask).to(x.scalar_type());
}

bool is_dropped(const at::Tensor &x, double p, bool train)
{
    return train && p != 0 && is_ours({x}) && x.numel() && x.scalar_type() != at::kDouble;
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

std::optional<std::tuple<at::Tensor, at::Tensor>> native_dropout(const at::Tensor &x, double p,
                                                                 std::optional<bool> train)
{
    if (!train.value_or(true) || p == 0)
        return std::tuple(x.clone(), at::ones(x.sizes(), x.options().dtype(at::kBool)));
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
    m.impl("uniform_", TORCH_FN((of_parts<at::_ops::uniform_, &uniform>)));
    m.impl("normal_", TORCH_FN((of_parts<at::_ops::normal_, &normal>)));
    IN_PLACE(bernoulli__float, bernoulli);
    IN_PLACE(bernoulli__Tensor, bernoulli_of);
    IN_PLACE(exponential_, exponential);
    IN_PLACE(log_normal_, log_normal);
    IN_PLACE(geometric_, geometric);
    IN_PLACE(cauchy_, cauchy);
    TLRT_KERNEL(m, normal_Tensor_float, normal_about);
    TLRT_KERNEL(m, normal_float_Tensor, normal_as_wide_as);
    TLRT_KERNEL(m, normal_Tensor_Tensor, normal_of);
    TLRT_KERNEL(m, multinomial, multinomial);
    m.impl("random_", TORCH_FN(random_));
    m.impl("random_.from", TORCH_FN(random_from));
    m.impl("random_.to", TORCH_FN(random_to));
    m.impl("randperm.generator_out", TORCH_FN(randperm));
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
