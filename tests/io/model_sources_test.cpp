// Tests the sources of saved models: parameters of several dtypes, tensors larger than a piece, and
// tokenizers with the model's vocabulary size. GGUF files with unsuitable types must be refused. A saved
// model must keep its ids and settings.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include <tilegrad/core/base/random.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/models/gguf_metadata.h"
#include "io/models/gguf_writer.h"
#include "io/models/hf_writer.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using namespace tg::testing;

nn::ModelConfig small(nn::Architecture architecture) {
  nn::ModelConfig c{.architecture = std::move(architecture),
                    .vocabulary = 9,
                    .context = 16,
                    .layers = 1,
                    .heads = 2,
                    .width = 8};
  c.tied_head = false;
  return c;
}

// A model in memory whose parameters may each have a different dtype.
class Mixed final : public io::WeightReader {
 public:
  std::map<std::string, Array> values;
  DType dtype(const std::string& name) const override { return values.at(name).dtype(); }
  io::TensorView read(const std::string& name) const override {
    const Array& a = values.at(name);
    return {a.dtype(), {a.shape().begin(), a.shape().end()}, {a.raw(), a.bytes()}};
  }
};

struct MixedSource {
  io::ModelSource source;
  Mixed* weights;
  explicit MixedSource(const nn::ModelConfig& config) : weights(new Mixed) {
    source = {.from = "m", .config = config};
    source.weights.reset(weights);
    std::uint64_t key = 0;
    config.each_parameter([&](const std::string& name, const Shape& shape) {
      weights->values[name] = normal_array(shape, f32, 0, 1, ++key);
    });
  }
  void set(const std::string& end, DType dtype) const {
    for (auto& [name, a] : weights->values)
      if (name.ends_with(end)) a = a.to(dtype);
  }
};

TEST(Dtypes, JoinedTensorsUseADtypeThatFitsAllParts) {
  const std::string q = "self_attn.q_proj.weight", k = "self_attn.k_proj.weight";
  const struct {
    DType q, k, joined;
  } cases[] = {{f32, f32, f32}, {bf16, bf16, bf16}, {bf16, f16, f32}, {f16, bf16, f32}, {f16, f32, f32},
               {f32, f16, f32}, {f64, f32, f64},    {f32, f64, f64},  {f64, bf16, f64}, {f16, f16, f16}};
  for (const auto& c : cases) {
    MixedSource m(small(nn::Llama{.mlp_width = 6, .head_width = 14, .rotary_width = 6}));  // phi3
    m.set("weight", c.q), m.set(k, c.k);
    io::ModelSource& source = m.source;
    io::HfWriter writer(source, {});
    std::set<DType> all{c.q, c.joined};
    EXPECT_EQ(writer.dtypes(), std::vector<DType>(all.begin(), all.end()));
    const TemporaryDirectory directory;
    writer.write(directory / "f");
    const io::SafeTensors file = io::load_safetensors(directory / "f/model.safetensors");
    EXPECT_EQ(file.tensors.at("model.layers.0.self_attn.qkv_proj.weight").dtype, c.joined);
    EXPECT_EQ(file.tensors.at("model.layers.0.mlp.down_proj.weight").dtype, c.q);
    EXPECT_EQ(source.dtypes().size(), c.q == c.k ? 1u : 2u);
    // config.json contains the widest of these dtypes.
    const DType widest = all.size() == 2 ? c.joined : c.q;
    EXPECT_NE(io::read_file(directory / "f/config.json", "test")
                  .find("\"dtype\": \"" + std::string(io::hf_dtype_name(widest)) + "\""),
              std::string::npos);
    const nn::Pretrained read = nn::from_pretrained(directory / "f", Device::cpu(), {.dtype = f64});
    for (const Parameter& p : read.model.parameters())
      EXPECT_TRUE(p.read().same_bits(m.weights->values.at(p.name()).to(f64))) << p.name();
  }
}

// Numbers are converted in pieces of 2²⁰.
TEST(Dtypes, LargeTensorsAreConvertedPieceByPiece) {
  constexpr std::int64_t rows = (1 << 17) + 3, last = rows * 8 - 1;
  nn::ModelConfig config = small(nn::Llama{.mlp_width = 6});
  config.vocabulary = rows;
  MixedSource m(config);
  io::ModelSource& source = m.source;
  const std::string name = "lm_head.weight";
  const TemporaryDirectory directory;
  const auto bits = [&](std::string_view bytes, DType dtype) {
    const Array expected = m.weights->values.at(name).to(dtype);
    return bytes.size() == expected.bytes() && std::memcmp(bytes.data(), expected.raw(), bytes.size()) == 0;
  };
  for (const DType dtype : {bf16, f64}) {
    const std::string folder = directory / std::string(name_of(dtype));
    io::HfWriter(source, {.dtype = dtype}).write(folder);
    const io::SafeTensors file = io::load_safetensors(folder + "/model.safetensors");
    const auto& bytes = file.tensors.at(name).bytes;
    EXPECT_TRUE(bits({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, dtype)) << name_of(dtype);
  }
  for (const auto& [type, dtype] : {std::pair{"bf16", bf16}, {"f16", f16}, {"f32", f32}}) {
    io::GgufWriter(source, {.dtype = type}).write(directory / std::string(type) + ".gguf");
    const io::MappedGguf file(directory / std::string(type) + ".gguf", "test");
    EXPECT_TRUE(bits(file.gguf.tensor("output.weight").value().bytes, dtype)) << type;
  }
  m.weights->values.at(name).set(last, 1e38);
  const std::string at = " at element " + std::to_string(last);
  for (const std::string& error :
       {error_of([&] { io::HfWriter(source, {.dtype = f16}).write(directory / "x"); }),
        error_of([&] { io::GgufWriter(source, {.dtype = "f16"}).write(directory / "x"); })}) {
    EXPECT_NE(error.find("m: lm_head.weight has "), std::string::npos) << error;
    EXPECT_NE(error.find(at), std::string::npos) << error;
  }
  m.weights->values.at(name).set(last, NAN);
  EXPECT_EQ(error_of([&] { io::HfWriter(source, {}).write(directory / "x"); }),
            "[save_pretrained] m: lm_head.weight has a number that is not finite" + at);
  EXPECT_EQ(error_of([&] { io::GgufWriter(source, {}).write(directory / "x"); }),
            "[save_gguf] m: lm_head.weight has a number that is not finite" + at);
}

TEST(Q8Files, TooLargeNumbersAreRefused) {
  nn::ModelConfig config = small(nn::Llama{.mlp_width = 32});
  config.width = 32;
  MixedSource m(config);
  m.weights->values.at("lm_head.weight").set(5, 1e9);
  const TemporaryDirectory directory;
  io::GgufWriter writer(m.source, {.dtype = "q8_0"});
  EXPECT_EQ(error_of([&] { writer.write(directory / "x"); }),
            "[save_gguf] m: lm_head.weight has a number that is too large for q8_0");
}

// ---- Sources in memory

TEST(Sources, ParametersMustMatchTheConfig) {
  const nn::ModelConfig config = small(nn::Llama{.mlp_width = 6});
  nn::Params params(1);
  const nn::Model model(params, config);
  const auto refusal = [&](const std::vector<Parameter>& parameters, const nn::ModelConfig& c) {
    return error_of([&] { io::source_of(parameters, c); });
  };
  std::vector<Parameter> all = params.all();
  EXPECT_EQ(refusal(all, config), "no error");
  EXPECT_EQ(io::source_of(all, config).from, "model");
  nn::ModelConfig other = config;
  other.layers = 2;
  EXPECT_EQ(refusal(all, other),
            "[save_pretrained] the config has a parameter model.layers.1.input_layernorm.weight [8], the "
            "model has none");
  other = config, other.vocabulary = 10;
  EXPECT_EQ(
      refusal(all, other),
      "[save_pretrained] the config has a parameter model.embed_tokens.weight [10, 8], the model has [9, 8]");
  all.emplace_back("more", Array({1}, f32));
  EXPECT_EQ(refusal(all, config), "[save_pretrained] the model has " + std::to_string(all.size()) +
                                      " parameters, the config " + std::to_string(all.size() - 1));
}

TEST(Sources, AChangedModelKeepsTheIdsOfItsFiles) {
  nn::ModelConfig config = small(nn::Llama{.mlp_width = 6});
  MixedSource m(config);
  io::HfConfig given = io::hf_config_for(config, "m", "mistral");
  given.end_tokens = {3, 4}, given.start_token = 5, given.padding_token = 6;
  EXPECT_EQ(io::config_in({{"config.json", io::hf_config_json(given, f32)}}, "w").family, "mistral");
  EXPECT_EQ(error_of([] { io::config_in({}, "w"); }), "w: has no config.json of the model's folder");
  for (const double eps : {1e-6, 0.25}) {  // tests the unchanged and a changed model
    m.source.files = {{"config.json", io::hf_config_json(given, f32)},
                      {"generation_config.json", "{\"pad_token_id\": 7}"}};
    nn::Llama l = *config.architecture.as<nn::Llama>();
    l.eps = eps;
    m.source.config.architecture = l;
    const io::HfConfig made = io::hf_config_of(m.source, "w");
    EXPECT_EQ(made.family, "mistral");
    EXPECT_EQ(made.end_tokens, (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(made.start_token, 5);
    EXPECT_EQ(made.padding_token, 7);
    EXPECT_EQ(made.model.architecture.as<nn::Llama>()->eps, eps);
  }
  m.source.config.architecture = nn::Gpt{};
  EXPECT_EQ(
      error_of([&] { io::hf_config_of(m.source, "w"); }),
      "w: no Hugging Face class can hold this model: its architecture is 'gpt', which is not mistral's");
  m.source.files.clear();
  EXPECT_EQ(io::hf_config_of(m.source, "w").family, "gpt2");
}

// ---- Folders and files with tokenizers

std::string tokenizer_of(std::int64_t size) {
  std::string json =
      R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},"model":{"vocab":{)";
  for (std::int64_t id = 0; id < size; ++id)
    json +=
        (id > 0 ? ",\"" : "\"") + std::string(1, static_cast<char>('a' + id)) + "\":" + std::to_string(id);
  return json + R"(},"merges":[]}})";
}

TEST(Tokenizers, MayHaveAtMostTheTokensOfTheModel) {
  MixedSource m(small(nn::Llama{.mlp_width = 6}));
  io::ModelSource& source = m.source;
  const TemporaryDirectory directory;
  const std::string folder = directory / "f";
  io::HfWriter(source, {}).write(folder);
  EXPECT_EQ(io::source_of_folder(folder).tokenizer, nullptr);
  for (const std::int64_t size : {8, 9, 10}) {
    source.tokenizer = std::make_shared<text::HfTokenizer>(tokenizer_of(size), "t");
    const std::string has = "has " + std::to_string(size) + " tokens, the model 9";
    directory.file("f/tokenizer.json", tokenizer_of(size));
    EXPECT_EQ(error_of([&] { EXPECT_EQ(io::source_of_folder(folder).tokenizer->size(), size); }),
              size < 10 ? "no error" : "[tokenizer] " + folder + "/tokenizer.json: " + has);
    EXPECT_EQ(error_of([&] { EXPECT_EQ(io::source_at(folder).from, folder); }).substr(0, 3),
              size < 10 ? "no " : "[to");
    EXPECT_EQ(error_of([&] { io::HfWriter(source, {}); }),
              size < 10 ? "no error" : "[save_pretrained] the tokenizer " + has);
    EXPECT_EQ(error_of([&] { io::GgufWriter(source, {}); }),
              size < 10 ? "no error" : "[save_gguf] m: the tokenizer " + has);
  }
}

// Makes a GGUF file of a model whose tensors have the given types, with a tokenizer of a given size.
struct Crafted {
  nn::ModelConfig config;
  std::string family;
  std::map<std::string, io::GgufType> types = {};  // other tensors are in F32
  io::GgufType usual = io::GgufType::f32;
  std::int64_t tokens = 0;

  std::string bytes() const {
    io::HfConfig hf = io::hf_config_for(config, "m", family);
    io::GgufStart start;
    std::vector<std::string> notes;
    io::add_gguf_config(hf, "m", start, notes);
    if (tokens > 0) {
      const text::HfTokenizer tokenizer(tokenizer_of(tokens), "t");
      hf.model.vocabulary = tokens;
      io::add_gguf_tokenizer(&tokenizer, hf, "", "m", start, notes);
    }
    std::string data;
    std::set<std::string> seen;
    config.each_parameter([&](const std::string& name, const Shape& shape) {
      for (const io::GgufRowOrder& place : io::gguf_rows(family, config, name, shape)) {
        if (!seen.insert(place.tensor).second) continue;
        const auto found = types.find(place.tensor);
        const io::GgufType type = found == types.end() ? usual : found->second;
        const std::vector<std::int64_t> sizes(place.shape.begin(), place.shape.end());
        start.add_tensor(place.tensor, type, sizes);
        const std::string zeros(io::gguf_bytes(type, sizes), '\0');
        data += zeros + io::gguf_padding(zeros.size());
      }
    });
    return start.bytes() + data;
  }
  std::string error(const TemporaryDirectory& directory) const {
    const std::string path = directory.file("m.gguf", bytes());
    std::string text = error_of([&] {
      io::ModelSource source = io::source_of_gguf(path);
      source.config.each_parameter(
          [&](const std::string& name, const Shape&) { source.weights->read(name); });
    });
    if (const std::size_t at = text.find(path); at != std::string::npos) text.replace(at, path.size(), "M");
    return text;
  }
};

TEST(CraftedGguf, UnsuitableTypesAreRefused) {
  const TemporaryDirectory directory;
  const std::string k = "blk.0.attn_k_b.weight", v = "blk.0.attn_v_b.weight";
  const nn::DeepSeek latent{
      .latent = 16, .query_latent = 12, .rope_width = 4, .mlp_width = 20, .head_width = 32, .value_width = 6};
  Crafted c{small(latent), "deepseek_v3"};
  EXPECT_EQ(c.error(directory), "no error");
  c.types = {{k, io::GgufType::f16}, {v, io::GgufType::f16}};
  EXPECT_EQ(c.error(directory), "no error");
  c.types = {{k, io::GgufType::f16}};
  EXPECT_EQ(c.error(directory), "[from_pretrained] M: " + k + " is F16, expected the type of its other half");
  c.types = {{v, io::GgufType::bf16}};
  EXPECT_EQ(c.error(directory), "[from_pretrained] M: " + k + " is F32, expected the type of its other half");
  c.types = {{k, io::GgufType::q8_0}};  // this tensor is read as F32
  EXPECT_EQ(c.error(directory), "no error");

  nn::Llama gemma{.mlp_width = 6,
                  .head_width = 4,
                  .activation = "gelu_tanh",
                  .norms = "both",
                  .plus_one = true,
                  .embedding_scale = std::sqrt(8.0),
                  .attention_scale = 0.5,
                  .attention_softcap = 50,
                  .logit_softcap = 30,
                  .windows = {4}};
  Crafted g{small(gemma), "gemma2"};
  g.config.tied_head = true;
  EXPECT_EQ(g.error(directory), "no error");
  g.types = {{"output_norm.weight", io::GgufType::f16}};
  EXPECT_EQ(g.error(directory), "[from_pretrained] M: output_norm.weight is F16, expected F32");
  g.types = {{"token_embd.weight", io::GgufType::f16}};
  EXPECT_EQ(g.error(directory), "no error");
}

// These settings cannot be expressed in a family's config.json.
TEST(CraftedGguf, SettingsOfOtherFamiliesAreRefused) {
  const auto refusal = [](const std::string& family, const nn::ModelConfig& config) {
    io::GgufStart start;
    std::vector<std::string> notes;
    const std::string text = error_of([&] { io::add_gguf_config({family, "", config}, "m", start, notes); });
    const std::string begin = "m: llama.cpp cannot compute ";
    return text.starts_with(begin) ? text.substr(begin.size()) : text;
  };
  const auto llama = [](nn::Llama l) {
    l.mlp_width = 6;
    return small(l);
  };
  EXPECT_EQ(refusal("llama", llama({})), "no error");
  EXPECT_EQ(refusal("mamba", llama({})), "models of mamba");
  EXPECT_EQ(refusal("llama", llama({.rotary_width = 2})), "partial_rotary_factor 0.5 of llama");
  EXPECT_EQ(refusal("llama", llama({.rotary_width = 4})), "no error");
  EXPECT_EQ(refusal("phi3", llama({.rotary_width = 2})), "no error");
  EXPECT_EQ(refusal("llama", llama({.activation = "gelu_tanh"})), "the activation gelu_tanh of llama");
  EXPECT_EQ(refusal("gemma2", llama({.activation = "silu"})), "tie_word_embeddings false of gemma2");
  nn::ModelConfig tied = llama({.activation = "silu"});
  tied.tied_head = true;
  EXPECT_EQ(refusal("gemma2", tied), "the activation silu of gemma2");
  EXPECT_EQ(refusal("llama", llama({.attention_softcap = 5})), "attn_logit_softcapping 5 of llama");
  EXPECT_EQ(refusal("llama", llama({.logit_softcap = 5})), "final_logit_softcapping 5 of llama");
  EXPECT_EQ(refusal("llama", llama({.attention_scale = 0.5})), "no error");
  EXPECT_EQ(refusal("llama", llama({.attention_scale = 0.25})),
            "query_pre_attn_scalar 16, other than 4, of llama");
  EXPECT_EQ(refusal("llama", llama({.attention_scale = 2})),
            "query_pre_attn_scalar 0.25, other than 4, of llama");
  EXPECT_EQ(refusal("llama", llama({.rotated = {0}})),
            "no_rope_layers with rotary positions in unusual layers of llama");
  nn::ModelConfig two = llama({.windows = {4, 5}});
  two.layers = 2;
  EXPECT_EQ(refusal("llama", two), "windows of several sizes of llama");
  two.architecture = nn::Llama{.mlp_width = 6, .windows = {4, 0}};
  EXPECT_EQ(refusal("llama", two), "no error");
  nn::ModelConfig biased = llama({});
  biased.bias = true;
  EXPECT_EQ(refusal("llama", biased), "no error");
  EXPECT_EQ(refusal("qwen2", biased), "attention_bias true of qwen2");
  EXPECT_EQ(refusal("smollm3", llama({.mlp_bias = true})), "mlp_bias true of smollm3");
  nn::ModelConfig latent = small(nn::DeepSeek{.mlp_width = 6});
  EXPECT_EQ(refusal("deepseek_v3", latent), "no error");
  latent.bias = true;
  EXPECT_EQ(refusal("deepseek_v3", latent), "attention_bias true of deepseek_v3");
  EXPECT_EQ(refusal("gpt2", small(nn::Gpt{.activation = "silu"})), "the activation silu of gpt2");
  EXPECT_EQ(refusal("gpt2", small(nn::Gpt{.activation = "gelu"})), "no error");
  nn::ModelConfig local;
  for (const std::int64_t window : {1, 2, 4}) {
    local = llama({.activation = "gelu_tanh",
                   .logit_softcap = 5,
                   .windows = {window},
                   .scaling = {.type = "linear", .factor = 2}});
    EXPECT_EQ(refusal("gemma3_text", local), "scaled frequencies in windows of gemma3_text") << window;
  }
  local.architecture = nn::Llama{.mlp_width = 6,
                                 .activation = "gelu_tanh",
                                 .logit_softcap = 5,
                                 .scaling = {.type = "linear", .factor = 2}};
  EXPECT_EQ(refusal("gemma3_text", local), "no error");
}

TEST(CraftedGguf, ConfigJsonHasADtypeThatFitsAllTensors) {
  const TemporaryDirectory directory;
  const auto dtype = [&](io::GgufType usual, const std::map<std::string, io::GgufType>& types) {
    const Crafted c{small(nn::Llama{.mlp_width = 6}), "llama", types, usual};
    const io::ModelSource source = io::source_of_gguf(directory.file("m.gguf", c.bytes()));
    const std::string& json = source.files.at("config.json");
    const std::size_t at = json.find("\"dtype\": \"") + 10;
    EXPECT_EQ(io::pretrained_info(source).family, "llama");
    return json.substr(at, json.find('"', at) - at);
  };
  const std::string one = "token_embd.weight", last = "output.weight";
  EXPECT_EQ(dtype(io::GgufType::f32, {}), "float32");
  EXPECT_EQ(dtype(io::GgufType::f16, {}), "float32");
  EXPECT_EQ(dtype(io::GgufType::bf16, {}), "bfloat16");
  EXPECT_EQ(dtype(io::GgufType::bf16, {{one, io::GgufType::f32}}), "float32");
  EXPECT_EQ(dtype(io::GgufType::bf16, {{last, io::GgufType::f16}}), "float32");
  EXPECT_EQ(dtype(io::GgufType::f32, {{last, io::GgufType::bf16}}), "float32");
}

TEST(CraftedGguf, TokenizersMayHaveAtMostTheTokensOfTheModel) {
  const TemporaryDirectory directory;
  for (const std::int64_t tokens : {8, 9, 10}) {
    const Crafted c{.config = small(nn::Llama{.mlp_width = 6}), .family = "llama", .tokens = tokens};
    EXPECT_EQ(c.error(directory),
              tokens < 10 ? "no error"
                          : "[from_pretrained] M: tokenizer.ggml.tokens is an array of 10, expected 9 "
                            "tokens, as the model has");
  }
}

// Tests the weights, ids and context of a source.
TEST(Sources, InfoAndContextMatchTheModel) {
  MixedSource m(small(nn::Llama{.mlp_width = 6}));
  m.set("norm.weight", f64), m.set("q_proj.weight", bf16);
  const TemporaryDirectory directory;
  io::ModelSource& source = m.source;
  source.files["config.json"] = io::hf_config_json(io::hf_config_for(source.config, "m"), f32);
  source.files["generation_config.json"] =
      R"({"eos_token_id": [1, 2], "bos_token_id": 3, "pad_token_id": 4})";
  source.dropped = {"a"};
  const nn::PretrainedInfo info = io::pretrained_info(source);
  std::uint64_t bytes = 0;
  for (const auto& [name, a] : m.weights->values) bytes += a.bytes();
  EXPECT_EQ(info.bytes, bytes);
  EXPECT_EQ(info.folder, "m");
  EXPECT_EQ(info.end_tokens, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(info.start_token, 3);
  EXPECT_EQ(info.padding_token, 4);
  EXPECT_EQ(info.dropped, std::vector<std::string>{"a"});
  EXPECT_EQ(info.dtypes.size(), 3u);
  io::GgufWriter(source, {.dtype = "f32"}).write(directory / "m.gguf");
  io::HfWriter(source, {.dtype = f32}).write(directory / "f");
  for (const char* name : {"m.gguf", "f"}) {
    const std::string path = directory / name;
    const auto context = [&](std::int64_t n) {
      return nn::from_pretrained(path, Device::cpu(), {.context = n}).model.context();
    };
    EXPECT_EQ(context(0), 16);
    EXPECT_EQ(context(1), 1);
    EXPECT_EQ(context(16), 16);
    for (const std::int64_t n : {-1, 17})
      EXPECT_EQ(error_of([&] { context(n); }),
                "[from_pretrained] " + path + ": expected a context up to 16, got " + std::to_string(n));
    EXPECT_EQ(error_of([&] { nn::from_pretrained(path, Device::cpu(), {.dtype = i32}); }),
              "[from_pretrained] expected a floating dtype, got i32");
  }
}

}  // namespace
