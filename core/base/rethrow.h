// An exception on its way to the user, with more in its message.
#pragma once

#include <exception>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

// For a catch block: throws an exception of the same type with the text message(what). One that is not the
// library's becomes an Error, in which it is nested (std::rethrow_if_nested).
template <class F>
[[noreturn]] void rethrow_with(F message) {
  try {
    throw;
  } catch (const ShapeError& e) {
    throw ShapeError(message(e.what()));
  } catch (const DTypeError& e) {
    throw DTypeError(message(e.what()));
  } catch (const DeviceError& e) {
    throw DeviceError(message(e.what()));
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(message(e.what()));
  } catch (const FormatError& e) {
    throw FormatError(message(e.what()));
  } catch (const GradientError& e) {
    throw GradientError(message(e.what()));
  } catch (const Error& e) {
    throw Error(message(e.what()));
  } catch (const std::exception& e) {
    std::throw_with_nested(Error(message(e.what())));
  } catch (...) {
    std::throw_with_nested(Error(message("an exception that is no std::exception")));
  }
}

}  // namespace tg
