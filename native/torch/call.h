/* How a kernel of PyTorch's dispatcher calls an entry point of the C library: contexts on PyTorch's stream, tensors as buffers,
 * results as new tensors, and what becomes of types that the library does not compute in. */
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <optional>
#include <tuple>

#include "block.h"
#include "torchlean_cuda.h"
#include "torchlean_cuda_ops.h"

namespace tlrt {

/* ---- contexts and buffers -------------------------------------------------------------------------------------------- */

/* The calling thread's reproducible context of a tensor's device; on a GPU its work goes to PyTorch's current stream. */
torchlean_context *context_of(const at::Tensor &t);

/* Throws PyTorch's error for a status of the library that is not OK. */
void check(int32_t status);

/* The tensor itself, or a copy where it is not row-major or not aligned to 16 bytes. */
at::Tensor plain(const at::Tensor &t);

/* A length or dimension of the C library. */
inline uint32_t u32(int64_t n)
{
    TORCH_CHECK(n >= 0 && n <= INT64_C(0xffffffff), "tlrt.torch: got a length of ", n, ", expected less than 2^32");
    return (uint32_t)n;
}

/* A handle to the memory of a tensor that plain() gave, or that is dense in some order of its axes, until the end of the scope. */
enum Content { AS_FLOATS, AS_INDEX }; /* integers of 32 bits are indices */
class Buffer {
  public:
    /* None of an undefined tensor. */
    Buffer(torchlean_context *context, const at::Tensor &t, Content content = AS_FLOATS)
        : Buffer(context, t, t.defined() ? u32(t.numel()) : 0, content)
    {}
    /* Of the first n elements of a tensor's memory. */
    Buffer(torchlean_context *context, const at::Tensor &t, uint32_t n, Content content = AS_FLOATS);
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer()
    {
        if (handle) torchlean_cuda_buffer_release(handle);
    }
    operator torchlean_buffer *() const { return handle; }
    /* The place of an output. */
    torchlean_buffer **out() { return &handle; }

  private:
    torchlean_buffer *handle = nullptr;
};

/* Uninitialised memory on the device of `like`, row-major. */
inline at::Tensor fresh(const at::Tensor &like, at::IntArrayRef sizes) { return at::empty(sizes, like.options()); }

/* ---- types ------------------------------------------------------------------------------------------------------------ */

/* What the floating-point operands of a call have in common. */
struct Types {
    bool real = false;    /* there is one */
    bool foreign = false; /* one is a tracer's, or on another device */
    bool other = false;   /* one is neither float32 nor narrower */
    bool full = false;    /* one with axes is float32: beside it narrower ones give float32 */
    at::ScalarType narrow = at::ScalarType::Undefined;

    void see(const at::Tensor &t)
    {
        if (!t.defined()) return;
        foreign = foreign || !is_plain(t);
        const at::ScalarType type = t.scalar_type();
        if (t.unsafeGetTensorImpl()->is_wrapped_number() || !(at::isFloatingType(type) || t.is_complex())) return;
        real = true;
        if (type == at::kHalf || type == at::kBFloat16) {
            other = other || (narrow != at::ScalarType::Undefined && narrow != type);
            narrow = type;
        } else if (type != at::kFloat) {
            other = true;
        } else {
            full = full || t.dim() > 0;
        }
    }
    void see(const std::optional<at::Tensor> &t)
    {
        if (t) see(*t);
    }
    void see(at::TensorList list)
    {
        for (const at::Tensor &t : list)
            see(t);
    }
    void see(const std::optional<at::ScalarType> &type)
    {
        if (type && *type != at::kFloat) other = other || at::isFloatingType(*type) || at::isComplexType(*type);
    }
    template <class T> void see(const T &) {}
};

inline at::Tensor wide(const at::Tensor &t)
{
    return t.defined() && (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16) ? t.to(at::kFloat) : t;
}
inline std::optional<at::Tensor> wide(const std::optional<at::Tensor> &t)
{
    return t ? std::optional<at::Tensor>(wide(*t)) : t;
}
template <class T> T wide(T value) { return value; }

inline at::Tensor narrow(const at::Tensor &t, at::ScalarType type)
{
    return t.defined() && t.scalar_type() == at::kFloat ? t.to(type) : t;
}
template <class... T> std::tuple<T...> narrow(const std::tuple<T...> &all, at::ScalarType type)
{
    return std::apply([&](const auto &...t) { return std::tuple<T...>(narrow(t, type)...); }, all);
}

/* Integers as the numbers that a function makes of them. */
inline at::Tensor real(const at::Tensor &t, at::ScalarType type) { return t.defined() ? t.to(type) : t; }
inline std::optional<at::Tensor> real(const std::optional<at::Tensor> &t, at::ScalarType type)
{
    return t ? std::optional<at::Tensor>(real(*t, type)) : t;
}
template <class T> T real(T value, at::ScalarType) { return value; }

/* ---- kernels ----------------------------------------------------------------------------------------------------------- */

/* Says what the running kernel costs, in floating-point operations; without it the elements of its results count. */
void costs(int64_t operations);
/* What was said since the last call of `take_cost`, or -1. */
int64_t take_cost(int64_t restore = -1);

inline int64_t elements(const at::Tensor &t) { return t.defined() ? t.numel() : 0; }
template <class... T> int64_t elements(const std::tuple<T...> &all)
{
    return std::apply([](const auto &...t) { return (elements(t) + ...); }, all);
}

template <class R> using Found = std::optional<std::decay_t<R>>;

/* The kernel at KEY of the operator Op that the function F computes: F gets float32 operands and gives the result, or nothing
 * where it does not compute this case. float16 and bfloat16 are widened, and results rounded once to the type. */
template <class Op, class Schema> struct Kernel;
template <class Op, class R, class... A> struct Kernel<Op, R(A...)> {
    template <Found<R> (*F)(A...)> static R run(c10::DispatchKeySet keys, A... arguments)
    {
        Types types;
        (types.see(arguments), ...);
        Block *const block = types.real && !types.foreign ? current() : nullptr;
        if (block && !types.other) {
            const int64_t before = take_cost();
            Found<R> found = types.narrow == at::ScalarType::Undefined ? F(arguments...) : widened<F>(arguments...);
            const int64_t cost = take_cost(before);
            if (found) {
                block->add(Op::name, true, cost >= 0 ? cost : elements(*found));
                return types.narrow == at::ScalarType::Undefined || types.full ? std::move(*found)
                                                                               : narrow(*found, types.narrow);
            }
        }
        if constexpr (std::is_same_v<R, at::Tensor>) {
            if (!types.real && !types.foreign &&
                current()) { /* of integers: whether numbers come of them PyTorch knows */
                R found = left(nullptr, keys, arguments...);
                if (!is_plain(found) || !at::isFloatingType(found.scalar_type())) return found;
                auto held = std::make_tuple(real(arguments, found.scalar_type())...);
                return std::apply([&](auto &...a) { return run<F>(keys, a...); }, held);
            }
        }
        return left(block, keys, arguments...);
    }

    /* The same, of an F that takes float16 and bfloat16 itself. */
    template <Found<R> (*F)(A...)> static R run_mixed(c10::DispatchKeySet keys, A... arguments)
    {
        Types types;
        (types.see(arguments), ...);
        Block *const block = types.real && !types.foreign ? current() : nullptr;
        if (block && !types.other) {
            const int64_t before = take_cost();
            Found<R> found = F(arguments...);
            const int64_t cost = take_cost(before);
            if (found) {
                block->add(Op::name, true, cost >= 0 ? cost : elements(*found));
                return std::move(*found);
            }
        }
        return left(block, keys, arguments...);
    }

    /* An operator that writes into its first operand: F is that of the one that makes a new tensor. */
    template <auto F> static R in_place(c10::DispatchKeySet keys, A... arguments)
    {
        static_assert(std::is_same_v<R, at::Tensor &>);
        Types types;
        (types.see(arguments), ...);
        constexpr bool draws = (std::is_same_v<A, std::optional<at::Generator>> || ...); /* integers and masks, too */
        Block *const block = (types.real || draws) && !types.foreign ? current() : nullptr;
        if (block && !types.other) {
            const int64_t before = take_cost();
            std::optional<at::Tensor> found = F(wide(arguments)...);
            const int64_t cost = take_cost(before);
            if (found) {
                block->add(Op::name, true, cost >= 0 ? cost : found->numel());
                return std::get<0>(std::tie(arguments...)).copy_(*found);
            }
        }
        return left(block, keys, arguments...);
    }

  private:
    template <Found<R> (*F)(A...)> static Found<R> widened(A... arguments)
    {
        auto held = std::make_tuple(wide(arguments)...);
        return std::apply([](auto &...a) { return F(a...); }, held);
    }
    static R left(Block *block, c10::DispatchKeySet keys, A... arguments)
    {
        if (block && block->strict) block->leave(Op::name, 0);
        std::vector<c10::IValue> operands;
        if (block) (operands.push_back(operand(arguments)), ...);
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
        R found = Op::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY),
                                 std::forward<A>(arguments)...);
        if (block) block->leave(Op::name, work_of(Op::name, operands, elements(found)));
        return found;
    }
    static c10::IValue operand(const at::Tensor &t) { return t; }
    template <class T> static c10::IValue operand(const T &) { return {}; }
};

/* m.impl of an operator of at::_ops with the function of the same arguments. */
#define TLRT_NAME(op) \
    (*at::_ops::op::overload_name ? std::string(at::_ops::op::name) + "." + at::_ops::op::overload_name \
                                  : std::string(at::_ops::op::name)) \
        .c_str()
#define TLRT_KERNEL(m, op, function) \
    (m).impl(TLRT_NAME(op), TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::run<&function>)))
#define TLRT_MIXED(m, op, function) \
    (m).impl(TLRT_NAME(op), TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::run_mixed<&function>)))
#define TLRT_IN_PLACE(m, op, function) \
    (m).impl(TLRT_NAME(op), TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::in_place<&function>)))

} // namespace tlrt
