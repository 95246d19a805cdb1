/* Gathers the right factor of a convolution's product (formula/conv_geometry.h): some rows k (channel and tap) of a
 * strip of at most TL_GEMM_NR neighbouring positions.
 *
 * Positions are numbered through the whole batch. A strip is split into runs along the last axis; a run is contiguous
 * in the source where the step is 1. Which lanes of a run lie inside the source depends on the tap alone, so it is worked
 * out once per tap and used for every channel: a row is then one or two masked loads and a store per vector. With a
 * step of 2 it is twice as many, of which every other lane is taken. With other steps, or many short runs, a row is
 * gathered lane by lane. */
#pragma once

#include "cpu/conv/conv.h"
#include "cpu/conv/lanes.h"
#include "formula/conv_geometry.h"
#include "formula/integer.h"

enum { PIECES = 4 };

/* p[index[l]], 0 where the index is ABSENT. */
#define ABSENT INT64_MIN
#if defined(__AVX512F__)
INLINE void gather_lanes(float *to, const float *p, const int64_t *index)
{
    const __m512i absent = _mm512_set1_epi64(ABSENT);
    for (int half = 0; half < 2; half++) {
        const __m512i at = _mm512_loadu_si512(index + 8 * half);
        const __mmask8 present = _mm512_cmpneq_epi64_mask(at, absent);
        _mm256_storeu_ps(to + 8 * half, _mm512_mask_i64gather_ps(_mm256_setzero_ps(), present, at, p, 4));
    }
}
#else
INLINE void gather_lanes(float *to, const float *p, const int64_t *index)
{
    for (int l = 0; l < LANES; l++)
        to[l] = index[l] == ABSENT ? 0.0f : p[index[l]];
}
#endif

/* Lanes first .. first + length - 1 of a strip: consecutive positions of one line of one image. `at` and `source` are
 * the coordinates and the index that the first lane reads with tap 0, `target` the index it belongs to (channel 0). */
typedef struct {
    int64_t first, length, source, target, at[TL_CONV_RANK];
} conv_run;

typedef struct {
    int64_t width, image; /* image: of all lanes, -1 where they are of several */
    int32_t runs;
    conv_run run[NR];
} conv_strip;

/* The strip of positions q .. q + width - 1 of the batch. */
static void open_strip(const conv_view *v, int64_t q, int64_t width, conv_strip *strip)
{
    const tl_conv_gather *g = &v->gather;
    const int32_t last = g->rank - 1;
    int64_t image = q / g->positions, at[TL_CONV_RANK], rest = q % g->positions;
    for (int32_t d = last; d >= 0; d--) {
        at[d] = rest % g->count[d];
        rest /= g->count[d];
    }
    strip->width = width;
    strip->runs = 0;
    strip->image = q % g->positions + width <= g->positions ? image : -1;
    for (int64_t l = 0; l < width;) {
        conv_run *run = &strip->run[strip->runs++];
        run->first = l;
        run->length = tl_imin(width - l, g->count[last] - at[last]);
        run->source = image * v->source_channels * g->source_size;
        run->target = image * v->target_rows * g->target_size;
        for (int32_t d = 0; d <= last; d++) {
            run->at[d] = at[d] * g->step[d] + g->base[d];
            run->source += run->at[d] * v->source_stride[d];
            run->target += (at[d] * g->to_step[d] + g->to_base[d]) * v->target_stride[d];
        }
        l += run->length;
        at[last] += run->length;
        for (int32_t d = last; d >= 0 && at[d] == g->count[d]; d--) {
            at[d] = 0;
            if (d > 0)
                at[d - 1]++;
            else
                image++;
        }
    }
}

/* The lanes of a run that tap coordinates `tap` find inside the source: *a <= lane < *b. */
INLINE int inside(const tl_conv_gather *g, const conv_run *run, const int64_t *tap, int64_t *a, int64_t *b)
{
    const int32_t last = g->rank - 1;
    for (int32_t d = 0; d < last; d++) {
        const int64_t c = run->at[d] + tap[d] * g->tap_step[d];
        if (c < 0 || c >= g->source[d]) return 0;
    }
    const int64_t c = run->at[last] + tap[last] * g->tap_step[last], step = g->step[last], n = g->source[last];
    int64_t low = c < 0 ? (step == 1 ? -c : tl_ceil_div(-c, step)) : 0;
    int64_t high = c >= n ? 0 : step == 1 ? n - c : (n - c - 1) / step + 1;
    *a = run->first + tl_imin(low, run->length);
    *b = run->first + tl_imin(high, run->length);
    return *a < *b;
}

/* to[i*ld + l] = row k0 + i at lane l, for i < rows; lanes from the strip's width up to `vectors` vectors are 0. */
static void gather_rows(const conv_view *v, const conv_strip *strip, int64_t vectors, int64_t k0, int64_t rows,
                        float *to, int64_t ld)
{
    const tl_conv_gather *g = &v->gather;
    const int32_t last = g->rank - 1;
    const int64_t taps = g->taps_size, step = g->step[last];
    int64_t tap[TL_CONV_RANK], rest = k0 % taps;
    for (int32_t d = last; d >= 0; d--) {
        tap[d] = rest % g->taps[d];
        rest /= g->taps[d];
    }
    for (int64_t i = 0; i < tl_imin(taps, rows); i++) {
        const float *plane = v->source + (k0 + i) / taps * g->source_size;
        int64_t offset = 0, index[NR], pieces[2] = {0, 0}, start[2][NR];
        lane_mask mask[2][NR], more[2][NR]; /* of what is read, and with a step of 2 of the LANES cells after it */
        const int scattered = step > 2 || (step == 2 && strip->runs > PIECES);
        int lane_by_lane = scattered;
        for (int32_t d = 0; d <= last; d++)
            offset += tap[d] * g->tap_step[d] * v->source_stride[d];
        for (int l = 0; l < NR; l++)
            index[l] = ABSENT;
        for (int32_t r = 0; r < strip->runs; r++) {
            const conv_run *run = &strip->run[r];
            int64_t a, b;
            if (!inside(g, run, tap, &a, &b)) continue;
            const int64_t origin = run->source + offset - run->first * step;
            for (int64_t u = a / LANES; !scattered && u <= (b - 1) / LANES; u++) {
                const int64_t i = tl_imax(a - u * LANES, 0) * step;
                const int64_t end = (tl_imin(b - u * LANES, LANES) - 1) * step + 1;
                start[u][pieces[u]] = origin + u * LANES * step;
                mask[u][pieces[u]] = lanes_between(tl_imin(i, LANES), tl_imin(end, LANES));
                more[u][pieces[u]++] = lanes_between(tl_imax(i - LANES, 0), tl_imax(end - LANES, 0));
                lane_by_lane |= pieces[u] > PIECES;
            }
            if (scattered || strip->runs > PIECES)
                for (int64_t l = a; l < b; l++)
                    index[l] = origin + l * step;
        }
        for (int64_t k = i; k < rows; k += taps, plane += g->source_size) {
            float *row = to + k * ld;
            for (int64_t u = 0; u < vectors; u++, row += LANES) {
                if (lane_by_lane) {
                    gather_lanes(row, plane, index + u * LANES);
                    continue;
                }
                tl_vec x = {0};
                for (int64_t p = 0; p < pieces[u]; p++) {
                    tl_vec y = read_lanes(plane + start[u][p], mask[u][p]);
                    if (step == 2) y = even_lanes(y, read_lanes(plane + start[u][p] + LANES, more[u][p]));
                    x = p ? join_lanes(x, y) : y;
                }
                tl_vec_store(row, x);
            }
        }
        for (int32_t d = last; d >= 0 && ++tap[d] == g->taps[d]; d--)
            tap[d] = 0;
    }
}
