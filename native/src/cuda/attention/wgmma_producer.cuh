/* Attention by wgmma: the warp group that makes panels. See attention/wgmma_tiles.cuh. */
#pragma once

#include "cuda/attention/wgmma_tiles.cuh"
#include "cuda/device/vector.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace attention {
namespace warp_groups {

template <class C> struct Producer {
    const WgmmaArgs &a;
    const Problem &p;
    char *stages;
    Header<C::OF_KEYS, C::ROWS> *headers;
    PanelRing<C, 1> ring;
    Ring<C::HEADERS, true> header_ring;
    int64_t b;
    int r0, thread;  /* the block's first row */
    int i, c, place; /* of a panel as it is: chunk c of rows i + 16u */
    /* Of a transposed panel: rows transposed_row + 2e of the tile, coordinates transposed_i + e. */
    int transposed_i, transposed_row, transposed_place;

    __device__ __forceinline__ Producer(const WgmmaArgs &args, char *stages_, Header<C::OF_KEYS, C::ROWS> *headers_,
                                        const uint64_t (*barriers)[C::STAGES],
                                        const uint64_t (*header_barriers)[C::HEADERS], int64_t b_, int r0_)
        : a(args), p(args.p), stages(stages_), headers(headers_), ring(barriers), header_ring(header_barriers, 1),
          b(b_), r0(r0_), thread(threadIdx.x % GROUP)
    {
        find_places();
    }

    __device__ __forceinline__ void find_places()
    {
        const int lane = thread % 32, warp = thread / 32, chunk = lane / 2 % 4 + warp / 2 * 4;
        i = thread / 8;
        c = thread % 8;
        place = i * ROW + (c ^ i % 8) * 16;
        /* A quarter of a warp has two neighbouring blocks of coordinates and four chunks: different banks. */
        transposed_i = 4 * (lane % 2 + lane / 8 * 2) + 32 * (warp % 2);
        transposed_row = chunk / 2 * 8 + chunk % 2;
        transposed_place = transposed_i * ROW + (chunk ^ transposed_i % 8) * 16;
    }

    /* Panel INDEX of a tile: of which array, as it is or transposed, and which part. */
    template <int INDEX> static constexpr bool TRANSPOSED = INDEX >= C::CHUNKS * (1 + C::SLOPES);
    template <int INDEX> __device__ __forceinline__ const float *source() const
    {
        constexpr int after = INDEX - C::CHUNKS * (1 + C::SLOPES);
        const float *const first = C::OF_KEYS ? p.Q : p.K, *const second = C::OF_KEYS ? a.g : p.V;
        const bool of_weights = C::WEIGHTS && after < 2 * C::HALVES;
        return (TRANSPOSED<INDEX> ? of_weights : INDEX >= C::CHUNKS) ? second : first;
    }

    /* What does not exist is 0. */
    template <int INDEX> __device__ __forceinline__ void read(float4 (&held)[4], int j) const
    {
        constexpr int after = INDEX - C::CHUNKS * (1 + C::SLOPES), product = after % (2 * C::HALVES);
        constexpr int from_row = TRANSPOSED<INDEX> ? product / C::HALVES * CHUNK : 0;
        constexpr int from = TRANSPOSED<INDEX> ? product % C::HALVES * 64 : INDEX % C::CHUNKS * CHUNK;
        constexpr int apart = TRANSPOSED<INDEX> ? 2 : 16;
        const int row = j + from_row + (TRANSPOSED<INDEX> ? transposed_row : i);
        const int column = from + (TRANSPOSED<INDEX> ? transposed_i : 4 * c);
        const float *const x = source<INDEX>() + (b * p.n + row) * p.d + column;
        const int rest = column < (int)p.d ? (int)p.n - row : 0;
        TL_UNROLL_FOR (int u = 0; u < 4; u++)
            held[u] = rest > apart * u ? tl_load4(x + apart * u * (int)p.d) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    template <int INDEX> __device__ __forceinline__ void write(const float4 (&held)[4])
    {
        char *const to = stages + ring.stage * PANEL;
        ring.wait_empty();
        TL_UNROLL_FOR (int u = 0; u < 4; u++) {
            float4 x = held[u];
            int at = place + 16 * ROW * u;
            if constexpr (TRANSPOSED<INDEX>) {
                at = (transposed_place ^ 16 * u) + ROW * u;
                x = u == 0   ? make_float4(held[0].x, held[1].x, held[2].x, held[3].x)
                    : u == 1 ? make_float4(held[0].y, held[1].y, held[2].y, held[3].y)
                    : u == 2 ? make_float4(held[0].z, held[1].z, held[2].z, held[3].z)
                             : make_float4(held[0].w, held[1].w, held[2].w, held[3].w);
            }
            uint4 high, low;
            tl_split(x.x, high.x, low.x);
            tl_split(x.y, high.y, low.y);
            tl_split(x.z, high.z, low.z);
            tl_split(x.w, high.w, low.w);
            *reinterpret_cast<uint4 *>(to + at) = high;
            *reinterpret_cast<uint4 *>(to + PANEL_LO + at) = low;
        }
        proxy_fence();
        ring.publish();
    }

    /* The mask of the block's rows and the tile's, from j on, to words of 32 of the tile's rows for each of the
     * block's. Whether the thread saw something allowed. */
    __device__ __forceinline__ bool read_mask(uint32_t (&bits)[2][C::ROWS], int j) const
    {
        const int n = (int)p.n;
        uint32_t any = 0;
        if constexpr (C::OF_KEYS) { /* a thread has a key: a warp reads 128 bytes of a query's row */
            if (thread >= C::ROWS) return false;
            const int key = r0 + thread;
            const float *from = p.mask + (b * p.n + j) * p.n + key;
#pragma unroll 1
            for (int h = 0; h < 2; h++) {
                uint32_t word = 0;
#pragma unroll 4
                for (int q = 0; q < 32; q++, from += p.n)
                    if (key < n && j + 32 * h + q < n) word |= (uint32_t)!(*from == 0.0f) << q;
                bits[h][thread] = word;
                any |= word;
            }
        } else { /* a warp has every fourth row, a lane a key of 32 */
            const int lane = thread % 32;
            const float *from = p.mask + (b * p.n + r0 + thread / 32) * p.n + j + lane;
#pragma unroll 4
            for (int row = thread / 32; row < C::ROWS; row += WARPS, from += WARPS * p.n)
                TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                    const bool exists = r0 + row < n && j + 32 * h + lane < n;
                    const uint32_t word = __ballot_sync(0xffffffffu, exists && !(from[32 * h] == 0.0f));
                    if (lane == 0) bits[h][row] = word;
                    any |= word;
                }
        }
        return any != 0;
    }

    /* The first row from j on with a tile that counts, or -1, after telling the consumers. */
    __device__ __forceinline__ int announce(int j)
    {
        const int n = (int)p.n, end = p.mode == CAUSAL && !C::OF_KEYS && r0 + C::ROWS < n ? r0 + C::ROWS : n;
        Header<C::OF_KEYS, C::ROWS> &header = headers[header_ring.stage];
        header_ring.wait_empty();
        if (p.mode == HARD)
            while (j < end && !group_any(C::GROUPS, read_mask(header.bits, j)))
                j += COLS;
        if (j >= end) j = -1;
        if (thread == 0) {
            header.first = j;
            header.ahead = j - r0;
        }
        if constexpr (C::OF_KEYS)
            if (thread < COLS && j >= 0) {
                const bool exists = j + thread < n;
                const int64_t at = b * p.n + j + thread;
                header.base[thread] = exists ? a.base[at] : 0.0f;
                header.inverse[thread] = exists ? a.inverse[at] : 0.0f;
                header.dot[thread] = exists ? a.dot[at] : 0.0f;
            }
        header_ring.arrive_full(threadIdx.x % 32);
        header_ring.advance();
        return j;
    }

    /* Panel INDEX of the tile at j and those after it. Two are read ahead, the last two from the next tile, whose first
     * row is returned. */
    template <int INDEX> __device__ __forceinline__ int panels(float4 (&even)[4], float4 (&odd)[4], int j, int next)
    {
        if constexpr (INDEX < C::PANELS) {
            if constexpr (C::TIGHT) {
                asm volatile("" : "+r"(thread));
                find_places();
            }
            if constexpr (INDEX == 0) ring.begin_tile();
            float4(&held)[4] = INDEX % 2 ? odd : even;
            write<INDEX>(held);
            if constexpr (INDEX + 2 == C::PANELS) next = announce(j + COLS);
            if constexpr (INDEX + 2 < C::PANELS)
                read<INDEX + 2>(held, j);
            else if (next >= 0)
                read<INDEX + 2 - C::PANELS>(held, next);
            return panels<INDEX + 1>(even, odd, j, next);
        }
        return next;
    }

    __device__ __forceinline__ void run()
    {
        float4 even[4], odd[4];
        int j = announce(p.mode == CAUSAL && C::OF_KEYS ? r0 : 0);
        if (j < 0) return;
        read<0>(even, j);
        read<1>(odd, j);
        while (j >= 0) {
            j = panels<0>(even, odd, j, -1);
            if constexpr (C::PANELS % 2 != 0) /* the next tile's first is among the odd ones */
                if (j >= 0) j = panels<0>(odd, even, j, -1);
        }
    }
};

} /* namespace warp_groups */
} /* namespace attention */

#endif
