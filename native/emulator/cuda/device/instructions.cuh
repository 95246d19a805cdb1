/* Instructions of the emulated device. */
#pragma once

#include <stdint.h>

static inline uint32_t tl_mad_low(uint32_t a, uint32_t b, uint32_t c) { return a * b + c; }
static inline float tl_max_or_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }
static inline void tl_forget_origin(float &) {}
static inline void tl_forget_origin(int &) {}
template <int N> void tl_store_at_once(float *to, const float (&y)[N])
{
    if ((uintptr_t)to % sizeof y) abort();
    for (int i = 0; i < N; i++)
        to[i] = y[i];
}

/* The operands are cut to TF32's 19 bits and the products added in float64; a tensor core cuts sums as well. */
static inline void tl_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    struct operands {
        uint32_t a[4], b[2];
    } own;
    memcpy(own.a, a, sizeof own.a);
    memcpy(own.b, b, sizeof own.b);
    emulator::show(~0u, own);
    const auto cut = [](uint32_t x) { return (double)__uint_as_float(x & 0xffffe000u); };
    const int g = emulator::self->lane / 4, t = emulator::self->lane % 4;
    for (int e = 0; e < 4; e++) {
        const int row = g + 8 * (e / 2), column = 2 * t + e % 2;
        double sum = d[e];
        for (int k = 0; k < 8; k++) {
            const operands left = emulator::shown<operands>(row % 8 * 4 + k % 4);
            const operands right = emulator::shown<operands>(column * 4 + k % 4);
            sum += cut(left.a[row / 8 + 2 * (k / 4)]) * cut(right.b[k / 4]);
        }
        d[e] = (float)sum;
    }
}
