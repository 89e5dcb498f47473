// HostView: a tensor's values in host memory, row-major without gaps. The operands of user-defined ops.
#pragma once

#include <functional>
#include <span>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/base/layout.h>

namespace tg {

// Whether the dtype has this number: an integer type has whole numbers in its range, bool 0 and 1, a floating
// type all but finite numbers that it would round to infinity.
bool holds(DType dtype, double number);

// Reads element i of a gap-free buffer as a double; writes it, converted to the dtype: fractions are cut for
// integers, and DTypeError is thrown for what is then out of their range.
double load_element(DType dtype, const std::byte* data, std::int64_t i);
void store_element(DType dtype, std::byte* data, std::int64_t i, double value);
// The nearest number of a floating dtype, which it stores for this one.
double stored_number(DType dtype, double number);
namespace detail {
// Converts n elements as store_element() does, each rounded once: integers that no double has, too.
void convert_elements(DType from, const std::byte* source, DType to, std::byte* target, std::int64_t n);
}  // namespace detail

struct HostView {
  DType dtype;
  Shape shape;
  std::byte* data = nullptr;

  std::int64_t numel() const { return tg::numel(shape); }
  // The elements in row-major order; throws DTypeError if T is not their type.
  template <class T>
  std::span<T> values() const {
    check_type(dtype_of<std::remove_const_t<T>>);
    return {reinterpret_cast<T*>(data), static_cast<std::size_t>(numel())};
  }
  // The same for any dtype, one element at a time; throws ShapeError if there is no such element.
  double at(std::int64_t i) const {
    check_index(i);
    return load_element(dtype, data, i);
  }
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
