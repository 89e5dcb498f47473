// Parameter: a named tensor that lives outside the graph and outlasts programs: weights, optimizer state,
// caches. Copies of the handle name the same memory. Row-major.
#pragma once

#include <memory>

#include <tilegrad/core/base/array.h>
#include <tilegrad/core/base/device.h>

namespace tg {

class Backend;

class Parameter {
 public:
  Parameter() = default;
  Parameter(std::string name, const Array& value, Device device = Device::cpu());

  const std::string& name() const { return state_->name; }
  const Shape& shape() const { return state_->shape; }
  DType dtype() const { return state_->dtype; }
  Device device() const { return state_->device; }
  std::size_t bytes() const { return static_cast<std::size_t>(numel(shape())) * size_of(dtype()); }

  Array read() const;              // a copy on the host
  void write(const Array& value);  // same shape and dtype, else ShapeError or DTypeError
  std::byte* memory() const { return state_->memory.get(); }
  const void* key() const { return state_.get(); }  // equal for handles on the same parameter

 private:
  struct State {
    std::string name;
    Shape shape;
    DType dtype;
    Device device;
    std::shared_ptr<std::byte> memory;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tg
