/* What the CUDA back end supplies to the core, and what the core supplies to it.
 *
 * A CUDA build links src/cuda; a CPU-only build links no_cuda.c instead, where the number of devices is 0 and the rest
 * returns UNAVAILABLE. All functions return a status and leave a message; the caller has made no device current. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tl_context tl_context;
/* The back end's part of a CUDA context: streams, library handles, rings. */
struct tl_cuda_state;
struct tl_cuda_graph;

/* ---- supplied by the core ---------------------------------------------------------------------------------------- */

/* NULL on the CPU. */
struct tl_cuda_state *tl_context_cuda(const tl_context *ctx);
/* TORCHLEAN_CPU or the CUDA ordinal. */
int32_t tl_context_ordinal(const tl_context *ctx);
/* Whether the context computes sums of products as they are defined (TORCHLEAN_REPRODUCIBLE). */
int tl_is_reproducible(const tl_context *ctx);
/* Memory in tenths of a GiB, rounded, whatever the floating-point mode. */
uint64_t tl_gib_tenths(uint64_t bytes);
/* How often this process has come out of a fork as the child: CUDA started under another number cannot be used. */
uint32_t tl_fork_serial(void);

/* ---- supplied by the back end: devices --------------------------------------------------------------------------- */

uint32_t tl_cuda_device_count(void);
const char *tl_cuda_build(void); /* "13.0; archs=sm_80,sm_90a,compute_90" or "" */
int32_t tl_cuda_device_describe(int32_t ordinal, char *text, uint32_t capacity);
int32_t tl_cuda_open(int32_t ordinal, struct tl_cuda_state **out);
void tl_cuda_close(struct tl_cuda_state *state);
/* The sticky status of the context's device work: OK, or the first CUDA error seen; UNAVAILABLE in a forked child. If OK,
 * the device is current on the calling thread afterwards, so kernels need not make it current. */
int32_t tl_cuda_health(struct tl_cuda_state *state);
/* Ends an operation: waits for its work and reports an error of it if TORCHLEAN_CUDA_SYNC=1, else returns OK. */
int32_t tl_cuda_after(struct tl_cuda_state *state);
int32_t tl_cuda_synchronize(struct tl_cuda_state *state);
int32_t tl_cuda_mark(struct tl_cuda_state *state, uint32_t slot);
int32_t tl_cuda_elapsed(struct tl_cuda_state *state, uint32_t from, uint32_t to, double *milliseconds);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

int32_t tl_cuda_malloc(struct tl_cuda_state *state, size_t bytes, void **p); /* NO_MEMORY is not sticky */
void tl_cuda_free(struct tl_cuda_state *state, void *p);
int32_t tl_cuda_upload(struct tl_cuda_state *state, void *device, const void *host, size_t bytes);
int32_t tl_cuda_download(struct tl_cuda_state *state, void *host, const void *device, size_t bytes);
int32_t tl_cuda_copy(struct tl_cuda_state *state, void *to, const void *from, size_t bytes);
int32_t tl_cuda_fill(struct tl_cuda_state *state, float *device, float value, int64_t n);

/* ---- order between streams ---------------------------------------------------------------------------------------- */

/* The stream as a number, as other libraries name it. */
uint64_t tl_cuda_stream_number(const struct tl_cuda_state *state);
/* Work goes to `stream`, a host's, from here on; with `adopted` = 0 to the context's own again. UNAVAILABLE with a message. */
int32_t tl_cuda_adopt(struct tl_cuda_state *state, int adopted, uint64_t stream);
/* Whether the stream is a host's that captures it: nothing may wait, and no host memory be read, that a launch would read again. */
int tl_cuda_host_captures(const struct tl_cuda_state *state);
/* Work that comes to `stream` waits for the context's work so far, or with `after` the context's for that of the stream. */
int32_t tl_cuda_order(struct tl_cuda_state *state, uint64_t stream, int after);
/* A mark behind the stream's work so far, into *event; NULL where there is none to be had, or during a capture. */
void tl_cuda_event(struct tl_cuda_state *state, void **event);
/* Whether the work before a mark is done; a mark that is passed is destroyed. A NULL mark is passed when all work is. */
int tl_cuda_event_passed(struct tl_cuda_state *state, void *event);

/* ---- captures: from begin on the stream's work is gathered, until end makes it a graph or drop forgets it --------- */

int32_t tl_cuda_capture_begin(struct tl_cuda_state *state);
int32_t tl_cuda_capture_end(struct tl_cuda_state *state, struct tl_cuda_graph **out);
void tl_cuda_capture_drop(struct tl_cuda_state *state);
/* Inputs of the graph to be, whose launches begin with filling them; `turn` is a number on the device that is theirs. */
enum { TL_GRAPH_INPUTS = 16, TL_GRAPH_INPUT_BYTES = 1 << 16 };
int32_t tl_cuda_capture_inputs(struct tl_cuda_state *state, float *const *targets, const uint32_t *lengths,
                               uint32_t count, uint32_t *turn);
/* How many values an input takes; 0 where there is none. */
uint32_t tl_cuda_graph_input(const struct tl_cuda_graph *graph, uint32_t input);
int32_t tl_cuda_graph_set(struct tl_cuda_state *state, struct tl_cuda_graph *graph, uint32_t input,
                          const float *values);
int32_t tl_cuda_graph_launch(struct tl_cuda_state *state, struct tl_cuda_graph *graph);
uint32_t tl_cuda_graph_nodes(const struct tl_cuda_graph *graph);
void tl_cuda_graph_free(struct tl_cuda_state *state, struct tl_cuda_graph *graph);

#ifdef __cplusplus
}
#endif
