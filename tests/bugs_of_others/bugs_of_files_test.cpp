// Reproduces public bugs in readers of files: safetensors, GGUF, JSON and Hugging Face folders.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tilegrad/io/files/json.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/llama.h>
#include "io/files/gguf.h"
#include "tests/support/hf_folder.h"

namespace tg {
namespace {

using testing::error_of;
using testing::Folder;
using testing::replaced;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

io::SafeTensors safetensors(const std::string& header, std::size_t bytes) {
  const std::uint64_t n = header.size();
  return io::parse_safetensors(
      std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(bytes, 'x'), "here");
}
std::string refusal(const std::string& header, std::size_t bytes) {
  return error_of([&] { safetensors(header, bytes); });
}

// https://github.com/ohdearquant/lattice/issues/752
// Two tensors of a file could share bytes, so changing one also changed the other.
TEST(BugsOfOthersFiles, TensorsThatOverlapAreRefused) {
  EXPECT_TRUE(has(refusal(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                              "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}})",
                          6),
                  "an overlap"));
}

// https://github.com/antirez/h3.c/pull/48
// Extra bytes after the last tensor were not detected. They show that the file was changed.
TEST(BugsOfOthersFiles, BytesThatNoTensorCoversAreRefused) {
  EXPECT_TRUE(has(refusal(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", 8),
                  "cover 4 of 8 data bytes"));
}

// https://github.com/kekzl/imp/issues/1603
// Elements of an unknown type were read as elements of a different type. The file must be rejected.
TEST(BugsOfOthersFiles, UnknownElementTypeIsRefused) {
  EXPECT_TRUE(has(refusal(R"({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 4]}})", 4),
                  "has dtype \"F8_E4M3\""));
}

// https://github.com/promptfoo/modelaudit/pull/1607
// A tensor without elements ends where it begins. Such a tensor was rejected as damaged.
TEST(BugsOfOthersFiles, EmptyTensorHasEqualOffsets) {
  const io::SafeTensors file =
      safetensors(R"({"a": {"dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0]}})", 0);
  EXPECT_TRUE(file.tensors.at("a").bytes.empty());
}

// Writes a GGUF file with the key general.alignment and two tensors of one f32 element each.
struct Aligned {
  std::string all = "GGUF";
  template <class T>
  Aligned& number(T x) {
    all.append(reinterpret_cast<const char*>(&x), sizeof x);
    return *this;
  }
  Aligned& text(const std::string& s) {
    number(std::uint64_t{s.size()});
    all += s;
    return *this;
  }
  template <class T>
  Aligned(std::int32_t kind, T alignment, std::uint64_t second) {
    number(std::uint32_t{3}).number(std::int64_t{2}).number(std::int64_t{1});
    text("general.alignment").number(kind).number(alignment);
    text("a")
        .number(std::uint32_t{1})
        .number(std::int64_t{1})
        .number(std::int32_t{0})
        .number(std::uint64_t{0});
    text("b").number(std::uint32_t{1}).number(std::int64_t{1}).number(std::int32_t{0}).number(second);
    while (all.size() % 64 != 0) all += '\0';
    std::string data(second + 4, '\0');
    data.replace(0, 4, "aaaa"), data.replace(second, 4, "bbbb");
    all += data;
  }
  io::Gguf read() const { return io::Gguf(all, "here"); }
};
constexpr std::int32_t gguf_u32 = 4, gguf_i32 = 5;

// https://github.com/ollama/ollama/pull/18130 https://github.com/ggml-org/llama.cpp/pull/5136
// Data was read at multiples of 32 bytes, although the file had a different alignment.
TEST(BugsOfOthersFiles, AlignmentOfTheFileIsUsed) {
  const Aligned file(gguf_u32, std::uint32_t{64}, 64);
  const io::Gguf read = file.read();
  EXPECT_EQ(read.tensor("a")->bytes, "aaaa");
  EXPECT_EQ(read.tensor("b")->bytes, "bbbb");
}

// https://github.com/gittensor-ai-lab/sparkinfer/issues/24 https://github.com/antirez/gguf-tools/issues/27
// An alignment of 0 caused a division by zero.
TEST(BugsOfOthersFiles, AlignmentOfZeroIsRefused) {
  EXPECT_TRUE(has(error_of([] { Aligned(gguf_u32, std::uint32_t{0}, 64).read(); }), "general.alignment"));
}

// https://github.com/ggml-org/ggml/pull/1516 https://github.com/ggml-org/ggml/issues/1517
// https://github.com/ggml-org/llama.cpp/pull/24997
// With an alignment near 2³², padded sizes overflowed. The alignment must be limited.
TEST(BugsOfOthersFiles, HugeAlignmentIsRefused) {
  EXPECT_TRUE(has(error_of([] { Aligned(gguf_u32, std::uint32_t{1} << 31, 64).read(); }),
                  "general.alignment is 2147483648"));
}

// https://github.com/ggml-org/llama.cpp/pull/24988
// If a key had a wrong type, it was read as if it had the right type, or the process was terminated.
TEST(BugsOfOthersFiles, AlignmentOfWrongTypeIsRejected) {
  EXPECT_TRUE(has(error_of([] { Aligned(gguf_i32, std::int32_t{64}, 64).read(); }), "general.alignment"));
}

// https://github.com/creationix/jsonparse/issues/32 https://github.com/SBJson/SBJson/issues/42
// JSON escapes a character beyond U+FFFF as a pair. Such a pair was read as two wrong characters.
TEST(BugsOfOthersFiles, EscapedPairIsOneCharacter) {
  EXPECT_EQ(io::JsonReader(R"("\ud83d\ude00")", "here").string(), "\xf0\x9f\x98\x80");
}

// https://github.com/moonbitlang/core/pull/4064 https://github.com/com-lihaoyi/upickle/pull/723
// The second half of an escaped pair, without the first half, became an invalid character.
TEST(BugsOfOthersFiles, LoneSurrogateIsRefused) {
  EXPECT_TRUE(has(error_of([] { io::JsonReader(R"("\udc00\udc00")", "here").string(); }), "lone surrogate"));
}

// https://github.com/paiml/entrenar/issues/262 https://github.com/pytorch/torchtitan/pull/3570
// https://github.com/vllm-project/speculators/pull/134
// The head size was computed as width divided by heads, although the file specifies a different head size.
TEST(BugsOfOthersFiles, HeadWidthOfTheConfigIsUsed) {
  const io::HfConfig config = io::parse_hf_config(testing::llama_with("\"head_dim\": 6"), "here");
  nn::Params params;
  const nn::Model model(params, config.model);
  EXPECT_EQ(params.find("model.layers.0.self_attn.q_proj.weight")->shape(), (Shape{2 * 6, 8}));
}

// https://github.com/ModelTC/LightLLM/pull/273 https://github.com/EricLBuehler/mistral.rs/issues/82
// A window of null was an error, or became the default of 4096. null means that there is no window.
TEST(BugsOfOthersFiles, NullWindowMeansNoWindow) {
  std::string json = replaced(testing::llama_json, "\"llama\"", "\"mistral\", \"sliding_window\": null");
  json = replaced(json, "LlamaForCausalLM", "MistralForCausalLM");
  const io::HfConfig config = io::parse_hf_config(json, "here");
  EXPECT_TRUE(config.model.architecture.as<nn::Llama>()->windows.empty());
}

struct Heads : Folder {
  void tie() const {
    directory.file("config.json", replaced(testing::llama_json, "\"tie_word_embeddings\": false",
                                           "\"tie_word_embeddings\": true"));
  }
  void drop_head() const {
    std::vector<Parameter> rest;
    for (const Parameter& p : params.all())
      if (p.name() != "lm_head.weight") rest.push_back(p);
    save("model.safetensors", rest);
  }
};

// https://github.com/vllm-project/vllm/issues/5621 https://github.com/sgl-project/sglang/pull/1508
// https://github.com/huggingface/transformers/pull/43429
// In tied models, the embedding is also the head, so their files have no head. The head was reported as
// missing, or stayed random.
TEST(BugsOfOthersFiles, HeadWithoutWeightsIsTheEmbedding) {
  const Heads f;
  f.tie(), f.drop_head();
  const nn::Pretrained made = nn::from_pretrained(f.path);
  std::size_t heads = 0;
  for (const Parameter& p : made.model.parameters()) heads += p.name() == "lm_head.weight";
  EXPECT_EQ(heads, 0u);
  EXPECT_EQ(made.model.parameters().size(), f.params.all().size() - 1);
}

// https://github.com/vllm-project/vllm/pull/51665
// In a file with tie_word_embeddings and a different head, the head was dropped without an error.
TEST(BugsOfOthersFiles, DifferentHeadOfATiedModelIsRefused) {
  const Heads f;
  f.tie();
  EXPECT_TRUE(has(f.error(), "lm_head.weight differs from model.embed_tokens.weight")) << f.error();
}

// https://github.com/NVIDIA/TensorRT-LLM/pull/13664
// If the file of an untied model has no head, the model got the embedding as its head. Such a file must be
// rejected.
TEST(BugsOfOthersFiles, MissingHeadOfAnUntiedModelIsRefused) {
  const Heads f;
  f.drop_head();
  EXPECT_TRUE(has(f.error(), "has no tensor lm_head.weight")) << f.error();
}

}  // namespace
}  // namespace tg
