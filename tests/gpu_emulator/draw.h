// Draws random sizes for tests. They are near the sizes at which the choice of a kernel changes. Unlike
// numbers from <random>, they are the same on all platforms.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>

namespace tg::testing {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  std::int64_t below(std::int64_t n) {
    state_ += 0x9e3779b97f4a7c15;  // SplitMix64
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return static_cast<std::int64_t>((z ^ z >> 31) % static_cast<std::uint64_t>(n));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> all) {
    return all.begin()[below(static_cast<std::int64_t>(all.size()))];
  }
  // Returns a power of two, 11/8 or 3/2 times a power of two, or a number next to one of these. Most sizes
  // are multiples of `step`.
  std::int64_t size(std::int64_t most, std::int64_t step = 1) {
    std::int64_t n = std::int64_t{8} << below(std::bit_width(static_cast<std::uint64_t>(most)));
    n = n * of({8, 8, 12, 11}) / 64;
    if (one_in(6)) step = 1;
    n += (below(3) - 1) * step;
    return std::clamp<std::int64_t>(step > 1 ? n / step * step : n, step, most);
  }

 private:
  std::uint64_t state_;
};

}  // namespace tg::testing
