// tokens: converts a text of any size to a token file for train --tokens, or prints the tokens of a short
// string.
#include <algorithm>
#include <filesystem>
#include <optional>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/io/text/token_file.h>
#include "tools/args.h"
#include "tools/output_files.h"
#include "tools/run_tool.h"
#include "tools/share_progress.h"
#include "tools/train_report.h"

namespace {

using namespace tg;

// Opens the tokenizer of a token file, a checkpoint or a run.
std::unique_ptr<text::Tokenizer> tokenizer_like(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    const io::MappedFile file(path, "tokens");
    const text::TokenHeader header = text::parse_token_header(file.bytes(), "[tokens] " + path);
    file.check();
    return text::load_tokenizer(header.metadata, "[tokens] " + path);
  }
  const io::Checkpoint checkpoint(path);
  return text::load_tokenizer(checkpoint.load("model.safetensors").metadata,
                              checkpoint.directory() + "/model.safetensors");
}

std::unique_ptr<text::Tokenizer> learn_from(const io::MappedFile& file, const std::string& kind,
                                            std::int64_t vocabulary) {
  if (kind == "bytes") return std::make_unique<text::ByteTokenizer>();
  if (kind == "chars") return std::make_unique<text::CharVocab>(file.bytes());
  if (kind == "bpe")
    return std::make_unique<text::Bpe>(text::Bpe::train(file.bytes(), vocabulary, [&] { file.check(); }));
  return std::make_unique<text::HfTokenizer>(text::HfTokenizer::open(kind));
}

// Prints one line per token: the id of the token, and its string in the tokenizer's file.
void show(const std::string& path, std::string_view text) {
  const text::HfTokenizer tokenizer = text::HfTokenizer::open(path);
  const std::vector<std::int32_t> ids = tokenizer.encode_whole(text);
  std::string all;
  for (const std::int32_t id : ids) all += (all.empty() ? "" : " ") + std::to_string(id);
  print_row("ids", all);
  for (const std::int32_t id : ids)
    print_row(std::to_string(id),
              printable(tokenizer.token_text(id)) + (tokenizer.is_added(id) ? "  (added token)" : ""));
}

void run(const std::string& text_path, const std::string& out, const std::string& like,
         const std::string& kind, std::int64_t vocabulary, bool overwrite) {
  constexpr std::size_t chunk = std::size_t{16} << 20;
  check_outputs("tokens", {out}, overwrite, {text_path, like, kind});
  const io::MappedFile file(text_path, "tokens");
  std::string_view rest = file.bytes();
  const auto tokenizer = like.empty() ? learn_from(file, kind, vocabulary) : tokenizer_like(like);
  text::TokenFileWriter writer(out, *tokenizer);
  std::optional<ShareProgress> progress(std::in_place, static_cast<std::int64_t>(file.bytes().size()),
                                        "bytes");
  while (!rest.empty()) {
    // The text is cut only at positions that tokens do not cross. The result is then the same as for the
    // complete text.
    std::size_t n = rest.size() <= chunk ? rest.size() : tokenizer->safe_cut(rest, chunk);
    if (n == 0) n = rest.size();
    const std::vector<std::int32_t> ids = tokenizer->encode(rest.substr(0, n));
    file.check();
    writer.write(ids);
    rest.remove_prefix(n);
    progress->update(static_cast<std::int64_t>(file.bytes().size() - rest.size()));
  }
  progress.reset();
  writer.close();
  print_row("text", text_path + ": " + counted(std::ssize(file.bytes()), "byte"));
  print_row("tokenizer", std::string(tokenizer->kind()) + ", " + counted(tokenizer->size(), "token"));
  print_row("tokens",
            out + ": " + grouped(static_cast<std::int64_t>(writer.count())) + ", " +
                short_number(static_cast<double>(file.bytes().size()) / static_cast<double>(writer.count())) +
                " bytes each");
}

}  // namespace

int main(int argc, char** argv) {
  std::string text, out, like, kind = "bpe", shown;
  std::int64_t vocabulary = 4096;
  bool overwrite = false;
  Args args("tokens",
            "Converts a text to a token file for `train --tokens`, or prints the tokens of a string.");
  args.option("text", "FILE", "UTF-8 text to convert, of any size", text);
  args.option("out", "PATH", "token file to write", out);
  declare_overwrite(args, overwrite);
  args.option("like", "PATH", "token file, checkpoint or run whose tokenizer is used", like,
              {.shown = "none"});
  args.option("tokenizer", "KIND",
              "tokenizer, without --like: tokens are characters (chars; UTF-8), bytes, learned from the text "
              "(bpe), or defined by a tokenizer.json, given as a file or a folder that contains it",
              kind);
  args.option("vocabulary", "N", "number of tokens for --tokenizer bpe", vocabulary,
              {.min = 257, .max = static_cast<double>(text::Bpe::max_vocabulary)});
  args.positional(
      "shown", "string whose tokens are printed, one per line; requires --tokenizer FOLDER or FILE", shown);
  args.example("tokens --text corpus.txt --out corpus.tokens",
               "learn 4096 tokens from a text and convert it");
  args.example("tokens --text more.txt --like corpus.tokens --out more.tokens",
               "convert a second text with the same tokenizer");
  args.example("train --tokens corpus.tokens", "train a model on a token file");
  args.example("tokens --tokenizer gpt2/ 'Hello world'",
               "print ids and tokens of a string, by gpt2/tokenizer.json");
  return run_tool("tokens", [&]() -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    if (!like.empty() && (args.given("tokenizer") || args.given("vocabulary")))
      throw UsageError("--like determines the tokenizer: omit --tokenizer and --vocabulary");
    const bool is_file = kind != "bpe" && kind != "chars" && kind != "bytes";
    if (args.given("shown")) {
      if (!is_file || !text.empty() || !out.empty() || !like.empty() || overwrite)
        throw UsageError(
            "printing the tokens of a string requires --tokenizer FOLDER or FILE, and no other option");
      show(kind, shown);
      return 0;
    }
    if (text.empty() || out.empty())
      throw UsageError("--text and --out are required, or a string whose tokens are printed");
    if (args.given("vocabulary") && kind != "bpe") throw UsageError("--vocabulary requires --tokenizer bpe");
    run(text, out, like, kind, vocabulary, overwrite);
    return 0;
  });
}
