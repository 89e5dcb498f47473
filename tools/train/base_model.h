// The model that train --model begins with.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/models/pretrained.h>

namespace tg {

// Weights that are not read yet.
struct BaseWeights {
  std::vector<DType> dtypes;
  std::uint64_t bytes = 0;
  std::vector<std::string> dropped = {};  // tensors of the files that the model does not need
  std::function<void(const std::vector<Parameter>&)> load;
};

struct BaseModel {
  std::string family;      // "llama": config.json's model_type
  nn::ModelConfig config;  // with the whole context, of which a run may use less
  nn::FolderFiles files;   // travel in the checkpoints, so that the model goes out as it came in
  std::shared_ptr<const text::Tokenizer> tokenizer;  // null: the folder or file has none
  std::optional<std::int32_t> end_token;             // follows each document
  std::optional<BaseWeights> weights = {};           // none in a resumed run, whose checkpoint has them

  // Rows of the start-up table about it.
  void print(const std::string& from) const;
};

// Of a Hugging Face folder or a GGUF file, with everything checked and no weights read. Throws as
// source_at() and HfTokenizer, and FormatError for a tokenizer of another model.
BaseModel base_at(const std::string& path);
// Throws Error: `option`, "--text", needs the tokenizer that a base model does not have.
[[noreturn]] void refuse_without_tokenizer(const std::string& option);
// Of a resumed run, from the metadata of its model's file. Throws FormatError, beginning with `where`.
BaseModel base_of_run(const io::Metadata& saved, const std::string& where);

// Appends the tokens of a document: as the tokenizer begins a text, and with the end token behind it.
void append_document(const BaseModel& base, std::string_view text, std::vector<std::int32_t>& to);

}  // namespace tg
