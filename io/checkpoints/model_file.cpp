#include <tilegrad/io/checkpoints/model_file.h>

#include <charconv>

#include <tilegrad/core/base/error.h>

namespace tg::io {

namespace {

std::string text_of(double x) {
  char digits[40];
  return {digits, std::to_chars(digits, digits + sizeof digits, x).ptr};
}
std::string text_of(std::int64_t x) {
  return std::to_string(x);
}
std::string text_of(bool x) {
  return x ? "true" : "false";
}

bool parse(const std::string& text, bool& x) {
  x = text == "true";
  return x || text == "false";
}
bool parse(const std::string& text, auto& x) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  return error == std::errc() && end == text.data() + text.size();
}

// Calls field(key, member) for all that a model of the configuration's architecture depends on.
void each_field(auto&& config, auto&& field) {
  field("vocabulary", config.vocabulary), field("context", config.context), field("layers", config.layers);
  field("heads", config.heads), field("width", config.width), field("bias", config.bias);
  field("tied_head", config.tied_head);
  if (config.architecture == nn::Architecture::gpt) return;
  field("mlp_width", config.mlp_width), field("theta", config.theta);
  if (config.architecture == nn::Architecture::llama) {
    field("key_heads", config.key_heads);
  } else {
    field("latent", config.latent), field("query_latent", config.query_latent);
    field("rope_width", config.rope_width);
  }
}

}  // namespace

Metadata to_metadata(const nn::ModelConfig& config) {
  nn::ModelConfig c = config;  // with sizes for zeros that stand for one
  c.mlp_width = config.inner_width();
  if (c.key_heads == 0) c.key_heads = c.heads;
  Metadata m{{"model", std::string(name_of(c.architecture))}};
  each_field(c, [&](const char* key, const auto& value) { m[key] = text_of(value); });
  return m;
}

nn::ModelConfig model_config(const Metadata& metadata, const std::string& where) {
  const auto value = [&](const std::string& key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw FormatError(where + ": metadata has no " + key);
    return found->second;
  };
  try {
    nn::ModelConfig c;
    c.architecture = nn::architecture_named(value("model"));
    each_field(c, [&](const char* key, auto& member) {
      if (!parse(value(key), member))
        throw FormatError(where + ": metadata has " + key + " '" + value(key) + "'");
    });
    c.check();
    return c;
  } catch (const FormatError&) {
    throw;
  } catch (const Error& e) {
    throw FormatError(where + ": " + e.what());
  }
}

nn::ModelConfig model_config(const SafeTensors& file, const std::string& where) {
  const nn::ModelConfig c = model_config(file.metadata, where);
  if (c.layers > std::ssize(file.tensors))
    throw FormatError(where + ": metadata has layers '" + std::to_string(c.layers) + "', the file only " +
                      std::to_string(file.tensors.size()) + " tensors");
  return c;
}

}  // namespace tg::io
