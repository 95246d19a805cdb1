/* A CUDA device for core_test, in host memory: what src/cuda supplies to the core, so that the core's part of a context of a
 * device, of captures and of graphs runs without one. It counts what it has given out and fails on demand. */
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/errors.h"
#include "core_test.h"

struct tl_cuda_state {
    int capturing;
    uint32_t nodes, input; /* of the capture; the length of its last input */
    int adopted;
    uint64_t stream; /* of the host */
};

struct tl_cuda_graph {
    uint32_t nodes, input;
};

int fake_cuda_blocks, fake_cuda_graphs, fake_cuda_busy, fake_cuda_host_captures, fake_realloc_fails;
static int32_t failure;
static int calls_before;

void fake_cuda_fail(int32_t status, int calls)
{
    failure = status;
    calls_before = calls;
}

static int32_t outcome(void)
{
    if (!failure || calls_before-- > 0) return TORCHLEAN_OK;
    const int32_t status = failure;
    failure = 0;
    return tl_fail(status, "the device says no");
}

/* The linker gives these to those that ask for realloc (native/Makefile). */
void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes) { return fake_realloc_fails ? NULL : __real_realloc(p, bytes); }

uint32_t tl_cuda_device_count(void) { return 1; }
const char *tl_cuda_build(void) { return "fake"; }

static int32_t absent(int32_t ordinal)
{
    return ordinal ? tl_fail(TORCHLEAN_UNAVAILABLE, "device: got %d, expected 0", ordinal) : TORCHLEAN_OK;
}

int32_t tl_cuda_device_describe(int32_t ordinal, char *text, uint32_t capacity)
{
    if (capacity) *text = 0;
    return absent(ordinal);
}

int32_t tl_cuda_open(int32_t ordinal, struct tl_cuda_state **out)
{
    if (absent(ordinal)) return TORCHLEAN_UNAVAILABLE;
    *out = calloc(1, sizeof **out);
    return *out ? TORCHLEAN_OK : TORCHLEAN_NO_MEMORY;
}

void tl_cuda_close(struct tl_cuda_state *state) { free(state); }

int32_t tl_cuda_malloc(struct tl_cuda_state *state, size_t bytes, void **p)
{
    (void)state;
    const int32_t status = outcome();
    *p = status ? NULL : malloc(bytes);
    fake_cuda_blocks += *p != NULL;
    return status ? status : *p ? TORCHLEAN_OK : TORCHLEAN_NO_MEMORY;
}

void tl_cuda_free(struct tl_cuda_state *state, void *p)
{
    (void)state;
    fake_cuda_blocks--;
    free(p);
}

int32_t tl_cuda_synchronize(struct tl_cuda_state *state) { return state->capturing ? TORCHLEAN_CUDA : outcome(); }

/* Work on the stream. */
static int32_t move(struct tl_cuda_state *state, void *to, const void *from, size_t bytes)
{
    state->nodes += state->capturing != 0;
    const int32_t status = outcome();
    if (!status) memcpy(to, from, bytes);
    return status;
}

int32_t tl_cuda_upload(struct tl_cuda_state *s, void *to, const void *from, size_t n) { return move(s, to, from, n); }
int32_t tl_cuda_download(struct tl_cuda_state *s, void *to, const void *from, size_t n) { return move(s, to, from, n); }
int32_t tl_cuda_copy(struct tl_cuda_state *s, void *to, const void *from, size_t n) { return move(s, to, from, n); }

int32_t tl_cuda_fill(struct tl_cuda_state *state, float *device, float value, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        device[i] = value;
    return move(state, device, &value, 0);
}

int32_t tl_cuda_mark(struct tl_cuda_state *state, uint32_t slot)
{
    return slot < 8 && state ? outcome() : TORCHLEAN_CUDA;
}
int32_t tl_cuda_elapsed(struct tl_cuda_state *state, uint32_t from, uint32_t to, double *ms)
{
    *ms = (double)to - (double)from;
    return state ? outcome() : TORCHLEAN_CUDA;
}
int32_t tl_cuda_health(struct tl_cuda_state *state) { return state ? TORCHLEAN_OK : TORCHLEAN_CUDA; }
int32_t tl_cuda_after(struct tl_cuda_state *state) { return state ? TORCHLEAN_OK : TORCHLEAN_CUDA; }

uint64_t tl_cuda_stream_number(const struct tl_cuda_state *state)
{
    return state->adopted ? state->stream : (uint64_t)(uintptr_t)state;
}
int32_t tl_cuda_adopt(struct tl_cuda_state *state, int adopted, uint64_t stream)
{
    const int32_t status = outcome();
    if (!status) state->adopted = adopted, state->stream = stream;
    return status;
}
int tl_cuda_host_captures(const struct tl_cuda_state *state) { return state->adopted && fake_cuda_host_captures; }
int32_t tl_cuda_order(struct tl_cuda_state *state, uint64_t stream, int after)
{
    return state && stream != 13 && after < 2 ? outcome() : TORCHLEAN_CUDA;
}
void tl_cuda_event(struct tl_cuda_state *state, void **event)
{
    *event = state->capturing ? NULL : (void *)&fake_cuda_busy;
}
int tl_cuda_event_passed(struct tl_cuda_state *state, void *event)
{
    return state && (!event || event == &fake_cuda_busy) && !fake_cuda_busy;
}

int32_t tl_cuda_capture_begin(struct tl_cuda_state *state)
{
    const int32_t status = outcome();
    state->capturing = !status;
    state->nodes = 0;
    return status;
}

int32_t tl_cuda_capture_end(struct tl_cuda_state *state, struct tl_cuda_graph **out)
{
    const int32_t status = outcome();
    if (status) return status;
    state->capturing = 0;
    *out = calloc(1, sizeof **out);
    (*out)->nodes = state->nodes;
    (*out)->input = state->input;
    state->input = 0;
    fake_cuda_graphs++;
    return TORCHLEAN_OK;
}

void tl_cuda_capture_drop(struct tl_cuda_state *state) { state->capturing = 0; }
int32_t tl_cuda_capture_inputs(struct tl_cuda_state *state, float *const *targets, const uint32_t *lengths,
                               uint32_t count, uint32_t *turn)
{
    const int32_t status = outcome();
    state->nodes += !status;
    state->input = lengths[count - 1];
    return targets && turn ? status : TORCHLEAN_CUDA;
}
uint32_t tl_cuda_graph_input(const struct tl_cuda_graph *graph, uint32_t input) { return input ? 0 : graph->input; }
int32_t tl_cuda_graph_set(struct tl_cuda_state *state, struct tl_cuda_graph *graph, uint32_t input, const float *values)
{
    return state && graph && !input && values ? outcome() : TORCHLEAN_CUDA;
}
int32_t tl_cuda_graph_launch(struct tl_cuda_state *state, struct tl_cuda_graph *graph)
{
    return state && graph ? outcome() : TORCHLEAN_CUDA;
}
uint32_t tl_cuda_graph_nodes(const struct tl_cuda_graph *graph) { return graph->nodes; }

void tl_cuda_graph_free(struct tl_cuda_state *state, struct tl_cuda_graph *graph)
{
    (void)state;
    fake_cuda_graphs--;
    free(graph);
}
