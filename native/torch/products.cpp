/* Products of matrices and vectors. */
#include "call.h"

#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/vdot_ops.h>
#include <torch/library.h>

#include "complex.h"
#include "front.h"
#include "sums.h"

namespace tlrt {
namespace {

/* A batch of matrices as the C library reads it: in one of both directions its elements lie side by side. */
struct Operand {
    at::Tensor memory;
    uint32_t size = 0, batch = 0, row = 0, column = 0;
};

/* `inner` is the axis that the product runs over. */
bool is_readable(const at::Tensor &t, int64_t inner)
{
    const bool dense = t.stride(1) == 1 || t.stride(2) == 1 || t.size(1) <= 1 || t.size(2) <= 1;
    return dense && (t.size(inner) <= 1 || t.stride(inner) != 0) && extent(t) <= INT64_C(0xffffffff) &&
           (uintptr_t)t.const_data_ptr() % 16 == 0;
}

Operand operand(const at::Tensor &given, int64_t inner)
{
    const at::Tensor t = is_readable(given, inner) ? given : given.clone(at::MemoryFormat::Contiguous);
    return {t, u32(extent(t)), u32(t.stride(0)), u32(t.stride(1)), u32(t.stride(2))};
}

/* A·B of batches of matrices, (batch, m, n) and (batch, n, p), and a bias for each column or an undefined tensor. */
at::Tensor product(const at::Tensor &a, const at::Tensor &b, const at::Tensor &bias)
{
    const int64_t batch = a.size(0), m = a.size(1), n = a.size(2), p = b.size(2);
    TORCH_CHECK(b.size(0) == batch && b.size(1) == n,
                message("batches of matrices of ", a.sizes(), " and ", b.sizes(), " have no product"));
    costs(2 * batch * m * n * p);
    at::Tensor y = fresh(a, {batch, m, p});
    const Operand left = operand(a, 2), right = operand(b, 1);
    const at::Tensor plus = bias.defined() ? plain(bias) : bias;
    torchlean_context *const context = context_of(a);
    Buffer out(context, y), added(context, plus);
    check(torchlean_cuda_buffer_bmm_strided(Buffer(context, left.memory, left.size),
                                            Buffer(context, right.memory, right.size), added, left.size, right.size,
                                            u32(batch), u32(m), u32(p), u32(n), left.batch, left.row, left.column,
                                            right.batch, right.row, right.column, out.out()));
    return y;
}

void check_matrices(const at::Tensor &a, const at::Tensor &b)
{
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0),
                message("mat1 and mat2 shapes cannot be multiplied (", a.sizes(), " and ", b.sizes(), ")"));
}

std::optional<at::Tensor> mm(const at::Tensor &a, const at::Tensor &b)
{
    check_matrices(a, b);
    return product(a.unsqueeze(0), b.unsqueeze(0), {}).squeeze(0);
}

std::optional<at::Tensor> bmm(const at::Tensor &a, const at::Tensor &b)
{
    TORCH_CHECK(a.dim() == 3 && b.dim() == 3, "batch1 must be a 3D tensor, and batch2");
    return product(a, b, {});
}

std::optional<at::Tensor> addmm(const at::Tensor &x, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                                const at::Scalar &alpha)
{
    check_matrices(a, b);
    if (beta.toDouble() == 1 && alpha.toDouble() == 1 && x.dim() == 1 && x.size(0) == b.size(1))
        return product(a.unsqueeze(0), b.unsqueeze(0), x).squeeze(0);
    return scaled_sum(x, beta, *tlrt::mm(a, b), alpha);
}

std::optional<at::Tensor> baddbmm(const at::Tensor &x, const at::Tensor &a, const at::Tensor &b, const at::Scalar &beta,
                                  const at::Scalar &alpha)
{
    return scaled_sum(x, beta, *tlrt::bmm(a, b), alpha);
}

std::optional<at::Tensor> mv(const at::Tensor &a, const at::Tensor &x)
{
    return tlrt::mm(a, x.unsqueeze(1))->squeeze(1);
}

std::optional<at::Tensor> addmv(const at::Tensor &x, const at::Tensor &a, const at::Tensor &y, const at::Scalar &beta,
                                const at::Scalar &alpha)
{
    return scaled_sum(x, beta, *tlrt::mv(a, y), alpha);
}

std::optional<at::Tensor> dot(const at::Tensor &x, const at::Tensor &y)
{
    return tlrt::mm(x.unsqueeze(0), y.unsqueeze(1))->reshape({});
}

/* Of one matrix, whatever the axes and strides of the input: PyTorch rounds once more before it adds the bias where the input has
 * gaps, and a batch of one sample seldom has. */
at::Tensor linear(const at::Tensor &x, const at::Tensor &w, const std::optional<at::Tensor> &bias)
{
    using Op = at::_ops::linear;
    if (!bias || !bias->defined() || !is_ours({x, w, *bias}) || x.dim() == 2 || x.dim() == 0 || w.dim() != 2 ||
        x.size(-1) != w.size(1))
        return as_without<Op>(x, w, bias);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = w.size(0);
    const int64_t rows = c10::multiply_integers(x.sizes().slice(0, (size_t)x.dim() - 1));
    return as_without<Op>(x.reshape({rows, w.size(1)}), w, bias).view(sizes);
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    TLRT_COMPLEX(m, mm, mm, pairs::mm);
    TLRT_COMPLEX(m, bmm, bmm, pairs::bmm);
    TLRT_COMPLEX(m, addmm, addmm, pairs::addmm);
    TLRT_IN_PLACE(m, addmm_, addmm);
    TLRT_KERNEL(m, baddbmm, baddbmm);
    TLRT_IN_PLACE(m, baddbmm_, baddbmm);
    TLRT_KERNEL(m, mv, mv);
    TLRT_KERNEL(m, addmv, addmv);
    TLRT_IN_PLACE(m, addmv_, addmv);
    TLRT_KERNEL(m, dot, dot);
    TLRT_KERNEL(m, vdot, dot);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) { m.impl(TLRT_NAME(linear), TORCH_FN(linear)); }

} // namespace
} // namespace tlrt
