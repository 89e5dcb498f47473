// Tests attention on a GPU with explicitly requested kernels. The requested kernels must run and compute the
// same results. If the requested kernels cannot run, the request is refused with the reason. Skipped if there
// is no GPU.
#include "tests/backends/cuda/attention_problem.h"

namespace tg {
namespace {

using namespace testing;
using enum AttentionKernels;

class CudaAttentionKernels : public OnGpu {};

// Returns the description of a forward call's kernel. If the call is refused, returns the reason.
std::string words(const Shape& q, DType dtype, const AttentionOptions& options) {
  Graph g;
  const Tensor x = g.input("x", q, dtype);
  try {
    return compile(g, {flash_attn(x, x, x, options).o}, {.device = Device::cuda()}).choice(0);
  } catch (const DeviceError& e) {
    return e.what();
  }
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
bool has_wgmma() {
  return has(words({1, 2, 80, 64}, bf16, {}), "wgmma");
}

TEST_F(CudaAttentionKernels, TheRequestedKernelIsUsed) {
  const Shape q{1, 2, 40, 64};
  EXPECT_TRUE(has(words(q, bf16, {.kernels = plain}), "plain multiply-adds"));
  EXPECT_TRUE(has(words(q, bf16, {.kernels = tensor_cores}), ", tensor cores"));
  EXPECT_FALSE(has(words(q, bf16, {.kernels = tensor_cores}), "wgmma"));
  EXPECT_TRUE(has(words(q, f32, {.kernels = tensor_cores}), ", tensor cores, f32"));
  EXPECT_TRUE(has(words(q, f32, {.kernels = plain}), "plain multiply-adds"));
  EXPECT_EQ(has(words(q, f32, {}), "wgmma, f32 split into two f16"), has_wgmma());
  // With few heads and short sequences, one block computes each head. Otherwise Hopper's kernels run.
  for (const DType t : {bf16, f16}) EXPECT_EQ(has(words(q, t, {}), "short sequences"), has_wgmma());
  for (const Shape& other : {Shape{1, 2, 65, 64}, {1, 2, 40, 72}, {150, 2, 40, 64}})
    EXPECT_EQ(has(words(other, bf16, {}), "wgmma"), has_wgmma()) << other.text();
  EXPECT_EQ(has(words(q, bf16, {.softcap = 2}), "wgmma"), has_wgmma());
  const std::string own = words(q, bf16, {.kernels = wgmma});
  EXPECT_TRUE(has(own, ", tensor cores, wgmma") || has(own, "kernels = wgmma: the GPU is not a Hopper") ||
              has(own, "kernels = wgmma: the library was compiled without sm_90a"))
      << own;
}

TEST_F(CudaAttentionKernels, UnsupportedCallsAreRefusedWithLayerOperandsAndLine) {
  const Scope scope("h.3.attn");
  const std::string got = words({1, 2, 40, 64}, f64, {.causal = true, .kernels = tensor_cores});
  EXPECT_EQ(got.rfind("[h.3.attn/flash_attn] kernels = tensor_cores: f64; got f64 [1, 2, 40, 64], ", 0), 0u)
      << got;
  EXPECT_TRUE(has(got, "causal=true")) << got;
  EXPECT_TRUE(has(got, "cuda_attention_kernels_test.cpp:")) << got;
}

TEST_F(CudaAttentionKernels, ABackwardUsesTheKernelsOfItsForward) {
  if (!has_wgmma()) GTEST_SKIP() << "not a Hopper";
  for (const std::int64_t d : {64, 128, 256}) {
    Graph g;
    const Tensor x = g.input("x", {1, 1, 40, d}, bf16), o = flash_attn(x, x, x, {.kernels = wgmma}).o,
                 z = gradients(sum(o.to(f32)), {x})[0];
    const Program p = compile(g, {z}, {.device = Device::cuda()});
    for (std::size_t i = 0; i < p.steps().size(); ++i)
      EXPECT_EQ(has(p.choice(i), "wgmma"), has(p.steps()[i].op->name, "flash_attn")) << p.choice(i);
  }
}

TEST_F(CudaAttentionKernels, HeadsBeyond256HaveAForwardAndNoBackward) {
  if (!has_wgmma()) GTEST_SKIP() << "not a Hopper";
  for (const std::int64_t d : {264, 512}) EXPECT_TRUE(has(words({1, 2, 40, d}, bf16, {}), "wgmma"));
  Graph g;
  const Tensor x = g.input("x", {1, 1, 40, 512}, bf16), o = flash_attn(x, x, x, {.kernels = wgmma}).o,
               z = gradients(sum(o.to(f32)), {x})[0];
  try {
    compile(g, {z}, {.device = Device::cuda()});
    ADD_FAILURE() << "it has a backward";
  } catch (const DeviceError& e) {
    EXPECT_TRUE(has(e.what(), "kernels = wgmma: wider heads than 256")) << e.what();
  }
}

TEST_F(CudaAttentionKernels, AllComputeTheSame) {
  const bool hopper = has_wgmma();
  for (const AttentionKernels kernels : {plain, tensor_cores, wgmma}) {
    if (kernels == wgmma && !hopper) continue;
    const std::string name(name_of(kernels));
    const Problem causal{
        {1, 4, 2, 150, 210, 64, 64}, {.causal = true, .kernels = kernels}, {.projected = true}};
    check(causal, name + " causal", {f32, bf16, f16});
    const Problem window{
        {2, 2, 2, 140, 140, 128, 96}, {.window_left = 40, .kernels = kernels}, {.sink = true}};
    check(window, name + " window", {bf16});
  }
}

// Some tiles have only queries that see no key. Others have only keys that no query sees. Ordinary tiles are
// adjacent.
TEST_F(CudaAttentionKernels, FullyMaskedOperandsDoNotAffectResults) {
  using O = AttentionOptions;
  for (const AttentionKernels kernels : {best, tensor_cores, plain})
    for (const bool nondeterministic : {false, true}) {
      if (kernels == plain && nondeterministic) continue;  // plain kernels always add in the same order
      const std::string name = std::string(name_of(kernels)) + (nondeterministic ? ", nondeterministic" : "");
      const auto check_both = [&](const Sizes& n, AttentionOptions o, const Extras& more, const char* what) {
        o.kernels = kernels, o.nondeterministic = nondeterministic;
        check({n, o, more}, name + what, {bf16});
      };
      check_both({1, 1, 1, 140, 10, 64, 64}, {.causal = true}, {}, ", queries");
      check_both({1, 1, 1, 140, 10, 128, 128}, {.causal = true}, {}, ", queries of wide heads");
      check_both({1, 1, 1, 6, 300, 64, 64}, {.causal = true, .alignment = O::top_left}, {}, ", keys");
      check_both({2, 1, 1, 70, 70, 64, 64}, {}, {.lengths = {70, 0}}, ", all of an entry");
    }
}

}  // namespace
}  // namespace tg
