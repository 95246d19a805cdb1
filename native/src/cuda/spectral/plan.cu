/* cuFFT plans: one cache per context, and the transforms that use it.
 *
 * cuFFT transforms the real rows of a batch two at a time when n is odd, one as the real and one as the imaginary part of a
 * complex row: a NaN in one then reaches the other, and a large row rounds a small one away. Odd lengths are therefore
 * expanded to complex rows of their own, which costs a copy of twice the size on either side. */
#include "cuda/spectral/plan.cuh"
#include "generated/spectral.h"

#include <stdlib.h>
#include <string.h>

#include <mutex>

namespace {

constexpr int THREADS = 256;

/* Plans that no graph uses; the cache grows by those that one does. */
constexpr int CACHED_PLANS = 24;

struct Plans {
    struct Entry {
        tl_fft_shape shape;
        cufftHandle handle;
        cudaStream_t stream; /* that the handle has now */
        size_t work;
        uint64_t stamp; /* 0: free */
        int captured;   /* a graph holds its kernels and tables: it stays */
    } *entries;
    int count;
    uint64_t now;
};

/* Plans are made and destroyed one at a time in the process: nothing is lost, as making one waits for the device anyway,
 * and it is how eight threads were tried on a busy GPU. */
std::mutex one_at_a_time;

void destroy_plan(cufftHandle handle)
{
    std::lock_guard<std::mutex> alone(one_at_a_time);
    cufftDestroy(handle);
}

void close_plans(void *object)
{
    Plans *plans = (Plans *)object;
    for (int i = 0; i < plans->count; i++)
        if (plans->entries[i].stamp) destroy_plan(plans->entries[i].handle);
    free(plans->entries);
    free(plans);
}

/* Room for CACHED_PLANS more. */
int32_t widen(Plans *plans)
{
    const int count = plans->count + CACHED_PLANS;
    Plans::Entry *entries = (Plans::Entry *)realloc(plans->entries, count * sizeof *entries);
    if (!entries) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for FFT plans");
    memset(entries + plans->count, 0, CACHED_PLANS * sizeof *entries);
    plans->entries = entries;
    plans->count = count;
    return TORCHLEAN_OK;
}

bool same(const tl_fft_shape &a, const tl_fft_shape &b)
{
    return a.n == b.n && a.batch == b.batch && a.real_stride == b.real_stride && a.real_dist == b.real_dist &&
           a.inverse == b.inverse;
}

/* Odd lengths are transformed as complex numbers (see tl_fft_run), in place and dense. */
bool as_complex(const tl_fft_shape &s) { return s.n % 2 != 0; }

cufftResult make_plan(const tl_fft_shape &s, cufftHandle *handle, size_t *work)
{
    std::lock_guard<std::mutex> alone(one_at_a_time);
    cufftResult result = cufftCreate(handle);
    if (result != CUFFT_SUCCESS) return result;
    long long n = s.n, bins = s.n / 2 + 1;
    result = cufftSetAutoAllocation(*handle, 0);
    if (result == CUFFT_SUCCESS && as_complex(s))
        result = cufftMakePlanMany64(*handle, 1, &n, &n, 1, n, &n, 1, n, CUFFT_C2C, s.batch, work);
    else if (result == CUFFT_SUCCESS && s.inverse)
        result = cufftMakePlanMany64(*handle, 1, &n, &bins, 1, bins, &n, s.real_stride, s.real_dist, CUFFT_C2R, s.batch,
                                     work);
    else if (result == CUFFT_SUCCESS)
        result = cufftMakePlanMany64(*handle, 1, &n, &n, s.real_stride, s.real_dist, &bins, 1, bins, CUFFT_R2C, s.batch,
                                     work);
    /* cuFFT fills the plan's tables by work of its own that is not ordered with our non-blocking stream: with several
     * threads on a busy device, transforms have read tables that were not there yet. */
    if (result == CUFFT_SUCCESS && cudaDeviceSynchronize() != cudaSuccess) result = CUFFT_EXEC_FAILED;
    if (result != CUFFT_SUCCESS) cufftDestroy(*handle);
    return result;
}

/* The plan of a shape; the one unused longest gives way. */
int32_t find_plan(tl_context *ctx, const tl_fft_shape &shape, Plans::Entry **out)
{
    Plans *plans = (Plans *)tl_cuda_attached(ctx, TL_ATTACH_FFT);
    if (!plans) {
        plans = (Plans *)calloc(1, sizeof *plans);
        if (!plans) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for FFT plans");
        tl_cuda_attach(ctx, TL_ATTACH_FFT, plans, close_plans);
    }
    const int capturing = tl_cuda_capturing(ctx);
    Plans::Entry *place = nullptr;
    for (int i = 0; i < plans->count; i++) {
        Plans::Entry &e = plans->entries[i];
        if (e.stamp && same(e.shape, shape)) {
            e.stamp = ++plans->now;
            e.captured |= capturing;
            *out = &e;
            return TORCHLEAN_OK;
        }
        if (!e.captured && (!place || e.stamp < place->stamp)) place = &e;
    }
    if (capturing) /* making one waits for the device */
        return tl_fail(TORCHLEAN_UNAVAILABLE,
                       "a transform of %lld points for which there is no plan cannot be captured; "
                       "run it once before",
                       (long long)shape.n);
    if (!place) {
        TL_TRY(widen(plans));
        place = plans->entries + plans->count - CACHED_PLANS;
    }
    if (place->stamp) {
        destroy_plan(place->handle);
        place->stamp = 0;
    }
    cufftResult result = make_plan(shape, &place->handle, &place->work);
    if (result == CUFFT_ALLOC_FAILED) {
        cudaGetLastError();
        TL_TRY(tl_pool_collect(ctx));
        result = make_plan(shape, &place->handle, &place->work);
    }
    TL_CUFFT_TRY(ctx, result);
    place->shape = shape;
    place->stream = nullptr; /* as a new handle has it */
    place->captured = 0;
    place->stamp = ++plans->now;
    *out = place;
    return TORCHLEAN_OK;
}

/* ---- odd lengths --------------------------------------------------------------------------------------------------- */

/* A thread owns an element of the complex rows in the three kernels below. */
__global__ void __launch_bounds__(THREADS) widen_kernel(const float *__restrict__ real, float2 *__restrict__ rows,
                                                        tl_fastdiv n, int64_t total, int64_t stride, int64_t dist)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= total) return;
    uint32_t t;
    const uint32_t b = n.divmod((uint32_t)e, &t);
    rows[e] = make_float2(real[b * dist + t * stride], 0.0f);
}

/* The whole spectrum of a real row from its first half: bin n - k is the conjugate of bin k. */
__global__ void __launch_bounds__(THREADS)
    mirror_kernel(const float2 *__restrict__ half, float2 *__restrict__ rows, tl_fastdiv n, int64_t total)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= total) return;
    uint32_t k;
    const uint32_t b = n.divmod((uint32_t)e, &k);
    const int64_t bins = n.divisor / 2 + 1;
    const bool upper = k >= bins;
    const float2 v = half[b * bins + (upper ? n.divisor - k : k)];
    rows[e] = make_float2(v.x, upper ? -v.y : v.y);
}

__global__ void __launch_bounds__(THREADS)
    halve_kernel(const float2 *__restrict__ rows, float2 *__restrict__ half, tl_fastdiv bins, int64_t n, int64_t total)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= total) return;
    uint32_t k;
    const uint32_t b = bins.divmod((uint32_t)e, &k);
    half[e] = rows[b * n + k];
}

__global__ void __launch_bounds__(THREADS) narrow_kernel(const float2 *__restrict__ rows, float *__restrict__ real,
                                                         tl_fastdiv n, int64_t total, int64_t stride, int64_t dist)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= total) return;
    uint32_t t;
    const uint32_t b = n.divmod((uint32_t)e, &t);
    real[b * dist + t * stride] = rows[e].x;
}

cufftResult execute(const Plans::Entry &plan, float *real, float2 *spectrum, float2 *rows)
{
    if (rows)
        return cufftExecC2C(plan.handle, (cufftComplex *)rows, (cufftComplex *)rows,
                            plan.shape.inverse ? CUFFT_INVERSE : CUFFT_FORWARD);
    return plan.shape.inverse ? cufftExecC2R(plan.handle, (cufftComplex *)spectrum, real)
                              : cufftExecR2C(plan.handle, real, (cufftComplex *)spectrum);
}

/* The transform with its work area; `rows` is given for odd lengths. */
int32_t transform(tl_context *ctx, const tl_fft_shape &shape, float *real, float2 *spectrum, float2 *rows)
{
    Plans::Entry *plan;
    TL_TRY(find_plan(ctx, shape, &plan));
    if (plan->stream != tl_cuda_stream(ctx)) {
        TL_CUFFT_TRY(ctx, cufftSetStream(plan->handle, tl_cuda_stream(ctx)));
        plan->stream = tl_cuda_stream(ctx);
    }
    tl_scratch<char> work(ctx);
    TL_TRY(work.allocate((int64_t)plan->work));
    TL_CUFFT_TRY(ctx, cufftSetWorkArea(plan->handle, work));
    TL_CUFFT_TRY(ctx, execute(*plan, real, spectrum, rows));
    return TORCHLEAN_OK;
}

int32_t transform_odd(tl_context *ctx, const tl_fft_shape &shape, float *real, float2 *spectrum, float2 *rows)
{
    const char *const name = "odd transform";
    const int64_t n = shape.n, bins = n / 2 + 1, total = shape.batch * n, halves = shape.batch * bins;
    const unsigned blocks = tl_grid(total, THREADS);
    const tl_fastdiv by_n(n);
    if (shape.inverse)
        TL_TRY(tl_launch(ctx, name, mirror_kernel, blocks, THREADS, spectrum, rows, by_n, total));
    else
        TL_TRY(tl_launch(ctx, name, widen_kernel, blocks, THREADS, real, rows, by_n, total, shape.real_stride,
                         shape.real_dist));
    TL_TRY(transform(ctx, shape, real, spectrum, rows));
    if (shape.inverse)
        return tl_launch(ctx, name, narrow_kernel, blocks, THREADS, rows, real, by_n, total, shape.real_stride,
                         shape.real_dist);
    return tl_launch(ctx, name, halve_kernel, tl_grid(halves, THREADS), THREADS, rows, spectrum, tl_fastdiv(bins), n,
                     halves);
}

} /* namespace */

int32_t tl_fft_run(tl_context *ctx, const tl_fft_shape &shape, float *real, float2 *spectrum)
{
    if (!as_complex(shape)) return transform(ctx, shape, real, spectrum, nullptr);
    tl_scratch<float2> rows(ctx);
    TL_TRY(rows.allocate(shape.batch * shape.n));
    return transform_odd(ctx, shape, real, spectrum, rows);
}

int32_t tl_fft_run_complex(tl_context *ctx, int64_t n, int64_t batch, bool inverse, float2 *rows)
{
    return transform(ctx, tl_fft_shape{n, batch, 1, n, inverse}, nullptr, nullptr, rows);
}
