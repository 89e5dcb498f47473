// export: writes a model from a checkpoint of tools/train, a Hugging Face folder or a GGUF file in a format
// of another program.
#include <algorithm>
#include <cstdio>

#include <tilegrad/core/base/error.h>
#include "core/base/messages.h"
#include "io/checkpoints/tensor_values.h"
#include "io/files/json_object.h"
#include "io/files/staged_folder.h"
#include "io/models/adapter_source.h"
#include "io/models/gguf_writer.h"
#include "io/models/hf_writer.h"
#include "tools/common_options.h"
#include "tools/opened_model.h"
#include "tools/run_tool.h"

namespace {

using namespace tg;

struct ExportOptions {
  std::string out;    // the folder or file to write
  std::string dtype;  // dtype of the weights; empty: unchanged
};

// The source of an export: a model, or only an adapter.
struct ExportSource {
  io::ModelSource model = {};
  std::optional<io::SavedAdapter> adapter = {};
};

struct Form {
  std::string_view name;            // value of --to
  const char* what;                 // for --help
  std::vector<std::string> dtypes;  // choices of --weights-dtype
  bool is_adapter;                  // writes only the adapter of a run of train --lora
  // Prints rows about the output and writes the output. Returns commands that load it in the other program.
  // If writing fails, throws Error with a message of one line and leaves no files.
  std::string (*write)(ExportSource& source, const ExportOptions& options);
};

// Called between two tensors. If a signal asks the tool to stop, throws Error. The export then leaves no
// files behind.
void check_interrupts(std::uint64_t, std::uint64_t) {
  if (is_asked_to_stop()) throw Error("[export] interrupted: nothing is written");
}

// Formats a string as a Python literal, with the escapes of printable().
std::string python_string(const std::string& text) {
  std::string s;
  for (const char c : text) s += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return "\"" + printable(s) + "\"";
}

std::string export_hf(ExportSource& source, const ExportOptions& options) {
  nn::SaveOptions saving{.written = check_interrupts};
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

std::string shell_word(const std::string& text) {
  if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") ==
      std::string::npos)
    return text;
  std::string s = "'";
  for (const char c : text) s += c == '\'' ? std::string("'\\''") : std::string{c};
  return s + "'";
}

std::string export_gguf(ExportSource& source, const ExportOptions& options) {
  io::GgufWriter writer(source.model, {.dtype = options.dtype, .written = check_interrupts});
  print_row("writes", options.out + ": " + writer.architecture() + ", " +
                          std::string(name_of(writer.type())) + ", " +
                          size_text(static_cast<double>(writer.bytes())));
  for (const std::string& note : writer.notes()) print_row("note", note);
  std::fflush(stdout);
  writer.write(options.out);
  const std::string file = " -m " + shell_word(options.out);
  // Commands of llama.cpp. Without a tokenizer, only the benchmark can run.
  return writer.has_tokenizer() ? "llama-completion" + file + " -no-cnv -n 40 -p 'Once'"
                                : "llama-bench" + file;
}

std::string export_peft(ExportSource& source, const ExportOptions& options) {
  const io::SavedAdapter& adapter = *source.adapter;
  io::TensorMap tensors = adapter.file.tensors;
  std::vector<Array> rounded;  // owns the converted tensors
  rounded.reserve(tensors.size());
  std::uint64_t bytes = 0;
  for (auto& [name, t] : tensors) {
    if (!options.dtype.empty()) {
      const Array& r = rounded.emplace_back(
          io::converted(t, Shape(t.shape), dtype_named(options.dtype), "[export] " + adapter.where, name));
      t = {r.dtype(), t.shape, {r.raw(), r.bytes()}};
    }
    bytes += t.bytes.size();
  }
  print_row("writes", options.out + ": a LoRA adapter, " + size_text(static_cast<double>(bytes)));
  const auto is_of_mlp = [](const auto& tensor) { return tensor.first.find(".mlp.") != std::string::npos; };
  if (adapter.model.architecture.name() == "deepseek" &&
      std::any_of(tensors.begin(), tensors.end(), is_of_mlp))
    print_row("note",
              "with transformers 5, PEFT treats DeepSeek's MLP layers as experts and cannot load adapters "
              "for them: use --merge, or train other layers (--lora-targets)");
  io::write_peft_folder(options.out, adapter.config_text, tensors);
  const std::string base = python_string(adapter.config.base);
  return "from transformers import AutoModelForCausalLM; from peft import PeftModel; model = "
         "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(" +
         base + "), " + python_string(options.out) + ")";
}

const Form forms[] = {
    {"hf", "a Hugging Face folder for transformers", {"f32", "bf16", "f16"}, false, export_hf},
    {"gguf", "a GGUF file for llama.cpp", {"f32", "bf16", "f16", "q8_0"}, false, export_gguf},
    {"peft", "the adapter of train --lora for PEFT", {"f32", "bf16", "f16"}, true, export_peft},
};

void print_source(const io::ModelSource& source) {
  const auto config = source.files.find("config.json");
  print_row("reads",
            source.from + (config == source.files.end()
                               ? ""
                               : ": " + io::JsonObject(config->second, source.from).string("model_type") +
                                     " of Hugging Face"));
  print_row("model", source.config.text() + ", " + grouped(source.config.parameters()) + " parameters in " +
                         io::names_of(source.dtypes()));
  print_row("tokenizer",
            !source.tokenizer ? "none"
            : source.tokenizer->kind() == "numbers"
                ? "none: tokens are printed as numbers"
                : std::string(source.tokenizer->kind()) + ", " + counted(source.tokenizer->size(), "token"));
  print_dropped(source.dropped);
}

void print_adapter(const io::SavedAdapter& adapter) {
  print_row("reads", adapter.where);
  print_row("adapter", "rank " + std::to_string(adapter.config.options.rank) + ", alpha " +
                           short_number(adapter.config.options.alpha) + ", of " + adapter.config.base);
}

// Opens the checkpoint for this format. Throws Error if the format needs an adapter and the checkpoint has
// none, or if the format needs a complete model and the checkpoint has only an adapter.
ExportSource opened(const std::string& path, const Form& form, bool merge) {
  const io::Checkpoint checkpoint(path);
  const std::string where = checkpoint.directory() + "/model.safetensors";
  io::SafeTensors file = checkpoint.load("model.safetensors");
  const bool has_adapter = io::holds_adapter(file.metadata);
  if (!has_adapter && (merge || form.is_adapter))
    throw Error("[export] " + where + " has no adapter, which " +
                (merge ? std::string("--merge") : "--to " + std::string(form.name)) +
                " needs: it contains the whole model");
  if (!has_adapter) return {io::source_of_checkpoint(std::move(file), checkpoint.directory())};
  io::SavedAdapter adapter(std::move(file), where);
  if (form.is_adapter) return {.adapter = std::move(adapter)};
  if (!merge)
    throw Error("[export] " + where +
                " has an adapter: --merge adds it to the weights, --to peft writes only the adapter");
  io::ModelSource base = io::source_at(adapter.config.base);
  return {io::with_adapter(std::move(base), std::move(adapter))};
}

}  // namespace

int main(int argc, char** argv) {
  std::string model, to;
  bool merge = false;
  ExportOptions o;
  std::vector<std::string> names, dtypes;
  std::string what;
  for (const Form& f : forms) {
    names.emplace_back(f.name);
    what += (what.empty() ? "" : "; ") + std::string(f.name) + ": " + f.what;
    for (const std::string& d : f.dtypes)
      if (std::find(dtypes.begin(), dtypes.end(), d) == dtypes.end()) dtypes.push_back(d);
  }
  Args args("export", "Writes a model in a format of another program.");
  declare_model(args, model);
  args.flag("merge", "add the adapters of a run of train --lora to the weights, and write the whole model",
            merge);
  args.option("to", "FORM", what, to, {.choices = names, .required = true});
  args.option("weights-dtype", "TYPE", "dtype in which the weights are written", o.dtype,
              {.choices = dtypes, .shown = "unchanged"});
  args.option("out", "PATH", "folder or file to write, which must not exist", o.out, {.required = true});
  args.example("export --model out/train --to hf --out my-model", "write a folder for transformers");
  args.example("export --model out/lora --to peft --out my-adapter", "write an adapter for PEFT");
  args.example("export --model out/lora --merge --to hf --out my-model",
               "write the model with the adapter merged into it");
  args.example("export --model SmolLM-135M --to hf --out smol-bf16 --weights-dtype bf16",
               "convert a folder to bf16");
  args.example("export --model SmolLM-135M --to gguf --out smol.gguf --weights-dtype q8_0",
               "quantize to 8 bits for llama.cpp");
  return run_tool("export", [&]() -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    const Form& form = *std::ranges::find(forms, to, &Form::name);
    if (merge && form.is_adapter)
      throw UsageError("--merge writes a whole model, but --to " + to + " writes only the adapter");
    const bool is_run = !is_folder_of_others(model);
    if (!is_run && (merge || form.is_adapter))
      throw UsageError("--model " + model + " has no adapter: expected a run of train --lora");
    if (!o.dtype.empty() && std::find(form.dtypes.begin(), form.dtypes.end(), o.dtype) == form.dtypes.end())
      throw UsageError("--to " + to + " does not support --weights-dtype " + o.dtype);
    ExportSource source = is_run ? opened(model, form, merge) : ExportSource{io::source_at(model)};
    if (form.is_adapter)
      print_adapter(*source.adapter);
    else
      print_source(source.model);
    const OrderlyStop orderly;
    io::require_new_folder(o.out, "export");
    std::printf("%s\n", form.write(source, o).c_str());
    return 0;
  });
}
