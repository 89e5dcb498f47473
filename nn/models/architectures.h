// The architectures that checkpoints and tools know by name. Adding one takes a file like nn/models/llama.h
// and a line in nn/models/architectures.cpp.
#pragma once

#include <string_view>
#include <vector>

#include <tilegrad/nn/models/architecture.h>

namespace tg::nn {

// "gpt", "llama", "deepseek", each with its default settings.
const std::vector<Architecture>& architectures();
// Throws Error for any other name.
Architecture architecture_named(std::string_view name);

}  // namespace tg::nn
