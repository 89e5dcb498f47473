// Tests invalid Hugging Face folders. The error must be one line that names file, key and value. Also tests
// different folders with equivalent contents.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>

#include <tilegrad/core/base/random.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/tilegrad.h>
#include "io/models/tensor_names.h"
#include "tests/support/hf_folder.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(HfFolder, IsReadCompletely) {
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

TEST(HfFolder, WeightsAreRoundedToTheRequestedDtype) {
  const Folder f;
  for (const DType dtype : {bf16, f16, f64}) EXPECT_TRUE(f.has_the_weights(dtype)) << name_of(dtype);
  EXPECT_NE(error_of([&] { nn::from_pretrained(f.path, Device::cpu(), {.dtype = i32}); }), "no error");
}

// Returns the parameters of a GPT-2 as the tensors of its folder.
std::vector<Parameter> gpt2_tensors(const nn::Params& params, const nn::ModelConfig& c) {
  std::vector<Parameter> theirs;
  for (const Parameter& p : params.all()) {
    const io::HfTensor t = io::hf_tensor("gpt2", c, p.name(), p.shape());
    Array values(t.shape, f32);
    const Array ours = p.read();
    for (std::int64_t i = 0; i < ours.numel(); ++i)
      values.set(t.is_transposed ? i % t.shape[0] * t.shape[1] + i / t.shape[0] : i, ours.at(i));
    theirs.emplace_back(p.name(), values);
  }
  return theirs;
}

// The weights are large enough for several pieces. The last piece is partial.
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
  std::vector<Parameter> theirs = gpt2_tensors(params, c);
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

// In some GPT-2 files, names begin with "transformer.". If a file has both forms of a name, the form with
// this prefix is used.
TEST(HfFolder, TensorsOfGpt2HaveOneOfTwoNames) {
  const nn::ModelConfig c{.architecture = nn::Gpt{.mlp_width = 8},
                          .vocabulary = 5,
                          .context = 4,
                          .layers = 1,
                          .heads = 1,
                          .width = 4,
                          .bias = true};
  nn::Params params(1);
  const nn::Model model(params, c);
  const TemporaryDirectory directory;
  directory.file("config.json", R"({"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_layer": 1,
    "n_head": 1, "n_embd": 4, "n_inner": 8})");
  const std::string root = "transformer.";
  for (const bool is_short : {true, false}) {
    std::vector<Parameter> theirs = gpt2_tensors(params, c);
    for (Parameter& p : theirs)
      if (is_short) p = Parameter(p.name().substr(root.size()), p.read());
    io::save_parameters(directory / "model.safetensors", theirs);
    const nn::Pretrained made = nn::from_pretrained(directory.path.string());
    for (const Parameter& p : made.model.parameters())
      EXPECT_TRUE(p.read().same_bits(params.find(p.name())->read())) << p.name();
    theirs.emplace_back(is_short ? "transformer.wte.weight" : "wte.weight", Array({5, 4}, f32));
    io::save_parameters(directory / "model.safetensors", theirs);
    EXPECT_EQ(error_of([&] { nn::from_pretrained(directory.path.string()); }),
              "[from_pretrained] " + (directory / "model.safetensors") +
                  ": has a tensor wte.weight that a gpt2 of this config.json does not have");
  }
}

// The embedding is read in two parts of up to 32 MiB. If there are several threads, separate threads read
// them.
TEST(HfFolder, LargeTensorsAreReadInParts) {
  constexpr std::int64_t tokens = 1'048'576 + 5, last = tokens * 8 - 1;
  const Folder f;
  f.directory.file("config.json", replaced(llama_json, "\"vocab_size\": 5", "\"vocab_size\": 1048581"));
  std::vector<Parameter> parameters = f.params.all();
  Array large = normal_array({tokens, 8}, f32, 0, 1, 7);
  const auto save = [&] {
    for (Parameter& p : parameters)
      if (p.shape() == Shape{5, 8} || p.shape() == large.shape()) p = Parameter(p.name(), large);
    f.save("model.safetensors", parameters);
  };
  save();
  for (const DType dtype : {f32, bf16}) {
    const nn::Pretrained made = nn::from_pretrained(f.path, Device::cpu(), {.dtype = dtype});
    for (const Parameter& p : made.model.parameters()) {
      const Array theirs = p.shape() == large.shape() ? large : f.params.find(p.name())->read();
      EXPECT_TRUE(p.read().same_bits(theirs.to(dtype))) << p.name();
    }
  }
  large.set(last, 1e38);
  save();
  EXPECT_NE(error_of([&] {
              nn::from_pretrained(f.path, Device::cpu(), {.dtype = f16});
            }).find("at element " + std::to_string(last) + ", too large for f16"),
            std::string::npos);
}

TEST(HfFolder, ShardsFormOneModel) {
  const Folder f;
  f.shard();
  EXPECT_TRUE(f.has_the_weights());
}

TEST(HfFolder, ShardsThatDoNotMatchTheIndexAreRefused) {
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
  f.shard("a.safetensors");  // the index lists all other tensors in the wrong file
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

TEST(HfFolder, InvalidFoldersAreRefused) {
  const Folder f;
  const auto error_of_path = [](const std::string& path) {
    return error_of([&] { nn::pretrained_info(path); });
  };
  for (const std::string& path : {f.path + "/none", f.path + "/none.gguf", std::string()}) {
    EXPECT_EQ(error_of_path(path), "[from_pretrained] " + path + ": does not exist");
    EXPECT_EQ(error_of([&] { nn::from_pretrained(path); }), "[from_pretrained] " + path + ": does not exist");
  }
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

TEST(HfFolder, AnInvalidIndexIsRefused) {
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
  EXPECT_EQ(
      error_with(R"({"weight_map": {"t": "config.json"}})"),
      "[from_pretrained] DIR/config.json: begins with '{', as JSON does, and is not a safetensors file");
}

TEST(HfFolder, ADuplicateTensorInAFileIsRefused) {
  const Folder f;
  std::string whole = io::read_file(f.directory / "model.safetensors", "test");
  const std::string name = "model.layers.0.self_attn.q_proj.weight", other = replaced(name, "q_", "k_");
  f.directory.file("model.safetensors", replaced(whole, other, name));
  EXPECT_NE(f.error().find("[from_pretrained] DIR/model.safetensors: header: duplicate key \"" + name + "\""),
            std::string::npos)
      << f.error();
}

// The weights are integers, and separate tensors contain their scales. config.json does not mention this.
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

TEST(HfFolder, FilesMayHaveSeveralDtypes) {
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

TEST(HfFolder, UnneededContentsAreReported) {
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

TEST(HfFolder, EndTokensMatchGenerationConfig) {
  const Folder f;
  f.directory.file("config.json",
                   llama_with(R"("eos_token_id": 50256, "bos_token_id": 1, "pad_token_id": -1)"));
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

TEST(HfFolder, ATokenizerOfADifferentModelIsRefused) {
  const Folder f;
  nn::PretrainedInfo info = nn::pretrained_info(f.path);
  const text::ByteTokenizer bytes;  // a tokenizer of 256 tokens
  const auto error = [&] {
    return error_of([&] { nn::check_tokenizer(info, bytes, "[x] tokenizer.json"); });
  };
  EXPECT_EQ(error(), "[x] tokenizer.json: has 256 tokens, the model 5");
  info.config.vocabulary = 320;
  EXPECT_EQ(error(), "no error");
  info.end_tokens = {300, 310};
  EXPECT_EQ(error(),
            "[x] tokenizer.json: has 256 tokens, the model's sequences end with 300, its eos_token_id");
  info.end_tokens = {300, 10};
  EXPECT_EQ(error(), "no error");
}

TEST(HfFolder, AConfigThatContradictsItsTensorsIsRefusedBeforeAnyAllocation) {
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
  // Collecting names stops when there are a thousand names more than in the file.
  const std::string many = error_with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000");
  EXPECT_EQ(many.find(file + "has no tensor "), 0u) << many;
  EXPECT_TRUE(many.ends_with(" and " + std::to_string(f.params.all().size() + 1001 - 5) + " more")) << many;
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

// The embedding and the head of a file have the same bytes, but different numbers.
TEST(HfFolder, ATiedHeadOfADifferentDtypeOrShapeIsRefused) {
  const Folder f;
  f.directory.file("config.json",
                   replaced(llama_json, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"));
  const auto error_with = [&](const Shape& shape, DType dtype) {
    std::vector<Parameter> all;
    for (const Parameter& p : f.params.all())
      all.emplace_back(p.name(), p.name() == "lm_head.weight"              ? Array(shape, dtype)
                                 : p.name() == "model.embed_tokens.weight" ? Array(p.shape(), f16)
                                                                           : p.read());
    f.save("model.safetensors", all);
    return f.error();
  };
  const std::string differs =
      "[from_pretrained] DIR/model.safetensors: lm_head.weight differs from "
      "model.embed_tokens.weight, though tie_word_embeddings of config.json is true";
  EXPECT_EQ(error_with({5, 8}, f16), "no error");
  EXPECT_EQ(error_with({5, 8}, bf16), differs);
  EXPECT_EQ(error_with({8, 5}, f16), differs);
  EXPECT_EQ(error_with({5, 8}, f32), differs);
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

}  // namespace
