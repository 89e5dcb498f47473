// Which family a model goes out as: the first whose config.json, read again, says the model's settings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// The same model in the one form that a config.json gives it: sizes that stand for others filled in, settings
// that change nothing as they are where nothing is said. A GPT has biases.
nn::ModelConfig hf_plain(nn::ModelConfig model);

// The families that hf_model_text() writes, in the order in which one is looked for.
std::vector<std::string> hf_written_families();
// config.json of a model in that form, without ids and dtype; nothing if the family is of another
// architecture. What the family cannot say is left out.
std::optional<std::string> hf_model_text(const std::string& family, const nn::ModelConfig& plain);

}  // namespace tg::io
