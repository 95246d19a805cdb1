/* The kernel of Bluestein's transform: the chirp e^(i·pi·t²/n), laid out around 0 and transformed over m in float64.
 *
 * Four steps as in fft.c, on all threads: columns and rows of an n1 by n2 matrix, by self-sorting passes of radix 4, 2, 3 and 5. */
#include <stdlib.h>

#include "cpu/spectral/fft.h"
#include "formula/dft_tile.h"

typedef struct number {
    double r, i;
} number;

struct axis {
    int64_t n;
    double *root; /* e^(-2·pi·i·k/n), k < n */
};

struct kernel {
    const double *chirp; /* e^(i·pi·t²/n), t < n */
    const tl_roots *roots;
    float *out;
    int64_t n, m;
    struct axis first, second;
    number *matrix, *buffers; /* [k1][n2], and two lines for each worker */
    int64_t per_worker;
};

static number add(number a, number b) { return (number){a.r + b.r, a.i + b.i}; }
static number sub(number a, number b) { return (number){a.r - b.r, a.i - b.i}; }
static number turn(number a, const double *w)
{
    const double x[2] = {a.r, a.i};
    tl_root_product(x, w, &a.r, &a.i);
    return a;
}

/* a[0..r-1] becomes its transform of r points. */
static void butterfly(number *a, int64_t r, const struct axis *x)
{
    if (r == 2) {
        const number t = a[0];
        a[0] = add(t, a[1]);
        a[1] = sub(t, a[1]);
    } else if (r == 4) {
        const number s = add(a[0], a[2]), d = sub(a[0], a[2]), t = add(a[1], a[3]), e = sub(a[1], a[3]);
        a[0] = add(s, t);
        a[1] = (number){d.r + e.i, d.i - e.r};
        a[2] = sub(s, t);
        a[3] = (number){d.r - e.i, d.i + e.r};
    } else {
        number b[5];
        for (int k = 0; k < r; k++) {
            b[k] = a[0];
            for (int j = 1; j < r; j++)
                b[k] = add(b[k], turn(a[j], x->root + 2 * (j * k % r * (x->n / r))));
        }
        for (int k = 0; k < r; k++)
            a[k] = b[k];
    }
}

/* Returns where the result lies: a or b. A pass, as in fft.c: s sub-transforms of length m·r become s·r of length m. */
static number *transform(const struct axis *x, number *a, number *b)
{
    for (int64_t length = x->n, s = 1, r; length > 1; length /= r, s *= r) {
        r = length % 4 == 0 ? 4 : length % 2 == 0 ? 2 : length % 3 == 0 ? 3 : 5;
        const int64_t m = length / r;
        for (int64_t p = 0; p < m; p++)
            for (int64_t q = 0; q < s; q++) {
                number y[5];
                for (int64_t j = 0; j < r; j++)
                    y[j] = a[q + s * (p + m * j)];
                butterfly(y, r, x);
                for (int64_t j = 0; j < r; j++)
                    b[q + s * (r * p + j)] = j ? turn(y[j], x->root + 2 * (p * j * s)) : y[0];
            }
        number *t = a;
        a = b;
        b = t;
    }
    return a;
}

/* A task owns a column. */
static void column_task(void *arg, int64_t column, int32_t worker)
{
    const struct kernel *job = arg;
    const int64_t n1 = job->first.n, n2 = job->second.n;
    number *a = job->buffers + worker * job->per_worker;
    for (int64_t i = 0; i < n1; i++) {
        const int64_t t = i * n2 + column, from = tl_imin(t, job->m - t);
        a[i] = from < job->n ? (number){job->chirp[2 * from], job->chirp[2 * from + 1]} : (number){0.0, 0.0};
    }
    const number *z = transform(&job->first, a, a + n1);
    for (int64_t k = 0; k < n1; k++) {
        double w[2];
        tl_root_at(job->roots, (uint64_t)(k * column), w, w + 1);
        job->matrix[k * n2 + column] = turn(z[k], w);
    }
}

/* A task owns a row k1. */
static void row_task(void *arg, int64_t row, int32_t worker)
{
    const struct kernel *job = arg;
    const int64_t n1 = job->first.n, n2 = job->second.n;
    const number *z = transform(&job->second, job->matrix + row * n2, job->buffers + worker * job->per_worker);
    for (int64_t k = 0; k < n2; k++) {
        job->out[2 * (row + n1 * k)] = (float)(z[k].r / (double)job->m);
        job->out[2 * (row + n1 * k) + 1] = (float)(z[k].i / (double)job->m);
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
    job.per_worker = 2 * tl_imax(n1, n2);
    job.matrix = malloc((size_t)job.m * sizeof(number));
    job.buffers = malloc((size_t)(tl_workers() * job.per_worker) * sizeof(number));
    const int ok = job.matrix && job.buffers && make_axis(&job.first, n1) && make_axis(&job.second, n2);
    if (ok) {
        tl_parallel(n2, column_task, &job);
        tl_parallel(n1, row_task, &job);
    }
    free(job.matrix);
    free(job.buffers);
    free(job.first.root);
    free(job.second.root);
    return ok;
}
