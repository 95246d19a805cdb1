/* Real transforms of lengths with a large prime on CUDA in the mode `fast`, by Bluestein's convolution with a chirp w_t = e^(-i·pi·t²/n):
 *     X[-k] = w_k·Σ_t (x_t·w_t)·conj(w_(-k-t)).
 * Half a spectrum is all that is asked for, or given: n numbers become n/2 + 1, or those n, so that the convolution needs m >= n + n/2
 * places, not 2n - 1; rows of even length that fit shared memory need n - 1 (spectral/even.cu), and the shortest none
 * (spectral/short.cu). With t about 0 the chirp's numbers t and -t are one. Rows are transformed alone, as a pair in one complex
 * transform would share what is not finite, and the larger one's roundings.
 *
 * A convolution of up to WHOLE_MOST numbers stays in a block's shared memory: device memory sees a row once, and its result. Longer ones,
 * and those of fewer rows than there are SMs, are three kernels over a matrix of TL_FFT_HALF_COLUMN rows, as four steps: columns with
 * the chirp; rows, the product, and rows back; columns back with the chirp. The matrices of a piece of the batch stay in the L2
 * cache.
 *
 * A row one of whose elements is not finite becomes NaN. */
#include "cuda/spectral/in_place.cuh"
#include "cuda/spectral/plan.cuh"

namespace {

/* Columns of a block, 128 bytes side by side, and its threads, one for each butterfly of radix 16. */
constexpr int COLUMNS = 16, COLUMN_THREADS = COLUMNS * TL_FFT_HALF_COLUMN / 16;
/* The longest row of a matrix, and the numbers that longest matrix has. */
constexpr int64_t MOST_COLUMNS = 8192, MOST_LENGTH = MOST_COLUMNS * TL_FFT_HALF_COLUMN;
/* Matrices of a piece: they, their tables and their rows pass through an L2 of 50 MB. */
constexpr int64_t PIECE_BYTES = (int64_t)24 << 20;

using Real = tl_own_real_rows;

/* ---- rows as they enter and leave -------------------------------------------------------------------------------- */

/* A row, and whether it becomes NaN. */
template <bool INVERSE> struct Row {
    const float2 *chirp, *table;
    const float *from;
    float *to;
    int *bad;
    int n, m;
    float edge, inner;

    __device__ __forceinline__ Row(const tl_own_plan &plan, const Real &t, int64_t row, int *of_row)
        : chirp(reinterpret_cast<const float2 *>(plan.chirp)), table(reinterpret_cast<const float2 *>(plan.kernel)),
          from(t.from + row * (INVERSE ? 2 * t.bins : t.n)), to(t.to + row * (INVERSE ? t.n : 2 * t.bins)), bad(of_row),
          n((int)t.n), m((int)plan.m), edge(t.edge), inner(t.inner)
    {}

    __device__ __forceinline__ const float2 *kernel() const { return table; }

    /* Number i + span·j of what the convolution takes: a number of the row times the chirp, or 0, for which number 1 is read and
     * multiplied by 0, so that all are on their way at once: where that is not finite, the row becomes NaN anyway. */
    template <int R> __device__ __forceinline__ bool enter(int i, int span, tl_complex (&a)[R]) const
    {
        using Number = std::conditional_t<INVERSE, float2, float>;
        const int h = n / 2, last = INVERSE ? h : (n - 1) / 2, gap = m - n;
        float2 w[R];
        Number v[R];
        TL_UNROLL_FOR (int j = 0; j < R; j++) {
            const int u = i + span * j;
            const uint32_t distance = min(INVERSE ? u : min(u, m - u), h);
            const uint32_t at = u <= last ? u : INVERSE ? 1 : max(u - gap, 1);
            w[j] = chirp[distance];
            v[j] = reinterpret_cast<const Number *>(from)[at];
        }
        bool wrong = false;
        TL_UNROLL_FOR (int j = 0; j < R; j++) {
            const int u = i + span * j;
            if constexpr (INVERSE) {
                const bool end = u == 0 || 2 * u == n;
                const float factor = u > last ? 0.0f : end ? edge : 2.0f * inner, part = end ? 0.0f : v[j].y;
                wrong |= tl_not_finite(v[j].x) || tl_not_finite(part);
                a[j] = turned(tl_complex_of(v[j].x * factor, -(part * factor)), tl_complex_of(w[j].x, w[j].y));
            } else {
                const float x = u <= last || u >= m - h ? v[j] : v[j] * 0.0f;
                wrong |= tl_not_finite(x);
                a[j] = tl_complex_of(x * w[j].x, x * w[j].y);
            }
        }
        return !wrong;
    }
    __device__ __forceinline__ void spoil() const { *bad = 1; }

    /* Numbers of the convolution, the parts exchanged, as they become numbers of the result: the chirp's are read four at a time. */
    template <int R> __device__ __forceinline__ void leave(int i, int span, const tl_complex (&a)[R]) const
    {
        constexpr int STEP = 4;
        const int last = INVERSE ? n / 2 : 0, first = m - (INVERSE ? (n - 1) / 2 : n / 2), gap = m - n;
        const bool poisoned = *bad != 0;
        TL_UNROLL_FOR (int from_j = 0; from_j < R; from_j += STEP) {
            float2 w[STEP];
            TL_UNROLL_FOR (int j = from_j; j < R && j < from_j + STEP; j++) {
                const int u = i + span * j;
                w[j - from_j] = make_float2(0.0f, 0.0f);
                if (u <= last || u >= first) w[j - from_j] = chirp[u <= last ? u : m - u];
            }
            TL_UNROLL_FOR (int j = from_j; j < R && j < from_j + STEP; j++) {
                const int u = i + span * j;
                if (u <= last || u >= first) write(u <= last, u, gap, poisoned, a[j], w[j - from_j]);
            }
        }
    }

    __device__ __forceinline__ void write(bool ahead, int u, int gap, bool poisoned, tl_complex v, float2 w) const
    {
        const float r = fmaf(v.i, w.x, -(v.r * w.y)), i = -fmaf(v.i, w.y, v.r * w.x);
        if constexpr (INVERSE) {
            to[ahead ? u : u - gap] = poisoned ? TL_NAN : r;
        } else {
            const int k = ahead ? u : m - u;
            const bool end = k == 0 || 2 * k == n;
            const float factor = end ? edge : inner;
            reinterpret_cast<float2 *>(to)[k] = poisoned ? make_float2(TL_NAN, TL_NAN)
                                                         : make_float2(r * factor, end ? 0.0f : i * factor);
        }
    }
};

/* ---- in one piece ------------------------------------------------------------------------------------------------ */

/* A block owns `count` rows. */
template <bool INVERSE>
__global__ void __launch_bounds__(MOST_THREADS)
    whole_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    __shared__ int bad[MOST_ROWS];
    const int64_t first = (int64_t)blockIdx.x * count;
    const int rows = begin_rows(t.batch, first, count, bad);
    convolve(plan.direct, [&](int c) { return Row<INVERSE>(plan, t, first + c, bad + c); }, rows, memory);
}

/* ---- as a matrix ------------------------------------------------------------------------------------------------- */

/* A block owns COLUMNS columns of a row's matrix, a thread a butterfly of one of them in each pass: of numbers 16 apart of every
 * column, then of neighbours, or the other way round. */
template <bool INVERSE>
__global__ void __launch_bounds__(COLUMN_THREADS, 3)
    columns_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, float2 *matrix, int *bad,
                   int groups)
{
    __shared__ float2 x[TL_FFT_HALF_COLUMN * COLUMNS];
    const int n2 = plan.rows.n, lane = threadIdx.x % COLUMNS, p = threadIdx.x / COLUMNS;
    const int64_t row = blockIdx.x / groups;
    const int column = (int)(blockIdx.x % groups) * COLUMNS + lane;
    tl_complex a[16];
    const Row<INVERSE> own(plan, t, row, bad + row);
    if (!own.enter(p * n2 + column, 16 * n2, a)) own.spoil();
    butterfly(a);
    turn(a, plan.direct.twiddle, 16, p);
    TL_UNROLL_FOR (int j = 0; j < 16; j++)
        put(x, (p + 16 * j) * COLUMNS + lane, a[j]);
    __syncthreads();
    TL_UNROLL_FOR (int j = 0; j < 16; j++)
        a[j] = take(x, (16 * p + j) * COLUMNS + lane);
    butterfly(a);
    float2 *const to = matrix + (row * TL_FFT_HALF_COLUMN + 16 * p) * n2 + column;
    TL_UNROLL_FOR (int j = 0; j < 16; j++)
        put(to, j * n2, a[j]);
}

template <bool INVERSE>
__global__ void __launch_bounds__(COLUMN_THREADS, 3)
    columns_back_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t,
                        const float2 *__restrict__ matrix, int *bad, int groups)
{
    __shared__ float2 x[TL_FFT_HALF_COLUMN * COLUMNS];
    const int n2 = plan.rows.n, lane = threadIdx.x % COLUMNS, p = threadIdx.x / COLUMNS;
    const int64_t row = blockIdx.x / groups;
    const int column = (int)(blockIdx.x % groups) * COLUMNS + lane;
    const float2 *const from = matrix + (row * TL_FFT_HALF_COLUMN + 16 * p) * n2 + column;
    tl_complex a[16];
    TL_UNROLL_FOR (int j = 0; j < 16; j++)
        a[j] = take(from, j * n2);
    butterfly(a);
    TL_UNROLL_FOR (int j = 0; j < 16; j++)
        put(x, (16 * p + j) * COLUMNS + lane, a[j]);
    __syncthreads();
    TL_UNROLL_FOR (int j = 0; j < 16; j++)
        a[j] = take(x, (p + 16 * j) * COLUMNS + lane);
    turn(a, plan.direct.twiddle, 16, p);
    butterfly(a);
    Row<INVERSE>(plan, t, row, bad + row).leave(p * n2 + column, 16 * n2, a);
}

/* A row of a matrix: its numbers are turned where they enter and where they leave. */
struct MatrixRow {
    float2 *numbers;
    const float2 *roots, *table;

    __device__ __forceinline__ const float2 *kernel() const { return table; }
    template <int R> __device__ __forceinline__ bool enter(int i, int span, tl_complex (&a)[R]) const
    {
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            a[j] = turned(take(numbers, i + span * j), take(roots, i + span * j));
        return true; /* the columns have looked */
    }
    __device__ __forceinline__ void spoil() const {}
    template <int R> __device__ __forceinline__ void leave(int i, int span, const tl_complex (&a)[R]) const
    {
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            put(numbers, i + span * j, turned(a[j], take(roots, i + span * j)));
    }
};

/* A block owns `count` rows. The rows at the same place of all matrices, which have the same roots and the same kernel, come one after
 * the other. */
__global__ void __launch_bounds__(MOST_THREADS)
    matrix_rows_kernel(const __grid_constant__ tl_own_plan plan, float2 *matrix, tl_fastdiv matrices, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    const int first = (int)blockIdx.x * count, all = (int)matrices.divisor * TL_FFT_HALF_COLUMN;
    auto row_of = [&](int c) {
        uint32_t which;
        const int64_t place = matrices.divmod((uint32_t)(first + c), &which), n = plan.rows.n;
        return MatrixRow{matrix + ((int64_t)which * TL_FFT_HALF_COLUMN + place) * n, plan.turns + place * n,
                         reinterpret_cast<const float2 *>(plan.kernel) + place * n};
    };
    convolve(plan.rows, row_of, all - first < count ? all - first : count, memory);
}

template <bool INVERSE> int32_t by_matrices(tl_context *ctx, const tl_own_plan &plan, const Real &t)
{
    const int64_t bytes = plan.m * (int64_t)sizeof(float2);
    const int64_t count = tl_ceil_div(t.batch, std::min(t.batch, tl_ceil_div(t.batch * bytes, PIECE_BYTES)));
    const int groups = plan.rows.n / COLUMNS;
    tl_scratch<float2> matrix(ctx);
    TL_TRY(matrix.allocate(count * plan.m));
    tl_scratch<int> bad(ctx);
    TL_TRY(bad.allocate(t.batch));
    TL_CUDA_TRY(ctx, cudaMemsetAsync(bad, 0, (size_t)t.batch * sizeof(int), tl_cuda_stream(ctx)));
    for (int64_t first = 0; first < t.batch; first += count) {
        Real part = t;
        part.batch = std::min(count, t.batch - first);
        part.from += first * (INVERSE ? 2 * t.bins : t.n);
        part.to += first * (INVERSE ? t.n : 2 * t.bins);
        const unsigned grid = tl_grid(part.batch * groups, 1);
        TL_TRY(tl_launch(ctx, "chirp columns", columns_kernel<INVERSE>, grid, COLUMN_THREADS, plan, part, matrix,
                         bad + first, groups));
        TL_TRY(launch_rows<Padded>(ctx, "chirp rows", matrix_rows_kernel, plan.rows.n, part.batch * TL_FFT_HALF_COLUMN,
                                   plan, matrix, tl_fastdiv(part.batch)));
        TL_TRY(tl_launch(ctx, "chirp columns", columns_back_kernel<INVERSE>, grid, COLUMN_THREADS, plan, part, matrix,
                         bad + first, groups));
    }
    return TORCHLEAN_OK;
}

template <bool INVERSE> int32_t run(tl_context *ctx, const tl_own_plan &plan, const Real &t)
{
    return plan.four_step ? by_matrices<INVERSE>(ctx, plan, t)
                          : launch_rows<Padded>(ctx, "chirp rows", whole_kernel<INVERSE>, plan.m, t.batch, plan, t);
}

/* Whether rows are convolved as matrices: see above, and where a block has not so much shared memory. One of up to BLOCK_NUMBERS numbers
 * is in one piece whatever the number of rows. */
int32_t choose(tl_context *ctx, const Real &t, bool *matrix)
{
    const int64_t numbers = t.n + t.n / 2;
    int64_t longest = 0;
    TL_TRY(find_longest_whole(ctx, &longest));
    *matrix = numbers > longest || (numbers > BLOCK_NUMBERS && t.batch < tl_cuda_sms(ctx));
    return TORCHLEAN_OK;
}

/* The primes that cuFFT transforms directly, and those of which odd lengths may consist (spectral/odd.cu, cuFFT), where it would take
 * a complex row for each real one. */
constexpr int64_t DIRECT_PRIMES = 127, SMALL_PRIMES = 13;

} /* namespace */

bool tl_half_serves(int64_t n)
{
    int64_t rest = n;
    for (int64_t p = 2, most = n % 2 ? SMALL_PRIMES : DIRECT_PRIMES; p <= most; p++)
        while (rest % p == 0)
            rest /= p;
    return rest > 1 && n + n / 2 <= MOST_LENGTH;
}

int32_t tl_half_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse)
{
    if (t.batch == 0) return TORCHLEAN_OK;
    if (tl_short_serves(t.n)) return tl_short_real(ctx, t, inverse);
    bool even = false, matrix = false;
    TL_TRY(tl_even_serves(ctx, t, &even));
    if (even) return tl_even_real(ctx, t, inverse);
    TL_TRY(choose(ctx, t, &matrix));
    tl_own_plan plan;
    TL_TRY(tl_half_find(ctx, t.n, matrix, &plan));
    return inverse ? run<true>(ctx, plan, t) : run<false>(ctx, plan, t);
}
