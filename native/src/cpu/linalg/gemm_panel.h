/* The micro-kernel of matrix products for one precision: included by gemm.c with REAL, FN and LANES set. See gemm.c. */

/* The micro-kernel: C[R, V vectors] = a·b over kc steps, or += with ADD, or with CONTINUE the chains that C has so far
 * go on; a is packed R wide, b has rows of V vectors, ldb apart. R and V are constants in every call, so the loops over
 * them unroll and the sums live in registers. */
INLINE void FN(kernel)(const int R, const int V, int64_t kc, const REAL *a, const REAL *b, int64_t ldb, REAL *c,
                       int64_t ldc, int mode)
{
    FN(vec) sum[MR][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            sum[r][v] = mode == TL_GEMM_CONTINUE ? FN(load)(c + r * ldc + v * LANES) : (FN(vec)){0};
        __builtin_prefetch(c + r * ldc, 1);
        __builtin_prefetch(c + r * ldc + V * LANES - 1, 1);
    }
    for (int64_t k = 0; k < kc; k++, a += R, b += ldb) {
        FN(vec) b0 = FN(load)(b), b1 = V == 2 ? FN(load)(b + LANES) : b0;
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
            if (mode == TL_GEMM_ADD) sum[r][v] = FN(load)(to) + sum[r][v];
            FN(store)(to, sum[r][v]);
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

void FN(tl_gemm_panel)(int64_t rows, int64_t vectors, int64_t kc, const REAL *a, const REAL *b, int64_t ldb, REAL *c,
                       int64_t ldc, int mode)
{
    FN(kernels)[rows][vectors - 1](kc, a, b, ldb, c, ldc, mode);
}
