// Counts the instructions of attention kernels (see instructions_test.cpp).
#include "tests/backends/cuda/attention_problem.h"
#include "tests/gpu_emulator/golden_records.h"

namespace tg::testing {
namespace {

class AttentionInstructions : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::record_runs();
    recorded();
  }
  void run(const std::string& what, const Problem& p, DType t) {
    p.run(t, t, {.device = Device::cuda()});
    records.add(what + " in " + std::string(name_of(t)), recorded());
  }

  GoldenRecords records{"instructions"};
};

std::string text_of(const Sizes& n) {
  std::string s;
  for (const std::int64_t e : {n.B, n.H, n.Hk, n.L, n.T, n.d, n.dv}) s += std::to_string(e) + " ";
  return s;
}

using O = AttentionOptions;
using enum AttentionKernels;

struct Option {
  const char* name;
  AttentionOptions o;
  Extras more = {};
};

TEST_F(AttentionInstructions, OptionsMatchTheGoldenFile) {
  for (const Sizes& n : {Sizes{1, 2, 1, 150, 170, 64, 64}, {1, 1, 1, 140, 140, 128, 96}}) {
    const auto l = static_cast<std::int32_t>(n.L), t = static_cast<std::int32_t>(n.T);
    const Extras packed{.cu_q = {0, 3, 3, l / 2, l - 2}, .cu_k = {1, 5, 6, t / 2, t}};
    for (const Option& o :
         {Option{"none", {}},
          {"causal", {.causal = true}, {.projected = true}},
          {"top left", {.causal = true, .alignment = O::top_left, .nondeterministic = true}},
          {"window", {.window_left = 30, .window_right = 9}},
          {"softcap", {.causal = true, .softcap = 1.3}, {.sink = true}},
          {"lengths", {.causal = true}, {.lengths = {n.T - 43}}},
          {"packed", {.causal = true}, packed},
          {"bias", {.nondeterministic = true}, {.bias = {n.L, n.T}}},
          {"dropout", {.window_left = 60, .dropout = 0.25}},
          {"tensor cores", {.causal = true, .kernels = tensor_cores}},
          {"plain", {.window_left = 50, .kernels = plain}, packed}})
      run(text_of(n) + o.name, {n, o.o, o.more}, bf16);
  }
  run("f32", {{1, 1, 1, 140, 140, 64, 64}, {.causal = true}}, f32);
  run("f32 by tensor cores", {{1, 1, 1, 70, 140, 32, 64}, {.causal = true, .kernels = tensor_cores}}, f32);
  run("f64", {{1, 2, 1, 40, 70, 24, 20}, {.causal = true, .window_left = 30}}, f64);
  records.expect_recorded();
}

TEST_F(AttentionInstructions, WideHeadsMatchTheGoldenFile) {
  for (const Sizes& n :
       {Sizes{1, 1, 1, 140, 140, 192, 128}, {1, 2, 1, 70, 140, 256, 256}, {1, 1, 1, 70, 70, 576, 512}}) {
    run(text_of(n) + "causal", {n, {.causal = true}}, bf16);
    run(text_of(n) + "window", {n, {.window_left = 40, .nondeterministic = true}}, bf16);
  }
  records.expect_recorded();
}

TEST_F(AttentionInstructions, FewQueriesMatchTheGoldenFile) {
  for (const Sizes& n : {Sizes{1, 8, 2, 1, 600, 64, 64},
                         {3, 4, 4, 1, 150, 128, 128},
                         {1, 16, 1, 1, 130, 576, 512},
                         {1, 4, 4, 5, 130, 256, 256},
                         {1, 3, 3, 33, 64, 40, 24}}) {
    const Extras lengths{.sink = true,
                         .lengths = std::vector<std::int64_t>(static_cast<std::size_t>(n.B), n.T - 50)};
    run(text_of(n), {n, {.causal = true}}, bf16);
    run(text_of(n) + "lengths", {n, {.window_left = 100}, lengths}, bf16);
    if (n.d <= 64) run(text_of(n), {n, {}}, f32);
  }
  records.expect_recorded();
}

}  // namespace
}  // namespace tg::testing
