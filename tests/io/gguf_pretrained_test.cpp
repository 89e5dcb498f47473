// Models as GGUF files: what comes back computes the same, and what llama.cpp cannot compute is refused. That
// the files are those of llama.cpp's own converter is compared by tests/interop/compare_gguf.py.
#include <gtest/gtest.h>

#include <fstream>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/interop/gguf_tokenizer.h"
#include "io/interop/gguf_writer.h"
#include "io/interop/json_object.h"
#include "tests/support/files.h"
#include "tests/support/golden_models.h"

namespace {

using namespace tg;
using namespace tg::testing;
namespace fs = std::filesystem;

std::string contents(const std::string& path) {
  return io::read_file(path, "test");
}

// A golden model with the settings that llama.cpp has, which are those of published models.
struct Golden {
  TemporaryDirectory directory;
  std::string folder = directory / "golden", file = directory / "model.gguf";
  explicit Golden(const std::string& name) {
    fs::copy(golden_folders + name, folder);
    if (name == "smollm3") set("no_rope_layers", "[1, 1]");
    if (name.starts_with("gemma")) set("query_pre_attn_scalar", "12");  // head_dim
    if (name.starts_with("deepseek")) set("rms_norm_eps", "1e-06");
  }
  void set(const std::string& key, const std::string& value) const {
    io::JsonObject config(contents(folder + "/config.json"), "config.json");
    ASSERT_TRUE(config.has(key)) << key;
    config.set(key, value);
    std::ofstream(folder + "/config.json") << config.text();
  }
};

class GgufModel : public ::testing::TestWithParam<const char*> {
 protected:
  const Golden golden{GetParam()};
  const io::SafeTensors expected = io::load_safetensors(golden.folder + "/expected.safetensors");
  const Array tokens = array_of(expected.tensors.at("tokens"));
};

TEST_P(GgufModel, ComesBackAndComputesTheSame) {
  const nn::Pretrained model = nn::from_pretrained(golden.folder);
  nn::save_gguf(golden.file, model);
  const nn::Pretrained read = nn::from_pretrained(golden.file);
  EXPECT_EQ(read.info.end_tokens, model.info.end_tokens);
  EXPECT_EQ(read.info.start_token, model.info.start_token);
  EXPECT_EQ(read.info.config.context, model.info.config.context);
  const Array logits = compute(model, tokens).logits;
  EXPECT_LE(difference(compute(read, tokens).logits, logits), 2e-6 * std::max(1.0, largest(logits)));
  ASSERT_EQ(read.model.parameters().size(), model.model.parameters().size());
  for (std::size_t i = 0; i < read.model.parameters().size(); ++i) {
    const Array a = model.model.parameters()[i].read(), b = read.model.parameters()[i].read();
    const bool is_gain =
        model.info.family.starts_with("gemma") && model.model.parameters()[i].name().ends_with("norm.weight");
    EXPECT_TRUE(is_gain ? difference(a, b) <= 1e-7 : a.same_bits(b)) << model.model.parameters()[i].name();
  }
}

// Of what is read the same file is written, byte for byte, but for the name of the model.
TEST_P(GgufModel, FileToOursToFileIsTheSameInEveryDtype) {
  const nn::Pretrained model = nn::from_pretrained(golden.folder);
  for (const char* dtype : {"f32", "f16", "bf16", "q8_0"}) {
    const std::string first = golden.directory / dtype + "1", second = golden.directory / dtype + "2";
    nn::save_gguf(first, model, nullptr, {.dtype = dtype});
    nn::save_gguf(second, nn::from_pretrained(first), nullptr, {.dtype = dtype});
    const io::MappedGguf a(first, "test"), b(second, "test");
    ASSERT_EQ(a.gguf.tensor_count(), b.gguf.tensor_count());
    for (std::size_t i = 0; i < a.gguf.tensor_count(); ++i) {
      const io::GgufTensor t = a.gguf.tensor(i);
      const auto other = b.gguf.tensor(t.name);
      ASSERT_TRUE(other && other->type == t.type && other->shape == t.shape) << t.name;
      EXPECT_TRUE(other->bytes == t.bytes) << dtype << " " << t.name;
    }
    for (const std::string_view key : a.gguf.keys())
      EXPECT_TRUE(key == "general.name" || a.gguf.text(key) == b.gguf.text(key)) << key;
    EXPECT_EQ(a.gguf.keys(), b.gguf.keys());
  }
}

TEST_P(GgufModel, GoesOnAsAFolder) {
  const nn::Pretrained model = nn::from_pretrained(golden.folder);
  nn::save_gguf(golden.file, model);
  const std::string folder = golden.directory / "again";
  nn::save_pretrained(folder, nn::from_pretrained(golden.file));
  const Array logits = compute(model, tokens).logits;
  EXPECT_LE(difference(compute(nn::from_pretrained(folder), tokens).logits, logits),
            2e-6 * std::max(1.0, largest(logits)));
}

INSTANTIATE_TEST_SUITE_P(All, GgufModel,
                         ::testing::Values("gpt2", "llama", "llama3", "llama_biased", "llama_yarn", "mistral",
                                           "mistral_whole", "qwen2", "qwen3", "olmo2", "phi3", "phi3_long",
                                           "phi3_partial", "phi3_short", "gemma2", "gemma3", "smollm3",
                                           "deepseek_v2", "deepseek_v2_yarn"),
                         [](const auto& model) { return std::string(model.param); });

// FNV-1a over name, shape and bytes of the tensors in the order of their names, as compare_gguf.py has it.
std::string checksum(const io::Gguf& file) {
  std::uint64_t h = 0xcbf29ce484222325;
  const auto add = [&](std::string_view bytes) {
    for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  };
  for (std::size_t i = 0; i < file.tensor_count(); ++i) {
    const io::GgufTensor t = file.tensor(i);
    if (t.name == "rope_freqs.weight") continue;
    std::string head = std::string(t.name) + " " + std::string(name_of(t.type)) + " ";
    for (std::size_t d = t.shape.size(); d-- > 0;) head += std::to_string(t.shape[d]) + " ";
    add(head), add(t.bytes);
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

// What llama.cpp's converter made of the same folders.
TEST(GgufModels, TensorsAreThoseOfLlamaCppsConverter) {
  std::ifstream lines(GOLDEN_FOLDERS "/../gguf_golden.txt");
  std::string name, dtype, expected;
  int compared = 0;
  for (; lines >> name >> dtype >> expected; ++compared) {
    const Golden golden(name);
    io::ModelSource source = io::source_of_folder(golden.folder);
    io::GgufWriter(source, {.dtype = dtype}).write(golden.file);
    EXPECT_EQ(checksum(io::MappedGguf(golden.file, "test").gguf), expected) << name << " " << dtype;
  }
  EXPECT_GE(compared, 76);
}

TEST(GgufModels, WhatLlamaCppCannotComputeIsRefused) {
  const auto refusal = [](const std::string& name, auto change) {
    const Golden golden(name);
    change(golden);
    const nn::Pretrained model = nn::from_pretrained(golden.folder);
    const std::string message = error_of([&] { nn::save_gguf(golden.file, model); });
    EXPECT_FALSE(fs::exists(golden.file));
    return message.substr(message.find(": ") + 2);
  };
  const auto as_it_is = [](const Golden&) {};
  EXPECT_EQ(refusal("deepseek_v3", as_it_is), "llama.cpp cannot compute attention_bias true of deepseek_v3");
  EXPECT_EQ(refusal("deepseek_v3_halves", as_it_is),
            "llama.cpp cannot compute rope_interleave false of deepseek_v3");
  EXPECT_EQ(refusal("smollm3", [](const Golden& g) { g.set("no_rope_layers", "[1, 0]"); }),
            "llama.cpp cannot compute rotary positions in other layers than usual of smollm3");
  EXPECT_EQ(refusal("gemma2", [](const Golden& g) { g.set("query_pre_attn_scalar", "16"); }),
            "llama.cpp cannot compute scores times 0.25, other than 0.2886751345948129, of gemma2");
  EXPECT_EQ(
      refusal("deepseek_v2", [](const Golden& g) { g.set("rms_norm_eps", "0.001"); }),
      "llama.cpp cannot compute rms_norm_eps 0.001, other than that of the latents, 1e-06, of deepseek_v2");
}

// ---- Models that were made here, with their tokenizers

TEST(GgufModels, ATokenizerComesBack) {
  const std::string text = "to be or not to be, that is  the question — ſo \xf0\x9f\x8c\xb3\n";
  const text::Bpe bpe = text::Bpe::train(text, 265);
  const text::CharVocab characters(text);
  const text::ByteTokenizer bytes;
  const nn::ModelConfig config{
      .architecture = nn::Llama{}, .vocabulary = 300, .context = 16, .layers = 1, .heads = 2, .width = 32};
  nn::Params params{5};
  const nn::Model model(params, config);
  for (const text::Tokenizer* tokenizer : std::vector<const text::Tokenizer*>{&bpe, &characters, &bytes}) {
    const TemporaryDirectory directory;
    nn::save_gguf(directory / "m.gguf", model, config, tokenizer);
    const io::ModelSource read = io::source_of_gguf(directory / "m.gguf");
    ASSERT_NE(read.tokenizer, nullptr);
    EXPECT_EQ(read.tokenizer->encode(text), tokenizer->encode(text)) << tokenizer->kind();
    EXPECT_EQ(read.tokenizer->decode(read.tokenizer->encode(text)), text);
    EXPECT_EQ(read.tokenizer->size(), tokenizer->size());
  }
}

// Texts of which a tokenizer gives the same ids after a way through a file.
const std::vector<std::string> texts{"Hello world, it's 12345 o'clock",
                                     "  two  spaces\n\n and \t tabs\r\n",
                                     "naïve café ſ ½ Ⅷ 天地 🌳",
                                     "<s>a</s> b <|endoftext|>",
                                     "",
                                     " x"};

TEST(GgufTokenizer, IdsAreThoseOfTheFolder) {
  for (const char* name :
       {"gpt2", "llama3", "qwen2", "smollm", "deepseek", "deepseek_coder", "deepseek3", "llama2"}) {
    const text::HfTokenizer tokenizer = text::HfTokenizer::open(TG_TOKENIZERS + std::string("/") + name);
    io::HfConfig config;
    config.model.vocabulary = tokenizer.size() + 3;  // rows for tokens that are not there
    io::GgufStart start;
    io::add_gguf_tokenizer(&tokenizer, config, "", "test", start);
    const std::string bytes = start.bytes();
    const io::Gguf file(bytes, "test");
    const auto read = io::read_gguf_tokenizer(file);
    ASSERT_NE(read, nullptr);
    EXPECT_EQ(file.count("tokenizer.ggml.tokens"), static_cast<std::uint64_t>(config.model.vocabulary));
    std::string last;
    file.each_string("tokenizer.ggml.tokens", [&](std::string_view token) { last = token; });
    EXPECT_EQ(last, "[PAD" + std::to_string(tokenizer.size() + 2) + "]");
    EXPECT_EQ(read->size(), tokenizer.size());
    for (const std::string& text : texts) {
      EXPECT_EQ(read->encode_whole(text), tokenizer.encode_whole(text)) << name << ": " << text;
      EXPECT_EQ(read->decode(read->encode(text)), tokenizer.decode(tokenizer.encode(text))) << name;
    }
  }
}

// tokenizer.ggml.pre of a tokenizer.json.
std::string name_of_rules(const std::string& json) {
  const text::HfTokenizer tokenizer(json, "test");
  io::HfConfig config;
  config.model.vocabulary = tokenizer.size();
  io::GgufStart start;
  io::add_gguf_tokenizer(&tokenizer, config, "", "test", start);
  const std::string bytes = start.bytes();
  return io::Gguf(bytes, "test").string("tokenizer.ggml.pre");
}

constexpr const char* no_name =
    "test: llama.cpp has no name for the rules by which this tokenizer splits texts";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(GgufTokenizer, TheNameIsThatOfTheFamily) {
  const std::pair<const char*, const char*> names[] = {
      {"gpt2", "gpt-2"},           {"llama3", "llama-bpe"},      {"qwen2", "qwen2"},
      {"smollm", "smollm"},        {"deepseek", "deepseek-llm"}, {"deepseek_coder", "deepseek-coder"},
      {"deepseek3", "deepseek-v3"}};
  for (const auto& [folder, name] : names)
    EXPECT_EQ(name_of_rules(contents(TG_TOKENIZERS + std::string("/") + folder + "/tokenizer.json")), name);
}

TEST(GgufTokenizer, SetsOfCharactersMustBeTheSame) {
  const std::string json = contents(TG_TOKENIZERS "/deepseek/tokenizer.json");
  EXPECT_EQ(name_of_rules(with(json, "[A-Za-z", "[a-zA-MN-Z")), "deepseek-llm");
  for (const auto& [from, to] : {std::pair{"[A-Za-z", "[A-Za-y"},
                                 {"[A-Za-z", "[0A-Za-z"},
                                 {"\"individual_digits\":true", "\"individual_digits\":false"}})
    EXPECT_EQ(error_of([&] { name_of_rules(with(json, from, to)); }), no_name) << to;
  // There a run of digits is one piece, in which a merge of two would be used.
  const std::string joined =
      with(with(json, "\"merges\":[", "\"merges\":[[\"1\",\"2\"],"), "\"vocab\":{", "\"vocab\":{\"12\":900,");
  EXPECT_EQ(error_of([&] { name_of_rules(joined); }), no_name);
}

// Llama 3's words, but a word that is a token is not that token by itself.
TEST(GgufTokenizer, TheNameSaysWhetherMergesAreIgnored) {
  std::string json = contents(TG_TOKENIZERS "/llama3/tokenizer.json");
  EXPECT_EQ(name_of_rules(json), "llama-bpe");
  const std::size_t at = json.find("true", json.find("\"ignore_merges\""));
  EXPECT_EQ(name_of_rules(json.replace(at, 4, "false")), "dbrx");
}

TEST(GgufTokenizer, RulesWithoutANameAreRefused) {
  EXPECT_EQ(error_of([&] { name_of_rules(contents(TG_TOKENIZERS "/prefix_space/tokenizer.json")); }),
            no_name);
}

TEST(GgufTokenizer, RefusesWhatDoesNotFit) {
  using Texts = std::vector<std::string>;
  using Types = std::vector<std::int32_t>;
  const auto kind = [](io::GgufStart& s, const char* model) { s.add("tokenizer.ggml.model", model); };
  const auto message = [&](const char* model, const char* pre, const Texts& tokens, const Types& types,
                           const Texts& merges, std::int64_t bos = -1) {
    io::GgufStart s;
    kind(s, model);
    s.add("tokenizer.ggml.pre", pre), s.add("tokenizer.ggml.tokens", tokens);
    s.add("tokenizer.ggml.token_type", types), s.add("tokenizer.ggml.merges", merges);
    s.add("tokenizer.ggml.scores", std::vector<float>{0});
    if (bos >= 0)
      s.add("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(bos)),
          s.add("tokenizer.ggml.add_bos_token", true);
    const std::string bytes = s.bytes();
    const io::Gguf file(bytes, "F");
    return error_of([&] { io::read_gguf_tokenizer(file); });
  };
  EXPECT_EQ(message("gpt2", "gpt-2", {"a", "b"}, {1, 1}, {}), "no error");
  EXPECT_EQ(message("bert", "gpt-2", {"a"}, {1}, {}),
            "F: tokenizer.ggml.model is \"bert\", expected gpt2, llama or none");
  EXPECT_EQ(message("gpt2", "tekken", {"a"}, {1}, {}).substr(0, 51),
            "F: tokenizer.ggml.pre is \"tekken\", expected gpt-2, ");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a", "b"}, {1}, {}),
            "F: tokenizer.ggml.token_type is an array of 1, expected one for each of 2 tokens");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a"}, {7}, {}),
            "F: tokenizer.ggml.token_type has 7 of token 0, expected 1 to 6");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a", ""}, {1, 1}, {}),
            "F: tokenizer.ggml.tokens has a token 1 that is empty");
  EXPECT_EQ(message("gpt2", "gpt-2", {"\xff"}, {1}, {}),
            "F: tokenizer.ggml.tokens has a token 0 that is not UTF-8");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a"}, {1}, {"aa"}),
            "F: tokenizer.ggml.merges has \"aa\", expected two texts with a space between them");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a"}, {1}, {}, 1),
            "F: tokenizer.ggml.bos_token_id is 1, expected an id below 1");
  EXPECT_EQ(message("llama", "default", {"a", "b"}, {1, 1}, {}),
            "F: tokenizer.ggml.scores is an array of 1, expected one for each of 2 tokens");
}

// ---- Files that lie

TEST(GgufFiles, ThatLieAreRefusedByKeyAndValue) {
  const Golden golden("llama");
  nn::save_gguf(golden.file, nn::from_pretrained(golden.folder));
  const std::string file = contents(golden.file);
  const auto number = [](std::uint32_t n) {
    return std::string(reinterpret_cast<const char*>(&n), sizeof n);
  };
  const auto message = [&](const std::string& bytes) {
    const std::string path = golden.directory.file("lying.gguf", bytes);
    std::string text = error_of([&] { nn::from_pretrained(path); });
    const std::string begin = "[from_pretrained] " + path + ": ";
    EXPECT_TRUE(text.starts_with(begin)) << text;
    return text.substr(std::min(begin.size(), text.size()));
  };
  const std::string u32 = number(4);
  EXPECT_EQ(message(with(file, "block_count" + u32 + number(2), "block_count" + u32 + number(3))),
            "has no tensor blk.2.attn_norm.weight");
  EXPECT_EQ(message(with(file, "block_count" + u32 + number(2), "block_count" + u32 + number(900))),
            "llama.block_count is 900, expected 1 to 21, the number of tensors");
  EXPECT_EQ(
      message(with(file, "block_count" + u32 + number(2), "block_count" + u32 + number(1))).substr(0, 22),
      "has a tensor blk.1.att");
  EXPECT_EQ(
      message(with(file, "feed_forward_length" + u32 + number(40), "feed_forward_length" + u32 + number(48))),
      "blk.0.ffn_gate.weight is [40, 32], expected [48, 32] by the file's keys");
  EXPECT_EQ(message(with(file, "vocab_size" + u32 + number(37), "vocab_size" + u32 + number(38))),
            "llama.vocab_size is 38, expected 37, the rows of token_embd.weight");
  EXPECT_EQ(message(with(file, "architecture" + number(8) + number(5) + number(0) + "llama",
                         "architecture" + number(8) + number(5) + number(0) + "mamba"))
                .substr(0, 47),
            "general.architecture is \"mamba\", expected gpt2,");
  EXPECT_EQ(message(with(file, "head_count" + u32 + number(4), "head_count" + u32 + number(0))),
            "llama.attention.head_count is 0, expected a positive number");
  EXPECT_EQ(message(file.substr(0, file.size() - 64)).substr(0, 7), "tensor ");
  EXPECT_EQ(message("PK\x03\x04"),
            "does not begin with GGUF: expected a GGUF file, or a Hugging Face folder");
}

TEST(GgufFiles, AppearWholeOrNotAtAll) {
  const Golden golden("gpt2");
  const nn::Pretrained model = nn::from_pretrained(golden.folder);
  nn::save_gguf(golden.file, model);
  EXPECT_EQ(error_of([&] { nn::save_gguf(golden.file, model); }),
            "[save_gguf] " + golden.file + " exists: choose another name, or remove it first");
  EXPECT_THROW(nn::save_gguf(golden.directory / "x.gguf", model, nullptr, {.dtype = "q4_0"}), Error);
  const auto stop = [](std::uint64_t, std::uint64_t) { throw Error("stop"); };
  EXPECT_THROW(nn::save_gguf(golden.directory / "x.gguf", model, nullptr, {.written = stop}), Error);
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(golden.directory.path)) left += entry.exists();
  EXPECT_EQ(left, 2u);  // the folder and the file
}

}  // namespace
