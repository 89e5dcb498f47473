// The model that train --from begins with.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/interop/pretrained.h>
#include "io/interop/hf_folder.h"

namespace tg {

struct BaseModel {
  std::string family;      // "llama": config.json's model_type
  nn::ModelConfig config;  // with the whole context, of which a run may use less
  nn::FolderFiles files;   // travel in the checkpoints, so that the model goes out as it came in
  std::shared_ptr<const text::Tokenizer> tokenizer;  // null: the folder has none
  std::optional<std::int32_t> end_token;             // follows each document
  std::shared_ptr<const io::HfFolder> weights;       // null in a resumed run, whose checkpoint has them

  // Rows of the start-up table about it.
  void print(const std::string& from) const;
};

// Of a Hugging Face folder, with everything checked and no weights read. Throws as HfFolder and HfTokenizer,
// and FormatError for a tokenizer of another model.
BaseModel base_of_folder(const std::string& folder);
// Of a resumed run, from the metadata of its model's file. Throws FormatError, beginning with `where`.
BaseModel base_of_run(const io::Metadata& saved, const std::string& where);

// Appends the tokens of a document: as the tokenizer begins a text, and with the end token behind it.
void append_document(const BaseModel& base, std::string_view text, std::vector<std::int32_t>& to);

}  // namespace tg
