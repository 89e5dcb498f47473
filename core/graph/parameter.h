// Parameter: a named, row-major tensor that exists outside graphs and programs, for weights, optimizer state
// and caches. Copies of a Parameter refer to the same memory.
//
// Threads: several threads may read() a parameter and run programs that do not assign it. While a thread
// writes to a parameter, or runs a program that assigns it, no other thread may use the parameter. If write()
// or Program::run() detects such use, it throws Error.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include <tilegrad/core/base/array.h>
#include <tilegrad/core/base/device.h>

namespace tg {

class Backend;

// A named tensor in device memory whose value outlives programs.
class Parameter {
 public:
  // An empty parameter: all functions except key() throw Error.
  Parameter() = default;
  // Copies `value` to the device. Throws OutOfMemory. Throws DeviceError if the device does not exist, and
  // Error for a name with control characters.
  Parameter(std::string name, const Array& value, Device device = Device::cpu());
  // Allocates memory without setting it. The value is undefined until write() or write_bytes() has written
  // all of it.
  Parameter(std::string name, const Shape& shape, DType dtype, Device device);
  // Returns elements first … first + count − 1, in row-major order, as a parameter [count]. It shares the
  // memory, so changes of the part are visible in the whole, and vice versa. Throws ShapeError unless the
  // range is within the parameter. A program that assigns a part must not use the whole. A program that
  // assigns the whole must not use a part. In both cases compile() throws Error.
  Parameter part(std::int64_t first, std::int64_t count) const;

  // The name.
  const std::string& name() const { return state().name; }
  // The shape.
  const Shape& shape() const { return state().shape; }
  // The element type.
  DType dtype() const { return state().dtype; }
  // The device whose memory stores the value.
  Device device() const { return state().device; }
  // Size of the value in bytes.
  std::size_t bytes() const { return static_cast<std::size_t>(numel(shape())) * size_of(dtype()); }

  // Returns a copy on the host. Throws Error if the value was never written. On a GPU it waits for earlier
  // runs and throws their errors.
  Array read() const;
  // Copies a value. Throws ShapeError or DTypeError unless it has the same shape and dtype.
  void write(const Array& value);
  // Copies bytes to the given byte offset. Throws ShapeError if they exceed the parameter.
  void write_bytes(std::size_t offset, std::span<const std::byte> bytes);
  // Settings that affect results but cannot be derived from the values, such as "h.0.attn.heads": "6". They
  // are saved in files with the parameters and compared when a file is loaded (io/checkpoints/checkpoint.h).
  using Settings = std::map<std::string, std::string>;
  // The settings, by name.
  const Settings& settings() const { return state().settings; }
  void add_setting(const std::string& name, std::string value);  // throws Error for control characters

  // Whether the parameter is frozen, that is, used but not trained. An optimizer that is created later skips
  // a frozen parameter, which then gets no gradient, no moments and no update. A frozen parameter can have a
  // 16-bit dtype, because no small updates would be lost to rounding.
  bool is_frozen() const { return state().is_frozen; }
  // Freezes the parameter.
  void freeze() { set_frozen(true); }
  // Makes the parameter trainable again.
  void unfreeze() { set_frozen(false); }

  // The number of the last write or run that changed the value. All changes by one run have the same number.
  std::uint64_t last_change() const { return *state().last_change; }
  static std::uint64_t new_change();       // returns a number for a new change
  void note_change(std::uint64_t number);  // for code that writes to memory() without a program

  // The device memory of the value.
  std::byte* memory() const { return state().memory.get(); }
  // Identifies the parameter: equal for copies. A part has a different key from the whole. Null if empty.
  const void* key() const { return state_.get(); }

 private:
  struct State {
    State(std::string n, const Shape& s, DType t, Device d)
        : name(std::move(n)), shape(s), dtype(t), device(d) {}
    std::string name;
    Shape shape;
    DType dtype;
    Device device;
    std::shared_ptr<std::byte> memory;
    Settings settings = {};
    bool is_frozen = false;
    std::shared_ptr<std::atomic<std::uint64_t>> last_change = std::make_shared<std::atomic<std::uint64_t>>(0);
  };
  const State& state() const {
    if (!state_) refuse();
    return *state_;
  }
  void set_frozen(bool frozen) {
    state();
    state_->is_frozen = frozen;
  }
  [[noreturn]] static void refuse();
  void refuse_if_running(const char* who) const;  // core/run/running.cpp
  std::shared_ptr<State> state_;
};

}  // namespace tg
