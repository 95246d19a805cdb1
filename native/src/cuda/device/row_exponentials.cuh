/* A row's exponentials and their sum, for softmax and cross-entropy. */
#pragma once

#include "cuda/device/cluster_row.cuh"

/* The sum of e^(x - m) over a row held on chip, m its maximum, which is left as the exponentials (SHIFTED: as x - m). A
 * NaN in the row need not reach the maximum: its exponential is NaN whatever it is shifted by. ENDLESS: what lies past the row's
 * end was loaded as -inf. */
template <bool SHIFTED, bool ENDLESS = false, class Row, class Held>
static __device__ __forceinline__ float tl_row_exponentials(const Row &r, Held &v, float *maximum)
{
    float m = -TL_INF, w[Row::W], e[Row::W];
#pragma unroll(Held::UNROLL)
    for (int k = 0; k < Held::pieces(r); k++) {
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            m = fmaxf(m, ENDLESS || r.inside(k * Row::W + j) ? w[j] : -TL_INF);
    }
    m = Row::max(m);
    typename Row::terms exponentials;
#pragma unroll(Held::UNROLL)
    for (int i = 0; i < Held::pieces(r); i++) {
        const int k = Row::order(i);
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            w[j] = (ENDLESS || r.inside(k * Row::W + j) ? w[j] : -TL_INF) - m;
            e[j] = tl_exp_at_most_1(w[j]);
        }
        exponentials.add(i, e);
        v.put(k, SHIFTED ? w : e);
    }
    *maximum = m;
    return exponentials.sum();
}

/* ---- rows held by a cluster -------------------------------------------------------------------------------------- */

/* The same for array 0 of a cluster's row. The row is still to be read by other blocks until tl_cluster_wait(). */
template <bool SHIFTED, class Row>
static __device__ __forceinline__ float tl_cluster_exponentials(const Row &r, float *maximum)
{
    float *const v = r.array(0);
    float m = -TL_INF;
    r.elements([&](int slot, int) { m = fmaxf(m, v[slot]); });
    m = r.max(m);
    *maximum = m;
    const float sum = r.sum(0, [&](int slot, int) {
        const float shifted = v[slot] - m, e = tl_exp_at_most_1(shifted);
        v[slot] = SHIFTED ? shifted : e;
        return e;
    });
    tl_cluster_leave();
    return sum;
}
