/* What a CPU-only build links instead of src/cuda: no devices, and UNAVAILABLE for anything asked of one. */
#include "backend.h"
#include "errors.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

static int32_t unavailable(void)
{
    return tl_fail(TORCHLEAN_UNAVAILABLE, "device: got a CUDA ordinal, expected -1 (CPU), as this library was built "
                                          "without CUDA; `make cuda` builds one with it");
}

uint32_t tl_cuda_device_count(void) { return 0; }
const char *tl_cuda_build(void) { return ""; }
int32_t tl_cuda_device_describe(int32_t ordinal, char *text, uint32_t capacity) { return unavailable(); }

int32_t tl_cuda_open(int32_t ordinal, struct tl_cuda_state **out)
{
    *out = NULL;
    return unavailable();
}

/* No context has a state, so nothing below is ever reached. */
void tl_cuda_close(struct tl_cuda_state *state) {}
int32_t tl_cuda_malloc(struct tl_cuda_state *state, size_t bytes, void **p)
{
    *p = NULL;
    return unavailable();
}
void tl_cuda_free(struct tl_cuda_state *state, void *p) {}
int32_t tl_cuda_synchronize(struct tl_cuda_state *state) { return unavailable(); }
int32_t tl_cuda_upload(struct tl_cuda_state *state, void *to, const void *from, size_t bytes) { return unavailable(); }
int32_t tl_cuda_download(struct tl_cuda_state *state, void *to, const void *from, size_t bytes)
{
    return unavailable();
}
int32_t tl_cuda_copy(struct tl_cuda_state *state, void *to, const void *from, size_t bytes) { return unavailable(); }
int32_t tl_cuda_fill(struct tl_cuda_state *state, float *device, float value, int64_t n) { return unavailable(); }
int32_t tl_cuda_mark(struct tl_cuda_state *state, uint32_t slot) { return unavailable(); }
int32_t tl_cuda_elapsed(struct tl_cuda_state *state, uint32_t from, uint32_t to, double *ms) { return unavailable(); }
int32_t tl_cuda_health(struct tl_cuda_state *state) { return unavailable(); }
int32_t tl_cuda_after(struct tl_cuda_state *state) { return unavailable(); }
uint64_t tl_cuda_stream_number(const struct tl_cuda_state *state) { return 0; }
int32_t tl_cuda_adopt(struct tl_cuda_state *state, int adopted, uint64_t stream) { return unavailable(); }
int tl_cuda_host_captures(const struct tl_cuda_state *state) { return 0; }
int32_t tl_cuda_order(struct tl_cuda_state *state, uint64_t stream, int after) { return unavailable(); }
void tl_cuda_event(struct tl_cuda_state *state, void **event) { *event = NULL; }
int tl_cuda_event_passed(struct tl_cuda_state *state, void *event) { return 1; }
int32_t tl_cuda_capture_begin(struct tl_cuda_state *state) { return unavailable(); }
int32_t tl_cuda_capture_end(struct tl_cuda_state *state, struct tl_cuda_graph **out) { return unavailable(); }
void tl_cuda_capture_drop(struct tl_cuda_state *state) {}
int32_t tl_cuda_capture_inputs(struct tl_cuda_state *state, float *const *targets, const uint32_t *lengths,
                               uint32_t count, uint32_t *turn)
{
    return unavailable();
}
uint32_t tl_cuda_graph_input(const struct tl_cuda_graph *graph, uint32_t input) { return 0; }
int32_t tl_cuda_graph_set(struct tl_cuda_state *state, struct tl_cuda_graph *graph, uint32_t input, const float *values)
{
    return unavailable();
}
int32_t tl_cuda_graph_launch(struct tl_cuda_state *state, struct tl_cuda_graph *graph) { return unavailable(); }
uint32_t tl_cuda_graph_nodes(const struct tl_cuda_graph *graph) { return 0; }
void tl_cuda_graph_free(struct tl_cuda_state *state, struct tl_cuda_graph *graph) {}
