/* The kernel of Bluestein's transform: the chirp e^(i·pi·t²/n), laid out around 0 and transformed over m in float64.
 *
 * Four steps as in fft.c, on all threads: columns and rows of an n1 by n2 matrix, TL_W side by side in lanes, by self-sorting
 * passes of radix 4, 2, 3 and 5. Each lane's arithmetic follows from m alone. */
#include <stdlib.h>

#include "cpu/spectral/fft.h"
#include "formula/dft_tile.h"

typedef struct numbers {
    tl_vec_double r, i;
} numbers;

struct axis {
    int64_t n;
    double *root; /* e^(-2·pi·i·k/n), k < n */
};

struct kernel {
    const double *chirp; /* e^(i·pi·t²/n), t < n */
    const tl_roots *roots;
    float *out;
    int64_t n, m, groups; /* of TL_W columns */
    struct axis first, second;
    numbers *matrix, *buffers; /* [k1][groups + 1], and two per worker */
    int64_t per_worker;
};

TL_INLINE numbers add(numbers a, numbers b) { return (numbers){a.r + b.r, a.i + b.i}; }
TL_INLINE numbers sub(numbers a, numbers b) { return (numbers){a.r - b.r, a.i - b.i}; }
TL_INLINE numbers turn(numbers a, const double *w)
{
    return (numbers){a.r * w[0] - a.i * w[1], a.r * w[1] + a.i * w[0]};
}

/* a[0..r-1] becomes its transform of r points. */
TL_INLINE void butterfly(numbers *a, int r, const struct axis *x)
{
    if (r == 2) {
        const numbers t = a[0];
        a[0] = add(t, a[1]);
        a[1] = sub(t, a[1]);
    } else if (r == 4) {
        const numbers s = add(a[0], a[2]), d = sub(a[0], a[2]), t = add(a[1], a[3]), e = sub(a[1], a[3]);
        a[0] = add(s, t);
        a[1] = (numbers){d.r + e.i, d.i - e.r};
        a[2] = sub(s, t);
        a[3] = (numbers){d.r - e.i, d.i + e.r};
    } else {
        numbers b[5];
        for (int k = 0; k < r; k++) {
            b[k] = a[0];
            for (int j = 1; j < r; j++)
                b[k] = add(b[k], turn(a[j], x->root + 2 * (j * k % r * (x->n / r))));
        }
        for (int k = 0; k < r; k++)
            a[k] = b[k];
    }
}

/* One pass, as in fft.c: s sub-transforms of length m·r become s·r of length m. */
TL_INLINE void pass(const struct axis *x, const numbers *from, numbers *to, int64_t m, int64_t s, const int r)
{
    for (int64_t p = 0; p < m; p++)
        for (int64_t q = 0; q < s; q++) {
            numbers a[5];
            for (int j = 0; j < r; j++)
                a[j] = from[q + s * (p + m * j)];
            butterfly(a, r, x);
            to[q + s * (r * p)] = a[0];
            for (int j = 1; j < r; j++)
                to[q + s * (r * p + j)] = turn(a[j], x->root + 2 * (p * j * s));
        }
}

/* Returns where the result lies: a or b. */
static numbers *transform(const struct axis *x, numbers *a, numbers *b)
{
    for (int64_t length = x->n, s = 1, r; length > 1; length /= r, s *= r) {
        r = length % 4 == 0 ? 4 : length % 2 == 0 ? 2 : length % 3 == 0 ? 3 : 5;
        switch (r) {
        case 4: pass(x, a, b, length / r, s, 4); break;
        case 2: pass(x, a, b, length / r, s, 2); break;
        case 3: pass(x, a, b, length / r, s, 3); break;
        default: pass(x, a, b, length / r, s, 5);
        }
        numbers *t = a;
        a = b;
        b = t;
    }
    return a;
}

/* A task owns TL_W neighbouring columns. */
static void columns_task(void *arg, int64_t group, int32_t worker)
{
    const struct kernel *job = arg;
    const int64_t n1 = job->first.n, n2 = job->second.n, at = group * TL_W;
    numbers *a = job->buffers + worker * job->per_worker;
    for (int64_t i = 0; i < n1; i++)
        for (int64_t l = 0; l < TL_W; l++) {
            const int64_t t = i * n2 + at + l, from = t < job->n ? t : job->m - t;
            const int inside = at + l < n2 && from < job->n;
            a[i].r[l] = inside ? job->chirp[2 * from] : 0.0;
            a[i].i[l] = inside ? job->chirp[2 * from + 1] : 0.0;
        }
    const numbers *z = transform(&job->first, a, a + n1);
    for (int64_t k = 0; k < n1; k++)
        for (int64_t l = 0; l < TL_W && at + l < n2; l++) {
            double w[2];
            tl_root_at(job->roots, (uint64_t)(k * (at + l)), w, w + 1);
            numbers *to = job->matrix + k * (job->groups + 1) + group;
            double rc = z[k].r[l] * w[0], is = z[k].i[l] * w[1], rs = z[k].r[l] * w[1], ic = z[k].i[l] * w[0];
            TL_OPAQUE(rc);
            TL_OPAQUE(is);
            TL_OPAQUE(rs);
            TL_OPAQUE(ic);
            to->r[l] = rc - is;
            to->i[l] = rs + ic;
        }
}

/* A task owns TL_W neighbouring rows k1. */
static void rows_task(void *arg, int64_t group, int32_t worker)
{
    const struct kernel *job = arg;
    const int64_t n1 = job->first.n, n2 = job->second.n, at = group * TL_W, lanes = tl_imin(n1 - at, TL_W);
    numbers *a = job->buffers + worker * job->per_worker;
    for (int64_t i = 0; i < n2; i++)
        for (int64_t l = 0; l < TL_W; l++) {
            const numbers *from = job->matrix + (at + (l < lanes ? l : 0)) * (job->groups + 1) + i / TL_W;
            a[i].r[l] = from->r[i % TL_W];
            a[i].i[l] = from->i[i % TL_W];
        }
    const numbers *z = transform(&job->second, a, a + n2);
    for (int64_t k = 0; k < n2; k++)
        for (int64_t l = 0; l < lanes; l++) {
            float *to = job->out + 2 * (at + l + n1 * k);
            to[0] = (float)(z[k].r[l] / (double)job->m);
            to[1] = (float)(z[k].i[l] / (double)job->m);
        }
}

static int make_axis(struct axis *x, int64_t n)
{
    x->n = n;
    x->root = malloc((size_t)n * 2 * sizeof(double));
    for (int64_t k = 0; x->root && k < n; k++) {
        tl_root((uint64_t)k, (uint64_t)n, x->root + 2 * k, x->root + 2 * k + 1);
        x->root[2 * k + 1] = -x->root[2 * k + 1];
    }
    return x->root != NULL;
}

int tl_chirp_kernel(const double *chirp, int64_t n, const tl_roots *roots, int64_t n1, float *out)
{
    struct kernel job = {.chirp = chirp, .roots = roots, .out = out, .n = n, .m = (int64_t)roots->n};
    const int64_t n2 = job.m / n1;
    job.groups = tl_ceil_div(n2, TL_W);
    job.per_worker = 2 * tl_imax(n1, n2);
    job.matrix = aligned_alloc(sizeof(tl_vec_double), (size_t)(n1 * (job.groups + 1)) * sizeof(numbers));
    job.buffers = aligned_alloc(sizeof(tl_vec_double), (size_t)(tl_workers() * job.per_worker) * sizeof(numbers));
    const int ok = job.matrix && job.buffers && make_axis(&job.first, n1) && make_axis(&job.second, n2);
    if (ok) {
        tl_parallel(job.groups, columns_task, &job);
        tl_parallel(tl_ceil_div(n1, TL_W), rows_task, &job);
    }
    free(job.matrix);
    free(job.buffers);
    free(job.first.root);
    free(job.second.root);
    return ok;
}
