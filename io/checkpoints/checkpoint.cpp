#include <tilegrad/io/checkpoints/checkpoint.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "core/base/hash.h"

namespace tg::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw FormatError("[checkpoint] " + path + ": " + what);
}

// Values on the host, and the file's view of them.
struct HostCopy {
  std::vector<Array> values;
  TensorMap tensors;
  explicit HostCopy(const std::vector<Parameter>& parameters) {
    for (const Parameter& p : parameters) {
      values.push_back(p.read());
      const Array& a = values.back();
      tensors[p.name()] = {p.dtype(), {p.shape().begin(), p.shape().end()}, {a.raw(), a.bytes()}};
    }
  }
};

// The file's values in the order of the parameters.
std::vector<Array> matched(SafeTensors& file, const std::string& path,
                           const std::vector<Parameter>& parameters) {
  std::vector<Array> values;
  for (const Parameter& p : parameters) {
    const auto found = file.tensors.find(p.name());
    if (found == file.tensors.end()) refuse(path, "has no tensor " + p.name());
    const TensorView& t = found->second;
    const bool same = std::equal(t.shape.begin(), t.shape.end(), p.shape().begin(), p.shape().end());
    if (!same || t.dtype != p.dtype()) {
      std::string shape;
      for (const std::int64_t d : t.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
      refuse(path, p.name() + " is " + std::string(name_of(t.dtype)) + " [" + shape + "], expected " +
                       std::string(name_of(p.dtype())) + " " + p.shape().text());
    }
    values.emplace_back(p.shape(), p.dtype());
    if (!t.bytes.empty()) std::memcpy(values.back().raw(), t.bytes.data(), t.bytes.size());
    file.tensors.erase(found);
  }
  if (!file.tensors.empty())
    refuse(path, "has a tensor " + file.tensors.begin()->first + " that the model does not have");
  return values;
}

void assign_all(const std::vector<Parameter>& parameters, const std::vector<Array>& values) {
  for (std::size_t i = 0; i < parameters.size(); ++i) Parameter(parameters[i]).write(values[i]);
}

}  // namespace

void write_checkpoint(const std::string& directory, std::int64_t step, std::int64_t best_step,
                      std::span<const CheckpointFile> files) {
  std::error_code error;
  if (!fs::create_directory(directory, error))
    throw Error("[checkpoint] cannot create " + directory + ": " +
                (error ? error.message() : std::string("it exists")));
  Manifest manifest{.step = step, .best_step = best_step};
  for (const CheckpointFile& file : files) {
    const HostCopy copy(file.parameters);
    const std::string path = directory + "/" + file.name;
    const auto content = safetensors_content(copy.tensors, file.metadata, "[checkpoint] " + path);
    const auto pieces = content.pieces();
    std::uint64_t bytes = 0;
    for (const std::string_view p : pieces) bytes += p.size();
    manifest.files[file.name] = {bytes, xxh3_128(pieces)};
    write_new_file(path, pieces, "checkpoint");
  }
  const std::string text = to_json(manifest);
  const std::string_view piece = text;
  write_new_file(directory + "/" + manifest_name, {&piece, 1}, "checkpoint");
  sync_directory(directory, "checkpoint");
}

Checkpoint::Checkpoint(const std::string& path) : directory_(path) {
  if (!fs::exists(path + "/" + manifest_name)) directory_ = path + "/last";
  const std::string file = directory_ + "/" + manifest_name;
  if (!fs::exists(file)) throw Error("[checkpoint] there is no checkpoint in " + path);
  manifest_ = parse_manifest(read_file(file, "checkpoint"), "[checkpoint] " + file);
}

SafeTensors Checkpoint::load(const std::string& name) const {
  const std::string path = directory_ + "/" + name;
  const auto listed = manifest_.files.find(name);
  if (listed == manifest_.files.end()) refuse(path, "is not in " + std::string(manifest_name));
  if (!fs::exists(path)) refuse(path, "is missing, though it is in " + std::string(manifest_name));
  std::string content = read_file(path, "checkpoint");
  const std::string by = " by " + std::string(manifest_name);
  if (content.size() != listed->second.bytes)
    refuse(path, "has " + std::to_string(content.size()) + " bytes, expected " +
                     std::to_string(listed->second.bytes) + by);
  const std::string_view piece = content;
  const std::string sum = xxh3_128({&piece, 1});
  if (sum != listed->second.xxh3_128)
    refuse(path, "has XXH3-128 " + sum + ", expected " + listed->second.xxh3_128 + by);
  return parse_safetensors(std::move(content), "[checkpoint] " + path);
}

void Checkpoint::restore(std::span<const CheckpointFile> files) const {
  std::vector<std::vector<Array>> values;
  for (const CheckpointFile& file : files) {
    SafeTensors loaded = load(file.name);
    values.push_back(matched(loaded, directory_ + "/" + file.name, file.parameters));
  }
  for (std::size_t i = 0; i < files.size(); ++i) assign_all(files[i].parameters, values[i]);
}

void check_finite(const std::vector<Parameter>& parameters, const std::string& where) {
  for (const Parameter& p : parameters) {
    if (!is_float(p.dtype())) continue;
    const Array values = p.read();
    for (std::int64_t i = 0; i < values.numel(); ++i)
      if (!std::isfinite(values.at(i)))
        throw FormatError(where + ": " + p.name() + " has " + std::to_string(values.at(i)) + " at element " +
                          std::to_string(i));
  }
}

void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata) {
  const HostCopy copy(parameters);
  save_safetensors(path, copy.tensors, metadata);
}

Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters) {
  SafeTensors file = load_safetensors(path);
  const auto values = matched(file, path, parameters);
  assign_all(parameters, values);
  return std::move(file.metadata);
}

}  // namespace tg::io
