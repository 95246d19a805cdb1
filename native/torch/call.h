/* How a kernel of PyTorch's dispatcher calls an entry point of the C library: contexts on PyTorch's stream, tensors as buffers,
 * results as new tensors, and what becomes of types that the library does not compute in. */
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <optional>
#include <tuple>

#include "block.h"
#include "message.h"
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

/* The number of elements from the first to the last one that a tensor reaches, gaps included. */
inline int64_t extent(const at::Tensor &t)
{
    int64_t last = t.numel() ? 1 : 0;
    for (int64_t axis = 0; axis < t.dim() && last; axis++)
        last += (t.size(axis) - 1) * t.stride(axis);
    return last;
}

/* A length or dimension of the C library. */
inline uint32_t u32(int64_t n)
{
    TORCH_CHECK(n >= 0 && n <= INT64_C(0xffffffff),
                message("tlrt.torch: got a length of ", n, ", expected less than 2^32"));
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
    /* Of n numbers. */
    Buffer(torchlean_context *context, float *numbers, uint32_t n)
    {
        check(torchlean_cuda_buffer_wrap(context, numbers, n, false, &handle));
    }
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
    bool real = false;                               /* there is one */
    bool foreign = false;                            /* one is a tracer's, or on another device */
    bool mixed = false;                              /* they are of several types */
    bool other = false;                              /* one is neither float32 nor narrower */
    bool doubles = false;                            /* the operator computes in float64 */
    bool full = false;                               /* the result is wanted in float32 */
    bool pairs = false;                              /* one is complex64, and the others are that or float32 */
    at::ScalarType type = at::ScalarType::Undefined; /* that of one, of all where they are not mixed */

    template <class... A> explicit Types(const A &...arguments)
    {
        (see(arguments), ...);
        pairs = pairs && !unpaired;
        doubles = real && !complex &&
                  (wanted == at::kDouble ||
                   (wanted == at::ScalarType::Undefined && !full && (axes || (type == at::kDouble && !mixed))));
        other = other || (type == at::kDouble && !mixed) ||
                (wanted != at::kFloat && wanted != type && (at::isFloatingType(wanted) || at::isComplexType(wanted)));
    }

  private:
    at::ScalarType wanted = at::ScalarType::Undefined; /* the type that operands are converted to first */
    bool unpaired = false;                             /* one is neither complex64 nor float32 */
    bool complex = false;                              /* one is complex, or a number is */
    bool axes = false;                                 /* a float64 has axes */

    void see(const at::Tensor &t)
    {
        if (!t.defined()) return;
        foreign = foreign || !is_plain(t);
        const at::ScalarType own = t.scalar_type();
        if (t.unsafeGetTensorImpl()->is_wrapped_number() || !(at::isFloatingType(own) || t.is_complex())) return;
        mixed = mixed || (real && own != type);
        real = true;
        type = own;
        pairs = pairs || own == at::kComplexFloat;
        complex = complex || t.is_complex();
        axes = axes || (own == at::kDouble && t.dim() > 0);
        unpaired = unpaired || (own != at::kComplexFloat && own != at::kFloat);
        /* beside float32 a float64 without axes counts as a number */
        other = other || !(own == at::kFloat || own == at::kHalf || own == at::kBFloat16 ||
                           (own == at::kDouble && t.dim() == 0));
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
    void see(const at::ScalarType &given) { full = full || given == at::kFloat; }
    void see(const std::optional<at::ScalarType> &given)
    {
        if (!given) return;
        see(*given);
        wanted = *given;
    }
    void see(const at::Scalar &number) { complex = complex || number.isComplex(); }
    template <class T> void see(const T &) {}
};

/* Floating-point numbers as float32. */
inline at::Tensor wide(const at::Tensor &t)
{
    return !t.defined() || !t.is_floating_point() || t.scalar_type() == at::kFloat ||
                   t.unsafeGetTensorImpl()->is_wrapped_number()
               ? t
               : t.to(at::kFloat);
}
inline std::optional<at::Tensor> wide(const std::optional<at::Tensor> &t)
{
    return t ? std::optional<at::Tensor>(wide(*t)) : t;
}
template <class T> T wide(T value) { return value; }

inline at::Tensor narrow(const at::Tensor &t, at::ScalarType type)
{
    return t.defined() && type != at::kFloat && t.scalar_type() == at::kFloat ? t.to(type) : t;
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

inline at::ScalarType type_of(const at::Tensor &t) { return t.scalar_type(); }
template <class T, class... U> at::ScalarType type_of(const std::tuple<T, U...> &all)
{
    return std::get<0>(all).scalar_type();
}

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
 * where it does not compute this case. float16 and bfloat16 are widened, and results rounded once to the type. In float64 a kernel
 * at DOUBLE computes, or F where it is composed of operators on numbers. */
template <class Op, class Schema> struct Kernel;
template <class Op, class R, class... A> struct Kernel<Op, R(A...)> {
    static constexpr bool draws = (std::is_same_v<A, std::optional<at::Generator>> || ...);

    template <Found<R> (*F)(A...), bool COMPOSED = false> static R run(c10::DispatchKeySet keys, A... arguments)
    {
        const Types types(arguments...);
        Block *const block = types.foreign ? nullptr : current();
        if (block && types.mixed && !draws && !types.full) return promoted<F, COMPOSED>(block, keys, arguments...);
        if (block && types.real && !types.other) {
            if (Found<R> found = counted(block, [&] { return F(wide(arguments)...); }))
                return types.full || types.mixed ? std::move(*found) : narrow(*found, types.type);
        }
        if (block && types.doubles) {
            if (Found<R> found = doubled<F, COMPOSED>(block, arguments...)) return std::move(*found);
        }
        if constexpr (std::is_same_v<R, at::Tensor>) {
            if (block && !types.real) { /* of integers: whether numbers come of them PyTorch knows */
                R found = original(keys, arguments...);
                if (!is_plain(found) || !at::isFloatingType(found.scalar_type())) return found;
                auto held = std::make_tuple(real(arguments, found.scalar_type())...);
                return std::apply([&](auto &...a) { return run<F, COMPOSED>(keys, a...); }, held);
            }
        }
        return left(types.real ? block : nullptr, keys, arguments...);
    }

    /* The same, and C of operands of complex64. */
    template <Found<R> (*F)(A...), Found<R> (*C)(A...)> static R run_complex(c10::DispatchKeySet keys, A... arguments)
    {
        const Types types(arguments...);
        Block *const block = types.pairs && !types.foreign ? current() : nullptr;
        if (block) {
            if (Found<R> found = counted(block, [&] { return C(arguments...); })) return std::move(*found);
        }
        return run<F>(keys, arguments...);
    }

    /* The same, of an F that takes float16 and bfloat16 itself. */
    template <Found<R> (*F)(A...)> static R run_mixed(c10::DispatchKeySet keys, A... arguments)
    {
        const Types types(arguments...);
        Block *const block = types.real && !types.foreign ? current() : nullptr;
        if (block && !types.other) {
            if (Found<R> found = counted(block, [&] { return F(arguments...); })) return std::move(*found);
        }
        if (block && types.doubles && !types.mixed) {
            if (Found<R> found = doubled<F>(block, arguments...)) return std::move(*found);
        }
        return left(block, keys, arguments...);
    }

    /* An operator that writes into its first operand: F makes a new tensor, or gives the operand when it has written to it. */
    template <auto F, bool COMPOSED = false> static R in_place(c10::DispatchKeySet keys, A... arguments)
    {
        static_assert(std::is_same_v<R, at::Tensor &>);
        const Types types(arguments...);
        at::Tensor &target = std::get<0>(std::tie(arguments...));
        Block *const block = types.foreign ? nullptr : current();
        if (!block || !(types.real || draws)) /* draws fill integers and masks, too */
            return original(keys, arguments...);
        if (!draws && (types.mixed || !target.is_floating_point())) /* PyTorch says what it does not take */
            on_copy(keys, arguments...);
        if (!types.other) {
            if (Found<R> found = counted(block, [&] { return F(wide(arguments)...); }))
                return found->is_same(target) ? target : target.copy_(*found);
        }
        if (types.doubles) {
            if (Found<R> found = doubled<F, COMPOSED>(block, arguments...))
                return found->is_same(target) ? target : target.copy_(*found);
        }
        return left(block, keys, arguments...);
    }

  private:
    /* The operator as PyTorch computes it, with all that it is made of. */
    static R original(c10::DispatchKeySet keys, A... arguments)
    {
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
        return Op::redispatch(after(keys), std::forward<A>(arguments)...);
    }
    template <class T, class... B> static void on_copy(c10::DispatchKeySet keys, T &target, B &&...others)
    {
        at::Tensor copy = target.clone();
        original(keys, copy, std::forward<B>(others)...);
    }

    /* What `compute` gives, noted with its cost where it computes the case. Autocast has been asked before. */
    template <class C> static auto counted(Block *block, C compute)
    {
        const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
        const int64_t before = take_cost();
        auto found = compute();
        const int64_t cost = take_cost(before);
        if (found) block->add(Op::name, true, cost >= 0 ? cost : elements(*found));
        return found;
    }

    /* In float64, or nothing where no kernel does. */
    template <auto F, bool COMPOSED = false> static Found<R> doubled(Block *block, A... arguments)
    {
        if constexpr (COMPOSED) {
            return counted(block, [&] { return F(real(arguments, at::kDouble)...); });
        } else {
            static const bool known = c10::Dispatcher::singleton()
                                          .findSchemaOrThrow(Op::name, Op::overload_name)
                                          .hasKernelForDispatchKey(DOUBLE);
            if (!known) return std::nullopt;
            return counted(block, [&]() -> Found<R> {
                Found<R> found = Op::redispatch(c10::DispatchKeySet(DOUBLE), arguments...);
                costs(work_of(Op::name, {operand(arguments)...}, elements(*found)));
                return found;
            });
        }
    }

    /* Operands of several types: whether the operator takes them, and what type comes of them, PyTorch knows. */
    template <Found<R> (*F)(A...), bool COMPOSED>
    static R promoted(Block *block, c10::DispatchKeySet keys, A... arguments)
    {
        R theirs = original(keys, arguments...);
        const at::ScalarType type = type_of(theirs);
        if (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) {
            if (Found<R> found = counted(block, [&] { return F(wide(arguments)...); })) return narrow(*found, type);
        }
        if (type == at::kDouble) {
            if (Found<R> found = doubled<F, COMPOSED>(block, arguments...)) return std::move(*found);
        }
        block->leave(Op::name, work_of(Op::name, {operand(arguments)...}, elements(theirs)));
        return theirs;
    }

    static R left(Block *block, c10::DispatchKeySet keys, A... arguments)
    {
        if (!block) return original(keys, arguments...);
        if (block->strict && std::is_reference_v<R>) block->leave(Op::name, 0); /* before it writes */
        const std::vector<c10::IValue> operands{operand(arguments)...};
        R found = original(keys, arguments...);
        if (elements(found)) block->leave(Op::name, work_of(Op::name, operands, elements(found)));
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
#define TLRT_COMPOSED(m, op, function) \
    (m).impl(TLRT_NAME(op), TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::run<&function, true>)))
#define TLRT_MIXED(m, op, function) \
    (m).impl(TLRT_NAME(op), TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::run_mixed<&function>)))
#define TLRT_COMPLEX(m, op, function, of_pairs) \
    (m).impl(TLRT_NAME(op), \
             TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::run_complex<&function, &of_pairs>)))
#define TLRT_IN_PLACE(m, op, function) \
    (m).impl(TLRT_NAME(op), TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::in_place<&function>)))
#define TLRT_COMPOSED_IN_PLACE(m, op, function) \
    (m).impl(TLRT_NAME(op), TORCH_FN((tlrt::Kernel<at::_ops::op, at::_ops::op::schema>::in_place<&function, true>)))

} // namespace tlrt
