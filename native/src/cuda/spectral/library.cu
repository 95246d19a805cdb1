/* Real transforms by cuFFT, between kernels that keep the contract where cuFFT does not.
 *
 * cuFFT's inverse transform overwrites its input and is undefined for imaginary parts at bins 0 and n/2 other than 0, so it gets a
 * copy: with those set to 0, with the factors applied, and with both parts of a bin NaN where one is not finite, which then reaches
 * every element.
 *
 * Two real rows of an odd length are one complex row to cuFFT: a NaN in one then reaches the other, and a large row rounds a small one
 * away. Odd lengths are therefore transformed as complex rows of their own, which are copies, too.
 *
 * After a forward transform every element is part of the real part of bin 0 with factor 1; a row where that is not finite becomes NaN.
 * Sums on the way may overflow from 4·n·max|x| = 2^128 on: the CPU path looks at its whole result and transforms such a row again,
 * scaled; here a look would cost a pass over device memory as large as the transform's own. */
#include <cufft.h>

#include <mutex>

#include "cuda/spectral/spectral.cuh"
#include "cuda/spectral/plan_cache.cuh"
#include "formula/base.h"

namespace {

constexpr int THREADS = 256, UNROLL = 4;

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* `batch` transforms of n points, of real rows as in tl_real_rows; the spectra are dense, n/2 + 1 complex numbers each. Of odd lengths
 * complex rows in place. */
struct Shape {
    int64_t n, batch, row, number;
    bool inverse;

    bool as_complex() const { return n % 2 != 0; }
    /* Complex numbers of a row's copy. */
    int64_t numbers() const { return as_complex() ? n : n / 2 + 1; }
};

/* Plans are made and destroyed one at a time in the process: nothing is lost, as making one waits for the device anyway,
 * and it is how eight threads were tried on a busy GPU. */
std::mutex one_at_a_time;

struct LibraryPlan {
    Shape shape;
    cufftHandle handle;
    cudaStream_t stream; /* that the handle has now */
    size_t work;

    bool is(const Shape &s) const
    {
        return s.n == shape.n && s.batch == shape.batch && s.row == shape.row && s.number == shape.number &&
               s.inverse == shape.inverse;
    }
    void destroy()
    {
        std::lock_guard<std::mutex> alone(one_at_a_time);
        cufftDestroy(handle);
    }
    int32_t make(tl_context *ctx, const Shape &s)
    {
        cufftResult result = start(s);
        if (result == CUFFT_ALLOC_FAILED) {
            cudaGetLastError();
            TL_TRY(tl_pool_collect(ctx));
            result = start(s);
        }
        TL_CUFFT_TRY(ctx, result);
        shape = s;
        stream = nullptr; /* as a new handle has it */
        return TORCHLEAN_OK;
    }

  private:
    cufftResult start(const Shape &s)
    {
        std::lock_guard<std::mutex> alone(one_at_a_time);
        cufftResult result = cufftCreate(&handle);
        if (result != CUFFT_SUCCESS) return result;
        long long n = s.n, bins = s.n / 2 + 1;
        result = cufftSetAutoAllocation(handle, 0);
        if (result == CUFFT_SUCCESS && s.as_complex())
            result = cufftMakePlanMany64(handle, 1, &n, &n, 1, n, &n, 1, n, CUFFT_C2C, s.batch, &work);
        else if (result == CUFFT_SUCCESS && s.inverse)
            result = cufftMakePlanMany64(handle, 1, &n, &bins, 1, bins, &n, s.number, s.row, CUFFT_C2R, s.batch, &work);
        else if (result == CUFFT_SUCCESS)
            result = cufftMakePlanMany64(handle, 1, &n, &n, s.number, s.row, &bins, 1, bins, CUFFT_R2C, s.batch, &work);
        /* cuFFT fills the plan's tables by work of its own that is not ordered with our non-blocking stream: with several
         * threads on a busy device, transforms have read tables that were not there yet. */
        if (result == CUFFT_SUCCESS && cudaDeviceSynchronize() != cudaSuccess) result = CUFFT_EXEC_FAILED;
        if (result != CUFFT_SUCCESS) cufftDestroy(handle);
        return result;
    }
};

/* Forward: real -> spectra. Inverse, unscaled: spectra, which it overwrites and whose imaginary parts at bins 0 and n/2 are 0, ->
 * real. Of odd lengths the complex rows in place, and no real ones. On the context's stream; the work area comes from the pool. */
int32_t execute(tl_context *ctx, const Shape &shape, float *real, float2 *spectra)
{
    LibraryPlan *plan = nullptr;
    TL_TRY(tl_plan_cache<LibraryPlan>::find(ctx, TL_ATTACH_FFT, shape, &plan));
    if (plan->stream != tl_cuda_stream(ctx)) {
        TL_CUFFT_TRY(ctx, cufftSetStream(plan->handle, tl_cuda_stream(ctx)));
        plan->stream = tl_cuda_stream(ctx);
    }
    tl_scratch<char> work(ctx);
    TL_TRY(work.allocate((int64_t)plan->work));
    TL_CUFFT_TRY(ctx, cufftSetWorkArea(plan->handle, work));
    cufftComplex *const numbers = reinterpret_cast<cufftComplex *>(spectra);
    if (shape.as_complex())
        TL_CUFFT_TRY(ctx, cufftExecC2C(plan->handle, numbers, numbers, shape.inverse ? CUFFT_INVERSE : CUFFT_FORWARD));
    else if (shape.inverse)
        TL_CUFFT_TRY(ctx, cufftExecC2R(plan->handle, numbers, real));
    else
        TL_CUFFT_TRY(ctx, cufftExecR2C(plan->handle, real, numbers));
    return TORCHLEAN_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* In the three kernels below a thread owns UNROLL elements, THREADS apart: call(element) of those that exist. */
template <class Call> __device__ __forceinline__ void each_element(int64_t total, const Call &call)
{
    const int64_t first = (int64_t)blockIdx.x * (UNROLL * THREADS) + threadIdx.x;
    TL_UNROLL_FOR (int u = 0; u < UNROLL; u++)
        if (first + u * THREADS < total) call(first + u * THREADS);
}

/* Real rows to complex ones, or back. */
template <bool TO_COMPLEX>
__global__ void __launch_bounds__(THREADS)
    copy_real_kernel(const tl_real_rows real, float2 *__restrict__ rows, tl_fastdiv by_n, int64_t total)
{
    each_element(total, [&](int64_t e) {
        uint32_t t;
        const int64_t row = by_n.divmod((uint32_t)e, &t);
        float *const at = real.at + row * real.row + t * real.number;
        if (TO_COMPLEX)
            rows[e] = make_float2(*at, 0.0f);
        else
            *at = rows[e].x;
    });
}

/* The spectra that an inverse transform takes, by_numbers.divisor numbers a row: halves, or of odd lengths all bins, of which bin
 * n - k is the conjugate of bin k. Both parts of a bin become NaN where one is not finite. */
__global__ void __launch_bounds__(THREADS) weigh_in_kernel(const tl_half_spectra from, float2 *__restrict__ to,
                                                           tl_fastdiv by_numbers, int64_t n, int64_t total)
{
    const bool pairs = from.im == from.re + 1;
    each_element(total, [&](int64_t e) {
        uint32_t i;
        const int64_t row = by_numbers.divmod((uint32_t)e, &i);
        const bool upper = i > n / 2;
        const int64_t k = upper ? n - i : i, at = row * from.row + k * from.bin;
        float2 v = make_float2(0.0f, 0.0f);
        if (k < from.count)
            v = pairs ? *reinterpret_cast<const float2 *>(from.re + at) : make_float2(from.re[at], from.im[at]);
        const bool end = k == 0 || 2 * k == n;
        const float factor = end ? from.edge : from.inner, part = end ? 0.0f : upper ? -v.y : v.y;
        to[e] = tl_not_finite(v.x) || tl_not_finite(part) ? make_float2(TL_NAN, TL_NAN)
                                                          : make_float2(v.x * factor, part * factor);
    });
}

/* Bins of transformed rows, which begin `apart` numbers apart, weighted; a row whose bin 0 is not finite becomes NaN. */
__global__ void __launch_bounds__(THREADS)
    weigh_out_kernel(const float2 *__restrict__ from, const tl_half_spectra to, tl_fastdiv by_count, int64_t apart,
                     int64_t n, int64_t total)
{
    const bool pairs = to.im == to.re + 1;
    each_element(total, [&](int64_t e) {
        uint32_t k;
        const int64_t row = by_count.divmod((uint32_t)e, &k), at = row * to.row + k * to.bin;
        const float2 v = from[row * apart + k];
        const bool end = k == 0 || 2 * (int64_t)k == n;
        const float factor = end ? to.edge : to.inner;
        const float2 made = tl_not_finite(from[row * apart].x) ? make_float2(TL_NAN, TL_NAN)
                                                               : make_float2(v.x * factor, end ? 0.0f : v.y * factor);
        if (pairs)
            *reinterpret_cast<float2 *>(to.re + at) = made;
        else
            to.re[at] = made.x, to.im[at] = made.y;
    });
}

/* A thread owns a row after the forward transform: idle imaginary parts 0. A warp writes its rows that are not finite: NaN. */
__global__ void __launch_bounds__(THREADS) finish_kernel(float2 *spectra, int64_t rows, int64_t bins)
{
    tl_wait_for_earlier();
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float2 *X = spectra + row * bins;
    const bool bad = row < rows && tl_not_finite(X[0].x);
    if (row < rows && !bad) {
        X[0].y = 0.0f;
        X[bins - 1].y = 0.0f;
    }
    for (unsigned left = __ballot_sync(0xffffffffu, bad); left; left &= left - 1) {
        X = spectra + (row - lane + __ffs(left) - 1) * bins;
        for (int64_t k = lane; k < bins; k += 32)
            X[k] = make_float2(TL_NAN, TL_NAN);
    }
}

/* Whether cuFFT's own result lies where it is wanted. */
bool is_plain(int64_t n, const tl_half_spectra &s)
{
    const int64_t bins = n / 2 + 1;
    return n % 2 == 0 && s.im == s.re + 1 && s.bin == 2 && s.row == 2 * bins && s.count == bins && s.edge == 1.0f &&
           s.inner == 1.0f;
}

} /* namespace */

int32_t tl_library_forward(tl_context *ctx, int64_t n, int64_t batch, const tl_real_rows &from,
                           const tl_half_spectra &to)
{
    const Shape shape = {n, batch, from.row, from.number, false};
    if (is_plain(n, to)) {
        float2 *const spectra = reinterpret_cast<float2 *>(to.re);
        TL_TRY(execute(ctx, shape, from.at, spectra));
        return tl_launch_ahead(ctx, "finish", finish_kernel, tl_grid(batch, THREADS), THREADS, 0, spectra, batch,
                               to.count);
    }
    const int64_t numbers = shape.numbers(), total = batch * n, kept = batch * to.count;
    tl_scratch<float2> copy(ctx);
    TL_TRY(copy.allocate(batch * numbers));
    if (shape.as_complex())
        TL_TRY(tl_launch(ctx, "copy real rows", copy_real_kernel<true>, tl_grid(total, UNROLL * THREADS), THREADS, from,
                         copy, tl_fastdiv(n), total));
    TL_TRY(execute(ctx, shape, from.at, copy));
    return tl_launch(ctx, "weigh bins", weigh_out_kernel, tl_grid(kept, UNROLL * THREADS), THREADS, copy, to,
                     tl_fastdiv(to.count), numbers, n, kept);
}

int32_t tl_library_inverse(tl_context *ctx, int64_t n, int64_t batch, const tl_half_spectra &from,
                           const tl_real_rows &to)
{
    const Shape shape = {n, batch, to.row, to.number, true};
    const int64_t numbers = shape.numbers(), total = batch * n, entering = batch * numbers;
    tl_scratch<float2> copy(ctx);
    TL_TRY(copy.allocate(entering));
    TL_TRY(tl_launch(ctx, "weigh bins", weigh_in_kernel, tl_grid(entering, UNROLL * THREADS), THREADS, from, copy,
                     tl_fastdiv(numbers), n, entering));
    TL_TRY(execute(ctx, shape, to.at, copy));
    if (!shape.as_complex()) return TORCHLEAN_OK;
    return tl_launch(ctx, "copy real rows", copy_real_kernel<false>, tl_grid(total, UNROLL * THREADS), THREADS, to,
                     copy, tl_fastdiv(n), total);
}
