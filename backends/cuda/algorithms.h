// Which algorithm was the fastest for a product, remembered in a file, so that later runs choose the same one
// and give the same bits: $XDG_CACHE_HOME/tilegrad (or ~/.cache/tilegrad), one file for each kind of GPU and
// version of cuBLASLt. Where it cannot be written, choices last as long as the process.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <optional>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

std::optional<cublasLtMatmulAlgo_t> known_algorithm(const std::array<std::uint64_t, 2>& key, const Gpu& gpu);
void keep_algorithm(const std::array<std::uint64_t, 2>& key, const Gpu& gpu,
                    const cublasLtMatmulAlgo_t& algorithm);

}  // namespace tg::cuda
