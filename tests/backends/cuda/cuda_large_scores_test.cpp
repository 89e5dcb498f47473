// Tests every family of attention kernels if all scores of a row have a large magnitude. Skipped if there is
// no GPU.
#include "tests/support/large_scores.h"

#include "tests/backends/cuda/attention_problem.h"

namespace tg {
namespace {

using namespace large_scores;
using enum AttentionKernels;

class CudaLargeScores : public testing::OnGpu {};

struct Size {
  const char* family;
  std::int64_t B, H, Hk, L, T, d, dv;
};

// Checks every case for these sizes, kernels and dtypes.
void expect_right_on(const std::vector<Size>& sizes, AttentionKernels kernels,
                     const std::vector<DType>& dtypes, bool tf32 = false) {
#ifdef TG_CROWD  // on the emulator, each size has fewer cases
  constexpr std::size_t every = 4;
#else
  constexpr std::size_t every = 1;
#endif
  const std::vector<Case> all = cases();
  std::size_t first = 0;
  for (const Size& n : sizes)
    for (std::size_t nth = first++ % every; nth < all.size(); nth += every)
      for (const DType t : dtypes) {
        Case c = all[nth];
        if (!c.suits(t) || (kernels == wgmma && (c.bias || c.options.scale))) continue;
        SCOPED_TRACE(std::string(n.family) + ", " + std::string(name_of(kernels)));
        c.B = n.B, c.H = n.H, c.Hk = n.Hk, c.L = n.L, c.T = n.T, c.d = n.d, c.dv = n.dv;
        c.options.kernels = kernels;
        CompileOptions compiling{.device = Device::cuda()};
        compiling.tf32 = tf32;
        expect_right(c, t, compiling);
      }
}

TEST_F(CudaLargeScores, PlainKernels) {
  expect_right_on({{"tiles", 1, 2, 1, 70, 130, 16, 8}, {"wide", 1, 1, 1, 5, 9, 64, 80}}, plain,
                  {f64, f32, bf16, f16});
}
TEST_F(CudaLargeScores, PortableKernels) {
  expect_right_on({{"64", 1, 2, 1, 70, 130, 64, 64},
                   {"256: one pass, two passes", 1, 1, 1, 70, 130, 256, 256},
                   {"many keys", 1, 1, 1, 20, 1100, 64, 64}},
                  tensor_cores, {bf16, f16});
}
TEST_F(CudaLargeScores, PortableKernelsOfF32) {
  expect_right_on({{"64", 1, 2, 1, 70, 130, 64, 64}}, tensor_cores, {f32});
}
TEST_F(CudaLargeScores, ChosenKernels) {
  expect_right_on({{"short heads", 1, 2, 2, 33, 40, 64, 64},
                   {"decoding", 2, 4, 1, 1, 300, 64, 64},
                   {"few queries", 1, 4, 2, 3, 300, 64, 64},
                   {"in parts", 1, 1, 1, 70, 1100, 64, 64},
                   {"64", 1, 2, 1, 150, 200, 64, 64},
                   {"256", 1, 1, 1, 70, 130, 256, 256},
                   {"latents", 1, 2, 1, 1, 200, 256, 256}},
                  best, {f32, bf16, f16});
}
TEST_F(CudaLargeScores, ChosenKernelsInTf32) {
  expect_right_on({{"64", 1, 2, 1, 150, 200, 64, 64}}, best, {f32}, true);
}

// Paged caches and latents have separate forward kernels.
TEST_F(CudaLargeScores, PagedDecoding) {
  for (const DType t : {f32, bf16})
    for (const auto& [H, d, dv] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{4, 64, 64}, {16, 576, 512}, {40, 576, 512}}) {
      if (t == f32 && d > 256) continue;
      for (const double of_q : {1., 1048576., 1099511627776.}) {
        const auto attend = [&](DType dtype, const CompileOptions& compiling) {
          Graph g;
          Numbers q = integers(2 * H * 3 * d, 2, 1);
          for (double& e : q) e *= of_q;
          std::vector<std::int32_t> table(2 * 20);
          for (std::size_t n = 0; n < table.size(); ++n) table[n] = static_cast<std::int32_t>(n * 7 % 40);
          const Tensor pool = g.constant(Array::of({40, 16, 1, d}, integers(40 * 16 * d, 2, 2)).to(dtype));
          const AttentionResult r =
              paged_attn(g.constant(Array::of({2, H, 3, d}, q).to(dtype)), pool, slice(pool, 3, 0, dv),
                         g.constant(Array::of({2, 20}, table)),
                         g.constant(Array::of(std::vector<std::int32_t>{320, 77})), {.scale = 0.125});
          return eval(r.o, {}, compiling).to(f64).values<double>();
        };
        const Numbers got = attend(t, {.device = Device::cuda()}), expected = attend(f64, {.threads = 1});
        double most = 0;
        for (std::size_t e = 0; e < got.size(); ++e) {
          const double apart = std::abs(got[e] - expected[e]);
          most = std::isfinite(apart) ? std::max(most, apart) : INFINITY;
        }
        EXPECT_LE(most, 2 * rounding_of_p(t))
            << d << ", " << H << " heads, q times " << of_q << " in " << name_of(t);
      }
    }
}

}  // namespace
}  // namespace tg
