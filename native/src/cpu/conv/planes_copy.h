/* Copies a tile's part of the source (planes.h) in one precision: included with REAL and FN set. */

/* Copies `lines` lines of `cells` cells, `vectors` of them, `step` apart in the source and cells `apart` = 1 or 2; what runs over is
 * written again by the next line. */
INLINE void FN(copy_short_lines)(const int64_t vectors, const int apart, const float *from, int64_t step, int64_t cells,
                                 int64_t lines, REAL *to, int64_t pitch)
{
    const int64_t left = apart * (cells - (vectors - 1) * LANES - 1) + 1; /* elements of the last vector's cells */
    const int64_t low = tl_imin(left, LANES), high = tl_imax(left - LANES, 0);
    for (int64_t i = 0; i < lines; i++, from += step, to += pitch)
#pragma GCC unroll 4
        for (int64_t u = 0; u < vectors; u++) {
            const float *at = from + u * apart * LANES;
            tl_vec x = u + 1 < vectors ? tl_vec_load(at) : tl_load_first(at, low);
            if (apart == 2)
                x = even_lanes(x, u + 1 < vectors ? tl_vec_load(at + LANES) : tl_load_first(at + LANES, high));
            FN(put)(to + u * LANES, x);
        }
}

/* Copies a line of n cells of `channels` planes side by side, of which a .. b - 1 are inside: to[cell*width + channel]. */
static void FN(turn_line)(int64_t apart, const float *from, int64_t a, int64_t b, int64_t n, int64_t channels,
                          int64_t plane, int64_t width, REAL *to)
{
    memset(to, 0, sizeof(REAL) * (size_t)(a * width));
    if (apart == 1)
        FN(turn)(to + a * width, width, channels, b - a, from + a, plane, 1);
    else
        for (int64_t k = a; k < b; k++)
            for (int64_t l = 0; l < width; l++)
                to[k * width + l] = l < channels ? from[l * plane + k * apart] : 0;
    memset(to + b * width, 0, sizeof(REAL) * (size_t)((n - b) * width));
}

/* Copies the lines of a tile: `lines` of them, first of source coordinate y in steps of y_step, `n` cells from x in steps of x_step;
 * with `width` > 1 those of several channels. */
static void FN(copy_lines)(const planes *p, const float *from, int64_t y, int64_t lines, int64_t x, int64_t n,
                           int64_t channels, int64_t plane, int64_t width, REAL *to)
{
    const plane_axis *const X = &p->x, *const Y = &p->y;
    const int64_t apart = X->step * X->stride; /* cells in the source */
    int64_t a, b, low, high;
    cells_inside(x, X->step, X->source, n, &a, &b);
    cells_inside(y, Y->step, Y->source, lines, &low, &high);
    from += y * Y->stride + x * X->stride;
    const int64_t step = Y->step * Y->stride, vectors = tl_ceil_div(b - a, LANES);
    if (width == 1 && apart <= 2 && vectors <= 4) {
        if (b - a < n || high - low < lines) memset(to, 0, sizeof(REAL) * (size_t)((lines - 1) * p->pitch + n));
        from += low * step + a * apart, to += low * p->pitch + a;
        if (apart == 1)
            FN(copy_short_lines)(vectors, 1, from, step, b - a, high - low, to, p->pitch);
        else
            FN(copy_short_lines)(vectors, 2, from, step, b - a, high - low, to, p->pitch);
        return;
    }
    for (int64_t i = 0; i < lines; i++, to += p->pitch * width) {
        const float *restrict line = from + i * step;
        REAL *restrict out = to;
        const int inside = i >= low && i < high;
        const int64_t first = inside ? a : n, end = inside ? b : n;
        if (width > 1) {
            FN(turn_line)(apart, line, first, end, n, channels, plane, width, to);
            continue;
        }
        for (int64_t l = 0; l < first; l++)
            out[l] = 0;
        if (apart == 1)
            for (int64_t l = first; l < end; l++)
                out[l] = line[l];
        else if (apart == 2)
            for (int64_t l = first; l < end; l++)
                out[l] = line[2 * l];
        else
            for (int64_t l = first; l < end; l++)
                out[l] = line[l * apart];
        for (int64_t l = end; l < n; l++)
            out[l] = 0;
    }
}

/* Copies what a tile reads of `channels` channels: lines y0 .. y0 + lines - 1, positions x0 .. x0 + n - 1, at coordinates `at` of the
 * outer axes. `source` is the first channel's. With `width` = 1 each channel has cells of its own, else a cell has `width` of them. */
static void FN(copy_planes)(const conv_view *v, const planes *p, const float *source, int64_t channels, int64_t width,
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
        for (int64_t slot = 0; slot < p->y.phases * p->x.phases; slot++, to += p->slot * width) {
            const int64_t of_y = p->x.phases == 1 ? slot : slot / p->x.phases, of_x = slot - of_y * p->x.phases;
            const int64_t y = p->y.first + y0 * p->y.cells * p->y.step + shift_of(&p->y, of_y);
            const int64_t x = p->x.first + x0 * p->x.cells * p->x.step + shift_of(&p->x, of_x);
            for (int64_t c = 0; c < (width > 1 ? 1 : channels); c++)
                if (outside)
                    memset(to + c * p->channel, 0, sizeof(REAL) * (size_t)(p->slot * width));
                else
                    FN(copy_lines)(p, source + start + c * g->source_size, y, cells_of(&p->y, lines), x,
                                   cells_of(&p->x, n), channels, g->source_size, width, to + c * p->channel);
        }
        for (int32_t i = p->outer - 1; i >= 0 && ++tap[p->outer_axis[i]] == g->taps[p->outer_axis[i]]; i--)
            tap[p->outer_axis[i]] = 0;
    }
}
