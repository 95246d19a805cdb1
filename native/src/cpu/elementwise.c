/* Elementwise operations on the CPU.
 *
 * The operations stand in formula/elementwise.def, one line each; the macros below make a kernel of a line: a loop that
 * gcc vectorises in every variant. A task is a span of at most TL_SPAN elements, cut by length alone. An output may be one of the
 * inputs, because each element is read before it is written. */
#include "core/threads.h"
#include "formula/activation.h"
#include "formula/erf.h"
#include "formula/exact.h"
#include "formula/explog.h"
#include "formula/integer.h"
#include "formula/trigonometry.h"
#include "formula/wide.h"
#include "generated/elementwise.h"

/* 128 KiB per operand: the operands of a task stay within a core's L2 cache, and a task runs for several microseconds,
 * which pays for handing it to a thread. */
enum { TL_SPAN = 32768 };
/* Elements that are looked at together before they are computed: they stay in the L1 cache. */
enum { TL_FAR_BLOCK = 1024 };

typedef struct tl_map {
    const float *a, *b, *c;
    float *y, *z;
    float p, q;
    int64_t n, span; /* elements, and those of a task */
} tl_map;

/* Several spans are at least about eight and of equal length, in whole blocks, so that no thread gets much more than another. */
static int32_t run(tl_task_fn task, tl_map map)
{
    const int64_t spans = tl_imax(tl_ceil_div(map.n, TL_SPAN), 8);
    map.span = map.n > TL_SPAN ? tl_ceil_div(tl_ceil_div(map.n, spans), TL_FAR_BLOCK) * TL_FAR_BLOCK : TL_SPAN;
    tl_parallel(tl_ceil_div(map.n, map.span), task, &map);
    return TORCHLEAN_OK;
}

static int32_t stays_near(const float *a, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = tl_bits(a[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    return most < tl_bits(TL_FAR_ANGLE);
}

/* The expressions' vocabulary. */
#define A (m->a[i])
#define B (m->b[i])
#define C (m->c[i])
#define P (m->p)
#define Q (m->q)

#define TL_EACH(...) TL_EACH_OF(first, last, __VA_ARGS__)
#define TL_EACH_OF(from, to, ...)                                                                \
    _Pragma("GCC ivdep") for (int64_t i = from; i < to; i++)                                     \
    {                                                                                            \
        __VA_ARGS__                                                                              \
    }

/* Defines name(arg, task, worker), which runs `body` with m (the operands, in a local copy) and first, last (the span). */
#define TL_SPAN_FUNCTION(name, body)                                                             \
    static void name(void *arg, int64_t task, TL_UNUSED int32_t worker)                                    \
    {                                                                                            \
        const tl_map map = *(const tl_map *)arg, *const m = &map;                                \
        const int64_t first = task * m->span, last = tl_imin(first + m->span, m->n);           \
        body                                                                                     \
    }
#define TL_ONE(name, expression) TL_SPAN_FUNCTION(name, TL_EACH(m->y[i] = expression;))
/* Blocks that hold an element from TL_FAR_ANGLE on, or no number, take both ways and select; the others take the near one alone.
 * Either way an element's result depends on the element only. */
#define TL_EITHER(name, near, far)                                                               \
    TL_SPAN_FUNCTION(                                                                            \
        name, for (int64_t start = first, end; start < last; start = end) {                      \
            end = tl_imin(start + TL_FAR_BLOCK, last);                                           \
            if (stays_near(m->a + start, end - start))                                           \
                TL_EACH_OF(start, end, m->y[i] = near;)                                          \
            else                                                                                 \
                TL_EACH_OF(start, end, m->y[i] = fabsf(A) < TL_FAR_ANGLE ? near : far;)          \
        })
/* Two outputs, either of which may be unwanted: statement computes u and v from element i. */
#define TL_TWO(name, statement)                                                                  \
    TL_SPAN_FUNCTION(                                                                            \
        name, if (m->y && m->z) TL_EACH(float u, v; statement m->y[i] = u; m->z[i] = v;)         \
        else if (m->y) TL_EACH(float u, v; statement m->y[i] = u; (void)v;)                      \
        else TL_EACH(float u, v; statement m->z[i] = v; (void)u;))

/* Defines tl_cpu_<op> with `parameters` after the context; the rest names its operands in a map. */
#define TL_OPERATION(op, parameters, ...)                                                        \
    int32_t tl_cpu_##op(TL_UNUSED tl_context *ctx, TL_LIST parameters)                           \
    {                                                                                            \
        return run(op##_span, (tl_map){__VA_ARGS__, .y = y, .n = n});                            \
    }
#define TL_LIST(...) __VA_ARGS__

#define TL_UNARY(op, expression)                                                                 \
    TL_ONE(op##_span, expression)                                                                \
    TL_OPERATION(op, (const float *a, int64_t n, float *y), .a = a)
#define TL_UNARY_P(op, expression)                                                               \
    TL_ONE(op##_span, expression)                                                                \
    TL_OPERATION(op, (const float *a, int64_t n, float p, float *y), .a = a, .p = p)
#define TL_UNARY_PQ(op, expression)                                                              \
    TL_ONE(op##_span, expression)                                                                \
    TL_OPERATION(op, (const float *a, int64_t n, float p, float q, float *y), .a = a, .p = p, .q = q)
#define TL_BINARY(op, expression)                                                                \
    TL_ONE(op##_span, expression)                                                                \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float *y), .a = a, .b = b)
#define TL_BINARY_P(op, expression)                                                              \
    TL_ONE(op##_span, expression)                                                                \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float p, float *y), .a = a, .b = b, .p = p)
#define TL_BINARY_PQ(op, expression)                                                             \
    TL_ONE(op##_span, expression)                                                                \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float p, float q, float *y), .a = a, .b = b, .p = p, .q = q)
#define TL_UNARY_FAR(op, near, far)                                                              \
    TL_EITHER(op##_span, near, far)                                                              \
    TL_OPERATION(op, (const float *a, int64_t n, float *y), .a = a)
#define TL_BINARY_FAR(op, near, far)                                                             \
    TL_EITHER(op##_span, near, far)                                                              \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float *y), .a = a, .b = b)
#define TL_TERNARY(op, expression)                                                               \
    TL_ONE(op##_span, expression)                                                                \
    TL_OPERATION(op, (const float *a, const float *b, const float *c, int64_t n, float *y), .a = a, .b = b, .c = c)
#define TL_SELECT_VJP(op, statement)                                                             \
    TL_TWO(op##_span, statement)                                                                 \
    TL_OPERATION(op, (const float *a, const float *b, int64_t n, float *y, float *z), .a = a, .b = b, .z = z)
#define TL_BINARY_VJP(op, statement)                                                             \
    TL_TWO(op##_span, statement)                                                                 \
    TL_OPERATION(op, (const float *a, const float *b, const float *c, int64_t n, float *y, float *z), .a = a, .b = b, .c = c, .z = z)

#include "formula/elementwise.def"
