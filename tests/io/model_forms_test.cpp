// Tests different forms of the same model: settings with the same effect, shards, the types of GGUF tensors,
// and the small files of a folder. Also tests merging the adapter of a training run into the weights of its
// base.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include <tilegrad/core/base/random.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/models/peft.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/checkpoints/tensor_values.h"
#include "io/files/gguf_format.h"
#include "io/models/adapter_source.h"
#include "io/models/gguf_writer.h"
#include "io/models/hf_config.h"
#include "io/models/hf_writer.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using namespace tg::testing;
namespace fs = std::filesystem;

nn::ModelConfig small(nn::Architecture architecture) {
  nn::ModelConfig c{.architecture = std::move(architecture),
                    .vocabulary = 40,
                    .context = 16,
                    .layers = 3,
                    .heads = 4,
                    .width = 24};
  c.tied_head = false;
  return c;
}

bool is_same(const nn::ModelConfig& a, const nn::ModelConfig& b) {
  const bool same = io::is_config_of({.family = {}, .head = {}, .model = a}, b);
  EXPECT_EQ(io::is_config_of({.family = {}, .head = {}, .model = b}, a), same);
  return same;
}

// ---- Settings

TEST(PlainSettings, EverySettingThatChangesResultsIsCompared) {
  const nn::RopeScaling yarn{.type = "yarn", .factor = 4, .first_context = 8, .magnitude = 1.25};
  const nn::RopeScaling llama3{.type = "llama3", .factor = 4, .first_context = 8};
  const nn::RopeScaling longrope{
      .type = "longrope", .first_context = 8, .short_factors = {1, 2, 3}, .long_factors = {2, 3, 4}};
  const nn::RopeScaling linear{.type = "linear", .factor = 4};
  const std::set<std::string> of_yarn{"rope_factor",    "rope_first_context", "rope_beta_fast",
                                      "rope_beta_slow", "rope_whole_pairs",   "rope_magnitude"};
  const struct {
    nn::ModelConfig config;
    std::set<std::string> without_effect, rope;
  } cases[] = {
      {small(nn::Gpt{.mlp_width = 40}), {"bias"}, {}},
      {small(nn::Llama{.windows = {4, 0, 5},
                       .rotary_width = 4,
                       .rotated = {1, 0, 1},
                       .window_theta = 70,
                       .scaling = yarn}),
       {},
       of_yarn},
      {small(nn::Llama{.scaling = llama3}),
       {"window_theta"},
       {"rope_factor", "rope_first_context", "rope_low_frequency", "rope_high_frequency"}},
      {small(nn::Llama{.scaling = longrope}),
       {"window_theta"},
       {"rope_first_context", "rope_short_factors", "rope_long_factors", "rope_magnitude"}},
      {small(nn::Llama{.scaling = linear}), {"window_theta"}, {"rope_factor"}},
      {small(nn::Llama{}), {"window_theta"}, {}},
      {small(nn::DeepSeek{.query_latent = 12, .head_width = 6, .value_width = 8, .scaling = yarn}),
       {},
       of_yarn},
      {small(nn::DeepSeek{}), {}, {}},
  };
  for (const auto& c : cases) {
    nn::ModelConfig changed = c.config;
    EXPECT_TRUE(is_same(changed, c.config));
    const std::size_t settings = changed.settings().size();
    for (std::size_t i = 0; i < settings; ++i) {
      changed = c.config;
      const nn::Setting s = changed.settings()[i];
      std::visit(
          [](auto* x) {
            using T = std::decay_t<decltype(*x)>;
            if constexpr (std::is_same_v<T, bool>)
              *x = !*x;
            else if constexpr (std::is_same_v<T, std::string>)
              *x += "x";
            else if constexpr (std::is_same_v<T, std::int64_t>)
              *x += *x > 0 && *x < 5 ? 4 : 24;  // the number of heads must divide the width
            else if constexpr (std::is_same_v<T, double>)
              *x = *x == 0 ? 3 : *x * (1 + 1e-9);
            else
              x->push_back(x->empty() ? 3 : x->back()), x->front() += 7;
          },
          s.value);
      if (s.name == "rope_type") continue;  // this setting determines the other compared settings
      const bool is_rope = s.name.starts_with("rope_") && s.name != "rope_width";
      const bool expected = is_rope ? !c.rope.contains(s.name) : c.without_effect.contains(s.name);
      if (s.name == "heads" && !expected) changed.width = c.config.width;
      EXPECT_EQ(is_same(changed, c.config), expected) << s.name << " of " << c.config.text();
      if (auto* x = std::get_if<double*>(&s.value); x != nullptr && !expected && **x != 3) {
        **x = **x / (1 + 1e-9) * (1 + 1e-14);  // a rounding error of a different order of operations
        EXPECT_TRUE(is_same(changed, c.config)) << s.name;
      }
    }
  }
  EXPECT_FALSE(is_same(small(nn::Gpt{}), small(nn::Llama{})));
}

TEST(PlainSettings, EquivalentNumbersAreEqual) {
  const nn::RopeScaling linear{.type = "linear", .factor = 2};
  const auto biased = [](nn::Architecture architecture) {
    nn::ModelConfig c = small(std::move(architecture));
    c.bias = true;
    return c;
  };
  const double root = 1 / std::sqrt(6.0);
  const std::pair<nn::ModelConfig, nn::ModelConfig> same[] = {
      {small(nn::Gpt{}), small(nn::Gpt{.mlp_width = 96})},
      {small(nn::Gpt{}), biased(nn::Gpt{})},
      {small(nn::Llama{}), small(nn::Llama{.key_heads = 4, .mlp_width = 64, .head_width = 6})},
      {small(nn::Llama{}), small(nn::Llama{.attention_scale = root})},
      {small(nn::Llama{.head_width = 9}), small(nn::Llama{.head_width = 9, .attention_scale = 1 / 3.0})},
      {biased(nn::Llama{}), small(nn::Llama{.attention_bias = true, .mlp_bias = true})},
      {small(nn::Llama{.attention_bias = true}), small(nn::Llama{.attention_bias = true, .qkv_bias = true})},
      {small(nn::Llama{.windows = {4}}), small(nn::Llama{.windows = {4, 4, 4, 5}})},
      {small(nn::Llama{.windows = {4, 0}}), small(nn::Llama{.windows = {4, 0, 4}})},
      {small(nn::Llama{}), small(nn::Llama{.windows = {0, 0}})},
      {small(nn::Llama{}), small(nn::Llama{.rotated = {1, 1, 1, 0}})},
      {small(nn::Llama{}), small(nn::Llama{.rotary_width = 6})},
      {small(nn::Llama{}), small(nn::Llama{.window_theta = 5})},
      {small(nn::Llama{.windows = {4}}), small(nn::Llama{.windows = {4}, .window_theta = 10000})},
      {small(nn::DeepSeek{}), small(nn::DeepSeek{.mlp_width = 64, .head_width = 6, .value_width = 6})},
      {small(nn::DeepSeek{.head_width = 9}), small(nn::DeepSeek{.head_width = 9, .value_width = 9})},
      {small(nn::DeepSeek{.rope_width = 10}), small(nn::DeepSeek{.rope_width = 10, .attention_scale = 0.25})},
  };
  for (std::size_t i = 0; i < std::size(same); ++i) {
    nn::ModelConfig a = same[i].first, b = same[i].second;
    EXPECT_TRUE(is_same(a, b)) << i;
    const nn::ModelConfig plain = io::hf_plain(a);
    EXPECT_EQ(io::to_metadata(io::hf_plain(plain)), io::to_metadata(plain)) << i;
  }
  const std::pair<nn::ModelConfig, nn::ModelConfig> different[] = {
      {small(nn::Gpt{}), small(nn::Gpt{.mlp_width = 97})},
      {small(nn::Llama{.windows = {4, 0}}), small(nn::Llama{.windows = {4, 0, 0}})},
      {small(nn::Llama{.windows = {4}}), small(nn::Llama{.windows = {4, 4, 5}})},
      {small(nn::Llama{}), small(nn::Llama{.rotated = {0}})},
      {small(nn::Llama{.windows = {4}}), small(nn::Llama{.windows = {4}, .window_theta = 9999})},
      {small(nn::Llama{.windows = {4}, .scaling = linear}),
       small(nn::Llama{.windows = {4}, .window_theta = 10000, .scaling = linear})},
      {small(nn::Llama{.windows = {4}, .rotary_width = 4}), small(nn::Llama{.windows = {4}})},
  };
  for (std::size_t i = 0; i < std::size(different); ++i)
    EXPECT_FALSE(is_same(different[i].first, different[i].second)) << i;
}

// ---- Folders

struct Made {
  nn::ModelConfig config;
  nn::Params params{5};
  nn::Model model;
  explicit Made(const nn::ModelConfig& c) : config(c), model(params, config) {}
  io::ModelSource source() const { return io::source_of(model.parameters(), config); }
};

// Shards store the tensors in the model's order. A shard ends when the next tensor does not fit. It stores at
// least one tensor.
TEST(Shards, TensorsFillThemInOrder) {
  const Made made(small(nn::Llama{.key_heads = 2, .mlp_width = 40}));
  std::vector<std::uint64_t> sizes;
  for (const Parameter& p : made.params.all()) sizes.push_back(static_cast<std::uint64_t>(p.read().bytes()));
  std::set<std::uint64_t> limits{1, 1'000'000};
  std::uint64_t sum = 0;
  for (const std::uint64_t n : sizes) sum += n, limits.insert({n - 1, n, n + 1, sum - 1, sum, sum + 1});
  for (const std::uint64_t limit : limits) {
    std::size_t shards = 0;
    std::uint64_t used = 0;
    for (const std::uint64_t n : sizes) {
      if (shards == 0 || used + n > limit) ++shards, used = 0;
      used += n;
    }
    io::ModelSource source = made.source();
    const io::HfWriter writer(source, {.shard_bytes = limit});
    ASSERT_EQ(writer.files().size(), shards) << limit;
    EXPECT_EQ(writer.bytes(), sum);
    char last[64];
    std::snprintf(last, sizeof last, "model-%05zu-of-%05zu.safetensors", shards, shards);
    EXPECT_EQ(writer.files().back(), shards == 1 ? "model.safetensors" : last);
    EXPECT_EQ(writer.files().front().substr(0, 11), shards == 1 ? "model.safet" : "model-00001");
  }
  io::ModelSource source = made.source();
  EXPECT_EQ(error_of([&] { io::HfWriter(source, {.shard_bytes = 0}); }),
            "[save_pretrained] expected shards of a byte or more, got 0");
  EXPECT_THROW(io::HfWriter(source, {.dtype = i32}), DTypeError);
  EXPECT_EQ(io::HfWriter(source, {.dtype = bf16}).bytes(), sum / 2);
  EXPECT_EQ(io::HfWriter(source, {.dtype = f64}).dtypes(), std::vector<DType>{f64});
  EXPECT_EQ(io::HfWriter(source, {}).dtypes(), std::vector<DType>{f32});
}

TEST(Shards, TheIndexNamesEveryTensorAndProgressEndsWithTheLastByte) {
  const Made made(small(nn::Gpt{.mlp_width = 40}));  // this model has no biases; zeros are written
  const TemporaryDirectory directory;
  std::uint64_t before = 0, all = 0;
  io::ModelSource source = made.source();
  const nn::SaveOptions options{.shard_bytes = 6000, .written = [&](std::uint64_t now, std::uint64_t of) {
                                  EXPECT_GT(now, before);
                                  before = now, all = of;
                                }};
  io::HfWriter writer(source, options);
  writer.write(directory / "saved");
  EXPECT_EQ(before, all);
  EXPECT_EQ(all, writer.bytes());
  std::string map;
  std::map<std::string, std::string> files;
  for (const std::string& name : writer.files())
    for (const auto& [tensor, view] : io::load_safetensors(directory / "saved/" + name).tensors) {
      files[tensor] = name;
      if (!tensor.ends_with(".bias")) continue;
      for (const std::byte b : view.bytes) EXPECT_EQ(b, std::byte{0});
    }
  for (const auto& [tensor, name] : files)
    map += (map.empty() ? "{\n  \"" : ",\n  \"") + tensor + "\": \"" + name + "\"";
  EXPECT_EQ(io::read_file(directory / "saved/model.safetensors.index.json", "test"),
            "{\n  \"metadata\": {\n  \"total_size\": " + std::to_string(all) +
                "\n}\n,\n  \"weight_map\": " + map + "\n}\n\n}\n");
}

std::string tokenizer_with(const std::string& post_processor) {
  return R"({"added_tokens":[{"id":2,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
    {"id":3,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":)" +
         post_processor + R"(,"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":0,"b":1},"merges":[]}})";
}

TEST(FolderFiles, StartAndEndTokensAreWrittenToEachFile) {
  const Made made(small(nn::Llama{}));
  const auto with_template = [](const std::string& pieces) {
    return tokenizer_with(R"({"type":"TemplateProcessing","single":[)" + pieces +
                          R"(],"special_tokens":{"s":{"ids":[2]},"e":{"ids":[3]},"ee":{"ids":[3,0]}}})");
  };
  const std::string s = R"({"SpecialToken":{"id":"s"}})", e = R"({"SpecialToken":{"id":"e"}})",
                    ee = R"({"SpecialToken":{"id":"ee"}})", a = R"({"Sequence":{"id":"A"}})";
  const std::string
      usual = "{\n  \"clean_up_tokenization_spaces\": false,\n",
      rest = "  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n  \"model_max_length\": 16,\n";
  const std::string last = "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
  const struct {
    std::string tokenizer, ids;  // generation_config.json of the source
    std::string generation, config;
  } cases[] = {
      {tokenizer_with("null"), "", "", usual + rest + last},
      {with_template(s + "," + a), "", "{\n  \"bos_token_id\": 2\n}\n",
       "{\n  \"bos_token\": \"<s>\",\n" + usual.substr(2) + rest + last},
      {with_template(a + "," + e), "", "{\n  \"eos_token_id\": 3\n}\n",
       usual + "  \"eos_token\": \"</s>\",\n" + rest + last},
      {with_template(s + "," + s + "," + a + "," + ee), "", "", usual + rest + last},
      {with_template(s + "," + a + "," + e),
       "{\"bos_token_id\": 1, \"eos_token_id\": [0, 1], \"pad_token_id\": 3}",
       "{\"bos_token_id\": 1, \"eos_token_id\": [0, 1], \"pad_token_id\": 3}",
       "{\n  \"bos_token\": \"b\",\n" + usual.substr(2) + "  \"eos_token\": \"a\",\n" + rest +
           "  \"pad_token\": \"</s>\",\n" + last},
      {tokenizer_with("null"), "{\"bos_token_id\": 4, \"eos_token_id\": 4, \"pad_token_id\": 0}",
       "{\"bos_token_id\": 4, \"eos_token_id\": 4, \"pad_token_id\": 0}",
       usual + rest + "  \"pad_token\": \"a\",\n" + last},
  };
  for (const auto& c : cases) {
    const TemporaryDirectory directory;
    io::ModelSource source = made.source();
    source.tokenizer = std::make_shared<text::HfTokenizer>(c.tokenizer, "t");
    if (!c.ids.empty()) {
      source.files["config.json"] = io::hf_config_json(io::hf_config_for(made.config, "m"), f32);
      source.files["generation_config.json"] = c.ids;
    }
    io::HfWriter writer(source, {});
    EXPECT_TRUE(writer.has_tokenizer());
    writer.write(directory / "f");
    const std::string generation = directory / "f/generation_config.json";
    EXPECT_EQ(fs::exists(generation) ? io::read_file(generation, "test") : "", c.generation) << c.tokenizer;
    EXPECT_EQ(io::read_file(directory / "f/tokenizer_config.json", "test"), c.config);
    EXPECT_EQ(io::read_file(directory / "f/tokenizer.json", "test"), c.tokenizer);
  }
  io::ModelSource source = made.source();
  EXPECT_FALSE(io::HfWriter(source, {}).has_tokenizer());
  EXPECT_EQ(io::names_of({}), "");
  EXPECT_EQ(io::names_of({f32, bf16}), "f32 and bf16");
}

TEST(FolderInfo, ListsSizesAndDroppedTensors) {
  nn::PretrainedInfo info{.folder = "d", .family = "llama", .config = small(nn::Gpt{})};
  info.dtypes = {f32, bf16}, info.bytes = (3 << 20) - 1;
  const std::string begin =
      "llama, " + std::to_string(info.config.parameters()) + " parameters in f32 and bf16, ";
  EXPECT_EQ(info.text(), begin + "2 MiB");
  info.bytes = 3 << 20;
  info.dropped = {"a"};
  EXPECT_EQ(info.text(), begin + "3 MiB; not needed: a");
  info.dropped = {"a", "b", "c"};
  EXPECT_EQ(info.text(), begin + "3 MiB; not needed: a and 2 more");
}

// ---- GGUF

// Vectors, norms and positions are in f32. Rows that do not consist of complete blocks are in f16.
TEST(GgufTypes, TensorsHaveTheTypeOfTheirUse) {
  const struct {
    const char* dtype;
    io::GgufType type, other;
    int number;
  } cases[] = {{"f32", io::GgufType::f32, io::GgufType::f32, 0},
               {"f16", io::GgufType::f16, io::GgufType::f16, 1},
               {"bf16", io::GgufType::bf16, io::GgufType::bf16, 32},
               {"q8_0", io::GgufType::q8_0, io::GgufType::f16, 7}};
  nn::ModelConfig gpt = small(nn::Gpt{.activation = "gelu_tanh", .mlp_width = 40}),
                  llama = small(nn::Llama{.mlp_width = 40});
  gpt.width = llama.width = 32, gpt.bias = true;
  for (const nn::ModelConfig& config : {gpt, llama}) {
    const Made made(config);
    for (const auto& c : cases) {
      const TemporaryDirectory directory;
      io::ModelSource source = made.source();
      std::uint64_t before = 0, all = 0;
      io::GgufWriter writer(source, {.dtype = c.dtype, .written = [&](std::uint64_t now, std::uint64_t of) {
                                       EXPECT_GT(now, before);
                                       before = now, all = of;
                                     }});
      EXPECT_EQ(writer.type(), c.type);
      EXPECT_EQ(writer.architecture(), config.architecture.name() == std::string("gpt") ? "gpt2" : "llama");
      EXPECT_FALSE(writer.has_tokenizer());
      const bool is_quantized = c.type == io::GgufType::q8_0;
      const std::string note =
          "rows that are not a multiple of 32 elements are in f16, as in blk.2.ffn_down.weight";
      EXPECT_EQ(writer.notes(), is_quantized ? std::vector{note} : std::vector<std::string>());
      writer.write(directory / "m");
      const io::MappedGguf file(directory / "m", "test");
      EXPECT_EQ(file.gguf.integer("general.file_type"), c.number);
      EXPECT_EQ(file.gguf.integer("general.quantization_version", -1), is_quantized ? 2 : -1);
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < file.gguf.tensor_count(); ++i) {
        const io::GgufTensor t = file.gguf.tensor(i);
        const std::string name(t.name);
        const bool is_exact =
            t.shape.size() == 1 || name.find("norm") != std::string::npos || name == "position_embd.weight";
        const io::GgufType expected = is_exact                   ? io::GgufType::f32
                                      : t.shape.back() % 32 == 0 ? c.type
                                                                 : c.other;
        EXPECT_EQ(t.type, expected) << name;
        sum += t.bytes.size();
      }
      EXPECT_EQ(before, sum);
      EXPECT_EQ(all, sum);
      EXPECT_EQ(writer.bytes(), sum);
      // Each number is rounded once.
      const nn::Pretrained read = nn::from_pretrained(directory / "m");
      for (const Parameter& p : made.params.all()) {
        const Array ours = p.read(),
                    theirs = read.model.parameters()[static_cast<std::size_t>(&p - made.params.all().data())]
                                 .read();
        if (is_quantized) continue;
        const bool is_exact = p.shape().size() == 1 || p.name() == "transformer.wpe.weight";
        const DType dtype = c.type == io::GgufType::f16 ? f16 : c.type == io::GgufType::bf16 ? bf16 : f32;
        EXPECT_TRUE(theirs.same_bits(is_exact ? ours : ours.to(dtype).to(f32))) << p.name();
      }
    }
    // If no dtype is given, the file has the dtype of the weights, or f32 if the weights have several dtypes.
    io::ModelSource source = made.source();
    EXPECT_EQ(io::GgufWriter(source, {}).type(), io::GgufType::f32);
    EXPECT_EQ(error_of([&] { io::GgufWriter(source, {.dtype = "q4_0"}); }),
              "[save_gguf] expected a dtype of f32, f16, bf16 or q8_0, got q4_0");
  }
  for (const auto& [dtype, type] :
       {std::pair{f16, io::GgufType::f16}, {bf16, io::GgufType::bf16}, {f64, io::GgufType::f32}}) {
    nn::Params params(5, dtype);
    const nn::Model model(params, llama);
    io::ModelSource source = io::source_of(model.parameters(), llama);
    EXPECT_EQ(io::GgufWriter(source, {}).type(), type);
  }
}

// In llama.cpp's files, the two elements of a rotary pair are adjacent. Keys and values of latents are two
// tensors. Missing biases of a GPT are zeros.
TEST(GgufRows, RowsHaveLlamaCppsOrder) {
  nn::ModelConfig biased =
      small(nn::Llama{.key_heads = 2, .mlp_width = 20, .head_width = 10, .attention_bias = true});
  const nn::DeepSeek latent{
      .latent = 16, .query_latent = 12, .rope_width = 4, .mlp_width = 20, .head_width = 10, .value_width = 6};
  for (const nn::ModelConfig& config :
       {biased, small(latent), small(nn::Gpt{.activation = "gelu_tanh", .mlp_width = 20})}) {
    const Made made(config);
    std::uint64_t key = 3;
    for (Parameter p : made.params.all()) p.write(normal_array(p.shape(), f32, 0, 1, ++key));
    const TemporaryDirectory directory;
    nn::save_gguf(directory / "m", made.model, config);
    const io::MappedGguf file(directory / "m", "test");
    const auto number = [&](const std::string& tensor, std::int64_t i) {
      float x = 0;
      std::memcpy(&x, file.gguf.tensor(tensor).value().bytes.data() + static_cast<std::size_t>(i) * 4, 4);
      return x;
    };
    const auto ours = [&](const std::string& name) {
      return made.params.find("model.layers.1.self_attn." + name)->read();
    };
    if (config.architecture.as<nn::Llama>() != nullptr)
      for (const auto& [theirs, name, heads] :
           {std::tuple{"q", "q_proj", 4}, {"k", "k_proj", 2}, {"v", "v_proj", 2}})
        for (const std::string end : {".weight", ".bias"}) {
          const Array a = ours(name + end);
          const std::int64_t columns = end == ".bias" ? 1 : 24;
          ASSERT_EQ(a.numel(), heads * 10 * columns);
          for (std::int64_t i = 0; i < a.numel(); ++i) {
            const std::int64_t row = i / columns, r = row % 10;
            const std::int64_t there = *theirs == 'v' ? row : row - r + (r < 5 ? 2 * r : 2 * (r - 5) + 1);
            ASSERT_EQ(number("blk.1.attn_" + std::string(theirs) + end, there * columns + i % columns),
                      a.at(i))
                << name << i;
          }
        }
    if (config.architecture.as<nn::DeepSeek>() != nullptr) {
      const Array a = ours("kv_b_proj.weight");  // [heads · (keys + values), latent]
      ASSERT_EQ(a.numel(), 4 * 16 * 16);
      for (std::int64_t head = 0; head < 4; ++head)
        for (std::int64_t r = 0; r < 16; ++r)
          for (std::int64_t c = 0; c < 16; ++c)
            ASSERT_EQ(r < 10 ? number("blk.1.attn_k_b.weight", (head * 16 + c) * 10 + r)
                             : number("blk.1.attn_v_b.weight", (head * 6 + r - 10) * 16 + c),
                      a.at((head * 16 + r) * 16 + c));
    }
    const nn::Pretrained read = nn::from_pretrained(directory / "m");
    std::size_t found = 0;
    for (const Parameter& p : read.model.parameters())
      if (const Parameter* own = made.params.find(p.name())) {
        EXPECT_TRUE(p.read().same_bits(own->read())) << p.name();
        ++found;
      } else {
        EXPECT_EQ(p.read().numel(), std::ranges::count(p.read().values<float>(), 0.0f)) << p.name();
      }
    EXPECT_EQ(found, made.params.all().size());
    // The model is read from the file, and then saved as a folder.
    nn::save_pretrained(directory / "f", read);
    const nn::Pretrained again = nn::from_pretrained(directory / "f");
    for (std::size_t i = 0; i < read.model.parameters().size(); ++i)
      EXPECT_TRUE(again.model.parameters()[i].read().same_bits(read.model.parameters()[i].read()));
  }
}

TEST(GgufTypes, TheChatTemplateMatchesTheFolder) {
  const Made made(small(nn::Llama{}));
  const auto written = [&](const nn::FolderFiles& files) {
    const TemporaryDirectory directory;
    io::ModelSource source = made.source();
    source.files = files;
    source.files["config.json"] = io::hf_config_json(io::hf_config_for(made.config, "m"), f32);
    source.tokenizer = std::make_shared<text::HfTokenizer>(tokenizer_with("null"), "t");
    io::GgufWriter writer(source, {});
    EXPECT_TRUE(writer.has_tokenizer());
    writer.write(directory / "m");
    const io::ModelSource read = io::source_of_gguf(directory / "m");
    const auto found = read.files.find("chat_template.jinja");
    const io::MappedGguf file(directory / "m", "test");
    EXPECT_EQ(file.gguf.has("tokenizer.chat_template"), found != read.files.end());
    EXPECT_NE(read.tokenizer, nullptr);
    return found == read.files.end() ? "none" : found->second;
  };
  EXPECT_EQ(written({}), "none");
  EXPECT_EQ(
      written({{"chat_template.jinja", "{{x}}"}, {"tokenizer_config.json", R"({"chat_template": "y"})"}}),
      "{{x}}");
  EXPECT_EQ(written({{"tokenizer_config.json", R"({"chat_template": "y"})"}}), "y");
  EXPECT_EQ(written({{"tokenizer_config.json", R"({"chat_template": [{"name": "a"}]})"}}), "none");
  EXPECT_EQ(written({{"tokenizer_config.json", "{}"}}), "none");
}

TEST(Q8Blocks, NumbersAgreeWithTheDefinition) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(32 * 6), back(x.size());
  std::vector<std::byte> blocks(34 * 6);
  for (int trial = 0; trial < 30; ++trial) {
    const float scale = std::pow(10.0f, static_cast<float>(trial % 10) - 5);
    for (float& value : x) value = scale * normal(random);
    ASSERT_TRUE(io::to_q8_0(x, blocks));
    io::from_q8_0(blocks, back);
    for (std::size_t b = 0; b < 6; ++b) {
      float largest = 0;
      for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[32 * b + i]));
      float16 d;
      std::memcpy(&d.bits, &blocks[34 * b], 2);
      ASSERT_EQ(d.bits, float16(largest / 127).bits);
      for (std::size_t i = 0; i < 32; ++i) {
        const auto q = static_cast<std::int8_t>(blocks[34 * b + 2 + i]);
        ASSERT_EQ(q, static_cast<int>(std::round(x[32 * b + i] * (1 / (largest / 127)))));
        ASSERT_EQ(back[32 * b + i], static_cast<float>(d) * static_cast<float>(q));
      }
    }
  }
  // Tests the largest scale of f16, in the last block, and a block of zeros.
  std::fill(x.begin(), x.end(), 0.0f);
  x[191] = -65504.0f * 127;
  EXPECT_TRUE(io::to_q8_0(x, blocks));
  EXPECT_EQ(static_cast<std::int8_t>(blocks[34 * 6 - 1]), -127);
  for (std::size_t i = 0; i < 34 * 5; ++i) EXPECT_EQ(blocks[i], std::byte{0});
  x[191] = 65521.0f * 127;
  EXPECT_FALSE(io::to_q8_0(x, blocks));
  x[191] = 0, x[0] = 1e-43f;  // d is 0, so it has no inverse
  EXPECT_TRUE(io::to_q8_0(x, blocks));
  for (std::size_t i = 2; i < 34; ++i) EXPECT_EQ(blocks[i], std::byte{0});
}

TEST(Transposed, RowsBecomeColumnsForEverySizeNextToABlock) {
  for (const std::int64_t rows : {1, 2, 31, 32, 33, 64, 65})
    for (const std::int64_t columns : {1, 3, 32, 33, 70})
      for (const DType dtype : {f16, f32, f64}) {
        const Array a = normal_array({rows, columns}, f32, 0, 1, 3).to(dtype);
        const auto bytes = io::transposed({dtype, {rows, columns}, {a.raw(), a.bytes()}});
        Array b({columns, rows}, dtype);
        ASSERT_EQ(bytes.size(), b.bytes());
        std::memcpy(b.raw(), bytes.data(), bytes.size());
        for (std::int64_t i = 0; i < rows * columns; ++i)
          ASSERT_EQ(b.at(i % columns * rows + i / columns), a.at(i)) << rows << " " << columns;
      }
  EXPECT_EQ(io::shape_text({}), "[]");
  EXPECT_EQ(io::shape_text({2, 3}), "[2, 3]");
}

// ---- Adapters

// A base with joined rows, like phi3, and an adapter. The adapter has the same form as adapters that `train`
// saves.
struct Adapted {
  TemporaryDirectory directory;
  Made made{small(nn::Llama{.key_heads = 2, .mlp_width = 20, .head_width = 14, .rotary_width = 6})};
  std::string folder = directory / "base", file = directory / "adapter.safetensors";
  nn::LoraOptions options{.rank = 3, .alpha = 6, .targets = {"qkv_proj", "down_proj", "gate_up_proj"}};

  Adapted() { nn::save_pretrained(folder, made.model, made.config); }
  nn::Pretrained with_adapter() const {
    nn::Pretrained model = nn::from_pretrained(folder);
    EXPECT_EQ(model.info.family, "phi3");
    nn::add_lora(model, options);
    std::uint64_t key = 9;
    for (Parameter p : model.model.lora()->parameters()) p.write(normal_array(p.shape(), f32, 0, 1, ++key));
    return model;
  }
  io::Metadata metadata(const nn::Pretrained& model) const {
    io::Metadata m = io::to_metadata(model.info.config);
    m[io::adapter_key] =
        io::peft_config_json({.options = options, .base = folder}, model.model.lora()->modules);
    return m;
  }
  io::SavedAdapter saved(const std::vector<Parameter>& parameters, const io::Metadata& metadata) const {
    io::save_parameters(file, parameters, metadata);
    return {io::load_safetensors(file), "A"};
  }
};

TEST(SavedAdapters, MergedWeightsIncludeTheScaledProduct) {
  const Adapted a;
  nn::Pretrained model = a.with_adapter();
  const auto parameters = model.model.lora()->parameters();
  const auto save = [&] { return a.saved(parameters, a.metadata(model)); };
  const io::SavedAdapter saved = save();
  EXPECT_EQ(saved.config.options.rank, 3);
  EXPECT_EQ(saved.config.base, a.folder);
  EXPECT_EQ(saved.config_text, a.metadata(model).at(io::adapter_key));
  EXPECT_TRUE(io::holds_adapter(a.metadata(model)));
  EXPECT_FALSE(io::holds_adapter(io::to_metadata(model.info.config)));

  nn::Pretrained again = nn::from_pretrained(a.folder);
  io::add_adapter(again, saved);
  ASSERT_EQ(again.model.lora()->parameters().size(), parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    EXPECT_TRUE(again.model.lora()->parameters()[i].read().same_bits(parameters[i].read()))
        << parameters[i].name();

  io::ModelSource source = io::with_adapter(io::source_of_folder(a.folder), save());
  // Computes scale·B·A by definition, in f64. The rows of q, k and v are consecutive in qkv_proj.
  std::map<std::string, std::pair<std::string, std::int64_t>> rows;  // module and first row of a layer
  for (int i = 0; i < 3; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".", self = layer + "self_attn.",
                      mlp = layer + "mlp.";
    rows[self + "q_proj.weight"] = {self + "qkv_proj", 0},
                rows[self + "k_proj.weight"] = {self + "qkv_proj", 56};
    rows[self + "v_proj.weight"] = {self + "qkv_proj", 84},
                rows[mlp + "gate_proj.weight"] = {mlp + "gate_up_proj", 0};
    rows[mlp + "up_proj.weight"] = {mlp + "gate_up_proj", 20},
               rows[mlp + "down_proj.weight"] = {mlp + "down_proj", 0};
  }
  std::size_t adapted = 0;
  for (const Parameter& p : a.made.params.all()) {
    const io::TensorView w = source.weights->read(p.name());
    Array got(p.shape(), w.dtype);
    ASSERT_EQ(got.bytes(), w.bytes.size());
    std::memcpy(got.raw(), w.bytes.data(), w.bytes.size());
    EXPECT_EQ(source.weights->dtype(p.name()), f32);
    const auto found = rows.find(p.name());
    if (found == rows.end()) {
      EXPECT_TRUE(got.same_bits(p.read())) << p.name();
      continue;
    }
    ++adapted;
    const auto find = [&](const std::string& name) {
      for (const Parameter& q : parameters)
        if (q.name() == found->second.first + name) return q.read();
      return Array();
    };
    const Array A = find(".lora_A.weight"), B = find(".lora_B.weight"), W = p.read();
    const std::int64_t columns = p.shape()[1];
    for (std::int64_t i = 0; i < W.numel(); ++i) {
      double sum = 0;
      for (std::int64_t r = 0; r < 3; ++r)
        sum += B.at((found->second.second + i / columns) * 3 + r) * A.at(r * columns + i % columns);
      ASSERT_NEAR(got.at(i), W.at(i) + 2 * sum, 1e-4)
          << p.name();  // rounding of 3 products of numbers below 6 to f32
    }
  }
  EXPECT_EQ(adapted, rows.size());
}

TEST(SavedAdapters, AdaptersOfOtherModelsAreRefused) {
  const Adapted a;
  const nn::Pretrained model = a.with_adapter();
  std::vector<Parameter> parameters = model.model.lora()->parameters();
  io::Metadata metadata = a.metadata(model);
  const auto refusal = [&] {
    nn::Pretrained base = nn::from_pretrained(a.folder);
    const std::string one = error_of([&] { io::add_adapter(base, a.saved(parameters, metadata)); });
    const std::string two =
        error_of([&] { io::with_adapter(io::source_of_folder(a.folder), a.saved(parameters, metadata)); });
    EXPECT_EQ(one, two);
    return one;
  };
  EXPECT_EQ(refusal(), "no error");
  metadata["eps"] = "0.5";
  EXPECT_EQ(refusal(), "A: the adapter is of a model with eps 0.5, " + a.folder + " has none");
  metadata = a.metadata(model), metadata["theta"] = "500";
  EXPECT_EQ(refusal(), "A: the adapter is of a model with theta 500, " + a.folder + " has 10000");
  metadata = a.metadata(model);
  metadata.erase(io::adapter_key);
  EXPECT_EQ(refusal(), "A: has no adapter, expected a run of train --lora");
  metadata[io::adapter_key] = "{}";
  EXPECT_EQ(refusal(), "A: adapter_config.json: has no peft_type, expected a string");
  metadata = a.metadata(model);
  const std::string config = metadata[io::adapter_key];
  metadata[io::adapter_key].replace(config.find("qkv_proj"), 8, "abc_proj");
  EXPECT_EQ(refusal().substr(0, 34), "A: [lora] target \"abc_proj\" is not");
  metadata = a.metadata(model);
  parameters.emplace_back("more", Array({1}, f32));
  EXPECT_EQ(refusal(), "A: has 19 tensors, expected 2 for each of 9 modules");
  parameters.pop_back();
  const Parameter last = parameters.back();
  parameters.pop_back();
  EXPECT_NE(refusal().find(last.name()), std::string::npos);
  parameters.emplace_back(last.name(), last.read().to(bf16));
  EXPECT_NE(refusal().find(last.name()), std::string::npos);
  parameters.back() = Parameter(last.name(), Array({last.shape()[0] + 1, last.shape()[1]}, f32));
  EXPECT_NE(refusal().find(last.name()), std::string::npos);
}

}  // namespace
