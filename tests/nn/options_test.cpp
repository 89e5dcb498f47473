// Sets numeric options of optimizers, schedules, layers, models and samplers to numbers out of their ranges.
// Each error must name the option, the number and the range.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/core/base/random.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/generation/sampling.h>
#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model_parts.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/ops/linear_cross_entropy.h>
#include <tilegrad/ops/ring_attention.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

using Numbers = std::vector<double>;
constexpr double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();
constexpr double huge = 1e300;  // not representable in f32

// Numbers outside usual ranges.
Numbers and_not(Numbers others) {
  others.insert(others.end(), {nan, inf, -inf});
  return others;
}
const Numbers not_below_1 = and_not({-0.5, 1, 1.5, huge}), not_to_1 = and_not({-0.5, 1.5, huge}),
              negative = and_not({-1e-9, -1, huge}), not_positive = and_not({0, -1, huge}),
              not_finite = and_not({huge, -huge});
const Numbers no_count = {-1, -1e6}, no_size = {0, -1, -1e6}, no_window = {-2, -1e6};  // integers

struct Option {
  std::string name;  // the name of the option in the error
  Numbers bad;
  std::function<void(double)> give;
};

void expect_refused(const std::vector<Option>& options) {
  for (const Option& o : options)
    for (const double x : o.bad) {
      const bool is_whole = o.bad == no_count || o.bad == no_size || o.bad == no_window;
      std::string number = is_whole ? std::to_string(static_cast<std::int64_t>(x)) : tg::detail::attr_text(x);
      if (std::isnan(x)) number = "nan";
      try {
        o.give(x);
        ADD_FAILURE() << o.name << " = " << number << " was accepted";
      } catch (const Error& e) {
        const std::string what = e.what();
        EXPECT_NE(what.find(o.name + " is out of range: got " + number), std::string::npos) << what;
        EXPECT_NE(what.find(", expected a "), std::string::npos) << what;
      }
    }
}

std::int64_t whole(double x) {
  return static_cast<std::int64_t>(x);
}

struct Weights {
  nn::Params params{1};
  Parameter matrix = params.create("matrix", {2, 3}, nn::Init::normal(1));
};

template <class T>
Option of_optimizer(const std::string& name, const Numbers& bad,
                    const std::function<void(typename T::Options&, double)>& set) {
  return {name, bad, [=](double x) {
            typename T::Options o;
            set(o, x);
            Weights w;
            T(w.params.all(), o);
          }};
}

TEST(OptionsOfOptimizers, OutOfRangeAreRefused) {
  using optim::AdamW, optim::Muon, optim::Sgd, optim::LossScale;
  const auto decay = [](double x) { return [x](const Parameter&) { return x; }; };
  const auto scaled = [](const std::string& name, Numbers bad, void (*set)(LossScale&, double)) {
    return of_optimizer<AdamW>(name, bad,
                               [=](AdamW::Options& o, double x) { set(o.loss_scale.emplace(), x); });
  };
  const Numbers no_eps = and_not({-1, 0, 1e-50, huge});
  expect_refused({
      of_optimizer<AdamW>("beta1", not_below_1, [](auto& o, double x) { o.beta1 = x; }),
      of_optimizer<AdamW>("beta2", not_below_1, [](auto& o, double x) { o.beta2 = x; }),
      of_optimizer<AdamW>("eps", no_eps, [](auto& o, double x) { o.eps = x; }),
      of_optimizer<AdamW>("weight_decay", negative, [](auto& o, double x) { o.weight_decay = x; }),
      of_optimizer<AdamW>("decay of matrix", negative, [=](auto& o, double x) { o.decay = decay(x); }),
      of_optimizer<AdamW>("clip", negative, [](auto& o, double x) { o.clip = x; }),
      of_optimizer<Sgd>("momentum", not_below_1, [](auto& o, double x) { o.momentum = x; }),
      of_optimizer<Sgd>("weight_decay", negative, [](auto& o, double x) { o.weight_decay = x; }),
      of_optimizer<Sgd>("decay of matrix", negative, [=](auto& o, double x) { o.decay = decay(x); }),
      of_optimizer<Sgd>("clip", negative, [](auto& o, double x) { o.clip = x; }),
      of_optimizer<Muon>("momentum", not_below_1, [](auto& o, double x) { o.momentum = x; }),
      of_optimizer<Muon>("beta1", not_below_1, [](auto& o, double x) { o.beta1 = x; }),
      of_optimizer<Muon>("beta2", not_below_1, [](auto& o, double x) { o.beta2 = x; }),
      of_optimizer<Muon>("eps", no_eps, [](auto& o, double x) { o.eps = x; }),
      of_optimizer<Muon>("weight_decay", negative, [](auto& o, double x) { o.weight_decay = x; }),
      of_optimizer<Muon>("clip", negative, [](auto& o, double x) { o.clip = x; }),
      of_optimizer<Muon>("iterations", no_count,
                         [](auto& o, double x) { o.iterations = static_cast<int>(x); }),
      scaled("initial", and_not({0, -1, 0.5, huge}), [](LossScale& s, double x) { s.initial = x; }),
      scaled("growth", and_not({0, -1, 0.5, huge}), [](LossScale& s, double x) { s.growth = x; }),
      scaled("backoff", and_not({0, -1, 1.5, huge}), [](LossScale& s, double x) { s.backoff = x; }),
      scaled("interval", no_size, [](LossScale& s, double x) { s.interval = whole(x); }),
  });
  for (const auto& [initial, decayed] :
       {std::pair(1.0, 0.0), {0x1p60, 1.0}}) {  // the range includes both ends
    Weights w;
    AdamW(w.params.all(),
          {.beta1 = 0,
           .beta2 = 0,
           .weight_decay = decayed,
           .clip = 0,
           .loss_scale = LossScale{.initial = initial, .growth = 1, .backoff = 1, .interval = 1}});
  }
}

TEST(OptionsOfSchedulesAndTrainingPrograms, OutOfRangeAreRefused) {
  using optim::Schedule;
  const auto at = [](void (*set)(Schedule&, double)) {
    return [set](double x) {
      Schedule s;
      set(s, x);
      s(0);
    };
  };
  const auto run = [](double rate, std::int64_t accumulate) {
    nn::Params params;
    const nn::Model model(params, small_gpt());
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(model, optimizer,
                                    {.batch = small_batch / 2, .threads = 1, .accumulate = accumulate});
    const SmallBatch b;
    std::vector<std::int32_t> x = b.x, y = b.y;
    x.resize(x.size() / 2 * static_cast<std::size_t>(accumulate)), y.resize(x.size());
    const Array before = params.all()[0].read();
    try {
      training.run(x, y, rate);
    } catch (const Error&) {
      EXPECT_TRUE(params.all()[0].read().same_bits(before));
      training.run(x, y, 1e-3);
      throw;
    }
  };
  const auto program = [](void (*set)(train::ProgramOptions&, double)) {
    return [set](double x) {
      train::ProgramOptions o{.batch = 2, .threads = 1, .plan_only = true};
      set(o, x);
      nn::Params params;
      const nn::Model model(params, small_gpt());
      const optim::AdamW optimizer(params.all());
      train::TrainingProgram(model, optimizer, o);
    };
  };
  expect_refused({
      {"peak", negative, at([](Schedule& s, double x) { s.peak = x; })},
      {"floor", negative, at([](Schedule& s, double x) { s.floor = x; })},
      {"warmup", no_count, at([](Schedule& s, double x) { s.warmup = whole(x); })},
      {"steps", no_count, at([](Schedule& s, double x) { s.steps = whole(x); })},
      {"decay", not_to_1, at([](Schedule& s, double x) { s.decay = x; })},
      {"step", no_count, [](double x) { Schedule()(whole(x)); }},
      {"learning_rate", negative, [&](double x) { run(x, 1); }},
      {"learning_rate", negative, [&](double x) { run(x, 2); }},
      {"batch", no_size, program([](auto& o, double x) { o.batch = whole(x); })},
      {"accumulate", no_size, program([](auto& o, double x) { o.accumulate = whole(x); })},
      {"loss_chunks", no_count, program([](auto& o, double x) { o.loss_chunks = whole(x); })},
      {"threads", no_count, program([](auto& o, double x) { o.threads = static_cast<int>(x); })},
  });
}

// The host passes the rate to a user-defined program.
TEST(Options, AFedLearningRateIsChecked) {
  Weights w;
  Graph g;
  const optim::Sgd optimizer(w.params.all(), {});
  const auto update = optimizer.minimize(sum(g.param(w.matrix)));
  Program program = compile(g, {update.skipped}, {.assign = update.assign});
  const Array before = w.matrix.read();
  for (const float bad : {-1e-9f, -1.0f, std::nanf(""), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(program.run({{update.learning_rate, std::vector<float>{bad}}}), Error) << bad;
    EXPECT_THROW(program.run({{update.learning_rate, bad}}), Error) << bad;
  }
  EXPECT_TRUE(w.matrix.read().same_bits(before));
  program.run({{update.learning_rate, 0.1}});
  EXPECT_FALSE(w.matrix.read().same_bits(before));
}

TEST(OptionsOfOps, OutOfRangeAreRefused) {
  Graph g;
  const Tensor x = g.input("x", {4, 8}), logits = g.input("logits", {4, 9}), targets = g.input("t", {4}, i64);
  const Tensor weight = g.input("w", {8, 9}), q = g.input("q", {1, 2, 4, 8});
  const Tensor keys = g.input("keys", {4, 2}, i64);
  using Attend = AttentionResult (*)(TensorArg, TensorArg, TensorArg, const AttentionOptions&);
  std::vector<Option> all;
  const std::pair<Attend, const char*> attends[] = {
      {flash_attn, "flash"},
      {standard_attn, "standard"},
      {[](TensorArg a, TensorArg b, TensorArg c, const AttentionOptions& o) {
         return ring_attention(a, b, c, 2, o);
       },
       "ring"}};
  for (const auto& [attend, name] : attends) {
    const auto with = [&, attend = attend](void (*set)(AttentionOptions&, double)) {
      return [=](double n) {
        AttentionOptions o{.causal = true};
        set(o, n);
        attend(q, q, q, o);
      };
    };
    all.push_back({"scale", not_finite, with([](auto& o, double n) { o.scale = n; })});
    all.push_back({"softcap", and_not({-1, 1e-50, huge}), with([](auto& o, double n) { o.softcap = n; })});
    all.push_back({"dropout", not_below_1, with([](auto& o, double n) { o.dropout = n; })});
    all.push_back({"window_left", no_window, with([](auto& o, double n) { o.window_left = whole(n); })});
    all.push_back({"window_right", no_window, with([](auto& o, double n) { o.window_right = whole(n); })});
  }
  expect_refused(all);
  const auto adamw_with = [&](void (*set)(AdamWOptions&, double)) {
    return [=](double n) {
      AdamWOptions o;
      set(o, n);
      adamw(x, x, x, x, 0.1, 1, 1, o);
    };
  };
  const Numbers not_a_step = and_not({0, -1, 0.5, huge});
  expect_refused({
      {"p", not_to_1, [&](double n) { dropout(x, n); }},
      {"p", not_to_1, [&](double n) { dropout(x, n, false); }},
      {"p", not_to_1, [&](double n) { bernoulli(g, {3}, n); }},
      {"low", and_not({}), [&](double n) { uniform(g, {3}, n, 1); }},
      {"high", and_not({-1}), [&](double n) { uniform(g, {3}, 0, n); }},
      {"mean", not_finite, [&](double n) { normal(g, {3}, n, 1); }},
      {"std", negative, [&](double n) { normal(g, {3}, 0, n); }},
      {"theta", not_positive, [&](double n) { rope(x, {}, {.theta = n}); }},
      {"theta", not_positive, [&](double n) { rope_frequencies(8, n); }},
      {"frequency", not_finite,
       [&](double n) {
         rope(x, {}, {.frequencies = {1, n}});
       }},
      {"eps", negative, [&](double n) { layer_norm(x, {}, {}, n); }},
      {"eps", negative, [&](double n) { rms_norm(x, {}, n); }},
      {"correction", not_finite, [&](double n) { var(x, {}, false, n); }},
      {"label_smoothing", not_to_1,
       [&](double n) { cross_entropy(logits, targets, {.label_smoothing = n}); }},
      {"label_smoothing", not_to_1,
       [&](double n) { linear_cross_entropy(x, weight, targets, {.label_smoothing = n}); }},
      {"z_loss", negative, [&](double n) { linear_cross_entropy(x, weight, targets, {.z_loss = n}); }},
      {"temperature", negative, [&](double n) { sample(logits, n, keys); }},
      {"top_p", not_to_1, [&](double n) { sample(logits, 1, keys, 0, n); }},
      {"top_k", {-1}, [&](double n) { sample(logits, 1, keys, n, 1); }},
      {"beta1", not_below_1, adamw_with([](auto& o, double n) { o.beta1 = n; })},
      {"beta2", not_below_1, adamw_with([](auto& o, double n) { o.beta2 = n; })},
      {"eps", and_not({-1, 0, huge}), adamw_with([](auto& o, double n) { o.eps = n; })},
      {"weight_decay", negative, adamw_with([](auto& o, double n) { o.weight_decay = n; })},
      {"learning_rate", negative, [&](double n) { adamw(x, x, x, x, n, 1); }},
      {"step", not_a_step, [&](double n) { adamw(x, x, x, x, 0.1, n); }},
      {"scale", negative, [&](double n) { adamw(x, x, x, x, 0.1, 1, n); }},
      {"iterations", no_count, [&](double n) { optim::orthogonalized(x, static_cast<int>(n)); }},
      {"mean", and_not({}), [&](double n) { normal_array({3}, f32, n, 1, 1); }},
      {"std", and_not({-1}), [&](double n) { normal_array({3}, f32, 0, n, 1); }},
      {"low", and_not({}), [&](double n) { uniform_array({3}, f32, n, 1, 1); }},
      {"high", and_not({-1}), [&](double n) { uniform_array({3}, f32, 0, n, 1); }},
  });
  EXPECT_THROW(clamp(x, 1, -1), Error);
  EXPECT_THROW(clamp(x, nan, 1), Error);
  for (const double step : {0.0, nan, -1.0, inf, -inf}) EXPECT_THROW(arange(g, 0, 4, step), Error);
  EXPECT_THROW(uniform(g, {3}, 0, huge), Error);
  EXPECT_THROW(randint(g, {3}, 2, 2), Error);
}

TEST(OptionsOfLayersAndModels, OutOfRangeAreRefused) {
  const auto on = [](const std::function<void(const nn::Path&, double)>& make) {
    return [=](double x) {
      nn::Params params;
      make(nn::Path(params) / "layer", x);
    };
  };
  const auto grouped = [&](void (*set)(nn::GroupedAttention::Options&, double)) {
    return on([=](const nn::Path& at, double x) {
      nn::GroupedAttention::Options o;
      set(o, x);
      nn::GroupedAttention(at, 8, 2, o);
    });
  };
  const auto latent = [&](void (*set)(nn::LatentAttention::Options&, double)) {
    return on([=](const nn::Path& at, double x) {
      nn::LatentAttention::Options o{.latent = 4, .rope_width = 2};
      set(o, x);
      nn::LatentAttention(at, 8, 2, o);
    });
  };
  const Numbers no_cap = and_not({-1, 1e-50, huge});
  expect_refused({
      {"eps", negative, on([](const nn::Path& at, double x) { nn::LayerNorm(at, 4, true, x); })},
      {"eps", negative, on([](const nn::Path& at, double x) { nn::RmsNorm(at, 4, x); })},
      {"dropout", not_below_1,
       on([](const nn::Path& at, double x) { nn::SelfAttention(at, 8, 2, {.dropout = x}); })},
      {"dropout", not_below_1, on([](const nn::Path& at, double x) { nn::Block(at, {}, x); })},
      {"eps", negative, grouped([](auto& o, double x) { o.eps = x; })},
      {"scale", not_finite, grouped([](auto& o, double x) { o.scale = x; })},
      {"softcap", no_cap, grouped([](auto& o, double x) { o.softcap = x; })},
      {"dropout", not_below_1, grouped([](auto& o, double x) { o.dropout = x; })},
      {"magnitude", not_positive, grouped([](auto& o, double x) { o.magnitude = x; })},
      {"theta", not_positive, grouped([](auto& o, double x) { o.rope.theta = x; })},
      {"window", no_count, grouped([](auto& o, double x) { o.window = whole(x); })},
      {"eps", negative, latent([](auto& o, double x) { o.eps = x; })},
      {"scale", not_finite, latent([](auto& o, double x) { o.scale = x; })},
      {"dropout", not_below_1, latent([](auto& o, double x) { o.dropout = x; })},
      {"magnitude", not_positive, latent([](auto& o, double x) { o.magnitude = x; })},
      {"theta", not_positive, latent([](auto& o, double x) { o.theta = x; })},
      {"std of layer.weight", negative,
       on([](const nn::Path& at, double x) { nn::Linear(at, 4, 4, {.init = nn::Init::normal(x)}); })},
      {"bound of layer.weight", negative,
       on([](const nn::Path& at, double x) { nn::Linear(at, 4, 4, {.init = nn::Init::uniform(x)}); })},
      {"mean of layer.weight", not_finite,
       on([](const nn::Path& at, double x) { at.create("weight", {4}, {.mean = x}); })},
  });

  const auto config = [](nn::Architecture a, const std::function<void(nn::ModelConfig&, double)>& set) {
    return [=](double x) {
      nn::ModelConfig c = small_gpt();
      c.architecture = a;
      set(c, x);
      c.check();
    };
  };
  const auto llama = [&](void (*set)(nn::Llama&, double)) {
    return [=](double x) {
      nn::Llama l;
      set(l, x);
      config(l, [](auto&, double) {})(x);
    };
  };
  const auto deepseek = [&](void (*set)(nn::DeepSeek&, double)) {
    return [=](double x) {
      nn::DeepSeek d;
      set(d, x);
      config(d, [](auto&, double) {})(x);
    };
  };
  expect_refused({
      {"vocabulary", no_size, config(nn::Gpt{}, [](auto& c, double x) { c.vocabulary = whole(x); })},
      {"context", no_size, config(nn::Gpt{}, [](auto& c, double x) { c.context = whole(x); })},
      {"number of layers", no_size, config(nn::Gpt{}, [](auto& c, double x) { c.layers = whole(x); })},
      {"number of heads", no_size, config(nn::Gpt{}, [](auto& c, double x) { c.heads = whole(x); })},
      {"width", no_size, config(nn::Gpt{}, [](auto& c, double x) { c.width = whole(x); })},
      {"dropout", not_below_1, config(nn::Gpt{}, [](auto& c, double x) { c.dropout = x; })},
      {"std", negative, config(nn::Gpt{}, [](auto& c, double x) { c.std = x; })},
      {"eps", negative, [&](double x) { config(nn::Gpt{.eps = x}, [](auto&, double) {})(x); }},
      {"eps", negative, llama([](auto& l, double x) { l.eps = x; })},
      {"theta", not_positive, llama([](auto& l, double x) { l.theta = x; })},
      {"theta", and_not({-1, huge}), llama([](auto& l, double x) { l.window_theta = x; })},
      {"embedding_scale", not_positive, llama([](auto& l, double x) { l.embedding_scale = x; })},
      {"attention_scale", negative, llama([](auto& l, double x) { l.attention_scale = x; })},
      {"attention_softcap", no_cap, llama([](auto& l, double x) { l.attention_softcap = x; })},
      {"logit_softcap", no_cap, llama([](auto& l, double x) { l.logit_softcap = x; })},
      {"key_heads", no_count, llama([](auto& l, double x) { l.key_heads = whole(x); })},
      {"window", no_count, llama([](auto& l, double x) { l.windows = {whole(x)}; })},
      {"eps", negative, deepseek([](auto& d, double x) { d.eps = x; })},
      {"theta", not_positive, deepseek([](auto& d, double x) { d.theta = x; })},
      {"attention_scale", negative, deepseek([](auto& d, double x) { d.attention_scale = x; })},
  });

  for (const char* type : {"none", "linear", "llama3", "yarn", "longrope"}) {
    const auto scaling = [&](void (*set)(nn::RopeScaling&, double)) {
      return [=](double x) {
        nn::RopeScaling s{.type = type, .factor = 2, .first_context = 16};
        if (s.type == "longrope") s.short_factors = s.long_factors = {1, 2};
        set(s, x);
        s.frequencies(4, 10000, 64);
      };
    };
    std::vector<Option> all = {
        {"factor", not_positive, scaling([](auto& s, double x) { s.factor = x; })},
        {"magnitude", not_positive, scaling([](auto& s, double x) { s.magnitude = x; })},
        {"low_frequency", not_positive, scaling([](auto& s, double x) { s.low_frequency = x; })},
        {"high_frequency", not_positive, scaling([](auto& s, double x) { s.high_frequency = x; })},
        {"beta_fast", not_positive, scaling([](auto& s, double x) { s.beta_fast = x; })},
        {"beta_slow", not_positive, scaling([](auto& s, double x) { s.beta_slow = x; })},
        {"short_factor", not_positive, scaling([](auto& s, double x) {
           s.short_factors = {1, x};
         })},
        {"long_factor", not_positive, scaling([](auto& s, double x) {
           s.long_factors = {1, x};
         })}};
    if (std::string_view(type) != "none" && std::string_view(type) != "linear")
      all.push_back({"first_context", not_positive, scaling([](auto& s, double x) { s.first_context = x; })});
    expect_refused(all);
    scaling([](auto&, double) {})(0);
  }

  const auto lora = [](void (*set)(nn::LoraOptions&, double)) {
    return [=](double x) {
      nn::LoraOptions o;
      set(o, x);
      nn::Params params;
      nn::Model model(params, small_gpt());
      nn::add_lora(model, o);
    };
  };
  expect_refused({
      {"rank", no_size, lora([](auto& o, double x) { o.rank = whole(x); })},
      {"alpha", not_finite, lora([](auto& o, double x) { o.alpha = x; })},
      {"dropout", not_below_1, lora([](auto& o, double x) { o.dropout = x; })},
      {"rank of c_fc", no_size, lora([](auto& o, double x) {
         o.ranks = {{"c_fc", whole(x)}};
       })},
      {"alpha of c_fc", not_finite, lora([](auto& o, double x) {
         o.alphas = {{"c_fc", x}};
       })},
      {"scale", not_finite,
       [](double x) {
         nn::merged_weight(Array({2, 2}, f32), Array({2, 1}, f32), Array({1, 2}, f32), x, f32);
       }},
  });
}

TEST(OptionsOfSamplers, OutOfRangeAreRefused) {
  const std::vector<float> logits = {0, 1, 2};
  nn::Params params;
  const nn::Model model(params, small_gpt());
  const auto everywhere = [&](const std::string& name, const Numbers& bad,
                              void (*set)(nn::Sampling&, double)) {
    const auto with = [set](double x) {
      nn::Sampling s;
      set(s, x);
      return s;
    };
    expect_refused({
        {name, bad, [&](double x) { nn::sample_token(logits, with(x), 0.5); }},
        {name, bad, [&](double x) { nn::check_sampling(with(x)); }},
        {name, bad,
         [&](double x) {
           nn::Generator generator(model);
           std::vector<std::int32_t> text = {1};
           generator.extend(text, 0, with(x), 1);
         }},
        {name, bad,
         [&](double x) {
           nn::Engine engine(model, {.slots = 2});
           engine.add({.prompt = {1}, .tokens = 1, .sampling = with(x)});
         }},
    });
  };
  everywhere("temperature", negative, [](nn::Sampling& s, double x) { s.temperature = x; });
  everywhere("top_k", no_count, [](nn::Sampling& s, double x) { s.top_k = whole(x); });
  everywhere("top_p", not_to_1, [](nn::Sampling& s, double x) { s.top_p = x; });
  const auto engine = [&](void (*set)(nn::Engine::Options&, double)) {
    return [&, set](double x) {
      nn::Engine::Options o{.slots = 2};
      set(o, x);
      nn::Engine(model, o);
    };
  };
  expect_refused({
      {"u", and_not({-1, 1, 7, huge}), [&](double x) { nn::sample_token(logits, {}, x); }},
      {"u", and_not({-1, 1, 7, huge}), [&](double x) { nn::sample_token(logits, {.temperature = 0}, x); }},
      {"count", no_count,
       [&](double x) {
         nn::Generator generator(model);
         std::vector<std::int32_t> text = {1};
         generator.extend(text, whole(x), {}, 1);
       }},
      {"beams", no_size, [](double x) { nn::BeamSearch(whole(x), 2, {}); }},
      {"tokens", no_size, [](double x) { nn::BeamSearch(2, whole(x), {}); }},
      {"beams", no_size,
       [&](double x) {
         nn::Engine(model, {.slots = 2}).search({.prompt = {1}, .tokens = 1, .beams = whole(x)});
       }},
      {"tokens", no_count,
       [&](double x) { nn::Engine(model, {.slots = 2}).add({.prompt = {1}, .tokens = whole(x)}); }},
      {"slots", no_size, engine([](auto& o, double x) { o.slots = whole(x); })},
      {"page_size", no_size, engine([](auto& o, double x) { o.page_size = whole(x); })},
      {"chunk", no_size, engine([](auto& o, double x) { o.chunk = whole(x); })},
      {"cache_tokens", no_count, engine([](auto& o, double x) { o.cache_tokens = whole(x); })},
      {"host_tokens", no_count, engine([](auto& o, double x) { o.host_tokens = whole(x); })},
      {"threads", no_count, engine([](auto& o, double x) { o.threads = static_cast<int>(x); })},
  });
  EXPECT_EQ(nn::sample_token(logits, {}, 0), 0);
  EXPECT_EQ(nn::sample_token(logits, {}, std::nextafter(1, 0)), 2);
}

TEST(OptionsOfPlotsAndTheChecker, OutOfRangeAreRefused) {
  const auto check = [](void (*set)(gradcheck::Options&, double)) {
    return [set](double x) {
      gradcheck::Options o;
      set(o, x);
      gradcheck::check(gradcheck::op_cases()[0], o);
    };
  };
  expect_refused({
      {"half", no_count,
       [](double x) {
         plot::smoothed({1, 2}, whole(x));
       }},
      {"h", not_positive, check([](auto& o, double x) { o.h = x; })},
      {"rtol", negative, check([](auto& o, double x) { o.tol.rtol = x; })},
      {"atol", negative, check([](auto& o, double x) { o.tol.atol = x; })},
      {"order", no_size, check([](auto& o, double x) { o.order = static_cast<int>(x); })},
  });
}

// Code that does not set an option depends on the default.
TEST(Options, DefaultsMatchTheHeaders) {
  const optim::AdamW::Options adamw;
  EXPECT_EQ(std::tuple(adamw.beta1, adamw.beta2, adamw.eps, adamw.weight_decay, adamw.clip),
            std::tuple(0.9, 0.99, 1e-8, 0.1, 1.0));
  const optim::Sgd::Options sgd;
  EXPECT_EQ(std::tuple(sgd.momentum, sgd.nesterov, sgd.weight_decay, sgd.clip),
            std::tuple(0.9, false, 0.0, 1.0));
  const optim::Muon::Options muon;
  EXPECT_EQ(std::tuple(muon.momentum, muon.weight_decay, muon.clip, muon.beta1, muon.beta2, muon.eps,
                       muon.iterations),
            std::tuple(0.95, 0.1, 1.0, 0.9, 0.99, 1e-8, 5));
  const optim::LossScale scale;  // as in torch.amp.GradScaler
  EXPECT_EQ(std::tuple(scale.initial, scale.growth, scale.backoff, scale.interval),
            std::tuple(65536.0, 2.0, 0.5, 2000));
  const optim::Schedule schedule;
  EXPECT_EQ(std::tuple(schedule.peak, schedule.floor, schedule.warmup, schedule.steps, schedule.kind,
                       schedule.decay),
            std::tuple(1e-3, 1e-4, 100, 2000, optim::Schedule::Kind::cosine, 0.2));
  const train::ProgramOptions program;
  EXPECT_EQ(
      std::tuple(program.batch, program.threads, program.verify, program.plan_only, program.precision,
                 program.predictions, program.accumulate, program.context_parallel, program.hoist_collectives,
                 program.loss_chunks, program.recompute, program.memory_budget, program.memory_held,
                 program.low_precision_copies),
      std::tuple(12, 0, false, false, nn::Precision::full, false, 1, false, false, 0, false, 0u, 0u, true));
}

}  // namespace
