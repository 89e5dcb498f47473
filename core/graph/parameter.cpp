#include <tilegrad/core/graph/parameter.h>

#include <tilegrad/core/run/backend.h>

namespace tg {

Parameter::Parameter(std::string name, const Array& value, Device device)
    : state_(std::make_shared<State>(State{std::move(name), value.shape(), value.dtype(), device, nullptr})) {
  state_->memory = backend(device).allocate(value.bytes(), "parameter " + state_->name);
  write(value);
}

void Parameter::refuse() {
  throw Error("[parameter] an empty Parameter was used: it was default-constructed or moved from");
}

Array Parameter::read() const {
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
  backend(device()).write(memory(), value.raw(), value.bytes());
}

}  // namespace tg
