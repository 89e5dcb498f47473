#include <tilegrad/io/text/token_view.h>

#include <cstring>
#include <utility>

#include <tilegrad/core/base/error.h>

namespace tg::text {

namespace detail {

void check_bytes_each(int bytes_each, const std::string& where) {
  if (bytes_each != 2 && bytes_each != 4)
    throw Error(where + ": got ids of " + std::to_string(bytes_each) + " bytes each, expected 2 or 4");
}

}  // namespace detail

TokenView::TokenView(const void* at, std::size_t count, int bytes_each, std::int64_t vocabulary,
                     std::string file, std::shared_ptr<const io::MappedFile::Pages> pages)
    : at_(static_cast<const char*>(at)),
      count_(count),
      bytes_each_(bytes_each),
      vocabulary_(vocabulary),
      file_(std::move(file)),
      pages_(std::move(pages)) {
  const std::string where = "[tokens] " + file_;
  detail::check_bytes_each(bytes_each, where);
  if (vocabulary < 1 || vocabulary > std::numeric_limits<std::int32_t>::max())
    throw Error(where + ": got a vocabulary of " + std::to_string(vocabulary) + ", expected 1 to 2147483647");
}

void TokenView::refuse(std::size_t place, std::int64_t id) const {
  throw FormatError("[tokens] " + file_ + ": token " + std::to_string(first_ + place) + " is " +
                    std::to_string(id) + ", expected below the vocabulary of " + std::to_string(vocabulary_));
}

void TokenView::check_part(std::size_t first, std::size_t count) const {
  if (first > count_ || count > count_ - first)
    throw ShapeError("[tokens] got " + std::to_string(count) + " tokens starting at " +
                     std::to_string(first) + ", expected them within " + std::to_string(count_));
}

TokenView TokenView::part(std::size_t first, std::size_t count) const {
  check_part(first, count);
  TokenView view = *this;
  view.at_ += first * static_cast<std::size_t>(bytes_each_), view.first_ += first, view.count_ = count;
  return view;
}

void TokenView::copy(std::size_t first, std::span<std::int32_t> out) const {
  check_part(first, out.size());
  const char* at = at_ + first * static_cast<std::size_t>(bytes_each_);
  for (std::size_t i = 0; i < out.size(); ++i, at += bytes_each_) {
    std::uint32_t id = 0;
    std::memcpy(&id, at, static_cast<std::size_t>(bytes_each_));  // little-endian: the low half
    if (id >= vocabulary_) refuse(first + i, id);
    out[i] = static_cast<std::int32_t>(id);
  }
  if (pages_) pages_->check();
}

}  // namespace tg::text
