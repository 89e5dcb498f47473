// GPU and host memory: tables that a kernel's plan keeps, pinned memory, and temporary memory for
// measurements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace tg::cuda {

// Returns device memory of `count` bytes that contains a copy of host memory, or zeros. It is ready on
// return.
std::shared_ptr<void> on_device(const void* bytes, std::size_t count);
std::shared_ptr<void> zeros_on_device(std::size_t count);

template <class T>
std::shared_ptr<const T> on_device(const std::vector<T>& table) {
  return std::static_pointer_cast<const T>(on_device(table.data(), table.size() * sizeof(T)));
}

// Returns host memory that the GPU can read and write. Throws OutOfMemory with the size.
std::byte* pinned_memory(std::size_t bytes, std::string_view what);

// Temporary memory for a measurement. Null if no bytes are requested, or if the GPU has too little free
// memory.
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
