// A view of token ids of 16 or 32 bits, in memory or in a mapped file.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/io/files/mapped_file.h>

namespace tg::text {

// A read-only view. It owns no ids.
class TokenView {
 public:
  // A view of ids in memory, which must outlive it.
  TokenView(std::span<const std::int32_t> ids) : TokenView(ids.data(), ids.size(), 4) {}
  // A view of ids in memory, which must outlive it.
  TokenView(const std::vector<std::int32_t>& ids) : TokenView(std::span(ids)) {}
  TokenView(std::vector<std::int32_t>&& ids) = delete;  // it would be a view of a temporary
  // A view of `count` unsigned ids of `bytes_each` bytes at the address `at`, which need not be aligned.
  // Throws Error unless `bytes_each` is 2 or 4 and `vocabulary` is 1 to 2^31 − 1. If an id is `vocabulary` or
  // above, reading it throws Error with `file` and the id's index. If the ids are in a mapped file, pass its
  // pages() as `pages`. copy() then throws Error if a page was lost.
  TokenView(const void* at, std::size_t count, int bytes_each,
            std::int64_t vocabulary = std::numeric_limits<std::int32_t>::max(), std::string file = {},
            std::shared_ptr<const io::MappedFile::Pages> pages = nullptr);

  // The number of ids.
  std::size_t size() const { return count_; }
  // Returns a view of ids first … first + count − 1. Throws ShapeError if they are out of range.
  TokenView part(std::size_t first, std::size_t count) const;
  // Copies ids first … first + out.size() − 1. Throws ShapeError if they are out of range, and Error for an
  // id outside the vocabulary.
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
  std::size_t first_ = 0;  // index of the view's first id in the file
};

namespace detail {
// Throws Error, beginning with `where`, unless bytes_each is 2 or 4.
void check_bytes_each(int bytes_each, const std::string& where);
}  // namespace detail

}  // namespace tg::text
