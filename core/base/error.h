// The library's exceptions. A message contains the layer if there is one, the op or function, the given
// values and the expected values. If the user's source line is known, it follows: `[h.3.attn/matmul] inner
// sizes differ: a [4, 8] · b [9, 3] (train.cpp:41)`.
#pragma once

#include <stdexcept>
#include <string>

namespace tg {

// Base class of all exceptions of the library. The message is one line of at most about 4 KiB: control
// characters are escaped, and the middle of a longer message is omitted.
struct Error : std::runtime_error {
  // Creates an error with this message.
  explicit Error(const std::string& message);
  // Creates an error with this message.
  explicit Error(const char* message);
};
// Shapes, axes or strides that do not match.
struct ShapeError : Error {
  using Error::Error;
};
// An element type that the op or function does not support.
struct DTypeError : Error {
  using Error::Error;
};
// A backend or device that is missing, or an op that it cannot run.
struct DeviceError : Error {
  using Error::Error;
};
// Memory is exhausted. The message contains the number of needed bytes and, if known, of available bytes.
struct OutOfMemory : Error {
  using Error::Error;
};
// A file that does not have the expected format.
struct FormatError : Error {
  using Error::Error;
};
// A gradient that does not exist or would be cut silently.
struct GradientError : Error {
  using Error::Error;
};

}  // namespace tg
