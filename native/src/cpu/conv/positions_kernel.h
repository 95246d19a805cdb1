/* The micro-kernel of convolutions for one precision whose vectors come from copied planes (planes.h): included with REAL, FN and
 * VL set. Its sums stay in registers; the scalars are packed R to a term. */

#define VEC FN(vec)
#define STRIP (2 * VL)
#define WIDE (MR / 2)

/* What the sums of a micro-kernel, R rows of V vectors, begin with, and where they go. */
INLINE void FN(begin_sums)(const int R, const int V, const REAL *c, int mode, VEC (*sum)[4])
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            sum[r][v] = mode == TL_GEMM_CONTINUE ? FN(load)(c + (r * V + v) * VL) : (VEC){0};
}

INLINE void FN(end_sums)(const int R, const int V, REAL *c, int mode, VEC (*sum)[4])
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            REAL *to = c + (r * V + v) * VL;
            if (mode == TL_GEMM_ADD) sum[r][v] = FN(load)(to) + sum[r][v];
            FN(store)(to, sum[r][v]);
        }
}

/* The micro-kernel: c[r][v], V vectors in a row, is the sum over kc terms of a[k*R + r] · the vector at b + off[k] + v*ld. */
INLINE void FN(positions)(const int R, const int V, int64_t kc, const REAL *a, const REAL *b, int64_t ld,
                          const int32_t *off, REAL *c, int mode)
{
    VEC sum[TALLER * MR][4];
    FN(begin_sums)(R, V, c, mode, sum);
    for (int64_t k = 0; k < kc; k++, a += R) {
        const REAL *from = b + off[k];
        VEC y[4];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            y[v] = FN(load)(from + v * ld);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                sum[r][v] = FN(fma)(a[r], y[v], sum[r][v]);
    }
    FN(end_sums)(R, V, c, mode, sum);
}

#define KERNEL(R, V)                                                                                                   \
    static void FN(positions_##R##x##V)(int64_t kc, const REAL *a, const REAL *b, int64_t ld, const int32_t *off,      \
                                        REAL *c, int mode)                                                             \
    {                                                                                                                  \
        FN(positions)(R, V, kc, a, b, ld, off, c, mode);                                                               \
    }
#define KERNELS(R) KERNEL(R, 1) KERNEL(R, 2)
#define ONE(R) KERNEL(R, 1)
#define MORE(R) KERNEL(R, 3) KERNEL(R, 4)
EACH_HEIGHT(KERNELS)
EACH_TALL_HEIGHT(ONE)
EACH_SMALL_HEIGHT(MORE)
#undef KERNEL
#undef KERNELS
#undef ONE
#undef MORE

typedef void (*FN(positions_fn))(int64_t, const REAL *, const REAL *, int64_t, const int32_t *, REAL *, int);

/* The kernel of R <= MR rows and V <= 2 vectors, of R <= TALLER * MR and V = 1, or of R <= WIDE and V <= 4. */
static FN(positions_fn) FN(positions_kernel)(int64_t R, int64_t V)
{
#define TWO(R) {FN(positions_##R##x1), FN(positions_##R##x2)},
#define ONE(R) {FN(positions_##R##x1), 0},
    static const FN(positions_fn) two[TALLER * MR + 1][2] = {{0, 0}, EACH_HEIGHT(TWO) EACH_TALL_HEIGHT(ONE)};
#define MORE(R) {FN(positions_##R##x3), FN(positions_##R##x4)},
    static const FN(positions_fn) more[WIDE + 1][2] = {{0, 0}, EACH_SMALL_HEIGHT(MORE)};
    return V <= 2 ? two[R][V - 1] : more[R][V - 3];
#undef TWO
#undef ONE
#undef MORE
}
