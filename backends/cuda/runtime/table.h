// Tables that a kernel's plan keeps in device memory.
#pragma once

#include <memory>
#include <vector>

namespace tg::cuda {

// Device memory of `count` bytes, a copy of host memory or filled with zeros. It is ready when this returns.
std::shared_ptr<void> on_device(const void* bytes, std::size_t count);
std::shared_ptr<void> zeros_on_device(std::size_t count);

template <class T>
std::shared_ptr<const T> on_device(const std::vector<T>& table) {
  return std::static_pointer_cast<const T>(on_device(table.data(), table.size() * sizeof(T)));
}

}  // namespace tg::cuda
