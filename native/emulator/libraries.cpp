/* The functions of cuBLAS and cuFFT that src/cuda calls, for the emulated device, as they are defined and in float64. */
#include "language.h"

#include <cublas_v2.h>
#include <cufft.h>
#include <stdlib.h>

#include <complex>
#include <vector>

/* ---- cuBLAS ------------------------------------------------------------------------------------------------------------ */

namespace {

/* C = alpha·op(A)·op(B) + beta·C, column-major */
template <class T> struct product {
    bool turned_a, turned_b;
    int64_t m, n, k;
    T alpha;
    const T *A;
    int64_t lda;
    const T *B;
    int64_t ldb;
    T beta;
    T *C;
    int64_t ldc;

    void run(int64_t a_offset, int64_t b_offset, int64_t c_offset) const
    {
        const T *const a = A + a_offset, *const b = B + b_offset;
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += (double)a[turned_a ? i * lda + l : l * lda + i] *
                           (double)b[turned_b ? l * ldb + j : j * ldb + l];
                T &c = C[c_offset + j * ldc + i];
                c = beta == 0 ? alpha * (T)sum : alpha * (T)sum + beta * c;
            }
    }
};

} // namespace

extern "C" {

const char *cublasGetStatusString(cublasStatus_t) { return "an error of the emulated device"; }
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    *handle = (cublasHandle_t)calloc(1, sizeof(cudaStream_t)); /* the stream that it works on */
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return free(handle), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    *(cudaStream_t *)handle = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t *mode)
{
    *mode = CUBLAS_PEDANTIC_MATH;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasSgemmStridedBatched_64(cublasHandle_t handle, cublasOperation_t a, cublasOperation_t b, int64_t m,
                                            int64_t n, int64_t k, const float *alpha, const float *A, int64_t lda,
                                            long long a_stride, const float *B, int64_t ldb, long long b_stride,
                                            const float *beta, float *C, int64_t ldc, long long c_stride, int64_t batch)
{
    const product<float> one = {a != CUBLAS_OP_N, b != CUBLAS_OP_N, m, n, k, *alpha, A, lda, B, ldb, *beta, C, ldc};
    emulator::queue(*(cudaStream_t *)handle, [=] {
        for (int64_t i = 0; i < batch; i++)
            one.run(i * a_stride, i * b_stride, i * c_stride);
    });
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSgemm_v2_64(cublasHandle_t handle, cublasOperation_t a, cublasOperation_t b, int64_t m, int64_t n,
                                 int64_t k, const float *alpha, const float *A, int64_t lda, const float *B,
                                 int64_t ldb, const float *beta, float *C, int64_t ldc)
{
    return cublasSgemmStridedBatched_64(handle, a, b, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1);
}
cublasStatus_t cublasDgemm_v2_64(cublasHandle_t handle, cublasOperation_t a, cublasOperation_t b, int64_t m, int64_t n,
                                 int64_t k, const double *alpha, const double *A, int64_t lda, const double *B,
                                 int64_t ldb, const double *beta, double *C, int64_t ldc)
{
    const product<double> one = {a != CUBLAS_OP_N, b != CUBLAS_OP_N, m, n, k, *alpha, A, lda, B, ldb, *beta, C, ldc};
    emulator::queue(*(cudaStream_t *)handle, [=] { one.run(0, 0, 0); });
    return CUBLAS_STATUS_SUCCESS;
}
}

/* ---- cuFFT ------------------------------------------------------------------------------------------------------------- */

namespace {

using numbers = std::vector<std::complex<double>>;

/* Rows of n. Complex rows lie one behind the other; those of a real transform hold their n / 2 + 1 first elements. */
struct plan {
    int64_t n, batch, stride, distance; /* of real elements, and rows */
    cudaStream_t on;                    /* that it works on */

    int64_t half() const { return n / 2 + 1; }
    int64_t at(int64_t row, int64_t i) const { return row * distance + i * stride; }
};
std::vector<plan> plans;

/* y[k] = sum x[i]·exp(sign·2·pi·j·i·k / n), from the transforms of every p-th element, p the least factor of n. */
numbers transform(const numbers &x, int sign)
{
    const size_t n = x.size();
    if (n == 1) return x;
    size_t p = 2;
    while (n % p != 0)
        p = p * p < n ? p + 1 : n;
    const size_t m = n / p;
    numbers y(n), part(m), roots(n);
    for (size_t i = 0; i < n; i++)
        roots[i] = std::polar(1.0, sign * 2 * M_PI * (double)i / (double)n);
    for (size_t r = 0; r < p; r++) {
        for (size_t i = 0; i < m; i++)
            part[i] = x[i * p + r];
        const numbers of_part = m > 1 ? transform(part, sign) : part;
        for (size_t k = 0, turn = 0; k < n; k++, turn = turn + r < n ? turn + r : turn + r - n)
            y[k] += of_part[k % m] * roots[turn];
    }
    return y;
}

std::complex<double> number(cufftComplex x) { return {x.x, x.y}; }
cufftComplex rounded(std::complex<double> x) { return {(float)x.real(), (float)x.imag()}; }

/* Queues work(plan, row) for every row. */
template <class Work> cufftResult each_row(cufftHandle handle, Work work)
{
    const plan p = plans[handle];
    emulator::queue(p.on, [=] {
        for (int64_t row = 0; row < p.batch; row++)
            work(p, row);
    });
    return CUFFT_SUCCESS;
}

} // namespace

extern "C" {

cufftResult cufftCreate(cufftHandle *handle)
{
    *handle = (int)plans.size();
    plans.push_back({});
    return CUFFT_SUCCESS;
}
cufftResult cufftDestroy(cufftHandle) { return CUFFT_SUCCESS; }
cufftResult cufftSetAutoAllocation(cufftHandle, int) { return CUFFT_SUCCESS; }
cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) { return plans[handle].on = stream, CUFFT_SUCCESS; }
cufftResult cufftSetWorkArea(cufftHandle, void *) { return CUFFT_SUCCESS; }
cufftResult cufftMakePlanMany64(cufftHandle handle, int rank, long long *n, long long *, long long in_stride,
                                long long in_distance, long long *, long long out_stride, long long out_distance,
                                cufftType type, long long batch, size_t *bytes)
{
    const bool to_real = type == CUFFT_C2R;
    plan p = {n[0], batch, to_real ? out_stride : in_stride, to_real ? out_distance : in_distance, plans[handle].on};
    const int64_t complex_stride = to_real ? in_stride : out_stride, complex_row = to_real ? in_distance : out_distance;
    if (rank != 1 || complex_stride != 1 || complex_row != (type == CUFFT_C2C ? p.n : p.half()))
        return CUFFT_NOT_SUPPORTED;
    plans[handle] = p;
    *bytes = 1;
    return CUFFT_SUCCESS;
}
cufftResult cufftExecR2C(cufftHandle handle, cufftReal *in, cufftComplex *out)
{
    return each_row(handle, [=](const plan &p, int64_t row) {
        numbers x(p.n);
        for (int64_t i = 0; i < p.n; i++)
            x[i] = in[p.at(row, i)];
        const numbers y = transform(x, -1);
        std::transform(y.begin(), y.begin() + p.half(), out + row * p.half(), rounded);
    });
}
cufftResult cufftExecC2R(cufftHandle handle, cufftComplex *in, cufftReal *out)
{
    return each_row(handle, [=](const plan &p, int64_t row) {
        numbers x(p.n);
        for (int64_t i = 0; i < p.half(); i++) {
            x[i] = number(in[row * p.half() + i]);
            if (i == 0 || 2 * i == p.n) x[i] = x[i].real();
            if (i > 0) x[p.n - i] = std::conj(x[i]);
        }
        const numbers y = transform(x, 1);
        for (int64_t i = 0; i < p.n; i++)
            out[p.at(row, i)] = (float)y[i].real();
    });
}
cufftResult cufftExecC2C(cufftHandle handle, cufftComplex *in, cufftComplex *out, int direction)
{
    return each_row(handle, [=](const plan &p, int64_t row) {
        numbers x(p.n);
        std::transform(in + row * p.n, in + (row + 1) * p.n, x.begin(), number);
        const numbers y = transform(x, direction);
        std::transform(y.begin(), y.end(), out + row * p.n, rounded);
    });
}
}
