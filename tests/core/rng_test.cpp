// Tests Philox4x32-10 with the published known-answer vectors. Also tests the properties that the library
// needs.
#include <tilegrad/core/base/rng.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tg {
namespace {

TEST(Philox, MatchesThePublishedKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (PhiloxBlock{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0ull),
            (PhiloxBlock{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0x299f31d0a4093822ull),
            (PhiloxBlock{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, IsAConstantExpression) {
  static_assert(philox({0, 0, 0, 0}, 0)[0] == 0x6627e8d5u);
  SUCCEED();
}

TEST(Philox, NodeKeysDifferByStepNodeAndSeed) {
  const std::uint64_t key = node_key(1, 2, 3);
  EXPECT_EQ(key, node_key(1, 2, 3));
  EXPECT_NE(key, node_key(1, 2, 4));
  EXPECT_NE(key, node_key(1, 3, 3));
  EXPECT_NE(key, node_key(2, 2, 3));
}

TEST(Uniform, StaysBelowOne) {
  EXPECT_LT(uniform(~0u), 1.0f);
  EXPECT_LT(uniform(~0u, ~0u), 1.0);
  EXPECT_EQ(uniform(0u), 0.0f);
}

TEST(Uniform, HasTheMeanAndVarianceOfItsDistribution) {
  double sum = 0, squares = 0;
  const std::uint32_t blocks = 20000;
  for (std::uint32_t i = 0; i < blocks; ++i)
    for (const std::uint32_t word : philox({i, 0, 0, 0}, 42)) {
      const double u = uniform(word);
      sum += u;
      squares += u * u;
    }
  const double n = 4.0 * blocks, mean = sum / n;
  EXPECT_NEAR(mean, 0.5, 5 * 0.2887 / std::sqrt(n));  // five standard errors
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * 0.2981 / std::sqrt(n));
}

TEST(DropoutBound, DropsTheRequestedShare) {
  EXPECT_EQ(dropout_bound(0.0), 0u);
  EXPECT_EQ(dropout_bound(0.5), 0x80000000u);
  EXPECT_EQ(dropout_bound(1.0), 0xffffffffu);
}

}  // namespace
}  // namespace tg
