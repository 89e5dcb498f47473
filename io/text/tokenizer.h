// Tokenizer: converts text to token ids and back. A checkpoint saves it in the metadata of model.safetensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/files/safetensors.h>

namespace tg::text {

// The interface of all tokenizers.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the kind: "chars", "bytes", "bpe", "numbers" or "hf".
  virtual std::string_view kind() const = 0;
  // Returns the word for one token in messages: "character", "byte" or "token".
  virtual std::string_view unit() const = 0;
  // Returns the vocabulary size. Ids are 0 … size − 1.
  virtual std::int64_t size() const = 0;

  // Returns the tokens of a text. Throws Error for text that the vocabulary cannot represent.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Returns the text of tokens. Throws Error for an id outside [0, size), except for HfTokenizer.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // Encodes a complete document. As encode(), but adds the tokenizer's start and end tokens (bos, eos), if it
  // has any.
  virtual std::vector<std::int32_t> encode_whole(std::string_view text) const { return encode(text); }
  // Returns the bytes that the token appends to a text. For the first token of a text, decode() may return
  // fewer.
  virtual std::string continuation(std::int32_t id) const { return decode({&id, 1}); }
  // Returns the last position up to `limit` at which the text can be cut. If both parts are encoded
  // separately, they have the same tokens as the whole text. Returns 0 if there is no such position.
  virtual std::size_t safe_cut(std::string_view text, std::size_t limit) const;

  // Returns the metadata from which load_tokenizer() creates this tokenizer: "tokenizer", and keys that
  // depend on the kind.
  virtual io::Metadata metadata() const = 0;
};

// Creates the tokenizer that the metadata describes. Ignores other keys. Throws FormatError if there is no
// tokenizer, its kind is unknown, or it breaks a rule of its kind. The message begins with `where`.
std::unique_ptr<Tokenizer> load_tokenizer(const io::Metadata& metadata, const std::string& where);

// A tokenizer whose 256 tokens are bytes. It encodes any bytes, UTF-8 or not.
class ByteTokenizer final : public Tokenizer {
 public:
  // Returns "bytes".
  std::string_view kind() const override { return "bytes"; }
  // Returns "byte".
  std::string_view unit() const override { return "byte"; }
  // Returns 256.
  std::int64_t size() const override { return 256; }
  // Returns one id per byte.
  std::vector<std::int32_t> encode(std::string_view text) const override;
  // Returns one byte per id. Throws Error for an id outside [0, 256).
  std::string decode(std::span<const std::int32_t> ids) const override;
  // Contains only the kind.
  io::Metadata metadata() const override { return {{"tokenizer", "bytes"}}; }
};

// A tokenizer for files without one: only ids are known. Their text is decimal numbers with a space after
// each: "17 4 256 ".
class NumberTokenizer final : public Tokenizer {
 public:
  // Ids are 0 … size − 1. Throws Error unless size is 1 to 2^31 − 1.
  explicit NumberTokenizer(std::int64_t size);

  // Returns "numbers".
  std::string_view kind() const override { return "numbers"; }
  // Returns "token".
  std::string_view unit() const override { return "token"; }
  // Returns the size given to the constructor.
  std::int64_t size() const override { return size_; }
  // Parses numbers. Throws Error for other text and for a number outside [0, size).
  std::vector<std::int32_t> encode(std::string_view text) const override;
  // Writes numbers. Throws Error for an id outside [0, size).
  std::string decode(std::span<const std::int32_t> ids) const override;
  // Contains the size as "vocabulary".
  io::Metadata metadata() const override;

 private:
  std::int64_t size_;
};

namespace detail {
// Throws the Error of decode() unless 0 ≤ id < size.
void check_id(std::int32_t id, std::int64_t size);
}  // namespace detail

}  // namespace tg::text
