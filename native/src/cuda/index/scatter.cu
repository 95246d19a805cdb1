/* Scatter-adds on CUDA: the column tree of formula/sum_tree.h over the hits of each element, in index order. Nothing is added by
 * atomic operations, so every result is that of the CPU path.
 *
 * Lists of up to a chunk of the tree take one launch behind a copy of the base: the thread of an element's first hit finds the
 * others. Longer lists are sorted by row, stably (sort.cu, or CUB's radix sort), so that the hits of a row are a run. A launch finds
 * the runs. In the next one a thread owns some columns of a row, whose run it adds, or of a chunk of a run of several. A last one
 * joins the sums of chunks.
 *
 * Where hits are few beside rows, the base is copied while the list is sorted, and runs have owners, else rows. */
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/index/select.h"

#include <cub/device/device_radix_sort.cuh>

namespace {

constexpr int THREADS = 256;
constexpr uint32_t CHUNK = TL_COLUMN_CHUNK, CHAINS = TL_COLUMN_CHAINS;
constexpr int AT_ONCE = 2 * CHAINS; /* hits that a thread loads together */
constexpr int JOIN_WARPS = 16;      /* of a block */
constexpr int BLOCKS_PER_SM = 4;    /* that take the chunks of long runs in turns */

template <class Vector> __device__ __forceinline__ Vector add(Vector a, Vector b) { return tl_join<tl_sum_op>(a, b); }

/* The sum of a chunk, of which load(i) is element i. What is behind its end adds +0, which changes no chain. */
template <class Vector, class Load> __device__ __forceinline__ Vector sum_chunk(uint32_t count, Load load)
{
    Vector chain[CHAINS] = {};
    for (uint32_t first = 0; first < count; first += AT_ONCE) {
        Vector v[AT_ONCE];
        TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++) {
            v[i] = Vector{};
            if (first + i < count) v[i] = load(first + i);
        }
        TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++)
            chain[i % CHAINS] = add(chain[i % CHAINS], v[i]);
    }
    return add(add(chain[0], chain[1]), add(chain[2], chain[3]));
}

/* ---- short lists ----------------------------------------------------------------------------------------------------- */

/* The output holds the base. Thread t has element t of (outer, k, inner): where it is the first of the list to hit its place it adds
 * all that do. `inner` counts vectors, of more than one float where columns share their indices. */
template <class Vector>
__global__ void __launch_bounds__(THREADS) add_short_lists_kernel(const Vector *values, tl_axis_indices indices,
                                                                  const Vector *base, Vector *out, int64_t total)
{
    tl_wait_for_earlier();
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= total) return;
    uint32_t o, own, c;
    const uint32_t index = indices.of((uint32_t)t, &o, &own, &c), k = indices.k.divisor, inner = indices.inner.divisor;
    if (index >= indices.n) return;
    const uint32_t *const list = indices.list(o, c);
    const int64_t step = indices.step();
    const Vector *const column = values + (int64_t)o * k * inner + c;
    Vector chain[CHAINS] = {};
    uint32_t rank = 0;
    for (uint32_t first = 0; first < k; first += AT_ONCE) {
        uint32_t found[AT_ONCE];
        TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++)
            found[i] = first + i < k ? list[(first + i) * step] : UINT32_MAX;
        TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++) {
            if (found[i] != index) continue;
            if (first + i < own) return;
            const Vector v = column[(int64_t)(first + i) * inner];
            TL_UNROLL_FOR (uint32_t r = 0; r < CHAINS; r++)
                if (rank % CHAINS == r) chain[r] = add(chain[r], v);
            rank++;
        }
    }
    const int64_t element = ((int64_t)o * indices.n + index) * inner + c;
    const Vector sum = add(add(chain[0], chain[1]), add(chain[2], chain[3]));
    out[element] = base ? add(base[element], sum) : sum;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------ */

/* The row of the whole array that each element of the indices hits, `rows` for none, and where it stands in the list. */
__global__ void __launch_bounds__(THREADS)
    make_keys_kernel(tl_axis_indices indices, uint32_t rows, uint32_t *keys, uint32_t *positions,
                     unsigned long long *cleared, int64_t total)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t == 0) *cleared = 0;
    if (t >= total) return;
    uint32_t o, j, c;
    const uint32_t index = indices.of((uint32_t)t, &o, &j, &c);
    keys[t] = index < indices.n ? (o * indices.n + index) * indices.inner.divisor + c : rows;
    if (positions) positions[t] = (uint32_t)t;
}

/* ---- runs ------------------------------------------------------------------------------------------------------------ */

/* A run of more hits than a chunk, and the first of its chunks among those of all. */
struct long_run {
    uint32_t row, begin, hits, chunk;
};

struct scatter {
    const float *base; /* NULL for sums that start from +0 */
    const float *values;
    float *out;
    const uint32_t *keys, *positions; /* in order of rows; a key of `rows` is to be ignored */
    /* BY_ROW: where the run of each row begins, and its hits, of which it may have none. Else, of every place of the list, the row and
     * the hits of the run that begins there, or no hits. */
    uint2 *runs;
    long_run *longs;            /* in order of their chunks */
    unsigned long long *counts; /* of long runs, and below 2^32 of their chunks */
    float *totals;              /* of chunks, by (chunk, array, column) */
    uint32_t rows, k, outer;
};

/* Thread i has place i of the list. */
template <bool BY_ROW> __global__ void __launch_bounds__(THREADS) find_runs_kernel(scatter s)
{
    tl_wait_for_earlier();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= s.k) return;
    const uint32_t row = s.keys[i];
    const bool begins = row < s.rows && (i == 0 || s.keys[i - 1] != row);
    if (!BY_ROW && !begins) s.runs[i] = make_uint2(0, 0);
    if (!begins) return;
    int64_t end = i + 1, step = 1;
    for (; end < s.k && s.keys[end] == row; end += step)
        step *= 2;
    /* keys[end - step] is of the run, keys[end] is not */
    for (end -= step; step > 1;) {
        step /= 2;
        if (end + step < s.k && s.keys[end + step] == row) end += step;
    }
    const uint32_t hits = (uint32_t)(end + 1 - i);
    s.runs[BY_ROW ? row : i] = make_uint2(BY_ROW ? (uint32_t)i : row, hits);
    if (hits <= CHUNK) return;
    const uint64_t at = atomicAdd(s.counts, 1ull << 32 | ((hits - 1) / CHUNK + 1));
    s.longs[at >> 32] = {row, (uint32_t)i, hits, (uint32_t)at};
}

/* A thread of the first blocks owns a vector of a row of an array, or of the run that begins at a place, whose row holds the base. The
 * blocks behind take the chunks of long runs: a thread owns a vector of a chunk of an array. */
template <class Vector, bool BY_ROW>
__global__ void __launch_bounds__(THREADS)
    add_runs_kernel(scatter s, tl_fastdiv vectors, tl_fastdiv owners, uint32_t owner_blocks)
{
    tl_wait_for_earlier();
    const int64_t cols = vectors.divisor;
    const auto sum_hits = [&](uint32_t begin, uint32_t hits, uint32_t o, uint32_t c) {
        const Vector *const column = reinterpret_cast<const Vector *>(s.values) + (int64_t)o * s.k * cols + c;
        const uint32_t *const list = s.positions + begin;
        return sum_chunk<Vector>(hits, [&](uint32_t i) { return column[list[i] * cols]; });
    };
    uint32_t c, u;
    if (blockIdx.x < owner_blocks) {
        const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        if (t >= (int64_t)s.outer * owners.divisor * cols) return;
        const uint32_t o = owners.divmod(vectors.divmod((uint32_t)t, &c), &u);
        const uint2 run = s.runs[u];
        if (run.y > CHUNK || (!BY_ROW && run.y == 0)) return;
        const int64_t element = ((int64_t)o * s.rows + (BY_ROW ? u : run.x)) * cols + c;
        Vector sum{};
        if (s.base) sum = reinterpret_cast<const Vector *>(s.base)[element];
        if (run.y) {
            const Vector hits = sum_hits(BY_ROW ? run.x : u, run.y, o, c);
            sum = s.base ? add(sum, hits) : hits;
        }
        reinterpret_cast<Vector *>(s.out)[element] = sum;
        return;
    }
    const uint64_t counts = *s.counts;
    const int64_t units = (int64_t)(uint32_t)counts * s.outer * cols;
    for (int64_t t = (int64_t)(blockIdx.x - owner_blocks) * THREADS + threadIdx.x; t < units;
         t += (int64_t)(gridDim.x - owner_blocks) * THREADS) {
        const uint32_t of_all = vectors.divmod((uint32_t)t, &c), chunk = of_all / s.outer, o = of_all % s.outer;
        uint32_t at = 0;
        for (uint32_t more = (uint32_t)(counts >> 32);
             more > 1;) { /* the last run whose first chunk is not behind this one */
            const uint32_t half = more / 2;
            if (s.longs[at + half].chunk <= chunk) at += half;
            more -= half;
        }
        const long_run run = s.longs[at];
        const uint32_t before = (chunk - run.chunk) * CHUNK;
        reinterpret_cast<Vector *>(s.totals)[t] = sum_hits(run.begin + before, min(run.hits - before, CHUNK), o, c);
    }
}

/* A block owns 32 vectors of a long run of an array: a warp adds a chunk of the totals, which takes the place of one of those that have
 * been added, until one is left. */
template <class Vector>
__global__ void __launch_bounds__(32 * JOIN_WARPS) join_chunks_kernel(scatter s, tl_fastdiv vectors)
{
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, cols = vectors.divisor, strips = (cols + 31) / 32;
    const int64_t units = (int64_t)(*s.counts >> 32) * s.outer * strips, stride = (int64_t)s.outer * cols;
    for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const long_run run = s.longs[unit / strips / s.outer];
        const uint32_t o = (uint32_t)(unit / strips % s.outer), c = (uint32_t)(unit % strips) * 32 + lane;
        Vector *const totals = reinterpret_cast<Vector *>(s.totals) + run.chunk * stride + (int64_t)o * cols + c;
        Vector sum{};
        for (uint32_t count = (run.hits - 1) / CHUNK + 1; count > 1; count = (count - 1) / CHUNK + 1) {
            for (uint32_t first = 0; first < count; first += JOIN_WARPS * CHUNK) {
                const uint32_t begin = first + warp * CHUNK;
                const bool has_chunk = begin < count && c < cols;
                if (has_chunk)
                    sum = sum_chunk<Vector>(min(count - begin, CHUNK),
                                            [&](uint32_t i) { return totals[(begin + i) * stride]; });
                __syncthreads();
                if (has_chunk) totals[begin / CHUNK * stride] = sum;
                __syncthreads();
            }
        }
        if (warp > 0 || c >= cols) continue;
        const int64_t element = ((int64_t)o * s.rows + run.row) * cols + c;
        sum = totals[0];
        if (s.base) sum = add(reinterpret_cast<const Vector *>(s.base)[element], sum);
        reinterpret_cast<Vector *>(s.out)[element] = sum;
    }
}

template <class Vector, bool BY_ROW>
int32_t launch_runs(tl_context *ctx, const char *name, const scatter &s, int64_t cols)
{
    const int64_t vectors = cols * sizeof(float) / sizeof(Vector), owners = BY_ROW ? s.rows : s.k;
    const unsigned blocks = tl_grid((int64_t)s.outer * owners * vectors, THREADS),
                   more = s.k > CHUNK ? BLOCKS_PER_SM * tl_cuda_sms(ctx) : 0;
    TL_TRY(tl_launch_ahead(ctx, name, find_runs_kernel<BY_ROW>, tl_grid(s.k, THREADS), THREADS, 0, s));
    TL_TRY(tl_launch_ahead(ctx, name, add_runs_kernel<Vector, BY_ROW>, blocks + more, THREADS, 0, s,
                           tl_fastdiv(vectors), tl_fastdiv(owners), blocks));
    return tl_launch_ahead(ctx, name, join_chunks_kernel<Vector>, tl_cuda_sms(ctx), 32 * JOIN_WARPS, 0, s,
                           tl_fastdiv(vectors));
}

int32_t copy_base(tl_context *ctx, const float *base, int64_t total, float *out)
{
    return base ? tl_cuda_copy(tl_context_cuda(ctx), out, base, (size_t)total * sizeof *out)
                : tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, total);
}

int32_t scatter_short_lists(tl_context *ctx, const char *name, const float *base, const float *values,
                            const uint32_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t io, int64_t k,
                            int64_t ii, bool aligned, float *out)
{
    TL_TRY(copy_base(ctx, base, outer * n * inner, out));
    const bool vectors = aligned && ii == 1;
    const int64_t columns = vectors ? inner / 4 : inner, total = outer * k * columns;
    const auto at = tl_axis_indices::make(indices, n, columns, io, k, ii);
    if (vectors)
        return tl_launch_ahead(ctx, name, add_short_lists_kernel<float4>, tl_grid(total, THREADS), THREADS, 0,
                               (const float4 *)values, at, (const float4 *)base, (float4 *)out, total);
    return tl_launch_ahead(ctx, name, add_short_lists_kernel<float>, tl_grid(total, THREADS), THREADS, 0, values, at,
                           base, out, total);
}

} /* namespace */

int32_t tl_scatter(tl_context *ctx, const char *name, const float *base, const float *values, const uint32_t *indices,
                   int64_t outer, int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii, float *out)
{
    if (outer * n * inner == 0) return TORCHLEAN_OK;
    if (k == 0) return copy_base(ctx, base, outer * n * inner, out);
    const bool aligned = inner % 4 == 0 && tl_aligned4(base) && tl_aligned4(values) && tl_aligned4(out);
    /* One list for all arrays, or one of all their rows, or elements. */
    const bool shared = io == 1 && ii == 1;
    const int64_t arrays = shared ? outer : 1, rows = shared ? n : outer * n * ii, cols = inner / ii,
                  hits = shared ? k : outer * k * ii;
    const enum tl_scatter_algorithm algorithm = tl_select_scatter(rows, k, hits);
    if (algorithm == TL_SCATTER_SHORT)
        return scatter_short_lists(ctx, name, base, values, indices, outer, n, inner, io, k, ii, aligned, out);
    const bool few = hits <= TL_SORTED_HITS && rows < UINT32_MAX, by_row = algorithm == TL_SCATTER_ROWS,
               vectors = aligned && ii == 1;
    const uint32_t bits = 32 - (uint32_t)__builtin_clz((uint32_t)rows);
    size_t own = 0;
    if (!few)
        TL_CUDA_TRY(ctx, cub::DeviceRadixSort::SortPairs(nullptr, own, (const uint32_t *)nullptr, (uint32_t *)nullptr,
                                                         (const uint32_t *)nullptr, (uint32_t *)nullptr, (uint32_t)hits,
                                                         0, (int)bits, tl_cuda_stream(ctx)));
    int64_t words = 0; /* of one piece of scratch, whose parts begin at multiples of 256 bytes */
    const auto part = [&](int64_t count) {
        return (words += tl_ceil_div(count, 64) * 64) - tl_ceil_div(count, 64) * 64;
    };
    const int64_t counts = part(2), longs = part(4 * (hits / CHUNK + 1)), keys = part(hits), positions = part(hits),
                  runs = part(2 * (by_row ? rows : hits)), totals = part((hits / (CHUNK / 2) + 1) * arrays * cols),
                  unsorted = part(few && shared ? 0 : hits), places = part(few ? 0 : hits),
                  of_cub = part((int64_t)(own / sizeof(uint32_t)) + 1);
    tl_scratch<uint32_t> scratch(ctx);
    TL_TRY(scratch.allocate(words));
    scatter s = {base, values, out, scratch + keys, scratch + positions};
    s.runs = reinterpret_cast<uint2 *>(scratch + runs), s.longs = reinterpret_cast<long_run *>(scratch + longs);
    s.counts = reinterpret_cast<unsigned long long *>(scratch + counts);
    s.totals = reinterpret_cast<float *>(scratch + totals);
    s.rows = (uint32_t)rows, s.k = (uint32_t)hits, s.outer = (uint32_t)arrays;

    if (!few || !shared)
        TL_TRY(tl_launch(ctx, name, make_keys_kernel, tl_grid(hits, THREADS), THREADS,
                         tl_axis_indices::make(indices, n, ii, io, shared ? hits : k, ii), s.rows, scratch + unsorted,
                         few ? (uint32_t *)nullptr : scratch + places, s.counts, hits));
    /* The table of rows that have no run, or the base, is written meanwhile. */
    float *const written = by_row ? reinterpret_cast<float *>(s.runs) : out;
    const float *const copied = by_row ? nullptr : base;
    const int64_t size = by_row ? 2 * rows : outer * n * inner;
    if (few) {
        TL_TRY(tl_sort_hits(ctx, name,
                            {shared ? indices : scratch + unsorted, s.k, s.rows, scratch + keys, scratch + positions,
                             s.counts, copied, written, size}));
    } else {
        TL_TRY(copy_base(ctx, copied, size, written));
        TL_CUDA_TRY(ctx, cub::DeviceRadixSort::SortPairs(scratch + of_cub, own, (const uint32_t *)(scratch + unsorted),
                                                         scratch + keys, (const uint32_t *)(scratch + places),
                                                         scratch + positions, s.k, 0, (int)bits, tl_cuda_stream(ctx)));
    }
    const auto launch = vectors  ? by_row ? launch_runs<float4, true> : launch_runs<float4, false>
                        : by_row ? launch_runs<float, true>
                                 : launch_runs<float, false>;
    return launch(ctx, name, s, cols);
}
