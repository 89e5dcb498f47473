// Writes tokenizer.json for the library's own tokenizers.
#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/text.h>
#include "io/files/utf8.h"
#include "io/text/bpe_model.h"

namespace tg::text {

namespace {

// Returns a file with one pre-tokenizer (or null) and a BPE model. `vocab` and `merges` are the members and
// items of the model.
std::string bpe_file(const std::string& pre_tokenizer, const std::string& decoder, const std::string& vocab,
                     const std::string& merges) {
  return R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": )" +
         pre_tokenizer + R"(,
  "post_processor": null,
  "decoder": )" +
         decoder + R"(,
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {)" +
         vocab + "},\n    \"merges\": [" + merges + "]}\n}\n";
}

std::string bpe_json(const Bpe& bpe) {
  if (bpe.words() != WordRule::gpt2)
    throw Error(
        "[tokenizer_json] this tokenizer cuts words by bytes, as older checkpoints do, which "
        "tokenizer.json cannot represent: train one with GPT-2's words");
  const std::string byte_level =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  const auto text = [&](std::int32_t id) { return io::json_string(to_byte_letters(bpe.bytes(id))); };
  std::string vocab, merges;
  for (std::int32_t id = 0; id < bpe.size(); ++id)
    vocab += (id > 0 ? ", " : "") + text(id) + ": " + std::to_string(id);
  for (const auto& [left, right] : bpe.merges())
    merges += (merges.empty() ? "[" : ", [") + text(left) + ", " + text(right) + "]";
  return bpe_file(byte_level, byte_level, vocab, merges);
}

// Writes a BPE model without merges, in which every token is a character.
std::string characters_json(const CharVocab& characters) {
  std::string vocab;
  for (std::size_t id = 0; id < characters.characters().size(); ++id) {
    std::string letter;
    io::utf8_append(letter, characters.characters()[id]);
    if (letter == "\xe2\x96\x81")
      throw Error(
          "[tokenizer_json] one of the characters is ▁ (U+2581), which a tokenizer.json uses for spaces: "
          "train with --tokenizer bpe");
    vocab += (id > 0 ? ", " : "") + io::json_string(letter) + ": " + std::to_string(id);
  }
  return bpe_file("null",
                  R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, )"
                  R"("content": " "}, {"type": "Fuse"}]})",
                  vocab, "");
}

}  // namespace

std::string tokenizer_json(const Tokenizer& tokenizer) {
  if (const auto* hf = dynamic_cast<const HfTokenizer*>(&tokenizer)) return hf->json();
  if (const auto* bpe = dynamic_cast<const Bpe*>(&tokenizer)) return bpe_json(*bpe);
  if (const auto* characters = dynamic_cast<const CharVocab*>(&tokenizer))
    return characters_json(*characters);
  if (tokenizer.kind() == "bytes") return bpe_json(Bpe({}));
  throw Error("[tokenizer_json] tokenizer.json cannot represent a tokenizer of kind '" +
              std::string(tokenizer.kind()) + "'");
}

}  // namespace tg::text
