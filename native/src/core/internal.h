/* What the library's layers share: the context, the pool, host threads, and the checks of the entry points.
 *
 * abi/ owns everything declared here. A kernel in cpu/ or cuda/ gets a locked, healthy context and arguments that are
 * already checked; it may use the pool (scratch) and, on the CPU, the thread pool, and nothing else of this file. */
#ifndef TL_INTERNAL_H
#define TL_INTERNAL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#undef TL_API
#define TL_API __attribute__((visibility("default")))
#include "torchlean_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of inputs and outputs that are no elements of lists. */
enum { TL_MAX_RANK = 8, TL_MAX_INPUTS = 16, TL_MAX_OUTPUTS = 16 };

typedef struct tl_context tl_context;

/* Per-variant names: every file in cpu/ is compiled once per SIMD variant with -DTL_VARIANT=_base, _avx2 or _avx512. */
#define TL_V2(name, variant) name##variant
#define TL_V1(name, variant) TL_V2(name, variant)
#ifdef TL_VARIANT
#define TL_V(name) TL_V1(name, TL_VARIANT)
#endif

/* A dimension list as kernels see it (outermost first). Passed by value to CUDA kernels. */
typedef struct tl_dims {
    int32_t rank;
    int64_t d[TL_MAX_RANK];
} tl_dims;

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Stores the calling thread's message (printf-like, cut to 511 characters) and returns `status`. */
int32_t tl_fail(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- the pool: scratch for kernels, storage for buffers ----------------------------------------------------------- */

/* Device memory of the context (256-byte aligned), from the cache when a block of the size class is there. bytes = 0
 * gives a valid, distinct pointer. Fails with NO_MEMORY and a message; *p is then NULL. Called with the context locked. */
int32_t tl_pool_alloc(tl_context *ctx, size_t bytes, void **p);
/* Returns a block; work already queued on the context's stream may still use it. NULL does nothing. */
void tl_pool_free(tl_context *ctx, void *p);
/* Memory for a copy of host data that a captured call will read at every launch of the graph, which keeps it. */
int32_t tl_pool_alloc_constant(tl_context *ctx, size_t bytes, void **p);
/* Returns the cached blocks to the driver, after waiting for the stream: for when a library's own allocation failed. Does
 * nothing while calls are captured. */
int32_t tl_pool_collect(tl_context *ctx);

/* ---- host threads ------------------------------------------------------------------------------------------------- */

typedef void (*tl_task_fn)(void *arg, int64_t task, int32_t worker);
/* Runs fn(arg, task, worker) for task 0..tasks-1 and returns when all are done. Which worker runs which task is not
 * fixed, so results may not depend on it: cut tasks by the data's shape, never by the number of workers. Called from
 * inside one of several tasks, or while another thread's tasks run, it runs all tasks on the caller (worker 0); inside a
 * single task it may still spread out. */
void tl_parallel(int64_t tasks, tl_task_fn fn, void *arg);
/* worker is always in 0..tl_workers()-1 */
int32_t tl_workers(void);
/* memcpy, cut into tasks when it is large. */
void tl_copy(void *to, const void *from, size_t bytes);
/* Default rounding, no flush to zero, on the calling thread; entry points and workers see to it, kernels need not. */
void tl_standard_float_mode(void);

/* ---- the device of a context -------------------------------------------------------------------------------------- */

/* TORCHLEAN_CPU or the CUDA ordinal. */
int32_t tl_context_ordinal(const tl_context *ctx);
/* Backend state of a CUDA context (streams, handles, rings): defined in cuda/runtime/device.cu, NULL on the CPU. */
struct tl_cuda_state;
struct tl_cuda_state *tl_context_cuda(const tl_context *ctx);

/* What a CUDA build supplies to abi/ (cuda/runtime/device.cu); a CPU-only build links abi/no_cuda.c instead, where the count is 0
 * and the rest returns UNAVAILABLE. All return a status and leave a message; the caller has made no device current. */
uint32_t tl_cuda_device_count(void);
const char *tl_cuda_build(void); /* "13.0; archs=sm_80,sm_90a,compute_90" or "" */
int32_t tl_cuda_device_describe(int32_t ordinal, char *text, uint32_t capacity);
int32_t tl_cuda_open(int32_t ordinal, struct tl_cuda_state **out);
void tl_cuda_close(struct tl_cuda_state *state);
int32_t tl_cuda_malloc(struct tl_cuda_state *state, size_t bytes, void **p); /* NO_MEMORY is not sticky */
void tl_cuda_free(struct tl_cuda_state *state, void *p);
int32_t tl_cuda_synchronize(struct tl_cuda_state *state);
int32_t tl_cuda_upload(struct tl_cuda_state *state, void *device, const void *host, size_t bytes);
int32_t tl_cuda_download(struct tl_cuda_state *state, void *host, const void *device, size_t bytes);
int32_t tl_cuda_copy(struct tl_cuda_state *state, void *to, const void *from, size_t bytes);
int32_t tl_cuda_fill(struct tl_cuda_state *state, float *device, float value, int64_t n);
int32_t tl_cuda_mark(struct tl_cuda_state *state, uint32_t slot);
int32_t tl_cuda_elapsed(struct tl_cuda_state *state, uint32_t from, uint32_t to, double *milliseconds);
/* The sticky status of the context's device work: OK, or the first CUDA error seen; UNAVAILABLE in a forked child. If OK,
 * the device is current on the calling thread afterwards, so kernels need not see to it. */
int32_t tl_cuda_health(struct tl_cuda_state *state);
/* Ends an operation: waits for its work and reports an error of it if TORCHLEAN_CUDA_SYNC=1, else returns OK. */
int32_t tl_cuda_after(struct tl_cuda_state *state);
/* Captures: from begin on the stream's work is gathered, until end makes it a graph or drop forgets it. */
struct tl_cuda_graph;
int32_t tl_cuda_capture_begin(struct tl_cuda_state *state);
int32_t tl_cuda_capture_end(struct tl_cuda_state *state, struct tl_cuda_graph **out);
void tl_cuda_capture_drop(struct tl_cuda_state *state);
int32_t tl_cuda_graph_launch(struct tl_cuda_state *state, struct tl_cuda_graph *graph);
uint32_t tl_cuda_graph_nodes(const struct tl_cuda_graph *graph);
void tl_cuda_graph_free(struct tl_cuda_state *state, struct tl_cuda_graph *graph);
/* How often this process has come out of a fork as the child: CUDA started under another number cannot be used. */
uint32_t tl_fork_serial(void);

/* ---- entry points: checks, then dispatch ---------------------------------------------------------------------------
 * The generated entry points read as a list of calls below. The first failure sticks in call.status; everything after it
 * is a no-op, so an entry point needs no branches. tl_begin allocates the outputs after all checks have passed, and
 * tl_end stores them in the caller's slots only if the kernel succeeded. */

typedef struct tl_call_input {
    const char *name;
    struct tl_block *storage;
    int64_t index; /* in its list, else -1 */
} tl_call_input;

typedef struct tl_call_output {
    const char *name;
    torchlean_buffer **slot;
    struct tl_block *storage; /* of a buffer the caller supplied, else of the one tl_begin made */
    float *data;
    uint64_t n;
    int64_t index;          /* in its list, else -1 */
    struct tl_buffer *made; /* by tl_begin; tl_end stores its handle in the slot or releases it */
    int8_t fresh, wanted;
} tl_call_output;

typedef struct tl_call {
    const char *op; /* the exported name */
    tl_context *ctx;
    int32_t status;
    int8_t elementwise; /* an output may be an input, in lists that of the same index */
    int8_t began;       /* tl_begin passed: a failure from here on is one of the work */
    int64_t inputs, outputs, input_room, output_room;
    tl_call_input *in;   /* few_in, or with lists in `memory` */
    tl_call_output *out; /* few_out, or with lists in `memory` */
    struct {
        uint32_t count;        /* elements of each */
        int32_t inputs, outputs; /* lists met so far */
        const char *first;     /* the name of the first, whose elements' lengths are everyone's */
        int64_t *lengths;
        float **data; /* the lists' data pointers, inputs before outputs */
        void *memory; /* of everything here; tl_end frees it */
    } list;
    uint64_t saved_mode; /* the caller's floating-point mode where tl_begin had to change it, else 0 */
    tl_call_input few_in[TL_MAX_INPUTS];
    tl_call_output few_out[TL_MAX_OUTPUTS];
} tl_call;

/* Opens a call on the context of `first`, the operation's first buffer (its argument name for the message), and locks
 * the context. */
void tl_enter(tl_call *call, const char *op, const char *name, torchlean_buffer *first);
/* Opens a call of an operation that takes its context explicitly. */
void tl_enter_context(tl_call *call, const char *op, torchlean_context *context);

/* The product of `count` dimensions; any zero gives 0; 2^32 or more gives UINT64_MAX, which tl_input and tl_output refuse
 * with OVERFLOW. */
uint64_t tl_product(const uint64_t *factors, int32_t count);
#define TL_PRODUCT(...) \
    tl_product((const uint64_t[]){__VA_ARGS__}, (int32_t)(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))
uint64_t tl_dims_product(const tl_dims *dims);

/* Length of a live buffer of the call's context (elementwise operations take their size from their first buffer). */
uint64_t tl_length(tl_call *call, const char *name, torchlean_buffer *buffer);
/* Checks an input: live, of the call's context, exactly n elements; `expected` spells n ("batch*m*n"). Returns its data. */
const float *tl_input(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected, uint64_t n);
/* The same, but a NULL handle is allowed and gives NULL. */
const float *tl_input_optional(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected, uint64_t n);
/* Declares an output of n elements. */
void tl_output(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n);
/* The same, but a NULL slot means the caller does not want this output; the kernel gets a NULL pointer for it. */
void tl_output_optional(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n);
/* Makes room for lists of `count` buffers each, none of them NULL (tl_host); comes before the first input. */
void tl_lists(tl_call *call, int32_t inputs, int32_t outputs, uint32_t count);
/* Checks an input list: elements live, of the call's context, of the lengths of the first list's. Returns their data. */
const float *const *tl_input_list(tl_call *call, const char *name, torchlean_buffer *const *list);
/* Declares a list of outputs, of the lengths of the first input list; NULL elements are allocated. */
void tl_output_list(tl_call *call, const char *name, torchlean_buffer **slots);
/* A host array argument: NULL is refused unless count is 0. */
void tl_host(tl_call *call, const char *name, const void *array, uint64_t count);
/* Reads a dimension list (rank at most TL_MAX_RANK, at least min_rank). */
tl_dims tl_read_dims(tl_call *call, const char *name, const uint32_t *dims, uint32_t rank, uint32_t min_rank);
/* Fails with `status` and "op: name: message" unless ok; the message is printf-like. */
void tl_require(tl_call *call, int ok, int32_t status, const char *name, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Fails with UNAVAILABLE while the context's calls are captured: for calls that cannot be. */
void tl_uncaptured(tl_call *call);
/* Rounds a scalar to float32; NaN and infinities pass. */
float tl_scalar(double value);

/* True when every check passed, the outputs are allocated, and at least one wanted output has elements. */
int tl_begin(tl_call *call);
/* The same for an operation whose outputs are host arrays: true when every check passed. */
int tl_begin_host(tl_call *call);
/* Data of output i after tl_begin; NULL if it is not wanted. */
float *tl_out(const tl_call *call, int32_t i);
/* Data of output list i after tl_begin. */
float *const *tl_out_list(const tl_call *call, int32_t i);
/* Stores fresh outputs (or releases them on failure), unlocks the context, returns the status. */
int32_t tl_end(tl_call *call);

/* ---- dispatch ------------------------------------------------------------------------------------------------------ */

/* One function pointer per operation (generated, abi/kernels.h); tl_cpu points to the table of the chosen variant. */
struct tl_cpu_kernels;
extern const struct tl_cpu_kernels *tl_cpu;
extern const struct tl_cpu_kernels tl_cpu_kernels_base;
#if defined(__x86_64__)
extern const struct tl_cpu_kernels tl_cpu_kernels_avx2, tl_cpu_kernels_avx512;
#endif

/* TL_KERNEL(&call, bmm)(call.ctx, ...) runs the operation on the call's device. */
#ifdef TL_WITH_CUDA
#define TL_KERNEL(call, op) (tl_context_ordinal((call)->ctx) == TORCHLEAN_CPU ? tl_cpu->op : tl_cuda_##op)
#else
#define TL_KERNEL(call, op) (tl_cpu->op)
#endif

#ifdef __cplusplus
}
#endif
#endif
