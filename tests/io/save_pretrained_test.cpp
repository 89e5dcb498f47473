// Tests saving models as Hugging Face folders. If a model was read from a folder, the saved folder is the
// same. A model that was created here is saved as one of Hugging Face's classes, or it is refused and the
// error names a setting.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <csignal>

#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/files/json_object.h"
#include "io/models/hf_config.h"
#include "io/models/hf_writer.h"
#include "io/models/model_source.h"
#include "tests/support/files.h"
#include "tests/support/golden_models.h"

namespace {

using namespace tg;
using namespace tg::testing;
namespace fs = std::filesystem;

std::string content(const std::string& path) {
  return io::read_file(path, "test");
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Returns every tensor of a folder's files.
struct Tensors {
  std::vector<io::MappedSafeTensors> files;
  io::TensorMap all;
  explicit Tensors(const std::string& folder) {
    for (const std::string& name : names_in(folder)) {
      if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
      files.push_back(io::map_safetensors(folder + "/" + name, "test"));
      EXPECT_EQ(files.back().metadata, (io::Metadata{{"format", "pt"}}));
      all.insert(files.back().tensors.begin(), files.back().tensors.end());
    }
  }
};

void expect_same(const io::TensorView& a, const io::TensorView& b, const std::string& name) {
  EXPECT_EQ(a.dtype, b.dtype) << name;
  EXPECT_EQ(a.shape, b.shape) << name;
  EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end())) << name;
}

class SavePretrained : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string golden = golden_folders + GetParam();
  const TemporaryDirectory directory;
  const std::string folder = directory / "saved", again = directory / "again";
};

TEST_P(SavePretrained, RestoresEveryFileOfTheFolder) {
  const nn::PretrainedInfo info = nn::pretrained_info(golden);
  ASSERT_EQ(info.dtypes.size(), 1u);
  nn::save_pretrained(folder, nn::from_pretrained(golden, Device::cpu(), {.dtype = info.dtypes[0]}));
  const Tensors theirs(golden), ours(folder);
  EXPECT_EQ(ours.all.size() + info.dropped.size(), theirs.all.size());
  for (const auto& [name, tensor] : ours.all) {
    // In files of the original GPT-2, names do not have the prefix "transformer.".
    const bool is_bare = !theirs.all.contains(name);
    expect_same(tensor, theirs.all.at(is_bare ? name.substr(name.find('.') + 1) : name), name);
  }
  EXPECT_EQ(content(folder + "/config.json"), content(golden + "/config.json"));
  EXPECT_EQ(content(folder + "/generation_config.json"), content(golden + "/generation_config.json"));
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
}

TEST_P(SavePretrained, FolderToOursToFolderIsTheSameInEveryDtype) {
  const nn::Pretrained model = nn::from_pretrained(golden);
  for (const DType dtype : {f32, f16, bf16}) {
    const std::string first = folder + std::string(name_of(dtype)),
                      second = again + std::string(name_of(dtype));
    nn::save_pretrained(first, model, nullptr, {.dtype = dtype});
    nn::save_pretrained(second, nn::from_pretrained(first, Device::cpu(), {.dtype = dtype}));
    for (const std::string& name : names_in(first))
      EXPECT_TRUE(content(first + "/" + name) == content(second + "/" + name)) << name << name_of(dtype);
    EXPECT_EQ(names_in(first), names_in(second));
    const nn::Pretrained read = nn::from_pretrained(first, Device::cpu(), {.dtype = dtype});
    for (std::size_t i = 0; i < model.model.parameters().size(); ++i)
      EXPECT_TRUE(read.model.parameters()[i].read().same_bits(model.model.parameters()[i].read().to(dtype)));
    const io::JsonObject config(content(first + "/config.json"), "config.json");
    EXPECT_EQ(config.string("dtype", config.string("torch_dtype", "")), io::hf_dtype_name(dtype));
  }
}

// Saves models by their settings only, like models that were created here. Each model is saved in its own
// family, and in the first family that computes the same results.
TEST_P(SavePretrained, SettingsDetermineTheModel) {
  const nn::Pretrained model = nn::from_pretrained(golden);
  io::HfConfig own = io::hf_config_for(model.info.config, "test", model.info.family);
  EXPECT_EQ(own.family, model.info.family);
  // If the file does not specify ids, the ids are the class's defaults.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    EXPECT_TRUE(io::JsonObject(io::hf_config_json(own, f32), "test").has(key));
  own.end_tokens = model.info.end_tokens, own.start_token = 3, own.padding_token = 4;
  io::HfConfig written = io::parse_hf_config(io::hf_config_json(own, f32), "test");
  EXPECT_TRUE(io::is_config_of(written, model.info.config));
  EXPECT_EQ(written.end_tokens, model.info.end_tokens);
  EXPECT_EQ(written.start_token, 3);
  EXPECT_EQ(written.padding_token, 4);
  written.end_tokens.clear();
  io::parse_hf_generation(io::hf_generation_json(own), "test", written);
  EXPECT_EQ(written.end_tokens, model.info.end_tokens);
  nn::save_pretrained(folder, model.model, model.info.config);
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"config.json", "model.safetensors"}));
  const io::SafeTensors expected = io::load_safetensors(golden + "/expected.safetensors");
  const Array logits = array_of(expected.tensors.at("logits"));
  const Computed c = compute(nn::from_pretrained(folder), array_of(expected.tensors.at("tokens")));
  EXPECT_LE(difference(c.logits, logits), 1e-5 * std::max(1.0, largest(logits)));
}

TEST_P(SavePretrained, ShardsContainTheSameTensors) {
  const nn::Pretrained model = nn::from_pretrained(golden);
  nn::save_pretrained(folder, model);
  nn::save_pretrained(again, model, nullptr, {.shard_bytes = 12'000});
  const Tensors one(folder), many(again);
  EXPECT_GT(many.files.size(), 2u);
  ASSERT_EQ(one.all.size(), many.all.size());
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : one.all) {
    expect_same(tensor, many.all.at(name), name);
    bytes += tensor.bytes.size();
  }
  for (const io::MappedSafeTensors& file : many.files) {
    std::uint64_t sum = 0;
    for (const auto& [name, tensor] : file.tensors) sum += tensor.bytes.size();
    EXPECT_TRUE(sum <= 12'000 || file.tensors.size() == 1);
  }
  const io::JsonObject index(content(again + "/model.safetensors.index.json"), "index");
  EXPECT_EQ(index.object("metadata").integer("total_size"), static_cast<std::int64_t>(bytes));
  EXPECT_EQ(index.object("weight_map").string(one.all.begin()->first).substr(0, 6), "model-");
  EXPECT_EQ(nn::from_pretrained(again).info.bytes, bytes);
}

// The metadata of a checkpoint contain the settings of the folder.
TEST_P(SavePretrained, ACheckpointOfAFolderIsSavedAsTheFolder) {
  const nn::Pretrained model = nn::from_pretrained(golden);
  io::Metadata about = io::to_metadata(model.info.config);
  about.merge(nn::folder_metadata(model.info.files));
  about.merge(text::NumberTokenizer(37).metadata());
  const std::vector<io::CheckpointFile> files{{"model.safetensors", model.model.parameters(), about}};
  io::write_checkpoint(directory / "run", 1, 1, files);
  io::ModelSource source = io::source_of_checkpoint(directory / "run");
  const io::HfConfig config = io::hf_config_of(source, "test");
  EXPECT_EQ(config.family, model.info.family);
  EXPECT_EQ(config.end_tokens, model.info.end_tokens);
  EXPECT_EQ(source.files, model.info.files);
  source.config.each_parameter([&](const std::string& name, const Shape& shape) {
    const io::TensorView t = source.weights->read(name);
    EXPECT_EQ(Shape(t.shape), shape);
    EXPECT_EQ(t.dtype, f32);
  });
}

// If the model was changed after reading, a new config is written for the same family.
TEST_P(SavePretrained, AChangedModelHasADifferentConfig) {
  nn::PretrainedInfo info = nn::pretrained_info(golden);
  for (nn::Setting& s : info.config.settings())
    if (s.name == "eps") *std::get<double*>(s.value) = 0.25;
  nn::Params params(1);
  const nn::Pretrained model{info, nn::Model(params, info.config)};
  nn::save_pretrained(folder, model);
  const nn::PretrainedInfo read = nn::pretrained_info(folder);
  EXPECT_EQ(read.family, model.info.family);
  EXPECT_EQ(read.end_tokens, model.info.end_tokens);
  EXPECT_NE(content(folder + "/config.json").find("0.25"), std::string::npos);
  EXPECT_EQ(content(folder + "/generation_config.json"), content(golden + "/generation_config.json"));
}

INSTANTIATE_TEST_SUITE_P(All, SavePretrained, ::testing::ValuesIn(golden_models()),
                         [](const auto& model) { return model.param; });

// A model that was read for shorter sequences uses different rotary frequencies.
TEST(SaveFolder, AModelReadForAShorterContextIsSavedForTheFullOne) {
  const std::string golden = golden_folders + "phi3_long";
  const nn::Pretrained model = nn::from_pretrained(golden, Device::cpu(), {.dtype = bf16, .context = 8});
  const TemporaryDirectory directory;
  nn::save_pretrained(directory / "saved", model);
  for (const char* name : {"config.json", "model.safetensors"})
    EXPECT_TRUE(content(directory / "saved/" + name) == content(golden + "/" + name)) << name;
}

TEST(SaveFolder, ConfigWritesTheDtypeUnderItsExistingKey) {
  const auto with_dtype = [](const std::string& text) {
    return io::hf_config_with_dtype(text, "test", bf16);
  };
  for (const std::string text : {"{\"a\":1,\n \"dtype\":\"bfloat16\"}", "{\"torch_dtype\": \"bfloat16\"}"})
    EXPECT_EQ(with_dtype(text), text);
  EXPECT_EQ(with_dtype("{\"a\": [1,\n2]}"), "{\n  \"a\": [1,\n2],\n  \"dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(with_dtype("{\"torch_dtype\": null}"), "{\n  \"torch_dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(with_dtype("{\"torch_dtype\": \"float16\", \"dtype\": \"bfloat16\"}"),
            "{\n  \"dtype\": \"bfloat16\",\n  \"torch_dtype\": \"bfloat16\"\n}\n");
}

TEST(SaveFolder, TensorsKeepTheirOwnDtypes) {
  const std::string golden = golden_folders + "phi3";
  const nn::Pretrained model = nn::from_pretrained(golden);
  const TemporaryDirectory directory;
  fs::create_directory(directory / "mixed");
  fs::copy_file(golden + "/config.json", directory / "mixed/config.json");
  nn::save_pretrained(directory / "whole", model);
  std::vector<Parameter> theirs;
  for (const auto& [name, tensor] : Tensors(directory / "whole").all)
    theirs.emplace_back(name, array_of(tensor).to(name.ends_with("norm.weight") ? f32 : f16));
  io::save_parameters(directory / "mixed/model.safetensors", theirs, {{"format", "pt"}});
  io::ModelSource source = io::source_of_folder(directory / "mixed");
  EXPECT_EQ(source.dtypes().size(), 2u);
  io::HfWriter(source, {}).write(directory / "saved");
  for (const std::string& name : names_in(directory / "mixed"))
    EXPECT_TRUE(content(directory / "saved/" + name) == content(directory / "mixed/" + name)) << name;
}

// ---- Models created here

struct Made {
  nn::ModelConfig config;
  nn::Params params{5};
  nn::Model model;
  explicit Made(const nn::ModelConfig& c) : config(c), model(params, config) {}
};

nn::ModelConfig small(nn::Architecture architecture) {
  return {.architecture = std::move(architecture),
          .vocabulary = 300,
          .context = 16,
          .layers = 3,
          .heads = 4,
          .width = 32};
}

std::string family_of(const nn::ModelConfig& c) {
  return io::hf_config_for(c, "test").family;
}

TEST(SaveModel, AFamilyIsChosenByTheSettings) {
  EXPECT_EQ(family_of(small(nn::Gpt{})), "gpt2");
  EXPECT_EQ(family_of(small(nn::Llama{.key_heads = 2})), "llama");
  EXPECT_EQ(family_of(small(nn::Llama{.qkv_bias = true})), "qwen2");
  EXPECT_EQ(family_of(small(nn::Llama{.qk_norm = "head"})), "qwen3");
  EXPECT_EQ(family_of(small(nn::Llama{.windows = {4}})), "mistral");
  EXPECT_EQ(family_of(small(nn::Llama{.windows = {4, 0}})), "smollm3");
  EXPECT_EQ(family_of(small(nn::Llama{.rotated = {1, 0}})), "smollm3");
  EXPECT_EQ(family_of(small(nn::Llama{.qk_norm = "whole", .norms = "after"})), "olmo2");
  EXPECT_EQ(family_of(small(nn::Llama{.head_width = 14, .rotary_width = 6})), "phi3");  // 14·(6/14) < 6
  EXPECT_EQ(family_of(small(nn::DeepSeek{})), "deepseek_v3");
  nn::ModelConfig biased = small(nn::Llama{});
  biased.bias = true;
  EXPECT_EQ(family_of(biased), "llama");
  EXPECT_TRUE(io::hf_config_for(biased, "test").model.architecture.as<nn::Llama>()->mlp_bias);
}

TEST(SaveModel, AModelWithoutAMatchingClassIsRefusedByItsSettings) {
  const auto refusal = [](const nn::ModelConfig& c) {
    return error_of([&] { io::hf_config_for(c, "[save_pretrained] m"); });
  };
  const std::string begin = "[save_pretrained] m: no Hugging Face class can hold this model: ";
  EXPECT_EQ(refusal(small(nn::Llama{.attention_softcap = 30})),
            begin + "llama, the nearest, has no attention_softcap 30");
  EXPECT_EQ(refusal(small(nn::Llama{.windows = {4, 5}})), begin + "llama, the nearest, has no windows 4 5 4");
  EXPECT_EQ(refusal(small(nn::Llama{.activation = "gelu"})),
            begin + "llama: hidden_act is \"gelu\", expected silu or swish");
  EXPECT_EQ(refusal(small(nn::Gpt{.activation = "silu"})).substr(0, begin.size() + 40),
            begin + "gpt2: activation_function is \"silu\", exp");
  nn::ModelConfig biased = small(nn::DeepSeek{});
  biased.bias = true;
  EXPECT_EQ(refusal(biased), begin + "deepseek_v3, the nearest, has no bias true");
}

// A GPT without biases is saved with zero biases.
TEST(SaveModel, ModelsMadeHereComputeTheSameWhenTheyAreRead) {
  nn::ModelConfig rotary = small(nn::Llama{.key_heads = 2, .theta = 500});
  rotary.tied_head = false;
  nn::ModelConfig biased = small(nn::Gpt{.activation = "gelu_tanh", .mlp_width = 40});
  biased.bias = true;
  for (const nn::ModelConfig& c :
       {small(nn::Gpt{}), biased, rotary, small(nn::DeepSeek{.query_latent = 12})}) {
    const Made made(c);
    const TemporaryDirectory directory;
    nn::save_pretrained(directory / "saved", made.model, c);
    const nn::Pretrained read = nn::from_pretrained(directory / "saved");
    const Array tokens = Array::of<std::int32_t>({1, 6}, {3, 1, 4, 1, 5, 9});
    const auto logits = [&](const nn::LanguageModel& model) {
      Graph g;
      const Tensor x = g.input("tokens", {1, 6}, i32), y = model.logits(x);
      Program program = compile(g, {y});
      program.run({{x, tokens}});
      return program.fetch(y);
    };
    EXPECT_LE(difference(logits(made.model), logits(read)), 1e-6) << c.text();
    EXPECT_TRUE(read.info.end_tokens.empty());
    EXPECT_FALSE(read.info.start_token.has_value());
  }
}

TEST(SaveModel, ATokenizerIsSavedWithIt) {
  const std::string text = "to be or not to be, that is the question — ſo \xf0\x9f\x8c\xb3";
  const text::Bpe bpe = text::Bpe::train(text, 265);
  const text::CharVocab characters(text);
  const text::ByteTokenizer bytes;
  const Made made(small(nn::Gpt{}));
  for (const text::Tokenizer* tokenizer : std::vector<const text::Tokenizer*>{&bpe, &characters, &bytes}) {
    const TemporaryDirectory directory;
    nn::save_pretrained(directory / "saved", made.model, made.config, tokenizer);
    const text::HfTokenizer read = text::HfTokenizer::open(directory / "saved");
    EXPECT_EQ(read.encode(text), tokenizer->encode(text)) << tokenizer->kind();
    EXPECT_EQ(read.decode(read.encode(text)), text);
    EXPECT_EQ(read.size(), tokenizer->size());
    const io::JsonObject config(content(directory / "saved/tokenizer_config.json"), "config");
    EXPECT_EQ(config.string("tokenizer_class"), "PreTrainedTokenizerFast");
    EXPECT_EQ(config.integer("model_max_length"), 16);
  }
}

// The start token comes from the tokenizer's template. Files that other programs need are copied from the
// folder.
TEST(SaveModel, ATokenizerOfAFolderKeepsItsFiles) {
  const std::string json = content(golden_folders + "../tokenizers/llama3/tokenizer.json");
  const text::HfTokenizer tokenizer(json, "test");
  nn::ModelConfig c = small(nn::Llama{});
  c.vocabulary = 1000;
  const Made made(c);
  const TemporaryDirectory directory;
  nn::save_pretrained(directory / "one", made.model, c, &tokenizer);
  EXPECT_EQ(content(directory / "one/tokenizer.json"), json);
  const io::JsonObject config(content(directory / "one/tokenizer_config.json"), "config");
  EXPECT_EQ(config.string("bos_token"), "<|begin_of_text|>");
  nn::Pretrained read = nn::from_pretrained(directory / "one");
  EXPECT_EQ(read.info.start_token, tokenizer.before()[0]);

  directory.file("one/tokenizer_config.json", "{\"chat\": 1}");
  directory.file("one/chat_template.jinja", "{{ text }}");
  read = nn::from_pretrained(directory / "one");
  nn::save_pretrained(directory / "two", read, &tokenizer);
  EXPECT_EQ(names_in(directory / "two"), names_in(directory / "one"));
  for (const std::string& name : names_in(directory / "one"))
    EXPECT_EQ(content(directory / "one/" + name), content(directory / "two/" + name)) << name;
  EXPECT_EQ(nn::folder_files(nn::folder_metadata(read.info.files)), read.info.files);
  const text::ByteTokenizer other;  // if the tokenizer differs from the folder's, its files are not used
  nn::save_pretrained(directory / "three", read, &other);
  EXPECT_EQ(names_in(directory / "three"),
            (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                      "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_NE(content(directory / "three/tokenizer_config.json"), "{\"chat\": 1}");
}

TEST(SaveModel, MismatchedTokenizersAreRefused) {
  const Made made(small(nn::Gpt{}));
  const TemporaryDirectory directory;
  const auto refusal = [&](const text::Tokenizer& t) {
    return error_of([&] { nn::save_pretrained(directory / "saved", made.model, made.config, &t); });
  };
  EXPECT_NE(refusal(text::Bpe({}, text::WordRule::bytes)).find("as older checkpoints do"), std::string::npos);
  std::string text;
  for (int c = 0; c < 400; ++c)
    text += "\xe4" + std::string{static_cast<char>(0xb8 + c / 64), static_cast<char>(0x80 + c % 64)};
  EXPECT_EQ(refusal(text::CharVocab(text)), "[save_pretrained] the tokenizer has 400 tokens, the model 300");
  EXPECT_NE(refusal(text::CharVocab(std::string_view("a▁"))).find("U+2581"), std::string::npos);
  EXPECT_EQ(refusal(text::NumberTokenizer(300)), "no error");  // a folder without a tokenizer
  EXPECT_FALSE(fs::exists(directory / "saved/tokenizer.json"));
}

// ---- All or nothing

struct Saving {
  TemporaryDirectory directory;
  Made made{small(nn::Llama{})};
  std::string error(const nn::SaveOptions& options = {}, const std::string& name = "saved") const {
    std::string message =
        error_of([&] { nn::save_pretrained(directory / name, made.model, made.config, nullptr, options); });
    for (std::size_t at; (at = message.find(directory.path.string())) != std::string::npos;)
      message.replace(at, directory.path.string().size(), "DIR");
    return message;
  }
};

TEST(SaveModel, ExistingFilesAreNotChanged) {
  const Saving s;
  s.directory.file("file", "mine");
  EXPECT_EQ(s.error({}, "file"),
            "[save_pretrained] DIR/file exists: choose another name, or remove it first");
  fs::create_directory(s.directory / "empty");
  EXPECT_NE(s.error({}, "empty").find("exists"), std::string::npos);
  fs::create_symlink("nowhere", s.directory / "link");
  EXPECT_NE(s.error({}, "link").find("exists"), std::string::npos);
  EXPECT_EQ(s.error({}, "no/folder"),
            "[save_pretrained] cannot create DIR/no/folder: No such file or directory");
  EXPECT_EQ(content(s.directory / "file"), "mine");
  EXPECT_EQ(names_in(s.directory.path), (std::vector<std::string>{"empty", "file", "link"}));
  EXPECT_EQ(s.error({}, "new/"), "no error");
  EXPECT_TRUE(fs::exists(s.directory / "new/model.safetensors"));
}

TEST(SaveModel, AFailedSaveLeavesNothing) {
  const Saving s;
  int calls = 0;
  const nn::SaveOptions stopped{.written = [&](std::uint64_t written, std::uint64_t all) {
    EXPECT_LE(written, all);
    EXPECT_TRUE(fs::exists(s.directory / ".saved.unfinished/config.json"));
    if (++calls == 3) throw Error("stopped");
  }};
  EXPECT_EQ(s.error(stopped), "stopped");
  EXPECT_TRUE(names_in(s.directory.path).empty());
  EXPECT_EQ(calls, 3);

  Parameter p = s.made.params.all()[4];
  const Array before = p.read();
  Array bad = before.copy();
  bad.set(7, NAN);
  p.write(bad);
  EXPECT_EQ(s.error(),
            "[save_pretrained] model: " + p.name() + " has a number that is not finite at element 7");
  bad.set(7, 1e6);
  p.write(bad);
  EXPECT_NE(s.error({.dtype = f16}).find(p.name()), std::string::npos);
  p.write(before);
  EXPECT_TRUE(names_in(s.directory.path).empty());

  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit limit{20'000, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string full = s.error();
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(full, "[save_pretrained] cannot write DIR/.saved.unfinished/model.safetensors: File too large");
  EXPECT_TRUE(names_in(s.directory.path).empty());
}

TEST(SaveModel, LeftoversOfAKilledProcessAreReplaced) {
  const Saving s;
  fs::create_directories(s.directory / ".saved.unfinished/deep");
  s.directory.file(".saved.unfinished/model.safetensors", "half");
  EXPECT_EQ(
      s.error(),
      "[save_pretrained] DIR/.saved.unfinished is in the way: no file .unfinished marks it as unfinished; "
      "move it away");
  EXPECT_EQ(content(s.directory / ".saved.unfinished/model.safetensors"), "half");
  s.directory.file(".saved.unfinished/.unfinished", "");
  EXPECT_EQ(s.error(), "no error");
  EXPECT_EQ(names_in(s.directory.path), (std::vector<std::string>{"saved"}));
  EXPECT_EQ(names_in(s.directory / "saved"), (std::vector<std::string>{"config.json", "model.safetensors"}));
}

TEST(SaveModel, ADifferentModelsConfigIsRefused) {
  const Saving s;
  nn::ModelConfig other = s.made.config;
  other.layers = 2;
  EXPECT_NE(error_of([&] { nn::save_pretrained(s.directory / "saved", s.made.model, other); }), "no error");
  other.layers = 3, other.architecture = nn::Llama{.theta = 500};  // no weight shows this setting
  EXPECT_NE(error_of([&] {
              nn::save_pretrained(s.directory / "saved", s.made.model, other);
            }).find("self_attn.theta = 10000, this one has 500"),
            std::string::npos);
  other.architecture = nn::Llama{}, other.width = 64;
  EXPECT_NE(error_of([&] { nn::save_pretrained(s.directory / "saved", s.made.model, other); }), "no error");
  EXPECT_TRUE(names_in(s.directory.path).empty());
}

}  // namespace
