/* The pass over keys of attention/grouped.cu with weights in memory, for keys in few blocks with many rows: there a block goes
 * through all rows of its keys, one tile after the other, and most multiprocessors wait. The sums have to be made in the order of
 * the rows, but weights need not: so one kernel makes P and dS of all tiles at once, and another goes through them, which has
 * little to do for a tile, and does it for 64 columns of a gradient at a time. Both have the bits of the kernel that does it
 * in one: their products are the same chains.
 *
 * P and dS lie in memory by keys, rows side by side; of a tile that counts nowhere only that is kept. Keys go in groups, so that
 * each array has at most 256 MiB. */
#include "cuda/attention/stored_weights.cuh"

#include <algorithm>

namespace attention {
namespace grouped {

constexpr const char *NAME = "attention_stored_weights";
constexpr int64_t PAIRS_MOST = (int64_t)1 << 26, GROUPS_MOST = 4;
/* Tiles of rows to a chain from which on that pays: each takes tens of microseconds otherwise. */
constexpr int64_t TILES_LEAST = 4;

/* Rows are copied 64 columns at a time, to products and to sums. */
using Pairs = Config<64, 64, STORED_TILE, 16, 16, 2, true>;
using Columns = Config<64, 32, STORED_TILE, 16, 16, 2, true>;
static_assert(Pairs::ROWS % Columns::ROWS == 0, "blocks of both kernels");

struct Stored {
    float *weights, *products; /* P and dS, the latter NULL where no gradient of keys is asked for */
    uint8_t *counts;           /* whether a tile counts: of each block of keys, its tiles of rows */
    int64_t from, blocks,
        first;     /* the group's first block, of those of all members; blocks of a member; its first key */
    int64_t tiles; /* of rows */

    __device__ __forceinline__ int64_t member(int64_t block) const { return divide(from + block, blocks); }
    __device__ __forceinline__ int64_t key(int64_t block) const
    {
        return first + (from + block - member(block) * blocks) * Pairs::ROWS;
    }
    /* Where key k of a block has the weights of its first row. */
    __host__ __device__ __forceinline__ int64_t at(int64_t block, int64_t k) const
    {
        return (block * Pairs::ROWS + k) * tiles * Pairs::COLS;
    }
};

/* ---- weights ----------------------------------------------------------------------------------------------------- */

constexpr size_t pairs_shared()
{
    using C = Pairs;
    return sizeof(float) * (size_t)((Rows::FLOATS + STATISTICS) * C::COLS + (C::ROWS + C::COLS) * C::LD);
}

__global__ void __launch_bounds__(Pairs::THREADS, Pairs::BLOCKS) pairs_kernel(const Args a, const Stored to)
{
    using C = Pairs;
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::COLS);
    float *const statistics = shared + Rows::FLOATS * C::COLS;
    float *const Xs = statistics + STATISTICS * C::COLS, *const Ys = Xs + C::ROWS * C::LD;
    const int64_t b = to.member(blockIdx.x), j0 = to.key(blockIdx.x), i0 = (int64_t)blockIdx.y * C::COLS;

    limits.find(a, b, i0, C::COLS);
    __syncthreads();
    const bool counts = tile_counts<C>(a, limits, b, i0, j0);
    if (threadIdx.x == 0) to.counts[blockIdx.x * to.tiles + blockIdx.y] = counts;
    if (!counts) return;
    copy_statistics<C>(statistics, a, b, i0);
    arrive();
    float s[C::RM][C::RK] = {}, t[C::RM][C::RK] = {};
    scores<C>(s, Xs, a.K + b * a.keys * a.d, j0, a.keys, Ys, a.Q + b * a.rows * a.d, i0, a.rows, a.d, a.wide_d);
    if (to.products)
        scores<C>(t, Xs, a.V + b * a.keys * a.v, j0, a.keys, Ys, a.g + b * a.rows * a.v, i0, a.rows, a.v, a.wide_v);
    const uint64_t open = tile_scores<C, true>(a, limits, j0, s);
    weigh_pairs<C>(statistics, a.rows - i0, open, s, t, [=](int key, int query, float weight, float product) {
        const int64_t at = to.at(blockIdx.x, key) + i0 + query;
        to.weights[at] = weight;
        if (to.products) to.products[at] = product;
    });
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

constexpr int STAGES = 2;
constexpr int STAGE_FLOATS = Columns::ROWS * Columns::LP + Columns::COLS * Columns::LD;

/* A block makes, of 32 keys, 64 columns of one of the gradients, gK's first. */
__global__ void __launch_bounds__(Columns::THREADS, Columns::BLOCKS) columns_kernel(const Args a, const Stored of)
{
    using C = Columns;
    constexpr int SHARE = Pairs::ROWS / C::ROWS;
    TL_DYNAMIC_SHARED(float, shared);
    const int64_t block = blockIdx.x / SHARE, b = of.member(block);
    const int k0 = (int)(blockIdx.x % SHARE) * C::ROWS, chunks_k = a.gK ? (int)((a.d + C::DP - 1) / C::DP) : 0;
    const int chunk = (int)(a.chunk + blockIdx.y);
    const bool of_keys = chunk < chunks_k;
    const int64_t j0 = of.key(block) + k0, from = (chunk - (of_keys ? 0 : chunks_k)) * (int64_t)C::DP;
    Problem rows = {}; /* as copy_rows() takes it */
    rows.n = a.rows, rows.d = of_keys ? a.d : a.v, rows.wide = of_keys ? a.wide_d : a.wide_v;
    const float *const X = of_keys ? a.Q + b * a.rows * a.d : a.g + b * a.rows * a.v;
    const float *const weights = (of_keys ? of.products : of.weights) + of.at(block, k0);
    const uint8_t *const counts = of.counts + block * of.tiles;
    const int end = (int)((end_term(a, a.rows) + C::COLS - 1) / C::COLS);

    const auto next = [=](int tile) {
        while (tile < end && !counts[tile])
            tile++;
        return tile;
    };
    /* Starts copying a tile: its weights, then the columns of its rows. */
    const auto start = [=](int tile, int stage) {
        float *const Ws = shared + stage * STAGE_FLOATS, *const Xs = Ws + C::ROWS * C::LP;
        const int64_t i0 = (int64_t)tile * C::COLS;
        TL_UNROLL_FOR (int t = threadIdx.x; t < C::ROWS * (C::COLS / 4); t += C::THREADS) {
            const int key = t / (C::COLS / 4), query = t % (C::COLS / 4) * 4;
            tl_copy_async<16>(Ws + key * C::LP + query, weights + key * of.tiles * C::COLS + i0 + query, true);
        }
        copy_rows<C, C::COLS>(Xs, X, i0, rows, from);
        tl_copy_commit();
    };
    float sums[C::RM][C::RC] = {};
    int tile = next((int)(first_term(a) / C::COLS)), stage = 0;
    if (tile < end) start(tile, stage);
    while (tile < end) {
        const int after = next(tile + 1);
        tl_copy_wait<0>();
        __syncthreads(); /* the tile is there, and the one before has been used */
        if (after < end) start(after, stage ^ 1);
        const float *const Ws = shared + stage * STAGE_FLOATS;
        accumulate<C>(Ws, Ws + C::ROWS * C::LP, sums);
        stage ^= 1;
        tile = after;
    }
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const int64_t row = j0 + (int)threadIdx.x / C::TX + C::TY * i;
        if (row >= a.keys) continue;
        TL_UNROLL_FOR (int c = 0; c < C::RC; c++) /* no -0, as there */
            sums[i][c] = of_keys ? (sums[i][c] + 0.0f) * a.scale : sums[i][c] + 0.0f;
        const int64_t at = (b * gridDim.z + blockIdx.z) * a.keys + row;
        store<C>((of_keys ? a.gK : a.gV) + at * rows.d, sums[i], rows.d, from);
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* The blocks of a.open, and of a group as many as the arrays hold. */
static Stored make_stored(const Args &a)
{
    Stored x = {};
    x.tiles = tl_ceil_div(a.rows, Pairs::COLS);
    x.first = a.open.first / Pairs::ROWS * Pairs::ROWS;
    x.blocks = tl_ceil_div(a.open.end - x.first, Pairs::ROWS);
    return x;
}
static int64_t blocks_of_group(const Stored &x) { return PAIRS_MOST / (Pairs::ROWS * Pairs::COLS * x.tiles); }

bool stored_weights_serve(tl_context *ctx, const Args &a, int64_t blocks)
{
    const Stored x = make_stored(a);
    return (a.gK || a.gV) && blocks > 0 && blocks < tl_cuda_sms(ctx) &&
           std::min(a.part, a.rows) > TILES_LEAST * Pairs::COLS &&
           a.members * x.blocks <= GROUPS_MOST * blocks_of_group(x);
}

int32_t stored_weights_backward(tl_context *ctx, Args &a)
{
    Stored x = make_stored(a);
    const int64_t all = a.members * x.blocks, each = std::min(all, blocks_of_group(x));
    const int64_t chunks = (a.gK ? tl_ceil_div(a.d, Columns::DP) : 0) + (a.gV ? tl_ceil_div(a.v, Columns::DP) : 0);
    tl_scratch<float> weights(ctx), products(ctx);
    tl_scratch<uint8_t> counts(ctx);
    TL_TRY(weights.allocate(x.at(each, 0)));
    if (a.gK) TL_TRY(products.allocate(x.at(each, 0)));
    TL_TRY(counts.allocate(each * x.tiles));
    x.weights = weights, x.products = a.gK ? (float *)products : nullptr, x.counts = counts;
    for (; x.from < all && chunks > 0; x.from += each) {
        const int64_t count = std::min(each, all - x.from);
        TL_TRY(tl_launch_shared(ctx, NAME, pairs_kernel, dim3((unsigned)count, (unsigned)x.tiles), Pairs::THREADS,
                                pairs_shared(), a, x));
        const dim3 blocks((unsigned)(count * (Pairs::ROWS / Columns::ROWS)), 1, (unsigned)tl_ceil_div(a.rows, a.part));
        TL_TRY(launch_chunks(a.chunk, chunks, blocks, [&](dim3 grid) {
            return tl_launch_shared(ctx, NAME, columns_kernel, grid, Columns::THREADS,
                                    sizeof(float) * STAGES * STAGE_FLOATS, a, x);
        }));
    }
    a.stored = {x.first, x.first + x.blocks * Pairs::ROWS};
    return TORCHLEAN_OK;
}

} /* namespace grouped */
} /* namespace attention */
