/* Attention by wgmma (attention/wgmma_tiles.cuh): the kernel, which problems it takes, the launches. */
#include "cuda/attention/backward.cuh"
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

/* FORWARD or QUERIES by blocks that each have one half of the coordinates: scores are made by each of them, on multiprocessors that
 * would be idle. A result has the same bits. */
template <Pass PASS, int DP>
__global__ void __launch_bounds__(warp_groups::Shape<PASS, DP, 1, true>::THREADS, 1)
    wgmma_attention_halves_kernel(const __grid_constant__ WgmmaArgs a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using C = warp_groups::Shape<PASS, DP, 1, true>;
    __shared__ Barriers<C> barriers;
    __shared__ HeaderBarriers<C> header_barriers;
    __shared__ Headers<C> headers;
    __shared__ float dots[PASS == FORWARD ? 1 : C::ROWS];
    run_block<C>(a, barriers, header_barriers, headers, dots);
#endif
}

/* KEYS_K and KEYS_V side by side: by blocks that the first of them would leave multiprocessors to. */
template <int DP>
__global__ void __launch_bounds__(warp_groups::Shape<KEYS_K, DP, 1>::THREADS, 1)
    wgmma_attention_keys_kernel(const __grid_constant__ WgmmaArgs a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using K = warp_groups::Shape<KEYS_K, DP, 1>;
    using V = warp_groups::Shape<KEYS_V, DP, 1>;
    static_assert(sizeof(Headers<K>) == sizeof(Headers<V>) && K::STAGES <= V::STAGES, "they share memory");
    __shared__ Barriers<V> barriers;
    __shared__ HeaderBarriers<V> header_barriers;
    __shared__ Headers<V> headers;
    if (blockIdx.y == 0)
        run_block<K>(a, reinterpret_cast<Barriers<K> &>(barriers), header_barriers, headers, nullptr);
    else
        run_block<V>(a, barriers, header_barriers, headers, nullptr);
#endif
}

namespace {

template <Pass PASS, int DP, int GROUPS> bool prepare()
{
    return tl_wgmma_prepare(wgmma_attention_kernel<PASS, DP, GROUPS>, warp_groups::Shape<PASS, DP, GROUPS>::BYTES);
}

template <int DP>
constexpr int KEYS_BYTES = warp_groups::Shape<KEYS_K, DP, 1>::BYTES > warp_groups::Shape<KEYS_V, DP, 1>::BYTES
                               ? warp_groups::Shape<KEYS_K, DP, 1>::BYTES
                               : warp_groups::Shape<KEYS_V, DP, 1>::BYTES;

template <Pass PASS, int DP> constexpr int HALVES_BYTES = warp_groups::Shape<PASS, DP, 1, true>::BYTES;

template <Pass PASS, int DP> bool prepare_halves()
{
    return tl_wgmma_prepare(wgmma_attention_halves_kernel<PASS, DP>, HALVES_BYTES<PASS, DP>);
}
template <int DP> bool prepare_halves() { return prepare_halves<FORWARD, DP>() && prepare_halves<QUERIES, DP>(); }

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

template <int DP> bool prepare_keys() { return tl_wgmma_prepare(wgmma_attention_keys_kernel<DP>, KEYS_BYTES<DP>); }

bool runs(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] {
        return prepare_all<1>() && prepare_all<2>() && prepare_all<192, 1>() && prepare<KEYS_V, 192, 2>() &&
               prepare_keys<96>() && prepare_keys<128>() && prepare_keys<192>() && prepare_halves<96>() &&
               prepare_halves<128>() && prepare_halves<192>();
    });
}

template <Pass PASS, int DP, int GROUPS> int32_t make(tl_context *ctx, WgmmaArgs a, const char *name)
{
    using C = warp_groups::Shape<PASS, DP, GROUPS>;
    a.p.blocks = (uint32_t)tl_ceil_div(a.p.n, C::ROWS);
    return tl_launch_dynamic(ctx, name, wgmma_attention_kernel<PASS, DP, GROUPS>, (unsigned)(a.p.batch * a.p.blocks),
                             C::THREADS, C::BYTES, a);
}

/* Whether blocks of one group are at most `most`. */
template <Pass PASS, int DP> bool are_few(const Problem &p, int64_t most)
{
    return p.batch * tl_ceil_div(p.n, warp_groups::Shape<PASS, DP, 1>::ROWS) <= most;
}

/* A group alone on a multiprocessor has a tile in less time than two of them have theirs; a row has the same bits in either. Of
 * rows of more than 128 elements registers hold two groups of one pass alone. */
template <Pass PASS, int DP> int32_t make(tl_context *ctx, WgmmaArgs a, const char *name)
{
    if constexpr (DP <= 128 || PASS == KEYS_V)
        if (!are_few<PASS, DP>(a.p, tl_cuda_sms(ctx))) return make<PASS, DP, 2>(ctx, a, name);
    if constexpr (DP > 64 && (PASS == FORWARD || PASS == QUERIES)) {
        using C = warp_groups::Shape<PASS, DP, 1, true>;
        if (are_few<PASS, DP>(a.p, tl_cuda_sms(ctx) / C::ALL_HALVES)) {
            a.p.blocks = (uint32_t)tl_ceil_div(a.p.n, C::ROWS);
            const dim3 grid((unsigned)(a.p.batch * a.p.blocks), C::ALL_HALVES);
            return tl_launch_dynamic(ctx, name, wgmma_attention_halves_kernel<PASS, DP>, grid, C::THREADS,
                                     HALVES_BYTES<PASS, DP>, a);
        }
    }
    return make<PASS, DP, 1>(ctx, a, name);
}

template <Pass PASS> int32_t make(tl_context *ctx, const WgmmaArgs &a, const char *name)
{
    return a.p.d <= 64    ? make<PASS, 64>(ctx, a, name)
           : a.p.d <= 96  ? make<PASS, 96>(ctx, a, name)
           : a.p.d <= 128 ? make<PASS, 128>(ctx, a, name)
                          : make<PASS, 192>(ctx, a, name);
}

/* Both gradients of keys, of rows of more than 64 elements, with the bits of the two passes. */
template <int DP> int32_t make_keys(tl_context *ctx, WgmmaArgs a, const char *name)
{
    using C = warp_groups::Shape<KEYS_K, DP, 1>;
    if (!are_few<KEYS_K, DP>(a.p, tl_cuda_sms(ctx) / 2)) {
        TL_TRY((make<KEYS_V, DP>(ctx, a, name)));
        return make<KEYS_K, DP>(ctx, a, name);
    }
    a.p.blocks = (uint32_t)tl_ceil_div(a.p.n, C::ROWS);
    const dim3 grid((unsigned)(a.p.batch * a.p.blocks), 2);
    return tl_launch_dynamic(ctx, name, wgmma_attention_keys_kernel<DP>, grid, C::THREADS, KEYS_BYTES<DP>, a);
}

} /* namespace */

/* Rows beyond one panel of 32 coordinates; a mask whose blocked scores count is left to the kernels that know when they no
 * longer do. Shorter sequences have teams (attention/mma_tiles.cuh), or blocks of fewer rows (attention/relay_tiles.cuh); of
 * longer ones those take as long where they are few, and where they are many much longer than these with copies. It decides the
 * order of sums, so neither the batch nor the device has a part in it. The largest score is taken to be that of the largest
 * product. */
bool wgmma_takes(tl_context *ctx, const Problem &p)
{
    return p.d > 32 && p.d <= WGMMA_WIDTH && p.mode != FILL && p.scale > 0.0f && p.scale <= TENSOR_SCALE &&
           p.n > TEAM_ROWS && p.n < TENSOR_ROWS && runs(ctx);
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
    if (x.gK && x.gV)
        return x.p.d <= 64    ? make<KEYS, 64>(ctx, a, NAME)
               : x.p.d <= 96  ? make_keys<96>(ctx, a, NAME)
               : x.p.d <= 128 ? make_keys<128>(ctx, a, NAME)
                              : make_keys<192>(ctx, a, NAME);
    if (x.gV) TL_TRY(make<KEYS_V>(ctx, a, NAME));
    return x.gK ? make<KEYS_K>(ctx, a, NAME) : TORCHLEAN_OK;
}

} /* namespace attention */
