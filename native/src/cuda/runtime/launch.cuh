/* What a launcher gets from its context: the stream and the library handles, scratch filled from the host, statuses made
 * of errors, shared memory for a kernel and the size of a grid. Defined in runtime/device.cu and runtime/transfer.cu.
 *
 * A launcher gets a healthy context whose device is current on the calling thread. It launches on
 * tl_cuda_stream(ctx) and ends with `return tl_cuda_launched(ctx, "name");`. It never synchronises. */
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "core/backend.h"
#include "core/kernel.h"
#include "cuda/device/division.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/unroll.cuh"

extern "C" {
cudaStream_t tl_cuda_stream(tl_context *ctx);
/* The cuBLAS handle on the context's stream, made when first asked for; NULL with *status set if that fails. Plain
 * float32 arithmetic (never TF32), no atomics, host pointer mode, a workspace of our own. Leave these settings as
 * they are. */
cublasHandle_t tl_cuda_blas(tl_context *ctx, int32_t *status);
int tl_cuda_sms(tl_context *ctx);
/* The launches being made become a graph's: objects that they use must last as long as the context. */
int tl_cuda_capturing(tl_context *ctx);
/* Float64 runs at half the rate of float32 or better (data-centre chips), not at 1/32 or 1/64. */
int tl_cuda_double_is_fast(tl_context *ctx);
/* The kernels that run here compute chains of device/chain.cuh on float64 tensor cores (compiled for 9.0 or later), at the
 * rate of float32: contexts of the mode `fast` take chains too where its own kernels are slower. */
int tl_cuda_chains_are_fast(tl_context *ctx);
/* The kernels that run here can be launched while the one before still runs (compiled for 9.0 or later). */
int tl_cuda_launches_ahead(tl_context *ctx);
/* Device scratch that holds a copy of host memory, for index arrays and the like: the host memory may be reused at
 * once and the stream is not stalled. Given back with tl_pool_free(ctx, *device), also right after the launch that
 * uses it. */
int32_t tl_cuda_stage(tl_context *ctx, const void *host, size_t bytes, void **device);
/* Copies host memory to a table of the context that no launch has used yet, and waits for it. */
int32_t tl_cuda_send_table(tl_context *ctx, void *device, const void *host, size_t bytes);
/* Checks the launch just made: OK, or a status; the context is then poisoned. */
int32_t tl_cuda_launched(tl_context *ctx, const char *kernel);
/* Turn an error of the CUDA runtime, cuBLAS or cuFFT into a status with a message that names `what`. */
int32_t tl_cuda_failed(tl_context *ctx, cudaError_t error, const char *what);
int32_t tl_cublas_failed(tl_context *ctx, cublasStatus_t error, const char *what);
int32_t tl_cufft_failed(tl_context *ctx, int error, const char *what);

/* One object of a kernel family that lives as long as the context (a cache of FFT plans, frequencies). `close` gets it when the
 * context closes, with the device current and idle. tl_cuda_attached gives NULL until then. */
enum tl_attachment { TL_ATTACH_FFT, TL_ATTACH_OWN_FFT, TL_ATTACH_RATES, TL_ATTACHMENTS };
void *tl_cuda_attached(tl_context *ctx, enum tl_attachment which);
void tl_cuda_attach(tl_context *ctx, enum tl_attachment which, void *object, void (*close)(void *object));
}

/* For the bodies of functions that return a status. */
#define TL_TRY(expr) \
    do { \
        int32_t tl_status_ = (expr); \
        if (tl_status_) \
            return tl_status_; \
    } while (0)
#define TL_CUDA_TRY(ctx, expr) \
    do { \
        cudaError_t tl_error_ = (expr); \
        if (tl_error_ != cudaSuccess) \
            return tl_cuda_failed(ctx, tl_error_, #expr); \
    } while (0)
#define TL_CUBLAS_TRY(ctx, expr) \
    do { \
        cublasStatus_t tl_error_ = (expr); \
        if (tl_error_ != CUBLAS_STATUS_SUCCESS) \
            return tl_cublas_failed(ctx, tl_error_, #expr); \
    } while (0)
#define TL_CUFFT_TRY(ctx, expr) \
    do { \
        int tl_error_ = (int)(expr); \
        if (tl_error_) \
            return tl_cufft_failed(ctx, tl_error_, #expr); \
    } while (0)

/* ---- shared memory -------------------------------------------------------------------------------------------------- */

/* Lets `kernel` have `dynamic` bytes of shared memory. The limit is the kernel's, not the launch's, and another thread may
 * be about to launch the same kernel with more: so it is only ever raised, to all that a block can have here. */
template <class Kernel> static cudaError_t tl_raise_shared_limit(Kernel kernel, size_t dynamic)
{
    /* every block can have 48 KiB, of which a kernel's own arrays take less than 16; to ask costs as much as to launch */
    if (dynamic <= 32u << 10) return cudaSuccess;
    cudaFuncAttributes now;
    int device = 0, most = 0;
    cudaError_t error = cudaFuncGetAttributes(&now, kernel);
    if (error != cudaSuccess || dynamic <= (size_t)now.maxDynamicSharedSizeBytes) return error;
    if ((error = cudaGetDevice(&device)) != cudaSuccess) return error;
    if ((error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) != cudaSuccess)
        return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - (int)now.sharedSizeBytes);
}

/* Whether a block of a kernel with these attributes, or of `kernel`, can have `dynamic` bytes of shared memory here, beside the
 * kernel's own. */
static inline bool tl_shared_fits(const cudaFuncAttributes &kernel, size_t dynamic)
{
    int device = 0, most = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
           kernel.sharedSizeBytes + dynamic <= (size_t)most;
}
template <class... Parameters> static bool tl_shared_fits(void (*kernel)(Parameters...), size_t dynamic)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && tl_shared_fits(attributes, dynamic);
}

/* Raises the limit in a launcher. */
template <class Kernel> static int32_t tl_allow_shared(tl_context *ctx, Kernel kernel, size_t dynamic)
{
    TL_CUDA_TRY(ctx, tl_raise_shared_limit(kernel, dynamic));
    return TORCHLEAN_OK;
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

/* Blocks for `items` at `per_block` each: at least 1, at most `most` (the kernel then strides over the grid). A
 * grid's x reaches 2^31 - 1, so up to 2^32 elements at two or more per block need no stride. */
static inline unsigned tl_grid(int64_t items, int64_t per_block, int64_t most = INT32_MAX)
{
    int64_t blocks = tl_ceil_div(items, per_block);
    return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

/* Launches kernel(arguments...) with `bytes` of dynamic shared memory, which the kernel may have already, with an attribute or
 * without. */
template <class... Parameters, class... Arguments>
static cudaError_t tl_start_with(cudaLaunchAttribute *attribute, cudaStream_t stream, void (*kernel)(Parameters...),
                                 dim3 grid, dim3 block, size_t bytes, const Arguments &...arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = bytes, config.stream = stream;
    config.attrs = attribute, config.numAttrs = attribute ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/* The same on the context's stream; `name` is for the message of a failure. */
template <class... Parameters, class... Arguments>
static int32_t tl_launch_dynamic(tl_context *ctx, const char *name, void (*kernel)(Parameters...), dim3 grid,
                                 dim3 block, size_t bytes, const Arguments &...arguments)
{
    const cudaError_t error = tl_start_with(nullptr, tl_cuda_stream(ctx), kernel, grid, block, bytes, arguments...);
    return error == cudaSuccess ? tl_cuda_launched(ctx, name) : tl_cuda_failed(ctx, error, name);
}

/* Without dynamic shared memory. */
template <class... Parameters, class... Arguments>
static int32_t tl_launch(tl_context *ctx, const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                         const Arguments &...arguments)
{
    return tl_launch_dynamic(ctx, name, kernel, grid, block, 0, arguments...);
}

/* With `bytes` in every launch of this kernel, whose limit they become. */
template <class... Parameters, class... Arguments>
static int32_t tl_launch_shared(tl_context *ctx, const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                size_t bytes, const Arguments &...arguments)
{
    TL_CUDA_TRY(ctx, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return tl_launch_dynamic(ctx, name, kernel, grid, block, bytes, arguments...);
}

/* How a launch stands to the one before: after it, as all do by default; first of several that run side by side, or beside the
 * one before, of which it must neither read nor overwrite anything, results and scratch. */
enum tl_order { TL_AFTER, TL_FIRST, TL_BESIDE };

/* The first thing that a kernel of tl_launch_ahead does: waits until what was launched before is done and its memory is
 * seen. Nothing may be read or written above it but parameters, and no pointer of the kernel may be __restrict__, as the
 * compiler moves loads that it takes for constant above it. A grid that leaves most multiprocessors idle lets the launch behind
 * it start meanwhile; beside a larger one the blocks of that launch would crowd on the few that have room. The first of several
 * does so when it has waited: a kernel beside it then finds done what came before them all, and waits at its end
 * (tl_wait_at_end), so that whoever waits for it waits for the others too. `blocks` is the size of the grid: with one axis it is 32
 * bits, without a product. */
template <class Count> static __device__ __forceinline__ void tl_wait_for_earlier(tl_order order, Count blocks)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t multiprocessors;
    asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
    const bool small = blocks <= multiprocessors / 4;
    if (small && order != TL_FIRST) asm volatile("griddepcontrol.launch_dependents;");
    if (order != TL_BESIDE) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (small && order == TL_FIRST) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void tl_wait_for_earlier(tl_order order = TL_AFTER)
{
    tl_wait_for_earlier(order, (unsigned long long)gridDim.x * gridDim.y * gridDim.z);
}

/* What every thread of a kernel does that may be launched beside another: last, or before it reads or writes what is not done
 * before both. */
static __device__ __forceinline__ void tl_wait_at_end(tl_order order)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (order == TL_BESIDE) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The launch of a kernel that begins with tl_wait_for_earlier(): where the device can (`ahead`), its blocks are on their
 * multiprocessors when the launch before ends, which saves part of a launch's latency.
 * (Programmatic dependent launch.) */
template <class... Parameters, class... Arguments>
static cudaError_t tl_start_ahead(cudaStream_t stream, int ahead, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                  size_t bytes, const Arguments &...arguments)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    return tl_start_with(ahead ? &early : nullptr, stream, kernel, grid, block, bytes, arguments...);
}

/* The same on the context's stream. */
template <class... Parameters, class... Arguments>
static int32_t tl_launch_ahead(tl_context *ctx, const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                               size_t bytes, const Arguments &...arguments)
{
    const cudaError_t error =
        tl_start_ahead(tl_cuda_stream(ctx), tl_cuda_launches_ahead(ctx), kernel, grid, block, bytes, arguments...);
    return error == cudaSuccess ? tl_cuda_launched(ctx, name) : tl_cuda_failed(ctx, error, name);
}

/* ---- scratch --------------------------------------------------------------------------------------------------------- */

/* Elements of the context's pool until the end of the scope: work that is already queued may still use them then. */
template <class T> class tl_scratch {
  public:
    explicit tl_scratch(tl_context *ctx) : ctx(ctx) {}
    tl_scratch(const tl_scratch &) = delete;
    ~tl_scratch() { tl_pool_free(ctx, owned ? memory : nullptr); }
    int32_t allocate(int64_t count) { return tl_pool_alloc(ctx, (size_t)count * sizeof(T), &memory); }
    /* A copy of host memory, as by tl_cuda_stage; the memory itself where it is that of an index buffer, on the device. */
    int32_t stage(const T *from, int64_t count)
    {
        owned = !tl_pool_owns(ctx, from);
        if (owned) return tl_cuda_stage(ctx, from, (size_t)count * sizeof(T), &memory);
        memory = const_cast<T *>(from);
        return TORCHLEAN_OK;
    }
    operator T *() const { return static_cast<T *>(memory); }

  private:
    tl_context *ctx;
    void *memory = nullptr;
    bool owned = true;
};
