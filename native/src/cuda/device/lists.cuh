/* Lists of tensors on CUDA.
 *
 * Pointers and lengths travel by value in the kernel's parameters (up to 32,764 bytes since CUDA 12.1 on sm_70 and
 * later), so a list of several hundred tensors is one launch and nothing is copied beforehand; longer lists take several.
 * Tables come in several sizes, because a launch pays for all of its parameters.
 *
 * Blocks are dealt to pieces of tensors by a fixed mapping: tensor i owns the blocks first[i] .. first[i + 1] - 1, and a
 * block finds its tensor by bisection in the parameters, which are cached constants. */
#pragma once

#include "formula/integer.h"

/* Bytes of a table; the rest of the parameters takes less than 128. */
constexpr int TINY = 480, SMALL = 3900, MIDDLE = 9600, LARGE = 32000;

/* The tensor of a block: the last one whose first block is at or before it. An empty tensor has a block too. */
template <class T> __device__ __forceinline__ int tl_find_tensor(const T &t, uint32_t block)
{
    int low = 0, high = t.count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (t.first[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The table: of each tensor where it lies in each of ARRAYS lists, which may be those of operands and of results. `first` ends with the
 * number of blocks. */
template <int BYTES, int ARRAYS = 1> struct tl_rows {
    static constexpr int ROOM = BYTES / (int)(sizeof(void *) * ARRAYS + 2 * sizeof(uint32_t));
    const float *at[ROOM][ARRAYS];
    uint32_t n[ROOM], first[ROOM + 1];
    int count;

    /* Takes the tensors from *next on, as many as there is room for, a block for each `piece` elements of them and one for
     * an empty tensor; returns the number of blocks. */
    uint32_t fill(const float *const *const (&lists)[ARRAYS], int64_t total, const int64_t *lengths, int64_t piece,
                  int64_t *next)
    {
        uint32_t blocks = 0;
        for (count = 0; *next < total && count < ROOM; ++*next) {
            const int64_t length = lengths[*next];
            for (int k = 0; k < ARRAYS; k++)
                at[count][k] = lists[k][*next];
            n[count] = (uint32_t)length;
            first[count++] = blocks;
            blocks += length ? (uint32_t)tl_ceil_div(length, piece) : 1;
        }
        first[count] = blocks;
        return blocks;
    }
};
