// Added tokens, such as <|endoftext|>. They are matched before the model splits the rest of the text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tg::text {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only if neither neighbor is a word character (\w)
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = false;   // is matched in the normalized text, not in the raw text
  bool special = false;      // does not represent text
};

// The added tokens of one kind, normalized or not, and the strings that match them. The leftmost match is
// used. If several tokens match at the same position, the longest one is used.
class AddedTokenFinder {
 public:
  // Adds a token. `text` must not be empty. Returns false if a token with this string exists.
  bool add(const std::string& text, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  struct Part {
    std::size_t begin, end;               // in the text
    std::optional<std::int32_t> id = {};  // id of the token; none for text between tokens
  };
  // Splits text into tokens and the text between them. If `special` is false, special tokens count as text.
  // Parts can overlap if two tokens include the same white space, as in the package `tokenizers`.
  std::vector<Part> split(std::string_view text, bool special) const;

 private:
  struct Found {
    std::size_t end = 0;
    const AddedToken* token = nullptr;
  };
  Found match(std::string_view text, std::size_t i) const;  // the longest token that begins at i

  // A trie of bytes: children by (node, byte), and the token that ends at each node.
  static std::uint64_t key(std::uint32_t node, char byte) {
    return std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }
  std::array<bool, 256> begins_{};  // whether a token begins with this byte
  std::unordered_map<std::uint64_t, std::uint32_t> children_;
  std::vector<std::int32_t> ends_{-1};  // index of a token, by node
  std::vector<AddedToken> tokens_;
};

}  // namespace tg::text
