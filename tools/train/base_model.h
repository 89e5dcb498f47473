// The base model of train --model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/models/pretrained.h>

namespace tg {

// Weights that have not been read yet.
struct BaseWeights {
  std::vector<DType> dtypes;
  std::uint64_t bytes = 0;
  std::vector<std::string> dropped = {};  // tensors of the files that the model does not need
  std::function<void(const std::vector<Parameter>&)> load;
};

struct BaseModel {
  std::string family;      // "llama": config.json's model_type
  nn::ModelConfig config;  // with the full context; a run may use a shorter one
  nn::FolderFiles files;   // saved in each checkpoint, so that export writes them back unchanged
  std::shared_ptr<const text::Tokenizer> tokenizer;  // null: the folder or file has none
  std::optional<std::int32_t> end_token;             // appended to each document
  std::optional<BaseWeights> weights = {};           // none in a resumed run, which reads them from its
                                                     // checkpoint

  // Prints rows about the model in the startup table.
  void print(const std::string& from) const;
};

// Opens a Hugging Face folder or a GGUF file and checks everything except the weights, which are not read.
// Throws as source_at() and HfTokenizer do, and FormatError if the tokenizer does not match the model.
BaseModel base_at(const std::string& path);
// Throws Error: `option` (such as "--text") requires a tokenizer, but the base model has none.
[[noreturn]] void refuse_without_tokenizer(const std::string& option);
// Restores the base model of a resumed run from the metadata of its model file. Throws FormatError, beginning
// with `where`.
BaseModel base_of_run(const io::Metadata& saved, const std::string& where);

// Appends the tokens of a document: the tokenizer's start tokens, the text and the end token.
void append_document(const BaseModel& base, std::string_view text, std::vector<std::int32_t>& to);

}  // namespace tg
