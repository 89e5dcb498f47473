// Tests models and their components in detail: the smallest and largest accepted sizes, the formulas of RoPE
// scaling, and dropout. Also tests low-rank adapters, precision scopes, low-precision copies and the
// functions of a language model.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/base/random.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/models/model_parts.h>
#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"

namespace {

using namespace tg;
using namespace tg::nn;
using Vector = std::vector<double>;

constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();

// Returns the error without the line of the call, or "" if there is no error.
std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    const std::string what = e.what();
    return what.substr(0, what.find(" (model_behaviour"));
  }
  return "";
}

std::string checked(const ModelConfig& c) {
  return message([&] { c.check(); });
}
std::string checked(Architecture a, std::int64_t heads = 2, std::int64_t width = 8) {
  return checked({.architecture = std::move(a), .vocabulary = 3, .heads = heads, .width = width});
}

TEST(Refusals, ModelsRefuseSizesNextToValidOnes) {
  for (const ModelConfig& c :
       {ModelConfig{.vocabulary = 1, .context = 1, .layers = 1, .heads = 1, .width = 1},
        ModelConfig{.vocabulary = most, .context = most, .layers = most}})
    EXPECT_EQ(checked(c), "");
  const auto size = [](const std::string& name, std::int64_t got) {
    return "[model] " + name + " is out of range: got " + std::to_string(got) +
           ", expected a whole number from 1 to 2147483647";
  };
  const std::pair<const char*, std::int64_t ModelConfig::*> sizes[] = {
      {"vocabulary", &ModelConfig::vocabulary},
      {"context", &ModelConfig::context},
      {"number of layers", &ModelConfig::layers},
      {"number of heads", &ModelConfig::heads},
      {"width", &ModelConfig::width}};
  for (const auto& [name, member] : sizes)
    for (const std::int64_t bad : {std::int64_t{0}, most + 1}) {
      ModelConfig c{.vocabulary = 3};
      c.*member = bad;
      EXPECT_EQ(checked(c), size(name, bad));
    }
  const std::string divided = "[model] width 9 is not divisible by 2 heads";
  EXPECT_EQ(checked(Gpt{}, 2, 9), divided);
  EXPECT_EQ(checked(Llama{}, 2, 9), divided);
  EXPECT_EQ(checked(DeepSeek{}, 2, 9), divided);
  EXPECT_EQ(checked(Llama{.head_width = 2}, 2, 9), "");
  EXPECT_EQ(checked(DeepSeek{.head_width = 2}, 2, 9), "");

  EXPECT_EQ(checked(Gpt{.mlp_width = 1}), "");
  EXPECT_EQ(checked(Gpt{.mlp_width = -1}), size("width of the MLP", -1));
  EXPECT_EQ(checked(Gpt{.mlp_width = most + 1}), size("width of the MLP", most + 1));
  EXPECT_EQ(checked(Gpt{.activation = "relu"}), "[activation] got 'relu', expected gelu, gelu_tanh or silu");
  EXPECT_EQ(checked(Gpt{.eps = 0}), "");

  const std::string pairs = "[model] heads of width 3 have no rotary pairs";
  EXPECT_EQ(checked(Llama{}, 2, 6), pairs);
  EXPECT_EQ(checked(DeepSeek{}, 2, 6), pairs);
  EXPECT_EQ(checked(Llama{.head_width = 3}), pairs);
  EXPECT_EQ(checked(DeepSeek{.head_width = 3}), pairs);
  for (const std::int64_t bad : {std::int64_t{-2}, most + 1}) {
    EXPECT_EQ(checked(Llama{.head_width = bad}), size("width of a head", bad));
    EXPECT_EQ(checked(DeepSeek{.head_width = bad}), size("width of a head", bad));
    EXPECT_EQ(checked(Llama{.mlp_width = bad}), size("width of the MLP", bad));
    EXPECT_EQ(checked(DeepSeek{.mlp_width = bad}), size("width of the MLP", bad));
    EXPECT_EQ(checked(DeepSeek{.value_width = bad}), size("width of values", bad));
    EXPECT_EQ(checked(DeepSeek{.latent = bad}), size("width of the latent", bad));
    EXPECT_EQ(checked(DeepSeek{.query_latent = bad}), size("width of the queries' latent", bad));
    EXPECT_EQ(checked(DeepSeek{.rope_width = bad}), size("rotary width", bad));
  }
  EXPECT_EQ(checked(DeepSeek{.latent = 1, .query_latent = 1, .rope_width = 2, .value_width = 1}), "");
  EXPECT_EQ(checked(DeepSeek{.latent = 0}), size("width of the latent", 0));
  EXPECT_EQ(checked(DeepSeek{.rope_width = 5}), "[model] the rotary width must be even and positive, got 5");

  EXPECT_EQ(checked(Llama{.qk_norm = "all"}), "[model] qk_norm: got 'all', expected none, head or whole");
  EXPECT_EQ(checked(Llama{.norms = "none"}), "[model] norms: got 'none', expected before, after or both");
  EXPECT_EQ(checked(Llama{.activation = "relu"}),
            "[activation] got 'relu', expected gelu, gelu_tanh or silu");
  for (const char* good : {"none", "head", "whole"}) EXPECT_EQ(checked(Llama{.qk_norm = good}), "");
  for (const char* good : {"before", "after", "both"}) EXPECT_EQ(checked(Llama{.norms = good}), "");
  for (const char* good : {"gelu", "gelu_tanh", "silu"}) EXPECT_EQ(checked(Llama{.activation = good}), "");
  for (const std::int64_t good : {0, 1, 2}) EXPECT_EQ(checked(Llama{.key_heads = good}), "");
  for (const std::int64_t bad : {-1, -2, 3, 4}) EXPECT_NE(checked(Llama{.key_heads = bad}), "") << bad;
  EXPECT_EQ(checked(Llama{.windows = {0, 1, most + 1}}), "");
  EXPECT_NE(checked(Llama{.windows = {1, -1}}), "");
  EXPECT_EQ(checked(Llama{.rotary_width = 2}), "");
  EXPECT_EQ(checked(Llama{.rotary_width = 4}), "");
  for (const std::int64_t bad : {-2, 1, 3, 6}) EXPECT_NE(checked(Llama{.rotary_width = bad}), "") << bad;
  EXPECT_EQ(checked(Llama{.rotated = {0, 1, 1}}), "");
  EXPECT_EQ(checked(Llama{.window_theta = 0}), "");
  EXPECT_EQ(checked(Llama{.window_theta = 5}), "");
  EXPECT_EQ(checked(Llama{.attention_scale = 0}), "");
  EXPECT_EQ(checked(DeepSeek{.attention_scale = 0.5}), "");
}

// Each mistake must be reported. If a config has two mistakes, the mistake that is earlier in this list must
// be reported.
template <class T>
void expect_first(const T& valid, const std::vector<std::function<void(T&)>>& mistakes,
                  const std::function<std::string(const T&)>& check) {
  EXPECT_EQ(check(valid), "");
  std::vector<std::string> alone;
  for (const auto& mistake : mistakes) {
    T one = valid;
    mistake(one);
    alone.push_back(check(one));
    EXPECT_NE(alone.back(), "") << alone.size();
  }
  for (std::size_t i = 0; i < mistakes.size(); ++i)
    for (std::size_t k = i + 1; k < mistakes.size(); ++k) {
      T two = valid;
      mistakes[k](two), mistakes[i](two);
      EXPECT_EQ(check(two), alone[i]) << i << " and " << k;
    }
}

TEST(Refusals, TheFirstMistakeIsReported) {
  expect_first<ModelConfig>({.vocabulary = 3},
                            {[](auto& c) { c.vocabulary = 0; }, [](auto& c) { c.context = 0; },
                             [](auto& c) { c.layers = 0; }, [](auto& c) { c.heads = 0; },
                             [](auto& c) { c.width = 0; }, [](auto& c) { c.architecture = Gpt{.eps = -1}; },
                             [](auto& c) { c.dropout = 2; }, [](auto& c) { c.std = -1; }},
                            [](const ModelConfig& c) { return checked(c); });
  const auto of = [](const auto& a) { return checked(a); };
  expect_first<Gpt>({},
                    {[](auto& a) { a.activation = "relu"; }, [](auto& a) { a.mlp_width = -1; },
                     [](auto& a) { a.eps = -1; }},
                    of);
  expect_first<Llama>({},
                      {[](auto& a) { a.activation = "relu"; }, [](auto& a) { a.norms = "none"; },
                       [](auto& a) { a.mlp_width = -1; }, [](auto& a) { a.eps = -1; },
                       [](auto& a) { a.embedding_scale = 0; }, [](auto& a) { a.logit_softcap = -1; },
                       [](auto& a) { a.qk_norm = "all"; }, [](auto& a) { a.rotary_width = 3; },
                       [](auto& a) { a.theta = 0; }, [](auto& a) { a.window_theta = -1; },
                       [](auto& a) { a.scaling.type = "ntk"; }, [](auto& a) { a.key_heads = -1; },
                       [](auto& a) {
                         a.windows = {1, -1};
                       },
                       [](auto& a) { a.attention_scale = -1; }, [](auto& a) { a.attention_softcap = -1; }},
                      of);
  expect_first<DeepSeek>({},
                         {[](auto& a) { a.mlp_width = -1; }, [](auto& a) { a.eps = -1; },
                          [](auto& a) { a.head_width = 3; }, [](auto& a) { a.theta = 0; },
                          [](auto& a) { a.value_width = -1; }, [](auto& a) { a.attention_scale = -1; },
                          [](auto& a) { a.latent = 0; }, [](auto& a) { a.query_latent = -1; },
                          [](auto& a) { a.rope_width = 0; }, [](auto& a) { a.scaling.type = "ntk"; }},
                         of);
  // Components of a model, constructed directly.
  const Layer layer("part", [](TensorArg x) { return x.tensor(); });
  expect_first<ModelParts>(
      {.context = 1, .tokens = layer, .blocks = {layer}, .head = layer},
      {[](auto& p) { p.tokens = {}; }, [](auto& p) { p.head = {}; }, [](auto& p) { p.blocks.emplace_back(); },
       [](auto& p) { p.context = 0; }, [](auto& p) { p.dropout = 1; }},
      [](const ModelParts& p) {
        Params params;
        return message([&] { Model(Path(params), p); });
      });
}

TEST(Refusals, LayersRefuseSizesNextToValidOnes) {
  const auto made = [](const auto& make) {
    return message([&] {
      Params params = Params::counting();
      make(Path(params) / "at");
    });
  };
  const auto grouped = [&](GroupedAttention::Options o, std::int64_t heads = 4) {
    return made([&](const Path& at) { GroupedAttention(at, 16, heads, o); });
  };
  const auto heads_error = [](std::int64_t heads, std::int64_t keys, std::int64_t d) {
    return "[at/attention] " + std::to_string(heads) + " query heads are not a multiple of " +
           std::to_string(keys) + " key heads, or their width " + std::to_string(d) + " is not positive";
  };
  EXPECT_EQ(grouped({.key_heads = 1, .head_width = 2}), "");
  EXPECT_EQ(grouped({.key_heads = 4}), "");
  EXPECT_EQ(grouped({.key_heads = -1}), heads_error(4, -1, 4));
  EXPECT_EQ(grouped({.key_heads = -4, .head_width = 2}), heads_error(4, -4, 2));
  EXPECT_EQ(grouped({.key_heads = 3}), heads_error(4, 3, 4));
  EXPECT_EQ(grouped({.head_width = -1}), heads_error(4, 4, -1));
  EXPECT_EQ(grouped({}, 3), "[at/attention] width 16 is not divisible by 3 heads");
  EXPECT_EQ(grouped({}, 0), "[at/attention] width 16 is not divisible by 0 heads");
  EXPECT_EQ(grouped({}, -4), "[at/attention] width 16 is not divisible by -4 heads");
  EXPECT_EQ(grouped({}, 16), "");
  EXPECT_EQ(grouped({.short_frequencies = {1, 2}, .short_length = 1}), "");
  const std::string short_error = "[at/attention] short_frequencies has the wrong size: got ";
  EXPECT_EQ(grouped({.short_frequencies = {1}, .short_length = 1}), short_error + "1, expected half of 4");
  EXPECT_EQ(grouped({.rope = {.dims = 2}, .short_frequencies = {1, 2}, .short_length = 1}),
            short_error + "2, expected half of 2");
  EXPECT_EQ(grouped({.rope = {.frequencies = {1}}, .short_frequencies = {1, 2}, .short_length = 1}),
            short_error + "2, expected half of 2");
  EXPECT_EQ(grouped({.head_width = 6, .short_frequencies = {1, 2, 3}, .short_length = 1}), "");
  EXPECT_EQ(grouped({.head_width = 6, .short_frequencies = {1, 2, 3, 4}, .short_length = 1}),
            short_error + "4, expected half of 6");
  EXPECT_EQ(grouped({.short_frequencies = {1}}), "");
  EXPECT_EQ(grouped({.rotate = false, .short_frequencies = {1}, .short_length = 1}), "");
  const auto self = [&](std::int64_t width, std::int64_t heads) {
    return made([&](const Path& at) { SelfAttention(at, width, heads); });
  };
  EXPECT_EQ(self(16, 1), "");
  EXPECT_EQ(self(16, 5), "[at/attention] width 16 is not divisible by 5 heads");
  Params params;
  EXPECT_NE(message([&] { SelfAttention(Path(params) / "at", 16, 4, {.dropout = 1}); }), "");
  for (const Parameter& p : params.all()) EXPECT_TRUE(p.settings().empty()) << p.name();
  EXPECT_EQ(self(most / 3 + 1, 1), "[layer] sizes 3 and 715827883: expected a product below 2^31");
  EXPECT_EQ(made([&](const Path& at) { Mlp(at, most / 4 + 1, {}); }),
            "[layer] sizes 4 and 536870912: expected a product below 2^31");
  EXPECT_EQ(message([] { nn::detail::product(-1, 0); }),
            "[layer] sizes -1 and 0: expected a product below 2^31");
  EXPECT_EQ(message([] { nn::detail::product(0, -1); }),
            "[layer] sizes 0 and -1: expected a product below 2^31");
  EXPECT_NE(message([] { nn::detail::product(std::int64_t{1} << 40, std::int64_t{1} << 40); }), "");
  EXPECT_EQ(nn::detail::product(0, 5), 0);
  EXPECT_EQ(nn::detail::product(1, most), most);

  EXPECT_EQ(grouped({.head_width = most / 4 + 1}),
            "[layer] sizes 4 and 536870912: expected a product below 2^31");

  const auto latent = [&](LatentAttention::Options o, std::int64_t heads = 4) {
    return made([&](const Path& at) { LatentAttention(at, 16, heads, o); });
  };
  const auto error = [](const std::string& what) { return "[at/attention] " + what; };
  EXPECT_EQ(latent({.latent = 1, .query_latent = 1, .rope_width = 2, .head_width = 2, .value_width = 1}), "");
  EXPECT_EQ(latent({}, 0), error("width 16 is not divisible by 0 heads"));
  EXPECT_EQ(latent({.head_width = 2}, 0), error("expected a positive number of heads, got 0"));
  EXPECT_EQ(latent({.head_width = 2}, 1), "");
  EXPECT_EQ(latent({.latent = 0}), error("expected a positive width of the latent, got 0"));
  EXPECT_EQ(latent({.query_latent = -1}),
            error("the width of the queries' latent must not be negative, got -1"));
  EXPECT_EQ(latent({.value_width = -1}), error("expected a positive width of values, got -1"));
  for (const std::int64_t bad : {-2, 0, 1, 3})
    EXPECT_EQ(latent({.rope_width = bad}),
              error("the rotary width must be even, got " + std::to_string(bad)));
  for (const std::int64_t bad : {-2, 1, 3})
    EXPECT_EQ(latent({.head_width = bad, .value_width = 1}),
              error("a head's width must be even, got " + std::to_string(bad)));
  EXPECT_EQ(latent({.rope_width = 4, .frequencies = {1, 2}}), "");
  EXPECT_EQ(latent({.rope_width = 4, .frequencies = {1, 2, 3}}),
            error("expected half as many frequencies as the rotary width, got 3"));
  EXPECT_EQ(latent({.rope_width = 4, .short_frequencies = {1}}), "");
  EXPECT_EQ(latent({.rope_width = 4, .short_frequencies = {1}, .short_length = 1}),
            error("expected half as many short_frequencies as the rotary width, got 1"));
  EXPECT_EQ(latent({.latent = most + 1}), error("expected sizes below 2^31, got 2147483648"));
  EXPECT_EQ(latent({.query_latent = most + 1}), error("expected sizes below 2^31, got 2147483648"));
  EXPECT_EQ(latent({.value_width = most + 1}), error("expected sizes below 2^31, got 2147483648"));
  EXPECT_EQ(latent({.rope_width = most + 1}), error("expected sizes below 2^31, got 2147483648"));
  EXPECT_EQ(latent({.head_width = most + 1}), error("expected sizes below 2^31, got 2147483648"));
  EXPECT_EQ(latent({.rope_width = 4, .head_width = most / 4 - 1}),
            "[layer] sizes 4 and 536870914: expected a product below 2^31");
  EXPECT_EQ(latent({.eps = 0}), "");
  EXPECT_EQ(made([](const Path& at) { LayerNorm(at, 4, true, 0); }), "");
  EXPECT_EQ(made([](const Path& at) { RmsNorm(at, 4, 0); }), "");
}

// ---- RoPE scaling

// Implements the formulas of nn/models/rotary_stack.h in plain code.
Vector plain_frequencies(const RopeScaling& s, std::int64_t d, double theta, std::int64_t context) {
  const double pi = std::numbers::pi, c = s.first_context;
  Vector omega;
  const auto pair = [&](double rotations) {  // the pair that makes this number of rotations in the original
                                             // context
    return double(d) * std::log(c / (2 * pi * rotations)) / (2 * std::log(theta));
  };
  double low = pair(s.beta_fast), high = pair(s.beta_slow);
  if (s.whole_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(0.0, low), high = std::min(double(d) - 1, high);
  if (low == high) high = low + 0.001;
  for (std::int64_t i = 0; i < d / 2; ++i) {
    const double w = std::pow(theta, -2 * double(i) / double(d)), wave = 2 * pi / w;
    double share = 0;  // the weight of ω / factor
    if (s.type == "linear") share = 1;
    if (s.type == "llama3" && wave >= c / s.high_frequency)
      share = wave > c / s.low_frequency
                  ? 1
                  : 1 - (c / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
    if (s.type == "yarn") share = std::min(1.0, std::max(0.0, (double(i) - low) / (high - low)));
    omega.push_back((1 - share) * w + share * w / s.factor);
    if (s.type == "longrope")
      omega.back() =
          w / (double(context) > c ? s.long_factors : s.short_factors)[static_cast<std::size_t>(i)];
  }
  return omega;
}

TEST(RopeScaling, FollowsItsFormulas) {
  const RopeScaling all[] = {
      {},
      {.type = "linear", .factor = 3},
      {.type = "llama3", .factor = 8, .first_context = 64},
      {.type = "llama3", .factor = 8, .first_context = 300, .low_frequency = 0.5, .high_frequency = 9},
      {.type = "yarn", .factor = 4, .first_context = 64},
      {.type = "yarn", .factor = 4, .first_context = 5000},
      {.type = "yarn", .factor = 4, .first_context = 5000, .whole_pairs = false},
      {.type = "yarn",
       .factor = 4,
       .first_context = 900,
       .beta_fast = 8,
       .beta_slow = 2,
       .whole_pairs = false},
      {.type = "yarn",
       .factor = 4,
       .first_context = 6,
       .beta_fast = 32,
       .beta_slow = 16},                                     // both bounds at 0
      {.type = "yarn", .factor = 4, .first_context = 1e12},  // beyond the last pair
      {.type = "yarn",
       .factor = 4,
       .first_context = 100,
       .beta_fast = 3,
       .beta_slow = 3,
       .whole_pairs = false},
      {.type = "longrope",
       .first_context = 40,
       .short_factors = {1, 2, 3, 4, 5, 6, 7, 8},
       .long_factors = {8, 7, 6, 5, 4, 3, 2, 1}}};
  for (std::size_t n = 0; n < std::size(all); ++n)
    for (const double theta : {10000., 50.})
      for (const std::int64_t context : {39, 40, 41, 1000}) {
        const Vector got = all[n].frequencies(16, theta, context),
                     expected = plain_frequencies(all[n], 16, theta, context);
        ASSERT_EQ(got.size(), 8u);
        for (std::size_t i = 0; i < 8; ++i)
          EXPECT_NEAR(got[i], expected[i], 1e-12 * expected[i]) << n << ", " << i;
      }
}

// If both bounds are equal, the upper bound is increased by 0.001. A pair between the bounds is interpolated.
TEST(RopeScaling, EqualBoundsOfYarnAreSeparatedByOneThousandth) {
  RopeScaling s{.type = "yarn", .factor = 4, .beta_fast = 3, .beta_slow = 3, .whole_pairs = false};
  s.first_context =
      2 * std::numbers::pi * 3 * std::pow(50., 2 * 2.9996 / 16);  // the lower bound is pair 2.9996
  const double w = std::pow(50., -6. / 16);
  EXPECT_NEAR(s.frequencies(16, 50, 64)[3], 0.6 * w + 0.4 * w / 4, 1e-9);
}

TEST(RopeScaling, ShortLengthIsTheFirstContextOfALongerLongrope) {
  const auto length = [](const char* type, double first, std::int64_t context) {
    return RopeScaling{.type = type, .first_context = first}.short_length(context);
  };
  EXPECT_EQ(length("longrope", 40, 41), 40);
  EXPECT_EQ(length("longrope", 40.5, 41), 40);
  EXPECT_EQ(length("longrope", 40, 40), 0);
  EXPECT_EQ(length("longrope", 1, 2), 1);
  EXPECT_EQ(length("longrope", 0.5, 41), 0);
  EXPECT_EQ(length("yarn", 40, 41), 0);
  EXPECT_TRUE(RopeScaling().is_none());
  EXPECT_FALSE((RopeScaling{.type = "linear"}.is_none()));
}

TEST(RopeScaling, RefusesNumbersThatTheFormulasCannotUse) {
  const auto check = [](const RopeScaling& s) { return message([&] { s.check(4); }); };
  EXPECT_EQ(check({}), "");
  EXPECT_EQ(check({.type = "ntk"}),
            "[model] rope scaling: got type 'ntk', expected none, linear, llama3, yarn or longrope");
  EXPECT_EQ(check({.type = "llama3", .first_context = 8, .low_frequency = 2, .high_frequency = 2}),
            "[model] rope scaling: expected a low frequency below the high one, got 2.000000 and 2.000000");
  EXPECT_EQ(check({.type = "yarn", .first_context = 8, .low_frequency = 2, .high_frequency = 2}), "");
  EXPECT_EQ(check({.type = "none", .first_context = -5}), "");
  EXPECT_EQ(check({.type = "linear", .first_context = 0}), "");
  for (const char* type : {"llama3", "yarn", "longrope"})
    EXPECT_NE(check({.type = type, .first_context = 0}), "") << type;
  EXPECT_EQ(check({.type = "longrope", .first_context = 8, .short_factors = {1, 2}, .long_factors = {1, 2}}),
            "");
  EXPECT_EQ(check({.type = "longrope", .first_context = 8, .short_factors = {1, 2}, .long_factors = {1}}),
            "[model] rope scaling: got 1 factors, expected one for each of 2 pairs");
  EXPECT_EQ(
      check({.type = "longrope", .first_context = 8, .short_factors = {1, 2, 3}, .long_factors = {1, 2}}),
      "[model] rope scaling: got 3 factors, expected one for each of 2 pairs");
  EXPECT_EQ(check({.short_factors = {1}}), "");
  const RopeScaling few{
      .type = "longrope", .first_context = 8, .short_factors = {1, 2}, .long_factors = {1, 2}};
  EXPECT_EQ(message([&] { few.frequencies(6, 1e4, 16); }),
            "[model] rope scaling: got 2 factors, expected one for each of 3 pairs");
}

// Reads the frequencies, windows, scales and softcaps of each layer from its nodes.
std::string attention_nodes(const ModelConfig& c, std::int64_t length, Mode mode = Mode::evaluate) {
  Params params;
  const Model model(params, c);
  Graph g;
  model(g.input("tokens", {1, length}, i32), {.mode = mode});
  std::string text;
  for (const Node& n : g.nodes()) {
    if (n.op == &rope_op) text += "rope " + n.attrs.text() + "; ";
    if (n.op == &flash_attn_op) text += "attention " + n.attrs.text() + "\n";
  }
  return text;
}

TEST(Llama, LayersAlternateWindowsAndRotations) {
  const auto text = [](Llama l, std::int64_t length = 6) {
    return attention_nodes(
        {.architecture = std::move(l), .vocabulary = 7, .context = 8, .layers = 3, .heads = 2, .width = 8},
        length);
  };
  const auto times = [](const std::string& s, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = s.find(part); at != std::string::npos; at = s.find(part, at + 1)) ++n;
    return n;
  };
  const std::string plain = text({});
  EXPECT_EQ(times(plain, "rope "), 6u) << plain;
  EXPECT_EQ(times(plain, "window_left=-1"), 3u);
  EXPECT_EQ(times(plain, "causal=true"), 3u);
  EXPECT_EQ(times(plain, "scale=0.5"), 3u) << plain;  // 1/√4
  const std::string windows = text({.windows = {3, 0}});
  EXPECT_EQ(times(windows, "window_left=2"), 2u) << windows;
  EXPECT_EQ(times(text({.rotated = {0, 1}}), "rope "), 2u);
  EXPECT_EQ(times(text({.rotated = {0}}), "rope "), 0u);
  EXPECT_EQ(times(text({.attention_scale = 0.25}), "scale=0.25"), 3u);
  EXPECT_EQ(times(text({.attention_softcap = 30}), "softcap=30"), 3u);
  // Layers with a window have a different theta, and their frequencies are not scaled.
  const auto frequencies = [](const RopeScaling& s, double theta, std::int64_t d = 4,
                              std::int64_t context = 8) {
    std::string list;
    for (const double w : s.frequencies(d, theta, context))
      list += (list.empty() ? "" : " ") + tg::detail::attr_text(w);
    return "\"" + list + "\"";
  };
  const RopeScaling linear{.type = "linear", .factor = 4};
  const std::string local = text({.windows = {3, 0}, .window_theta = 100, .scaling = linear});
  EXPECT_EQ(times(local, frequencies({}, 100)), 4u) << local;
  EXPECT_EQ(times(local, frequencies(linear, 10000)), 2u) << local;
  const std::string all = text({.windows = {3, 0}, .scaling = linear});
  EXPECT_EQ(times(all, frequencies(linear, 10000)), 6u) << all;
  EXPECT_EQ(times(text({.theta = 77}), frequencies({}, 77)), 6u);
  EXPECT_EQ(times(text({.rotary_width = 2, .scaling = linear}), frequencies(linear, 10000, 2)), 6u);
  EXPECT_EQ(times(text({.rotary_width = 2}), frequencies({}, 10000, 2)), 6u);
  EXPECT_EQ(times(text({.head_width = 6, .scaling = linear}), frequencies(linear, 10000, 6)), 6u);
  // A magnitude m multiplies scores by m²: 0.5·1.5².
  const RopeScaling yarn{.type = "yarn", .factor = 2, .first_context = 4, .magnitude = 1.5};
  EXPECT_EQ(times(text({.scaling = yarn}), "scale=1.125"), 3u) << text({.scaling = yarn});
  // LongRoPE has two sets of frequencies.
  const RopeScaling longrope{
      .type = "longrope", .first_context = 5, .short_factors = {1, 2}, .long_factors = {3, 4}};
  EXPECT_EQ(times(text({.scaling = longrope}, 5), frequencies(longrope, 10000, 4, 5)), 6u);
  EXPECT_EQ(times(text({.scaling = longrope}, 6), frequencies(longrope, 10000, 4, 8)), 6u);
}

TEST(DeepSeek, PassesItsSettingsToAttention) {
  const auto text = [](DeepSeek s, std::int64_t length = 6) {
    return attention_nodes(
        {.architecture = std::move(s), .vocabulary = 7, .context = 8, .layers = 1, .heads = 2, .width = 8},
        length);
  };
  const auto has = [](const std::string& s, const std::string& part) {
    return s.find(part) != std::string::npos;
  };
  const auto list = [](const Vector& omega) {
    std::string all;
    for (const double w : omega) all += (all.empty() ? "" : " ") + tg::detail::attr_text(w);
    return all;
  };
  const DeepSeek small{.latent = 6, .rope_width = 4};
  DeepSeek s = small;
  s.attention_scale = 0.125;
  EXPECT_TRUE(has(text(s), "scale=0.125")) << text(s);
  s = small, s.theta = 50;
  EXPECT_TRUE(has(text(s), list(rope_frequencies(4, 50)))) << text(s);
  s.scaling = {.type = "linear", .factor = 4};
  EXPECT_TRUE(has(text(s), list(s.scaling.frequencies(4, 50, 8)))) << text(s);
  EXPECT_TRUE(
      has(text(s), "\"0 0 "));  // frequencies of complete queries; their first numbers are not rotated
  s.interleaved = false;
  EXPECT_FALSE(has(text(s), "\"0 0 "));
  s.scaling = {.type = "longrope", .first_context = 5, .short_factors = {1, 2}, .long_factors = {3, 4}};
  EXPECT_TRUE(has(text(s, 5), list(s.scaling.frequencies(4, 50, 5)))) << text(s, 5);
  EXPECT_TRUE(has(text(s, 6), list(s.scaling.frequencies(4, 50, 8))));
}

// The original context of LongRoPE is one token, the shortest possible.
TEST(RopeScaling, ASingleTokenContextIsKept) {
  const RopeScaling s{
      .type = "longrope", .first_context = 1, .short_factors = {1, 2}, .long_factors = {3, 4}};
  for (const Architecture& a : {Architecture(Llama{.scaling = s}),
                                Architecture(DeepSeek{.latent = 6, .rope_width = 4, .scaling = s})}) {
    Params params;
    const Model model(
        params, {.architecture = a, .vocabulary = 7, .context = 8, .layers = 1, .heads = 2, .width = 8});
    std::string kept;
    for (const Parameter& p : params.all())
      for (const auto& [name, value] : p.settings())
        if (name.find(".short_") != std::string::npos)
          kept += name.substr(name.rfind('.') + 1) + "=" + value + " ";
    std::string frequencies;
    for (const double w : s.frequencies(4, 10000, 1))
      frequencies += (frequencies.empty() ? "" : " ") + tg::detail::attr_text(w);
    EXPECT_EQ(kept, "short_frequencies=" + frequencies + " short_length=1 ") << a.name();
  }
}

// ---- Dropout

// The last GEMM of a layer adds the residual, unless dropout or a norm follows the GEMM.
TEST(Dropout, BlocksWithoutItAddInTheirProducts) {
  for (const Mode mode : {Mode::evaluate, Mode::train})
    for (const double dropout : {0., 0.25})
      for (const char* norms : {"before", "after"}) {
        Params params;
        const Model model(params, {.architecture = Llama{.norms = norms},
                                   .vocabulary = 7,
                                   .context = 8,
                                   .layers = 2,
                                   .heads = 2,
                                   .width = 8,
                                   .dropout = dropout});
        Graph g;
        model(g.input("tokens", {1, 4}, i32), {.mode = mode});
        int adds = 0;
        for (const Node& n : g.nodes()) adds += n.op == &add_op;
        const bool is_between = norms == std::string("after") || (mode == Mode::train && dropout > 0);
        EXPECT_EQ(adds, is_between ? 4 : 0) << norms << ", dropout " << dropout;
      }
}

TEST(Dropout, AppliesToSumsAndAttentionInTraining) {
  for (const auto& [architecture, sums] : {std::pair<Architecture, int>{Gpt{}, 1 + 2 * 2},
                                           {Llama{.norms = "both"}, 1 + 2 * 2},
                                           {DeepSeek{}, 1 + 2 * 2}})
    for (const Mode mode : {Mode::evaluate, Mode::train}) {
      Params params;
      const Model model(params, {.architecture = architecture,
                                 .vocabulary = 7,
                                 .context = 8,
                                 .layers = 2,
                                 .heads = 2,
                                 .width = 8,
                                 .dropout = 0.25});
      Graph g;
      model(g.input("tokens", {1, 4}, i32), {.mode = mode});
      int dropouts = 0, attentions = 0;
      for (const Node& n : g.nodes()) {
        if (n.op == &dropout_op) {
          ++dropouts;
          EXPECT_NE(n.attrs.text().find("0.25"), std::string::npos) << n.attrs.text();
        }
        if (n.op == &flash_attn_op) attentions += n.attrs.text().find("dropout=0.25") != std::string::npos;
      }
      EXPECT_EQ(dropouts, mode == Mode::train ? sums : 0) << architecture.name();
      EXPECT_EQ(attentions, mode == Mode::train ? 2 : 0) << architecture.name();
    }
}

}  // namespace
