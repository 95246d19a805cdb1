/* Hostile calls of the hand-written functions: contexts, memory, buffers, settings. Functions that change a context or the
 * process are called on a context of their own, made and destroyed within the call. */
#include <math.h>
#include <string.h>

#include "fuzz_abi.h"

/* The functions, as X(enumerator, name without the prefix). */
#define EACH_CORE_FUNCTION(X) \
    X(SET_CPU_VARIANT, set_cpu_variant) X(SET_THREADS, set_threads) X(DEVICE_DESCRIBE, device_describe) \
    X(CONTEXT_CREATE, context_create) X(CONTEXT_DESTROY, context_destroy) X(CONTEXT_DEVICE, context_device) \
    X(CONTEXT_SYNCHRONIZE, context_synchronize) X(CONTEXT_MARK, context_mark) X(CONTEXT_ELAPSED, context_elapsed) \
    X(MEMORY_STATS, memory_stats) X(MEMORY_RESET_PEAK, memory_reset_peak) X(MEMORY_CAP, memory_cap) \
    X(MEMORY_COLLECT, memory_collect) X(BUFFER_EMPTY, buffer_empty) X(BUFFER_ZEROS, buffer_zeros) \
    X(BUFFER_UPLOAD, buffer_upload) X(BUFFER_DOWNLOAD, buffer_download) X(BUFFER_FILL, buffer_fill) \
    X(BUFFER_COPY, buffer_copy) X(BUFFER_SHARE, buffer_share) X(BUFFER_RELEASE, buffer_release) \
    X(BUFFER_LENGTH, buffer_length) X(BUFFER_CONTEXT, buffer_context) X(BUFFER_REFERENCES, buffer_references) \
    X(CAPTURE_BEGIN, capture_begin) X(CAPTURE_END, capture_end) X(GRAPH_LAUNCH, graph_launch) \
    X(GRAPH_NODES, graph_nodes) X(GRAPH_RELEASE, graph_release) X(STATUS_NAME, status_name)
#define ENUMERATOR(enumerator, name) enumerator,
#define SYMBOL(enumerator, name) "torchlean_cuda_" #name,

typedef enum core { EACH_CORE_FUNCTION(ENUMERATOR) CORE_FUNCTIONS } core;
const char *const fuzz_core_symbols[] = {EACH_CORE_FUNCTION(SYMBOL)};
const int fuzz_core_count = CORE_FUNCTIONS;

enum { REFUSE = 1, ACCEPT = 2, EITHER = 0 };

/* A context handle: good, or one that must be refused. */
static torchlean_context *draw_context(fuzz_run *f, int *want)
{
    switch (fuzz_below(f, 8)) {
    case 0: *want = REFUSE; return NULL;
    case 1: *want = REFUSE; return f->destroyed;
    case 2: *want = REFUSE; return (torchlean_context *)(uintptr_t)(fuzz_next(f) >> 9 | UINT64_C(1));
    default: return f->context;
    }
}

/* A buffer handle: good with its length and place, or one that must be refused. */
static torchlean_buffer *draw_buffer(fuzz_run *f, int *want, uint32_t *n, int *place)
{
    *n = fuzz_one_in(f, 32) ? 65535 + (uint32_t)fuzz_below(f, 3) : (uint32_t)fuzz_below(f, 80);
    *place = (int)fuzz_below(f, FUZZ_PLACES);
    switch (fuzz_below(f, 8)) {
    case 0: *want = REFUSE; return NULL;
    case 1:
    case 2: {
        fuzz_truth truth;
        uint64_t bad = fuzz_bad_handle(f, &truth);
        if (truth == FUZZ_FOREIGN) /* a good one here */
            return draw_buffer(f, want, n, place);
        *want = REFUSE;
        return (torchlean_buffer *)(uintptr_t)bad;
    }
    default: return fuzz_take(f, *n, *place);
    }
}

/* A slot for an output of n elements of the context at hand; with a buffer in it that may fit. */
static torchlean_buffer **draw_slot(fuzz_run *f, int *want, torchlean_buffer **slot, uint32_t n, int *place)
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
            *place = 4 + (int)fuzz_below(f, FUZZ_PLACES - 4);
            *slot = fuzz_take(f, n, *place);
        }
        return slot;
    case 4:
        *place = 4;
        *slot = fuzz_take(f, n == 13 ? 14 : 13, 4);
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
    if (status && slot != before)
        fuzz_fail(f, symbol, "refused, but the slot has changed");
    if (!status && (torchlean_cuda_buffer_length(slot, &got) || got != n))
        fuzz_fail(f, symbol, "made %u elements, expected %u", got, n);
    if (made)
        torchlean_cuda_buffer_release(slot);
    if (place >= 0 && !status)
        f->rows[n].dirty[place] = 1;
    if (place >= 4 && status && before && want == EITHER && !fuzz_intact(f, n, place))
        fuzz_fail(f, symbol, "refused, but the content has changed");
}

static int32_t make(fuzz_run *f, int which)
{
    int want = EITHER, place, source_place = -1;
    torchlean_buffer *slot, **out;
    int32_t status;
    uint32_t n = fuzz_one_in(f, 4) ? fuzz_size(f) : (uint32_t)fuzz_below(f, 80);
    if (which == BUFFER_UPLOAD) /* as many as there are */
        n %= FUZZ_LENGTHS;
    torchlean_context *context = NULL;
    torchlean_buffer *source = NULL;
    if (which == BUFFER_COPY || which == BUFFER_SHARE)
        source = draw_buffer(f, &want, &n, &source_place);
    else
        context = draw_context(f, &want);
    out = draw_slot(f, &want, &slot, n, &place);
    torchlean_buffer *before = slot;
    const float *host = f->host;
    if (which == BUFFER_UPLOAD && fuzz_one_in(f, 6)) {
        host = NULL;
        want = n ? REFUSE : want;
    }
    switch (which) {
    case BUFFER_EMPTY: status = torchlean_cuda_buffer_empty(context, n, out); break;
    case BUFFER_ZEROS: status = torchlean_cuda_buffer_zeros(context, n, out); break;
    case BUFFER_UPLOAD: status = torchlean_cuda_buffer_upload(context, host, n, out); break;
    case BUFFER_SHARE:
        if (before)
            want = REFUSE;
        status = torchlean_cuda_buffer_share(source, out);
        break;
    default: /* a copy onto itself is refused */
        if (source && source == before)
            want = REFUSE;
        status = torchlean_cuda_buffer_copy(source, out);
    }
    if (want == EITHER && status != TORCHLEAN_NO_MEMORY)
        want = ACCEPT;
    after_making(f, which, status, want, slot, before, n, place);
    return status;
}

static int32_t read_back(fuzz_run *f)
{
    int want = EITHER, place = 0;
    uint32_t n = 0, asked;
    torchlean_buffer *buffer = draw_buffer(f, &want, &n, &place);
    int bad = want == REFUSE;
    asked = fuzz_one_in(f, 4) ? fuzz_size(f) : n;
    float *host = fuzz_one_in(f, 6) ? NULL : f->host;
    if (asked != n || (!host && asked))
        want = REFUSE;
    f->host[0] = 77.0f;
    int32_t status = torchlean_cuda_buffer_download(buffer, host, asked);
    fuzz_status(f, fuzz_core_symbols[BUFFER_DOWNLOAD], status, want == REFUSE, want != REFUSE, 0);
    if (status && f->host[0] != 77.0f)
        fuzz_fail(f, fuzz_core_symbols[BUFFER_DOWNLOAD], "refused, but host memory has changed");
    if (!bad && !fuzz_intact(f, n, place))
        fuzz_fail(f, fuzz_core_symbols[BUFFER_DOWNLOAD], "the buffer has changed");
    return status;
}

static int32_t ask(fuzz_run *f, int which)
{
    int want = EITHER, place = 0;
    uint32_t n = 0, answer = 77;
    torchlean_context *context = (torchlean_context *)&want;
    torchlean_buffer *buffer = draw_buffer(f, &want, &n, &place);
    int nowhere = fuzz_one_in(f, 6), refuse = want == REFUSE || nowhere;
    int32_t status;
    if (which == BUFFER_LENGTH)
        status = torchlean_cuda_buffer_length(buffer, nowhere ? NULL : &answer);
    else if (which == BUFFER_REFERENCES)
        status = torchlean_cuda_buffer_references(buffer, nowhere ? NULL : &answer);
    else
        status = torchlean_cuda_buffer_context(buffer, nowhere ? NULL : &context);
    fuzz_status(f, fuzz_core_symbols[which], status, refuse, !refuse, 0);
    if (which == BUFFER_CONTEXT ? context != (status ? (torchlean_context *)&want : f->context)
                                : answer != (status                   ? 77
                                             : which == BUFFER_LENGTH ? n
                                                                      : 1))
        fuzz_fail(f, fuzz_core_symbols[which], "status %d, but the answer is %u or %p", status, answer,
                  (void *)context);
    return status;
}

static int32_t release(fuzz_run *f)
{
    int want = EITHER, place;
    uint32_t n;
    torchlean_buffer *own = NULL, *buffer = draw_buffer(f, &want, &n, &place);
    int32_t status;
    if (want == REFUSE) { /* releasing what was released does nothing, and succeeds */
        int was = buffer == f->orphan;
        for (int i = 0; i < 16; i++)
            was |= buffer == f->released[i];
        status = torchlean_cuda_buffer_release(buffer);
        fuzz_status(f, fuzz_core_symbols[BUFFER_RELEASE], status, !was && !f->shared, was, 0);
        return status;
    }
    if (torchlean_cuda_buffer_copy(buffer, &own))
        return TORCHLEAN_OK;
    status = torchlean_cuda_buffer_release(own);
    fuzz_status(f, fuzz_core_symbols[BUFFER_RELEASE], status, 0, 1, 0);
    status = torchlean_cuda_buffer_release(own);
    fuzz_status(f, fuzz_core_symbols[BUFFER_RELEASE], status, 0, 1, 0);
    return status;
}

static int32_t fill(fuzz_run *f)
{
    int want = EITHER, place;
    uint32_t n;
    torchlean_buffer *buffer = draw_buffer(f, &want, &n, &place);
    int32_t status = torchlean_cuda_buffer_fill(buffer, fuzz_real(f));
    fuzz_status(f, fuzz_core_symbols[BUFFER_FILL], status, want == REFUSE, want != REFUSE, 0);
    if (!status)
        f->rows[n].dirty[place] = 1;
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
    if (which == CONTEXT_CREATE) {
        int nowhere = fuzz_one_in(f, 5);
        if (device != TORCHLEAN_CPU && device != f->device && device >= 0 && device < 64)
            device = 1 << 20; /* not another GPU: that takes long */
        status = torchlean_cuda_context_create(device, nowhere ? NULL : &own);
        fuzz_status(f, symbol, status, nowhere || device < -1 || device >= 64, !nowhere && device == f->device, 0);
        if (status && own)
            fuzz_fail(f, symbol, "refused, but the slot has changed");
        if (!status && torchlean_cuda_context_destroy(own))
            fuzz_fail(f, symbol, "the new context cannot be destroyed");
        return status;
    }
    if (torchlean_cuda_context_create(TORCHLEAN_CPU, &own))
        return TORCHLEAN_OK;
    torchlean_context *context = bad ? (fuzz_one_in(f, 2) ? NULL : garbage) : own;
    torchlean_cuda_context_mark(own, 3);
    torchlean_cuda_buffer_zeros(own, 5, &buffer);
    switch (which) {
    case CONTEXT_DESTROY:
        status = torchlean_cuda_context_destroy(context);
        if (!bad && torchlean_cuda_context_destroy(context))
            fuzz_fail(f, symbol, "a second destruction is refused");
        if (!bad && torchlean_cuda_buffer_fill(buffer, 1) != TORCHLEAN_RELEASED)
            fuzz_fail(f, symbol, "a buffer outlived its context");
        break;
    case CONTEXT_MARK:
        refuse |= from > 7;
        status = torchlean_cuda_context_mark(context, from);
        break;
    case CONTEXT_ELAPSED: {
        int nowhere = fuzz_one_in(f, 5);
        refuse |= from != 3 || to != 3 || nowhere;
        status = torchlean_cuda_context_elapsed(context, from, to, nowhere ? NULL : &milliseconds);
        if (status ? milliseconds != 77 : milliseconds != 0)
            fuzz_fail(f, symbol, "status %d and %g milliseconds", status, milliseconds);
        break;
    }
    case CAPTURE_BEGIN: /* a context of the CPU */
        refuse = 1;
        status = torchlean_cuda_capture_begin(context);
        break;
    case CAPTURE_END: {
        torchlean_graph *graph = fuzz_one_in(f, 2) ? NULL : (torchlean_graph *)garbage, *const before = graph;
        refuse = 1;
        status = torchlean_cuda_capture_end(context, fuzz_one_in(f, 3) ? NULL : &graph);
        if (graph != before)
            fuzz_fail(f, symbol, "refused, but the slot has changed");
        break;
    }
    case MEMORY_RESET_PEAK: status = torchlean_cuda_memory_reset_peak(context); break;
    case MEMORY_COLLECT: status = torchlean_cuda_memory_collect(context); break;
    default: {
        torchlean_buffer *more = NULL;
        status = torchlean_cuda_memory_cap(context, fuzz_one_in(f, 2) ? fuzz_below(f, 1000) : fuzz_next(f));
        if (!status)
            torchlean_cuda_buffer_zeros(own, (uint32_t)fuzz_below(f, 1000), &more); /* either outcome is right */
    }
    }
    fuzz_status(f, symbol, status, refuse, !refuse, 0);
    if (torchlean_cuda_context_destroy(own))
        fuzz_fail(f, symbol, "the context cannot be destroyed");
    return status;
}

/* Handles that are no graph's: NULL, garbage, with or without the tag, and those of a context and of a buffer. */
static int32_t on_no_graph(fuzz_run *f, int which)
{
    int want, place;
    uint32_t n, nodes = 77;
    uint64_t garbage = fuzz_one_in(f, 2) ? fuzz_next(f)
                                         : UINT64_C(0xA7) << 56 | (fuzz_next(f) >> 36) << 28 | fuzz_below(f, 9);
    const void *handles[] = {NULL, (void *)(uintptr_t)garbage, f->context, draw_buffer(f, &want, &n, &place)};
    torchlean_graph *graph = (torchlean_graph *)(uintptr_t)handles[fuzz_below(f, 4)];
    int32_t status = which == GRAPH_LAUNCH    ? torchlean_cuda_graph_launch(graph)
                     : which == GRAPH_RELEASE ? torchlean_cuda_graph_release(graph)
                                              : torchlean_cuda_graph_nodes(graph, fuzz_one_in(f, 5) ? NULL : &nodes);
    fuzz_status(f, fuzz_core_symbols[which], status, 1, 0, 0);
    if (nodes != 77)
        fuzz_fail(f, fuzz_core_symbols[which], "refused, but the answer is %u", nodes);
    return status;
}

static int32_t describe(fuzz_run *f)
{
    char text[64];
    uint32_t capacity = fuzz_one_in(f, 4) ? 0 : 1 + (uint32_t)fuzz_below(f, sizeof text - 1);
    int nowhere = fuzz_one_in(f, 5);
    int32_t device = fuzz_one_in(f, 3) ? (int32_t)fuzz_size(f) : f->device;
    memset(text, 77, sizeof text);
    int32_t status = torchlean_cuda_device_describe(device, nowhere ? NULL : text, capacity);
    fuzz_status(f, fuzz_core_symbols[DEVICE_DESCRIBE], status, nowhere || !capacity || device < -1 || device >= 64,
                !nowhere && capacity && device == f->device, 0);
    if (!status && !memchr(text, 0, capacity))
        fuzz_fail(f, fuzz_core_symbols[DEVICE_DESCRIBE], "no zero within the capacity");
    for (uint32_t i = status ? 0 : capacity; i < sizeof text; i++) {
        if (text[i] != 77)
            fuzz_fail(f, fuzz_core_symbols[DEVICE_DESCRIBE], "byte %u of %u has changed, status %d", i, capacity,
                      status);
    }
    return status;
}

int32_t fuzz_core(fuzz_run *f, int which)
{
    static const char *const variants[] = {"base", "avx2", "avx512", "", "sse", "base ", NULL};
    int want = EITHER;
    int32_t status;
    const char *symbol = fuzz_core_symbols[which];
    switch (which) {
    case BUFFER_EMPTY:
    case BUFFER_ZEROS:
    case BUFFER_UPLOAD:
    case BUFFER_COPY:
    case BUFFER_SHARE: return make(f, which);
    case BUFFER_DOWNLOAD: return read_back(f);
    case BUFFER_LENGTH:
    case BUFFER_CONTEXT:
    case BUFFER_REFERENCES: return ask(f, which);
    case BUFFER_RELEASE: return release(f);
    case BUFFER_FILL: return fill(f);
    case CONTEXT_CREATE:
    case CONTEXT_DESTROY:
    case CONTEXT_MARK:
    case CONTEXT_ELAPSED:
    case MEMORY_RESET_PEAK:
    case MEMORY_COLLECT:
    case MEMORY_CAP:
    case CAPTURE_BEGIN:
    case CAPTURE_END: return on_own_context(f, which);
    case GRAPH_LAUNCH:
    case GRAPH_NODES:
    case GRAPH_RELEASE: return on_no_graph(f, which);
    case DEVICE_DESCRIBE: return describe(f);
    case SET_THREADS: { /* stopping threads is slow, so mostly it is refused or nothing new */
        uint32_t threads = fuzz_one_in(f, 64) ? (uint32_t)fuzz_below(f, 4) : torchlean_cuda_threads();
        threads = fuzz_one_in(f, 2) ? 1025 + fuzz_size(f) / 2 : threads;
        status = torchlean_cuda_set_threads(threads);
        fuzz_status(f, symbol, status, threads > 1024, threads <= 1024, 0);
        return status;
    }
    case SET_CPU_VARIANT: {
        const char *name = variants[fuzz_below(f, 7)];
        int known = !name || !strcmp(name, "base");
        status = torchlean_cuda_set_cpu_variant(name);
        fuzz_status(f, symbol, status, !known && name[0] != 'a', known, 0);
        return status;
    }
    case CONTEXT_DEVICE: {
        torchlean_context *context = draw_context(f, &want);
        int32_t device = 77;
        int nowhere = fuzz_one_in(f, 5);
        status = torchlean_cuda_context_device(context, nowhere ? NULL : &device);
        fuzz_status(f, symbol, status, want == REFUSE || nowhere, want != REFUSE && !nowhere, 0);
        if (device != (status ? 77 : f->device))
            fuzz_fail(f, symbol, "status %d and device %d", status, device);
        return status;
    }
    case CONTEXT_SYNCHRONIZE: {
        torchlean_context *context = draw_context(f, &want);
        status = torchlean_cuda_context_synchronize(context);
        break;
    }
    case MEMORY_STATS: {
        torchlean_context *context = draw_context(f, &want);
        torchlean_memory m = {.allocations = 77};
        int nowhere = fuzz_one_in(f, 5);
        if (nowhere)
            want = REFUSE;
        status = torchlean_cuda_memory_stats(context, nowhere ? NULL : &m);
        if (status && m.allocations != 77)
            fuzz_fail(f, symbol, "refused, but the counters have changed");
        break;
    }
    default: {
        const char *name = torchlean_cuda_status_name((int32_t)fuzz_size(f));
        if (!name || !*name || !*torchlean_cuda_cpu_variant() || !torchlean_cuda_threads() ||
            !torchlean_cuda_version() || strlen(torchlean_cuda_abi_hash()) != 64 || !*torchlean_cuda_build_info() ||
            torchlean_cuda_device_count() > 64)
            fuzz_fail(f, symbol, "a description is empty");
        return TORCHLEAN_OK;
    }
    }
    fuzz_status(f, symbol, status, want == REFUSE, want != REFUSE, 0);
    return status;
}
