/* Pooling on the CPU.
 *
 * Forward: the unit is a block of a row of outputs. Its accumulators, one per output, lie in L1; every row of cells the
 * block's windows meet passes over them once, in row-major order, so a loop runs over neighbouring outputs and
 * vectorises for the strides 1 and 2, while each sum keeps the order of its window's cells. Where rows have few
 * outputs, lanes are channels (pool_lanes.c), or, of few channels, neighbours along the first axis.
 *
 * Gradients: a task owns a contiguous range of cells (rows of the first spatial axis of one channel, or whole
 * channels), visits the windows that meet it in row-major order, computes what it needs of a window anew, and adds only
 * to cells of its own. Two tasks never write the same cell, and a cell's additions come in the order of its windows.
 * Windows of padding alone are never visited. */
#include <string.h>

#include "formula/integer.h"
#include "cpu/pool.h"
#include "generated/pool.h"

enum {
    BLOCK = 768,  /* outputs of a unit: accumulators of 3 KiB each */
    LOOK = 64,    /* rows of cells between two looks for an interruption */
    TASK = 65536, /* cells read (forward) or owned (gradients) that make a task */
};

#define INLINE static inline __attribute__((always_inline))

/* Axes of one cell are left out, and if fewer than two are left, some of one cell precede them. */
static pool_shape view(int64_t channels, const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                       const tl_dims *padding)
{
    pool_shape v = {.channels = channels, .plane = 1, .windows = 1, .kernel = 1};
    int32_t axes = 0;
    for (int32_t i = 0; i < spatial->rank; i++) {
        const int64_t n = spatial->d[i], k = kernel->d[i], s = stride->d[i], p = padding->d[i];
        const int64_t o = (n + 2 * p - k) / s + 1;
        v.kernel *= k;
        if (n == 1 && o == 1 && p < k) continue; /* one window, and the cell is in it */
        v.n[axes] = n, v.k[axes] = k, v.s[axes] = s, v.p[axes] = p, v.o[axes] = o;
        axes++;
    }
    for (; axes < 2; axes++) {
        v.n[1] = v.n[0], v.k[1] = v.k[0], v.s[1] = v.s[0], v.p[1] = v.p[0], v.o[1] = v.o[0];
        v.n[0] = v.k[0] = v.s[0] = v.o[0] = 1, v.p[0] = 0;
    }
    v.lead = axes - 1;
    for (int32_t i = v.lead; i >= 0; i--) {
        v.step[i] = v.plane;
        v.plane *= v.n[i];
        v.windows *= v.o[i];
    }
    return v;
}

/* A block of neighbouring windows: outputs [from, to) of the row of outputs `at` on the leading axes. The rows of cells
 * that their windows meet are those with leading coordinates in [low, high). */
typedef struct pool_row {
    int64_t low[8], high[8], rows;
    int64_t from, to, in_from, in_to; /* windows in [in_from, in_to) have no padded cell on the last axis */
} pool_row;

static pool_row find_row(const pool_shape *v, const int64_t *at, int64_t from, int64_t to)
{
    pool_row r = {.rows = 1, .from = from, .to = to};
    const int32_t l = v->lead;
    for (int32_t i = 0; i < l; i++) {
        const int64_t start = at[i] * v->s[i] - v->p[i];
        r.low[i] = tl_imax(start, 0);
        r.high[i] = tl_imin(start + v->k[i], v->n[i]);
        r.rows *= tl_imax(r.high[i] - r.low[i], 0);
    }
    const int64_t room = v->n[l] + v->p[l] - v->k[l];
    r.in_from = tl_imin(tl_imax(tl_ceil_div(v->p[l], v->s[l]), from), to);
    r.in_to = room < 0 ? r.in_from : tl_imax(tl_imin(room / v->s[l] + 1, to), r.in_from);
    return r;
}

/* Padded cells of window o, as tl_pool_total takes them. */
static inline float padded(const pool_shape *v, const pool_row *r, int64_t o)
{
    const int64_t start = o * v->s[v->lead] - v->p[v->lead];
    const int64_t cells = tl_imin(start + v->k[v->lead], v->n[v->lead]) - tl_imax(start, 0);
    return tl_pool_padded(v->kernel, r->rows * cells);
}

/* ---- one row of cells passes over a block ------------------------------------------------------------------------ */

/* Accumulators of a block: a and, for some passes, the extremes p or the winners' cells. */
typedef struct pool_block {
    float a[BLOCK], p[BLOCK];
    uint32_t cell[BLOCK];
} pool_block;

/* Defines NAME(row, base, v, r, b, beta): for every output of the block and every cell x of its window in `row`, which
 * begins at cell `base` of the plane, in order: CELL, over a (the accumulator), p, x, w (the winner) and here (x's
 * cell). Windows inside the row go `kernel` cells at a time where that is a small constant, else cell by cell. */
#define TL_PASS(NAME, CELL)                                                                                            \
    INLINE void NAME##_inside(const float *restrict row, uint32_t base, int64_t n, int64_t kernel, int64_t stride,     \
                              float *restrict aa, const float *restrict pp, uint32_t *restrict ww, float beta)         \
    {                                                                                                                  \
        (void)pp, (void)ww, (void)beta, (void)base;                                                                    \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                           \
        {                                                                                                              \
            float a = aa[i], p = pp[i];                                                                                \
            uint32_t w = ww[i];                                                                                        \
            _Pragma("GCC unroll 4") for (int64_t j = 0; j < kernel; j++)                                               \
            {                                                                                                          \
                const float x = row[i * stride + j];                                                                   \
                const uint32_t here = base + (uint32_t)(i * stride + j);                                               \
                CELL                                                                                                   \
                (void)here;                                                                                            \
            }                                                                                                          \
            aa[i] = a;                                                                                                 \
            ww[i] = w;                                                                                                 \
            (void)p;                                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME(const float *row, int64_t base, const pool_shape *v, const pool_row *r, pool_block *b,            \
                     float beta)                                                                                       \
    {                                                                                                                  \
        const int32_t l = v->lead;                                                                                     \
        const int64_t s = v->s[l], k = v->k[l], n = r->in_to - r->in_from, at = r->in_from - r->from;                  \
        const int64_t shift = r->in_from * s - v->p[l];                                                                \
        const float *first = row + (n > 0 ? shift : 0);                                                                \
        const uint32_t cell = (uint32_t)(base + shift);                                                                \
        float *aa = b->a + at;                                                                                         \
        const float *pp = b->p + at;                                                                                   \
        uint32_t *ww = b->cell + at;                                                                                   \
        if (s == 1 && k == 2)                                                                                          \
            NAME##_inside(first, cell, n, 2, 1, aa, pp, ww, beta);                                                     \
        else if (s == 1 && k == 3)                                                                                     \
            NAME##_inside(first, cell, n, 3, 1, aa, pp, ww, beta);                                                     \
        else if (s == 2 && k == 2)                                                                                     \
            NAME##_inside(first, cell, n, 2, 2, aa, pp, ww, beta);                                                     \
        else if (s == 2 && k == 3)                                                                                     \
            NAME##_inside(first, cell, n, 3, 2, aa, pp, ww, beta);                                                     \
        else if (s == 1)                                                                                               \
            for (int64_t j = 0; n > 0 && j < k; j++)                                                                   \
                NAME##_inside(first + j, cell + (uint32_t)j, n, 1, 1, aa, pp, ww, beta);                               \
        else if (s == 2)                                                                                               \
            for (int64_t j = 0; n > 0 && j < k; j++)                                                                   \
                NAME##_inside(first + j, cell + (uint32_t)j, n, 1, 2, aa, pp, ww, beta);                               \
        else if (n >= k)                                                                                               \
            for (int64_t j = 0; j < k; j++)                                                                            \
                NAME##_inside(first + j, cell + (uint32_t)j, n, 1, s, aa, pp, ww, beta);                               \
        else                                                                                                           \
            NAME##_inside(first, cell, n, k, s, aa, pp, ww, beta);                                                     \
        for (int64_t o = r->from; o < r->to; o++) {                                                                    \
            if (o == r->in_from && n > 0)                                                                              \
                o = r->in_to;                                                                                          \
            if (o >= r->to)                                                                                            \
                break;                                                                                                 \
            const int64_t start = o * s - v->p[l], low = tl_imax(start, 0), high = tl_imin(start + k, v->n[l]);        \
            if (low >= high)                                                                                           \
                continue;                                                                                              \
            NAME##_inside(row + low, (uint32_t)(base + low), 1, high - low, 1, b->a + (o - r->from),                   \
                          b->p + (o - r->from), b->cell + (o - r->from), beta);                                        \
        }                                                                                                              \
    }

TL_PASS(pass_sum, a += x;)
TL_PASS(pass_max, a = tl_max(a, x);)
TL_PASS(pass_min, a = tl_min(a, x);)
TL_PASS(pass_weight, a += tl_pool_weight(x, p, beta);)
TL_PASS(pass_winner, const int32_t take = tl_pool_takes(x, a); a = take ? x : a; w = take ? here : w;)

typedef void (*pool_pass)(const float *, int64_t, const pool_shape *, const pool_row *, pool_block *, float);

/* All rows of cells of the block, in order; there are none where its windows lie in the padding. */
static void all_rows(pool_pass pass, const float *x, const pool_shape *v, const pool_row *r, pool_block *b, float beta)
{
    int64_t c[8];
    if (r->rows == 0) return;
    memcpy(c, r->low, sizeof c);
    do {
        const int64_t base = offset(v, c);
        pass(x + base, base, v, r, b, beta);
    } while (next(c, r->low, r->high, v->lead) && !(c[v->lead - 1] % LOOK == 0 && tl_interrupted()));
}

static void start_at(pool_block *b, const pool_row *r, float value)
{
    for (int64_t i = 0; i < r->to - r->from; i++)
        b->a[i] = value;
}

/* The extremes p, then the sums of weights a. `sum` runs over cells only; the padded ones come last. */
static void weigh(const float *x, const pool_shape *v, const pool_row *r, pool_block *b, float beta)
{
    float pads[BLOCK];
    const int64_t n = r->to - r->from;
    const float none = beta > 0.0f ? -TL_INF : TL_INF;
    for (int64_t i = 0; i < n; i++) {
        pads[i] = padded(v, r, r->from + i);
        b->a[i] = pads[i] > 0.0f ? 0.0f : none;
    }
    all_rows(beta > 0.0f ? pass_max : pass_min, x, v, r, b, beta);
    memcpy(b->p, b->a, (size_t)n * sizeof(float));
    start_at(b, r, 0.0f);
    all_rows(pass_weight, x, v, r, b, beta);
    for (int64_t i = 0; i < n; i++)
        b->a[i] = tl_pool_total(b->a[i], pads[i], b->p[i], beta);
}

/* The cell that wins each window; the first of the window until another takes the lead. */
static void find_winners(const float *x, const pool_shape *v, const pool_row *r, pool_block *b)
{
    const int64_t corner = offset(v, r->low), s = v->s[v->lead], p = v->p[v->lead];
    for (int64_t i = 0; i < r->to - r->from; i++) {
        b->a[i] = -TL_INF;
        b->cell[i] = (uint32_t)(corner + tl_imax((r->from + i) * s - p, 0));
    }
    all_rows(pass_winner, x, v, r, b, 0.0f);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void forward_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const pool_call *f = arg;
    const pool_shape *v = &f->v;
    pool_block b;
    memset(b.p, 0, sizeof b.p);
    memset(b.cell, 0, sizeof b.cell);
    const int64_t last = tl_imin((task + 1) * f->group, f->units), width = v->o[v->lead];
    for (int64_t u = task * f->group; u < last; u++) {
        int64_t at[8], rest = u / f->blocks;
        const int64_t row = rest, from = u % f->blocks * BLOCK;
        for (int32_t i = v->lead - 1; i >= 0; i--) {
            at[i] = rest % v->o[i];
            rest /= v->o[i];
        }
        const pool_row r = find_row(v, at, from, tl_imin(from + BLOCK, width));
        const float *x = f->x + rest * v->plane;
        float *out = f->out + row * width + from;
        const int64_t n = r.to - r.from;
        if (f->kind == POOL_MAX) {
            start_at(&b, &r, -TL_INF);
            all_rows(pass_max, x, v, &r, &b, 0.0f);
            memcpy(out, b.a, (size_t)n * sizeof(float));
        } else if (f->kind == POOL_MEAN) {
            start_at(&b, &r, 0.0f);
            all_rows(pass_sum, x, v, &r, &b, 0.0f);
            for (int64_t i = 0; i < n; i++)
                out[i] = tl_per_count(b.a[i], v->kernel);
        } else {
            weigh(x, v, &r, &b, f->beta);
            for (int64_t i = 0; i < n; i++)
                out[i] = tl_pool_smooth(b.a[i], b.p[i], f->beta);
        }
    }
}

/* The outputs of the first axis whose windows have no padded cell on it. */
static void find_whole(const pool_shape *v, int64_t *from, int64_t *to)
{
    const int64_t room = v->n[0] + v->p[0] - v->k[0];
    *from = tl_imin(tl_ceil_div(v->p[0], v->s[0]), v->o[0]);
    *to = room < 0 ? *from : tl_imax(tl_imin(room / v->s[0] + 1, v->o[0]), *from);
}

/* Lanes are those outputs of a channel: what the windows of one of them meet is a plane of its own, of k[0] rows, and planes
 * overlap. The other outputs are few. */
static int32_t forward_in_rows(tl_context *ctx, pool_call f, int64_t from, int64_t to)
{
    const pool_shape *v = &f.v;
    const int64_t outputs = v->windows / v->o[0];
    f.blocks = 1;
    f.group = outputs / v->o[v->lead];
    f.units = v->channels * v->o[0] * f.group;
    pool_call rows = f;
    rows.v.channels = to - from;
    rows.v.plane = v->s[0] * v->step[0];
    rows.v.windows = outputs;
    rows.v.n[0] = v->k[0], rows.v.s[0] = rows.v.o[0] = 1, rows.v.p[0] = 0;
    for (int64_t channel = 0; channel < v->channels; channel++) {
        for (int64_t o = 0; o < v->o[0]; o++)
            if (o < from || o >= to) forward_task(&f, channel * v->o[0] + o, 0);
        rows.x = f.x + channel * v->plane + (from * v->s[0] - v->p[0]) * v->step[0];
        rows.out = f.out + channel * v->windows + from * outputs;
        const int32_t status = tl_pool_lanes(ctx, &rows);
        if (status) return status;
    }
    return TORCHLEAN_OK;
}

static int32_t forward(tl_context *ctx, pool_call f)
{
    const pool_shape *v = &f.v;
    const int64_t width = v->o[v->lead];
    int64_t from, to;
    find_whole(v, &from, &to);
    if (tl_pool_rows_serve(&f, to - from)) return forward_in_rows(ctx, f, from, to);
    if (tl_pool_lanes_serve(&f, 0)) return tl_pool_lanes(ctx, &f);
    f.blocks = tl_ceil_div(width, BLOCK);
    f.units = v->channels * (v->windows / width) * f.blocks;
    int64_t cells = tl_imin(width, BLOCK);
    for (int32_t i = 0; i <= v->lead; i++)
        cells *= tl_imin(v->k[i], v->n[i]);
    f.group = tl_imax(1, TASK / cells);
    tl_parallel(tl_ceil_div(f.units, f.group), forward_task, &f);
    return TORCHLEAN_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* gx[first + i·stride] += add[i], i = 0..n-1. */
INLINE void add_strided(float *restrict gx, const float *restrict add, int64_t n, int64_t stride)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            gx[i] += add[i];
    else
        for (int64_t i = 0; i < n; i++)
            gx[i * stride] += add[i];
}

/* Adds each window's share to its cells in [low, high) of one row. The j-th cells of the block's windows are distinct,
 * and j goes down, so that the windows that share a cell add to it from the first to the last. */
static void spread_row(const pool_call *f, const pool_row *r, const pool_block *b, const float *x, float *gx,
                       int64_t low, int64_t high)
{
    const pool_shape *v = &f->v;
    const int64_t s = v->s[v->lead], p = v->p[v->lead];
    /* no window of the block reaches j that lie wholly left of low or right of high */
    const int64_t top = tl_imin(v->k[v->lead] - 1, high - 1 + p - r->from * s);
    const int64_t bottom = tl_imax(0, low + p - (r->to - 1) * s);
    for (int64_t j = top; j >= bottom; j--) {
        const int64_t from = tl_imax(r->from, tl_ceil_div(low + p - j, s)), room = high - 1 + p - j;
        const int64_t to = tl_imin(r->to, room / s + 1), n = to - from, at = from - r->from;
        if (n == 0) continue;
        const int64_t cell = from * s + j - p;
        if (f->kind == POOL_MEAN) {
            add_strided(gx + cell, b->a + at, n, s);
            continue;
        }
        float share[BLOCK];
        const float *restrict xx = x + cell;
        if (s == 1)
            for (int64_t i = 0; i < n; i++)
                share[i] = tl_pool_weight(xx[i], b->p[at + i], f->beta) * b->a[at + i];
        else
            for (int64_t i = 0; i < n; i++)
                share[i] = tl_pool_weight(xx[i * s], b->p[at + i], f->beta) * b->a[at + i];
        add_strided(gx + cell, share, n, s);
    }
}

/* The windows of one block of a row of outputs, for the owner of cells [own, end) of the plane x, gx. */
static void spread(const pool_call *f, const int64_t *at, int64_t from, int64_t to, const float *x, const float *g,
                   float *gx, int64_t own, int64_t end, pool_block *b)
{
    const pool_shape *v = &f->v;
    const pool_row r = find_row(v, at, from, to);
    const int64_t n = to - from;
    if (f->kind == POOL_MAX) {
        find_winners(x, v, &r, b);
        for (int64_t i = 0; i < n; i++)
            if (b->cell[i] >= own && b->cell[i] < end) gx[b->cell[i]] += tl_pool_prize(b->a[i], g[i]);
        return;
    }
    if (f->kind == POOL_MEAN) {
        memcpy(b->a, g, (size_t)n * sizeof(float));
    } else {
        weigh(x, v, &r, b, f->beta);
        for (int64_t i = 0; i < n; i++)
            b->a[i] = g[i] / b->a[i];
    }
    int64_t c[8];
    memcpy(c, r.low, sizeof c);
    do {
        const int64_t base = offset(v, c), low = tl_imax(own - base, 0), high = tl_imin(end - base, v->n[v->lead]);
        if (low < high) spread_row(f, &r, b, x ? x + base : NULL, gx + base, low, high);
    } while (next(c, r.low, r.high, v->lead));
}

/* Windows of an axis that meet its cells [low, high): [*from, *to). */
static void meeting(const pool_shape *v, int32_t axis, int64_t low, int64_t high, int64_t *from, int64_t *to)
{
    *from = tl_imax(0, tl_ceil_div(low + v->p[axis] - v->k[axis] + 1, v->s[axis]));
    *to = tl_imin((high - 1 + v->p[axis]) / v->s[axis] + 1, v->o[axis]);
}

static void gradient_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const pool_call *f = arg;
    const pool_shape *v = &f->v;
    const int32_t cut = v->n[0] == 1 && v->lead == 1 ? 1 : 0; /* a single axis is cut itself */
    const int64_t last = tl_imin((task + 1) * f->group, f->units);
    pool_block b;
    memset(b.p, 0, sizeof b.p);
    memset(b.cell, 0, sizeof b.cell);
    for (int64_t u = task * f->group; u < last; u++) {
        const int64_t channel = u / f->spans, low = u % f->spans * f->span, high = tl_imin(low + f->span, v->n[cut]);
        const int64_t own = low * v->step[cut], end = high * v->step[cut];
        const float *x = f->x ? f->x + channel * v->plane : NULL, *g = f->g + channel * v->windows;
        float *gx = f->out + channel * v->plane;
        memset(gx + own, 0, (size_t)(end - own) * sizeof(float));
        int64_t first[9], past[9], at[8];
        memcpy(first, f->first, sizeof first);
        memcpy(past, f->past, sizeof past);
        meeting(v, cut, low, high, &first[cut], &past[cut]);
        if (f->met && first[cut] < past[cut]) {
            memcpy(at, first, sizeof at);
            do {
                int64_t row = 0;
                for (int32_t i = 0; i < v->lead; i++)
                    row = row * v->o[i] + at[i];
                for (int64_t from = first[v->lead]; from < past[v->lead]; from += BLOCK)
                    spread(f, at, from, tl_imin(from + BLOCK, past[v->lead]), x, g + row * v->o[v->lead] + from, gx,
                           own, end, &b);
            } while (next(at, first, past, v->lead) && !tl_interrupted());
        }
        if (f->kind == POOL_MEAN)
            for (int64_t i = own; i < end; i++)
                gx[i] = tl_per_count(gx[i], v->kernel);
    }
}

static int32_t gradient(tl_context *ctx, pool_call f)
{
    const pool_shape *v = &f.v;
    const int32_t cut = v->n[0] == 1 && v->lead == 1 ? 1 : 0;
    f.met = 1;
    for (int32_t i = 0; i <= v->lead; i++) {
        meeting(v, i, 0, v->n[i], &f.first[i], &f.past[i]);
        f.met = f.met && f.first[i] < f.past[i];
    }
    if (tl_pool_lanes_serve(&f, 1)) return tl_pool_lanes_bwd(ctx, &f);
    /* Windows across the end of a span are computed by both its neighbours: eight kernels long, they are few. */
    f.span = tl_imax(tl_ceil_div(TASK, v->step[cut]), 8 * tl_imin(v->k[cut], v->n[cut]));
    f.spans = tl_ceil_div(v->n[cut], f.span);
    f.units = v->channels * f.spans;
    f.group = tl_imax(1, TASK / v->plane);
    tl_parallel(tl_ceil_div(f.units, f.group), gradient_task, &f);
    return TORCHLEAN_OK;
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

#define ND \
    int64_t channels, const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding
#define VIEW view(channels, spatial, kernel, stride, padding)

int32_t tl_cpu_max_pool(tl_context *ctx, const float *x, ND, float *out)
{
    return forward(ctx, (pool_call){.v = VIEW, .kind = POOL_MAX, .x = x, .out = out});
}

int32_t tl_cpu_max_pool_bwd(tl_context *ctx, const float *x, const float *g, ND, float *gx)
{
    return gradient(ctx, (pool_call){.v = VIEW, .kind = POOL_MAX, .x = x, .g = g, .out = gx});
}

int32_t tl_cpu_avg_pool(tl_context *ctx, const float *x, ND, float *out)
{
    return forward(ctx, (pool_call){.v = VIEW, .kind = POOL_MEAN, .x = x, .out = out});
}

int32_t tl_cpu_avg_pool_bwd(tl_context *ctx, const float *g, ND, float *gx)
{
    return gradient(ctx, (pool_call){.v = VIEW, .kind = POOL_MEAN, .g = g, .out = gx});
}

int32_t tl_cpu_smooth_max_pool(tl_context *ctx, const float *x, ND, float beta, float *out)
{
    return forward(ctx, (pool_call){.v = VIEW, .kind = POOL_SMOOTH, .beta = beta, .x = x, .out = out});
}

int32_t tl_cpu_smooth_max_pool_bwd(tl_context *ctx, const float *x, const float *g, ND, float beta, float *gx)
{
    return gradient(ctx, (pool_call){.v = VIEW, .kind = POOL_SMOOTH, .beta = beta, .x = x, .g = g, .out = gx});
}
