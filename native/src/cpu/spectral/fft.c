/* Complex transforms in lanes and in memory; fft.h says which algorithm a length gets. */
#include "core/threads.h"
#include "cpu/spectral/fft.h"
#include "formula/integer.h"

/* ---- butterflies: a[0..r-1] becomes its transform of r points ---------------------------------------------------- */

TL_INLINE tl_cvec add(tl_cvec a, tl_cvec b) { return (tl_cvec){a.r + b.r, a.i + b.i}; }
TL_INLINE tl_cvec sub(tl_cvec a, tl_cvec b) { return (tl_cvec){a.r - b.r, a.i - b.i}; }
TL_INLINE tl_cvec minus_i(tl_cvec a) { return (tl_cvec){a.i, -a.r}; }

TL_INLINE void butterfly_2(tl_cvec *a)
{
    const tl_cvec t = a[0];
    a[0] = add(t, a[1]);
    a[1] = sub(t, a[1]);
}

TL_INLINE void butterfly_4(tl_cvec *a)
{
    const tl_cvec s = add(a[0], a[2]), d = sub(a[0], a[2]), t = add(a[1], a[3]), e = minus_i(sub(a[1], a[3]));
    a[0] = add(s, t);
    a[1] = add(d, e);
    a[2] = sub(s, t);
    a[3] = sub(d, e);
}

TL_INLINE void butterfly_8(tl_cvec *a)
{
    const float half_root = 0.70710678118654752440f; /* sqrt(1/2) */
    tl_cvec even[4], odd[4];
    for (int j = 0; j < 4; j++) {
        even[j] = add(a[j], a[j + 4]);
        odd[j] = sub(a[j], a[j + 4]);
    }
    const tl_cvec o1 = odd[1], o3 = odd[3];
    odd[1] = (tl_cvec){(o1.r + o1.i) * half_root, (o1.i - o1.r) * half_root};
    odd[2] = minus_i(odd[2]);
    odd[3] = (tl_cvec){(o3.i - o3.r) * half_root, -(o3.r + o3.i) * half_root};
    butterfly_4(even);
    butterfly_4(odd);
    for (int j = 0; j < 4; j++) {
        a[2 * j] = even[j];
        a[2 * j + 1] = odd[j];
    }
}

/* cos and sin of 2·pi·j/r, j = 1..(r-1)/2, for the odd radices. */
static const float COS_3[] = {-0.5f}, SIN_3[] = {0.86602540378443865f};
static const float COS_5[] = {0.30901699437494742f, -0.80901699437494742f};
static const float SIN_5[] = {0.95105651629515357f, 0.58778525229247313f};
static const float COS_7[] = {0.62348980185873353f, -0.22252093395631440f, -0.90096886790241913f};
static const float SIN_7[] = {0.78183148246802981f, 0.97492791218182361f, 0.43388373911755812f};
static const float COS_11[] = {0.84125353283118117f, 0.41541501300188643f, -0.14231483827328514f, -0.65486073394528506f,
                               -0.95949297361449739f};
static const float SIN_11[] = {0.54064081745559758f, 0.90963199535451837f, 0.98982144188093273f, 0.75574957435425828f,
                               0.28173255684142970f};
static const float COS_13[] = {0.88545602565320990f,  0.56806474673115580f,  0.12053668025532305f,
                               -0.35460488704253562f, -0.74851074817110110f, -0.97094181742605203f};
static const float SIN_13[] = {0.46472317204376856f, 0.82298386589365639f, 0.99270887409805399f,
                               0.93501624268541482f, 0.66312265824079520f, 0.23931566428755777f};

/* Sums of a[j] and a[r-j] meet cosines, differences sines; both run over j in order. */
TL_INLINE void butterfly_odd(tl_cvec *a, const int r, const float *c, const float *s)
{
    tl_cvec plus[6], minus[6];
    const tl_cvec first = a[0];
    tl_cvec total = first;
    for (int j = 1; j <= r / 2; j++) {
        plus[j - 1] = add(a[j], a[r - j]);
        minus[j - 1] = sub(a[j], a[r - j]);
        total = add(total, plus[j - 1]);
    }
    a[0] = total;
    for (int k = 1; k <= r / 2; k++) {
        tl_cvec u = first, v = {{0}, {0}};
        for (int j = 1; j <= r / 2; j++) {
            const int at = j * k % r, folded = at <= r / 2 ? at : r - at;
            const float cosine = c[folded - 1], sine = at <= r / 2 ? s[folded - 1] : -s[folded - 1];
            u.r += plus[j - 1].r * cosine;
            u.i += plus[j - 1].i * cosine;
            v.r += minus[j - 1].r * sine;
            v.i += minus[j - 1].i * sine;
        }
        a[k] = (tl_cvec){u.r + v.i, u.i - v.r};
        a[r - k] = (tl_cvec){u.r - v.i, u.i + v.r};
    }
}

TL_INLINE void butterfly(tl_cvec *a, const int r)
{
    switch (r) {
    case 2: butterfly_2(a); break;
    case 3: butterfly_odd(a, 3, COS_3, SIN_3); break;
    case 4: butterfly_4(a); break;
    case 5: butterfly_odd(a, 5, COS_5, SIN_5); break;
    case 7: butterfly_odd(a, 7, COS_7, SIN_7); break;
    case 8: butterfly_8(a); break;
    case 11: butterfly_odd(a, 11, COS_11, SIN_11); break;
    default: butterfly_odd(a, 13, COS_13, SIN_13);
    }
}

/* ---- direct transforms ------------------------------------------------------------------------------------------- */

/* One self-sorting pass: s sub-transforms, each of length m·r, become s·r of length m. p counts positions, q
 * sub-transforms; the roots depend on p alone. */
TL_INLINE void pass(const tl_cvec *x, tl_cvec *y, int64_t m, int64_t s, const float *w, const int r)
{
    for (int64_t q = 0; q < s; q++) { /* p = 0: all roots are 1 */
        tl_cvec a[13];
        for (int j = 0; j < r; j++)
            a[j] = x[q + s * m * j];
        butterfly(a, r);
        for (int j = 0; j < r; j++)
            y[q + s * j] = a[j];
    }
    for (int64_t p = 1; p < m; p++) {
        const float *v = w + 2 * (r - 1) * p;
        for (int64_t q = 0; q < s; q++) {
            tl_cvec a[13];
            for (int j = 0; j < r; j++)
                a[j] = x[q + s * (p + m * j)];
            butterfly(a, r);
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
    for (int64_t k = 0; k < n1; k++) {
        double c, s;
        tl_root_at(&f->roots, (uint64_t)(k * at), &c, &s);
        const tl_vec_double *lane = (const tl_vec_double *)(f->lane_roots + k * 2 * TL_W);
        const tl_vec wr = __builtin_convertvector(lane[0] * c - lane[1] * s, tl_vec);
        const tl_vec wi = __builtin_convertvector(lane[0] * s + lane[1] * c, tl_vec);
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
