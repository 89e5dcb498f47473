// Chains of pointwise ops on a GPU, those with several results above all. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include "backends/cuda/cuda.h"
#include "tests/random_chains.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(CudaChain, FusedGivesWhatSingleStepsGiveOnTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (unsigned seed = 0; seed < 16; ++seed) {
    RandomChains r(seed);
    EXPECT_EQ(
        r.difference({.device = Device::cuda(), .verify = true}, {.device = Device::cpu(), .fuse = false}),
        "")
        << "seed " << seed;
  }
}

}  // namespace
