// Tokenizer: text to token ids and back. It is saved in the metadata of a checkpoint's model.safetensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/files/safetensors.h>

namespace tg::text {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view kind() const = 0;  // "chars", "bytes", "bpe", "numbers" or "hf"
  virtual std::string_view unit()
      const = 0;                          // the word for a token in messages: "character", "byte", "token"
  virtual std::int64_t size() const = 0;  // ids are 0 … size − 1

  // Error for text that it has no tokens for.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Error for an id outside [0, size); but see HfTokenizer.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // A text from its beginning to its end: encode(), between the tokens that the tokenizer has for these (bos,
  // eos), if it has any.
  virtual std::vector<std::int32_t> encode_whole(std::string_view text) const { return encode(text); }
  // The bytes with which the token continues a text. Those of a text's first token can be fewer in decode().
  virtual std::string continuation(std::int32_t id) const { return decode({&id, 1}); }
  // The last position up to `limit` at which a text can be cut in two that are encoded separately, to the
  // same tokens; 0 if there is none.
  virtual std::size_t safe_cut(std::string_view text, std::size_t limit) const;

  // The input of load_tokenizer(): "tokenizer", and further keys that the kind needs.
  virtual io::Metadata metadata() const = 0;
};

// The tokenizer that such metadata describes; other keys are ignored. Throws FormatError, beginning with
// `where`, if there is none, its kind is unknown, or it breaks a rule of the kind.
std::unique_ptr<Tokenizer> load_tokenizer(const io::Metadata& metadata, const std::string& where);

// Every byte is a token; any text, UTF-8 or not.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view kind() const override { return "bytes"; }
  std::string_view unit() const override { return "byte"; }
  std::int64_t size() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  io::Metadata metadata() const override { return {{"tokenizer", "bytes"}}; }
};

// Tokens of which only the ids are known, written as numbers with a space after each: "17 4 256 ".
// For files without a tokenizer.
class NumberTokenizer final : public Tokenizer {
 public:
  explicit NumberTokenizer(std::int64_t size);  // Error unless it is 1 to 2^31 − 1

  std::string_view kind() const override { return "numbers"; }
  std::string_view unit() const override { return "token"; }
  std::int64_t size() const override { return size_; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  io::Metadata metadata() const override;

 private:
  std::int64_t size_;
};

namespace detail {
// Throws the Error of decode() unless 0 ≤ id < size.
void check_id(std::int32_t id, std::int64_t size);
}  // namespace detail

}  // namespace tg::text
