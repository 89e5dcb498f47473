#include <tilegrad/io/text/token_view.h>

#include <cstring>

#include <tilegrad/core/base/error.h>

namespace tg::text {

void TokenView::refuse(std::size_t place, std::int64_t id) const {
  throw FormatError("[tokens] " + file_ + ": token " + std::to_string(first_ + place) + " is " +
                    std::to_string(id) + ", expected below the vocabulary of " + std::to_string(vocabulary_));
}

void TokenView::copy(std::size_t first, std::span<std::int32_t> out) const {
  if (first > count_ || out.size() > count_ - first)
    throw ShapeError("[tokens] got " + std::to_string(out.size()) + " tokens from " + std::to_string(first) +
                     " on, expected them within " + std::to_string(count_));
  const char* at = at_ + first * static_cast<std::size_t>(bytes_each_);
  for (std::size_t i = 0; i < out.size(); ++i, at += bytes_each_) {
    std::uint32_t id = 0;
    std::memcpy(&id, at, static_cast<std::size_t>(bytes_each_));  // little-endian: the low half
    if (id >= vocabulary_) refuse(first + i, id);
    out[i] = static_cast<std::int32_t>(id);
  }
}

}  // namespace tg::text
