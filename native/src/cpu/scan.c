/* Diagonal scans on the CPU, in the chunked order of formula/scan_chunks.h.
 *
 * A task owns a block of neighbouring channels and walks through time. Per channel it keeps h, the chunk's own state s
 * and its product P, all in L1, and reads every input once: s and P run beside h, so a chunk need not be read twice. */
#include <string.h>

#include "core/threads.h"
#include "cpu/sum_tree.h"
#include "formula/integer.h"
#include "formula/scan_chunks.h"
#include "generated/scan.h"

enum {
    WIDTH = 1024, /* channels of a block at most: a page of each row; the state is 3 rows of 4 KiB */
    NARROW = 16,  /* and at least: a line of the cache */
    ROWS = 4,     /* steps taken at once, h, s and P staying in registers; divides a chunk */
    STATE_ROWS = 4 + ROWS + 2 * TL_COLUMN_CHAINS,
};

static const float zeros[WIDTH];

/* A scan forward or, with g, in reverse. Coefficients and the inputs beside them have a row per step, or one row (then
 * every = 0) for all steps. */
typedef struct scan_call {
    const float *A, *B, *x, *h0, *out, *g;
    int64_t every; /* elements from one step's A and B to the next: state or 0 */
    int64_t T, D;
    float *h;                  /* forward: the result */
    float *gA, *gB, *gx, *gh0; /* reverse; any may be NULL */
    float *sums_A, *sums_B;    /* reverse with constant coefficients: a row per chunk */
    int64_t chunks, block, blocks;
    float *scratch; /* of the workers: a block's state each */
} scan_call;

/* A block's rows of `block` channels each, in the worker's scratch. */
typedef struct scan_state {
    float *h, *s, *P, *carry;
    float *q[ROWS];                                   /* reverse: the h of the steps just taken */
    float *A[TL_COLUMN_CHAINS], *B[TL_COLUMN_CHAINS]; /* the chains of a chunk's sums of gA and gB */
} scan_state;

static scan_state make_state(const scan_call *f, int32_t worker)
{
    float *at = f->scratch + worker * STATE_ROWS * f->block;
    scan_state v;
    float **const rows[] = {&v.h, &v.s, &v.P, &v.carry};
    for (int i = 0; i < 4; i++, at += f->block)
        *rows[i] = at;
    for (int i = 0; i < ROWS; i++, at += f->block)
        v.q[i] = at;
    for (int i = 0; i < TL_COLUMN_CHAINS; i++, at += f->block)
        v.A[i] = at, v.B[i] = at + TL_COLUMN_CHAINS * f->block;
    return v;
}

/* Time of step k. */
static inline int64_t time_of(const scan_call *f, int64_t k) { return f->g ? f->T - 1 - k : k; }

/* The coefficients of step k from channel j0; 0 for the first step of a reverse scan. */
static inline const float *coefficient(const scan_call *f, int64_t k, int64_t j0)
{
    if (!f->g) return f->A + k * f->every + j0;
    return k == 0 ? zeros : f->A + (f->T - k) * f->every + j0;
}

/* The rows of m steps: coefficients, terms (b = B·x, or x alone where B is not used) and where the h go. */
typedef struct scan_rows {
    const float *a[ROWS], *B[ROWS], *x[ROWS];
    float *q[ROWS];
} scan_rows;

/* What runs of a chunk's own map. */
enum scan_own { OWN_NONE, OWN_STATE, OWN_MAP };

/* m steps of n channels: h, and what `own` says of the chunk's own map. */
static inline __attribute__((always_inline)) void advance(const scan_rows *rows, scan_state *v, int64_t n, int m,
                                                          int scaled, int own)
{
    const scan_rows r = *rows;
    float *restrict h = v->h, *restrict s = v->s, *restrict P = v->P;
    _Pragma("GCC ivdep") for (int64_t j = 0; j < n; j++)
    {
        float hj = h[j], sj = s[j], Pj = P[j];
        _Pragma("GCC unroll 4") for (int u = 0; u < m; u++)
        {
            const float c = r.a[u][j], b = scaled ? r.B[u][j] * r.x[u][j] : r.x[u][j];
            hj = fmaf(c, hj, b);
            r.q[u][j] = hj;
            if (own) sj = fmaf(c, sj, b);
            if (own == OWN_MAP) Pj = Pj * c;
        }
        h[j] = hj;
        if (own) s[j] = sj;
        if (own == OWN_MAP) P[j] = Pj;
    }
}

/* Steps k to k + m - 1 of the channels from j0; m is ROWS, or 1 at the end of the last chunk, which hands no map on. */
static void take_steps(const scan_call *f, scan_state *v, scan_rows *r, int64_t k, int64_t m, int64_t j0, int64_t n,
                       int own)
{
    for (int64_t u = 0; u < m; u++) {
        const int64_t t = time_of(f, k + u), at = t * f->D + j0;
        r->a[u] = coefficient(f, k + u, j0);
        r->B[u] = f->g ? NULL : f->B + t * f->every + j0;
        r->x[u] = (f->g ? f->g : f->x) + at;
        r->q[u] = f->g ? v->q[u] : f->h + at;
    }
    if (m == ROWS && own == OWN_MAP)
        f->g ? advance(r, v, n, ROWS, 0, OWN_MAP) : advance(r, v, n, ROWS, 1, OWN_MAP);
    else if (m == ROWS && own == OWN_STATE)
        f->g ? advance(r, v, n, ROWS, 0, OWN_STATE) : advance(r, v, n, ROWS, 1, OWN_STATE);
    else if (m == ROWS)
        f->g ? advance(r, v, n, ROWS, 0, OWN_NONE) : advance(r, v, n, ROWS, 1, OWN_NONE);
    else
        f->g ? advance(r, v, n, 1, 0, OWN_NONE) : advance(r, v, n, 1, 1, OWN_NONE);
}

/* a[j] = b[j]·c[j] */
static void product(float *restrict a, const float *restrict b, const float *restrict c, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        a[j] = b[j] * c[j];
}

static void accumulate(float *restrict chain, const float *restrict b, const float *restrict c, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        chain[j] = fmaf(b[j], c[j], chain[j]);
}

/* The gradients that step k of a reverse scan gives, its h in q. */
static void emit(const scan_call *f, const float *q, const scan_state *v, int64_t k, int64_t j0, int64_t n)
{
    const int64_t t = time_of(f, k), at = t * f->D + j0;
    const float *before = t ? f->out + at - f->D : f->h0 + j0;
    if (f->every == 0) {
        if (f->gA) accumulate(v->A[k % TL_COLUMN_CHAINS], q, before, n);
        if (f->gB) accumulate(v->B[k % TL_COLUMN_CHAINS], q, f->x + at, n);
    } else {
        if (f->gA) product(f->gA + at, q, before, n);
        if (f->gB) product(f->gB + at, q, f->x + at, n);
    }
    if (f->gx) product(f->gx + at, q, f->B + t * f->every + j0, n);
    if (f->gh0 && t == 0) product(f->gh0 + j0, q, f->A + j0, n);
}

static void close_chains(float *const *chains, float *sums, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        sums[j] = (chains[0][j] + chains[1][j]) + (chains[2][j] + chains[3][j]);
}

/* The steps of one chunk from the h in v; `own` says what runs of its map. */
static void run_chunk(const scan_call *f, scan_state *v, int64_t chunk, int64_t j0, int64_t n, int own)
{
    const int64_t first = chunk * TL_SCAN_CHUNK, last = tl_imin(first + TL_SCAN_CHUNK, f->T);
    const int sums = f->g && f->every == 0;
    for (int i = 0; sums && i < TL_COLUMN_CHAINS; i++) {
        memset(v->A[i], 0, (size_t)n * sizeof(float));
        memset(v->B[i], 0, (size_t)n * sizeof(float));
    }
    scan_rows r;
    for (int64_t k = first, m; k < last; k += m) {
        m = k + ROWS <= last ? ROWS : 1;
        take_steps(f, v, &r, k, m, j0, n, own);
        for (int64_t u = 0; f->g && u < m; u++)
            emit(f, r.q[u], v, k + u, j0, n);
    }
    if (sums && f->gA) close_chains(v->A, f->sums_A + chunk * f->D + j0, n);
    if (sums && f->gB) close_chains(v->B, f->sums_B + chunk * f->D + j0, n);
}

/* The identity map, or with own = OWN_STATE one that keeps its product. */
static void identity_map(scan_state *v, int64_t n, int own)
{
    for (int64_t j = 0; j < n; j++)
        v->s[j] = 0.0f;
    if (own == OWN_MAP)
        for (int64_t j = 0; j < n; j++)
            v->P[j] = 1.0f;
}

static void start(const scan_call *f, float *h, int64_t j0, int64_t n)
{
    if (f->g)
        memset(h, 0, (size_t)n * sizeof(float));
    else
        memcpy(h, f->h0 + j0, (size_t)n * sizeof(float));
}

/* ---- tasks are blocks of channels -------------------------------------------------------------------------------- */

static void walk_task(void *arg, int64_t task, int32_t worker)
{
    const scan_call *f = arg;
    const int64_t j0 = task * f->block, n = tl_imin(f->block, f->D - j0);
    scan_state v = make_state(f, worker);
    start(f, v.h, j0, n);
    for (int64_t chunk = 0; chunk < f->chunks && !tl_interrupted(); chunk++) {
        memcpy(v.carry, v.h, (size_t)n * sizeof(float));
        /* Constant coefficients have one product; a reverse scan's first chunk, which begins with a 0, has another. */
        const int fresh = f->every || chunk <= (f->g ? 1 : 0);
        const int own = chunk + 1 == f->chunks ? OWN_NONE : fresh ? OWN_MAP : OWN_STATE;
        identity_map(&v, n, own);
        run_chunk(f, &v, chunk, j0, n, own);
        if (chunk + 1 < f->chunks)
            for (int64_t j = 0; j < n; j++)
                v.h[j] = tl_scan_carry(v.P[j], v.s[j], v.carry[j], v.h[j]);
    }
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

static int32_t scan(tl_context *ctx, scan_call f)
{
    f.chunks = tl_ceil_div(f.T, TL_SCAN_CHUNK);
    /* Wide rows go a page at a time, narrower ones in halves, if these are lines. */
    f.block = tl_imin(WIDTH, tl_ceil_div(tl_ceil_div(f.D, 2), NARROW) * NARROW);
    f.blocks = tl_ceil_div(f.D, f.block);
    void *scratch;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(tl_workers() * STATE_ROWS * f.block) * sizeof(float), &scratch);
    if (status) return status;
    f.scratch = scratch;
    tl_parallel(f.blocks, walk_task, &f);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

static int32_t reverse(tl_context *ctx, scan_call f)
{
    const size_t row = (size_t)f.D * sizeof(float);
    f.chunks = tl_ceil_div(f.T, TL_SCAN_CHUNK);
    if (f.T == 0) { /* those of per-step coefficients are empty */
        if (f.gA && f.every == 0) memset(f.gA, 0, row);
        if (f.gB && f.every == 0) memset(f.gB, 0, row);
        if (f.gh0) memset(f.gh0, 0, row);
        return TORCHLEAN_OK;
    }
    if (f.every || (!f.gA && !f.gB)) return scan(ctx, f);
    void *sums;
    int32_t status = tl_pool_alloc(ctx, (size_t)(2 * f.chunks) * row, &sums);
    if (status) return status;
    f.sums_A = sums;
    f.sums_B = f.sums_A + f.chunks * f.D;
    status = scan(ctx, f);
    if (!status && f.gA) status = tl_column_sums(ctx, f.sums_A, 1, f.chunks, f.D, 0, f.gA);
    if (!status && f.gB) status = tl_column_sums(ctx, f.sums_B, 1, f.chunks, f.D, 0, f.gB);
    tl_pool_free(ctx, sums);
    return status;
}

int32_t tl_cpu_selective_scan_diag(tl_context *ctx, const float *A, const float *B, const float *x, const float *h0,
                                   int64_t seq_len, int64_t state, float *out)
{
    return scan(ctx, (scan_call){.A = A, .B = B, .x = x, .h0 = h0, .T = seq_len, .D = state, .h = out});
}

int32_t tl_cpu_selective_scan_diag_bwd(tl_context *ctx, const float *A, const float *B, const float *x, const float *h0,
                                       const float *out, const float *g, int64_t seq_len, int64_t state, float *gA,
                                       float *gB, float *gx, float *gh0)
{
    scan_call f = {.A = A, .B = B, .x = x, .h0 = h0, .out = out, .g = g, .T = seq_len, .D = state};
    f.gA = gA, f.gB = gB, f.gx = gx, f.gh0 = gh0;
    return reverse(ctx, f);
}

int32_t tl_cpu_selective_scan_diag_var(tl_context *ctx, const float *A, const float *B, const float *x, const float *h0,
                                       int64_t seq_len, int64_t state, float *out)
{
    scan_call f = {.A = A, .B = B, .x = x, .h0 = h0, .every = state, .T = seq_len, .D = state, .h = out};
    return scan(ctx, f);
}

int32_t tl_cpu_selective_scan_diag_var_bwd(tl_context *ctx, const float *A, const float *B, const float *x,
                                           const float *h0, const float *out, const float *g, int64_t seq_len,
                                           int64_t state, float *gA, float *gB, float *gx, float *gh0)
{
    scan_call f = {.A = A, .B = B, .x = x, .h0 = h0, .out = out, .g = g, .every = state, .T = seq_len, .D = state};
    f.gA = gA, f.gB = gB, f.gx = gx, f.gh0 = gh0;
    return reverse(ctx, f);
}
