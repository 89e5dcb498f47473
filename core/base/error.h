// The library's exceptions. Every message names the op or function, what it got and what it wanted, and where
// known the user's source line: "[matmul] inner sizes differ: a [4, 8] · b [9, 3] (train.cpp:41)".
#pragma once

#include <stdexcept>
#include <string>

namespace tg {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ShapeError : Error {
  using Error::Error;
};  // shapes, axes or strides that do not fit
struct DTypeError : Error {
  using Error::Error;
};  // an element type the op does not take
struct DeviceError : Error {
  using Error::Error;
};  // a backend that is missing, or an op it cannot run
struct OutOfMemory : Error {
  using Error::Error;
};  // says what was needed and what there was
struct FormatError : Error {
  using Error::Error;
};  // a file that is not what it claims to be
struct GradientError : Error {
  using Error::Error;
};  // a gradient that does not exist or would be cut

}  // namespace tg
