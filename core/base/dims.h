// Dims: up to eight 64-bit integers, stored in place, for shapes, strides and axes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/error.h>

namespace tg {

// Maximum number of axes.
inline constexpr int max_rank = 8;

// A list of up to max_rank integers. Its functions do not check indices.
class Dims {
 public:
  // An empty list.
  Dims() = default;
  // A list of these numbers. Throws ShapeError if there are more than max_rank. The next two constructors
  // also throw it.
  constexpr Dims(std::initializer_list<std::int64_t> v)
      : Dims(std::span<const std::int64_t>(v.begin(), v.size())) {}
  // A copy of a vector.
  Dims(const std::vector<std::int64_t>& v) : Dims(std::span<const std::int64_t>(v)) {}
  // A copy of a span.
  constexpr explicit Dims(std::span<const std::int64_t> v) {
    for (std::int64_t d : v) push_back(d);
  }
  // Returns n copies of one value.
  static Dims filled(int n, std::int64_t value) {
    Dims d;
    for (int i = 0; i < n; ++i) d.push_back(value);
    return d;
  }

  // Number of elements.
  int size() const { return size_; }
  // Whether the list is empty.
  bool empty() const { return size_ == 0; }
  // Element i.
  std::int64_t operator[](int i) const { return v_[i]; }
  // Element i.
  std::int64_t& operator[](int i) { return v_[i]; }
  // The last element.
  std::int64_t back() const { return v_[size_ - 1]; }
  // The first element.
  const std::int64_t* begin() const { return v_; }
  // The end of the elements.
  const std::int64_t* end() const { return v_ + size_; }
  // The first element.
  std::int64_t* begin() { return v_; }
  // The end of the elements.
  std::int64_t* end() { return v_ + size_; }
  // Whether an element equals x.
  bool contains(std::int64_t x) const { return std::find(begin(), end(), x) != end(); }

  // Appends an element. Throws ShapeError if the list is full.
  constexpr void push_back(std::int64_t d) {
    if (size_ == max_rank) throw ShapeError("[tensor] more than 8 dimensions");
    v_[size_++] = d;
  }
  // Inserts an element before index `at`. Throws ShapeError if the list is full.
  void insert(int at, std::int64_t d) {
    push_back(d);
    std::rotate(v_ + at, v_ + size_ - 1, v_ + size_);
  }
  // Removes the element at index `at`.
  void erase(int at) {
    std::copy(v_ + at + 1, v_ + size_, v_ + at);
    --size_;
  }

  // Whether all elements are equal.
  friend bool operator==(const Dims& a, const Dims& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

  // The list in brackets: "[2, 3]".
  std::string text() const {
    std::string s = "[";
    for (int i = 0; i < size_; ++i) s += (i ? ", " : "") + std::to_string(v_[i]);
    return s + "]";
  }

 private:
  std::int64_t v_[max_rank] = {};
  int size_ = 0;
};

using Shape = Dims;    // sizes, outermost axis first
using Strides = Dims;  // distance between neighbors along each axis, in elements
using Axes = Dims;     // axis numbers; negative ones count from the end

}  // namespace tg
