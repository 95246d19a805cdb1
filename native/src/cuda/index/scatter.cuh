/* Scatter-adds, which several operations of the family share. Both give out = base (NULL: +0) plus values[j] at row indices[j], in
 * the order of j; `name` is the operation. */
#pragma once

#include "cuda/runtime/launch.cuh"

/* scatter.cu: any indices, from the host or the device. */
int32_t tl_scatter_rows(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out);

/* scatter.cu: `outer` arrays, one behind the other in base, values and out, of rows of 32 columns or more, which share their
 * indices; these lie on the device. */
int32_t tl_scatter_shared(tl_context *ctx, const char *name, const float *base, const float *values,
                          const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, float *out);

/* scatter_tile.cu: `outer` arrays, one behind the other in base, values and out, of up to TL_TILE_INDICES indices, which lie on the
 * device and are of each array's own (`by_outer`) or shared. */
constexpr int64_t TL_TILE_INDICES = 8192;
constexpr int64_t TL_TILE = 16384;          /* elements of a tile of a large output: a copy that outweighs the list */
constexpr int64_t TL_SMALL_TABLE = 1 << 21; /* elements: smaller ones have tiles of few columns */
constexpr int64_t TL_LARGE_ARRAY = 1024;    /* elements worth a block */
int32_t tl_scatter_tiles(tl_context *ctx, const char *name, const float *base, const float *values,
                         const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, bool by_outer,
                         float *out);

/* Wide rows that two launches copy and add to before the five of other ways are launched: in about 18 us, in which 80 MiB are read or
 * written. Of more rows than hits, which are copied first, those that have hits are read and written again. */
constexpr bool tl_few_wide(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    const int64_t moved = 2 * rows + (rows < k ? k : 3 * k);
    return outer * cols * moved <= (int64_t)5 << 22 && outer * k * cols <= (int64_t)1 << 22;
}

/* Wide rows of which tiles have many hits each. Three tiles of a multiprocessor each add 1,024 values in the 1.2 us of a base's and a
 * value's latency: 2^20 in 3 us, behind a copy and, of more than 256 hits, a sort that nothing overlaps in a block. Two launches take
 * no more than that longer. Tiles of a part of the columns have many of enough hits of each array, those of whole rows 16 on average. */
constexpr bool tl_many_wide(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    return k > 256 && outer * k * cols >= (int64_t)1 << 20 &&
           (k * 64 > outer * rows || k * TL_TILE >= 16 * rows * cols);
}

/* Wide rows of which most have no hit, of a table so large that to copy it at the rate of memory, which tiles do not reach, saves more
 * than a second launch and what is read and written again take. */
constexpr bool tl_rare_wide(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    return cols >= 32 && 4 * k <= rows && outer * rows * cols >= (int64_t)1 << 22;
}

/* scatter_axis.cu: `outer` arrays, one behind the other in base, values and out, which share up to TL_TILE_INDICES indices, on the
 * device, where tl_axis_holds says so. Where tl_axis_serves does, too, nothing else is faster. */
bool tl_axis_holds(int64_t outer, int64_t rows, int64_t cols, int64_t k);
bool tl_axis_serves(int64_t outer, int64_t rows, int64_t cols, int64_t k);
int32_t tl_scatter_axis(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, float *out);

/* scatter_strip.cu: the same of few wide rows with many hits each, where tl_strips_serve says so. */
bool tl_strips_serve(int64_t outer, int64_t rows, int64_t cols, int64_t k);
int32_t tl_scatter_strips(tl_context *ctx, const char *name, const float *base, const float *values,
                          const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, bool by_outer,
                          float *out);

/* scatter_few.cu: up to TL_SORTED_HITS indices, on the device, of few narrow rows, where tl_few_serve says so. */
bool tl_few_serve(int64_t rows, int64_t cols, int64_t k);
int32_t tl_scatter_few(tl_context *ctx, const char *name, const float *base, const float *values,
                       const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out);

/* scatter_bucket.cu: more than TL_TILE_INDICES indices, on the device, of a vector, where tl_buckets_serve says so. Lone rows have so
 * many hits each that a row is a block's work. Of rows of up to 128 columns most are served, too. */
bool tl_buckets_serve_rows(int64_t rows, int64_t cols, int64_t k);
bool tl_buckets_serve(int64_t rows, int64_t cols, int64_t k);
bool tl_lone_rows(int64_t rows, int64_t cols, int64_t k);
int32_t tl_scatter_buckets(tl_context *ctx, const char *name, const float *base, const float *values,
                           const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out);

/* Runs of equal rows in a sorted list that are left to the last kernel of a scatter-add, by where they begin; of wide rows, by
 * row. */
constexpr uint32_t TL_MANY = 32;   /* hits: longer runs are left */
constexpr uint32_t TL_LONG = 1024; /* hits of a narrow row that are a block's work; those of other runs are a warp's */
constexpr uint32_t TL_LEFT_LISTS = 16;  /* words before the lists */
constexpr uint32_t TL_LEFT_COUNTS = 3;  /* of which are counts */
constexpr uint32_t TL_SORT_TILES = 256; /* blocks of the sort below, two of which may leave a run of fewer hits */
struct tl_left_runs {
    /* front[0] runs from front[TL_LEFT_LISTS] on, front[1] long ones before `back`, and front[2] that have more than a third of
     * all hits each, two at most, from front[TL_LEFT_COUNTS] on */
    uint32_t *front, *back;

    __host__ __device__ static int64_t words(int64_t k) { return TL_LEFT_LISTS + k / TL_MANY + 1 + TL_SORT_TILES / 2; }
    __device__ __forceinline__ void leave(uint32_t i, bool is_long) const
    {
        if (is_long)
            *(back - 1 - atomicAdd(front + 1, 1u)) = i;
        else
            front[TL_LEFT_LISTS + atomicAdd(front, 1u)] = i;
    }
    __device__ __forceinline__ void leave_third(uint32_t i) const
    {
        front[TL_LEFT_COUNTS + atomicAdd(front + 2, 1u)] = i;
    }
};

/* sort.cu: sorts up to TL_SORTED_HITS indices by row, stably; an index to ignore counts as row `rows`, which is below UINT32_MAX.
 * Rows of one column are also summed, but for the runs that are left. */
constexpr int64_t TL_SORTED_HITS = 1 << 17, TL_SORT_CHUNK = 2048;
struct tl_hit_sort {
    const uint32_t *indices;
    uint32_t k, rows;
    uint32_t *keys, *grouped; /* the rows in order, and the positions, or the bits of the values at these positions */
    const float *values;      /* of one column, to be sorted; NULL: positions are */
    tl_left_runs left;        /* to be emptied first */
    const float *base;        /* NULL: +0 */
    float *out;
    int64_t copied; /* elements of the base to copy to the output */
    bool aligned;   /* base and output, to 16 bytes */
};
int32_t tl_sort_hits(tl_context *ctx, const char *name, const tl_hit_sort &s);
