// The library's exceptions. Every message names the op or function, with its layer if it has one, what it got
// and what it needed, and the user's source line where it is known:
//   "[h.3.attn/matmul] inner sizes differ: a [4, 8] · b [9, 3] (train.cpp:41)"
#pragma once

#include <stdexcept>
#include <string>

namespace tg {

// The message is one line of at most about 4 KiB: control characters become escapes, and the middle of a
// longer text is left out.
struct Error : std::runtime_error {
  explicit Error(const std::string& message);
  explicit Error(const char* message);
};
// Shapes, axes or strides that do not fit.
struct ShapeError : Error {
  using Error::Error;
};
// An element type that the op or function does not support.
struct DTypeError : Error {
  using Error::Error;
};
// A backend that is missing, or an op that it cannot run.
struct DeviceError : Error {
  using Error::Error;
};
// Names the bytes needed and, if known, the bytes available.
struct OutOfMemory : Error {
  using Error::Error;
};
// A file that does not have the format it should have.
struct FormatError : Error {
  using Error::Error;
};
// A gradient that does not exist or would be cut.
struct GradientError : Error {
  using Error::Error;
};

}  // namespace tg
