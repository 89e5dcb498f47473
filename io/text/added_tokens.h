// Tokens that are cut out of a text as a whole, before the model sees the rest: <|endoftext|> and the like.
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
  bool single_word = false;  // only where neither neighbour is of a word (\w)
  bool lstrip = false;       // with the white space before it
  bool rstrip = false;       // with the white space after it
  bool normalized = false;   // looked for in the normalized text, not in the raw one
  bool special = false;      // stands for something that is no text
};

// The tokens of one kind, normalized or not, with the texts to look for. Where several match, the leftmost,
// and of those the longest, counts.
class AddedTokenFinder {
 public:
  // `text` is not empty. False if there is a token with that text.
  bool add(const std::string& text, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  struct Part {
    std::size_t begin, end;               // in the text
    std::optional<std::int32_t> id = {};  // of a token, nothing for text between two
  };
  // Divides a text into tokens and what is between them; without `special` such tokens are text. Parts that
  // strip white space of each other can overlap, as in the package `tokenizers`.
  std::vector<Part> split(std::string_view text, bool special) const;

 private:
  struct Found {
    std::size_t end = 0;
    const AddedToken* token = nullptr;
  };
  Found match(std::string_view text, std::size_t i) const;  // the longest that begins at i

  // A tree of bytes: the child of a node by (node, byte), and the token that ends at a node.
  static std::uint64_t key(std::uint32_t node, char byte) {
    return std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }
  std::array<bool, 256> begins_{};  // whether a token begins with this byte
  std::unordered_map<std::uint64_t, std::uint32_t> children_;
  std::vector<std::int32_t> ends_{-1};  // by node, the index of a token
  std::vector<AddedToken> tokens_;
};

}  // namespace tg::text
