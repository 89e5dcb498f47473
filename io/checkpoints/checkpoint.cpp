#include <tilegrad/io/checkpoints/checkpoint.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "core/base/hash.h"
#include "core/os/file.h"
#include "io/checkpoints/own_files.h"
#include "io/checkpoints/tensor_check.h"
#include "io/checkpoints/tensor_values.h"
#include "io/files/input_file.h"

namespace tg::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw FormatError("[checkpoint] " + path + ": " + what);
}

// Host copies of parameters, and views of the copies as tensors of a file. Every function that saves
// parameters uses this struct.
struct HostCopy {
  std::vector<Array> values;
  TensorMap tensors;
  Metadata metadata;
  HostCopy(const std::vector<Parameter>& parameters, Metadata about, const std::string& where)
      : metadata(std::move(about)) {
    check_names(parameters, where);
    for (const Parameter& p : parameters) values.push_back(p.read());
    check_finite(parameters, values, where + " is not saved");
    for (std::size_t i = 0; i < parameters.size(); ++i) tensors[parameters[i].name()] = view_of(values[i]);
    add_settings(parameters, metadata);
  }
};

// Whether the values of the tensor must be converted to the dtype of the parameter.
bool is_converted(const TensorView& tensor, const Parameter& p, Dtypes dtypes) {
  return dtypes == Dtypes::convert && tensor.dtype != p.dtype() && is_float(tensor.dtype) &&
         is_float(p.dtype());
}

// Returns the values of the file in the order of the parameters.
std::vector<Array> matched(const SafeTensors& file, const std::string& where,
                           const std::vector<Parameter>& parameters, Dtypes dtypes) {
  check_names(parameters, where);
  for (const Parameter& p : parameters) {
    const TensorView& tensor = tensor_like(file.tensors, p.name(), p.shape(), std::nullopt, where);
    if (!is_converted(tensor, p, dtypes)) tensor_like(file.tensors, p.name(), p.shape(), p.dtype(), where);
  }
  if (file.tensors.size() > parameters.size()) {
    TensorMap others = file.tensors;
    for (const Parameter& p : parameters) others.erase(p.name());
    throw FormatError(where + ": has a tensor " + others.begin()->first + " that the model does not have");
  }
  check_settings(parameters, file.metadata, where);
  std::vector<Array> values;
  for (const Parameter& p : parameters) {
    const TensorView& tensor = file.tensors.at(p.name());
    if (is_converted(tensor, p, dtypes)) {
      values.push_back(converted(tensor, p.shape(), p.dtype(), where, p.name()));
    } else {
      values.emplace_back(p.shape(), p.dtype());
      if (!tensor.bytes.empty()) std::memcpy(values.back().raw(), tensor.bytes.data(), tensor.bytes.size());
    }
  }
  return values;
}

void assign_all(const std::vector<Parameter>& parameters, const std::vector<Array>& values) {
  for (std::size_t i = 0; i < parameters.size(); ++i) Parameter(parameters[i]).write(values[i]);
}

// Whether the path no longer leads to the open directory.
bool leads_elsewhere(const std::string& path, int directory) {
  const os::FileStatus open = os::status(directory);
  return open.error != 0 || os::status(path).id != open.id;
}

// Throws Error for values that a manifest cannot represent.
void check_contents(std::int64_t step, std::int64_t best_step, std::span<const CheckpointFile> files,
                    const std::string& where) {
  if (step < 0 || best_step < 0)
    throw Error(where + ": got step " + std::to_string(step) + " and best_step " + std::to_string(best_step) +
                ", expected at least 0");
  if (files.empty()) throw Error(where + ": got no files, expected at least one");
  for (const CheckpointFile& file : files)
    if (!is_plain_name(file.name))
      throw Error(where + ": got a file named " + json_excerpt(file.name) +
                  ", expected a name without a folder that does not begin with a dot");
}

// Returns the target of a symbolic link; "" if the path is not a link.
std::string linked(const std::string& path) {
  std::error_code error;
  return fs::read_symlink(path, error).string();
}

}  // namespace

void write_checkpoint(const std::string& directory, std::int64_t step, std::int64_t best_step,
                      std::span<const CheckpointFile> files) {
  check_contents(step, best_step, files, "[checkpoint] " + directory);
  std::error_code error;
  if (!fs::create_directory(directory, error))
    throw Error("[checkpoint] cannot create " + directory + ": " +
                (error ? error.message() : std::string("it exists; move it away")));
  Manifest manifest{.step = step, .best_step = best_step};
  for (const CheckpointFile& file : files) manifest.unfinished.insert(file.name);
  const auto text = [&] { return to_json(manifest); };
  const std::string marked = text(), manifest_path = directory + "/" + manifest_name;
  const std::string_view mark = marked;
  write_new_file(manifest_path, {&mark, 1}, "checkpoint");
  for (const CheckpointFile& file : files) {
    const std::string path = directory + "/" + file.name;
    const HostCopy copy(file.parameters, file.metadata,
                        "[checkpoint] " + file.name + " of step " + std::to_string(step));
    const auto content = safetensors_content(copy.tensors, copy.metadata, "[checkpoint] " + path);
    const auto pieces = content.pieces();
    std::uint64_t bytes = 0;
    for (const std::string_view p : pieces) bytes += p.size();
    manifest.files[file.name] = {bytes, xxh3_128(pieces)};
    write_new_file(path, pieces, "checkpoint");
  }
  manifest.unfinished.clear();
  const std::string complete = text();
  const std::string_view piece = complete;
  replace_file(manifest_path, {&piece, 1}, "checkpoint");
}

struct Checkpoint::Files {
  std::map<std::string, InputFile> open;  // the files of the manifest that exist
};

Checkpoint::Checkpoint(const std::string& path) {
  if (!open(path) && !open(path + "/last")) throw Error("[checkpoint] there is no checkpoint in " + path);
}

// Returns false if the directory has no manifest. A run that saves a checkpoint first moves its links to it,
// and then removes the old one. If a file is missing, the link may therefore already refer to the new
// checkpoint.
bool Checkpoint::open(const std::string& directory) {
  for (;;) {
    const std::string target = linked(directory);
    const auto [at, error] = os::open(directory, os::Open::folder);
    if (error != 0 && linked(directory) != target) continue;
    if (error != 0) return false;
    const std::string path = directory + "/" + manifest_name;
    const auto file = InputFile::in(at.fd, manifest_name, path, "checkpoint");
    if (!file && leads_elsewhere(directory, at.fd)) continue;
    if (!file) return false;
    if (file->size() > max_manifest_bytes)
      refuse(path, "has " + std::to_string(file->size()) + " bytes, too many for a manifest");
    Manifest manifest = parse_manifest(file->read(), "[checkpoint] " + path);
    auto files = std::make_shared<Files>();
    for (const auto& [name, listed] : manifest.files)
      if (auto one = InputFile::in(at.fd, name, directory + "/" + name, "checkpoint"))
        files->open.emplace(name, std::move(*one));
    if (files->open.size() < manifest.files.size() && leads_elsewhere(directory, at.fd)) continue;
    directory_ = directory;
    manifest_ = std::move(manifest);
    files_ = std::move(files);
    return true;
  }
}

SafeTensors Checkpoint::load(const std::string& name) const {
  const std::string path = directory_ + "/" + name;
  const auto listed = manifest_.files.find(name);
  if (listed == manifest_.files.end()) refuse(path, "is not in " + std::string(manifest_name));
  const auto file = files_->open.find(name);
  if (file == files_->open.end()) refuse(path, "is missing, though it is in " + std::string(manifest_name));
  const std::string by = " by " + std::string(manifest_name);
  const auto check_size = [&](std::uint64_t size) {
    if (size != listed->second.bytes)
      refuse(path,
             "has " + std::to_string(size) + " bytes, expected " + std::to_string(listed->second.bytes) + by);
  };
  check_size(file->second.size());
  std::string content = file->second.read();
  check_size(content.size());
  const std::string_view piece = content;
  const std::string sum = xxh3_128({&piece, 1});
  if (sum != listed->second.xxh3_128)
    refuse(path, "has XXH3-128 " + sum + ", expected " + listed->second.xxh3_128 + by);
  return parse_safetensors(std::move(content), "[checkpoint] " + path);
}

std::vector<std::vector<Array>> Checkpoint::values(std::span<const CheckpointFile> files,
                                                   Dtypes dtypes) const {
  std::vector<std::vector<Array>> values;
  for (const CheckpointFile& file : files)
    values.push_back(
        matched(load(file.name), "[checkpoint] " + directory_ + "/" + file.name, file.parameters, dtypes));
  return values;
}

void Checkpoint::restore(std::span<const CheckpointFile> files, Dtypes dtypes) const {
  const std::vector<std::vector<Array>> all = values(files, dtypes);
  for (std::size_t i = 0; i < files.size(); ++i) assign_all(files[i].parameters, all[i]);
}

void check_finite(const std::vector<Parameter>& parameters, std::span<const Array> values,
                  const std::string& where) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (const auto bad = first_not_finite(values[i]))
      throw FormatError(where + ": " + parameters[i].name() + " has " + std::to_string(values[i].at(*bad)) +
                        " at element " + std::to_string(*bad));
}

void check_finite(const std::vector<Parameter>& parameters, const std::string& where) {
  for (const Parameter& p : parameters) {
    const Array values = p.read();
    check_finite({p}, {&values, 1}, where);
  }
}

void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata) {
  const HostCopy copy(parameters, metadata, "[checkpoint] " + path);
  save_safetensors(path, copy.tensors, copy.metadata);
}

Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters, Dtypes dtypes) {
  SafeTensors file = load_safetensors(path);
  const auto values = matched(file, "[checkpoint] " + path, parameters, dtypes);
  assign_all(parameters, values);
  return std::move(file.metadata);
}

}  // namespace tg::io
