/* The device sort of CUB that src/cuda uses, on the emulated device. */
#pragma once

#include <algorithm>
#include <vector>

namespace cub {

struct DeviceRadixSort {
    template <class Key, class Value, class Count>
    static cudaError_t SortPairs(void *scratch, size_t &bytes, const Key *keys, Key *sorted_keys, const Value *values,
                                 Value *sorted_values, Count count, int first_bit, int end_bit, cudaStream_t stream)
    {
        if (!scratch) {
            bytes = 1;
            return cudaSuccess;
        }
        emulator::queue(stream, [=] {
            const uint64_t mask = (UINT64_C(1) << (end_bit - first_bit)) - 1;
            const auto digits = [=](Count i) { return (uint64_t)keys[i] >> first_bit & mask; };
            std::vector<Count> order(count);
            for (Count i = 0; i < count; i++)
                order[i] = i;
            std::stable_sort(order.begin(), order.end(), [=](Count a, Count b) { return digits(a) < digits(b); });
            for (Count i = 0; i < count; i++)
                sorted_keys[i] = keys[order[i]], sorted_values[i] = values[order[i]];
        });
        return cudaSuccess;
    }
};

} // namespace cub
