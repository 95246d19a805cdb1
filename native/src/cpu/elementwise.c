/* Elementwise operations on the CPU.
 *
 * The operations stand in formula/elementwise.def, one line each; the macros below make a kernel of a line: a loop that
 * gcc vectorises in every variant. A task is a span of at most TL_SPAN elements, cut by length alone. An output may be one of the
 * inputs, because each element is read before it is written. Outputs that would not stay in the cache beside the inputs go past it,
 * block by block. */
#include "core/threads.h"
#include "cpu/spans.h"
#include "cpu/stream.h"
#include "formula/activation.h"
#include "formula/erf.h"
#include "formula/exact.h"
#include "formula/explog.h"
#include "formula/trigonometry.h"
#include "formula/wide.h"
#include "generated/elementwise.h"

enum {
    /* 128 KiB per operand: the operands of a task stay within a core's L2 cache, and a task runs for several microseconds,
     * which pays for handing it to a thread. Fewer elements do that where each costs more (TL_COST). */
    TL_SPAN = 32768,
    /* Elements that are computed once more where some are rare: they stay in the L1 cache. */
    TL_FAR_BLOCK = 1024,
    /* Elements that are computed before they go past the cache: their stores fit a core's store buffer, where they wait while the next
     * ones are computed. */
    TL_STREAM_BLOCK = 256,
    /* Elements for which a gate's two steps are taken one after the other. In one, the chain of operations is so long that the
     * instructions a core looks ahead hold too few elements to fill its units. What the first leaves stays in the L1 cache. */
    TL_STEP_BLOCK = 256,
};

typedef struct tl_map tl_map;

/* Computes elements start to end of the operands into y[0], y[1], … and z[0], …; an output that is not wanted is NULL. */
typedef void (*tl_block_fn)(const tl_map *map, int64_t start, int64_t end, float *y, float *z);

struct tl_map {
    const float *a, *b, *c;
    float *y, *z;
    float p, q;
    int64_t n, span; /* elements, and those of a task */
    tl_block_fn block;
    int32_t most; /* elements of a block */
    int32_t stream;
};

static int32_t is_input(const tl_map *m, const float *out) { return out == m->a || out == m->b || out == m->c; }

static void run_span(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const tl_map *m = arg;
    const int64_t last = tl_imin((task + 1) * m->span, m->n);
    _Alignas(64) float block[2][TL_STREAM_BLOCK];
    for (int64_t start = task * m->span, end; start < last; start = end) {
        end = tl_imin(start + m->most, last);
        float *const y = !m->y ? NULL : m->stream ? block[0] : m->y + start;
        float *const z = !m->z ? NULL : m->stream ? block[1] : m->z + start;
        m->block(m, start, end, y, z);
        if (m->stream && m->y) tl_stream_copy(m->y + start, block[0], end - start);
        if (m->stream && m->z) tl_stream_copy(m->z + start, block[1], end - start);
    }
    if (m->stream) tl_stream_end();
}

static int32_t run(tl_map map, int64_t cost)
{
    const int64_t operands = !!map.a + !!map.b + !!map.c + !!map.y + !!map.z;
    map.stream = operands * map.n >= 2 * TL_STREAM_FROM && !(map.y && is_input(&map, map.y)) &&
                 !(map.z && is_input(&map, map.z));
    if (map.stream && map.most > TL_STREAM_BLOCK) map.most = TL_STREAM_BLOCK;
    map.span = tl_even_span(map.n, TL_SPAN >> cost);
    if (map.n <= tl_imin(map.span, map.most)) /* of small arrays the call itself is most of the time */
        map.block(&map, 0, map.n, map.y, map.z);
    else
        tl_parallel(tl_ceil_div(map.n, map.span), run_span, &map);
    return TORCHLEAN_OK;
}

/* The expressions' vocabulary. */
#define A (m->a[i])
#define B (m->b[i])
#define C (m->c[i])
#define P (m->p)
#define Q (m->q)

#define TL_EACH(...)                                                                             \
    _Pragma("GCC ivdep") for (int64_t i = start; i < end; i++)                                   \
    {                                                                                            \
        __VA_ARGS__                                                                              \
    }

/* Defines op_block, a tl_block_fn, which runs `body` with m (the operands, in a local copy), and op_most, the elements of a block. */
#define TL_BLOCK_FUNCTION(op, most, body)                                                        \
    static const int32_t op##_most = (most);                                                     \
    static void op##_block(const tl_map *operands, int64_t start, int64_t end, float *y, float *z) \
    {                                                                                            \
        const tl_map map = *operands, *const m = &map;                                           \
        body;                                                                                    \
    }
#define TL_ONE(op, expression) TL_BLOCK_FUNCTION(op, TL_SPAN, (void)z; TL_EACH(y[i - start] = expression;))
/* Blocks that hold an element of the rare kind take both ways and select; the others take that of the others alone. Either way an
 * element's result depends on the element only. */
#define TL_RARE(op, condition, others, value)                                                    \
    TL_BLOCK_FUNCTION(                                                                           \
        op, TL_FAR_BLOCK, int32_t rare = 0;                                                      \
        (void)z; TL_EACH(rare |= -(int32_t)(condition);)                                         \
        if (!rare) TL_EACH(y[i - start] = others;)                                               \
        else TL_EACH(const float usual = others; y[i - start] = condition ? value : usual;))
/* The same of a gate's two steps, the second of which begins when the first is done for all elements of the block. */
#define TL_RARE_GATE(op, condition, others, first, second, value)                                \
    TL_BLOCK_FUNCTION(                                                                           \
        op, TL_STEP_BLOCK, int32_t rare = 0; _Alignas(64) float power[3][TL_STEP_BLOCK];         \
        (void)z; TL_EACH(rare |= -(int32_t)(condition); const struct tl_gate_power e = first;    \
                         power[0][i - start] = e.t; power[1][i - start] = e.h; power[2][i - start] = e.l;) \
        if (!rare)                                                                               \
            TL_EACH(const struct tl_gate_power e = {power[0][i - start], power[1][i - start], power[2][i - start]}; \
                    y[i - start] = second(e, A, B);)                                             \
        else TL_EACH(const float usual = others; y[i - start] = condition ? value : usual;))
/* Two outputs, either of which may be unwanted: statement computes u and v from element i. */
#define TL_TWO(op, statement)                                                                    \
    TL_BLOCK_FUNCTION(                                                                           \
        op, TL_SPAN, if (y && z) TL_EACH(float u, v; statement y[i - start] = u; z[i - start] = v;) \
        else if (y) TL_EACH(float u, v; statement y[i - start] = u; (void)v;)                    \
        else TL_EACH(float u, v; statement z[i - start] = v; (void)u;))

/* Defines tl_cpu_<op> with `parameters` after the context; the rest names its operands in a map. */
#define TL_OPERATION(op, parameters, ...)                                                        \
    int32_t tl_cpu_##op(TL_UNUSED tl_context *ctx, TL_LIST parameters)                           \
    {                                                                                            \
        return run((tl_map){__VA_ARGS__, .y = y, .n = n, .block = op##_block, .most = op##_most}, TL_COST); \
    }
#define TL_LIST(...) __VA_ARGS__

#define TL_UNARY(op, expression)                                                                 \
    TL_ONE(op, expression)                                                                       \
    TL_OPERATION(op, (const float *a, int64_t n, float *y), .a = a)
#define TL_UNARY_P(op, expression)                                                               \
    TL_ONE(op, expression)                                                                       \
    TL_OPERATION(op, (const float *a, int64_t n, float p, float *y), .a = a, .p = p)
#define TL_UNARY_PQ(op, expression)                                                              \
    TL_ONE(op, expression)                                                                       \
    TL_OPERATION(op, (const float *a, int64_t n, float p, float q, float *y), .a = a, .p = p, .q = q)
#define TL_BINARY(op, expression)                                                                \
    TL_ONE(op, expression)                                                                       \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float *y), .a = a, .b = b)
#define TL_BINARY_P(op, expression)                                                              \
    TL_ONE(op, expression)                                                                       \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float p, float *y), .a = a, .b = b, .p = p)
#define TL_BINARY_PQ(op, expression)                                                             \
    TL_ONE(op, expression)                                                                       \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float p, float q, float *y), .a = a, .b = b, .p = p, .q = q)
#define TL_UNARY_RARE(op, condition, others, value)                                              \
    TL_RARE(op, condition, others, value)                                                        \
    TL_OPERATION(op, (const float *a, int64_t n, float *y), .a = a)
#define TL_UNARY_P_RARE(op, condition, others, value)                                            \
    TL_RARE(op, condition, others, value)                                                        \
    TL_OPERATION(op, (const float *a, int64_t n, float p, float *y), .a = a, .p = p)
#define TL_BINARY_RARE(op, condition, others, value)                                             \
    TL_RARE(op, condition, others, value)                                                        \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float *y), .a = a, .b = b)
#define TL_BINARY_RARE_GATE(op, condition, others, first, second, value)                         \
    TL_RARE_GATE(op, condition, others, first, second, value)                                    \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float *y), .a = a, .b = b)
#define TL_TERNARY(op, expression)                                                               \
    TL_ONE(op, expression)                                                                       \
    TL_OPERATION(op, (const float *a, const float *b, const float *c, int64_t n, float *y), .a = a, .b = b, .c = c)
#define TL_SELECT_VJP(op, statement)                                                             \
    TL_TWO(op, statement)                                                                        \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float *y, float *z), .a = a, .b = b, .z = z)
#define TL_BINARY_VJP(op, statement)                                                             \
    TL_TWO(op, statement)                                                                        \
    TL_OPERATION(op, (const float *a, const float *b, const float *c, int64_t n, float *y, float *z), .a = a, .b = b, .c = c, .z = z)

#include "formula/elementwise.def"
