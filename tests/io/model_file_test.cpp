// A model's configuration in the metadata of its weights.
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

TEST(ModelFile, DescribesTheModelThatTheWeightsBelongTo) {
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

TEST(ModelFile, OfAGptHasTheKeysItAlwaysHad) {
  EXPECT_EQ(io::to_metadata({.vocabulary = 65}), (io::Metadata{{"model", "gpt"},
                                                               {"vocabulary", "65"},
                                                               {"context", "64"},
                                                               {"layers", "4"},
                                                               {"heads", "4"},
                                                               {"width", "128"},
                                                               {"bias", "false"},
                                                               {"tied_head", "true"}}));
}

TEST(ModelFile, RefusesWhatDescribesNoModel) {
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

// A file with the model's tensors, of which only names, types and shapes are looked at.
io::SafeTensors file_of(const nn::ModelConfig& config, DType dtype = f32) {
  io::SafeTensors file;
  file.metadata = io::to_metadata(config);
  config.each_parameter([&](const std::string& name, const Shape& shape) {
    file.tensors[name] = {dtype, {shape.begin(), shape.end()}, {}};
  });
  return file;
}

TEST(ModelFile, AcceptsTheTensorsOfItsModelAndNoOthers) {
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
    EXPECT_EQ(message([](io::SafeTensors& f) { f.tensors["more"] = {}; }),
              "weights: has a tensor more that the model does not have");
    EXPECT_EQ(tg::testing::error_of([&] { io::model_config(file_of(config, i32), "weights"); }),
              "weights: its weights are i32, expected a floating type");
  }
}

// Each of these models has terabytes of parameters, and some a table of that size in a layer.
TEST(ModelFile, ALieAboutASizeIsFoundBeforeAnythingIsMade) {
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
          continue;  // any context fits
        EXPECT_THROW(io::model_config(file, "weights"), FormatError)
            << config.text() << ", " << s.name << " " << lie;
      }
    }
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10) << "KiB";
}

TEST(ModelFile, NegativeSizesAreRefusedAndNotTakenForDefaults) {
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
