#include <tilegrad/io/checkpoints/model_file.h>

#include <algorithm>
#include <charconv>
#include <set>

#include <tilegrad/core/base/error.h>
#include "core/base/messages.h"
#include "io/checkpoints/tensor_check.h"

namespace tg::io {

namespace {

std::string setting_text(double x) {
  char digits[40];
  return {digits, std::to_chars(digits, digits + sizeof digits, x).ptr};
}
std::string setting_text(std::int64_t x) {
  return std::to_string(x);
}
std::string setting_text(bool x) {
  return x ? "true" : "false";
}
std::string setting_text(const std::string& x) {
  return x;
}
template <class T>
std::string setting_text(const std::vector<T>& list) {
  return list_text(list, " ", [](const T& x) { return setting_text(x); });
}

bool parse_setting(const std::string& text, bool& x) {
  x = text == "true";
  return x || text == "false";
}
bool parse_setting(const std::string& text, std::string& x) {
  x = text;
  return true;
}
bool parse_setting(const std::string& text, auto& x) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  return error == std::errc() && end == text.data() + text.size();
}
template <class T>
bool parse_setting(const std::string& text, std::vector<T>& list) {
  list.clear();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (!parse_setting(text.substr(at, end - at), list.emplace_back())) return false;
    at = end + 1;
  }
  return true;
}

nn::Architecture named(const std::string& name, const std::vector<nn::Architecture>& known) {
  for (const nn::Architecture& a : known)
    if (a.name() == name) return a;
  return nn::architecture_named(name);  // throws
}

}  // namespace

Metadata to_metadata(nn::ModelConfig c) {
  c.architecture.complete(c);
  Metadata m{{"model", c.architecture.name()}};
  for (const nn::Setting& s : c.settings()) {
    const std::string text = std::visit([](const auto* value) { return setting_text(*value); }, s.value);
    if (s.absent != text) m[s.name] = text;
  }
  return m;
}

nn::ModelConfig model_config(const Metadata& metadata, const std::string& where,
                             const std::vector<nn::Architecture>& known) {
  const auto value = [&](const std::string& key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw FormatError(where + ": metadata has no " + key);
    return found->second;
  };
  return with_format_errors(where, [&] {
    nn::ModelConfig c{.architecture = named(value("model"), known)};
    for (const nn::Setting& s : c.settings()) {
      const std::string& text = s.absent && !metadata.contains(s.name) ? *s.absent : value(s.name);
      if (!std::visit([&](auto* to) { return parse_setting(text, *to); }, s.value))
        throw FormatError(where + ": metadata has " + s.name + " '" + text + "'");
    }
    c.check();
    return c;
  });
}

nn::ModelConfig model_config(const SafeTensors& file, const std::string& where,
                             const std::vector<nn::Architecture>& known) {
  const nn::ModelConfig c = model_config(file.metadata, where, known);
  std::set<std::string> seen;
  std::optional<DType> dtype;  // of the first tensor; all others must have the same dtype
  with_format_errors(where, [&] {
    c.each_parameter([&](const std::string& name, const Shape& shape) {
      dtype = tensor_like(file.tensors, name, shape, dtype, where).dtype;
      seen.insert(name);
    });
  });
  for (const auto& [name, tensor] : file.tensors)
    if (!seen.contains(name))
      throw FormatError(where + ": has a tensor " + name + " that the model does not have");
  if (dtype && !is_float(*dtype))
    throw FormatError(where + ": its weights are " + std::string(name_of(*dtype)) +
                      ", expected a floating type");
  check_settings(c, file.metadata, where);
  return c;
}

}  // namespace tg::io
