/* Real transforms of one row whose plan is one of lanes, where rows are too few to fill them: vectors run along the
 * transform instead. Every number goes through the operations that it would go through in a lane (fft.c, spectral.c),
 * so that a row's bits do not depend on how many rows there are.
 *
 *   first pass    s = 1: a vector has neighbouring positions p, of which each has roots of its own
 *   later passes  a vector has neighbouring sub-transforms q; where there are fewer than TL_W, a store runs into the
 *                 next places, which are written after it
 *
 * Real and imaginary parts are arrays of their own, with room for a vector behind them. */
#include "cpu/spectral/fft.h"
#include "cpu/spectral/single.h"
#include "formula/butterfly.h"

typedef struct numbers {
    float *r, *i;
} numbers;

typedef struct pair {
    float r, i;
} pair;

TL_INLINE tl_cvec load(const numbers *x, int64_t at)
{
    return (tl_cvec){*(const tl_vec_any *)(x->r + at), *(const tl_vec_any *)(x->i + at)};
}

TL_INLINE void store(const numbers *y, int64_t at, tl_cvec v)
{
    *(tl_vec_any *)(y->r + at) = v.r;
    *(tl_vec_any *)(y->i + at) = v.i;
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

/* s = 1; m >= TL_W. The last vector may meet the one before it, and makes the same numbers again. */
TL_INLINE void first_pass(const numbers *x, const numbers *y, int64_t m, const float *w, const int r)
{
    for (int64_t next = 0; next < m; next += TL_W) {
        const int64_t p = next + TL_W <= m ? next : m - TL_W;
        tl_cvec a[13];
        tl_vec re[16], im[16];
        for (int j = 0; j < r; j++)
            a[j] = load(x, p + m * j);
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

TL_INLINE void later_pass(const numbers *x, const numbers *y, int64_t m, int64_t s, const float *w, const int r)
{
    for (int64_t p = 0; p < m; p++) {
        const float *v = w + 2 * (r - 1) * p;
        for (int64_t next = 0; next < s; next += TL_W) {
            const int64_t q = next + TL_W <= s || s < TL_W ? next : s - TL_W;
            tl_cvec a[13];
            for (int j = 0; j < r; j++)
                a[j] = load(x, q + s * (p + m * j));
            tl_butterfly(a, r);
            store(y, q + s * (r * p), a[0]);
            for (int j = 1; j < r; j++)
                store(y, q + s * (r * p + j), p ? tl_times(a[j], v[2 * j - 2], v[2 * j - 1]) : a[j]);
        }
    }
}

TL_INLINE void pass(const numbers *x, const numbers *y, int64_t m, int64_t s, const float *w, const float *across,
                    const int r)
{
    if (s == 1)
        first_pass(x, y, m, across, r);
    else
        later_pass(x, y, m, s, w, r);
}

/* The transform of x, which lies in x or in y. */
static numbers direct(const tl_fft *f, numbers x, numbers y)
{
    int64_t length = f->n, s = 1;
    const float *w = f->twiddle;
    for (int i = 0; i < f->stages; i++) {
        const int r = f->radix[i];
        const int64_t m = length / r;
        switch (r) {
        case 2: pass(&x, &y, m, s, w, f->across, 2); break;
        case 3: pass(&x, &y, m, s, w, f->across, 3); break;
        case 4: pass(&x, &y, m, s, w, f->across, 4); break;
        case 5: pass(&x, &y, m, s, w, f->across, 5); break;
        case 7: pass(&x, &y, m, s, w, f->across, 7); break;
        case 8: pass(&x, &y, m, s, w, f->across, 8); break;
        case 11: pass(&x, &y, m, s, w, f->across, 11); break;
        default: pass(&x, &y, m, s, w, f->across, 13);
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

/* y = x·w for n numbers, parts of y exchanged with swap. */
static void multiply(numbers x, const float *restrict w, int64_t n, int swap, numbers y)
{
    const float *restrict xr = x.r, *restrict xi = x.i;
    float *restrict yr = swap ? y.i : y.r, *restrict yi = swap ? y.r : y.i;
    for (int64_t k = 0; k < n; k++) {
        const float r = xr[k], i = xi[k], c = w[2 * k], s = w[2 * k + 1];
        yr[k] = r * c - i * s;
        yi[k] = r * s + i * c;
    }
}

/* The transform of z, whose place is free afterwards; a and b have room for the plan's longest array. */
static numbers transform(const tl_fft *f, numbers z, numbers a, numbers b)
{
    if (!f->chirp) return direct(f, z, a);
    const int64_t n = f->n, m = f->first->n;
    multiply(z, f->chirp, n, 0, a);
    memset(a.r + n, 0, (size_t)(m - n) * sizeof(float));
    memset(a.i + n, 0, (size_t)(m - n) * sizeof(float));
    const numbers spectrum = direct(f->first, a, b), other = spectrum.r == a.r ? b : a;
    multiply(spectrum, f->kernel, m, 1, other); /* exchanged: the next transform is the inverse */
    const numbers c = direct(f->first, other, spectrum);
    multiply((numbers){c.i, c.r}, f->chirp, n, 0, z);
    return z;
}

int tl_single_serves(const tl_fft *f)
{
    const tl_fft *g = f->chirp ? f->first : f;
    return g->stages > 0 && g->n >= (int64_t)g->radix[0] * TL_W;
}

int64_t tl_single_scratch(const tl_fft *f) { return 6 * ((f->chirp ? f->first->n : f->n) + f->n + 2 * TL_W); }

/* The arrays in a row's scratch. */
static void open(const tl_fft *f, float *scratch, numbers *z, numbers *a, numbers *b)
{
    const int64_t length = (f->chirp ? f->first->n : 0) + f->n + 2 * TL_W;
    *z = (numbers){scratch, scratch + length};
    *a = (numbers){scratch + 2 * length, scratch + 3 * length};
    *b = (numbers){scratch + 4 * length, scratch + 5 * length};
}

/* Whether n numbers, times `up`, are finite. */
static int scale_up(float *x, int64_t n, float up)
{
    float poison = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        x[i] *= up;
        poison = x[i] - x[i] == 0.0f ? poison : 1.0f;
    }
    return poison == 0.0f;
}

int tl_single_forward(const tl_real *t, const float *x, float *X, float *scratch, float down, float up)
{
    const int64_t n = t->n, h = n / 2;
    numbers z, a, b;
    open(t->f, scratch, &z, &a, &b);
    if (n % 2 == 0) {
        for (int64_t j = 0; j < h; j++)
            z.r[j] = x[2 * j] * down, z.i[j] = x[2 * j + 1] * down;
    } else {
        for (int64_t j = 0; j < n; j++)
            z.r[j] = x[j] * down, z.i[j] = 0.0f;
    }
    z = transform(t->f, z, a, b);
    const float *restrict zr = z.r, *restrict zi = z.i;
    X[1] = 0.0f;
    if (n % 2 == 0) {
        X[0] = (zr[0] + zi[0]) * t->edge;
        X[2 * h] = (zr[0] - zi[0]) * t->edge;
        X[2 * h + 1] = 0.0f;
        const float half = 0.5f * t->inner, *restrict w = t->f->real;
        float *restrict low = X, *restrict high = X + 2 * h;
        for (int64_t k = 1; k < h - k; k++) {
            const pair p = {zr[k], zi[k]}, q = {zr[h - k], zi[h - k]};
            TL_SPLIT(p, q, w[2 * k], w[2 * k + 1], half, low[2 * k], low[2 * k + 1], high[-2 * k], high[1 - 2 * k]);
        }
        if (h % 2 == 0) { /* the bin that is its own partner */
            const pair p = {zr[h / 2], zi[h / 2]};
            float first, second;
            TL_SPLIT(p, p, w[h], w[h + 1], half, first, second, X[h], X[h + 1]);
            (void)first, (void)second;
        }
    } else {
        X[0] = zr[0] * t->edge;
        for (int64_t k = 1; k <= h; k++)
            X[2 * k] = zr[k] * t->inner, X[2 * k + 1] = zi[k] * t->inner;
    }
    if (X[0] - X[0] != 0.0f)
        for (int64_t k = 0; k < 2 * t->bins; k++)
            X[k] = TL_NAN;
    return scale_up(X, 2 * t->bins, up);
}

int tl_single_inverse(const tl_real *t, const float *S, float *x, float *scratch, float down, float up)
{
    const int64_t n = t->n, h = n / 2;
    numbers z, a, b;
    open(t->f, scratch, &z, &a, &b);
    for (int64_t k = 0; k <= h; k++) { /* the weighted bins */
        const int idle = k == 0 || (n % 2 == 0 && k == h);
        const float factor = idle ? t->edge : t->inner, r = S[2 * k] * down, i = idle ? 0.0f : S[2 * k + 1] * down;
        const float poison = (r - r) + (i - i);
        a.r[k] = r * factor + poison;
        a.i[k] = i * factor + poison;
    }
    if (n % 2 == 0) {
        const float *restrict w = t->f->real, *restrict ar = a.r, *restrict ai = a.i;
        float *restrict zr = z.r, *restrict zi = z.i;
        for (int64_t k = 0; k <= h / 2; k++) {
            const pair p = {ar[k], ai[k]}, q = {ar[h - k], ai[h - k]};
            float ur, ui, vr, vi;
            TL_JOIN(p, q, w[2 * k], w[2 * k + 1], ur, ui, vr, vi);
            if (k) zr[h - k] = vi, zi[h - k] = vr;
            zr[k] = ui, zi[k] = ur;
        }
    } else {
        z.r[0] = a.i[0], z.i[0] = a.r[0];
        for (int64_t k = 1; k <= h; k++) {
            z.r[k] = a.i[k], z.i[k] = a.r[k];
            z.r[n - k] = -a.i[k], z.i[n - k] = a.r[k];
        }
    }
    z = transform(t->f, z, a, b);
    if (n % 2 == 0)
        for (int64_t j = 0; j < h; j++)
            x[2 * j] = z.i[j], x[2 * j + 1] = z.r[j];
    else
        memcpy(x, z.i, (size_t)n * sizeof *x);
    return scale_up(x, n, up);
}
