#include <tilegrad/core/base/array.h>

#include <cstdio>
#include <cstring>
#include <new>

#include <tilegrad/core/base/host_view.h>
#include "core/base/alignment.h"

namespace tg {

Array::Array(const Shape& shape, DType dtype) : shape_(shape), dtype_(dtype) {
  const std::size_t n = aligned_bytes(bytes());
  auto* p = static_cast<std::byte*>(
      ::operator new[](std::max<std::size_t>(n, 64), std::align_val_t(64), std::nothrow));
  if (!p) throw OutOfMemory("[array] no memory for " + std::to_string(n) + " bytes of " + text());
  std::memset(p, 0, n);
  data_ = std::shared_ptr<std::byte[]>(p, [](std::byte* q) { ::operator delete[](q, std::align_val_t(64)); });
}

void Array::check_type(DType expected) const {
  if (expected != dtype_)
    throw DTypeError("[array] holds " + std::string(name_of(dtype_)) + ", read as " +
                     std::string(name_of(expected)));
}

void Array::check_count(std::size_t count) const {
  if (static_cast<std::int64_t>(count) != numel())
    throw ShapeError("[array] shape " + shape_.text() + " holds " + std::to_string(numel()) +
                     " elements, not " + std::to_string(count));
}

double Array::at(std::int64_t i) const {
  return load_element(dtype_, raw(), i);
}

void Array::set(std::int64_t i, double value) {
  store_element(dtype_, raw(), i, value);
}

Array Array::copy() const {
  Array a(shape_, dtype_);
  if (numel() > 0) std::memcpy(a.raw(), raw(), bytes());
  return a;
}

Array Array::to(DType dtype) const {
  Array a(shape_, dtype);
  for (std::int64_t i = 0; i < numel(); ++i) a.set(i, at(i));
  return a;
}

bool Array::same_bits(const Array& other) const {
  return shape_ == other.shape_ && dtype_ == other.dtype_ &&
         (numel() == 0 || std::memcmp(raw(), other.raw(), bytes()) == 0);
}

namespace {
std::string number_text(double v) {
  char s[32];
  std::snprintf(s, sizeof s, "%.9g", v);
  return s;
}
}  // namespace

std::string Array::text() const {
  std::string s = std::string(name_of(dtype_)) + " " + shape_.text();
  if (!data_ || numel() > 16) return s;
  s += " {";
  for (std::int64_t i = 0; i < numel(); ++i) s += (i ? ", " : "") + number_text(at(i));
  return s + "}";
}

}  // namespace tg
