/* Hostile calls of the hand-written functions: contexts, memory, buffers, settings. Functions that change a context or the
 * process are called on a context of their own, made and destroyed within the call. */
#include <math.h>
#include <string.h>

#include "fuzz_abi.h"

/* The functions, as X(name without the prefix, what calls it). */
#define EACH_CORE_FUNCTION(X) \
    X(set_cpu_variant, set_variant) X(set_threads, set_threads) X(device_describe, describe) \
    X(context_create, on_own_context) X(context_destroy, on_own_context) X(context_device, ask_context) \
    X(context_set_math, on_own_context) X(context_math, ask_context) X(context_synchronize, ask_context) X(context_mark, on_own_context) X(context_elapsed, on_own_context) \
    X(memory_stats, ask_context) X(memory_reset_peak, on_own_context) X(memory_cap, on_own_context) \
    X(memory_collect, on_own_context) X(buffer_empty, make) X(buffer_zeros, make) X(buffer_upload, make) \
    X(buffer_download, read_back) X(index_upload, make) X(index_download, read_back) X(buffer_fill, fill) X(buffer_copy, make) X(buffer_share, make) \
    X(buffer_release, release) X(buffer_length, ask) X(buffer_context, ask) X(buffer_references, ask) \
    X(capture_begin, on_own_context) X(capture_end, on_own_context) X(capture_inputs, on_own_context) \
    X(graph_launch, on_no_graph) X(graph_set, on_no_graph) \
    X(graph_nodes, on_no_graph) X(graph_release, on_no_graph) X(status_name, read_descriptions) \
    X(take_error, take_text) X(convert, convert) X(interrupt, interrupt) X(watch_signal, watch_signal) \
    X(buffer_lend, exchange) X(buffer_borrow, exchange) X(context_stream, exchange) X(context_order, exchange) \
    X(buffer_wrap, exchange) X(context_adopt, exchange) X(set_parallel, set_parallel) X(explain, explain)
#define ENUMERATOR(name, function) CORE_##name,
#define SYMBOL(name, function) "torchlean_cuda_" #name,

enum { EACH_CORE_FUNCTION(ENUMERATOR) CORE_FUNCTIONS };
const char *const fuzz_core_symbols[] = {EACH_CORE_FUNCTION(SYMBOL)};
const int fuzz_core_count = CORE_FUNCTIONS;

enum { REFUSE = 1, ACCEPT = 2, EITHER = 0 };

/* Checks a status that must be a refusal or must not, and returns it. */
static int32_t check(fuzz_run *f, int which, int32_t status, int refuse)
{
    fuzz_status(f, fuzz_core_symbols[which], status, refuse, !refuse, 0);
    return status;
}

torchlean_context *fuzz_draw_context(fuzz_run *f, int *want)
{
    switch (fuzz_below(f, 8)) {
    case 0: *want = REFUSE; return NULL;
    case 1: *want = REFUSE; return f->destroyed;
    case 2: *want = REFUSE; return (torchlean_context *)(uintptr_t)(fuzz_next(f) >> 9 | UINT64_C(1));
    default: return f->context;
    }
}

torchlean_buffer *fuzz_draw_buffer(fuzz_run *f, int *want, uint32_t *n, int *place)
{
    *n = fuzz_one_in(f, 32) ? 65535 + (uint32_t)fuzz_below(f, 3) : (uint32_t)fuzz_below(f, 80);
    *place = fuzz_one_in(f, 2) ? fuzz_input_place(f, 1) : (int)fuzz_below(f, FUZZ_PLACES);
    switch (fuzz_below(f, 8)) {
    case 0: *want = REFUSE; return NULL;
    case 1:
    case 2: {
        fuzz_truth truth;
        uint64_t bad = fuzz_bad_handle(f, &truth);
        if (truth == FUZZ_FOREIGN) /* a good one here */
            return fuzz_draw_buffer(f, want, n, place);
        *want = REFUSE;
        return (torchlean_buffer *)(uintptr_t)bad;
    }
    default: return fuzz_take(f, *n, *place);
    }
}

/* A slot for an output of n elements of the context at hand; with a buffer in it that may fit. */
static torchlean_buffer **draw_slot(fuzz_run *f, int *want, torchlean_buffer **slot, uint32_t n, int index, int *place)
{
    *slot = NULL;
    *place = -1;
    switch (fuzz_below(f, 12)) {
    case 0: *want = REFUSE; return NULL;
    case 1: {
        fuzz_truth truth;
        *want = REFUSE;
        *slot = (torchlean_buffer *)(uintptr_t)fuzz_bad_handle(f, &truth);
        return slot;
    }
    case 2:
    case 3:
        if (n < 70000) {
            const int other = fuzz_one_in(f, 4); /* indices for floats and the reverse */
            if (other) *want = REFUSE;
            *place = fuzz_output_place((int)fuzz_below(f, FUZZ_FLOATS), index ^ other);
            *slot = fuzz_take(f, n, *place);
        }
        return slot;
    case 4:
        *place = fuzz_output_place(0, index);
        *slot = fuzz_take(f, n == 13 ? 14 : 13, *place);
        *want = REFUSE;
        return slot;
    default: return slot;
    }
}

/* What holds after a call that makes a buffer of n elements in `slot`, which held `before`. */
static void after_making(fuzz_run *f, int which, int32_t status, int want, torchlean_buffer *slot,
                         torchlean_buffer *before, uint32_t n, int place)
{
    const char *symbol = fuzz_core_symbols[which];
    uint32_t got = 0;
    int made = !status && !before;
    fuzz_status(f, symbol, status, want == REFUSE, want == ACCEPT, (uint64_t)made);
    if (status && slot != before) fuzz_fail(f, symbol, "refused, but the slot has changed");
    if (!status && (torchlean_cuda_buffer_length(slot, &got) || got != n))
        fuzz_fail(f, symbol, "made %u elements, expected %u", got, n);
    if (made) torchlean_cuda_buffer_release(slot);
    if (place >= 0 && !status) f->rows[n].dirty[place] = 1;
    if (place >= 4 && status && before && want == EITHER && !fuzz_intact(f, n, place))
        fuzz_fail(f, symbol, "refused, but the content has changed");
}

static int32_t make(fuzz_run *f, int which)
{
    int want = EITHER, place, source_place = -1;
    torchlean_buffer *slot, **out;
    int32_t status;
    uint32_t n = fuzz_one_in(f, 4) ? fuzz_size(f) : (uint32_t)fuzz_below(f, 80);
    const int uploads = which == CORE_buffer_upload || which == CORE_index_upload;
    if (uploads) /* as many as there are */
        n %= FUZZ_LENGTHS;
    torchlean_context *context = NULL;
    torchlean_buffer *source = NULL;
    if (which == CORE_buffer_copy || which == CORE_buffer_share)
        source = fuzz_draw_buffer(f, &want, &n, &source_place);
    else
        context = fuzz_draw_context(f, &want);
    out = draw_slot(f, &want, &slot, n, which == CORE_index_upload || source_place >= FUZZ_FLOATS, &place);
    torchlean_buffer *before = slot;
    const float *host = f->host;
    if (uploads && fuzz_one_in(f, 6)) {
        host = NULL;
        want = n ? REFUSE : want;
    }
    switch (which) {
    case CORE_buffer_empty: status = torchlean_cuda_buffer_empty(context, n, out); break;
    case CORE_buffer_zeros: status = torchlean_cuda_buffer_zeros(context, n, out); break;
    case CORE_buffer_upload: status = torchlean_cuda_buffer_upload(context, host, n, out); break;
    case CORE_index_upload: status = torchlean_cuda_index_upload(context, (const uint32_t *)host, n, out); break;
    case CORE_buffer_share:
        if (before) want = REFUSE;
        status = torchlean_cuda_buffer_share(source, out);
        break;
    default: /* a copy onto itself is refused */
        if (source && source == before) want = REFUSE;
        status = torchlean_cuda_buffer_copy(source, out);
    }
    if (want == EITHER && status != TORCHLEAN_NO_MEMORY) want = ACCEPT;
    after_making(f, which, status, want, slot, before, n, place);
    return status;
}

static int32_t read_back(fuzz_run *f, int which)
{
    const char *symbol = fuzz_core_symbols[which];
    int want = EITHER, place = 0;
    uint32_t n = 0, asked;
    torchlean_buffer *buffer = fuzz_draw_buffer(f, &want, &n, &place);
    int bad = want == REFUSE;
    asked = fuzz_one_in(f, 4) ? fuzz_size(f) : n;
    float *host = fuzz_one_in(f, 6) ? NULL : f->host;
    const int index = which == CORE_index_download;
    if (asked != n || (!host && asked) || index != (place >= FUZZ_FLOATS)) want = REFUSE;
    f->host[0] = 77.0f;
    int32_t status = check(f, which,
                           index ? torchlean_cuda_index_download(buffer, (uint32_t *)host, asked)
                                 : torchlean_cuda_buffer_download(buffer, host, asked),
                           want == REFUSE);
    if (status && f->host[0] != 77.0f) fuzz_fail(f, symbol, "refused, but host memory has changed");
    if (!bad && !fuzz_intact(f, n, place)) fuzz_fail(f, symbol, "the buffer has changed");
    return status;
}

static int32_t ask(fuzz_run *f, int which)
{
    int want = EITHER, place = 0;
    uint32_t n = 0, answer = 77;
    torchlean_context *context = (torchlean_context *)&want;
    torchlean_buffer *buffer = fuzz_draw_buffer(f, &want, &n, &place);
    int nowhere = fuzz_one_in(f, 6), refuse = want == REFUSE || nowhere;
    int32_t status;
    if (which == CORE_buffer_length)
        status = torchlean_cuda_buffer_length(buffer, nowhere ? NULL : &answer);
    else if (which == CORE_buffer_references)
        status = torchlean_cuda_buffer_references(buffer, nowhere ? NULL : &answer);
    else
        status = torchlean_cuda_buffer_context(buffer, nowhere ? NULL : &context);
    check(f, which, status, refuse);
    if (which == CORE_buffer_context ? context != (status ? (torchlean_context *)&want : f->context)
                                     : answer != (status                        ? 77
                                                  : which == CORE_buffer_length ? n
                                                                                : 1))
        fuzz_fail(f, fuzz_core_symbols[which], "status %d, but the answer is %u or %p", status, answer,
                  (void *)context);
    return status;
}

static int32_t release(fuzz_run *f, int which)
{
    int want = EITHER, place;
    uint32_t n;
    torchlean_buffer *own = NULL, *buffer = fuzz_draw_buffer(f, &want, &n, &place);
    if (want == REFUSE) { /* releasing what was released does nothing, and succeeds */
        int was = buffer == f->orphan;
        for (int i = 0; i < 16; i++)
            was |= buffer == f->released[i];
        int32_t status = torchlean_cuda_buffer_release(buffer);
        fuzz_status(f, fuzz_core_symbols[which], status, !was && !f->shared, was, 0);
        return status;
    }
    if (torchlean_cuda_buffer_copy(buffer, &own)) return TORCHLEAN_OK;
    check(f, which, torchlean_cuda_buffer_release(own), 0);
    return check(f, which, torchlean_cuda_buffer_release(own), 0);
}

static int32_t fill(fuzz_run *f, int which)
{
    int want = EITHER, place;
    uint32_t n;
    torchlean_buffer *buffer = fuzz_draw_buffer(f, &want, &n, &place);
    int32_t status =
        check(f, which, torchlean_cuda_buffer_fill(buffer, fuzz_real(f)), want == REFUSE || place >= FUZZ_FLOATS);
    if (!status) f->rows[n].dirty[place] = 1;
    return status;
}

/* Creation, a cap, marks and destruction, on a context of the call's own. */
static int32_t on_own_context(fuzz_run *f, int which)
{
    const char *symbol = fuzz_core_symbols[which];
    torchlean_context *own = NULL, *const garbage = (torchlean_context *)(uintptr_t)fuzz_next(f);
    torchlean_buffer *buffer = NULL;
    double milliseconds = 77;
    int bad = fuzz_one_in(f, 3), refuse = bad;
    uint32_t from = fuzz_below(f, 4) ? 3 : fuzz_one_in(f, 2) ? fuzz_size(f) : (uint32_t)fuzz_below(f, 8);
    uint32_t to = fuzz_below(f, 4) ? 3 : fuzz_one_in(f, 2) ? fuzz_size(f) : (uint32_t)fuzz_below(f, 8);
    int32_t device = fuzz_one_in(f, 3) ? (int32_t)fuzz_size(f) : f->device, status;
    if (which == CORE_context_create) {
        int nowhere = fuzz_one_in(f, 5);
        if (device != TORCHLEAN_CPU && device != f->device && device >= 0 && device < 64)
            device = 1 << 20; /* not another GPU: that takes long */
        status = torchlean_cuda_context_create(device, nowhere ? NULL : &own);
        fuzz_status(f, symbol, status, nowhere || device < -1 || device >= 64, !nowhere && device == f->device, 0);
        if (status && own) fuzz_fail(f, symbol, "refused, but the slot has changed");
        if (!status && torchlean_cuda_context_destroy(own)) fuzz_fail(f, symbol, "the new context cannot be destroyed");
        return status;
    }
    if (torchlean_cuda_context_create(TORCHLEAN_CPU, &own)) return TORCHLEAN_OK;
    torchlean_context *context = bad ? (fuzz_one_in(f, 2) ? NULL : garbage) : own;
    torchlean_cuda_context_mark(own, 3);
    torchlean_cuda_buffer_zeros(own, 5, &buffer);
    switch (which) {
    case CORE_context_destroy:
        status = torchlean_cuda_context_destroy(context);
        if (!bad && torchlean_cuda_context_destroy(context)) fuzz_fail(f, symbol, "a second destruction is refused");
        if (!bad && torchlean_cuda_buffer_fill(buffer, 1) != TORCHLEAN_RELEASED)
            fuzz_fail(f, symbol, "a buffer outlived its context");
        break;
    case CORE_context_mark:
        refuse |= from > 7;
        status = torchlean_cuda_context_mark(context, from);
        break;
    case CORE_context_set_math: {
        int32_t math = (int32_t)fuzz_below(f, 4) - 1, now = 77;
        refuse |= math != TORCHLEAN_FAST && math != TORCHLEAN_REPRODUCIBLE;
        status = torchlean_cuda_context_set_math(context, math);
        if (!status && (torchlean_cuda_context_math(own, &now) || now != math))
            fuzz_fail(f, symbol, "not what was set");
        break;
    }
    case CORE_context_elapsed: {
        int nowhere = fuzz_one_in(f, 5);
        refuse |= from != 3 || to != 3 || nowhere;
        status = torchlean_cuda_context_elapsed(context, from, to, nowhere ? NULL : &milliseconds);
        if (status ? milliseconds != 77 : milliseconds != 0)
            fuzz_fail(f, symbol, "status %d and %g milliseconds", status, milliseconds);
        break;
    }
    case CORE_capture_begin: /* a context of the CPU */
        refuse = 1;
        status = torchlean_cuda_capture_begin(context);
        break;
    case CORE_capture_end: {
        torchlean_graph *graph = fuzz_one_in(f, 2) ? NULL : (torchlean_graph *)garbage, *const before = graph;
        refuse = 1;
        status = torchlean_cuda_capture_end(context, fuzz_one_in(f, 3) ? NULL : &graph);
        if (graph != before) fuzz_fail(f, symbol, "refused, but the slot has changed");
        break;
    }
    case CORE_capture_inputs: /* without a capture */
        refuse = 1;
        status = torchlean_cuda_capture_inputs(context, fuzz_one_in(f, 5) ? NULL : &buffer, (uint32_t)fuzz_below(f, 2));
        break;
    case CORE_memory_reset_peak: status = torchlean_cuda_memory_reset_peak(context); break;
    case CORE_memory_collect: status = torchlean_cuda_memory_collect(context); break;
    default: {
        torchlean_buffer *more = NULL;
        status = torchlean_cuda_memory_cap(context, fuzz_one_in(f, 2) ? fuzz_below(f, 1000) : fuzz_next(f));
        if (!status)
            torchlean_cuda_buffer_zeros(own, (uint32_t)fuzz_below(f, 1000), &more); /* either outcome is right */
    }
    }
    check(f, which, status, refuse);
    if (torchlean_cuda_context_destroy(own)) fuzz_fail(f, symbol, "the context cannot be destroyed");
    return status;
}

/* Handles that are no graph's: NULL, garbage, with or without the tag, and those of a context and of a buffer. */
static int32_t on_no_graph(fuzz_run *f, int which)
{
    int want, place;
    uint32_t n, nodes = 77;
    uint64_t garbage = fuzz_one_in(f, 2) ? fuzz_next(f)
                                         : UINT64_C(0xA7) << 56 | (fuzz_next(f) >> 36) << 28 | fuzz_below(f, 9);
    const void *handles[] = {NULL, (void *)(uintptr_t)garbage, f->context, fuzz_draw_buffer(f, &want, &n, &place)};
    torchlean_graph *graph = (torchlean_graph *)(uintptr_t)handles[fuzz_below(f, 4)];
    const float value = 0;
    int32_t status =
        which == CORE_graph_launch ? torchlean_cuda_graph_launch(graph)
        : which == CORE_graph_set
            ? torchlean_cuda_graph_set(graph, (uint32_t)fuzz_below(f, 3), fuzz_one_in(f, 5) ? NULL : &value, 1)
        : which == CORE_graph_release ? torchlean_cuda_graph_release(graph)
                                      : torchlean_cuda_graph_nodes(graph, fuzz_one_in(f, 5) ? NULL : &nodes);
    check(f, which, status, 1);
    if (nodes != 77) fuzz_fail(f, fuzz_core_symbols[which], "refused, but the answer is %u", nodes);
    return status;
}

static int32_t describe(fuzz_run *f, int which)
{
    const char *symbol = fuzz_core_symbols[which];
    char text[64];
    uint32_t capacity = fuzz_one_in(f, 4) ? 0 : 1 + (uint32_t)fuzz_below(f, sizeof text - 1);
    int nowhere = fuzz_one_in(f, 5);
    int32_t device = fuzz_one_in(f, 3) ? (int32_t)fuzz_size(f) : f->device;
    memset(text, 77, sizeof text);
    int32_t status = torchlean_cuda_device_describe(device, nowhere ? NULL : text, capacity);
    fuzz_status(f, symbol, status, nowhere || !capacity || device < -1 || device >= 64,
                !nowhere && capacity && device == f->device, 0);
    if (!status && !memchr(text, 0, capacity)) fuzz_fail(f, symbol, "no zero within the capacity");
    for (uint32_t i = status ? 0 : capacity; i < sizeof text; i++) {
        if (text[i] != 77) fuzz_fail(f, symbol, "byte %u of %u has changed, status %d", i, capacity, status);
    }
    return status;
}

static int32_t set_variant(fuzz_run *f, int which)
{
    static const char *const variants[] = {"base", "avx2", "avx512", "", "sse", "base ", NULL};
    const char *name = variants[fuzz_below(f, 7)];
    int known = !name || !strcmp(name, "base");
    int32_t status = torchlean_cuda_set_cpu_variant(name);
    fuzz_status(f, fuzz_core_symbols[which], status, !known && name[0] != 'a', known, 0);
    return status;
}

/* Stopping threads is slow, so mostly it is refused or nothing new. */
static int32_t set_threads(fuzz_run *f, int which)
{
    uint32_t threads = fuzz_one_in(f, 64) ? (uint32_t)fuzz_below(f, 4) : torchlean_cuda_threads();
    threads = fuzz_one_in(f, 2) ? 1025 + fuzz_size(f) / 2 : threads;
    return check(f, which, torchlean_cuda_set_threads(threads), threads > 1024);
}

/* A team of the caller alone. */
static void run_alone(void (*body)(void *), void *data, uint32_t threads, uint32_t flags)
{
    if (threads && !flags) body(data);
}

/* Other threads' calls of set_threads are refused meanwhile, so only a thread that is alone sets what does the work. */
static int32_t set_parallel(fuzz_run *f, int which)
{
    const uint32_t before = torchlean_cuda_threads();
    const int host = fuzz_one_in(f, 2), wrong = fuzz_one_in(f, 2) || (host && !f->alone);
    const uint32_t threads = wrong ? (host && fuzz_one_in(f, 2) ? 0 : 1025 + fuzz_size(f) / 2) : before;
    const int32_t status = torchlean_cuda_set_parallel(host ? run_alone : NULL, threads);
    if (torchlean_cuda_threads() != before && f->alone)
        fuzz_fail(f, fuzz_core_symbols[which], "status %d, and the number of threads has changed", status);
    if (host && !status) {
        float sum[2] = {1, 2};
        torchlean_buffer *x = NULL;
        if (torchlean_cuda_buffer_upload(f->context, sum, 2, &x) || torchlean_cuda_buffer_release(x) ||
            torchlean_cuda_set_parallel(NULL, before))
            fuzz_fail(f, fuzz_core_symbols[which], "a host's threads do not do the work, or cannot be given up");
    }
    return check(f, which, status, wrong);
}

static int32_t ask_context(fuzz_run *f, int which)
{
    int want = EITHER;
    torchlean_context *context = fuzz_draw_context(f, &want);
    if (which == CORE_context_synchronize)
        return check(f, which, torchlean_cuda_context_synchronize(context), want == REFUSE);
    int32_t answer = 77, right = f->device, status;
    torchlean_memory m = {.allocations = 77};
    int nowhere = fuzz_one_in(f, 5);
    switch (which) {
    case CORE_context_device: status = torchlean_cuda_context_device(context, nowhere ? NULL : &answer); break;
    case CORE_context_math:
        right = TORCHLEAN_FAST;
        status = torchlean_cuda_context_math(context, nowhere ? NULL : &answer);
        break;
    default: status = torchlean_cuda_memory_stats(context, nowhere ? NULL : &m); break;
    }
    if (which == CORE_memory_stats ? status && m.allocations != 77 : answer != (status ? 77 : right))
        fuzz_fail(f, fuzz_core_symbols[which], "status %d, but the answer is %d or %llu", status, answer,
                  (unsigned long long)m.allocations);
    return check(f, which, status, want == REFUSE || nowhere);
}

/* Between calls, so it ends none; those of other threads it might. */
static int32_t interrupt(fuzz_run *f, int which)
{
    if (f->alone) torchlean_cuda_interrupt();
    return check(f, which, TORCHLEAN_OK, 0);
}

static int32_t watch_signal(fuzz_run *f, int which)
{
    const int32_t number = (int32_t)fuzz_below(f, 4) * 50 - 50; /* 50 is a signal, -50 and 100 are none */
    return check(f, which, torchlean_cuda_watch_signal(number), number < 0 || number > 64);
}

static int32_t read_descriptions(fuzz_run *f, int which)
{
    const char *name = torchlean_cuda_status_name((int32_t)fuzz_size(f));
    if (!name || !*name || !*torchlean_cuda_cpu_variant() || !torchlean_cuda_threads() || !torchlean_cuda_version() ||
        strlen(torchlean_cuda_abi_hash()) != 64 || !*torchlean_cuda_build_info() || torchlean_cuda_device_count() > 64)
        fuzz_fail(f, fuzz_core_symbols[which], "a description is empty");
    return TORCHLEAN_OK;
}

/* A choice, by any numbers up to 300, or what is none. */
static int32_t explain(fuzz_run *f, int which)
{
    static const struct {
        const char *name;
        uint32_t count;
    } choices[] = {{"product", 12}, {"attention", 12}, {"conv", 11}, {"conv", 17}, {"fold", 3}, {"extreme", 4},
                   {"sums", 3},     {"cumsum", 2},     {"row", 2},   {"top", 2},   {"real", 3}, {"spectral_conv", 3},
                   {"scatter", 3},  {"", 2},           {"rows", 2},  {NULL, 2}};
    const uint64_t drawn = fuzz_below(f, 16);
    const char *choice = choices[drawn].name;
    const uint32_t count = fuzz_one_in(f, 4) ? (uint32_t)fuzz_below(f, 24) : choices[drawn].count;
    int64_t numbers[24],
        device[5] = {1 + (int64_t)fuzz_below(f, 200), 1 << 16, 80 + 10 * (int64_t)fuzz_below(f, 2), 1, 0};
    for (int i = 0; i < 24; i++)
        numbers[i] = (int64_t)fuzz_below(f, fuzz_one_in(f, 2) ? 4 : 300);
    const int bad = (int)fuzz_below(f, 9);
    if (bad == 0) device[0] = 0;
    if (bad == 1 && count) numbers[count - 1] = INT64_MAX;
    const char *text = torchlean_cuda_explain(choice, bad == 2 ? NULL : numbers, count, bad == 3 ? NULL : device);
    if (text && (!choice || !*choice || bad == 0 || bad == 2 || bad == 3 || (bad == 1 && count) || !strchr(text, ':')))
        fuzz_fail(f, fuzz_core_symbols[which], "%s of %u numbers gives %s", choice, count, text);
    return text ? TORCHLEAN_OK : TORCHLEAN_ARGUMENT;
}

/* The text of the refusal just made, within the capacity. */
static int32_t take_text(fuzz_run *f, int which)
{
    char text[80] = "unchanged";
    const uint32_t capacity = (uint32_t)fuzz_below(f, 9), status = torchlean_cuda_buffer_length(NULL, NULL);
    if (!torchlean_cuda_take_error(status, text, capacity) || (capacity ? strlen(text) >= capacity : text[0] != 'u'))
        fuzz_fail(f, fuzz_core_symbols[which], "the text is %s with a capacity of %u", text, capacity);
    return TORCHLEAN_OK;
}

static int32_t convert(fuzz_run *f, int which)
{
    uint64_t from[8] = {0}, to[8];
    const int32_t from_type = (int32_t)fuzz_below(f, 6) - 1, to_type = (int32_t)fuzz_below(f, 4) - 1;
    const int nowhere = fuzz_one_in(f, 8),
              refuse = nowhere || from_type < 0 || from_type > 3 || to_type < 0 || to_type > 1;
    memset(to, 77, sizeof to);
    int32_t status = torchlean_cuda_convert(nowhere ? NULL : from, from_type, 8, to, to_type);
    if (status ? *(char *)to != 77 : *(char *)to)
        fuzz_fail(f, fuzz_core_symbols[which], "status %d, but the output says otherwise", status);
    return check(f, which, status, refuse);
}

static int32_t exchange(fuzz_run *f, int which)
{
    const char *symbol = fuzz_core_symbols[which];
    switch (which) {
    case CORE_buffer_lend: return fuzz_lend(f, symbol);
    case CORE_buffer_borrow: return fuzz_borrow(f, symbol);
    case CORE_buffer_wrap: return fuzz_wrap(f, symbol);
    case CORE_context_adopt: return fuzz_adopt(f, symbol);
    case CORE_context_stream: return fuzz_stream(f, symbol);
    default: return fuzz_order(f, symbol);
    }
}

#define FUNCTION(name, function) function,

int32_t fuzz_core(fuzz_run *f, int which)
{
    static int32_t (*const functions[])(fuzz_run *, int) = {EACH_CORE_FUNCTION(FUNCTION)};
    return functions[which](f, which);
}
