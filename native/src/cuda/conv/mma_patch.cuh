/* The packed weights of conv/mma_product.cu, and patches: the elements that a tile's positions read, once for all taps.
 *
 * Gathered tap by tap, an element comes to shared memory as often as taps meet it, in copies of 4 bytes, which take longer than the
 * products of a tile of few rows. But what neighbouring positions read of a channel with neighbouring taps are runs of the source.
 * So a patch holds one run for each image of the tile and each segment of taps: a segment is the taps of the last axes, one for each
 * combination of the others, so that the runs of a large plane's lines need not hold what lies between them. Runs are copied in
 * pieces of 16 bytes, or 4 where a channel is not aligned. A ring holds the patches of as many channels as the slices in flight
 * meet; a lane reads an element where its position and its column of K (channel and tap) say, a zero where the tap lies outside.
 *
 * The fragments of mma, hence all sums, are those of gathered slices. */
#pragma once

#include <algorithm>
#include <cstdlib>

#include "cuda/conv/conv.cuh"
#include "cuda/conv/mma_tile.cuh"

namespace tl_conv {

constexpr int IN_FLIGHT = 3; /* slices */
/* Floats of one slice's packed weights for 16 rows: 2 steps of mma, 2 parts, 32 lanes, 4 registers. */
constexpr int PACK = 512;

/* ---- packed weights ---------------------------------------------------------------------------------------------- */

/* chain += the 8 columns of a slice's half HALF, whose weights begin a stage. */
template <class T, int HALF>
static __device__ __forceinline__ void multiply_packed(const float *stage, const uint32_t (&bh)[T::NT][2],
                                                       const uint32_t (&bl)[T::NT][2], typename T::Sums &chain)
{
    const uint4 *a = reinterpret_cast<const uint4 *>(stage + T::warp_m() * T::MT * PACK) + HALF * (PACK / 8) +
                     T::lane();
    TL_UNROLL_FOR (int mt = 0; mt < T::MT; mt++) {
        const uint4 h = a[mt * (PACK / 4)], l = a[mt * (PACK / 4) + PACK / 16];
        const uint32_t ah[4] = {h.x, h.y, h.z, h.w}, al[4] = {l.x, l.y, l.z, l.w};
        T::multiply(chain[mt], ah, al, bh, bl);
    }
}

static __device__ __forceinline__ float unpack(float hi, float lo) { return hi == hi ? hi + lo : lo; }

/* The same for column k of the slice, by fused multiply-adds. */
template <class T>
static __device__ __forceinline__ void fused_packed(const float *stage, int k, const float (&y)[T::NT][2],
                                                    typename T::Sums &chain)
{
    TL_UNROLL_FOR (int mt = 0; mt < T::MT; mt++) {
        const float *a = stage + (T::warp_m() * T::MT + mt) * PACK + k / 8 * (PACK / 2) +
                         (T::lane() / 4 * 4 + k % 4) * 4 + k % 8 / 4 * 2;
        const float2 h = *reinterpret_cast<const float2 *>(a);
        const float2 l = *reinterpret_cast<const float2 *>(a + PACK / 4);
        const float x[2] = {unpack(h.x, l.x), unpack(h.y, l.y)};
        T::fused(chain[mt], x, y);
    }
}

/* ---- patches ----------------------------------------------------------------------------------------------------- */

constexpr int IMAGES_MOST = 32;               /* of a tile */
constexpr int64_t CHANNEL_MOST = 1 << 13;     /* floats of a channel's patch */
constexpr int64_t SOURCE_MOST = 1 << 29;      /* of a channel: an index and what is added to it are below 2^31 */
constexpr int64_t MULTIPROCESSOR = 227 << 10; /* bytes of its shared memory, of which a thread block costs BLOCK more */
constexpr int64_t BLOCK = 4 << 10;

/* Layout of a channel's patch: segment, image, element; runs of images follow one another. */
struct Patch {
    tl_fastdiv taps, slots;       /* of the gather; of the ring */
    int32_t inner, segments;      /* taps of a segment */
    int32_t images;               /* of a tile, at most */
    int32_t segment_pitch, pitch; /* floats of a segment, of a channel */
    int32_t low, high;    /* what an image's first position reads at least and its last at most, from their indices */
    int32_t pieces, room; /* of a channel, as a rule and at most */
};

TL_HD int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The segments that take the least time where the axes before `axis` have one for each of their taps, with pieces of `width` floats
 * and tiles of `columns`. Returns the time of a channel, in about a twelfth of what shared memory takes for one access of a warp. */
static inline int64_t cut_patch(const tl_conv_gather &g, int64_t batch, int64_t columns, int width, int axis,
                                Patch *patch)
{
    const bool whole = g.positions % columns == 0 || columns % g.positions == 0; /* tiles, or images in a tile */
    int64_t images = whole ? tl_ceil_div(columns, g.positions) : tl_ceil_div(columns - 1, g.positions) + 1;
    if (images > batch) images = batch;
    /* What the source index grows by at most over the neighbours of a tile in one image, and in all, and what it falls by, as from a
     * line to the next where lines are wider than the source. */
    const int64_t n = (columns < g.positions ? columns : g.positions) - 1;
    int64_t grows = 0, grows_in_all = 0, falls = 0, low = 0, high = 0, segments = 1, stride = 1, line = 1, back = 0;
    int64_t farthest = 0; /* from the source's first element, that a tap of a position outside of it may be */
    /* Eight positions and the taps of a line reach so many banks; other lines of the same segment may meet them. */
    const int64_t reached = 8 * g.step[g.rank - 1] + g.taps[g.rank - 1] - 1;
    bool meet = false;
    for (int d = g.rank - 1; d >= 0; d--) {
        const int64_t outer = line * g.count[d], move = g.step[d] * stride - back;
        const int64_t times = g.count[d] > 1 ? tl_ceil_div(n, line) - (d > 0 ? n / outer : 0) : 0;
        (move > 0 ? grows : falls) += times * (move > 0 ? move : -move);
        if (move > 0 && g.count[d] > 1) grows_in_all += (columns / line + (line > 1 ? images : 0)) * move;
        const int64_t reach = (g.taps[d] - 1) * g.tap_step[d] * stride;
        const int64_t span = std::abs(g.base[d]) + (g.count[d] - 1) * g.step[d] +
                             (g.taps[d] - 1) * std::abs(g.tap_step[d]);
        farthest += std::min(span, 3 * SOURCE_MOST) * std::min(stride, SOURCE_MOST);
        if (d < axis)
            segments *= g.taps[d];
        else
            (reach > 0 ? high : low) += reach;
        const int64_t apart = (g.tap_step[d] > 0 ? g.tap_step[d] : -g.tap_step[d]) * stride;
        meet |= d >= axis && d < g.rank - 1 && g.taps[d] > 1 && apart + reached > 32 &&
                (apart % 32 < reached || apart % 32 > 32 - reached);
        back += (g.count[d] - 1) * g.step[d] * stride;
        stride *= g.source[d];
        line = outer;
    }
    low -= falls, high += falls;
    const int64_t reach = high - low + 1 + (segments > 1 ? 2 : 1) * (width - 1); /* of a run beyond its growth */
    int64_t length = round_up(grows + reach, width);
    if (segments == 1 && length > g.source_size) length = g.source_size;
    int64_t used = round_up(grows_in_all + images * (reach + width - 1), width);
    if (used > images * length) used = images * length;
    patch->inner = (int32_t)(g.taps_size / segments), patch->segments = (int32_t)segments;
    patch->images = (int32_t)images;
    /* four columns of K meet one channel, one segment or two: their elements lie in other banks */
    const int64_t bank = patch->inner == 1 ? 8 : 16;
    const int64_t pitch = round_up(used > bank ? used - bank : 0, patch->inner == 1 ? 16 : 32) + bank;
    if (images > IMAGES_MOST || pitch > CHANNEL_MOST / segments || g.source_size > SOURCE_MOST ||
        grows + high - low > SOURCE_MOST || farthest > 2 * SOURCE_MOST)
        return INT64_MAX;
    patch->segment_pitch = (int32_t)pitch, patch->pitch = (int32_t)(segments * pitch);
    patch->low = (int32_t)low, patch->high = (int32_t)high;
    patch->room = (int32_t)(segments * used / width);
    /* few tiles have a second image where one is as large as a tile */
    patch->pieces = (int32_t)(segments * (columns > g.positions ? used : length) / width);
    return patch->pieces * (width == 4 ? 3 : 4) + (meet ? columns / 4 * g.taps_size : 0);
}

/* The patches of a gather for such tiles; false where they would be too large. */
static inline bool make_patch(const tl_conv_gather &g, int64_t batch, int64_t columns, int width, Patch *patch)
{
    int64_t best = INT64_MAX;
    for (int axis = 0; axis <= g.rank; axis++) {
        Patch p = {};
        const int64_t time = cut_patch(g, batch, columns, width, axis, &p);
        if (time < best) best = time, *patch = p;
    }
    if (best == INT64_MAX) return false;
    patch->taps = tl_fastdiv((uint64_t)g.taps_size);
    patch->slots = tl_fastdiv((uint64_t)(tl_ceil_div((IN_FLIGHT + 2) * SLICE - 1, g.taps_size) + 1));
    return true;
}

/* Bytes that a patch takes in a thread block. */
static inline int64_t patch_bytes(const Patch &p)
{
    return (int64_t)sizeof(float) * p.slots.divisor * p.pitch + (int64_t)sizeof(uint2) * p.room;
}

/* Where the table of a slice has column k: the two that a lane takes of a step are neighbours. */
static __device__ __forceinline__ uint32_t patch_entry(uint32_t k) { return k / 8 * 8 + k % 4 * 2 + k / 4 % 2; }

/* Rounded down to whole pieces. */
static __device__ __forceinline__ int pieces_down(int index, int width) { return index & -width; }

/* What a column of K adds to a position's place, in bytes. */
static __device__ __forceinline__ uint32_t patch_offset(const Patch &p, const tl_conv_gather &g, int width,
                                                        uint32_t channel, uint32_t tap)
{
    const uint32_t segment = tap / (uint32_t)p.inner;
    const int from = pieces_down((int)TapOffsets(g, segment * p.inner).source, width);
    uint32_t slot;
    p.slots.divmod(channel, &slot);
    return 4 * (slot * p.pitch + segment * p.segment_pitch + TapOffsets(g, tap).source - (uint32_t)from);
}

/* What a thread block knows of its patches. */
template <class T> struct PatchPlaces {
    Patch patch;
    uint2 position[T::BN];                      /* byte in the ring with offset 0, taps inside */
    int from[IMAGES_MOST], length[IMAGES_MOST]; /* the runs, without their segments' offsets */
};

/* Feeds product_kernel's tile (run_slices) from patches. A stage: the packed weights of BM rows, and the table of SLICE columns. */
template <class T_, class Job> struct PatchLoader {
    using T = T_;
    static constexpr int STAGES = IN_FLIGHT + 1, BM = T::BM, BN = T::BN, THREADS = T::THREADS;
    static constexpr int A = BM / 16 * PACK, STAGE = A + 2 * SLICE, PIECES = A / 4 / THREADS;
    static_assert(THREADS >= BN && THREADS >= IMAGES_MOST && PIECES >= 1, "a thread has a position, or an image");
    static_assert(THREADS == 1 << 7, "the threads of a channel are all, a half or a quarter");

    const Job &job;
    const tl_conv_gather &g;
    const float *from; /* this thread's first piece of the next slice's weights */
    PatchPlaces<T> &places;
    const char *ring;
    uint2 *pieces; /* source index in channel 0, byte in a slot */
    const uint32_t ring_address, source_size;
    const int last;
    int count, group; /* pieces of a channel, and the logarithm of the threads that copy them */
    int next;         /* slice to fetch */
    uint32_t fetched; /* channels */
    uint32_t entry;   /* of the next slice's table, this thread's */
    uint32_t base[T::NT], inside[T::NT];

    __device__ __forceinline__ PatchLoader(const Job &job, const tl_conv_gather &g, const Patch &patch,
                                           uint32_t offsets, const float *weights, float *stages,
                                           PatchPlaces<T> &places, int last)
        : job(job), g(g), from(weights + threadIdx.x * 4), places(places),
          ring(reinterpret_cast<const char *>(stages + STAGES * STAGE)),
          pieces(reinterpret_cast<uint2 *>(stages + STAGES * STAGE + patch.slots.divisor * patch.pitch)),
          ring_address(tl_shared_address(ring)), source_size((uint32_t)g.source_size), last(last),
          group(patch.pieces <= 32   ? 5
                : patch.pieces <= 64 ? 6
                                     : 7),
          next(0), fetched(0), entry(offsets + threadIdx.x * 2)
    {
        if (threadIdx.x == 0) places.patch = patch;
    }

    /* Finds the places of the tile's positions, of which q0 is the first; returns the target index of this thread's position q. */
    __device__ __forceinline__ uint32_t enter_tile(const Patch &p, uint32_t q0, uint32_t q, bool used)
    {
        const uint32_t positions = (uint32_t)g.positions, first = q0 / positions;
        const int thread = (int)threadIdx.x, taps = (int)g.taps_size, width = job.width;
        const int size = (int)g.source_size;
        if (thread < p.images) {
            const uint32_t end = (uint32_t)(min((int64_t)q0 + BN, job.batch * g.positions) - 1);
            const uint32_t image = min(first + thread, end / positions), start = image * positions;
            const Position low = position_of(g, max(q0, start) - start, 0, taps);
            const Position high = position_of(g, min(end - start, positions - 1), 0, taps);
            int from = (int)low.source + p.low, stop = (int)high.source + p.high + (p.segments > 1 ? width : 1);
            if (p.segments == 1) from = max(from, 0), stop = min(stop, size);
            from = pieces_down(from, width);
            places.from[thread] = from;
            /* the tile may have fewer images */
            places.length[thread] = image == first + thread ? pieces_down(max(stop - from, 0) + width - 1, width) : 0;
        }
        __syncthreads();
        const uint32_t image = q / positions;
        const Position own = position_of(g, q - image * positions, 0, taps);
        int at_place = (int)own.source, all = 0;
        for (int i = 0; i < p.images; i++) {
            if (used && first + i == image) at_place += all - places.from[i];
            all += places.length[i];
        }
        if (thread < BN) places.position[thread] = make_uint2(4 * (uint32_t)at_place, used ? own.inside : 0);
        const int of_segment = all / width;
        count = p.segments * of_segment;
        group = count <= 32 ? 5 : count <= 64 ? 6 : 7;
        for (int i = thread; i < count; i += THREADS) {
            const int segment = i / of_segment, x = (i - segment * of_segment) * width;
            int run = 0, at = x;
            while (at >= places.length[run])
                at -= places.length[run++];
            /* what lies outside no position reads: any piece will do */
            at += places.from[run] + pieces_down((int)TapOffsets(g, segment * p.inner).source, width);
            at = max(min(at, size - width), 0);
            pieces[i] = make_uint2((first + run) * (uint32_t)(job.channels * g.source_size) + (uint32_t)at,
                                   4 * (uint32_t)(segment * p.segment_pitch + x));
        }
        __syncthreads();
        TL_UNROLL_FOR (int nt = 0; nt < T::NT; nt++) {
            const uint2 place = places.position[(T::warp_n() * T::NT + nt) * 8 + T::lane() / 4];
            base[nt] = place.x, inside[nt] = place.y;
        }
        return own.target + image * (uint32_t)(job.rows * g.target_size);
    }

    __device__ __forceinline__ void seek(int slice)
    {
        from += (slice - next) * (job.padded_rows / 16 * PACK);
        entry += (uint32_t)(slice - next) * SLICE;
        next = slice;
        fetched = places.patch.taps.div((uint32_t)(slice * SLICE));
    }

    /* Channels fetched .. stop - 1. */
    template <int WIDTH> __device__ __forceinline__ void fetch_channels(uint32_t stop)
    {
        const uint32_t pitch = 4 * places.patch.pitch, slots = places.patch.slots.divisor;
        const uint32_t step = THREADS >> group, first = fetched + (threadIdx.x >> group);
        uint32_t slot0;
        places.patch.slots.divmod(first, &slot0);
#pragma unroll 1
        for (uint32_t i = threadIdx.x & ((1u << group) - 1); i < (uint32_t)count; i += 1u << group) {
            const uint2 piece = pieces[i];
            uint32_t at = piece.x + first * source_size, slot = slot0, to = ring_address + (piece.y + slot0 * pitch);
#pragma unroll 1
            for (uint32_t c = first; c < stop; c += step) {
                tl_copy_async<4 * WIDTH, false>(to, job.source + at, true);
                at += step * source_size, slot += step, to += step * pitch;
                if (slot >= slots) slot -= slots, to -= slots * pitch;
            }
        }
        fetched = stop;
    }

    /* The channels that begin in a chain come with its first slice. */
    __device__ __forceinline__ void fetch(float *stage)
    {
        if (next < last) {
            const uint32_t to = tl_shared_address(stage) + 16 * threadIdx.x;
            TL_UNROLL_FOR (int i = 0; i < PIECES; i++)
                tl_copy_async<16, false>(to + 16 * i * THREADS, from + 4 * i * THREADS, true);
            if (threadIdx.x < SLICE / 2) tl_copy_async<16, false>(to + 4 * A, job.offsets + entry, true);
            if (next % 2 == 0) {
                const uint32_t end = places.patch.taps.div((uint32_t)(next * SLICE + CHAIN - 1)) + 1;
                const uint32_t stop = min((uint32_t)job.channels, end);
                if (job.width == 4)
                    fetch_channels<4>(stop);
                else
                    fetch_channels<1>(stop);
            }
        }
        tl_copy_commit();
        from += job.padded_rows / 16 * PACK, entry += SLICE, next++;
    }

    __device__ __forceinline__ float element(uint32_t base, uint32_t inside, uint32_t offset, uint32_t bit) const
    {
        return inside & bit ? *reinterpret_cast<const float *>(ring + (base + offset)) : 0.0f;
    }

    template <int HALF>
    __device__ __forceinline__ void tensor(const float *stage, typename T::Sums &chain, uint32_t &least) const
    {
        const uint4 both = reinterpret_cast<const uint4 *>(stage + A)[HALF * 4 + T::lane() % 4];
        uint32_t bh[T::NT][2], bl[T::NT][2];
        TL_UNROLL_FOR (int i = 0; i < 2 * T::NT; i++) {
            const float x = i % 2 ? element(base[i / 2], inside[i / 2], both.z, both.w)
                                  : element(base[i / 2], inside[i / 2], both.x, both.y);
            tl_split_keep_least(least, x);
            tl_split_dekker(x, bh[i / 2][i % 2], bl[i / 2][i % 2]);
        }
        multiply_packed<T, HALF>(stage, bh, bl, chain);
    }

    /* What pads K is outside of all positions; it adds nothing, and is left out as for gathered slices. */
    __device__ __forceinline__ void plain(const float *stage, int slice, typename T::Sums &chain) const
    {
        const uint2 *entries = reinterpret_cast<const uint2 *>(stage + A);
        const int columns = min(SLICE, (int)(job.channels * g.taps_size) - slice * SLICE);
#pragma unroll 1
        for (int k = 0; k < columns; k++) {
            const uint2 entry = entries[patch_entry(k)];
            float y[T::NT][2];
            TL_UNROLL_FOR (int i = 0; i < 2 * T::NT; i++) {
                const uint2 place = places.position[T::column(i / 2, i % 2)];
                y[i / 2][i % 2] = element(place.x, place.y, entry.x, entry.y);
            }
            fused_packed<T>(stage, k, y, chain);
        }
    }
};

} // namespace tl_conv
