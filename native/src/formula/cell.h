/* A step of a recurrent cell, one unit of one row; gates lie `n` elements apart. */
#ifndef TL_FORMULA_CELL_H
#define TL_FORMULA_CELL_H

#include "formula/activation.h"

/* gates: i, f, g, o. */
TL_HD void tl_lstm_unit(const float *x, const float *a, float c, int64_t n, float *gates, float *cell, float *hidden)
{
    const float i = tl_sigmoid(x[0] + a[0]), f = tl_sigmoid(x[n] + a[n]), g = tl_tanh(x[2 * n] + a[2 * n]);
    const float o = tl_sigmoid(x[3 * n] + a[3 * n]), next = fmaf(f, c, i * g);
    gates[0] = i, gates[n] = f, gates[2 * n] = g, gates[3 * n] = o;
    *cell = next;
    *hidden = o * tl_tanh(next);
}

/* d: the gradient of the cell's value, which joins that of what reads it. Any result may be NULL. */
TL_HD void tl_lstm_unit_bwd(const float *gates, float c, float cell, float g_cell, float g_hidden, int64_t n, float *gx,
                            float *ga, float *gc)
{
    const float i = gates[0], f = gates[n], g = gates[2 * n], o = gates[3 * n], t = tl_tanh(cell);
    const float d = fmaf(g_hidden * o, fmaf(-t, t, 1.0f), g_cell);
    const float g_i = tl_sigmoid_bwd(i, d * g), g_f = tl_sigmoid_bwd(f, d * c);
    const float g_g = tl_tanh_bwd(g, d * i), g_o = tl_sigmoid_bwd(o, g_hidden * t);
    if (gx) gx[0] = g_i, gx[n] = g_f, gx[2 * n] = g_g, gx[3 * n] = g_o;
    if (ga) ga[0] = g_i, ga[n] = g_f, ga[2 * n] = g_g, ga[3 * n] = g_o;
    if (gc) *gc = d * f;
}

/* gates: r, z, n. bias may be NULL. */
TL_HD void tl_gru_unit(const float *x, const float *a, const float *bias, float h, int64_t n, float *gates,
                       float *inner, float *hidden)
{
    float s[3] = {a[0], a[n], a[2 * n]};
    if (bias) s[0] += bias[0], s[1] += bias[n], s[2] += bias[2 * n];
    const float r = tl_sigmoid(x[0] + s[0]), z = tl_sigmoid(x[n] + s[1]), value = tl_tanh(fmaf(r, s[2], x[2 * n]));
    gates[0] = r, gates[n] = z, gates[2 * n] = value;
    *inner = s[2];
    *hidden = fmaf(z, h - value, value);
}

/* Any result may be NULL. */
TL_HD void tl_gru_unit_bwd(const float *gates, float inner, float h, float g_hidden, int64_t n, float *gx, float *ga,
                           float *gh)
{
    const float r = gates[0], z = gates[n], value = gates[2 * n];
    const float d = tl_tanh_bwd(value, g_hidden * (1.0f - z));
    const float reset = tl_sigmoid_bwd(r, d * inner), update = tl_sigmoid_bwd(z, g_hidden * (h - value));
    if (gx) gx[0] = reset, gx[n] = update, gx[2 * n] = d;
    if (ga) ga[0] = reset, ga[n] = update, ga[2 * n] = d * r;
    if (gh) *gh = g_hidden * z;
}

#endif
