/* Both transforms are products of device/chain.cuh, of roots that lie in a table and rows that count twice: row r of the analysis is
 * part r % 2 of bin r / 2, row t of the synthesis is a row of the grid; term 2j + e of a sum is number e of a root's part,
 * times row j of what is transformed. */
#include "cuda/spectral/spectral.cuh"

#include "cuda/device/chain.cuh"
#include "cuda/device/vector.cuh"
#include "formula/spectral_chain.h"

namespace {

constexpr int THREADS = 256;
constexpr const char *NAME = "spectral_chain";

/* ---- transforms -------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) roots_kernel(tl_root_parts *roots, int64_t n)
{
    const int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (k < n) roots[k] = tl_split_root((uint64_t)k, (uint64_t)n);
}

template <bool SYNTHESIS, int VECTOR> struct Transform {
    using Real = float;
    static constexpr tl_chain_choice TILES = tl_chain_choice::SMALL;
    const tl_root_parts *roots;
    const float *from;
    float *to;
    uint64_t n; /* of the grid */
    int64_t width;

    template <class T> struct A : tl_chain_layout<T, float, T::BM, true, 2> {
        using Layout = tl_chain_layout<T, float, T::BM, true, 2>;
        const Transform &p;
        uint64_t root[Layout::COPIES],
            step[Layout::COPIES]; /* a root's number, and what it grows by with every tile, modulo n */
        int rows, rest, first_part;

        __device__ __forceinline__ A(const Transform &problem, const tl_chain_args &args, const tl_chain_place &place,
                                     int64_t k0, int terms)
            : p(problem), rows((int)min(args.m - place.i0, (int64_t)T::BM) - Layout::own_i()),
              rest(terms - Layout::own_k())
        {
            const uint64_t j = (uint64_t)(k0 + Layout::own_k()) / 2;
            const int64_t i = place.i0 + Layout::own_i();
            first_part = (int)(SYNTHESIS ? j % 2 : (uint64_t)i % 2);
            TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++) {
                const uint64_t row = (uint64_t)(i + c * Layout::BELOW);
                const uint64_t mode = (SYNTHESIS ? j : row) / 2, t = SYNTHESIS ? row : j;
                root[c] = mode * t % p.n;
                step[c] = (SYNTHESIS ? t * (Layout::STEP / 4) : mode * (Layout::STEP / 2)) % p.n;
            }
        }
        __device__ __forceinline__ void copy(float *to)
        {
            TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++) {
                const bool present = rows > c * Layout::BELOW && rest > 0;
                const int part = SYNTHESIS ? first_part : (first_part + c * Layout::BELOW) % 2;
                tl_copy_async<8>(Layout::place(to, c), p.roots[present ? root[c] : 0].part[part], present);
                root[c] += step[c];
                root[c] = root[c] >= p.n ? root[c] - p.n : root[c];
            }
            rest -= Layout::STEP;
        }
    };

    template <class T> struct B : tl_chain_layout<T, float, T::BN, false, VECTOR> {
        using Layout = tl_chain_layout<T, float, T::BN, false, VECTOR>;
        static_assert(Layout::BELOW % 2 == 0, "copies are whole pairs of terms apart");
        const float *array, *from;
        int64_t width;
        int columns, rest;

        __device__ __forceinline__ B(const Transform &p, const tl_chain_args &args, const tl_chain_place &place,
                                     int64_t k0, int terms)
            : array(p.from), width(args.p), columns((int)min(args.p - place.j0, (int64_t)T::BN) - Layout::own_i()),
              rest(terms - Layout::own_k())
        {
            from = p.from + (k0 + Layout::own_k()) / 2 * width + place.j0 + Layout::own_i();
        }
        __device__ __forceinline__ void copy(float *to)
        {
            TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++) {
                const bool present = columns > 0 && rest > c * Layout::BELOW;
                tl_copy_async<4 * VECTOR>(Layout::place(to, c),
                                          present ? from + c * (Layout::BELOW / 2) * width : array, present);
            }
            from += Layout::STEP / 2 * width;
            rest -= Layout::STEP;
        }
    };

    template <class T>
    __device__ __forceinline__ void store(const tl_chain_args &args, const tl_chain_place &, int64_t row, int64_t col,
                                          int64_t rows, int64_t cols, const double (&sum)[T::M][T::N][4], Real *) const
    {
        TL_UNROLL_FOR (int m = 0; m < T::M; m++)
            TL_UNROLL_FOR (int n_ = 0; n_ < T::N; n_++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    if (16 * m + e / 2 * 8 < rows && 8 * n_ + e % 2 < cols)
                        to[(row + 16 * m + e / 2 * 8) * args.p + col + 8 * n_ + e % 2] = (float)sum[m][n_][e];
    }
    __device__ __forceinline__ void put(uint32_t, uint32_t row, uint32_t col, double sum) const
    {
        to[row * width + col] = (float)sum;
    }
};

template <bool SYNTHESIS>
int32_t transform(tl_context *ctx, const tl_root_parts *roots, const float *from, float *to, int64_t n, int64_t width,
                  int64_t modes)
{
    const tl_chain_sizes sizes = SYNTHESIS ? tl_chain_sizes{1, n, 4 * modes, width}
                                           : tl_chain_sizes{1, 2 * modes, 2 * n, width};
    if (width % 4 == 0 && tl_aligned4(from))
        return tl_chain_run(ctx, NAME, Transform<SYNTHESIS, 4>{roots, from, to, (uint64_t)n, width}, sizes);
    return tl_chain_run(ctx, NAME, Transform<SYNTHESIS, 1>{roots, from, to, (uint64_t)n, width}, sizes);
}

/* ---- the mix of channels ----------------------------------------------------------------------------------------- */

struct Mix {
    int64_t n, width, modes, segment; /* segment: in channels, of two terms each */
    const float *wRe, *wIm, *X, *G;   /* G: bins of the cotangent */
    float *Z, *dX, *gr, *gi;

    /* Part `part` of bin k of a channel: NaN if bin 0, which every element is a term of with factor 1, is not finite. */
    __device__ __forceinline__ float bin(const float *of, int64_t k, int part, int64_t channel) const
    {
        return of[(2 * k + part) * width + channel] + (of[channel] - of[channel]);
    }
    /* The same of the cotangent's bins, times their weight: what the backward mix takes. */
    __device__ __forceinline__ double weighted(int64_t k, int part, int64_t channel, double weight) const
    {
        return (double)(float)((double)bin(G, k, part, channel) * weight);
    }
    __device__ __forceinline__ void store(float *to, int64_t k, int64_t channel, double re, double im) const
    {
        float r = (float)re, i = (float)im;
        tl_bin_prepare(k, n, &r, &i);
        to[2 * k * width + channel] = r;
        to[(2 * k + 1) * width + channel] = i;
    }
};

/* A thread owns a bin's output channel, or with BACKWARD its input channel. A block is a warp: few channels then keep many
 * multiprocessors busy. */
template <bool BACKWARD> __global__ void __launch_bounds__(32) mix_kernel(const Mix m)
{
    const int64_t e = (int64_t)blockIdx.x * 32 + threadIdx.x, k = e / m.width, own = e - k * m.width;
    if (k >= m.modes) return;
    const double weight = tl_bin_weight(k, m.n);
    double sum[2] = {};
    for (int64_t from = 0; from < m.width; from += m.segment) {
        const int64_t end = min(m.width, from + m.segment);
        double part[2] = {};
#pragma unroll 8
        for (int64_t c = from; c < end; c++) {
            const int64_t at = BACKWARD ? e * m.width + c : (k * m.width + c) * m.width + own;
            const double wr = (double)m.wRe[at], wi = (double)m.wIm[at];
            const double r = BACKWARD ? m.weighted(k, 0, c, weight) : (double)m.bin(m.X, k, 0, c);
            const double i = BACKWARD ? m.weighted(k, 1, c, weight) : (double)m.bin(m.X, k, 1, c);
            part[0] = (part[0] + r * wr) + (BACKWARD ? i * wi : -(i * wi));
            part[1] = (part[1] + (BACKWARD ? i * wr : r * wi)) + (BACKWARD ? -(r * wi) : i * wr);
        }
        TL_UNROLL_FOR (int i = 0; i < 2; i++)
            sum[i] = from > 0 ? sum[i] + part[i] : part[i];
    }
    const double scale = BACKWARD ? 1.0 : weight;
    m.store(BACKWARD ? m.dX : m.Z, k, own, sum[0] * scale, sum[1] * scale);
}

/* A thread owns an element of the weights' gradients. */
__global__ void __launch_bounds__(THREADS) weights_kernel(const Mix m, int64_t total)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, at = e / m.width, o = e - at * m.width;
    if (e >= total) return;
    const int64_t k = at / m.width, c = at - k * m.width;
    const double xr = (double)m.bin(m.X, k, 0, c), xi = (double)m.bin(m.X, k, 1, c);
    const double weight = tl_bin_weight(k, m.n), zr = m.weighted(k, 0, o, weight), zi = m.weighted(k, 1, o, weight);
    if (m.gr) m.gr[e] = (float)(xr * zr + xi * zi);
    if (m.gi) m.gi[e] = (float)(xr * zi - xi * zr);
}

/* Roots, and planes of 2·modes·width floats. */
int32_t begin(tl_context *ctx, tl_scratch<char> &scratch, int64_t planes, Mix &m, tl_root_parts **roots, float **memory)
{
    const int64_t table = m.n * (int64_t)sizeof(tl_root_parts);
    TL_TRY(scratch.allocate(table + planes * 2 * m.modes * m.width * (int64_t)sizeof(float)));
    *roots = reinterpret_cast<tl_root_parts *>((char *)scratch);
    *memory = reinterpret_cast<float *>((char *)scratch + table);
    m.segment = tl_chain_segment(2 * m.width) / 2;
    return tl_launch(ctx, NAME, roots_kernel, tl_grid(m.n, THREADS), THREADS, *roots, m.n);
}

} /* namespace */

int32_t tl_spectral_chain(tl_context *ctx, const float *x, const float *wRe, const float *wIm, int64_t grid,
                          int64_t width, int64_t modes, float *y)
{
    Mix m = {grid, width, modes, 0, wRe, wIm};
    tl_scratch<char> scratch(ctx);
    tl_root_parts *roots;
    float *X;
    TL_TRY(begin(ctx, scratch, 2, m, &roots, &X));
    m.X = X, m.Z = X + 2 * modes * width;
    TL_TRY(transform<false>(ctx, roots, x, X, grid, width, modes));
    TL_TRY(tl_launch(ctx, NAME, mix_kernel<false>, tl_grid(modes * width, 32), 32, m));
    return transform<true>(ctx, roots, m.Z, y, grid, width, modes);
}

int32_t tl_spectral_chain_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm, const float *g,
                              int64_t grid, int64_t width, int64_t modes, float *gx, float *gwRe, float *gwIm)
{
    const int64_t plane = 2 * modes * width;
    Mix m = {grid, width, modes, 0, wRe, wIm};
    tl_scratch<char> scratch(ctx);
    tl_root_parts *roots;
    float *X;
    TL_TRY(begin(ctx, scratch, 3, m, &roots, &X));
    m.X = X, m.G = X + plane, m.dX = X + 2 * plane, m.gr = gwRe, m.gi = gwIm;
    TL_TRY(transform<false>(ctx, roots, g, X + plane, grid, width, modes));
    if (gx) {
        TL_TRY(tl_launch(ctx, NAME, mix_kernel<true>, tl_grid(modes * width, 32), 32, m));
        TL_TRY(transform<true>(ctx, roots, m.dX, gx, grid, width, modes));
    }
    if (!gwRe && !gwIm) return TORCHLEAN_OK;
    TL_TRY(transform<false>(ctx, roots, x, X, grid, width, modes));
    const int64_t total = modes * width * width;
    return tl_launch(ctx, NAME, weights_kernel, tl_grid(total, THREADS), THREADS, m, total);
}
