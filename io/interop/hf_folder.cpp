#include "io/interop/hf_folder.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "core/base/piece_size.h"
#include "io/checkpoints/own_files.h"
#include "io/checkpoints/tensor_values.h"
#include "io/interop/json_object.h"

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

// Why a folder without safetensors has none that could be read.
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
  const std::string& name = *std::min_element(pickles.begin(), pickles.end());
  throw FormatError(what + ", only " + name +
                    ", a pickle, which is a program and is not run: save the model as safetensors");
}

// tensor → file, of a model.safetensors.index.json.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const std::string text = read_file(path, who);
  JsonReader json(text, at(path));
  std::map<std::string, std::string> files;
  bool has_map = false;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key != "weight_map") {
      json.skip();
      continue;
    }
    has_map = true;
    json.begin_object();
    while (const auto tensor = json.next_key()) {
      const std::string file = json.string();
      if (!is_plain_name(file))
        throw FormatError(at(path) + ": weight_map has " + *tensor + " in " + json_excerpt(file) +
                          ", expected the plain name of a file");
      files[*tensor] = file;
    }
  }
  json.end();
  if (!has_map) throw FormatError(at(path) + ": has no weight_map");
  if (files.empty()) throw FormatError(at(path) + ": its weight_map is empty");
  return files;
}

// The first names of a list and how many more there are.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more" : text;
}

// What a thread reads at a time. A large tensor is several of these, so that no thread is left alone with
// one.
constexpr std::size_t part_bytes = piece_size(32 << 20, 1 << 12);

// Threads that read files at a time: a core alone copies less than memory can take.
unsigned readers_of(const std::vector<Parameter>& parameters, std::uint64_t bytes) {
  constexpr unsigned most = 16;
  const bool on_host = std::all_of(parameters.begin(), parameters.end(),
                                   [](const Parameter& p) { return p.device().kind == Device::cpu_kind; });
  if (!on_host || bytes < part_bytes) return 1;
  return std::clamp(std::thread::hardware_concurrency(), 1u, most);
}

}  // namespace

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
    std::sort(files_.begin(), files_.end());
    files_.erase(std::unique(files_.begin(), files_.end()), files_.end());
  } else {
    refuse_without_weights(path_);
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    mapped_.push_back(map_safetensors(path_ + "/" + files_[i], who));
    for (const auto& [name, tensor] : mapped_[i].tensors) {
      const auto [place, is_new] = found_.emplace(name, Place{i, &tensor, {}, {}});
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

// GPT-2's first files have names without "transformer.", which transformers adds.
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
      if (missing.size() > found_.size() + 1000)  // a config.json of another model
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
  try {
    config_.model.each_parameter(take);
  } catch (const FormatError&) {
    throw;
  } catch (const Error& e) {  // sizes whose product overflows
    throw FormatError(at(path_ + "/config.json") + ": " + e.what());
  }
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

void HfFolder::check_tied_head(const Place& embedding, const Place& head) const {
  const TensorView &a = *embedding.tensor, &b = *head.tensor;
  const bool is_equal =
      a.dtype == b.dtype && a.shape == b.shape && std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin());
  for (const Place* place : {&embedding, &head}) mapped_[place->file].file.check();
  if (!is_equal)
    throw FormatError(where(head.file) + ": lm_head.weight differs from " + embedding.theirs.name +
                      ", though tie_word_embeddings of config.json is true");
}

std::vector<DType> HfFolder::dtypes() const {
  std::set<DType> all;
  for (const auto& [name, place] : places_) all.insert(place.tensor->dtype);
  return {all.begin(), all.end()};
}

std::uint64_t HfFolder::bytes() const {
  std::uint64_t n = 0;
  for (const auto& [name, place] : places_) n += values(name).tensor.bytes.size();
  return n;
}

HfFolder::Values HfFolder::values(const std::string& parameter) const {
  const auto found = places_.find(parameter);
  if (found == places_.end()) throw Error(at(path_) + ": has no parameter " + parameter);
  const Place& place = found->second;
  Values v{*place.tensor, place.theirs.is_transposed, place.file};
  if (v.is_transposed) return v;
  const std::size_t row = v.tensor.bytes.size() / static_cast<std::size_t>(place.theirs.shape[0]);
  v.tensor.shape.assign(place.shape.begin(), place.shape.end());
  v.tensor.bytes = v.tensor.bytes.subspan(static_cast<std::size_t>(place.theirs.first_row) * row,
                                          static_cast<std::size_t>(place.shape[0]) * row);
  return v;
}

void HfFolder::read(const Values& values, std::vector<std::byte>& to) const {
  const MappedFile& file = mapped_[values.file].file;
  const char* from = reinterpret_cast<const char*>(values.tensor.bytes.data());
  to.resize(values.tensor.bytes.size());
  file.read(static_cast<std::size_t>(from - file.bytes().data()), to);
}

std::vector<HfFolder::Part> HfFolder::parts_of(const Parameter& p) const {
  const Values all = values(p.name());
  if (all.is_transposed) return {{p, all, 0}};
  const std::size_t size = size_of(all.tensor.dtype);
  std::vector<Part> parts;
  for (std::size_t at = 0; at < all.tensor.bytes.size(); at += part_bytes) {
    parts.push_back({p, all, static_cast<std::int64_t>(at / size)});
    std::span<const std::byte>& bytes = parts.back().values.tensor.bytes;
    bytes = bytes.subspan(at, std::min(part_bytes, bytes.size() - at));
  }
  return parts;
}

void HfFolder::load(const std::vector<Parameter>& parameters) const {
  std::vector<Part> largest_first;
  for (const Parameter& p : parameters) {
    std::vector<Part> parts = parts_of(p);
    largest_first.insert(largest_first.end(), parts.begin(), parts.end());
  }
  std::stable_sort(largest_first.begin(), largest_first.end(), [](const Part& a, const Part& b) {
    return a.values.tensor.bytes.size() > b.values.tensor.bytes.size();
  });
  std::vector<std::exception_ptr> failures(largest_first.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  const auto work = [&] {
    for (std::size_t i; !has_failed && (i = next++) < largest_first.size();) {
      const auto& [to, from, first] = largest_first[i];
      try {
        copy_tensor(mapped_[from.file].file, from.tensor, from.is_transposed, to, where(from.file), first);
      } catch (...) {
        failures[i] = std::current_exception(), has_failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (unsigned n = readers_of(parameters, bytes()); n > 1; --n) others.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads: those that there are do it
    }
    work();
  }
  for (const std::exception_ptr& e : failures)
    if (e) std::rethrow_exception(e);
}

}  // namespace tg::io
