// Checks tables of models: the settings of each architecture, option defaults, and the names, shapes and
// initial values of all parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/architecture.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/models/model_parts.h>
#include <tilegrad/tilegrad.h>

namespace {

using namespace tg;
using namespace tg::nn;

std::string number(double x) {
  return std::isinf(x) ? (x < 0 ? "-inf" : "inf") : tg::detail::attr_text(x);
}

// Describes a setting on one line: its name, its value, and the range of its option. Also describes the
// metadata that is written if the setting is absent.
std::string text_of(const Setting& s) {
  std::string text = s.name + "=";
  std::visit(
      [&](auto* value) {
        if constexpr (requires {
                        value->begin(),
                            value->push_back(typename std::decay_t<decltype(*value)>::value_type());
                      }) {
          if constexpr (std::is_same_v<std::decay_t<decltype(*value)>, std::string>)
            text += *value;
          else
            for (const auto& e : *value) text += tg::detail::attr_text(e) + ",";
        } else {
          text += tg::detail::attr_text(*value);
        }
      },
      s.value);
  if (s.help) text += " from " + number(s.min) + " to " + number(s.max);
  if (!s.help && (std::isfinite(s.min) || std::isfinite(s.max))) text += " has a range without an option";
  if (!s.shown.empty()) text += " shown '" + s.shown + "'";
  if (!s.after.empty()) text += " after " + s.after;
  if (s.absent) text += " absent '" + *s.absent + "'";
  return text + "\n";
}

TEST(Settings, AreListedInOrderForEachArchitecture) {
  const std::string common =
      "vocabulary=0\nlayers=4 from 1 to 256\nheads=4 from 1 to 4096\nwidth=128 from 1 to 16384\n"
      "context=64 from 1 to 65536\nbias=false\ntied_head=true\n";
  const std::string mlp = "mlp_width=0 from 0 to 65536 shown '0: 8/3 of --width' after width\n",
                    theta = "theta=10000 from 1 to 1e+12 after width\n";
  const std::string scaling =
      "rope_type=none absent 'none'\nrope_factor=1 absent '1'\nrope_first_context=0 absent '0'\n"
      "rope_low_frequency=1 absent '1'\nrope_high_frequency=4 absent '4'\nrope_beta_fast=32 absent '32'\n"
      "rope_beta_slow=1 absent '1'\nrope_whole_pairs=true absent 'true'\nrope_short_factors= absent ''\n"
      "rope_long_factors= absent ''\nrope_magnitude=1 absent '1'\n";
  const std::pair<Architecture, std::string> rows[] = {
      {Gpt{}, "activation=gelu absent 'gelu'\nmlp_width=0 absent '0'\neps=1e-05 absent '1e-05'\n"},
      {Llama{},
       "key_heads=0 from 0 to 4096 shown '0: --heads' after heads\n" + mlp + theta +
           "head_width=0 absent '0'\neps=1e-06 absent '1e-06'\nattention_bias=false absent 'false'\n"
           "qkv_bias=false absent 'false'\nmlp_bias=false absent 'false'\nactivation=silu absent 'silu'\n"
           "qk_norm=none absent 'none'\nnorms=before absent 'before'\nplus_one=false absent 'false'\n"
           "embedding_scale=1 absent '1'\nattention_scale=0 absent '0'\nattention_softcap=0 absent '0'\n"
           "logit_softcap=0 absent '0'\nwindows= absent ''\nrotary_width=0 absent '0'\nrotated= absent ''\n"
           "window_theta=0 absent '0'\n" +
           scaling},
      {DeepSeek{},
       "latent=32 from 1 to 16384 after heads\nquery_latent=0 from 0 to 16384 after heads\n"
       "rope_width=8 from 2 to 16384 after heads\n" +
           mlp + theta +
           "head_width=0 absent '0'\nvalue_width=0 absent '0'\neps=1e-06 absent '1e-06'\n"
           "attention_bias=false absent 'false'\ninterleaved=true absent 'true'\n"
           "attention_scale=0 absent '0'\n" +
           scaling}};
  for (const auto& [architecture, own] : rows) {
    ModelConfig c{.architecture = architecture};
    std::string text;
    for (const Setting& s : c.settings()) text += text_of(s);
    EXPECT_EQ(text, common + own) << architecture.name();
    // If a setting is missing from the metadata, it has its default.
    for (const Setting& s : c.settings())
      if (s.absent) {
        EXPECT_EQ(text_of(s), s.name + "=" + *s.absent + " absent '" + *s.absent + "'\n");
      }
  }
  // Each setting points to a different member.
  Llama llama;
  ModelConfig c{.architecture = llama};
  std::set<const void*> members;
  for (const Setting& s : c.settings())
    std::visit([&](auto* value) { EXPECT_TRUE(members.insert(value).second) << s.name; }, s.value);
  std::string names;
  for (const Architecture& a : architectures()) names += a.name() + " " + a.title() + " ";
  EXPECT_EQ(names, "gpt GPT llama Llama deepseek DeepSeek ");
  for (const Architecture& a : architectures()) EXPECT_EQ(architecture_named(a.name()).title(), a.title());
  try {
    architecture_named("bert");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "[model] got 'bert', expected one of gpt, llama, deepseek");
  }
}

TEST(Settings, DescribeSizesAndCounts) {
  const auto text = [](Architecture a, std::int64_t layers, std::int64_t heads) {
    return ModelConfig{.architecture = std::move(a), .layers = layers, .heads = heads}.text();
  };
  EXPECT_EQ(text(Gpt{}, 1, 1), "GPT: 1 layer, 1 head, width 128, context 64");
  EXPECT_EQ(text(Gpt{}, 2, 4), "GPT: 2 layers, 4 heads, width 128, context 64");
  EXPECT_EQ(text(Llama{}, 0, 2), "Llama: 0 layers, 2 heads, width 128, context 64");
  EXPECT_EQ(text(Llama{.key_heads = 1}, 2, 4), "Llama: 2 layers, 4 heads, 1 key head, width 128, context 64");
  EXPECT_EQ(text(Llama{.key_heads = 2}, 2, 4),
            "Llama: 2 layers, 4 heads, 2 key heads, width 128, context 64");
  EXPECT_EQ(text(Llama{.key_heads = 4}, 2, 4), "Llama: 2 layers, 4 heads, width 128, context 64");
  EXPECT_EQ(text(Llama{.key_heads = -1}, 2, 4), "Llama: 2 layers, 4 heads, width 128, context 64");
  EXPECT_EQ(text(DeepSeek{}, 2, 4), "DeepSeek: 2 layers, 4 heads, latent 32 + 8, width 128, context 64");
  EXPECT_EQ(text(DeepSeek{.query_latent = 1}, 2, 4),
            "DeepSeek: 2 layers, 4 heads, latent 32 + 8 and 1, width 128, context 64");
}

TEST(Settings, CompleteReplacesZerosBySizes) {
  const auto completed = [](Architecture a) {
    ModelConfig c{.architecture = std::move(a), .heads = 8, .width = 96};
    c.architecture.complete(c);
    std::string text;
    for (const Setting& s : c.architecture.settings())
      if (s.name == "key_heads" || s.name == "mlp_width")
        text += s.name + "=" + std::to_string(*std::get<std::int64_t*>(s.value)) + " ";
    return text;
  };
  EXPECT_EQ(completed(Gpt{}), "mlp_width=0 ");
  EXPECT_EQ(completed(Llama{}), "key_heads=8 mlp_width=256 ");
  EXPECT_EQ(completed(Llama{.key_heads = 2, .mlp_width = 7}), "key_heads=2 mlp_width=7 ");
  EXPECT_EQ(completed(DeepSeek{}), "mlp_width=256 ");
  EXPECT_EQ(completed(DeepSeek{.mlp_width = 7}), "mlp_width=7 ");
  // The default is 8/3 of the width, rounded to a multiple of 8.
  const std::pair<std::int64_t, std::int64_t> widths[] = {
      {0, 0}, {1, 8}, {2, 8}, {3, 8}, {4, 16}, {6, 16}, {7, 24}, {96, 256}, {128, 344}, {4096, 10928}};
  for (const auto& [width, inner] : widths) EXPECT_EQ(swiglu_width(width), inner) << width;
  EXPECT_THROW(swiglu_width(-1), ShapeError);
  EXPECT_THROW(swiglu_width(max_elements + 1), ShapeError);
}

// Code that does not set an option depends on the default.
TEST(Defaults, MatchTheHeaders) {
  const auto same = [](const auto& got, const auto& expected) { EXPECT_TRUE(got == expected); };
  const auto init = [](const Init& i) { return std::tuple(i.mean, i.std, i.bound, i.by_fan_in); };
  const std::tuple none(0.0, 0.0, 0.0, false), gpt2(0.0, 0.02, 0.0, false);
  same(init({}), none);
  same(init(Init::zeros()), none);
  same(init(Init::ones()), std::tuple(1.0, 0.0, 0.0, false));
  same(init(Init::normal(3)), std::tuple(0.0, 3.0, 0.0, false));
  same(init(Init::uniform(3)), std::tuple(0.0, 0.0, 3.0, false));
  same(init(Init::gpt2()), gpt2);
  same(init(Init::pytorch()), std::tuple(0.0, 0.0, 0.0, true));
  same(init(Init::pytorch().of_weight(16)), std::tuple(0.0, 0.0, 0.25, false));
  same(init(Init::pytorch().of_bias(16)), std::tuple(0.0, 0.0, 0.25, false));
  same(init(Init::normal(3).of_weight(16)), std::tuple(0.0, 3.0, 0.0, false));
  same(init(Init::normal(3).of_bias(16)), none);

  const Linear::Options linear;
  same(std::tuple(linear.bias, linear.wide, init(linear.init)), std::tuple(true, false, gpt2));
  const SelfAttention::Options self;
  same(std::tuple(self.bias, self.dropout, init(self.init), init(self.output_init)),
       std::tuple(true, 0.0, gpt2, gpt2));
  const GroupedAttention::Options g;
  same(std::tuple(g.key_heads, g.head_width, g.bias, g.qkv_bias, g.qk_norm, g.eps, g.plus_one, g.window,
                  g.scale),
       std::tuple(0, 0, false, false, GroupedAttention::QueryKeyNorm::none, 1e-6, false, 0, 0.0));
  same(std::tuple(g.softcap, g.dropout, g.rotate, g.magnitude, g.short_length, g.short_frequencies.empty(),
                  init(g.init), init(g.output_init)),
       std::tuple(0.0, 0.0, true, 1.0, 0, true, gpt2, gpt2));
  same(std::tuple(g.rope.theta, g.rope.dims, g.rope.start, g.rope.interleaved, g.rope.frequencies.empty()),
       std::tuple(10000.0, 0, 0, false, true));
  const LatentAttention::Options l;
  same(std::tuple(l.latent, l.query_latent, l.rope_width, l.head_width, l.value_width, l.theta,
                  l.frequencies.empty(), l.short_frequencies.empty(), l.short_length, l.interleaved),
       std::tuple(32, 0, 8, 0, 0, 10000.0, true, true, 0, true));
  same(std::tuple(l.magnitude, l.scale, l.eps, l.bias, l.dropout, init(l.init), init(l.output_init)),
       std::tuple(1.0, 0.0, 1e-6, false, 0.0, gpt2, gpt2));
  const Mlp::Options mlp;
  same(std::tuple(mlp.inner, mlp.activation, mlp.bias, init(mlp.init), init(mlp.output_init)),
       std::tuple(0, Activation::gelu, true, gpt2, gpt2));
  const GatedMlp::Options gated;
  same(std::tuple(gated.activation, gated.bias, init(gated.init), init(gated.output_init)),
       std::tuple(Activation::silu, false, gpt2, gpt2));
  const RotaryStack stack;
  same(std::tuple(stack.mlp_width, stack.mlp_bias, stack.activation, stack.eps, stack.norms, stack.plus_one,
                  stack.embedding_scale, stack.softcap),
       std::tuple(0, false, Activation::silu, 1e-6, NormPosition::before, false, 1.0, 0.0));
  const ModelConfig c;
  same(std::tuple(c.vocabulary, c.context, c.layers, c.heads, c.width, c.dropout, c.bias, c.tied_head, c.std,
                  c.initializer),
       std::tuple(0, 64, 4, 4, 128, 0.0, false, true, 0.02, Initializer::gpt2));
  const ModelParts parts;
  same(std::tuple(parts.name, parts.context, parts.dropout), std::tuple("", 0, 0.0));
  const LoraOptions lora;
  same(std::tuple(lora.rank, lora.alpha, lora.rank_stabilized, lora.dropout, lora.targets.empty(), lora.seed,
                  lora.dtype),
       std::tuple(8, 16.0, false, 0.0, true, 0u, f32));
  const LoraModule module;
  same(std::tuple(module.in, module.out, module.rank, module.alpha, module.scale),
       std::tuple(0, 0, 0, 0.0, 0.0));
  const ModuleRows rows;
  same(std::tuple(rows.first_row, rows.rows), std::tuple(0, 0));
  const LowRank low;
  same(std::tuple(low.first_row, low.scale, low.dropout), std::tuple(0, 1.0, 0.0));
  const LinearSlot place;
  same(std::tuple(place.in, place.out, place.is_head), std::tuple(0, 0, false));
  const LossOptions loss;
  same(std::tuple(loss.chunk_rows, loss.unit_rows), std::tuple(0, 0));
  same(LanguageModel().context, 0);
  const CallArgs call;
  same(std::tuple(call.mode, call.cache, call.residual.defined(), call.recompute),
       std::tuple(Mode::evaluate, static_cast<CacheCall*>(nullptr), false, false));
  const CacheCall::InPages pages;
  same(std::tuple(pages.singles, pages.groups, pages.length, pages.room), std::tuple(0, 0, 1, 1));
  const Setting setting;
  constexpr double inf = std::numeric_limits<double>::infinity();
  same(std::tuple(setting.help == nullptr, setting.min, setting.max, setting.absent.has_value()),
       std::tuple(true, -inf, inf, false));
  same(std::tuple(Weight().is_absent(), Weight(Parameter("w", Array({1}, f32))).is_absent()),
       std::tuple(true, false));
  // Checks default arguments.
  Params params, seeded(0);
  const auto at = [&](const char* name) { return Path(params) / name; };
  const LayerNorm layer_norm(at("ln"), 3);
  const RmsNorm rms_norm(at("rms"), 3);
  const Embedding embedding(at("e"), 5, 3);
  const PositionEmbedding positions(at("p"), 5, 3);
  const Linear plain(at("l"), 3, 4);
  const auto kept = [&](const char* name) { return params.find(name)->settings(); };
  same(kept("ln.weight"), (Parameter::Settings{{"ln.eps", "1e-05"}}));
  same(kept("rms.weight"), (Parameter::Settings{{"rms.eps", "1e-06"}}));
  for (const char* name : {"e.weight", "p.weight", "l.weight"}) {
    const Parameter& p = *params.find(name);
    EXPECT_TRUE(p.read().same_bits(seeded.create(name, p.shape(), Init::gpt2()).read())) << name;
  }
  EXPECT_EQ(params.find("l.bias")->read().values<float>(), (std::vector<float>(4, 0)));
  EXPECT_EQ(params.find("ln.bias")->read().values<float>(), (std::vector<float>(3, 0)));
  EXPECT_EQ(params.find("ln.weight")->read().values<float>(), (std::vector<float>(3, 1)));
  EXPECT_EQ(params.find("rms.weight")->read().values<float>(), (std::vector<float>(3, 1)));
  EXPECT_EQ(params.dtype(), f32);
  EXPECT_EQ(params.device(), Device::cpu());
}

// ---- Parameters

struct Expected {
  std::string name;
  Shape shape;
  Init init;
};

// Compares a model's parameters with a list, in the same order. Initial values do not depend on the dtype, so
// models are compared in f64.
void expect_parameters(ModelConfig c, const std::vector<Expected>& expected, const std::string& what) {
  Params params(7, f64), drawn(7, f64);
  c.vocabulary = 11, c.context = 5;
  const Model model(params, c);
  std::int64_t count = 0;
  ASSERT_EQ(params.all().size(), expected.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Parameter& p = params.all()[i];
    const Expected& e = expected[i];
    EXPECT_EQ(p.name() + " " + p.shape().text(), e.name + " " + e.shape.text()) << what;
    EXPECT_TRUE(p.read().same_bits(drawn.create(e.name, e.shape, e.init).read())) << what << ": " << e.name;
    count += numel(e.shape);
  }
  EXPECT_EQ(c.parameters(), count) << what;
  EXPECT_EQ(params.count(), count);
  EXPECT_EQ(params.bytes(), 8 * static_cast<std::size_t>(count));
  std::string each, all;
  c.each_parameter([&](const std::string& path, const Shape& shape) { each += path + shape.text(); });
  for (const Expected& e : expected) all += e.name + e.shape.text();
  EXPECT_EQ(each, all) << what;
}

// Adds a Linear with its bias. The initial values depend on the number of inputs.
void add_linear(std::vector<Expected>& all, const std::string& name, std::int64_t out, std::int64_t in,
                bool bias, Init init) {
  all.push_back({name + ".weight", {out, in}, init.of_weight(in)});
  if (bias) all.push_back({name + ".bias", {out}, init.of_bias(in)});
}

struct Inits {
  Init linear, last, embedding;
};
Inits inits_of(const ModelConfig& c) {
  if (c.initializer == Initializer::pytorch) return {Init::pytorch(), Init::pytorch(), Init::normal(1)};
  return {Init::normal(c.std), Init::normal(c.std / std::sqrt(2.0 * static_cast<double>(c.layers))),
          Init::normal(c.std)};
}

std::vector<Expected> gpt_parameters(const ModelConfig& c, const Gpt& gpt) {
  const Inits i = inits_of(c);
  const std::int64_t w = c.width, inner = gpt.mlp_width == 0 ? 4 * w : gpt.mlp_width;
  std::vector<Expected> all{{"transformer.wte.weight", {11, w}, i.embedding},
                            {"transformer.wpe.weight", {5, w}, i.embedding}};
  const auto norm = [&](const std::string& name) {
    all.push_back({name + ".weight", {w}, Init::ones()});
    if (c.bias) all.push_back({name + ".bias", {w}, Init::zeros()});
  };
  for (int n = 0; n < c.layers; ++n) {
    const std::string h = "transformer.h." + std::to_string(n) + ".";
    norm(h + "ln_1");
    add_linear(all, h + "attn.c_attn", 3 * w, w, c.bias, i.linear);
    add_linear(all, h + "attn.c_proj", w, w, c.bias, i.last);
    norm(h + "ln_2");
    add_linear(all, h + "mlp.c_fc", inner, w, c.bias, i.linear);
    add_linear(all, h + "mlp.c_proj", w, inner, c.bias, i.last);
  }
  norm("transformer.ln_f");
  if (!c.tied_head) add_linear(all, "lm_head", 11, w, false, i.linear);
  return all;
}

// Adds the layers that Llama and DeepSeek share. `attention` adds the parameters of an attention layer.
std::vector<Expected> stack_parameters(
    const ModelConfig& c, std::int64_t inner, bool mlp_bias, const std::string& norms, bool plus_one,
    const std::function<void(std::vector<Expected>&, const std::string&)>& attention) {
  const Inits i = inits_of(c);
  const std::int64_t w = c.width;
  std::vector<Expected> all{{"model.embed_tokens.weight", {11, w}, i.embedding}};
  const auto norm = [&](const std::string& name) {
    all.push_back({name + ".weight", {w}, plus_one ? Init::zeros() : Init::ones()});
  };
  for (int n = 0; n < c.layers; ++n) {
    const std::string h = "model.layers." + std::to_string(n) + ".";
    if (norms != "after") norm(h + "input_layernorm");
    attention(all, h + "self_attn.");
    norm(h + "post_attention_layernorm");
    if (norms == "both") norm(h + "pre_feedforward_layernorm");
    add_linear(all, h + "mlp.gate_proj", inner, w, c.bias || mlp_bias, i.linear);
    add_linear(all, h + "mlp.up_proj", inner, w, c.bias || mlp_bias, i.linear);
    add_linear(all, h + "mlp.down_proj", w, inner, c.bias || mlp_bias, i.last);
    if (norms != "before") norm(h + "post_feedforward_layernorm");
  }
  norm("model.norm");
  if (!c.tied_head) add_linear(all, "lm_head", 11, w, false, i.linear);
  return all;
}

std::vector<Expected> llama_parameters(const ModelConfig& c, const Llama& l) {
  const Inits i = inits_of(c);
  const std::int64_t w = c.width, d = l.head_width == 0 ? w / c.heads : l.head_width,
                     keys = (l.key_heads == 0 ? c.heads : l.key_heads) * d, queries = c.heads * d;
  return stack_parameters(
      c, l.mlp_width == 0 ? swiglu_width(w) : l.mlp_width, l.mlp_bias, l.norms, l.plus_one,
      [&](std::vector<Expected>& all, const std::string& at) {
        const bool bias = c.bias || l.attention_bias, qkv_bias = bias || l.qkv_bias;
        add_linear(all, at + "q_proj", queries, w, qkv_bias, i.linear);
        add_linear(all, at + "k_proj", keys, w, qkv_bias, i.linear);
        add_linear(all, at + "v_proj", keys, w, qkv_bias, i.linear);
        add_linear(all, at + "o_proj", w, queries, bias, i.last);
        const Init gain = l.plus_one ? Init::zeros() : Init::ones();
        if (l.qk_norm != "none") {
          all.push_back({at + "q_norm.weight", {l.qk_norm == "whole" ? queries : d}, gain});
          all.push_back({at + "k_norm.weight", {l.qk_norm == "whole" ? keys : d}, gain});
        }
      });
}

std::vector<Expected> deepseek_parameters(const ModelConfig& c, const DeepSeek& s) {
  const Inits i = inits_of(c);
  const std::int64_t w = c.width, d = s.head_width == 0 ? w / c.heads : s.head_width,
                     dv = s.value_width == 0 ? d : s.value_width, queries = c.heads * (d + s.rope_width);
  return stack_parameters(c, s.mlp_width == 0 ? swiglu_width(w) : s.mlp_width, false, "before", false,
                          [&](std::vector<Expected>& all, const std::string& at) {
                            const bool bias = c.bias || s.attention_bias;
                            if (s.query_latent == 0) {
                              add_linear(all, at + "q_proj", queries, w, false, i.linear);
                            } else {
                              add_linear(all, at + "q_a_proj", s.query_latent, w, bias, i.linear);
                              add_linear(all, at + "q_b_proj", queries, s.query_latent, false, i.linear);
                              all.push_back({at + "q_a_layernorm.weight", {s.query_latent}, Init::ones()});
                            }
                            add_linear(all, at + "kv_a_proj_with_mqa", s.latent + s.rope_width, w, bias,
                                       i.linear);
                            all.push_back({at + "kv_a_layernorm.weight", {s.latent}, Init::ones()});
                            add_linear(all, at + "kv_b_proj", c.heads * (d + dv), s.latent, false, i.linear);
                            add_linear(all, at + "o_proj", w, c.heads * dv, bias, i.last);
                          });
}

// Tests each setting that affects parameters, one at a time and some together.
TEST(Parameters, HaveTheNamesShapesAndInitialValuesOfTheirArchitecture) {
  for (const Initializer initializer : {Initializer::gpt2, Initializer::pytorch})
    for (const bool bias : {false, true})
      for (const bool tied : {false, true}) {
        const ModelConfig c{.layers = 3,
                            .heads = 2,
                            .width = 12,
                            .bias = bias,
                            .tied_head = tied,
                            .std = 0.05,
                            .initializer = initializer};
        const auto with = [&](Architecture a) {
          ModelConfig own = c;
          own.architecture = std::move(a);
          return own;
        };
        const std::string what = std::string(bias ? "bias " : "") + (tied ? "tied " : "");
        for (const Gpt& g : {Gpt{}, Gpt{.mlp_width = 7}})
          expect_parameters(with(g), gpt_parameters(c, g), "gpt " + what);
        const Llama llamas[] = {{},
                                {.key_heads = 1},
                                {.mlp_width = 5},
                                {.head_width = 4},
                                {.attention_bias = true},
                                {.qkv_bias = true},
                                {.mlp_bias = true},
                                {.qk_norm = "head"},
                                {.key_heads = 1, .head_width = 8, .qk_norm = "whole"},
                                {.norms = "after"},
                                {.norms = "both"},
                                {.plus_one = true},
                                {.qk_norm = "head", .norms = "both", .plus_one = true}};
        for (std::size_t i = 0; i < std::size(llamas); ++i)
          expect_parameters(with(llamas[i]), llama_parameters(c, llamas[i]),
                            "llama " + std::to_string(i) + what);
        const DeepSeek deepseeks[] = {{.latent = 5},
                                      {.latent = 5, .query_latent = 3},
                                      {.latent = 5, .rope_width = 4, .mlp_width = 9},
                                      {.latent = 5, .head_width = 4, .value_width = 7},
                                      {.latent = 5, .query_latent = 3, .attention_bias = true}};
        for (std::size_t i = 0; i < std::size(deepseeks); ++i)
          expect_parameters(with(deepseeks[i]), deepseek_parameters(c, deepseeks[i]),
                            "deepseek " + std::to_string(i) + what);
      }
}

TEST(Parameters, InitialValuesAreInTheirRange) {
  Params p(3, f64);
  const auto values = [&](const char* name, Init init) {
    return p.create(name, {2000}, init).read().values<double>();
  };
  double least = 9, most = -9;
  for (const double x : values("uniform", {.mean = 5, .bound = 0.5}))
    least = std::min(least, x), most = std::max(most, x);
  EXPECT_GE(least, 4.5);
  EXPECT_LT(least, 4.51);
  EXPECT_LE(most, 5.5);
  EXPECT_GT(most, 5.49);
  for (const double x : values("constant", {.mean = 2})) EXPECT_EQ(x, 2);
  double mean = 0;
  for (const double x : values("normal", {.mean = 3, .std = 0.1})) mean += x / 2000;
  EXPECT_NEAR(mean, 3, 5 * 0.1 / std::sqrt(2000));
}

// Tests parameters without initial values, and parameters that are only counted.
TEST(Parameters, UnsetAndCountedOnesHaveNoValues) {
  Params unset = Params::unset(bf16);
  const Model model(unset, {.vocabulary = 11, .context = 5, .layers = 1, .heads = 2, .width = 12});
  EXPECT_EQ(unset.dtype(), bf16);
  for (Parameter p : unset.all()) {
    EXPECT_EQ(p.dtype(), bf16);
    EXPECT_THROW(p.read(), Error) << p.name();
    p.write(Array(p.shape(), bf16));
    EXPECT_NO_THROW(p.read());
  }
  EXPECT_EQ(unset.find("transformer.ln_f.weight")->name(), "transformer.ln_f.weight");
  EXPECT_EQ(unset.find("transformer.ln_f.bias"), nullptr);
  Params counted = Params::counting(f16);
  const Linear layer(Path(counted) / "layer", 3, 4);
  EXPECT_EQ(counted.count(), 16);
  EXPECT_EQ(counted.bytes(), 32u);
  EXPECT_EQ(counted.dtype(), f16);
  EXPECT_EQ(counted.linears().size(), 1u);
  EXPECT_FALSE(layer.weight().is_absent());
}

TEST(Paths, NameLayersAndListTheirParts) {
  Params params;
  const Path root = params, h = root / "model" / "h";
  const auto names = [](const Path& at) { return at.text() + "|" + at.name(); };
  EXPECT_EQ(names(root), "|");
  EXPECT_EQ(names(root / "a"), "a|a");
  EXPECT_EQ(names(h / 3), "model.h.3|h.3");
  EXPECT_EQ(names(h / "12" / "attn"), "model.h.12.attn|attn");
  EXPECT_EQ(names(h / "1a"), "model.h.1a|1a");
  EXPECT_EQ(names(root / 0), "0|0");
  EXPECT_EQ(names(h / ""), "model.h.|");
  const Linear a(h / 1 / "a", 2, 3), ab(h / 10, 2, 3, {.bias = false}), b(root / "b", 2, 3, {.wide = true});
  const auto linears = [](const Path& at) {
    std::string text;
    for (const LinearSlot& p : at.linears())
      text +=
          p.path + " " + std::to_string(p.in) + " " + std::to_string(p.out) + (p.is_head ? " head " : " ");
    return text;
  };
  EXPECT_EQ(linears(root), "model.h.1.a 2 3 model.h.10 2 3 b 2 3 head ");
  EXPECT_EQ(linears(h / 1), "model.h.1.a 2 3 ");
  EXPECT_EQ(linears(h / 10), "model.h.10 2 3 ");
  EXPECT_EQ(linears(h), "model.h.1.a 2 3 model.h.10 2 3 ");
  EXPECT_EQ(linears(root / "b"), "b 2 3 head ");
  EXPECT_EQ(linears(root / "model" / "h" / 2), "");
  EXPECT_EQ(root.parameters().size(), 5u);
  EXPECT_EQ((h / 1).parameters().size(), 2u);
  EXPECT_EQ((h / 10).parameters().size(), 1u);
}

}  // namespace
