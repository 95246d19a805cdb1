/* Plans of own transforms on a device: the tables of the host's plan in one block of device memory, kept by the context. */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <iterator>

#include "cuda/spectral/own.cuh"

/* The host's plans (cpu/spectral/plan.c), of the variant that is always there: all make the same tables. */
extern "C" const tl_fft *tl_fft_get_base(int64_t n, int kind);
extern "C" void tl_fft_put_base(const tl_fft *plan);

namespace {

/* Plans that no graph uses; the cache grows by those that one does. */
constexpr int CACHED_PLANS = 24;

/* As the CPU transforms; the passes of an odd length (spectral/odd.cu); what half a spectrum takes (spectral/chirp.cu), in one
 * piece or as a matrix; what all of a complex one takes (spectral/even.cu); the passes of a power of two (spectral/packed.cu). */
enum Kind { AS_CPU, ODD_FORWARD, ODD_INVERSE, HALF, HALF_MATRIX, FULL, PACKED };

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
    /* The radices of `few`, 2^0 to 2^3 times 1, 3, 5, 9 or 15: one, or two that lie as near to one another as any; 20 for an inner pass. */
    template <class Add> static void add_few(int few, bool inner, const Add &add_radix)
    {
        constexpr int RADICES[] = {2, 3, 4, 5, 6, 8, 10, 12, 15};
        auto is_radix = [&](int r) {
            return std::find(std::begin(RADICES), std::end(RADICES), r) != std::end(RADICES);
        };
        if (few == 1) return;
        if (is_radix(few) || (few == 20 && inner)) {
            add_radix(few);
            return;
        }
        for (int r : RADICES)
            if (r * r >= few && few % r == 0 && is_radix(few / r)) {
                add_radix(few / r), add_radix(r);
                return;
            }
    }
    /* Passes in place (spectral/in_place.cuh), the last one first: its sixteen numbers are neighbours, those of the others lie a
     * multiple of 16 apart. `few_first`: a radix below 16 is the first pass's. */
    tl_own_direct add_passes(int64_t n, bool few_first = false)
    {
        tl_own_direct d = {};
        d.n = (int)n;
        int64_t rest = n;
        auto add_radix = [&](int radix) { d.radix[d.stages++] = radix, rest /= radix; };
        add_radix(16);
        int64_t few = few_first ? 1 : rest;
        while (few % 16 == 0)
            few /= 16;
        add_few((int)few, rest > few, add_radix);
        while (rest > 1)
            add_radix(rest < 16 ? (int)rest : 16);
        float2 *const to = reinterpret_cast<float2 *>(host + bytes);
        int64_t span = 1, count = 0;
        for (int i = 0; i < d.stages; i++) {
            const int r = d.radix[i];
            d.each[i] = tl_fastdiv((uint64_t)(n / r));
            d.span[i] = tl_fastdiv((uint64_t)span);
            for (int table = 0; i > 0 && table < tl_half_roots(r); table++)
                for (int64_t k = 0; k < span; k++, count++) {
                    double c, s;
                    tl_root((uint64_t)(k * tl_half_power(r, table)), (uint64_t)(span * r), &c, &s);
                    if (host) to[count] = make_float2((float)c, (float)-s);
                }
            span *= r;
        }
        d.twiddle = reinterpret_cast<const float2 *>(device + bytes);
        bytes += ((size_t)count * sizeof(float2) + 15) / 16 * 16;
        return d;
    }
    /* The kernel of a convolution as its passes leave a transform: numbers j of the butterflies of a row side by side. */
    const float *add_kernel(const tl_fft *f, const tl_own_plan &p)
    {
        const tl_own_direct &row = p.four_step ? p.rows : p.direct;
        const int64_t rows = p.four_step ? p.direct.n : 1, each = row.n / 16;
        float *const to = reinterpret_cast<float *>(host + bytes);
        for (int64_t e = 0; host && e < p.m; e++) {
            const int64_t at = e % row.n, within = at % each * 16 + at / each;
            const int64_t k = p.four_step ? frequency(p.direct, e / row.n) : 0;
            memcpy(to + 2 * e, f->kernel + 2 * (k + rows * frequency(row, within)), sizeof(float2));
        }
        const float *const there = reinterpret_cast<const float *>(device + bytes);
        bytes += (size_t)p.m * sizeof(float2);
        return there;
    }
    /* The roots by which numbers of the columns are turned, as they lie. */
    const float2 *add_turns(const tl_own_plan &p)
    {
        float2 *const to = reinterpret_cast<float2 *>(host + bytes);
        for (int64_t e = 0; host && e < p.m; e++) {
            double c, s;
            tl_root((uint64_t)(frequency(p.direct, e / p.rows.n) * (e % p.rows.n)), (uint64_t)p.m, &c, &s);
            to[e] = make_float2((float)c, (float)-s);
        }
        const float2 *const there = reinterpret_cast<const float2 *>(device + bytes);
        bytes += (size_t)p.m * sizeof(float2);
        return there;
    }
    /* e^(-2·pi·i·k/(2n)), k <= n/2: what splits a packed transform of n numbers. */
    const float *add_packed_roots(int64_t n)
    {
        float *const to = reinterpret_cast<float *>(host + bytes);
        for (int64_t k = 0; host && k <= n / 2; k++) {
            double c, s;
            tl_root((uint64_t)k, 2 * (uint64_t)n, &c, &s);
            to[2 * k] = (float)c, to[2 * k + 1] = (float)-s;
        }
        const float *const there = reinterpret_cast<const float *>(device + bytes);
        bytes += ((size_t)(n / 2 + 1) * sizeof(float2) + 15) / 16 * 16;
        return there;
    }
    const uint16_t *add_places(const tl_own_direct &d)
    {
        uint16_t *const to = reinterpret_cast<uint16_t *>(host + bytes);
        for (int64_t at = 0; host && at < d.n; at++)
            to[frequency(d, at)] = (uint16_t)at;
        const uint16_t *const there = reinterpret_cast<const uint16_t *>(device + bytes);
        bytes += ((size_t)d.n * sizeof(uint16_t) + 15) / 16 * 16;
        return there;
    }
    /* The number of the transform that passes in place leave at `at`. */
    static int64_t frequency(const tl_own_direct &d, int64_t at)
    {
        int64_t k = 0, weight = 1;
        for (int i = d.stages - 1; i >= 0; i--) {
            k += at / d.span[i].divisor % d.radix[i] * weight;
            weight *= d.radix[i];
        }
        return k;
    }
};

void add_packed(Tables &t, tl_own_plan *p)
{
    p->m = p->n, p->direct = t.add_passes(p->n, true), p->pairs = tl_fastdiv((uint64_t)(p->n / 2));
    p->real = t.add_packed_roots(p->n);
    p->places = t.add_places(p->direct);
}

void add_chirp(const tl_fft *f, Kind kind, Tables &t, tl_own_plan *p)
{
    p->m = f->m, p->bluestein = true, p->four_step = kind == HALF_MATRIX;
    p->direct = t.add_passes(p->four_step ? TL_FFT_HALF_COLUMN : p->m);
    if (p->four_step) {
        p->rows = t.add_passes(p->m / TL_FFT_HALF_COLUMN);
        p->turns = t.add_turns(*p);
    }
    p->chirp = t.add(f->chirp, 2 * (kind == FULL ? f->n : f->n / 2 + 1));
    p->kernel = t.add_kernel(f, *p);
    if (kind != FULL) return;
    p->pairs = tl_fastdiv((uint64_t)(f->n / 2 + 1));
    p->real = t.add_packed_roots(f->n);
}

void add_plan(const tl_fft *f, Kind kind, Tables &t, tl_own_plan *p)
{
    *p = {};
    p->n = f->n;
    if (kind == HALF || kind == HALF_MATRIX || kind == FULL) {
        add_chirp(f, kind, t, p);
        return;
    }
    if (kind == PACKED) {
        add_packed(t, p);
        return;
    }
    const tl_fft *whole = f->chirp ? f->first : f;
    p->m = whole->n;
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

/* By a plan of the host: AS_CPU, HALF, HALF_MATRIX or FULL. */
int32_t make_as_host(tl_context *ctx, int64_t n, Kind kind, Entry *entry)
{
    const int of_host = kind == HALF          ? TL_FFT_HALF
                        : kind == HALF_MATRIX ? TL_FFT_HALF_MATRIX
                        : kind == FULL        ? TL_FFT_FULL
                                              : TL_FFT_ANY;
    const tl_fft *f = tl_fft_get_base(n, of_host);
    if (!f)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the plan of a %lld-point transform", (long long)n);
    const int32_t status = upload(ctx, f, kind, entry);
    tl_fft_put_base(f);
    return status;
}

int32_t make_packed(tl_context *ctx, int64_t n, Entry *entry)
{
    tl_fft f = {};
    f.n = n;
    return upload(ctx, &f, PACKED, entry);
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
    if (kind == PACKED)
        TL_TRY(make_packed(ctx, n, place));
    else if (kind == ODD_FORWARD || kind == ODD_INVERSE)
        TL_TRY(make_odd(ctx, n, kind, place));
    else
        TL_TRY(make_as_host(ctx, n, kind, place));
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

int32_t tl_half_find(tl_context *ctx, int64_t n, bool matrix, tl_own_plan *plan)
{
    return find(ctx, n, matrix ? HALF_MATRIX : HALF, plan);
}

int32_t tl_full_find(tl_context *ctx, int64_t n, tl_own_plan *plan) { return find(ctx, n, FULL, plan); }

int32_t tl_packed_find(tl_context *ctx, int64_t n, tl_own_plan *plan) { return find(ctx, n, PACKED, plan); }
