/* The matrix product for one precision: included by gemm.c with REAL, FN, LANES and TK set. See gemm.c. */

#define KC TL_GEMM_KC
#define NR (2 * LANES)
#define VEC FN(vec)

/* The micro-kernel: C[R, V vectors] = a·b over kc steps, or += with ADD, or with CONTINUE the chains that C has so far
 * go on; a is packed R wide, b has rows of V vectors, ldb apart. R and V are constants in every call, so the loops over
 * them unroll and the sums live in registers. */
INLINE void FN(kernel)(const int R, const int V, int64_t kc, const REAL *a, const REAL *b, int64_t ldb, REAL *c,
                       int64_t ldc, int mode)
{
    VEC sum[MR][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            sum[r][v] = mode == TL_GEMM_CONTINUE ? FN(load)(c + r * ldc + v * LANES) : (VEC){0};
        __builtin_prefetch(c + r * ldc, 1);
        __builtin_prefetch(c + r * ldc + V * LANES - 1, 1);
    }
    for (int64_t k = 0; k < kc; k++, a += R, b += ldb) {
        VEC b0 = FN(load)(b), b1 = V == 2 ? FN(load)(b + LANES) : b0;
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            sum[r][0] = FN(fma)(a[r], b0, sum[r][0]);
            if (V == 2) sum[r][1] = FN(fma)(a[r], b1, sum[r][1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
            REAL *to = c + r * ldc + v * LANES;
            FN(store)(to, mode == TL_GEMM_ADD ? FN(add)(FN(load)(to), sum[r][v]) : sum[r][v]);
        }
}

typedef void (*FN(kernel_fn))(int64_t, const REAL *, const REAL *, int64_t, REAL *, int64_t, int);

#define KERNEL(R)                                                                                                      \
    static void FN(kernel_##R##x1)(int64_t kc, const REAL *a, const REAL *b, int64_t ldb, REAL *c, int64_t ldc,       \
                                   int mode)                                                                          \
    {                                                                                                                  \
        FN(kernel)(R, 1, kc, a, b, ldb, c, ldc, mode);                                                                  \
    }                                                                                                                  \
    static void FN(kernel_##R##x2)(int64_t kc, const REAL *a, const REAL *b, int64_t ldb, REAL *c, int64_t ldc,       \
                                   int mode)                                                                          \
    {                                                                                                                  \
        FN(kernel)(R, 2, kc, a, b, ldb, c, ldc, mode);                                                                  \
    }
EACH_HEIGHT(KERNEL)
#undef KERNEL

#define PAIR(R) {FN(kernel_##R##x1), FN(kernel_##R##x2)},
static const FN(kernel_fn) FN(kernels)[MR + 1][2] = {{0, 0}, EACH_HEIGHT(PAIR)};
#undef PAIR

/* Packs lanes 0 .. w-1 of kc steps: dst[k*width + l] = src[l*lane + k*step], where lane or step is 1. When w = width, whole
 * vectors are stored and may run LANES - 1 elements past a row: the next rows, then the next panel, overwrite that; the buffer
 * has room after the last. Where the width has two vectors the second is moved back to end with the row. */
static void FN(pack)(REAL *restrict dst, int64_t width, int64_t w, int64_t kc, const REAL *restrict src, int64_t lane,
                     int64_t step)
{
    if (w < width) memset(dst, 0, (size_t)(width * kc) * sizeof *dst);
    if (width == 1) {
        for (int64_t k = 0; k < kc; k++)
            dst[k] = src[k * step];
        return;
    }
    if (lane == 1) {
        if (w == NR) {
            for (int64_t k = 0; k < kc; k++, dst += width, src += step) {
                FN(store)(dst, FN(load)(src));
                FN(store)(dst + LANES, FN(load)(src + LANES));
            }
        } else if (w >= LANES) {
            for (int64_t k = 0; k < kc; k++, dst += width, src += step) {
                FN(store)(dst, FN(load)(src));
                FN(store)(dst + w - LANES, FN(load)(src + w - LANES));
            }
        } else {
            for (int64_t k = 0; k < kc; k++, dst += width, src += step)
                FN(store)(dst, FN(load_n)(src, w));
        }
        return;
    }
    int64_t k = 0, off[2][LANES];
    VEC t[TK];
    for (int64_t l = 0; l < LANES; l++) {
        off[0][l] = tl_imin(l, w - 1) * lane;
        off[1][l] = tl_imax(w - LANES + l, 0) * lane;
    }
    for (; k + TK <= kc; k += TK)
        for (int64_t half = 0; half < (w > LANES ? 2 : 1); half++) {
            REAL *to = dst + k * width + half * (w - LANES);
            FN(transpose)(src + k, off[half], TK, t);
#pragma GCC unroll 16
            for (int i = 0; i < TK; i++)
                FN(store)(to + i * width, t[i]);
        }
    for (int64_t half = 0; k < kc && half < (w > LANES ? 2 : 1); half++) {
        FN(transpose)(src + k, off[half], kc - k, t);
        for (int64_t i = 0; i < kc - k; i++)
            FN(store)(dst + (k + i) * width + half * (w - LANES), t[i]);
    }
}

/* What the tasks of one call share. C has two strides, because the product may have been transposed. */
typedef struct {
    const REAL *a, *b, *bias;
    REAL *c, *blocks;
    int64_t batch, m, n, p, rsa, csa, rsb, csb, rsc, csc, sa, sb, sc, bias_rows, bias_columns;
    int64_t tile_rows, tile_columns, row_tiles, column_tiles, products_per_task;
    int64_t a_elements, strip_elements, worker_elements;
    int direct, side_by_side;
} FN(job);

/* C[rows, columns] = (or +=) tile, the latter with rows NR apart. */
static void FN(store_tile)(const REAL *tile, int64_t rows, int64_t columns, REAL *c, int64_t rsc, int64_t csc, int add)
{
    if (csc != 1) {
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = 0; i < rows; i++) {
                REAL *to = c + i * rsc + j * csc;
                *to = add ? *to + tile[i * NR + j] : tile[i * NR + j];
            }
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += LANES) {
            int64_t lanes = tl_imin(columns - j, LANES);
            VEC v = FN(load)(tile + i * NR + j);
            REAL *to = c + i * rsc + j;
            FN(store_n)(to, add ? FN(add)(FN(load_n)(to, lanes), v) : v, lanes);
        }
}

/* sums[j] += x[r]·row r of B, one after the other, for R rows. */
INLINE void FN(add_rows)(const int R, const FN(job) * job, const REAL *x, const REAL *row, int64_t span, REAL *sums)
{
    int64_t j = 0;
    for (; j + LANES <= span; j += LANES) {
        VEC s = FN(load)(sums + j);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            s = FN(fma)(x[r * job->csa], FN(load)(row + r * job->rsb + j), s);
        FN(store)(sums + j, s);
    }
    if (j == span) return;
    VEC s = FN(load)(sums + j);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        s = FN(fma)(x[r * job->csa], FN(load_n)(row + r * job->rsb + j, span - j), s);
    FN(store)(sums + j, s);
}

/* One row of A times contiguous rows of B: eight rows of B at a time pass over sums kept in L1, then four or one. */
static void FN(row_times_matrix)(const FN(job) * job, const REAL *a, const REAL *b, REAL *c, int64_t columns)
{
    enum { SPAN = 8192 / sizeof(REAL) };
    _Alignas(64) REAL sums[SPAN + LANES];
    for (int64_t j0 = 0; j0 < columns; j0 += SPAN) {
        int64_t span = tl_imin(columns - j0, SPAN);
        for (int64_t k0 = 0; k0 < job->n && !(k0 && tl_interrupted()); k0 += KC) {
            int64_t kc = tl_imin(job->n - k0, KC);
            memset(sums, 0, sizeof(REAL) * (size_t)(span + LANES));
            for (int64_t k = 0, rows; k < kc; k += rows) {
                const REAL *row = b + (k0 + k) * job->rsb + j0, *x = a + (k0 + k) * job->csa;
                rows = kc - k >= 8 ? 8 : kc - k >= 4 ? 4 : 1;
                if (rows == 8)
                    FN(add_rows)(8, job, x, row, span, sums);
                else if (rows == 4)
                    FN(add_rows)(4, job, x, row, span, sums);
                else
                    FN(add_rows)(1, job, x, row, span, sums);
            }
            for (int64_t j = 0; j < span; j++)
                c[j0 + j] = k0 > 0 ? c[j0 + j] + sums[j] : sums[j];
        }
    }
}

/* One row of A times contiguous columns of B, two vectors of columns at a time. */
static void FN(row_times_transpose)(const FN(job) * job, const REAL *a, const REAL *b, REAL *c, int64_t columns)
{
    for (int64_t j = 0; j < columns; j += NR) {
        int64_t w = tl_imin(columns - j, NR), off[NR];
        for (int64_t l = 0; l < NR; l++)
            off[l] = (j + tl_imin(l, w - 1)) * job->csb;
        for (int64_t k0 = 0; k0 < job->n && !(k0 && tl_interrupted()); k0 += KC) {
            int64_t kc = tl_imin(job->n - k0, KC), k = 0;
            const REAL *x = a + k0 * job->csa, *from = b + k0;
            VEC sum[2] = {{0}, {0}}, t[TK];
            _Alignas(64) REAL sums[NR];
            for (; k + TK <= kc; k += TK)
                for (int64_t half = 0; half < (w > LANES ? 2 : 1); half++) {
                    FN(transpose)(from + k, off + half * LANES, TK, t);
#pragma GCC unroll 16
                    for (int i = 0; i < TK; i++)
                        sum[half] = FN(fma)(x[(k + i) * job->csa], t[i], sum[half]);
                }
            for (int64_t half = 0; k < kc && half < (w > LANES ? 2 : 1); half++) {
                FN(transpose)(from + k, off + half * LANES, kc - k, t);
                for (int64_t i = 0; i < kc - k; i++)
                    sum[half] = FN(fma)(x[(k + i) * job->csa], t[i], sum[half]);
            }
            FN(store)(sums, sum[0]);
            FN(store)(sums + LANES, sum[1]);
            FN(store_tile)(sums, 1, w, c + j * job->csc, 0, job->csc, k0 > 0);
        }
    }
}

/* The same for products first .. last - 1 of few columns each: a vector has columns of several, and a row of A for
 * each. */
static void FN(rows_of_products)(const FN(job) * job, int64_t first, int64_t last)
{
    for (int64_t j = first * job->p; j < last * job->p; j += LANES) {
        int64_t w = tl_imin(last * job->p - j, LANES), off[2][LANES], to[LANES];
        for (int64_t l = 0, q = j / job->p, column = j % job->p; l < LANES; l++) {
            off[0][l] = q * job->sa;
            off[1][l] = q * job->sb + column * job->csb;
            to[l] = q * job->sc + column * job->csc;
            if (l < w - 1 && ++column == job->p) column = 0, q++;
        }
        const int dense = w == LANES && to[LANES - 1] - to[0] == LANES - 1 && job->csc == 1;
        for (int64_t k0 = 0; k0 < job->n && !(k0 && tl_interrupted()); k0 += KC) {
            int64_t kc = tl_imin(job->n - k0, KC);
            VEC sum = {0}, x[TK], y[TK];
            _Alignas(64) REAL sums[LANES];
            int64_t k = 0;
            for (; k + TK <= kc; k += TK) {
                FN(transpose)(job->a + k0 + k, off[0], TK, x);
                FN(transpose)(job->b + k0 + k, off[1], TK, y);
#pragma GCC unroll 16
                for (int i = 0; i < TK; i++)
                    sum = FN(fma_each)(x[i], y[i], sum);
            }
            if (k < kc) {
                FN(transpose)(job->a + k0 + k, off[0], kc - k, x);
                FN(transpose)(job->b + k0 + k, off[1], kc - k, y);
                for (int64_t i = 0; i < kc - k; i++)
                    sum = FN(fma_each)(x[i], y[i], sum);
            }
            if (dense) {
                REAL *c = job->c + to[0];
                FN(store)(c, k0 > 0 ? FN(add)(FN(load)(c), sum) : sum);
                continue;
            }
            FN(store)(sums, sum);
            for (int64_t l = 0; l < w; l++)
                job->c[to[l]] = k0 > 0 ? job->c[to[l]] + sums[l] : sums[l];
        }
    }
}

/* Packs share q of `shares` of a whole strip of B and prefetches the next share. The hardware does not see it coming:
 * a row of the strip is two lines long, or there are NR rows of a few lines each. Prefetching more than a share ahead
 * fails when the rows are a large power of two apart: they then compete for a few sets of L2. */
INLINE void FN(pack_share)(const FN(job) * job, REAL *strip, const REAL *from, int64_t kc, int64_t q, int64_t shares)
{
    enum { LINE = 64 / sizeof(REAL) };
    int64_t edge[3];
    for (int64_t e = 0; e < 3; e++)
        edge[e] = q + e < shares ? kc * (q + e) / shares / LINE * LINE : kc;
    if (edge[0] < edge[1])
        FN(pack)(strip + edge[0] * NR, NR, NR, edge[1] - edge[0], from + edge[0] * job->rsb, job->csb, job->rsb);
    if (job->csb == 1) {
        for (int64_t k = edge[1]; k < edge[2]; k++)
            for (int64_t l = 0; l < NR; l += LINE)
                __builtin_prefetch(from + k * job->rsb + l, 0, 2);
    } else {
        for (int64_t k = edge[1]; k < edge[2]; k += LINE)
            for (int64_t l = 0; l < NR; l++)
                __builtin_prefetch(from + l * job->csb + k, 0, 2);
    }
}

static void FN(add_bias)(const FN(job) * job, REAL *c, const REAL *bias, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        REAL *restrict row = c + i * job->rsc;
        const REAL *restrict add = bias + i * job->bias_rows;
        if (job->csc == 1 && job->bias_columns == 1)
            for (int64_t j = 0; j < columns; j++)
                row[j] += add[j];
        else if (job->csc == 1 && job->bias_columns == 0)
            for (int64_t j = 0; j < columns; j++)
                row[j] += *add;
        else
            for (int64_t j = 0; j < columns; j++)
                row[j * job->csc] += add[j * job->bias_columns];
    }
}

/* A panel of h rows times w columns of B, whose rows have whole vectors, ldb apart. `bias`, that of the first row and column, is added
 * to sums that are complete, or is NULL. */
INLINE void FN(multiply_panel)(const FN(job) * job, int64_t kc, const REAL *panel, const REAL *b, int64_t ldb, REAL *c,
                               int64_t h, int64_t w, int add, const REAL *bias)
{
    int64_t vectors = w > LANES ? 2 : 1;
    FN(kernel_fn) kernel = FN(kernels)[h][vectors - 1];
    if (job->csc == 1 && w == vectors * LANES) {
        kernel(kc, panel, b, ldb, c, job->rsc, add);
        if (!bias) return;
        if (job->bias_columns == 1) {
            const VEC b0 = FN(load)(bias), b1 = FN(load)(bias + w - LANES);
            for (int64_t r = 0; r < h; r++, c += job->rsc) {
                FN(store)(c, FN(add)(FN(load)(c), b0));
                if (vectors == 2) FN(store)(c + LANES, FN(add)(FN(load)(c + LANES), b1));
            }
            return;
        }
    } else {
        _Alignas(64) REAL edge[MR * NR];
        kernel(kc, panel, b, ldb, edge, NR, 0);
        FN(store_tile)(edge, h, w, c, job->rsc, job->csc, add);
    }
    if (bias) FN(add_bias)(job, c, bias, h, w);
}

/* An inner dimension of 1: rows of C from end to end. */
static void FN(outer_product)(const FN(job) * job, const REAL *a, const REAL *restrict b, REAL *c, int64_t rows,
                              int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        const REAL x = a[i * job->rsa];
        REAL *restrict row = c + i * job->rsc;
        for (int64_t j = 0; j < columns; j++)
            row[j] = FN(fma_one)(x, b[j], 0);
    }
}

/* A block of a tile whose columns of B are read in place: panel by panel, so that rows of C are written from end to
 * end. The last columns that are no whole vectors are packed. `bias` is that of the tile if the block is the last. */
static void FN(multiply_direct)(const FN(job) * job, const REAL *b, REAL *c, int64_t rows, int64_t columns, int64_t kc,
                                const REAL *panel, REAL *strip, int add, const REAL *bias)
{
    int64_t panels = tl_ceil_div(rows, MR), height = rows / panels, taller = rows % panels;
    int64_t rest = columns % NR == LANES ? 0 : columns % NR, last = columns - rest;
    if (rest) FN(pack)(strip, rest > LANES ? NR : LANES, rest, kc, b + last * job->csb, job->csb, job->rsb);
    for (int64_t q = 0, i = 0; q < panels; q++) {
        int64_t h = height + (q < taller);
        REAL *to = c + i * job->rsc;
        for (int64_t j = 0; j < last; j += NR)
            FN(multiply_panel)(job, kc, panel, b + j, job->rsb, to + j * job->csc, h, tl_imin(last - j, NR), add,
                               bias ? bias + i * job->bias_rows + j * job->bias_columns : NULL);
        if (rest)
            FN(multiply_panel)(job, kc, panel, strip, rest > LANES ? NR : LANES, to + last * job->csc, h, rest, add,
                               bias ? bias + i * job->bias_rows + last * job->bias_columns : NULL);
        panel += h * kc;
        i += h;
    }
}

/* A tile of C at most TILE_ROWS high, over all of n >= 1; a_block and two strips of B (strip, spare) are this worker's. A bias is
 * added to what has just been stored. */
static void FN(multiply_tile)(const FN(job) * job, const REAL *a, const REAL *b, REAL *c, const REAL *bias,
                              int64_t rows, int64_t columns, REAL *a_block, REAL *strip, REAL *spare)
{
    int64_t panels = tl_ceil_div(rows, MR), height = rows / panels, taller = rows % panels;
    for (int64_t k0 = 0; k0 < job->n && !(k0 && tl_interrupted()); k0 += KC) {
        int64_t kc = tl_imin(job->n - k0, KC);
        const REAL *const last_bias = k0 + kc == job->n ? bias : NULL;
        int add = k0 > 0;
        int ready = 0; /* the strip was packed during the one before it */
        REAL *panel = a_block;
        for (int64_t q = 0, i = 0; q < panels; q++) {
            int64_t h = height + (q < taller);
            FN(pack)(panel, h, h, kc, a + i * job->rsa + k0 * job->csa, job->rsa, job->csa);
            panel += h * kc;
            i += h;
        }
        if (job->direct) {
            FN(multiply_direct)(job, b + k0 * job->rsb, c, rows, columns, kc, a_block, strip, add, last_bias);
            continue;
        }
        for (int64_t j = 0; j < columns; j += NR) {
            int64_t w = tl_imin(columns - j, NR), vectors = w > LANES ? 2 : 1;
            const REAL *from = b + k0 * job->rsb + j * job->csb;
            if (!ready) FN(pack)(strip, vectors * LANES, w, kc, from, job->csb, job->rsb);
            ready = columns - j >= 2 * NR;
            panel = a_block;
            for (int64_t q = 0, i = 0; q < panels; q++) {
                int64_t h = height + (q < taller);
                if (ready) FN(pack_share)(job, spare, from + NR * job->csb, kc, q, panels);
                FN(multiply_panel)(job, kc, panel, strip, vectors * LANES, c + i * job->rsc + j * job->csc, h, w, add,
                                   last_bias ? last_bias + i * job->bias_rows + j * job->bias_columns : NULL);
                panel += h * kc;
                i += h;
            }
            if (ready) {
                REAL *used = strip;
                strip = spare;
                spare = used;
            }
        }
    }
}

/* Task t: a tile of one product (column tiles fastest), or products_per_task whole products. */
static void FN(task)(void *arg, int64_t t, int32_t worker)
{
    const FN(job) *job = arg;
    int64_t tiles = job->row_tiles * job->column_tiles, tile = t % tiles;
    int64_t first = t / tiles * job->products_per_task, last = tl_imin(first + job->products_per_task, job->batch);
    int64_t i = tile / job->column_tiles * job->tile_rows, j = tile % job->column_tiles * job->tile_columns;
    int64_t rows = tl_imin(job->m - i, job->tile_rows), columns = tl_imin(job->p - j, job->tile_columns);
    REAL *a_block = job->blocks + worker * job->worker_elements, *strip = a_block + job->a_elements;
    if (job->side_by_side) {
        FN(rows_of_products)(job, first, last);
        return;
    }
    for (int64_t q = first; q < last; q++) {
        const REAL *a = job->a + q * job->sa + i * job->rsa, *b = job->b + q * job->sb + j * job->csb;
        const REAL *bias = job->bias ? job->bias + i * job->bias_rows + j * job->bias_columns : NULL;
        REAL *c = job->c + q * job->sc + i * job->rsc + j * job->csc;
        if (rows == 1 && job->csb == 1 && job->csc == 1)
            FN(row_times_matrix)(job, a, b, c, columns);
        else if (job->n == 1 && job->csb == 1 && job->csc == 1)
            FN(outer_product)(job, a, b, c, rows, columns);
        else if (rows == 1 && job->rsb == 1)
            FN(row_times_transpose)(job, a, b, c, columns);
        else if (job->n > 0) {
            FN(multiply_tile)(job, a, b, c, bias, rows, columns, a_block, strip, strip + job->strip_elements);
            continue;
        }
        for (int64_t e = 0; job->n == 0 && e < rows * columns; e++)
            c[e / columns * job->rsc + e % columns * job->csc] = 0;
        if (bias) FN(add_bias)(job, c, bias, rows, columns);
    }
}

/* Cuts the product into tasks of at least TASK_COST multiply-adds, the packing counted in, while there are fewer than `wanted`. */
static int64_t FN(plan)(FN(job) * job, int64_t wanted)
{
    double m = (double)job->m, n = (double)job->n, p = (double)job->p, cost = m * n * p + 16 * n * (m + p);
    job->row_tiles = tl_ceil_div(job->m, TILE_ROWS);
    job->column_tiles = tl_ceil_div(job->p, job->m == 1 ? TILE_COLUMNS_ONE_ROW : TILE_COLUMNS);
    job->products_per_task = 1;
    if (cost < TASK_COST) job->products_per_task = (int64_t)(TASK_COST / tl_imax(cost, 1.0));
    for (;;) {
        int64_t tiles = job->row_tiles * job->column_tiles;
        job->tile_rows = tl_ceil_div(tl_ceil_div(job->m, job->row_tiles), MR) * MR;
        job->tile_columns = tl_ceil_div(tl_ceil_div(job->p, job->column_tiles), NR) * NR;
        if (job->batch * tiles >= wanted || cost / (double)tiles < 2 * TASK_COST) break;
        if (job->tile_columns > NR && job->tile_columns >= job->tile_rows)
            job->column_tiles *= 2;
        else if (job->tile_rows > MR)
            job->row_tiles *= 2;
        else
            break;
    }
    job->row_tiles = tl_ceil_div(job->m, job->tile_rows);
    job->column_tiles = tl_ceil_div(job->p, job->tile_columns);
    return job->row_tiles * job->column_tiles * tl_ceil_div(job->batch, job->products_per_task);
}

static int32_t FN(product)(tl_context *ctx, const tl_gemm_args *g, const REAL *A, const REAL *B, REAL *C)
{
    FN(job)
    job = {.a = A, .b = B, .c = C, .bias = g->bias, .bias_rows = g->bias_of_rows, .bias_columns = !g->bias_of_rows};
    job.batch = g->batch, job.m = g->m, job.n = g->n, job.p = g->p, job.sa = g->sa, job.sb = g->sb, job.sc = g->sc;
    job.rsa = g->rsa, job.csa = g->csa, job.rsb = g->rsb, job.csb = g->csb, job.rsc = g->ldc, job.csc = 1;
    if (4 * g->p <= 3 * LANES && g->p < g->m) { /* the lanes run along the rows of C */
        job.a = B, job.m = g->p, job.rsa = g->csb, job.csa = g->rsb, job.sa = g->sb;
        job.b = A, job.p = g->m, job.rsb = g->csa, job.csb = g->rsa, job.sb = g->sa;
        job.rsc = 1, job.csc = g->ldc, job.bias_rows = !g->bias_of_rows, job.bias_columns = g->bias_of_rows;
    }
    const int64_t wanted = tl_imax(MIN_TASKS, TASKS_PER_WORKER * tl_workers());
    int64_t tasks = FN(plan)(&job, wanted), kc = tl_imin(job.n, KC), rows = tl_imin(job.m, job.tile_rows);
    int64_t cells = job.n * tl_imin(job.p, job.tile_columns);
    job.direct = job.csb == 1 && (cells <= DIRECT_CELLS || (rows <= MR && cells <= DIRECT_CELLS_ONE_PANEL));
    job.side_by_side = job.batch > 1 && job.m == 1 && job.p < LANES && job.n > 0 && !job.bias;
    job.side_by_side &= job.rsb == 1 && job.csa == 1;
    job.a_elements = tl_ceil_div(rows * kc + LANES, 64) * 64;
    job.strip_elements = tl_ceil_div(NR * kc + LANES, 64) * 64;
    job.worker_elements = job.a_elements + 2 * job.strip_elements;
    enum { ON_STACK = 15360 / sizeof(REAL) };
    if (tasks == 1 && job.worker_elements <= ON_STACK) {
        _Alignas(64) REAL blocks[ON_STACK];
        job.blocks = blocks;
        FN(task)(&job, 0, 0);
        return 0;
    }
    void *blocks;
    int64_t workers = tasks == 1 ? 1 : tl_workers();
    int32_t status = tl_pool_alloc(ctx, (size_t)(workers * job.worker_elements) * sizeof(REAL), &blocks);
    if (status) return status;
    job.blocks = blocks;
    if (tasks == 1)
        FN(task)(&job, 0, 0);
    else if (tasks <= 2 * wanted) /* in turn, as the last tiles are smaller */
        tl_parallel_in_order(tasks, tl_workers(), FN(task), &job);
    else
        tl_parallel(tasks, FN(task), &job);
    tl_pool_free(ctx, blocks);
    return 0;
}

/* The sums of a round of blocks, added to C in order. */
typedef struct {
    const REAL *sums, *bias;
    REAL *c;
    int64_t blocks, m, p, ldc, rows_per_task, bias_of_rows;
    int accumulate;
} FN(round);

static void FN(add_blocks)(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const FN(round) *round = arg;
    int64_t first = t * round->rows_per_task, last = tl_imin(first + round->rows_per_task, round->m);
    for (int64_t i = first; i < last; i++) {
        REAL *restrict c = round->c + i * round->ldc;
        for (int64_t block = 0; block < round->blocks; block++) {
            const REAL *restrict s = round->sums + (block * round->m + i) * round->p;
            if (block == 0 && !round->accumulate)
                memcpy(c, s, sizeof(REAL) * (size_t)round->p);
            else
                for (int64_t j = 0; j < round->p; j++)
                    c[j] += s[j];
        }
        for (int64_t j = 0; round->bias && j < round->p; j++)
            c[j] += round->bias[round->bias_of_rows ? i : j];
    }
}

/* One small C with a long inner dimension: its blocks of KC are a batch of products, ROUND of them at a time. */
static int32_t FN(split_inner)(tl_context *ctx, const tl_gemm_args *g, const REAL *A, const REAL *B, REAL *C)
{
    enum { ROUND = 64 };
    int64_t blocks = tl_ceil_div(g->n, KC);
    void *sums;
    int32_t status = tl_pool_alloc(ctx, sizeof(REAL) * (size_t)(tl_imin(blocks, ROUND) * g->m * g->p), &sums);
    if (status) return status;
    FN(round)
    round = {.sums = sums, .c = C, .m = g->m, .p = g->p, .ldc = g->ldc, .bias_of_rows = g->bias_of_rows};
    round.rows_per_task = tl_ceil_div(1024, g->p);
    for (int64_t first = 0; first < blocks && !status && !tl_interrupted(); first += ROUND) {
        round.blocks = tl_imin(ROUND, blocks - first);
        int64_t rest = tl_imin(g->n - first * KC, round.blocks * KC), whole = rest / KC;
        tl_gemm_args part = *g;
        part.batch = whole, part.n = KC, part.ldc = g->p, part.bias = 0;
        part.sa = KC * g->csa, part.sb = KC * g->rsb, part.sc = g->m * g->p;
        const REAL *a = A + first * part.sa, *b = B + first * part.sb;
        if (whole) status = FN(product)(ctx, &part, a, b, sums);
        if (rest > whole * KC && !status) {
            part.batch = 1, part.n = rest - whole * KC;
            status = FN(product)(ctx, &part, a + whole * part.sa, b + whole * part.sb, (REAL *)sums + whole * part.sc);
        }
        if (!status) {
            round.bias = first + ROUND >= blocks ? g->bias : 0;
            tl_parallel(tl_ceil_div(g->m, round.rows_per_task), FN(add_blocks), &round);
            round.accumulate = 1;
        }
    }
    tl_pool_free(ctx, sums);
    return status;
}

int32_t FN(tl_gemm)(tl_context *ctx, const tl_gemm_args *g, const REAL *A, const REAL *B, REAL *C)
{
    tl_gemm_args args = *g;
    if (args.batch == 0 || args.m == 0 || args.p == 0) return 0;
    if (args.sb == 0 && args.sa == args.m * args.rsa && args.sc == args.m * args.ldc && !args.bias_of_rows) {
        args.m *= args.batch;
        args.batch = 1;
    }
    /* One sum is a chain that waits for itself; side by side, its blocks and what is left of one take the time of two. */
    const int64_t long_from = args.m * args.p == 1 ? 4 * KC : 8 * KC;
    if (args.batch == 1 && args.n >= long_from && args.m * args.p <= TILE_SMALL * TILE_SMALL &&
        tl_imax(args.m, args.p) <= 4 * TILE_SMALL)
        return FN(split_inner)(ctx, &args, A, B, C);
    return FN(product)(ctx, &args, A, B, C);
}

#undef KC
#undef NR
#undef VEC
