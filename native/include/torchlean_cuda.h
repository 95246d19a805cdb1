/* torchlean_cuda.h: the core of the C ABI of libtorchlean_cuda.so.
 *
 * The library runs float32 tensor operations on a CUDA device or on the CPU; the device is chosen per context, at run
 * time, and both live in one library with the same exported symbols. This header holds status codes, contexts, buffers
 * and memory; torchlean_cuda_ops.h (generated) declares one function per operation.
 *
 * Conventions
 *   - Every function that can fail returns a status: 0 is success, anything else a code from the list below. The text of
 *     the calling thread's last failure is torchlean_cuda_last_error(). Nothing aborts, exits or prints.
 *   - A handle (torchlean_context *, _buffer *, _graph *) is a token, never an address: it is validated on every call, so
 *     a NULL, stale, released or made-up handle gives a status, not a crash.
 *   - An output is `torchlean_buffer **out`. If *out is NULL a buffer is allocated and stored there; otherwise *out must
 *     have exactly the right length, belong to the same context, and is overwritten. A refused call changes no output.
 *   - A list of buffers is an array of handles, all lists of a call having `count` of them, elements of the same index the
 *     same length; a list of outputs is an array of such `*out`. Where there is a list of outputs, an element of it may be
 *     an input of the same index. An empty list is legal, and its pointer may be NULL.
 *   - A buffer holds float32, an index buffer uint32 indices; where one is expected the other is refused with ARGUMENT. An index
 *     buffer may hold numbers that are out of range where it is used: they read 0 and are not written to, or as the
 *     operation says. An operation that takes a host array of indices has a twin, named ..._indexed, that takes an index buffer.
 *   - Lengths, dimensions and indices are uint32_t. Products of them are formed in 64 bits and checked.
 *   - Scalars are double and are rounded to float32 once, on entry. Every call computes to nearest, with subnormals and
 *     without traps, whatever the calling thread's floating-point mode is, and leaves that mode as it was.
 *   - Host arrays are aligned as their type asks.
 *   - CUDA work is asynchronous on the context's stream. Downloads and torchlean_cuda_context_synchronize wait.
 *   - All functions may be called from any thread; calls on one context are serialised. A signal handler that interrupts a
 *     call is refused with UNAVAILABLE by every function that would have to wait, on any context, and it must not fork. A
 *     thread that is cancelled (pthread_cancel) or left by longjmp within a call keeps what it has locked for ever: disable
 *     cancellation around calls.
 *   - A long call on a CPU context ends early when it is interrupted (torchlean_cuda_interrupt, _watch_signal): with INTERRUPTED,
 *     no new buffer, and anything at all in buffers and host arrays that it was given as outputs. One that has an input among
 *     its outputs runs to its end, and so do short calls.
 */
#ifndef TORCHLEAN_CUDA_H
#define TORCHLEAN_CUDA_H

#include <stdint.h>

/* The library's own files, which define TL_API, read the version where they need it: its hash is another with every operation. */
#ifndef TL_API
#define TL_API
#include "torchlean_cuda_version.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torchlean_context torchlean_context;
typedef struct torchlean_buffer torchlean_buffer;
typedef struct torchlean_graph torchlean_graph;

/* Status codes, in tens by theme. Pinned: a code never changes its meaning. */
enum {
    TORCHLEAN_OK = 0,
    TORCHLEAN_NULL = 10,        /* a required pointer or handle is NULL */
    TORCHLEAN_SHAPE = 20,       /* a length, dimension or rank does not fit */
    TORCHLEAN_OVERFLOW = 30,    /* a product of dimensions needs 2^32 elements or more */
    TORCHLEAN_DEVICE = 40,      /* buffers of different contexts in one call */
    TORCHLEAN_UNAVAILABLE = 50, /* no such device or build, a call that cannot be captured, a call within a call */
    TORCHLEAN_INDEX = 60,       /* an index or label out of range where the operation refuses it */
    TORCHLEAN_ARGUMENT = 70,    /* a scalar or option outside its domain */
    TORCHLEAN_ALIAS = 80,       /* an output shares storage with an input or another output, and may not */
    TORCHLEAN_RELEASED = 90,    /* a handle that was released, destroyed, or never issued */
    TORCHLEAN_NO_MEMORY = 100,  /* device or host memory exhausted, or the context's cap reached */
    TORCHLEAN_CUDA = 110,       /* the CUDA runtime or a kernel failed; the context is poisoned */
    TORCHLEAN_CUBLAS = 120,     /* cuBLAS failed */
    TORCHLEAN_CUFFT = 130,      /* cuFFT failed */
    TORCHLEAN_INTERNAL = 140,   /* a broken invariant: please report it */
    TORCHLEAN_INTERRUPTED = 150 /* an interrupt ended the call: make it again for its results */
};

/* The device number of the CPU path; CUDA devices count from 0. */
enum { TORCHLEAN_CPU = -1 };

/* How a context computes sums of products. FAST: as is fastest on its device. REPRODUCIBLE: as is defined, with the same bits on
 * every device, for any batch; operations without such a definition give the same bits in both. */
enum { TORCHLEAN_FAST = 0, TORCHLEAN_REPRODUCIBLE = 1 };

/* What an array of host memory holds. */
enum { TORCHLEAN_FLOAT32 = 0, TORCHLEAN_FLOAT64 = 1, TORCHLEAN_INT64 = 2, TORCHLEAN_UINT64 = 3 };

/* Memory of one context, in bytes and calls since its creation. */
typedef struct torchlean_memory {
    uint64_t live_bytes;         /* requested by live buffers and scratch, rounded to size classes */
    uint64_t peak_bytes;         /* highest live_bytes since creation or the last reset */
    uint64_t cached_bytes;       /* held by the pool for reuse */
    uint64_t cap_bytes;          /* limit on live_bytes + cached_bytes; 0 is no limit */
    uint64_t live_buffers;       /* buffer handles not yet released */
    uint64_t allocations;        /* requests the pool served */
    uint64_t driver_allocations; /* requests that went to the driver or the operating system */
} torchlean_memory;

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* Version as major*10000 + minor*100 + patch. */
TL_API uint32_t torchlean_cuda_version(void);
/* One line of "key=value" pairs separated by "; ": version, backend (cpu or cpu+cuda), compiler, cuda toolkit and
 * architectures, CPU variants. Static storage. */
TL_API const char *torchlean_cuda_build_info(void);
/* SHA-256, in hex, over all prototypes the library was compiled from. Bindings compare it with their own. */
TL_API const char *torchlean_cuda_abi_hash(void);
/* Which algorithm CUDA takes for a choice, as "name: reason", of numbers that native/src/cuda/explain.c lists. `device` holds five:
 * its multiprocessors, the bytes of shared memory of a block, ten times its compute capability, whether float64 has half the rate of
 * float32 or more, and whether the mode is REPRODUCIBLE. NULL without such a choice, with another `count`, for NULL, for sizes below
 * 1 and for numbers of 2^32 and more. Needs no GPU. For `tlrt explain`. */
TL_API const char *torchlean_cuda_explain(const char *choice, const int64_t *numbers, uint32_t count,
                                          const int64_t *device);
/* Text of the calling thread's last failure, "operation: argument: got X, expected Y"; "" if none. Thread-local. */
TL_API const char *torchlean_cuda_last_error(void);
/* Writes the text of the calling thread's latest failure with this status whose text was not taken yet, zero-terminated, cut to
 * capacity, and returns its length; "" and 0 if there is none. So a signal handler that makes failing calls and takes their
 * texts leaves that of the program which it interrupted between a call and this. A thread keeps 8 texts. */
TL_API uint32_t torchlean_cuda_take_error(int32_t status, char *text, uint32_t capacity);
/* The name of a status code, "SHAPE" for 20; "UNKNOWN" for a number that is none. */
TL_API const char *torchlean_cuda_status_name(int32_t status);
/* Name of the SIMD variant the CPU path runs: "base", "avx2" or "avx512". Same bits on all. */
TL_API const char *torchlean_cuda_cpu_variant(void);
/* Selects a SIMD variant by name, for tests; UNAVAILABLE if this processor or build lacks it. NULL picks the best. */
TL_API int32_t torchlean_cuda_set_cpu_variant(const char *name);
/* Number of threads of the CPU path, 1 or more. Same bits for every number. */
TL_API uint32_t torchlean_cuda_threads(void);
/* Sets the number of threads; 0 restores the default: TORCHLEAN_CPU_THREADS, else the processors this process may use. ARGUMENT
 * while a host's threads do the work: their number is set_parallel's. */
TL_API int32_t torchlean_cuda_set_threads(uint32_t threads);
/* The CPU path's work is done by the threads of a host from here on, and the library's own threads end: two pools whose idle threads
 * spin would take each other's processors. `run` is GOMP_parallel of GNU OpenMP, or does the same: it calls body(data) once in each
 * of `threads` threads, of which the caller is one, and returns when all have returned. It is asked for all `threads` at every job,
 * and not at all where one thread does: in small calls, and within the work of another call. `flags` is 0. torchlean_cuda_threads
 * is `threads`, 1 to 1024. NULL for `run` restores the library's own threads, with `threads` as in set_threads; so does a fork, in
 * the child, with as many as before. To set again what is set costs nothing. */
TL_API int32_t torchlean_cuda_set_parallel(void (*run)(void (*body)(void *), void *data, uint32_t threads,
                                                       uint32_t flags),
                                           uint32_t threads);

/* Interrupts the calls that run on CPU contexts, in all threads; calls made later run as ever. A signal handler may call it. */
TL_API void torchlean_cuda_interrupt(void);
/* From here on a signal interrupts the calling thread's calls, and theirs alone, beside what its handler does: while a long
 * call runs, a handler of the library stands before the one that is set. Nothing is done about a signal without a handler. One
 * thread of a process watches a signal, with the number 0 none. */
TL_API int32_t torchlean_cuda_watch_signal(int32_t number);

/* ---- devices and contexts ---------------------------------------------------------------------------------------- */

/* Number of usable CUDA devices: 0 in a CPU-only build and on a machine without a driver or GPU. Never fails. */
TL_API uint32_t torchlean_cuda_device_count(void);
/* Writes "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139.8 GiB" or "CPU, ..." to text, zero-terminated,
 * cut to capacity. UNAVAILABLE if there is no such device, with the reason. */
TL_API int32_t torchlean_cuda_device_describe(int32_t device, char *text, uint32_t capacity);
/* Creates a context on `device`: TORCHLEAN_CPU or a CUDA ordinal. */
TL_API int32_t torchlean_cuda_context_create(int32_t device, torchlean_context **out);
/* Destroys a context, its pool and every buffer in it. Destroying a destroyed context does nothing. */
TL_API int32_t torchlean_cuda_context_destroy(torchlean_context *context);
/* The device number the context was created on. */
TL_API int32_t torchlean_cuda_context_device(torchlean_context *context, int32_t *device);
/* Chooses how the context's calls compute from here on: TORCHLEAN_FAST or TORCHLEAN_REPRODUCIBLE. A new context does as the
 * environment variable TORCHLEAN_MATH says, "fast" (the default) or "reproducible". */
TL_API int32_t torchlean_cuda_context_set_math(torchlean_context *context, int32_t math);
/* How they compute now. */
TL_API int32_t torchlean_cuda_context_math(torchlean_context *context, int32_t *math);
/* Waits for all work of the context. Reports an error of earlier asynchronous work. */
TL_API int32_t torchlean_cuda_context_synchronize(torchlean_context *context);
/* Records time mark `slot` (0 to 7) in the context's stream (CUDA), or reads the clock (CPU). */
TL_API int32_t torchlean_cuda_context_mark(torchlean_context *context, uint32_t slot);
/* Milliseconds between two marks; waits for the later one. */
TL_API int32_t torchlean_cuda_context_elapsed(torchlean_context *context, uint32_t from, uint32_t to,
                                              double *milliseconds);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

TL_API int32_t torchlean_cuda_memory_stats(torchlean_context *context, torchlean_memory *out);
/* Sets peak_bytes to live_bytes. */
TL_API int32_t torchlean_cuda_memory_reset_peak(torchlean_context *context);
/* Limits live + cached bytes; 0 lifts the limit. A request beyond it collects once, then fails with NO_MEMORY. */
TL_API int32_t torchlean_cuda_memory_cap(torchlean_context *context, uint64_t bytes);
/* Returns all cached blocks to the driver or the operating system (waits for the stream first). */
TL_API int32_t torchlean_cuda_memory_collect(torchlean_context *context);

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* n elements of undefined content. */
TL_API int32_t torchlean_cuda_buffer_empty(torchlean_context *context, uint32_t n, torchlean_buffer **out);
/* n elements of +0. */
TL_API int32_t torchlean_cuda_buffer_zeros(torchlean_context *context, uint32_t n, torchlean_buffer **out);
/* n elements copied from host memory, which may be reused when the call returns. Bits are kept, NaN payloads included. */
TL_API int32_t torchlean_cuda_buffer_upload(torchlean_context *context, const float *host, uint32_t n,
                                            torchlean_buffer **out);
/* Copies all n elements to host memory; n must be the buffer's length. Waits for the context's work. */
TL_API int32_t torchlean_cuda_buffer_download(torchlean_buffer *buffer, float *host, uint32_t n);
/* An index buffer of n indices copied from host memory. _copy, _share, _release, _length, _context and _references take either. */
TL_API int32_t torchlean_cuda_index_upload(torchlean_context *context, const uint32_t *host, uint32_t n,
                                           torchlean_buffer **out);
/* Copies all n indices of an index buffer to host memory; n must be its length. Waits for the context's work. */
TL_API int32_t torchlean_cuda_index_download(torchlean_buffer *buffer, uint32_t *host, uint32_t n);
/* Sets every element to value, rounded to float32. */
TL_API int32_t torchlean_cuda_buffer_fill(torchlean_buffer *buffer, double value);
/* Rounds n numbers of host memory to float32 or float64 (`to_type`), once, to nearest. The arrays may not overlap. */
TL_API int32_t torchlean_cuda_convert(const void *from, int32_t from_type, uint64_t n, void *to, int32_t to_type);
/* A copy with storage of its own. */
TL_API int32_t torchlean_cuda_buffer_copy(torchlean_buffer *source, torchlean_buffer **out);
/* A second handle to the same storage (reshape, flatten, detach). Each handle is released on its own. *out must be NULL. */
TL_API int32_t torchlean_cuda_buffer_share(torchlean_buffer *source, torchlean_buffer **out);
/* Gives the handle back; the storage goes to the pool with its last handle. Releasing a released handle does nothing. */
TL_API int32_t torchlean_cuda_buffer_release(torchlean_buffer *buffer);
/* Number of elements. */
TL_API int32_t torchlean_cuda_buffer_length(torchlean_buffer *buffer, uint32_t *n);
/* The context the buffer belongs to. */
TL_API int32_t torchlean_cuda_buffer_context(torchlean_buffer *buffer, torchlean_context **context);
/* Number of live handles that share the buffer's storage, this one included. */
TL_API int32_t torchlean_cuda_buffer_references(torchlean_buffer *buffer, uint32_t *references);

/* ---- memory of others -------------------------------------------------------------------------------------------- */
/* DLPack's tensors (https://dmlc.github.io/dlpack), by which libraries lend each other memory: a DLManagedTensor, or, where
 * `versioned` is 1, a DLManagedTensorVersioned of version 1. */

/* A tensor over the buffer's storage, with `rank` lengths whose product is the buffer's length, row-major; its deleter, which any
 * thread may call, lets go of the storage. Others that write there change the buffer. Made for reading and writing by work
 * that is ordered after the context's (context_order). */
TL_API int32_t torchlean_cuda_buffer_lend(torchlean_buffer *buffer, const uint32_t *shape, uint32_t rank,
                                          int32_t versioned, void **tensor);
/* A buffer over a tensor's memory: float32, or uint32 for an index buffer, row-major without gaps, on the context's device,
 * aligned to 16 bytes, not read-only. Its deleter is called when no handle and no graph has the storage any more and the device
 * has done the work with it: by a later call on the context at the latest when it is destroyed. A tensor over memory that the
 * context has as a buffer already gives one more handle to that. Overlapping memory in one call is not noticed otherwise. When
 * the call fails the tensor is still the caller's. *out must be NULL. */
TL_API int32_t torchlean_cuda_buffer_borrow(torchlean_context *context, void *tensor, int32_t versioned,
                                            torchlean_buffer **out);
/* A buffer over n elements of the caller's memory: float32, or uint32 with is_index = 1, on the context's device, aligned to 16
 * bytes; `memory` may be NULL where n is 0. It stays the caller's: it must live until the handle is released, every graph that uses
 * it too, and on CUDA for the work that is queued by then. Handles to memory that begins at one address share storage, of whatever
 * lengths, types and origins they are; overlapping memory in one call is not noticed otherwise. *out must be NULL. */
TL_API int32_t torchlean_cuda_buffer_wrap(torchlean_context *context, void *memory, uint32_t n, int32_t is_index,
                                          torchlean_buffer **out);
/* The context works for a host from here on: on its CUDA stream (a cudaStream_t as a number, 0 for the legacy default one; 0 on a CPU
 * context), with memory for new buffers and scratch from allocate(user, bytes), best at multiples of 256 bytes, which is given back by
 * release(user, memory) as soon as nothing has it: nothing is cached. On CUDA the memory is ordered on the stream of the time, which
 * may not be the per-thread default one (2, ARGUMENT). NULL of allocate says NO_MEMORY. Both are called within calls on the context,
 * so they may make none.
 *
 * Called again with another stream it switches to that, and with the same arguments it does nothing: both may be done before every
 * call. The host puts its streams in order where work on one needs what another did, and keeps the last one given until the context
 * is destroyed or has another.
 *
 * Where the host captures the stream, calls become part of its graph, which needs the context for as long as it is launched. Refused
 * with UNAVAILABLE is then what capture_begin names below, and every operation with a host array of indices, for which there is its
 * twin with an index buffer; what keeps tables on the device (transforms, rotary positions, cuBLAS) must have run before with the
 * same sizes. capture_begin and graph_launch are refused with UNAVAILABLE as long as a CUDA context has a host.
 *
 * NULL for `allocate` and `release`, with stream 0, restores the context's own stream and memory. The first call on a CUDA context
 * waits for the context's work, and this one for the device's; it is refused with UNAVAILABLE during a capture. */
TL_API int32_t torchlean_cuda_context_adopt(torchlean_context *context, uint64_t stream,
                                            void *(*allocate)(void *user, uint64_t bytes),
                                            void (*release)(void *user, void *memory), void *user);
/* The context's CUDA stream as a number (a cudaStream_t), the host's where it has one; 0 on the CPU. */
TL_API int32_t torchlean_cuda_context_stream(torchlean_context *context, uint64_t *stream);
/* With after = 0, work that comes to the CUDA stream waits for what the context has queued so far; with 1 the context's next work
 * waits for the stream's. Nothing waits on the host. UNAVAILABLE on a CPU context. */
TL_API int32_t torchlean_cuda_context_order(torchlean_context *context, uint64_t stream, int32_t after);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */
/* On a CUDA context calls can be captured instead of run, and run later, any number of times, by one call.
 *
 * Between begin and end, calls of the capturing thread on the context queue nothing; those of other threads are refused
 * with UNAVAILABLE. Their checks are made as ever. Captured are the operations, buffer_zeros, _fill and _copy, with the
 * storage of their buffers and the values of their other arguments; host arrays are read once. Refused with UNAVAILABLE
 * are what needs host memory or waits: upload, download, synchronize, mark, elapsed, collect, operations whose results
 * are host arrays, launch, and a second begin; the capture goes on. A Fourier transform must have run before the capture
 * with the same sizes, as its plan cannot be made meanwhile. Making, sharing and releasing buffers works; a
 * buffer made meanwhile has undefined content until the graph is launched. A graph keeps the storage of every buffer
 * and all scratch that it uses, as live bytes, until it is released or its context destroyed. */

/* Starts a capture, after waiting for all work of the context. UNAVAILABLE on a CPU context. */
TL_API int32_t torchlean_cuda_capture_begin(torchlean_context *context);
/* Ends it and gives the graph; *out must be NULL, and a NULL `out` gives up what was captured. ARGUMENT if there is no
 * capture. If a captured call failed in its work there is no graph, and the status is UNAVAILABLE. */
TL_API int32_t torchlean_cuda_capture_end(torchlean_context *context, torchlean_graph **out);
/* Makes up to 16 buffers of together at most 64 KiB the inputs of the graph that is being captured, once a capture: at this
 * place each launch fills them with what graph_set gave, and with 0 until then. ARGUMENT where there is no capture, inputs
 * already, or too many. */
TL_API int32_t torchlean_cuda_capture_inputs(torchlean_context *context, torchlean_buffer *const *buffers,
                                             uint32_t count);
/* Gives an input, by its place among them, the n values that launches from now on fill it with. Work that is queued already
 * is not changed; nothing is queued. ARGUMENT unless the graph has such an input of n elements. */
TL_API int32_t torchlean_cuda_graph_set(torchlean_graph *graph, uint32_t input, const float *values, uint32_t n);
/* Queues the graph's work on the context's stream. */
TL_API int32_t torchlean_cuda_graph_launch(torchlean_graph *graph);
/* Number of its nodes: kernels, and copies and fills by the driver. */
TL_API int32_t torchlean_cuda_graph_nodes(torchlean_graph *graph, uint32_t *nodes);
/* Gives the graph back; work already queued is done. Releasing a released graph does nothing. */
TL_API int32_t torchlean_cuda_graph_release(torchlean_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
