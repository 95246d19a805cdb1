/* Fingerprints of buffers on the CPU: task k owns piece k of the list, TL_SPAN elements of one tensor, and adds its two
 * sums to the tensor's. They are sums of integers modulo 2^64, so neither the pieces nor the threads that add have an order.
 * Bound by the two 64-bit multiplications of each of a word's two terms. */
#include "cpu/lists.h"
#include "formula/fingerprint.h"
#include "formula/integer.h"
#include "generated/fingerprint.h"

/* 64 KiB: some tens of microseconds, which pay for handing the task to a thread. */
enum { TL_SPAN = 16384 };

typedef struct tl_prints {
    const float *const *xs;
    const int64_t *lengths, *start; /* start[i]: the pieces before tensor i */
    int64_t count;
    uint64_t *sums;
} tl_prints;

/* The lane's terms of n elements that begin with word `first`. The last one of an odd number has 0 beside it. */
static uint64_t sum_terms(tl_lane lane, const float *x, int64_t n, int64_t first)
{
    const int64_t words = n / 2;
    uint64_t sum = 0;
    for (int64_t j = 0; j < words; j++) {
        uint64_t word;
        memcpy(&word, x + 2 * j, sizeof word);
        sum += tl_fingerprint_term(lane, (uint64_t)(first + j), word);
    }
    if (n % 2) sum += tl_fingerprint_term(lane, (uint64_t)(first + words), tl_bits(x[n - 1]));
    return sum;
}

static void add_piece(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const tl_prints p = *(const tl_prints *)arg;
    const int64_t i = tl_find_tensor(p.start, p.count, task), first = (task - p.start[i]) * TL_SPAN;
    const int64_t n = tl_imin(p.lengths[i] - first, TL_SPAN);
    for (int k = 0; k < TL_FINGERPRINT_SUMS; k++) {
        const tl_lane lane = tl_fingerprint_lane(k);
        uint64_t sum = sum_terms(lane, p.xs[i] + first, n, first / 2);
        if (first == 0) sum += tl_fingerprint_start(lane, p.lengths[i]);
        __atomic_fetch_add(&p.sums[TL_FINGERPRINT_SUMS * i + k], sum, __ATOMIC_RELAXED);
    }
}

int32_t tl_cpu_fingerprint(tl_context *ctx, const float *const *xs, int64_t count, const int64_t *lengths,
                           uint32_t *out)
{
    const size_t bytes = (size_t)count * TL_FINGERPRINT_SUMS * sizeof(uint64_t);
    int64_t *start;
    void *sums;
    int32_t status = tl_find_starts(ctx, lengths, count, TL_SPAN, &start);
    if (status) return status;
    status = tl_pool_alloc(ctx, bytes, &sums);
    if (!status) {
        memset(sums, 0, bytes);
        tl_prints p = {xs, lengths, start, count, sums};
        tl_parallel(start[count], add_piece, &p);
        for (int64_t i = 0; i < TL_FINGERPRINT_SUMS * count; i++) {
            out[2 * i] = (uint32_t)p.sums[i];
            out[2 * i + 1] = (uint32_t)(p.sums[i] >> 32);
        }
    }
    tl_pool_free(ctx, status ? NULL : sums);
    tl_pool_free(ctx, start);
    return status;
}
