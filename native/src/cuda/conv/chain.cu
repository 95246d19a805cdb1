/* Convolution in reproducible contexts on CUDA, as chains of float64 (device/chain.cuh); a group is a product of the batch.
 *
 *   tl_conv_chain           target (rows, positions) = w (rows, K)·gathered source (K, positions), K = channels·taps in the
 *                           order of formula/conv_geometry.h, positions numbered through the whole batch; a spread has one
 *                           such product per phase
 *   tl_conv_chain_weights   gw (rows, K) = g (rows, positions)·gathered sourceᵀ (positions, K)
 *
 * A convolution with one tap, stride 1 and no padding is a product as it lies (PLAIN). For others, a table has for every k the
 * offset that it adds to a source index and its tap's bit. Another has for every position of an image its source index, the bits
 * of its taps that lie inside, CHUNK to a word, and its target index. Lanes copy neighbouring positions. What lies outside the
 * source is 0 and takes part in the sums. */
#include <type_traits>

#include "cuda/conv/conv.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/vector.cuh"

using namespace tl_conv;

namespace {

struct Tables {
    uint2 *entries;             /* of k: source offset modulo 2^32; word of its tap's bit · 32 + bit */
    uint32_t *sources, *inside; /* of positions: source index modulo 2^32; (word, position) */
    uint32_t *targets;
};

/* What both problems know of the source. */
struct Arrays {
    Tables tables;
    const float *source;
    int64_t group_size, image_size; /* floats */
    uint32_t positions;
    tl_fastdiv position_div;

    /* The source of an image's group. */
    __device__ __forceinline__ const float *of(uint32_t group, uint32_t image) const
    {
        return source + group * group_size + image * image_size;
    }
};

/* Where results go, column by column of all images, and what ends them. */
struct Results {
    float *target;
    const float *bias;                        /* or NULL */
    const uint32_t *targets;                  /* of an image's columns in a row; NULL: they are its elements */
    int64_t group_rows, row_size, image_size; /* floats of a row and of an image */
    tl_fastdiv columns;                       /* of an image */

    /* In row 0 of the group. */
    __device__ __forceinline__ float *at(uint32_t group, int64_t column) const
    {
        uint32_t rest;
        const uint32_t image = columns.divmod((uint32_t)column, &rest);
        return target + image * image_size + group * (group_rows * row_size) + (targets ? targets[rest] : rest);
    }
    __device__ __forceinline__ float ended(uint32_t group, int64_t row, double sum) const
    {
        return (float)(bias ? sum + (double)bias[group * group_rows + row] : sum);
    }
    template <class T>
    __device__ __forceinline__ void store(const tl_chain_args &, const tl_chain_place &place, int64_t row, int64_t col,
                                          int64_t rows, int64_t cols, const double (&sum)[T::M][T::N][4], float *) const
    {
        TL_UNROLL_FOR (int n = 0; n < T::N; n++)
            TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                if (8 * n + e >= cols) continue;
                float *const to = at(place.product, col + 8 * n + e) + row * row_size;
                TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                    TL_UNROLL_FOR (int h = 0; h < 2; h++)
                        if (16 * m + 8 * h < rows)
                            to[(16 * m + 8 * h) * row_size] =
                                ended(place.product, row + 16 * m + 8 * h, sum[m][n][2 * h + e]);
            }
    }
    __device__ __forceinline__ void put(uint32_t product, uint32_t row, uint32_t col, double sum) const
    {
        at(product, col)[row * row_size] = ended(product, row, sum);
    }
};

/* One position's part of the table, and its taps. */
struct Reader {
    const float *source;
    uint32_t base, first; /* bits of the first CHUNK taps, 0 for what is no position */
    const uint32_t *more;
    uint32_t stride;
    bool real;

    __device__ __forceinline__ void seek(const Arrays &a, uint32_t group, int64_t q, bool real_)
    {
        uint32_t at = 0;
        const uint32_t image = real_ ? a.position_div.divmod((uint32_t)q, &at) : 0;
        source = a.of(group, image);
        base = a.tables.sources[at], first = a.tables.inside[at];
        more = a.tables.inside + at, stride = a.positions, real = real_;
    }
    __device__ __forceinline__ void copy(uint32_t to, uint2 entry, bool wanted) const
    {
        const uint32_t word = entry.y / 32;
        const uint32_t bits = word == 0 ? first : more[(uint64_t)word * stride];
        const bool present = wanted && real && (bits >> entry.y % 32 & 1) != 0;
        tl_copy_async<4>(to, present ? source + (uint32_t)(base + entry.x) : source, present);
    }
};

/* ---- products with weights ----------------------------------------------------------------------------------------- */

/* PLAIN: without tables. `w` is (groups, rows, K), or, not ALONG, (groups, K, rows). WHOLE: its rows, and those of a PLAIN source,
 * consist of whole 16 bytes. */
template <bool PLAIN, bool ALONG, bool WHOLE> struct Gathered : Results {
    using Real = float;
    static constexpr tl_chain_choice TILES = tl_chain_choice::MEDIUM;
    static constexpr int VECTOR = WHOLE ? 4 : 1; /* elements of a copy */
    Arrays arrays;
    const float *w;

    template <class T>
    using Factor = std::conditional_t<PLAIN && !WHOLE, tl_chain_unaligned<T, float, T::BM, ALONG>,
                                      tl_chain_matrix<T, float, T::BM, ALONG, VECTOR>>;
    template <class T> struct A : Factor<T> {
        __device__ __forceinline__ A(const Gathered &p, const tl_chain_args &args, const tl_chain_place &place,
                                     int64_t k0, int terms)
            : Factor<T>(p.w + place.product * (args.m * args.n), place.i0, args.m, ALONG ? args.n : args.m, k0, terms)
        {}
    };

    template <class T> struct Plain : tl_chain_matrix<T, float, T::BN, false, VECTOR> {
        using Matrix = tl_chain_matrix<T, float, T::BN, false, VECTOR>;
        /* Where the batch would begin if it went on as the image of the thread's columns does. */
        static __device__ __forceinline__ const float *start(const Arrays &a, const tl_chain_place &place)
        {
            uint32_t at;
            const int64_t q = place.j0 + Matrix::own_i();
            const uint32_t image = a.position_div.divmod((uint32_t)q, &at);
            return a.of(place.product, image) + at - q;
        }
        __device__ __forceinline__ Plain(const Gathered &p, const tl_chain_args &args, const tl_chain_place &place,
                                         int64_t k0, int terms)
            : Matrix(start(p.arrays, place), place.j0, args.p, p.arrays.positions, k0, terms)
        {
            this->array = p.arrays.source;
        }
    };

    template <class T> struct Tabled : tl_chain_layout<T, float, T::BN, false, 1> {
        using Layout = tl_chain_layout<T, float, T::BN, false, 1>;
        Reader reader;
        const uint2 *entries;
        int rest;
        __device__ __forceinline__ Tabled(const Gathered &p, const tl_chain_args &args, const tl_chain_place &place,
                                          int64_t k0, int terms)
        {
            const int64_t q = place.j0 + Layout::own_i();
            reader.seek(p.arrays, place.product, q, q < args.p);
            entries = p.arrays.tables.entries + k0 + Layout::own_k();
            rest = terms - Layout::own_k();
        }
        __device__ __forceinline__ void copy(float *to)
        {
            TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++) {
                const bool wanted = rest > c * Layout::BELOW;
                reader.copy(Layout::place(to, c), wanted ? entries[c * Layout::BELOW] : make_uint2(0, 0), wanted);
            }
            entries += Layout::STEP;
            rest -= Layout::STEP;
        }
    };

    template <class T> using B = std::conditional_t<PLAIN, Plain<T>, Tabled<T>>;
};

/* ---- gradients of weights ------------------------------------------------------------------------------------------ */

/* Rows of an array (batch, rows, positions) along the positions of the batch, of which an image's are contiguous. */
template <class T, int WIDTH, int VECTOR> struct BatchRows : tl_chain_layout<T, float, WIDTH, true, VECTOR> {
    using Layout = tl_chain_layout<T, float, WIDTH, true, VECTOR>;
    const Arrays &arrays;
    const float *array, *from;
    int64_t image_size, q;
    int rows, rest;

    /* From `row` on, and `left` of them. */
    __device__ __forceinline__ BatchRows(const Arrays &arrays, const float *array, int64_t image_size, int64_t row,
                                         int64_t left, int64_t k0, int terms)
        : arrays(arrays), array(array), image_size(image_size)
    {
        from = array + (row + Layout::own_i()) * arrays.positions;
        q = k0 + Layout::own_k();
        rows = (int)min(left, (int64_t)WIDTH) - Layout::own_i();
        rest = terms - Layout::own_k();
    }
    __device__ __forceinline__ void copy(float *to)
    {
        uint32_t at = 0;
        const uint32_t image = rest > 0 ? arrays.position_div.divmod((uint32_t)q, &at) : 0;
        const float *const here = from + image * image_size + at;
        TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++) {
            const bool present = rows > c * Layout::BELOW && rest > 0;
            tl_copy_async<VECTOR * 4>(Layout::place(to, c),
                                      present ? here + c * Layout::BELOW * (int64_t)arrays.positions : array, present);
        }
        q += Layout::STEP;
        rest -= Layout::STEP;
    }
};

/* PLAIN as above. VECTOR: positions of a copy of g, and of a PLAIN source. */
template <bool PLAIN, int VECTOR> struct Weights : Results {
    using Real = float;
    static constexpr tl_chain_choice TILES = tl_chain_choice::MEDIUM;
    Arrays arrays;
    const float *g;  /* (batch, groups, rows, positions) */
    int64_t g_image; /* floats of one image */

    template <class T> struct A : BatchRows<T, T::BM, VECTOR> {
        __device__ __forceinline__ A(const Weights &p, const tl_chain_args &args, const tl_chain_place &place,
                                     int64_t k0, int terms)
            : BatchRows<T, T::BM, VECTOR>(p.arrays, p.g, p.g_image, place.product * args.m + place.i0,
                                          args.m - place.i0, k0, terms)
        {}
    };

    template <class T> struct Plain : BatchRows<T, T::BN, VECTOR> {
        __device__ __forceinline__ Plain(const Weights &p, const tl_chain_args &args, const tl_chain_place &place,
                                         int64_t k0, int terms)
            : BatchRows<T, T::BN, VECTOR>(p.arrays, p.arrays.source, p.arrays.image_size,
                                          place.product * args.p + place.j0, args.p - place.j0, k0, terms)
        {}
    };

    template <class T> struct Tabled : tl_chain_layout<T, float, T::BN, true, 1> {
        using Layout = tl_chain_layout<T, float, T::BN, true, 1>;
        const Weights &p;
        const uint2 *entries;
        int64_t q;
        uint32_t group;
        int columns, rest;
        __device__ __forceinline__ Tabled(const Weights &p, const tl_chain_args &args, const tl_chain_place &place,
                                          int64_t k0, int terms)
            : p(p)
        {
            entries = p.arrays.tables.entries + place.j0 + Layout::own_i();
            columns = (int)min(args.p - place.j0, (int64_t)T::BN) - Layout::own_i();
            q = k0 + Layout::own_k();
            group = place.product;
            rest = terms - Layout::own_k();
        }
        __device__ __forceinline__ void copy(float *to)
        {
            Reader reader;
            reader.seek(p.arrays, group, q, rest > 0);
            TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++) {
                const bool wanted = columns > c * Layout::BELOW;
                reader.copy(Layout::place(to, c), wanted ? entries[c * Layout::BELOW] : make_uint2(0, 0), wanted);
            }
            q += Layout::STEP;
            rest -= Layout::STEP;
        }
    };

    template <class T> using B = std::conditional_t<PLAIN, Plain<T>, Tabled<T>>;
};

/* ---- tables -------------------------------------------------------------------------------------------------------- */

/* Weights that are not there as they are needed: (groups, rows, K) of them, `lines` of K, go to `packed`. */
struct PackJob {
    const float *w;
    float *packed; /* or NULL */
    int64_t lines, rows, group_stride, row_stride, channel_stride;
};

/* Blocks of 256 of the tables: over k, as often as weights are shared out, then over positions, as often as words of bits are. */
struct TableGrid {
    uint32_t inner, entry_blocks, entry_parts, position_blocks, position_parts;
};

/* A thread owns a k, of which with `packed` it writes some rows' weights, too, or a position and some CHUNKs of its taps. */
__global__ void __launch_bounds__(256)
    tables_kernel(const __grid_constant__ tl_conv_gather g, Tables tables, const __grid_constant__ PackJob job,
                  const __grid_constant__ TableGrid grid)
{
    const uint32_t entries = grid.entry_blocks * grid.entry_parts, block = blockIdx.x;
    if (block < entries) {
        const uint32_t k = block % grid.entry_blocks * 256 + threadIdx.x, part = block / grid.entry_blocks;
        if (k >= grid.inner) return;
        const uint32_t channel = k / (uint32_t)g.taps_size, t = k - channel * (uint32_t)g.taps_size;
        const TapOffsets tap(g, t);
        if (part == 0)
            tables.entries[k] =
                make_uint2((uint32_t)(channel * g.source_size) + tap.source, t / CHUNK * 32 + t % CHUNK);
        if (!job.packed) return;
        const int64_t at = channel * job.channel_stride + tap.kernel;
        for (int64_t i = part; i < job.lines; i += grid.entry_parts)
            job.packed[i * grid.inner + k] =
                job.w[i / job.rows * job.group_stride + i % job.rows * job.row_stride + at];
        return;
    }
    const uint32_t at = (block - entries) % grid.position_blocks * 256 + threadIdx.x, count = (uint32_t)g.positions;
    if (at >= count) return;
    for (int64_t word = (block - entries) / grid.position_blocks; word * CHUNK < g.taps_size;
         word += grid.position_parts) {
        const int64_t first = word * CHUNK, left = g.taps_size - first;
        const Position p = position_of(g, at, first, (int)(left < CHUNK ? left : CHUNK));
        tables.inside[word * count + at] = p.inside;
        if (word > 0) continue;
        tables.sources[at] = p.source;
        tables.targets[at] = p.target;
    }
}

/* The tables of a gather, in scratch. */
int32_t make_tables(tl_context *ctx, const tl_conv_gather &g, int64_t channels, const PackJob &job,
                    tl_scratch<uint32_t> &words, Tables *tables)
{
    const int64_t inner = channels * g.taps_size, masks = tl_ceil_div(g.taps_size, CHUNK), count = g.positions;
    TL_TRY(words.allocate(2 * inner + (2 + masks) * count));
    uint32_t *const sources = words + 2 * inner;
    *tables = {reinterpret_cast<uint2 *>((uint32_t *)words), sources, sources + 2 * count, sources + count};
    constexpr int64_t PARTS_MOST = 1024;
    const int64_t entry_parts = job.packed ? std::min(job.lines, PARTS_MOST) : 1;
    const TableGrid grid = {(uint32_t)inner, tl_grid(inner, 256), (uint32_t)entry_parts, tl_grid(count, 256),
                            (uint32_t)std::min(masks, PARTS_MOST)};
    const int64_t blocks = (int64_t)grid.entry_blocks * grid.entry_parts +
                           (int64_t)grid.position_blocks * grid.position_parts;
    return tl_launch(ctx, "conv_tables", tables_kernel, (unsigned)blocks, 256, g, *tables, job, grid);
}

Arrays arrays_of(const tl_conv_gather &g, const Tables &tables, int64_t groups, int64_t channels, const float *source)
{
    const int64_t group_size = channels * g.source_size;
    return {tables, source, group_size, groups * group_size, (uint32_t)g.positions, tl_fastdiv((uint64_t)g.positions)};
}

Results results_of(const tl_conv_product &p, const tl_conv_gather &g, const uint32_t *targets)
{
    const int64_t size = g.target_size;
    const tl_fastdiv columns((uint64_t)g.positions);
    return {p.target, p.bias, targets, p.rows, size, p.groups * p.rows * size, columns};
}

/* The smallest tiles also serve larger products where the others leave multiprocessors idle: if they take less time, and at most two
 * of their warps share a scheduler. */
template <class P> int32_t run(tl_context *ctx, const char *name, const P &problem, const tl_chain_sizes &sizes)
{
    const int64_t sms = tl_cuda_sms(ctx);
    const bool split = tl_chain_splits(sizes, sms);
    const int64_t tiles = sizes.batch * sizes.tiles<tl_chain_few>() * (split ? sizes.segments() : 1);
    if (tiles * tl_chain_few::WARPS <= 8 * sms &&
        tl_chain_time<tl_chain_few, P>(sizes, split, sms) < tl_chain_fastest<P>(sizes, sms).time)
        return tl_chain_launch<tl_chain_few>(ctx, name, problem, sizes, split);
    return tl_chain_run(ctx, name, problem, sizes);
}

int32_t phase(tl_context *ctx, const tl_conv_product &p, const tl_conv_gather &g)
{
    const char *const name = "conv_chain";
    const tl_chain_sizes sizes = {p.groups, p.rows, p.channels * g.taps_size, p.batch * g.positions};
    tl_scratch<uint32_t> words(ctx);
    tl_scratch<float> packed(ctx);
    if (p.spread) TL_TRY(packed.allocate(p.groups * p.rows * sizes.n));
    const PackJob job = {
        p.w, packed, p.groups * p.rows, p.rows, p.rows * p.channels * p.s.taps, p.row_stride(), p.channel_stride()};
    Tables tables;
    TL_TRY(make_tables(ctx, g, p.channels, job, words, &tables));
    const Arrays arrays = arrays_of(g, tables, p.groups, p.channels, p.source);
    const Results results = results_of(p, g, tables.targets);
    const float *const w = p.spread ? (const float *)packed : p.w;
    if (sizes.n % 4 == 0 && tl_aligned4(w))
        return run(ctx, name, Gathered<false, true, true>{results, arrays, w}, sizes);
    return run(ctx, name, Gathered<false, true, false>{results, arrays, w}, sizes);
}

template <bool ALONG> int32_t plain(tl_context *ctx, const tl_conv_product &p)
{
    const char *const name = "conv_chain_plain";
    const tl_conv_gather g = tl_conv_correlate(&p.s);
    const Arrays arrays = arrays_of(g, Tables{}, p.groups, p.channels, p.source);
    const Results results = results_of(p, g, nullptr);
    const tl_chain_sizes sizes = {p.groups, p.rows, p.channels, p.batch * p.s.out_size};
    if (p.s.out_size % 4 == 0 && (ALONG ? p.channels : p.rows) % 4 == 0 && tl_aligned4(p.source) && tl_aligned4(p.w))
        return run(ctx, name, Gathered<true, ALONG, true>{results, arrays, p.w}, sizes);
    return run(ctx, name, Gathered<true, ALONG, false>{results, arrays, p.w}, sizes);
}

/* gw by copies of so many neighbouring positions. */
template <bool PLAIN, int VECTOR>
int32_t weights(tl_context *ctx, const tl_conv_gradient &p, const tl_conv_gather &g, const Tables &tables)
{
    const tl_chain_sizes sizes = {p.groups, p.rows, p.batch * g.positions, p.channels * g.taps_size};
    const Results results = {p.gw, nullptr, nullptr, p.rows, sizes.p, 0, tl_fastdiv((uint64_t)sizes.p)};
    const Arrays arrays = arrays_of(g, tables, p.groups, p.channels, p.large);
    const Weights<PLAIN, VECTOR> problem = {results, arrays, p.small, p.groups * p.rows * g.positions};
    return run(ctx, PLAIN ? "conv_chain_plain_weights" : "conv_chain_weights", problem, sizes);
}

} // namespace

int32_t tl_conv_chain(tl_context *ctx, const tl_conv_product &p)
{
    if (p.has_gaps()) TL_TRY(tl_conv_fill(ctx, p));
    if (tl_conv_is_plain(p.s)) return p.spread ? plain<false>(ctx, p) : plain<true>(ctx, p);
    for (int64_t i = 0, phases = p.phases(); i < phases; i++) {
        const tl_conv_gather g = p.phase(i);
        if (g.positions > 0) TL_TRY(phase(ctx, p, g));
    }
    return TORCHLEAN_OK;
}

int32_t tl_conv_chain_weights(tl_context *ctx, const tl_conv_gradient &p)
{
    const tl_conv_gather g = tl_conv_correlate(&p.s);
    const bool fours = g.positions % 4 == 0 && tl_aligned4(p.small);
    if (tl_conv_is_plain(p.s))
        return fours && tl_aligned4(p.large) ? weights<true, 4>(ctx, p, g, Tables{})
                                             : weights<true, 1>(ctx, p, g, Tables{});
    tl_scratch<uint32_t> words(ctx);
    Tables tables;
    TL_TRY(make_tables(ctx, g, p.channels, PackJob{}, words, &tables));
    return fours ? weights<false, 4>(ctx, p, g, tables) : weights<false, 1>(ctx, p, g, tables);
}
