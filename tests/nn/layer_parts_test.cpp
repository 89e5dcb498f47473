// Tests components of layers and models in detail: adapters, low-precision copies, precision scopes,
// sequences that are divided among ranks, functions of a language model, blocks and heads.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/models/model_parts.h>
#include <tilegrad/ops/ring_attention.h>
#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"

namespace {

using namespace tg;
using namespace tg::nn;
using Vector = std::vector<double>;

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    const std::string what = e.what();
    return what.substr(0, what.find(" (layer_parts"));
  }
  return "";
}

int count_nodes(const Graph& g, const std::string& op) {
  int n = 0;
  for (const Node& node : g.nodes()) n += node.op->name == op;
  return n;
}

Vector doubles(const Array& a) {
  return a.to(f64).values<double>();
}

Array numbered(const Shape& shape, DType dtype, double first) {
  Array a(shape, dtype);
  for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, std::sin(first + 1.3 * double(i)));
  return a;
}

// ---- Adapters

// Adds scale·B(A·x) to y. Uses only the layer's rows of B.
TEST(LowRank, AddsTheScaledProductOfItsRows) {
  for (const std::int64_t first_row : {0, 2, 4})
    for (const bool has_residual : {false, true}) {
      Params params(1, f64), adapters(2, f64);
      const Linear layer(Path(params) / "layer", 3, 2);
      Parameter(params.all()[1]).write(numbered({2}, f64, 7));
      LowRank low;
      low.a = (Path(adapters) / "A").create("weight", {2, 3}, Init::normal(1));
      low.b = (Path(adapters) / "B").create("weight", {first_row == 4 ? 2 : 5, 2}, Init::normal(1));
      low.first_row = first_row == 4 ? 0 : first_row, low.scale = 0.7, low.dropout = 0.25;
      EXPECT_EQ(layer.adapter(), nullptr);
      *params.linears()[0].adapter = low;
      ASSERT_NE(layer.adapter(), nullptr);
      const Vector w = doubles(params.all()[0].read()), bias = doubles(params.all()[1].read()),
                   a = doubles(adapters.all()[0].read()), b = doubles(adapters.all()[1].read());
      Graph g;
      const Tensor x = g.input("x", {2, 2, 3}, f64), r = g.input("r", {2, 2, 2}, f64);
      const Tensor y = layer(x, {.residual = has_residual ? r : Tensor()});
      const Array xs = numbered({2, 2, 3}, f64, 1), rs = numbered({2, 2, 2}, f64, 2);
      Program program = compile(g, {y, r});
      program.run({{x, xs}, {r, rs}});
      const Vector got = doubles(program.fetch(y));
      const auto row = static_cast<std::size_t>(low.first_row);
      for (std::size_t n = 0; n < 4; ++n)
        for (std::size_t o = 0; o < 2; ++o) {
          double expected = bias[o] + (has_residual ? rs.at(std::int64_t(2 * n + o)) : 0);
          for (std::size_t i = 0; i < 3; ++i) expected += w[3 * o + i] * xs.at(std::int64_t(3 * n + i));
          for (std::size_t k = 0; k < 2; ++k) {
            double inner = 0;
            for (std::size_t i = 0; i < 3; ++i) inner += a[3 * k + i] * xs.at(std::int64_t(3 * n + i));
            expected += 0.7 * b[2 * (row + o) + k] * inner;
          }
          EXPECT_NEAR(got[2 * n + o], expected, 1e-13) << first_row << ", " << n << ", " << o;
        }
      EXPECT_EQ(count_nodes(g, "dropout"), 0);
      layer(x, {.mode = Mode::train});
      EXPECT_EQ(count_nodes(g, "dropout"), 1);
      (*params.linears()[0].adapter)->scale = std::numeric_limits<double>::infinity();
      EXPECT_NE(message([&] { layer(x); }).find("scale is out of range"), std::string::npos);
    }
}

// An f32 adapter of a bf16 layer computes in f32, and its result is rounded.
TEST(LowRank, DifferentDtypeIsRoundedToTheLayersDtype) {
  Params params(1, bf16), adapters(2, f32);
  const Linear layer(Path(params) / "layer", 4, 3, {.bias = false});
  LowRank low;
  low.a = (Path(adapters) / "A").create("weight", {2, 4}, Init::normal(1));
  low.b = (Path(adapters) / "B").create("weight", {3, 2}, Init::normal(1));
  Graph g;
  const Tensor x = g.input("x", {2, 1, 4}, bf16), base = layer(x);
  *params.linears()[0].adapter = low;
  const Tensor y = layer(x);
  EXPECT_EQ(y.dtype(), bf16);
  EXPECT_EQ(y.shape(), (Shape{2, 1, 3}));
  const Array xs = numbered({2, 1, 4}, bf16, 1);
  const auto v = eval({y, base}, {{x, xs}});
  const Vector a = doubles(adapters.all()[0].read()), b = doubles(adapters.all()[1].read());
  for (std::int64_t n = 0; n < 2; ++n)
    for (std::int64_t o = 0; o < 3; ++o) {
      double added = 0;
      for (std::size_t k = 0; k < 2; ++k)
        for (std::size_t i = 0; i < 4; ++i)
          added += b[2 * std::size_t(o) + k] * a[4 * k + i] * xs.at(4 * n + std::int64_t(i));
      const double expected = v[1].at(3 * n + o) + added;
      EXPECT_NEAR(v[0].at(3 * n + o), expected, 2 * 0x1p-8 * (std::abs(expected) + std::abs(added)));
    }
}

ModelConfig small() {
  return {.architecture = Llama{.key_heads = 1},
          .vocabulary = 7,
          .context = 6,
          .layers = 1,
          .heads = 2,
          .width = 8};
}

TEST(Lora, ParametersHaveNamesShapesAndValuesOfTheirModule) {
  Params params(1);
  Model model(params, small());
  Parameter frozen = model.parameters()[1];
  frozen.freeze();
  const std::size_t own = model.parameters().size();
  const LoraOptions options{
      .rank = 2, .alpha = 3, .targets = {"q_proj", "o_proj"}, .ranks = {{"o_proj", 1}}, .seed = 5};
  add_lora(model, options);
  const Model copied = model;
  EXPECT_EQ(model.lora()->options.rank, 2);
  EXPECT_EQ(model.lora()->options.seed, 5u);
  std::string text;
  Params drawn(5);
  for (std::size_t i = own; i < model.parameters().size(); ++i) {
    const Parameter& p = model.parameters()[i];
    const bool is_b = p.name().find("lora_B") != std::string::npos;
    text += p.name() + " " + p.shape().text() + "\n";
    const Init init = is_b ? Init::zeros() : Init::uniform(1 / std::sqrt(8.0));
    EXPECT_TRUE(p.read().same_bits(drawn.create(p.name(), p.shape(), init).read())) << p.name();
    EXPECT_FALSE(p.is_frozen());
    EXPECT_EQ(p.settings().size(), is_b ? 0u : 1u);
  }
  const std::string at = "model.layers.0.self_attn.";
  EXPECT_EQ(text, at + "q_proj.lora_A.weight [2, 8]\n" + at + "q_proj.lora_B.weight [8, 2]\n" + at +
                      "o_proj.lora_A.weight [1, 8]\n" + at + "o_proj.lora_B.weight [8, 1]\n");
  EXPECT_EQ(model.parameters()[own].settings().at(at + "q_proj.lora_scale"), "1.5");
  EXPECT_EQ(model.parameters()[own + 2].settings().at(at + "o_proj.lora_scale"), "3");
  const std::vector<Parameter> adapters = model.lora()->parameters();
  ASSERT_EQ(adapters.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(adapters[i].key(), model.parameters()[own + i].key());
  EXPECT_EQ(model.lora()->frozen.size(), own - 1);
  for (std::size_t i = 0; i < own; ++i) EXPECT_TRUE(model.parameters()[i].is_frozen());
  EXPECT_EQ(copied.parameters().size(), own + 4);  // copies of the model share the adapter
  EXPECT_EQ(message([&] { add_lora(model, {}); }),
            "[lora] the model has an adapter: merge or remove it first");
  remove_lora(model);
  EXPECT_EQ(copied.lora(), nullptr);
  EXPECT_EQ(copied.parameters().size(), own);
  for (std::size_t i = 0; i < own; ++i)
    EXPECT_EQ(model.parameters()[i].is_frozen(), i == 1);  // the result is as before the adapter
  EXPECT_EQ(message([&] { remove_lora(model); }), "[lora] the model has no adapter");
  EXPECT_EQ(message([&] { merge_lora(model); }), "[lora] the model has no adapter");
  EXPECT_EQ(message([&] { add_lora(model, {.dtype = i32}); }),
            "[lora] the adapters' dtype is i32, expected a floating type");
  EXPECT_EQ(model.lora(), nullptr);
  add_lora(model, {.dtype = f64});
  EXPECT_EQ(model.parameters().back().dtype(), f64);
}

// If a module has several layers, each layer uses its own rows of B, in calls and when the adapter is merged.
TEST(Lora, LayersOfAModuleShareAAndDivideTheRowsOfB) {
  Params params(1, f64);
  Model model(params, small());
  const auto module_of = [](const LinearSlot& linear) {
    const std::size_t at = linear.path.find("self_attn.");
    const std::string last = at == std::string::npos ? "" : linear.path.substr(at + 10);
    if (last == "q_proj") return ModuleRows{"qkv", 0, 16};
    if (last == "k_proj") return ModuleRows{"qkv", 8, 16};
    if (last == "v_proj") return ModuleRows{"qkv", 12, 16};
    return ModuleRows{linear.path, 0, linear.out};
  };
  add_lora(model, {.rank = 2, .alpha = 6, .targets = {"qkv"}, .dtype = f64}, module_of);
  ASSERT_EQ(model.lora()->modules.size(), 1u);
  const LoraModule module = model.lora()->modules[0];
  ASSERT_EQ(module.parts.size(), 3u);
  EXPECT_EQ(module.b.shape(), (Shape{16, 2}));
  EXPECT_EQ(module.scale, 3);
  Parameter b = module.b;
  b.write(numbered({16, 2}, f64, 3));
  const Vector a = doubles(module.a.read()), bs = doubles(b.read());
  std::vector<Vector> before;
  for (const LoraModule::Part& part : module.parts)
    before.push_back(doubles(part.linear.weight.parameter().read()));
  Graph g;
  const Tensor ids = g.input("ids", {1, 4}, i32), y = model(ids);
  const std::vector<std::int32_t> tokens{1, 2, 3, 4};
  const Array apart = eval(y, {{ids, tokens}});
  merge_lora(model);
  const std::int64_t first[] = {0, 8, 12}, rows[] = {8, 4, 4};
  for (std::size_t i = 0; i < 3; ++i) {
    const Vector after = doubles(module.parts[i].linear.weight.parameter().read());
    EXPECT_EQ(module.parts[i].first_row, first[i]);
    for (std::int64_t r = 0; r < rows[i]; ++r)
      for (std::int64_t c = 0; c < 8; ++c) {
        double expected = before[i][std::size_t(8 * r + c)];
        for (std::int64_t k = 0; k < 2; ++k)
          expected += 3 * bs[std::size_t(2 * (first[i] + r) + k)] * a[std::size_t(8 * k + c)];
        EXPECT_NEAR(after[std::size_t(8 * r + c)], expected, 1e-14);
      }
  }
  Graph merged;
  const Tensor same = merged.input("ids", {1, 4}, i32);
  EXPECT_TRUE(reference::close(doubles(eval(model(same), {{same, tokens}})), doubles(apart), 1e-13));
}

// ---- Low-precision copies

TEST(LowPrecisionCopies, AreUpdatedOnlyForChangedWeights) {
  Params params(1);
  const Parameter a = params.create("a", {3}, Init::normal(1)), b = params.create("b", {40}, Init::normal(1));
  for (const DType dtype : {bf16, f16}) {
    LowPrecisionCopies copies(dtype);
    Graph g;
    const auto here = std::source_location::current();
    const Tensor ta = copies.tensor(a, g, here), tb = copies.tensor(b, g, here),
                 again = copies.tensor(a, g, here);
    EXPECT_EQ(ta.dtype(), dtype);
    EXPECT_EQ(copies.bytes(), 64u + 128);
    const std::vector<Parameter> made = copies.of({b, Parameter("c", Array({1}, f32)), a});
    ASSERT_EQ(made.size(), 3u);
    EXPECT_EQ(made[0].name(), std::string("b.") + std::string(name_of(dtype)));
    EXPECT_EQ(made[1].key(), nullptr);
    EXPECT_EQ(made[2].shape(), (Shape{3}));
    Program program = compile(g, {cast(ta, f32), cast(tb, f32), cast(again, f32)});
    const auto check = [&] {
      program.run();
      EXPECT_TRUE(made[2].read().same_bits(a.read().to(dtype)));
      EXPECT_TRUE(made[0].read().same_bits(b.read().to(dtype)));
    };
    check();
    const std::uint64_t first_a = made[2].last_change(), first_b = made[0].last_change();
    check();
    EXPECT_EQ(made[2].last_change(), first_a);  // neither weight has changed
    EXPECT_EQ(made[0].last_change(), first_b);
    Parameter(b).write(numbered({40}, f32, double(first_b)));
    check();
    EXPECT_EQ(made[2].last_change(), first_a);
    EXPECT_NE(made[0].last_change(), first_b);
    Parameter(a).write(numbered({3}, f32, double(first_a)));
    check();
    EXPECT_NE(made[2].last_change(), first_a);
    Parameter(made[2]).write(Array({3}, dtype));  // the reader gets the copy itself
    check();
    // The gradient of a copy is the gradient of a single cast, for any number of readers.
    const Tensor wa = g.param(a), z = gradients(sum(cast(ta, f32) * 2 + cast(again, f32)), {wa})[0];
    EXPECT_EQ(z.dtype(), f32);
    EXPECT_EQ(eval(z).values<float>(), (std::vector<float>(3, 3)));
    EXPECT_THROW(copies.tensor(Parameter("half", Array({2}, dtype)), g, here), DTypeError);
    EXPECT_NO_THROW(copies.tensor(Parameter("wide", Array({2}, f64)), g, here));
  }
  for (const DType bad : {f32, f64, i32}) EXPECT_THROW(LowPrecisionCopies{bad}, DTypeError);
}

// ---- Precision

TEST(Autocast, NamesMapToPrecisionsAndTypes) {
  const std::tuple<const char*, Precision, std::optional<DType>> rows[] = {{"f32", Precision::full, {}},
                                                                           {"tf32", Precision::tf32, {}},
                                                                           {"bf16", Precision::bf16, bf16},
                                                                           {"f16", Precision::f16, f16}};
  for (const auto& [name, precision, type] : rows) {
    EXPECT_EQ(precision_named(name), precision);
    EXPECT_EQ(low_precision_dtype(precision), type);
  }
  EXPECT_EQ(message([] { precision_named("fp8"); }),
            "[precision] got 'fp8', expected f32, tf32, bf16 or f16");
}

// Logits of a 16-bit weight are f32. On request, they have the scope's type.
TEST(Autocast, LogitsAreF32Unless16BitsAreRequested) {
  for (const DType held : {f32, bf16})
    for (const bool tied : {false, true})
      for (const std::optional<bool> low_precision_logits : {std::optional<bool>(), {false}, {true}}) {
        Params params(1, held);
        const Embedding table(Path(params) / "table", 5, 4);
        const Layer head =
            tied ? table.head() : Layer(Linear(Path(params) / "head", 4, 5, {.bias = false, .wide = true}));
        Graph g;
        const Tensor x = g.input("x", {2, 4}, held);
        std::optional<Autocast> scope;
        if (low_precision_logits) scope.emplace(g, Precision::bf16, *low_precision_logits);
        const DType expected = held == f32                            ? (low_precision_logits ? bf16 : f32)
                               : low_precision_logits.value_or(false) ? bf16
                                                                      : f32;
        EXPECT_EQ(head(x).dtype(), expected) << name_of(held) << tied;
        const auto product = head.as_matmul(x);
        EXPECT_EQ(product.has_value(), held == f32 || low_precision_logits.value_or(false));
        if (product) {
          EXPECT_EQ(product->w.shape(), (Shape{4, 5}));
          EXPECT_EQ(product->x.shape(), (Shape{2, 4}));
          EXPECT_EQ(product->x.dtype(), expected);
        }
      }
  // If the layer has a bias and a residual, both are added to the f32 result.
  Params params(1, bf16);
  const Linear head(Path(params) / "head", 4, 5, {.wide = true});
  Parameter(params.all()[1]).write(numbered({5}, bf16, 4));
  Graph g;
  const Tensor x = g.input("x", {2, 4}, bf16), r = g.input("r", {2, 5}, f32);
  EXPECT_FALSE(Layer(head).as_matmul(x));
  const Array xs = numbered({2, 4}, bf16, 1), rs = numbered({2, 5}, f32, 2);
  const Tensor y = head(x, {.residual = r});
  EXPECT_EQ(y.dtype(), f32);
  const Array got = eval(y, {{x, xs}, {r, rs}}), w = params.all()[0].read(), b = params.all()[1].read();
  for (std::int64_t n = 0; n < 2; ++n)
    for (std::int64_t o = 0; o < 5; ++o) {
      double expected = b.at(o) + rs.at(5 * n + o);
      for (std::int64_t i = 0; i < 4; ++i) expected += xs.at(4 * n + i) * w.at(4 * o + i);
      EXPECT_NEAR(got.at(5 * n + o), expected, 1e-6);
    }
}

// Weights that are wider than the scope's type have copies. Other weights are cast.
TEST(Autocast, ReadsWiderWeightsFromCopies) {
  for (const DType held : {f64, f32, f16, bf16}) {
    Params params(1, held);
    const Linear layer(Path(params) / "layer", 4, 5, {.bias = false});
    LowPrecisionCopies copies(bf16);
    Graph g;
    const Tensor x = g.input("x", {2, 4}, held);
    const Autocast scope(g, Precision::bf16, false, &copies);
    EXPECT_EQ(layer(x).dtype(), bf16);
    layer(x);
    EXPECT_EQ(copies.bytes(), held == f64 || held == f32 ? 64u : 0u) << name_of(held);
    int casts = 0;  // x is cast for each of two calls, and a weight only once
    for (const Node& n : g.nodes()) casts += n.op->name == "cast";
    EXPECT_EQ(casts, held == bf16 ? 0 : held == f16 ? 3 : 2) << name_of(held);
  }
}

// Cast weights and a rank's positions are used in several segments. They must not belong to the first of
// these segments.
TEST(Recompute, KeepsWeightsAndPositionsOutOfSegments) {
  Params params(1);
  const Model model(
      params, {.architecture = Llama{}, .vocabulary = 7, .context = 8, .layers = 3, .heads = 2, .width = 8});
  const auto graph_of = [&](bool recompute, bool divided, Graph& g) {
    const Tensor ids = g.input("ids", {1, 4}, i32);
    const Autocast autocast(g, Precision::bf16);
    std::optional<ContextParallel> ranks;
    if (divided) ranks.emplace(g, 2);
    const Tensor y = model.features(ids, {.mode = Mode::train, .recompute = recompute});
    std::set<int> segments;
    for (const Node& n : g.nodes()) {
      if (n.segment >= 0) segments.insert(n.segment);
      const bool is_weight =
          n.op->name == "cast" && n.in.size() == 1 && g.node_of(n.in[0]).op->name == "parameter";
      if (is_weight) {
        EXPECT_EQ(n.segment, -1) << g.name_of(n);
      }
    }
    EXPECT_EQ(segments.size(), recompute ? 3u : 0u);
    return y;
  };
  Graph plain, again;
  const Tensor one = graph_of(false, false, plain), other = graph_of(true, false, again);
  EXPECT_EQ(one.shape(), other.shape());
  for (const bool recompute : {false, true}) {
    Graph g;
    const Tensor y = graph_of(recompute, true, g);
    gradients(sum(cast(y, f32)), {g.param(params.all()[1])});
    int positions = 0;  // they are computed once, and not again for the backward pass
    for (const Node& n : g.nodes())
      positions +=
          g.values()[n.first_out].dtype == i64 && !n.op->view && n.op->name != "input" && n.segment >= 0;
    EXPECT_EQ(positions, 0);
  }
}

TEST(ContextParallel, DividesSequencesOfItsGraphWhileItIsAlive) {
  Graph g, other;
  EXPECT_EQ(ContextParallel::ranks(g), 1);
  EXPECT_FALSE(ContextParallel::positions(g, 4).defined());
  {
    const ContextParallel outer(g, 2);
    EXPECT_EQ(ContextParallel::ranks(g), 2);
    EXPECT_EQ(ContextParallel::ranks(other), 1);
    const Tensor four = ContextParallel::positions(g, 4);
    EXPECT_EQ(four.shape(), (Shape{4}));
    EXPECT_EQ(four.dtype(), i64);
    EXPECT_EQ(ContextParallel::positions(g, 4).id(), four.id());  // the positions are computed once
    EXPECT_NE(ContextParallel::positions(g, 6).id(), four.id());
    EXPECT_FALSE(ContextParallel::positions(other, 4).defined());
    {
      const ContextParallel inner(other, 3);
      EXPECT_EQ(ContextParallel::ranks(g), 2);
      EXPECT_EQ(ContextParallel::ranks(other), 3);
      const ContextParallel single(g, 1);
      EXPECT_EQ(ContextParallel::ranks(g), 1);
      EXPECT_FALSE(ContextParallel::positions(g, 4).defined());
    }
    EXPECT_EQ(ContextParallel::ranks(g), 2);
    EXPECT_EQ(message([&] { ContextParallel::positions(g, -2); }),
              "[ContextParallel] -2 tokens on each of 2 ranks, expected 0 to 2^31 of all");
    EXPECT_NE(message([&] { ContextParallel::positions(g, (std::int64_t{1} << 30)); }), "");
  }
  EXPECT_EQ(ContextParallel::ranks(g), 1);
  KvCache cache(2, 4);
  for (const int ranks : {1, 2}) {
    const ContextParallel divided(g, ranks);
    CacheCall call(g, cache, 2);
    EXPECT_EQ(message([&] {
                call.check(g.input("x", {2, 2}));
              }),
              ranks == 1 ? "" : "[kv_cache] sequences that are divided among ranks have no cache");
  }
  for (const int ranks : {1, static_cast<int>(most_ring_ranks)})
    EXPECT_EQ(message([&] { ContextParallel(g, ranks); }), "");
  for (const int ranks : {0, -1, static_cast<int>(most_ring_ranks) + 1})
    EXPECT_EQ(message([&] { ContextParallel(g, ranks); }), "[ContextParallel] the number of ranks is " +
                                                               std::to_string(ranks) + ", expected 1 to " +
                                                               std::to_string(most_ring_ranks));
  EXPECT_EQ(ContextParallel::ranks(g), 1);
}

// ---- Models and blocks

TEST(Model, ChecksTokensAndPartsAtTheirLimits) {
  Params params(1);
  const Embedding tokens(Path(params) / "tokens", 5, 4);
  const auto parts = [&] {
    return ModelParts{.name = "ours", .context = 6, .tokens = tokens, .head = tokens.head()};
  };
  const auto made = [&](const std::function<void(ModelParts&)>& change) {
    ModelParts p = parts();
    change(p);
    return message([&] { Model(params, p); });
  };
  EXPECT_EQ(made([](auto&) {}), "");
  EXPECT_EQ(made([](auto& p) { p.context = 1; }), "");
  EXPECT_NE(made([](auto& p) { p.context = 0; }), "");
  EXPECT_EQ(made([](auto& p) { p.dropout = 0.99; }), "");
  EXPECT_NE(made([](auto& p) { p.dropout = 1; }), "");
  EXPECT_NE(made([](auto& p) { p.dropout = -0.1; }), "");
  EXPECT_EQ(made([](auto& p) { p.tokens = {}; }), "[model] a model needs a part for its tokens and a head");
  EXPECT_EQ(made([](auto& p) { p.head = {}; }), "[model] a model needs a part for its tokens and a head");
  EXPECT_EQ(made([&](auto& p) {
              p.blocks = {tokens.head(), Layer()};
            }),
            "[model] one of the blocks is empty");
  const Model model(params, parts());
  Graph g;
  const auto call = [&](const Shape& shape) {
    return message([&] { model.features(g.input("ids", shape, i32)); });
  };
  EXPECT_EQ(call({2, 6}), "");
  EXPECT_EQ(call({2, 1}), "");
  EXPECT_EQ(call({2, 7}), "[ours/model] expected tokens [batch, length up to 6], got [2, 7]");
  EXPECT_EQ(call({6}), "[ours/model] expected tokens [batch, length up to 6], got [6]");
  EXPECT_EQ(call({1, 2, 3}), "[ours/model] expected tokens [batch, length up to 6], got [1, 2, 3]");
  {
    const ContextParallel two(g, 2);
    EXPECT_EQ(call({2, 3}), "");
    EXPECT_EQ(call({2, 4}), "[ours/model] expected tokens [batch, length up to 3], got [2, 4]");
  }
  KvCache cache(2, 6);
  CacheCall three(g, cache, 3);
  EXPECT_EQ(message([&] { model.features(g.input("ids", {2, 3}, i32), {.cache = &three}); }), "");
  EXPECT_NE(message([&] { model.features(g.input("ids", {2, 2}, i32), {.cache = &three}); }), "");
  // Positions are added, and the norm is applied last.
  ModelParts more = parts();
  more.positions = Layer("positions", [](TensorArg ids) {
    return full(ids.tensor().graph(), {1, 4}, 2, f32);
  });
  more.blocks = {Layer("block", [](TensorArg x) { return x.tensor() * 3; })};
  more.norm = Layer("norm", [](TensorArg x) { return x.tensor() + 10; });
  const Model whole(params, more);
  const Tensor ids = g.input("ids", {1, 2}, i32);
  const Array got = eval(whole.features(ids), {{ids, std::vector<std::int32_t>{3, 1}}}),
              table = params.all()[0].read();
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(float(got.at(i)), float((table.at(12 + i) + 2) * 3 + 10));
    EXPECT_FLOAT_EQ(float(got.at(4 + i)), float((table.at(4 + i) + 2) * 3 + 10));
  }
}

TEST(LanguageModel, DefaultsToFeaturesAndCrossEntropy) {
  Graph g;
  const Tensor ids = g.input("ids", {1, 2}, i32), targets = g.input("targets", {1, 2}, i32);
  LanguageModel model;
  EXPECT_EQ(message([&] { model.logits(ids); }), "[language model] it has no `features`");
  EXPECT_EQ(model.count(), 0);
  EXPECT_EQ(model.device(), Device::cpu());
  const CallArgs* seen = nullptr;
  model.features = [&](TensorArg tokens, const CallArgs& call) {
    seen = &call;
    return expand(unsqueeze(cast(tokens, f64), -1), {1, 2, 3}) *
           tokens.tensor().graph().constant(Array::of<double>({3}, {1, 2, 4}));
  };
  const CallArgs training{.mode = Mode::train};
  const auto v = [&](const Tensor& t) {
    return doubles(
        eval(t, {{ids, std::vector<std::int32_t>{1, 2}}, {targets, std::vector<std::int32_t>{0, 2}}}));
  };
  const Tensor features = model.features_of(ids, training);
  EXPECT_EQ(seen, &training);
  const auto only_ids = [&](const Tensor& t) {
    return doubles(eval(t, {{ids, std::vector<std::int32_t>{1, 2}}}));
  };
  EXPECT_EQ(only_ids(model.logits(ids)), (Vector{1, 2, 4, 2, 4, 8}));
  EXPECT_EQ(model.head_of(features).id(), features.id());
  const auto loss = [](double a, double b, double c, double target) {
    return std::log(std::exp(a) + std::exp(b) + std::exp(c)) - target;
  };
  EXPECT_NEAR(v(model.loss_of(features, targets))[0], (loss(1, 2, 4, 1) + loss(2, 4, 8, 8)) / 2, 1e-12);
  model.head = [](TensorArg x) { return x.tensor() * 2; };
  EXPECT_EQ(only_ids(model.logits(ids)), (Vector{2, 4, 8, 4, 8, 16}));
  EXPECT_NEAR(v(model.loss_of(features, targets))[0], (loss(2, 4, 8, 2) + loss(4, 8, 16, 16)) / 2, 1e-12);
  LossOptions options;
  model.loss = [&](TensorArg x, TensorArg t, const LossOptions& o) {
    options = o;
    return sum(x.tensor()) + sum(cast(t, f64)) * 100;
  };
  EXPECT_EQ(v(model.loss_of(features, targets, {.chunk_rows = 3, .unit_rows = 5}))[0], 21 + 200);
  EXPECT_EQ(options.chunk_rows, 3);
  EXPECT_EQ(options.unit_rows, 5);
  model.parameters = {Parameter("a", Array({2, 3}, f32)), Parameter("b", Array({4}, f32))};
  EXPECT_EQ(model.count(), 10);
  EXPECT_EQ(model.device(), Device::cpu());
}

// A branch computes x + after(f(norm(x))). If `after` is empty, the layer f itself adds x.
TEST(Block, AddsBranchesWithNormsBeforeAndAfter) {
  Params params(1, f64);
  const auto layer = [](const char* name, double factor, double plus = 0) {
    return Layer(name, [=](TensorArg x, const CallArgs& call) {
      EXPECT_FALSE(call.residual.defined());
      return x.tensor() * factor + plus;
    });
  };
  Graph g;
  const Tensor x = g.input("x", {1}, f64);
  const auto value = [&](std::vector<Branch> branches, double dropout = 0, Mode mode = Mode::evaluate) {
    const Block block(Path(params) / "block", std::move(branches), dropout);
    return eval(block(x, {.mode = mode}), {{x, std::vector<double>{1}}}).at(0);
  };
  const Layer norm = layer("norm", 3, 1), f = layer("f", 2), after = layer("after", 10, 5);
  EXPECT_EQ(value({}), 1);
  EXPECT_EQ(value({{{}, f}}), 1 + 2);
  EXPECT_EQ(value({{norm, f}}), 1 + 8);
  EXPECT_EQ(value({{{}, f, after}}), 1 + 25);
  EXPECT_EQ(value({{norm, f, after}}), 1 + 85);
  EXPECT_EQ(value({{norm, f}, {{}, f, after}}), 9 + 18 * 10 + 5);
  EXPECT_EQ(value({{norm, f, after}}, 0.5), 86);  // dropout is applied only in training
  const double dropped = value({{norm, f, after}}, 0.5, Mode::train);
  EXPECT_TRUE(dropped == 1 || dropped == 1 + 2 * 85) << dropped;
  const double without = value({{norm, f}}, 0.5, Mode::train);
  EXPECT_TRUE(without == 1 || without == 1 + 2 * 8) << without;
}

TEST(Layer, FunctionLayersNeedAFunctionAndAName) {
  Graph g;
  const Tensor x = g.input("x", {2});
  std::function<Tensor(TensorArg)> none;
  Tensor (*pointer)(TensorArg) = nullptr;
  EXPECT_EQ(message([&] { Layer("nothing", none); }), "[layer] nothing is made of an empty function");
  EXPECT_EQ(message([&] { Layer("nothing", pointer); }), "[layer] nothing is made of an empty function");
  EXPECT_EQ(message([&] { Layer()(x); }), "[layer] an empty Layer was called");
  EXPECT_EQ(message([&] { Layer().as_matmul(x); }), "[layer] an empty Layer was called");
  EXPECT_TRUE(Layer().is_empty());
  const Layer twice("twice", [](TensorArg t) { return t.tensor() * 2; });
  EXPECT_FALSE(twice.is_empty());
  EXPECT_FALSE(twice.as_matmul(x));
  EXPECT_EQ(g.name_of(g.node_of(twice(x).id())), "twice");
}

TEST(Embeddings, ReadRowsOfTheirTable) {
  Params params(1, f64);
  const PositionEmbedding positions(Path(params) / "wpe", 4, 3);
  const Embedding table(Path(params) / "wte", 5, 3);
  const Array p = params.all()[0].read(), t = params.all()[1].read();
  for (const std::int64_t length : {1, 3, 4}) {
    Graph g;
    const Tensor ids = g.input("ids", {2, length}, i64), rows = positions(ids);
    EXPECT_EQ(rows.shape(), (Shape{length, 3}));
    EXPECT_EQ(count_nodes(g, "slice"),
              length < 4 ? 1 : 0);  // if the length is 4, the rows are the complete table
    const Array got = eval(rows);
    for (std::int64_t i = 0; i < 3 * length; ++i) EXPECT_EQ(got.at(i), p.at(i));
  }
  Graph g;
  const Tensor ids = g.input("ids", {2}, i64);
  const Array got = eval(table(ids), {{ids, std::vector<std::int64_t>{4, 1}}});
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.at(i), t.at(12 + i));
    EXPECT_EQ(got.at(3 + i), t.at(3 + i));
  }
  // If there is a cache, the rows follow the cached positions.
  KvCache cache(2, 4);
  Graph after;
  CacheCall call(after, cache, 2);
  const Tensor tokens = after.input("tokens", {2, 2}, i32), rows = positions(tokens, {.cache = &call});
  EXPECT_EQ(rows.shape(), (Shape{2, 2, 3}));
  const Array cached = eval(rows, {{call.cached(), std::vector<std::int32_t>{2, 0}}});
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(cached.at(i), p.at(6 + i));
    EXPECT_EQ(cached.at(6 + i), p.at(i));
  }
}

TEST(RmsNorm, AddsOneToGainsInTheirComputeType) {
  for (const DType dtype : {f64, f32, bf16}) {
    Params params(1, dtype);
    const RmsNorm norm(Path(params) / "norm", 4, 0.25, true);
    Parameter(params.all()[0]).write(numbered({4}, dtype, 3));
    Graph g;
    const Tensor x = g.input("x", {2, 4}, dtype);
    const Array xs = numbered({2, 4}, dtype, 1), gain = params.all()[0].read();
    const Array got = eval(norm(x), {{x, xs}});
    for (std::int64_t n = 0; n < 2; ++n) {
      double square = 0;
      for (std::int64_t i = 0; i < 4; ++i) square += xs.at(4 * n + i) * xs.at(4 * n + i) / 4;
      for (std::int64_t i = 0; i < 4; ++i) {
        const double expected = xs.at(4 * n + i) / std::sqrt(square + 0.25) * (1 + gain.at(i));
        EXPECT_NEAR(got.at(4 * n + i), expected,
                    (dtype == f64   ? 1e-14
                     : dtype == f32 ? 1e-6
                                    : 0x1p-8) *
                        std::abs(expected));
      }
    }
  }
}

}  // namespace
