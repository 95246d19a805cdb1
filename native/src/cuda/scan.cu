/* Diagonal scans on CUDA, in the chunked order of formula/scan_chunks.h.
 *
 * A thread owns one channel; neighbouring threads own neighbouring channels, so each load of a warp is one row segment.
 * The recurrence is sequential and cheap, the loads are what takes time: a thread holds BATCH steps in registers and
 * has the next BATCH in flight while it works on them.
 *
 *   many channels    one kernel, a thread walks through all of time. It carries h, the chunk's own state s and its
 *                    product P side by side and reads every input once.
 *   few channels     three kernels: a thread takes one chunk's map (P, s); a thread carries one channel over its
 *                    chunks; a thread takes one chunk's results from its carry. The inputs of the maps are read twice,
 *                    which thousands of chunks at once make up for.
 *
 * Both do the same arithmetic in the same order. */
#include "cuda/device/sum_tree.cuh"
#include "formula/scan_chunks.h"
#include "generated/scan.h"

namespace {

constexpr int WALKERS = 64;    /* threads of a block that walks: small blocks spread over all multiprocessors */
constexpr int THREADS = 128;   /* threads of a block of the other kernels */
constexpr int64_t MANY = 4096; /* channels from which on reading once beats running chunks at the same time */

/* A scan forward, or in reverse with g. Per-step coefficients have a row per step, constant ones one row. */
struct scan_call {
    const float *A, *B, *x, *h0, *out, *g;
    int64_t T, D, chunks;
    float *h;                  /* forward: the result */
    float *gA, *gB, *gx, *gh0; /* reverse; any may be NULL */
    float *sums_A, *sums_B;    /* reverse with constant coefficients: a row per chunk */
    float *P, *s, *carries;    /* a row per chunk, for few channels */
    tl_fastdiv channels;
};

/* BATCH steps of one channel. What a kind of scan does not need is never loaded and takes no registers. */
template <int BATCH> struct steps_of {
    float a[BATCH], b[BATCH], x[BATCH], before[BATCH], B[BATCH];
};

/* Loads steps k0, k0 + 1, ... below k1 of channel j. Forward a step is a = A_k, b = B_k and x = x_k; in reverse, with
 * t = T-1-k, it is a = A_(t+1), b = g_t, and for the results (RESULT) x_t, h_(t-1) and B_t. */
template <bool VARIABLE, bool REVERSE, bool RESULT, int BATCH>
__device__ __forceinline__ void load(steps_of<BATCH> &v, const scan_call &f, int64_t j, int64_t k0, int64_t k1,
                                     float constant_A, float constant_B)
{
    const int left = (int)min(k1 - k0, (int64_t)BATCH);
    TL_UNROLL_FOR (int u = 0; u < BATCH; u++) {
        const bool in = u < left;
        if constexpr (!REVERSE) {
            const int64_t at = (k0 + u) * f.D + j;
            v.a[u] = VARIABLE ? in ? f.A[at] : 0.0f : constant_A;
            v.b[u] = VARIABLE ? in ? f.B[at] : 0.0f : constant_B;
            v.x[u] = in ? f.x[at] : 0.0f;
        } else {
            const int64_t t = f.T - 1 - (k0 + u), at = t * f.D + j;
            const bool inner = k0 + u > 0;
            v.a[u] = VARIABLE ? in && inner ? f.A[at + f.D] : 0.0f : inner ? constant_A : 0.0f;
            v.b[u] = in ? f.g[at] : 0.0f;
            if constexpr (RESULT) {
                v.x[u] = in && f.gB ? f.x[at] : 0.0f;
                v.before[u] = in && f.gA ? (t > 0 ? f.out + at - f.D : f.h0 + j)[0] : 0.0f;
                v.B[u] = VARIABLE ? in && f.gx ? f.B[at] : 0.0f : constant_B;
            }
        }
    }
}

template <bool REVERSE, int BATCH> __device__ __forceinline__ float term(const steps_of<BATCH> &v, int u)
{
    return REVERSE ? v.b[u] : v.b[u] * v.x[u];
}

/* The results. WALK: thread j takes channel j from the first step to the last. Otherwise thread (chunk, j) takes one
 * chunk from its carry. Four chains per sum over time, one for each residue of k, as the column tree has them. */
template <bool VARIABLE, bool REVERSE, bool WALK, int BATCH>
__global__ void __launch_bounds__(WALK ? WALKERS : THREADS) results(scan_call f)
{
    static_assert(TL_SCAN_CHUNK % BATCH == 0 && BATCH % TL_COLUMN_CHAINS == 0, "chunks are whole batches");
    const int64_t i = (int64_t)blockIdx.x * (WALK ? WALKERS : THREADS) + threadIdx.x;
    if (i >= (WALK ? 1 : f.chunks) * f.D) return;
    uint32_t j = (uint32_t)i;
    const int64_t chunk = WALK ? 0 : f.channels.divmod((uint32_t)i, &j);
    const int64_t first = chunk * TL_SCAN_CHUNK, last = WALK ? f.T : min(first + TL_SCAN_CHUNK, f.T);
    const float constant_A = VARIABLE ? 0.0f : f.A[j], constant_B = VARIABLE ? 0.0f : f.B[j];
    float h = WALK ? REVERSE ? 0.0f : f.h0[j] : f.carries[i];
    float carry = h, s = 0.0f, P = 1.0f;
    float sum_A[TL_COLUMN_CHAINS] = {}, sum_B[TL_COLUMN_CHAINS] = {};
    steps_of<BATCH> v, next;
    load<VARIABLE, REVERSE, true>(v, f, j, first, last, constant_A, constant_B);
    for (int64_t k = first; k < last; k += BATCH) {
        load<VARIABLE, REVERSE, true>(next, f, j, k + BATCH, last, constant_A, constant_B);
        const int left = (int)min(last - k, (int64_t)BATCH);
        TL_UNROLL_FOR (int u = 0; u < BATCH; u++) {
            if (u >= left) break;
            const float b = term<REVERSE>(v, u);
            h = fmaf(v.a[u], h, b);
            if (WALK) {
                s = fmaf(v.a[u], s, b);
                P = P * v.a[u];
            }
            const int64_t at = (REVERSE ? f.T - 1 - (k + u) : k + u) * f.D + j;
            if constexpr (!REVERSE) {
                f.h[at] = h;
            } else {
                if (f.gx) f.gx[at] = h * v.B[u];
                if constexpr (VARIABLE) {
                    if (f.gA) f.gA[at] = h * v.before[u];
                    if (f.gB) f.gB[at] = h * v.x[u];
                } else {
                    sum_A[u % TL_COLUMN_CHAINS] = fmaf(h, v.before[u], sum_A[u % TL_COLUMN_CHAINS]);
                    sum_B[u % TL_COLUMN_CHAINS] = fmaf(h, v.x[u], sum_B[u % TL_COLUMN_CHAINS]);
                }
            }
        }
        const int64_t done = k + left;
        if (done % TL_SCAN_CHUNK == 0 || done == last) {
            if constexpr (REVERSE && !VARIABLE) {
                const int64_t at = (done - 1) / TL_SCAN_CHUNK * f.D + j;
                if (f.gA) f.sums_A[at] = (sum_A[0] + sum_A[1]) + (sum_A[2] + sum_A[3]);
                if (f.gB) f.sums_B[at] = (sum_B[0] + sum_B[1]) + (sum_B[2] + sum_B[3]);
                TL_UNROLL_FOR (int c = 0; c < TL_COLUMN_CHAINS; c++)
                    sum_A[c] = sum_B[c] = 0.0f;
            }
            if (WALK && done < last) {
                h = carry = tl_scan_carry(P, s, carry, h);
                s = 0.0f;
                P = 1.0f;
            }
        }
        v = next;
    }
    if (REVERSE && last == f.T && f.gh0) f.gh0[j] = h * f.A[j];
}

/* The maps of all chunks but the last: thread (chunk, j). */
template <bool VARIABLE, bool REVERSE, int BATCH> __global__ void __launch_bounds__(THREADS) maps(scan_call f)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (f.chunks - 1) * f.D) return;
    uint32_t j;
    const int64_t first = (int64_t)f.channels.divmod((uint32_t)i, &j) * TL_SCAN_CHUNK, last = first + TL_SCAN_CHUNK;
    const float constant_A = VARIABLE ? 0.0f : f.A[j], constant_B = VARIABLE || REVERSE ? 0.0f : f.B[j];
    float s = 0.0f, P = 1.0f;
    for (int64_t k = first; k < last; k += BATCH) {
        steps_of<BATCH> v;
        load<VARIABLE, REVERSE, false>(v, f, j, k, last, constant_A, constant_B);
        TL_UNROLL_FOR (int u = 0; u < BATCH; u++) {
            s = fmaf(v.a[u], s, term<REVERSE>(v, u));
            P = P * v.a[u];
        }
    }
    f.P[i] = P;
    f.s[i] = s;
}

/* The h at the end of one chunk, step by step: for a chunk whose map is not finite. */
template <bool VARIABLE, bool REVERSE>
__device__ __noinline__ float end_of(const scan_call &f, int64_t chunk, int64_t j, float h)
{
    const float constant_A = VARIABLE ? 0.0f : f.A[j], constant_B = VARIABLE || REVERSE ? 0.0f : f.B[j];
    const int64_t first = chunk * TL_SCAN_CHUNK, last = first + TL_SCAN_CHUNK;
    for (int64_t k = first; k < last; k += 4) {
        steps_of<4> v;
        load<VARIABLE, REVERSE, false>(v, f, j, k, last, constant_A, constant_B);
        TL_UNROLL_FOR (int u = 0; u < 4; u++)
            h = fmaf(v.a[u], h, term<REVERSE>(v, u));
    }
    return h;
}

/* The carries: thread j goes over the chunks of its channel, DEPTH maps at a time with the next DEPTH in flight. An h
 * that is not finite stays so under every map, so one look at the last of a batch tells whether the rule for such carries is
 * needed; then the batch is done again by it. */
template <bool VARIABLE, bool REVERSE> __global__ void __launch_bounds__(32) carry(scan_call f)
{
    constexpr int DEPTH = 32;
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x, maps = f.chunks - 1;
    if (j >= f.D) return;
    float h = REVERSE ? 0.0f : f.h0[j];
    float P[DEPTH], s[DEPTH], P_next[DEPTH], s_next[DEPTH];
    f.carries[j] = h;
    TL_UNROLL_FOR (int u = 0; u < DEPTH; u++) {
        P[u] = u < maps ? f.P[u * f.D + j] : 0.0f;
        s[u] = u < maps ? f.s[u * f.D + j] : 0.0f;
    }
    for (int64_t c = 0; c < maps; c += DEPTH) {
        TL_UNROLL_FOR (int u = 0; u < DEPTH; u++) {
            const int64_t ahead = c + DEPTH + u;
            P_next[u] = ahead < maps ? f.P[ahead * f.D + j] : 0.0f;
            s_next[u] = ahead < maps ? f.s[ahead * f.D + j] : 0.0f;
        }
        const int left = (int)min(maps - c, (int64_t)DEPTH);
        float now = h;
        TL_UNROLL_FOR (int u = 0; u < DEPTH; u++)
            if (u < left) {
                now = fmaf(P[u], now, s[u]);
                f.carries[(c + u + 1) * f.D + j] = now;
            }
        if (!tl_scan_finite(now, 0.0f, 0.0f)) {
            now = h;
            for (int u = 0; u < left; u++) {
                const int64_t at = (c + u) * f.D + j;
                now = tl_scan_finite(f.P[at], f.s[at], now) ? fmaf(f.P[at], now, f.s[at])
                                                            : end_of<VARIABLE, REVERSE>(f, c + u, j, now);
                f.carries[at + f.D] = now;
            }
        }
        h = now;
        TL_UNROLL_FOR (int u = 0; u < DEPTH; u++) {
            P[u] = P_next[u];
            s[u] = s_next[u];
        }
    }
}

template <bool VARIABLE, bool REVERSE> int32_t scan(tl_context *ctx, scan_call f)
{
    constexpr int BATCH = REVERSE ? (VARIABLE ? 8 : 16) : (VARIABLE ? 16 : 32);
    const char *const name = "scan";
    f.channels = tl_fastdiv((uint64_t)f.D);
    if (f.D >= MANY || f.chunks <= 2)
        return tl_launch(ctx, name, results<VARIABLE, REVERSE, true, BATCH>, tl_grid(f.D, WALKERS), WALKERS, f);
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate(3 * f.chunks * f.D));
    f.P = scratch;
    f.s = f.P + f.chunks * f.D;
    f.carries = f.s + f.chunks * f.D;
    TL_TRY(tl_launch(ctx, name, maps<VARIABLE, REVERSE, 16>, tl_grid((f.chunks - 1) * f.D, THREADS), THREADS, f));
    TL_TRY(tl_launch(ctx, name, carry<VARIABLE, REVERSE>, tl_grid(f.D, 32), 32, f));
    return tl_launch(ctx, name, results < VARIABLE, REVERSE, false, REVERSE ? 4 : 8 >, tl_grid(f.chunks * f.D, THREADS),
                     THREADS, f);
}

template <bool VARIABLE> int32_t reverse(tl_context *ctx, scan_call f)
{
    if (f.T == 0) { /* gradients of per-step coefficients are empty */
        for (float *out : {VARIABLE ? nullptr : f.gA, VARIABLE ? nullptr : f.gB, f.gh0})
            if (out) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, f.D));
        return TORCHLEAN_OK;
    }
    if constexpr (VARIABLE) {
        return scan<true, true>(ctx, f);
    } else {
        tl_scratch<float> sums(ctx);
        TL_TRY(sums.allocate(2 * f.chunks * f.D));
        f.sums_A = sums;
        f.sums_B = f.sums_A + f.chunks * f.D;
        TL_TRY((scan<false, true>(ctx, f)));
        if (f.gA) TL_TRY(tl_cuda_column_sums(ctx, f.sums_A, 1, f.chunks, f.D, 0, f.gA));
        return f.gB ? tl_cuda_column_sums(ctx, f.sums_B, 1, f.chunks, f.D, 0, f.gB) : TORCHLEAN_OK;
    }
}

scan_call forward_call(const float *A, const float *B, const float *x, const float *h0, int64_t T, int64_t D,
                       float *out)
{
    scan_call f = {A, B, x, h0, nullptr, nullptr, T, D, tl_ceil_div(T, TL_SCAN_CHUNK)};
    f.h = out;
    return f;
}

scan_call reverse_call(const float *A, const float *B, const float *x, const float *h0, const float *out,
                       const float *g, int64_t T, int64_t D, float *gA, float *gB, float *gx, float *gh0)
{
    scan_call f = {A, B, x, h0, out, g, T, D, tl_ceil_div(T, TL_SCAN_CHUNK)};
    f.gA = gA, f.gB = gB, f.gx = gx, f.gh0 = gh0;
    return f;
}

} // namespace

int32_t tl_cuda_selective_scan_diag(tl_context *ctx, const float *A, const float *B, const float *x, const float *h0,
                                    int64_t seq_len, int64_t state, float *out)
{
    return scan<false, false>(ctx, forward_call(A, B, x, h0, seq_len, state, out));
}

int32_t tl_cuda_selective_scan_diag_bwd(tl_context *ctx, const float *A, const float *B, const float *x,
                                        const float *h0, const float *out, const float *g, int64_t seq_len,
                                        int64_t state, float *gA, float *gB, float *gx, float *gh0)
{
    return reverse<false>(ctx, reverse_call(A, B, x, h0, out, g, seq_len, state, gA, gB, gx, gh0));
}

int32_t tl_cuda_selective_scan_diag_var(tl_context *ctx, const float *A, const float *B, const float *x,
                                        const float *h0, int64_t seq_len, int64_t state, float *out)
{
    return scan<true, false>(ctx, forward_call(A, B, x, h0, seq_len, state, out));
}

int32_t tl_cuda_selective_scan_diag_var_bwd(tl_context *ctx, const float *A, const float *B, const float *x,
                                            const float *h0, const float *out, const float *g, int64_t seq_len,
                                            int64_t state, float *gA, float *gB, float *gx, float *gh0)
{
    return reverse<true>(ctx, reverse_call(A, B, x, h0, out, g, seq_len, state, gA, gB, gx, gh0));
}
