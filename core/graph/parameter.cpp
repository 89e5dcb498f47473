#include <tilegrad/core/graph/parameter.h>

#include <tilegrad/core/run/backend.h>
#include "core/base/messages.h"

namespace tg {

Parameter::Parameter(std::string name, const Array& value, Device device)
    : state_(std::make_shared<State>(std::move(name), value.shape(), value.dtype(), device)) {
  check_name("parameter", this->name());
  state_->memory = backend(device).allocate(value.bytes(), "parameter " + state_->name);
  write(value);
}

Parameter::Parameter(std::string name, const Shape& shape, DType dtype, Device device)
    : state_(std::make_shared<State>(std::move(name), shape, dtype, device)) {
  check_name("parameter", this->name());
  state_->memory = backend(device).allocate(bytes(), "parameter " + state_->name);
}

Parameter Parameter::part(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first > numel(shape()) || count > numel(shape()) - first)
    throw ShapeError("[parameter] " + name() + " is " + shape().text() + ": it has no " +
                     std::to_string(count) + " elements from " + std::to_string(first) + " on");
  Parameter p;
  p.state_ = std::make_shared<State>(name(), Shape{count}, dtype(), device());
  p.state_->memory = {state().memory, memory() + static_cast<std::size_t>(first) * size_of(dtype())};
  p.state_->last_change = state().last_change;
  return p;
}

void Parameter::refuse() {
  throw Error("[parameter] an empty Parameter was used: it was default-constructed or moved from");
}

Array Parameter::read() const {
  if (last_change() == 0 && bytes() > 0)  // a constructor does not count as a write
    throw Error("[parameter] " + name() + " " + shape().text() +
                " has no value yet: expected write(), or a run that assigns it, before read()");
  Array a(shape(), dtype());
  backend(device()).read(a.raw(), memory(), a.bytes());
  return a;
}

void Parameter::write(const Array& value) {
  if (value.shape() != shape())
    throw ShapeError("[parameter] " + name() + " has shape " + shape().text() + ", got " +
                     value.shape().text());
  if (value.dtype() != dtype())
    throw DTypeError("[parameter] " + name() + " is " + std::string(name_of(dtype())) + ", got " +
                     std::string(name_of(value.dtype())));
  refuse_if_running("parameter");
  backend(device()).write(memory(), value.raw(), value.bytes());
  note_change(new_change());
}

void Parameter::write_bytes(std::size_t offset, std::span<const std::byte> part) {
  if (offset > bytes() || part.size() > bytes() - offset)
    throw ShapeError("[parameter] " + name() + " has " + std::to_string(bytes()) + " bytes, got " +
                     std::to_string(part.size()) + " for offset " + std::to_string(offset));
  refuse_if_running("parameter");
  backend(device()).write(memory() + offset, part.data(), part.size());
  note_change(new_change());
}

std::uint64_t Parameter::new_change() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

void Parameter::note_change(std::uint64_t number) {
  state();
  *state_->last_change = number;
}

void Parameter::add_setting(const std::string& name, std::string value) {
  state();
  check_name("parameter", name);
  check_name("parameter", value);
  state_->settings[name] = std::move(value);
}

}  // namespace tg
