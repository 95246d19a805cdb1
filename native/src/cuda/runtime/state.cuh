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
};

struct tl_graph_inputs; /* of runtime/graph.cu */

struct tl_attached {
    void *object;
    void (*close)(void *object);
};

struct tl_cuda_state {
    int32_t ordinal;
    uint32_t fork_serial;
    cudaStream_t stream;
    cudaStream_t beside; /* made when first needed: copies that must be done while the stream captures */
    int capturing;
    tl_graph_inputs *inputs; /* of the graph that is being captured */
    cublasHandle_t blas;
    void *blas_workspace;
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

#define TRY(expr) \
    do { \
        cudaError_t error_ = (expr); \
        if (error_ != cudaSuccess) \
            return tl_state_failed(state, error_, #expr); \
    } while (0)
