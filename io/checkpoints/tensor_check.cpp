#include "io/checkpoints/tensor_check.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <tilegrad/core/base/error.h>
#include <tilegrad/nn/layers/params.h>
#include "io/checkpoints/tensor_values.h"
#include "io/files/utf8.h"

namespace tg::io {
namespace {

constexpr std::string_view setting_prefix = "setting.";

// Returns "h.0.attn." for "h.0.attn.heads".
std::string layer_of(const std::string& setting) {
  return setting.substr(0, setting.rfind('.') + 1);
}

}  // namespace

const TensorView& tensor_like(const TensorMap& tensors, const std::string& name, const Shape& shape,
                              std::optional<DType> dtype, const std::string& where) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw FormatError(where + ": has no tensor " + name);
  const TensorView& t = found->second;
  if (std::equal(t.shape.begin(), t.shape.end(), shape.begin(), shape.end()) &&
      t.dtype == dtype.value_or(t.dtype))
    return t;
  throw FormatError(where + ": " + name + " is " + std::string(name_of(t.dtype)) + " " + shape_text(t.shape) +
                    ", expected " + std::string(name_of(dtype.value_or(t.dtype))) + " " + shape.text());
}

void check_names(const std::vector<Parameter>& parameters, const std::string& where) {
  std::set<std::string_view> seen;
  for (const Parameter& p : parameters)
    if (!seen.insert(p.name()).second)
      throw Error(where + ": two parameters are named " + p.name() +
                  ": a file holds one of that name, so give them different names or separate files");
}

void add_settings(const std::vector<Parameter>& parameters, Metadata& metadata) {
  for (const Parameter& p : parameters)
    for (const auto& [name, value] : p.settings()) metadata[std::string(setting_prefix) + name] = value;
}

void check_settings(const std::vector<Parameter>& parameters, const Metadata& metadata,
                    const std::string& where, OtherSettings others) {
  Parameter::Settings ours;
  std::set<std::string> layers;
  for (const Parameter& p : parameters)
    for (const auto& [name, value] : p.settings()) {
      ours[name] = value;
      layers.insert(layer_of(name));
    }
  for (auto it = metadata.lower_bound(std::string(setting_prefix));
       it != metadata.end() && it->first.starts_with(setting_prefix); ++it) {
    const std::string name = it->first.substr(setting_prefix.size());
    const auto found = ours.find(name);
    if (found == ours.end() ? others == OtherSettings::ignore && !layers.contains(layer_of(name))
                            : found->second == it->second)
      continue;
    throw FormatError(where + ": its weights belong to a model with " + utf8_shortened(name, 200) + " = " +
                      utf8_shortened(it->second, 80) + ", this one has " +
                      (found == ours.end() ? "no such setting" : found->second));
  }
}

void check_settings(const nn::ModelConfig& config, const Metadata& metadata, const std::string& where) {
  nn::Params params = nn::Params::unset(bf16);  // pages that are never written use no memory
  config.architecture.make(params, config);
  check_settings(params.all(), metadata, where, OtherSettings::refuse);
}

}  // namespace tg::io
