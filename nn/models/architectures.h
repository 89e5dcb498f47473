// The architectures that checkpoints and tools know by name. One more is a file like nn/models/llama.h and a
// line in nn/models/architectures.cpp.
#pragma once

#include <string_view>

#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>

namespace tg::nn {

// "gpt", "llama", "deepseek", each with its default settings.
const std::vector<Architecture>& architectures();
// Throws Error for a name that none of them has.
Architecture architecture_named(std::string_view name);

}  // namespace tg::nn
