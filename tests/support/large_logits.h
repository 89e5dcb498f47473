// Tests losses and normalizers if all logits are large. Subtracting a number from all logits of a row changes
// no probability. So if the differences of logits are exact, losses and gradients must not change by a bit.
#pragma once

#include <gtest/gtest.h>

#include <tilegrad/tilegrad.h>

#include "tests/support/large_scores.h"

namespace tg::large_logits {

using large_scores::integers, large_scores::Numbers;

constexpr std::int64_t rows = 5;

struct Case {
  DType dtype;
  double offset;
  std::int64_t classes;
};

inline std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int64_t n : {7, 300, 9000})
    for (const double sign : {-1., 1.}) {
      all.push_back({f32, sign * 0x1p22, n});
      all.push_back({f64, sign * 0x1p50, n});
      all.push_back({bf16, sign * 0x1p6, n});  // 64 ± 3 are exact in bf16
    }
  return all;
}

// Returns the results of `f` for logits around 0 or around the offset.
template <class F>
std::vector<Numbers> results(const Case& c, bool far, const CompileOptions& compiling, F&& f) {
  Graph g;
  Numbers logits = integers(rows * c.classes, 3, 1), targets = integers(rows, 3, 2);
  for (double& e : logits) e += far ? c.offset : 0;
  for (double& e : targets) e += 3;
  const Tensor x = g.constant(Array::of({rows, c.classes}, logits).to(c.dtype)),
               t = g.constant(Array::of({rows}, targets).to(i64));
  std::vector<Numbers> all;
  for (const Array& a : eval(f(x, t), {}, compiling)) all.push_back(a.to(f64).values<double>());
  return all;
}

// Tests cross_entropy with and without smoothing, its gradient, log_softmax and softmax.
inline void expect_no_bit_changes(const CompileOptions& compiling) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(std::string(name_of(c.dtype)) + ", " + std::to_string(c.classes) + " classes around " +
                 std::to_string(c.offset));
    const auto losses = [](const Tensor& x, const Tensor& t) {
      std::vector<Tensor> all{log_softmax(x), softmax(x)};
      for (const double smoothing : {0., 0.125}) {
        all.push_back(cross_entropy(x, t, {.reduction = Reduction::none, .label_smoothing = smoothing}));
        all.push_back(gradients(sum(all.back()), {x})[0]);
      }
      return all;
    };
    EXPECT_EQ(results(c, true, compiling, losses), results(c, false, compiling, losses));
  }
}

// exp, log and sums are rounded. In bf16, results are also rounded.
inline void expect_near(const Case& c, const Numbers& got, const Numbers& expected) {
  const double bound = c.dtype == bf16 ? 0x1p-7 : c.dtype == f32 ? 0x1p-18 : 0x1p-46;
  for (std::size_t e = 0; e < got.size(); ++e)
    ASSERT_NEAR(got[e], expected[e], bound * std::abs(expected[e]))
        << name_of(c.dtype) << ", " << c.classes << " classes around " << c.offset;
}

// The gradient of logsumexp is P, whose rows add up to 1.
inline void expect_right_logsumexp(const CompileOptions& compiling) {
  for (const Case& c : cases()) {
    const auto p = [](const Tensor& x, const Tensor&) {
      return std::vector<Tensor>{gradients(sum(logsumexp(x, {-1})), {x})[0]};
    };
    expect_near(c, results(c, true, compiling, p)[0], results(c, false, compiling, p)[0]);
  }
}

// Tests the losses and z_w of a linear_cross_entropy whose GEMM produces such logits.
inline void expect_right_head(const CompileOptions& compiling) {
  for (const Case& c : cases()) {
    const auto of_offset = [&](double offset) {
      return [&c, offset](const Tensor& x, const Tensor& t) {
        Graph& g = x.graph();
        Numbers ones(rows * 8, 0), w(8 * static_cast<std::size_t>(c.classes), 0);
        const Numbers logits = integers(c.classes, 3, 1);
        for (std::size_t r = 0; r < rows; ++r) ones[8 * r] = ones[8 * r + 1] = 1;
        for (std::size_t i = 0; i < logits.size(); ++i)
          w[i] = offset, w[static_cast<std::size_t>(c.classes) + i] = logits[i];
        const Tensor weight = g.constant(Array::of({8, c.classes}, w).to(c.dtype));
        const Tensor loss = linear_cross_entropy(g.constant(Array::of({rows, 8}, ones).to(c.dtype)), weight,
                                                 t, {.reduction = Reduction::none});
        return std::vector<Tensor>{loss, gradients(sum(loss), {weight})[0]};
      };
    };
    const auto got = results(c, false, compiling, of_offset(c.offset)),
               expected = results(c, false, compiling, of_offset(0));
    for (std::size_t n = 0; n < got.size(); ++n) expect_near(c, got[n], expected[n]);
  }
}

}  // namespace tg::large_logits
