/* Matrix products of few terms on CUDA: bound by writing the result.
 *
 * C is written as a row of aligned groups of four elements ("quads"), also where its rows are no multiple of four long or a
 * product of a batch starts anywhere: `unit` rows (1, 2 or 4) are a whole number of quads, a period, which repeats all the way
 * down. A thread owns one quad of a period, whose columns, and rows within the period, are the same in all of them: it keeps
 * their columns of B in registers, goes down `groups` periods at a time, reads the rows of A from shared memory, where most lanes
 * of a warp ask for the same one, and writes 16 bytes each time. A block has `groups` groups of as many lanes as its tile has
 * quads and `turns` periods for each, of one product. Of a quad that lies partly outside of its product the elements inside are
 * written one by one.
 *
 * A quad that has elements of two rows reads both rows of A, and a block reads those of the whole period, though its tile may lie
 * in one of them. Where that would cost more, blocks take one row of each period, whose quads begin at the same element in all
 * periods; at both ends of it lie quads that are partly of other rows, which other blocks write. And where rows are longer than
 * NARROW then, lanes own single columns (long_rows_kernel): what they write of a row lies side by side wherever it starts, and every
 * block has whole rows, for which B is read once. In float32 linalg/row_tiles.cu takes many of those.
 *
 * A multiprocessor of an H200 has about 120 issue slots while its share of the memory takes the 16 bytes of each lane of a warp,
 * 32 clocks, and TERMS terms of them are 4·TERMS multiply-adds and TERMS/4 reads of shared memory of 4 clocks, or TERMS of quads
 * of two rows: in float32 32 terms take little more time than writing does, in float64, at half the rate, 16.
 *
 * Each sum is one chain of fused multiply-adds in increasing k and the bias joins last. In float32 this is the order of the CPU
 * path; in float64, rounded once, it is that of formula/chain.h, whose segments are longer than any sum here. Terms from n to
 * TERMS are zeros, and a chain that began with +0 keeps its value. */
#include <algorithm>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/linalg/linalg.cuh"
#include "formula/chain.h"

namespace {

constexpr int THREADS = 128, LANES_MOST = 32, TURNS_MOST = 32;
constexpr int64_t SHARED_MOST = 32 << 10; /* for the rows of A: so that four blocks fit and more */

/* What a block has of each period: all of it, which is a row of whole quads or several others, or one row. */
enum class Part { WHOLE_QUADS, PERIOD, ROW };

struct FewTermsArgs {
    tl_matrix_product x;
    tl_fastdiv row_tiles, column_tiles, columns, lanes; /* columns: p; lanes: quads of a tile */
    uint32_t unit, quads, groups, turns;                /* quads: of a period, or of its row */
    uint32_t held;                                      /* rows of A in shared memory, whole eights */
    int64_t a_size, b_size, c_size;                     /* of a product's matrices */
};

/* Elements from one row of A in shared memory to the next: 16 bytes times an odd number, from eight on, so that four k of eight
 * rows lie in different banks. */
template <class Sum, int TERMS> constexpr int PITCH = TERMS == 4 ? 4 : TERMS + 16 / (int)sizeof(Sum);

/* ---- operands to shared memory: what does not exist is 0; a thread that reads it by registers reads the nearest that does ---- */

constexpr int AHEAD =
    8; /* elements of a thread on their way at once, of A; of B, which it has fewer of, all or twice as many */

/* Rows first .. first + held - 1 of the `rows` of A, `step` apart in memory, k from 0 to TERMS - 1. A thread owns a k, of every
 * APART-th row. Neighbouring ones read neighbouring elements of a row in memory; where rows lie across k (TA), eight rows of four
 * k, which are whole sectors. What is not widened goes past the registers (wait_for_copies), all of it at once. */
template <class Sum, int TERMS, bool TA>
__device__ __forceinline__ void stage_rows(const tl_matrix_product &x, const float *A, int64_t rows, int step,
                                           int64_t first, int held, Sum *as)
{
    constexpr int ACROSS = TA && TERMS > 16 ? 16 : TERMS, APART = THREADS / ACROSS;
    const int n = (int)x.n, thread = (int)threadIdx.x, length = TA ? step : step * n;
    const int low = first < 0 ? (int)-first : 0, high = (int)min(rows - first, (int64_t)held) - 1;
    A += first * length;
    TL_UNROLL_FOR (int k0 = 0; k0 < TERMS; k0 += ACROSS) {
        const int k = k0 + (TA ? thread / 32 % (ACROSS / 4) * 4 + thread % 32 / 8 : thread % ACROSS);
        const float *const from = TA ? A + min(k, n - 1) * x.m : A + min(k, n - 1);
        int i = TA ? thread / (8 * ACROSS) * 8 + thread % 8 : thread / ACROSS;
        if constexpr (sizeof(Sum) == sizeof(float)) {
#pragma unroll 4
            for (; i < held; i += APART) {
                const bool exists = k < n && i >= low && i <= high;
                tl_copy_async<4>(as + i * PITCH<Sum, TERMS> + k, exists ? from + i * length : x.A, exists);
            }
        } else {
#pragma unroll 1
            for (; i < held; i += AHEAD * APART) {
                float v[AHEAD];
                TL_UNROLL_FOR (int u = 0; u < AHEAD; u++) {
                    const int row = i + u * APART, near = min(max(row, low), high);
                    const float y = from[near * length];
                    v[u] = near == row && k < n ? y : 0.0f;
                }
                TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
                    if (i + u * APART < held) as[(i + u * APART) * PITCH<Sum, TERMS> + k] = (Sum)v[u];
            }
        }
    }
}

/* The columns of B of a tile of `width` elements in their order: TERMS rows, `pitch` apart. `column(i)` is that of element i,
 * p or more where there is none. A thread owns an element, or a k where rows in memory lie along k (TB). */
template <int TERMS, bool TB, class Column>
__device__ __forceinline__ void stage_columns(const tl_matrix_product &x, const float *B, int width, int pitch,
                                              float *bs, const Column &column)
{
    constexpr int COUNT = TERMS < 2 * AHEAD ? TERMS : 2 * AHEAD, APART = THREADS / TERMS;
    static_assert(4 * LANES_MOST <= THREADS && THREADS % TERMS == 0, "ownership");
    const int n = (int)x.n, thread = (int)threadIdx.x;
    const uint32_t p = (uint32_t)x.p;
    if constexpr (TB) {
        const int k = thread % TERMS;
        const float *const from = B + min(k, n - 1);
#pragma unroll 1
        for (int i = thread / TERMS; i < width; i += COUNT * APART) {
            float v[COUNT];
            TL_UNROLL_FOR (int u = 0; u < COUNT; u++) {
                const uint32_t col = column(i + u * APART);
                const float y = from[(uint64_t)min(col, p - 1) * (uint32_t)n];
                v[u] = k < n && col < p ? y : 0.0f;
            }
            TL_UNROLL_FOR (int u = 0; u < COUNT; u++)
                if (i + u * APART < width) bs[k * pitch + i + u * APART] = v[u];
        }
    } else if (thread < width) {
        const uint32_t col = column(thread);
        const float *const from = B + min(col, p - 1);
#pragma unroll 1
        for (int k = 0; k < TERMS; k += COUNT) {
            float v[COUNT];
            TL_UNROLL_FOR (int u = 0; u < COUNT; u++) {
                const float y = from[(uint64_t)(uint32_t)min(k + u, n - 1) * p];
                v[u] = k + u < n && col < p ? y : 0.0f;
            }
            TL_UNROLL_FOR (int u = 0; u < COUNT; u++)
                bs[(k + u) * pitch + thread] = v[u];
        }
    }
}

/* All operands are in shared memory. */
__device__ __forceinline__ void wait_for_copies()
{
    tl_copy_commit();
    tl_copy_wait<0>();
    __syncthreads();
}

/* ---- quads --------------------------------------------------------------------------------------------------------- */

/* sum[e] = the chain over a[e], a row of A in shared memory `below` elements further on; without TWO_ROWS all are the same. */
template <class Sum, int TERMS, bool TWO_ROWS>
__device__ __forceinline__ void multiply_quad(const Sum *const (&a)[4], int below, const Sum (&b)[TERMS][4],
                                              Sum (&sum)[4])
{
    constexpr int STEP = 16 / sizeof(Sum);
    using Vector = std::conditional_t<sizeof(Sum) == 4, float4, double2>;
    TL_UNROLL_FOR (int k0 = 0; k0 < TERMS; k0 += STEP) {
        Sum v[TWO_ROWS ? 4 : 1][STEP];
        TL_UNROLL_FOR (int e = 0; e < (TWO_ROWS ? 4 : 1); e++) {
            const Vector q = *reinterpret_cast<const Vector *>(a[e] + below + k0);
            v[e][0] = q.x, v[e][1] = q.y;
            if constexpr (STEP == 4) v[e][2] = q.z, v[e][3] = q.w;
        }
        TL_UNROLL_FOR (int k = 0; k < STEP; k++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                if constexpr (STEP == 4)
                    sum[e] = fmaf(v[TWO_ROWS ? e : 0][k], b[k0 + k][e], sum[e]);
                else
                    sum[e] = fma(v[TWO_ROWS ? e : 0][k], b[k0 + k][e], sum[e]);
            }
    }
}

/* Blocks of a multiprocessor, which limit registers: a quad's columns of B take as many as TERMS·sizeof(Sum). */
template <class Sum, int TERMS>
constexpr int BLOCKS = TERMS * sizeof(Sum) == 128  ? 3
                       : TERMS * sizeof(Sum) == 64 ? 4
                                                   : 5;

template <class Sum, int TERMS, Part PART>
__global__ void __launch_bounds__(THREADS, BLOCKS<Sum, TERMS>)
    few_terms_kernel(const __grid_constant__ FewTermsArgs args)
{
    TL_DYNAMIC_SHARED(unsigned char, few_terms_shared);
    constexpr int ROW = PITCH<Sum, TERMS>;
    constexpr bool RAGGED = PART == Part::PERIOD, SINGLE = PART == Part::ROW;
    const tl_matrix_product &x = args.x;
    Sum *const as = reinterpret_cast<Sum *>(few_terms_shared);
    float *const bs = reinterpret_cast<float *>(as + args.held * ROW);
    /* rows of a period: in C, and of A in shared memory */
    const uint32_t rows_in_c = RAGGED || SINGLE ? args.unit : 1, unit = RAGGED ? args.unit : 1;
    const uint32_t lanes = args.lanes.divisor, period = rows_in_c * (uint32_t)x.p;
    const uint32_t own = SINGLE ? blockIdx.x & (rows_in_c - 1) : 0; /* the block's row of each */
    const uint32_t halvings = rows_in_c / 2;                        /* of 1, 2 and 4 to 1 */
    uint32_t column_tile, row_tile;
    const uint32_t tile = args.column_tiles.divmod(SINGLE ? blockIdx.x >> halvings : blockIdx.x, &column_tile);
    const int64_t product = args.row_tiles.divmod(tile, &row_tile);
    const int64_t period0 = (int64_t)row_tile * (args.groups * args.turns);
    float *const C = x.C + product * args.c_size + (int64_t)own * x.p;
    const uint32_t shift =
        PART == Part::WHOLE_QUADS ? 0 : (uint32_t)((uintptr_t)C / sizeof(float) % 4); /* C starts within a quad */
    const uint32_t quad0 = column_tile * lanes, pitch = 4 * lanes + 4;
    tl_wait_for_earlier(x.order);

    /* A quad that starts before its period has elements of the one before. */
    const int64_t first = unit * (period0 - RAGGED), rows = SINGLE ? (x.m + rows_in_c - 1 - own) >> halvings : x.m;
    const float *const A = x.A + product * args.a_size + (x.ta ? own : own * x.n);
    const float *const B = x.B + product * args.b_size;
    const auto column = [&](int i) {
        uint32_t col = 4 * quad0 + (uint32_t)i - (SINGLE ? shift : 0); /* before the first: beyond the last */
        if constexpr (RAGGED) args.columns.divmod(col + period - shift, &col);
        return col;
    };
    const int step_in_a = SINGLE ? (int)rows_in_c : 1;
    if (x.ta)
        stage_rows<Sum, TERMS, true>(x, A, rows, step_in_a, first, (int)args.held, as);
    else
        stage_rows<Sum, TERMS, false>(x, A, rows, step_in_a, first, (int)args.held, as);
    if (x.tb)
        stage_columns<TERMS, true>(x, B, (int)(4 * lanes), (int)pitch, bs, column);
    else
        stage_columns<TERMS, false>(x, B, (int)(4 * lanes), (int)pitch, bs, column);
    wait_for_copies();

    uint32_t lane;
    const uint32_t group = args.lanes.divmod(threadIdx.x, &lane), quad = quad0 + lane;
    const bool owns = group < args.groups && quad < args.quads;
    uint32_t col = 4 * quad - (SINGLE ? shift : 0);
    int bottom =
        (int)(unit * group); /* the row of an element among those in shared memory, at last of the quad's last */
    if constexpr (RAGGED) bottom += (int)args.columns.divmod(col + period - shift, &col);
    const int top = bottom;
    const bool two_rows = RAGGED && __any_sync(0xffffffffu, owns && col + 3 >= x.p); /* of a quad of the warp */
    const uint32_t col0 = col, p = (uint32_t)x.p;
    const bool inside = !SINGLE || (col0 < p && col0 + 3 < p);
    if (owns) {
        Sum b[TERMS][4], bias[4]; /* -0 is the bias that changes nothing */
        const Sum *a[4];
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            if (RAGGED && col == p) col = 0, bottom++;
            a[e] = as + bottom * ROW;
            bias[e] = x.bias && (!SINGLE || col < p) ? (Sum)x.bias[col] : (Sum)-0.0f;
            col++;
        }
        TL_UNROLL_FOR (int k = 0; k < TERMS; k++) {
            float v[4];
            tl_load4(bs + k * pitch + 4 * lane, v);
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                b[k][e] = (Sum)v[e];
        }
        /* Rows of C: of those in shared memory the ones from `start` to `end`. */
        const int start = first < 0 ? (int)unit : 0, end = (int)min(rows - first, (int64_t)INT32_MAX);
        const int step = (int)(args.groups * unit), last = min(end, top + step * (int)args.turns);
        float *to = C + ((period0 + group) * period + 4 * quad - shift);
        const int64_t apart = (int64_t)args.groups * period;
#pragma unroll(TERMS * sizeof(Sum) < 64 ? 2 : 1)
        for (int down = 0; top + down < last; down += step, to += apart) {
            Sum sum[4] = {};
            if (two_rows)
                multiply_quad<Sum, TERMS, true>(a, down * ROW, b, sum);
            else
                multiply_quad<Sum, TERMS, false>(a, down * ROW, b, sum);
            float y[4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                y[e] = (float)(sum[e] + bias[e]);
            if (RAGGED ? top + down >= start && bottom + down < end : inside) {
                tl_store4(to, y);
            } else if constexpr (SINGLE) {
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    if (col0 + e < p) to[e] = y[e];
            } else if constexpr (RAGGED) {
                TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                    const int own = (int)(a[e] - as) / ROW + down;
                    if (own >= start && own < end) to[e] = y[e];
                }
            }
        }
    }
    tl_wait_at_end(x.order);
}

/* ---- single columns of long rows --------------------------------------------------------------------------------------- */

constexpr int64_t NARROW = 32;

struct LongRowsArgs {
    tl_matrix_product x;
    tl_fastdiv row_tiles, column_tiles;
    int lane_bits; /* lanes of a row, 16 or 32, as a power of 2 */
    int turns;     /* rows of a lane */
    int64_t a_size, b_size, c_size;

    /* Rows of a warp side by side. */
    __host__ __device__ int side() const { return 32 >> lane_bits; }
    /* Rows of a block in shared memory, whole eights. */
    __host__ __device__ int held() const { return (THREADS / 32 * side() * turns + 7) / 8 * 8; }
};

/* Elements from one k to the next of B in shared memory, odd, so that neighbouring k of a column lie in different banks. */
template <int COLUMNS> __host__ __device__ __forceinline__ int columns_pitch(int lane_bits)
{
    return (COLUMNS << lane_bits) + 1;
}

/* Starts copying the columns of B from `col0` on. A thread owns the columns that it multiplies, of every so many-th k, or one k where
 * rows in memory lie along k (TB). */
template <int TERMS, int COLUMNS, bool TB>
__device__ __forceinline__ void copy_columns(const LongRowsArgs &args, const float *B, int64_t col0, float *bs)
{
    const int n = (int)args.x.n, thread = (int)threadIdx.x, lanes = 1 << args.lane_bits;
    const int pitch = columns_pitch<COLUMNS>(args.lane_bits);
    const int exist = (int)min(args.x.p - col0, (int64_t)COLUMNS * lanes);
    if constexpr (TB) {
        const int k = thread % TERMS;
        const float *const from = B + col0 * n + k;
#pragma unroll 4
        for (int i = thread / TERMS; i < COLUMNS * lanes; i += THREADS / TERMS) {
            const bool exists = k < n && i < exist;
            tl_copy_async<4>(bs + k * pitch + i, exists ? from + i * n : B, exists);
        }
    } else {
        const int col = thread & (lanes - 1);
        const float *const from = B + col0 + col;
#pragma unroll 4
        for (int k = thread >> args.lane_bits; k < TERMS; k += THREADS >> args.lane_bits)
            TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++) {
                const int i = col + c * lanes;
                const bool exists = k < n && i < exist;
                tl_copy_async<4>(bs + k * pitch + i, exists ? from + k * args.x.p + c * lanes : B, exists);
            }
    }
}

/* Blocks of a multiprocessor, which limit registers: the columns of B take `registers`. */
constexpr int long_rows_blocks(int registers) { return registers > 72 ? 3 : 4; }

/* A lane owns COLUMNS columns, as many apart as lanes have a row, in registers, and of the rows that the block has in shared memory
 * every so many-th; its warp reads one or two rows of A at a time. Of the TERMS terms there the first USED are added, of which one is
 * 0 unless these are all. */
template <class Sum, int TERMS, int USED, int COLUMNS>
__global__ void __launch_bounds__(THREADS, long_rows_blocks(USED * COLUMNS * (int)sizeof(Sum) / 4))
    long_rows_kernel(const __grid_constant__ LongRowsArgs args)
{
    TL_DYNAMIC_SHARED(unsigned char, few_terms_shared);
    constexpr int ROW = PITCH<Sum, TERMS>, STEP = 16 / sizeof(Sum), WARPS = THREADS / 32;
    using Vector = std::conditional_t<sizeof(Sum) == 4, float4, double2>;
    const tl_matrix_product &x = args.x;
    const int held = args.held(), lanes = 1 << args.lane_bits, side = args.side();
    Sum *const as = reinterpret_cast<Sum *>(few_terms_shared);
    float *const bs = reinterpret_cast<float *>(as + held * ROW);
    uint32_t column_tile, row_tile;
    const int64_t product = args.row_tiles.divmod(args.column_tiles.divmod(blockIdx.x, &column_tile), &row_tile);
    const int64_t row0 = (int64_t)row_tile * (WARPS * side * args.turns), col0 = (int64_t)column_tile * COLUMNS * lanes;
    const float *const A = x.A + product * args.a_size, *const B = x.B + product * args.b_size;
    tl_wait_for_earlier(x.order);

    if (x.tb)
        copy_columns<TERMS, COLUMNS, true>(args, B, col0, bs);
    else
        copy_columns<TERMS, COLUMNS, false>(args, B, col0, bs);
    if (x.ta)
        stage_rows<Sum, TERMS, true>(x, A, x.m, 1, row0, held, as);
    else
        stage_rows<Sum, TERMS, false>(x, A, x.m, 1, row0, held, as);
    wait_for_copies();

    const int lane = (int)threadIdx.x % 32, col = lane & (lanes - 1);
    const int exist = (int)min(x.p - col0, (int64_t)COLUMNS * lanes) - col;
    Sum b[USED][COLUMNS], bias[COLUMNS]; /* -0 is the bias that changes nothing */
    const float *const from = bs + col;
    TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++) {
        bias[c] = x.bias && c * lanes < exist ? (Sum)x.bias[col0 + col + c * lanes] : (Sum)-0.0f;
        TL_UNROLL_FOR (int k = 0; k < USED; k++)
            b[k][c] = (Sum)from[k * columns_pitch<COLUMNS>(args.lane_bits) + c * lanes];
    }
    const int first = (int)threadIdx.x / 32 * side + (lane >> args.lane_bits), step = WARPS * side;
    const int end = (int)min(x.m - row0, (int64_t)step * args.turns);
    float *to = x.C + product * args.c_size + (row0 + first) * x.p + col0 + col;
    const Sum *a = as + first * ROW;
#pragma unroll 1
    for (int row = first; row < end; row += step, a += step * ROW, to += step * x.p) {
        Sum sum[COLUMNS] = {};
        TL_UNROLL_FOR (int k0 = 0; k0 < USED; k0 += STEP) {
            const Vector q = *reinterpret_cast<const Vector *>(a + k0);
            Sum v[STEP];
            v[0] = q.x, v[1] = q.y;
            if constexpr (STEP == 4) v[2] = q.z, v[3] = q.w;
            TL_UNROLL_FOR (int k = 0; k < STEP; k++)
                TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++) {
                    if constexpr (STEP == 4)
                        sum[c] = fmaf(v[k], b[k0 + k][c], sum[c]);
                    else
                        sum[c] = fma(v[k], b[k0 + k][c], sum[c]);
                }
        }
        TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++)
            if (c * lanes < exist) to[c * lanes] = (float)(sum[c] + bias[c]);
    }
    tl_wait_at_end(x.order);
}

/* ---- launches --------------------------------------------------------------------------------------------------------- */

/* Turns of blocks that have `blocks` for each turn: a dozen blocks for each multiprocessor, of which some read while others write; then
 * fewer that read each less often, up to `room`, as long as the rows of A have room. */
int64_t turns_most(tl_context *ctx, int64_t blocks, int64_t room)
{
    return std::max<int64_t>(1, std::min<int64_t>({blocks / (12 * (int64_t)tl_cuda_sms(ctx)), room, TURNS_MOST}));
}

template <class Sum, int TERMS, int USED, int COLUMNS>
int32_t launch_columns(tl_context *ctx, const tl_matrix_product &x, int lane_bits)
{
    constexpr int64_t ROW = PITCH<Sum, TERMS> * sizeof(Sum);
    LongRowsArgs args = {x, {}, {}, lane_bits, 1, x.m * x.n, x.n * x.p, x.m * x.p};
    const int64_t each = THREADS / 32 * args.side(), column_tiles = tl_ceil_div(x.p, COLUMNS << lane_bits);
    const int64_t all = tl_ceil_div(x.m, each); /* turns of a column tile */
    const int64_t row_tiles =
        tl_ceil_div(all, turns_most(ctx, x.batch * column_tiles * all, SHARED_MOST / (each * ROW)));
    args.turns = (int)tl_ceil_div(all, row_tiles);
    args.row_tiles = tl_fastdiv((uint64_t)row_tiles), args.column_tiles = tl_fastdiv((uint64_t)column_tiles);
    const size_t shared =
        (size_t)(args.held() * ROW + TERMS * columns_pitch<COLUMNS>(lane_bits) * (int64_t)sizeof(float));
    const auto kernel = long_rows_kernel<Sum, TERMS, USED, COLUMNS>;
    TL_TRY(tl_allow_shared(ctx, kernel, shared));
    return tl_launch_ahead(ctx, "few_terms", kernel, (unsigned)(x.batch * row_tiles * column_tiles), THREADS, shared,
                           args);
}

/* Three or four columns of a lane, of 16 or 32 lanes: those that cover a row with the least that is not there, and of these the
 * most. */
template <class Sum, int TERMS, int USED> int32_t launch_long_rows(tl_context *ctx, const tl_matrix_product &x)
{
    int64_t least = 0, columns = 0, bits = 0;
    for (int lane_bits = 5; lane_bits >= 4; lane_bits--)
        for (int c = 4; c >= 3; c--) {
            const int64_t covered = tl_ceil_div(x.p, c << lane_bits) * (c << lane_bits);
            if (least == 0 || covered < least) least = covered, columns = c, bits = lane_bits;
        }
    return columns == 4 ? launch_columns<Sum, TERMS, USED, 4>(ctx, x, (int)bits)
                        : launch_columns<Sum, TERMS, USED, 3>(ctx, x, (int)bits);
}

template <class Sum, int TERMS, Part PART> int32_t launch_part(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr bool RAGGED = PART == Part::PERIOD, SINGLE = PART == Part::ROW;
    const int64_t unit = x.p % 4 == 0 ? 1 : x.p % 2 == 0 ? 2 : 4, period = unit * x.p;
    const int64_t quads = SINGLE ? tl_ceil_div(x.p + 3, 4) : period / 4, blocks_each = SINGLE ? unit : 1;
    const int64_t periods = RAGGED ? tl_ceil_div(x.m * x.p + 3, period) : tl_ceil_div(x.m, unit);
    const int64_t held_each = RAGGED ? unit : 1; /* rows of A of a period */
    const int64_t column_tiles = tl_ceil_div(quads, LANES_MOST), lanes = tl_ceil_div(quads, column_tiles);
    const int64_t groups = std::min(THREADS / lanes, periods);
    /* Turns: a dozen blocks for each multiprocessor, of which some read while others write; then fewer that read each less often,
     * as long as the rows of A have room; and the same for all blocks. */
    constexpr int64_t ROW = PITCH<Sum, TERMS> * sizeof(Sum);
    const int64_t blocks =
        tl_ceil_div(x.batch * blocks_each * periods * quads, 12 * (int64_t)tl_cuda_sms(ctx) * THREADS);
    const int64_t room = (SHARED_MOST / (held_each * ROW) - RAGGED) / groups;
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>({blocks, room, TURNS_MOST}));
    const int64_t row_tiles = tl_ceil_div(periods, groups * most), turns = tl_ceil_div(periods, groups * row_tiles);
    const int64_t held = tl_ceil_div(held_each * (groups * turns + RAGGED), 8) * 8;
    const FewTermsArgs args = {x,
                               tl_fastdiv((uint64_t)row_tiles),
                               tl_fastdiv((uint64_t)column_tiles),
                               tl_fastdiv((uint64_t)x.p),
                               tl_fastdiv((uint64_t)lanes),
                               (uint32_t)unit,
                               (uint32_t)quads,
                               (uint32_t)groups,
                               (uint32_t)turns,
                               (uint32_t)held,
                               x.m * x.n,
                               x.n * x.p,
                               x.m * x.p};
    const size_t shared = (size_t)(held * ROW + TERMS * (4 * lanes + 4) * (int64_t)sizeof(float));
    const auto kernel = few_terms_kernel<Sum, TERMS, PART>;
    TL_TRY(tl_allow_shared(ctx, kernel, shared));
    return tl_launch_ahead(ctx, "few_terms", kernel, (unsigned)(x.batch * row_tiles * column_tiles * blocks_each),
                           THREADS, shared, args);
}

/* One row of each period where a tile has less than one, or where reading two rows of A takes longer than writing. */
template <class Sum, int TERMS> int32_t launch(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr bool SINGLE = TERMS * sizeof(Sum) >= 64;
    if (x.p % 4 == 0 && tl_aligned4(x.C)) return launch_part<Sum, TERMS, Part::WHOLE_QUADS>(ctx, x);
    if constexpr (SINGLE) {
        if constexpr (sizeof(Sum) == sizeof(float))
            if (x.p > NARROW && tl_row_tiles_serve(ctx, x)) return tl_row_tiles_multiply(ctx, x);
        if constexpr (TERMS == 32)
            if (x.n < 24 && x.p > NARROW) return launch_long_rows<Sum, TERMS, 24>(ctx, x);
        if (x.p > NARROW) return launch_long_rows<Sum, TERMS, TERMS>(ctx, x);
    } else {
        if (x.p < 4 * LANES_MOST) return launch_part<Sum, TERMS, Part::PERIOD>(ctx, x);
    }
    return launch_part<Sum, TERMS, Part::ROW>(ctx, x);
}

} /* namespace */

/* Rows and columns enough for a quad each; of a batch, products that give most threads of a block a quad; positions of two
 * periods in 32 bits, and the blocks of as many results as there is memory for. */
bool tl_few_terms_serves(const tl_matrix_product &x, bool float64)
{
    return x.n <= (float64 ? TL_FEW_TERMS / 2 : TL_FEW_TERMS) && x.m >= 4 && x.p >= 4 &&
           (x.batch == 1 || x.m * x.p >= 4 * THREADS) && x.p < 1 << 28 && !(x.ta && x.tb) &&
           x.batch * x.m * x.p < (int64_t)1 << 38;
}

int32_t tl_few_terms_multiply(tl_context *ctx, const tl_matrix_product &x, bool float64)
{
    if (float64)
        return x.n <= 4 ? launch<double, 4>(ctx, x) : x.n <= 8 ? launch<double, 8>(ctx, x) : launch<double, 16>(ctx, x);
    return x.n <= 4    ? launch<float, 4>(ctx, x)
           : x.n <= 8  ? launch<float, 8>(ctx, x)
           : x.n <= 16 ? launch<float, 16>(ctx, x)
                       : launch<float, 32>(ctx, x);
}
