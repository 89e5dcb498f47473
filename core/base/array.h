// Array: a tensor's values on the host, row-major. Programs accept and return Arrays. Copies of an Array
// share the same memory; copy() returns an Array with separate memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/base/layout.h>

namespace tg {

// A row-major tensor in host memory.
class Array {
 public:
  // An Array without elements: shape [0], f32.
  Array() = default;
  // Creates an Array of zeros. Throws OutOfMemory with the number of bytes.
  Array(const Shape& shape, DType dtype);
  // Shares the memory of the other Array.
  Array(const Array&) = default;
  // Shares the memory of the other Array.
  Array& operator=(const Array&) = default;
  // Moves the memory; `other` becomes empty, with shape [0].
  Array(Array&& other) noexcept { *this = std::move(other); }
  // Moves the memory; `other` becomes empty, with shape [0].
  Array& operator=(Array&& other) noexcept;
  // Copies values in row-major order. Throws ShapeError if the number of values differs from the number of
  // elements of the shape.
  template <class T>
  static Array of(const Shape& shape, const std::vector<T>& values) {
    check_count(shape, values.size());
    Array a(shape, dtype_of<T>);
    for (std::size_t i = 0; i < values.size(); ++i) a.data<T>()[i] = values[i];
    return a;
  }
  // Copies values as an Array of rank 1.
  template <class T>
  static Array of(const std::vector<T>& values) {
    return of<T>(Shape{static_cast<std::int64_t>(values.size())}, values);
  }

  // The shape.
  const Shape& shape() const { return shape_; }
  // The element type.
  DType dtype() const { return dtype_; }
  // Number of elements.
  std::int64_t numel() const { return numel_; }
  // Size of the values in bytes.
  std::size_t bytes() const { return static_cast<std::size_t>(numel_) * size_of(dtype_); }
  // The memory of the elements; null for a default Array.
  std::byte* raw() { return data_.get(); }
  // The memory of the elements; null for a default Array.
  const std::byte* raw() const { return data_.get(); }

  // The elements. Throws DTypeError if T is not the array's type.
  template <class T>
  T* data() {
    check_type(dtype_of<T>);
    return reinterpret_cast<T*>(data_.get());
  }
  // The elements. Throws DTypeError if T is not the array's type.
  template <class T>
  const T* data() const {
    return const_cast<Array*>(this)->data<T>();
  }
  // Returns a copy of the elements. Throws DTypeError if T is not the array's type.
  template <class T>
  std::vector<T> values() const {
    return std::vector<T>(data<T>(), data<T>() + numel());
  }
  // Returns the only element. Throws ShapeError unless there is exactly one, and DTypeError if T is not the
  // array's type.
  template <class T>
  T item() const {
    check_count(shape_, 1);
    return *data<T>();
  }
  // Returns element i, in row-major order, as a double. Throws ShapeError if there is no such element.
  double at(std::int64_t i) const;
  // Sets element i, in row-major order, converted to the dtype as by cast(). Throws ShapeError if there is no
  // such element, and DTypeError for a number out of an integer type's range.
  void set(std::int64_t i, double value);
  // Returns a copy with separate memory.
  Array copy() const;
  Array to(DType dtype) const;                                 // every element converted, as by cast()
  bool same_bits(const Array& other) const;                    // whether shape, dtype and bytes are equal
  std::shared_ptr<const void> share() const { return data_; }  // keeps the values alive
  std::string text() const;  // "f32 [2] {1, 2}"; without values if there are more than 16

 private:
  void check_type(DType expected) const;
  void check_index(std::int64_t i) const;
  static void check_count(const Shape& shape, std::size_t count);
  static constexpr Shape no_elements{0};
  Shape shape_ = no_elements;
  std::int64_t numel_ = 0;
  DType dtype_ = f32;
  std::shared_ptr<std::byte[]> data_;
};

}  // namespace tg
