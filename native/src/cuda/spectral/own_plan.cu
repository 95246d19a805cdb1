/* Plans of own transforms on a device: the tables of the host's plan in one block of device memory, kept by the context. */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "cuda/spectral/own.cuh"

/* The host's plans (cpu/spectral/plan.c), of the variant that is always there: all make the same tables. */
extern "C" const tl_fft *tl_fft_get_base(int64_t n, int kind);
extern "C" void tl_fft_put_base(const tl_fft *plan);

namespace {

/* Plans that no graph uses; the cache grows by those that one does. */
constexpr int CACHED_PLANS = 24;

/* As the CPU transforms, or the passes of an odd length (spectral/odd.cu). */
enum Kind { AS_CPU, ODD_FORWARD, ODD_INVERSE };

struct Entry {
    tl_own_plan plan;
    Kind kind;
    void *memory;
    uint64_t stamp; /* 0: free */
    int captured;   /* a graph reads its tables: it stays */
};

struct Plans {
    Entry *entries;
    int count;
    uint64_t now;
};

void close_plans(void *object)
{
    Plans *plans = (Plans *)object;
    for (int i = 0; i < plans->count; i++)
        if (plans->entries[i].stamp) cudaFree(plans->entries[i].memory);
    free(plans->entries);
    free(plans);
}

/* Where the tables go: first their sizes are counted, then they are copied. */
struct Tables {
    char *host, *device;
    size_t bytes;

    template <class T> const T *add(const T *from, int64_t count)
    {
        const size_t at = bytes;
        bytes += ((size_t)count * sizeof(T) + 15) / 16 * 16;
        if (host) memcpy(host + at, from, (size_t)count * sizeof(T));
        return reinterpret_cast<const T *>(device + at);
    }
    tl_roots add_roots(const tl_roots &r)
    {
        tl_roots copy = r;
        copy.fine = const_cast<double *>(add(r.fine, 2 * (int64_t)(UINT64_C(1) << r.shift)));
        copy.coarse = const_cast<double *>(add(r.coarse, 2 * (int64_t)((r.n >> r.shift) + 1)));
        return copy;
    }
    /* The host's twiddles, which lie root by root of a butterfly, transposed. */
    const float2 *add_twiddles(const tl_fft *f)
    {
        const size_t at = bytes;
        bytes += ((size_t)f->n * sizeof(float2) + 15) / 16 * 16;
        const float *from = f->twiddle;
        float2 *to = reinterpret_cast<float2 *>(host + at);
        int64_t length = f->n;
        for (int i = 0; host && i < f->stages; i++) {
            const int64_t others = f->radix[i] - 1, roots = length / f->radix[i];
            for (int64_t e = 0; e < roots * others; e++, from += 2)
                to[e % others * roots + e / others] = make_float2(from[0], from[1]);
            to += roots * others;
            length = roots;
        }
        return reinterpret_cast<const float2 *>(device + at);
    }
    tl_own_direct add_direct(const tl_fft *f)
    {
        tl_own_direct d = {};
        d.n = (int)f->n, d.stages = f->stages;
        int64_t span = 1;
        for (int i = 0; i < f->stages; i++) {
            d.radix[i] = f->radix[i];
            d.each[i] = tl_fastdiv((uint64_t)(f->n / f->radix[i]));
            d.span[i] = tl_fastdiv((uint64_t)span);
            span *= f->radix[i];
        }
        d.twiddle = add_twiddles(f);
        return d;
    }
};

void add_plan(const tl_fft *f, Kind kind, Tables &t, tl_own_plan *p)
{
    const tl_fft *whole = f->chirp ? f->first : f;
    *p = {};
    p->n = f->n, p->m = whole->n;
    if (kind != AS_CPU) {
        p->direct = t.add_direct(f);
        return;
    }
    p->in_shared = f->in_lanes, p->bluestein = f->chirp != nullptr, p->four_step = whole->first != nullptr;
    p->direct = t.add_direct(p->four_step ? whole->first : whole);
    if (p->four_step) {
        p->rows = t.add_direct(whole->second);
        p->roots = t.add_roots(whole->roots);
        p->lane_roots = t.add(whole->lane_roots, whole->first->n * 2 * TL_FFT_COLUMNS);
    }
    if (p->bluestein) {
        p->chirp = t.add(f->chirp, 2 * f->n);
        p->kernel = t.add(f->kernel, 2 * p->m);
    }
    p->packed = t.add_roots(f->packed);
    if (f->in_lanes) p->real = t.add(f->real, 2 * (f->n / 2 + 1));
}

/* Waits for the copy, on the stream that will use it: the host's memory goes afterwards. */
int32_t upload(tl_context *ctx, const tl_fft *f, Kind kind, Entry *entry)
{
    Tables t = {};
    add_plan(f, kind, t, &entry->plan);
    t.host = (char *)malloc(t.bytes);
    if (!t.host) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a plan of %lld points", (long long)f->n);
    cudaError_t error = cudaMalloc(&entry->memory, t.bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        const int32_t status = tl_pool_collect(ctx);
        error = status ? error : cudaMalloc(&entry->memory, t.bytes);
    }
    if (error == cudaSuccess) {
        t.device = (char *)entry->memory;
        t.bytes = 0;
        add_plan(f, kind, t, &entry->plan);
        error = cudaMemcpyAsync(entry->memory, t.host, t.bytes, cudaMemcpyHostToDevice, tl_cuda_stream(ctx));
        if (error == cudaSuccess) error = cudaStreamSynchronize(tl_cuda_stream(ctx));
        if (error != cudaSuccess) cudaFree(entry->memory);
    }
    free(t.host);
    TL_CUDA_TRY(ctx, error);
    return TORCHLEAN_OK;
}

int32_t make_as_cpu(tl_context *ctx, int64_t n, Entry *entry)
{
    const tl_fft *f = tl_fft_get_base(n, TL_FFT_ANY);
    if (!f)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the plan of a %lld-point transform", (long long)n);
    const int32_t status = upload(ctx, f, AS_CPU, entry);
    tl_fft_put_base(f);
    return status;
}

int32_t make_odd(tl_context *ctx, int64_t n, Kind kind, Entry *entry)
{
    tl_fft f = {};
    f.n = n;
    f.stages = tl_odd_radices(n, f.radix);
    if (kind == ODD_INVERSE) std::reverse(f.radix, f.radix + f.stages);
    f.twiddle = (float *)malloc((size_t)n * 2 * sizeof(float));
    if (!f.twiddle)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the plan of a %lld-point transform", (long long)n);
    float *out = f.twiddle;
    int64_t length = n;
    for (int i = 0; i < f.stages; i++) {
        const int64_t r = f.radix[i], roots = length / r;
        for (int64_t p = 0; p < roots; p++)
            for (int64_t j = 1; j < r; j++, out += 2) {
                double c, s;
                tl_root((uint64_t)(p * j), (uint64_t)length, &c, &s);
                out[0] = (float)c;
                out[1] = (float)-s;
            }
        length = roots;
    }
    const int32_t status = upload(ctx, &f, kind, entry);
    free(f.twiddle);
    return status;
}

/* Room for CACHED_PLANS more. */
int32_t widen(Plans *plans)
{
    const int count = plans->count + CACHED_PLANS;
    Entry *entries = (Entry *)realloc((void *)plans->entries, count * sizeof *entries);
    if (!entries) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for FFT plans");
    memset((void *)(entries + plans->count), 0, CACHED_PLANS * sizeof *entries);
    plans->entries = entries;
    plans->count = count;
    return TORCHLEAN_OK;
}

int32_t find(tl_context *ctx, int64_t n, Kind kind, tl_own_plan *plan)
{
    Plans *plans = (Plans *)tl_cuda_attached(ctx, TL_ATTACH_OWN_FFT);
    if (!plans) {
        plans = (Plans *)calloc(1, sizeof *plans);
        if (!plans) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for FFT plans");
        tl_cuda_attach(ctx, TL_ATTACH_OWN_FFT, plans, close_plans);
    }
    const int capturing = tl_cuda_capturing(ctx);
    Entry *place = nullptr;
    for (int i = 0; i < plans->count; i++) {
        Entry &e = plans->entries[i];
        if (e.stamp && e.plan.n == n && e.kind == kind) {
            e.stamp = ++plans->now;
            e.captured |= capturing;
            *plan = e.plan;
            return TORCHLEAN_OK;
        }
        if (!e.captured && (!place || e.stamp < place->stamp)) place = &e;
    }
    if (capturing) /* making one waits for the device */
        return tl_fail(TORCHLEAN_UNAVAILABLE,
                       "a transform of %lld points for which there is no plan cannot be captured; run it once before",
                       (long long)n);
    if (!place) {
        TL_TRY(widen(plans));
        place = plans->entries + plans->count - CACHED_PLANS;
    }
    if (place->stamp) {
        TL_CUDA_TRY(ctx, cudaFree(place->memory)); /* waits for the kernels that read it */
        place->stamp = 0;
    }
    TL_TRY(kind == AS_CPU ? make_as_cpu(ctx, n, place) : make_odd(ctx, n, kind, place));
    place->kind = kind;
    place->captured = 0;
    place->stamp = ++plans->now;
    *plan = place->plan;
    return TORCHLEAN_OK;
}

} /* namespace */

int32_t tl_own_find(tl_context *ctx, int64_t n, tl_own_plan *plan) { return find(ctx, n, AS_CPU, plan); }

int32_t tl_odd_find(tl_context *ctx, int64_t n, bool inverse, tl_own_plan *plan)
{
    return find(ctx, n, inverse ? ODD_INVERSE : ODD_FORWARD, plan);
}
