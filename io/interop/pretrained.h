// Models from Hugging Face folders:
//
//   auto model = tg::nn::from_pretrained("SmolLM-135M");
//   tg::nn::Generator generator(model);
//   std::vector<std::int32_t> text = {1, 504, 282};
//   generator.extend(text, 64, {.temperature = 0}, 1);
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/models/model.h>

namespace tg::nn {

struct PretrainedOptions {
  DType dtype = f32;  // of the parameters, whatever the file's is
  // The most tokens in a row; 0: as many as config.json says. LongRoPE's long factors are those of models for
  // more than original_max_position_embeddings.
  std::int64_t context = 0;
};

// What a folder says of its model.
struct PretrainedInfo {
  std::string folder, family;            // "llama": config.json's model_type
  ModelConfig config;                    // with the whole context
  std::vector<DType> dtypes;             // of the file's weights
  std::uint64_t bytes = 0;               // of them
  std::vector<std::string> dropped;      // tensors of the file that the model does not need
  std::vector<std::int64_t> end_tokens;  // any of them ends a text
  std::optional<std::int64_t> start_token, padding_token;

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

// The model of a folder with config.json and model.safetensors, or its shards and their index: gpt2, llama,
// qwen2, qwen3, mistral, smollm3, olmo2, phi3, gemma2, gemma3_text, and deepseek_v2 and deepseek_v3 with
// dense layers (docs/interop.md). Weights in f32, f16 or bf16 are read tensor by tensor into parameters in
// options.dtype. Throws, before it makes any, Error for a file that cannot be read, FormatError naming file,
// key and value for what it cannot represent exactly; OutOfMemory; FormatError for a number that is not
// finite.
Pretrained from_pretrained(const std::string& folder, Device device = Device::cpu(),
                           const PretrainedOptions& options = {});

}  // namespace tg::nn
