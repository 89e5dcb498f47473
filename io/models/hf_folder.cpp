// Reads a model from a Hugging Face folder.
#include <algorithm>
#include <filesystem>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "core/base/messages.h"
#include "io/checkpoints/own_files.h"
#include "io/checkpoints/tensor_values.h"
#include "io/models/model_source.h"
#include "io/models/tensor_names.h"

namespace tg::io {

namespace {

namespace fs = std::filesystem;

constexpr const char* who = "from_pretrained";
constexpr const char* one_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";

std::string at(const std::string& path) {
  return "[" + std::string(who) + "] " + path;
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Reports why the weights of a folder without safetensors files cannot be read.
[[noreturn]] void refuse_without_weights(const std::string& folder) {
  std::vector<std::string> pickles;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pth" || extension == ".pt" || extension == ".ckpt")
      pickles.push_back(entry.path().filename().string());
  }
  const std::string what = at(folder) + ": has no " + std::string(one_file) + " and no " + index_file;
  if (pickles.empty()) throw FormatError(what);
  const std::string& name = *std::ranges::min_element(pickles);
  throw FormatError(what + ", only " + name +
                    ", a pickle, which is a program and is not run: save the model as safetensors");
}

// Returns the map from tensor to file of a model.safetensors.index.json.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const std::string text = read_file(path, who);
  JsonReader json(text, at(path));
  std::map<std::string, std::string> files;
  bool has_map = false;
  json.object({{"weight_map", [&] {
                  has_map = true;
                  json.object({}, [&](const std::string& tensor) {
                    const std::string file = json.string();
                    if (!is_plain_name(file))
                      throw FormatError(at(path) + ": weight_map has " + tensor + " in " +
                                        json_excerpt(file) + ", expected the plain name of a file");
                    files[tensor] = file;
                  });
                }}});
  json.end();
  if (!has_map) throw FormatError(at(path) + ": has no weight_map");
  if (files.empty()) throw FormatError(at(path) + ": its weight_map is empty");
  return files;
}

// Returns the first names of a list, and the number of omitted names.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  const std::string text = list_text(std::span(names).first(std::min(most, names.size())), ", ");
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more" : text;
}

// The files of a folder. Weights are found by the names of tilegrad's parameters.
class HfFolder final : public StoredWeights {
 public:
  explicit HfFolder(const std::string& path);

  const HfConfig& config() const { return config_; }
  const nn::FolderFiles& small_files() const {
    return small_files_;
  }  // the files of folder_file_names that exist
  const std::vector<std::string>& dropped() const { return dropped_; }  // unused tensors
  std::optional<StoredTensor> stored(const std::string& parameter) const override;

 private:
  struct FoundTensor {
    std::size_t file;
    const TensorView* tensor;
    HfTensor theirs;
    Shape shape = {};  // of the parameter
  };
  void open_files();
  std::string tensor_name(const std::string& name) const;
  void match();
  void check_tied_head(const FoundTensor& embedding, const FoundTensor& head) const;
  std::string where(std::size_t file) const;

  std::string path_;
  nn::FolderFiles small_files_;
  HfConfig config_;
  std::vector<std::string> files_;  // weight files, without the folder's path
  std::vector<MappedSafeTensors> mapped_;
  std::map<std::string, FoundTensor> found_;   // every tensor of the files, by name
  std::map<std::string, FoundTensor> places_;  // the used tensors, by parameter name
  std::vector<std::string> dropped_;
};

HfFolder::HfFolder(const std::string& path) : path_(path) {
  std::error_code error;
  if (fs::status(path, error).type() == fs::file_type::not_found) throw Error(at(path) + ": does not exist");
  const std::string config = path + "/config.json";
  if (!exists(config))
    throw FormatError(at(path) + ": has no config.json" +
                      (exists(path + "/adapter_config.json")
                           ? ", but an adapter_config.json: it is an adapter "
                             "to a model, expected the model's folder"
                           : ", expected a Hugging Face folder"));
  for (const char* name : nn::folder_file_names)
    if (exists(path + "/" + name)) small_files_[name] = read_file(path + "/" + name, who);
  config_ = parse_hf_config(small_files_.at("config.json"), at(config));
  if (const auto generation = small_files_.find("generation_config.json"); generation != small_files_.end())
    parse_hf_generation(generation->second, at(path + "/generation_config.json"), config_);
  open_files();
  match();
}

std::string HfFolder::where(std::size_t file) const {
  return at(path_ + "/" + files_[file]);
}

void HfFolder::open_files() {
  const std::string index = path_ + "/" + index_file;
  std::map<std::string, std::string> listed;
  if (exists(path_ + "/" + one_file)) {
    files_ = {one_file};
  } else if (exists(index)) {
    listed = read_weight_map(index);
    for (const auto& [tensor, file] : listed) files_.push_back(file);
    std::ranges::sort(files_);
    files_.erase(std::unique(files_.begin(), files_.end()), files_.end());
  } else {
    refuse_without_weights(path_);
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    mapped_.push_back(map_safetensors(path_ + "/" + files_[i], who));
    for (const auto& [name, tensor] : mapped_[i].tensors) {
      const auto [place, is_new] = found_.emplace(name, FoundTensor{i, &tensor, {}, {}});
      if (!is_new)
        throw FormatError(where(i) + ": has a tensor " + name + ", which " + files_[place->second.file] +
                          " has too");
      if (const auto in = listed.find(name);
          !listed.empty() && (in == listed.end() || in->second != files_[i]))
        throw FormatError(where(i) + ": has a tensor " + name + ", which " + index_file +
                          (in == listed.end() ? " does not list" : " lists in " + in->second));
    }
  }
  for (const auto& [name, file] : listed)
    if (!found_.contains(name))
      throw FormatError(at(path_ + "/" + file) + ": has no tensor " + name + ", which " + index_file +
                        " lists");
}

// GPT-2's first files omit "transformer." from names; transformers adds it.
std::string HfFolder::tensor_name(const std::string& name) const {
  const std::string root = "transformer.";
  if (!found_.contains(name) && name.starts_with(root) && found_.contains(name.substr(root.size())))
    return name.substr(root.size());
  return name;
}

void HfFolder::match() {
  std::vector<std::string> missing;
  std::set<std::string> used;
  const std::string file = files_.size() == 1 ? where(0) : at(path_);
  const auto take = [&](const std::string& name, const Shape& shape) {
    HfTensor theirs = hf_tensor(config_.family, config_.model, name, shape);
    theirs.name = tensor_name(theirs.name);
    const auto found = found_.find(theirs.name);
    if (found == found_.end()) {
      missing.push_back(theirs.name);
      if (missing.size() > found_.size() + 1000)  // config.json belongs to a different model
        throw FormatError(file + ": has no tensor " + some_of(missing));
      return;
    }
    const TensorView& t = *found->second.tensor;
    if (!std::equal(t.shape.begin(), t.shape.end(), theirs.shape.begin(), theirs.shape.end()) ||
        !is_float(t.dtype))
      throw FormatError(where(found->second.file) + ": " + theirs.name + " is " +
                        std::string(name_of(t.dtype)) + " " + shape_text(t.shape) +
                        ", expected a floating type and " + theirs.shape.text() + " by config.json");
    used.insert(theirs.name);
    places_[name] = {found->second.file, &t, std::move(theirs), shape};
  };
  with_format_errors(at(path_ + "/config.json"), [&] { config_.model.each_parameter(take); });
  if (!missing.empty()) throw FormatError(file + ": has no tensor " + some_of(missing));
  std::vector<std::string> unknown;
  for (const auto& [name, place] : found_) {
    if (used.contains(name)) continue;
    if (name == "lm_head.weight" && config_.model.tied_head)
      check_tied_head(places_.at(places_.contains("transformer.wte.weight") ? "transformer.wte.weight"
                                                                            : "model.embed_tokens.weight"),
                      place);
    else if (!is_dropped_by_hf(config_.family, name, config_.model.layers))
      unknown.push_back(name);
    dropped_.push_back(name);
  }
  if (!unknown.empty())
    throw FormatError(file + ": has a tensor " + some_of(unknown) + " that a " + config_.family +
                      " of this config.json does not have");
}

void HfFolder::check_tied_head(const FoundTensor& embedding, const FoundTensor& head) const {
  const TensorView &a = *embedding.tensor, &b = *head.tensor;
  const bool is_equal =
      a.dtype == b.dtype && a.shape == b.shape && std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin());
  for (const FoundTensor* place : {&embedding, &head}) mapped_[place->file].file.check();
  if (!is_equal)
    throw FormatError(where(head.file) + ": lm_head.weight differs from " + embedding.theirs.name +
                      ", though tie_word_embeddings of config.json is true");
}

std::optional<StoredTensor> HfFolder::stored(const std::string& parameter) const {
  const auto found = places_.find(parameter);
  if (found == places_.end()) throw Error(at(path_) + ": has no parameter " + parameter);
  const FoundTensor& place = found->second;
  StoredTensor all{&mapped_[place.file].file, *place.tensor, place.theirs.is_transposed, where(place.file)};
  if (all.is_transposed) return all;
  const std::size_t row = all.tensor.bytes.size() / static_cast<std::size_t>(place.theirs.shape[0]);
  all.tensor.shape.assign(place.shape.begin(), place.shape.end());
  all.tensor.bytes = all.tensor.bytes.subspan(static_cast<std::size_t>(place.theirs.first_row) * row,
                                              static_cast<std::size_t>(place.shape[0]) * row);
  return all;
}

}  // namespace

ModelSource source_of_folder(const std::string& path, bool with_tokenizer) {
  auto folder = std::make_unique<HfFolder>(path);
  ModelSource source{.from = path, .config = folder->config().model};
  source.files = folder->small_files();
  source.dropped = folder->dropped();
  if (with_tokenizer && exists(path + "/tokenizer.json")) {
    source.tokenizer = std::make_shared<text::HfTokenizer>(text::HfTokenizer::open(path));
    if (source.tokenizer->size() > source.config.vocabulary)
      throw FormatError("[tokenizer] " + path + "/tokenizer.json: has " +
                        std::to_string(source.tokenizer->size()) + " tokens, the model " +
                        std::to_string(source.config.vocabulary));
  }
  source.weights = std::move(folder);
  return source;
}

}  // namespace tg::io
