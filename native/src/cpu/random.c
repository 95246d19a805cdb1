/* Random numbers on the CPU: a task fills a span of TL_SPAN elements; element i depends on the key and i alone. */
#include "core/threads.h"
#include "formula/integer.h"
#include "formula/random.h"
#include "generated/random.h"

/* 64 KiB of output: a task of tens of microseconds. */
enum { TL_SPAN = 16384 };

typedef struct tl_draw {
    uint64_t stream;
    float a, b;
    int64_t n;
    float *out;
} tl_draw;

static int32_t run(tl_task_fn span, tl_draw draw)
{
    tl_parallel(tl_ceil_div(draw.n, TL_SPAN), span, &draw);
    return TORCHLEAN_OK;
}

#define TL_SPAN_FUNCTION(name, expression)                                                          \
    static void name(void *arg, int64_t task, TL_UNUSED int32_t worker)                                       \
    {                                                                                               \
        const tl_draw draw = *(const tl_draw *)arg;                                                 \
        const int64_t first = task * TL_SPAN, last = first + TL_SPAN < draw.n ? first + TL_SPAN : draw.n; \
        for (int64_t i = first; i < last; i++)                                                      \
            draw.out[i] = expression;                                                               \
    }

TL_SPAN_FUNCTION(uniform_span, tl_random_uniform(draw.stream, (uint64_t)i))
TL_SPAN_FUNCTION(bernoulli_span, tl_random_bernoulli(draw.stream, (uint64_t)i, draw.a))
TL_SPAN_FUNCTION(normal_span, tl_random_normal(draw.stream, (uint64_t)i, draw.a, draw.b))

int32_t tl_cpu_rand_uniform(TL_UNUSED tl_context *ctx, int64_t n, uint64_t key, float *out)
{
    return run(uniform_span, (tl_draw){.stream = tl_random_stream(key), .n = n, .out = out});
}

int32_t tl_cpu_bernoulli_mask(TL_UNUSED tl_context *ctx, int64_t n, uint64_t key, float keep, float *out)
{
    return run(bernoulli_span, (tl_draw){.stream = tl_random_stream(key), .a = keep, .n = n, .out = out});
}

int32_t tl_cpu_rand_normal(TL_UNUSED tl_context *ctx, int64_t n, uint64_t key, float mean, float std, float *out)
{
    return run(normal_span, (tl_draw){.stream = tl_random_stream(key), .a = mean, .b = std, .n = n, .out = out});
}
