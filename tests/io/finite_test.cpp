// Tests the search for non-finite values, in complete blocks and in the remainder, at any address.
#include "io/checkpoints/tensor_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace {

using namespace tg;

TEST(Finite, TheFirstNonFiniteNumberIsFoundAtAnyPosition) {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const std::size_t size = size_of(dtype);
    for (const std::int64_t n : {1, 3, 63, 64, 257, 700}) {
      Array values({n}, dtype);
      for (std::int64_t i = 0; i < n; ++i) values.set(i, i % 3 == 0 ? 65504.0 : i % 3 == 1 ? -65504.0 : -0.0);
      std::vector<std::byte> memory(values.bytes() + 1);
      const std::span<std::byte> odd = std::span(memory).subspan(1);
      const auto found = [&] {
        std::memcpy(odd.data(), values.raw(), values.bytes());
        return io::first_not_finite(odd, dtype);
      };
      EXPECT_FALSE(found()) << name_of(dtype);
      for (std::int64_t i = 0; i < n; i += n < 100 ? 1 : 37) {
        const double kept = values.at(i), last = values.at(n - 1);
        values.set(n - 1, NAN);
        for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
          values.set(i, bad);
          EXPECT_EQ(found(), i) << name_of(dtype) << " " << n << " " << bad;
          EXPECT_EQ(io::first_not_finite(values), i);
        }
        values.set(n - 1, last), values.set(i, kept);
      }
      EXPECT_FALSE(found()) << name_of(dtype) << " of " << size << " bytes";
    }
  }
  const Array whole({5}, i32);
  EXPECT_FALSE(io::first_not_finite(whole));
}

}  // namespace
