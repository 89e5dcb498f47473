#define XXH_INLINE_ALL
#include "core/hash.h"

#include <xxhash.h>

namespace tg {

void Hasher::add(std::uint64_t v) {
  for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<std::uint8_t>(v >> (8 * i)));
}

void Hasher::add(std::string_view s) {
  add(s.size());
  bytes_.insert(bytes_.end(), s.begin(), s.end());
}

void Hasher::add(const Dims& d) {
  add(static_cast<std::uint64_t>(d.size()));
  for (std::int64_t v : d) add(static_cast<std::uint64_t>(v));
}

std::array<std::uint64_t, 2> Hasher::digest() const {
  const XXH128_hash_t h = XXH3_128bits(bytes_.data(), bytes_.size());
  return {h.low64, h.high64};
}

}  // namespace tg
