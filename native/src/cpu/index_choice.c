/* Places of the largest and smallest elements on the CPU. formula/order.h says which comes first. */
#include <string.h>

#include "core/interrupt.h"
#include "core/threads.h"
#include "cpu/choice_bundle.h"
#include "cpu/choice_candidates.h"
#include "cpu/spans.h"
#include "cpu/stream.h"
#include "formula/integer.h"
#include "formula/order.h"
#include "generated/index.h"

enum {
    PART = 65536,     /* elements of short rows per task, and of a row between two looks for an interruption */
    COLUMNS = 512,    /* columns of a unit of argmax along an axis that others follow */
    TOP_TASK = 8192,  /* elements per task where several of a row are chosen, which takes longer for each */
    CANDIDATES = 64,  /* of a row that top-k compares at once, at least, besides four times as many as it keeps */
    GROUP = 512,      /* elements that are looked through at once for one that takes the lead */
    ORDER_LANES = 64, /* a loop that the compiler vectorises and does not unroll */
};

/* Units of a task, of short rows whole bundles. */
static int64_t whole_bundles(int64_t units) { return units < TL_BUNDLE ? units : units - units % TL_BUNDLE; }

/* ---- rows --------------------------------------------------------------------------------------------------------- */

/* The orders of sign * x for n <= ORDER_LANES elements, `inner` apart, as signed numbers, with the bits of `flip` changed; the least
 * behind them up to a whole line. Returns the largest. */
static inline __attribute__((always_inline)) int32_t read_orders_of(const float *x, int64_t inner, int64_t n,
                                                                    float sign, uint32_t flip, int32_t *order)
{
    int32_t lane[TL_LINE], most = INT32_MIN;
    TL_FOR_LINES(i, 0, n, order[i] = (int32_t)(tl_order_bits(sign * x[i * inner]) ^ flip ^ UINT32_C(0x80000000)););
    for (int64_t i = n; i % TL_LINE != 0; i++)
        order[i] = INT32_MIN;
    for (int32_t l = 0; l < TL_LINE; l++)
        lane[l] = INT32_MIN;
    for (int64_t i = 0; i < n; i += TL_LINE)
        for (int32_t l = 0; l < TL_LINE; l++)
            lane[l] = order[i + l] > lane[l] ? order[i + l] : lane[l];
    for (int32_t l = 0; l < TL_LINE; l++)
        most = lane[l] > most ? lane[l] : most;
    return most;
}

static int32_t read_orders(const float *x, int64_t inner, int64_t n, float sign, uint32_t flip, int32_t *order)
{
    return inner == 1 ? read_orders_of(x, 1, n, sign, flip, order) : read_orders_of(x, inner, n, sign, flip, order);
}

/* Whether one of GROUP elements takes the lead. */
static inline int any_leads(const float *x, float sign, float best)
{
    int32_t any = 0;
    for (int l = 0; l < GROUP; l++)
        any |= !(sign * x[l] <= best);
    return any;
}

/* The place of the first of the largest of n elements in that order. */
static int64_t first_place(const float *x, int64_t inner, int64_t n, float sign, uint32_t flip)
{
    int32_t order[ORDER_LANES], best = INT32_MIN;
    int64_t place = 0;
    for (int64_t first = 0; first < n; first += ORDER_LANES) {
        if (first % PART == 0 && tl_interrupted()) return place;
        if (inner == 1 && !flip && first % GROUP == 0 && first >= 2 * GROUP && first + GROUP <= n &&
            !any_leads(x + first, sign, sign * x[place])) {
            first += GROUP - ORDER_LANES;
            continue;
        }
        const int32_t most = read_orders(x + first * inner, inner, tl_imin(ORDER_LANES, n - first), sign, flip, order);
        if (most <= best) continue;
        int64_t at = 0;
        while (order[at] != most)
            at++;
        best = most;
        place = first + at;
    }
    return place;
}

typedef struct {
    const float *x;
    uint32_t *out;
    char *scratch; /* candidates of every worker */
    int64_t n, inner, k, rows, per_task, room, per_worker;
    float sign;    /* of one element: -1 for the negated elements' largest */
    uint32_t flip; /* all bits where the smallest come first, NaN last */
} top_job;

static const float *row_of(const top_job *job, int64_t row, uint32_t **out)
{
    const int64_t inner = job->inner, o = inner == 1 ? row : row / inner, c = row - o * inner;
    *out = job->out + o * job->k * inner + c;
    return job->x + o * job->n * inner + c;
}

/* Goes along a row. `room` candidates fit, and a line more. */
static void find_candidates(const top_job *job, const float *x, int64_t room, tl_candidates *c)
{
    int64_t first = 0;
    int32_t last = INT32_MIN, all = 1; /* all: none has been left out so far */
    for (int64_t n; first < job->n; first += n) {
        int32_t order[ORDER_LANES];
        n = tl_imin(ORDER_LANES, job->n - first);
        if (first % PART == 0 && tl_interrupted()) {
            c->count = 0;
            return;
        }
        if (all) {
            read_orders(x + first * job->inner, job->inner, n, 1.0f, job->flip, c->order + first);
            for (int64_t i = 0; i < n; i++)
                c->place[first + i] = (uint32_t)(first + i);
            c->count = first + n;
        } else if (read_orders(x + first * job->inner, job->inner, n, 1.0f, job->flip, order) > last)
            tl_append_above(c, order, n, first, last);
        if (c->count + ORDER_LANES > room && first + n < job->n) {
            last = tl_keep_first(c, job->k);
            all = 0;
        }
    }
    if (c->count > job->k) tl_keep_first(c, job->k);
}

static void find_in_row(const top_job *job, int64_t row, int32_t worker)
{
    uint32_t *out;
    const float *const x = row_of(job, row, &out);
    if (job->k == 1) {
        *out = (uint32_t)first_place(x, job->inner, job->n, job->sign, job->flip);
        return;
    }
    int32_t *const memory = (int32_t *)(job->scratch + worker * job->per_worker);
    const int64_t room = job->room + TL_LINE;
    tl_candidates c = {memory, (uint32_t *)memory + room, 0};
    tl_candidates other = {memory + 2 * room, (uint32_t *)memory + 2 * room + job->k, 0};
    find_candidates(job, x, job->room, &c);
    if (job->k <= TL_SORT_FEW)
        tl_sort_few(&c, out, job->inner);
    else
        tl_sort_many(&c, &other, out, job->inner);
}

/* `count` <= TL_BUNDLE short rows together. */
static void find_in_bundle(const top_job *job, int64_t row, int64_t count)
{
    const int64_t n = job->n, inner = job->inner, k = job->k, o = row / inner, c = row - o * inner;
    tl_bundle x;
    tl_bundle_keys key;
    uint32_t place[TL_CHOICES * TL_BUNDLE];
    if (inner == 1)
        tl_read_bundle(job->x + row * n, count, n, x);
    else if (c + TL_BUNDLE <= inner)
        for (int64_t j = 0; j < n; j++)
            memcpy(x + j * TL_BUNDLE, job->x + (o * n + j) * inner + c, TL_BUNDLE * sizeof *x);
    else
        for (int64_t r = 0; r < TL_BUNDLE; r++) {
            const int64_t at = row + tl_imin(r, count - 1), first = at / inner * (n - 1) * inner + at;
            for (int64_t j = 0; j < n; j++)
                x[j * TL_BUNDLE + r] = job->x[first + j * inner];
        }
    tl_make_keys(x, n, job->sign, job->flip, key);
    tl_choose(key, n, k, place);
    for (int64_t r = 0; r < count; r++) {
        const int64_t at = row + r, first = inner == 1 ? at * k : at / inner * (k - 1) * inner + at;
        for (int64_t s = 0; s < k; s++)
            job->out[first + s * inner] = place[s * TL_BUNDLE + r];
    }
}

/* A task owns one row, or several short ones. */
static void top_task(void *arg, int64_t task, int32_t worker)
{
    const top_job *job = arg;
    int64_t row = task * job->per_task;
    const int64_t end = tl_imin(job->rows, row + job->per_task);
    const int64_t least = job->n <= TL_BUNDLE ? 1 : TL_BUNDLE_LEAST;
    for (int64_t rows;
         job->n <= TL_BUNDLE_COLS && job->k <= TL_CHOICES && (rows = tl_imin(TL_BUNDLE, end - row)) >= least;
         row += rows)
        find_in_bundle(job, row, rows);
    for (; row < end; row++)
        find_in_row(job, row, worker);
}

static int32_t choose(tl_context *ctx, top_job job)
{
    /* so many times those that are kept that each candidate is compared a few times on the average */
    job.room = tl_ceil_div(tl_imin(job.n, 4 * job.k + CANDIDATES), ORDER_LANES) * ORDER_LANES;
    job.per_task = whole_bundles(tl_even_units(job.rows, job.n, job.k == 1 ? PART : TOP_TASK));
    const int64_t tasks = tl_ceil_div(job.rows, job.per_task), workers = tasks == 1 ? 1 : tl_workers();
    job.per_worker = tl_ceil_div(2 * (job.room + TL_LINE + job.k), TL_LINE) * 64;
    void *scratch;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(workers * job.per_worker), &scratch);
    if (status) return status;
    job.scratch = scratch;
    tl_parallel(tasks, top_task, &job);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_topk(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k,
                    int64_t largest, uint32_t *out)
{
    top_job job = {.x = x, .out = out, .n = n, .inner = inner, .k = k, .rows = outer * inner, .sign = 1.0f};
    job.flip = largest ? 0 : UINT32_MAX;
    return choose(ctx, job);
}

/* ---- argmax and argmin --------------------------------------------------------------------------------------------- */

/* Along an axis that others follow row u of a job is COLUMNS columns of one of the outer arrays: a walk down them together. */
static void walk_columns(const top_job *job, int64_t u)
{
    const int64_t tiles = tl_ceil_div(job->inner, COLUMNS), o = u / tiles, first = u % tiles * COLUMNS;
    const int64_t width = tl_imin(COLUMNS, job->inner - first);
    const float *x = job->x + o * job->n * job->inner + first;
    uint32_t *out = job->out + o * job->inner + first;
    float best[COLUMNS];
    for (int64_t c = 0; c < width; c++) {
        best[c] = job->sign * x[c];
        out[c] = 0;
    }
    for (int64_t j = 1; j < job->n && !tl_interrupted(); j++) {
        const float *from = x + j * job->inner;
        for (int64_t c = 0; c < width; c++) {
            const float v = job->sign * from[c];
            const int32_t takes = tl_takes_lead(v, best[c]);
            out[c] = takes ? (uint32_t)j : out[c];
            best[c] = takes ? v : best[c];
        }
    }
}

static void column_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const top_job *job = arg;
    for (int64_t u = task * job->per_task, end = tl_imin(job->rows, u + job->per_task); u < end; u++)
        walk_columns(job, u);
}

static int32_t argument(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, float sign,
                        uint32_t *out)
{
    top_job job = {.x = x, .out = out, .n = n, .inner = inner, .k = 1, .rows = outer, .sign = sign};
    if (inner == 1) return choose(ctx, job);
    job.rows *= tl_ceil_div(inner, COLUMNS);
    job.per_task = tl_even_units(job.rows, n * tl_imin(inner, COLUMNS), PART);
    tl_parallel(tl_ceil_div(job.rows, job.per_task), column_task, &job);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_argmax(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, uint32_t *out)
{
    return argument(ctx, x, outer, n, inner, 1.0f, out);
}

int32_t tl_cpu_argmin(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, uint32_t *out)
{
    return argument(ctx, x, outer, n, inner, -1.0f, out);
}
