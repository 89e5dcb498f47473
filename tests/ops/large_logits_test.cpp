// Tests losses and normalizers if all logits have a large magnitude.
#include "tests/support/large_logits.h"

namespace tg {
namespace {

const CompileOptions one_thread{.threads = 1};

TEST(LargeLogits, AnOffsetDoesNotChangeCrossEntropyAndSoftmaxBitwise) {
  large_logits::expect_no_bit_changes(one_thread);
}
TEST(LargeLogits, TheGradientOfLogsumexpIsAProbability) {
  large_logits::expect_right_logsumexp(one_thread);
}
TEST(LargeLogits, AnOffsetDoesNotChangeTheLossOfAHead) {
  large_logits::expect_right_head(one_thread);
}

// The second derivative uses the decomposition.
TEST(LargeLogits, AnOffsetDoesNotChangeSecondDerivatives) {
  for (const large_logits::Case& c : large_logits::cases()) {
    if (c.dtype == bf16) continue;
    const auto second = [](const Tensor& x, const Tensor& t) {
      const Tensor z =
          gradients(cross_entropy(x, t, {.reduction = Reduction::sum, .label_smoothing = 0.125}), {x})[0];
      return std::vector<Tensor>{gradients(sum(z * z), {x})[0]};
    };
    EXPECT_EQ(large_logits::results(c, true, one_thread, second),
              large_logits::results(c, false, one_thread, second))
        << name_of(c.dtype) << ", " << c.classes << " classes around " << c.offset;
  }
}

}  // namespace
}  // namespace tg
