// A short list of up to eight 64-bit numbers, held in place: a shape, strides, or axes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/error.h>

namespace tg {

inline constexpr int max_rank = 8;

class Dims {
 public:
  Dims() = default;
  constexpr Dims(std::initializer_list<std::int64_t> v)
      : Dims(std::span<const std::int64_t>(v.begin(), v.size())) {}
  Dims(const std::vector<std::int64_t>& v) : Dims(std::span<const std::int64_t>(v)) {}
  constexpr explicit Dims(std::span<const std::int64_t> v) {
    for (std::int64_t d : v) push_back(d);
  }
  // n copies of one value.
  static Dims filled(int n, std::int64_t value) {
    Dims d;
    for (int i = 0; i < n; ++i) d.push_back(value);
    return d;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t operator[](int i) const { return v_[i]; }
  std::int64_t& operator[](int i) { return v_[i]; }
  std::int64_t back() const { return v_[size_ - 1]; }
  const std::int64_t* begin() const { return v_; }
  const std::int64_t* end() const { return v_ + size_; }
  std::int64_t* begin() { return v_; }
  std::int64_t* end() { return v_ + size_; }
  bool contains(std::int64_t x) const { return std::find(begin(), end(), x) != end(); }

  constexpr void push_back(std::int64_t d) {
    if (size_ == max_rank) throw ShapeError("[tensor] more than 8 dimensions");
    v_[size_++] = d;
  }
  void insert(int at, std::int64_t d) {
    push_back(d);
    std::rotate(v_ + at, v_ + size_ - 1, v_ + size_);
  }
  void erase(int at) {
    std::copy(v_ + at + 1, v_ + size_, v_ + at);
    --size_;
  }

  friend bool operator==(const Dims& a, const Dims& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

  std::string text() const {  // "[2, 3]"
    std::string s = "[";
    for (int i = 0; i < size_; ++i) s += (i ? ", " : "") + std::to_string(v_[i]);
    return s + "]";
  }

 private:
  std::int64_t v_[max_rank] = {};
  int size_ = 0;
};

using Shape = Dims;    // sizes, outermost first
using Strides = Dims;  // elements to step over per axis
using Axes = Dims;     // axis numbers; negative ones count from the end

}  // namespace tg
