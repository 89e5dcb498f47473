#include "tools/train/base_model.h"

#include <algorithm>
#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/files/gguf.h"
#include "io/files/json_tree.h"
#include "io/models/model_source.h"
#include "tools/train_report.h"

namespace tg {
namespace {

// Returns the tokenizer's end token from tokenizer_config.json. It is a string, or an object with a member
// `content`.
std::optional<std::string> eos_text(const nn::FolderFiles& files, const std::string& where) {
  const auto file = files.find("tokenizer_config.json");
  if (file == files.end()) return std::nullopt;
  io::JsonReader json(file->second, where + ": tokenizer_config.json");
  const io::JsonTree all = io::read_json_tree(json);
  const io::JsonTree* eos = all.find("eos_token");
  if (const io::JsonTree* content = eos ? eos->find("content") : nullptr) eos = content;
  if (!eos || eos->kind != io::JsonReader::Kind::string) return std::nullopt;
  return eos->scalar;
}

// Checks the tokenizer, read from `file`, and selects the end token. If the model lists several end tokens,
// uses the end token of the tokenizer, because in a chat model it ends an answer. If the model does not list
// that token, uses the first one of the list.
void complete(BaseModel& base, const io::HfConfig& config, const std::string& where,
              const std::string& file) {
  const std::vector<std::int64_t>& ends = config.end_tokens;
  if (base.tokenizer)
    nn::check_tokenizer({.config = base.config, .end_tokens = ends}, *base.tokenizer, where + file);
  if (ends.empty()) return;
  std::int64_t end = ends[0];
  if (const auto* hf = dynamic_cast<const text::HfTokenizer*>(base.tokenizer.get()))
    if (const auto eos = eos_text(base.files, where))
      if (const auto id = hf->find(*eos); id && std::ranges::find(ends, *id) != ends.end()) end = *id;
  if (end < base.config.vocabulary) base.end_token = static_cast<std::int32_t>(end);
}

}  // namespace

BaseModel base_at(const std::string& path) {
  const bool is_file = io::is_gguf_file(path);
  const auto source = std::make_shared<const io::ModelSource>(io::source_at(path, false));
  BaseModel base{.config = source->config, .files = source->files, .tokenizer = source->tokenizer};
  std::error_code error;
  if (!is_file && std::filesystem::exists(path + "/tokenizer.json", error))
    base.tokenizer = std::make_shared<text::HfTokenizer>(text::HfTokenizer::open(path));
  const std::string where = "[model] " + path;
  const io::HfConfig config = io::config_in(base.files, where);
  base.family = config.family;
  complete(base, config, where, is_file ? ": tokenizer.ggml" : "/tokenizer.json");
  base.weights = {
      .dtypes = source->dtypes(),
      .bytes = io::pretrained_info(*source).bytes,
      .dropped = source->dropped,
      .load = [source](const std::vector<Parameter>& parameters) { io::load(*source, parameters); }};
  return base;
}

void refuse_without_tokenizer(const std::string& option) {
  throw Error("[model] the model has no tokenizer (in a folder: tokenizer.json), which " + option +
              " needs: give --tokens FILE");
}

BaseModel base_of_run(const io::Metadata& saved, const std::string& where) {
  BaseModel base{.config = io::model_config(saved, where), .files = nn::folder_files(saved)};
  const io::HfConfig config = io::config_in(base.files, where);
  base.family = config.family;
  base.tokenizer = text::load_tokenizer(saved, where);
  complete(base, config, where, ": the tokenizer");
  return base;
}

void append_document(const BaseModel& base, std::string_view text, std::vector<std::int32_t>& to) {
  const std::vector<std::int32_t> tokens = base.tokenizer->encode_whole(text);
  to.insert(to.end(), tokens.begin(), tokens.end());
  if (base.end_token && (tokens.empty() || tokens.back() != *base.end_token)) to.push_back(*base.end_token);
}

void BaseModel::print(const std::string& from) const {
  print_row("from", from + ": " + family +
                        (weights ? ", weights in " + io::names_of(weights->dtypes) + ", " +
                                       size_text(static_cast<double>(weights->bytes))
                                 : ", weights in the run"));
  std::string tokens = tokenizer ? std::string(tokenizer->kind()) + ", " + counted(tokenizer->size(), "token")
                                 : "none in the " + std::string(io::is_gguf_file(from) ? "file" : "folder");
  if (!end_token) {
    tokens += "; no token ends a document";
  } else {
    tokens += "; token " + std::to_string(*end_token);
    if (tokenizer && *end_token < tokenizer->size())
      tokens += ", \"" + tokenizer->decode({&*end_token, 1}) + "\",";
    tokens += " ends a document";
  }
  print_row("tokenizer", tokens);
  if (weights) print_dropped(weights->dropped);
}

}  // namespace tg
