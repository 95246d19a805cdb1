/* Butterflies of the transforms, and what they turn numbers by, for both devices: a number is a vector of lanes on the CPU
 * (cpu/spectral/vec.h) and one float32 pair on CUDA; a lane's arithmetic is the same. */
#pragma once

#include "base.h"

#ifdef __cplusplus
struct tl_complex {
    float r, i;
};
#define TL_TYPE_OF(x) decltype(x)
#define TL_FFT_FN static __device__ __forceinline__
#define TL_FFT_TABLE const float
#define TL_FFT_ZERO 0.0f
#define TL_FFT_FOR _Pragma("unroll") for
TL_FFT_FN tl_complex tl_complex_of(float r, float i) { return tl_complex{r, i}; }
#else
typedef tl_cvec tl_complex;
#define TL_TYPE_OF(x) __typeof__(x)
#define TL_FFT_FN TL_INLINE
#define TL_FFT_TABLE static const float
#define TL_FFT_ZERO ((tl_vec){0})
#define TL_FFT_FOR for
TL_FFT_FN tl_complex tl_complex_of(tl_vec r, tl_vec i) { return (tl_complex){r, i}; }
#endif

/* a·(c, s) */
TL_FFT_FN tl_complex tl_times(tl_complex a, float c, float s)
{
    return tl_complex_of(a.r * c - a.i * s, a.r * s + a.i * c);
}

TL_FFT_FN tl_complex tl_complex_add(tl_complex a, tl_complex b) { return tl_complex_of(a.r + b.r, a.i + b.i); }
TL_FFT_FN tl_complex tl_complex_sub(tl_complex a, tl_complex b) { return tl_complex_of(a.r - b.r, a.i - b.i); }
TL_FFT_FN tl_complex tl_minus_i(tl_complex a) { return tl_complex_of(a.i, -a.r); }

TL_FFT_FN void tl_butterfly_2(tl_complex *a)
{
    const tl_complex t = a[0];
    a[0] = tl_complex_add(t, a[1]);
    a[1] = tl_complex_sub(t, a[1]);
}

TL_FFT_FN void tl_butterfly_4(tl_complex *a)
{
    const tl_complex s = tl_complex_add(a[0], a[2]), d = tl_complex_sub(a[0], a[2]), t = tl_complex_add(a[1], a[3]),
                     e = tl_minus_i(tl_complex_sub(a[1], a[3]));
    a[0] = tl_complex_add(s, t);
    a[1] = tl_complex_add(d, e);
    a[2] = tl_complex_sub(s, t);
    a[3] = tl_complex_sub(d, e);
}

TL_FFT_FN void tl_butterfly_8(tl_complex *a)
{
    const float half_root = 0.70710678118654752440f; /* sqrt(1/2) */
    tl_complex even[4], odd[4];
    TL_FFT_FOR(int j = 0; j < 4; j++)
    {
        even[j] = tl_complex_add(a[j], a[j + 4]);
        odd[j] = tl_complex_sub(a[j], a[j + 4]);
    }
    const tl_complex o1 = odd[1], o3 = odd[3];
    odd[1] = tl_complex_of((o1.r + o1.i) * half_root, (o1.i - o1.r) * half_root);
    odd[2] = tl_minus_i(odd[2]);
    odd[3] = tl_complex_of((o3.i - o3.r) * half_root, -(o3.r + o3.i) * half_root);
    tl_butterfly_4(even);
    tl_butterfly_4(odd);
    TL_FFT_FOR(int j = 0; j < 4; j++)
    {
        a[2 * j] = even[j];
        a[2 * j + 1] = odd[j];
    }
}

/* Sums of a[j] and a[r-j] meet cosines, differences sines; both run over j in order. */
TL_FFT_FN void tl_butterfly_odd(tl_complex *a, const int r, const float *c, const float *s)
{
    tl_complex plus[6], minus[6];
    const tl_complex first = a[0];
    tl_complex total = first;
    TL_FFT_FOR(int j = 1; j <= r / 2; j++)
    {
        plus[j - 1] = tl_complex_add(a[j], a[r - j]);
        minus[j - 1] = tl_complex_sub(a[j], a[r - j]);
        total = tl_complex_add(total, plus[j - 1]);
    }
    a[0] = total;
    TL_FFT_FOR(int k = 1; k <= r / 2; k++)
    {
        tl_complex u = first, v = tl_complex_of(TL_FFT_ZERO, TL_FFT_ZERO);
        TL_FFT_FOR(int j = 1; j <= r / 2; j++)
        {
            const int at = j * k % r, folded = at <= r / 2 ? at : r - at;
            const float cosine = c[folded - 1], sine = at <= r / 2 ? s[folded - 1] : -s[folded - 1];
            u.r += plus[j - 1].r * cosine;
            u.i += plus[j - 1].i * cosine;
            v.r += minus[j - 1].r * sine;
            v.i += minus[j - 1].i * sine;
        }
        a[k] = tl_complex_of(u.r + v.i, u.i - v.r);
        a[r - k] = tl_complex_of(u.r - v.i, u.i + v.r);
    }
}

/* a[0..r-1] becomes its transform of r points. */
TL_FFT_FN void tl_butterfly(tl_complex *a, const int r)
{
    /* cos and sin of 2·pi·j/r, j = 1..(r-1)/2, for the odd radices */
    TL_FFT_TABLE COS_3[] = {-0.5f}, SIN_3[] = {0.86602540378443865f};
    TL_FFT_TABLE COS_5[] = {0.30901699437494742f, -0.80901699437494742f};
    TL_FFT_TABLE SIN_5[] = {0.95105651629515357f, 0.58778525229247313f};
    TL_FFT_TABLE COS_7[] = {0.62348980185873353f, -0.22252093395631440f, -0.90096886790241913f};
    TL_FFT_TABLE SIN_7[] = {0.78183148246802981f, 0.97492791218182361f, 0.43388373911755812f};
    TL_FFT_TABLE COS_11[] = {0.84125353283118117f, 0.41541501300188643f, -0.14231483827328514f, -0.65486073394528506f,
                             -0.95949297361449739f};
    TL_FFT_TABLE SIN_11[] = {0.54064081745559758f, 0.90963199535451837f, 0.98982144188093273f, 0.75574957435425828f,
                             0.28173255684142970f};
    TL_FFT_TABLE COS_13[] = {0.88545602565320990f,  0.56806474673115580f,  0.12053668025532305f,
                             -0.35460488704253562f, -0.74851074817110110f, -0.97094181742605203f};
    TL_FFT_TABLE SIN_13[] = {0.46472317204376856f, 0.82298386589365639f, 0.99270887409805399f,
                             0.93501624268541482f, 0.66312265824079520f, 0.23931566428755777f};
    switch (r) {
    case 2: tl_butterfly_2(a); break;
    case 3: tl_butterfly_odd(a, 3, COS_3, SIN_3); break;
    case 4: tl_butterfly_4(a); break;
    case 5: tl_butterfly_odd(a, 5, COS_5, SIN_5); break;
    case 7: tl_butterfly_odd(a, 7, COS_7, SIN_7); break;
    case 8: tl_butterfly_8(a); break;
    case 11: tl_butterfly_odd(a, 11, COS_11, SIN_11); break;
    default: tl_butterfly_odd(a, 13, COS_13, SIN_13);
    }
}

/* ---- real transforms by complex ones of half the length ------------------------------------------------------------- */

/* X[k] = E + w·O and X[h-k] = conj(E - w·O) from Z[k], Z[h-k]; E = (Z[k] + conj Z[h-k])/2, O = (Z[k] - conj Z[h-k])/2i.
 * `half` is half of the factor of both; (c, s) = e^(-2·pi·i·k/n). */
#define TL_SPLIT(z, y, c, s, half, xr, xi, yr, yi)                                      \
    do {                                                                                \
        const TL_TYPE_OF((z).r) er = (z).r + (y).r, ei = (z).i - (y).i;                 \
        const TL_TYPE_OF((z).r) or_ = (z).i + (y).i, oi = (y).r - (z).r;                \
        const TL_TYPE_OF((z).r) pr = or_ * (c) - oi * (s), pi = or_ * (s) + oi * (c);   \
        xr = (er + pr) * (half), xi = (ei + pi) * (half);                               \
        yr = (er - pr) * (half), yi = (pi - ei) * (half);                               \
    } while (0)

/* The way back, twice the value: Z[k] = (A + B) + P and Z[h-k] = conj((A + B) - P) with A = S[k], B = conj S[h-k],
 * P = i·conj(w)·(A - B). */
#define TL_JOIN(a, b, c, s, zr, zi, yr, yi)                                             \
    do {                                                                                \
        const TL_TYPE_OF((a).r) sr = (a).r + (b).r, si = (a).i - (b).i;                 \
        const TL_TYPE_OF((a).r) dr = (a).r - (b).r, di = (a).i + (b).i;                 \
        const TL_TYPE_OF((a).r) pr = dr * (s) - di * (c), pi = dr * (c) + di * (s);     \
        zr = sr + pr, zi = si + pi;                                                     \
        yr = sr - pr, yi = pi - si;                                                     \
    } while (0)
