#include "io/checkpoint.h"

#include <cstring>

#include "core/error.h"

namespace tg {

void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata) {
  std::vector<Array> values;
  TensorMap tensors;
  for (const Parameter& p : parameters) {
    values.push_back(p.read());
    const Array& a = values.back();
    tensors[p.name()] = {p.dtype(), {p.shape().begin(), p.shape().end()}, {a.raw(), a.bytes()}};
  }
  save_safetensors(path, tensors, metadata);
}

Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters) {
  SafeTensors file = load_safetensors(path);
  const auto refuse = [&](const std::string& what) {
    throw FormatError("[checkpoint] " + path + ": " + what);
  };
  std::vector<Array> values;
  for (const Parameter& p : parameters) {
    const auto found = file.tensors.find(p.name());
    if (found == file.tensors.end()) refuse("has no tensor " + p.name());
    const TensorView& t = found->second;
    if (Shape(t.shape) != p.shape() || t.dtype != p.dtype())
      refuse(p.name() + " is " + std::string(name_of(t.dtype)) + " " + Shape(t.shape).text() + ", wanted " +
             std::string(name_of(p.dtype())) + " " + p.shape().text());
    values.emplace_back(p.shape(), p.dtype());
    if (!t.bytes.empty()) std::memcpy(values.back().raw(), t.bytes.data(), t.bytes.size());
    file.tensors.erase(found);
  }
  if (!file.tensors.empty())
    refuse("has a tensor " + file.tensors.begin()->first + " that the model has not");
  for (std::size_t i = 0; i < parameters.size(); ++i) Parameter(parameters[i]).write(values[i]);
  return std::move(file.metadata);
}

}  // namespace tg
