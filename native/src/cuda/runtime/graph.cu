/* Captures of a context's stream, and the graphs they become. abi/graph.c keeps what a graph's kernels use alive. */
#include "cuda/runtime/state.cuh"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* What the host gives for a launch lies in one of SLOTS pieces of pinned memory, launch after launch in the next one, and the first
 * kernel of a launch fetches it: nothing is queued but the launch. The kernel counts the launches itself, in `turn`, and tells
 * the host in `read` how many have read theirs: a piece is written again when the launch that it was for is among them. */
namespace {

constexpr uint32_t SLOTS = 8;
constexpr int FEED_THREADS = 1024, FLIGHT = TL_GRAPH_INPUT_BYTES / (FEED_THREADS * (int)sizeof(uint4));

struct feed {
    const uint4 *from;
    uint32_t stride; /* of the pieces, in 16 bytes */
    uint32_t count;
    uint32_t *turn, *read;
    uint32_t first[TL_GRAPH_INPUTS],
        n[TL_GRAPH_INPUTS]; /* of an input: its place in a piece, in 16 bytes; its elements */
    float *to[TL_GRAPH_INPUTS];
};

/* One block: a thread asks for all of its pieces of 16 bytes before it writes the first, as the bus answers late. */
__global__ void __launch_bounds__(FEED_THREADS) feed_kernel(const __grid_constant__ feed f)
{
    tl_wait_for_earlier();
    const uint32_t turn = *f.turn;
    const uint4 *from = f.from + turn % SLOTS * f.stride;
    uint4 v[FLIGHT];
    TL_UNROLL_FOR (int r = 0; r < FLIGHT; r++)
        if (threadIdx.x + r * FEED_THREADS < f.stride) v[r] = __ldcv(from + threadIdx.x + r * FEED_THREADS);
    uint32_t k = 0;
    TL_UNROLL_FOR (int r = 0; r < FLIGHT; r++) {
        const uint32_t at = threadIdx.x + r * FEED_THREADS;
        if (at >= f.stride) break;
        while (k + 1 < f.count && f.first[k + 1] <= at)
            k++;
        const uint32_t i = at - f.first[k], left = f.n[k] - 4 * i;
        if (left >= 4) {
            reinterpret_cast<uint4 *>(f.to[k])[i] = v[r];
        } else {
            const uint32_t words[3] = {v[r].x, v[r].y, v[r].z};
            for (uint32_t w = 0; w < left; w++)
                f.to[k][4 * i + w] = __uint_as_float(words[w]);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *f.turn = turn + 1;
        *(volatile uint32_t *)f.read = turn + 1;
    }
}

} /* namespace */

struct tl_graph_inputs {
    feed of;
    char *pinned;      /* the pieces, then `read` */
    uint32_t launched; /* launches queued */
    int written;       /* the piece of the next launch is free and has what the last one had */
};

struct tl_cuda_graph {
    cudaGraphExec_t run;
    uint32_t nodes;
    tl_graph_inputs *inputs; /* or NULL */
};

static void free_inputs(tl_graph_inputs *inputs)
{
    if (!inputs) return;
    if (inputs->pinned) cudaFreeHost(inputs->pinned);
    free(inputs);
}

extern "C" int32_t tl_cuda_capture_inputs(tl_cuda_state *state, float *const *targets, const uint32_t *lengths,
                                          uint32_t count, uint32_t *turn)
{
    tl_graph_inputs *made = (tl_graph_inputs *)calloc(1, sizeof *made);
    if (!made) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a graph's inputs");
    state->inputs = made; /* from here on the capture's, whatever happens */
    feed *of = &made->of;
    for (uint32_t i = 0; i < count; i++) {
        of->to[i] = targets[i], of->n[i] = lengths[i], of->first[i] = of->stride;
        of->stride += (lengths[i] + 3) / 4;
    }
    of->count = count, of->turn = turn;
    const size_t bytes = (size_t)of->stride * sizeof(uint4) * SLOTS;
    TRY(cudaHostAlloc((void **)&made->pinned, bytes + sizeof(uint32_t), cudaHostAllocDefault));
    memset(made->pinned, 0, bytes + sizeof(uint32_t));
    of->from = (const uint4 *)made->pinned;
    of->read = (uint32_t *)(made->pinned + bytes);
    TL_TRY(tl_state_send_beside(state, turn, of->read, sizeof(uint32_t)));
    TRY(tl_start_ahead(state->stream, state->launches_ahead, feed_kernel, 1, FEED_THREADS, 0, *of));
    return TORCHLEAN_OK;
}

static char *piece_of(const tl_graph_inputs *inputs, uint32_t launch)
{
    return inputs->pinned + (size_t)(launch % SLOTS) * inputs->of.stride * sizeof(uint4);
}

/* Waits until the launch that had the next launch's piece before has read it, and takes over what the last one had. */
static int32_t open_piece(tl_cuda_state *state, tl_graph_inputs *inputs)
{
    if (inputs->written) return TORCHLEAN_OK;
    for (uint32_t turns = 0; inputs->launched - __atomic_load_n(inputs->of.read, __ATOMIC_ACQUIRE) >= SLOTS; turns++) {
        if (turns % 64 == 63) {
            const cudaError_t error = cudaStreamQuery(state->own);
            if (error != cudaSuccess && error != cudaErrorNotReady)
                return tl_state_failed(state, error, "earlier work on the device");
            cudaGetLastError();
        }
        sched_yield();
    }
    if (inputs->of.count > 1)
        memcpy(piece_of(inputs, inputs->launched), piece_of(inputs, inputs->launched - 1),
               (size_t)inputs->of.stride * sizeof(uint4));
    inputs->written = 1;
    return TORCHLEAN_OK;
}

extern "C" uint32_t tl_cuda_graph_input(const tl_cuda_graph *graph, uint32_t input)
{
    return graph->inputs && input < graph->inputs->of.count ? graph->inputs->of.n[input] : 0;
}

extern "C" int32_t tl_cuda_graph_set(tl_cuda_state *state, tl_cuda_graph *graph, uint32_t input, const float *values)
{
    tl_graph_inputs *inputs = graph->inputs;
    TL_TRY(tl_state_enter(state));
    TL_TRY(open_piece(state, inputs));
    memcpy(piece_of(inputs, inputs->launched) + inputs->of.first[input] * sizeof(uint4), values,
           inputs->of.n[input] * sizeof(float));
    return TORCHLEAN_OK;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

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
    cudaGraph_t graph = nullptr;
    if (state->fork_serial != tl_fork_serial()) return;
    cudaSetDevice(state->ordinal); /* a context may be destroyed from any thread */
    if (state->capturing) end_capture(state, &graph);
    if (graph) cudaGraphDestroy(graph);
    free_inputs(state->inputs);
    state->inputs = nullptr;
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
    made->inputs = state->inputs;
    state->inputs = nullptr;
    *out = made;
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_graph_launch(tl_cuda_state *state, tl_cuda_graph *graph)
{
    tl_graph_inputs *inputs = graph->inputs;
    if (inputs) TL_TRY(open_piece(state, inputs));
    TRY(cudaGraphLaunch(graph->run, state->stream));
    if (inputs) inputs->launched++, inputs->written = 0;
    return TORCHLEAN_OK;
}

extern "C" uint32_t tl_cuda_graph_nodes(const tl_cuda_graph *graph) { return graph->nodes; }

/* The driver lets a launch that is under way come to its end first; the inputs' memory goes when it was read. */
extern "C" void tl_cuda_graph_free(tl_cuda_state *state, tl_cuda_graph *graph)
{
    if (state->fork_serial == tl_fork_serial()) {
        cudaSetDevice(state->ordinal);
        cudaGraphExecDestroy(graph->run);
        if (graph->inputs && *(volatile uint32_t *)graph->inputs->of.read != graph->inputs->launched)
            cudaStreamSynchronize(state->own);
        free_inputs(graph->inputs);
        cudaGetLastError();
    }
    free(graph);
}
