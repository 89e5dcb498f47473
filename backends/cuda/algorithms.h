// A cache of the fastest cuBLASLt algorithm for each matmul, and of whether a kernel of our own is faster
// than several steps'. It is saved to a file, so that later runs choose the same algorithm and give the same
// bits: in $XDG_CACHE_HOME/tilegrad (or ~/.cache/tilegrad), one file for each kind of GPU and version of
// cuBLASLt. If the file cannot be written, choices last as long as the process.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <optional>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

std::optional<cublasLtMatmulAlgo_t> known_algorithm(const std::array<std::uint64_t, 2>& key, const Gpu& gpu);
void save_algorithm(const std::array<std::uint64_t, 2>& key, const Gpu& gpu,
                    const cublasLtMatmulAlgo_t& algorithm);

// The same of a choice between two kernels.
std::optional<bool> known_choice(const std::array<std::uint64_t, 2>& key, const Gpu& gpu);
void save_choice(const std::array<std::uint64_t, 2>& key, const Gpu& gpu, bool choice);

// Whether both are the same algorithm. Their bytes do not say: cuBLASLt leaves whatever was in memory in some
// of them.
bool is_same_algorithm(const cublasLtMatmulAlgo_t& a, const cublasLtMatmulAlgo_t& b);

}  // namespace tg::cuda
