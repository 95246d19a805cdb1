/* The micro-kernels of convolutions for one precision: included with REAL, FN and VL set. Their sums stay in registers. */

#define VEC FN(vec)
#define STRIP (2 * VL)
#define WIDE (MR / 2)

/* c, R rows of V vectors, is the sum over n terms k of scalars times vectors. */
typedef void (*FN(kernel))(int64_t n, const REAL *a, const REAL *b, int64_t ld, const int32_t *off,
                           const int32_t *other, REAL *c, int mode);

/* What the scalar of row r and vector v are at term k:
 *     side     a[k*R + r]             b + off[k] + v*ld
 *     rows     a[off[k] + r]          b + (other[k]*V + v)*VL
 *     terms    a[off[k] + other[r]]   b + (k*V + v)*VL */
INLINE void FN(sum_terms)(const int kind, const int R, const int V, int64_t n, const REAL *a, const REAL *b, int64_t ld,
                          const int32_t *off, const int32_t *other, REAL *c, int mode)
{
    VEC sum[TALLER * MR][4];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            sum[r][v] = mode == TL_GEMM_CONTINUE ? FN(load)(c + (r * V + v) * VL) : (VEC){0};
    for (int64_t k = 0; k < n; k++) {
        const REAL *x = kind == of_side ? a + k * R : a + off[k];
        const REAL *from = b + (kind == of_side ? off[k] : (kind == of_rows ? other[k] : k) * (V * VL));
        VEC y[4];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            y[v] = FN(load)(from + v * (kind == of_side ? ld : VL));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                sum[r][v] = FN(fma)(x[kind == of_terms ? other[r] : r], y[v], sum[r][v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            REAL *to = c + (r * V + v) * VL;
            if (mode == TL_GEMM_ADD) sum[r][v] = FN(load)(to) + sum[r][v];
            FN(store)(to, sum[r][v]);
        }
}

#define KERNEL(name, R, V)                                                                                             \
    static void FN(name##_##R##x##V)(int64_t n, const REAL *a, const REAL *b, int64_t ld, const int32_t *off,          \
                                     const int32_t *other, REAL *c, int mode)                                          \
    {                                                                                                                  \
        FN(sum_terms)(of_##name, R, V, n, a, b, ld, off, other, c, mode);                                              \
    }
#define KERNEL_1(name, R) KERNEL(name, R, 1)
#define KERNEL_2(name, R) KERNEL(name, R, 1) KERNEL(name, R, 2)
#define KERNEL_4(name, R) KERNEL(name, R, 3) KERNEL(name, R, 4)
#define ROW_1(name, R) {FN(name##_##R##x1), 0},
#define ROW_2(name, R) {FN(name##_##R##x1), FN(name##_##R##x2)},
#define ROW_4(name, R) {FN(name##_##R##x3), FN(name##_##R##x4)},

/* name_kernels: of R <= MR rows and V <= 2 vectors, or R <= TALLER * MR and V = 1. */
#define KERNELS(name)                                                                                                  \
    EACH_HEIGHT(KERNEL_2, name)                                                                                        \
    EACH_TALL_HEIGHT(KERNEL_1, name)                                                                                   \
    static const FN(kernel) FN(name##_kernels)[TALLER * MR + 1][2] = {                                                 \
        {0, 0}, EACH_HEIGHT(ROW_2, name) EACH_TALL_HEIGHT(ROW_1, name)};

KERNELS(side)
EACH_SMALL_HEIGHT(KERNEL_4, side)

/* Of R <= WIDE rows and V <= 4 vectors, too. */
static FN(kernel) FN(side_kernel)(int64_t R, int64_t V)
{
    static const FN(kernel) wide[WIDE + 1][2] = {{0, 0}, EACH_SMALL_HEIGHT(ROW_4, side)};
    return V <= 2 ? FN(side_kernels)[R][V - 1] : wide[R][V - 3];
}
