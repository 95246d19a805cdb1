/* The micro-kernels of products for one precision: included with REAL, FN, VL and MR set. Their sums stay in registers. */

#define VEC FN(vec)
#define STRIP (2 * VL)

#ifndef EACH_HEIGHT
/* F(name, r) for every height of a panel; the small heights leave registers for strips of four vectors. The tall ones,
 * up to TALLER times MR, are for strips of one vector alone, of which MR sums would be fewer than hide the latency of a fused
 * multiply-add: two begin in a cycle, and each takes four. */
#if TL_GEMM_MR == 14
enum { TALLER = 1 };
#define EACH_TALL_HEIGHT(F, n)
#define EACH_SMALL_HEIGHT(F, n) F(n, 1) F(n, 2) F(n, 3) F(n, 4) F(n, 5) F(n, 6) F(n, 7)
#define EACH_HEIGHT(F, n) EACH_SMALL_HEIGHT(F, n) F(n, 8) F(n, 9) F(n, 10) F(n, 11) F(n, 12) F(n, 13) F(n, 14)
#elif TL_GEMM_MR == 6
enum { TALLER = 2 };
#define EACH_TALL_HEIGHT(F, n) F(n, 7) F(n, 8) F(n, 9) F(n, 10) F(n, 11) F(n, 12)
#define EACH_SMALL_HEIGHT(F, n) F(n, 1) F(n, 2) F(n, 3)
#define EACH_HEIGHT(F, n) EACH_SMALL_HEIGHT(F, n) F(n, 4) F(n, 5) F(n, 6)
#else
enum { TALLER = 1 };
#define EACH_TALL_HEIGHT(F, n)
#define EACH_SMALL_HEIGHT(F, n) F(n, 1) F(n, 2)
#define EACH_HEIGHT(F, n) EACH_SMALL_HEIGHT(F, n) F(n, 3) F(n, 4)
#endif

enum { of_panel, of_side, of_rows, of_terms };
#endif

/* c, R rows of V vectors, `ldc` apart or side by side, is the sum over n terms k of scalars times vectors. */
typedef void (*FN(kernel))(int64_t n, const REAL *a, const REAL *b, int64_t ld, const int32_t *off,
                           const int32_t *other, REAL *c, int64_t ldc, int mode);

/* What the scalar of row r and vector v are at term k:
 *     panel    a[k*R + r]             b + k*ld + v*VL
 *     side     a[k*R + r]             b + off[k] + v*ld
 *     rows     a[off[k] + r]          b + (other[k]*V + v)*VL
 *     terms    a[off[k] + other[r]]   b + (k*V + v)*VL
 * R and V are constants in every call, so the loops over them unroll and the sums live in registers. Rows of a panel's c are `ldc`
 * apart. */
INLINE void FN(sum_terms)(const int kind, const int R, const int V, int64_t n, const REAL *a, const REAL *b, int64_t ld,
                          const int32_t *off, const int32_t *other, REAL *c, int64_t ldc, int mode)
{
    VEC sum[TALLER * MR][4];
    if (kind != of_panel) ldc = V * VL;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            sum[r][v] = mode == TL_GEMM_CONTINUE ? FN(load)(c + r * ldc + v * VL) : (VEC){0};
        if (kind != of_panel) continue;
        __builtin_prefetch(c + r * ldc, 1);
        __builtin_prefetch(c + r * ldc + V * VL - 1, 1);
    }
    for (int64_t k = 0; k < n; k++) {
        const REAL *x = kind == of_panel || kind == of_side ? a + k * R : a + off[k];
        const REAL *from = b + (kind == of_panel  ? k * ld
                                : kind == of_side ? off[k]
                                                  : (kind == of_rows ? other[k] : k) * (V * VL));
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
            REAL *to = c + r * ldc + v * VL;
            if (mode == TL_GEMM_ADD) sum[r][v] = FN(load)(to) + sum[r][v];
            FN(store)(to, sum[r][v]);
        }
}

#define KERNEL(name, R, V)                                                                                             \
    static void FN(name##_##R##x##V)(int64_t n, const REAL *a, const REAL *b, int64_t ld, const int32_t *off,          \
                                     const int32_t *other, REAL *c, int64_t ldc, int mode)                             \
    {                                                                                                                  \
        FN(sum_terms)(of_##name, R, V, n, a, b, ld, off, other, c, ldc, mode);                                         \
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
