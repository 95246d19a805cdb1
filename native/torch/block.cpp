/* Blocks, and the operators that have no kernel here. */
#include "block.h"
#include "message.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <unordered_set>

namespace tlrt {
namespace {

/* PyTorch hands information of this kind on to the threads that work for a thread, and uses it in its own tests alone. */
c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO_2; }

/* What the block does with an operator that has no kernel here. */
enum class Class {
    COMPOSITE, /* PyTorch makes it of other operators, which come here on their own */
    MOVES,     /* a view, or one that computes no numbers */
    LEFT,
};

bool has(const c10::OperatorHandle &op, c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); }

/* Operators that PyTorch has for every device and that compute by loops of their own. */
bool is_opaque(const std::string &name)
{
    static const std::unordered_set<std::string> opaque{"aten::linalg_lstsq",
                                                        "aten::mkldnn_convolution",
                                                        "aten::_nnpack_spatial_convolution",
                                                        "aten::_philox_normal",
                                                        "aten::_philox_uniform",
                                                        "aten::_grid_sampler_2d_cpu_fallback",
                                                        "aten::_grid_sampler_2d_cpu_fallback_backward"};
    return opaque.count(name) != 0;
}

bool is_view(const c10::OperatorHandle &op)
{
    const auto &returns = op.schema().returns();
    return !returns.empty() && std::all_of(returns.begin(), returns.end(),
                                           [](const auto &r) { return r.alias_info() && !r.alias_info()->isWrite(); });
}

/* Whether any of its results is a tensor. */
bool makes_tensors(const c10::OperatorHandle &op)
{
    const auto &returns = op.schema().returns();
    return std::any_of(returns.begin(), returns.end(),
                       [](const auto &r) { return r.type()->isSubtypeOf(*c10::TensorType::get()); });
}

Class classify(const c10::OperatorHandle &op)
{
    using Key = c10::DispatchKey;
    const bool native = has(op, Key::CPU) || has(op, Key::CUDA) || is_opaque(op.schema().name());
    if (!native && (has(op, Key::CompositeImplicitAutograd) || has(op, Key::CompositeExplicitAutograd) ||
                    has(op, Key::CompositeExplicitAutogradNonFunctional)))
        return Class::COMPOSITE;
    bool tensors = false;
    for (const auto &a : op.schema().arguments())
        tensors = tensors || a.type()->isSubtypeOf(*c10::TensorType::get()) ||
                  a.type()->isSubtypeOf(*c10::ListType::ofTensors());
    const auto ns = op.schema().name();
    return is_view(op) || ns.rfind("profiler::", 0) == 0 || (!tensors && op.schema().returns().empty()) ? Class::MOVES
                                                                                                        : Class::LEFT;
}

bool is_real(const at::Tensor &t) { return t.defined() && (at::isFloatingType(t.scalar_type()) || t.is_complex()); }

/* Adds up the elements of tensors of real or complex numbers; *foreign: one of them is a tracer's. */
void count(const c10::IValue &v, int64_t *elements, bool *found, bool *foreign)
{
    if (v.isTensor()) {
        const at::Tensor &t = v.toTensor();
        if (!t.defined()) return;
        *foreign = *foreign || !is_plain(t);
        if (is_real(t)) {
            *found = true;
            *elements += t.is_sparse() || at::sparse_csr::is_sparse_compressed(t) ? t._nnz() : t.numel();
        }
    } else if (v.isList()) {
        for (const c10::IValue &item : v.toListRef())
            count(item, elements, found, foreign);
    }
}

/* Every operator without a kernel at KEY. */
void without_kernel(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack)
{
    static std::mutex lock;
    static std::unordered_map<c10::OperatorName, Class> classes;
    Class kind;
    {
        const std::lock_guard<std::mutex> guard(lock);
        const auto known = classes.find(op.operator_name());
        kind = known != classes.end() ? known->second : classes.emplace(op.operator_name(), classify(op)).first->second;
    }
    const auto below = after(keys);
    Block *const block = current();
    if (kind != Class::LEFT || !block) {
        op.redispatchBoxed(below, stack);
        return;
    }
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    int64_t operands = 0, results = 0;
    bool found = false, foreign = false;
    for (const auto &v : arguments)
        count(v, &operands, &found, &foreign);
    const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
    if (!foreign && block->strict && ((found && operands) || random)) /* of nothing nothing is computed */
        block->leave(op.schema().name().c_str(), operands);
    const std::vector<c10::IValue> kept(arguments.begin(), arguments.end());
    {
        const c10::impl::ExcludeDispatchKeyGuard guard(KEY); /* what the operator is made of is part of it */
        op.redispatchBoxed(below, stack);
    }
    for (const auto &v : torch::jit::last(*stack, op.schema().returns().size()))
        count(v, &results, &found, &foreign);
    if (!foreign && ((found && operands + results) || random))
        block->leave(op.schema().name().c_str(), work_of(op.schema().name(), kept, results ? results : operands));
}

/* An operator on sparse or nested tensors, whose keys come before the block's. It may have a route at DOUBLE, which excludes that
 * key where it leaves the operator to PyTorch. Some of PyTorch's kernels call operators on the memory of their numbers, which come
 * here; the others compute by loops of their own. */
struct Beside : c10::OperatorKernel {
    c10::SafeKernelFunction kernel;
    const bool routed;
    Beside(c10::SafeKernelFunction kernel, bool routed) : kernel(std::move(kernel)), routed(routed) {}
    void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack)
    {
        Block *const block = current();
        int64_t operands = 0, before = block ? block->calls() : 0;
        bool found = false, foreign = false;
        for (const auto &v : torch::jit::last(*stack, op.schema().arguments().size()))
            count(v, &operands, &found, &foreign);
        if (block && routed && found && !foreign && !c10::impl::tls_is_dispatch_key_excluded(DOUBLE)) {
            op.redispatchBoxed(c10::DispatchKeySet(DOUBLE), stack);
            return;
        }
        kernel.callBoxed(op, keys, stack);
        if (block && found && !foreign && (routed || block->calls() == before))
            block->leave(op.schema().name().c_str(), operands);
    }
};

/* An operator that stays PyTorch's. Where PyTorch chooses the back end in an operator of its own it asks for all keys of the
 * thread, so the kernel is called after all. */
void passed_on(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack)
{
    op.redispatchBoxed(after(keys), stack);
}

/* Such an operator without operands: the choice of its back end passes by the block's key. */
void opaque_window(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack)
{
    const int64_t length = torch::jit::last(*stack, op.schema().arguments().size())[0].toInt();
    if (Block *const block = current()) block->leave(op.schema().name().c_str(), length);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, FRONT), stack);
}

torch::Library &operators()
{
    static torch::Library library(torch::Library::IMPL, "aten", KEY, __FILE__, __LINE__);
    return library;
}

std::string full_name(const c10::OperatorName &op)
{
    return op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
}

/* A name without "aten::" and a final "_". */
std::string without_end(const std::string &name)
{
    const std::string bare = name.substr(name.rfind("::") + 2);
    return !bare.empty() && bare.back() == '_' ? bare.substr(0, bare.size() - 1) : bare;
}

/* The operators of which PyTorch's references in Python are made: their composite kernels count as kernels at KEY, and on a tensor
 * without memory would call what called them. */
void pass_primitives(const c10::OperatorHandle &op)
{
    static torch::Library library(torch::Library::IMPL, "prims", KEY, __FILE__, __LINE__);
    const c10::OperatorName &name = op.operator_name();
    if (!op.hasKernelForDispatchKey(KEY)) library.impl(full_name(name).c_str(), torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, CustomRNGKeyId, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&without_kernel>()); }
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m)
{
    for (const char *op : {"kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"})
        m.impl(op, torch::CppFunction::makeFromBoxedFunction<&opaque_window>());
}

const char *bare(const char *name)
{
    const char *const after = strstr(name, "::");
    return after ? after + 2 : name;
}

using Above = std::vector<std::pair<c10::DebugInfoKind, std::shared_ptr<c10::DebugInfoBase>>>;

/* Takes off the information that others, such as a profiler, have put above the thread's innermost block: each may end before or
 * after a block, and PyTorch ends only what is at the top. */
Above lift()
{
    using Kind = c10::DebugInfoKind;
    using Info = c10::ThreadLocalDebugInfo;
    const Kind others[] = {Kind::PROFILER_STATE,    Kind::PRODUCER_INFO,    Kind::MOBILE_RUNTIME_INFO,
                           Kind::INFERENCE_CONTEXT, Kind::PARAM_COMMS_INFO, Kind::TEST_INFO};
    Above above;
    for (bool found = true; found;) {
        found = false;
        for (const Kind other : others) {
            if (!Info::get(other)) continue;
            try {
                above.emplace_back(other, Info::_pop(other));
                found = true;
            } catch (const c10::Error &) { /* it is not at the top */
            }
        }
    }
    return above;
}

void put_back(const Above &above)
{
    for (auto it = above.rbegin(); it != above.rend(); ++it)
        c10::ThreadLocalDebugInfo::_push(it->first, it->second);
}

} // namespace

void Block::add(const char *op, bool here, int64_t work)
{
    const std::lock_guard<std::mutex> guard(lock);
    Count &c = counts[{bare(op), here}];
    c.calls++;
    c.work += work;
}

void Block::leave(const char *op, int64_t work)
{
    TORCH_CHECK_NOT_IMPLEMENTED(!strict, message("tlrt.torch.reproducible: operator: got aten.", bare(op),
                                                 ", expected one with a route; see docs/torch.md"));
    add(op, false, work);
}

int64_t Block::calls()
{
    const std::lock_guard<std::mutex> guard(lock);
    int64_t sum = 0;
    for (const auto &entry : counts)
        sum += entry.second.calls;
    return sum;
}

std::string Block::text()
{
    const std::lock_guard<std::mutex> guard(lock);
    std::string out;
    for (const auto &[key, c] : counts)
        out += key.first + (key.second ? "\there\t" : "\tleft\t") + std::to_string(c.calls) + '\t' +
               std::to_string(c.work) + '\n';
    return out;
}

/* Elements of the results; multiplications and additions of recurrent layers and of products, where elements say too little. */
int64_t work_of(const std::string &name, c10::ArrayRef<c10::IValue> arguments, int64_t results)
{
    const auto holds = [&](const char *word) { return name.find(word) != std::string::npos; };
    if (holds("rnn") || holds("lstm") || holds("gru")) {
        int64_t weights = 0, rows = 1;
        bool first = true;
        for (const auto &v : arguments) {
            int64_t n = 0;
            bool found = false, foreign = false;
            count(v, &n, &found, &foreign);
            if (first && v.isTensor() && v.toTensor().dim() == 3) rows = v.toTensor().numel() / v.toTensor().size(2);
            if (!first) weights += n;
            first = false;
        }
        return 2 * rows * weights;
    }
    if (holds("mm") || holds("matmul") || holds("linear") || holds("addmv") || holds("dot") || holds("conv") ||
        holds("attention")) {
        for (const auto &v : arguments) /* the operand with the inner length last */
            if (v.isTensor() && v.toTensor().defined() && v.toTensor().dim() > 1)
                return 2 * results *
                       (holds("conv") && arguments.size() > 1 && arguments[1].isTensor() &&
                                arguments[1].toTensor().dim() > 1
                            ? arguments[1].toTensor().numel() / arguments[1].toTensor().size(0)
                            : v.toTensor().size(-1));
    }
    return results;
}

Block *current() { return static_cast<Block *>(c10::ThreadLocalDebugInfo::get(kind())); }

} // namespace tlrt

/* ---- what Python calls -------------------------------------------------------------------------------------------- */

#define EXPORT extern "C" __attribute__((visibility("default")))

/* Blocks of all threads. */
static std::atomic<int64_t> blocks{0};

/* The calling thread enters a block; blocks nest. The number is that of tlrt_torch_text, until tlrt_torch_forget. */
EXPORT void *tlrt_torch_enter(int strict)
{
    auto block = std::make_shared<tlrt::Block>(strict != 0);
    const tlrt::Above above = tlrt::lift();
    c10::ThreadLocalDebugInfo::_push(tlrt::kind(), block);
    tlrt::put_back(above);
    c10::impl::tls_set_dispatch_key_included(tlrt::KEY, true);
    c10::impl::tls_set_dispatch_key_included(tlrt::FRONT, true);
    blocks++;
    return new std::shared_ptr<tlrt::Block>(block);
}

/* The calling thread leaves its innermost block. One that was entered in a hook of an autograd thread may have ended with it. */
EXPORT void tlrt_torch_leave(void)
{
    const tlrt::Above above = tlrt::lift();
    if (tlrt::current()) c10::ThreadLocalDebugInfo::_pop(tlrt::kind());
    tlrt::put_back(above);
    const bool inside = tlrt::current() != nullptr;
    c10::impl::tls_set_dispatch_key_included(tlrt::KEY, inside);
    c10::impl::tls_set_dispatch_key_included(tlrt::FRONT, inside);
    if (--blocks == 0) tlrt::keep_own_threads();
}

/* Writes the report of a block, zero-terminated and cut to capacity, and returns its length. */
EXPORT uint64_t tlrt_torch_text(void *block, char *text, uint64_t capacity)
{
    const std::string found = (*static_cast<std::shared_ptr<tlrt::Block> *>(block))->text();
    if (capacity) snprintf(text, capacity, "%s", found.c_str());
    return found.size();
}

EXPORT void tlrt_torch_forget(void *block) { delete static_cast<std::shared_ptr<tlrt::Block> *>(block); }

/* Notes in the calling thread's block what Python computed or left; 1 where a strict block refuses it. */
EXPORT int tlrt_torch_note(const char *op, int here, int64_t work)
{
    tlrt::Block *const block = tlrt::current();
    if (!block) return 0;
    if (!here && block->strict) return 1;
    block->add(op, here != 0, work);
    return 0;
}

/* Operators on sparse and nested tensors are noted as PyTorch's, but for those that are determined, by their names without "aten::"
 * and a final "_", and those with a route, by their full names. */
EXPORT void tlrt_torch_beside(const char *const *determined, uint64_t count, const char *const *routes,
                              uint64_t route_count)
{
    struct Silent : c10::WarningHandler {
        void process(const c10::Warning &) override {} /* that a kernel is replaced */
    } silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    const std::unordered_set<std::string> left_out(determined, determined + count),
        routed(routes, routes + route_count);
    using Key = c10::DispatchKey;
    for (const Key key : {Key::SparseCPU, Key::SparseCUDA, Key::SparseCsrCPU, Key::SparseCsrCUDA, Key::NestedTensorCPU,
                          Key::NestedTensorCUDA}) {
        auto *const library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__); /* for good */
        const bool nested = key == Key::NestedTensorCPU || key == Key::NestedTensorCUDA;
        for (const auto &name : c10::Dispatcher::singleton().getAllOpNames()) {
            const auto op = c10::Dispatcher::singleton().findOp(name);
            const std::string full = tlrt::full_name(name);
            const bool here = routed.count(full) && !nested;
            if (!op || name.name.rfind("aten::", 0) != 0 || !op->hasKernelForDispatchKey(key) || tlrt::is_view(*op) ||
                !tlrt::makes_tensors(*op) || (!here && left_out.count(tlrt::without_end(name.name))))
                continue;
            library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<tlrt::Beside>(
                                            op->getComputedKernelForDispatchKey(key), here)));
        }
    }
}

/* Operators, by their names without "aten::" and a final "_", whose results do not depend on the device: they stay PyTorch's
 * without passing by here. */
EXPORT void tlrt_torch_determined(const char *const *names, uint64_t count)
{
    std::unordered_set<std::string> wanted(names, names + count);
    for (const auto &op : c10::Dispatcher::singleton().getAllOpNames()) {
        if (op.name.rfind("prims::", 0) == 0)
            if (const auto primitive = c10::Dispatcher::singleton().findOp(op)) tlrt::pass_primitives(*primitive);
        if (op.name.rfind("aten::", 0) != 0) continue;
        if (!wanted.count(op.name.substr(6)) && !wanted.count(tlrt::without_end(op.name))) continue;
        const auto handle = c10::Dispatcher::singleton().findOp(op);
        if (!handle || handle->hasKernelForDispatchKey(tlrt::KEY)) continue;
        tlrt::operators().impl(tlrt::full_name(op).c_str(),
                               handle->hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)
                                   ? torch::CppFunction::makeFromBoxedFunction<&tlrt::passed_on>()
                                   : torch::CppFunction::makeFallthrough());
    }
}
