/* The kernel of Bluestein's transform: the chirp e^(i·pi·t²/n), laid out around 0 and transformed over m in float64.
 *
 * Four steps as in fft.c: columns and rows of an n1 by n2 matrix, by self-sorting passes of radix 4, 2, 3 and 5. */
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
    const int64_t m = (int64_t)roots->n, n2 = m / n1;
    struct axis first, second = {0};
    number *const matrix = malloc((size_t)(m + 2 * tl_imax(n1, n2)) * sizeof(number)); /* [k1][n2], and lines */
    number *const a = matrix ? matrix + m : NULL;
    const int ok = make_axis(&first, n1) && make_axis(&second, n2) && matrix;
    for (int64_t column = 0; ok && column < n2 && !tl_interrupted(); column++) {
        for (int64_t i = 0; i < n1; i++) {
            const int64_t t = i * n2 + column, from = tl_imin(t, m - t);
            a[i] = from < n ? (number){chirp[2 * from], chirp[2 * from + 1]} : (number){0.0, 0.0};
        }
        const number *z = transform(&first, a, a + n1);
        for (int64_t k = 0; k < n1; k++) {
            double w[2];
            tl_root_at(roots, (uint64_t)(k * column), w, w + 1);
            matrix[k * n2 + column] = turn(z[k], w);
        }
    }
    for (int64_t row = 0; ok && row < n1 && !tl_interrupted(); row++) {
        const number *z = transform(&second, matrix + row * n2, a);
        for (int64_t k = 0; k < n2; k++) {
            out[2 * (row + n1 * k)] = (float)(z[k].r / (double)m);
            out[2 * (row + n1 * k) + 1] = (float)(z[k].i / (double)m);
        }
    }
    free(matrix);
    free(first.root);
    free(second.root);
    return ok;
}
