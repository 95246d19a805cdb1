/* Attention by wgmma (attention/wgmma_tiles.cuh): the kernel, which problems it takes, the launches. */
#include "cuda/attention/backward.cuh"
#include "cuda/attention/wgmma_consumer.cuh"
#include "cuda/attention/wgmma_producer.cuh"

namespace attention {

/* Shape::BYTES of dynamic shared memory. Has static shared memory exactly where it is more than empty. */
template <Pass PASS, int DP>
__global__ void __launch_bounds__(warp_groups::THREADS, 1) wgmma_attention_kernel(const __grid_constant__ WgmmaArgs a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace warp_groups;
    using C = Shape<PASS, DP>;
    TL_DYNAMIC_SHARED(float, shared);
    __shared__ uint64_t barriers[2][C::STAGES], header_barriers[2][C::HEADERS];
    __shared__ Header<C::OF_KEYS> headers[C::HEADERS];
    __shared__ float dots[C::OF_KEYS || PASS == FORWARD ? 1 : ROWS];
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
        shrink_registers<C::PRODUCER_REGISTERS>();
        Producer<C>(a, stages, headers, barriers, header_barriers, place.b, place.r0).run();
    } else {
        grow_registers<C::CONSUMER_REGISTERS>();
        Consumer<C>(a, own, stages, headers, barriers, header_barriers, dots).run();
    }
#endif
}

namespace {

template <Pass PASS, int DP> bool prepare()
{
    return tl_wgmma_prepare(wgmma_attention_kernel<PASS, DP>, warp_groups::Shape<PASS, DP>::BYTES);
}

template <int DP> bool prepare_all()
{
    return prepare<FORWARD, DP>() && prepare<STATISTICS, DP>() && prepare<QUERIES, DP>() && prepare<KEYS_K, DP>() &&
           prepare<KEYS_V, DP>();
}

bool runs(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] { return prepare_all<64>() && prepare_all<128>() && prepare<KEYS, 64>(); });
}

template <Pass PASS, int DP> int32_t make(tl_context *ctx, WgmmaArgs a, const char *name)
{
    a.p.blocks = (uint32_t)tl_ceil_div(a.p.n, warp_groups::ROWS);
    return tl_launch_dynamic(ctx, name, wgmma_attention_kernel<PASS, DP>, (unsigned)(a.p.batch * a.p.blocks),
                             warp_groups::THREADS, warp_groups::Shape<PASS, DP>::BYTES, a);
}

template <Pass PASS> int32_t make(tl_context *ctx, const WgmmaArgs &a, const char *name)
{
    return a.p.d <= 64 ? make<PASS, 64>(ctx, a, name) : make<PASS, 128>(ctx, a, name);
}

} /* namespace */

/* Rows that fill three quarters of the panels of 32 coordinates; a mask whose blocked scores count is left to the
 * kernels that know when they no longer do. Shorter sequences have teams (attention/mma_tiles.cuh). The largest score is
 * taken to be that of the largest product. */
bool wgmma_serves(tl_context *ctx, const Problem &p)
{
    const bool fits = (p.d > 32 && p.d <= 64) || (p.d > 96 && p.d <= 128);
    return fits && p.wide && p.mode != FILL && p.scale > 0.0f && p.n > TEAM_ROWS && runs(ctx);
}

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
