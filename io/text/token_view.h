// Token ids of 16 or 32 bits, in memory or in a mapped file.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/io/files/mapped_file.h>

namespace tg::text {

class TokenView {
 public:
  TokenView(std::span<const std::int32_t> ids) : TokenView(ids.data(), ids.size(), 4) {}
  TokenView(const std::vector<std::int32_t>& ids) : TokenView(std::span(ids)) {}
  TokenView(std::vector<std::int32_t>&& ids) = delete;  // a view of a temporary
  // `bytes_each` is 2 or 4, `vocabulary` 1 to 2^31 − 1, else Error; ids are unsigned. Reading an id that is
  // not below `vocabulary` is an Error with `file` and the id's index. `at` need not be aligned. If the ids
  // are in a mapped file, `pages` are its pages(): copy() throws Error if they were lost.
  TokenView(const void* at, std::size_t count, int bytes_each,
            std::int64_t vocabulary = std::numeric_limits<std::int32_t>::max(), std::string file = {},
            std::shared_ptr<const io::MappedFile::Pages> pages = nullptr);

  std::size_t size() const { return count_; }
  // Tokens first … first + count − 1, and first … first + out.size() − 1. ShapeError unless they exist.
  TokenView part(std::size_t first, std::size_t count) const;
  void copy(std::size_t first, std::span<std::int32_t> out) const;

 private:
  void check_part(std::size_t first, std::size_t count) const;
  [[noreturn]] void refuse(std::size_t place, std::int64_t id) const;

  const char* at_;
  std::size_t count_;
  int bytes_each_;
  std::int64_t vocabulary_;
  std::string file_;
  std::shared_ptr<const io::MappedFile::Pages> pages_;
  std::size_t first_ = 0;  // index of the first one in the file
};

namespace detail {
// Throws Error, beginning with `where`, unless an id can have so many bytes.
void check_bytes_each(int bytes_each, const std::string& where);
}  // namespace detail

}  // namespace tg::text
