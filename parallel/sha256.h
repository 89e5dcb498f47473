// SHA-256 and HMAC over it, for the proof that a process knows a token. The only other hash here, XXH3, is no
// cryptographic one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tg::parallel {

using Digest = std::array<std::uint8_t, 32>;

// FIPS 180-4, of all pieces in a row.
Digest sha256(std::span<const std::string_view> pieces);

// RFC 2104 with SHA-256.
Digest hmac_sha256(std::string_view key, std::span<const std::string_view> pieces);

// Takes as long whether they differ early or late.
bool are_equal(const Digest& a, const Digest& b);

}  // namespace tg::parallel
