// Array: a tensor's values on the host, row-major. Programs are fed with Arrays and return them. Copies of an
// Array share the same memory; copy() makes one with memory of its own.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/base/layout.h>

namespace tg {

class Array {
 public:
  Array() = default;
  // Zeros. Throws OutOfMemory with the bytes needed.
  Array(const Shape& shape, DType dtype);
  Array(const Array&) = default;
  Array& operator=(const Array&) = default;
  Array(Array&& other) noexcept { *this = std::move(other); }  // leaves an empty Array behind: shape [0]
  Array& operator=(Array&& other) noexcept;
  // Copies values in row-major order; throws ShapeError if their number is not the shape's.
  template <class T>
  static Array of(const Shape& shape, const std::vector<T>& values) {
    check_count(shape, values.size());
    Array a(shape, dtype_of<T>);
    for (std::size_t i = 0; i < values.size(); ++i) a.data<T>()[i] = values[i];
    return a;
  }
  template <class T>
  static Array of(const std::vector<T>& values) {
    return of<T>(Shape{static_cast<std::int64_t>(values.size())}, values);
  }

  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  std::int64_t numel() const { return numel_; }
  std::size_t bytes() const { return static_cast<std::size_t>(numel_) * size_of(dtype_); }
  std::byte* raw() { return data_.get(); }
  const std::byte* raw() const { return data_.get(); }

  // The elements; throws DTypeError if T is not the array's type.
  template <class T>
  T* data() {
    check_type(dtype_of<T>);
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  const T* data() const {
    return const_cast<Array*>(this)->data<T>();
  }
  template <class T>
  std::vector<T> values() const {
    return std::vector<T>(data<T>(), data<T>() + numel());
  }
  template <class T>
  T item() const {  // the only element; throws ShapeError if there is not exactly one
    check_count(shape_, 1);
    return *data<T>();
  }
  // Element i in row-major order, as a double or converted to the dtype as cast() does. Throws ShapeError if
  // there is no such element, DTypeError for a number out of an integer type's range.
  double at(std::int64_t i) const;
  void set(std::int64_t i, double value);
  Array copy() const;
  Array to(DType dtype) const;                                 // every element converted
  bool same_bits(const Array& other) const;                    // equal in shape, dtype and bytes
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
