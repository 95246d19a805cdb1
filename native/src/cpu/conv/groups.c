/* Products of groups of few channels on small images, above all depthwise: the lanes of a vector are groups, or groups
 * of several images where they are few, so that short lines leave none empty.
 *
 *   before      the weights are turned: a vector of each kernel offset for every chunk of groups. Each element of the
 *               target has a list of its terms, a cell of the source and a weight; an offset that finds no cell is left
 *               out
 *   task        some blocks: VECTORS vectors side by side, of several images with one chunk's weights or of several
 *               chunks. Their cells are turned, each element's list is gone through once for all, and the results are
 *               turned back
 *
 * Order of additions: one chain of fused multiply-adds per element, over channels and, within one, over kernel offsets,
 * row-major; the bias last. A term of a 0 outside the source changes no sum, but for a weight that is infinite or NaN:
 * where there is one, such terms are listed too, with a cell of zeros. */
#include "core/threads.h"
#include "cpu/conv/view.h"
#include "cpu/turn.h"

enum {
    VECTORS = 4,
    CELLS = 4096,         /* of a group's planes, in and out, at most; beyond, lines are long */
    SPREAD_CELLS = 8192,  /* of a strided spread, whose lines are cut into phases: a vector of them stays in L2 */
    PRODUCTS = 2048,      /* of channels and positions of a group at most; beyond, weights are used often enough */
    FEWEST = 64,          /* planes that pay for the lists */
    LISTED = 1 << 17,     /* terms of an image at most */
    HELD = 1 << 16,       /* floats of the cells of a block, which stay in L2 */
    BLOCK_WORK = 1 << 14, /* vectors of products that make a task */
};

/* Elements from the first cell and the first weight of a vector. */
typedef struct {
    int32_t cell, weight;
} term;

/* The terms of an element; NO_TERMS where no kernel offset belongs to it. */
enum { NO_TERMS = -1 };
typedef struct {
    int32_t first, count;
} span;

typedef struct {
    const conv_product *p;
    int64_t source_cells, target_cells;                             /* of one group */
    int64_t chunks, images, sets, vectors, blocks, blocks_per_task; /* images of a vector, sets of so many */
    int64_t cells_apart, sums_apart, weights_apart;                 /* elements from vector to vector */
    const span *spans;
    const term *terms;
    float *weights, *biases, *scratch;
} job_t;

static int64_t whole(int64_t n) { return tl_ceil_div(n, LANES) * LANES; }

/* Chunk k holds the groups first_group(k) .. first_group(k + 1) - 1. */
static int64_t first_group(const job_t *job, int64_t k)
{
    return k * (job->p->groups / job->chunks) + tl_imin(k, job->p->groups % job->chunks);
}

/* The sums of V vectors, which have the same weights or weights of their own. */
INLINE void add_terms(const int V, const int shared, const job_t *job, const float *w, const float *bias,
                      const float *x, float *sums)
{
    const int64_t target_size = job->target_cells / job->p->rows, bias_apart = job->p->rows * LANES;
    for (int64_t r = 0; r < job->p->rows; r++, w += job->p->row_stride * LANES)
        for (int64_t e = 0; e < target_size; e++, sums += LANES) {
            const term *t = job->terms + job->spans[e].first;
            tl_vec sum[VECTORS], y = tl_vec_zero();
#pragma GCC unroll 4
            for (int u = 0; u < V; u++)
                sum[u] = tl_vec_zero();
            for (int32_t i = 0; i < job->spans[e].count; i++) {
                if (shared) y = tl_vec_load(w + t[i].weight);
#pragma GCC unroll 4
                for (int u = 0; u < V; u++) {
                    if (!shared) y = tl_vec_load(w + u * job->weights_apart + t[i].weight);
                    sum[u] = fma_each(y, tl_vec_load(x + u * job->cells_apart + t[i].cell), sum[u]);
                }
            }
#pragma GCC unroll 4
            for (int u = 0; u < V; u++) {
                if (bias) {
                    const tl_vec b = tl_vec_load(bias + (shared ? 0 : u * bias_apart) + r * LANES);
                    if (job->spans[e].count == NO_TERMS)
                        sum[u] = b;
                    else
                        sum[u] += b;
                }
                tl_vec_store(sums + u * job->sums_apart, sum[u]);
            }
        }
}

typedef void (*add_fn)(const job_t *, const float *, const float *, const float *, float *);
#define ADD_FUNCTION(V, S)                                                                                             \
    static void add_##V##_##S(const job_t *job, const float *w, const float *bias, const float *x, float *sums)        \
    {                                                                                                                  \
        add_terms(V, S, job, w, bias, x, sums);                                                                        \
    }
#define ADD_FUNCTIONS(shared) ADD_FUNCTION(1, shared) ADD_FUNCTION(2, shared) ADD_FUNCTION(3, shared) ADD_FUNCTION(4, shared)
ADD_FUNCTIONS(0)
ADD_FUNCTIONS(1)

static const add_fn add_functions[2][VECTORS] = {{add_1_0, add_2_0, add_3_0, add_4_0},
                                                 {add_1_1, add_2_1, add_3_1, add_4_1}};

/* The first plane of vector u of a block, and its lanes. */
static int64_t planes_at(const job_t *job, int64_t block, int64_t u, int64_t *lanes, int64_t *chunk)
{
    const int64_t per_chunk = tl_ceil_div(job->sets, job->vectors), shared = job->sets > 1;
    const int64_t k = shared ? block / per_chunk : block * job->vectors + u;
    const int64_t set = shared ? block % per_chunk * job->vectors + u : 0;
    *lanes = *chunk = 0;
    if (k >= job->chunks || set >= job->sets) return 0;
    *chunk = k;
    const int64_t from = first_group(job, k), images = tl_imin(job->images, job->p->batch - set * job->images);
    *lanes = images * (first_group(job, k + 1) - from);
    return set * job->images * job->p->groups + from;
}

static void multiply_blocks(void *arg, int64_t task, int32_t worker)
{
    const job_t *job = arg;
    float *const cells = job->scratch + worker * job->vectors * (job->cells_apart + job->sums_apart);
    float *const sums = cells + job->vectors * job->cells_apart;
    const int64_t last = tl_imin((task + 1) * job->blocks_per_task, job->blocks);
    for (int64_t u = 0; u < job->vectors; u++) /* the cell outside the source */
        tl_vec_store(cells + u * job->cells_apart + whole(job->source_cells) * LANES, tl_vec_zero());
    for (int64_t block = task * job->blocks_per_task; block < last && !tl_interrupted(); block++) {
        int64_t lanes[VECTORS], plane[VECTORS], first = 0, chunk, V = 0;
        for (; V < job->vectors; V++) {
            plane[V] = planes_at(job, block, V, &lanes[V], &chunk);
            if (lanes[V] == 0) break;
            if (V == 0) first = chunk;
            tl_turn_in(cells + V * job->cells_apart, job->p->source + plane[V] * job->source_cells, job->source_cells,
                       lanes[V], job->source_cells);
        }
        add_functions[job->sets > 1][V - 1](job, job->weights + first * job->weights_apart,
                                            job->p->bias ? job->biases + first * job->p->rows * LANES : NULL, cells,
                                            sums);
        for (int64_t u = 0; u < V; u++)
            tl_turn_out(job->p->target + plane[u] * job->target_cells, sums + u * job->sums_apart, job->target_cells,
                        lanes[u], job->target_cells);
    }
}

/* The weights and the bias of every chunk, images side by side where a vector has several. */
static void turn_weights(const job_t *job)
{
    const int64_t cells = job->p->rows * job->p->channels * job->p->shape->taps;
    for (int64_t k = 0; k < job->chunks; k++) {
        const int64_t from = first_group(job, k), lanes = first_group(job, k + 1) - from;
        float *to = job->weights + k * job->weights_apart, *bias = job->biases + k * job->p->rows * LANES;
        tl_turn_in(to, job->p->w + from * cells, cells, lanes, cells);
        for (int64_t l = lanes; l < lanes * job->images; l++)
            for (int64_t i = 0; i < cells; i++)
                to[i * LANES + l] = to[i * LANES + l - lanes];
        for (int64_t i = 0; job->p->bias && i < job->p->rows * LANES; i++) {
            const int64_t l = i % LANES;
            bias[i] = l < lanes * job->images ? job->p->bias[(from + l % lanes) * job->p->rows + i / LANES] : 0.0f;
        }
    }
}

/* A tap of a gather: what it adds to the first cell that a position reads, and its weight. */
typedef struct {
    int64_t cell, weight, apart[TL_CONV_RANK];
} reach;

static void find_reaches(const conv_view *v, reach *reaches)
{
    const tl_conv_gather *g = &v->gather;
    int64_t tap[TL_CONV_RANK] = {0};
    for (int64_t t = 0; t < g->taps_size; t++) {
        reach r = {0};
        for (int32_t d = 0; d < g->rank; d++) {
            r.apart[d] = tap[d] * g->tap_step[d];
            r.cell += r.apart[d] * v->source_stride[d];
            r.weight = r.weight * g->kernel[d] + tap[d] * g->kernel_step[d] + g->kernel_base[d];
        }
        reaches[t] = r;
        for (int32_t d = g->rank - 1; d >= 0 && ++tap[d] == g->taps[d]; d--)
            tap[d] = 0;
    }
}

/* Lists the terms of the elements that one gather makes; `zero`: the cell of those outside the source, negative where
 * they are left out. Returns where the list ends. */
static int32_t list_terms(const conv_view *v, const reach *reaches, int64_t channel_stride, int32_t zero, span *spans,
                          term *terms, int32_t end)
{
    const tl_conv_gather *g = &v->gather;
    int64_t at[TL_CONV_RANK] = {0};
    for (int64_t j = 0; j < g->positions; j++) {
        int64_t from[TL_CONV_RANK], cell = 0, to = 0;
        for (int32_t d = 0; d < g->rank; d++) {
            to += (at[d] * g->to_step[d] + g->to_base[d]) * v->target_stride[d];
            from[d] = at[d] * g->step[d] + g->base[d];
            cell += from[d] * v->source_stride[d];
        }
        const int32_t first = end;
        for (int64_t t = 0; t < g->taps_size; t++) {
            const reach *r = &reaches[t];
            int outside = 0;
            for (int32_t d = 0; d < g->rank; d++)
                outside |= (uint64_t)(from[d] + r->apart[d]) >= (uint64_t)g->source[d];
            if (outside && zero < 0) continue;
            terms[end++] = (term){outside ? zero : (int32_t)(cell + r->cell) * LANES, (int32_t)r->weight * LANES};
        }
        const int32_t count = end - first;
        for (int64_t c = 1; c < v->channels; c++)
            for (int32_t i = first; i < first + count; i++, end++) {
                const int32_t further = terms[i].cell == zero ? 0 : (int32_t)(c * g->source_size) * LANES;
                terms[end] = (term){terms[i].cell + further, terms[i].weight + (int32_t)(c * channel_stride) * LANES};
            }
        spans[to] = (span){first, end - first};
        for (int32_t d = g->rank - 1; d >= 0 && ++at[d] == g->count[d]; d--)
            at[d] = 0;
    }
    return end;
}

int tl_conv_lanes_are_groups(const conv_product *p)
{
    const tl_conv_shape *s = p->shape;
    const int64_t most = tl_imax(s->in_size, s->out_size), products = p->channels * p->rows;
    const int64_t cells = tl_conv_gathers(p) > 1 ? SPREAD_CELLS : CELLS;
    return tl_conv_are_few(p->groups, p->channels, p->rows) && (p->channels + p->rows) * most <= cells &&
           (products == 1 || products * most <= PRODUCTS) && p->batch * p->groups >= FEWEST &&
           most * s->taps * p->channels <= LISTED;
}

int32_t tl_conv_groups_product(tl_context *ctx, const conv_product *p)
{
    const tl_conv_shape *s = p->shape;
    const int64_t source_size = p->spreads ? s->out_size : s->in_size;
    const int64_t target_size = p->spreads ? s->in_size : s->out_size;
    const int64_t batch = p->batch, groups = p->groups, channels = p->channels, rows = p->rows;
    const int64_t weights = rows * channels * s->taps;
    job_t job = {.p = p};
    job.source_cells = channels * source_size, job.target_cells = rows * target_size;
    job.chunks = tl_ceil_div(groups, LANES);
    job.images = tl_imin(tl_imax(LANES / groups, 1), batch);
    job.sets = tl_ceil_div(batch, job.images);
    job.cells_apart = (whole(job.source_cells) + 2) * LANES;
    job.sums_apart = (whole(job.target_cells) + 2) * LANES;
    job.weights_apart = (whole(weights) + 1) * LANES;
    job.vectors = tl_imin(tl_imax(HELD / (job.cells_apart + job.sums_apart), 1), VECTORS);
    job.vectors = tl_imin(job.vectors, job.sets > 1 ? job.sets : job.chunks);
    job.blocks = job.sets > 1 ? job.chunks * tl_ceil_div(job.sets, job.vectors) : tl_ceil_div(job.chunks, job.vectors);
    int64_t terms = 0;
    for (int64_t i = 0; i < tl_conv_gathers(p); i++) {
        const conv_view v = tl_conv_gather_view(p, i);
        terms += v.gather.positions * v.gather.taps_size * channels;
    }
    job.blocks_per_task = tl_imax(1, BLOCK_WORK / tl_imax(terms * rows * job.vectors, 1));
    const int64_t packed = job.chunks * (job.weights_apart + rows * LANES);
    const int64_t scratch = tl_workers() * job.vectors * (job.cells_apart + job.sums_apart);
    void *memory;
    const size_t bytes = sizeof(float) * (size_t)(packed + scratch) + sizeof(term) * (size_t)terms +
                         sizeof(span) * (size_t)target_size + sizeof(reach) * (size_t)s->taps;
    const int32_t status = tl_pool_alloc(ctx, bytes, &memory);
    if (status) return status;
    job.weights = memory;
    job.biases = job.weights + job.chunks * job.weights_apart;
    job.scratch = job.biases + job.chunks * rows * LANES;
    term *list = (term *)(job.scratch + scratch);
    span *spans = (span *)(list + terms);
    reach *reaches = (reach *)(spans + target_size);
    int32_t odd = 0, end = 0;
    for (int64_t i = 0; i < groups * weights; i++)
        odd |= !(fabsf(p->w[i]) < TL_INF);
    for (int64_t e = 0; e < target_size; e++)
        spans[e] = (span){0, NO_TERMS};
    for (int64_t i = 0; i < tl_conv_gathers(p); i++) {
        const conv_view v = tl_conv_gather_view(p, i);
        find_reaches(&v, reaches);
        end = list_terms(&v, reaches, p->channel_stride, odd ? (int32_t)(whole(job.source_cells) * LANES) : -1, spans,
                         list, end);
    }
    job.spans = spans, job.terms = list;
    turn_weights(&job);
    tl_parallel(tl_ceil_div(job.blocks, job.blocks_per_task), multiply_blocks, &job);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}
