/* The CUDA state of a context, which runtime/device.cu owns and runtime/transfer.cu and graph.cu use. Launchers see
 * runtime/launch.cuh only. */
#pragma once

#include "cuda/runtime/launch.cuh"

enum { TL_PIECES = 4, TL_MARKS = 8 };

/* Pinned memory in pieces that are reused in turn, each once the copy that used it last is done. */
struct tl_pinned {
    char *memory;
    cudaEvent_t done[TL_PIECES];
    int used[TL_PIECES];
    int current;
    size_t offset;
    cudaStream_t stream; /* of the copies from the current piece of a ring */
};

struct tl_graph_inputs; /* of runtime/graph.cu */

struct tl_attached {
    void *object;
    void (*close)(void *object);
};

struct tl_cuda_state {
    int32_t ordinal;
    uint32_t fork_serial;
    cudaStream_t stream; /* that of the context's work: its own, or a host's */
    cudaStream_t own;
    cudaStream_t beside;     /* made when first needed: copies that must be done while the stream captures */
    int adopted;             /* the stream is a host's */
    int capturing;           /* it is being captured, by the context or, while a call runs, by the host */
    tl_graph_inputs *inputs; /* of the graph that is being captured */
    cublasHandle_t blas;
    cudaStream_t blas_stream; /* that the handle has now */
    void *blas_workspace;     /* of the context's own stream */
    int sms, double_is_fast, chains_are_fast, launches_ahead;
    cudaEvent_t marks[TL_MARKS];
    int marked[TL_MARKS];
    tl_pinned ring, staging;
    char *small; /* SMALL pinned bytes behind the ring, for small downloads */
    tl_attached attached[TL_ATTACHMENTS];
    int32_t status; /* the poison */
    char message[256];
};

/* What every call of the device does first: refuses a forked child and a poisoned context, makes the device current. */
int32_t tl_state_enter(tl_cuda_state *state);
/* The status of a runtime error, with its message. Poisons the context unless it is only out of memory. */
int32_t tl_state_failed(tl_cuda_state *state, cudaError_t error, const char *what);
void tl_close_pinned(tl_pinned *p);
/* The copy that a captured call reads at every launch: made now, beside the stream, into memory that the graph keeps. That
 * memory is idle, as a capture begins when all work is done. */
int32_t tl_state_send_beside(tl_cuda_state *state, void *device, const void *host, size_t bytes);

/* Within, the calling thread may ask for what ends captures of the mode "global" otherwise: memory, whether an event has passed. None
 * of it is work of a stream that is captured. */
struct tl_relaxed {
    tl_relaxed() { cudaThreadExchangeStreamCaptureMode(&mode); }
    tl_relaxed(const tl_relaxed &) = delete;
    ~tl_relaxed() { cudaThreadExchangeStreamCaptureMode(&mode); }
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
};

#define TRY(expr) \
    do { \
        cudaError_t error_ = (expr); \
        if (error_ != cudaSuccess) \
            return tl_state_failed(state, error_, #expr); \
    } while (0)
