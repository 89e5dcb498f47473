// Kernels that are compiled at run time from CUDA C++ source, once for each GPU, and cached by the hash of
// the source. Also manages the cache folder: $XDG_CACHE_HOME/tilegrad, or ~/.cache/tilegrad. It keeps these
// kernels and the algorithm choices (algorithms.h) for later processes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Returns the cache folder and creates it if needed. Returns an empty path if there is none.
std::filesystem::path cache_folder();
// Returns 16 hexadecimal digits.
std::string hexadecimal(std::uint64_t x);

// Returns the kernel `name` (extern "C") of the source, valid for the life of the process. Throws DeviceError
// with the compiler's log if the source does not compile.
cudaKernel_t compiled(const std::string& source, const std::string& name, const Gpu& gpu);

// Launches such a kernel. All of its parameters are pointers. On Hopper it may begin before the previous
// kernel has finished, because its source begins with fused_begins_early (fused_source.h).
void launch_compiled(const Stream& s, cudaKernel_t kernel, unsigned grid, unsigned block,
                     std::vector<const void*> parameters, const char* what);

}  // namespace tg::cuda
