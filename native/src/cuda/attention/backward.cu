/* Attention on CUDA, backward, in two passes that store nothing of size n x n and add nothing across blocks.
 *
 *   queries   a block owns queries and goes through the keys once: the softmax runs along as in the forward, the sum
 *             Σ_j e^(s-m) (g·v_j - D) k_j is rescaled with it and divided by Σ e^(s-m) at the end. Leaves m, 1/Σ and D
 *             of every query for the second pass
 *   keys      a block owns keys and goes through the queries: P = e^(s-m)/Σ is made again, gV += Pᵀ g, gK += dSᵀ Q
 *
 * 7 products of 2·n²·d operations instead of the 5 of a single pass, whose sums into gQ would have to be ordered
 * between blocks. See attention/simt_tiles.cuh for who owns what. */
#include "cuda/attention/backward.cuh"
#include "cuda/attention/chain.cuh"
#include "cuda/attention/padded.cuh"
#include "cuda/attention/products.cuh"
#include "cuda/device/vector.cuh"

namespace attention {

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

template <class C> constexpr size_t query_shared()
{
    return sizeof(float) * (size_t)(2 * (C::ROWS + C::COLS) * C::LD + C::ROWS * C::LP + 2 * C::ROWS * C::COLS / 32);
}

/* Without GRADIENT only m, 1/Σ and D. */
template <class C, bool GRADIENT>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) query_kernel(const BackwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    float *Qs = shared, *Gs = Qs + C::ROWS * C::LD, *Ks = Gs + C::ROWS * C::LD, *Vs = Ks + C::COLS * C::LD;
    float *Ws = Vs + C::COLS * C::LD;
    uint32_t *bits = (uint32_t *)(Ws + C::ROWS * C::LP);
    constexpr int BITS = C::ROWS * C::COLS / 32;
    const int tx = threadIdx.x % C::TX, ty = threadIdx.x / C::TX;
    const int64_t b = blockIdx.x / p.blocks, rank = blockIdx.x % p.blocks;
    if (p.left_to_tensor_cores(b)) return;
    const int64_t i0 = (p.mode == CAUSAL ? p.blocks - 1 - rank : rank) * C::ROWS, rows = p.n - i0;
    const int64_t from = C::MANY ? (int64_t)(p.chunk + blockIdx.y) * C::DP : 0, member = b * p.n * p.d;
    const float *Q = p.Q + member, *K = p.K + member, *V = p.V + member, *g = a.g + member, *out = a.out + member;
    const int64_t chunk = p.d < C::DP ? p.d : C::DP;
    const int steps = (int)(chunk + 3) / 4;

    float sums[C::RM][C::RC] = {}, dot[C::RM];
    Softmax<C> softmax;
    auto next = [&](int64_t j, uint32_t *words) { return next_keys<C>(j, words, p, b, i0, a.finite_k, softmax); };

    /* Groups of copies alternate: V, then K. */
    int64_t j0 = next(0, bits);
    if (!C::MANY) {
        copy_rows<C, C::ROWS>(Qs, Q, i0, p, 0);
        if (GRADIENT) {
            copy_rows<C, C::ROWS>(Gs, g, i0, p, 0);
            if (j0 < p.n) copy_rows<C, C::COLS>(Vs, V, j0, p, 0);
        }
        tl_copy_commit();
        if (j0 < p.n) copy_rows<C, C::COLS>(Ks, K, j0, p, 0);
        tl_copy_commit();
    }
    /* D: in each of the row's lanes the chain that g·v_j is, so that the two are equal where a saturated softmax gives v_j. */
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const int64_t row = i0 + ty + C::TY * i;
        dot[i] = 0.0f;
#pragma unroll 8
        for (int64_t c = 0; c < p.d && row < p.n; c++)
            dot[i] = fmaf(g[row * p.d + c], out[row * p.d + c], dot[i]);
    }
    for (int turn = 0; j0 < p.n; turn ^= 1) {
        float s[C::RM][C::RK] = {}, t[C::RM][C::RK] = {};
        if (C::MANY) {
            for (int64_t k = 0; k < p.d; k += C::DP) {
                __syncthreads();
                copy_rows<C, C::ROWS>(Qs, Q, i0, p, k);
                copy_rows<C, C::COLS>(Ks, K, j0, p, k);
                if (GRADIENT) {
                    copy_rows<C, C::ROWS>(Gs, g, i0, p, k);
                    copy_rows<C, C::COLS>(Vs, V, j0, p, k);
                }
                tl_copy_commit();
                tl_copy_wait<0>();
                __syncthreads();
                product<C>(Qs, Ks, C::DP / 4, s);
                if (GRADIENT) product<C>(Gs, Vs, C::DP / 4, t);
            }
        } else if (GRADIENT) {
            tl_copy_wait<1>();
            __syncthreads();
            product<C>(Gs, Vs, steps, t);
        }
        __syncthreads();
        const int64_t j1 = next(j0 + C::COLS, bits + (turn ^ 1) * BITS);
        if (!C::MANY && GRADIENT && j1 < p.n) copy_rows<C, C::COLS>(Vs, V, j1, p, 0);
        if (C::MANY && GRADIENT) copy_rows<C, C::COLS>(Ks, K, j0, p, from);
        tl_copy_commit();
        if (C::MANY)
            tl_copy_wait<0>();
        else
            tl_copy_wait<1>();
        __syncthreads();
        if (!C::MANY) product<C>(Qs, Ks, steps, s);
        query_scores<C>(s, p, bits + turn * BITS, j0);
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const float factor = softmax.step(i, s[i]);
            if constexpr (GRADIENT) {
                TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                    sums[i][c] *= factor;
                TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
                    const int key = tx + C::TX * j;
                    bool open = j0 + key < p.n;
                    if (p.mode != NO_MASK)
                        open = bits[turn * BITS + (ty + C::TY * i) * (C::COLS / 32) + key / 32] >> key % 32 & 1;
                    Ws[(ty + C::TY * i) * C::LP + key] = open ? s[i][j] * (t[i][j] - dot[i]) : 0.0f;
                }
            }
        }
        if (GRADIENT) {
            __syncwarp();
            accumulate<C>(Ws, Ks, sums);
        }
        __syncthreads();
        if (!C::MANY && j1 < p.n) copy_rows<C, C::COLS>(Ks, K, j1, p, 0);
        tl_copy_commit();
        j0 = j1;
    }
    tl_copy_wait<0>();
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const float total = softmax.total(i);
        const int64_t row = ty + C::TY * i, at = b * p.n + i0 + row;
        if (row >= rows) continue;
        if (tx == 0 && from == 0) softmax.keep(i, total, dot[i], at, a);
        if (GRADIENT) {
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] = sums[i][c] / total * p.scale;
            store_row<C>(a.gQ + at * p.d, sums[i], p, from);
        }
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

template <class C> constexpr size_t key_shared()
{
    return sizeof(float) * (size_t)(2 * (C::ROWS + C::COLS) * C::LD + 2 * C::ROWS * C::LP + 2 * C::COLS * C::ROWS / 32);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) key_kernel(const BackwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    float *Ks = shared, *Vs = Ks + C::ROWS * C::LD, *Qs = Vs + C::ROWS * C::LD, *Gs = Qs + C::COLS * C::LD;
    float *Ps = Gs + C::COLS * C::LD, *Ws = Ps + C::ROWS * C::LP;
    uint32_t *bits = (uint32_t *)(Ws + C::ROWS * C::LP); /* by query, a word for 32 keys */
    constexpr int BITS = C::ROWS * C::COLS / 32;
    const int tx = threadIdx.x % C::TX, ty = threadIdx.x / C::TX;
    const int64_t b = blockIdx.x / p.blocks, j0 = blockIdx.x % p.blocks * C::ROWS, rows = p.n - j0;
    if (p.left_to_tensor_cores(b)) return;
    const int64_t from = C::MANY ? (int64_t)(p.chunk + blockIdx.y) * C::DP : 0, member = b * p.n * p.d;
    const float *Q = p.Q + member, *K = p.K + member, *V = p.V + member, *g = a.g + member;
    const float *base = a.base + b * p.n, *inverse = a.inverse + b * p.n, *dot = a.dot + b * p.n;
    const int64_t chunk = p.d < C::DP ? p.d : C::DP;
    const int steps = (int)(chunk + 3) / 4;
    const bool want_k = a.gK != nullptr, want_v = a.gV != nullptr;

    float gK[C::RM][C::RC] = {}, gV[C::RM][C::RC] = {};
    /* The first query of the next tile that counts. The weights of a row that is NaN are NaN, blocked or not. */
    auto next = [&](int64_t i, uint32_t *words) {
        for (; i < p.n && p.mode != NO_MASK; i += C::COLS) {
            bool counts = read_mask<C, C::COLS, C::ROWS>(words, p, b, i, j0);
            counts |= !all_finite<C::COLS>(a.finite_q, p, b, i) || !all_finite<C::COLS>(a.finite_g, p, b, i);
            for (int64_t row = i + threadIdx.x; row < i + C::COLS && row < p.n; row += C::THREADS)
                counts |= isnan(inverse[row]) || (p.mode == FILL && !(base[row] > TL_FILL_VANISHES));
            if (__syncthreads_or(counts)) break;
        }
        return i;
    };

    /* Groups of copies alternate: g, then Q. */
    int64_t i0 = next(0, bits);
    if (!C::MANY) {
        copy_rows<C, C::ROWS>(Ks, K, j0, p, 0);
        copy_rows<C, C::ROWS>(Vs, V, j0, p, 0);
        if (i0 < p.n) copy_rows<C, C::COLS>(Gs, g, i0, p, 0);
        tl_copy_commit();
        if (i0 < p.n) copy_rows<C, C::COLS>(Qs, Q, i0, p, 0);
        tl_copy_commit();
    }
    for (int turn = 0; i0 < p.n; turn ^= 1) {
        float s[C::RM][C::RK] = {}, t[C::RM][C::RK] = {};
        if (C::MANY) {
            for (int64_t k = 0; k < p.d; k += C::DP) {
                __syncthreads();
                copy_rows<C, C::ROWS>(Ks, K, j0, p, k);
                copy_rows<C, C::ROWS>(Vs, V, j0, p, k);
                copy_rows<C, C::COLS>(Qs, Q, i0, p, k);
                copy_rows<C, C::COLS>(Gs, g, i0, p, k);
                tl_copy_commit();
                tl_copy_wait<0>();
                __syncthreads();
                product<C>(Vs, Gs, C::DP / 4, t);
                product<C>(Ks, Qs, C::DP / 4, s);
            }
            __syncthreads();
            copy_rows<C, C::COLS>(Qs, Q, i0, p, from);
            copy_rows<C, C::COLS>(Gs, g, i0, p, from);
            tl_copy_commit();
            tl_copy_wait<0>();
            __syncthreads();
        } else {
            tl_copy_wait<1>();
            __syncthreads();
            if (want_k) product<C>(Vs, Gs, steps, t);
            tl_copy_wait<0>();
            __syncthreads();
            product<C>(Ks, Qs, steps, s);
        }
        const uint32_t *words = bits + turn * BITS;
        TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
            const int query = tx + C::TX * j;
            const bool exists = i0 + query < p.n;
            const float m = exists ? base[i0 + query] : 0.0f, over = exists ? inverse[i0 + query] : 0.0f;
            const float D = exists ? dot[i0 + query] : 0.0f;
            TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
                const int key = ty + C::TY * i;
                float x = tl_attention_score(s[i][j], p.scale);
                bool open = true;
                if (p.mode != NO_MASK) {
                    open = words[query * (C::ROWS / 32) + key / 32] >> key % 32 & 1;
                    x = open ? x : p.mode == FILL ? TL_FILL_SCORE : -TL_INF;
                }
                const float weight = tl_attention_weight(x - m) * over;
                Ps[key * C::LP + query] = exists ? weight : 0.0f;
                Ws[key * C::LP + query] = exists && open ? weight * (t[i][j] - D) : 0.0f;
            }
        }
        const int64_t i1 = next(i0 + C::COLS, bits + (turn ^ 1) * BITS);
        __syncwarp();
        if (want_v) accumulate<C>(Ps, Gs, gV);
        __syncthreads();
        if (!C::MANY && i1 < p.n) copy_rows<C, C::COLS>(Gs, g, i1, p, 0);
        tl_copy_commit();
        if (want_k) accumulate<C>(Ws, Qs, gK);
        __syncthreads();
        if (!C::MANY && i1 < p.n) copy_rows<C, C::COLS>(Qs, Q, i1, p, 0);
        tl_copy_commit();
        i0 = i1;
    }
    tl_copy_wait<0>();
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const int64_t row = ty + C::TY * i, at = (b * p.n + j0 + row) * p.d;
        if (row >= rows) continue;
        if (want_k) {
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                gK[i][c] *= p.scale;
            store_row<C>(a.gK + at, gK[i], p, from);
        }
        if (want_v) store_row<C>(a.gV + at, gV[i], p, from);
    }
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

template <class C> static int32_t query_pass(tl_context *ctx, BackwardArgs &a)
{
    const dim3 blocks = pass_grid<C>(a.p);
    return launch_chunks(a.p.chunk, a.gQ ? chunks_of<C>(a.p.d) : 1, blocks, [&](dim3 grid) {
        return tl_launch_shared(ctx, NAME, a.gQ ? query_kernel<C, true> : query_kernel<C, false>, grid, C::THREADS,
                                query_shared<C>(), a);
    });
}

template <class C> static int32_t key_pass(tl_context *ctx, BackwardArgs &a)
{
    const dim3 blocks = pass_grid<C>(a.p);
    return launch_chunks(a.p.chunk, chunks_of<C>(a.p.d), blocks, [&](dim3 grid) {
        return tl_launch_shared(ctx, NAME, key_kernel<C>, grid, C::THREADS, key_shared<C>(), a);
    });
}

/* Whether blocks of C::ROWS rows would leave multiprocessors idle. */
template <class C> static bool leaves_idle(tl_context *ctx, const Problem &p)
{
    return p.batch * tl_ceil_div(p.n, C::ROWS) < (int64_t)tl_cuda_sms(ctx);
}

/* Fewer rows to a block where there would be too few blocks. COLS and TX decide the order of the sums of this pass, ROWS does not. */
template <class LARGE, class SMALL> static int32_t query_pass(tl_context *ctx, BackwardArgs &a)
{
    static_assert(LARGE::COLS == SMALL::COLS && LARGE::TX == SMALL::TX, "the order of sums");
    return leaves_idle<LARGE>(ctx, a.p) ? query_pass<SMALL>(ctx, a) : query_pass<LARGE>(ctx, a);
}

/* The same; sums of this pass are chains in the order of the queries, whatever the tile. */
template <class LARGE, class SMALL> static int32_t key_pass(tl_context *ctx, BackwardArgs &a)
{
    return leaves_idle<LARGE>(ctx, a.p) ? key_pass<SMALL>(ctx, a) : key_pass<LARGE>(ctx, a);
}

static int32_t backward(tl_context *ctx, BackwardArgs &a, uint8_t *finite, uint8_t *unsafe)
{
    const int64_t d = a.p.d, size = a.p.batch * a.p.granules;
    uint8_t *const of_q = finite ? finite + size : nullptr, *const of_g = finite ? finite + 2 * size : nullptr;
    const ValueScan scans[5] = {
        {a.p.K, finite, true}, {a.p.Q, of_q, true}, {a.g, of_g, true}, {a.p.V, nullptr, true}, {a.out, nullptr, false}};
    if (finite || unsafe) TL_TRY(scan_values(ctx, a.p, scans, unsafe ? 5 : 3, unsafe));
    a.finite_k = finite, a.finite_q = of_q, a.finite_g = of_g;
    a.p.unsafe = unsafe;
    if (unsafe) TL_TRY(backward_tensor(ctx, a));
    /* Two blocks of 128 threads share a multiprocessor up to d = 64 and from 129 to 192, one block elsewhere: bound by
     * shared memory and by the registers of two products and the sums. */
    const int32_t status = d <= 8     ? query_pass<Config<8, 128, 32, 16, 8, 2>, Config<8, 16, 32, 16, 8, 6>>(ctx, a)
                           : d <= 16  ? query_pass<Config<16, 128, 32, 16, 8, 2>, Config<16, 16, 32, 16, 8, 5>>(ctx, a)
                           : d <= 32  ? query_pass<Config<32, 128, 32, 16, 8, 2>>(ctx, a)
                           : d <= 64  ? query_pass<Config<64, 128, 32, 16, 8, 2>>(ctx, a)
                           : d <= 128 ? query_pass<Config<128, 64, 64, 16, 16, 1>>(ctx, a)
                           : d <= 192 ? query_pass<Config<192, 32, 32, 8, 16, 2>>(ctx, a)
                           : d <= 256 ? query_pass<Config<256, 32, 32, 8, 16, 1>>(ctx, a)
                                      : query_pass<Config<128, 64, 64, 16, 16, 1, true>>(ctx, a);
    TL_TRY(status);
    if (!a.gK && !a.gV) return TORCHLEAN_OK;
    return d <= 8     ? key_pass<Config<8, 64, 64, 16, 8, 2>, Config<8, 32, 64, 32, 8, 2>>(ctx, a)
           : d <= 16  ? key_pass<Config<16, 64, 64, 16, 8, 2>, Config<16, 32, 64, 32, 8, 2>>(ctx, a)
           : d <= 32  ? key_pass<Config<32, 64, 64, 16, 8, 2>>(ctx, a)
           : d <= 64  ? key_pass<Config<64, 64, 64, 16, 8, 2>>(ctx, a)
           : d <= 128 ? key_pass<Config<128, 64, 64, 16, 16, 1>>(ctx, a)
           : d <= 192 ? key_pass<Config<192, 32, 32, 8, 16, 2>>(ctx, a)
           : d <= 256 ? key_pass<Config<256, 32, 32, 8, 16, 1>>(ctx, a)
                      : key_pass<Config<128, 64, 64, 16, 16, 1, true>>(ctx, a);
}

} /* namespace attention */

extern "C" int32_t tl_cuda_flash_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V,
                                               const float *mask, const float *out, const float *g, int64_t batch,
                                               int64_t n, int64_t d, int64_t mask_mode, float scale, float *gQ,
                                               float *gK, float *gV)
{
    using namespace attention;
    const Geometry of = square_geometry(batch, n, d, mask_mode, scale, mask);
    const bool wide = d % 4 == 0 && tl_aligned4(Q) && tl_aligned4(K) && tl_aligned4(V) && tl_aligned4(g) &&
                      (!gQ || tl_aligned4(gQ)) && (!gK || tl_aligned4(gK)) && (!gV || tl_aligned4(gV));
    const int64_t granules = tl_ceil_div(n, GRANULE), queries = batch * n;
    const Problem p = {Q, K, V, mask, batch, n, d, (int)mask_mode, scale, wide, granules, 0, 0, nullptr};
    const bool wgmma = !tl_is_reproducible(ctx) && wgmma_takes(ctx, p);
    bool tensor = wgmma || tensor_takes(p);
    if (products_serve_square<true>(ctx, of)) {
        const int32_t status = products_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
        if (status != TORCHLEAN_NO_MEMORY) return status;
    }
    if (tl_is_reproducible(ctx) || (!tensor && chain_serves(ctx, of)))
        return chain_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
    BackwardArgs a = {p, out, g, gQ, gK, gV};
    if (wgmma && !wide) {
        const int32_t status = backward_padded(ctx, a);
        if (status != TORCHLEAN_NO_MEMORY) return status;
        tensor = tensor_takes(p);
    }
    const size_t statistics = (size_t)(3 * queries) * sizeof(float);
    tl_scratch<char> scratch(ctx);
    TL_TRY(scratch.allocate((int64_t)statistics + 3 * batch * granules + batch));
    a.base = reinterpret_cast<float *>((char *)scratch);
    a.inverse = a.base + queries;
    a.dot = a.inverse + queries;
    uint8_t *const finite = reinterpret_cast<uint8_t *>(a.base) + statistics;
    return backward(ctx, a, a.p.mode == NO_MASK ? nullptr : finite, tensor ? finite + 3 * batch * granules : nullptr);
}
