// Tests inference with weights in bf16 or f16, for every architecture, with and without a key-value cache.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include "tests/support/files.h"
#include "tests/support/small_models.h"

namespace {

using namespace tg;
using tg::testing::small_models;
using tg::testing::SmallModel;
using tg::testing::TemporaryDirectory;

constexpr std::int64_t length = 12;

const std::vector<std::int32_t> tokens{3, 1, 41, 59, 26, 5, 35, 8, 9, 7, 9, 32};

// Sets parameters in `dtype` to the values of f32 parameters, through a file.
void round_into(const nn::Params& params, const nn::Params& from, const std::string& path) {
  io::save_parameters(path, from.all());
  io::load_parameters(path, params.all(), io::Dtypes::convert);
}

// Compiles a program for the logits of `tokens`, with an empty cache or without a cache.
struct ModelRun {
  Graph graph;
  std::unique_ptr<nn::KvCache> cache;
  std::unique_ptr<nn::CacheCall> call;
  Tensor input = graph.input("tokens", {1, length}, i32), logits;
  Program program;

  ModelRun(const nn::Model& model, bool cached, nn::Precision precision = nn::Precision::full)
      : program(build(model, cached, precision)) {
    if (cached) program.feed({call->cached(), 0});
    program.run({{input, tokens}});
  }
  Program build(const nn::Model& model, bool cached, nn::Precision precision) {
    if (cached) {
      cache = std::make_unique<nn::KvCache>(1, 24);
      call = std::make_unique<nn::CacheCall>(graph, *cache, length);
    }
    const nn::Autocast autocast(graph, precision);
    logits = model.head(model.features(input, {.cache = call.get()}));
    CompileOptions options{.threads = 1};
    if (cached) options.assign = call->assign();
    return compile(graph, {logits}, options);
  }
  std::vector<double> values() const { return program.fetch(logits).to(f64).values<double>(); }
};

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x) sum += e * e;
  return std::sqrt(sum);
}

TEST(HalfWeights, NeedHalfTheMemoryAndGiveTheLogitsUpToRounding) {
  const TemporaryDirectory dir;
  for (const SmallModel& kind : small_models(24))
    for (const DType dtype : {bf16, f16}) {
      nn::Params full(1), half(2, dtype);
      const nn::Model model(full, kind.config), narrow(half, kind.config);
      round_into(half, full, dir / "w.safetensors");
      EXPECT_EQ(2 * half.bytes(), full.bytes());
      const double unit = dtype == bf16 ? 0x1p-8 : 0x1p-11;
      for (const bool cached : {false, true}) {
        const std::vector<double> expected = ModelRun(model, cached).values(),
                                  got = ModelRun(narrow, cached).values();
        std::vector<double> error(got.size());
        for (std::size_t i = 0; i < got.size(); ++i) error[i] = got[i] - expected[i];
        // About 16 tensors per layer, including weights, are rounded by up to a unit each. The sum of n
        // rounding errors is about √n times one error.
        EXPECT_LT(norm(error) / norm(expected), std::sqrt(2 * 16 + 4) * unit) << kind.name << name_of(dtype);
        EXPECT_GT(norm(error), 0);
      }
    }
}

// If gains are 1 and biases are 0, they are exact in both models. Autocast rounds all other weights in the
// same way. Autocast also rounds logits.
TEST(HalfWeights, MatchAutocastOnTheSameWeightsInF32Bitwise) {
  const TemporaryDirectory dir;
  for (const SmallModel& kind : small_models(24))
    for (const nn::Precision precision : {nn::Precision::bf16, nn::Precision::f16}) {
      const DType dtype = precision == nn::Precision::bf16 ? bf16 : f16;
      nn::Params full(1), half(2, dtype);
      const nn::Model model(full, kind.config), narrow(half, kind.config);
      round_into(half, full, dir / "w.safetensors");
      for (const bool cached : {false, true}) {
        const ModelRun expected(model, cached, precision), got(narrow, cached);
        EXPECT_TRUE(got.program.fetch(got.logits)
                        .to(dtype)
                        .same_bits(expected.program.fetch(expected.logits).to(dtype)))
            << kind.name;
      }
    }
}

TEST(HalfWeights, LogitsInF32AreNotRounded) {
  for (const SmallModel& kind : small_models(24)) {
    nn::Params params(1, bf16);
    const nn::Model model(params, kind.config);
    const ModelRun run(model, false);
    ASSERT_EQ(run.logits.dtype(), f32) << kind.name;
    const Array logits = run.program.fetch(run.logits);
    EXPECT_FALSE(logits.to(bf16).to(f32).same_bits(logits)) << kind.name;
  }
}

// A token reads each weight once, in place. No step of the program converts or copies a weight.
TEST(HalfWeights, AreReadInPlace) {
  for (const SmallModel& kind : small_models(24)) {
    nn::Params params(1, bf16);
    const nn::Model model(params, kind.config);
    const ModelRun run(model, true);
    for (const Step& s : run.program.steps()) {
      if (s.op == &matmul_op || s.name.find("embedding") != std::string::npos) continue;
      for (const Arg& in : s.in)
        for (const Parameter& p : params.all())
          EXPECT_TRUE(in.data != p.memory() || p.shape().size() == 1)
              << kind.name << ": " << s.name << " reads " << p.name();
    }
  }
}

TEST(HalfWeights, FilesOf16BitTensorsConvertExactly) {
  const TemporaryDirectory dir;
  const nn::ModelConfig config = small_models(24)[1].config;
  nn::Params half(1, f16), full(2);
  const nn::Model narrow(half, config), model(full, config);
  io::save_parameters(dir / "half.safetensors", half.all());
  io::load_parameters(dir / "half.safetensors", full.all(), io::Dtypes::convert);
  for (std::size_t i = 0; i < half.all().size(); ++i)
    EXPECT_TRUE(full.all()[i].read().same_bits(half.all()[i].read().to(f32)));
}

TEST(HalfWeights, GenerationWorksWithACache) {
  for (const SmallModel& kind : small_models(24)) {
    nn::Params params(1, bf16);
    const nn::Model model(params, kind.config);
    nn::Generator generator(model);
    std::vector<std::int32_t> text{1, 2, 3};
    generator.extend(text, 10, {.temperature = 0}, 1);
    EXPECT_EQ(text.size(), 13u) << kind.name;
    for (const auto& [name, tensor] : generator.cache().tensors()) EXPECT_EQ(tensor.dtype(), bf16) << name;
  }
}

}  // namespace
