// The letters in which GPT-2 writes bytes [Radford, GPT-2], so that its tokens are text: 33-126, 161-172 and
// 174-255 are the characters of that number, and the other 68 bytes in order U+0100 … U+0143.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tg::text {

// Bytes in these letters, as UTF-8.
std::string to_byte_letters(std::string_view bytes);

// The bytes of such text; nothing if it has other characters.
std::optional<std::string> from_byte_letters(std::string_view letters);

}  // namespace tg::text
