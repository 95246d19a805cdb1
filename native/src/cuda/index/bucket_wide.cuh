/* The second launch of a scatter-add of rows of 32 to 128 columns whose hits were dealt to buckets (scatter_bucket.cu). */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/index/bucket.cuh"
#include "cuda/index/bucket_rows.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/rank.cuh"
#include "cuda/index/run_relay.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_buckets {

constexpr int64_t MOST_WIDE = 128; /* columns: a lane has four */
/* Blocks of a multiprocessor, whose warps wait for memory most of the time; and hits of a thread in a window, for which registers have
 * room then. Buckets mostly have one window. */
constexpr int WIDE_ADDING = 4, WIDE_ITEMS = 4;
constexpr uint32_t WIDE_WINDOW = WIDE_ITEMS * THREADS;
/* Hits of a row that a warp loads together, and of a turn of a warp of a row of many hits. */
constexpr uint32_t WIDE_AT_ONCE = 4, WIDE_RELAY = 32;
/* Hits of a heavy row: its chain takes as long as a bucket, which would add it besides. Heavy rows that places are left for. */
constexpr int64_t HEAVY_WIDE = 128, SOME_HEAVIES = 6;
/* Rows for each hit, from which on the table is copied before: at the rate of memory, which warps that look for the hits of each row do
 * not reach. */
constexpr int64_t WIDE_COPIED = 4;
/* Hits of the list from which on heavy rows of more than TL_CHAINED_STRIP have a launch of their own, which costs little then. */
constexpr int64_t GUESSED_WIDE = 4 * (int64_t)TL_CHAINED_STRIP;

/* Rows of a bucket with many hits in a window. */
struct left_rows {
    const float *values, *base;
    float *out;
    const uint32_t *list, *first, *left; /* positions, where those of a place begin, and the places that are left */
    uint32_t many, cols, count, bucket;
};

/* The block adds 32 columns of a row after the others, or each warp some, where most have any. A function of its own, so that its
 * registers and those of a window are not allotted together. */
static __device__ __noinline__ void add_left_rows(left_rows r, float (&pass)[32])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, cols = r.cols;
    const uint32_t strips = (cols + 31) / 32, units = r.many * strips;
    const bool by_block = 3 * units <= WARPS;
    for (uint32_t unit = by_block ? 0 : warp; unit < units; unit += by_block ? 1 : WARPS) {
        const uint32_t place = r.left[unit / strips], strip = unit % strips * 32, begin = r.first[place];
        const uint32_t here = min(cols - strip, 32u), col = strip + min(lane, here - 1),
                       at = (place * r.count + r.bucket) * cols + col, end = r.first[place + 1];
        const float before = r.base ? r.base[at] : 0.0f;
        const float sum = by_block ? tl_add_relay<WIDE_RELAY>(r.values + col, cols, end - begin, before, pass,
                                                              listed_positions{r.list + begin})
                                   : tl_add_walk({r.list, UINT32_MAX, r.values, cols}, begin, end, col, before);
        if (lane < here && (!by_block || warp == 0)) r.out[at] = sum;
    }
}

/* A block owns the rows of a bucket but heavy ones. It puts the positions of a window in order of rows, stably. Then a warp owns ROWS
 * rows at a time, and a lane every 32nd column of them. Rows of many hits are left to the block, or to a warp for 32 columns of each, if
 * they are several. What a window adds is in the output, from where the next one goes on. */
template <int LANE_COLUMNS, bool IS_COPIED>
__global__ void __launch_bounds__(THREADS, WIDE_ADDING) add_wide_kernel(buckets s)
{
    constexpr uint32_t ROWS = 4 / LANE_COLUMNS, AT_ONCE = WIDE_AT_ONCE, LINES = MOST_WIDE / 32 + 1,
                       FETCHED = THREADS / LINES;
    constexpr uint32_t HITS_BITS = 16, MOST_HITS = (1 << HITS_BITS) - 1, NOTHING = 1u << 31; /* to write */
    static_assert(TL_MANY <= MOST_HITS && WIDE_WINDOW << HITS_BITS <= NOTHING);
    TL_DYNAMIC_SHARED(uint16_t, tallies);
    __shared__ uint32_t list[WIDE_WINDOW + TL_MANY + AT_ONCE]; /* positions; the last of no hit */
    __shared__ __align__(16) uint32_t first[MOST_PLACES + 2];
    __shared__ uint32_t runs[MOST_PLACES + ROWS]; /* of a place that is not left: where its hits begin, and how many */
    __shared__ uint16_t named[IS_COPIED ? MOST_PLACES : 1]; /* places that have hits and are not left, in any order */
    __shared__ uint32_t left[WIDE_WINDOW / TL_MANY], of_warps[2 * WARPS], many, names;
    __shared__ heavy_places heavy;
    __shared__ window_pieces pieces;
    __shared__ window_marks marks;
    __shared__ float pass[32];
    tl_wait_for_earlier(TL_BESIDE);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor, cols = s.cols.divisor;
    const uint32_t bucket = blockIdx.x, places = (s.rows - bucket - 1) / count + 1;
    uint16_t *const of_warp = tallies + warp * tl_tally_stride(places + 1);
    const uint32_t row_bytes = cols * sizeof(float);
    const char *const lane_values = reinterpret_cast<const char *>(s.values + lane);
    const float *base = IS_COPIED ? s.out : s.base;
    const auto element_of = [&](uint32_t place) { return (place * count + bucket) * cols; };
    /* Lines of a row are on their way to L2 before a warp waits for it: those of the base of FETCHED rows, and of rows that are as far
     * behind one that is added; and those of hits, which lie anywhere. */
    const auto fetch_line = [&](const float *row, uint32_t line) {
        if (32 * line < cols + 31) tl_fetch_word_to_l2(row + min(32 * line, cols - 1));
    };
    const auto fetch_base = [&](uint32_t place, uint32_t line) {
        if (s.base && !IS_COPIED && place < places) fetch_line(s.base + element_of(place), line);
    };
    fetch_base(threadIdx.x / LINES, threadIdx.x % LINES);
    for (uint32_t from = 0, hits = 1; from < hits; from += WIDE_WINDOW) {
        hits = list_window(s, bucket, 0, from, pieces.at, marks, of_warps, WIDE_WINDOW);
        __syncthreads();
        window_of<WIDE_ITEMS> w;
        w.load_marked(s.hits, pieces.at, marks, min(hits - from, WIDE_WINDOW), places);
        if (from == 0) heavy.list(s, bucket); /* while the hits are on their way */
        tl_clear_tallies(tallies, places + 1);
        TL_UNROLL_FOR (uint32_t i = 0; i < WIDE_ITEMS; i++)
            for (uint32_t line = 0; line < LINES && w.place[i] != places; line++)
                fetch_line(s.values + (int64_t)w.value[i] * cols, line);
        if (threadIdx.x == 0) many = names = 0;
        __syncthreads();
        uint32_t to[WIDE_ITEMS];
        tl_rank_hits(of_warp, places + 1, [&](int i) { return w.place[i]; }, w.rounds, to);
        __syncthreads();
        tl_place_kinds(tallies, places + 1, first, of_warps);
        TL_UNROLL_FOR (uint32_t i = 0; i < WIDE_ITEMS; i++)
            if (i < w.rounds) list[of_warp[w.place[i]] + to[i]] = w.value[i];
        for (uint32_t place = threadIdx.x; place < places + ROWS; place += THREADS) {
            uint32_t run = NOTHING;
            if (place < places) {
                const uint32_t begin = first[place], own = first[place + 1] - begin;
                if (own > TL_MANY)
                    left[atomicAdd(&many, 1u)] = place;
                else if (own || (from == 0 && !IS_COPIED && !heavy.hold_one(place)))
                    run = begin << HITS_BITS | own;
                if (IS_COPIED && run < NOTHING) named[atomicAdd(&names, 1u)] = (uint16_t)place;
            }
            runs[place] = run;
        }
        __syncthreads();
        const uint32_t numbers = IS_COPIED ? names : places;
        for (uint32_t number = warp * ROWS; number < numbers; number += WARPS * ROWS) {
            uint32_t run[ROWS], element[ROWS], most = 0;
            float sum[ROWS][LANE_COLUMNS];
            TL_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++) {
                const uint32_t place = !IS_COPIED             ? number + r
                                       : number + r < numbers ? (uint32_t)named[number + r]
                                                              : places;
                element[r] = element_of(place) + lane;
                if (from == 0) fetch_base(place + FETCHED, lane);
                run[r] = runs[place];
                most = max(most, run[r] & MOST_HITS);
                TL_UNROLL_FOR (uint32_t c = 0; c < LANE_COLUMNS; c++) {
                    sum[r][c] = 0.0f;
                    if (base && run[r] < NOTHING && lane + 32 * c < cols) sum[r][c] = base[element[r] + 32 * c];
                }
            }
            for (uint32_t done = 0; done < most; done += AT_ONCE) {
                float v[ROWS][AT_ONCE][LANE_COLUMNS];
                TL_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++) {
                    const uint32_t *const positions = list + (run[r] >> HITS_BITS) % WIDE_WINDOW + done;
                    TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++) {
                        const float *const value =
                            reinterpret_cast<const float *>(lane_values + (uint64_t)positions[e] * row_bytes);
                        TL_UNROLL_FOR (uint32_t c = 0; c < LANE_COLUMNS; c++) {
                            v[r][e][c] = -0.0f; /* changes no sum */
                            if (done + e < (run[r] & MOST_HITS) && lane + 32 * c < cols) v[r][e][c] = value[32 * c];
                        }
                    }
                }
                TL_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++)
                    if (done < (run[r] & MOST_HITS)) /* a row without a hit keeps its bits, those of a NaN too */
                        TL_UNROLL_FOR (uint32_t e = 0; e < AT_ONCE; e++)
                            TL_UNROLL_FOR (uint32_t c = 0; c < LANE_COLUMNS; c++)
                                sum[r][c] += v[r][e][c];
            }
            TL_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++)
                TL_UNROLL_FOR (uint32_t c = 0; c < LANE_COLUMNS; c++)
                    if (run[r] < NOTHING && lane + 32 * c < cols) s.out[element[r] + 32 * c] = sum[r][c];
        }
        __syncthreads();
        if (many) add_left_rows({s.values, base, s.out, list, first, left, many, cols, count, bucket}, pass);
        __syncthreads();
        base = s.out;
    }
    tl_wait_at_end(TL_BESIDE);
}

/* A block for each column of a heavy row of too many hits for a chain. */
__global__ void __launch_bounds__(THREADS, ROWS_ADDING) add_guessed_kernel(buckets s)
{
    __shared__ tl_long_values stage;
    __shared__ tl_long_room room;
    __shared__ piece_list pieces;
    __shared__ uint32_t of_warps[2 * WARPS];
    tl_wait_for_earlier();
    uint32_t hits;
    if (is_guessed(s, TL_CHAINED_STRIP, pieces, of_warps, &hits))
        add_lone_row<true>(s, pieces, of_warps, stage, room, hits);
}

/* The second launch, and before it those of heavy rows, beside the last of which it runs, and, beside the first, the copy of a table of
 * which most rows have no hit. */
static int32_t add_wide(tl_context *ctx, const char *name, const buckets &s)
{
    const uint32_t cols = s.cols.divisor, strips = (cols + 31) / 32;
    const bool guessed = s.k > GUESSED_WIDE;
    const bool copied = s.rows >= WIDE_COPIED * s.k;
    if (copied) TL_TRY(copy_table(ctx, name, s));
    if (guessed) TL_TRY(tl_launch_ahead(ctx, name, add_guessed_kernel, s.heavies * cols, THREADS, 0, s));
    TL_TRY(add_heavy(ctx, name, s, guessed ? TL_CHAINED_STRIP : s.k));
    const auto kernel = strips == 1   ? copied ? add_wide_kernel<1, true> : add_wide_kernel<1, false>
                        : strips == 2 ? copied ? add_wide_kernel<2, true> : add_wide_kernel<2, false>
                        : copied      ? add_wide_kernel<4, true>
                                      : add_wide_kernel<4, false>;
    /* With what else it shares it has less than the 48 KiB of a block that does not ask. */
    const size_t of_tallies = WARPS * sizeof(uint16_t) * tl_tally_stride(s.places + 1);
    return tl_launch_ahead(ctx, name, kernel, s.count.divisor, THREADS, of_tallies, s);
}

} /* namespace tl_buckets */
