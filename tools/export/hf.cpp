// export --to hf: a Hugging Face folder.
#include "core/base/messages.h"
#include "io/files/staged_folder.h"
#include "io/interop/hf_writer.h"
#include "tools/dtype_named.h"
#include "tools/export/form.h"

namespace tg {

// A string of Python; it has the escapes of printable().
std::string python_string(const std::string& text) {
  std::string s;
  for (const char c : text) s += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return "\"" + printable(s) + "\"";
}

std::string export_hf(ExportSource& source, const ExportOptions& options) {
  io::require_new_folder(options.out, "export");
  nn::SaveOptions saving{.written = options.progress};
  if (!options.dtype.empty()) saving.dtype = dtype_named(options.dtype);
  io::HfWriter writer(source.model, saving);
  const std::size_t files = writer.files().size();
  print_row("writes", options.out + ": " + writer.config().head + ", " + io::names_of(writer.dtypes()) +
                          ", " + size_text(static_cast<double>(writer.bytes())) +
                          (files > 1 ? " in " + std::to_string(files) + " files" : ""));
  std::fflush(stdout);
  writer.write(options.out);
  const std::string folder = python_string(options.out);
  return "from transformers import AutoModelForCausalLM" +
         std::string(writer.has_tokenizer() ? ", AutoTokenizer" : "") +
         "; model = AutoModelForCausalLM.from_pretrained(" + folder + ")" +
         (writer.has_tokenizer() ? "; tokenizer = AutoTokenizer.from_pretrained(" + folder + ")" : "");
}

}  // namespace tg
