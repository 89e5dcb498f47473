// Loads and saves models in Hugging Face folders and GGUF files.
//
//   auto model = tg::nn::from_pretrained("SmolLM-135M");
//   tg::nn::Generator generator(model);
//   std::vector<std::int32_t> tokens = {1, 504, 282};
//   generator.extend(tokens, 64, {.temperature = 0}, 1);
//   tg::nn::save_pretrained("SmolLM-mine", model);
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/models/model.h>

namespace tg::nn {

// Options of from_pretrained().
struct PretrainedOptions {
  DType dtype = f32;  // of the parameters; the file may have a different one
  // Maximum sequence length in tokens; 0: the length in config.json. With a cache, LongRoPE uses its long
  // factors if this is above original_max_position_embeddings.
  std::int64_t context = 0;
};

// The small files of a folder, by name. They describe the model and its tokenizer to other programs. A loaded
// model keeps these files, so that it can be saved with them.
using FolderFiles = std::map<std::string, std::string>;
// The names of these files.
inline constexpr const char* folder_file_names[] = {"config.json", "generation_config.json",
                                                    "tokenizer_config.json", "special_tokens_map.json",
                                                    "chat_template.jinja"};
// Returns the files as metadata of a checkpoint, under the keys "folder/config.json" and so on.
io::Metadata folder_metadata(const FolderFiles& files);
// Returns the files that such metadata contains. Ignores other keys.
FolderFiles folder_files(const io::Metadata& metadata);

// The description of a model in a folder.
struct PretrainedInfo {
  std::string folder, family;            // `family`: config.json's model_type, such as "llama"
  ModelConfig config;                    // with the full context length
  std::vector<DType> dtypes;             // of the weights in the file
  std::uint64_t bytes = 0;               // total size of the weights
  std::vector<std::string> dropped;      // tensors of the file that the model does not need
  std::vector<std::int64_t> end_tokens;  // each of them ends a sequence
  std::optional<std::int64_t> start_token, padding_token;  // bos and padding tokens; none if not defined
  FolderFiles files;                                       // the files of folder_file_names that exist

  // A summary: "llama, 134515008 parameters in bf16, 256 MiB; not needed: lm_head.weight".
  std::string text() const;
};

// A loaded model with its description.
struct Pretrained {
  PretrainedInfo info;  // what the folder contains
  Model model;          // with the folder's weights

  // The model, for training and generation. Shares the layers.
  operator LanguageModel() const { return model; }
};

// Returns the description of a folder or GGUF file. Checks everything that from_pretrained() checks, but
// reads no weights. Throws as from_pretrained() does.
PretrainedInfo pretrained_info(const std::string& folder);

// Throws FormatError if the tokenizer has more tokens than the model or none of the model's end tokens. Such
// a tokenizer cannot belong to the model. The message begins with `where`. A tokenizer may have fewer tokens
// than the model, because vocabulary sizes are often rounded up.
void check_tokenizer(const PretrainedInfo& info, const text::Tokenizer& tokenizer, const std::string& where);

// Loads a model from a GGUF file, or from a folder with config.json and model.safetensors (or its shards and
// their index). Families: gpt2, llama, qwen2, qwen3, mistral, smollm3, olmo2, phi3, gemma2, gemma3_text, and
// deepseek_v2 and deepseek_v3 with dense layers (docs/interop.md). Weights in f32, f16 or bf16 are read
// tensor by tensor into parameters of options.dtype. Throws Error for a file that cannot be read. Throws
// FormatError that names file, key and value for a model that cannot be represented exactly. Both are thrown
// before any parameter is created. Throws OutOfMemory if there is not enough memory, and FormatError if a
// weight is not finite.
Pretrained from_pretrained(const std::string& folder, Device device = Device::cpu(),
                           const PretrainedOptions& options = {});

// Options of save_pretrained().
struct SaveOptions {
  std::optional<DType> dtype = {};  // of the weights in the file; none: the parameters' dtype
  // Maximum size of a file in bytes. Larger models are split into several files with an index.
  std::uint64_t shard_bytes = 50'000'000'000;
  // Called to report progress, with the bytes of weights written so far and in total. An exception from it
  // aborts the export.
  std::function<void(std::uint64_t written, std::uint64_t all)> written = {};
};

// Creates a Hugging Face folder that AutoModelForCausalLM and AutoTokenizer of transformers can open. The
// folder must not exist. Files: config.json, model.safetensors, generation_config.json, tokenizer.json and
// tokenizer_config.json. A model that was loaded from a folder keeps that folder's settings. Any other model
// is saved for the first of the families above that can represent it. The folder appears only when all of it
// is on disk. Needs memory for one tensor at a time. Throws Error if the folder exists, if the disk is full,
// or if tokenizer.json cannot represent the tokenizer. Throws FormatError with the settings if no class can
// represent the model. Throws FormatError if a value is not finite or is too large for the dtype.
void save_pretrained(const std::string& folder, const Pretrained& model,
                     const text::Tokenizer* tokenizer = nullptr, const SaveOptions& options = {});
// As above, for a model that was not loaded from a folder.
void save_pretrained(const std::string& folder, const Model& model, const ModelConfig& config,
                     const text::Tokenizer* tokenizer = nullptr, const SaveOptions& options = {});

// Options of save_gguf().
struct GgufOptions {
  // dtype of matrices: "f32", "f16", "bf16" or "q8_0"; "": the parameters' dtype. Vectors and norms are
  // stored in f32.
  std::string dtype = {};
  std::function<void(std::uint64_t written, std::uint64_t all)> written = {};  // as in SaveOptions
};

// Creates a GGUF file for llama.cpp and from_pretrained(). The file must not exist. It appears only when all
// of it is on disk. Needs memory for one tensor at a time. Throws Error if the file exists, if the dtype is
// unknown, or if the disk is full. Throws FormatError with the setting if llama.cpp does not support the
// model or the tokenizer. Throws FormatError if a value is not finite or is too large for the dtype.
void save_gguf(const std::string& path, const Pretrained& model, const text::Tokenizer* tokenizer = nullptr,
               const GgufOptions& options = {});
// As above, for a model that was not loaded from a folder.
void save_gguf(const std::string& path, const Model& model, const ModelConfig& config,
               const text::Tokenizer* tokenizer = nullptr, const GgufOptions& options = {});

}  // namespace tg::nn
