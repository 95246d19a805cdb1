/* Attention on CUDA, forward. See attention/simt_tiles.cuh and attention/mma_tiles.cuh for who owns what; where rows are
 * few, attention/relay_tiles.cuh.
 *
 * A tile of keys: S = Q·Kᵀ in registers, the softmax brought up to date, sums += P·V. Without tensor cores the weights
 * pass through shared memory to the lanes that need them (a row's weights are read by the warp that wrote them), V is
 * copied while S is computed, the next K while P·V is. On tensor cores they stay in registers. A tile that the mask
 * blocks whole is skipped, unless its values hold an infinity or NaN, which a weight of 0 does not silence, or the fill
 * still has weight. */
#include "cuda/attention/chain.cuh"
#include "cuda/attention/few_rows.cuh"
#include "cuda/attention/mma_tiles.cuh"
#include "cuda/attention/padded.cuh"
#include "cuda/attention/products.cuh"
#include "cuda/attention/relay.cuh"
#include "cuda/attention/value_scan.cuh"
#include "cuda/device/vector.cuh"

namespace attention {

/* ---- without tensor cores ---------------------------------------------------------------------------------------- */

struct ForwardArgs {
    Problem p;
    const uint8_t *finite; /* of V */
    float *out;
};

template <class C> constexpr size_t forward_shared()
{
    return sizeof(float) * (size_t)((C::ROWS + 2 * C::COLS) * C::LD + C::ROWS * C::LP + 2 * C::ROWS * C::COLS / 32);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) forward_kernel(const ForwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    float *Qs = shared, *Ks = Qs + C::ROWS * C::LD, *Vs = Ks + C::COLS * C::LD, *Ps = Vs + C::COLS * C::LD;
    uint32_t *bits = (uint32_t *)(Ps + C::ROWS * C::LP);
    constexpr int BITS = C::ROWS * C::COLS / 32;
    const int tx = threadIdx.x % C::TX, ty = threadIdx.x / C::TX;
    tl_wait_for_earlier();
    const int64_t b = blockIdx.x / p.blocks, rank = blockIdx.x % p.blocks;
    if (p.left_to_tensor_cores(b)) return;
    /* under a causal mask the last rows have the most to do and start first */
    const int64_t i0 = (p.mode == CAUSAL ? p.blocks - 1 - rank : rank) * C::ROWS, rows = p.n - i0;
    const int64_t from = C::MANY ? (int64_t)(p.chunk + blockIdx.y) * C::DP : 0;
    const float *Q = p.Q + b * p.n * p.d, *K = p.K + b * p.n * p.d, *V = p.V + b * p.n * p.d;
    const int64_t chunk = p.d < C::DP ? p.d : C::DP;
    const int steps = (int)(chunk + 3) / 4;

    float sums[C::RM][C::RC] = {};
    Softmax<C> softmax;
    auto next = [&](int64_t j, uint32_t *words) { return next_keys<C>(j, words, p, b, i0, a.finite, softmax); };

    int64_t j0 = next(0, bits);
    if (!C::MANY) {
        copy_rows<C, C::ROWS>(Qs, Q, i0, p, 0);
        if (j0 < p.n) copy_rows<C, C::COLS>(Ks, K, j0, p, 0);
        tl_copy_commit();
    }
    for (int turn = 0; j0 < p.n; turn ^= 1) {
        copy_rows<C, C::COLS>(Vs, V, j0, p, from);
        tl_copy_commit();
        float s[C::RM][C::RK] = {};
        if (C::MANY) {
            for (int64_t k = 0; k < p.d; k += C::DP) {
                copy_rows<C, C::ROWS>(Qs, Q, i0, p, k);
                copy_rows<C, C::COLS>(Ks, K, j0, p, k);
                tl_copy_commit();
                tl_copy_wait<0>();
                __syncthreads();
                product<C>(Qs, Ks, C::DP / 4, s);
                __syncthreads();
            }
        } else {
            tl_copy_wait<1>();
            __syncthreads();
            product<C>(Qs, Ks, steps, s);
            __syncthreads();
        }
        const int64_t j1 = next(j0 + C::COLS, bits + (turn ^ 1) * BITS);
        if (!C::MANY && j1 < p.n) copy_rows<C, C::COLS>(Ks, K, j1, p, 0);
        tl_copy_commit();
        query_scores<C>(s, p, bits + turn * BITS, j0);
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const float factor = softmax.step(i, s[i]);
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] *= factor;
            TL_UNROLL_FOR (int j = 0; j < C::RK; j++)
                Ps[(ty + C::TY * i) * C::LP + tx + C::TX * j] = s[i][j];
        }
        tl_copy_wait<1>();
        __syncthreads();
        accumulate<C>(Ps, Vs, sums);
        __syncthreads();
        j0 = j1;
    }
    tl_copy_wait<0>();
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const float total = softmax.total(i);
        const int64_t row = ty + C::TY * i;
        TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
            sums[i][c] = sums[i][c] / total;
        if (row < rows) store_row<C>(a.out + (b * p.n + i0 + row) * p.d, sums[i], p, from);
    }
}

template <class C> static int32_t forward(tl_context *ctx, ForwardArgs &a)
{
    const dim3 blocks = pass_grid<C>(a.p);
    TL_TRY(tl_allow_shared(ctx, forward_kernel<C>, forward_shared<C>()));
    return launch_chunks(a.p.chunk, chunks_of<C>(a.p.d), blocks, [&](dim3 grid) {
        return tl_launch_ahead(ctx, "flash_attention", forward_kernel<C>, grid, C::THREADS, forward_shared<C>(), a);
    });
}

/* Fewer rows to a block as long as all such blocks run at once. */
template <class LARGE, class SMALL, class... SMALLER> static int32_t forward(tl_context *ctx, ForwardArgs &a)
{
    const bool small = (int64_t)pass_grid<SMALL>(a.p).x * chunks_of<SMALL>(a.p.d) <= SMALL::BLOCKS * tl_cuda_sms(ctx);
    return small ? forward<SMALL, SMALLER...>(ctx, a) : forward<LARGE>(ctx, a);
}

/* ---- which values are finite, and which of them tensor cores take ------------------------------------------------- */

/* A warp owns a granule of one array. Whoever finds an unsafe member writes the same 1. */
__global__ void __launch_bounds__(256) scan_values_kernel(const ValueScanArgs a)
{
    const int64_t item = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (item >= a.batch * a.granules) return;
    const int64_t b = item / a.granules;
    const ValueScan &scan = a.scans[blockIdx.y];
    const ValueFlags flags = scan_granule(scan, a, b, item % a.granules);
    if (threadIdx.x % 32 == 0) {
        if (scan.finite) scan.finite[item] = !flags.nonfinite;
        if (a.unsafe && flags.unsplittable) a.unsafe[b] = 1;
    }
}

/* A block owns a member, a warp a granule. */
constexpr int SCAN_WARPS = 16;
__global__ void __launch_bounds__(32 * SCAN_WARPS) scan_members_kernel(const ValueScanArgs a)
{
    scan_member(a, blockIdx.x, true);
}

int32_t scan_values(tl_context *ctx, const Problem &p, const ValueScan *scans, int count, uint8_t *unsafe)
{
    const ValueScanArgs a = scan_args(p, scans, count, unsafe);
    /* Of short sequences a block finds all flags of a member, which saves a launch. */
    const int64_t items = count * p.granules;
    if (unsafe && items <= SCAN_WARPS)
        return tl_launch(ctx, "scan_values", scan_members_kernel, (unsigned)p.batch, 32 * (unsigned)items, a);
    if (unsafe) TL_CUDA_TRY(ctx, cudaMemsetAsync(unsafe, 0, (size_t)p.batch, tl_cuda_stream(ctx)));
    const dim3 grid(tl_grid(p.batch * p.granules, 8), (unsigned)count);
    return tl_launch(ctx, "scan_values", scan_values_kernel, grid, 256, a);
}

/* ---- on tensor cores --------------------------------------------------------------------------------------------- */

/* Turns whose keys and values are in shared memory at once: one and the next, which of teams not all sequences have. */
template <class C> __host__ __device__ constexpr int stages(int64_t n) { return C::SPLIT > 1 && n <= C::TILES ? 1 : 2; }

template <class C> constexpr size_t forward_tensor_shared(int64_t n)
{
    return sizeof(float) * (size_t)((C::ROWS + 2 * stages<C>(n) * C::TILES) * C::LD + 2 * C::ROWS * C::SPLIT);
}

struct TensorArgs : ForwardArgs {
    bool scanned; /* of each member is known whether tensor cores take it; else its blocks find that out */
    ValueScanArgs scan;
};

/* One tile of keys and values is copied while the one before is multiplied; a barrier per tile. A warp passes over a
 * tile that its mask blocks, the block over one that all its masks block. */
template <class C>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) forward_tensor_kernel(const __grid_constant__ TensorArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    const int64_t b = blockIdx.x / p.blocks, rank = blockIdx.x % p.blocks;
    tl_wait_for_earlier();
    constexpr bool SCANS = C::SPLIT > 1 && C::M == 1;
    if ((!SCANS || a.scanned) && p.unsafe[b]) return;
    const int64_t i0 = (p.mode == CAUSAL ? p.blocks - 1 - rank : rank) * C::ROWS, rows = p.n - i0;
    const int64_t end = p.mode == CAUSAL && i0 + C::ROWS < p.n ? i0 + C::ROWS : p.n, member = b * p.n * p.d;
    const float *Q = p.Q + member, *K = p.K + member, *V = p.V + member;
    const int kept = stages<C>(p.n) * C::TILES * C::LD;
    float *Qs = shared, *Ks = Qs + C::ROWS * C::LD, *Vs = Ks + kept;
    uint32_t *bits = (uint32_t *)(Vs + kept);
    const Lane lane((C()));
    const int d = (int)p.d;

    Sums<C> sums = {};
    TensorSoftmax<C> softmax;
    int64_t j0 = next_tile<C>(0, end, bits, p, b, i0, softmax, lane);
    copy_rows<C, C::ROWS>(Qs, Q, i0, p, 0);
    if (j0 < end) {
        copy_rows<C, C::TILES>(Ks, K, j0, p, 0);
        copy_rows<C, C::TILES>(Vs, V, j0, p, 0);
    }
    tl_copy_commit();
    if constexpr (SCANS)
        if (!a.scanned && scan_tiles<C>(a.scan, p, b, Ks, Vs, j0 < end, rank == 0)) return;
    for (int turn = 0; j0 < end; turn ^= 1) {
        tl_copy_wait<0>();
        __syncthreads();
        const int64_t j1 =
            next_tile<C>(j0 + C::TILES, end, bits + (turn ^ 1) * C::ROWS * C::SPLIT, p, b, i0, softmax, lane);
        if (j1 < end) {
            copy_rows<C, C::TILES>(Ks + (turn ^ 1) * C::TILES * C::LD, K, j1, p, 0);
            copy_rows<C, C::TILES>(Vs + (turn ^ 1) * C::TILES * C::LD, V, j1, p, 0);
        }
        tl_copy_commit();
        const uint32_t *words = bits + (turn * C::SPLIT + lane.team) * C::ROWS;
        const int64_t j = j0 + lane.team * TILE;
        const int at = (turn * C::SPLIT + lane.team) * TILE * C::LD;
        const Cover cover = query_cover<C>(words, p, i0, j, lane);
        if ((C::SPLIT == 1 || j < end) && (cover != NOTHING || (p.mode == FILL && softmax.fill_counts(rows, lane)))) {
            float s[C::M][4][4];
            tile_product<C, false>(s, Qs, Ks + at, d, lane);
            tensor_scores<C>(s, p, cover, words, i0, j, lane);
            softmax.step(s);
            const Weights<C> weights(s);
            tile_accumulate<C, true>(sums, weights, Vs + at, d, softmax.factor, lane);
        }
        j0 = j1;
    }
    tl_copy_wait<0>();
    if (!join_queries<C, true>(shared, softmax, sums, lane)) return;
    if constexpr (C::SPLIT == 2) /* what teams without a tile add where there are four: a -0 becomes +0 */
        each_sum<C>(sums, [](int, float &sum) { sum += 0.0f; });
    TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
        const float total = softmax.total(r);
        if (lane.row(r) >= rows) continue;
        TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++)
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++)
                    sums[r / 2][group][j][r % 2 * 2 + e] = sums[r / 2][group][j][r % 2 * 2 + e] / total;
        store_sums<C>(a.out + member + (i0 + lane.row(r)) * p.d, sums, r, p, lane);
    }
}

template <class C> static int32_t forward_tensor(tl_context *ctx, TensorArgs a)
{
    const dim3 grid = pass_grid<C>(a.p);
    const size_t bytes = forward_tensor_shared<C>(a.p.n);
    TL_TRY(tl_allow_shared(ctx, forward_tensor_kernel<C>, bytes));
    return tl_launch_ahead(ctx, "flash_attention", forward_tensor_kernel<C>, grid, C::THREADS, bytes, a);
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

static int32_t forward_all(tl_context *ctx, ForwardArgs &a, uint8_t *finite, uint8_t *unsafe)
{
    const int64_t d = a.p.d;
    const ValueScan scans[3] = {{a.p.V, finite, true}, {a.p.Q, nullptr, true}, {a.p.K, nullptr, true}};
    /* Where 32 rows to a warp would leave multiprocessors idle, or half of the rows of a block empty. */
    const bool few = a.p.batch * tl_ceil_div(a.p.n, 128) < tl_cuda_sms(ctx);
    const bool wgmma = unsafe && wgmma_serves(ctx, a.p), teams = !wgmma && d <= 64 && a.p.n <= TEAM_ROWS;
    const bool relay = unsafe && !wgmma && !teams && relay_serves(ctx, a.p);
    /* Of two tiles of keys two of the four teams would have nothing to do. */
    const bool two_teams = teams && a.p.n <= 2 * TILE, small_teams = teams && (few || two_teams);
    /* Blocks that have all keys of a member in a turn scan it themselves, while they copy: that saves a launch. */
    const bool scanned = !unsafe || !(small_teams || relay) || a.p.n > SCAN_ROWS;
    if (scanned && (finite || unsafe)) TL_TRY(scan_values(ctx, a.p, scans, unsafe ? 3 : 1, unsafe));
    a.finite = finite;
    a.p.unsafe = unsafe;
    /* Where warp group products do not serve: 32 rows to a warp, so that what is split of K and V serves two products,
     * unless that leaves multiprocessors idle; 8 warps to a multiprocessor, bound by registers, and more where the keys of
     * a member are one turn, whose shared memory is small. */
    if (unsafe) {
        const TensorArgs tensor = {a, scanned, scan_args(a.p, scans, 3, unsafe)};
        const bool short_teams = small_teams && a.p.n <= 4 * TILE &&
                                 a.p.batch * tl_ceil_div(a.p.n, TILE) > tl_cuda_sms(ctx);
        const int32_t status = wgmma                    ? forward_wgmma(ctx, a.p, a.out)
                               : two_teams && d <= 32   ? forward_tensor<Tensor<32, 1, 4, 4, 2>>(ctx, tensor)
                               : two_teams              ? forward_tensor<Tensor<64, 1, 4, 3, 2>>(ctx, tensor)
                               : small_teams && d <= 32 ? forward_tensor<Tensor<32, 1, 8, 2, 4>>(ctx, tensor)
                               : short_teams            ? forward_tensor<Tensor<64, 1, 8, 2, 4>>(ctx, tensor)
                               : small_teams            ? forward_tensor<Tensor<64, 1, 8, 1, 4>>(ctx, tensor)
                               : teams                  ? forward_tensor<Tensor<64, 2, 8, 1, 4>>(ctx, tensor)
                               : relay                  ? forward_relay(ctx, a.p, a.out, scanned, tensor.scan)
                               : few && d <= 64         ? forward_tensor<Tensor<64, 1, 4, 2>>(ctx, tensor)
                               : d <= 32                ? forward_tensor<Tensor<32, 2, 4, 2>>(ctx, tensor)
                               : d <= 64                ? forward_tensor<Tensor<64, 2, 4, 2>>(ctx, tensor)
                                                        : forward_tensor<Tensor<128, 1, 8, 1>>(ctx, tensor);
        TL_TRY(status);
    }
    /* Two blocks of 128 threads share a multiprocessor up to d = 64, one of 256 beyond: bound by shared memory. Rows that no
     * tensor core takes, narrow ones and those beyond 128, may be few, and of those beyond 128 many are not much longer.
     * COLS and TX decide the order of sums, ROWS does not. */
    return d <= 8     ? forward<Config<8, 128, 64, 16, 8, 2>, Config<8, 32, 64, 32, 8, 3>>(ctx, a)
           : d <= 16  ? forward<Config<16, 128, 64, 16, 8, 2>, Config<16, 32, 64, 32, 8, 3>>(ctx, a)
           : d <= 32  ? forward<Config<32, 128, 64, 16, 8, 2>>(ctx, a)
           : d <= 64  ? forward<Config<64, 128, 64, 16, 8, 2>>(ctx, a)
           : d <= 128 ? forward<Config<128, 128, 64, 16, 16, 1>>(ctx, a)
           : d <= 192 ? forward<Config<192, 64, 64, 16, 16, 1>, Config<192, 32, 64, 16, 16, 1>,
                                Config<192, 16, 64, 16, 16, 1>>(ctx, a)
           : d <= 256 ? forward<Config<256, 64, 64, 16, 16, 1>, Config<256, 32, 64, 16, 16, 1>,
                                Config<256, 16, 64, 16, 16, 1>>(ctx, a)
                      : forward<Config<128, 128, 64, 16, 16, 1, true>, Config<128, 32, 64, 16, 16, 2, true>>(ctx, a);
}

} /* namespace attention */

extern "C" int32_t tl_cuda_flash_attention(tl_context *ctx, const float *Q, const float *K, const float *V,
                                           const float *mask, int64_t batch, int64_t n, int64_t d, int64_t mask_mode,
                                           float scale, float *out)
{
    using namespace attention;
    const Geometry of = square_geometry(batch, n, d, mask_mode, scale, mask);
    const bool wide = d % 4 == 0 && tl_aligned4(Q) && tl_aligned4(K) && tl_aligned4(V) && tl_aligned4(out);
    const int64_t granules = tl_ceil_div(n, GRANULE);
    ForwardArgs a{{Q, K, V, mask, batch, n, d, (int)mask_mode, scale, wide, granules, 0, 0, nullptr}, nullptr, out};
    const bool wgmma = !tl_is_reproducible(ctx) && wgmma_takes(ctx, a.p), masked = a.p.mode != NO_MASK;
    bool tensor = wgmma || tensor_takes(a.p);
    if (products_serve_square<false>(ctx, of)) {
        const int32_t status = products_forward(ctx, of, Q, K, V, out);
        if (status != TORCHLEAN_NO_MEMORY) return status;
    }
    if (!tensor && few_rows_serve(ctx, of)) return few_rows_forward(ctx, of, Q, K, V, out);
    if (tl_is_reproducible(ctx) || (!tensor && chain_serves(ctx, of))) return chain_forward(ctx, of, Q, K, V, out);
    if (wgmma && !wide) {
        const int32_t status = forward_padded(ctx, a.p, out);
        if (status != TORCHLEAN_NO_MEMORY) return status;
        tensor = tensor_takes(a.p);
    }
    if (!tensor && !masked) return forward_all(ctx, a, nullptr, nullptr);
    tl_scratch<uint8_t> finite(ctx);
    TL_TRY(finite.allocate(batch * granules + batch));
    return forward_all(ctx, a, masked ? (uint8_t *)finite : nullptr, tensor ? finite + batch * granules : nullptr);
}
