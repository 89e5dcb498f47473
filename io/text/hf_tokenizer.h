// The tokenizer of a Hugging Face folder (tokenizer.json) with byte-pair encoding: byte-level as in GPT-2,
// Llama 3, Qwen 2 and 3 and DeepSeek-V3, or on characters as in Llama 2, Mistral and Gemma. Token ids are the
// same as in the package `tokenizers` (docs/interop.md).
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

struct HfStages;    // io/text/hf_stages.h
struct AddedToken;  // io/text/added_tokens.h

// A tokenizer read from tokenizer.json. It is immutable; copies share its tables.
class HfTokenizer final : public Tokenizer {
 public:
  // Parses the content of a tokenizer.json. Throws FormatError if the content is not JSON or breaks a rule.
  // Also throws it for an unsupported normalizer, pre-tokenizer, model, post-processor or decoder. The
  // message begins with `where` and contains the key and its value.
  HfTokenizer(std::string json, const std::string& where);

  // Reads a tokenizer.json, or a folder that contains one. Throws Error if the file cannot be read, and
  // FormatError as the constructor does.
  static HfTokenizer open(const std::string& path);

  // How encode() treats special tokens.
  struct EncodeOptions {
    bool special = true;  // strings of special tokens become these tokens; false for user input
    bool whole = false;   // insert before() and after() around the tokens
  };
  // Encodes text. Throws Error for a character that has no token if the vocabulary has no unknown token.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options) const;

  // The content of tokenizer.json.
  const std::string& json() const;
  // Returns a token as written in the vocabulary: "Ġhello" for " hello". Empty for an id without a token.
  // Throws Error for an id outside [0, size).
  std::string token_text(std::int32_t id) const;
  // Returns the id of the token with this spelling, or nothing.
  std::optional<std::int32_t> find(std::string_view token_text) const;
  // Whether the token is marked as special, such as bos and eos.
  bool is_special(std::int32_t id) const;
  // Whether the token is matched in the text before the model splits it (added_tokens).
  bool is_added(std::int32_t id) const;
  // Whether the vocabulary's tokens are bytes.
  bool is_byte_level() const;
  // Whether a word that is a token is not built by merges (ignore_merges).
  bool ignores_merges() const;
  // Whether a character without a token is encoded as the tokens of its bytes (byte_fallback).
  bool has_byte_fallback() const;
  // The merges, by rank, as pairs of token strings.
  const std::vector<std::pair<std::string, std::string>>& merges() const;
  // The tokens that begin a sequence (bos), as defined by the file.
  const std::vector<std::int32_t>& before() const;
  // The tokens that end a sequence (eos), as defined by the file.
  const std::vector<std::int32_t>& after() const;
  // Returns the string of the token for characters without a token, or nothing.
  std::optional<std::string> unknown_token() const;
  // The stages around the model: normalizer, pre-tokenizer, post-processor and decoder.
  const HfStages& stages() const;
  // The added tokens, such as special tokens.
  const std::vector<AddedToken>& added_tokens() const;

  // Returns "hf".
  std::string_view kind() const override { return "hf"; }
  // Returns "token".
  std::string_view unit() const override { return "token"; }
  // Returns the largest id + 1. Some ids may have no token.
  std::int64_t size() const override;
  // Recognizes special tokens, and adds no tokens around the text. Throws Error for a character without a
  // token if there is no unknown token. In a byte-level vocabulary, only a byte that is not UTF-8 can be such
  // a character.
  std::vector<std::int32_t> encode(std::string_view text) const override {
    return encode(text, EncodeOptions{});
  }
  // As encode(), with before() and after() around the tokens.
  std::vector<std::int32_t> encode_whole(std::string_view text) const override {
    return encode(text, {.whole = true});
  }
  // Returns the bytes of the tokens: the bytes that byte-level tokens encode, and the strings of special
  // tokens. An id without a token adds nothing. A model with more rows than tokens can generate such ids,
  // even of size() or above. Throws Error for a negative id.
  std::string decode(std::span<const std::int32_t> ids) const override;
  // As Tokenizer::continuation(). Throws Error for a negative id.
  std::string continuation(std::int32_t id) const override;
  // As Tokenizer::safe_cut(). Returns 0 if this tokenizer's words do not allow cuts.
  std::size_t safe_cut(std::string_view text, std::size_t limit) const override;
  // Contains the whole tokenizer.json.
  io::Metadata metadata() const override;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

// Returns the content of a tokenizer.json with the same ids as `tokenizer`, which is an HfTokenizer,
// ByteTokenizer, CharVocab or Bpe. Throws Error for a tokenizer that tokenizer.json cannot represent: a Bpe
// with WordRule::bytes (older checkpoints), a NumberTokenizer, or a CharVocab that contains ▁.
std::string tokenizer_json(const Tokenizer& tokenizer);

}  // namespace tg::text
