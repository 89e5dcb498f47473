#include "tools/train/base_model.h"

#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/interop/model_source.h"
#include "tools/train_report.h"

namespace tg {
namespace {

void check_tokenizer(const BaseModel& base, const io::HfConfig& config, const std::string& where) {
  if (!base.tokenizer) return;
  nn::check_tokenizer({.config = base.config, .end_tokens = config.end_tokens}, *base.tokenizer, where);
}

// Of several end tokens the first, which is the one of a whole text.
void take_end_token(BaseModel& base, const io::HfConfig& config) {
  if (config.end_tokens.empty()) return;
  if (config.end_tokens[0] < base.config.vocabulary)
    base.end_token = static_cast<std::int32_t>(config.end_tokens[0]);
}

}  // namespace

BaseModel base_of_folder(const std::string& path) {
  auto folder = std::make_shared<const io::HfFolder>(path);
  BaseModel base{
      .family = folder->config().family, .config = folder->config().model, .files = folder->small_files()};
  take_end_token(base, folder->config());
  std::error_code error;
  if (std::filesystem::exists(path + "/tokenizer.json", error))
    base.tokenizer = std::make_shared<text::HfTokenizer>(text::HfTokenizer::open(path));
  check_tokenizer(base, folder->config(), "[from] " + path + "/tokenizer.json");
  base.weights = std::move(folder);
  return base;
}

BaseModel base_of_run(const io::Metadata& saved, const std::string& where) {
  BaseModel base{.config = io::model_config(saved, where), .files = nn::folder_files(saved)};
  const io::HfConfig config = io::config_in(base.files, where);
  base.family = config.family;
  take_end_token(base, config);
  base.tokenizer = text::load_tokenizer(saved, where);
  check_tokenizer(base, config, where + ": the tokenizer");
  return base;
}

void append_document(const BaseModel& base, std::string_view text, std::vector<std::int32_t>& to) {
  const std::vector<std::int32_t> tokens = base.tokenizer->encode_whole(text);
  to.insert(to.end(), tokens.begin(), tokens.end());
  if (base.end_token && (tokens.empty() || tokens.back() != *base.end_token)) to.push_back(*base.end_token);
}

void BaseModel::print(const std::string& from) const {
  std::string types;
  if (weights)
    for (const DType t : weights->dtypes()) types += (types.empty() ? "" : " and ") + std::string(name_of(t));
  print_row("from",
            from + ": " + family +
                (weights ? ", weights in " + types + ", " + size_text(static_cast<double>(weights->bytes()))
                         : ", whose tuned weights the run has"));
  std::string tokens = tokenizer
                           ? std::string(tokenizer->kind()) + ", " + grouped(tokenizer->size()) + " tokens"
                           : "none in the folder";
  if (!end_token) {
    tokens += "; no token ends a document";
  } else {
    tokens += "; token " + std::to_string(*end_token);
    if (tokenizer && *end_token < tokenizer->size())
      tokens += ", \"" + tokenizer->decode({&*end_token, 1}) + "\",";
    tokens += " ends a document";
  }
  print_row("tokenizer", tokens);
  if (!weights || weights->dropped().empty()) return;
  const std::vector<std::string>& d = weights->dropped();
  print_row("dropped", d[0] + (d.size() > 1 ? " and " + std::to_string(d.size() - 1) + " more" : ""));
}

}  // namespace tg
