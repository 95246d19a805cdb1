/* Attention in the mode `reproducible` on CUDA: a pass over queries, which gives the result, or gQ and what the pass over keys
 * needs, and a pass over keys (attention/chain_tiles.cuh). */
#include "cuda/attention/engines.cuh"

#include "cuda/attention/chain_tiles.cuh"

namespace attention {
namespace {

/* sum += x·y of four elements, in order. */
__device__ __forceinline__ void add_four(const float *x, const float *y, double &sum)
{
    const float4 p = tl_load4(x), q = tl_load4(y);
    sum = fma((double)p.x, (double)q.x, sum);
    sum = fma((double)p.y, (double)q.y, sum);
    sum = fma((double)p.z, (double)q.z, sum);
    sum = fma((double)p.w, (double)q.w, sum);
}

/* Where rows of members lie, by their numbers. */
struct RowPlaces {
    Layout g, out;
    tl_fastdiv rows, heads; /* rows of a member, heads of keys */

    static __device__ __forceinline__ int64_t of(const Layout &at, uint32_t sample, uint32_t head, uint32_t row)
    {
        return sample * at.batch + head * at.head + row * at.row;
    }
    __device__ __forceinline__ uint32_t member(int64_t number) const
    {
        uint32_t row;
        return rows.divmod((uint32_t)number, &row);
    }
    __device__ __forceinline__ void find(int64_t number, int64_t *in_g, int64_t *in_out) const
    {
        uint32_t row, head;
        const uint32_t sample = heads.divmod(rows.divmod((uint32_t)number, &row), &head);
        *in_g = of(g, sample, head, row), *in_out = of(out, sample, head, row);
    }
};

/* D of every query, by a chain like those of g·v. A thread owns a query; what it reads of a row at a time is VECTOR elements. Threads
 * that go through long rows side by side read of more lines at once than the first cache keeps, and so from each line several
 * times: there (STAGED) the block copies 32 columns of its queries at a time into shared memory, whose rows are 36 apart, so that
 * 8 lanes that read four elements each read 32 banks. */
template <int VECTOR, bool STAGED>
__global__ void __launch_bounds__(128) dot_kernel(const float *g, const float *out, const RowPlaces places,
                                                  int64_t rows, int64_t width, const uint8_t *only, double *dot)
{
    constexpr int COLUMNS = 32, PITCH = COLUMNS + 4, UNITS = COLUMNS / VECTOR;
    const int64_t first = (int64_t)blockIdx.x * 128, row = first + threadIdx.x;
    if (only && !__syncthreads_or(row < rows && only[places.member(row)])) return;
    double sum = 0.0;
    if constexpr (STAGED) {
        __shared__ __align__(16) float xs[128 * PITCH], ys[128 * PITCH];
        for (int64_t from = 0; from < width; from += COLUMNS) {
            const int column = (int)threadIdx.x % UNITS * VECTOR;
            __syncthreads(); /* the columns before have been used */
#pragma unroll 8
            for (int r = (int)threadIdx.x / UNITS; r < 128; r += 128 / UNITS) {
                const bool present = first + r < rows && from + column < width;
                int64_t in_g, in_out;
                places.find(present ? first + r : 0, &in_g, &in_out);
                const int64_t at = present ? from + column : 0;
                tl_copy_async<4 * VECTOR>(xs + r * PITCH + column, g + in_g + at, present);
                tl_copy_async<4 * VECTOR>(ys + r * PITCH + column, out + in_out + at, present);
            }
            tl_copy_commit();
            tl_copy_wait<0>();
            __syncthreads();
            const float *const x = xs + threadIdx.x * PITCH, *const y = ys + threadIdx.x * PITCH;
            TL_UNROLL_FOR (int c = 0; c < COLUMNS; c += 4) /* zeros behind the last column add nothing */
                add_four(x + c, y + c, sum);
        }
    } else {
        int64_t in_g, in_out;
        places.find(row < rows ? row : 0, &in_g, &in_out);
        const float *const x = g + in_g, *const y = out + in_out;
#pragma unroll 8
        for (int64_t c = 0; c < width && row < rows; c += VECTOR)
            if constexpr (VECTOR == 4)
                add_four(x + c, y + c, sum);
            else
                sum = fma((double)x[c], (double)y[c], sum);
    }
    if (row < rows) dot[row] = sum;
}

/* Whether all rows begin with whole 16 bytes and are made of them. */
bool is_wide(const float *x, const Layout &at, int64_t width)
{
    return (width | at.row | at.head | at.batch) % 4 == 0 && tl_aligned4(x);
}

chain::Args make_args(const Geometry &of, const float *Q, const float *K, const float *V, const Layouts *at)
{
    chain::Args a = {};
    static_cast<Geometry &>(a) = of;
    const Layouts l = at ? *at : Layouts::contiguous(of);
    a.at_q = l.q, a.at_k = l.k, a.at_v = l.v, a.at_out = l.out, a.at_g = l.g, a.at_gq = l.gq, a.at_gk = l.gk,
    a.at_gv = l.gv;
    a.Q = Q, a.K = K, a.V = V;
    a.wide_d = is_wide(Q, a.at_q, a.d) && is_wide(K, a.at_k, a.d);
    a.wide_v = is_wide(V, a.at_v, a.v);
    return a;
}

} /* namespace */

int32_t chain_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out,
                      const Layouts *at, const uint8_t *only)
{
    chain::Args a = make_args(of, Q, K, V, at);
    a.result = out, a.only = only;
    if (a.members * a.rows == 0 || a.v == 0) return TORCHLEAN_OK;
    tl_scratch<uint8_t> finite(ctx);
    if (a.limited && !only) {
        TL_TRY(finite.allocate(a.members * tl_ceil_div(a.keys, chain::TILE)));
        TL_TRY(scan_finite(ctx, a, V, a.at_v, a.keys, a.v, finite));
        a.finite_v = finite;
    } else if (only) {
        a.finite_v = only + a.members;
    }
    return chain::query_pass(ctx, a);
}

int32_t chain_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                       const float *out, const float *g, float *gQ, float *gK, float *gV, const Layouts *at,
                       const uint8_t *only)
{
    chain::Args a = make_args(of, Q, K, V, at);
    a.only = only, a.out = out, a.g = g, a.gQ = a.d > 0 ? gQ : nullptr, a.gK = a.d > 0 ? gK : nullptr,
    a.gV = a.v > 0 ? gV : nullptr;
    a.wide_v = a.wide_v && is_wide(g, a.at_g, a.v);
    const int64_t all = a.members * a.rows;
    const int64_t of_keys = a.members * tl_ceil_div(a.keys, chain::TILE),
                  of_rows = a.members * tl_ceil_div(a.rows, chain::TILE);
    tl_scratch<char> scratch(ctx);
    TL_TRY(scratch.allocate((int64_t)sizeof(double) * 3 * all + of_keys + 2 * of_rows));
    a.reference = reinterpret_cast<double *>((char *)scratch);
    a.inverse = a.reference + all;
    a.dot = a.inverse + all;
    if (a.limited && !only) {
        uint8_t *const finite = reinterpret_cast<uint8_t *>(a.dot + all);
        TL_TRY(scan_finite(ctx, a, K, a.at_k, a.keys, a.d, finite));
        TL_TRY(scan_finite(ctx, a, Q, a.at_q, a.rows, a.d, finite + of_keys));
        TL_TRY(scan_finite(ctx, a, g, a.at_g, a.rows, a.v, finite + of_keys + of_rows));
        a.finite_k = finite, a.finite_q = finite + of_keys, a.finite_g = finite + of_keys + of_rows;
        a.settled = finite; /* the flags of keys are for the pass over queries alone */
    } else if (only) {
        a.finite_k = a.finite_g = only + a.members;
        a.finite_q = const_cast<uint8_t *>(only + a.members); /* what is written there is 0 */
    }
    /* STAGED beyond two sectors of a line */
    const bool wide = is_wide(g, a.at_g, a.v) && is_wide(out, a.at_out, a.v);
    const RowPlaces places = {a.at_g, a.at_out, tl_fastdiv((uint64_t)(all > 0 ? a.rows : 1)),
                              tl_fastdiv((uint64_t)a.kv_heads)};
    const auto dot = a.v > 16 ? (wide ? dot_kernel<4, true> : dot_kernel<1, true>)
                              : (wide ? dot_kernel<4, false> : dot_kernel<1, false>);
    if (all > 0)
        TL_TRY(
            tl_launch(ctx, "attention_chain_bwd", dot, tl_grid(all, 128), 128, g, out, places, all, a.v, only, a.dot));
    TL_TRY(chain::query_pass_bwd(ctx, a));
    return chain::key_pass(ctx, a);
}

} /* namespace attention */
