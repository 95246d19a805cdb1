/* Fingerprints of buffers on the CPU: task k owns piece k of the list, TL_SPAN elements of one tensor, and adds its two
 * sums to the tensor's. They are sums of integers modulo 2^64, so neither the pieces nor the threads that add have an order.
 * Bound by the two 64-bit multiplications of each of a word's two terms. */
#include "cpu/lists.h"
#include "formula/fingerprint.h"
#include "formula/integer.h"
#include "generated/fingerprint.h"

/* 64 KiB: some tens of microseconds, which pay for handing the task to a thread. */
enum { TL_SPAN = 16384 };
/* 4 KiB, which stay in the first cache. */
enum { TL_BLOCK = 1024 };

typedef struct tl_prints {
    const float *const *xs;
    const int64_t *lengths, *start; /* start[i]: the pieces before tensor i */
    int64_t count;
    tl_sums *sums;
} tl_prints;

/* The sums of n elements that begin with word `first`. The last one of an odd number has 0 beside it. Bits of a block are
 * written down before they are mixed, as one loop has lanes of 32 and the other of 64 bits. */
static tl_sums sum_words(const float *x, int64_t n, uint64_t first)
{
    const tl_places places = tl_fingerprint_places();
    uint64_t once = 0, squares = 0;
    for (int64_t begin = 0; begin < n; begin += TL_BLOCK) {
        const int64_t left = tl_imin(n - begin, TL_BLOCK), words = (left + 1) / 2;
        uint32_t bits[TL_BLOCK];
        for (int64_t k = 0; k < left; k++)
            bits[k] = tl_fingerprint_bits(x[begin + k]);
        if (left % 2) bits[left] = 0;
        for (int64_t j = 0; j < words; j++) {
            uint64_t word;
            memcpy(&word, bits + 2 * j, sizeof word);
            const uint64_t z = tl_fingerprint_word(places, first + (uint64_t)(begin / 2 + j), word);
            once += z;
            squares += z * z;
        }
    }
    return (tl_sums){once, squares};
}

static void add_piece(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const tl_prints p = *(const tl_prints *)arg;
    const int64_t i = tl_find_tensor(p.start, p.count, task), first = (task - p.start[i]) * TL_SPAN;
    tl_sums sums = sum_words(p.xs[i] + first, tl_imin(p.lengths[i] - first, TL_SPAN), (uint64_t)first / 2);
    if (first == 0) {
        const uint64_t z = tl_fingerprint_length(p.lengths[i]);
        sums.first += z;
        sums.second += z * z;
    }
    __atomic_fetch_add(&p.sums[i].first, sums.first, __ATOMIC_RELAXED);
    __atomic_fetch_add(&p.sums[i].second, sums.second, __ATOMIC_RELAXED);
}

int32_t tl_cpu_fingerprint(tl_context *ctx, const float *const *xs, int64_t count, const int64_t *lengths,
                           uint32_t *out)
{
    const size_t bytes = (size_t)count * sizeof(tl_sums);
    int64_t *start;
    void *sums;
    int32_t status = tl_find_starts(ctx, lengths, count, TL_SPAN, &start);
    if (status) return status;
    status = tl_pool_alloc(ctx, bytes, &sums);
    if (!status) {
        memset(sums, 0, bytes);
        tl_prints p = {xs, lengths, start, count, sums};
        tl_parallel(start[count], add_piece, &p);
        for (int64_t i = 0; i < count; i++) {
            out[4 * i] = (uint32_t)p.sums[i].first;
            out[4 * i + 1] = (uint32_t)(p.sums[i].first >> 32);
            out[4 * i + 2] = (uint32_t)p.sums[i].second;
            out[4 * i + 3] = (uint32_t)(p.sums[i].second >> 32);
        }
    }
    tl_pool_free(ctx, status ? NULL : sums);
    tl_pool_free(ctx, start);
    return status;
}
