/* The functions that the entry points are made of: checks, then dispatch.
 *
 * The generated entry points read as a list of calls below. The first failure sticks in call.status; everything after it
 * does nothing, so an entry point needs no branches. tl_begin allocates the outputs after all checks have passed, and
 * tl_end stores them in the caller's slots only if the kernel succeeded. */
#pragma once

#include "dims.h"
#include "objects.h"

/* Of inputs and outputs that are no elements of lists. */
enum { TL_MAX_INPUTS = 16, TL_MAX_OUTPUTS = 16 };

typedef struct tl_call_input {
    const char *name;
    tl_block *storage;
    int64_t index; /* in its list, else -1 */
} tl_call_input;

typedef struct tl_call_output {
    const char *name;
    torchlean_buffer **slot;
    tl_block *storage; /* of a buffer the caller supplied, else of the one tl_begin made */
    float *data;
    uint64_t n;
    int64_t index;   /* in its list, else -1 */
    tl_buffer *made; /* by tl_begin; tl_end stores its handle in the slot or releases it */
    int8_t fresh, wanted, is_index;
} tl_call_output;

typedef struct tl_call {
    const char *op; /* the exported name */
    tl_context *ctx;
    int32_t status;
    int8_t elementwise;  /* an output may be an input, in lists that of the same index */
    int8_t linear;       /* the work is linear in the arrays' sizes */
    int8_t began;        /* tl_begin passed: a failure from here on is one of the work */
    int8_t in_place;     /* an output is an input: such a call cannot be made again, so nothing interrupts it */
    int8_t looks;        /* for interrupts, from tl_begin to tl_end */
    uint64_t sizes;      /* of its arrays, or-ed: more than half of the largest */
    uint64_t interrupts; /* counted when it opened */
    int64_t inputs, outputs, input_room, output_room;
    tl_call_input *in;   /* few_in, or with lists in `memory` */
    tl_call_output *out; /* few_out, or with lists in `memory` */
    struct {
        uint32_t count;          /* elements of each */
        int32_t inputs, outputs; /* lists declared so far */
        const char *first;       /* the name of the first, whose elements' lengths are everyone's */
        int64_t *lengths;
        float **data; /* the lists' data pointers, inputs before outputs */
        void *memory; /* of everything here; tl_end frees it */
    } list;
    uint64_t saved_mode; /* of tl_enter_standard_mode: from tl_enter to tl_end, scalars included */
    tl_call_input few_in[TL_MAX_INPUTS];
    tl_call_output few_out[TL_MAX_OUTPUTS];
} tl_call;

/* Opens a call on the context of `first`, the operation's first buffer (its argument name for the message), and locks
 * the context. */
void tl_enter(tl_call *call, const char *op, const char *name, torchlean_buffer *first);
/* Opens a call of an operation that takes its context explicitly. */
void tl_enter_context(tl_call *call, const char *op, torchlean_context *context);

/* Length of a live buffer of the call's context (elementwise operations take their size from their first buffer). */
uint64_t tl_length(tl_call *call, const char *name, torchlean_buffer *buffer);
/* Whether a live buffer of the call's context is an index buffer. */
int tl_is_index(tl_call *call, const char *name, torchlean_buffer *buffer);
/* Checks an input: live, of the call's context, exactly n elements; `expected` is n in words ("batch*m*n"). Returns its data. */
const float *tl_input(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected, uint64_t n);
/* The same, but a NULL handle is allowed and gives NULL. */
const float *tl_input_optional(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected,
                               uint64_t n);
/* The same for an index buffer, which nothing else takes. */
const uint32_t *tl_input_index(tl_call *call, const char *name, torchlean_buffer *buffer, const char *expected,
                               uint64_t n);
/* Declares an output of n elements. */
void tl_output(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n);
/* The same for an index buffer. */
void tl_output_index(tl_call *call, const char *name, torchlean_buffer **slot, const char *expected, uint64_t n);
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
