// export --to gguf: a file for llama.cpp.
#include "io/files/staged_folder.h"
#include "io/interop/gguf_writer.h"
#include "tools/export/form.h"
#include "tools/printable.h"

namespace tg {

namespace {

// As one word of a shell.
std::string shell_word(const std::string& text) {
  std::string s = "'";
  for (const char c : text) s += c == '\'' ? "'\\''" : std::string(1, c);
  return printable(s + "'");
}

}  // namespace

std::string export_gguf(io::ModelSource& source, const ExportOptions& options) {
  io::require_new_path(options.out, "export", "file");
  io::GgufOptions saving{.written = options.progress};
  for (const io::GgufEncoding e :
       {io::GgufEncoding::f32, io::GgufEncoding::f16, io::GgufEncoding::bf16, io::GgufEncoding::q8_0})
    if (options.dtype == name_of(e)) saving.encoding = e;
  io::GgufWriter writer(source, saving);
  print_row("writes", options.out + ": " + writer.architecture() + ", " +
                          std::string(name_of(writer.encoding())) + ", " +
                          size_text(static_cast<double>(writer.bytes())));
  if (writer.not_in_blocks() > 0)
    print_row("",
              std::to_string(writer.not_in_blocks()) + " tensors in f16: their rows are no multiple of 32");
  if (writer.context() < writer.config().model.context)
    print_row("context", std::to_string(writer.context()) +
                             ", the length of its windows, which llama.cpp's " + writer.architecture() +
                             " does not have");
  std::fflush(stdout);
  writer.write(options.out);
  return writer.has_tokenizer() ? "llama-cli -m " + shell_word(options.out) + " -p 'Once upon a time'"
                                : "llama-bench -m " + shell_word(options.out);
}

}  // namespace tg
