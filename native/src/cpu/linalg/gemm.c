/* Packed, blocked matrix product. This file has what depends on the instruction set: vectors, the fused multiply-add, partial
 * loads and the transpose in registers, for both precisions. The algorithm is in gemm_kernel.h, compiled here once for float and
 * once for double.
 *
 *   task      one tile of C, at most 256 rows by 512 columns, over the whole of n; or, for small products, several
 *             whole products of the batch. Tiles follow from the shape alone and tasks share nothing, so no task waits
 *             for another and any number of workers gives the same bits.
 *   for k0    blocks of KC = 256: the rows of A are packed into panels of MR rows, a block that stays in L2
 *   for j0    strips of NR columns: the strip of B is packed (KC·NR elements, 32 KiB, in L1) and used at once for
 *             every panel; between panels a share of the next strip is packed
 *   for i0    panels of MR rows: the micro-kernel
 *   for k     MR·NR sums in registers; a step loads two vectors of B and broadcasts MR elements of A
 *
 * MR x NR is 14 x 32 floats or 14 x 16 doubles with AVX-512 (28 accumulators, 2 vectors of B, 1 broadcast of the 32 registers), 6
 * x 16 or 6 x 8 with AVX2 (12 + 2 + 1 of 16). A tile's rows are shared out evenly over its panels, and there is a kernel for
 * every number of rows, so 32 rows are 11 + 11 + 10 rather than 14 + 14 + 4. A last strip of at most one vector has kernels of
 * that width.
 *
 * Summation order: lanes run along columns, never along k, so each element has one chain of fused multiply-adds per block of KC,
 * in increasing k, starting from 0; blocks are added to C in order (gemm.h). Tile, panel and lane decide where an element is
 * computed, not how. Unused lanes hold zeros or copies of other lanes and are never stored.
 *
 * A product with few columns is computed transposed, which is only a change of strides. One row times a B with contiguous rows
 * streams B and keeps its sums in L1 (row_times_matrix); with contiguous columns, it transposes them in registers
 * (row_times_transpose); those of several products side by side where each has few (rows_of_products). A small C with a
 * long n runs its blocks of KC as a batch and adds them up in order (split_inner). */
#include <math.h>
#include <string.h>

#include "core/threads.h"
#include "cpu/linalg/gemm.h"
#include "cpu/vector64.h"
#include "cpu/vector_part.h"
#include "formula/integer.h"

/* A block of A takes 256 KiB, in double 512: it shares L2 with the strip of B and often a second hardware thread. */
#define TILE_ROWS 256
#define TILE_COLUMNS 512
#define TILE_COLUMNS_ONE_ROW 4096
/* A product no larger than a square of this, of a long inner dimension, is cut along it; neither side is four times longer, as there
 * would be tiles enough. */
#define TILE_SMALL 128
/* With fewer tasks than MIN_TASKS, or than TASKS_PER_WORKER for each worker, tiles are halved, down to TASK_COST multiply-adds (about 15 microseconds of one core). */
#define MIN_TASKS 8
#define TASKS_PER_WORKER 2
#define TASK_COST 1e6
/* Where B has contiguous rows and this few elements it is read in place: packing would not be paid back. */
#define DIRECT_CELLS 4096
#define DIRECT_CELLS_ONE_PANEL 131072
#define INLINE TL_INLINE
#define MR TL_GEMM_MR

/* F(r) for every height r = 1 .. MR of a panel. */
#if MR == 14
#define EACH_HEIGHT(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14)
#elif MR == 6
#define EACH_HEIGHT(F) F(1) F(2) F(3) F(4) F(5) F(6)
#else
#define EACH_HEIGHT(F) F(1) F(2) F(3) F(4)
#endif

/* The vectors are those of cpu/vector.h, cpu/vector_part.h and cpu/vector64.h. */
typedef tl_vec vec_f32;
typedef tl_vec64 vec_f64;
#define load_f32 tl_vec_load
#define store_f32 tl_vec_store
#define store_n_f32 tl_store_first
#define fma_f32 tl_vec_fma
#define load_f64 tl_vec64_load
#define store_f64 tl_vec64_store
#define fma_f64 tl_vec64_fma

/* Per precision: vec, its fused multiply-add with a broadcast factor, loads and stores of the first n lanes (the others
 * read as 0), fma_each with a factor for each lane, and transpose: columns 0 .. n-1 of LANES rows, row r at src +
 * off[r], become vectors, of TK. */
#if defined(__AVX512F__)

#define LANES_F64 8
#define TK_F32 16
#define TK_F64 8

INLINE vec_f32 load_n_f32(const float *p, int64_t n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE vec_f64 load_n_f64(const double *p, int64_t n) { return _mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p); }
INLINE void store_n_f64(double *p, vec_f64 v, int64_t n) { _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), v); }
INLINE vec_f32 fma_each_f32(vec_f32 x, vec_f32 y, vec_f32 z) { return _mm512_fmadd_ps(x, y, z); }
INLINE vec_f64 fma_each_f64(vec_f64 x, vec_f64 y, vec_f64 z) { return _mm512_fmadd_pd(x, y, z); }

/* Every row is read as one whole cache line, because with a large power of two between rows all the lines of a block
 * compete for one set of L1. Pairs, then quads of rows are interleaved within the 128-bit lanes; two rounds of lane
 * shuffles then bring the lanes of one column together. */
INLINE void transpose_f32(const float *src, const int64_t *off, int64_t n, vec_f32 *out)
{
    __m512 r[16], q[16];
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        for (int l = i; l < i + 4; l++)
            r[l] = _mm512_maskz_loadu_ps(mask, src + off[l]);
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[i + 2], r[i + 3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[i + 2], r[i + 3]));
        q[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        q[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        q[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        q[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) { /* q[i + k] holds columns k, k+4, k+8, k+12 of rows i .. i+3 */
        __m512 a = _mm512_shuffle_f32x4(q[k], q[4 + k], 0x44), b = _mm512_shuffle_f32x4(q[k], q[4 + k], 0xee);
        __m512 c = _mm512_shuffle_f32x4(q[8 + k], q[12 + k], 0x44), d = _mm512_shuffle_f32x4(q[8 + k], q[12 + k], 0xee);
        out[k] = _mm512_shuffle_f32x4(a, c, 0x88);
        out[k + 4] = _mm512_shuffle_f32x4(a, c, 0xdd);
        out[k + 8] = _mm512_shuffle_f32x4(b, d, 0x88);
        out[k + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

INLINE void transpose_f64(const double *src, const int64_t *off, int64_t n, vec_f64 *out)
{
    __m512d q[8];
    const __mmask8 mask = (__mmask8)((1u << n) - 1);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        __m512d a = _mm512_maskz_loadu_pd(mask, src + off[i]), b = _mm512_maskz_loadu_pd(mask, src + off[i + 1]);
        q[i] = _mm512_unpacklo_pd(a, b);
        q[i + 1] = _mm512_unpackhi_pd(a, b);
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) { /* q[i + k] holds columns k, k+2, k+4, k+6 of rows i, i+1 */
        __m512d a = _mm512_shuffle_f64x2(q[k], q[2 + k], 0x44), b = _mm512_shuffle_f64x2(q[k], q[2 + k], 0xee);
        __m512d c = _mm512_shuffle_f64x2(q[4 + k], q[6 + k], 0x44), d = _mm512_shuffle_f64x2(q[4 + k], q[6 + k], 0xee);
        out[k] = _mm512_shuffle_f64x2(a, c, 0x88);
        out[k + 2] = _mm512_shuffle_f64x2(a, c, 0xdd);
        out[k + 4] = _mm512_shuffle_f64x2(b, d, 0x88);
        out[k + 6] = _mm512_shuffle_f64x2(b, d, 0xdd);
    }
}

#elif defined(__AVX2__) && defined(__FMA__)

#define LANES_F64 4
#define TK_F32 4
#define TK_F64 2

static const int32_t lanes_on[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
#define FIRST_F32(n) _mm256_loadu_si256((const __m256i *)(lanes_on + 8 - (n)))
#define FIRST_F64(n) _mm256_loadu_si256((const __m256i *)(lanes_on + 8 - 2 * (n)))

INLINE vec_f32 load_n_f32(const float *p, int64_t n) { return _mm256_maskload_ps(p, FIRST_F32(n)); }
INLINE vec_f64 load_n_f64(const double *p, int64_t n) { return _mm256_maskload_pd(p, FIRST_F64(n)); }
INLINE void store_n_f64(double *p, vec_f64 v, int64_t n)
{
    tl_store_first((float *)p, _mm256_castpd_ps(v), 2 * n); /* a number is two lanes */
}
INLINE vec_f32 fma_each_f32(vec_f32 x, vec_f32 y, vec_f32 z) { return _mm256_fmadd_ps(x, y, z); }
INLINE vec_f64 fma_each_f64(vec_f64 x, vec_f64 y, vec_f64 z) { return _mm256_fmadd_pd(x, y, z); }

INLINE void transpose_f32(const float *src, const int64_t *off, int64_t n, vec_f32 *out)
{
    __m256 t[4];
    const __m128i mask = _mm256_castsi256_si128(FIRST_F32(n));
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        const float *const low = src + off[r], *const high = src + off[r + 4];
        const int whole = n == TK_F32; /* known where the call is, as the others are rare */
        t[r] = _mm256_castps128_ps256(whole ? _mm_loadu_ps(low) : _mm_maskload_ps(low, mask));
        t[r] = _mm256_insertf128_ps(t[r], whole ? _mm_loadu_ps(high) : _mm_maskload_ps(high, mask), 1);
    }
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(t[0], t[1])), b = _mm256_castps_pd(_mm256_unpackhi_ps(t[0], t[1]));
    __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(t[2], t[3])), d = _mm256_castps_pd(_mm256_unpackhi_ps(t[2], t[3]));
    out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}

INLINE void transpose_f64(const double *src, const int64_t *off, int64_t n, vec_f64 *out)
{
    __m256d t[2];
    const __m128i mask = _mm256_castsi256_si128(FIRST_F64(n));
    for (int r = 0; r < 2; r++) {
        t[r] = _mm256_castpd128_pd256(_mm_maskload_pd(src + off[r], mask));
        t[r] = _mm256_insertf128_pd(t[r], _mm_maskload_pd(src + off[r + 2], mask), 1);
    }
    out[0] = _mm256_unpacklo_pd(t[0], t[1]);
    out[1] = _mm256_unpackhi_pd(t[0], t[1]);
}

#else /* GCC vector extensions, 16 bytes wide */

#define LANES_F64 2
#define TK_F32 1
#define TK_F64 1
INLINE vec_f32 load_n_f32(const float *p, int64_t n)
{
    vec_f32 v = {0};
    memcpy(&v, p, (size_t)n * 4);
    return v;
}
INLINE vec_f64 load_n_f64(const double *p, int64_t n)
{
    vec_f64 v = {0};
    memcpy(&v, p, (size_t)n * 8);
    return v;
}
INLINE void store_n_f64(double *p, vec_f64 v, int64_t n) { memcpy(p, &v, (size_t)n * 8); }

#define FMA_EACH(REAL, FN)                                                                                             \
    INLINE vec_##FN fma_each_##FN(vec_##FN x, vec_##FN y, vec_##FN z)                                                  \
    {                                                                                                                  \
        vec_##FN out = z;                                                                                              \
        for (size_t l = 0; l < sizeof out / sizeof(REAL); l++)                                                         \
            out[l] = fma_##FN(x[l], y, z)[l];                                                                          \
        return out;                                                                                                    \
    }
FMA_EACH(float, f32)
FMA_EACH(double, f64)

INLINE void transpose_f32(const float *src, const int64_t *off, TL_UNUSED int64_t n, vec_f32 *out)
{
    out[0] = (vec_f32){src[off[0]], src[off[1]], src[off[2]], src[off[3]]};
}

INLINE void transpose_f64(const double *src, const int64_t *off, TL_UNUSED int64_t n, vec_f64 *out)
{
    out[0] = (vec_f64){src[off[0]], src[off[1]]};
}

#endif

INLINE float fma_one_f32(float x, float y, float z) { return fmaf(x, y, z); }
INLINE double fma_one_f64(double x, double y, double z) { return fma(x, y, z); }
INLINE vec_f32 add_f32(vec_f32 x, vec_f32 y) { return x + y; }
INLINE vec_f64 add_f64(vec_f64 x, vec_f64 y) { return x + y; }

#define REAL float
#define FN(name) name##_f32
#define LANES TL_GEMM_LANES
#define TK TK_F32
#include "cpu/linalg/gemm_kernel.h"

void tl_gemm_panel_f32(int64_t rows, int64_t vectors, int64_t kc, const float *a, const float *b, int64_t ldb, float *c,
                       int64_t ldc, int mode)
{
    kernels_f32[rows][vectors - 1](kc, a, b, ldb, c, ldc, mode);
}

void tl_gemm_pack_f32(float *dst, int64_t width, int64_t w, int64_t kc, const float *src, int64_t lane, int64_t step)
{
    pack_f32(dst, width, w, kc, src, lane, step);
}

#undef REAL
#undef FN
#undef LANES
#undef TK

#define REAL double
#define FN(name) name##_f64
#define LANES LANES_F64
#define TK TK_F64
#include "cpu/linalg/gemm_kernel.h"

void tl_gemm_panel_f64(int64_t rows, int64_t vectors, int64_t kc, const double *a, const double *b, int64_t ldb,
                       double *c, int64_t ldc, int mode)
{
    kernels_f64[rows][vectors - 1](kc, a, b, ldb, c, ldc, mode);
}
