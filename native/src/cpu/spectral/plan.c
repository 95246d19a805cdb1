/* Plans of complex transforms: factors, roots of unity, Bluestein's kernel, and the process' cache of them.
 *
 * Every root is the product of two float64 roots at most, rounded to float32 once. */
#include <pthread.h>
#include <stdlib.h>

#include "core/threads.h"
#include "cpu/spectral/fft.h"
#include "formula/dft_tile.h"

enum { CACHED_PLANS = 32, LOOK = 1 << 12 /* roots between two looks for an interruption */ };
static const size_t CACHED_BYTES = (size_t)64 << 20;

static void *take(tl_fft *f, size_t bytes)
{
    f->bytes += bytes;
    return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

/* ---- roots ------------------------------------------------------------------------------------------------------- */

/* (cos, -sin) of 2·pi·(k·2^shift)/n for k < count. */
static void fill_roots(double *root, uint64_t count, int shift, uint64_t n)
{
    for (uint64_t k = 0; k < count; k++, root += 2) {
        tl_root((k << shift) % n, n, root, root + 1);
        root[1] = -root[1];
    }
}

static int make_roots(tl_fft *f, tl_roots *t, uint64_t n)
{
    t->n = n;
    while ((UINT64_C(1) << (2 * t->shift)) < n)
        t->shift++;
    const uint64_t fine = UINT64_C(1) << t->shift, coarse = (n >> t->shift) + 1;
    t->fine = take(f, fine * 2 * sizeof(double));
    t->coarse = take(f, coarse * 2 * sizeof(double));
    if (!t->fine || !t->coarse) return 0;
    fill_roots(t->fine, fine, 0, n);
    fill_roots(t->coarse, coarse, t->shift, n);
    return 1;
}

/* ---- factors ----------------------------------------------------------------------------------------------------- */

/* The radices of a product of primes up to 13, large ones first; 0 for other lengths. */
static int factor(int64_t n, int *radix)
{
    static const int primes[] = {13, 11, 7, 5, 3};
    int count = 0;
    for (int i = 0; i < 5; i++)
        for (; n % primes[i] == 0; n /= primes[i])
            radix[count++] = primes[i];
    int twos = 0;
    for (; n % 2 == 0; n /= 2)
        twos++;
    for (; twos >= 3 && twos != 4; twos -= 3)
        radix[count++] = 8;
    for (; twos >= 2; twos -= 2)
        radix[count++] = 4;
    if (twos) radix[count++] = 2;
    return n == 1 ? count : 0;
}

static int is_smooth(int64_t n)
{
    int radix[64];
    return n == 1 || factor(n, radix);
}

/* The divisor of a smooth n that lies nearest below its square root. */
static int64_t near_root(int64_t n)
{
    int64_t best = 1;
    for (int64_t d = 1; d * d <= n; d++)
        if (n % d == 0) best = d;
    return best;
}

/* The least 2^a·{1, 3, 5, 9, 15} >= n: at most a fifth more than n. */
static int64_t convolution_length(int64_t n)
{
    static const int64_t odd[] = {1, 3, 5, 9, 15};
    int64_t best = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        int64_t m = odd[i];
        while (m < n)
            m *= 2;
        best = m < best ? m : best;
    }
    return best;
}

/* ---- Bluestein's kernel ------------------------------------------------------------------------------------------ */

/* What a convolution over m takes: the conjugate of the chirp e^(i·pi·t²/n), which is made in float64, and the kernel. */
static int make_chirp(tl_fft *f, int64_t m)
{
    const uint64_t period = 2 * (uint64_t)f->n;
    f->chirp = take(f, (size_t)f->n * 2 * sizeof(float));
    f->kernel = take(f, (size_t)m * 2 * sizeof(float));
    double *const chirp = malloc((size_t)f->n * 2 * sizeof(double));
    int ok = f->chirp && f->kernel && chirp;
    for (int64_t t = 0; ok && t < f->n && !(t % LOOK == 0 && tl_interrupted()); t++) {
        double *const c = chirp + 2 * t;
        tl_root((uint64_t)((unsigned __int128)t * (uint64_t)t % period), period, c, c + 1);
        f->chirp[2 * t] = (float)c[0];
        f->chirp[2 * t + 1] = (float)-c[1];
    }
    ok = ok && !tl_interrupted() && tl_chirp_kernel(chirp, f->n, &f->first->roots, near_root(m), f->kernel);
    free(chirp);
    return ok;
}

/* ---- making and freeing ------------------------------------------------------------------------------------------ */

static void destroy(tl_fft *f)
{
    if (!f) return;
    destroy(f->first);
    destroy(f->second);
    void *owned[] = {f->twiddle, f->real, f->chirp, f->kernel, f->turns, f->roots.coarse, f->roots.fine, f->lane_roots};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(f);
}

static int make_direct(tl_fft *f)
{
    f->stages = factor(f->n, f->radix);
    /* a pass from `length` to m has m·(radix - 1) = length - m roots: n - 1 in all */
    f->twiddle = take(f, (size_t)f->n * 2 * sizeof(float));
    int ok = f->twiddle && make_roots(f, &f->roots, (uint64_t)f->n);
    float *out = f->twiddle;
    int64_t length = f->n, before = 1;
    for (int i = 0; ok && i < f->stages; i++) {
        const int64_t r = f->radix[i], m = length / r;
        for (int64_t p = 0; p < m; p++)
            for (int64_t j = 1; j < r; j++, out += 2) {
                double c, s;
                tl_root_at(&f->roots, (uint64_t)(p * j * before), &c, &s);
                out[0] = (float)c;
                out[1] = (float)s;
            }
        length = m;
        before *= r;
    }
    return ok;
}

static int make_lane_roots(tl_fft *f)
{
    const int64_t n1 = f->first->n;
    f->lane_roots = take(f, (size_t)n1 * 2 * TL_FFT_COLUMNS * sizeof(double));
    for (int64_t k = 0; f->lane_roots && k < n1; k++)
        for (int64_t l = 0; l < TL_FFT_COLUMNS; l++)
            tl_root_at(&f->roots, (uint64_t)(k * l % f->n), f->lane_roots + k * 2 * TL_FFT_COLUMNS + l,
                       f->lane_roots + (2 * k + 1) * TL_FFT_COLUMNS + l);
    return f->lane_roots != NULL;
}

/* Row k1 of TL_FFT_COLUMNS columns from g·TL_FFT_COLUMNS on: their cosines at (k1·groups + g)·2·TL_FFT_COLUMNS, then the sines. */
static int make_turns(tl_fft *f)
{
    const int64_t n1 = f->first->n, groups = tl_ceil_div(f->second->n, TL_FFT_COLUMNS);
    float *to = f->turns = take(f, (size_t)(n1 * groups * 2 * TL_FFT_COLUMNS) * sizeof(float));
    for (int64_t k = 0; to && k < n1; k++)
        for (int64_t g = 0; g < groups; g++, to += 2 * TL_FFT_COLUMNS) {
            const double *const lane = f->lane_roots + k * 2 * TL_FFT_COLUMNS;
            double c, s;
            tl_root_at(&f->roots, (uint64_t)(k * g * TL_FFT_COLUMNS), &c, &s);
            for (int64_t l = 0; l < TL_FFT_COLUMNS; l++) {
                const double lc = lane[l], ls = lane[TL_FFT_COLUMNS + l];
                to[l] = (float)(lc * c - ls * s);
                to[TL_FFT_COLUMNS + l] = (float)(lc * s + ls * c);
            }
        }
    return f->turns != NULL;
}

static int make_real(tl_fft *f)
{
    tl_fft scratch = {0};
    f->real = take(f, (size_t)(f->n / 2 + 1) * 2 * sizeof(float));
    const int ok = f->real && make_roots(&scratch, &scratch.roots, 2 * (uint64_t)f->n);
    for (int64_t k = 0; ok && k <= f->n / 2 && !(k % LOOK == 0 && tl_interrupted()); k++) {
        double c, s;
        tl_root_at(&scratch.roots, (uint64_t)k, &c, &s);
        f->real[2 * k] = (float)c;
        f->real[2 * k + 1] = (float)s;
    }
    free(scratch.roots.coarse);
    free(scratch.roots.fine);
    return ok;
}

/* `part`: of another plan, which asks for no split of real transforms. */
static tl_fft *make(int64_t n, int kind, int part)
{
    tl_fft *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->n = n;
    f->kind = kind;
    int ok = 1;
    if (kind == TL_FFT_ROOTS) {
        ok = make_roots(f, &f->roots, 2 * (uint64_t)n);
    } else if (!is_smooth(n)) {
        const int64_t m = convolution_length(2 * n - 1);
        f->first = make(m, kind, 1);
        f->in_lanes = f->first && f->first->in_lanes;
        ok = f->first && make_chirp(f, m);
    } else if (n <= TL_FFT_DIRECT || kind == TL_FFT_IN_LANES) {
        f->in_lanes = 1;
        ok = make_direct(f);
    } else {
        const int64_t n1 = near_root(n);
        f->first = make(n1, TL_FFT_IN_LANES, 1);
        f->second = make(n / n1, TL_FFT_IN_LANES, 1);
        ok = f->first && f->second && make_roots(f, &f->roots, (uint64_t)n) && make_lane_roots(f) &&
             (n > TL_FFT_TABLED || make_turns(f));
    }
    if (ok && !part && kind != TL_FFT_ROOTS) ok = make_real(f);
    if (f->first) f->bytes += f->first->bytes;
    if (f->second) f->bytes += f->second->bytes;
    if (ok && !tl_interrupted()) return f;
    destroy(f);
    return NULL;
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_fft *cache[CACHED_PLANS];
static uint64_t clock_now;

/* Called with the lock: frees unused plans, the longest unused first, until a place is free and the bytes fit. */
static void trim(void)
{
    for (;;) {
        size_t bytes = 0;
        int places = 0, oldest = -1;
        for (int i = 0; i < CACHED_PLANS; i++) {
            if (!cache[i]) {
                places++;
                continue;
            }
            bytes += cache[i]->bytes;
            if (!cache[i]->users && (oldest < 0 || cache[i]->stamp < cache[oldest]->stamp)) oldest = i;
        }
        if ((places && bytes <= CACHED_BYTES) || oldest < 0) return;
        destroy(cache[oldest]);
        cache[oldest] = NULL;
    }
}

static tl_fft *cached(int64_t n, int kind)
{
    for (int i = 0; i < CACHED_PLANS; i++)
        if (cache[i] && cache[i]->n == n &&
            (cache[i]->kind == kind || (kind == TL_FFT_IN_LANES && cache[i]->in_lanes))) {
            cache[i]->users++;
            cache[i]->stamp = ++clock_now;
            return cache[i];
        }
    return NULL;
}

const tl_fft *tl_fft_get(int64_t n, int kind)
{
    pthread_mutex_lock(&lock);
    tl_fft *f = cached(n, kind);
    pthread_mutex_unlock(&lock);
    if (f) return f;
    f = make(n, kind, 0); /* another thread may make the same meanwhile; both are right */
    if (!f) return NULL;
    f->users = 1;
    pthread_mutex_lock(&lock);
    trim();
    f->stamp = ++clock_now;
    for (int i = 0; i < CACHED_PLANS; i++)
        if (!cache[i]) {
            cache[i] = f;
            break;
        }
    pthread_mutex_unlock(&lock);
    return f;
}

void tl_fft_put(const tl_fft *plan)
{
    tl_fft *f = (tl_fft *)plan;
    int kept = 0;
    pthread_mutex_lock(&lock);
    f->users--;
    for (int i = 0; i < CACHED_PLANS; i++)
        kept |= cache[i] == f;
    const int drop = !kept && !f->users;
    trim();
    pthread_mutex_unlock(&lock);
    if (drop) destroy(f);
}
