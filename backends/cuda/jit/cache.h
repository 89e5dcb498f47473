// The folder that caches kernels and choices between processes: $XDG_CACHE_HOME/tilegrad, or
// ~/.cache/tilegrad.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

namespace tg::cuda {

// Creates the folder if needed. An empty path if there is none.
std::filesystem::path cache_folder();

// 32 hexadecimal digits.
std::string text_of(const std::array<std::uint64_t, 2>& digest);

}  // namespace tg::cuda
