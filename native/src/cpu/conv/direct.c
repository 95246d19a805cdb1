/* Convolution of groups of few channels, above all depthwise: sums of so few terms that a matrix product would gather more
 * than it multiplies.
 *
 *   product     task: a plane of the target, line by line, at most TILE_COLUMNS positions at a time: every term is one
 *               vector operation on their sums, which stay in L1, and the line of the source that it reads
 *   weights     task: all taps of one pair of channels; TL_SUM_FOLD lanes of sums run along the lines of g
 *
 * Order of additions: of the product one chain of fused multiply-adds, channel by channel and tap by tap, the bias last; of
 * the weights a chain for each lane, line by line and image by image, the lanes' sums in halves. */
#include "core/threads.h"
#include "cpu/conv/conv.h"
#include "cpu/sum_tree.h"
#include "cpu/vector.h"
#include "formula/integer.h"

enum { TILE_COLUMNS = 512, LANES = TL_SUM_FOLD };

typedef struct {
    const conv_view *v;
    const float *w, *bias, *g;
    float *target;
    int64_t groups, group_stride, row_stride, channel_stride;
} job_t;

/* The line of a plane of the source that a tap reads for positions at, at + 1, … of the last axis, 0 outside. Gives NULL
 * where another axis is outside. */
static const float *read_line(const conv_view *v, const float *plane, const int64_t *at, const int64_t *tap,
                              int64_t length, float *line)
{
    const tl_conv_gather *g = &v->gather;
    const int32_t last = g->rank - 1;
    int64_t start = 0;
    for (int32_t d = 0; d < last; d++) {
        const int64_t c = at[d] * g->step[d] + g->base[d] + tap[d] * g->tap_step[d];
        if (c < 0 || c >= g->source[d]) return NULL;
        start += c * v->source_stride[d];
    }
    const int64_t step = g->step[last], c = at[last] * step + g->base[last] + tap[last] * g->tap_step[last];
    const int64_t before = c < 0 ? -c : 0, after = tl_imax(g->source[last] - c, 0); /* cells to the ends */
    const int64_t low = tl_imin(step == 1 ? before : tl_ceil_div(before, step), length);
    const int64_t high = tl_imax(low, tl_imin(step == 1 ? after : tl_ceil_div(after, step), length));
    const float *from = plane + start + c + low * step;
    if (step == 1 && low == 0 && high == length && length % TL_LANES == 0) return from;
    const int64_t padded = tl_imin(tl_ceil_div(length, LANES) * LANES, TILE_COLUMNS);
    for (int64_t l = 0; l < low; l++)
        line[l] = 0.0f;
    if (step == 1)
        memcpy(line + low, from, sizeof(float) * (size_t)(high - low));
    else
        for (int64_t l = low; l < high; l++)
            line[l] = from[(l - low) * step];
    for (int64_t l = high; l < padded; l++)
        line[l] = 0.0f;
    return line;
}

/* Goes to the next of the coordinates below `count` on axes 0 to `last`; 0 after the last one, and back to the first. */
static int advance(int64_t *at, const int64_t *count, int32_t last)
{
    for (int32_t d = last; d >= 0; d--) {
        if (++at[d] < count[d]) return 1;
        at[d] = 0;
    }
    return 0;
}

/* Task: the taps of channel `task % channels` and row `task / channels` of all groups. */
static void multiply_planes(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const job_t *job = arg;
    const conv_view *v = job->v;
    const tl_conv_gather *g = &v->gather;
    const int32_t last = g->rank - 1;
    const int64_t channel = task % v->channels, row = task / v->channels, group = row / v->rows;
    float *gw = job->target + task * g->taps_size;
    int64_t tap[TL_CONV_RANK] = {0};
    _Alignas(64) float line[TILE_COLUMNS];
    do {
        _Alignas(64) float sums[LANES] = {0};
        for (int64_t n = 0; n < v->batch; n++) {
            const int64_t source = n * v->source_channels + group * v->channels + channel;
            const float *plane = v->source + source * g->source_size;
            const float *cotangent = job->g + (n * v->target_rows + row) * g->positions;
            int64_t at[TL_CONV_RANK] = {0};
            do {
                for (at[last] = 0; at[last] < g->count[last]; at[last] += TILE_COLUMNS) {
                    const int64_t length = tl_imin(g->count[last] - at[last], TILE_COLUMNS), whole = length / LANES;
                    const float *x = read_line(v, plane, at, tap, length, line), *y = cotangent + at[last];
                    if (!x) { /* the zeros outside take part */
                        memset(line, 0, sizeof(float) * (size_t)length);
                        x = line;
                    }
                    for (int64_t i = 0; i < whole; i++, x += LANES, y += LANES)
                        for (int l = 0; l < LANES; l++)
                            sums[l] = fmaf(y[l], x[l], sums[l]);
                    for (int64_t l = 0; l < length % LANES; l++)
                        sums[l] = fmaf(y[l], x[l], sums[l]);
                }
                cotangent += g->count[last];
            } while (advance(at, g->count, last - 1));
        }
        *gw++ = tl_fold_16(sums);
    } while (advance(tap, g->taps, last) && !tl_interrupted());
}

void tl_conv_direct_weights(const conv_view *v, int64_t groups, const float *g, float *gw)
{
    job_t job = {.v = v, .g = g, .target = gw, .groups = groups};
    tl_parallel(groups * v->rows * v->channels, multiply_planes, &job);
}
