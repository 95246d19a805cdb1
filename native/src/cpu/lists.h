/* Lists of tensors on the CPU: end to end they are one row of elements or of pieces, of which tasks own spans. */
#pragma once

#include "core/kernel.h"
#include "core/threads.h"

/* Where the tensors begin in the row of all elements; with `unit` > 1 counted in pieces of that many elements, an empty
 * tensor being one piece. Given back with tl_pool_free. */
static inline TL_UNUSED int32_t tl_find_starts(tl_context *ctx, const int64_t *lengths, int64_t count, int64_t unit,
                                               int64_t **start)
{
    void *memory;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(count + 1) * sizeof(int64_t), &memory);
    if (status) return status;
    *start = memory;
    (*start)[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t pieces = (lengths[i] + unit - 1) / unit;
        (*start)[i + 1] = (*start)[i] + (unit > 1 && pieces == 0 ? 1 : pieces);
    }
    return TORCHLEAN_OK;
}

/* The tensor that element (or piece) `at` lies in: the last that starts there or before, and is not empty. */
static inline TL_UNUSED int64_t tl_find_tensor(const int64_t *start, int64_t count, int64_t at)
{
    int64_t low = 0, high = count;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (start[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}
