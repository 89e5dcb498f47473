// Tests models as GGUF files. A restored model must compute the same results. If llama.cpp does not support a
// model, the model must be refused. tests/interop/compare_gguf.py compares the files with the output of
// llama.cpp's converter.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <set>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/files/json_object.h"
#include "io/models/gguf_metadata.h"
#include "io/models/gguf_rules.h"
#include "io/models/gguf_writer.h"
#include "tests/support/files.h"
#include "tests/support/golden_models.h"

namespace {

using namespace tg;
using namespace tg::testing;
namespace fs = std::filesystem;

std::string contents(const std::string& path) {
  return io::read_file(path, "test");
}

// A golden model with the settings of published models, because llama.cpp supports only these settings.
struct Golden {
  TemporaryDirectory directory;
  std::string folder = directory / "golden", file = directory / "model.gguf";
  explicit Golden(const std::string& name) {
    fs::copy(golden_folders + name, folder);
    if (name == "smollm3") set("no_rope_layers", "[1, 1]");
    if (name.starts_with("gemma")) set("query_pre_attn_scalar", "12");  // equals head_dim
    if (name.starts_with("deepseek")) set("rms_norm_eps", "1e-06");
  }
  void set(const std::string& key, const std::string& value, bool is_new = false) const {
    io::JsonObject config(contents(folder + "/config.json"), "config.json");
    ASSERT_TRUE(config.has(key) || is_new) << key;
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

TEST_P(GgufModel, RoundTripComputesTheSameResults) {
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

// If a file is read and written again, its bytes are the same.
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
    for (const std::string_view key : a.gguf.keys()) EXPECT_EQ(a.gguf.text(key), b.gguf.text(key)) << key;
    EXPECT_EQ(a.gguf.keys(), b.gguf.keys());
  }
}

TEST_P(GgufModel, CanBeSavedAsAFolder) {
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

// Computes FNV-1a over the names, shapes and bytes of the tensors, ordered by name. compare_gguf.py computes
// the same checksum.
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

// Compares with the tensors that llama.cpp's converter wrote for the same folders, by checksum.
TEST(GgufModels, TensorsMatchLlamaCppsConverter) {
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

TEST(GgufModels, ModelsThatLlamaCppCannotComputeAreRefused) {
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
            "llama.cpp cannot compute no_rope_layers with rotary positions in unusual layers of smollm3");
  EXPECT_EQ(refusal("gemma2", [](const Golden& g) { g.set("query_pre_attn_scalar", "16"); }),
            "llama.cpp cannot compute query_pre_attn_scalar 16, other than 12, of gemma2");
  EXPECT_EQ(
      refusal("deepseek_v2", [](const Golden& g) { g.set("rms_norm_eps", "0.001"); }),
      "llama.cpp cannot compute rms_norm_eps 0.001, other than that of the latents, 1e-06, of deepseek_v2");
}

// llama.cpp derives settings from the keys of a DeepSeek file. This test checks them for every form of
// scaling. tests/interop/run_in_llama_cpp.py compares llama.cpp's results.
TEST(GgufModels, DeepSeeksScaledPositionsSurviveARoundTrip) {
  const std::string yarn =
      R"({"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 80)";
  const std::string linear = R"({"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5)";
  for (const std::string& rope :
       {yarn, yarn + R"(, "mscale": 0.7)", yarn + R"(, "mscale_all_dim": 0.7)",
        yarn + R"(, "mscale": 1.0, "mscale_all_dim": 0.7)",
        yarn + R"(, "mscale": 1.0, "mscale_all_dim": 1.0)", yarn + R"(, "attention_factor": 0.8)",
        yarn + R"(, "attention_factor": 1.0)", linear, linear + R"(, "mscale_all_dim": 0.7)"}) {
    const Golden golden("deepseek_v2");
    golden.set("rope_scaling", "null"), golden.set("rope_parameters", rope + "}", true);
    const nn::Pretrained model = nn::from_pretrained(golden.folder);
    nn::save_gguf(golden.file, model);
    const io::SafeTensors expected = io::load_safetensors(golden.folder + "/expected.safetensors");
    const Array tokens = array_of(expected.tensors.at("tokens")), logits = compute(model, tokens).logits;
    EXPECT_LE(difference(compute(nn::from_pretrained(golden.file), tokens).logits, logits),
              1e-5 * std::max(1.0, largest(logits)))
        << rope;
  }
}

TEST(GgufModels, KeysForScaledPositionsMatchLlamaCpp) {
  const auto rotation = [](const io::GgufRope& keys) { return io::gguf_rotation(keys, 8, 100); };
  const double g = 1 + 0.1 * std::log(4.0);
  const io::GgufRope yarn{.type = "yarn", .factor = 4, .original = 80};
  EXPECT_DOUBLE_EQ(rotation(yarn).magnitude, g);
  EXPECT_DOUBLE_EQ(rotation(yarn).score_scale, g * g);  // not 1, as without the key mscale_all_dim
  EXPECT_DOUBLE_EQ(rotation(yarn).window_magnitude, 1);
  const io::GgufRope both{.type = "yarn", .factor = 4, .original = 80, .log_multiplier = 0.07};
  EXPECT_DOUBLE_EQ(rotation(both).magnitude, 1);
  EXPECT_DOUBLE_EQ(rotation(both).score_scale, std::pow(1 + 0.07 * std::log(4.0), 2));
  const io::GgufRope linear{.type = "linear", .factor = 4};
  EXPECT_DOUBLE_EQ(rotation(linear).frequencies[0], 0.25);
  EXPECT_DOUBLE_EQ(rotation(linear).score_scale, g * g);
  for (const double score : {1.0, 1.3, 0.5})
    for (const double magnitude : {1.0, g, 0.8}) {
      const nn::RopeScaling s{.type = "yarn", .factor = 4, .first_context = 80, .magnitude = magnitude};
      const io::GgufRotation r = rotation(io::gguf_rope_for(s, score, true));
      EXPECT_NEAR(r.magnitude, magnitude, 1e-12);
      EXPECT_NEAR(r.score_scale, score, 1e-12);
    }
}

TEST(GgufModels, UnsupportedSettingsAreRefusedByKeyAndValue) {
  struct Case {
    const char *model, *key, *value, *what;
  };
  const std::string yarn = R"("rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 80)";
  const std::string slow = "{\"rope_type\": \"yarn\", \"beta_slow\": 2, " + yarn + "}";
  const std::string cut = "{\"rope_type\": \"yarn\", \"truncate\": false, " + yarn + "}";
  const std::string llama3 =
      "{\"rope_type\": \"llama3\", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, " + yarn + "}";
  const std::string longrope =
      "{\"rope_type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [2, 2, 2, 2], " + yarn +
      "}";
  const std::string one_list =
      "{\"rope_type\": \"longrope\", \"short_factor\": [2, 2, 2, 2], \"long_factor\": [2, 2, 2, 2], " + yarn +
      "}";
  const std::string local =
      "{\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 100.0}, "
      "\"full_attention\": {\"rope_type\": \"yarn\", \"attention_factor\": 1.0, " +
      yarn + "}}";
  const Case cases[] = {
      {"olmo2", "tie_word_embeddings", "true", "tie_word_embeddings true of olmo2"},
      {"gemma2", "tie_word_embeddings", "false", "tie_word_embeddings false of gemma2"},
      {"gemma2", "attn_logit_softcapping", "null", "attn_logit_softcapping null of gemma2"},
      {"gemma2", "final_logit_softcapping", "null", "final_logit_softcapping null of gemma2"},
      {"llama", "rope_parameters", slow.c_str(), "rope_type yarn with beta_slow 2 of llama"},
      {"qwen3", "rope_parameters", cut.c_str(), "rope_type yarn with truncate false of qwen3"},
      {"smollm3", "rope_parameters", llama3.c_str(), "rope_type llama3 of smollm3"},
      {"deepseek_v2", "rope_scaling", llama3.c_str(), "rope_type llama3 of deepseek_v2"},
      {"deepseek_v2", "rope_scaling", longrope.c_str(), "rope_type longrope of deepseek_v2"},
      {"smollm3", "rope_parameters", longrope.c_str(), "rope_type longrope of smollm3"},
      {"smollm3", "rope_parameters", one_list.c_str(), "rope_type longrope of smollm3"},
      {"llama", "rope_parameters", longrope.c_str(), "rope_type longrope of llama"},
      {"llama", "num_hidden_layers", "513", "513 layers of llama"},
      {"qwen2", "head_dim", "16", "head_dim 16, other than hidden_size / num_attention_heads, of qwen2"},
      {"olmo2", "head_dim", "16", "head_dim 16, other than hidden_size / num_attention_heads, of olmo2"},
      {"phi3", "head_dim", "16", "head_dim 16, other than hidden_size / num_attention_heads, of phi3"},
      {"deepseek_v2", "attention_bias", "true", "attention_bias true of deepseek_v2"},
      {"gemma3", "rope_parameters", local.c_str(),
       "rope_type yarn with attention_factor 1 and factor 4, different from its usual one, with windowed "
       "layers, "
       "of gemma3_text"},
  };
  for (const Case& c : cases) {
    const Golden golden(c.model);
    golden.set(c.key, c.value, true);
    EXPECT_EQ(error_of([&] {
                const io::HfConfig config =
                    io::parse_hf_config(contents(golden.folder + "/config.json"), "config");
                io::GgufStart start;
                std::vector<std::string> notes;
                io::add_gguf_config(config, "F", start, notes);
              }),
              "F: llama.cpp cannot compute " + std::string(c.what));
  }
  // These architectures have no biases in llama.cpp. If a model has biases, llama.cpp would refuse its file.
  for (const auto& [family, key] : {std::pair{"qwen3", "attention_bias"},
                                    {"smollm3", "attention_bias"},
                                    {"smollm3", "mlp_bias"},
                                    {"olmo2", "attention_bias"},
                                    {"gemma3", "attention_bias"}}) {
    const Golden golden(family);
    golden.set(key, "true", true);
    const io::HfConfig config = io::parse_hf_config(contents(golden.folder + "/config.json"), "config");
    io::GgufStart start;
    std::vector<std::string> notes;
    EXPECT_EQ(error_of([&] { io::add_gguf_config(config, "F", start, notes); }),
              "F: llama.cpp cannot compute " + std::string(key) + " true of " + config.family);
  }
}

TEST(GgufModels, TheNameIsIndependentOfTheFolder) {
  const Golden golden("llama");
  fs::rename(golden.folder, golden.directory / "phi3");
  nn::save_gguf(golden.file, nn::from_pretrained(golden.directory / "phi3"));
  EXPECT_EQ(io::MappedGguf(golden.file, "test").gguf.string("general.name"), "model");
}

// ---- Models created here, with their tokenizers

TEST(GgufModels, ATokenizerSurvivesARoundTrip) {
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

// Strings to encode. A tokenizer must give the same ids before it is written and after it is read.
const std::vector<std::string> texts{"Hello world, it's 12345 o'clock",
                                     "  two  spaces\n\n and \t tabs\r\n",
                                     "naïve café ſ ½ Ⅷ 天地 🌳",
                                     "<s>a</s> b <|endoftext|>",
                                     "",
                                     " x"};

TEST(GgufTokenizer, IdsMatchTheFolder) {
  for (const char* name : {"gpt2", "llama3", "qwen2", "qwen35", "smollm", "deepseek", "deepseek_coder",
                           "deepseek3", "sentencepiece"}) {
    const text::HfTokenizer tokenizer = text::HfTokenizer::open(TG_TOKENIZERS + std::string("/") + name);
    io::HfConfig config;
    config.model.vocabulary = tokenizer.size() + 3;  // more rows than tokens
    io::GgufStart start;
    std::vector<std::string> notes;
    io::add_gguf_tokenizer(&tokenizer, config, "", "test", start, notes);
    EXPECT_EQ(notes.size(), std::string(name).starts_with("qwen") ? 1u : 0u) << name;  // a note about NFC
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

// Returns the value of tokenizer.ggml.pre for a tokenizer.json.
std::string name_of_rules(const std::string& json) {
  const text::HfTokenizer tokenizer(json, "test");
  io::HfConfig config;
  config.model.vocabulary = tokenizer.size();
  io::GgufStart start;
  std::vector<std::string> notes;
  io::add_gguf_tokenizer(&tokenizer, config, "", "test", start, notes);
  const std::string bytes = start.bytes();
  return io::Gguf(bytes, "test").string("tokenizer.ggml.pre");
}

constexpr const char* no_name =
    "test: llama.cpp has no name for the rules by which this tokenizer splits text";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(GgufTokenizer, TheNameMatchesTheFamily) {
  const std::pair<const char*, const char*> names[] = {{"gpt2", "gpt-2"},
                                                       {"llama3", "llama-bpe"},
                                                       {"qwen2", "qwen2"},
                                                       {"qwen35", "qwen35"},
                                                       {"smollm", "smollm"},
                                                       {"deepseek", "deepseek-llm"},
                                                       {"deepseek_coder", "deepseek-coder"},
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
  // If individual_digits is false, adjacent digits form one word, so a merge of two digits would be applied.
  const std::string joined =
      with(with(json, "\"merges\":[", "\"merges\":[[\"1\",\"2\"],"), "\"vocab\":{", "\"vocab\":{\"12\":900,");
  EXPECT_EQ(error_of([&] { name_of_rules(joined); }), no_name);
}

// Words are split as in Llama 3. But if a word is a token, it does not become this token directly.
TEST(GgufTokenizer, TheNameDependsOnIgnoredMerges) {
  std::string json = contents(TG_TOKENIZERS "/llama3/tokenizer.json");
  EXPECT_EQ(name_of_rules(json), "llama-bpe");
  const std::size_t at = json.find("true", json.find("\"ignore_merges\""));
  EXPECT_EQ(name_of_rules(json.replace(at, 4, "false")), "dbrx");
}

TEST(GgufTokenizer, RulesWithoutANameAreRefused) {
  EXPECT_EQ(error_of([&] { name_of_rules(contents(TG_TOKENIZERS "/prefix_space/tokenizer.json")); }),
            no_name);
}

// llama.cpp would return different ids. It does not read such an option, or it merges in a different order.
TEST(GgufTokenizer, TokenizersThatLlamaCppEncodesDifferentlyAreRefused) {
  const auto refusal = [](const std::string& folder, const std::string& from, const std::string& to) {
    std::string json = contents(TG_TOKENIZERS + std::string("/") + folder + "/tokenizer.json");
    if (!from.empty()) json = with(json, from, to);
    const std::string begin = "test: llama.cpp cannot encode as this tokenizer does: ";
    const std::string text = error_of([&] { name_of_rules(json); });
    EXPECT_TRUE(text.starts_with(begin)) << text;
    return text.substr(std::min(begin.size(), text.size()));
  };
  EXPECT_EQ(refusal("metaspace_first", "", ""), "its pre_tokenizer is Metaspace with prepend_scheme first");
  EXPECT_EQ(refusal("metaspace_always", "", ""), "its pre_tokenizer is Metaspace with prepend_scheme always");
  EXPECT_EQ(refusal("added", "", ""), "added token \"<l>\" has lstrip true");
  for (const char* option : {"lstrip", "rstrip", "single_word"})
    EXPECT_EQ(
        refusal("gpt2", std::string("\"") + option + "\":false", std::string("\"") + option + "\":true"),
        "added token \"<|endoftext|>\" has " + std::string(option) + " true");
  EXPECT_TRUE(refusal("llama2", "", "").ends_with(", which no merge joins"));
  EXPECT_EQ(refusal("sentencepiece", "\"byte_fallback\":true", "\"byte_fallback\":false"),
            "model.unk_token is \"<unk>\" without byte_fallback");
  EXPECT_EQ(
      refusal("sentencepiece", "],\"normalizer\"",
              ",{\"id\":1197,\"content\":\"x▁y\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
              "\"normalized\":false,\"special\":false}],\"normalizer\""),
      "added token \"x▁y\" has ▁ in it and normalized false, and no merge makes it");
  EXPECT_EQ(refusal("sentencepiece", "\"normalized\":false", "\"normalized\":true"),
            "added token \"<unk>\" has normalized true");
}

// In Phi-3, white space after a special token belongs to the token. llama.cpp does this if the model has a
// certain name.
TEST(GgufTokenizer, Phi3sAddedTokensSurviveARoundTrip) {
  std::string json = contents(TG_TOKENIZERS "/sentencepiece/tokenizer.json");
  std::size_t size = text::HfTokenizer(json, "test").size();
  std::string added;
  for (const char* text : {"<|endoftext|>", "<|end|>"})
    added += std::string(",{\"id\":") + std::to_string(size++) + ",\"content\":\"" + text +
             R"(","single_word":false,"lstrip":false,"rstrip":)" +
             (text[2] == 'e' && text[5] == '|' ? "true" : "false") + R"(,"normalized":false,"special":true})";
  const std::size_t end = json.find("],\"normalizer\"");
  ASSERT_NE(end, std::string::npos);
  json.insert(end, added);
  const std::size_t last = json.find("\"rstrip\":false", json.find("\"</s>\""));
  json.replace(last, 14, "\"rstrip\":true");
  const text::HfTokenizer tokenizer(json, "test");
  io::HfConfig config;
  config.model.vocabulary = tokenizer.size();
  io::GgufStart start;
  std::vector<std::string> notes;
  io::add_gguf_tokenizer(&tokenizer, config, "", "test", start, notes);
  EXPECT_EQ(notes.size(), 1u);
  const std::string bytes = start.bytes();
  const io::Gguf file(bytes, "test");
  EXPECT_EQ(file.string("general.name"), "phi3");
  const auto read = io::read_gguf_tokenizer(file);
  for (const char* text : {"a<|end|>  b", "a<|endoftext|>  b", "a</s>\n b", "a<s> b"})
    EXPECT_EQ(read->encode(text), tokenizer.encode(text)) << text;
  for (const auto& [name, strips] : {std::pair("PHI3", true), {"xPHI", false}}) {
    std::string renamed = bytes;
    renamed.replace(renamed.find("phi3"), 4, name);
    const auto other = io::read_gguf_tokenizer(io::Gguf(renamed, "test"));
    EXPECT_EQ(other->encode("a<|end|>  b") == tokenizer.encode("a<|end|>  b"), strips) << name;
  }
}

TEST(GgufTokenizer, RefusesMismatchedVocabularies) {
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
  EXPECT_EQ(message("gpt2", "falcon", {"a"}, {1}, {}).substr(0, 51),
            "F: tokenizer.ggml.pre is \"falcon\", expected gpt-2, ");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a", "b"}, {1}, {}),
            "F: tokenizer.ggml.token_type is an array of 1, expected one for each of 2 tokens");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a"}, {7}, {}),
            "F: tokenizer.ggml.token_type has 7 of token 0, expected 1 to 6");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a", ""}, {1, 1}, {}),
            "F: tokenizer.ggml.tokens has a token 1 that is empty");
  EXPECT_EQ(message("gpt2", "gpt-2", {"\xff"}, {1}, {}),
            "F: tokenizer.ggml.tokens has a token 0 that is not UTF-8");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a"}, {1}, {"aa"}),
            "F: tokenizer.ggml.merges has \"aa\", expected two strings with a space between them");
  EXPECT_EQ(message("gpt2", "gpt-2", {"a"}, {1}, {}, 1),
            "F: tokenizer.ggml.bos_token_id is 1, expected an id below 1");
  EXPECT_EQ(message("llama", "default", {"a", "b"}, {1, 1}, {}),
            "F: tokenizer.ggml.scores is an array of 1, expected one for each of 2 tokens");
}

// ---- Every key is known or refused

// Makes the keys of a small model. `add` adds further keys.
std::string keys_of_a_model(const std::string& architecture, const std::function<void(io::GgufStart&)>& add) {
  io::GgufStart s;
  s.add("general.architecture", architecture);
  for (const auto& [name, value] : {std::pair{"context_length", 64u},
                                    {"embedding_length", 16u},
                                    {"block_count", 1u},
                                    {"attention.head_count", 2u},
                                    {"feed_forward_length", 24u}})
    s.add(architecture + "." + name, value);
  s.add(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  add(s);
  s.add_tensor("token_embd.weight", io::GgufType::f32, {8, 16});
  return s.bytes() + std::string(8 * 16 * 4, '\0');
}

TEST(GgufKeys, AreKnownOrRefused) {
  using Start = io::GgufStart;
  const auto message = [](const std::string& architecture, const std::function<void(Start&)>& add) {
    const std::string bytes = keys_of_a_model(architecture, add);
    return error_of([&] {
      const io::Gguf file(bytes, "F");
      io::read_gguf_config(file);
      io::read_gguf_tokenizer(file);
      io::check_gguf_keys(file);
    });
  };
  const auto of_llama = [&](const std::function<void(Start&)>& add) { return message("llama", add); };
  const auto unknown = [](const std::string& key) {
    return "F: " + key + ", expected no such key, which is not understood in a model of llama";
  };
  EXPECT_EQ(of_llama([](Start&) {}), "no error");
  EXPECT_EQ(of_llama([](Start& s) {
              s.add("general.author", "x"), s.add("quantize.imatrix.file", "y"),
                  s.add("general.file_type", 1u);
              s.add("llama.rope.scaling.finetuned", true), s.add("llama.expert_count", 0u);
              s.add("tokenizer.chat_template", "{}"), s.add("tokenizer.ggml.eot_token_id", 3u);
            }),
            "no error");
  EXPECT_EQ(of_llama([](Start& s) { s.add("llama.logit_scale", 0.5f); }),
            unknown("llama.logit_scale is 0.5"));
  EXPECT_EQ(of_llama([](Start& s) { s.add("llama.attention.scale", 0.5f); }),
            unknown("llama.attention.scale is 0.5"));
  EXPECT_EQ(of_llama([](Start& s) { s.add("llama.rope.scaling.alpha", 2.0f); }),
            unknown("llama.rope.scaling.alpha is 2"));
  EXPECT_EQ(of_llama([](Start& s) { s.add("qwen2.rope.freq_base", 5.0f); }),
            unknown("qwen2.rope.freq_base is 5"));
  EXPECT_EQ(of_llama([](Start& s) { s.add("general.tensor_extra.name", "x"); }),
            unknown("general.tensor_extra.name is \"x\""));
  EXPECT_EQ(of_llama([](Start& s) { s.add("llama.rope.scaling.attn_factor", 0.5f); }),
            "F: llama.rope.scaling.attn_factor is 0.5, expected 1 without YaRN");
  EXPECT_EQ(of_llama([](Start& s) { s.add("general.type", "adapter"); }),
            "F: general.type is \"adapter\", expected model");
  EXPECT_EQ(of_llama([](Start& s) { s.add("split.count", 2u); }),
            "F: split.count is 2, expected 1: parts of a model cannot be read, join them first");
  EXPECT_EQ(of_llama([](Start& s) { s.add("llama.attention.causal", false); }),
            "F: llama.attention.causal is false, expected true");
  EXPECT_EQ(
      of_llama([](Start& s) {
        s.add("llama.rope.scaling.type", "yarn"), s.add("llama.rope.scaling.factor", 4.0f);
        s.add("llama.rope.freq_base", 100.0f), s.add("llama.rope.scaling.yarn_beta_slow", 9.0f);
      }),
      "F: llama.rope.scaling.yarn_beta_slow is 9, expected 1: llama.cpp does not read it in models of llama");
  EXPECT_EQ(message("olmo2", [](Start& s) { s.add("olmo2.attention.sliding_window", 8u); }),
            "F: olmo2.attention.sliding_window is 8, expected 0: OLMo 2 has no windows");
}

// The first files have linear scaling without a type. llama.cpp reads both keys.
TEST(GgufKeys, LinearScalingIsReadFromEitherKey) {
  for (const char* key : {"rope.scale_linear", "rope.scaling.factor"}) {
    const std::string bytes =
        keys_of_a_model("llama", [&](io::GgufStart& s) { s.add(std::string("llama.") + key, 2.0f); });
    std::set<std::string> tensors;  // only the tensors that were read; they are not parameters
    const io::HfConfig config = io::read_gguf_config(io::Gguf(bytes, "F"), &tensors);
    EXPECT_TRUE(tensors.empty());
    const auto& scaling = config.model.architecture.as<nn::Llama>()->scaling;
    EXPECT_EQ(scaling.type, "linear") << key;
    EXPECT_EQ(scaling.factor, 2) << key;
  }
}

// ---- Files with wrong values

TEST(GgufFiles, WrongValuesAreRefusedByKeyAndValue) {
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

TEST(GgufFiles, AppearCompletelyOrNotAtAll) {
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
