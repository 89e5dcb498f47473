// The tokenizer of a Hugging Face folder: tokenizer.json with byte-pair encoding, byte-level as of GPT-2,
// Llama 3, Qwen 2 and 3 and DeepSeek-V3, or on characters as of Llama 2, Mistral and Gemma. Tokens have the
// ids that the package `tokenizers` gives (docs/interop.md).
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

struct HfStages;    // io/text/hf_stages.h
struct AddedToken;  // io/text/added_tokens.h

class HfTokenizer final : public Tokenizer {
 public:
  // From the text of a tokenizer.json. Throws FormatError, beginning with `where` and naming key and value,
  // for text that is not JSON, breaks a rule, or has a normalizer, pre-tokenizer, model, post-processor or
  // decoder of a kind that is not understood.
  HfTokenizer(std::string json, const std::string& where);

  // From such a file, or the one in a folder. Error if it cannot be read.
  static HfTokenizer open(const std::string& path);

  struct EncodeOptions {
    bool special = true;  // texts of special tokens in the text become these tokens; false for text of users
    bool whole = false;   // between before() and after()
  };
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options) const;

  const std::string& json() const;
  // A token as it is written in the vocabulary: "Ġhello" for " hello". Empty for an id without a token.
  std::string token_text(std::int32_t id) const;  // Error for an id outside [0, size)
  std::optional<std::int32_t> find(std::string_view token_text) const;
  bool is_special(std::int32_t id) const;
  bool is_added(std::int32_t id) const;  // cut out of a text before the model sees it
  bool is_byte_level() const;
  bool ignores_merges() const;
  bool has_byte_fallback() const;  // a character without a token is those of its bytes
  const std::vector<std::pair<std::string, std::string>>& merges() const;  // by rank
  // The tokens that begin and end a text (bos, eos), as the file has them.
  const std::vector<std::int32_t>& before() const;
  const std::vector<std::int32_t>& after() const;
  std::optional<std::string> unknown_token() const;  // how characters without a token are written
  const HfStages& stages() const;                    // around the merges
  const std::vector<AddedToken>& added_tokens() const;

  std::string_view kind() const override { return "hf"; }
  std::string_view unit() const override { return "token"; }
  std::int64_t size() const override;  // the largest id + 1
  // With special tokens, without those around a text. Error for a character that has no token where there is
  // no unknown one, which in byte-level vocabularies can only be a byte that is not UTF-8.
  std::vector<std::int32_t> encode(std::string_view text) const override {
    return encode(text, EncodeOptions{});
  }
  std::vector<std::int32_t> encode_whole(std::string_view text) const override {
    return encode(text, {.whole = true});
  }
  // The bytes of the tokens: of byte-level ones those that were encoded, special tokens as their text,
  // nothing for an id without a token. Such are also those from size() on, which models with more rows than
  // tokens write. Error for an id below 0.
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string continuation(std::int32_t id) const override;
  std::size_t safe_cut(std::string_view text, std::size_t limit) const override;
  io::Metadata metadata() const override;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

// A tokenizer.json with the ids of the tokenizer: one of this kind, of bytes, of characters, or of pairs of
// bytes. Error for what no tokenizer.json can say: words that are not GPT-2's, as of older checkpoints,
// tokens that are numbers, and ▁ among characters.
std::string tokenizer_json(const Tokenizer& tokenizer);

}  // namespace tg::text
