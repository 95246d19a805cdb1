/* Complex transforms in lanes and in memory; fft.h says which algorithm a length gets. */
#include "core/threads.h"
#include "cpu/spectral/fft.h"
#include "formula/butterfly.h"
#include "formula/integer.h"

/* ---- direct transforms ------------------------------------------------------------------------------------------- */

/* The butterflies at position p of a pass; the roots w are all 1 at p = 0. */
TL_INLINE void pass_at(const tl_cvec *x, tl_cvec *y, int64_t p, int64_t m, int64_t s, const float *w, const int r,
                       const int turned)
{
    for (int64_t q = 0; q < s; q++) {
        tl_cvec a[13];
        for (int j = 0; j < r; j++)
            a[j] = x[q + s * (p + m * j)];
        tl_butterfly(a, r);
        y[q + s * (r * p)] = a[0];
        for (int j = 1; j < r; j++)
            y[q + s * (r * p + j)] = turned ? tl_times(a[j], w[2 * j - 2], w[2 * j - 1]) : a[j];
    }
}

/* One self-sorting pass: s sub-transforms, each of length m·r, become s·r of length m. p counts positions, q
 * sub-transforms; the roots depend on p alone. */
TL_INLINE void pass(const tl_cvec *x, tl_cvec *y, int64_t m, int64_t s, const float *w, const int r)
{
    pass_at(x, y, 0, m, s, w, r, 0);
    for (int64_t p = 1; p < m; p++)
        pass_at(x, y, p, m, s, w + 2 * (r - 1) * p, r, 1);
}

/* The transform of x, which lies in x or in y. */
static tl_cvec *direct(const tl_fft *f, tl_cvec *x, tl_cvec *y)
{
    int64_t length = f->n, s = 1;
    const float *w = f->twiddle;
    for (int i = 0; i < f->stages && !(i && tl_interrupted()); i++) {
        const int r = f->radix[i];
        const int64_t m = length / r;
        switch (r) {
        case 2: pass(x, y, m, s, w, 2); break;
        case 3: pass(x, y, m, s, w, 3); break;
        case 4: pass(x, y, m, s, w, 4); break;
        case 5: pass(x, y, m, s, w, 5); break;
        case 7: pass(x, y, m, s, w, 7); break;
        case 8: pass(x, y, m, s, w, 8); break;
        case 11: pass(x, y, m, s, w, 11); break;
        default: pass(x, y, m, s, w, 13);
        }
        w += 2 * m * (r - 1);
        length = m;
        s *= r;
        tl_cvec *const t = x;
        x = y;
        y = t;
    }
    return x;
}

/* y = x·w for n numbers, w[k] for number k; the parts of x, or of y, exchanged. y may be x. */
TL_INLINE void multiply(const tl_cvec *x, const float *w, int64_t n, int swap_x, int swap_y, tl_cvec *y)
{
    for (int64_t k = 0; k < n; k++)
        y[k] = tl_exchanged(tl_times(tl_exchanged(x[k], swap_x), w[2 * k], w[2 * k + 1]), swap_y);
}

tl_cvec *tl_fft_lanes(const tl_fft *f, tl_cvec *z, tl_cvec *scratch)
{
    if (!f->chirp) return direct(f, z, scratch);
    const int64_t n = f->n, m = f->first->n;
    tl_cvec *const a = scratch, *const b = scratch + m;
    multiply(z, f->chirp, n, 0, 0, a);
    memset(a + n, 0, (size_t)(m - n) * sizeof *a);
    tl_cvec *const spectrum = direct(f->first, a, b);
    multiply(spectrum, f->kernel, m, 0, 1, spectrum); /* exchanged: the next transform is the inverse */
    multiply(direct(f->first, spectrum, spectrum == a ? b : a), f->chirp, n, 1, 0, z);
    return z;
}

/* ---- four steps -------------------------------------------------------------------------------------------------- */

/* Lane by lane. */
TL_INLINE tl_cvec times_each(tl_cvec a, tl_cvec b) { return (tl_cvec){a.r * b.r - a.i * b.i, a.r * b.i + a.i * b.r}; }

/* A transform of n = n1·n2: element i1·n2 + i2 of the input, k1 + n1·k2 of the output. What a convolution multiplies by is met where
 * numbers are read and written anyhow, so that it takes no pass over memory of its own. */
struct four_step {
    const tl_fft *f;
    const float *in;
    float *out, scale;
    int64_t in_count, out_count;    /* numbers that there are, 0 behind them, and that are wanted */
    const float *before, *after;    /* NULL, or what the input and the output are multiplied by */
    int swap_in, swap_out, swap_to; /* parts exchanged: at first, before `after`, and last */
    int64_t groups;                 /* of TL_W columns i2 */
    /* floats of a row of the matrix: a group more than there are, so that rows fall into different sets of the cache */
    int64_t row;
    float *matrix; /* [k1][group][re, im][lane] */
    tl_cvec *vectors;
    int64_t per_worker;
};

/* A task owns TL_W neighbouring columns: transforms them and turns each element by its root. */
static void columns_task(void *arg, int64_t group, int32_t worker)
{
    const struct four_step *job = arg;
    const tl_fft *f = job->f;
    const int64_t n1 = f->first->n, n2 = f->second->n, at = group * TL_W, lanes = n2 - at < TL_W ? n2 - at : TL_W;
    tl_cvec *a = job->vectors + worker * job->per_worker;
    for (int64_t i = 0; i < n1; i++) {
        const int64_t from = i * n2 + at, count = tl_imin(job->in_count - from, lanes);
        tl_cvec z = tl_complex_in(job->in + 2 * from, count, job->swap_in);
        z = (tl_cvec){z.r * job->scale, z.i * job->scale};
        a[i] = job->before ? times_each(z, tl_complex_in(job->before + 2 * from, count, 0)) : z;
    }
    const tl_cvec *z = tl_fft_lanes(f->first, a, a + n1);
    const int64_t roots = tl_ceil_div(n2, TL_FFT_COLUMNS), lane = at % TL_FFT_COLUMNS;
    for (int64_t k = 0; k < n1; k++) {
        tl_vec wr, wi;
        if (f->turns) {
            const float *cosines = f->turns + (k * roots + at / TL_FFT_COLUMNS) * 2 * TL_FFT_COLUMNS + lane;
            wr = *(const tl_vec *)cosines;
            wi = *(const tl_vec *)(cosines + TL_FFT_COLUMNS);
        } else {
            double c, s;
            tl_root_at(&f->roots, (uint64_t)(k * (at - lane)), &c, &s);
            const double *cosines = f->lane_roots + k * 2 * TL_FFT_COLUMNS + lane;
            const tl_vec_double lc = *(const tl_vec_double *)cosines;
            const tl_vec_double ls = *(const tl_vec_double *)(cosines + TL_FFT_COLUMNS);
            wr = __builtin_convertvector(lc * c - ls * s, tl_vec);
            wi = __builtin_convertvector(lc * s + ls * c, tl_vec);
        }
        tl_cvec *to = (tl_cvec *)(job->matrix + k * job->row + group * 2 * TL_W);
        *to = (tl_cvec){z[k].r * wr - z[k].i * wi, z[k].r * wi + z[k].i * wr};
    }
}

/* A task owns TL_W neighbouring rows k1. */
static void rows_task(void *arg, int64_t group, int32_t worker)
{
    const struct four_step *job = arg;
    const tl_fft *f = job->f;
    const int64_t n1 = f->first->n, n2 = f->second->n, at = group * TL_W, lanes = n1 - at < TL_W ? n1 - at : TL_W;
    tl_cvec *a = job->vectors + worker * job->per_worker;
    for (int64_t g = 0; g < job->groups; g++) {
        tl_vec re[TL_W], im[TL_W];
        for (int64_t l = 0; l < TL_W; l++) {
            const tl_cvec *from = (const tl_cvec *)(job->matrix + (at + (l < lanes ? l : 0)) * job->row + g * 2 * TL_W);
            re[l] = from->r;
            im[l] = from->i;
        }
        TL_TURN(re);
        TL_TURN(im);
        const int64_t count = n2 - g * TL_W < TL_W ? n2 - g * TL_W : TL_W;
        for (int64_t l = 0; l < count; l++)
            a[g * TL_W + l] = (tl_cvec){re[l], im[l]};
    }
    const tl_cvec *z = tl_fft_lanes(f->second, a, a + n2);
    for (int64_t k = 0; k < n2; k++) {
        const int64_t to = at + n1 * k, count = tl_imin(job->out_count - to, lanes);
        if (count <= 0) break;
        tl_cvec v = tl_exchanged(z[k], job->swap_out);
        if (job->after) v = times_each(v, tl_complex_in(job->after + 2 * to, count, 0));
        tl_complex_out(v, job->out + 2 * to, count, job->swap_to);
    }
}

static void four_steps(struct four_step job, float *matrix, tl_cvec *vectors, int64_t per_worker, int alone)
{
    job.groups = tl_ceil_div(job.f->second->n, TL_W);
    job.row = (job.groups + 1) * 2 * TL_W;
    job.matrix = matrix, job.vectors = vectors, job.per_worker = per_worker;
    tl_fft_run(job.groups, columns_task, &job, alone);
    tl_fft_run(tl_ceil_div(job.f->first->n, TL_W), rows_task, &job, alone);
}

void tl_fft_large(const tl_fft *f, const float *in, float *out, int inverse, float scale, float *memory,
                  tl_cvec *vectors, int alone)
{
    const int64_t n = f->n, per_worker = tl_fft_large_scratch(f);
    struct four_step step = {.f = f, .in = in, .out = out, .scale = scale, .in_count = n, .out_count = n};
    step.swap_in = inverse;
    if (!f->chirp) {
        step.swap_out = inverse;
        four_steps(step, memory, vectors, per_worker, alone);
        return;
    }
    const int64_t m = f->first->n;
    float *const spectrum = memory, *const matrix = spectrum + 2 * m;
    step.f = f->first, step.before = f->chirp;
    step.out = spectrum, step.out_count = m, step.after = f->kernel, step.swap_to = 1;
    four_steps(step, matrix, vectors, per_worker, alone);
    /* whose parts are exchanged, as this one is the inverse */
    step.in = spectrum, step.in_count = m, step.scale = 1.0f, step.before = NULL, step.swap_in = 0;
    step.out = out, step.out_count = n, step.after = f->chirp, step.swap_out = 1, step.swap_to = inverse;
    four_steps(step, matrix, vectors, per_worker, alone);
}
