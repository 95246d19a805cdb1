/* Captures of a context's stream, and the graphs they become. abi/graph.c keeps what a graph's kernels use alive. */
#include "cuda/runtime/state.cuh"

#include <stdlib.h>

struct tl_cuda_graph {
    cudaGraphExec_t run;
    uint32_t nodes;
};

/* Relaxed: memory may come from the driver meanwhile, and nothing that other threads do on streams of their own matters.
 * Work that is queued must be done first, as copies beside the stream go to memory it may still use. */
extern "C" int32_t tl_cuda_capture_begin(tl_cuda_state *state)
{
    TL_TRY(tl_cuda_synchronize(state));
    TRY(cudaStreamBeginCapture(state->stream, cudaStreamCaptureModeRelaxed));
    state->capturing = 1;
    return TORCHLEAN_OK;
}

/* Ends a capture that may have become invalid. */
static cudaError_t end_capture(tl_cuda_state *state, cudaGraph_t *graph)
{
    *graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(state->stream, graph);
    state->capturing = 0;
    return error;
}

extern "C" void tl_cuda_capture_drop(tl_cuda_state *state)
{
    cudaGraph_t graph;
    if (!state->capturing || state->fork_serial != tl_fork_serial()) return;
    cudaSetDevice(state->ordinal); /* a context may be destroyed from any thread */
    end_capture(state, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
}

extern "C" int32_t tl_cuda_capture_end(tl_cuda_state *state, tl_cuda_graph **out)
{
    cudaGraph_t graph;
    size_t nodes = 0;
    *out = nullptr;
    TRY(end_capture(state, &graph));
    tl_cuda_graph *made = (tl_cuda_graph *)calloc(1, sizeof *made);
    cudaError_t error = made ? cudaGraphGetNodes(graph, nullptr, &nodes) : cudaErrorMemoryAllocation;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&made->run, graph, 0);
    cudaGraphDestroy(graph);
    if (error == cudaSuccess) /* so that the first launch costs what the others do */
        error = cudaGraphUpload(made->run, state->stream);
    if (error != cudaSuccess) {
        if (made && made->run) cudaGraphExecDestroy(made->run);
        free(made);
        return tl_state_failed(state, error, "making a graph");
    }
    made->nodes = (uint32_t)nodes;
    *out = made;
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_graph_launch(tl_cuda_state *state, tl_cuda_graph *graph)
{
    TRY(cudaGraphLaunch(graph->run, state->stream));
    return TORCHLEAN_OK;
}

extern "C" uint32_t tl_cuda_graph_nodes(const tl_cuda_graph *graph) { return graph->nodes; }

/* The driver lets a launch that is under way come to its end first. */
extern "C" void tl_cuda_graph_free(tl_cuda_state *state, tl_cuda_graph *graph)
{
    if (state->fork_serial == tl_fork_serial()) {
        cudaSetDevice(state->ordinal);
        cudaGraphExecDestroy(graph->run);
        cudaGetLastError();
    }
    free(graph);
}
