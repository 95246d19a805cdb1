/* Complex transforms in lanes and in memory; fft.h says which algorithm a length gets. */
#include "core/threads.h"
#include "cpu/spectral/fft.h"
#include "formula/butterfly.h"
#include "formula/integer.h"

/* ---- direct transforms ------------------------------------------------------------------------------------------- */

/* Complex numbers that passes go over, a vector of them at a time. In lanes a vector is a number of TL_W transforms, complex
 * vectors at r. Else it is TL_W neighbours of one transform, whose parts are arrays of their own with room for a vector behind
 * them. Each number goes through the same operations either way, so that a row's bits do not depend on how many rows there are. */
typedef struct numbers {
    float *r, *i;
} numbers;

TL_INLINE tl_cvec load(const numbers *x, int64_t at, const int lanes)
{
    if (lanes) return ((const tl_cvec *)x->r)[at];
    return (tl_cvec){*(const tl_vec_any *)(x->r + at), *(const tl_vec_any *)(x->i + at)};
}

TL_INLINE void store(const numbers *y, int64_t at, tl_cvec v, const int lanes)
{
    if (lanes) {
        ((tl_cvec *)y->r)[at] = v;
    } else {
        *(tl_vec_any *)(y->r + at) = v.r;
        *(tl_vec_any *)(y->i + at) = v.i;
    }
}

/* Vectors of r parts, a lane for each position, in the order of positions: y[r*l + j] = a[j][l]. The last store may run
 * over. */
TL_INLINE void store_positions(tl_vec *a, const int r, float *y)
{
    tl_vec b[TL_W > 8 ? TL_W : 8];
    if (r & (r - 1) && r > TL_W) {
        for (int l = 0; l < TL_W; l++)
            for (int j = 0; j < r; j++)
                y[r * l + j] = a[j][l];
        return;
    }
    if (r & (r - 1)) {
        for (int j = 0; j < TL_W; j++)
            b[j] = j < r ? a[j] : (tl_vec){0};
        tl_transpose_square(b);
        for (int l = 0; l < TL_W; l++)
            *(tl_vec_any *)(y + r * l) = b[l];
        return;
    }
    tl_shuffle_rows(a, r);
    for (int j = 0; j < r; j++)
        *(tl_vec_any *)(y + j * TL_W) = a[j];
}

/* The first pass of one transform: a vector has neighbouring positions, of m >= TL_W, each with roots of its own (w: plan.across).
 * The last vector may meet the one before it, and makes the same numbers again. */
TL_INLINE void first_pass(const numbers *x, const numbers *y, int64_t m, const float *w, const int r)
{
    for (int64_t next = 0; next < m; next += TL_W) {
        const int64_t p = next + TL_W <= m ? next : m - TL_W;
        tl_cvec a[13];
        tl_vec re[16], im[16];
        for (int j = 0; j < r; j++)
            a[j] = load(x, p + m * j, 0);
        tl_butterfly(a, r);
        re[0] = a[0].r, im[0] = a[0].i;
        for (int j = 1; j < r; j++) {
            const float *root = w + 2 * m * (j - 1) + p;
            const tl_vec c = *(const tl_vec_any *)root, s = *(const tl_vec_any *)(root + m);
            re[j] = a[j].r * c - a[j].i * s;
            im[j] = a[j].r * s + a[j].i * c;
            if (p == 0) re[j][0] = a[j].r[0], im[j][0] = a[j].i[0]; /* its roots are 1 */
        }
        store_positions(re, r, y->r + r * p);
        store_positions(im, r, y->i + r * p);
    }
}

/* The butterflies at position p of a pass; the roots w are all 1 at p = 0. Of one transform a vector has neighbouring sub-transforms;
 * where there are fewer than TL_W, a store runs into the next places, which are written after it. */
TL_INLINE void pass_at(const numbers *x, const numbers *y, int64_t p, int64_t m, int64_t s, const float *w, const int r,
                       const int lanes, const int turned)
{
    const int64_t step = lanes ? 1 : TL_W;
    for (int64_t next = 0; next < s; next += step) {
        const int64_t q = lanes || next + step <= s || s < step ? next : s - step;
        tl_cvec a[13];
        for (int j = 0; j < r; j++)
            a[j] = load(x, q + s * (p + m * j), lanes);
        tl_butterfly(a, r);
        store(y, q + s * (r * p), a[0], lanes);
        for (int j = 1; j < r; j++)
            store(y, q + s * (r * p + j), turned ? tl_times(a[j], w[2 * j - 2], w[2 * j - 1]) : a[j], lanes);
    }
}

/* One self-sorting pass: s sub-transforms, each of length m·r, become s·r of length m. p counts positions, q
 * sub-transforms; the roots depend on p alone. */
TL_INLINE void pass(const numbers *x, const numbers *y, int64_t m, int64_t s, const float *w, const float *across,
                    const int r, const int lanes)
{
    if (!lanes && s == 1) {
        first_pass(x, y, m, across, r);
        return;
    }
    pass_at(x, y, 0, m, s, w, r, lanes, 0);
    for (int64_t p = 1; p < m; p++)
        pass_at(x, y, p, m, s, w + 2 * (r - 1) * p, r, lanes, 1);
}

/* The transform of x, which lies in x or in y. */
TL_INLINE numbers direct(const tl_fft *f, numbers x, numbers y, const int lanes)
{
    int64_t length = f->n, s = 1;
    const float *w = f->twiddle;
    for (int i = 0; i < f->stages && !(i && tl_interrupted()); i++) {
        const int r = f->radix[i];
        const int64_t m = length / r;
        switch (r) {
        case 2: pass(&x, &y, m, s, w, f->across, 2, lanes); break;
        case 3: pass(&x, &y, m, s, w, f->across, 3, lanes); break;
        case 4: pass(&x, &y, m, s, w, f->across, 4, lanes); break;
        case 5: pass(&x, &y, m, s, w, f->across, 5, lanes); break;
        case 7: pass(&x, &y, m, s, w, f->across, 7, lanes); break;
        case 8: pass(&x, &y, m, s, w, f->across, 8, lanes); break;
        case 11: pass(&x, &y, m, s, w, f->across, 11, lanes); break;
        default: pass(&x, &y, m, s, w, f->across, 13, lanes);
        }
        w += 2 * m * (r - 1);
        length = m;
        s *= r;
        const numbers t = x;
        x = y;
        y = t;
    }
    return x;
}

static float *direct_lanes(const tl_fft *f, float *x, float *y)
{
    return direct(f, (numbers){x, NULL}, (numbers){y, NULL}, 1).r;
}

static numbers direct_one(const tl_fft *f, numbers x, numbers y) { return direct(f, x, y, 0); }

TL_INLINE numbers run_direct(const tl_fft *f, numbers x, numbers y, const int lanes)
{
    return lanes ? (numbers){direct_lanes(f, x.r, y.r), NULL} : direct_one(f, x, y);
}

/* Lane by lane. */
TL_INLINE tl_cvec times_each(tl_cvec a, tl_cvec b) { return (tl_cvec){a.r * b.r - a.i * b.i, a.r * b.i + a.i * b.r}; }

/* y = x·w for n numbers, w[k] for number k; the parts of x, or of y, exchanged. y may be x, and has room for a vector behind it. */
TL_INLINE void multiply(numbers x, const float *w, int64_t n, int swap_x, int swap_y, numbers y, const int lanes)
{
    for (int64_t k = 0; k < n; k += lanes ? 1 : TL_W) {
        const tl_cvec a = tl_exchanged(load(&x, k, lanes), swap_x);
        const tl_cvec t = lanes ? tl_times(a, w[2 * k], w[2 * k + 1])
                                : times_each(a, tl_complex_in(w + 2 * k, tl_imin(n - k, TL_W), 0));
        store(&y, k, tl_exchanged(t, swap_y), lanes);
    }
}

/* The transform of z, whose place is free afterwards; a and b have room for the plan's longest array. */
TL_INLINE numbers transform(const tl_fft *f, numbers z, numbers a, numbers b, const int lanes)
{
    if (!f->chirp) return run_direct(f, z, a, lanes);
    const int64_t n = f->n, m = f->first->n, width = lanes ? 2 * TL_W : 1;
    multiply(z, f->chirp, n, 0, 0, a, lanes);
    memset(a.r + n * width, 0, (size_t)((m - n) * width) * sizeof(float));
    if (!lanes) memset(a.i + n, 0, (size_t)(m - n) * sizeof(float));
    const numbers spectrum = run_direct(f->first, a, b, lanes), other = spectrum.r == a.r ? b : a;
    multiply(spectrum, f->kernel, m, 0, 1, spectrum, lanes); /* exchanged: the next transform is the inverse */
    multiply(run_direct(f->first, spectrum, other, lanes), f->chirp, n, 1, 0, z, lanes);
    return z;
}

tl_cvec *tl_fft_lanes(const tl_fft *f, tl_cvec *z, tl_cvec *scratch)
{
    const numbers a = {(float *)scratch, NULL}, b = {(float *)(scratch + (f->chirp ? f->first->n : 0)), NULL};
    return (tl_cvec *)transform(f, (numbers){(float *)z, NULL}, a, b, 1).r;
}

/* One array of a plan of lanes, as tl_fft_large does. */
static void transform_one(const tl_fft *f, const float *in, float *out, int inverse, float scale, tl_cvec *vectors)
{
    const int64_t n = f->n, length = tl_fft_large_scratch(f) / 3 * TL_W;
    float *const x = (float *)vectors;
    numbers z = {x, x + length};
    const numbers a = {x + 2 * length, x + 3 * length}, b = {x + 4 * length, x + 5 * length};
    for (int64_t k = 0; k < n; k++) {
        z.r[k] = in[2 * k + (inverse != 0)] * scale;
        z.i[k] = in[2 * k + (inverse == 0)] * scale;
    }
    z = transform(f, z, a, b, 0);
    const float *restrict re = inverse ? z.i : z.r, *restrict im = inverse ? z.r : z.i;
    for (int64_t k = 0; k < n; k++)
        out[2 * k] = re[k], out[2 * k + 1] = im[k];
}

/* ---- four steps -------------------------------------------------------------------------------------------------- */

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
        tl_transpose_square(re);
        tl_transpose_square(im);
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
    if (f->in_lanes) {
        transform_one(f, in, out, inverse, scale, vectors);
        return;
    }
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
