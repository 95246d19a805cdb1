/* Real Fourier transforms on the CPU.
 *
 * An even length is transformed as n/2 complex numbers x[2j] + i·x[2j+1], whose spectrum is then split into that of the even and
 * of the odd elements; an odd one as n complex numbers. Short transforms run TL_W rows at a time, one per lane; long
 * ones row by row through memory. The arithmetic of a row follows from n alone.
 *
 * A row with a NaN or an infinity must come out as NaN throughout, but products with 0 and i hide them. Every element enters the
 * real part of bin 0 with factor 1, so the forward transform looks there. The inverse makes both parts of a bin NaN that has a
 * NaN or an infinity in one.
 *
 * Sums on the way may overflow where the result does not. A row whose result is not finite though all of it is finite is therefore
 * transformed again, scaled by 2^-64: no sum of fewer than 2^32 terms overflows then, and what the scale takes from small elements
 * is far below a rounding of a spectrum that large. */
#include "core/threads.h"
#include "cpu/spectral/fft.h"
#include "formula/butterfly.h"
#include "formula/integer.h"
#include "generated/spectral.h"

enum { SPLIT_PIECE = 1 << 13, ROWS_ALONE = 4, ALONE_MAX = 1 << 18 };

#define DOWN 0x1p-64f
#define UP 0x1p64f

/* One operation, from real rows (batch, n) to packed ones (batch, bins, 2) or back. */
struct job {
    tl_real real;
    const float *from;
    float *to;
    int64_t batch;
    char *scratch; /* per worker */
    int64_t per_worker;
    int64_t per_task; /* groups of rows */
    int alone, inverse;
};

/* ---- splitting and joining --------------------------------------------------------------------------------------- */

/* Whether n floats are finite. */
static int all_finite(const float *x, int64_t n)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad |= (tl_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

/* The row that a transform reads: n numbers, or its bins without the imaginary parts that the inverse ignores. */
static int row_is_finite(const struct job *job, const float *row)
{
    const int64_t n = job->real.n, last = 2 * job->real.bins - 1;
    if (!job->inverse) return all_finite(row, n);
    return all_finite(row, 1) && all_finite(row + 2, last - 2 + n % 2);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static void split_lanes(const tl_real *t, const tl_cvec *Z, tl_cvec *X)
{
    const int64_t n = t->n, h = n / 2;
    const tl_vec zero = {0};
    if (n % 2 == 0) {
        const tl_cvec first = Z[0]; /* X[h] may be Z[0] */
        X[0] = (tl_cvec){(first.r + first.i) * t->edge, zero};
        X[h] = (tl_cvec){(first.r - first.i) * t->edge, zero};
        const float half = 0.5f * t->inner;
        for (int64_t k = 1; k <= h / 2; k++) {
            const float *w = t->f->real + 2 * k;
            const tl_cvec z = Z[k], y = Z[h - k];
            TL_SPLIT(z, y, w[0], w[1], half, X[k].r, X[k].i, X[h - k].r, X[h - k].i);
        }
    } else {
        X[0] = (tl_cvec){Z[0].r * t->edge, zero};
        for (int64_t k = 1; k <= h; k++)
            X[k] = (tl_cvec){Z[k].r * t->inner, Z[k].i * t->inner};
    }
    if (!tl_any_lane(X[0].r - X[0].r)) return;
    const float *first = (const float *)&X[0].r;
    for (int l = 0; l < TL_W; l++)
        if (first[l] - first[l] != 0.0f)
            for (int64_t k = 0; k <= h; k++)
                X[k].r[l] = X[k].i[l] = TL_NAN;
}

/* Bin k of the half spectrum, multiplied by its factor; both parts NaN if one is not finite. */
TL_INLINE tl_cvec weighted(const tl_cvec *S, int64_t k, float factor)
{
    const tl_vec r = S[k].r, i = S[k].i, poison = (r - r) + (i - i);
    return (tl_cvec){r * factor + poison, i * factor + poison};
}

/* To what the inverse complex transform takes, with the parts exchanged. */
static void join_lanes(const tl_real *t, tl_cvec *S, tl_cvec *Z)
{
    const int64_t n = t->n, h = n / 2;
    const tl_vec zero = {0};
    S[0].i = zero;
    if (n % 2) {
        const tl_cvec a = weighted(S, 0, t->edge);
        Z[0] = (tl_cvec){a.i, a.r};
        for (int64_t k = 1; k <= h; k++) {
            const tl_cvec b = weighted(S, k, t->inner);
            Z[k] = (tl_cvec){b.i, b.r};
            Z[n - k] = (tl_cvec){-b.i, b.r};
        }
        return;
    }
    S[h].i = zero;
    for (int64_t k = 0; k <= h / 2; k++) {
        const float *w = t->f->real + 2 * k, factor = k ? t->inner : t->edge;
        const tl_cvec a = weighted(S, k, factor), b = weighted(S, h - k, factor);
        tl_cvec z, y;
        TL_JOIN(a, b, w[0], w[1], z.r, z.i, y.r, y.i);
        if (k) Z[h - k] = (tl_cvec){y.i, y.r};
        Z[k] = (tl_cvec){z.i, z.r};
    }
}

/* v[i·step] times a factor, i < n; 0 in the lanes whose numbers are finite. */
TL_INLINE tl_vec scale_lanes(tl_vec *v, int64_t n, int64_t step, float by)
{
    tl_vec poison = {0};
    for (int64_t i = 0; i < n; i++) {
        if (by != 1.0f) v[i * step] *= by;
        poison += v[i * step] - v[i * step];
    }
    return poison;
}

/* Vectors that a worker has for a group of rows: z for the numbers that are transformed, bins behind them, and the scratch of a
 * transform. A direct transform takes the bins' place as scratch, as it is idle then: the fewer vectors are touched, the longer the
 * rows that stay in cache. */
static tl_cvec *scratch_behind(const struct job *job, tl_cvec *bins)
{
    return job->real.f->chirp ? bins + job->real.bins : bins;
}

/* A group of rows, which enter times `down`, and the result times `up`. Returns 0 in the lanes whose result is finite. */
static tl_vec lanes_forward(const struct job *job, int64_t row, int64_t lanes, tl_cvec *z, float down, float up)
{
    const int64_t n = job->real.n, packed = 2 * job->real.bins;
    tl_cvec *const behind = z + job->real.f->n, *x = behind;
    tl_lanes_in(job->from + row * n, n, lanes, n, (tl_vec *)z, n % 2 ? 2 : 1);
    if (down != 1.0f) scale_lanes((tl_vec *)z, n, n % 2 ? 2 : 1, down);
    for (int64_t t = 0; n % 2 && t < n; t++)
        z[t].i = (tl_vec){0};
    const tl_cvec *const Z = tl_fft_lanes(job->real.f, z, scratch_behind(job, behind));
    if (Z == behind) x = z; /* whose last bin takes the place of Z[0] once it has been read */
    split_lanes(&job->real, Z, x);
    const tl_vec poison = scale_lanes((tl_vec *)x, packed, 1, up);
    tl_lanes_out((const tl_vec *)x, 1, 0, lanes, packed, job->to + row * packed, packed);
    return poison;
}

static tl_vec lanes_inverse(const struct job *job, int64_t row, int64_t lanes, tl_cvec *z, float down, float up)
{
    const int64_t n = job->real.n, packed = 2 * job->real.bins, step = n % 2 ? 2 : 1;
    tl_cvec *const x = z + job->real.f->n;
    tl_lanes_in(job->from + row * packed, packed, lanes, packed, (tl_vec *)x, 1);
    if (down != 1.0f) scale_lanes((tl_vec *)x, packed, 1, down);
    join_lanes(&job->real, x, z);
    tl_vec *out = (tl_vec *)tl_fft_lanes(job->real.f, z, scratch_behind(job, x)) +
                  n % 2; /* of an odd length the parts that lie second */
    const tl_vec poison = scale_lanes(out, n, step, up);
    tl_lanes_out(out, step, step == 1, lanes, n, job->to + row * n, n);
    return poison;
}

/* A task owns a few groups of TL_W rows. */
static void lanes_task(void *arg, int64_t task, int32_t worker)
{
    const struct job *job = arg;
    const int64_t length = job->inverse ? 2 * job->real.bins : job->real.n, end = (task + 1) * job->per_task * TL_W;
    tl_vec (*const run)(const struct job *, int64_t, int64_t, tl_cvec *, float, float) = job->inverse ? lanes_inverse
                                                                                                      : lanes_forward;
    tl_cvec *z = (tl_cvec *)(job->scratch + worker * job->per_worker);
    for (int64_t row = task * job->per_task * TL_W; row < end && row < job->batch; row += TL_W) {
        const int64_t lanes = tl_imin(job->batch - row, TL_W);
        const tl_vec poison = run(job, row, lanes, z, 1.0f, 1.0f);
        if (!tl_any_lane(poison)) continue;
        for (int64_t l = 0; l < lanes; l++)
            if (poison[l] != 0.0f && row_is_finite(job, job->from + (row + l) * length))
                run(job, row + l, 1, z, DOWN, UP);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* `scale`: what bins are multiplied by, after their factors. */
struct row {
    const struct job *job;
    const float *from;
    float *to, scale;
};

/* A task looks whether a piece of a result is finite. */
struct piece {
    const float *x;
    int64_t n;
    int bad;
};

static void piece_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    struct piece *p = arg;
    const int64_t at = task * SPLIT_PIECE;
    if (!all_finite(p->x + at, tl_imin(p->n - at, SPLIT_PIECE))) __atomic_store_n(&p->bad, 1, __ATOMIC_RELAXED);
}

/* n = 1 or TL_W lanes in the other order. */
TL_INLINE tl_cvec flipped(tl_cvec z, int64_t n) { return n == TL_W ? tl_backwards(z) : z; }

/* n = 1 or TL_W bins from k on. The imaginary part of an edge is idle. */
TL_INLINE tl_cvec bins_at(const struct row *row, int64_t k, int64_t n)
{
    const tl_real *t = &row->job->real;
    const int edge = k == 0 || 2 * k == t->n;
    tl_cvec v = tl_complex_in(row->from + 2 * k, n, 0);
    if (edge) v.i = (tl_vec){0};
    v = weighted(&v, 0, edge ? t->edge : t->inner);
    return (tl_cvec){v.r * row->scale, v.i * row->scale};
}

/* How many of the pairs k .. end - 1 of bins k and h - k are next: a vector of them where both sides' are apart. */
TL_INLINE int64_t pairs_from(int64_t k, int64_t end, int64_t h)
{
    return k > 0 && k + TL_W <= end && k + 2 * TL_W <= h - k ? TL_W : 1;
}

/* A task owns the pairs k, h-k of a piece; 1 <= k <= h/2. In place. */
static void split_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const struct row *row = arg;
    const struct job *job = row->job;
    const int64_t h = job->real.n / 2, from = 1 + task * SPLIT_PIECE;
    const int64_t end = tl_imin(from + SPLIT_PIECE, h / 2 + 1);
    const float half = 0.5f * job->real.inner;
    for (int64_t k = from, n; k < end; k += n) {
        n = pairs_from(k, end, h);
        const tl_cvec roots = tl_complex_in(job->real.f->real + 2 * k, n, 0);
        float *const low = row->to + 2 * k, *const high = row->to + 2 * (h - k - n + 1);
        const tl_cvec a = tl_complex_in(low, n, 0), b = flipped(tl_complex_in(high, n, 0), n);
        tl_cvec u, v;
        TL_SPLIT(a, b, roots.r, roots.i, half, u.r, u.i, v.r, v.i);
        tl_complex_out(u, low, n, 0);
        tl_complex_out(flipped(v, n), high, n, 0);
    }
}

/* The same for joining, from S to Z; k = 0 included. */
static void join_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const struct row *row = arg;
    const struct job *job = row->job;
    const int64_t h = job->real.n / 2, from = task * SPLIT_PIECE;
    const int64_t end = tl_imin(from + SPLIT_PIECE, h / 2 + 1);
    for (int64_t k = from, n; k < end; k += n) {
        n = pairs_from(k, end, h);
        const tl_cvec roots = tl_complex_in(job->real.f->real + 2 * k, n, 0);
        const int64_t other = h - k - n + 1;
        const tl_cvec a = bins_at(row, k, n), b = flipped(bins_at(row, other, n), n);
        tl_cvec u, v;
        TL_JOIN(a, b, roots.r, roots.i, u.r, u.i, v.r, v.i);
        if (k) tl_complex_out(flipped(v, n), row->to + 2 * other, n, 0);
        tl_complex_out(u, row->to + 2 * k, n, 0);
    }
}

/* The next address for vectors. */
static tl_cvec *aligned(float *p) { return (tl_cvec *)(((uintptr_t)p + 63) / 64 * 64); }

/* One row, through memory: what tl_fft_large works in, complex copies of the row and of its spectrum where needed, vectors. The
 * row enters times `scale`. */
static void forward_row(const struct job *job, int64_t row_index, int32_t worker, float scale)
{
    const tl_fft *f = job->real.f;
    const int64_t n = job->real.n, h = n / 2;
    const float *x = job->from + row_index * n;
    float *X = job->to + row_index * 2 * job->real.bins;
    float *work = (float *)(job->scratch + worker * job->per_worker), *z = work + tl_fft_large_memory(f),
          *Z = z + (n % 2 ? 2 * n : 0);
    tl_cvec *vectors = aligned(Z + (n % 2 ? 2 * n : 0));
    if (n % 2 == 0) {
        tl_fft_large(f, x, X, 0, scale, work, vectors, job->alone);
        const float r = X[0], i = X[1];
        X[0] = (r + i) * job->real.edge;
        X[2 * h] = (r - i) * job->real.edge;
        X[1] = X[2 * h + 1] = 0.0f;
        struct row row = {job, NULL, X, 1.0f};
        tl_fft_run(tl_ceil_div(h / 2, SPLIT_PIECE), split_task, &row, job->alone);
    } else {
        for (int64_t t = 0; t < n; t++) {
            z[2 * t] = x[t];
            z[2 * t + 1] = 0.0f;
        }
        tl_fft_large(f, z, Z, 0, scale, work, vectors, job->alone);
        X[0] = Z[0] * job->real.edge;
        X[1] = 0.0f;
        for (int64_t k = 2; k < 2 * job->real.bins; k++)
            X[k] = Z[k] * job->real.inner;
    }
    if (X[0] - X[0] != 0.0f)
        for (int64_t k = 0; k < 2 * job->real.bins; k++)
            X[k] = TL_NAN;
}

static void inverse_row(const struct job *job, int64_t row_index, int32_t worker, float scale)
{
    const tl_fft *f = job->real.f;
    const int64_t n = job->real.n;
    const float *S = job->from + row_index * 2 * job->real.bins;
    float *x = job->to + row_index * n;
    float *work = (float *)(job->scratch + worker * job->per_worker), *z = work + tl_fft_large_memory(f),
          *Z = z + 2 * f->n;
    tl_cvec *vectors = aligned(Z + (n % 2 ? 2 * n : 0));
    const struct row row = {job, S, z, scale};
    if (n % 2 == 0) {
        tl_fft_run(tl_ceil_div(n / 4 + 1, SPLIT_PIECE), join_task, (void *)&row, job->alone);
        tl_fft_large(f, z, x, 1, 1.0f, work, vectors, job->alone);
        return;
    }
    for (int64_t k = 0; k < job->real.bins; k++) {
        const tl_cvec s = bins_at(&row, k, 1);
        tl_complex_out((tl_cvec){s.r, -s.i}, z + 2 * (k ? n - k : 0), 1, 0);
        tl_complex_out(s, z + 2 * k, 1, 0);
    }
    tl_fft_large(f, z, Z, 1, 1.0f, work, vectors, job->alone);
    for (int64_t t = 0; t < n; t++)
        x[t] = Z[2 * t];
}

/* A task owns one row. */
static void row_task(void *arg, int64_t row, int32_t worker)
{
    const struct job *job = arg;
    const int64_t n = job->real.n, packed = 2 * job->real.bins;
    const int64_t in = job->inverse ? packed : n, out = job->inverse ? n : packed;
    void (*const run)(const struct job *, int64_t, int32_t, float) = job->inverse ? inverse_row : forward_row;
    float *const x = job->to + row * out;
    struct piece p = {x, out, 0};
    run(job, row, worker, 1.0f);
    tl_fft_run(tl_ceil_div(out, SPLIT_PIECE), piece_task, &p, job->alone);
    if (!p.bad || !row_is_finite(job, job->from + row * in)) return;
    run(job, row, worker, DOWN);
    for (int64_t i = 0; i < out; i++)
        x[i] *= UP;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* Whole groups of lanes, a few to a task. */
static int32_t run_lanes(tl_context *ctx, struct job job)
{
    const tl_fft *f = job.real.f;
    const int64_t groups = tl_ceil_div(job.batch, TL_W);
    job.per_task = tl_imax(8192 / (job.real.n * TL_W), 1);
    job.per_worker = (f->n + job.real.bins + tl_fft_lanes_scratch(f)) * (int64_t)sizeof(tl_cvec);
    const int32_t status = tl_pool_alloc(ctx, (size_t)(job.per_worker * tl_workers()), (void **)&job.scratch);
    if (!status) tl_parallel(tl_ceil_div(groups, job.per_task), lanes_task, &job);
    tl_pool_free(ctx, job.scratch);
    return status;
}

/* Many rows: one per task; few long ones: all threads on each. */
static int32_t run_rows(tl_context *ctx, struct job job)
{
    const tl_fft *f = job.real.f;
    const int64_t n = job.real.n;
    const int32_t workers = tl_workers();
    job.alone = job.batch >= ROWS_ALONE && n <= ALONE_MAX;
    const int64_t numbers = n % 2 ? 2 * n : job.inverse ? f->n : 0, wide = (numbers * 2 + 15) / 16 * 16;
    const int64_t vectors = tl_fft_large_scratch(f) * (int64_t)sizeof(tl_cvec);
    job.per_worker = (tl_fft_large_memory(f) + wide + 32) * (int64_t)sizeof(float);
    job.per_worker += vectors * (job.alone ? 1 : workers);
    job.per_worker = (job.per_worker + 255) / 256 * 256;
    const int64_t bytes = job.per_worker * (job.alone ? workers : 1);
    const int32_t status = tl_pool_alloc(ctx, (size_t)bytes, (void **)&job.scratch);
    if (!status && job.alone)
        tl_parallel(job.batch, row_task, &job);
    else if (!status)
        for (int64_t row = 0; row < job.batch && !tl_interrupted(); row++)
            row_task(&job, row, 0);
    tl_pool_free(ctx, job.scratch);
    return status;
}

int32_t tl_real_transform(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, int inverse,
                          double edge, double inner)
{
    const tl_fft *f = tl_fft_get(n % 2 ? n : n / 2, TL_FFT_ANY);
    if (!f)
        return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the plan of a %lld-point transform", (long long)n);
    const struct job job = {.real = {f, n, n / 2 + 1, (float)edge, (float)inner},
                            .from = from,
                            .to = to,
                            .batch = batch,
                            .inverse = inverse};
    const int32_t status = f->in_lanes ? run_lanes(ctx, job) : run_rows(ctx, job);
    tl_fft_put(f);
    return status;
}

int32_t tl_cpu_rfft1d_packed(tl_context *ctx, const float *x, int64_t batch, int64_t n, float *spec)
{
    return tl_real_transform(ctx, x, spec, batch, n, 0, 1.0, 1.0);
}

int32_t tl_cpu_rfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gx)
{
    return tl_real_transform(ctx, g, gx, batch, n, 1, 1.0, 0.5);
}

int32_t tl_cpu_irfft1d_packed(tl_context *ctx, const float *spec, int64_t batch, int64_t n, float *x)
{
    return tl_real_transform(ctx, spec, x, batch, n, 1, 1.0 / (double)n, 1.0 / (double)n);
}

int32_t tl_cpu_irfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gspec)
{
    return tl_real_transform(ctx, g, gspec, batch, n, 0, 1.0 / (double)n, 2.0 / (double)n);
}
