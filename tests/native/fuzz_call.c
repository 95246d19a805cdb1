/* One call of a generated entry point: what is known of its arguments, the call, and what must hold afterwards. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fuzz_abi.h"

#define CONTEXT_AT(i) ((torchlean_context *)(uintptr_t)v[i].u)
#define BUFFER_AT(i) ((torchlean_buffer *)(uintptr_t)v[i].u)
#define LIST_AT(i) ((torchlean_buffer *const *)(v[i].no_list ? NULL : v[i].handles))
#define U32S_AT(i) ((const uint32_t *)v[i].array)
#define F64S_AT(i) ((double *)(uintptr_t)v[i].array)
#define DIM_AT(i) ((uint32_t)v[i].u)
#define DIMS_AT(i) ((const uint32_t *)v[i].array), v[i].rank
#define FLOAT_AT(i) (v[i].real)
#define U64_AT(i) (v[i].u)
#define OUT_AT(i) (v[i].slot)
#define OUT_LIST_AT(i) (v[i].no_list ? NULL : v[i].handles)
#include "fuzz_table.h"

const int fuzz_entry_count = sizeof fuzz_entries / sizeof *fuzz_entries;
const char *fuzz_symbol(int entry) { return fuzz_entries[entry].symbol; }
int fuzz_print;
static const double patience = 30; /* seconds a call may take */

/* Whether an array argument of `need` elements is wrong enough that the call must be refused. */
static int wrong_handle(const fuzz_value *a, uint64_t need, fuzz_kind kind)
{
    const int other = (a->place >= FUZZ_FLOATS) != fuzz_is_index(kind);
    return a->truth == FUZZ_BAD || a->truth == FUZZ_FOREIGN || (a->truth == FUZZ_GOOD && (a->length != need || other));
}

static int must_refuse(const fuzz_entry *e, const fuzz_value *v, const uint64_t *n)
{
    for (int i = 0; i < e->arguments; i++) {
        const fuzz_value *a = &v[i];
        const fuzz_kind kind = e->argument[i].kind;
        switch (kind) {
        case FUZZ_CONTEXT:
            if (a->truth != FUZZ_GOOD) return 1;
            break;
        case FUZZ_BUFFER:
        case FUZZ_INDEX:
            if (a->truth == FUZZ_ABSENT || wrong_handle(a, n[i], kind)) return 1;
            break;
        case FUZZ_OPTIONAL:
            if (wrong_handle(a, n[i], kind)) return 1;
            break;
        case FUZZ_DIMS:
            if (a->rank > TL_MAX_RANK || (a->rank && !a->array)) return 1;
            break;
        case FUZZ_U32S:
        case FUZZ_F64S:
        case FUZZ_OUT_F64S:
            if (n[i] > UINT32_MAX || (n[i] && !a->array)) return 1;
            break;
        case FUZZ_LIST_IN:
            if (a->no_list && n[i]) return 1;
            for (uint64_t k = 0; k < n[i] && k < a->rank; k++) {
                if (a->truths[k] != FUZZ_GOOD) return 1;
            }
            break;
        case FUZZ_OUT_LIST:
            for (uint64_t k = 0; !a->no_list && k < n[i] && k < a->rank; k++) {
                if (a->truths[k] == FUZZ_BAD) return 1;
            }
            break;
        case FUZZ_OUT:
        case FUZZ_OUT_INDEX:
            if (!a->slot) return 1;
            /* fallthrough */
        case FUZZ_OUT_OPTIONAL:
            if (!a->slot) break;
            if (n[i] > UINT32_MAX) return 1;
            for (int k = 0; k < e->arguments; k++) {
                int output = fuzz_is_output(e->argument[k].kind);
                if (k < i && output && v[k].slot == a->slot) return 1;
                if (a->slot == &a->handle && a->truth == FUZZ_GOOD && k != i && v[k].truth == FUZZ_GOOD) {
                    int input = fuzz_is_input(e->argument[k].kind);
                    int same = v[k].length == a->length && v[k].place == a->place;
                    if (same && ((input && !e->elementwise) || (output && v[k].slot == &v[k].handle))) return 1;
                }
            }
            if (a->slot == &a->handle && wrong_handle(a, n[i], kind)) return 1;
            break;
        default: break;
        }
    }
    return 0;
}

/* Whether every buffer of the call is of another context: then the call is one of that context, and none of ours. */
static int all_foreign(const fuzz_entry *e, const fuzz_value *v)
{
    int foreign = 0, good = 0;
    for (int i = 0; i < e->arguments; i++) {
        foreign |= v[i].truth == FUZZ_FOREIGN;
        good |= v[i].truth == FUZZ_GOOD;
    }
    return foreign && !good;
}

static void print_call(const fuzz_run *f, const fuzz_entry *e, const fuzz_value *v, const uint64_t *n)
{
    fprintf(stderr, "seed %llu call %llu: %s(", (unsigned long long)f->seed, (unsigned long long)f->number, e->symbol);
    for (int i = 0; i < e->arguments; i++) {
        const fuzz_value *a = &v[i];
        fprintf(stderr, "%s%s=", i ? ", " : "", e->argument[i].name);
        switch (e->argument[i].kind) {
        case FUZZ_CONTEXT:
        case FUZZ_BUFFER:
        case FUZZ_OPTIONAL:
        case FUZZ_INDEX:
            fprintf(stderr,
                    a->truth == FUZZ_GOOD  ? "%#llx [%llu of %llu]"
                    : a->truth == FUZZ_BAD ? "%#llx bad"
                                           : "NULL",
                    (unsigned long long)a->u, (unsigned long long)a->length, (unsigned long long)n[i]);
            break;
        case FUZZ_DIM:
        case FUZZ_U64: fprintf(stderr, "%llu", (unsigned long long)a->u); break;
        case FUZZ_FLOAT: fprintf(stderr, "%g", a->real); break;
        case FUZZ_DIMS:
            fprintf(stderr, "%s{", a->array ? "" : "NULL ");
            for (uint32_t k = 0; k < a->rank && k < TL_MAX_RANK; k++)
                fprintf(stderr, "%s%u", k ? "," : "", a->list[k]);
            fprintf(stderr, "} rank %u", a->rank);
            break;
        case FUZZ_OUT:
        case FUZZ_OUT_OPTIONAL:
        case FUZZ_OUT_INDEX:
            if (a->slot)
                fprintf(stderr, "%s[%llu of %llu]",
                        a->slot != &a->handle ? "shared place "
                        : a->handle           ? "given "
                                              : "new ",
                        (unsigned long long)a->length, (unsigned long long)n[i]);
            else
                fprintf(stderr, "NULL");
            break;
        case FUZZ_LIST_IN:
        case FUZZ_OUT_LIST: fprintf(stderr, "%s list of %u", a->no_list ? "NULL" : "a", a->rank); break;
        default: fprintf(stderr, "%s", a->array ? "array" : "NULL");
        }
    }
    fprintf(stderr, ")\n");
}

/* What an accepted call made: buffers of the right lengths, which are released; and what it overwrote. */
static void after_success(fuzz_run *f, const fuzz_entry *e, fuzz_value *v, const uint64_t *n)
{
    for (int i = 0; i < e->arguments; i++) {
        fuzz_kind kind = e->argument[i].kind;
        if (kind == FUZZ_OUT_LIST && !v[i].no_list) {
            for (uint64_t k = 0; k < n[i] && k < v[i].rank; k++) {
                if (v[i].truths[k] == FUZZ_ABSENT)
                    torchlean_cuda_buffer_release(v[i].handles[k]);
                else
                    f->rows[v[i].lengths[k]].dirty[v[i].places[k]] = 1;
            }
        }
        if (!fuzz_is_output(kind) || !v[i].slot) continue;
        if (v[i].truth == FUZZ_GOOD) {
            f->rows[v[i].length].dirty[v[i].place] = 1;
            continue;
        }
        uint32_t got = 0;
        if (torchlean_cuda_buffer_length(v[i].handle, &got) || got != n[i])
            fuzz_fail(f, e->symbol, "%s: made %u elements, expected %llu", e->argument[i].name, got,
                      (unsigned long long)n[i]);
        if (got <= FUZZ_LENGTHS &&
            (fuzz_is_index(kind) ? torchlean_cuda_index_download(v[i].handle, (uint32_t *)f->host, got)
                                 : torchlean_cuda_buffer_download(v[i].handle, f->host, got)))
            fuzz_fail(f, e->symbol, "%s: %s", e->argument[i].name, torchlean_cuda_last_error());
        torchlean_cuda_buffer_release(v[i].handle);
    }
}

static void check_untouched(fuzz_run *f, const fuzz_entry *e, fuzz_value *v, fuzz_value *was, int refused)
{
    for (int i = 0; i < e->arguments; i++) {
        fuzz_kind kind = e->argument[i].kind;
        int output = fuzz_is_output(kind);
        if (output && refused) {
            if (v[i].handle != was[i].handle)
                fuzz_fail(f, e->symbol, "%s: refused, but the slot has changed", e->argument[i].name);
            if (v[i].truth == FUZZ_GOOD && !fuzz_intact(f, (uint32_t)v[i].length, v[i].place))
                fuzz_fail(f, e->symbol, "%s: refused, but the content has changed", e->argument[i].name);
        } else if (fuzz_is_input(kind) && v[i].truth == FUZZ_GOOD) {
            if (!f->rows[v[i].length].dirty[v[i].place] && !fuzz_intact(f, (uint32_t)v[i].length, v[i].place))
                fuzz_fail(f, e->symbol, "%s: the input has changed", e->argument[i].name);
        } else if (kind == FUZZ_OUT_F64S && refused) {
            for (size_t k = 0; k < FUZZ_SHOWN; k++) {
                if (((const char *)fuzz_sink)[k] != 77) {
                    fuzz_fail(f, e->symbol, "%s: refused, but host memory has changed", e->argument[i].name);
                    break;
                }
            }
        } else if (kind == FUZZ_OUT_LIST && refused) {
            if (memcmp(v[i].handles, v[i].before, v[i].rank * sizeof *v[i].before))
                fuzz_fail(f, e->symbol, "%s: refused, but a slot has changed", e->argument[i].name);
        }
    }
}

double fuzz_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For the handler of a crash and the watchdog: what each thread was about to do. */
_Thread_local const fuzz_run *fuzz_current;
static _Thread_local const fuzz_entry *current_entry;
static _Thread_local fuzz_value *current_values;
static _Thread_local const uint64_t *current_sizes;

/* In the sanitizers' run-time libraries alone. */
void __sanitizer_print_stack_trace(void) __attribute__((weak));

void fuzz_crashed(int number)
{
    if (fuzz_current && current_entry) {
        print_call(fuzz_current, current_entry, current_values, current_sizes);
    } else if (fuzz_current) {
        fprintf(stderr, "seed %llu call %llu: a function of the core\n", (unsigned long long)fuzz_current->seed,
                (unsigned long long)fuzz_current->number);
    }
    fprintf(stderr, "FAIL signal %d in the call above\n", number);
    if (__sanitizer_print_stack_trace) __sanitizer_print_stack_trace();
    signal(number, SIG_DFL);
    raise(number);
}

static void drop_twins(fuzz_run *f)
{
    while (f->twin_count > 0)
        f->live -= torchlean_cuda_buffer_release(f->twins[--f->twin_count]) == TORCHLEAN_OK;
}

void fuzz_call(fuzz_run *f, int which)
{
    static _Thread_local fuzz_value v[FUZZ_ARGUMENTS], was[FUZZ_ARGUMENTS];
    static _Thread_local uint64_t n[FUZZ_ARGUMENTS];
    const fuzz_entry *e = &fuzz_entries[which];
    fuzz_read_case(e, fuzz_pick_case(f, e), v);
    uint64_t mode = fuzz_below(f, 20);
    int own_indices = 1;
    if (mode >= 6 && mode < 10) {
        fuzz_value kept[FUZZ_ARGUMENTS];
        memcpy(kept, v, sizeof kept);
        fuzz_spoil_sizes(f, e, v);
        e->size(v, n);
        if (fuzz_too_much(e, v, n) && !fuzz_one_in(f, 16))
            memcpy(v, kept, sizeof kept); /* an intact call after all */
        else
            own_indices = 0;
        for (int i = 0; i < e->arguments; i++) {
            if (e->argument[i].kind == FUZZ_DIMS) v[i].array = v[i].list;
        }
    }
    int lengths_follow = mode < 10;
    e->size(v, n);
    for (int i = 0; i < e->arguments; i++) { /* host arrays hold what they hold */
        fuzz_kind kind = e->argument[i].kind;
        if ((kind == FUZZ_U32S || kind == FUZZ_F64S || kind == FUZZ_OUT_F64S) && n[i] > FUZZ_HOST && n[i] <= UINT32_MAX)
            return;
        if ((kind == FUZZ_LIST_IN || kind == FUZZ_OUT_LIST) && n[i] > v[i].rank) return;
    }
    if (lengths_follow && fuzz_too_much(e, v, n) && !own_indices) {
        /* not to be run: a buffer is missing */
        fuzz_supply(f, e, v, n, own_indices);
        for (int i = 0; i < e->arguments; i++) {
            if (e->argument[i].kind == FUZZ_BUFFER || e->argument[i].kind == FUZZ_INDEX ||
                e->argument[i].kind == FUZZ_CONTEXT) {
                v[i].u = 0;
                v[i].truth = FUZZ_ABSENT;
            }
        }
    } else {
        fuzz_supply(f, e, v, n, own_indices);
    }
    int spoilt = mode >= 10;
    if (spoilt) {
        uint64_t times = mode == 19 ? (uint64_t)e->arguments : 1 + fuzz_below(f, 3);
        for (; times > 0; times--)
            fuzz_spoil(f, e, v, (int)fuzz_below(f, (uint64_t)e->arguments));
        e->size(v, n);
        for (int i = 0; i < e->arguments; i++) {
            fuzz_kind kind = e->argument[i].kind;
            if ((kind == FUZZ_U32S || kind == FUZZ_F64S || kind == FUZZ_OUT_F64S) &&
                n[i] > (own_indices && kind == FUZZ_U32S ? v[i].length : FUZZ_HOST))
                v[i].array = NULL; /* the caller's duty is an array as long as it says */
            if ((kind == FUZZ_LIST_IN || kind == FUZZ_OUT_LIST) && n[i] > v[i].rank) v[i].no_list = 1;
        }
    }
    for (int i = 0; i < e->arguments; i++) { /* the place of an output that was given none after all */
        for (int k = 0; k < i; k++) {
            if (v[i].slot == &v[k].handle && v[k].slot != v[i].slot) {
                v[i].slot = &v[i].handle;
                v[i].handle = NULL;
                v[i].truth = FUZZ_ABSENT;
            }
        }
    }
    int refuse = must_refuse(e, v, n);
    int accept = mode < 6 || (own_indices && mode < 10);
    if (all_foreign(e, v) || (!refuse && !accept && fuzz_too_much(e, v, n))) {
        drop_twins(f);
        return;
    }
    for (int i = 0; i < e->arguments; i++) {
        was[i].handle = v[i].handle;
        if (e->argument[i].kind == FUZZ_OUT_LIST) memcpy(v[i].before, v[i].handles, sizeof v[i].before);
    }
    current_values = v;
    current_sizes = n;
    current_entry = e;
    if (fuzz_print) print_call(f, e, v, n);
    alarm((unsigned)(4 * patience));
    double start = fuzz_seconds();
    int32_t status = e->run(v);
    double took = fuzz_seconds() - start;
    if (took > f->slowest) {
        f->slowest = took;
        f->slowest_number = f->number;
        f->slowest_symbol = e->symbol;
    }
    int before = f->failed;
    uint64_t made = 0;
    for (int i = 0; i < e->arguments && !status; i++) {
        fuzz_kind kind = e->argument[i].kind;
        made += fuzz_is_output(kind) && v[i].slot == &v[i].handle && v[i].truth == FUZZ_ABSENT;
        for (uint64_t k = 0; kind == FUZZ_OUT_LIST && k < n[i] && k < v[i].rank; k++)
            made += v[i].truths[k] == FUZZ_ABSENT;
    }
    if (fuzz_print)
        fprintf(stderr, "  status %d%s%s\n", status, status ? " " : "", status ? torchlean_cuda_last_error() : "");
    fuzz_status(f, e->symbol, status, refuse, accept, made);
    if (took > patience) fuzz_fail(f, e->symbol, "took %.1f s", took);
    f->calls[which]++;
    if (status) {
        f->refused[which]++;
        check_untouched(f, e, v, was, 1);
    } else {
        f->accepted[which]++;
        after_success(f, e, v, n);
        if (fuzz_one_in(f, 8)) check_untouched(f, e, v, was, 0);
    }
    if (f->failed != before) print_call(f, e, v, n);
    drop_twins(f);
    current_entry = NULL;
}
