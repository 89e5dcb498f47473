// Tests parameters, layers and models: values, names, shapes and gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/models/model_parts.h>
#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using tg::testing::expect_error;

std::vector<double> numbers(const Array& a) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < a.numel(); ++i) out.push_back(a.at(i));
  return out;
}

// A model with every kind of parameter, small enough for numerical differentiation.
nn::ModelConfig tiny() {
  return {.vocabulary = 5, .context = 4, .layers = 2, .heads = 2, .width = 4, .bias = true};
}

const std::vector<std::int32_t> tiny_tokens = {0, 1, 2, 3, 4, 4, 1, 0},
                                tiny_targets = {1, 2, 3, 4, 4, 1, 0, 2};

// Makes weights large. So attention is not uniform, and differences of 1e-3 are small compared with the
// inputs of norms.
void enlarge(const nn::Params& params) {
  for (Parameter p : params.all()) {
    Array a = p.read();
    const bool embedding = p.name().find("transformer.w") == 0;
    for (std::int64_t i = 0; i < a.numel(); ++i)
      a.set(i, p.shape().size() < 2 ? a.at(i) + 0.1 * std::sin(static_cast<double>(i + p.name().size()))
                                    : a.at(i) * (embedding ? 60 : 20));
    p.write(a);
  }
}

TEST(Params, InitialValuesDependOnlyOnSeedAndPath) {
  nn::Params a(7), b(7), other(8);
  b.create("something.else", {3}, nn::Init::normal(1));
  const auto make = [](nn::Params& p) {
    return p.create("h.0.weight", {64, 63}, nn::Init::normal(0.5)).read();
  };
  const Array values = make(a);
  EXPECT_TRUE(values.same_bits(make(b)));
  EXPECT_FALSE(values.same_bits(make(other)));
  EXPECT_FALSE(values.same_bits(a.create("h.1.weight", {64, 63}, nn::Init::normal(0.5)).read()));

  nn::Params wide(7, f64);
  EXPECT_TRUE(make(wide).to(f32).same_bits(values));  // the dtype only rounds
}

// If initial values changed, runs with the same seed would no longer be reproducible.
TEST(Params, InitialValuesOfANameAndASeedAreFixed) {
  nn::Params p(1);
  const Array values = p.create("h.0.weight", {2}, nn::Init::uniform(1)).read();
  EXPECT_NEAR(values.at(0), -0.702547, 1e-6);
  EXPECT_NEAR(values.at(1), 0.809132, 1e-6);
}

TEST(Params, NormalValuesHaveTheirMeanAndDeviation) {
  nn::Params p(1, f64);
  const Array a = p.create("w", {100, 1000}, nn::Init{.mean = 3, .std = 2}).read();
  double mean = 0, square = 0, fourth = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) mean += a.at(i) / 1e5;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double d = (a.at(i) - 3) / 2;
    square += d * d / 1e5;
    fourth += d * d * d * d / 1e5;
  }
  // Tolerances are five standard errors: σ/√n for the mean, √(2/n) for the variance, √(96/n) for the fourth
  // moment.
  EXPECT_NEAR(mean, 3, 5 * 2 / std::sqrt(1e5));
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2 / 1e5));
  EXPECT_NEAR(fourth, 3, 5 * std::sqrt(96 / 1e5));
}

TEST(Params, UsePyTorchsInitialValuesOnRequest) {
  nn::Params p(1, f64);
  const nn::Linear layer(nn::Path(p) / "fc", 100, 300, {.init = nn::Init::pytorch()});
  double mean = 0, square = 0, least = 1, most = -1;
  const std::vector<double> w = numbers(p.all()[0].read());
  for (const double x : w) {
    mean += x / 3e4, square += x * x / 3e4;
    least = std::min(least, x), most = std::max(most, x);
  }
  // Values are uniform in ±1/√100, so the variance is 0.01/3. No value may be outside of this range, and some
  // values must be close to each end.
  EXPECT_NEAR(mean, 0, 5 * 0.1 / std::sqrt(3 * 3e4));
  EXPECT_NEAR(square, 0.01 / 3, 5 * 0.01 * std::sqrt(4. / 45 / 3e4));
  EXPECT_GE(least, -0.1);
  EXPECT_LT(least, -0.099);
  EXPECT_LT(most, 0.1);
  EXPECT_GT(most, 0.099);
  for (const double b : numbers(p.all()[1].read())) {
    EXPECT_LT(std::abs(b), 0.1);
    EXPECT_NE(b, 0);
  }
}

TEST(Path, ErrorsNameTheLayerAndTheLineOfItsRoot) {
  nn::Params p;
  const nn::Path root = p, at = root / "h" / 0 / "attn";
  const std::string line = " (nn_test.cpp:" + std::to_string(__LINE__ - 1) + ")";
  const nn::Linear first(root / "lin", 2, 2);
  expect_error<Error>([&] { nn::Linear(root / "lin", 2, 2); },
                      {"[params] there is already a parameter lin.weight" + line});
  expect_error<ShapeError>([&] { nn::Linear(root / "none", 0, 2); },
                           {"none.weight would have shape [2, 0]" + line});
  expect_error<ShapeError>([&] { nn::SelfAttention(at, 30, 4); },
                           {"[h.0.attn/attention] width 30 is not divisible by 4 heads" + line});
  expect_error<ShapeError>([&] { nn::GroupedAttention(at, 30, 4); }, {"[h.0.attn/attention] width 30", line});
  expect_error<ShapeError>([&] { nn::GroupedAttention(at, 32, 4, {.key_heads = 3}); },
                           {"[h.0.attn/attention] 4 query heads are not a multiple of 3 key heads", line});
  expect_error<ShapeError>(
      [&] {
        nn::GroupedAttention(at, 32, 4, {.rope = {.dims = 4}, .short_frequencies = {1}, .short_length = 9});
      },
      {"[h.0.attn/attention] short_frequencies has the wrong size: got 1, expected half of 4" + line});
  expect_error<ShapeError>(
      [&] {
        nn::LatentAttention(at, 32, 4, {.latent = 8, .short_frequencies = {1, 2, 3}, .short_length = 9});
      },
      {"[h.0.attn/attention] expected half as many short_frequencies as the rotary width, got 3" + line});
  expect_error<ShapeError>([&] { nn::LatentAttention(at, 32, 4, {.latent = 8, .rope_width = 3}); },
                           {"[h.0.attn/attention] the rotary width must be even, got 3" + line});
}

TEST(Params, RefuseASecondParameterOfTheSamePath) {
  nn::Params p;
  p.create("w", {2}, nn::Init::zeros());
  EXPECT_THROW(p.create("w", {3}, nn::Init::zeros()), Error);
  EXPECT_THROW(p.create("empty", {2, 0}, nn::Init::zeros()), ShapeError);
  EXPECT_EQ(p.all().size(), 1u);
  EXPECT_EQ(p.count(), 2);
}

TEST(Linear, MatchesTheProductWithItsTransposedWeight) {
  nn::Params params(1, f64);
  const nn::Linear layer(nn::Path(params) / "fc", 3, 2);
  Parameter weight = params.all()[0], bias = params.all()[1];
  weight.write(Array::of<double>({2, 3}, {1, 2, 3, 4, 5, 6}));
  bias.write(Array::of<double>({2}, {10, 20}));
  Graph g;
  const Tensor x = g.input("x", {2, 1, 3}, f64), r = g.input("r", {2, 1, 2}, f64);
  const std::vector<double> ones = {1, 1, 1, 1, 0, 0};
  const Array y = eval(layer(x), {{x, ones}});
  EXPECT_EQ(y.shape(), (Shape{2, 1, 2}));
  EXPECT_EQ(y.values<double>(), (std::vector<double>{16, 35, 11, 24}));
  const Array added = eval(layer(x, {.residual = r}), {{x, ones}, {r, std::vector<double>{1, 2, 3, 4}}});
  EXPECT_EQ(added.shape(), (Shape{2, 1, 2}));
  EXPECT_EQ(added.values<double>(), (std::vector<double>{17, 37, 14, 28}));
}

// Compares each layer with its definition in plain ops, on the same parameters.
TEST(Layers, MatchTheirDefinitions) {
  nn::Params params(3, f64);
  const nn::Mlp mlp(nn::Path(params) / "mlp", 4, {});
  const nn::GatedMlp gated(nn::Path(params) / "gated", 4, 6, {});
  using enum nn::Activation;
  const nn::Path at = nn::Path(params);
  const nn::Mlp by_tanh(at / "by_tanh", 4, {.inner = 5, .activation = gelu_tanh, .bias = false});
  const nn::Mlp by_silu(at / "by_silu", 4, {.inner = 5, .activation = silu});
  const nn::GatedMlp gated_by_tanh(at / "gated_by_tanh", 4, 6, {.activation = gelu_tanh, .bias = true});
  const nn::GatedMlp gated_by_gelu(at / "gated_by_gelu", 4, 6, {.activation = gelu});
  const nn::RmsNorm norm(nn::Path(params) / "norm", 4, 0.5);
  const nn::LayerNorm centred(nn::Path(params) / "centred", 4, true, 0.25);
  for (Parameter p : params.all()) {
    Array a = p.read();
    for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, std::sin(static_cast<double>(3 * i + 1) + a.at(i)));
    p.write(a);
  }
  Graph g;
  const Tensor x = g.input("x", {2, 3, 4}, f64);
  const auto of = [&](const std::string& name) { return g.param(*params.find(name)); };
  const auto fc = [&](const Tensor& in, const std::string& name) {
    const Tensor y = matmul(in, transpose(of(name + ".weight"), 0, 1));
    return params.find(name + ".bias") ? y + of(name + ".bias") : y;
  };
  const auto gelu_of = [](const Tensor& t) { return 0.5 * t * (1 + erf(t * std::sqrt(0.5))); };
  const auto silu_of = [](const Tensor& t) { return t / (1 + exp(-t)); };
  const auto tanh_of = [](const Tensor& t) {
    return 0.5 * t * (1 + tanh(std::sqrt(2 / M_PI) * (t + 0.044715 * t * t * t)));
  };
  const auto gated_of = [&](const std::string& name, const auto& activation) {
    return fc(activation(fc(x, name + ".gate_proj")) * fc(x, name + ".up_proj"), name + ".down_proj");
  };
  const Tensor d = x - mean(x, {-1}, true);
  const std::pair<Tensor, Tensor> pairs[] = {
      {mlp(x), fc(gelu_of(fc(x, "mlp.c_fc")), "mlp.c_proj")},
      {mlp(x, {.residual = x}), x + fc(gelu_of(fc(x, "mlp.c_fc")), "mlp.c_proj")},
      {by_tanh(x), fc(tanh_of(fc(x, "by_tanh.c_fc")), "by_tanh.c_proj")},
      {by_silu(x), fc(silu_of(fc(x, "by_silu.c_fc")), "by_silu.c_proj")},
      {gated(x), gated_of("gated", silu_of)},
      {gated_by_tanh(x), gated_of("gated_by_tanh", tanh_of)},
      {gated_by_gelu(x), gated_of("gated_by_gelu", gelu_of)},
      {norm(x), x / sqrt(mean(x * x, {-1}, true) + 0.5) * of("norm.weight")},
      {centred(x), d / sqrt(mean(d * d, {-1}, true) + 0.25) * of("centred.weight") + of("centred.bias")}};
  std::vector<Tensor> all;
  for (const auto& [layer, plain] : pairs) all.insert(all.end(), {layer, plain});
  const auto v = eval(all, {{x, reference::random_vector(24, 5)}});
  for (std::size_t i = 0; i < v.size(); i += 2)
    EXPECT_TRUE(reference::close(numbers(v[i]), numbers(v[i + 1]), 1e-14)) << "layer " << i / 2;
}

// Parameter::settings() returns options that affect results but not weights. When a file is loaded, its
// settings are compared with the model's settings.
TEST(Layers, KeepOptionsThatWeightsDoNotShow) {
  using Grouped = nn::GroupedAttention::Options;
  using Latent = nn::LatentAttention::Options;
  using enum nn::Activation;
  const std::string heads = "heads=4 ", turns = "interleaved=false rotate=true ", from = "start=0 ",
                    theta = "theta=10000 ", dims = "dims=4 ",
                    is_short = "short_frequencies=2 1 short_length=8 ";
  const auto grouped = [](const Grouped& o) {
    return [=](const nn::Path& at) { nn::GroupedAttention(at, 16, 4, o); };
  };
  const auto latent = [](Latent o) {
    o.latent = 6, o.rope_width = 4;
    return [=](const nn::Path& at) { nn::LatentAttention(at, 16, 2, o); };
  };
  const auto mlp = [](nn::Activation a) {
    return [=](const nn::Path& at) { nn::Mlp(at, 4, {.activation = a}); };
  };
  const auto gated = [](nn::Activation a) {
    return [=](const nn::Path& at) { nn::GatedMlp(at, 4, 6, {.activation = a}); };
  };
  const auto rms = [](double eps, bool plus_one) {
    return [=](const nn::Path& at) { nn::RmsNorm(at, 4, eps, plus_one); };
  };
  const std::string of_grouped = heads + turns + from + theta;
  const std::pair<std::function<void(const nn::Path&)>, std::string> cases[] = {
      {[](const nn::Path& at) { nn::SelfAttention(at, 16, 4); }, heads},
      {grouped({}), dims + of_grouped},
      {grouped({.window = 8}), dims + of_grouped + "window=8 "},
      {grouped({.scale = 0.25}), dims + heads + "interleaved=false rotate=true scale=0.25 " + from + theta},
      {grouped({.softcap = 30}), dims + heads + turns + "softcap=30 " + from + theta},
      {grouped({.rotate = false}), heads + "rotate=false "},
      {grouped({.rotate = false, .rope = {.dims = 2, .start = 3}, .magnitude = 2}), heads + "rotate=false "},
      {grouped({.rope = {.theta = 500}}), dims + heads + turns + from + "theta=500 "},
      {grouped({.rope = {.interleaved = true}}),
       dims + heads + "interleaved=true rotate=true " + from + theta},
      {grouped({.rope = {.dims = 2}}), "dims=2 " + of_grouped},
      {grouped({.rope = {.start = 3}}), dims + heads + turns + "start=3 " + theta},
      {grouped({.rope = {.dims = 2}, .magnitude = 2}),
       "dims=2 " + heads + "interleaved=false magnitude=2 rotate=true " + from + theta},
      // If all dimensions are rotated, scaling queries and keys by 2 multiplies the factor of the scores:
      // ½·2².
      {grouped({.magnitude = 2}), dims + heads + "interleaved=false rotate=true scale=2 " + from + theta},
      {grouped({.rope = {.frequencies = {1, 0.5}}}), "frequencies=1 0.5 " + heads + turns + from},
      {grouped({.rope = {.frequencies = {1, 0.5}}, .short_frequencies = {2, 1}, .short_length = 8}),
       "frequencies=1 0.5 " + heads + turns + is_short + from},
      {grouped({.short_frequencies = {2, 1}, .short_length = 8}),
       dims + heads + turns + is_short + from + theta},
      {grouped({.rotate = false, .short_frequencies = {2}, .short_length = 8}), heads + "rotate=false "},
      {latent({}), "heads=2 " + theta},
      {latent({.theta = 500}), "heads=2 theta=500 "},
      {latent({.frequencies = {1, 0.5}}), "frequencies=1 0.5 heads=2 "},
      {latent({.frequencies = {1, 0.5}, .short_frequencies = {2, 1}, .short_length = 8}),
       "frequencies=1 0.5 heads=2 " + is_short},
      {latent({.short_frequencies = {2, 1}, .short_length = 8}), "heads=2 " + is_short + theta},
      {latent({.interleaved = false}), "heads=2 interleaved=false " + theta},
      {latent({.magnitude = 2}), "heads=2 magnitude=2 " + theta},
      {latent({.scale = 0.25}), "heads=2 scale=0.25 " + theta},
      {mlp(gelu), ""},
      {mlp(gelu_tanh), "activation=1 "},
      {mlp(silu), "activation=2 "},
      {gated(silu), ""},
      {gated(gelu), "activation=0 "},
      {gated(gelu_tanh), "activation=1 "},
      {[](const nn::Path& at) { nn::LayerNorm(at, 4, true, 0.25); }, "eps=0.25 "},
      {rms(0.25, false), "eps=0.25 "},
      {rms(0.5, true), "eps=0.5 plus_one=true "}};
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    nn::Params params;
    cases[i].first(nn::Path(params) / "at");
    Parameter::Settings all;
    for (const Parameter& p : params.all()) all.insert(p.settings().begin(), p.settings().end());
    std::string kept;
    for (const auto& [name, value] : all)
      if (name.starts_with("at.") &&
          name.find('.', 3) == std::string::npos)  // the settings of an inner norm are not included
        kept += name.substr(3) + "=" + value + " ";
    EXPECT_EQ(kept, cases[i].second) << "case " << i;
  }
}

// A block computes x + f(norm x). The branch reads the normalized input, and its result is added to the
// original input.
TEST(Block, AddsEachBranchToItsInput) {
  const auto layer = [](const char* name, double factor) {
    return nn::Layer(name, [factor](TensorArg x) { return x.tensor() * factor; });
  };
  nn::Params params;
  const nn::Linear fc(nn::Path(params) / "fc", 1, 1, {.bias = false});
  Parameter(params.all()[0]).write(Array::of<float>({1, 1}, {5}));
  Graph g;
  const Tensor x = g.input("x", {1, 1, 1});
  const nn::Block plain(nn::Path(params) / "a",
                        {{layer("norm", 3), layer("f", 2)}, {layer("norm", 10), layer("f", 1)}}, 0);
  const nn::Block fused(nn::Path(params) / "b", {{layer("norm", 3), fc}}, 0);
  const auto v = eval({plain(x), fused(x)}, {{x, 1}});
  EXPECT_EQ(v[0].at(0), (1 + 6) + 70);
  EXPECT_EQ(v[1].at(0), 1 + 15);
}

TEST(Dropped, AppliesOnlyInTraining) {
  Graph g;
  const Tensor x = g.input("x", {1000});
  const auto v = eval({nn::dropped(x, 0.5, nn::Mode::train), nn::dropped(x, 0.5, nn::Mode::evaluate),
                       nn::dropped(x, 0, nn::Mode::train)},
                      {{x, std::vector<float>(1000, 1)}});
  const auto zeros = [](const Array& a) {
    const auto all = numbers(a);
    return std::count(all.begin(), all.end(), 0.0);
  };
  EXPECT_GT(zeros(v[0]), 400);
  EXPECT_EQ(zeros(v[1]), 0);
  EXPECT_EQ(zeros(v[2]), 0);
}

TEST(Linear, ErrorsPointAtTheUsersLine) {
  nn::Params params;
  const nn::Linear layer(nn::Path(params) / "fc", 3, 2);
  Graph g;
  const Tensor x = g.input("x", {2, 4});
  try {
    layer(x);
    FAIL() << "4 channels went into a layer of 3";
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("nn_test.cpp"), std::string::npos) << e.what();
  }
}

TEST(Layers, NameTheirNodes) {
  nn::Params params;
  const nn::Model model(params, tiny());
  Graph g;
  const Tensor logits = model(g.input("tokens", {1, 4}, i32));
  const std::string text = compile(g, {logits}).text();
  EXPECT_NE(text.find("transformer.h.0.attn.c_attn/matmul"), std::string::npos) << text;
  EXPECT_NE(text.find("transformer.h.1.mlp.c_proj/matmul"), std::string::npos) << text;
  EXPECT_NE(text.find("transformer.ln_f/layer_norm"), std::string::npos) << text;
}

TEST(Model, HasTheParametersOfNanoGpt) {
  nn::Params params;
  const nn::Model model(params, {.vocabulary = 65, .layers = 1});
  std::vector<std::string> names;
  for (const Parameter& p : params.all()) names.push_back(p.name() + " " + p.shape().text());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "transformer.wte.weight [65, 128]", "transformer.wpe.weight [64, 128]",
                       "transformer.h.0.ln_1.weight [128]", "transformer.h.0.attn.c_attn.weight [384, 128]",
                       "transformer.h.0.attn.c_proj.weight [128, 128]", "transformer.h.0.ln_2.weight [128]",
                       "transformer.h.0.mlp.c_fc.weight [512, 128]",
                       "transformer.h.0.mlp.c_proj.weight [128, 512]", "transformer.ln_f.weight [128]"}));
  for (const nn::ModelConfig& c :
       {tiny(), nn::ModelConfig{.vocabulary = 7, .tied_head = false}, nn::ModelConfig{.vocabulary = 3},
        nn::ModelConfig{.architecture = nn::Llama{.key_heads = 2}, .vocabulary = 3, .bias = true},
        nn::ModelConfig{.architecture = nn::Llama{.mlp_width = 20}, .vocabulary = 3, .tied_head = false},
        nn::ModelConfig{.architecture = nn::DeepSeek{}, .vocabulary = 3},
        nn::ModelConfig{.architecture = nn::DeepSeek{.query_latent = 9}, .vocabulary = 3, .bias = true}}) {
    nn::Params counted;
    const nn::Model other(counted, c);
    EXPECT_EQ(counted.count(), c.parameters());
  }
}

TEST(Model, HasTheParametersOfLlamaAndDeepSeek) {
  const auto names = [](const nn::ModelConfig& config) {
    nn::Params params;
    const nn::Model model(params, config);
    std::vector<std::string> list;
    for (const Parameter& p : params.all()) list.push_back(p.name() + " " + p.shape().text());
    return list;
  };
  const std::string layer = "model.layers.0.", mlp = layer + "mlp.", attention = layer + "self_attn.";
  EXPECT_EQ(
      names({.architecture = nn::Llama{.key_heads = 2}, .vocabulary = 65, .layers = 1, .tied_head = false}),
      (std::vector<std::string>{"model.embed_tokens.weight [65, 128]", layer + "input_layernorm.weight [128]",
                                attention + "q_proj.weight [128, 128]", attention + "k_proj.weight [64, 128]",
                                attention + "v_proj.weight [64, 128]", attention + "o_proj.weight [128, 128]",
                                layer + "post_attention_layernorm.weight [128]",
                                mlp + "gate_proj.weight [344, 128]", mlp + "up_proj.weight [344, 128]",
                                mlp + "down_proj.weight [128, 344]", "model.norm.weight [128]",
                                "lm_head.weight [65, 128]"}));
  const auto deepseek = names({.architecture = nn::DeepSeek{}, .vocabulary = 65, .layers = 1});
  EXPECT_EQ(deepseek.size(), 12u);
  EXPECT_EQ(deepseek[2], attention + "q_proj.weight [160, 128]");  // 4 heads of size 32 + 8
}

TEST(Model, InitialValuesFollowTheirInitializer) {
  const auto deviation = [](const nn::Params& params, const std::string& name) {
    double square = 0;
    const std::vector<double> values = numbers(params.find(name)->read());
    for (const double x : values) square += x * x;
    return std::sqrt(square / static_cast<double>(values.size()));
  };
  nn::ModelConfig config{.architecture = nn::Llama{}, .vocabulary = 65, .layers = 2, .std = 0.05};
  const std::string layer = "model.layers.1.";
  nn::Params gpt2;
  const nn::Model a(gpt2, config);
  EXPECT_NEAR(deviation(gpt2, layer + "mlp.up_proj.weight"), 0.05, 1e-3);
  EXPECT_NEAR(deviation(gpt2, layer + "mlp.down_proj.weight"), 0.05 / 2, 1e-3);
  EXPECT_NEAR(deviation(gpt2, "model.embed_tokens.weight"), 0.05, 2e-3);
  config.initializer = nn::Initializer::pytorch;
  nn::Params pytorch;
  const nn::Model b(pytorch, config);
  EXPECT_NEAR(deviation(pytorch, layer + "mlp.up_proj.weight"), 1 / std::sqrt(3. * 128), 1e-3);
  EXPECT_NEAR(deviation(pytorch, layer + "mlp.down_proj.weight"), 1 / std::sqrt(3. * 344), 1e-3);
  EXPECT_NEAR(deviation(pytorch, "model.embed_tokens.weight"), 1, 0.04);
}

TEST(Model, RefusesSizesThatDoNotFit) {
  nn::Params params;
  const auto refused = [&](nn::Architecture a) {
    EXPECT_THROW(nn::Model(params, {.architecture = a, .vocabulary = 65}), ShapeError);
  };
  refused(nn::Llama{.key_heads = 3});
  refused(nn::DeepSeek{.latent = 0});
  refused(nn::DeepSeek{.query_latent = -1});
  refused(nn::DeepSeek{.rope_width = 5});
  EXPECT_THROW(nn::Model(params, {.architecture = nn::Llama{}, .vocabulary = 65, .width = 12}), ShapeError);
  EXPECT_THROW(nn::Model(params, {.architecture = nn::Llama{.theta = 0}, .vocabulary = 65}), Error);
  EXPECT_THROW(nn::Model(params, {.vocabulary = 65, .heads = 3}), ShapeError);
  EXPECT_THROW(nn::Model(params, {.vocabulary = 0}), ShapeError);
  EXPECT_THROW(nn::Model(params, {.vocabulary = 65, .dropout = 1}), Error);
  EXPECT_EQ(params.all().size(), 0u);
  const nn::Model model(params, tiny());
  Graph g;
  EXPECT_THROW(model(g.input("long", {1, 5}, i32)), ShapeError);
  EXPECT_NO_THROW(model(g.input("short", {1, 3}, i32)));
}

TEST(Model, StartsWithTheLossOfAGuess) {
  nn::Params params(3);
  const nn::Model model(params, {.vocabulary = 65, .layers = 2});
  Graph g;
  const Tensor x = g.input("x", {4, 64}, i32), y = g.input("y", {4, 64}, i32);
  std::vector<std::int32_t> tokens(4 * 64), targets(4 * 64);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(i * 7 % 65);
    targets[i] = static_cast<std::int32_t>(i * 11 % 65);
  }
  // For any token, logits are N(0, σ²) with σ² = 128·0.02² = 0.05. So log-sum-exp is ln V + σ²/2, and the
  // mean of the 256 target logits is within 5·σ/16 of 0.
  const double loss = eval(cross_entropy(model(x), y), {{x, tokens}, {y, targets}}).at(0);
  EXPECT_NEAR(loss, std::log(65.0) + 0.05 / 2, 5 * std::sqrt(0.05) / 16);
}

TEST(Model, DoesNotAttendToLaterTokens) {
  nn::Params params(1, f64);
  const nn::Model model(params, tiny());
  enlarge(params);
  Graph g;
  const Tensor x = g.input("x", {1, 4}, i32);
  const Tensor logits = model(x);
  const auto run = [&](const std::vector<std::int32_t>& tokens) {
    return numbers(eval(logits, {{x, tokens}}));
  };
  const auto one = run({1, 2, 3, 4}), two = run({1, 2, 0, 1});
  for (int i = 0; i < 2 * 5; ++i) EXPECT_EQ(one[i], two[i]);
  EXPECT_NE(one[2 * 5], two[2 * 5]);
}

TEST(Model, GradientMatchesFourPointDifferences) {
  for (const bool tied : {true, false}) {
    nn::Params params(5, f64);
    nn::ModelConfig config = tiny();
    config.tied_head = tied;
    const nn::Model model(params, config);
    enlarge(params);
    Graph g;
    const Tensor x = g.input("x", {2, 4}, i32), y = g.input("y", {2, 4}, i32);
    const Tensor loss = cross_entropy(model(x), y);
    std::vector<Tensor> leaves;
    for (const Parameter& p : params.all()) leaves.push_back(g.param(p));
    const auto z = gradients(loss, leaves);
    const auto got = eval(z, {{x, tiny_tokens}, {y, tiny_targets}}, {.threads = 1});

    Program forward = compile(g, {loss}, {.threads = 1});
    forward.run({{x, tiny_tokens}, {y, tiny_targets}});
    for (std::size_t i = 0; i < params.all().size(); ++i) {
      Parameter p = params.all()[i];
      std::vector<double> values = p.read().values<double>();
      const auto expected = reference::four_point_gradient(values, [&] {
        p.write(Array::of(p.shape(), values));
        forward.run();
        return forward.item<double>(loss);
      });
      p.write(Array::of(p.shape(), values));
      EXPECT_TRUE(reference::close(got[i].values<double>(), expected, reference::kDifferenceTolerance))
          << p.name();
    }
  }
}

TEST(Model, TiedWeightsGetTheGradientsOfBothUses) {
  nn::ModelConfig config = tiny();
  nn::Params tied(5, f64), untied(5, f64);
  const nn::Model a(tied, config);
  config.tied_head = false;
  const nn::Model b(untied, config);
  Parameter(*untied.find("lm_head.weight")).write(tied.find("transformer.wte.weight")->read());
  const auto embedding_gradients = [](const nn::Model& model, const nn::Params& params, bool with_head) {
    Graph g;
    const Tensor x = g.input("x", {2, 4}, i32), y = g.input("y", {2, 4}, i32);
    const Tensor loss = cross_entropy(model(x), y);
    std::vector<Tensor> leaves = {g.param(*params.find("transformer.wte.weight"))};
    if (with_head) leaves.push_back(g.param(*params.find("lm_head.weight")));
    return eval(gradients(loss, leaves), {{x, tiny_tokens}, {y, tiny_targets}});
  };
  const auto together = numbers(embedding_gradients(a, tied, false)[0]);
  const auto apart = embedding_gradients(b, untied, true);
  std::vector<double> sum = numbers(apart[0]);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_NE(sum[i], 0);
    sum[i] += apart[1].at(static_cast<std::int64_t>(i));
  }
  EXPECT_TRUE(reference::close(together, sum));
}

}  // namespace
