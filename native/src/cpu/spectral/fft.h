/* Complex transforms of any length on the CPU: Z[k] = sum over t of z[t]·e^(-2·pi·i·k·t/n).
 *
 * The algorithm follows from the length alone:
 *   direct      products of primes up to 13: self-sorting (Stockham) passes of radix 8, 4, 2, 3, 5, 7, 11, 13, one
 *               transform per lane, the working set in cache;
 *   four-step   the same lengths above TL_FFT_DIRECT: columns and rows of an n1 by n2 matrix, both direct, so that
 *               memory is passed over twice (Bailey, "FFTs in external or hierarchical memory", J. Supercomputing 4,
 *               1990);
 *   Bluestein   other lengths: a convolution with a chirp over a length m >= 2n - 1 of one of the kinds above
 *               (Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970).
 * An inverse transform is a forward one with real and imaginary parts exchanged before and after. */
#pragma once

#include "core/kernel.h"
#include "core/threads.h"
#include "cpu/spectral/vec.h"
#include "formula/fft_plan.h"
#include "formula/integer.h"

/* The longest transform in four steps whose roots are a table, of 8 bytes for each number: up to here reading them, from the last
 * cache if need be, takes less time than multiplying them together. */
enum { TL_FFT_TABLED = 1 << 18 };

/* A real transform of n points by a plan of n/2 (n even) or n complex ones (n odd); the bins 0 and n/2 are multiplied
 * by edge, the others by inner: after the forward, before the inverse transform. */
typedef struct tl_real {
    const tl_fft *f;
    int64_t n, bins;
    float edge, inner;
} tl_real;

#define tl_chirp_kernel TL_V(tl_chirp_kernel)
#define tl_fft_get TL_V(tl_fft_get)
#define tl_fft_put TL_V(tl_fft_put)
#define tl_fft_lanes TL_V(tl_fft_lanes)
#define tl_fft_large TL_V(tl_fft_large)
#define tl_real_transform TL_V(tl_real_transform)

/* The transform over m = roots->n of the chirp, n numbers, laid out around 0, divided by m; n1 divides m, which has no prime factor
 * above 5. 0 when memory is short. */
int tl_chirp_kernel(const double *chirp, int64_t n, const tl_roots *roots, int64_t n1, float *out);

/* The plan of a length, from the process' cache or new. NULL when memory is short. tl_fft_put gives it back. Any thread
 * may call both. */
const tl_fft *tl_fft_get(int64_t n, int kind);
void tl_fft_put(const tl_fft *plan);

/* Complex vectors of scratch that a transform in lanes takes besides its input. */
static inline int64_t tl_fft_lanes_scratch(const tl_fft *f) { return f->first ? 2 * f->first->n : f->n; }
/* Complex vectors of the buffers one worker needs for tl_fft_large. */
static inline int64_t tl_fft_large_scratch(const tl_fft *f)
{
    const tl_fft *g = f->chirp ? f->first : f;
    return 2 * (g->first->n > g->second->n ? g->first->n : g->second->n);
}
/* Floats of memory that tl_fft_large takes besides input and output. */
static inline int64_t tl_fft_large_memory(const tl_fft *f)
{
    const tl_fft *g = f->chirp ? f->first : f;
    const int64_t matrix = g->first->n * (tl_ceil_div(g->second->n, TL_W) + 1) * 2 * TL_W;
    return matrix + (f->chirp ? 2 * g->n : 0);
}

/* Transforms TL_W lanes of n complex vectors in z; returns where the result lies: z, or inside scratch. */
tl_cvec *tl_fft_lanes(const tl_fft *f, tl_cvec *z, tl_cvec *scratch);

/* Transforms one array of n complex numbers (re, im in turn) from `in` to `out`, which must not overlap; with inverse
 * the parts are exchanged on both sides. The numbers enter times `scale`. `vectors` holds tl_fft_large_scratch complex vectors
 * for every worker, or for one if `alone`: then it all runs on the calling thread. */
void tl_fft_large(const tl_fft *f, const float *in, float *out, int inverse, float scale, float *memory,
                  tl_cvec *vectors, int alone);

/* Real rows (batch, n) to packed spectra (batch, n/2 + 1, 2), or back; factors as in tl_real. */
int32_t tl_real_transform(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, int inverse,
                          double edge, double inner);

/* Runs all tasks, on the calling thread if `alone`. */
static inline void tl_fft_run(int64_t tasks, tl_task_fn fn, void *arg, int alone)
{
    if (!alone)
        tl_parallel(tasks, fn, arg);
    else
        for (int64_t t = 0; t < tasks && !tl_interrupted(); t++)
            fn(arg, t, 0);
}
