/* Attention by wgmma (attention/wgmma_tiles.cuh): the kernel and its launches. */
#include "cuda/attention/wgmma_consumer.cuh"
#include "cuda/attention/wgmma_producer.cuh"

namespace attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class C> using Barriers = uint64_t[2][C::STAGES];
template <class C> using HeaderBarriers = uint64_t[2][C::HEADERS];
template <class C> using Headers = warp_groups::Header<C::OF_KEYS, C::ROWS>[C::HEADERS];

/* What a block does in a pass. */
template <class C>
static __device__ __forceinline__ void run_block(const WgmmaArgs &a, Barriers<C> &barriers,
                                                 HeaderBarriers<C> &header_barriers, Headers<C> &headers, float *dots)
{
    using namespace warp_groups;
    constexpr int GROUPS = C::GROUPS;
    TL_DYNAMIC_SHARED(float, shared);
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
}
#endif

/* Shape::BYTES of dynamic shared memory. Has static shared memory exactly where it is more than empty. */
template <Pass PASS, int DP, int GROUPS>
__global__ void __launch_bounds__(warp_groups::Shape<PASS, DP, GROUPS>::THREADS, 1)
    wgmma_attention_kernel(const __grid_constant__ WgmmaArgs a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using C = warp_groups::Shape<PASS, DP, GROUPS>;
    __shared__ Barriers<C> barriers;
    __shared__ HeaderBarriers<C> header_barriers;
    __shared__ Headers<C> headers;
    __shared__ float dots[C::OF_KEYS || PASS == FORWARD ? 1 : C::ROWS];
    run_block<C>(a, barriers, header_barriers, headers, dots);
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
           prepare<KEYS_K, DP, GROUPS>() && prepare<KEYS_V, DP, GROUPS>();
}

template <int GROUPS> bool prepare_all()
{
    return prepare_all<64, GROUPS>() && prepare<KEYS, 64, GROUPS>() && prepare_all<96, GROUPS>() &&
           prepare_all<128, GROUPS>();
}

bool prepare_shapes()
{
    return prepare_all<1>() && prepare_all<2>() && prepare_all<192, 1>() && prepare<KEYS_V, 192, 2>();
}

template <Pass PASS, int DP, int GROUPS> int32_t make(tl_context *ctx, WgmmaArgs a, const char *name)
{
    using C = warp_groups::Shape<PASS, DP, GROUPS>;
    a.p.blocks = (uint32_t)tl_ceil_div(a.p.n, C::ROWS);
    return tl_launch_dynamic(ctx, name, wgmma_attention_kernel<PASS, DP, GROUPS>, (unsigned)(a.p.batch * a.p.blocks),
                             C::THREADS, C::BYTES, a);
}

/* A group alone on a multiprocessor has a tile in less time than two of them have theirs; a row has the same bits in either. Of
 * rows of more than 128 elements registers hold two groups of one pass alone. */
template <Pass PASS, int DP> int32_t make(tl_context *ctx, const WgmmaArgs &a, const char *name)
{
    if constexpr (DP <= 128 || PASS == KEYS_V)
        if (a.p.batch * tl_ceil_div(a.p.n, warp_groups::Shape<PASS, DP, 1>::ROWS) > tl_cuda_sms(ctx))
            return make<PASS, DP, 2>(ctx, a, name);
    return make<PASS, DP, 1>(ctx, a, name);
}

template <Pass PASS> int32_t make(tl_context *ctx, const WgmmaArgs &a, const char *name)
{
    return a.p.d <= 64    ? make<PASS, 64>(ctx, a, name)
           : a.p.d <= 96  ? make<PASS, 96>(ctx, a, name)
           : a.p.d <= 128 ? make<PASS, 128>(ctx, a, name)
                          : make<PASS, 192>(ctx, a, name);
}

} /* namespace */

bool wgmma_runs(tl_context *ctx) { return tl_wgmma_runs(ctx, prepare_shapes); }

int32_t wgmma_forward(tl_context *ctx, const Problem &p, float *out)
{
    return make<FORWARD>(ctx, WgmmaArgs{p, nullptr, nullptr, out}, "flash_attention");
}

/* Of rows of up to 64 elements the sums of both keys' gradients fit in the registers. */
int32_t wgmma_backward(tl_context *ctx, const Problem &p, const float *out, const float *g, float *gQ, float *gK,
                       float *gV)
{
    constexpr const char *NAME = "flash_attention_bwd";
    const int64_t queries = p.batch * p.n;
    tl_scratch<float> statistics(ctx);
    TL_TRY(statistics.allocate(3 * queries));
    WgmmaArgs a{p, out, g, nullptr, gQ, statistics, statistics + queries, statistics + 2 * queries};
    TL_TRY(gQ ? make<QUERIES>(ctx, a, NAME) : make<STATISTICS>(ctx, a, NAME));
    a.by_weights = gV, a.by_slopes = gK;
    if (gK && gV && p.d <= 64) return make<KEYS, 64>(ctx, a, NAME);
    if (gV) TL_TRY(make<KEYS_V>(ctx, a, NAME));
    return gK ? make<KEYS_K>(ctx, a, NAME) : TORCHLEAN_OK;
}

} /* namespace attention */
