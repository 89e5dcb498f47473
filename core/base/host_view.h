// HostView: a tensor's values in host memory, row-major and without gaps. User-defined ops have operands of
// this type.
#pragma once

#include <functional>
#include <span>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/base/layout.h>

namespace tg {

// Whether the dtype can represent the number. Integer types represent the integers in their range, and bool
// represents 0 and 1. A floating type represents every number except finite numbers that would be rounded to
// infinity.
bool holds(DType dtype, double number);

// Reads element i of a buffer without gaps as a double.
double load_element(DType dtype, const std::byte* data, std::int64_t i);
// Converts a value to the dtype and writes it to element i of a buffer without gaps. Integer dtypes truncate
// fractions. Throws DTypeError if the result is out of an integer type's range.
void store_element(DType dtype, std::byte* data, std::int64_t i, double value);
// Returns the nearest number that the floating dtype can represent.
double stored_number(DType dtype, double number);
namespace detail {
// Converts n elements as store_element() does. Each element is rounded once, even an integer that double
// cannot represent.
void convert_elements(DType from, const std::byte* source, DType to, std::byte* target, std::int64_t n);
}  // namespace detail

// A view of a tensor in host memory, which it does not own.
struct HostView {
  DType dtype;                // element type
  Shape shape;                // shape
  std::byte* data = nullptr;  // the elements in row-major order

  // Number of elements.
  std::int64_t numel() const { return tg::numel(shape); }
  // The elements in row-major order. Throws DTypeError if T is not their type.
  template <class T>
  std::span<T> values() const {
    check_type(dtype_of<std::remove_const_t<T>>);
    return {reinterpret_cast<T*>(data), static_cast<std::size_t>(numel())};
  }
  // Reads element i of any dtype as a double. Throws ShapeError if there is no such element.
  double at(std::int64_t i) const {
    check_index(i);
    return load_element(dtype, data, i);
  }
  // Writes element i, converted as by store_element(). Throws ShapeError if there is no such element.
  void set(std::int64_t i, double value) const {
    check_index(i);
    store_element(dtype, data, i, value);
  }

 private:
  void check_index(std::int64_t i) const;
  void check_type(DType expected) const;
};

// An op's kernel as a C++ function: it reads `in` and writes every element of `out`.
using HostKernel =
    std::function<void(std::span<const HostView> in, std::span<const HostView> out, const Attrs& attrs)>;

}  // namespace tg
