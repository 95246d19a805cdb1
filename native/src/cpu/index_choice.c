/* Places of the largest and smallest elements on the CPU. formula/order.h says which comes first. */
#include <string.h>

#include "core/interrupt.h"
#include "core/threads.h"
#include "cpu/choice_bundle.h"
#include "cpu/spans.h"
#include "cpu/stream.h"
#include "formula/integer.h"
#include "formula/order.h"
#include "generated/index.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum {
    PART = 65536,     /* elements of a row, or of short rows together, per task */
    GROUP = 1024,     /* of them looked through at once */
    COLUMNS = 512,    /* columns of a unit of argmax along an axis that others follow */
    FEW_COLUMNS = 8,  /* too few to fill a vector */
    ROW_GROUP = 256,  /* rows of few columns that are looked through at once */
    ROW_LANES = 8,    /* rows of few columns that are vectors */
    TOP_TASK = 8192,  /* elements of short rows per task of top-k, which takes longer for each */
    FEW = 64,         /* the most that top-k keeps in registers */
    ORDER_LANES = 64, /* a loop that the compiler vectorises and does not unroll */
    FIND_LANES = 16,  /* elements that are compared with the best at once */
};

/* Units of a task, of short rows whole bundles. */
static int64_t whole_bundles(int64_t units) { return units < TL_BUNDLE ? units : units - units % TL_BUNDLE; }

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
        for (int l = 0; i < end && l < ORDER_LANES; l++) { /* the last ones, of which some have been */
            const float v = sign * x[tl_imax(end - ORDER_LANES, from) + l];
            most[l] = tl_takes_lead(v, most[l]) ? v : most[l];
        }
        for (int half = ORDER_LANES / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++)
                most[l] = tl_takes_lead(most[l + half], most[l]) ? most[l + half] : most[l];
        if (!tl_takes_lead(most[0], best)) continue;
        best = most[0];
        place = at;
    }
    for (; place + FIND_LANES <= to; place += FIND_LANES) {
        int32_t found = 0;
        for (int l = 0; l < FIND_LANES; l++)
            found |= (sign * x[place + l] == best) | (x[place + l] != x[place + l]);
        if (found) break;
    }
    while (sign * x[place] != best && x[place] == x[place])
        place++;
    return place;
}

/* Unit u is part u % parts of row u / parts; a task owns several units where they are small, of short rows many at a time. */
static void row_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const arg_job *job = arg;
    int64_t u = task * job->per_task;
    const int64_t end = tl_imin(job->units, u + job->per_task);
    for (int64_t rows; job->n <= TL_BUNDLE_COLS && (rows = tl_imin(TL_BUNDLE, end - u)) >= TL_BUNDLE_LEAST; u += rows) {
        tl_bundle x;
        tl_bundle_keys key;
        uint32_t place[TL_BUNDLE];
        tl_read_bundle(job->x + u * job->n, rows, job->n, x);
        tl_make_keys(x, job->n, job->sign, 0, key);
        tl_choose(key, job->n, 1, place);
        memcpy(job->out + u, place, (size_t)rows * sizeof *place);
    }
    for (; u < end; u++) {
        const int64_t row = job->parts == 1 ? u : u / job->parts, from = (u - row * job->parts) * PART;
        job->out[u] = (uint32_t)best_place(job->x + row * job->n, from, tl_imin(from + PART, job->n), job->sign);
    }
}

/* The columns of an outer array, FEW_COLUMNS at most, a constant: a lane has every ROW_LANES-th element of a column, so that the lanes
 * of all columns are whole rows, which lie side by side. A group of rows without a column's best is not looked through again. */
static inline __attribute__((always_inline)) void search_columns_of(const arg_job *job, int64_t o, const int32_t inner)
{
    const float *x = job->x + o * job->n * inner, sign = job->sign;
    const int32_t lanes = ROW_LANES * inner;
    float best[FEW_COLUMNS];
    int64_t begin[FEW_COLUMNS] = {0}; /* of the group of the best */
    for (int32_t c = 0; c < inner; c++)
        best[c] = sign * x[c];
    for (int64_t from = 0; from < job->n && !tl_interrupted(); from += ROW_GROUP) {
        const float *const at = x + from * inner;
        const int64_t n = tl_imin(ROW_GROUP, job->n - from), whole = n / ROW_LANES * lanes;
        float most[ROW_LANES * FEW_COLUMNS] = {0};
        for (int32_t l = 0; l < lanes; l++)
            most[l] = best[l % inner];
        for (int64_t i = 0; i < whole; i += lanes)
            for (int32_t l = 0; l < lanes; l++) {
                const float v = sign * at[i + l];
                most[l] = tl_takes_lead(v, most[l]) ? v : most[l];
            }
        for (int64_t i = whole; i < n * inner; i++) {
            const float v = sign * at[i];
            most[i - whole] = tl_takes_lead(v, most[i - whole]) ? v : most[i - whole];
        }
        for (int32_t half = lanes / 2; half >= inner; half /= 2)
            for (int32_t l = 0; l < half; l++)
                most[l] = tl_takes_lead(most[l + half], most[l]) ? most[l + half] : most[l];
        for (int32_t c = 0; c < inner; c++) {
            if (!tl_takes_lead(most[c], best[c])) continue;
            best[c] = most[c];
            begin[c] = from;
        }
    }
    for (int32_t c = 0; c < inner; c++) {
        int64_t j = begin[c];
        while (sign * x[j * inner + c] != best[c] && x[j * inner + c] == x[j * inner + c])
            j++;
        job->out[o * inner + c] = (uint32_t)j;
    }
}

static void search_columns(const arg_job *job, int64_t o)
{
    switch (job->inner) {
    case 2: search_columns_of(job, o, 2); break;
    case 3: search_columns_of(job, o, 3); break;
    case 4: search_columns_of(job, o, 4); break;
    case 5: search_columns_of(job, o, 5); break;
    case 6: search_columns_of(job, o, 6); break;
    case 7: search_columns_of(job, o, 7); break;
    default: search_columns_of(job, o, FEW_COLUMNS);
    }
}

/* Unit u is COLUMNS columns of one of the outer arrays: it walks down them together. */
static void walk_columns(const arg_job *job, int64_t u)
{
    if (job->inner <= FEW_COLUMNS && job->n >= ORDER_LANES) {
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
    job->per_task = whole_bundles(tl_even_units(units, size, PART));
    tl_parallel(tl_ceil_div(units, job->per_task), fn, job);
}

static int32_t argument(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, float sign,
                        uint32_t *out)
{
    arg_job job = {x, out, outer, n, inner, tl_ceil_div(n, PART), 0, 0, sign};
    if (n == 1) {
        memset(out, 0, (size_t)(outer * inner) * sizeof *out);
        return TORCHLEAN_OK;
    }
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

/* The orders of n <= ORDER_LANES elements, `inner` apart; the largest. */
static inline uint32_t read_orders(const float *x, int64_t inner, int64_t n, int smallest, uint32_t *order)
{
    const uint32_t flip = smallest ? UINT32_MAX : 0;
    uint32_t lane[TL_LINE] = {0}, most = 0;
    TL_FOR_LINES(i, 0, n, order[i] = tl_order_bits(x[i * inner]) ^ flip;);
    for (int64_t i = n; i % TL_LINE != 0; i++)
        order[i] = 0;
    for (int64_t i = 0; i < n; i += TL_LINE)
        for (int32_t l = 0; l < TL_LINE; l++)
            lane[l] = order[i + l] > lane[l] ? order[i + l] : lane[l];
    for (int32_t l = 0; l < TL_LINE; l++)
        most = lane[l] > most ? lane[l] : most;
    return most;
}

/* `statement` for the rank of every element of a row from `begin` on, whose elements lie `inner` apart, that is above `last`; of a group of elements
 * that are all below it none is looked at. */
#define EACH_ABOVE(begin, last, ...)                                                             \
    for (int64_t first_ = (begin); first_ < job->n; first_ += ORDER_LANES) {                           \
        uint32_t order_[ORDER_LANES];                                                            \
        const int64_t n_ = tl_imin(ORDER_LANES, job->n - first_);                                \
        const float *const at_ = x + first_ * inner;                                             \
        if ((first_ - (begin)) % PART == 0 && tl_interrupted()) return;                          \
        if ((inner == 1 ? read_orders(at_, 1, n_, job->smallest, order_)                         \
                        : read_orders(at_, inner, n_, job->smallest, order_)) < (last) >> 32)    \
            continue;                                                                            \
        for (int64_t i_ = 0; i_ < n_; i_++) {                                                    \
            const uint64_t rank = tl_rank_of(order_[i_], (uint32_t)(first_ + i_));               \
            if (rank > (last)) {                                                                 \
                __VA_ARGS__;                                                                     \
            }                                                                                    \
        }                                                                                        \
    }

/* A row: a heap of the k largest ranks so far, emptied from the smallest. */
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
    EACH_ABOVE(k, heap[0], heap[0] = rank; sift(heap, 0, k));
    for (int64_t left = k; left-- > 0;) {
        out[left * inner] = tl_rank_place(heap[0]);
        heap[0] = heap[left];
        sift(heap, 0, left);
    }
}

typedef uint64_t ranks __attribute__((vector_size(64)));

#if defined(__AVX512F__) /* which gcc does not find */
static inline ranks larger_of(ranks a, ranks b) { return (ranks)_mm512_max_epu64((__m512i)a, (__m512i)b); }
static inline ranks smaller_of(ranks a, ranks b) { return (ranks)_mm512_min_epu64((__m512i)a, (__m512i)b); }
#else
static inline ranks larger_of(ranks a, ranks b)
{
    const ranks first = (ranks)(a > b);
    return (a & first) | (b & ~first);
}
static inline ranks smaller_of(ranks a, ranks b) { return a ^ b ^ larger_of(a, b); }
#endif

/* Every rank of `at` a place lower, the last one of `before` above them. */
#ifdef __clang__
#define PLACE_LOWER(before, at) __builtin_shufflevector(before, at, 7, 8, 9, 10, 11, 12, 13, 14)
#else
#define PLACE_LOWER(before, at) __builtin_shuffle(before, at, (ranks){7, 8, 9, 10, 11, 12, 13, 14})
#endif

/* The same where k is at most 8 `vectors`, a constant: the ranks so far stand in registers, the largest first, and one that is larger
 * than the last of k moves those that are smaller by a place. */
static inline __attribute__((always_inline)) void find_few(const top_job *job, int64_t row, int32_t vectors)
{
    const int64_t k = job->k, inner = job->inner, o = inner == 1 ? row : row / inner, c = row - o * inner;
    const float *x = job->x + o * job->n * inner + c;
    uint32_t *out = job->out + o * k * inner + c;
    ranks top[FEW / 8] = {{0}};
    uint64_t last = 0; /* below all */
    EACH_ABOVE(
        0, last, ranks before = ~(ranks){0}; for (int32_t v = 0; v < vectors; v++) {
            const ranks above = PLACE_LOWER(before, top[v]);
            before = top[v];
            top[v] = larger_of(top[v], smaller_of(above, rank - (ranks){0}));
        } last = ((const uint64_t *)top)[k - 1];)
    for (int64_t i = 0; i < k; i++)
        out[i * inner] = tl_rank_place(((const uint64_t *)top)[i]);
}

/* The first of the largest alone. */
static void find_first(const top_job *job, int64_t row)
{
    const int64_t inner = job->inner, o = inner == 1 ? row : row / inner, c = row - o * inner;
    const float *x = job->x + o * job->n * inner + c;
    uint32_t order[ORDER_LANES], best = 0, place = 0;
    for (int64_t first = 0; first < job->n; first += ORDER_LANES) {
        const int64_t n = tl_imin(ORDER_LANES, job->n - first);
        const uint32_t most = inner == 1 ? read_orders(x + first, 1, n, job->smallest, order)
                                         : read_orders(x + first * inner, inner, n, job->smallest, order);
        if (first % PART == 0 && tl_interrupted()) return;
        if (most <= best) continue;
        uint32_t at = 0;
        while (order[at] != most)
            at++;
        best = most;
        place = (uint32_t)first + at;
    }
    job->out[row] = place;
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
    tl_make_keys(x, n, 1.0f, job->smallest ? UINT32_MAX : 0, key);
    tl_choose(key, n, k, place);
    for (int64_t r = 0; r < count; r++) {
        const int64_t at = row + r, first = inner == 1 ? at * k : at / inner * (k - 1) * inner + at;
        for (int64_t s = 0; s < k; s++)
            job->out[first + s * inner] = place[s * TL_BUNDLE + r];
    }
}

/* A task owns one row, or several short ones. */
static void top_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const top_job *job = arg;
    int64_t row = task * job->per_task;
    const int64_t end = tl_imin(job->rows, row + job->per_task);
    const int64_t least = job->n <= TL_BUNDLE ? 1 : TL_BUNDLE_LEAST;
    for (int64_t rows;
         job->n <= TL_BUNDLE_COLS && job->k <= TL_CHOICES && (rows = tl_imin(TL_BUNDLE, end - row)) >= least;
         row += rows)
        find_in_bundle(job, row, rows);
    for (; row < end; row++) {
        if (job->k == 1)
            find_first(job, row);
        else if (job->k <= 8)
            find_few(job, row, 1);
        else if (job->k <= 16)
            find_few(job, row, 2);
        else if (job->k <= 32)
            find_few(job, row, 4);
        else if (job->k <= FEW)
            find_few(job, row, FEW / 8);
        else
            find_top(job, row);
    }
}

int32_t tl_cpu_topk(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k,
                    int64_t largest, uint32_t *out)
{
    top_job job = {.x = x, .out = out, .n = n, .inner = inner, .k = k, .smallest = !largest};
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, k > FEW ? (size_t)(outer * inner * k) * sizeof(uint64_t) : 0, &scratch);
    if (status) return status;
    job.heaps = scratch;
    job.rows = outer * inner;
    job.per_task = whole_bundles(tl_imax(1, TOP_TASK / tl_imax(n, 1)));
    tl_parallel(tl_ceil_div(job.rows, job.per_task), top_task, &job);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}
