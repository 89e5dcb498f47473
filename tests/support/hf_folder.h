// The folder of a small Llama, and its config.json. Tests change them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/tilegrad.h>
#include "io/models/hf_config.h"
#include "tests/support/files.h"

namespace tg::testing {

inline const std::string llama_json = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "vocab_size": 5, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "max_position_embeddings": 16, "hidden_act": "silu", "rms_norm_eps": 1e-5,
  "tie_word_embeddings": false})";

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

inline std::string llama_with(const std::string& members) {
  return replaced(llama_json, "\"model_type\"", members + ", \"model_type\"");
}

// Makes the folder of a model with an untied head. Tests change the folder.
struct Folder {
  TemporaryDirectory directory;
  std::string path = directory.path.string();
  nn::ModelConfig config = io::parse_hf_config(llama_json, "here").model;
  nn::Params params{3};
  nn::Model model{params, config};

  Folder() {
    directory.file("config.json", llama_json);
    save("model.safetensors", params.all());
  }
  void save(const std::string& name, const std::vector<Parameter>& parameters) const {
    io::save_parameters(directory / name, parameters);
  }
  void remove(const std::string& name) const { std::filesystem::remove(directory / name); }
  // Splits the weights into two shards. The index names `second` as the second shard.
  void shard(const std::string& second = "b.safetensors") const {
    remove("model.safetensors");
    const std::vector<Parameter>& all = params.all();
    const auto middle = all.begin() + 5;
    save("a.safetensors", {all.begin(), middle}), save("b.safetensors", {middle, all.end()});
    std::string map;
    for (auto p = all.begin(); p != all.end(); ++p)
      map += (map.empty() ? "" : ", ") + io::json_string(p->name()) + ": " +
             io::json_string(p < middle ? "a.safetensors" : second);
    directory.file("model.safetensors.index.json",
                   "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + map + "}}");
  }
  std::string error() const {
    std::string message = error_of([&] { nn::from_pretrained(path); });
    for (std::size_t at; (at = message.find(path)) != std::string::npos;)
      message.replace(at, path.size(), "DIR");
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  bool has_the_weights(DType dtype = f32) const {
    const nn::Pretrained made = nn::from_pretrained(path, Device::cpu(), {.dtype = dtype});
    for (const Parameter& p : made.model.parameters())
      if (!p.read().same_bits(params.find(p.name())->read().to(dtype))) return false;
    return true;
  }
};

}  // namespace tg::testing
