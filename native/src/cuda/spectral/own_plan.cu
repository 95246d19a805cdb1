/* Plans of own transforms on a device: the tables of the host's plan in one block of device memory, kept by the context. */
#include <algorithm>

#include "cuda/spectral/spectral.cuh"
#include "cuda/spectral/plan_cache.cuh"

/* The host's plans (cpu/spectral/plan.c), of the variant that is always there: all make the same tables. */
extern "C" const tl_fft *tl_fft_get_base(int64_t n, int kind);
extern "C" void tl_fft_put_base(const tl_fft *plan);

namespace {

/* Where the tables go: first their sizes are counted, then they are copied. */
struct Tables {
    char *host, *device;
    size_t bytes;

    /* Room for `count` values: fill(to, i) makes value i, and the address on the device is returned. */
    template <class T, class Fill> const T *make(int64_t count, const Fill &fill)
    {
        const size_t at = bytes;
        bytes += ((size_t)count * sizeof(T) + 15) / 16 * 16;
        for (int64_t i = 0; host && i < count; i++)
            fill(reinterpret_cast<T *>(host + at), i);
        return reinterpret_cast<const T *>(device + at);
    }
    template <class T> const T *add(const T *from, int64_t count)
    {
        return make<T>(count, [&](T *to, int64_t i) { to[i] = from[i]; });
    }
    tl_roots add_roots(const tl_roots &r)
    {
        tl_roots copy = r;
        copy.fine = const_cast<double *>(add(r.fine, 2 * (int64_t)(UINT64_C(1) << r.shift)));
        copy.coarse = const_cast<double *>(add(r.coarse, 2 * (int64_t)((r.n >> r.shift) + 1)));
        return copy;
    }
};

void add_radix(tl_own_direct *d, int radix, int64_t *span)
{
    const int i = d->stages++;
    d->radix[i] = radix;
    d->each[i] = tl_fastdiv((uint64_t)(d->n / radix));
    d->span[i] = tl_fastdiv((uint64_t)*span);
    *span *= radix;
}

/* The host's twiddles, which lie root by root of a butterfly, transposed. */
tl_own_direct add_direct(const tl_fft *f, Tables &t)
{
    tl_own_direct d = {};
    d.n = (int)f->n;
    int64_t span = 1;
    for (int i = 0; i < f->stages; i++)
        add_radix(&d, f->radix[i], &span);
    int64_t first = 0, stage = 0, roots = 0, others = 0; /* of the pass that has root e */
    d.twiddle = t.make<float2>(f->n, [&](float2 *to, int64_t e) {
        if (e + 1 == f->n) return; /* there are n - 1 */
        if (e == first + roots * others) {
            first = e, roots = e == 0 ? f->n / f->radix[0] : roots / f->radix[stage], others = f->radix[stage++] - 1;
        }
        const int64_t within = e - first;
        to[first + within % others * roots + within / others] = make_float2(f->twiddle[2 * e], f->twiddle[2 * e + 1]);
    });
    return d;
}

/* The number of the transform that passes in place leave at `at`. */
int64_t frequency(const tl_own_direct &d, int64_t at)
{
    int64_t k = 0, weight = 1;
    for (int i = d.stages - 1; i >= 0; i--) {
        k += at / d.span[i].divisor % d.radix[i] * weight;
        weight *= d.radix[i];
    }
    return k;
}

float2 root(int64_t k, int64_t n)
{
    double c, s;
    tl_root((uint64_t)k, (uint64_t)n, &c, &s);
    return make_float2((float)c, (float)-s);
}

/* e^(-2·pi·i·k/(2n)), k <= n/2, splits a packed transform of n numbers. */
void add_packed(int64_t n, Tables &t, tl_own_plan *p)
{
    *p = {};
    p->n = p->m = n, p->pairs = tl_fastdiv((uint64_t)(n / 2));
    tl_own_direct &d = p->direct;
    d.n = (int)n;
    for (int64_t span = 1; span < n;)
        add_radix(&d, (int)std::min<int64_t>(16, n / span), &span);
    for (int i = 1; i < d.stages; i++) {
        const int64_t radix = d.radix[i], span = d.span[i].divisor;
        const float2 *const made = t.make<float2>(tl_packed_roots((int)radix) * span, [&](float2 *to, int64_t e) {
            to[e] = root(e % span * tl_packed_power((int)radix, (int)(e / span)), span * radix);
        });
        if (i == 1) d.twiddle = made; /* the others' follow it */
    }
    p->real = reinterpret_cast<const float *>(
        t.make<float2>(n / 2 + 1, [&](float2 *to, int64_t k) { to[k] = root(k, 2 * n); }));
    p->places = t.make<uint16_t>(n, [&](uint16_t *to, int64_t at) { to[frequency(d, at)] = (uint16_t)at; });
}

void add_plan(const tl_fft *f, Tables &t, tl_own_plan *p)
{
    *p = {};
    const tl_fft *whole = f->chirp ? f->first : f;
    p->n = f->n, p->m = whole->n;
    p->in_shared = f->in_lanes, p->bluestein = f->chirp != nullptr;
    p->direct = add_direct(whole->first ? whole->first : whole, t);
    if (whole->first) { /* four steps */
        p->rows = add_direct(whole->second, t);
        p->roots = t.add_roots(whole->roots);
        p->lane_roots = t.add(whole->lane_roots, whole->first->n * 2 * TL_FFT_COLUMNS);
    }
    if (p->bluestein) {
        p->chirp = t.add(f->chirp, 2 * f->n);
        p->kernel = t.add(f->kernel, 2 * p->m);
    }
    p->real = t.add(f->real, 2 * (f->n / 2 + 1));
}

struct Key {
    int64_t n;
    bool in_place;
};

struct OwnPlan {
    tl_own_plan plan;
    Key key;
    void *memory;

    bool is(const Key &k) const { return k.n == key.n && k.in_place == key.in_place; }
    /* Waits for the kernels that read it. */
    void destroy() { cudaFree(memory); }
    int32_t make(tl_context *ctx, const Key &k)
    {
        key = k;
        if (k.in_place) return upload(ctx, [&](Tables &t) { add_packed(k.n, t, &plan); });
        const tl_fft *f = tl_fft_get_base(k.n, TL_FFT_ANY);
        if (!f)
            return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the plan of a %lld-point transform",
                           (long long)k.n);
        const int32_t status = upload(ctx, [&](Tables &t) { add_plan(f, t, &plan); });
        tl_fft_put_base(f);
        return status;
    }

  private:
    /* Waits for the copy, on the stream that will use it: the host's memory goes afterwards. */
    template <class Add> int32_t upload(tl_context *ctx, const Add &add)
    {
        Tables t = {};
        add(t);
        t.host = (char *)malloc(t.bytes);
        if (!t.host)
            return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a plan of %lld points", (long long)key.n);
        cudaError_t error = cudaMalloc(&memory, t.bytes);
        if (error == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            const int32_t status = tl_pool_collect(ctx);
            error = status ? error : cudaMalloc(&memory, t.bytes);
        }
        if (error == cudaSuccess) {
            t.device = (char *)memory;
            t.bytes = 0;
            add(t);
            error = cudaMemcpyAsync(memory, t.host, t.bytes, cudaMemcpyHostToDevice, tl_cuda_stream(ctx));
            if (error == cudaSuccess) error = cudaStreamSynchronize(tl_cuda_stream(ctx));
            if (error != cudaSuccess) cudaFree(memory);
        }
        free(t.host);
        TL_CUDA_TRY(ctx, error);
        return TORCHLEAN_OK;
    }
};

} /* namespace */

int32_t tl_own_find(tl_context *ctx, int64_t n, bool in_place, tl_own_plan *plan)
{
    OwnPlan *kept = nullptr;
    TL_TRY(tl_plan_cache<OwnPlan>::find(ctx, TL_ATTACH_OWN_FFT, Key{n, in_place}, &kept));
    *plan = kept->plan;
    return TORCHLEAN_OK;
}
