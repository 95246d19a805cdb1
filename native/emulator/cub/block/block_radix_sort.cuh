/* The block sort of CUB that src/cuda uses, on the emulated device: thread 0 sorts. */
#pragma once

#include <algorithm>

namespace cub {

template <class Key, int THREADS, int ITEMS> class BlockRadixSort {
  public:
    struct TempStorage {
        Key keys[THREADS * ITEMS];
    };
    explicit BlockRadixSort(TempStorage &storage) : keys(storage.keys) {}

    void SortBlockedToStriped(Key (&own)[ITEMS], int first_bit, int end_bit)
    {
        const int t = (int)threadIdx.x;
        std::copy(own, own + ITEMS, keys + t * ITEMS);
        __syncthreads();
        const uint64_t mask = (UINT64_C(1) << (end_bit - first_bit)) - 1;
        const auto digits = [=](Key key) { return (uint64_t)key >> first_bit & mask; };
        if (t == 0) std::stable_sort(keys, keys + THREADS * ITEMS, [=](Key a, Key b) { return digits(a) < digits(b); });
        __syncthreads();
        for (int i = 0; i < ITEMS; i++)
            own[i] = keys[i * THREADS + t];
    }

  private:
    Key *keys;
};

} // namespace cub
