// Tests identities of attention results that are true for any input, with every set of kernels. Rows of P and
// z_A have known sums, and u equals two different sums. Also tests that the comparisons detect errors a few
// times larger than allowed. Skipped if there is no GPU.
#include "tests/backends/cuda/attention_problem.h"

namespace tg {
namespace {

using namespace testing;
using enum AttentionKernels;

// Makes every row of each matrix equal to the first one.
void repeat_first_row(Array& a) {
  const std::int64_t size = a.shape()[3], matrix = a.shape()[2] * size;
  for (std::int64_t e = 0; e < a.numel(); ++e) a.set(e, a.at(e / matrix * matrix + e % size));
}

constexpr Sizes sizes{1, 4, 2, 70, 150, 64, 64};
constexpr std::int64_t heads = sizes.B * sizes.H, key_heads = sizes.B * sizes.Hk, group = sizes.H / sizes.Hk;

// Runs the call on a GPU for each set of kernels and each dtype. All rows of the named input are equal.
template <class F>
void for_each_run(const std::string& same_rows, F&& f) {
  for (const AttentionKernels kernels : {best, tensor_cores, plain})
    for (const DType t : {f32, bf16, f16})
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(std::string(name_of(kernels)) + " " + std::string(name_of(t)) +
                     (causal ? " causal" : ""));
        Problem p{sizes, {.causal = causal, .kernels = kernels}};
        if (!same_rows.empty()) p.options.scale = 1;  // only the other operand changes the scores
        p.more.change = [&](const std::string& name, Array& a) {
          if (name == same_rows) repeat_first_row(a);
        };
        const Results r = p.run(t, t, {.device = Device::cuda()});
        f(r, t, causal);
      }
}

class CudaAttentionIdentities : public OnGpu {};

// If all keys equal k, then z_Q = (z_A).sum·k. Rows of P sum to 1, so a row of z_A sums to z_ξ.
TEST_F(CudaAttentionIdentities, RowsOfTheScoreGradientSumToTheGradientOfXi) {
  for_each_run("k", [](const Results& r, DType t, bool) {
    const Vector z_q = doubles(r.values[2]), k = doubles(r.inputs.at("k")),
                 z_lse = doubles(r.inputs.at("z_lse"));
    Vector expected(z_q.size());
    for (std::size_t e = 0; e < z_q.size(); ++e) {
      const std::size_t row = e / sizes.d, head = row / sizes.L;
      expected[e] = z_lse[row] * k[head / group * sizes.T * sizes.d + e % sizes.d];
    }
    EXPECT_LE(distance(z_q, expected, t).units, 1);
    EXPECT_GT(distance(Vector(z_q.size()), expected, t).units, 10);  // the expected values are not all zero
  });
}

// Sums a column of a key head's rows [keys, size]. Returns the sum of its elements and the sum of their
// absolute values.
struct ColumnSum {
  double sum = 0, terms = 0;
  ColumnSum(const Vector& z, std::int64_t head, std::int64_t column, std::int64_t size) {
    for (std::int64_t j = 0; j < sizes.T; ++j) {
      const double e = z[(head * sizes.T + j) * size + column];
      sum += e, terms += std::abs(e);
    }
  }
};

// If all queries of a head equal q, the rows of z_K sum to (z_A).sum·q. Both sums include all query heads
// that share the key head. Each query contributes a separate error, as above.
TEST_F(CudaAttentionIdentities, KeyGradientsSumToTheGradientOfXi) {
  for_each_run("q", [](const Results& r, DType t, bool) {
    const Vector z_k = doubles(r.values[3]), q = doubles(r.inputs.at("q")),
                 z_lse = doubles(r.inputs.at("z_lse"));
    for (std::int64_t head = 0; head < key_heads; ++head)
      for (std::int64_t c = 0; c < sizes.d; ++c) {
        auto [sum, terms] = ColumnSum(z_k, head, c, sizes.d);
        double expected = 0;
        for (std::int64_t h = head * group; h < (head + 1) * group; ++h) {
          terms += std::sqrt(double{sizes.L}) * std::abs(q[h * sizes.L * sizes.d + c]);
          for (std::int64_t i = 0; i < sizes.L; ++i)
            expected += z_lse[h * sizes.L + i] * q[h * sizes.L * sizes.d + c];
        }
        EXPECT_NEAR(sum, expected, bound(t) * terms) << "key head " << head << ", column " << c;
      }
  });
}

// Rows of P sum to 1. So the sum of z_V's rows equals the sum of z_O's rows over all heads with these values.
TEST_F(CudaAttentionIdentities, ValueGradientsSumToTheOutputGradient) {
  for_each_run("", [](const Results& r, DType t, bool) {
    const Vector z_v = doubles(r.values[4]), z_o = doubles(r.inputs.at("z_o"));
    for (std::int64_t head = 0; head < key_heads; ++head)
      for (std::int64_t c = 0; c < sizes.dv; ++c) {
        const auto [sum, terms] = ColumnSum(z_v, head, c, sizes.dv);
        double expected = 0;
        for (std::int64_t row = head * group * sizes.L; row < (head + 1) * group * sizes.L; ++row)
          expected += z_o[row * sizes.dv + c];
        EXPECT_NEAR(sum, expected, bound(t) * terms) << "key head " << head << ", column " << c;
      }
  });
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

// P = exp(A − ξ) uses the ξ that the kernel returned. Then (P).sum = 1 and (P ⊛ z_P).sum = (O ⊛ z_O).sum = u.
TEST_F(CudaAttentionIdentities, XiAndTheOutputBelongToOneSoftmax) {
  const double scale = 1 / std::sqrt(double{sizes.d});
  for_each_run("", [&](const Results& r, DType t, bool causal) {
    const Vector q = doubles(r.inputs.at("q")), k = doubles(r.inputs.at("k")), v = doubles(r.inputs.at("v")),
                 z_o = doubles(r.inputs.at("z_o")), o = doubles(r.values[0]), lse = doubles(r.values[1]);
    for (std::int64_t row = 0; row < heads * sizes.L; ++row) {
      const std::int64_t first_key = row / sizes.L / group * sizes.T,
                         seen = causal ? row % sizes.L + sizes.T - sizes.L + 1 : sizes.T;
      double sum = 0, u = 0, terms = 0;
      for (std::int64_t j = first_key; j < first_key + seen; ++j) {
        const double p = std::exp(scale * dot(&q[row * sizes.d], &k[j * sizes.d], sizes.d) - lse[row]),
                     z_p = dot(&z_o[row * sizes.dv], &v[j * sizes.dv], sizes.dv);
        sum += p, u += p * z_p, terms += p * std::abs(z_p);
      }
      EXPECT_NEAR(sum, 1, bound(f32)) << "row " << row;
      EXPECT_NEAR(dot(&o[row * sizes.dv], &z_o[row * sizes.dv], sizes.dv), u, bound(t) * terms)
          << "row " << row;
    }
  });
}

// Returns the largest distance of any result, in units of the allowed error.
double farthest(const Results& got, const Results& expected, DType t) {
  double units = 0;
  for (std::size_t k = 0; k < expected.values.size(); ++k)
    units = std::max(units, distance(doubles(got.values[k]), doubles(expected.values[k]), t).units);
  return units;
}

// Tests the comparison itself. If the expected numbers are slightly wrong, the distance of correct results
// must exceed the allowed error.
TEST_F(CudaAttentionIdentities, TheComparisonFindsSmallErrors) {
  for (const AttentionKernels kernels : {best, tensor_cores})
    for (const DType t : {f32, bf16, f16}) {
      SCOPED_TRACE(std::string(name_of(kernels)) + " " + std::string(name_of(t)));
      const Problem right{{1, 4, 2, 140, 140, 64, 64},
                          {.causal = true, .window_left = 30, .kernels = kernels}};
      const Results got = right.run(t, t, {.device = Device::cuda()});
      EXPECT_LE(farthest(got, right.run(t, f64, {}), t), 1);
      Problem wrong = right;
      wrong.more.off = 4 * bound(t);
      EXPECT_GT(farthest(got, wrong.run(t, f64, {}), t), 1) << "ξ";
      wrong = right;
      wrong.options.window_left = 31;
      EXPECT_GT(farthest(got, wrong.run(t, f64, {}), t), 1) << "one key more for each query";
      wrong = right;
      wrong.more.change = [&](const std::string& name, Array& a) {
        if (name == "v") a.set(0, a.at(0) + 4 * bound(t));
      };
      EXPECT_GT(farthest(got, wrong.run(t, f64, {}), t), 1) << "one number of one value";
    }
}

}  // namespace
}  // namespace tg
