// export --to gguf: a file for llama.cpp.
#include "io/files/staged_folder.h"
#include "io/interop/gguf_writer.h"
#include "tools/export/form.h"

namespace tg {

namespace {

std::string shell_word(const std::string& text) {
  if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") ==
      std::string::npos)
    return text;
  std::string s = "'";
  for (const char c : text) s += c == '\'' ? std::string("'\\''") : std::string{c};
  return s + "'";
}

}  // namespace

std::string export_gguf(ExportSource& source, const ExportOptions& options) {
  io::require_new_folder(options.out, "export");
  io::GgufWriter writer(source.model, {.dtype = options.dtype, .written = options.progress});
  print_row("writes", options.out + ": " + writer.architecture() + ", " +
                          std::string(name_of(writer.type())) + ", " +
                          size_text(static_cast<double>(writer.bytes())));
  for (const std::string& note : writer.notes()) print_row("note", note);
  std::fflush(stdout);
  writer.write(options.out);
  const std::string file = " -m " + shell_word(options.out);
  // Programs of llama.cpp; without a tokenizer there is no text for it to read.
  return writer.has_tokenizer() ? "llama-completion" + file + " -no-cnv -n 40 -p 'Once'"
                                : "llama-bench" + file;
}

}  // namespace tg
