// Memory of the GPU and of the host: tables that a kernel's plan keeps, pinned memory, and memory for a
// measurement.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace tg::cuda {

// Device memory of `count` bytes, a copy of host memory or filled with zeros. It is ready when this returns.
std::shared_ptr<void> on_device(const void* bytes, std::size_t count);
std::shared_ptr<void> zeros_on_device(std::size_t count);

template <class T>
std::shared_ptr<const T> on_device(const std::vector<T>& table) {
  return std::static_pointer_cast<const T>(on_device(table.data(), table.size() * sizeof(T)));
}

// Host memory that the GPU reads and writes; throws OutOfMemory with the size.
std::byte* pinned_memory(std::size_t bytes, std::string_view what);

// Memory for a measurement; null for no bytes, and if the GPU has not as many.
class ScratchMemory {
 public:
  explicit ScratchMemory(std::size_t bytes);
  ~ScratchMemory() { cudaFree(data_); }
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace tg::cuda
