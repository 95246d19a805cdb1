/* Optimiser steps and the global norm on CUDA, over lists of tensors (device/lists.cuh). All is bound by memory. */
#include <utility>

#include "cuda/device/division.cuh"
#include "cuda/device/lists.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/optim.h"

#include "formula/optim.h"

namespace {

constexpr int THREADS = 256;

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A rule: what it does before its elements, whether it has nothing to do, and an element, which is ELEMENT(s, operands, results) of
 * formula/optim.h. */
template <class State, int IN_, int OUT_, auto ELEMENT> struct element_rule {
    static constexpr int IN = IN_, OUT = OUT_;
    State s;
    __device__ __forceinline__ void prepare() {}
    __device__ __forceinline__ bool idle(const float *, const float *) const { return false; }
    template <size_t... I, size_t... O>
    __device__ __forceinline__ void apply(const float (&x)[IN], float (&y)[OUT], std::index_sequence<I...>,
                                          std::index_sequence<O...>) const
    {
        ELEMENT(s, x[I]..., &y[O]...);
    }
    __device__ __forceinline__ void apply(const float (&x)[IN], float (&y)[OUT]) const
    {
        apply(x, y, std::make_index_sequence<IN>(), std::make_index_sequence<OUT>());
    }
};

using sgd_rule = element_rule<tl_sgd, 2, 1, tl_sgd_element>;
using momentum_rule = element_rule<tl_momentum, 3, 2, tl_momentum_element>;
using adam_rule = element_rule<tl_adam, 4, 3, tl_adam_element>;
using rmsprop_rule = element_rule<tl_rmsprop, 3, 2, tl_rmsprop_element>;
using rmsprop_momentum_rule = element_rule<tl_rmsprop, 4, 3, tl_rmsprop_momentum_element>;
using rmsprop_centered_rule = element_rule<tl_rmsprop, 5, 4, tl_rmsprop_centered_element>;
using lion_rule = element_rule<tl_lion, 3, 2, tl_lion_element>;

/* The norm is read by every thread, a broadcast from the cache; in place a factor of 1 has nothing to do. */
struct clip_rule {
    static constexpr int IN = 1, OUT = 1;
    const float *norm;
    float max_norm, eps, factor;
    __device__ __forceinline__ void prepare() { factor = tl_clip_factor(*norm, max_norm, eps); }
    __device__ __forceinline__ bool idle(const float *in, const float *out) const
    {
        return factor == 1.0f && in == out;
    }
    __device__ __forceinline__ void apply(const float (&x)[IN], float (&y)[OUT]) const { y[0] = factor * x[0]; }
};

/* A block owns `chunk` elements of one tensor, in rounds of 1024: thread t has elements 4t..4t+3 of each, and asks for the
 * operands of as many rounds as make about 64 bytes before it computes. An output may be the input of its tensor: a
 * thread reads its elements before it writes them, and no other thread touches them. The last block of a tensor, and one
 * whose operands do not all start on 16 bytes, goes by single elements where it must; the last warp, which has the least
 * to do, begins with those of a rest. A chunk is CHUNK, or one round where all rounds run at once: they then wait for memory
 * together. */
constexpr int ROUND = 4 * THREADS, ROUNDS = 4, CHUNK = ROUND * ROUNDS;
constexpr int RESIDENT = 4; /* blocks of a multiprocessor */

template <class Rule, int BYTES>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    step_kernel(const __grid_constant__ tl_rows<BYTES, Rule::IN + Rule::OUT> t, const Rule given, uint32_t chunk)
{
    constexpr int IN = Rule::IN, OUT = Rule::OUT, AHEAD = IN < 4 ? 4 / IN : 1; /* rounds whose loads are in flight */
    tl_wait_for_earlier();
    Rule rule = given;
    rule.prepare();
    const int i = tl_find_tensor(t, blockIdx.x);
    const uint32_t start = (blockIdx.x - t.first[i]) * chunk, n = t.n[i];
    const float *in[IN];
    float *out[OUT];
    bool aligned = true;
    TL_UNROLL_FOR (int k = 0; k < IN; k++)
        aligned &= tl_aligned4(in[k] = t.at[i][k] + start);
    TL_UNROLL_FOR (int k = 0; k < OUT; k++)
        aligned &= tl_aligned4(out[k] = const_cast<float *>(t.at[i][IN + k]) + start);
    if (rule.idle(in[0], out[0])) return;
    const uint32_t left = min(n - start, chunk), whole = aligned ? left / 4 * 4 : 0;
#pragma unroll 1
    for (uint32_t e = 4 * threadIdx.x; e < whole; e += AHEAD * ROUND) {
        float x[AHEAD][IN][4];
        TL_UNROLL_FOR (int r = 0; r < AHEAD; r++)
            TL_UNROLL_FOR (int k = 0; k < IN; k++)
                if (e + r * ROUND < whole) tl_load4(in[k] + e + r * ROUND, x[r][k]);
        TL_UNROLL_FOR (int r = 0; r < AHEAD; r++) {
            if (e + r * ROUND >= whole) break;
            float y[OUT][4];
            TL_UNROLL_FOR (int c = 0; c < 4; c++) {
                float arguments[IN], results[OUT];
                TL_UNROLL_FOR (int k = 0; k < IN; k++)
                    arguments[k] = x[r][k][c];
                rule.apply(arguments, results);
                TL_UNROLL_FOR (int k = 0; k < OUT; k++)
                    y[k][c] = results[k];
            }
            TL_UNROLL_FOR (int k = 0; k < OUT; k++)
                tl_store4(out[k] + e + r * ROUND, y[k]);
        }
    }
#pragma unroll 1
    for (uint32_t e = whole + (THREADS - 1 - threadIdx.x); e < left; e += THREADS) {
        float arguments[IN], results[OUT];
        TL_UNROLL_FOR (int k = 0; k < IN; k++)
            arguments[k] = in[k][e];
        rule.apply(arguments, results);
        TL_UNROLL_FOR (int k = 0; k < OUT; k++)
            out[k][e] = results[k];
    }
}

/* Launches for the tensors from *next on, as many as the table holds. */
template <class Rule, int BYTES>
int32_t launch(tl_context *ctx, const char *name, const Rule &rule,
               const float *const *const (&lists)[Rule::IN + Rule::OUT], int64_t count, const int64_t *lengths,
               int64_t *next)
{
    tl_rows<BYTES, Rule::IN + Rule::OUT> t;
    int64_t rounds = 0;
    for (int64_t i = *next; i < count && i < *next + t.ROOM; i++)
        rounds += tl_ceil_div(lengths[i], ROUND);
    const int chunk = rounds <= RESIDENT * tl_cuda_sms(ctx) ? ROUND : CHUNK;
    const uint32_t blocks = t.fill(lists, count, lengths, chunk, next); /* at most 2^20 a tensor */
    return tl_launch_ahead(ctx, name, step_kernel<Rule, BYTES>, blocks, THREADS, 0, t, rule, (uint32_t)chunk);
}

/* The lists of operands, then those of results. */
template <class Rule>
int32_t run(tl_context *ctx, const char *name, const Rule &rule,
            const float *const *const (&lists)[Rule::IN + Rule::OUT], int64_t count, const int64_t *lengths)
{
    constexpr int ARRAYS = Rule::IN + Rule::OUT;
    for (int64_t next = 0; next < count;) {
        const int64_t left = count - next;
        const auto send = left <= tl_rows<TINY, ARRAYS>::ROOM     ? launch<Rule, TINY>
                          : left <= tl_rows<SMALL, ARRAYS>::ROOM  ? launch<Rule, SMALL>
                          : left <= tl_rows<MIDDLE, ARRAYS>::ROOM ? launch<Rule, MIDDLE>
                                                                  : launch<Rule, LARGE>;
        TL_TRY(send(ctx, name, rule, lists, count, lengths, &next));
    }
    return TORCHLEAN_OK;
}

/* ---- the global norm: the row tree of formula/sum_tree.h in double ----------------------------------------------- */

/* A block of 256 threads holds the 1024 lanes of a leaf, thread t lanes 4t..4t+3, and folds them in halves: three levels
 * join warps, warp 0 reading quadruples t, t + 32, ..., t + 224, five are exchanges between its threads, whose partners
 * add the same two numbers, and two lie within a quadruple. The result is valid in warp 0; all threads must call. */
__device__ __forceinline__ double fold_block(const double (&v)[4], double (*shared)[4])
{
    TL_UNROLL_FOR (int c = 0; c < 4; c++)
        shared[threadIdx.x][c] = v[c];
    __syncthreads();
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    if (threadIdx.x < 32) {
        TL_UNROLL_FOR (int c = 0; c < 4; c++) {
            double w[8];
            TL_UNROLL_FOR (int j = 0; j < 8; j++)
                w[j] = shared[threadIdx.x + 32 * j][c];
            sum[c] = ((w[0] + w[4]) + (w[2] + w[6])) + ((w[1] + w[5]) + (w[3] + w[7]));
            TL_UNROLL_FOR (int s = 16; s > 0; s /= 2)
                sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], s);
        }
    }
    __syncthreads();
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* A block owns a leaf of 16384 elements: thread t lanes 4t..4t+3 of each of its 16 runs of 1024, loaded eight runs at a
 * time (32 KiB in flight per block). An empty tensor has one leaf too, whose sum is 0. */
constexpr int RUNS = TL_SUM_LEAF / TL_SUM_LANES, FLIGHT = 8;

template <int BYTES>
__global__ void __launch_bounds__(THREADS, 4) square_leaves(const __grid_constant__ tl_rows<BYTES> t, double *sums)
{
    __shared__ double shared[THREADS][4];
    const int i = tl_find_tensor(t, blockIdx.x);
    const uint32_t start = (blockIdx.x - t.first[i]) * TL_SUM_LEAF, left = min(t.n[i] - start, (uint32_t)TL_SUM_LEAF);
    const float *x = t.at[i][0] + start;
    const bool aligned = tl_aligned4(x);
    double lanes[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll 1
    for (uint32_t run = 0; run < RUNS && run * TL_SUM_LANES < left; run += FLIGHT) {
        float v[FLIGHT][4];
        TL_UNROLL_FOR (int k = 0; k < FLIGHT; k++) {
            const uint32_t e = (run + k) * TL_SUM_LANES + 4 * threadIdx.x;
            if (aligned && e + 4 <= left) {
                tl_load4(x + e, v[k]);
            } else {
                TL_UNROLL_FOR (int c = 0; c < 4; c++)
                    v[k][c] = e + c < left ? x[e + c] : 0.0f;
            }
        }
        TL_UNROLL_FOR (int k = 0; k < FLIGHT; k++)
            TL_UNROLL_FOR (int c = 0; c < 4; c++)
                lanes[c] += tl_square(v[k][c]);
    }
    const double sum = fold_block(lanes, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/* Block b makes one sum of the leaves of tensor b of the table. */
template <int BYTES>
__global__ void __launch_bounds__(THREADS)
    sum_tensors(const __grid_constant__ tl_rows<BYTES> t, const double *sums, double *out)
{
    const uint32_t first = t.first[blockIdx.x];
    const double sum = tl_sum_row<double>(t.first[blockIdx.x + 1] - first, [&](int64_t l) { return sums[first + l]; });
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) finish_norm(const double *sums, int64_t n, float *out)
{
    const double sum = tl_sum_row<double>(n, [&](int64_t i) { return sums[i]; });
    if (threadIdx.x == 0) *out = (float)sqrt(sum);
}

/* One sum per tensor from *next on, as many as the table holds, to sums[*next]..; without `sums` the
 * leaves' sums alone. */
template <int BYTES>
int32_t square_tensors(tl_context *ctx, const float *const *gs, int64_t count, const int64_t *lengths, int64_t *next,
                       double *leaves, double *sums, int64_t *leaf)
{
    tl_rows<BYTES> t;
    const int64_t begin = *next;
    const uint32_t blocks = t.fill({gs}, count, lengths, TL_SUM_LEAF, next);
    TL_TRY(tl_launch(ctx, "square_leaves", square_leaves<BYTES>, blocks, THREADS, t, leaves + *leaf));
    if (sums)
        TL_TRY(tl_launch(ctx, "sum_tensors", sum_tensors<BYTES>, t.count, THREADS, t, leaves + *leaf, sums + begin));
    *leaf += blocks;
    return TORCHLEAN_OK;
}

int32_t global_norm(tl_context *ctx, const float *const *gs, int64_t count, const int64_t *lengths, double *leaves,
                    double *sums, float *out)
{
    int64_t leaf = 0;
    for (int64_t next = 0; next < count;) {
        const auto send = count - next <= tl_rows<SMALL>::ROOM ? square_tensors<SMALL> : square_tensors<LARGE>;
        TL_TRY(send(ctx, gs, count, lengths, &next, leaves, sums, &leaf));
    }
    return tl_launch(ctx, "finish_norm", finish_norm, 1, THREADS, sums ? sums : leaves, sums ? count : leaf, out);
}

} // namespace

extern "C" int32_t tl_cuda_sgd_step(tl_context *ctx, const float *const *ps, const float *const *gs, int64_t count,
                                    const int64_t *lengths, float lr, float weight_decay, float *const *ps_out)
{
    const sgd_rule rule = {{lr, weight_decay}};
    return run(ctx, "tl_cuda_sgd_step", rule, {ps, gs, ps_out}, count, lengths);
}

extern "C" int32_t tl_cuda_momentum_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                         const float *const *vs, int64_t count, const int64_t *lengths, float lr,
                                         float momentum, float dampening, float weight_decay, int64_t nesterov,
                                         float *const *ps_out, float *const *vs_out)
{
    const momentum_rule rule = {tl_momentum_of(lr, momentum, dampening, weight_decay, nesterov)};
    return run(ctx, "tl_cuda_momentum_step", rule, {ps, gs, vs, ps_out, vs_out}, count, lengths);
}

extern "C" int32_t tl_cuda_adam_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                     const float *const *ms, const float *const *vs, int64_t count,
                                     const int64_t *lengths, uint64_t step, float lr, float beta1, float beta2,
                                     float eps, float weight_decay, float *const *ps_out, float *const *ms_out,
                                     float *const *vs_out)
{
    const adam_rule rule = {tl_adam_of(step, lr, beta1, beta2, eps, weight_decay, 0.0f)};
    return run(ctx, "tl_cuda_adam_step", rule, {ps, gs, ms, vs, ps_out, ms_out, vs_out}, count, lengths);
}

extern "C" int32_t tl_cuda_adamw_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                      const float *const *ms, const float *const *vs, int64_t count,
                                      const int64_t *lengths, uint64_t step, float lr, float beta1, float beta2,
                                      float eps, float weight_decay, float *const *ps_out, float *const *ms_out,
                                      float *const *vs_out)
{
    const adam_rule rule = {tl_adam_of(step, lr, beta1, beta2, eps, 0.0f, weight_decay)};
    return run(ctx, "tl_cuda_adamw_step", rule, {ps, gs, ms, vs, ps_out, ms_out, vs_out}, count, lengths);
}

extern "C" int32_t tl_cuda_rmsprop_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                        const float *const *vs, int64_t count, const int64_t *lengths, float lr,
                                        float alpha, float eps, float weight_decay, float *const *ps_out,
                                        float *const *vs_out)
{
    const rmsprop_rule rule = {tl_rmsprop_of(lr, alpha, eps, weight_decay, 0.0f)};
    return run(ctx, "tl_cuda_rmsprop_step", rule, {ps, gs, vs, ps_out, vs_out}, count, lengths);
}

extern "C" int32_t tl_cuda_rmsprop_momentum_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                                 const float *const *vs, const float *const *bs, int64_t count,
                                                 const int64_t *lengths, float lr, float alpha, float eps,
                                                 float weight_decay, float momentum, float *const *ps_out,
                                                 float *const *vs_out, float *const *bs_out)
{
    const rmsprop_momentum_rule rule = {tl_rmsprop_of(lr, alpha, eps, weight_decay, momentum)};
    return run(ctx, "tl_cuda_rmsprop_momentum_step", rule, {ps, gs, vs, bs, ps_out, vs_out, bs_out}, count, lengths);
}

extern "C" int32_t tl_cuda_rmsprop_centered_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                                 const float *const *vs, const float *const *ms, const float *const *bs,
                                                 int64_t count, const int64_t *lengths, float lr, float alpha,
                                                 float eps, float weight_decay, float momentum, float *const *ps_out,
                                                 float *const *vs_out, float *const *ms_out, float *const *bs_out)
{
    const rmsprop_centered_rule rule = {tl_rmsprop_of(lr, alpha, eps, weight_decay, momentum)};
    return run(ctx, "tl_cuda_rmsprop_centered_step", rule, {ps, gs, vs, ms, bs, ps_out, vs_out, ms_out, bs_out}, count,
               lengths);
}

extern "C" int32_t tl_cuda_lion_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                     const float *const *ms, int64_t count, const int64_t *lengths, float lr,
                                     float beta1, float beta2, float weight_decay, float *const *ps_out,
                                     float *const *ms_out)
{
    const lion_rule rule = {tl_lion_of(lr, beta1, beta2, weight_decay)};
    return run(ctx, "tl_cuda_lion_step", rule, {ps, gs, ms, ps_out, ms_out}, count, lengths);
}

extern "C" int32_t tl_cuda_clip_scale(tl_context *ctx, const float *const *gs, const float *norm, int64_t count,
                                      const int64_t *lengths, float max_norm, float eps, float *const *gs_out)
{
    const clip_rule rule = {norm, max_norm, eps, 0.0f};
    return run(ctx, "tl_cuda_clip_scale", rule, {gs, gs_out}, count, lengths);
}

extern "C" int32_t tl_cuda_global_norm(tl_context *ctx, const float *const *gs, int64_t count, const int64_t *lengths,
                                       float *out)
{
    int64_t total = 0;
    bool split = false;
    for (int64_t i = 0; i < count; i++) {
        total += lengths[i] ? tl_ceil_div(lengths[i], TL_SUM_LEAF) : 1;
        split |= lengths[i] > TL_SUM_LEAF;
    }
    split &= count > 1; /* one tensor's leaves are the row that is left; so are tensors of one leaf each */
    tl_scratch<double> leaves(ctx), sums(ctx);
    TL_TRY(leaves.allocate(total));
    if (split) TL_TRY(sums.allocate(count));
    return global_norm(ctx, gs, count, lengths, leaves, sums, out);
}
