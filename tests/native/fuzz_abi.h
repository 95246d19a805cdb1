/* What the hostile-call driver's files share: argument values, entry points, and the state of one thread's run. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "core/shapes.h"
#include "formula/random.h"
#include "torchlean_cuda_ops.h"

enum {
    FUZZ_ARGUMENTS = 48,
    FUZZ_LIST = 128,
    FUZZ_HOST = 1 << 16,
    FUZZ_FLOATS = 12,
    FUZZ_PLACES = 17,
    FUZZ_LENGTHS = 1 << 17
};

typedef enum fuzz_kind {
    FUZZ_CONTEXT,
    FUZZ_BUFFER,
    FUZZ_OPTIONAL,
    FUZZ_INDEX,
    FUZZ_LIST_IN,
    FUZZ_U32S,
    FUZZ_F64S,
    FUZZ_DIM,
    FUZZ_DIMS,
    FUZZ_FLOAT,
    FUZZ_U64,
    FUZZ_OUT,
    FUZZ_OUT_OPTIONAL,
    FUZZ_OUT_INDEX,
    FUZZ_OUT_LIST,
    FUZZ_OUT_F64S
} fuzz_kind;

static inline int fuzz_is_output(fuzz_kind kind)
{
    return kind == FUZZ_OUT || kind == FUZZ_OUT_OPTIONAL || kind == FUZZ_OUT_INDEX;
}
static inline int fuzz_is_input(fuzz_kind kind)
{
    return kind == FUZZ_BUFFER || kind == FUZZ_OPTIONAL || kind == FUZZ_INDEX;
}
static inline int fuzz_is_index(fuzz_kind kind) { return kind == FUZZ_INDEX || kind == FUZZ_OUT_INDEX; }

/* What the driver knows about a handle it passes. */
typedef enum fuzz_truth {
    FUZZ_ABSENT,  /* NULL */
    FUZZ_GOOD,    /* live, of the call's context, `length` elements */
    FUZZ_BAD,     /* must be refused: released, made up, of another kind */
    FUZZ_FOREIGN, /* live, of another context: must be refused beside one of the call's */
} fuzz_truth;

/* One argument of a call. */
typedef struct fuzz_value {
    uint64_t u; /* handle, dimension, integer */
    double real;
    uint64_t length; /* elements of the buffer behind a good handle */
    fuzz_truth truth;
    int place;         /* of the good buffer in its length's row */
    uint32_t rank;     /* of a dimension list, entries of a list of buffers */
    const void *array; /* what is passed for a host array or dimension list */
    uint32_t list[TL_MAX_RANK];
    torchlean_buffer *handle, **slot; /* an output: its place, and what is passed */
    int no_list;                      /* NULL is passed for the list of buffers */
    torchlean_buffer *handles[FUZZ_LIST];
    torchlean_buffer *before[FUZZ_LIST]; /* an output list before the call */
    uint32_t lengths[FUZZ_LIST];
    uint8_t truths[FUZZ_LIST];
    int16_t places[FUZZ_LIST];
} fuzz_value;

typedef struct fuzz_argument {
    fuzz_kind kind;
    const char *name;
} fuzz_argument;

typedef struct fuzz_entry {
    const char *symbol;
    int32_t (*run)(fuzz_value *v);
    void (*size)(const fuzz_value *v, uint64_t *n);
    const uint64_t *cases; /* each: number of words, words */
    int count, elementwise, arguments;
    fuzz_argument argument[FUZZ_ARGUMENTS];
} fuzz_entry;

/* The buffers of one length, made when first wanted; their content is a pattern of length and place. Of the places the first
 * FUZZ_FLOATS hold floats, four inputs and then outputs; the others hold indices, four inputs and an output. */
typedef struct fuzz_row {
    torchlean_buffer *buffer[FUZZ_PLACES];
    uint8_t dirty[FUZZ_PLACES];
} fuzz_row;

/* One thread's run. */
typedef struct fuzz_run {
    uint64_t seed, number, state; /* of the call at hand: everything about it follows from seed and number */
    torchlean_context *context, *foreign;
    int32_t device;
    int alone;      /* no other thread makes calls */
    int shared;     /* the context is other threads' too, so its counters are not this run's */
    fuzz_row *rows; /* by length */
    uint32_t *kept; /* the lengths that have buffers */
    uint32_t kept_count;
    uint64_t kept_elements, live;
    torchlean_buffer *released[16], *abroad[4],
        *orphan; /* of no use any more, of another context, of a destroyed one */
    torchlean_context *destroyed;
    torchlean_buffer *twins[FUZZ_ARGUMENTS]; /* second handles to storage, of the call at hand */
    int twin_count;
    uint64_t *calls, *accepted, *refused, *statuses; /* by entry; the last by code / 10 */
    double slowest;
    uint64_t slowest_number;
    const char *slowest_symbol;
    float *host; /* FUZZ_LENGTHS elements */
    int failed;
} fuzz_run;

uint64_t fuzz_next(fuzz_run *f);
/* A number in 0..n-1. */
static inline uint64_t fuzz_below(fuzz_run *f, uint64_t n) { return n ? fuzz_next(f) % n : 0; }
/* True once in n. */
static inline int fuzz_one_in(fuzz_run *f, uint64_t n) { return fuzz_below(f, n) == 0; }
/* A size near an edge of the representable ones, or any. */
uint32_t fuzz_size(fuzz_run *f);
double fuzz_real(fuzz_run *f);
/* A handle that must be refused; FUZZ_FOREIGN or FUZZ_BAD. */
uint64_t fuzz_bad_handle(fuzz_run *f, fuzz_truth *truth);
/* The buffer of that length and place, with its pattern in it. */
torchlean_buffer *fuzz_take(fuzz_run *f, uint32_t n, int place);
/* True if the buffer of that length and place holds its pattern. */
int fuzz_intact(fuzz_run *f, uint32_t n, int place);
/* A place for an input, or for output `number`, of floats or of indices. */
int fuzz_input_place(fuzz_run *f, int index);
static inline int fuzz_output_place(int number, int index)
{
    return index ? FUZZ_PLACES - 1 : 4 + number % (FUZZ_FLOATS - 4);
}
void fuzz_drop_rows(fuzz_run *f);
double fuzz_seconds(void);
/* Reports a broken property of the call at hand. */
void fuzz_fail(fuzz_run *f, const char *symbol, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The checks every status undergoes: pinned code, a message that names the symbol, the number of live buffers. */
void fuzz_status(fuzz_run *f, const char *symbol, int32_t status, int must_refuse, int must_accept, uint64_t made);
tl_dims fuzz_dims(const fuzz_value *v);

/* ---- the parts of a call (fuzz_spoil.c) ---- */

/* Host arrays: indices below 7 and some far out, so that many lie within small dimensions; doubles; what a call writes, of
 * which the first FUZZ_SHOWN bytes are known. */
enum { FUZZ_SHOWN = 512 };
extern uint32_t fuzz_indices[FUZZ_HOST];
extern double fuzz_numbers[FUZZ_HOST];
extern _Thread_local double fuzz_sink[FUZZ_HOST];
void fuzz_make_host(void);
const uint64_t *fuzz_pick_case(fuzz_run *f, const fuzz_entry *e);
void fuzz_read_case(const fuzz_entry *e, const uint64_t *w, fuzz_value *v);
/* Spoils dimensions and scalars; the lengths follow, so what is refused afterwards is refused by the row's own checks. */
void fuzz_spoil_sizes(fuzz_run *f, const fuzz_entry *e, fuzz_value *v);
/* Whether an accepted call might take long: its work grows at most like the product of all sizes. */
int fuzz_too_much(const fuzz_entry *e, const fuzz_value *v, const uint64_t *n);
/* Good handles and host arrays for every argument whose length a machine can hold; the others get what there is. */
void fuzz_supply(fuzz_run *f, const fuzz_entry *e, fuzz_value *v, const uint64_t *n, int own_indices);
/* Spoils one argument. */
void fuzz_spoil(fuzz_run *f, const fuzz_entry *e, fuzz_value *v, int i);

/* ---- calls (fuzz_call.c, fuzz_core.c, fuzz_exchange.c) ---- */

extern const int fuzz_entry_count;
extern int fuzz_print; /* show every call */
extern _Thread_local const fuzz_run *fuzz_current;
const char *fuzz_symbol(int entry);
void fuzz_call(fuzz_run *f, int which);
/* The handler of a crash and of the watchdog: says what the thread was doing. */
void fuzz_crashed(int number);
/* A call of one of the hand-written functions. */
extern const char *const fuzz_core_symbols[];
extern const int fuzz_core_count;
int32_t fuzz_core(fuzz_run *f, int which);
/* A context handle: good, or one that must be refused: *want is 1 then. */
torchlean_context *fuzz_draw_context(fuzz_run *f, int *want);
/* A buffer handle: good with its length and place, or one that must be refused. */
torchlean_buffer *fuzz_draw_buffer(fuzz_run *f, int *want, uint32_t *n, int *place);
/* Calls of the functions that exchange memory and order streams. */
int32_t fuzz_lend(fuzz_run *f, const char *symbol);
int32_t fuzz_borrow(fuzz_run *f, const char *symbol);
int32_t fuzz_wrap(fuzz_run *f, const char *symbol);
int32_t fuzz_adopt(fuzz_run *f, const char *symbol);
int32_t fuzz_stream(fuzz_run *f, const char *symbol);
int32_t fuzz_order(fuzz_run *f, const char *symbol);
