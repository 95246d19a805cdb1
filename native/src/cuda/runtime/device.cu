/* The CUDA side of a context: devices, opening and closing, the stream, the cuBLAS handle, time marks, and what
 * becomes of errors. Transfers are in runtime/transfer.cu.
 *
 * Everything a context does is queued on its one non-blocking stream, or on a host's (tl_cuda_adopt). What lasts longer than a call
 * is then of use on any stream: tables are complete before they are first used, and what launches change, cuBLAS's workspace, is no two
 * streams' (aim_blas). The first CUDA error is kept: it poisons the
 * context, whose later calls all return it. Running out of memory does not. */
#include "cuda/device/vector.cuh"
#include "cuda/runtime/state.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

namespace {

constexpr size_t BLAS_WORKSPACE = 32 << 20; /* what NVIDIA recommends for Hopper; enough for older chips */

/* ---- process and errors ---------------------------------------------------------------------------------------- */

/* The fork serial CUDA was started under, plus one; 0 while it has not been. */
std::atomic<uint32_t> started{0};

bool lost_by_fork() { return started.load() != 0 && started.load() != tl_fork_serial() + 1; }

int32_t refuse_fork()
{
    return tl_fail(TORCHLEAN_UNAVAILABLE, "CUDA cannot be used after fork; start the process anew");
}

/* Called before the first use of the runtime, which a forked child would inherit broken. */
void note_start()
{
    uint32_t none = 0;
    started.compare_exchange_strong(none, tl_fork_serial() + 1);
}

bool synchronous()
{
    const char *text = getenv("TORCHLEAN_CUDA_SYNC");
    return text && strcmp(text, "1") == 0;
}
const bool sync_after_each = synchronous();

int32_t poison(tl_cuda_state *state, int32_t status, const char *what, const char *why)
{
    if (!state->status) {
        state->status = status;
        snprintf(state->message, sizeof state->message, "%.150s: %.90s", what, why);
    }
    return tl_fail(status, "%s: %s", what, why);
}

} /* namespace */

int32_t tl_state_failed(tl_cuda_state *state, cudaError_t error, const char *what)
{
    cudaGetLastError(); /* the runtime keeps the last error; ours is the state's */
    if (error == cudaErrorMemoryAllocation)
        return tl_fail(TORCHLEAN_NO_MEMORY, "%s: out of device or pinned memory", what);
    if (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "%s: cannot be captured: %s", what, cudaGetErrorString(error));
    return poison(state, TORCHLEAN_CUDA, what, cudaGetErrorString(error));
}

namespace {

/* Other libraries change the thread's device behind our back, so it is asked, not remembered: the runtime answers from
 * thread-local memory. */
cudaError_t make_current(int32_t ordinal)
{
    int current = -1;
    cudaError_t error = cudaGetDevice(&current);
    if (error == cudaSuccess && current == ordinal) return cudaSuccess;
    return cudaSetDevice(ordinal);
}

} /* namespace */

int32_t tl_state_enter(tl_cuda_state *state)
{
    if (state->fork_serial != tl_fork_serial()) return refuse_fork();
    if (state->status)
        return tl_fail(state->status, "the context is unusable since an earlier error: %s", state->message);
    TRY(make_current(state->ordinal));
    return TORCHLEAN_OK;
}

namespace {

/* Number of devices; if 0, why. */
int count_devices(const char **why)
{
    int count = 0, driver = 0;
    *why = "there is no NVIDIA GPU";
    if (lost_by_fork()) {
        *why = "CUDA cannot be used after fork";
        return 0;
    }
    note_start();
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess) return count;
    cudaGetLastError();
    *why = cudaGetErrorString(error);
    if (error == cudaErrorInsufficientDriver && (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0))
        *why = "no NVIDIA driver is installed";
    return 0;
}

int32_t check_ordinal(int32_t ordinal)
{
    const char *why;
    int count = count_devices(&why);
    if (ordinal >= 0 && ordinal < count) return TORCHLEAN_OK;
    if (count == 0) return tl_fail(TORCHLEAN_UNAVAILABLE, "CUDA device %d: %s", ordinal, why);
    return tl_fail(TORCHLEAN_UNAVAILABLE, "CUDA device %d: there are %d, counted from 0", ordinal, count);
}

/* Each thread owns four consecutive elements. A part of scratch may begin off 16 bytes. */
__global__ void __launch_bounds__(256) fill_kernel(float *out, float value, int64_t n)
{
    const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;
    if (i + 4 <= n && tl_aligned4(out))
        tl_store4(out + i, make_float4(value, value, value, value));
    else
        for (int e = 0; e < 4 && i + e < n; e++)
            out[i + e] = value;
}

} /* namespace */

/* ---- devices --------------------------------------------------------------------------------------------------- */

extern "C" uint32_t tl_cuda_device_count(void)
{
    const char *why;
    return (uint32_t)count_devices(&why);
}

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
extern "C" const char *tl_cuda_build(void)
{
    return TEXT(__CUDACC_VER_MAJOR__) "." TEXT(__CUDACC_VER_MINOR__) "; archs=" TL_CUDA_ARCHS;
}

extern "C" int32_t tl_cuda_device_describe(int32_t ordinal, char *text, uint32_t capacity)
{
    TL_TRY(check_ordinal(ordinal));
    cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, ordinal);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return tl_fail(TORCHLEAN_UNAVAILABLE, "CUDA device %d: %s", ordinal, cudaGetErrorString(error));
    }
    uint64_t tenths = tl_gib_tenths(p.totalGlobalMem);
    snprintf(text, capacity, "%s, compute capability %d.%d, %d multiprocessors, %u.%u GiB", p.name, p.major, p.minor,
             p.multiProcessorCount, (uint32_t)(tenths / 10), (uint32_t)(tenths % 10));
    return TORCHLEAN_OK;
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static int32_t open_state(tl_cuda_state *state)
{
    int ratio = 0, major = 0, minor = 0;
    TRY(make_current(state->ordinal));
    TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, state->ordinal));
    TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, state->ordinal));
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, fill_kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion) {
        cudaGetLastError();
        return tl_fail(TORCHLEAN_UNAVAILABLE, "CUDA device %d has compute capability %d.%d, this library code for %s",
                       state->ordinal, major, minor, TL_CUDA_ARCHS);
    }
    TRY(error);
    TRY(cudaDeviceGetAttribute(&state->sms, cudaDevAttrMultiProcessorCount, state->ordinal));
    TRY(cudaDeviceGetAttribute(&ratio, cudaDevAttrSingleToDoublePrecisionPerfRatio, state->ordinal));
    state->double_is_fast = ratio > 0 && ratio <= 2;
    state->launches_ahead = attributes.ptxVersion >= 90;
    state->chains_are_fast = state->double_is_fast && state->launches_ahead;
    TRY(cudaStreamCreateWithFlags(&state->own, cudaStreamNonBlocking));
    state->stream = state->own;
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_open(int32_t ordinal, tl_cuda_state **out)
{
    *out = nullptr;
    if (lost_by_fork()) return refuse_fork();
    TL_TRY(check_ordinal(ordinal));
    tl_cuda_state *state = (tl_cuda_state *)calloc(1, sizeof *state);
    if (!state) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a CUDA context");
    state->ordinal = ordinal;
    state->fork_serial = tl_fork_serial();
    int32_t status = open_state(state);
    if (status) {
        if (state->own) cudaStreamDestroy(state->own);
        free(state);
        return status;
    }
    *out = state;
    return TORCHLEAN_OK;
}

/* Errors are of no use here: the context is going away, and a poisoned one fails at every step. */
extern "C" void tl_cuda_close(tl_cuda_state *state)
{
    if (state->fork_serial == tl_fork_serial() && make_current(state->ordinal) == cudaSuccess) {
        const tl_relaxed relaxed;
        if (!tl_cuda_host_captures(state)) state->adopted ? cudaDeviceSynchronize() : cudaStreamSynchronize(state->own);
        for (tl_attached &a : state->attached)
            if (a.object && a.close) a.close(a.object);
        if (state->blas) cublasDestroy(state->blas);
        if (state->blas_workspace) cudaFree(state->blas_workspace);
        for (cudaEvent_t mark : state->marks)
            if (mark) cudaEventDestroy(mark);
        tl_close_pinned(&state->ring);
        tl_close_pinned(&state->staging);
        if (state->beside) cudaStreamDestroy(state->beside);
        cudaStreamDestroy(state->own);
        cudaGetLastError();
    }
    free(state);
}

/* ---- state of a context ---------------------------------------------------------------------------------------- */

extern "C" int32_t tl_cuda_health(tl_cuda_state *state)
{
    TL_TRY(tl_state_enter(state));
    if (state->adopted) state->capturing = tl_cuda_host_captures(state);
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_synchronize(tl_cuda_state *state)
{
    TL_TRY(tl_state_enter(state));
    if (tl_cuda_host_captures(state))
        return tl_fail(TORCHLEAN_UNAVAILABLE, "context: got a host's stream that is being captured, expected another");
    cudaError_t error = cudaStreamSynchronize(state->stream);
    return error == cudaSuccess ? TORCHLEAN_OK : tl_state_failed(state, error, "earlier work on the device");
}

extern "C" int32_t tl_cuda_after(tl_cuda_state *state)
{
    if (!sync_after_each || state->capturing) return TORCHLEAN_OK;
    cudaError_t error = cudaStreamSynchronize(state->stream);
    return error == cudaSuccess ? TORCHLEAN_OK : tl_state_failed(state, error, "its work on the device");
}

extern "C" cudaStream_t tl_cuda_stream(tl_context *ctx) { return tl_context_cuda(ctx)->stream; }
extern "C" int tl_cuda_sms(tl_context *ctx) { return tl_context_cuda(ctx)->sms; }
extern "C" int tl_cuda_capturing(tl_context *ctx) { return tl_context_cuda(ctx)->capturing; }
extern "C" int tl_cuda_double_is_fast(tl_context *ctx) { return tl_context_cuda(ctx)->double_is_fast; }
extern "C" int tl_cuda_chains_are_fast(tl_context *ctx) { return tl_context_cuda(ctx)->chains_are_fast; }

extern "C" int tl_cuda_launches_ahead(tl_context *ctx) { return tl_context_cuda(ctx)->launches_ahead; }

extern "C" void *tl_cuda_attached(tl_context *ctx, enum tl_attachment which)
{
    return tl_context_cuda(ctx)->attached[which].object;
}

extern "C" void tl_cuda_attach(tl_context *ctx, enum tl_attachment which, void *object, void (*close)(void *object))
{
    tl_context_cuda(ctx)->attached[which] = {object, close};
}

extern "C" int32_t tl_cuda_launched(tl_context *ctx, const char *kernel)
{
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? TORCHLEAN_OK : tl_state_failed(tl_context_cuda(ctx), error, kernel);
}

extern "C" int32_t tl_cuda_failed(tl_context *ctx, cudaError_t error, const char *what)
{
    return tl_state_failed(tl_context_cuda(ctx), error, what);
}

extern "C" int32_t tl_cublas_failed(tl_context *ctx, cublasStatus_t error, const char *what)
{
    tl_cuda_state *state = tl_context_cuda(ctx);
    cudaError_t below = cudaGetLastError();
    if (error == CUBLAS_STATUS_ALLOC_FAILED || below == cudaErrorMemoryAllocation)
        return tl_fail(TORCHLEAN_NO_MEMORY, "%s: cuBLAS is out of memory", what);
    if (below != cudaSuccess) return tl_state_failed(state, below, what);
    if (error == CUBLAS_STATUS_EXECUTION_FAILED || error == CUBLAS_STATUS_INTERNAL_ERROR)
        return poison(state, TORCHLEAN_CUBLAS, what, cublasGetStatusString(error));
    return tl_fail(TORCHLEAN_CUBLAS, "%s: %s", what, cublasGetStatusString(error));
}

extern "C" int32_t tl_cufft_failed(tl_context *ctx, int error, const char *what)
{
    tl_cuda_state *state = tl_context_cuda(ctx);
    cudaError_t below = cudaGetLastError();
    enum { ALLOC_FAILED = 2, INTERNAL_ERROR = 5, EXEC_FAILED = 6 }; /* cufftResult; cufft.h is not included here */
    if (error == ALLOC_FAILED || below == cudaErrorMemoryAllocation)
        return tl_fail(TORCHLEAN_NO_MEMORY, "%s: cuFFT is out of memory", what);
    if (below != cudaSuccess) return tl_state_failed(state, below, what);
    char why[32];
    snprintf(why, sizeof why, "cuFFT result %d", error);
    if (error == INTERNAL_ERROR || error == EXEC_FAILED) return poison(state, TORCHLEAN_CUFFT, what, why);
    return tl_fail(TORCHLEAN_CUFFT, "%s: %s", what, why);
}

static int32_t open_blas(tl_context *ctx, tl_cuda_state *state)
{
    if (tl_cuda_host_captures(state))
        return tl_fail(TORCHLEAN_UNAVAILABLE,
                       "cuBLAS cannot be started during a host's capture; run the call once before");
    cublasHandle_t handle = nullptr;
    TL_CUBLAS_TRY(ctx, cublasCreate(&handle));
    /* Pedantic: neither TF32 nor emulation of float32 by narrower formats, whatever environment variables say. */
    cublasStatus_t error = cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH);
    if (error == CUBLAS_STATUS_SUCCESS) error = cublasSetAtomicsMode(handle, CUBLAS_ATOMICS_NOT_ALLOWED);
    if (error != CUBLAS_STATUS_SUCCESS) {
        cublasDestroy(handle);
        return tl_cublas_failed(ctx, error, "setting up cuBLAS");
    }
    state->blas = handle;
    state->blas_stream = nullptr; /* as a new handle has it */
    return TORCHLEAN_OK;
}

/* The workspace of the context's own stream, made once; on a host's one for the call, as two streams, or a graph and a stream, may not
 * have the same. Without one cuBLAS may choose kernels by what memory it finds, so results could differ. */
static int32_t find_workspace(tl_context *ctx, tl_cuda_state *state, void **workspace)
{
    if (state->adopted) return tl_pool_alloc_for_call(ctx, BLAS_WORKSPACE, workspace);
    int32_t status = TORCHLEAN_OK;
    if (!state->blas_workspace) {
        status = tl_cuda_malloc(state, BLAS_WORKSPACE, &state->blas_workspace);
        if (status == TORCHLEAN_NO_MEMORY && !(status = tl_pool_collect(ctx)))
            status = tl_cuda_malloc(state, BLAS_WORKSPACE, &state->blas_workspace);
    }
    *workspace = state->blas_workspace;
    return status;
}

/* The handle works on the context's stream, with that workspace. */
static int32_t aim_blas(tl_context *ctx, tl_cuda_state *state)
{
    const bool moved = state->blas_stream != state->stream;
    if (!moved && !state->adopted) return TORCHLEAN_OK;
    void *workspace;
    TL_TRY(find_workspace(ctx, state, &workspace));
    if (moved) TL_CUBLAS_TRY(ctx, cublasSetStream(state->blas, state->stream)); /* first: it resets the workspace */
    TL_CUBLAS_TRY(ctx, cublasSetWorkspace(state->blas, workspace, BLAS_WORKSPACE));
    state->blas_stream = state->stream;
    return TORCHLEAN_OK;
}

extern "C" cublasHandle_t tl_cuda_blas(tl_context *ctx, int32_t *status)
{
    tl_cuda_state *state = tl_context_cuda(ctx);
    *status = state->blas ? TORCHLEAN_OK : open_blas(ctx, state);
    if (!*status) *status = aim_blas(ctx, state);
    return *status ? nullptr : state->blas;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

extern "C" int32_t tl_cuda_malloc(tl_cuda_state *state, size_t bytes, void **p)
{
    *p = nullptr;
    TL_TRY(tl_state_enter(state));
    cudaError_t error = cudaMalloc(p, bytes);
    if (error != cudaSuccess) *p = nullptr;
    return error == cudaSuccess ? TORCHLEAN_OK : tl_state_failed(state, error, "cudaMalloc");
}

extern "C" void tl_cuda_free(tl_cuda_state *state, void *p)
{
    if (state->fork_serial == tl_fork_serial() && make_current(state->ordinal) == cudaSuccess) {
        cudaFree(p);
        cudaGetLastError();
    }
}

extern "C" int32_t tl_cuda_fill(tl_cuda_state *state, float *device, float value, int64_t n)
{
    TL_TRY(tl_state_enter(state));
    if (n == 0) return TORCHLEAN_OK;
    TRY(tl_start_with(nullptr, state->stream, fill_kernel, tl_grid(n, 256 * 4), 256, 0, device, value, n));
    return TORCHLEAN_OK;
}

/* ---- order between streams -------------------------------------------------------------------------------------- */

extern "C" uint64_t tl_cuda_stream_number(const tl_cuda_state *state) { return (uint64_t)(uintptr_t)state->stream; }

/* From the context's own stream to a host's and back its work is waited for, as the two share what lasts; a host's streams share
 * nothing that a launch changes. */
extern "C" int32_t tl_cuda_adopt(tl_cuda_state *state, int adopted, uint64_t stream)
{
    if (adopted != state->adopted) {
        TL_TRY(tl_state_enter(state));
        if (tl_cuda_host_captures(state))
            return tl_fail(TORCHLEAN_UNAVAILABLE,
                           "context: got a host's stream that is being captured, expected another");
        const tl_relaxed relaxed;
        TRY(adopted ? cudaStreamSynchronize(state->own) : cudaDeviceSynchronize());
        state->adopted = adopted;
        state->capturing = 0;
    }
    state->stream = adopted ? reinterpret_cast<cudaStream_t>((uintptr_t)stream) : state->own;
    return TORCHLEAN_OK;
}

/* While another stream is captured the legacy default one cannot be asked; what is queued there is refused then. */
extern "C" int tl_cuda_host_captures(const tl_cuda_state *state)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (!state->adopted || state->fork_serial != tl_fork_serial()) return 0;
    const cudaError_t error = cudaStreamIsCapturing(state->stream, &status);
    if (error == cudaSuccess) return status != cudaStreamCaptureStatusNone;
    cudaGetLastError();
    return error == cudaErrorStreamCaptureImplicit;
}

extern "C" int32_t tl_cuda_order(tl_cuda_state *state, uint64_t stream, int after)
{
    TL_TRY(tl_state_enter(state));
    const cudaStream_t other = reinterpret_cast<cudaStream_t>((uintptr_t)stream);
    cudaEvent_t event;
    TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaError_t error = cudaEventRecord(event, after ? other : state->stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(after ? state->stream : other, event, 0);
    cudaEventDestroy(event); /* when the streams have passed it */
    TRY(error);
    return TORCHLEAN_OK;
}

extern "C" void tl_cuda_event(tl_cuda_state *state, void **event)
{
    *event = nullptr;
    cudaEvent_t made;
    if (state->capturing || tl_cuda_host_captures(state) || tl_state_enter(state) ||
        cudaEventCreateWithFlags(&made, cudaEventDisableTiming) != cudaSuccess)
        return;
    if (cudaEventRecord(made, state->stream) == cudaSuccess)
        *event = made;
    else
        cudaEventDestroy(made);
    cudaGetLastError();
}

extern "C" int tl_cuda_event_passed(tl_cuda_state *state, void *event)
{
    if (state->fork_serial != tl_fork_serial() || make_current(state->ordinal) != cudaSuccess) return 1;
    const cudaEvent_t made = (cudaEvent_t)event;
    const tl_relaxed relaxed;
    const cudaError_t error = made ? cudaEventQuery(made) : cudaStreamQuery(state->stream);
    cudaGetLastError();
    if (error == cudaErrorNotReady) return 0;
    if (made) cudaEventDestroy(made);
    return 1;
}

/* ---- time marks ------------------------------------------------------------------------------------------------ */

extern "C" int32_t tl_cuda_mark(tl_cuda_state *state, uint32_t slot)
{
    TL_TRY(tl_state_enter(state));
    if (!state->marks[slot]) TRY(cudaEventCreate(&state->marks[slot]));
    TRY(cudaEventRecord(state->marks[slot], state->stream));
    state->marked[slot] = 1;
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_elapsed(tl_cuda_state *state, uint32_t from, uint32_t to, double *milliseconds)
{
    TL_TRY(tl_state_enter(state));
    if (!state->marked[from] || !state->marked[to])
        return tl_fail(TORCHLEAN_ARGUMENT, "mark %u was never recorded", state->marked[from] ? to : from);
    float elapsed = 0;
    TRY(cudaEventSynchronize(state->marks[from]));
    TRY(cudaEventSynchronize(state->marks[to]));
    TRY(cudaEventElapsedTime(&elapsed, state->marks[from], state->marks[to]));
    *milliseconds = elapsed;
    return TORCHLEAN_OK;
}
