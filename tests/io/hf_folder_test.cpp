// Hugging Face folders that must be refused, each in one line with file, key and value, and folders that say
// the same in another way.
#include "io/interop/hf_folder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/interop/pretrained.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;

const std::string llama_json = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "vocab_size": 5, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "max_position_embeddings": 16, "hidden_act": "silu", "rms_norm_eps": 1e-5,
  "tie_word_embeddings": false})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string with(const std::string& members) {
  return replaced(llama_json, "\"model_type\"", members + ", \"model_type\"");
}

// A folder of a model with weights of its own, which tests change.
struct Folder {
  TemporaryDirectory directory;
  std::string path = directory.path.string();
  nn::ModelConfig config = io::parse_hf_config(llama_json, "here").model;
  nn::Params params{3};
  nn::Model model{params, config};

  Folder() {
    directory.file("config.json", llama_json);
    save("model.safetensors", params.all());
  }
  void save(const std::string& name, const std::vector<Parameter>& parameters) const {
    io::save_parameters(directory / name, parameters);
  }
  void remove(const std::string& name) const { std::filesystem::remove(directory / name); }
  // The weights in two shards, of which the index names `second` as the other.
  void shard(const std::string& second = "b.safetensors") const {
    remove("model.safetensors");
    const std::vector<Parameter>& all = params.all();
    const auto middle = all.begin() + 5;
    save("a.safetensors", {all.begin(), middle}), save("b.safetensors", {middle, all.end()});
    std::string map;
    for (auto p = all.begin(); p != all.end(); ++p)
      map += (map.empty() ? "" : ", ") + io::json_string(p->name()) + ": " +
             io::json_string(p < middle ? "a.safetensors" : second);
    directory.file("model.safetensors.index.json",
                   "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + map + "}}");
  }
  std::string error() const {
    std::string message = error_of([&] { nn::from_pretrained(path); });
    for (std::size_t at; (at = message.find(path)) != std::string::npos;)
      message.replace(at, path.size(), "DIR");
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  bool has_the_weights(DType dtype = f32) const {
    const nn::Pretrained made = nn::from_pretrained(path, Device::cpu(), {.dtype = dtype});
    for (const Parameter& p : made.model.parameters())
      if (!p.read().same_bits(params.find(p.name())->read().to(dtype))) return false;
    return true;
  }
};

TEST(HfFolder, IsReadWhole) {
  const Folder f;
  EXPECT_EQ(f.error(), "no error");
  EXPECT_TRUE(f.has_the_weights());
  const nn::Pretrained made = nn::from_pretrained(f.path);
  EXPECT_EQ(made.info.text(),
            "llama, " + std::to_string(f.config.parameters()) + " parameters in f32, 0 MiB");
  EXPECT_EQ(made.model.context(), 16);
  EXPECT_EQ(nn::from_pretrained(f.path, Device::cpu(), {.context = 9}).model.context(), 9);
  EXPECT_EQ(error_of([&] { nn::from_pretrained(f.path, Device::cpu(), {.context = 17}); }),
            "[from_pretrained] " + f.path + ": expected a context up to 16, got 17");
}

TEST(HfFolder, WeightsAreRoundedToTheDtypeThatIsAskedFor) {
  const Folder f;
  for (const DType dtype : {bf16, f16, f64}) EXPECT_TRUE(f.has_the_weights(dtype)) << name_of(dtype);
  EXPECT_NE(error_of([&] { nn::from_pretrained(f.path, Device::cpu(), {.dtype = i32}); }), "no error");
}

// Large enough for several pieces, whose last one is not full.
TEST(HfFolder, TransposedWeightsAreReadPieceByPiece) {
  const nn::ModelConfig c{.architecture = nn::Gpt{.mlp_width = 523},
                          .vocabulary = 5,
                          .context = 4,
                          .layers = 1,
                          .heads = 1,
                          .width = 301,
                          .bias = true};
  nn::Params params(1);
  const nn::Model model(params, c);
  std::vector<Parameter> theirs;
  for (const Parameter& p : params.all()) {
    const io::HfTensor t = io::hf_tensor("gpt2", c, p.name(), p.shape());
    Array values(t.shape, f32);
    const Array ours = p.read();
    for (std::int64_t i = 0; i < ours.numel(); ++i)
      values.set(t.is_transposed ? i % t.shape[0] * t.shape[1] + i / t.shape[0] : i, ours.at(i));
    theirs.emplace_back(p.name(), values);
  }
  const TemporaryDirectory directory;
  io::save_parameters(directory / "model.safetensors", theirs);
  directory.file("config.json", R"({"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_layer": 1,
    "n_head": 1, "n_embd": 301, "n_inner": 523})");
  for (const DType dtype : {f32, bf16}) {
    const nn::Pretrained made = nn::from_pretrained(directory.path.string(), Device::cpu(), {.dtype = dtype});
    for (const Parameter& p : made.model.parameters())
      EXPECT_TRUE(p.read().same_bits(params.find(p.name())->read().to(dtype))) << p.name();
  }
}

TEST(HfFolder, ShardsAreOneModel) {
  const Folder f;
  f.shard();
  EXPECT_TRUE(f.has_the_weights());
}

TEST(HfFolder, ShardsThatDoNotFitTheIndexAreRefused) {
  const Folder f;
  const std::string name = f.params.all()[0].name();
  f.shard();
  f.remove("b.safetensors");
  EXPECT_EQ(f.error(), "[from_pretrained] cannot read DIR/b.safetensors: No such file or directory");
  f.shard("../b.safetensors");
  EXPECT_NE(f.error().find("[from_pretrained] DIR/model.safetensors.index.json: weight_map has "),
            std::string::npos)
      << f.error();
  EXPECT_NE(f.error().find(" in \"../b.safetensors\", expected the plain name of a file"), std::string::npos);
  f.shard("a.safetensors");  // the others are listed where they are not
  EXPECT_NE(f.error().find("[from_pretrained] DIR/a.safetensors: has no tensor "), std::string::npos)
      << f.error();
  f.shard();
  f.save("b.safetensors", f.params.all());
  EXPECT_EQ(f.error(), "[from_pretrained] DIR/b.safetensors: has a tensor " +
                           std::min_element(f.params.all().begin(), f.params.all().begin() + 5,
                                            [](auto& a, auto& b) { return a.name() < b.name(); })
                               ->name() +
                           ", which a.safetensors has too");
  f.shard();
  std::vector<Parameter> more(f.params.all().begin(), f.params.all().begin() + 5);
  more.emplace_back("extra", Array({1}, f32));
  f.save("a.safetensors", more);
  EXPECT_EQ(f.error(),
            "[from_pretrained] DIR/a.safetensors: has a tensor extra, which model.safetensors.index.json "
            "does not list");
  f.directory.file("model.safetensors.index.json", "{\"metadata\": {}}");
  EXPECT_EQ(f.error(), "[from_pretrained] DIR/model.safetensors.index.json: has no weight_map");
}

TEST(HfFolder, FoldersWithoutWeightsAreRefused) {
  const Folder f;
  f.remove("model.safetensors");
  EXPECT_EQ(f.error(), "[from_pretrained] DIR: has no model.safetensors and no model.safetensors.index.json");
  f.directory.file("pytorch_model.bin", "pickle");
  EXPECT_EQ(f.error(),
            "[from_pretrained] DIR: has no model.safetensors and no model.safetensors.index.json, only "
            "pytorch_model.bin, a pickle, which is a program and is not run: save the model as safetensors");
  f.remove("config.json");
  EXPECT_EQ(f.error(), "[from_pretrained] DIR: has no config.json, expected a Hugging Face folder");
  f.directory.file("adapter_config.json", "{}");
  EXPECT_EQ(
      f.error(),
      "[from_pretrained] DIR: has no config.json, but an adapter_config.json: it is an adapter to a model, "
      "expected the model's folder");
}

TEST(HfFolder, WhatIsNoFolderIsRefused) {
  const Folder f;
  const auto error_of_path = [](const std::string& path) {
    return error_of([&] { nn::pretrained_info(path); });
  };
  for (const std::string& path : {f.path + "/none", std::string()})
    EXPECT_EQ(error_of_path(path),
              "[from_pretrained] " + path + ": has no config.json, expected a Hugging Face folder");
  const std::string weights = f.path + "/model.safetensors";
  EXPECT_EQ(error_of_path(weights),
            "[from_pretrained] " + weights +
                ": does not begin with GGUF: expected a GGUF file, or a Hugging Face folder");
  const std::string file = "[from_pretrained] DIR/config.json: ";
  f.directory.file("config.json", "");
  EXPECT_EQ(f.error(), file + "JSON ends, expected a value at byte 0");
  f.directory.file("config.json", "[]");
  EXPECT_EQ(f.error(), file + "expected an object at byte 0");
  f.directory.file("config.json", llama_json.substr(0, 60));
  EXPECT_EQ(f.error().find(file), 0u) << f.error();
  f.remove("config.json");
  std::filesystem::create_directory(f.directory / "config.json");
  EXPECT_EQ(f.error().find("[from_pretrained] "), 0u) << f.error();
  EXPECT_NE(f.error().find("DIR/config.json"), std::string::npos) << f.error();
}

TEST(HfFolder, AnIndexThatIsNoneIsRefused) {
  const Folder f;
  f.shard();
  const std::string index = "model.safetensors.index.json";
  const auto error_with = [&](const std::string& text) {
    f.directory.file(index, text);
    return f.error();
  };
  const std::string file = "[from_pretrained] DIR/" + index + ": ";
  EXPECT_EQ(error_with(R"({"weight_map": {}})"), file + "its weight_map is empty");
  EXPECT_EQ(error_with(R"({"weight_map": []})"), file + "expected an object at byte 15");
  EXPECT_EQ(error_with(R"({"weight_map": {"a": 1}})"), file + "expected a string at byte 21");
  EXPECT_EQ(error_with(R"({"weight_map": {"a": "x", "a": "y"}})"), file + "duplicate key \"a\" at byte 29");
  for (const std::string name : {"/etc/passwd", "shards/a.safetensors", "..", ".hidden", "a\\\\b", ""}) {
    const std::string quoted = "\"" + name + "\"";
    EXPECT_EQ(error_with("{\"weight_map\": {\"t\": " + quoted + "}}"),
              file + "weight_map has t in " + quoted + ", expected the plain name of a file");
  }
  EXPECT_EQ(error_with(R"({"weight_map": {"t": "config.json"}})"),
            "[from_pretrained] DIR/config.json: begins with '{', as JSON does, and is no safetensors file");
}

TEST(HfFolder, ATensorThatAFileHasTwiceIsRefused) {
  const Folder f;
  std::string whole = io::read_file(f.directory / "model.safetensors", "test");
  const std::string name = "model.layers.0.self_attn.q_proj.weight", other = replaced(name, "q_", "k_");
  f.directory.file("model.safetensors", replaced(whole, other, name));
  EXPECT_NE(f.error().find("[from_pretrained] DIR/model.safetensors: header: duplicate key \"" + name + "\""),
            std::string::npos)
      << f.error();
}

// Weights in integers, which scales beside them make numbers of, with no word of it in config.json.
TEST(HfFolder, QuantizedWeightsAreRefused) {
  const Folder f;
  const auto error_with = [&](const std::string& changed, DType dtype, const std::string& more) {
    std::vector<Parameter> all;
    for (const Parameter& p : f.params.all())
      all.emplace_back(p.name(), p.name() == changed ? Array(p.shape(), dtype) : p.read());
    if (!more.empty()) all.emplace_back(more, Array({1}, f32));
    f.save("model.safetensors", all);
    return f.error();
  };
  const std::string file = "[from_pretrained] DIR/model.safetensors: ";
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  for (const DType dtype : {u8, i32})
    EXPECT_EQ(error_with(up, dtype, ""), file + up + " is " + std::string(name_of(dtype)) +
                                             " [12, 8], expected a floating type and [12, 8] by config.json");
  EXPECT_EQ(error_with("", f32, up + "_scale_inv"),
            file + "has a tensor " + up + "_scale_inv that a llama of this config.json does not have");
}

TEST(HfFolder, FilesMayBeOfSeveralDtypes) {
  const Folder f;
  std::vector<Parameter> all;
  for (const Parameter& p : f.params.all())
    all.emplace_back(p.name(), p.read().to(p.name().find("norm") == std::string::npos ? bf16 : f32));
  f.save("model.safetensors", all);
  const nn::Pretrained made = nn::from_pretrained(f.path);
  EXPECT_EQ(made.info.dtypes, (std::vector<DType>{f32, bf16}));
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(made.model.parameters()[i].read().same_bits(all[i].read().to(f32))) << all[i].name();
}

TEST(HfFolder, WhatIsNotNeededIsReported) {
  const Folder f;
  std::vector<Parameter> all = f.params.all();
  const Array embedding = f.params.find("model.embed_tokens.weight")->read();
  for (Parameter& p : all)
    if (p.name() == "lm_head.weight") p = Parameter(p.name(), embedding);
  all.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", Array({2}, f32));
  f.save("model.safetensors", all);
  f.directory.file("config.json",
                   replaced(llama_json, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"));
  const nn::PretrainedInfo info = nn::pretrained_info(f.path);
  EXPECT_EQ(info.dropped,
            (std::vector<std::string>{"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}));
  EXPECT_NE(info.text().find("; not needed: lm_head.weight and 1 more"), std::string::npos) << info.text();
  for (const auto& [family, name] : {std::pair{"gpt2", "transformer.h.1.attn.bias"},
                                     {"gpt2", "h.0.attn.masked_bias"},
                                     {"deepseek_v3", "model.layers.2.eh_proj.weight"},
                                     {"qwen2", "model.rotary_emb.inv_freq"}})
    EXPECT_TRUE(io::is_dropped_by_hf(family, name, 2)) << name;
  for (const auto& [family, name] : {std::pair{"llama", "model.layers.0.attn.bias"},
                                     {"deepseek_v3", "model.layers.1.eh_proj.weight"},
                                     {"deepseek_v2", "model.layers.2.eh_proj.weight"},
                                     {"gpt2", "transformer.h.0.attn.c_attn.bias"}})
    EXPECT_FALSE(io::is_dropped_by_hf(family, name, 2)) << name;
}

TEST(HfFolder, ItsEndTokensAreThoseOfGenerationConfig) {
  const Folder f;
  f.directory.file("config.json", with(R"("eos_token_id": 50256, "bos_token_id": 1, "pad_token_id": -1)"));
  nn::PretrainedInfo info = nn::pretrained_info(f.path);
  EXPECT_TRUE(info.end_tokens.empty()) << "none of a vocabulary of 5";
  EXPECT_EQ(info.start_token, 1);
  EXPECT_FALSE(info.padding_token);
  f.directory.file("generation_config.json",
                   R"({"eos_token_id": [4, 2], "temperature": 0.6, "max_length": 20})");
  EXPECT_EQ(nn::pretrained_info(f.path).end_tokens, (std::vector<std::int64_t>{4, 2}));
  f.directory.file("generation_config.json", R"({"eos_token_id": [4, 2.5]})");
  EXPECT_EQ(
      f.error(),
      "[from_pretrained] DIR/generation_config.json: eos_token_id is [4, 2.5], expected an integer or an "
      "array of integers");
  f.directory.file("generation_config.json", "{\"eos");
  EXPECT_EQ(f.error().find("[from_pretrained] DIR/generation_config.json: "), 0u) << f.error();
}

TEST(HfFolder, ATokenizerOfAnotherModelIsRefused) {
  const Folder f;
  nn::PretrainedInfo info = nn::pretrained_info(f.path);
  const text::ByteTokenizer bytes;  // 256 tokens
  const auto error = [&] {
    return error_of([&] { nn::check_tokenizer(info, bytes, "[x] tokenizer.json"); });
  };
  EXPECT_EQ(error(), "[x] tokenizer.json: has 256 tokens, the model 5");
  info.config.vocabulary = 320;
  EXPECT_EQ(error(), "no error");
  info.end_tokens = {300, 310};
  EXPECT_EQ(error(), "[x] tokenizer.json: has 256 tokens, the model's texts end with 300, its eos_token_id");
  info.end_tokens = {300, 10};
  EXPECT_EQ(error(), "no error");
}

TEST(HfFolder, AConfigThatLiesAboutItsTensorsIsRefusedBeforeAnythingIsMade) {
  const Folder f;
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  const std::string file = "[from_pretrained] DIR/model.safetensors: ";
  const auto error_with = [&](const std::string& from, const std::string& to) {
    f.directory.file("config.json", replaced(llama_json, from, to));
    return f.error();
  };
  EXPECT_EQ(error_with("\"vocab_size\": 5", "\"vocab_size\": 90000000"),
            file +
                "model.embed_tokens.weight is f32 [5, 8], expected a floating type and [90000000, 8] by "
                "config.json");
  EXPECT_EQ(
      error_with("\"intermediate_size\": 12", "\"intermediate_size\": 200000000"),
      file +
          "model.layers.0.mlp.gate_proj.weight is f32 [12, 8], expected a floating type and [200000000, 8] "
          "by config.json");
  EXPECT_EQ(
      error_with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
      file +
          "has no tensor model.layers.2.input_layernorm.weight, model.layers.2.self_attn.q_proj.weight, "
          "model.layers.2.self_attn.k_proj.weight, model.layers.2.self_attn.v_proj.weight, "
          "model.layers.2.self_attn.o_proj.weight and 4 more");
  EXPECT_NE(error_with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")
                .find(file + "has a tensor model.layers.1.input_layernorm.weight, "),
            std::string::npos);
  EXPECT_NE(
      error_with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000").find(file + "has no tensor "),
      std::string::npos);
  EXPECT_EQ(error_with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000"),
            "[from_pretrained] DIR/config.json: num_hidden_layers is 2000000000, expected 1 to 1000 layers");
  EXPECT_EQ(error_with("\"hidden_size\": 8", "\"hidden_size\": 9"),
            "[from_pretrained] DIR/config.json: [model] width 9 is not divisible by 2 heads");
  EXPECT_EQ(
      error_with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"),
      file +
          "lm_head.weight differs from model.embed_tokens.weight, though tie_word_embeddings of config.json "
          "is true");
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10) << "KiB";
}

TEST(HfFolder, DamagedFilesAreRefused) {
  const Folder f;
  const std::string path = f.directory / "model.safetensors", whole = io::read_file(path, "test");
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{100}, whole.size() - 1}) {
    f.directory.file("model.safetensors", whole.substr(0, size));
    EXPECT_EQ(f.error().find("[from_pretrained] DIR/model.safetensors: "), 0u) << f.error();
  }
  f.directory.file("model.safetensors", "");
  EXPECT_EQ(f.error(), "[from_pretrained] cannot read DIR/model.safetensors: it is empty");
  f.directory.file("model.safetensors", replaced(whole, "\"F32\"", "\"F8_E4M3\""));
  EXPECT_NE(f.error().find("F8_E4M3"), std::string::npos) << f.error();
  Array values = f.params.all()[2].read();
  values.set(3, NAN);
  std::vector<Parameter> parameters = f.params.all();
  parameters[2] = Parameter(parameters[2].name(), values);
  io::TensorMap tensors;
  std::vector<Array> kept;
  for (const Parameter& p : parameters) kept.push_back(p.read());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    tensors[parameters[i].name()] = {
        f32, {kept[i].shape().begin(), kept[i].shape().end()}, {kept[i].raw(), kept[i].bytes()}};
  io::save_safetensors(path, tensors);
  EXPECT_EQ(f.error(), "[from_pretrained] DIR/model.safetensors: " + parameters[2].name() +
                           " has a number that is not finite at element 3");
}

TEST(HfConfig, KeysThatWouldChangeResultsAreRefusedByNameAndValue) {
  const auto error = [](const std::string& text) {
    return error_of([&] { io::parse_hf_config(text, "config.json"); });
  };
  EXPECT_EQ(error(llama_json), "no error");
  EXPECT_EQ(error(with(R"("some_new_key": [1, {"a": null}])")), "no error");
  const std::pair<std::string, std::string> cases[] = {
      {replaced(llama_json, "\"llama\"", "\"mamba\""),
       "config.json: model_type is \"mamba\", expected one of " + io::hf_families()},
      {replaced(llama_json, "\"model_type\": \"llama\",", ""),
       "config.json: has no model_type, expected a string"},
      {replaced(llama_json, "\"LlamaForCausalLM\"", "\"LlamaForSequenceClassification\""),
       "config.json: architectures is [\"LlamaForSequenceClassification\"], expected [\"LlamaForCausalLM\"]"},
      {replaced(llama_json, "\"silu\"", "\"relu\""),
       "config.json: hidden_act is \"relu\", expected silu or swish"},
      {replaced(llama_json, "\"vocab_size\": 5", "\"vocab_size\": \"5\""),
       "config.json: vocab_size is \"5\", expected an integer"},
      {replaced(llama_json, "\"vocab_size\": 5", "\"vocab_size\": 5.5"),
       "config.json: vocab_size is 5.5, expected an integer"},
      {replaced(llama_json, "\"hidden_size\": 8,", ""),
       "config.json: has no hidden_size, expected an integer"},
      {replaced(llama_json, "\"num_key_value_heads\": 1", "\"num_key_value_heads\": -1"),
       "config.json: [model] 2 heads are not divisible by -1 key heads"},
      {with(R"("quantization_config": {"quant_method": "fp8"})"),
       "config.json: quantization_config is {\"quant_method\": \"fp8\"}, expected none: quantized weights "
       "cannot be "
       "read"},
      {with(R"("use_parallel_residual": true)"),
       "config.json: use_parallel_residual is true, expected false"},
      {with(R"("num_local_experts": 8)"),
       "config.json: num_local_experts is 8, expected none: mixture-of-experts layers are not supported"},
      {with(R"("text_config": {"model_type": "llama"})"),
       "config.json: text_config is {\"model_type\": \"llama\"}, expected none: a model of more than text "
       "cannot be read"},
      {with(R"("use_bidirectional_attention": true)"),
       "config.json: use_bidirectional_attention is true, expected false"},
      {with(R"("rope_scaling": {"type": "su", "factor": 2.0})"),
       "config.json: rope_scaling: type is \"su\", expected default, dynamic, linear, llama3, yarn or "
       "longrope"},
      {with(R"("rope_parameters": {"sliding_attention": {}})"),
       "config.json: rope_parameters: sliding_attention is {}, expected the same rotary positions in all "
       "layers"},
      {with(R"("rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4})"),
       "config.json: rope_parameters: has no short_factor, expected an array of numbers"},
      {with(
           R"("rope_parameters": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1, "2"]})"),
       "config.json: rope_parameters: long_factor is [1, \"2\"], expected an array of numbers"},
      {with(R"("rope_parameters": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1]})"),
       "config.json: [model] rope scaling: got 1 factors, expected one for each of 2 pairs"},
      {with(R"("rope_parameters": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1, 0]})"),
       "config.json: [model] rope scaling: expected a positive long factor, got 0.000000"},
      {with(R"("rope_parameters": {"partial_rotary_factor": 0.5})"),
       "config.json: rope_parameters: partial_rotary_factor is 0.5, expected 1"},
      {with(R"("rope_scaling": {"rope_type": "linear"})"),
       "config.json: rope_scaling: has no factor, expected a number"},
      {with(R"("rope_scaling": {"rope_type": "linear", "factor": -1})"),
       "config.json: [model] rope scaling: expected a positive factor, got -1.000000"},
      {with(R"("partial_rotary_factor": 0.5)"), "config.json: partial_rotary_factor is 0.5, expected 1"},
      {with(R"("head_dim": 7)"), "config.json: [model] heads of width 7 have no rotary pairs"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(error(text), message);

  std::string many = "1";
  for (int i = 0; i < 1000; ++i) many += ", 1";
  EXPECT_EQ(error(with("\"eos_token_id\": [" + many + "]")).find("config.json: eos_token_id is [1, 1, "), 0u);
  const std::string mistral = replaced(replaced(llama_json, "\"llama\"", "\"mistral\""), "Llama", "Mistral");
  EXPECT_EQ(error(replaced(mistral, "\"vocab_size\"", "\"sliding_window\": 0, \"vocab_size\"")),
            "config.json: sliding_window is 0, expected a positive number of tokens, or null");
  EXPECT_EQ(
      error(replaced(mistral, "\"vocab_size\"",
                     R"("sliding_window": 8, "layer_types": ["full_attention", "full_attention"],
                              "vocab_size")")),
      "config.json: layer_types is [\"full_attention\", \"full_attention\"], expected sliding_attention in "
      "every layer, as sliding_window says");
  EXPECT_EQ(error(replaced(mistral, "\"vocab_size\"",
                           R"("sliding_window": null, "layer_types": ["sliding_attention", "full_attention"],
                              "vocab_size")")),
            "config.json: sliding_window is null, expected a number of tokens: layer_types has "
            "sliding_attention");
  const std::string qwen = replaced(replaced(llama_json, "\"llama\"", "\"qwen2\""), "Llama", "Qwen2");
  EXPECT_EQ(error(replaced(qwen, "\"vocab_size\"", "\"layer_types\": [\"full_attention\"], \"vocab_size\"")),
            "config.json: layer_types is [\"full_attention\"], expected one for each of 2 layers");
  EXPECT_EQ(
      error(replaced(qwen, "\"vocab_size\"", "\"layer_types\": [\"linear_attention\"], \"vocab_size\"")),
      "config.json: layer_types is [\"linear_attention\"], expected full_attention and sliding_attention "
      "only");
  const std::string phi3 = replaced(replaced(llama_json, "\"llama\"", "\"phi3\""), "Llama", "Phi3");
  const auto phi3_error = [&](const std::string& members) {
    return error(replaced(phi3, "\"vocab_size\"", members + ", \"vocab_size\""));
  };
  EXPECT_EQ(
      phi3_error(R"("rope_scaling": {"type": "linear", "factor": 2})"),
      "config.json: rope_scaling: type is \"linear\", expected default or longrope, or su or yarn as its "
      "earlier names");
  EXPECT_EQ(
      phi3_error(R"("partial_rotary_factor": 1.5)"),
      "config.json: partial_rotary_factor is 1.5, expected a share of a head, more than 0 and at most 1");
  EXPECT_EQ(phi3_error(R"("partial_rotary_factor": 0.75)"),
            "config.json: [model] heads of width 3 have no rotary pairs");
  EXPECT_EQ(phi3_error(R"("partial_rotary_factor": 0.1)"),
            "config.json: [model] heads of width 1 have no rotary pairs");
  EXPECT_EQ(phi3_error(R"("partial_rotary_factor": 0.5)"), "no error");
  const std::string gpt2 =
      R"({"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_layer": 1, "n_head": 1,
    "n_embd": 8})";
  EXPECT_EQ(error(gpt2), "no error");
  EXPECT_EQ(error(replaced(gpt2, "{", R"({"scale_attn_by_inverse_layer_idx": true, )")),
            "config.json: scale_attn_by_inverse_layer_idx is true, expected false");
  EXPECT_EQ(error(replaced(gpt2, "{", R"({"activation_function": "relu", )")),
            "config.json: activation_function is \"relu\", expected gelu_new or gelu_pytorch_tanh or gelu");
  const std::string deepseek =
      replaced(replaced(llama_json, "\"llama\"", "\"deepseek_v3\""), "Llama", "DeepseekV3");
  EXPECT_EQ(error(replaced(deepseek, "\"num_key_value_heads\": 1", "\"first_k_dense_replace\": 1")),
            "config.json: first_k_dense_replace is 1, expected 2, the number of layers: mixture-of-experts "
            "layers are "
            "not supported");
}

// The same settings as transformers 4 and 5 write them.
TEST(HfConfig, OldAndNewKeysMeanTheSame) {
  const auto metadata = [](const std::string& members) {
    return io::to_metadata(io::parse_hf_config(with(members), "config.json").model);
  };
  EXPECT_EQ(
      metadata(R"("rope_theta": 5e5, "rope_scaling": null, "torch_dtype": "bfloat16")"),
      metadata(R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "dtype": "bfloat16")"));
  EXPECT_EQ(metadata(R"("rope_theta": 500, "rope_scaling": {"type": "linear", "factor": 2.0})"),
            metadata(R"("rope_parameters": {"rope_theta": 500, "rope_type": "linear", "factor": 2})"));
  EXPECT_EQ(metadata(R"("rope_theta": 500, "rope_scaling": {"type": "dynamic", "factor": 2.0})"),
            metadata(R"("rope_theta": 500)"));
  EXPECT_NE(metadata(R"("rope_theta": 5e5)"), metadata(R"("rope_theta": 1e4)"));
  EXPECT_EQ(metadata(R"("rope_theta": 5e5)"),
            metadata(R"("rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5})"));
  for (const std::string type : {"llama3", "yarn", "longrope"}) {  // the outer first context counts
    const std::string rope =
        "{\"rope_type\": \"" + type + R"(", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4,
          "short_factor": [1, 2], "long_factor": [3, 4], "original_max_position_embeddings": )";
    const auto scaled = [&](const std::string& first, const std::string& outer) {
      return metadata(outer + "\"rope_parameters\": " + rope + first + "}");
    };
    EXPECT_EQ(scaled("8", "\"original_max_position_embeddings\": 12, "), scaled("12", "")) << type;
    EXPECT_NE(scaled("8", ""), scaled("12", "")) << type;
    EXPECT_EQ(scaled("null", ""), scaled("16", "")) << type << ": max_position_embeddings";
  }
}

// What a key that is left out means differs between families.
TEST(HfConfig, KeysThatAreLeftOutHaveTheUsualValuesOfTheFamily) {
  const std::string sizes = R"("vocab_size": 9, "hidden_size": 64, "intermediate_size": 12,
    "num_hidden_layers": 6, "num_attention_heads": 32)";
  const std::pair<const char*, const char*> cases[] = {
      {"llama", R"("max_position_embeddings": 2048, "num_key_value_heads": 32, "head_dim": null,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "hidden_act": "silu",
         "attention_bias": false, "mlp_bias": false)"},
      {"qwen2", R"("max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": null,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "use_sliding_window": false)"},
      {"qwen3", R"("max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "attention_bias": false)"},
      {"mistral", R"("max_position_embeddings": 131072, "num_key_value_heads": 8, "head_dim": null,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "sliding_window": 4096)"},
      {"smollm3", R"("max_position_embeddings": 32768, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
         "rope_theta": 2e6, "tie_word_embeddings": true, "no_rope_layers": [1, 1, 1, 0, 1, 1])"},
      {"olmo2", R"("max_position_embeddings": 2048, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
         "rope_theta": 1e4, "tie_word_embeddings": false)"},
      {"phi3", R"("max_position_embeddings": 4096, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
         "rope_theta": 1e4, "tie_word_embeddings": false, "sliding_window": null)"},
      {"gemma2", R"("max_position_embeddings": 8192, "num_key_value_heads": 4, "head_dim": 256,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "query_pre_attn_scalar": 256,
         "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
                         "sliding_attention", "full_attention"])"},
      {"gemma3_text", R"("max_position_embeddings": 131072, "num_key_value_heads": 4, "head_dim": 256,
         "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": true,
         "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": null,
         "final_logit_softcapping": null, "sliding_window_pattern": 6)"},
      {"deepseek_v2", R"("max_position_embeddings": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
         "rope_theta": 1e4, "tie_word_embeddings": false, "attention_bias": false)"},
      {"deepseek_v3", R"("max_position_embeddings": 4096, "kv_lora_rank": 512, "q_lora_rank": 1536,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
         "rope_theta": 1e4, "tie_word_embeddings": false, "rope_interleave": true)"},
  };
  for (const auto& [family, members] : cases) {
    const std::string given =
        "{\"model_type\": \"" + std::string(family) + "\", \"first_k_dense_replace\": 6, ";
    const auto metadata = [](const std::string& text) {
      return io::to_metadata(io::parse_hf_config(text, "config.json").model);
    };
    EXPECT_EQ(metadata(given + sizes + "}"), metadata(given + sizes + ", " + members + "}")) << family;
  }
  const std::string gpt2 =
      R"({"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_layer": 1, "n_head": 1,
    "n_embd": 8)";
  EXPECT_EQ(io::to_metadata(io::parse_hf_config(gpt2 + "}", "x").model),
            io::to_metadata(io::parse_hf_config(gpt2 + R"(, "n_inner": null, "layer_norm_epsilon": 1e-5,
              "activation_function": "gelu_new", "tie_word_embeddings": true, "reorder_and_upcast_attn": true,
              "scale_attn_weights": true})",
                                                "x")
                                .model));
}

// Layers of two kinds: rope_parameters has a part for each, older files have keys beside each other.
TEST(HfConfig, Gemma3HasTwoRopesInOldAndNewKeys) {
  const std::string gemma =
      R"({"model_type": "gemma3_text", "vocab_size": 9, "hidden_size": 64, "intermediate_size": 12,
    "num_hidden_layers": 4, "num_attention_heads": 4, "sliding_window": 8, )";
  const auto metadata = [&](const std::string& members) {
    return io::to_metadata(io::parse_hf_config(gemma + members + "}", "x").model);
  };
  const std::string layers = R"("layer_types": ["sliding_attention", "full_attention", "sliding_attention",
    "full_attention"])";
  const io::Metadata now = metadata(layers + R"(, "rope_parameters": {
    "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})");
  EXPECT_EQ(metadata(R"("sliding_window_pattern": 2, "rope_theta": 5e5, "rope_local_base_freq": 2e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8})"),
            now);
  EXPECT_EQ(metadata(R"("sliding_window_pattern": 2, "rope_theta": 5e5, "rope_local_base_freq": 2e4,
    "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}})"),
            now);
  EXPECT_EQ(now.at("windows"), "8 0 8 0");
  EXPECT_EQ(now.at("window_theta"), "20000");
  EXPECT_EQ(error_of([&] {
              metadata(R"("rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}})");
            }),
            "x: rope_parameters: sliding_attention is {\"rope_type\": \"linear\", \"factor\": 2}, expected "
            "rope_type default");
}

// Its rope_scaling as it was written over the years.
TEST(HfConfig, Phi3HasALongRopeOfThreeNames) {
  const std::string phi3 = replaced(replaced(llama_json, "\"llama\"", "\"phi3\""), "Llama", "Phi3");
  const auto metadata = [&](const std::string& members) {
    const std::string text = replaced(replaced(phi3, "{", "{" + members + ", "), ": 16,", ": 8192,");
    return io::to_metadata(io::parse_hf_config(text, "x").model);
  };
  const std::string lists = R"("short_factor": [1, 1.5], "long_factor": [2, 3])";
  const io::Metadata now = metadata(R"("original_max_position_embeddings": 4096, "rope_parameters": {)" +
                                    lists + R"(, "rope_type": "longrope", "partial_rotary_factor": 1.0})");
  EXPECT_EQ(now.at("rope_first_context"), "4096");
  EXPECT_EQ(now.at("rope_long_factors"), "2 3");
  EXPECT_EQ(std::stod(now.at("rope_magnitude")), std::sqrt(1 + std::log(2.0) / std::log(4096.0)));
  for (const std::string type : {"longrope", "su", "yarn"})
    EXPECT_EQ(metadata("\"rope_scaling\": {" + lists + ", \"type\": \"" + type + "\"}"), now) << type;
  EXPECT_EQ(metadata("\"rope_scaling\": {" + lists + R"(, "type": "su", "attention_factor": 1.25})")
                .at("rope_magnitude"),
            "1.25");
  const std::string half = R"("partial_rotary_factor": 0.5)";
  EXPECT_EQ(metadata(half), metadata("\"rope_parameters\": {" + half + "}"));
  EXPECT_EQ(metadata(half).at("rotary_width"), "2");
  EXPECT_EQ(metadata(R"("partial_rotary_factor": 1.0)"), metadata(R"("rope_theta": 10000)"));
}

// Of heads whose width is not width / heads.
TEST(HfConfig, RowsOfJoinedTensorsAreThoseOfTheHeads) {
  const std::string text = replaced(with(R"("head_dim": 6)"), "LlamaForCausalLM", "Phi3ForCausalLM");
  const nn::ModelConfig c = io::parse_hf_config(replaced(text, "\"llama\"", "\"phi3\""), "x").model;
  const auto at = [&](const std::string& name, std::int64_t rows) {
    const std::string layer = "model.layers.1.";
    const io::HfTensor t = io::hf_tensor("phi3", c, layer + name, {rows, 8});
    return t.name.substr(layer.size()) + " " + t.shape.text() + " from " + std::to_string(t.first_row);
  };
  const std::string qkv = "self_attn.qkv_proj.weight [24, 8] from ",
                    mlp = "mlp.gate_up_proj.weight [24, 8] from ";
  EXPECT_EQ(at("self_attn.q_proj.weight", 12), qkv + "0");
  EXPECT_EQ(at("self_attn.k_proj.weight", 6), qkv + "12");
  EXPECT_EQ(at("self_attn.v_proj.weight", 6), qkv + "18");
  EXPECT_EQ(at("mlp.gate_proj.weight", 12), mlp + "0");
  EXPECT_EQ(at("mlp.up_proj.weight", 12), mlp + "12");
}

// null as a number of key heads is not the family's usual number.
TEST(HfConfig, NullKeyHeadsAreAsManyAsHeads) {
  for (const char* family : {"qwen2", "qwen3", "smollm3"}) {
    const std::string text = replaced(replaced(llama_json, "\"llama\"", "\"" + std::string(family) + "\""),
                                      "\"architectures\": [\"LlamaForCausalLM\"],", "");
    const auto metadata = [](const std::string& json) {
      return io::to_metadata(io::parse_hf_config(json, "x").model);
    };
    const std::string key = "\"num_key_value_heads\": ";
    EXPECT_EQ(metadata(replaced(text, key + "1", key + "null")).at("key_heads"), "2") << family;
  }
}

TEST(HfConfig, AllItsSettingsComeBackFromMetadata) {
  for (const char* members :
       {R"("attention_bias": true, "head_dim": 6)",
        R"("mlp_bias": true, "rope_parameters": {"rope_type": "llama3",
         "rope_theta": 5e5, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 3,
         "original_max_position_embeddings": 8})",
        R"("rope_parameters": {"rope_type": "yarn", "factor": 4, "beta_fast": 30, "truncate": false})",
        R"("rope_parameters": {"rope_type": "longrope", "factor": 4, "short_factor": [1, 1.0625],
         "long_factor": [1.1, 0.3333333333333333], "original_max_position_embeddings": 8})"}) {
    const nn::ModelConfig c = io::parse_hf_config(with(members), "config.json").model;
    const io::Metadata saved = io::to_metadata(c);
    EXPECT_GT(saved.size(), io::to_metadata(io::parse_hf_config(llama_json, "config.json").model).size());
    EXPECT_EQ(io::to_metadata(io::model_config(saved, "file")), saved);
  }
}

TEST(HfConfig, GenerationConfigHasPrecedence) {
  io::HfConfig c = io::parse_hf_config(with(R"("eos_token_id": 2, "bos_token_id": 1)"), "config.json");
  EXPECT_EQ(c.end_tokens, std::vector<std::int64_t>{2});
  io::parse_hf_generation(R"({"eos_token_id": [3, 4], "pad_token_id": null})", "generation_config.json", c);
  EXPECT_EQ(c.end_tokens, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(c.start_token, 1);
  EXPECT_FALSE(c.padding_token);
  EXPECT_EQ(
      error_of([&] { io::parse_hf_generation(R"({"eos_token_id": "x"})", "generation_config.json", c); }),
      "generation_config.json: eos_token_id is \"x\", expected an integer or an array of integers");
}

}  // namespace
