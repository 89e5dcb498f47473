// The rate at which threads read memory and do nothing else.
#include "tools/bench/machine.h"

#include <cstring>

#include "backends/cpu/pool.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tg::bench {

namespace {

// Reads all bytes, a multiple of 64, and returns a value that depends on each.
std::int64_t read_all(const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  __m128i a{}, b{}, c{}, d{};
  for (const std::byte* end = from + bytes; from < end; from += 64) {
    const auto* line = reinterpret_cast<const __m128i*>(from);
    a = _mm_xor_si128(a, line[0]), b = _mm_xor_si128(b, line[1]);
    c = _mm_xor_si128(c, line[2]), d = _mm_xor_si128(d, line[3]);
  }
  return _mm_cvtsi128_si64(_mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d)));
#else
  std::int64_t all = 0;
  for (std::size_t i = 0; i < bytes; i += sizeof all) {
    std::int64_t x;
    std::memcpy(&x, from + i, sizeof x);
    all ^= x;
  }
  return all;
#endif
}

}  // namespace

Reading::Reading(const Settings& settings)
    : threads_(static_cast<std::size_t>(settings.threads)),
      part_(settings.copy_bytes / threads_ / 64 * 64),
      memory_(backend(Device::cpu()).allocate(part_ * threads_, "the memory that is read")),
      sinks_(threads_ * 8) {  // each on a cache line of its own
  std::memset(memory_.get(), 1, part_ * threads_);
}

double Reading::gbytes() {
  const double start = now();
  cpu::run_on_pool(
      static_cast<int>(threads_),
      [](void* p, int t) {
        auto& self = *static_cast<Reading*>(p);
        const auto thread = static_cast<std::size_t>(t);
        self.sinks_[thread * 8] = read_all(self.memory_.get() + thread * self.part_, self.part_);
      },
      this);
  return static_cast<double>(part_ * threads_) / (now() - start) * 1e-9;
}

}  // namespace tg::bench
