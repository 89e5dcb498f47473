// Tests losses and normalizers on a GPU if all logits have a large magnitude. Skipped if there is no GPU.
#include "tests/support/large_logits.h"

#include "backends/cuda/cuda.h"

namespace tg {
namespace {

class CudaLargeLogits : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

const CompileOptions on_gpu{.device = Device::cuda()};

TEST_F(CudaLargeLogits, AnOffsetDoesNotChangeCrossEntropyAndSoftmaxBitwise) {
  large_logits::expect_no_bit_changes(on_gpu);
}
TEST_F(CudaLargeLogits, TheGradientOfLogsumexpIsAProbability) {
  large_logits::expect_right_logsumexp(on_gpu);
}
TEST_F(CudaLargeLogits, AnOffsetDoesNotChangeTheLossOfAHead) {
  large_logits::expect_right_head(on_gpu);
}

}  // namespace
}  // namespace tg
