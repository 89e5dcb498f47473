// Tests the configuration of a model in the metadata of its weights.
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>

#include "tests/support/files.h"

namespace {

using namespace tg;

std::vector<nn::ModelConfig> configs() {
  return {{.vocabulary = 65,
           .context = 32,
           .layers = 3,
           .heads = 2,
           .width = 48,
           .bias = true,
           .tied_head = false},
          {.architecture = nn::Llama{.key_heads = 2, .theta = 1e6}, .vocabulary = 7},
          {.architecture = nn::Llama{.mlp_width = 100, .theta = 0.1}, .vocabulary = 7},
          {.architecture = nn::DeepSeek{.latent = 24, .query_latent = 12, .rope_width = 4}, .vocabulary = 7}};
}

TEST(ModelFile, DescribesTheModelOfTheWeights) {
  for (const nn::ModelConfig& config : configs()) {
    io::Metadata metadata = io::to_metadata(config);
    metadata["step"] = "3";
    const nn::ModelConfig again = io::model_config(metadata, "here");
    nn::Params params, other;
    const nn::Model model(params, config), same(other, again);
    ASSERT_EQ(params.all().size(), other.all().size());
    for (std::size_t i = 0; i < params.all().size(); ++i) {
      EXPECT_EQ(params.all()[i].name(), other.all()[i].name());
      EXPECT_EQ(params.all()[i].shape(), other.all()[i].shape());
    }
    EXPECT_EQ(again.heads, config.heads);
    EXPECT_EQ(again.context, config.context);
    EXPECT_EQ(again.text(), config.text());
    EXPECT_EQ(io::to_metadata(again), io::to_metadata(config));
  }
}

// Adds configurations. Each changes one member of an architecture.
template <class A>
void add_changes(std::vector<nn::ModelConfig>& to, const A& before,
                 const std::vector<std::function<void(A&)>>& changes) {
  for (const auto& change : changes) {
    to.push_back({.architecture = before, .vocabulary = 7});
    A after = before;
    change(after);
    to.push_back({.architecture = after, .vocabulary = 7});
  }
}

// If fields() omits a member, this member is not saved. When the model is read, the member has its default.
TEST(ModelFile, EveryMemberOfAnArchitectureIsSavedAndRead) {
  std::vector<nn::ModelConfig> pairs;
  const std::vector<double> each(16, 1.5);
  const nn::Llama linear{.scaling = {.type = "linear", .factor = 2}};
  const nn::Llama llama3{.scaling = {.type = "llama3", .factor = 8, .first_context = 32}};
  const nn::Llama yarn{.scaling = {.type = "yarn", .factor = 4, .first_context = 16}};
  const nn::Llama longrope{.scaling = {.type = "longrope",
                                       .first_context = 16,
                                       .short_factors = std::vector<double>(16, 1),
                                       .long_factors = std::vector<double>(16, 1)}};
  add_changes<nn::Llama>(pairs, {},
                         {[](auto& l) { l.key_heads = 2; },
                          [](auto& l) { l.mlp_width = 96; },
                          [](auto& l) { l.theta = 500; },
                          [](auto& l) { l.head_width = 16; },
                          [](auto& l) { l.eps = 1e-3; },
                          [](auto& l) { l.attention_bias = true; },
                          [](auto& l) { l.qkv_bias = true; },
                          [](auto& l) { l.mlp_bias = true; },
                          [](auto& l) { l.activation = "gelu_tanh"; },
                          [](auto& l) { l.qk_norm = "head"; },
                          [](auto& l) { l.norms = "both"; },
                          [](auto& l) { l.plus_one = true; },
                          [](auto& l) { l.embedding_scale = 8; },
                          [](auto& l) { l.attention_scale = 0.25; },
                          [](auto& l) { l.attention_softcap = 50; },
                          [](auto& l) { l.logit_softcap = 30; },
                          [](auto& l) {
                            l.windows = {8, 0};
                          },
                          [](auto& l) { l.rotary_width = 16; },
                          [](auto& l) {
                            l.rotated = {1, 0};
                          },
                          [](auto& l) {
                            l.windows = {8, 0}, l.window_theta = 100;
                          },
                          [&](auto& l) { l.scaling = linear.scaling; }});
  add_changes<nn::Llama>(pairs, linear, {[](auto& l) { l.scaling.factor = 3; }});
  add_changes<nn::Llama>(
      pairs, llama3,
      {[](auto& l) { l.scaling.low_frequency = 2; }, [](auto& l) { l.scaling.high_frequency = 8; },
       [](auto& l) { l.scaling.first_context = 16; }});
  add_changes<nn::Llama>(
      pairs, yarn,
      {[](auto& l) { l.scaling.beta_fast = 16; }, [](auto& l) { l.scaling.beta_slow = 2; },
       [](auto& l) { l.scaling.whole_pairs = false; }, [](auto& l) { l.scaling.magnitude = 1.25; }});
  add_changes<nn::Llama>(
      pairs, longrope,
      {[&](auto& l) { l.scaling.short_factors = each; }, [&](auto& l) { l.scaling.long_factors = each; }});
  add_changes<nn::DeepSeek>(
      pairs, {},
      {[](auto& d) { d.latent = 24; }, [](auto& d) { d.query_latent = 12; },
       [](auto& d) { d.rope_width = 4; }, [](auto& d) { d.mlp_width = 96; }, [](auto& d) { d.theta = 500; },
       [](auto& d) { d.head_width = 16; }, [](auto& d) { d.value_width = 16; }, [](auto& d) { d.eps = 1e-3; },
       [](auto& d) { d.attention_bias = true; }, [](auto& d) { d.interleaved = false; },
       [](auto& d) { d.attention_scale = 0.25; }, [&](auto& d) { d.scaling = linear.scaling; }});
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const io::Metadata before = io::to_metadata(pairs[i]), after = io::to_metadata(pairs[i + 1]);
    EXPECT_NE(before, after) << "change " << i / 2;
    EXPECT_EQ(io::to_metadata(io::model_config(after, "here")), after) << "change " << i / 2;
  }
}

TEST(ModelFile, GptHasItsOriginalKeys) {
  EXPECT_EQ(io::to_metadata({.vocabulary = 65}), (io::Metadata{{"model", "gpt"},
                                                               {"vocabulary", "65"},
                                                               {"context", "64"},
                                                               {"layers", "4"},
                                                               {"heads", "4"},
                                                               {"width", "128"},
                                                               {"bias", "false"},
                                                               {"tied_head", "true"}}));
}

TEST(ModelFile, RefusesInvalidModelDescriptions) {
  const auto message = [](const io::Metadata& metadata) {
    try {
      io::model_config(metadata, "weights");
    } catch (const FormatError& e) {
      return std::string(e.what());
    }
    return std::string("no FormatError");
  };
  for (const nn::ModelConfig& config : configs()) {
    const io::Metadata whole = io::to_metadata(config);
    for (const auto& [key, value] : whole) {
      io::Metadata m = whole;
      m.erase(key);
      EXPECT_EQ(message(m), "weights: metadata has no " + key);
      m[key] = "1x";
      EXPECT_EQ(message(m).find("weights: "), 0u) << key;
      EXPECT_NE(message(m).find("1x"), std::string::npos) << message(m);
    }
    io::Metadata m = whole;
    m["heads"] = "5";
    EXPECT_NE(message(m).find("is not divisible"), std::string::npos) << message(m);
    m = whole;
    m["width"] = "-128";
    EXPECT_NE(message(m).find("width"), std::string::npos) << message(m);
  }
}

// Makes a file with the model's tensors. Only the names, types and shapes matter.
io::SafeTensors file_of(const nn::ModelConfig& config, DType dtype = f32) {
  io::SafeTensors file;
  file.metadata = io::to_metadata(config);
  config.each_parameter([&](const std::string& name, const Shape& shape) {
    file.tensors[name] = {dtype, {shape.begin(), shape.end()}, {}};
  });
  return file;
}

TEST(ModelFile, AcceptsOnlyTheTensorsOfItsModel) {
  for (const nn::ModelConfig& config : configs()) {
    const auto message = [&](const std::function<void(io::SafeTensors&)>& change) {
      io::SafeTensors file = file_of(config);
      change(file);
      return tg::testing::error_of([&] { io::model_config(file, "weights"); });
    };
    EXPECT_EQ(message([](io::SafeTensors&) {}), "no error");
    EXPECT_EQ(io::model_config(file_of(config, bf16), "weights").text(), config.text());
    nn::Params params;
    const nn::Model model(params, config);
    for (const Parameter& p : params.all()) {
      const std::string& name = p.name();
      EXPECT_EQ(message([&](io::SafeTensors& f) { f.tensors.erase(name); }),
                "weights: has no tensor " + name);
      const std::string is = "weights: " + name + " is ";
      EXPECT_EQ(message([&](io::SafeTensors& f) { f.tensors[name].shape[0] += 1; }).find(is), 0u);
      EXPECT_EQ(message([&](io::SafeTensors& f) { f.tensors[name].shape.push_back(1); }).find(is), 0u);
      EXPECT_NE(message([&](io::SafeTensors& f) { f.tensors[name].dtype = f16; }), "no error");
    }
    for (const Parameter& p : params.all())
      for (const auto& [setting, value] : p.settings()) {
        EXPECT_EQ(
            message([&, s = setting, v = value](io::SafeTensors& f) { f.metadata["setting." + s] = v; }),
            "no error");
        EXPECT_NE(message([&, s = setting](io::SafeTensors& f) {
                    f.metadata["setting." + s] = "x";
                  }).find("belong to a model with " + setting + " = x, this one has " + value),
                  std::string::npos);
      }
    EXPECT_EQ(message([](io::SafeTensors& f) { f.tensors["more"] = {}; }),
              "weights: has a tensor more that the model does not have");
    EXPECT_EQ(tg::testing::error_of([&] { io::model_config(file_of(config, i32), "weights"); }),
              "weights: its weights are i32, expected a floating type");
  }
}

// Each of these models has terabytes of parameters. Some have a single table of this size.
TEST(ModelFile, AWrongSizeIsDetectedBeforeAnyAllocation) {
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  for (const nn::ModelConfig& config : configs())
    for (nn::Setting& s : nn::ModelConfig(config).settings()) {
      if (!std::holds_alternative<std::int64_t*>(s.value) || s.name == "heads" || s.name == "key_heads")
        continue;
      for (const char* lie : {"96000000", "2000000000", "9000000000000000000"}) {
        io::SafeTensors file = file_of(config);
        file.metadata[s.name] = lie;
        if (s.name == "context" && !file.tensors.contains("transformer.wpe.weight"))
          continue;  // any context is possible
        EXPECT_THROW(io::model_config(file, "weights"), FormatError)
            << config.text() << ", " << s.name << " " << lie;
      }
    }
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10) << "KiB";
}

TEST(ModelFile, NegativeSizesAreRefusedAndNotReplacedByDefaults) {
  for (const nn::ModelConfig& config : configs()) {
    const io::Metadata whole = io::to_metadata(config);
    for (nn::Setting& s : nn::ModelConfig(config).settings()) {
      if (!std::holds_alternative<std::int64_t*>(s.value)) continue;
      io::Metadata m = whole;
      m[s.name] = "-1";
      EXPECT_THROW(io::model_config(m, "weights"), FormatError) << config.text() << ", " << s.name;
    }
  }
}

TEST(ModelFile, RefusesSizesWhoseProductsOverflow) {
  for (const char* key : {"vocabulary", "context", "width"}) {
    io::Metadata m = io::to_metadata({.vocabulary = 7});
    m[key] = "2147483648";
    EXPECT_THROW(io::model_config(m, "weights"), FormatError) << key;
  }
}

}  // namespace
