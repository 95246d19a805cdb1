/* The activations: tanh, sigmoid, softplus, safe_log, silu and gelu (tanh form), each followed by its gradient.
 *
 * All but tanh rest on two pieces: the logistic function sigma as an unevaluated sum of two floats, and softplus as another. The
 * spare bits are what keeps the product, the quotient or the logarithm taken afterwards within 1 ulp. Both can be far below the
 * smallest float, so below x = -64 they are returned enlarged by a power of two, which the caller takes back last. The gradients
 * multiply by g in between: a large g does not meet a factor that has already lost its bits to underflow.
 *
 * Limits: silu and gelu are -0 at -inf and inf at inf; their derivatives are -0 and 1 there, and never NaN for a finite x and g.
 */
#pragma once

#include "explog.h"

#define TL_FLOAT_MAX 0x1.fffffep+127f

/* ---- tanh ------------------------------------------------------------------------------------------------ */

/* tanh |x| = 1/D - 1 with D = (1 + E)/2, E = e^(-2|x|) = s (1 - 2h), s = 2^k, so D = (1 + s)/2 - s h in [1/2, 1].
 * The rounding error d of D is kept: with R = 1/D rounded, R - 1 is exact and
 *     tanh |x| = (R - 1) + R (1 - R (D + d)),
 * where the second term is a residual the fused multiply-adds deliver almost exactly, so little of the apparent
 * cancellation in 1/D - 1 is left. r = |x| + k ln2/2 is half the reduced argument, and the powers of two in front of
 * the coefficients of tl_exp_tail follow from e^(-2r) = 1 - 2h. One constant suffices for ln2/2: its error of 2^-30
 * times k is damped by 1 - tanh^2. |x| is held at 10 by an integer minimum on its bits, the cheapest form. Below
 * 2^-12 the residual's square is no longer small against the result, but there tanh x = x to 0.35 ulp: x is returned,
 * and NaN, which fails the comparison, takes the same way. Odd by construction, sign of zero included.
 * Budget: 0.5 ulp for the last step, 0.5 for h (it matters for k = 0 only), 0.3 for the fit and ln2. */
TL_HD float tl_tanh(float x)
{
    const float rounder = TL_ROUNDER + 127.0f;
    uint32_t u = tl_bits(x) & 0x7fffffffu;
    float magnitude = tl_from_bits(u);
    float a = tl_from_bits(u > 0x41200000u ? 0x41200000u : u);
    float t = fmaf(a, -2.0f * TL_LOG2E, rounder);
    float r = fmaf(t - rounder, 0.5f * TL_LN2_HI, a);
    float r2 = r * r;
    float low = fmaf(4.0f * TL_EXP_C1, r, -2.0f * TL_EXP_C0);
    float high = fmaf(16.0f * TL_EXP_C3, r, -8.0f * TL_EXP_C2);
    high = fmaf(-32.0f * TL_EXP_C4, r2, high);
    float h = fmaf(fmaf(high, r2, low), r2, r);
    float s = tl_from_bits(tl_bits(t) << 23);
    float den = fmaf(-s, h, fmaf(0.5f, s, 0.5f));
    float den_lo = fmaf(-s, h, fmaf(0.5f, s, 0.5f - den));
    float recip = tl_reciprocal(den);
    float rest = fmaf(-recip, den_lo, fmaf(-recip, den, 1.0f));
    float y = fmaf(recip, rest, recip - 1.0f);
    y = tl_from_bits(tl_bits(y) | (tl_bits(x) & 0x80000000u));
    return magnitude >= 0x1p-12f ? y : x;
}

/* g (1 - y^2), y = tanh x: the fused form rounds 1 - y^2 once, where (1 - y)(1 + y) rounds up to three times. */
TL_HD float tl_tanh_bwd(float y, float g) { return g * fmaf(-y, y, 1.0f); }

/* ---- the logistic function ------------------------------------------------------------------------------- */

/* sigma = E/(1 + E) with E = e^z = s (1 + h), s = 2^k, for either sign of z, is s (1 + h) recip (1 + rest): recip = 1/den rounded,
 * den = 1 + E = lead + rise. 1 + s is exact but for k = -24 and below, where what it loses goes to s h; so den is rounded once, and
 * `rest`, what the quotient misses, comes of its parts by two fused multiply-adds. The factors 1 + h and 1 + rest are taken last
 * and at once, by which no product is rounded in between. */
struct tl_logistic {
    float lead, rise, den, recip;
};

TL_HD struct tl_logistic tl_logistic_of(float s, float h)
{
    struct tl_logistic p;
    p.lead = 1.0f + s;
    p.rise = fmaf(s, h, s - (p.lead - 1.0f));
    p.den = p.lead + p.rise;
    p.recip = tl_reciprocal(p.den);
    return p;
}

TL_HD float tl_logistic_rest(struct tl_logistic p) { return fmaf(-p.recip, p.rise, fmaf(-p.recip, p.lead, 1.0f)); }

/* y (1 + h) (1 + rest). */
TL_HD float tl_logistic_value(struct tl_logistic p, float h, float y)
{
    float rest = tl_logistic_rest(p);
    return fmaf(y, h + fmaf(rest, h, rest), y);
}

/* The powers for gradients, whose g may be as large or as small as it likes, with -198 <= z <= 30: *power = 2^k / (*step)^2, *step =
 * 2^-80 below z = -64, where E counts as nothing beside 1 and the result, else 2^k, is 0. */
TL_HD float tl_logistic_steps(float z, float t, float *power, float *step)
{
    int32_t far = z < -64.0f;
    *power = tl_from_bits((tl_bits(t) << 23) + (far ? (127u + 160u) << 23 : 127u << 23));
    *step = far ? 0x1p-80f : 1.0f;
    return far ? 0.0f : *power;
}

/* sigma(z) / (*step)^2 for -198 <= z <= 30. */
TL_HD float tl_logistic_wide(float z, float *step)
{
    float t, power;
    float h = tl_exp_rise(tl_exp_rest(z, 0.0f, &t));
    struct tl_logistic p = tl_logistic_of(tl_logistic_steps(z, t, &power, step), h);
    return tl_logistic_value(p, h, p.recip * power);
}

/* sigma(x) = 1/(1 + e^-x). Exactly 1 above 17, 0 below -104. Where s is subnormal recip is 1.
 * Budget: 0.5 ulp for the last sum, 0.7 for its addend, 0.1 for the fit. */
TL_HD float tl_sigmoid(float x)
{
    float t;
    float h = tl_exp_rise(tl_exp_rest(tl_between(x, -112.0f, 0x1.15424ap+4f), 191.0f, &t));
    float s = tl_from_bits(tl_bits(t) << 23) * TL_2M64;
    struct tl_logistic p = tl_logistic_of(s, h);
    return tl_logistic_value(p, h, p.recip * s);
}

/* g y (1 - y), y = sigma(x): y - y^2 in one rounding. */
TL_HD float tl_sigmoid_bwd(float y, float g) { return g * fmaf(-y, y, y); }

/* ---- softplus --------------------------------------------------------------------------------------------- */

/* R(E) of ln(1 + E) = E - E^2/2 + E^3 R(E) on [0, 1], error relative to the logarithm below 2^-29.6. */
TL_HD float tl_softplus_tail(float e, float e2)
{
    float q0 = fmaf(-0x1.ffdcf4p-3f, e, 0x1.5554b4p-2f);
    float q1 = fmaf(-0x1.4c5c3ep-3f, e, 0x1.981792p-3f);
    float q2 = fmaf(-0x1.5ff16cp-4f, e, 0x1.03af58p-3f);
    float q3 = fmaf(-0x1.e12eep-7f, e, 0x1.6aee18p-5f);
    q3 = fmaf(0x1.2a6f76p-9f, e2, q3);
    q2 = fmaf(q3, e2, q2);
    q1 = fmaf(q2, e2, q1);
    return fmaf(q1, e2, q0);
}

/* softplus(x) = max(x, 0) + ln(1 + E), E = e^-|x|, as (*s + *sl) * (*scale), good to about 2^-25 of itself, for x <
 * inf: what safe_log needs. The first two terms of the logarithm are summed with their rounding errors; the low part
 * of E enters with the derivative 1/(1 + E), for which 1 - E + E^2/2 is close enough. Below x = -64, where the
 * logarithm is E, everything is scaled by 2^64. */
TL_HD void tl_softplus_parts(float x, float *s, float *sl, float *scale)
{
    float t, h, l;
    float n = fabsf(x) > 112.0f ? -112.0f : -fabsf(x);
    tl_exp_parts(n, 0.0f, 0.0f, &t, &h, &l);
    int32_t far = x < -64.0f;
    float power = tl_from_bits((tl_bits(t) << 23) + (far ? (127u + 64u) << 23 : 127u << 23));
    power = x > 80.0f ? 0.0f : power;
    float m = 1.0f + h;
    float e = power * m;
    float el = power * ((h - (m - 1.0f)) + l);
    float e2 = e * e;
    float q0 = tl_softplus_tail(e, e2);
    float square_lo = fmaf(e, e, -e2);
    float lo = fmaf(-0.5f, square_lo, el * fmaf(fmaf(0.5f, e, -1.0f), e, 1.0f));
    float head = fmaf(-0.5f, e2, e);
    lo += fmaf(-0.5f, e2, e - head);
    float u = fmaf(e2 * e, q0, lo);
    float log = head + u;
    float top = x > 0.0f ? x : 0.0f;
    tl_two_sum(top, log, s, sl);
    *sl += u - (log - head);
    *scale = far ? TL_2M64 : 1.0f;
}

/* max(x, 0) + log1p(e^-|x|). inf at inf, 0 at -inf. The logarithm as above; where E is tiny it is E, and the terms that
 * vanish then may. E - E^2/2 is rounded once and its error recovered.
 * Budget: 0.5 ulp for the last sum, 0.35 for E, 0.1 for the logarithm's other terms. */
TL_HD float tl_softplus(float x)
{
    float z = x < -112.0f ? -112.0f : x;
    float t;
    float r = tl_exp_rest(-fabsf(z), 191.0f, &t);
    float e, el;
    tl_exp_split(r, tl_from_bits(tl_bits(t) << 23), &e, &el);
    e *= TL_2M64;
    el *= TL_2M64;
    float half = -0.5f * e;
    float head = fmaf(half, e, e);
    float lo = fmaf(el, 1.0f + half, fmaf(half, e, e - head));
    float e2 = e * e;
    float u = fmaf(e2 * e, tl_softplus_tail(e, e2), lo);
    float s, sl;
    tl_two_sum(x > 0.0f ? x : 0.0f, head, &s, &sl);
    return x > 64.0f ? x : s + (sl + u);
}

/* g sigma(x); at -inf the slope is 0, so an infinite g gives NaN there. */
TL_HD float tl_softplus_bwd(float x, float g)
{
    float step;
    float sigma = tl_logistic_wide(tl_between(x, -198.0f, 30.0f), &step);
    return x < -TL_FLOAT_MAX ? g * 0.0f : g * step * sigma * step;
}

/* ---- safe_log --------------------------------------------------------------------------------------------- */

/* softplus(x) as s + sl for |x| < 0.6, good to 2^-28: ln 2 + x/2 + ln cosh(x/2), the last term an even series
 * x^2 (1/8 + x^2 C(x^2)) below 0.045. Fit on |x| <= 0.625, error below 2^-32 relative to the whole. */
TL_HD void tl_softplus_middle(float x, float *s, float *sl)
{
    float x2 = x * x;
    float c = fmaf(fmaf(-0x1.9d6afap-16f, x2, 0x1.6b9ea4p-12f), x2, -0x1.5554b8p-8f);
    float a, al;
    tl_two_sum(TL_LN2_HI, 0.5f * x, &a, &al);
    float rest = fmaf(x2, fmaf(c, x2, 0.125f), al + TL_LN2_LO);
    *s = a + rest;
    *sl = rest - (*s - a);
}

/* ln(softplus(x) + eps), 2^-100 <= eps <= 1e-3 for the full accuracy (a larger eps moves the zero of the result out of the
 * interval treated below and leaves an absolute error of a few 2^-26 there; eps = 0 gives -inf below x = -104). The sum y is
 * carried in two floats and its logarithm taken as in tl_log. For |x| < 0.6 the more accurate softplus above replaces the general
 * one, whose error of 2^-25 the logarithm would magnify.
 * Around the zero of the result, x = 0.5413, y - 1 would cancel. There softplus is expanded at the short constant c = 2217/4096:
 * softplus(c + d) - 1 = c0 + a1 d + d^2 T(d) for -0.27 <= d <= 0.44, where d = x - c is exact. c0 and a1 have two parts and their
 * products are kept exactly; the error of T is below 2^-30 relative to the sum. This gives f = y - 1 for the logarithm directly.
 * ln(eps) at -inf, inf at inf. */
TL_HD float tl_safe_log(float x, float eps)
{
    float z = x > TL_FLOAT_MAX ? TL_FLOAT_MAX : x;
    float s, sl, scale, y, yl;
    float middle, middle_lo;
    tl_softplus_parts(z, &s, &sl, &scale);
    tl_softplus_middle(z, &middle, &middle_lo);
    int32_t inner = fabsf(x) < 0.6f;
    float sum = inner ? middle : s * scale;
    float sum_lo = inner ? middle_lo : sl * scale;
    tl_two_sum(sum, eps, &y, &yl);
    yl += sum_lo;
    int32_t e = tl_log_exponent(y);
    float f = tl_from_bits(tl_bits(y) - ((uint32_t)e << 23)) - 1.0f;
    float fl = yl * tl_from_bits((127u - (uint32_t)(e > 100 ? 100 : e)) << 23);

    float d = z - 0x1.152p-1f;
    float d2 = d * d;
    float p0 = fmaf(-0x1.4f8daep-7f, d, 0x1.dc4234p-4f);
    float p1 = fmaf(0x1.e07e0ep-11f, d, -0x1.f600b6p-9f);
    float p2 = fmaf(-0x1.42182ep-14f, d, 0x1.57ec2p-13f);
    p1 = fmaf(p2, d2, p1);
    p0 = fmaf(p1, d2, p0);
    float linear = d * 0x1.43a352p-1f;
    float linear_lo = fmaf(d, 0x1.43a352p-1f, -linear);
    float n, nl, c, cl;
    tl_two_sum(-0x1.592332p-15f, eps, &c, &cl);
    tl_two_sum(linear, c, &n, &nl);
    nl += fmaf(d2, p0, fmaf(d, 0x1.aeb744p-27f, linear_lo) + (cl - 0x1.d26344p-41f));
    float nf = n + nl;
    float nfl = nl - (nf - n);

    float candidate = fabsf(d - 0.084f) <= 0.353f ? nf : 1.0f;
    int32_t near = fabsf(candidate) <= 0.29f;
    float r = tl_log_sum(near ? 0.0f : (float)e, near ? nf : f, near ? nfl : fl);
    float edge = y == 0.0f ? -TL_INF : x + eps;
    return y > 0.0f && x + eps < TL_INF ? r : edge;
}

/* g sigma(x)/(softplus(x) + eps), eps >= 2^-50. A g above 1 is multiplied before the division and a smaller one after
 * it; with the factor lift no intermediate overflows or loses bits unless the result does. 0 at -inf, and at inf
 * (times g). Below x = -198 the slope stays at its value there, under 1e-79. */
TL_HD float tl_safe_log_bwd(float x, float eps, float g)
{
    float z = x > TL_FLOAT_MAX ? TL_FLOAT_MAX : x;
    float s, sl, scale, y, yl;
    tl_softplus_parts(z, &s, &sl, &scale);
    tl_two_sum(s * scale, eps, &y, &yl);
    y += fmaf(sl, scale, yl);
    float sigma = tl_logistic_wide(tl_between(z, -198.0f, 30.0f), &scale);
    int32_t large = fabsf(g) > 1.0f;
    float lift = x < -64.0f ? 0x1p60f : 1.0f;
    float slope = (large ? g : 1.0f) * scale * sigma / (y * lift) * (large ? 1.0f : g) * (scale * lift);
    return fabsf(x) > TL_FLOAT_MAX ? g * 0.0f : slope;
}

/* ---- silu ------------------------------------------------------------------------------------------------- */

/* x sigma(z), r and t from the reduction of z with the bias 191, -112 <= z <= 30: sigma is kept in two floats. Their sum would lose
 * the sign of -0. */
TL_HD float tl_gate(float x, float r, float t)
{
    float h = tl_exp_rise(r);
    float power = tl_from_bits(tl_bits(t) << 23);
    struct tl_logistic p = tl_logistic_of(power * TL_2M64, h);
    float y = fmaf(p.recip, h, p.recip);
    float yl = fmaf(y, tl_logistic_rest(p), fmaf(p.recip, h, p.recip - y));
    float scaled = x * power;
    return copysignf(fmaf(scaled, y, scaled * yl) * TL_2M64, x);
}

/* x sigma(x); x itself above 30, -0 below about -108. Budget: 0.5 ulp for the last sum, 0.7 for sigma, 0.1 for the fit. */
TL_HD float tl_silu(float x)
{
    float z = tl_at_most(tl_at_least(x, -112.0f), 30.0f);
    float t;
    float r = tl_exp_rest(z, 191.0f, &t);
    float y = tl_gate(z, r, t);
    return x <= 30.0f ? y : x;
}

/* e^v of the gradients below, as tl_exp_parts gives it: 2^k (1 + h + l), k in the low bits of t, with the bias 127 unless `deep`. */
struct tl_gate_power {
    float t, h, l;
};

TL_HD struct tl_gate_power tl_gate_power_of(float v, float vl, int32_t deep)
{
    struct tl_gate_power e;
    tl_exp_parts(v, vl, deep ? 0.0f : 127.0f, &e.t, &e.h, &e.l);
    return e;
}

/* g sigma (1 + w (1 - sigma)), the derivative of x sigma(v) with w = x v'(x): since 1 - sigma = 1/den it is g E (den + w)/den^2. The
 * sum cancels around the zero of the derivative: there den has its rounding error with it, and that of E. e is E = e^v; `deep`, a
 * constant, is for v below -64, and v counts there alone. */
TL_HD float tl_gate_bwd(struct tl_gate_power e, float v, float w, float wl, int32_t deep, float g)
{
    float power = tl_from_bits(tl_bits(e.t) << 23);
    float step = 1.0f;
    float s = deep ? tl_logistic_steps(v, e.t, &power, &step) : power;
    struct tl_logistic p = tl_logistic_of(s, e.h);
    float den_lo = fmaf(s, e.l, p.rise - (p.den - p.lead));
    float rest = fmaf(-p.recip, den_lo, fmaf(-p.recip, p.den, 1.0f));
    float n, nl;
    tl_two_sum(p.den, w, &n, &nl);
    nl += den_lo + wl;
    float m = n * p.recip;
    float y = m * p.recip;
    float yl = fmaf(fmaf(nl, p.recip, fmaf(n, p.recip, -m)), p.recip, fmaf(m, p.recip, -y));
    float excess = e.h + fmaf(2.0f, fmaf(rest, e.h, rest), e.l);
    float slope = (y + fmaf(y, excess, fmaf(yl, excess, yl))) * power;
    return deep ? g * step * slope * step : g * slope;
}

/* g silu'(x), silu' = sigma (1 + x (1 - sigma)): 1 at inf, -0 at -inf (times g). Its zero is at x = -1.2785. */
#define TL_SILU_DEEP -64.0f

TL_HD struct tl_gate_power tl_silu_power(float x) { return tl_gate_power_of(tl_at_most(x, 30.0f), -0.0f, 0); }

TL_HD float tl_silu_slope(struct tl_gate_power e, float x, float g)
{
    float z = tl_at_most(x, 30.0f);
    return tl_gate_bwd(e, z, z, -0.0f, 0, g);
}

TL_HD float tl_silu_bwd(float x, float g) { return tl_silu_slope(tl_silu_power(x), x, g); }

/* For x < TL_SILU_DEEP and NaN. */
TL_HD float tl_deep_silu_bwd(float x, float g)
{
    float z = tl_at_least(x, -198.0f);
    float y = tl_gate_bwd(tl_gate_power_of(z, -0.0f, 1), z, z, -0.0f, 1, g);
    return x < -TL_FLOAT_MAX ? g * -0.0f : x != x ? x : y;
}

/* ---- gelu, tanh form -------------------------------------------------------------------------------------- */

/* x (A + B x^2) as an unevaluated sum, A = 2 sqrt(2/pi), B = A 0.044715 times one (or three, for the derivative).
 * The exponential of this argument needs it to 2^-26 absolute at magnitude 100, which one float does not have. A is a
 * multiple of 2^-19, so that A - t is exact for t = A + B x^2 below 32. */
#define TL_GELU_A 0x1.98846p+0f
#define TL_GELU_A_LO -0x1.985794p-21f
#define TL_GELU_B 0x1.2444f2p-4f
#define TL_GELU_B_LO 0x1.49b16ap-29f
#define TL_GELU_3B 0x1.b6676cp-3f
#define TL_GELU_3B_LO -0x1.175e2p-32f

TL_HD void tl_gelu_cubic(float x, float x2, float x2l, float b, float b_lo, float *v, float *vl)
{
    float t = fmaf(b, x2, TL_GELU_A);
    float tl = fmaf(b, x2, TL_GELU_A - t) + fmaf(b, x2l, fmaf(b_lo, x2, TL_GELU_A_LO));
    *v = x * t;
    *vl = fmaf(x, tl, fmaf(x, t, -*v));
}

/* 1/2 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigma(v), v = x (A + B x^2), because (1 + tanh w)/2 =
 * sigma(2w). x itself above 6, -0 below about -10.9. Budget as for silu. */
TL_HD float tl_gelu(float x)
{
    float z = tl_at_least(x, -11.2f);
    float v, vl;
    float z2 = z * z;
    tl_gelu_cubic(z, z2, fmaf(z, z, -z2), TL_GELU_B, TL_GELU_B_LO, &v, &vl);
    float t;
    float r = tl_exp_rest_two(v, vl, 191.0f, &t);
    float y = tl_gate(z, r, t);
    return x <= 6.0f ? y : x;
}

/* g gelu'(x), gelu' = sigma(v) (1 + x v'(x) (1 - sigma(v))), x v' = x (A + 3 B x^2): 1 at inf, -0 at -inf (times g).
 * Its zero is at x = -0.7524. v is above -58 from -8.5 on. */
#define TL_GELU_DEEP -8.5f

TL_HD float tl_gelu_either_bwd(float z, int32_t deep, float g)
{
    float v, vl, w, wl;
    float z2 = z * z;
    float z2l = fmaf(z, z, -z2);
    tl_gelu_cubic(z, z2, z2l, TL_GELU_B, TL_GELU_B_LO, &v, &vl);
    tl_gelu_cubic(z, z2, z2l, TL_GELU_3B, TL_GELU_3B_LO, &w, &wl);
    return tl_gate_bwd(tl_gate_power_of(v, vl, deep), v, w, wl, deep, g);
}

TL_HD float tl_gelu_bwd(float x, float g) { return tl_gelu_either_bwd(tl_at_most(x, 6.0f), 0, g); }

/* The same in two steps, each of which needs one of the cubics. */
TL_HD struct tl_gate_power tl_gelu_power(float x)
{
    float v, vl;
    float z = tl_at_most(x, 6.0f);
    float z2 = z * z;
    tl_gelu_cubic(z, z2, fmaf(z, z, -z2), TL_GELU_B, TL_GELU_B_LO, &v, &vl);
    return tl_gate_power_of(v, vl, 0);
}

TL_HD float tl_gelu_slope(struct tl_gate_power e, float x, float g)
{
    float w, wl;
    float z = tl_at_most(x, 6.0f);
    float z2 = z * z;
    tl_gelu_cubic(z, z2, fmaf(z, z, -z2), TL_GELU_3B, TL_GELU_3B_LO, &w, &wl);
    return tl_gate_bwd(e, z, w, wl, 0, g);
}

/* For x < TL_GELU_DEEP and NaN. */
TL_HD float tl_deep_gelu_bwd(float x, float g)
{
    float y = tl_gelu_either_bwd(tl_at_least(x, -13.5f), 1, g);
    return x < -TL_FLOAT_MAX ? g * -0.0f : x != x ? x : y;
}

/* ---- hardswish and softsign --------------------------------------------------------------------------------- */

/* x min(max(x + 3, 0), 6) / 6: x from 3 on, -0 up to -3. Sum and product have their rounding errors with them, and the quotient
 * what it has too much, from which it is subtracted: so the sign of a zero stays. The result is the nearest float, but in a tie
 * either one. */
TL_HD float tl_hardswish(float x)
{
    float z = tl_at_least(x, -3.0f);
    float s = 3.0f + z;
    float m = z * s;
    float ml = fmaf(z, z - (s - 3.0f), fmaf(z, s, -m));
    float y = m * (1.0f / 6.0f);
    y = fmaf(fmaf(6.0f, y, -m) - ml, -1.0f / 6.0f, y);
    return x < 3.0f ? y : x;
}

/* x / (1 + |x|), +-1 at +-inf: the quotient with what it and the sum leave. The sum of the parts would lose the sign of -0.
 * Budget: 0.5 ulp for the last sum. */
TL_HD float tl_softsign(float x)
{
    float z = tl_between(x, -0x1p60f, 0x1p60f);
    float d, dl;
    tl_two_sum(1.0f, fabsf(z), &d, &dl);
    float recip = tl_reciprocal(d);
    float rest = fmaf(-recip, dl, fmaf(-recip, d, 1.0f));
    float m = z * recip;
    return copysignf(m + fmaf(m, rest, fmaf(z, recip, -m)), x);
}
