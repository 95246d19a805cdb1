/* Complex transforms in lanes and in memory; fft.h says which algorithm a length gets. */
#include "core/threads.h"
#include "cpu/spectral/fft.h"
#include "formula/butterfly.h"
#include "formula/integer.h"

/* ---- direct transforms ------------------------------------------------------------------------------------------- */

/* One self-sorting pass: s sub-transforms, each of length m·r, become s·r of length m. p counts positions, q
 * sub-transforms; the roots depend on p alone. */
TL_INLINE void pass(const tl_cvec *x, tl_cvec *y, int64_t m, int64_t s, const float *w, const int r)
{
    for (int64_t q = 0; q < s; q++) { /* p = 0: all roots are 1 */
        tl_cvec a[13];
        for (int j = 0; j < r; j++)
            a[j] = x[q + s * m * j];
        tl_butterfly(a, r);
        for (int j = 0; j < r; j++)
            y[q + s * j] = a[j];
    }
    for (int64_t p = 1; p < m; p++) {
        const float *v = w + 2 * (r - 1) * p;
        for (int64_t q = 0; q < s; q++) {
            tl_cvec a[13];
            for (int j = 0; j < r; j++)
                a[j] = x[q + s * (p + m * j)];
            tl_butterfly(a, r);
            y[q + s * (r * p)] = a[0];
            for (int j = 1; j < r; j++)
                y[q + s * (r * p + j)] = tl_times(a[j], v[2 * j - 2], v[2 * j - 1]);
        }
    }
}

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
        tl_cvec *t = x;
        x = y;
        y = t;
    }
    return x;
}

tl_cvec *tl_fft_lanes(const tl_fft *f, tl_cvec *z, tl_cvec *scratch)
{
    if (!f->chirp) return direct(f, z, scratch);
    const int64_t n = f->n, m = f->first->n;
    tl_cvec *a = scratch, *b = scratch + m;
    for (int64_t t = 0; t < n; t++)
        a[t] = tl_times(z[t], f->chirp[2 * t], f->chirp[2 * t + 1]);
    memset(a + n, 0, (size_t)(m - n) * sizeof *a);
    tl_cvec *spectrum = direct(f->first, a, b);
    for (int64_t k = 0; k < m; k++) {
        const tl_cvec t = tl_times(spectrum[k], f->kernel[2 * k], f->kernel[2 * k + 1]);
        spectrum[k] = (tl_cvec){t.i, t.r}; /* exchanged: the next transform is the inverse */
    }
    const tl_cvec *c = direct(f->first, spectrum, spectrum == a ? b : a);
    for (int64_t k = 0; k < n; k++)
        z[k] = tl_times((tl_cvec){c[k].i, c[k].r}, f->chirp[2 * k], f->chirp[2 * k + 1]);
    return z;
}

/* ---- four steps -------------------------------------------------------------------------------------------------- */

/* A transform of n = n1·n2: element i1·n2 + i2 of the input, k1 + n1·k2 of the output. */
struct four_step {
    const tl_fft *f;
    const float *in;
    float *out, scale;
    int swap_in, swap_out;
    int64_t groups; /* of TL_W columns i2 */
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
        const tl_cvec z = tl_complex_in(job->in + 2 * (i * n2 + at), lanes, job->swap_in);
        a[i] = (tl_cvec){z.r * job->scale, z.i * job->scale};
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
    for (int64_t k = 0; k < n2; k++)
        tl_complex_out(z[k], job->out + 2 * (at + n1 * k), lanes, job->swap_out);
}

static void four_steps(const tl_fft *f, const float *in, float *out, float scale, int swap_in, int swap_out,
                       float *matrix, tl_cvec *vectors, int64_t per_worker, int alone)
{
    const int64_t groups = tl_ceil_div(f->second->n, TL_W);
    struct four_step job = {f, in, out, scale, swap_in, swap_out, groups, 0, matrix, vectors, per_worker};
    job.row = (job.groups + 1) * 2 * TL_W;
    tl_fft_run(job.groups, columns_task, &job, alone);
    tl_fft_run(tl_ceil_div(f->first->n, TL_W), rows_task, &job, alone);
}

/* ---- Bluestein over four steps ----------------------------------------------------------------------------------- */

enum { PIECE = 1 << 14 };

/* to[k] = scale·from[k]·w[k] for k < n and 0 up to m. */
struct multiply {
    const float *from, *w;
    float *to, scale;
    int64_t n, m;
    int swap_in, swap_out;
};

static void multiply_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const struct multiply *job = arg;
    const int64_t from = task * PIECE, end = from + PIECE < job->m ? from + PIECE : job->m;
    int64_t k = from;
    for (; k + TL_W <= end && k + TL_W <= job->n; k += TL_W) {
        const tl_cvec z = tl_complex_in(job->from + 2 * k, TL_W, job->swap_in);
        const tl_cvec w = tl_complex_in(job->w + 2 * k, TL_W, 0);
        const tl_vec r = z.r * job->scale, i = z.i * job->scale;
        tl_complex_out((tl_cvec){r * w.r - i * w.i, r * w.i + i * w.r}, job->to + 2 * k, TL_W, job->swap_out);
    }
    for (; k < end && k < job->n; k++) {
        const float r = job->from[2 * k + job->swap_in] * job->scale;
        const float i = job->from[2 * k + 1 - job->swap_in] * job->scale;
        const float c = job->w[2 * k], s = job->w[2 * k + 1];
        job->to[2 * k + job->swap_out] = r * c - i * s;
        job->to[2 * k + 1 - job->swap_out] = r * s + i * c;
    }
    if (k < end) memset(job->to + 2 * k, 0, (size_t)(end - k) * 2 * sizeof(float));
}

static void multiply(const float *from, const float *w, float *to, float scale, int64_t n, int64_t m, int swap_in,
                     int swap_out, int alone)
{
    struct multiply job = {from, w, to, scale, n, m, swap_in, swap_out};
    tl_fft_run(tl_ceil_div(m, PIECE), multiply_task, &job, alone);
}

void tl_fft_large(const tl_fft *f, const float *in, float *out, int inverse, float scale, float *memory,
                  tl_cvec *vectors, int alone)
{
    const int64_t per_worker = tl_fft_large_scratch(f);
    if (!f->chirp) {
        four_steps(f, in, out, scale, inverse, inverse, memory, vectors, per_worker, alone);
        return;
    }
    const int64_t n = f->n, m = f->first->n;
    float *a = memory, *b = a + 2 * m, *matrix = b + 2 * m;
    multiply(in, f->chirp, a, scale, n, m, inverse, 0, alone);
    four_steps(f->first, a, b, 1.0f, 0, 0, matrix, vectors, per_worker, alone);
    multiply(b, f->kernel, a, 1.0f, m, m, 0, 1, alone);
    four_steps(f->first, a, b, 1.0f, 0, 1, matrix, vectors, per_worker, alone);
    multiply(b, f->chirp, out, 1.0f, n, n, 0, inverse, alone);
}
