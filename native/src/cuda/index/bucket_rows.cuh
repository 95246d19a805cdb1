/* The second launch of a scatter-add of rows of few columns whose hits were dealt to buckets (scatter_bucket.cu), and beside it that of
 * the heavy rows, of more columns too. */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/index/bucket.cuh"
#include "cuda/index/narrow_run.cuh"
#include "cuda/index/rank.cuh"
#include "cuda/index/run_relay.cuh"
#include "cuda/runtime/launch.cuh"

#include <type_traits>

namespace tl_buckets {

constexpr int ROWS_ADDING = 2; /* blocks of a multiprocessor */
/* Hits of a turn of a warp, of a long run of a window, and of a heavy row, which has a multiprocessor's registers. */
constexpr uint32_t LONG_RELAY = 32, HEAVY_RELAY = 192;
/* Elements of a thread, and hits of each, that are on their way together: of rows of fewer hits, half as many of more elements. Runs of
 * more than so many turns are left to a warp, and of so many hits to the block. */
constexpr uint32_t ELEMENTS_AT_ONCE = 4, HITS_AT_ONCE = 8, FEW_AT_ONCE = HITS_AT_ONCE / 2, TURNS_OF_ROW = 8,
                   LONG_OF_ROW = 256;
/* Elements of a bucket from which on the table is copied beside the launch that deals, if most rows have no hit: a block would copy
 * those of its bucket, ELEMENTS_AT_ONCE of a thread at a time, for longer than a launch takes. */
constexpr int64_t MANY_COPIED = 4 * ELEMENTS_AT_ONCE * THREADS;

/* Shared memory of a block: the positions of a window in order of rows, and what they are put in order with, then what the block or
 * its warps add. */
struct row_room {
    uint32_t list[WINDOW + HITS_AT_ONCE]; /* the last of no hit */
    union {
        uint4 tallies[WARPS * KINDS * sizeof(uint16_t) / sizeof(uint4)];
        float4 of_warp[WARPS][TL_WARP_STAGE];
        tl_long_values heavy;
    };
};

/* Copies the base to the output, or clears it. */
__global__ void __launch_bounds__(THREADS) copy_table_kernel(buckets s, uint32_t total)
{
    tl_wait_for_earlier(TL_BESIDE);
    copy_tile(s, total, blockIdx.x);
    tl_wait_at_end(TL_BESIDE);
}

/* The positions of the hits of a kind. Those that a thread asks for come one after the other, mostly in the piece of the one before or
 * in the next. */
struct piece_positions {
    const uint2 *dealt;
    const piece_list &pieces;
    uint32_t piece;

    __device__ __forceinline__ uint32_t operator()(uint32_t hit)
    {
        if (pieces.before[piece + 1] <= hit) {
            piece++;
            if (pieces.before[piece + 1] <= hit) piece = pieces.piece_of(hit);
        }
        return dealt[pieces.at[piece] + hit].y;
    }
};

struct listed_positions {
    const uint32_t *list;
    __device__ __forceinline__ uint32_t operator()(uint32_t hit) const { return list[hit]; }
};

/* Adds a long run's columns in a chain. A function of its own, so that its registers and those of a window are not allotted together,
 * which the kernel has too few for. */
template <uint32_t HITS, class Position>
__device__ __noinline__ float add_chain(const float *column, uint32_t stride, uint32_t hits, float sum,
                                        float (&pass)[32], Position position)
{
    return tl_add_relay<HITS>(column, stride, hits, sum, pass, position);
}

/* Whether a heavy row of which the block has a column may have more hits than `most`. `hits` are those of the first list of pieces, which
 * may be none, and all where there is no other. */
__device__ __forceinline__ bool is_guessed(const buckets &s, uint32_t most, piece_list &pieces, uint32_t *of_warps,
                                           uint32_t *hits)
{
    const uint32_t heavy = s.cols.div(blockIdx.x);
    if (s.heavy[heavy] == NONE) return false;
    *hits = list_pieces(s, s.count.divisor + heavy, 0, pieces, of_warps);
    return s.chunks > PIECES || *hits > most;
}

/* A block has 32 columns of a heavy row of `most` hits at most, which it adds in a chain. */
__global__ void __launch_bounds__(THREADS, 1) add_heavy_kernel(buckets s, uint32_t most)
{
    __shared__ piece_list pieces;
    __shared__ uint32_t of_warps[2 * WARPS];
    __shared__ float pass[32];
    tl_wait_for_earlier(TL_FIRST);
    const uint32_t heavy = blockIdx.x % s.heavies, first = blockIdx.x / s.heavies * 32, cols = s.cols.divisor;
    const uint32_t row = s.heavy[heavy];
    if (row == NONE || s.chunks > PIECES) return;
    const uint32_t here = min(cols - first, 32u), col = first + min(threadIdx.x % 32, here - 1);
    const int64_t at = (int64_t)row * cols + col;
    const float base = s.base ? s.base[at] : 0.0f;
    const uint32_t hits = list_pieces(s, s.count.divisor + heavy, 0, pieces, of_warps);
    if (hits > most) return;
    const float sum =
        tl_add_relay<HEAVY_RELAY>(s.values + col, cols, hits, base, pass, piece_positions{s.hits, pieces, 0});
    if (threadIdx.x < here) s.out[at] = sum;
}

static int32_t add_heavy(tl_context *ctx, const char *name, const buckets &s, uint32_t most)
{
    const uint32_t strips = (s.cols.divisor + 31) / 32;
    return tl_launch_ahead(ctx, name, add_heavy_kernel, s.heavies * strips, THREADS, 0, s, most);
}

/* The first blocks have a column each of a heavy row of too many hits for a chain. Each of those behind them owns the rows of a bucket but
 * heavy ones. It puts the positions of a window in order of rows, stably, and reads the values by these. What a window adds is in the
 * output, from where the next one goes on.
 * IS_COPIED: the output is the base already, and only rows that have hits are taken. */
template <bool IS_COPIED> __global__ void __launch_bounds__(THREADS, ROWS_ADDING) add_rows_kernel(buckets s)
{
    constexpr uint32_t LEFT = WINDOW / (TURNS_OF_ROW * FEW_AT_ONCE);
    TL_DYNAMIC_SHARED(uint4, shared);
    row_room &room = *reinterpret_cast<row_room *>(shared);
    __shared__ __align__(16) uint32_t first[MOST_PLACES + 2];
    __shared__ uint32_t left[LEFT]; /* places: of many hits from the front, long ones from the back */
    __shared__ uint16_t named[IS_COPIED ? MOST_PLACES : 1]; /* places that have hits, in any order */
    __shared__ uint32_t of_warps[2 * WARPS], many, longs, names;
    __shared__ tl_long_room heavy_room;
    __shared__ heavy_places heavy;
    __shared__ piece_list pieces;
    __shared__ float pass[32];
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room.tallies);
    tl_wait_for_earlier(TL_BESIDE);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor, cols = s.cols.divisor;
    const uint32_t first_blocks = s.heavies * cols, row_bytes = cols * sizeof(float);
    if (blockIdx.x < first_blocks) {
        uint32_t hits;
        if (is_guessed(s, TL_CHAINED_ROW, pieces, of_warps, &hits))
            add_lone_row<true>(s, pieces, of_warps, room.heavy, heavy_room, hits);
        return; /* at once, as buckets wait for room; these wait at their end */
    }
    const uint32_t bucket = blockIdx.x - first_blocks, places = (s.rows - bucket - 1) / count + 1;
    uint16_t *const of_warp = tallies + warp * tl_tally_stride(places + 1);
    const float *base = IS_COPIED ? s.out : s.base;
    bool is_first = !IS_COPIED; /* window, which writes all rows */
    const auto element_of = [&](uint32_t place) { return (place * count + bucket) * cols; };
    heavy.list(s, bucket);
    for (uint32_t chunk = 0; chunk < s.chunks; chunk += PIECES) {
        const uint32_t hits = list_pieces(s, bucket, chunk, pieces, of_warps);
        for (uint32_t from = 0; is_first || from < hits; from += WINDOW) {
            window w;
            w.load(s.hits, pieces, from, min(hits, from + WINDOW), places);
            tl_clear_tallies(tallies, places + 1);
            if (threadIdx.x == 0) many = longs = 0;
            if (IS_COPIED && threadIdx.x == 0) names = 0;
            __syncthreads();
            uint32_t to[WINDOW_ITEMS];
            tl_rank_hits(of_warp, places + 1, [&](int i) { return w.place[i]; }, w.rounds, to);
            __syncthreads();
            tl_place_kinds(tallies, places + 1, first, of_warps);
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++)
                if (i < w.rounds) room.list[of_warp[w.place[i]] + to[i]] = w.value[i];
            for (uint32_t p = threadIdx.x; IS_COPIED && p < places; p += THREADS)
                if (first[p] < first[p + 1]) named[atomicAdd(&names, 1u)] = (uint16_t)p;
            __syncthreads();
            const uint32_t rows = IS_COPIED ? names : places, units = rows * cols;
            const auto add_elements = [&](auto of_element) {
                constexpr uint32_t HITS = decltype(of_element)::value,
                                   ELEMENTS = ELEMENTS_AT_ONCE * HITS_AT_ONCE / HITS;
                for (uint32_t from_unit = threadIdx.x; from_unit < units; from_unit += ELEMENTS * THREADS) {
                    uint32_t at[ELEMENTS], end[ELEMENTS], col[ELEMENTS], element[ELEMENTS];
                    float sum[ELEMENTS];
                    TL_UNROLL_FOR (uint32_t u = 0; u < ELEMENTS; u++) {
                        const uint32_t unit = from_unit + u * THREADS,
                                       number = min(s.cols.divmod(unit, col + u), rows - 1);
                        const uint32_t place = IS_COPIED ? named[number] : number;
                        at[u] = first[place], end[u] = unit < units ? first[place + 1] : at[u];
                        bool owns = at[u] < end[u] || (is_first && unit < units && !heavy.hold_one(place));
                        if (end[u] - at[u] > TURNS_OF_ROW * HITS) {
                            if (col[u] == 0) {
                                if (end[u] - at[u] > LONG_OF_ROW)
                                    left[LEFT - 1 - atomicAdd(&longs, 1u)] = place;
                                else
                                    left[atomicAdd(&many, 1u)] = place;
                            }
                            owns = false, end[u] = at[u];
                        }
                        element[u] = owns ? element_of(place) + col[u] : NONE;
                        sum[u] = 0.0f;
                        if (owns && base) sum[u] = base[element[u]];
                    }
                    const char *column[ELEMENTS];
                    TL_UNROLL_FOR (uint32_t u = 0; u < ELEMENTS; u++)
                        column[u] = reinterpret_cast<const char *>(s.values + col[u]);
                    for (bool more = true; more;) {
                        float v[ELEMENTS][HITS];
                        TL_UNROLL_FOR (uint32_t u = 0; u < ELEMENTS; u++) {
                            /* No position is under a condition, or one would be waited for after the other. */
                            const char *value[HITS];
                            TL_UNROLL_FOR (uint32_t e = 0; e < HITS; e++)
                                value[e] = column[u] + (uint64_t)room.list[at[u] + e] * row_bytes;
                            TL_UNROLL_FOR (uint32_t e = 0; e < HITS; e++) {
                                v[u][e] = -0.0f; /* changes no sum */
                                if (at[u] + e < end[u]) v[u][e] = *reinterpret_cast<const float *>(value[e]);
                            }
                        }
                        more = false;
                        TL_UNROLL_FOR (uint32_t u = 0; u < ELEMENTS; u++) {
                            if (at[u] < end[u]) /* a row without a hit keeps its bits, those of a NaN too */
                                TL_UNROLL_FOR (uint32_t e = 0; e < HITS; e++)
                                    sum[u] += v[u][e];
                            at[u] += HITS;
                            more |= at[u] < end[u];
                        }
                    }
                    TL_UNROLL_FOR (uint32_t u = 0; u < ELEMENTS; u++)
                        if (element[u] != NONE) s.out[element[u]] = sum[u];
                }
            };
            if (units > ELEMENTS_AT_ONCE * THREADS && min(hits - from, WINDOW) <= FEW_AT_ONCE * rows)
                add_elements(std::integral_constant<uint32_t, FEW_AT_ONCE>());
            else
                add_elements(std::integral_constant<uint32_t, HITS_AT_ONCE>());
            __syncthreads();
            const auto add_left = [&](uint32_t place, bool is_long) {
                const uint32_t begin = first[place], hits = first[place + 1] - begin, own = min(lane, cols - 1);
                const uint32_t at = element_of(place) + own;
                const float before = base ? base[at] : 0.0f;
                const float sum = is_long ? add_chain<LONG_RELAY>(s.values + own, cols, hits, before, pass,
                                                                  listed_positions{room.list + begin})
                                          : tl_add_narrow_warp(s.values, cols, s.cols, cols, hits, before,
                                                               room.of_warp[warp],
                                                               [&](uint32_t hit) { return room.list[begin + hit]; });
                if (lane < cols && (!is_long || warp == 0)) s.out[at] = sum;
            };
            const uint32_t alone = many == 1; /* the other warps would have nothing to do */
            for (uint32_t run = 0; run < longs + alone; run++)
                add_left(run < longs ? left[LEFT - 1 - run] : left[0], true);
            for (uint32_t run = warp + alone; run < many; run += WARPS)
                add_left(left[run], false);
            __syncthreads();
            base = s.out, is_first = false;
        }
    }
    tl_wait_at_end(TL_BESIDE);
}

/* Launched behind the one that deals, beside it. */
static int32_t copy_table(tl_context *ctx, const char *name, const buckets &s)
{
    const int64_t total = (int64_t)s.rows * s.cols.divisor;
    return tl_launch_ahead(ctx, name, copy_table_kernel, tl_grid(total, TILE), THREADS, 0, s, (uint32_t)total);
}

/* The second launch, and before it that of heavy rows, beside which it runs, and, beside the first, the copy of a table of which most
 * rows have no hit. */
static int32_t add_rows(tl_context *ctx, const char *name, const buckets &s)
{
    const bool copied = s.k <= s.rows && s.places * (int64_t)s.cols.divisor > MANY_COPIED;
    if (copied) TL_TRY(copy_table(ctx, name, s));
    TL_TRY(add_heavy(ctx, name, s, TL_CHAINED_ROW));
    const auto kernel = copied ? add_rows_kernel<true> : add_rows_kernel<false>;
    TL_TRY(tl_allow_shared(ctx, kernel, sizeof(row_room)));
    return tl_launch_ahead(ctx, name, kernel, s.heavies * s.cols.divisor + s.count.divisor, THREADS, sizeof(row_room),
                           s);
}

} /* namespace tl_buckets */
