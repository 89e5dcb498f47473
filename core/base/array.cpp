#include <tilegrad/core/base/array.h>

#include <cstring>
#include <new>
#include <utility>

#include <tilegrad/core/base/host_view.h>
#include <tilegrad/core/run/backend.h>
#include "core/base/alignment.h"
#include "core/base/messages.h"

namespace tg {

namespace {

// Whether the system has this number of free bytes. Without this check, the system may overcommit memory and
// kill the process at the first access.
bool has_memory(std::size_t bytes) {
  return bytes <= (64 << 20) || bytes <= backend(Device::cpu()).available_bytes();
}

}  // namespace

Array::Array(const Shape& shape, DType dtype) : shape_(shape), numel_(tg::numel(shape)), dtype_(dtype) {
  const std::size_t n = aligned_bytes(bytes());
  std::byte* p = nullptr;
  if (has_memory(n))
    p = static_cast<std::byte*>(
        ::operator new[](std::max<std::size_t>(n, 64), std::align_val_t(64), std::nothrow));
  if (!p) throw OutOfMemory("[array] no memory for " + std::to_string(n) + " bytes of " + text());
  std::memset(p, 0, n);
  data_ = std::shared_ptr<std::byte[]>(p, [](std::byte* q) { ::operator delete[](q, std::align_val_t(64)); });
}

Array& Array::operator=(Array&& other) noexcept {
  shape_ = std::exchange(other.shape_, no_elements);
  numel_ = std::exchange(other.numel_, 0);
  dtype_ = other.dtype_;
  data_ = std::move(other.data_);
  return *this;
}

void Array::check_type(DType expected) const {
  if (expected != dtype_)
    throw DTypeError("[array] holds " + std::string(name_of(dtype_)) + ", read as " +
                     std::string(name_of(expected)));
}

void Array::check_count(const Shape& shape, std::size_t count) {
  if (static_cast<std::int64_t>(count) != tg::numel(shape))
    throw ShapeError("[array] shape " + shape.text() + " holds " + std::to_string(tg::numel(shape)) +
                     " elements, not " + std::to_string(count));
}

void Array::check_index(std::int64_t i) const {
  if (i < 0 || i >= numel_)
    throw ShapeError("[array] element " + std::to_string(i) + " of " + std::string(name_of(dtype_)) + " " +
                     shape_.text() + ", which has " + std::to_string(numel_));
}

double Array::at(std::int64_t i) const {
  check_index(i);
  return load_element(dtype_, raw(), i);
}

void Array::set(std::int64_t i, double value) {
  check_index(i);
  store_element(dtype_, raw(), i, value);
}

Array Array::copy() const {
  Array a(shape_, dtype_);
  if (numel() > 0) std::memcpy(a.raw(), raw(), bytes());
  return a;
}

Array Array::to(DType dtype) const {
  Array a(shape_, dtype);
  detail::convert_elements(dtype_, raw(), dtype, a.raw(), numel());
  return a;
}

bool Array::same_bits(const Array& other) const {
  return shape_ == other.shape_ && dtype_ == other.dtype_ &&
         (numel() == 0 || std::memcmp(raw(), other.raw(), bytes()) == 0);
}

std::string Array::text() const {
  std::string s = std::string(name_of(dtype_)) + " " + shape_.text();
  if (!data_ || numel() > 16) return s;
  s += " {";
  for (std::int64_t i = 0; i < numel(); ++i) s += (i ? ", " : "") + formatted("%.9g", at(i));
  return s + "}";
}

}  // namespace tg
