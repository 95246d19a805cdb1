/* Planes of several channels turned into vectors whose lanes are channels, and back. */
#pragma once

#include "cpu/conv/lanes.h"
#include "cpu/linalg/gemm.h"
#include "formula/integer.h"

/* to[cell*LANES + lane] = from[lane*stride + cell]; the other lanes are 0. */
static inline void tl_turn_in(float *to, const float *from, int64_t stride, int64_t lanes, int64_t cells)
{
    tl_gemm_pack_f32(to, LANES, lanes, cells, from, stride, 1);
}

/* to[lane*stride + cell] = from[cell*LANES + lane]; `from` has room for LANES - 1 cells more. */
static inline void tl_turn_out(float *to, const float *from, int64_t stride, int64_t lanes, int64_t cells)
{
    _Alignas(64) float turned[LANES * LANES + LANES];
    for (int64_t e = 0; e < cells; e += LANES) {
        const int64_t h = tl_imin(cells - e, LANES);
        tl_gemm_pack_f32(turned, h, h, LANES, from + e * LANES, LANES, 1);
        for (int64_t l = 0; l < lanes; l++)
            tl_store_first(to + l * stride + e, tl_vec_load(turned + l * h), h);
    }
}
