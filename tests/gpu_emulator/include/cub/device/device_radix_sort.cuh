// Replaces CUB's header of the same name.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  // Sorts unsigned keys by bits [begin, end). Elements with equal keys keep their order.
  template <class K, class V>
  static cudaError_t SortPairs(void* temporary, std::size_t& bytes, const K* keys, K* sorted_keys,
                               const V* values, V* sorted, int n, int begin, int end, cudaStream_t stream) {
    if (!temporary) {
      bytes = 1024;
      return cudaSuccess;
    }
    return tg::emulator::enqueue(stream, [=] {
      const auto digits = [=](std::size_t i) {
        return end - begin < 64 ? keys[i] >> begin & ((K{1} << (end - begin)) - 1) : keys[i];
      };
      std::vector<std::size_t> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return digits(a) < digits(b); });
      for (std::size_t i = 0; i < order.size(); ++i)
        sorted_keys[i] = keys[order[i]], sorted[i] = values[order[i]];
    });
  }
};

}  // namespace cub
