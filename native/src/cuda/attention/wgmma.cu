/* Attention by wgmma (attention/wgmma_tiles.cuh): the kernel, which problems it takes, the launches. */
#include "cuda/attention/backward.cuh"
#include "cuda/attention/wgmma_consumer.cuh"
#include "cuda/attention/wgmma_producer.cuh"

namespace attention {

/* Shape::BYTES of dynamic shared memory. Has static shared memory exactly where it is more than empty. */
template <Pass PASS, int DP, int GROUPS>
__global__ void __launch_bounds__(warp_groups::Shape<PASS, DP, GROUPS>::THREADS, 1)
    wgmma_attention_kernel(const __grid_constant__ WgmmaArgs a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace warp_groups;
    using C = Shape<PASS, DP, GROUPS>;
    TL_DYNAMIC_SHARED(float, shared);
    __shared__ uint64_t barriers[2][C::STAGES], header_barriers[2][C::HEADERS];
    __shared__ Header<C::OF_KEYS, C::ROWS> headers[C::HEADERS];
    __shared__ float dots[C::OF_KEYS || PASS == FORWARD ? 1 : C::ROWS];
    const Problem &p = a.p;
    const Place<C> place(p, blockIdx.x);
    if (p.unsafe[place.b]) return;
    char *const own = align_to_swizzle((char *)shared), *const stages = own + C::OPERANDS;
    if (threadIdx.x == 0) {
        init_ring<C::STAGES>(tl_shared_address(barriers[0]), tl_shared_address(barriers[1]), WARPS * ARRIVALS,
                             GROUPS * WARPS * ARRIVALS);
        init_ring<C::HEADERS>(tl_shared_address(header_barriers[0]), tl_shared_address(header_barriers[1]), GROUP,
                              GROUPS * GROUP);
    }
    __syncthreads();
    if (threadIdx.x >= GROUPS * GROUP) {
        if constexpr (GROUPS == 2) shrink_registers<C::PRODUCER_REGISTERS>();
        Producer<C>(a, stages, headers, barriers, header_barriers, place.b, place.r0).run();
    } else {
        if constexpr (GROUPS == 2) grow_registers<C::CONSUMER_REGISTERS>();
        Consumer<C>(a, own, stages, headers, barriers, header_barriers, dots).run();
    }
#endif
}

namespace {

template <Pass PASS, int DP, int GROUPS> bool prepare()
{
    return tl_wgmma_prepare(wgmma_attention_kernel<PASS, DP, GROUPS>, warp_groups::Shape<PASS, DP, GROUPS>::BYTES);
}

template <int DP, int GROUPS> bool prepare_all()
{
    return prepare<FORWARD, DP, GROUPS>() && prepare<STATISTICS, DP, GROUPS>() && prepare<QUERIES, DP, GROUPS>() &&
           prepare<KEYS_K, DP, GROUPS>() && prepare<KEYS_V, DP, GROUPS>() && (DP > 64 || prepare<KEYS, 64, GROUPS>());
}

template <int GROUPS> bool prepare_all()
{
    return prepare_all<64, GROUPS>() && prepare_all<96, GROUPS>() && prepare_all<128, GROUPS>();
}

bool runs(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] { return prepare_all<1>() && prepare_all<2>() && prepare_all<192, 1>(); });
}

template <Pass PASS, int DP, int GROUPS> int32_t make(tl_context *ctx, WgmmaArgs a, const char *name)
{
    using C = warp_groups::Shape<PASS, DP, GROUPS>;
    a.p.blocks = (uint32_t)tl_ceil_div(a.p.n, C::ROWS);
    return tl_launch_dynamic(ctx, name, wgmma_attention_kernel<PASS, DP, GROUPS>, (unsigned)(a.p.batch * a.p.blocks),
                             C::THREADS, C::BYTES, a);
}

/* A group alone on a multiprocessor has a tile in less time than two of them have theirs; a row has the same bits in either. */
template <Pass PASS, int DP> int32_t make(tl_context *ctx, const WgmmaArgs &a, const char *name)
{
    const bool few = a.p.batch * tl_ceil_div(a.p.n, warp_groups::Shape<PASS, DP, 1>::ROWS) <= tl_cuda_sms(ctx);
    return few ? make<PASS, DP, 1>(ctx, a, name) : make<PASS, DP, 2>(ctx, a, name);
}

template <Pass PASS> int32_t make(tl_context *ctx, const WgmmaArgs &a, const char *name)
{
    return a.p.d <= 64    ? make<PASS, 64>(ctx, a, name)
           : a.p.d <= 96  ? make<PASS, 96>(ctx, a, name)
           : a.p.d <= 128 ? make<PASS, 128>(ctx, a, name)
                          : make<PASS, 192, 1>(ctx, a, name);
}

/* Rows from which on a sequence alone has more blocks of 32 rows (attention/relay_tiles.cuh) than an H200 has
 * multiprocessors, so that kernels with those have nothing over these. It decides the order of sums, so neither the batch nor
 * the device has a part in it. */
constexpr int64_t LONG_ROWS = 32 * 132 + 1;

} /* namespace */

/* Rows beyond one panel of 32 coordinates; a mask whose blocked scores count is left to the kernels that know when they no
 * longer do. Shorter sequences have teams (attention/mma_tiles.cuh) or rows too long for other tensor cores. Rows that fill
 * less than three quarters of the panels of a product, or are copied first, have kernels with smaller blocks for sequences of
 * less than LONG_ROWS, unless they are too long for them. The largest score is taken to be that of the largest product. */
bool wgmma_takes(tl_context *ctx, const Problem &p)
{
    const bool full = p.wide && (p.d <= 64 || p.d > 96), alone = p.d > TENSOR_WIDTH;
    return p.d > 32 && p.d <= WGMMA_WIDTH && p.mode != FILL && p.scale > 0.0f && p.scale <= TENSOR_SCALE &&
           p.n >= (full || alone ? TEAM_ROWS + 1 : LONG_ROWS) && p.n < TENSOR_ROWS && runs(ctx);
}

bool wgmma_serves(tl_context *ctx, const Problem &p) { return p.wide && wgmma_takes(ctx, p); }

int32_t forward_wgmma(tl_context *ctx, const Problem &p, float *out)
{
    return make<FORWARD>(ctx, WgmmaArgs{p, nullptr, nullptr, out}, "flash_attention");
}

/* At 64 coordinates the sums of both keys' gradients fit in the registers. */
int32_t backward_wgmma(tl_context *ctx, const BackwardArgs &x)
{
    WgmmaArgs a{x.p, x.out, x.g, nullptr, x.gQ, x.base, x.inverse, x.dot};
    TL_TRY(x.gQ ? make<QUERIES>(ctx, a, NAME) : make<STATISTICS>(ctx, a, NAME));
    a.by_weights = x.gV;
    a.by_slopes = x.gK;
    if (x.gK && x.gV && x.p.d <= 64) return make<KEYS, 64>(ctx, a, NAME);
    if (x.gV) TL_TRY(make<KEYS_V>(ctx, a, NAME));
    return x.gK ? make<KEYS_K>(ctx, a, NAME) : TORCHLEAN_OK;
}

} /* namespace attention */
