// SHA-256 and HMAC-SHA-256. With them, a process proves that it knows a token. The other hash in this
// library, XXH3, is not cryptographic.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tg::parallel {

using Digest = std::array<std::uint8_t, 32>;

// FIPS 180-4, for the concatenated pieces.
Digest sha256(std::span<const std::string_view> pieces);

// RFC 2104 with SHA-256.
Digest hmac_sha256(std::string_view key, std::span<const std::string_view> pieces);

// Compares in constant time.
bool are_equal(const Digest& a, const Digest& b);

}  // namespace tg::parallel
