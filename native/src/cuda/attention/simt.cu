/* Attention on CUDA by the float32 units, forward, of few queries, or of long rows and few keys. What takes time is to read K and V
 * once, so the keys of a member are cut into parts, and each part is a block's work; a second kernel joins the parts. How keys are
 * cut depends on their number alone, so that a row's result does not depend on the batch.
 *
 * A block has up to MAX_ROWS rows, fewer where there would be too few blocks; more blocks take further rows. It goes over
 * its keys three times. Scores: SUBS threads share a key and read its row side by side, each its elements of every row of
 * Q, which lies in shared memory; SUBS partial products end in a tree, which leaves the scores of different rows to the
 * threads.
 * Weights: a warp owns a row. Values: a thread owns VECTOR columns of all rows and every G-th key, G = THREADS /
 * columns, and the G sums are added in order. What a key that is shut adds is 0 times its value, which is NaN for one
 * that is not finite; so parts outside of the window are passed over where all their values are finite. */
#include "cuda/attention/engines.cuh"
#include "cuda/attention/select.h"

namespace attention {
namespace {

constexpr const char *NAME = "attention_simt";
constexpr int THREADS = 128, SUBS = 8, WARPS = THREADS / 32;
constexpr int MAX_ROWS = TL_ATTENTION_SIMT_ROWS, PART = TL_ATTENTION_SIMT_PART;
/* Of rows of scores in shared memory: threads that write different rows of four neighbouring keys touch different banks, and
 * what comes behind the rows stays aligned. */
constexpr int PITCH = PART + 4;

struct Args : Geometry {
    const float *Q, *K, *V;
    float *result, *parts; /* parts: of every row of every part v sums, the greatest score and the sum of weights */
    tl_fastdiv splits;
    int columns;           /* of threads: VECTOR elements of a value each, a power of two */
    Window window;         /* of all rows */
    const uint8_t *finite; /* V per GRANULE rows, where parts outside of the window are passed over; or NULL */
};

/* Adds up x of SUBS neighbouring threads, of which each gets R / SUBS sums, those from sub · R / SUBS on; or, of fewer rows than
 * threads, SUBS / R neighbours the same one. A thread keeps half of its sums in an exchange as long as it has several. The
 * sums are those of tl_fold_group. */
template <int S, int LEFT, int R> __device__ __forceinline__ void fold_rows(float (&x)[R], int sub)
{
    constexpr int HALF = LEFT / 2, KEPT = HALF > 0 ? HALF : 1;
    const bool upper = HALF > 0 && (sub & S) != 0;
    TL_UNROLL_FOR (int i = 0; i < KEPT; i++) {
        const float kept = upper ? x[HALF + i] : x[i], sent = upper ? x[i] : x[HALF + i];
        x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, S);
    }
    if constexpr (S > 1) fold_rows<S / 2, KEPT>(x, sub);
}

/* VECTOR neighbouring elements; 4: of 16 aligned bytes. */
template <int VECTOR> __device__ __forceinline__ void load_vector(const float *from, float (&v)[VECTOR])
{
    if constexpr (VECTOR == 4)
        tl_load4(from, v);
    else
        v[0] = *from;
}

constexpr int KEYS_PER_WARP = 32 / SUBS, KEYS_PER_BLOCK = WARPS * KEYS_PER_WARP;

/* Scores of the block's `count` keys, into R rows of Ps; Qs holds R rows of d elements. A thread has KEYS keys at once, for which
 * it reads Q once: that, not multiplying, is what takes time. A warp goes round as long as one of its threads has a key, because
 * the threads exchange sums; a key that does not exist is the last one, and its scores are not kept. */
template <int KEYS, int R, int VECTOR>
__device__ __forceinline__ void find_scores(const Args &a, const Rows &limits, const float *Qs, const float *K,
                                            int64_t j0, int count, float *Ps)
{
    constexpr int APART = KEYS_PER_BLOCK;
    const int sub = (int)threadIdx.x % SUBS, d = (int)a.d;
    for (int first = (int)threadIdx.x / 32 * KEYS_PER_WARP; first < count; first += KEYS * APART) {
        const int own = first + (int)threadIdx.x % 32 / SUBS;
        float sum[KEYS][R] = {};
        const float *key[KEYS];
        TL_UNROLL_FOR (int u = 0; u < KEYS; u++)
            key[u] = K + (j0 + min(own + u * APART, count - 1)) * a.d;
#pragma unroll((VECTOR == 4 ? 4 : 8) / KEYS)
        for (int c = sub * VECTOR; c < d; c += SUBS * VECTOR) {
            float k[KEYS][VECTOR];
            TL_UNROLL_FOR (int u = 0; u < KEYS; u++)
                load_vector<VECTOR>(key[u] + c, k[u]);
            TL_UNROLL_FOR (int r = 0; r < R; r++) {
                float q[VECTOR];
                load_vector<VECTOR>(Qs + r * d + c, q);
                TL_UNROLL_FOR (int u = 0; u < KEYS; u++)
                    TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                        sum[u][r] = fmaf(k[u][e], q[e], sum[u][r]);
            }
        }
        TL_UNROLL_FOR (int u = 0; u < KEYS; u++) {
            const int j = own + u * APART;
            fold_rows<SUBS / 2, R>(sum[u], sub);
            constexpr int OWN = R > SUBS ? R / SUBS : 1, SHARED_BY = R > SUBS ? 1 : SUBS / R;
            TL_UNROLL_FOR (int i = 0; i < OWN; i++) {
                const int r = sub / SHARED_BY * OWN + i;
                bool shut;
                if (sub % SHARED_BY == 0 && j < count) Ps[r * PITCH + j] = limits.score(a, r, j0 + j, sum[u][i], &shut);
            }
        }
    }
}

template <int R, int VECTOR> __global__ void __launch_bounds__(THREADS) forward_kernel(const __grid_constant__ Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, R);
    float *const Ps = shared + Rows::FLOATS * R, *const tops = Ps + R * PITCH, *const totals = tops + R;
    float *const sums = totals + R, *const Qs = sums; /* Q has been read when sums are made */
    uint32_t split;
    const int64_t b = a.splits.divmod(blockIdx.x, &split), j0 = (int64_t)split * PART, d = a.d;
    const int64_t i0 = (int64_t)blockIdx.y * R, row0 = b * a.rows + i0;
    const int count = (int)(a.keys - j0 < PART ? a.keys - j0 : PART);
    const int rows = (int)(a.rows - i0 < R ? a.rows - i0 : R);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;

    if (a.finite && !a.window.meets(j0, j0 + count) && finite_rows<PART>(a.finite, a.keys, b, j0)) {
        float *const to = a.parts + (blockIdx.x * a.rows + i0) * (a.v + 2); /* what the sums below come to */
        for (int i = threadIdx.x; i < rows * (int)(a.v + 2); i += THREADS)
            to[i] = i % (int)(a.v + 2) == (int)a.v ? -TL_INF : 0.0f;
        return;
    }
    limits.find(a, b, i0, R);
#pragma unroll 8
    for (int i = threadIdx.x; i < R * d; i += THREADS)
        Qs[i] = i < rows * d ? a.Q[row0 * d + i] : 0.0f;
    __syncthreads();
    if (count > KEYS_PER_BLOCK)
        find_scores<(R == 1 ? 4 : 2), R, VECTOR>(a, limits, Qs, a.K + b * a.keys * d, j0, count, Ps);
    else
        find_scores<1, R, VECTOR>(a, limits, Qs, a.K + b * a.keys * d, j0, count, Ps);
    __syncthreads();

    for (int r = warp; r < R; r += WARPS) {
        float *const row = Ps + r * PITCH;
        float top = -TL_INF, sum = 0.0f;
        for (int j = lane; j < count; j += 32)
            top = fmaxf(top, row[j]);
        top = tl_fold_group<tl_number_max_op, 32>(top);
        const float base = top == -TL_INF ? 0.0f : top;
        for (int j = lane; j < count; j += 32) {
            row[j] = tl_attention_weight(row[j] - base);
            sum += row[j];
        }
        sum = tl_fold_group<tl_sum_op, 32>(sum);
        if (lane == 0) tops[r] = top, totals[r] = sum;
    }

    const int column = (int)threadIdx.x % a.columns, group = (int)threadIdx.x / a.columns;
    const int groups = THREADS / a.columns, width = a.columns * VECTOR;
    for (int64_t from = 0; from < a.v; from += width) {
        const int64_t c = from + column * VECTOR;
        const float *const V = a.V + (b * a.keys + j0) * a.v + c;
        float own[R][VECTOR] = {};
        __syncthreads(); /* weights are there; what was in `sums` has been read */
        if (c < a.v) {
            int j = group;
            if (R > 1 && groups == 1) { /* neighbouring keys, whose weights are read at once; one row is not aligned */
#pragma unroll 2
                for (; j + 4 <= count; j += 4) {
                    float v[4][VECTOR];
                    TL_UNROLL_FOR (int u = 0; u < 4; u++)
                        load_vector<VECTOR>(V + (j + u) * a.v, v[u]);
                    TL_UNROLL_FOR (int r = 0; r < R; r++) {
                        float w[4];
                        tl_load4(Ps + r * PITCH + j, w);
                        TL_UNROLL_FOR (int u = 0; u < 4; u++)
                            TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                                own[r][e] = fmaf(w[u], v[u][e], own[r][e]);
                    }
                }
            }
            if (R == 1) { /* several keys, for whose values the compiler would else wait one by one */
                constexpr int AHEAD = 8;
                for (; j + (AHEAD - 1) * groups < count; j += AHEAD * groups) {
                    float v[AHEAD][VECTOR];
                    TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
                        load_vector<VECTOR>(V + (int64_t)(j + u * groups) * a.v, v[u]);
                    TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
                        TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                            own[0][e] = fmaf(Ps[j + u * groups], v[u][e], own[0][e]);
                }
            }
#pragma unroll 8
            for (; j < count; j += groups) {
                float v[VECTOR];
                load_vector<VECTOR>(V + j * a.v, v);
                TL_UNROLL_FOR (int r = 0; r < R; r++)
                    TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                        own[r][e] = fmaf(Ps[r * PITCH + j], v[e], own[r][e]);
            }
        }
        TL_UNROLL_FOR (int r = 0; r < R; r++)
            TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                sums[(group * R + r) * width + column * VECTOR + e] = own[r][e];
        __syncthreads();
        for (int i = threadIdx.x; i < rows * width; i += THREADS) {
            const int r = i / width, at = i % width;
            if (from + at >= a.v) continue;
            float sum = sums[r * width + at];
            for (int g = 1; g < groups; g++)
                sum += sums[(g * R + r) * width + at];
            if (a.parts)
                a.parts[(blockIdx.x * a.rows + i0 + r) * (a.v + 2) + from + at] = sum;
            else
                a.result[(row0 + r) * a.v + from + at] = sum / softmax_total(tops[r], totals[r]);
        }
    }
    if (a.parts && threadIdx.x < (unsigned)rows) {
        float *const end = a.parts + (blockIdx.x * a.rows + i0 + threadIdx.x) * (a.v + 2) + a.v;
        end[0] = tops[threadIdx.x], end[1] = totals[threadIdx.x];
    }
}

/* A block owns a row of a member, a thread every THREADS-th element of its result; parts join in order. */
__global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ Args a)
{
    const int64_t b = blockIdx.x / a.rows, row = blockIdx.x % a.rows, pitch = a.rows * (a.v + 2);
    const int splits = (int)a.splits.divisor;
    const float *const parts = a.parts + b * splits * pitch + row * (a.v + 2);
    float top = -TL_INF, weights = 0.0f;
    for (int s = 0; s < splits; s++)
        top = fmaxf(top, parts[s * pitch + a.v]);
    for (int s = 0; s < splits; s++) {
        const float *const end = parts + s * pitch + a.v;
        weights = fmaf(end[1], top > end[0] ? tl_attention_weight(end[0] - top) : 1.0f, weights);
    }
    const float total = softmax_total(top, weights);
    for (int64_t c = threadIdx.x; c < a.v; c += THREADS) {
        float sum = 0.0f;
#pragma unroll 4
        for (int s = 0; s < splits; s++) {
            const float *const part = parts + s * pitch;
            const float before = part[a.v];
            sum = fmaf(part[c], top > before ? tl_attention_weight(before - top) : 1.0f, sum);
        }
        a.result[(b * a.rows + row) * a.v + c] = sum / total;
    }
}

template <int R, int VECTOR> static int32_t forward(tl_context *ctx, Args &a, int64_t blocks)
{
    const int each = a.d > THREADS * VECTOR ? (int)a.d : THREADS * VECTOR; /* of a row: of Q, or of the sums */
    const size_t bytes = sizeof(float) * (size_t)(R * (Rows::FLOATS + PITCH + 2 + each));
    const auto kernel = forward_kernel<R, VECTOR>;
    TL_TRY(tl_allow_shared(ctx, kernel, bytes));
    const dim3 grid((unsigned)blocks, (unsigned)tl_ceil_div(a.rows, R));
    TL_TRY(tl_launch_dynamic(ctx, NAME, kernel, grid, THREADS, bytes, a));
    if (!a.parts) return TORCHLEAN_OK;
    return tl_launch(ctx, NAME, join_kernel, (unsigned)(a.members * a.rows), THREADS, a);
}

/* More rows to a block read keys less often; fewer leave blocks enough that one waits for memory while others compute: two to a
 * multiprocessor, of those that are not passed over. */
template <int VECTOR> static int32_t forward_rows(tl_context *ctx, Args &a, int64_t blocks, int64_t working)
{
    const int64_t full = working * tl_ceil_div(a.rows, MAX_ROWS), sms = tl_cuda_sms(ctx);
    return a.rows == 1                     ? forward<1, VECTOR>(ctx, a, blocks)
           : a.rows <= 4 || full < sms     ? forward<4, VECTOR>(ctx, a, blocks)
           : a.rows <= 8 || full < 2 * sms ? forward<8, VECTOR>(ctx, a, blocks)
                                           : forward<MAX_ROWS, VECTOR>(ctx, a, blocks);
}

static int64_t splits_of(const Geometry &of) { return of.keys > PART ? tl_ceil_div(of.keys, PART) : 1; }

} /* namespace */

int32_t simt_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out)
{
    Args a = {};
    static_cast<Geometry &>(a) = of;
    a.Q = Q, a.K = K, a.V = V, a.result = out;
    if (a.members * a.rows == 0 || a.v == 0) return TORCHLEAN_OK;
    const bool wide = a.d % 4 == 0 && a.v % 4 == 0 && tl_aligned4(K) && tl_aligned4(V);
    const int64_t splits = splits_of(of), blocks = a.members * splits, vectors = wide ? a.v / 4 : a.v;
    a.splits = tl_fastdiv((uint64_t)splits);
    for (a.columns = 1; a.columns < vectors && a.columns < THREADS;)
        a.columns *= 2;
    tl_scratch<float> parts(ctx);
    if (splits > 1) TL_TRY(parts.allocate(blocks * a.rows * (a.v + 2)));
    a.parts = splits > 1 ? (float *)parts : nullptr;
    /* A look at all values pays where it spares the keys of half of the parts. */
    a.window = window_of(of);
    const int64_t open = tl_ceil_div(a.window.end, PART) - a.window.first / PART;
    const bool passes_over = a.limited && splits > 1 && 2 * open <= splits;
    tl_scratch<uint8_t> finite(ctx);
    if (passes_over) {
        TL_TRY(finite.allocate(a.members * tl_ceil_div(a.keys, GRANULE)));
        TL_TRY(scan_finite(ctx, of, V, Layouts::contiguous(of).v, a.keys, a.v, finite));
        a.finite = finite;
    }
    const int64_t working = passes_over ? a.members * open : blocks;
    return wide ? forward_rows<4>(ctx, a, blocks, working) : forward_rows<1>(ctx, a, blocks, working);
}

} /* namespace attention */
