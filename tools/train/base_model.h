// The base model of train --model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/models/pretrained.h>

namespace tg {

// The weights of a base model, which have not been read yet.
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
  std::shared_ptr<const text::Tokenizer> tokenizer;  // null if the folder or file has no tokenizer
  std::optional<std::int32_t> end_token;             // appended to each document
  // not set in a resumed run, which reads its weights from the checkpoint
  std::optional<BaseWeights> weights = {};

  // Prints rows about the model in the startup table.
  void print(const std::string& from) const;
};

// Opens a Hugging Face folder or a GGUF file. Checks everything except the weights, which are not read.
// Throws the errors of source_at() and HfTokenizer, and FormatError if the tokenizer does not match the
// model.
BaseModel base_at(const std::string& path);
// Throws the Error for an option (such as "--text") that requires a tokenizer if the base model has none.
[[noreturn]] void refuse_without_tokenizer(const std::string& option);
// Restores the base model of a resumed run from the metadata of its model file. Throws FormatError with a
// message that begins with `where`.
BaseModel base_of_run(const io::Metadata& saved, const std::string& where);

// Appends the tokens of a document: the tokenizer's start tokens, the text and the end token.
void append_document(const BaseModel& base, std::string_view text, std::vector<std::int32_t>& to);

}  // namespace tg
