// Tests user-defined layers, models and architectures. If a layer omits a required call, an error must be
// reported.
#include <gtest/gtest.h>

#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/train/training.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

std::string name_of_maker(Graph& g, const Tensor& t) {
  return g.name_of(g.node_of(t.id()));
}

// A minimal user-defined layer, without Scope, Autocast or residual.
class Scale : public nn::Module {
 public:
  Scale(const nn::Path& at, std::int64_t width)
      : Module(at), gain_(at.create("gain", {width}, nn::Init::ones())) {}

 private:
  Tensor record(TensorArg x, const nn::CallArgs&) const override { return x.tensor() * gain_.tensor(x); }
  nn::Weight gain_;
};

TEST(Module, RecordsUnderItsNameWithoutAScope) {
  nn::Params params;
  const Scale scale(nn::Path(params) / "block" / "scale", 3);
  Graph g;
  EXPECT_EQ(name_of_maker(g, scale(g.input("x", {2, 3}))), "scale");
  const nn::Layer twice("twice", [](TensorArg x) { return x.tensor() + x.tensor(); });
  EXPECT_EQ(name_of_maker(g, twice(g.input("y", {2, 3}))), "twice");
  // A function without a name is not a layer.
  const auto f = [](TensorArg x) { return x.tensor(); };
  static_assert(!std::is_constructible_v<nn::Layer, decltype(f)>);
  EXPECT_NE(error_of([&] { nn::Layer()(g.input("z", {2})); }).find("empty"), std::string::npos);
}

TEST(Module, AddsTheResidualForALayerWithoutOne) {
  nn::Params params;
  const Scale scale(nn::Path(params) / "scale", 2);
  const nn::Linear linear(nn::Path(params) / "linear", 2, 2);
  const nn::Layer name_only("same", [](TensorArg x, const nn::CallArgs& call) {
    EXPECT_FALSE(call.residual.defined());
    return x.tensor();
  });
  Graph g;
  const Tensor x = g.input("x", {1, 2}), r = g.input("r", {1, 2});
  const std::vector<float> one = {1, 2}, other = {10, 20};
  const auto value = [&](const Tensor& y) { return eval(y, {{x, one}, {r, other}}).values<float>(); };
  EXPECT_EQ(value(scale(x, {.residual = r})), (std::vector<float>{11, 22}));
  EXPECT_EQ(value(name_only(x, {.residual = r})), (std::vector<float>{11, 22}));
  const std::vector<float> plain = value(linear(x)), added = value(linear(x, {.residual = r}));
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_FLOAT_EQ(added[i], plain[i] + other[i]);  // the residual is added once
}

TEST(Weight, EntersAGraphInTheTypeOfItsAutocastOnly) {
  static_assert(!std::is_convertible_v<nn::Weight, Parameter>, "graph.param(weight) must not compile");
  nn::Params params;
  const Scale scale(nn::Path(params) / "scale", 3);
  Graph g;
  const Tensor x = g.input("x", {2, 3}, bf16);
  const nn::Autocast autocast(g, nn::Precision::bf16);
  EXPECT_EQ(scale(x).dtype(), bf16);
}

TEST(Params, CountWithoutAllocating) {
  nn::Params counted = nn::Params::counting();
  const Scale scale(nn::Path(counted) / "scale", std::int64_t{1} << 40);  // 4 TiB
  EXPECT_EQ(counted.count(), std::int64_t{1} << 40);
  EXPECT_EQ(counted.bytes(), std::size_t{1} << 42);
  EXPECT_TRUE(counted.all().empty());
  EXPECT_EQ(counted.find("scale.gain"), nullptr);
  EXPECT_THROW(Scale(nn::Path(counted) / "scale", 3), Error) << "the path is in use";
  Graph g;
  EXPECT_NE(error_of([&] { scale(g.input("x", {3})); }).find("counting"), std::string::npos);
}

TEST(Model, ChecksItsPartsAndAcceptsAnyOthers) {
  nn::Params params;
  const nn::Embedding tokens(nn::Path(params) / "tokens", 7, 4);
  nn::ModelParts parts{.name = "ours", .context = 8, .tokens = tokens};
  EXPECT_NE(error_of([&] { nn::Model(params, parts); }).find("head"), std::string::npos);
  parts.head = tokens.head();
  EXPECT_NO_THROW(nn::Model(params, parts));
  parts.blocks = {nn::Layer()};
  EXPECT_NE(error_of([&] { nn::Model(params, parts); }).find("empty"), std::string::npos);
  parts.blocks = {Scale(nn::Path(params) / "scale", 4)};
  const nn::Model model(params, parts);
  EXPECT_EQ(model.parameters().size(), 2u);
  Graph g;
  const Tensor logits = model(g.input("ids", {2, 5}, i32));
  EXPECT_EQ(logits.shape(), (Shape{2, 5, 7}));
  EXPECT_EQ(name_of_maker(g, logits), "ours.tokens");
}

TEST(Path, ListsTheParametersBelowIt) {
  nn::Params params;
  const nn::Path root = params;
  const Scale a(root / "a", 2), ab(root / "ab", 3), inner(root / "a" / "b", 4);
  std::vector<std::string> names;
  for (const Parameter& p : (root / "a").parameters()) names.push_back(p.name());
  EXPECT_EQ(names, (std::vector<std::string>{"a.gain", "a.b.gain"}));
  EXPECT_EQ(root.parameters().size(), 3u);
}

// This language model is a table of logits, without a Model. It learns a cycle of tokens and generates the
// cycle.
TEST(LanguageModel, FunctionsTrainAndGenerate) {
  constexpr std::int64_t vocabulary = 5, context = 6;
  nn::Params params(1);
  const nn::Embedding table(nn::Path(params) / "table", vocabulary, vocabulary);
  const nn::LanguageModel model{
      .features = [&](TensorArg tokens, const nn::CallArgs& call) { return table(tokens, call); },
      .context = context,
      .parameters = params.all()};
  EXPECT_EQ(model.count(), vocabulary * vocabulary);
  const optim::AdamW optimizer(params.all(), {.weight_decay = 0});
  train::TrainingProgram training(model, optimizer, {.batch = 1});
  const std::vector<std::int32_t> x = {0, 1, 2, 3, 4, 0}, y = {1, 2, 3, 4, 0, 1};
  for (int step = 0; step < 60; ++step) training.run(x, y, 0.1);
  EXPECT_LT(train::EvaluationProgram(model, {.batch = 1}).run(x, y), 0.1);
  for (const bool cache : {true, false}) {
    std::vector<std::int32_t> text = {3};
    nn::Generator(model, {.cache = cache}).extend(text, 8, {.temperature = 0}, 0);
    EXPECT_EQ(text, (std::vector<std::int32_t>{3, 4, 0, 1, 2, 3, 4, 0, 1}));
  }
}

TEST(Generator, RefusesAttentionThatIgnoresTheCache) {
  nn::Params params;
  const nn::Embedding tokens(nn::Path(params) / "tokens", 5, 4);
  const nn::Layer forgetful("memory.attn", [](TensorArg x) {
    const Tensor h = unsqueeze(x.tensor(), 1);
    return squeeze(flash_attn(h, h, h, {.causal = true}).o, 1);
  });
  const nn::Model model(
      params,
      nn::ModelParts{
          .name = "ours", .context = 8, .tokens = tokens, .blocks = {forgetful}, .head = tokens.head()});
  const std::string error = error_of([&] { nn::Generator{model}; });
  EXPECT_NE(error.find("ours.memory.attn reads no key-value cache"), std::string::npos) << error;
  std::vector<std::int32_t> text = {1};
  EXPECT_NO_THROW(nn::Generator(model, {.cache = false}).extend(text, 3, {}, 1));
}

// A custom architecture needs only one struct.
struct Table {
  static constexpr const char *name = "table", *title = "Table";
  std::int64_t rank = 2;
  double scale = 1;
  void fields(auto&& field) { field("rank", rank), field("scale", scale); }
  void check(const nn::ModelConfig&) const { nn::check_size(rank, "rank"); }
  std::string text(const nn::ModelConfig&) const { return ", rank " + std::to_string(rank); }
  nn::ModelParts make(const nn::Path& at, const nn::ModelConfig& c) const {
    return {.name = name,
            .context = c.context,
            .tokens = nn::Embedding(at / "in", c.vocabulary, rank),
            .head = nn::Linear(at / "out", rank, c.vocabulary)};
  }
};

TEST(Architecture, CustomArchitectureIsBuiltCountedAndRestoredFromMetadata) {
  const nn::ModelConfig config{.architecture = Table{.rank = 3, .scale = 0.5}, .vocabulary = 7, .context = 9};
  EXPECT_EQ(config.text(), "Table: 4 layers, 4 heads, rank 3, width 128, context 9");
  EXPECT_EQ(config.parameters(), 7 * 3 + 3 * 7 + 7);
  nn::Params params;
  EXPECT_EQ(nn::Model(params, config).parameters().size(), 3u);

  const io::Metadata saved = io::to_metadata(config);
  EXPECT_EQ(saved.at("model"), "table");
  EXPECT_EQ(saved.at("rank"), "3");
  EXPECT_EQ(saved.at("scale"), "0.5");
  EXPECT_EQ(io::to_metadata(io::model_config(saved, "file", {Table{}})), saved);
  EXPECT_THROW(io::model_config(saved, "file"), FormatError) << "an architecture that is not listed";
  EXPECT_THROW(nn::Model(params, {.architecture = Table{.rank = 0}, .vocabulary = 7}), ShapeError);
}

TEST(Architecture, IsAValue) {
  nn::Architecture a = nn::Llama{.key_heads = 2};
  const nn::Architecture b = a;
  *std::get<std::int64_t*>(a.settings()[0].value) = 4;
  const nn::ModelConfig four{.architecture = a, .vocabulary = 3, .heads = 8},
      two{.architecture = b, .vocabulary = 3, .heads = 8};
  EXPECT_NE(four.text().find("4 key heads"), std::string::npos) << four.text();
  EXPECT_NE(two.text().find("2 key heads"), std::string::npos) << two.text();
  EXPECT_EQ(nn::ModelConfig{}.architecture.name(), "gpt");
  EXPECT_THROW(nn::architecture_named("bert"), Error);
}

}  // namespace
