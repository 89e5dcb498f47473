#define XXH_INLINE_ALL
#include "core/base/hash.h"

#include <xxhash.h>

#include <memory>

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

std::string xxh3_128(std::span<const std::string_view> pieces) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  for (const std::string_view p : pieces) XXH3_128bits_update(state.get(), p.data(), p.size());
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state.get()));
  std::string text;
  for (const unsigned char byte : digest.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace tg
