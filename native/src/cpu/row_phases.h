/* Operations on rows in phases: a phase visits the leaves of a row (TL_SUM_LEAF elements; most rows are one leaf) and
 * then, once, the row, which turns the leaves' sums into statistics that the next phase reads. The row tree of
 * formula/sum_tree.h orders the sums, so how phases are spread over threads cannot change a bit:
 *
 *   rows in tasks       a task runs all phases of a row before the next row, which then comes from L1 or L2
 *   few, long rows      all leaves of one phase are tasks, then the next phase
 *   short rows          an operation that has a function for bundles (row_bundle.h) takes many rows at a time */
#pragma once

#include "core/threads.h"
#include "cpu/row_bundle.h"
#include "cpu/spans.h"
#include "cpu/stream.h"
#include "cpu/sum_tree.h"
#include "formula/integer.h"
#include "formula/rows.h"

/* The sum of f(i), i = 0..n-1 <= TL_SUM_LEAF, in the order of tl_leaf_sum; `f` is an expression in i, each of which is
 * evaluated once, so it may store. The loops run over lanes, so that they vectorise. */
#define TL_LEAF_SUM(result, n, f)                                                                \
    do {                                                                                         \
        const int64_t n_ = (n);                                                                  \
        if (n_ <= TL_SUM_LANES) {                                                                \
            TL_SUM_OF_LINES(result, n_, f);                                                      \
        } else {                                                                                 \
            _Alignas(64) float lane_[TL_SUM_LANES];                                              \
            TL_FOR_LINES(i, 0, TL_SUM_LANES, lane_[i] = 0.0f + (f););                            \
            for (int64_t at_ = TL_SUM_LANES; at_ < n_; at_ += TL_SUM_LANES) {                    \
                const int64_t left_ = n_ - at_ < TL_SUM_LANES ? n_ - at_ : TL_SUM_LANES;         \
                TL_FOR_LINES(l_, 0, left_, const int64_t i = at_ + l_; lane_[l_] += (f););       \
            }                                                                                    \
            (result) = tl_fold_lanes(lane_);                                                     \
        }                                                                                        \
    } while (0)

/* out[i] = f for i < n, past the cache if `stream`: a line is made in registers' reach, then stored whole. The task ends with
 * tl_stream_end, once, as it waits for memory.
 * TL_WRITE_WITH does something else with every line, which begins at element `base`. */
#define TL_WRITE(stream_, out_, n_, f) TL_WRITE_WITH(stream_, out_, n_, (void)0, f)
#define TL_WRITE_WITH(stream_, out_, n_, statement_, f)                                          \
    do {                                                                                         \
        float *const to = (out_);                                                                \
        const int64_t count = (n_);                                                              \
        int64_t head = count;                                                                    \
        if (stream_) {                                                                           \
            const int64_t skip = (int64_t)(-((uintptr_t)to / sizeof(float)) % TL_LINE);          \
            head = skip < count ? skip : count;                                                  \
        }                                                                                        \
        TL_FOR_LINES(i, 0, head, to[i] = (f););                                                  \
        int64_t base = 0;                                                                        \
        for (; base < head; base += TL_LINE) {                                                   \
            statement_;                                                                          \
        }                                                                                        \
        base = head;                                                                             \
        for (; base + TL_LINE <= count; base += TL_LINE) {                                       \
            _Alignas(64) float line[TL_LINE];                                                    \
            statement_;                                                                          \
            _Pragma("GCC unroll 1") for (int k = 0; k < TL_LINE; k++)                            \
            {                                                                                    \
                const int64_t i = base + k;                                                      \
                line[k] = (f);                                                                   \
            }                                                                                    \
            for (int k = 0; k < TL_LINE; k += TL_LANES)                                          \
                tl_vec_stream(to + base + k, tl_vec_load(line + k));                             \
        }                                                                                        \
        for (int64_t i = base; i < count; i++)                                                   \
            to[i] = (f);                                                                         \
    } while (0)

/* Fetches the lines of the row that takes the place of this one in the next block (tl_next_row), one for each line written of this:
 * its first phase, which waits for memory, then finds it in cache, and the last phase of this one has the time. `far` says that
 * what is read is more than TL_FETCH_FROM elements. */
#define TL_FETCH_AHEAD(far_, next_)                                                              \
    do {                                                                                         \
        if (far_) __builtin_prefetch((next_) + base, 0, 2);                                      \
    } while (0)

enum {
    TL_ROW_STATS = 4,    /* statistics of a row */
    TL_ROW_TASK = 65536, /* elements per task: 256 KiB, which pays for handing it to a thread */
    TL_ROW_SPAN = 16384, /* the most elements of a task of whole rows, which all phases visit */
    TL_ROW_LOOK = 64,    /* leaves between two looks for an interruption */
    TL_ROW_BLOCK = 16, /* rows of one leaf that go through the phases together at most: their statistics are a vector */
    TL_ROWS_MANY = 64, /* rows that occupy the threads by themselves */
    TL_ROW_FEW = 2048  /* floats of scratch that a task has on its stack, which may be that of a small thread */
};

/* One leaf of a row as a phase sees it. */
typedef struct tl_leaf {
    int64_t row, first, n; /* elements first .. first + n - 1 of the row */
    int64_t at;            /* the leaf's first element in the array */
    /* TL_SUM_LEAF elements that last from phase to phase, or NULL where the row has several leaves */
    float *work;
    float *sum, *other; /* what the leaf leaves for the row */
    const float *stat;
    int64_t block; /* rows that go through the phases together */
} tl_leaf;

/* Where the row `block` rows on has its leaf p, of `rows` rows of cols elements; of the last rows, the leaf itself. */
static inline int64_t tl_next_row(const tl_leaf *p, int64_t rows, int64_t cols)
{
    return p->row + p->block < rows ? p->at + p->block * cols : p->at;
}

/* Defines the function `name` of a phase: what follows, on the leaf p of `arg`, for a leaf, or for `rows` rows of one leaf, whose
 * constants are then made once. */
#define TL_LEAF(name)                                                                            \
    TL_INLINE void name##_of(const void *arg, const tl_leaf *p);                                 \
    static void name(const void *arg, const tl_leaf *first, int64_t rows)                        \
    {                                                                                            \
        tl_leaf leaf = *first;                                                                   \
        for (int64_t k = 0; k < rows; k++) {                                                     \
            name##_of(arg, &leaf);                                                               \
            leaf.row++, leaf.sum++, leaf.other++;                                                \
            leaf.at += leaf.n;                                                                   \
            leaf.stat += TL_ROW_STATS;                                                           \
            if (leaf.work) leaf.work += leaf.n;                                                  \
        }                                                                                        \
    }                                                                                            \
    TL_INLINE void name##_of(const void *arg, const tl_leaf *p)

/* A row whose leaves are done, or up to TL_ROW_BLOCK of one leaf each: the phase turns their sums into statistics. */
typedef struct tl_row {
    int64_t row, rows, leaves;
    const float *sum, *other; /* of the leaves; room for TL_ROW_BLOCK where these are rows */
    float *stat;              /* TL_ROW_STATS of each row */
} tl_row;

typedef struct tl_row_phase {
    void (*leaf)(const void *job, const tl_leaf *first, int64_t rows);
    void (*row)(const void *job, const tl_row *row);
} tl_row_phase;

/* The sum of row k of `r`, of the sums of its leaves. */
static inline float tl_sum_of_leaves(const tl_row *r, const float *sum, int64_t k)
{
    return r->leaves == 1 ? sum[k] : tl_row_sum(sum, r->leaves);
}

/* `statement` for every row k of `r`, whose statistics are stat[0..]. */
#define TL_EACH_ROW(r, ...)                                                                      \
    for (int64_t k = 0; k < (r)->rows; k++) {                                                    \
        float *const stat = (r)->stat + k * TL_ROW_STATS;                                        \
        __VA_ARGS__;                                                                             \
    }

/* Does all phases of rows row .. row + rows - 1, at most TL_BUNDLE of at most TL_BUNDLE_COLS elements. */
typedef void (*tl_bundle_fn)(const void *job, int64_t row, int64_t rows);

typedef struct tl_row_run {
    const void *job;
    const tl_row_phase *phases;
    tl_bundle_fn bundle; /* NULL where rows are long, or the operation has none */
    int32_t count, phase;
    int64_t rows, cols, leaves, per_task;
    int64_t block;       /* rows of one leaf that go through the phases together */
    float *sums, *stats; /* of all rows: of few, long rows only */
    int64_t room;        /* floats of scratch of a worker, else: the work of a block, or the sums of a row's leaves */
    float *scratch;      /* NULL where they fit the stack */
} tl_row_run;

static inline int64_t tl_leaf_length(const tl_row_run *r, int64_t leaf)
{
    const int64_t left = r->cols - leaf * TL_SUM_LEAF;
    return left < TL_SUM_LEAF ? left : TL_SUM_LEAF;
}

/* Rows row .. row + count - 1 of one leaf each, phase by phase: no row waits for the statistics of the one before it. */
static void tl_run_block(const tl_row_run *r, int64_t row, int64_t count, float *work)
{
    _Alignas(64) float sum[TL_ROW_BLOCK] = {0}, other[TL_ROW_BLOCK], stat[TL_ROW_BLOCK * TL_ROW_STATS];
    for (int32_t p = 0; p < r->count; p++) {
        const tl_row_phase phase = r->phases[p];
        phase.leaf(r->job, &(tl_leaf){row, 0, r->cols, row * r->cols, work, sum, other, stat, r->block}, count);
        if (phase.row) phase.row(r->job, &(tl_row){row, count, 1, sum, other, stat});
    }
}

/* A task is `per_task` whole rows. */
static void tl_row_task(void *arg, int64_t task, int32_t worker)
{
    const tl_row_run r = *(const tl_row_run *)arg;
    _Alignas(64) float few[TL_ROW_FEW];
    float stat[TL_ROW_STATS], *work = r.scratch ? r.scratch + worker * r.room : few;
    const int64_t last = (task + 1) * r.per_task < r.rows ? (task + 1) * r.per_task : r.rows;
    int64_t row = task * r.per_task;
    for (int64_t rows; r.bundle && (rows = tl_imin(TL_BUNDLE, last - row)) >= TL_BUNDLE_LEAST; row += rows)
        r.bundle(r.job, row, rows);
    for (int64_t rows; r.leaves == 1 && row < last; row += rows) {
        rows = tl_imin(r.block, last - row);
        tl_run_block(&r, row, rows, work);
    }
    for (float *const sums = work; row < last; row++)
        for (int32_t p = 0; p < r.count; p++) {
            for (int64_t l = 0; l < r.leaves && !(l % TL_ROW_LOOK == TL_ROW_LOOK - 1 && tl_interrupted()); l++) {
                r.phases[p].leaf(r.job,
                                 &(tl_leaf){row, l * TL_SUM_LEAF, tl_leaf_length(&r, l), row * r.cols + l * TL_SUM_LEAF,
                                            NULL, sums + l, sums + r.leaves + l, stat, 1},
                                 1);
            }
            if (r.phases[p].row) r.phases[p].row(r.job, &(tl_row){row, 1, r.leaves, sums, sums + r.leaves, stat});
        }
    tl_stream_end();
}

/* A task is one leaf, in one phase. */
static void tl_leaf_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const tl_row_run r = *(const tl_row_run *)arg;
    const int64_t row = task / r.leaves, l = task % r.leaves, first = l * TL_SUM_LEAF;
    float *sums = r.sums + 2 * row * r.leaves;
    r.phases[r.phase].leaf(r.job,
                           &(tl_leaf){row, first, tl_leaf_length(&r, l), row * r.cols + first, NULL, sums + l,
                                      sums + r.leaves + l, r.stats + row * TL_ROW_STATS, 1},
                           1);
    tl_stream_end();
}

/* Runs `count` phases over rows x cols elements, or `bundle` over short rows; nothing is called where cols = 0. Fails only for want of
 * scratch. */
static inline int32_t tl_run_rows(tl_context *ctx, const void *job, const tl_row_phase *phases, int32_t count,
                                  tl_bundle_fn bundle, int64_t rows, int64_t cols)
{
    if (cols == 0) return TORCHLEAN_OK;
    tl_row_run r = {.job = job, .phases = phases, .count = count, .rows = rows, .cols = cols};
    r.leaves = tl_ceil_div(cols, TL_SUM_LEAF);
    r.per_task = tl_even_units(rows, cols, TL_ROW_SPAN);
    if (cols <= TL_BUNDLE_COLS) {
        r.bundle = bundle;
        r.per_task = tl_ceil_div(r.per_task, TL_BUNDLE) * TL_BUNDLE;
    }
    void *scratch = NULL;
    int32_t status = TORCHLEAN_OK;
    if (rows >= TL_ROWS_MANY || cols <= TL_ROW_TASK) {
        r.block = tl_imin(TL_ROW_BLOCK, cols < TL_ROW_FEW ? TL_ROW_FEW / cols : 1);
        r.room = tl_ceil_div(r.leaves == 1 ? r.block * cols : 2 * r.leaves, TL_LINE) * TL_LINE;
        if (r.room > TL_ROW_FEW) status = tl_pool_alloc(ctx, (size_t)(tl_workers() * r.room) * sizeof(float), &scratch);
        r.scratch = scratch;
        if (!status) tl_parallel((rows + r.per_task - 1) / r.per_task, tl_row_task, &r);
        tl_pool_free(ctx, scratch);
        return status;
    }
    status = tl_pool_alloc(ctx, (size_t)(rows * (2 * r.leaves + TL_ROW_STATS)) * sizeof(float), &scratch);
    if (status) return status;
    r.stats = scratch;
    r.sums = r.stats + rows * TL_ROW_STATS;
    for (r.phase = 0; r.phase < count; r.phase++) {
        tl_parallel(rows * r.leaves, tl_leaf_task, &r);
        for (int64_t row = 0; row < rows && phases[r.phase].row; row++) {
            const float *sums = r.sums + 2 * row * r.leaves;
            const tl_row done = {row, 1, r.leaves, sums, sums + r.leaves, r.stats + row * TL_ROW_STATS};
            phases[r.phase].row(job, &done);
        }
    }
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}
