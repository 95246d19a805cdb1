/* Places of the largest and smallest elements on the CPU. formula/order.h says which comes first. */
#include "core/interrupt.h"
#include "core/threads.h"
#include "formula/integer.h"
#include "formula/order.h"
#include "generated/index.h"

enum {
    PART = 65536,     /* elements of a row, or of short rows together, per task */
    GROUP = 1024,     /* of them looked through at once */
    COLUMNS = 512,    /* columns of a unit of argmax along an axis that others follow */
    TOP_TASK = 8192,  /* elements of short rows per task of top-k, which takes longer for each */
    ORDER_LANES = 64, /* a loop that the compiler vectorises and does not unroll */
};

/* ---- argmax and argmin --------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x;
    uint32_t *out;
    int64_t outer, n, inner, parts, units, per_task;
    float sign; /* -1 for the smallest: the negated elements' largest */
} arg_job;

/* The place of the first NaN, else of the first of the largest, of elements from .. to - 1. */
static int64_t best_place(const float *x, int64_t from, int64_t to, float sign)
{
    int64_t place = from; /* where the group of the best begins */
    float best = sign * x[from];
    if (to - from < ORDER_LANES) { /* there are more lanes than elements */
        for (int64_t i = from + 1; i < to; i++) {
            const float v = sign * x[i];
            const int32_t takes = tl_takes_lead(v, best);
            place = takes ? i : place;
            best = takes ? v : best;
        }
        return place;
    }
    for (int64_t at = from, end; at < to && best == best; at = end) {
        end = tl_imin(at + GROUP, to);
        float most[ORDER_LANES];
        for (int l = 0; l < ORDER_LANES; l++)
            most[l] = best;
        int64_t i = at;
        for (; i + ORDER_LANES <= end; i += ORDER_LANES) {
            for (int l = 0; l < ORDER_LANES; l++) {
                const float v = sign * x[i + l];
                most[l] = tl_takes_lead(v, most[l]) ? v : most[l];
            }
        }
        for (int l = 0; i + l < end; l++)
            most[l] = tl_takes_lead(sign * x[i + l], most[l]) ? sign * x[i + l] : most[l];
        for (int l = 0; l < ORDER_LANES; l++) {
            if (!tl_takes_lead(most[l], best)) continue;
            best = most[l];
            place = at;
        }
    }
    while (sign * x[place] != best && x[place] == x[place])
        place++;
    return place;
}

/* Unit u is part u % parts of row u / parts; a task owns several units where they are small. */
static void row_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const arg_job *job = arg;
    for (int64_t u = task * job->per_task, end = tl_imin(job->units, u + job->per_task); u < end; u++) {
        const int64_t row = job->parts == 1 ? u : u / job->parts, from = (u - row * job->parts) * PART;
        job->out[u] = (uint32_t)best_place(job->x + row * job->n, from, tl_imin(from + PART, job->n), job->sign);
    }
}

/* The columns of an outer array, at most eight, too few to fill a vector, one after the other: a group of a column's elements is
 * brought together, looked through, and compared with the best so far, which an equal one that comes later does not displace. */
static void search_columns(const arg_job *job, int64_t o)
{
    const float *x = job->x + o * job->n * job->inner;
    float column[GROUP], best[8] = {0};
    for (int64_t from = 0; from < job->n && !tl_interrupted(); from += GROUP) {
        const int64_t n = tl_imin(GROUP, job->n - from);
        for (int64_t c = 0; c < job->inner; c++) {
            const float *at = x + from * job->inner + c;
            for (int64_t j = 0; j < n; j++)
                column[j] = at[j * job->inner];
            const int64_t place = best_place(column, 0, n, job->sign);
            const float v = job->sign * column[place];
            if (from > 0 && !tl_takes_lead(v, best[c])) continue;
            best[c] = v;
            job->out[o * job->inner + c] = (uint32_t)(from + place);
        }
    }
}

/* Unit u is COLUMNS columns of one of the outer arrays: it walks down them together. */
static void walk_columns(const arg_job *job, int64_t u)
{
    if (job->inner <= 8 && job->n >= ORDER_LANES) {
        search_columns(job, u);
        return;
    }
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
    const arg_job *job = arg;
    for (int64_t u = task * job->per_task, end = tl_imin(job->units, u + job->per_task); u < end; u++)
        walk_columns(job, u);
}

/* Units of `size` elements each. */
static void run_units(arg_job *job, int64_t units, int64_t size, tl_task_fn fn)
{
    job->units = units;
    job->per_task = tl_imax(1, PART / tl_imax(size, 1));
    tl_parallel(tl_ceil_div(units, job->per_task), fn, job);
}

static int32_t argument(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, float sign,
                        uint32_t *out)
{
    arg_job job = {x, out, outer, n, inner, tl_ceil_div(n, PART), 0, 0, sign};
    if (inner > 1) {
        run_units(&job, outer * tl_ceil_div(inner, COLUMNS), n * tl_imin(inner, COLUMNS), column_task);
        return TORCHLEAN_OK;
    }
    void *scratch = NULL;
    if (job.parts > 1) {
        int32_t status = tl_pool_alloc(ctx, (size_t)(outer * job.parts) * sizeof(uint32_t), &scratch);
        if (status) return status;
        job.out = scratch;
    }
    run_units(&job, outer * job.parts, tl_imin(n, PART), row_task);
    for (int64_t row = 0; scratch && row < outer; row++) {
        const float *v = x + row * n;
        const uint32_t *part = job.out + row * job.parts;
        uint32_t place = part[0];
        for (int64_t p = 1; p < job.parts; p++)
            if (tl_takes_lead(sign * v[part[p]], sign * v[place])) place = part[p];
        out[row] = place;
    }
    tl_pool_free(ctx, scratch);
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

/* ---- top-k --------------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x;
    uint32_t *out;
    uint64_t *heaps; /* [rows][k] */
    int64_t n, inner, k, rows, per_task;
    int smallest;
} top_job;

/* The heap's root is its smallest rank; `at` may be too large for its place. */
static void sift(uint64_t *heap, int64_t at, int64_t size)
{
    const uint64_t rank = heap[at];
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        child += child + 1 < size && heap[child + 1] < heap[child];
        if (rank <= heap[child]) break;
        heap[at] = heap[child];
    }
    heap[at] = rank;
}

/* A row, whose elements lie `inner` apart: a heap of the k largest ranks so far, emptied from the smallest. */
static void find_top(const top_job *job, int64_t row)
{
    const int64_t k = job->k, inner = job->inner, o = inner == 1 ? row : row / inner, c = row - o * inner;
    const float *x = job->x + o * job->n * inner + c;
    uint32_t *out = job->out + o * k * inner + c;
    uint64_t *heap = job->heaps + row * k;
    for (int64_t i = 0; i < k; i++)
        heap[i] = tl_rank(x[i * inner], (uint32_t)i, job->smallest, 0);
    for (int64_t i = k / 2; i-- > 0;)
        sift(heap, i, k);
    for (int64_t i = k; i < job->n; i++) {
        const uint64_t rank = tl_rank(x[i * inner], (uint32_t)i, job->smallest, 0);
        if (rank < heap[0]) continue;
        heap[0] = rank;
        sift(heap, 0, k);
        if (i % PART == 0 && tl_interrupted()) return;
    }
    for (int64_t left = k; left-- > 0;) {
        out[left * inner] = tl_rank_place(heap[0]);
        heap[0] = heap[left];
        sift(heap, 0, left);
    }
}

/* A task owns one row, or several short ones. */
static void top_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const top_job *job = arg;
    for (int64_t row = task * job->per_task, end = tl_imin(job->rows, row + job->per_task); row < end; row++)
        find_top(job, row);
}

int32_t tl_cpu_topk(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k,
                    int64_t largest, uint32_t *out)
{
    top_job job = {.x = x, .out = out, .n = n, .inner = inner, .k = k, .smallest = !largest};
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, (size_t)(outer * inner * k) * sizeof(uint64_t), &scratch);
    if (status) return status;
    job.heaps = scratch;
    job.rows = outer * inner;
    job.per_task = tl_imax(1, TOP_TASK / tl_imax(n, 1));
    tl_parallel(tl_ceil_div(job.rows, job.per_task), top_task, &job);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}
