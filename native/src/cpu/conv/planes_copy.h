/* Copies a tile's part of the source (planes.h) in one precision: included with REAL and FN set. */

/* Copies lines low .. high - 1 of `lines`, apart by `step` in the source, with zeros for the others, each by `vectors` vectors of
 * cells that are `apart` = 1 or 2; what runs over is written again by the next line. */
INLINE void FN(copy_short_lines)(const int64_t vectors, const int apart, const float *from, int64_t step,
                                 const lane_mask *mask, int64_t lines, int64_t low, int64_t high, REAL *to,
                                 int64_t pitch)
{
    for (int64_t i = 0; i < lines; i++, to += pitch)
#pragma GCC unroll 4
        for (int64_t u = 0; u < vectors; u++) {
            const float *at = from + i * step + u * apart * LANES;
            tl_vec x = tl_vec_zero();
            if (i >= low && i < high) x = read_lanes(at, mask[u * apart]);
            if (i >= low && i < high && apart == 2) x = even_lanes(x, read_lanes(at + LANES, mask[u * 2 + 1]));
            FN(put)(to + u * LANES, x);
        }
}

/* Copies the lines of a tile: `lines` of them, first of source coordinate y in steps of y_step, `n` cells from x in steps of x_step. */
static void FN(copy_lines)(const planes *p, const float *from, int64_t y, int64_t lines, int64_t x, int64_t n, REAL *to)
{
    const plane_axis *const X = &p->x, *const Y = &p->y;
    const int64_t apart = X->step * X->stride; /* cells in the source */
    int64_t a, b, low, high;
    cells_inside(x, X->step, X->source, n, &a, &b);
    cells_inside(y, Y->step, Y->source, lines, &low, &high);
    from += y * Y->stride + x * X->stride;
    if (apart <= 2 && n <= 4 * LANES) { /* whole vectors; what runs over is written again */
        const int64_t step = Y->step * Y->stride, vectors = tl_ceil_div(n, LANES);
        const int64_t first = apart * a, end = b > a ? apart * (b - 1) + 1 : first; /* what is read */
        lane_mask mask[8];
        for (int64_t u = 0; u < vectors * apart; u++)
            mask[u] = lanes_between(tl_imin(tl_imax(first - u * LANES, 0), LANES),
                                    tl_imin(tl_imax(end - u * LANES, 0), LANES));
#define SHORT_LINES(vectors, apart) \
    FN(copy_short_lines)(vectors, apart, from, step, mask, lines, low, high, to, p->pitch)
        switch (apart == 2 ? 0 : vectors) {
        case 0: SHORT_LINES(vectors, 2); break;
        case 1: SHORT_LINES(1, 1); break;
        case 2: SHORT_LINES(2, 1); break;
        case 3: SHORT_LINES(3, 1); break;
        default: SHORT_LINES(4, 1);
        }
#undef SHORT_LINES
        return;
    }
    for (int64_t i = 0; i < lines; i++, to += p->pitch) {
        const float *restrict line = from + i * Y->step * Y->stride;
        REAL *restrict out = to;
        if (i < low || i >= high) {
            for (int64_t l = 0; l < n; l++)
                out[l] = 0;
            continue;
        }
        for (int64_t l = 0; l < a; l++)
            out[l] = 0;
        if (apart == 1)
            for (int64_t l = a; l < b; l++)
                out[l] = line[l];
        else if (apart == 2)
            for (int64_t l = a; l < b; l++)
                out[l] = line[2 * l];
        else
            for (int64_t l = a; l < b; l++)
                out[l] = line[l * apart];
        for (int64_t l = b; l < n; l++)
            out[l] = 0;
    }
}

/* Copies what a tile reads of `channels` channels: lines y0 .. y0 + lines - 1, positions x0 .. x0 + n - 1, at coordinates `at` of the
 * outer axes. `source` is the first channel's. */
static void FN(copy_planes)(const conv_view *v, const planes *p, const float *source, int64_t channels,
                            const int64_t *at, int64_t y0, int64_t lines, int64_t x0, int64_t n, REAL *to)
{
    const tl_conv_gather *g = &v->gather;
    int64_t tap[TL_CONV_RANK] = {0};
    for (int64_t t = 0; t < p->outer_taps; t++) {
        int64_t start = 0;
        int outside = 0;
        for (int32_t i = 0; i < p->outer; i++) {
            const int32_t d = p->outer_axis[i];
            const int64_t c = at[d] * g->step[d] + g->base[d] + tap[d] * g->tap_step[d];
            outside |= c < 0 || c >= g->source[d];
            start += c * v->source_stride[d];
        }
        for (int64_t slot = 0; slot < p->y.phases * p->x.phases; slot++, to += p->slot) {
            const int64_t y = p->y.first + y0 * p->y.step + shift_of(&p->y, slot / p->x.phases);
            const int64_t x = p->x.first + x0 * p->x.step + shift_of(&p->x, slot % p->x.phases);
            for (int64_t c = 0; c < channels; c++)
                if (outside)
                    memset(to + c * p->channel, 0, sizeof(REAL) * (size_t)p->slot);
                else
                    FN(copy_lines)(p, source + start + c * g->source_size, y, lines + p->y.reach, x, n + p->x.reach,
                                   to + c * p->channel);
        }
        for (int32_t i = p->outer - 1; i >= 0 && ++tap[p->outer_axis[i]] == g->taps[p->outer_axis[i]]; i--)
            tap[p->outer_axis[i]] = 0;
    }
}
