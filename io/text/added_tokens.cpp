#include "io/text/added_tokens.h"

#include <algorithm>

#include "io/text/unicode.h"

namespace tg::text {
namespace {

// Returns the character that ends before i > 0.
Char char_before(std::string_view text, std::size_t i, const std::uint8_t* classes) {
  std::size_t begin = i - 1;
  while (begin > 0 && i - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
  const Char c = char_at(text, begin, classes);
  return begin + c.length == i ? c : Char{Char::not_a_character, 0, 1};
}

}  // namespace

bool AddedTokenFinder::add(const std::string& text, const AddedToken& token) {
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto [child, is_new] =
        children_.try_emplace(key(node, c), static_cast<std::uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(-1);
    node = child->second;
  }
  if (ends_[node] >= 0) return false;
  ends_[node] = static_cast<std::int32_t>(tokens_.size());
  begins_[static_cast<unsigned char>(text[0])] = true;
  tokens_.push_back(token);
  return true;
}

AddedTokenFinder::Found AddedTokenFinder::match(std::string_view text, std::size_t i) const {
  Found found;
  std::uint32_t node = 0;
  while (i < text.size()) {
    const auto child = children_.find(key(node, text[i]));
    if (child == children_.end()) break;
    node = child->second;
    ++i;
    if (ends_[node] >= 0) found = {i, &tokens_[static_cast<std::size_t>(ends_[node])]};
  }
  return found;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text, bool special) const {
  std::vector<Part> parts;
  const std::uint8_t* classes = char_classes();
  std::size_t written = 0;  // start of the text after the last part
  for (std::size_t i = 0; i < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    const auto [match_end, token] = match(text, i);
    if (token == nullptr) {
      ++i;
      continue;
    }
    std::size_t begin = i, end = match_end;
    i = match_end;  // even if a match is not used, no match inside it is found
    if (token->special && !special) continue;
    if (token->single_word) {
      const bool joins_left = begin > 0 && char_before(text, begin, classes).is(char_class::word);
      const bool joins_right = end < text.size() && char_at(text, end, classes).is(char_class::word);
      if (joins_left || joins_right) continue;
    }
    if (token->lstrip) {
      while (begin > written) {
        const Char c = char_before(text, begin, classes);
        if (!c.is(char_class::space)) break;
        begin -= c.length;
      }
      begin = std::max(begin, written);  // skips white space that belongs to the previous token
    }
    if (token->rstrip)
      while (end < text.size()) {
        const Char c = char_at(text, end, classes);
        if (!c.is(char_class::space)) break;
        end += c.length;
      }
    if (begin >= end) continue;  // no text is left of this part
    if (written < begin) parts.push_back({written, begin});
    parts.push_back({begin, end, token->id});
    written = end;
  }
  if (written < text.size()) parts.push_back({written, text.size()});
  return parts;
}

}  // namespace tg::text
