// Parameter: a named tensor that lives outside graphs and programs: weights, optimizer state, caches.
// Row-major. Copies of a Parameter are handles on the same memory.
//
// Threads: several threads may read() a parameter and run programs that do not assign it. While one thread
// writes to it or runs a program that assigns it, no other thread may use it. write() and Program::run()
// throw Error if they find that one does.
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

class Parameter {
 public:
  Parameter() = default;  // empty: what follows throws Error, but for key(), which is null
  // Copies the value to the device; throws OutOfMemory, or DeviceError if there is no such device, or Error
  // for a name with control characters.
  Parameter(std::string name, const Array& value, Device device = Device::cpu());
  // Its memory alone, whose content is undefined until write() or write_bytes() has set all of it.
  Parameter(std::string name, const Shape& shape, DType dtype, Device device);
  // Elements first … first + count − 1 in row-major order as a parameter [count] of its own, in the same
  // memory: what changes one of them changes the other. Throws ShapeError unless they lie within. A program
  // that assigns a part must not use the whole, nor the other way round: compile() throws Error.
  Parameter part(std::int64_t first, std::int64_t count) const;

  const std::string& name() const { return state().name; }
  const Shape& shape() const { return state().shape; }
  DType dtype() const { return state().dtype; }
  Device device() const { return state().device; }
  std::size_t bytes() const { return static_cast<std::size_t>(numel(shape())) * size_of(dtype()); }

  // A copy on the host; Error if never written. On a GPU it waits for earlier runs and throws their errors.
  Array read() const;
  // Copies a value of the same shape and dtype; throws ShapeError or DTypeError for another.
  void write(const Array& value);
  // Copies bytes to those that begin at `offset`; throws ShapeError for more than there are.
  void write_bytes(std::size_t offset, std::span<const std::byte> bytes);
  // What results depend on and values do not show, such as "h.0.attn.heads": "6". Files of parameters hold
  // it, and loading compares it (io/checkpoints/checkpoint.h).
  using Settings = std::map<std::string, std::string>;
  const Settings& settings() const { return state().settings; }
  void add_setting(const std::string& name, std::string value);  // throws Error for control characters

  // A frozen parameter is used, and not trained: an optimizer that is made afterwards leaves it out, so that
  // it gets no gradient, no moments and no update. Its dtype may then be a half type without a loss.
  bool is_frozen() const { return state().is_frozen; }
  void freeze() { set_frozen(true); }
  void unfreeze() { set_frozen(false); }

  // The number of the write or run that changed it last; what one run changes has one number.
  std::uint64_t last_change() const { return *state().last_change; }
  static std::uint64_t new_change();       // a number for a change that begins
  void note_change(std::uint64_t number);  // for who writes to memory() without a program

  std::byte* memory() const { return state().memory.get(); }
  const void* key() const { return state_.get(); }  // equal for handles on the same memory, but not of a part

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
