// Emulates AMX tiles, for tests of code that uses them.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include <tilegrad/core/base/dtype.h>

namespace tg::cpu {

// Implements AMX as described in its manual, except for the treatment of denormals.
struct ModelTiles {
  static inline thread_local float tiles[8][16][16];
  static inline thread_local bool is_configured = false;
  static inline std::atomic<int> configured = 0;  // number of threads that have not released their tiles
  // After the last barrier of a kernel, a thread may release its tiles late, when the kernel has already
  // ended.
  static bool are_released() {
    using namespace std::chrono_literals;
    for (const auto end = std::chrono::steady_clock::now() + 5s; std::chrono::steady_clock::now() < end;)
      if (configured == 0) return true;
    return false;
  }
  static void configure() {
    std::memset(tiles, 0, sizeof tiles);
    if (!std::exchange(is_configured, true)) ++configured;
  }
  static void release() {
    std::memset(tiles, 0xff, sizeof tiles);
    if (std::exchange(is_configured, false)) --configured;
  }
  template <int T>
  static void zero() {
    std::memset(tiles[T], 0, sizeof tiles[T]);
  }
  template <int T>
  static void load(const float* from, std::int64_t row_bytes) {
    for (int r = 0; r < 16; ++r)
      std::memcpy(tiles[T][r], reinterpret_cast<const char*>(from) + r * row_bytes, 64);
  }
  template <int T>
  static void store(float* to, std::int64_t row_bytes) {
    for (int r = 0; r < 16; ++r) std::memcpy(reinterpret_cast<char*>(to) + r * row_bytes, tiles[T][r], 64);
  }
  template <int C, int A, int B>
  static void multiply() {
    const auto bf16_at = [](const float& pair, int which) {
      std::uint16_t halves[2];
      std::memcpy(halves, &pair, sizeof halves);
      return std::bit_cast<float>(static_cast<std::uint32_t>(halves[which]) << 16);
    };
    for (int i = 0; i < 16; ++i)
      for (int p = 0; p < 16; ++p)
        for (int which = 0; which < 2; ++which) {
          const float a = bf16_at(tiles[A][i][p], which);
          for (int j = 0; j < 16; ++j) tiles[C][i][j] += a * bf16_at(tiles[B][p][j], which);
        }
  }
  template <class V>
  static V round_pairs(V first, V second) {
    for (std::size_t l = 0; l < sizeof(V) / sizeof(float); ++l) {
      const bfloat16 pair[2] = {bfloat16(first[l]), bfloat16(second[l])};
      float bits;
      std::memcpy(&bits, pair, sizeof bits);
      first[l] = bits;
    }
    return first;
  }
  static void round_row(bfloat16* to, const float* from) {
    for (int j = 0; j < 32; ++j) to[j] = bfloat16(from[j]);
  }
};

}  // namespace tg::cpu
