// The folder for what is worth keeping between processes: $XDG_CACHE_HOME/tilegrad, or ~/.cache/tilegrad.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

namespace tg::cuda {

// Made if it is not there; empty where there is none.
std::filesystem::path cache_folder();

// 32 hexadecimal digits.
std::string text_of(const std::array<std::uint64_t, 2>& digest);

}  // namespace tg::cuda
