// Token ids of 16 or 32 bits, in memory or in a mapped file.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tg::text {

class TokenView {
 public:
  TokenView(std::span<const std::int32_t> ids) : TokenView(ids.data(), ids.size(), 4) {}
  TokenView(const std::vector<std::int32_t>& ids) : TokenView(std::span(ids)) {}
  // `bytes_each` is 2 or 4; ids are unsigned. Reading an id that is not below `vocabulary` is an Error with
  // `file` and the id's index. `at` need not be aligned.
  TokenView(const void* at, std::size_t count, int bytes_each,
            std::int64_t vocabulary = std::numeric_limits<std::int32_t>::max(), std::string file = {})
      : at_(static_cast<const char*>(at)),
        count_(count),
        bytes_each_(bytes_each),
        vocabulary_(vocabulary),
        file_(std::move(file)) {}

  std::size_t size() const { return count_; }
  TokenView part(std::size_t first, std::size_t count) const {
    TokenView view = *this;
    view.at_ += first * static_cast<std::size_t>(bytes_each_), view.first_ += first, view.count_ = count;
    return view;
  }
  // Tokens first … first + out.size() - 1, which must exist.
  void copy(std::size_t first, std::span<std::int32_t> out) const;

 private:
  [[noreturn]] void refuse(std::size_t place, std::int64_t id) const;

  const char* at_;
  std::size_t count_;
  int bytes_each_;
  std::int64_t vocabulary_;
  std::string file_;
  std::size_t first_ = 0;  // index of the first one in the file
};

}  // namespace tg::text
