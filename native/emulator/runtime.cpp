/* The CUDA runtime's functions that src/cuda calls, for the emulated device: device memory is host memory, filled with NaN, and
 * what is queued on a stream is done at once, or kept where a graph is captured. */
#include "language.h"

#include <stdio.h>
#include <stdlib.h>

#include <vector>

namespace emulator {

namespace {

struct graph {
    std::vector<std::function<void()>> nodes;
};
thread_local graph *captured;
thread_local cudaStream_t captured_stream;

constexpr size_t ALIGNMENT = 256;

/* Handles of which only the address matters. */
template <class Handle> cudaError_t make_handle(Handle *handle)
{
    *handle = (Handle)malloc(1);
    return *handle ? cudaSuccess : cudaErrorMemoryAllocation;
}
template <class Handle> cudaError_t free_handle(Handle handle)
{
    free(handle);
    return cudaSuccess;
}

} // namespace

void queue(cudaStream_t stream, std::function<void()> work)
{
    if (captured && captured_stream == stream)
        captured->nodes.push_back(work);
    else
        work();
}

} // namespace emulator

using emulator::graph;

extern "C" {

/* ---- errors and devices ------------------------------------------------------------------------------------------------ */

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulated device";
}
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

/* One attribute's value; the multiprocessors are those of an H100 or H200, so that a launch has their grid. */
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio: *value = 2; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)emulator::SHARED_BYTES; break;
    default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    *properties = {};
    strcpy(properties->name, "emulated device");
    cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&properties->multiProcessorCount, cudaDevAttrMultiProcessorCount, 0);
    properties->totalGlobalMem = (size_t)4 << 30;
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = aligned_alloc(emulator::ALIGNMENT, (bytes + emulator::ALIGNMENT - 1) & -emulator::ALIGNMENT);
    if (!*p) return cudaErrorMemoryAllocation;
    memset(*p, 0xff, bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) { return free(p), cudaSuccess; }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
    emulator::queue(stream, [=] { memmove(to, from, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t stream)
{
    emulator::queue(stream, [=] { memset(p, byte, bytes); });
    return cudaSuccess;
}

/* ---- streams and events ------------------------------------------------------------------------------------------------ */

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return emulator::make_handle(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return emulator::free_handle(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return emulator::make_handle(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return emulator::make_handle(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return emulator::free_handle(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t)
{
    *milliseconds = 1; /* there is no device's time to tell */
    return cudaSuccess;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------------- */

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *)
{
    *attributes = {};
    attributes->maxDynamicSharedSizeBytes = (int)emulator::SHARED_BYTES;
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = attributes->binaryVersion = 80;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *, const cudaLaunchConfig_t *)
{
    *clusters = 0;
    return cudaSuccess;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    emulator::captured = new graph;
    emulator::captured_stream = stream;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    const bool is = emulator::captured && emulator::captured_stream == stream;
    *status = is ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *captured)
{
    *captured = (cudaGraph_t)emulator::captured;
    emulator::captured = nullptr;
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t of, cudaGraphNode_t *, size_t *count)
{
    *count = ((graph *)of)->nodes.size();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t of, unsigned long long)
{
    *made = (cudaGraphExec_t) new graph(*(graph *)of);
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t)
{
    for (const auto &node : ((graph *)made)->nodes)
        node();
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) { return delete (graph *)made, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t of) { return delete (graph *)of, cudaSuccess; }
}
