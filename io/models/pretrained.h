// Models from Hugging Face folders:
//
//   auto model = tg::nn::from_pretrained("SmolLM-135M");
//   tg::nn::Generator generator(model);
//   std::vector<std::int32_t> text = {1, 504, 282};
//   generator.extend(text, 64, {.temperature = 0}, 1);
//   tg::nn::save_pretrained("SmolLM-mine", model);
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/models/model.h>

namespace tg::nn {

struct PretrainedOptions {
  DType dtype = f32;  // of the parameters, whatever the file's is
  // The most tokens in a row; 0: as many as config.json says. With a cache LongRoPE's long factors are those
  // of models for more than original_max_position_embeddings.
  std::int64_t context = 0;
};

// The small files of a folder, by name: what it says of its model, and what other programs need to know of
// its tokenizer. They travel with the model, so that it goes out as it came.
using FolderFiles = std::map<std::string, std::string>;
inline constexpr const char* folder_file_names[] = {"config.json", "generation_config.json",
                                                    "tokenizer_config.json", "special_tokens_map.json",
                                                    "chat_template.jinja"};
// As metadata of a checkpoint, "folder/config.json" and so on, and the other way round; other keys are
// ignored.
io::Metadata folder_metadata(const FolderFiles& files);
FolderFiles folder_files(const io::Metadata& metadata);

// What a folder says of its model.
struct PretrainedInfo {
  std::string folder, family;            // "llama": config.json's model_type
  ModelConfig config;                    // with the whole context
  std::vector<DType> dtypes;             // of the file's weights
  std::uint64_t bytes = 0;               // of them
  std::vector<std::string> dropped;      // tensors of the file that the model does not need
  std::vector<std::int64_t> end_tokens;  // any of them ends a text
  std::optional<std::int64_t> start_token, padding_token;
  FolderFiles files;  // those of folder_file_names that it has

  std::string text() const;  // "llama, 134515008 parameters in bf16, 256 MiB; not needed: lm_head.weight"
};

struct Pretrained {
  PretrainedInfo info;
  Model model;

  operator LanguageModel() const { return model; }
};

// What from_pretrained() would read: everything is checked, no weights are read. Throws the same.
PretrainedInfo pretrained_info(const std::string& folder);

// Throws FormatError, beginning with `where`, for a tokenizer that cannot be the model's: it has more tokens,
// or none of those that end the model's texts. It may have fewer, since vocabularies are rounded up.
void check_tokenizer(const PretrainedInfo& info, const text::Tokenizer& tokenizer, const std::string& where);

// The model of a GGUF file (docs/interop.md), or of a folder with config.json and model.safetensors, or its
// shards and their index: gpt2, llama, qwen2, qwen3, mistral, smollm3, olmo2, phi3, gemma2, gemma3_text, and
// deepseek_v2 and deepseek_v3 with dense layers (docs/interop.md). Weights in f32, f16 or bf16 are read
// tensor by tensor into parameters in options.dtype. Throws, before it makes any, Error for a file that
// cannot be read, FormatError naming file, key and value for what it cannot represent exactly; OutOfMemory;
// FormatError for a number that is not finite.
Pretrained from_pretrained(const std::string& folder, Device device = Device::cpu(),
                           const PretrainedOptions& options = {});

struct SaveOptions {
  std::optional<DType> dtype = {};             // of the weights in the file; none: the parameters'
  std::uint64_t shard_bytes = 50'000'000'000;  // more weights are written as several files with an index
  // Called with the bytes of weights that are written so far, and all of them. An exception from it ends the
  // writing.
  std::function<void(std::uint64_t written, std::uint64_t all)> written = {};
};

// Makes a Hugging Face folder, which must not exist, that AutoModelForCausalLM and AutoTokenizer of
// transformers open: config.json, model.safetensors, generation_config.json, tokenizer.json and
// tokenizer_config.json. A model that came from a folder goes out with that folder's settings; another one as
// the first class of the families above that computes the same. The folder appears when all of it is on the
// disk. Needs memory for one tensor at a time. Throws Error for a name that is taken, a tokenizer that no
// tokenizer.json can say, a disk that is full; FormatError for a model that no class can hold, naming the
// settings, and for a number that is not finite or too large for the dtype.
void save_pretrained(const std::string& folder, const Pretrained& model,
                     const text::Tokenizer* tokenizer = nullptr, const SaveOptions& options = {});
void save_pretrained(const std::string& folder, const Model& model, const ModelConfig& config,
                     const text::Tokenizer* tokenizer = nullptr, const SaveOptions& options = {});

struct GgufOptions {
  // Of matrices: "f32", "f16", "bf16" or "q8_0"; "": as the parameters are. Vectors and norms are in f32.
  std::string dtype = {};
  std::function<void(std::uint64_t written, std::uint64_t all)> written = {};  // as of SaveOptions
};

// Makes a GGUF file, which must not exist, that llama.cpp runs; from_pretrained() reads it too. It appears
// when all of it is on the disk. Needs memory for one tensor at a time. Throws Error for a name that is
// taken, a dtype of another name, a disk that is full; FormatError for a model or a tokenizer that llama.cpp
// has not, naming the setting, and for a number that is not finite or too large for the dtype.
void save_gguf(const std::string& path, const Pretrained& model, const text::Tokenizer* tokenizer = nullptr,
               const GgufOptions& options = {});
void save_gguf(const std::string& path, const Model& model, const ModelConfig& config,
               const text::Tokenizer* tokenizer = nullptr, const GgufOptions& options = {});

}  // namespace tg::nn
