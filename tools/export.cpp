// export writes a model, from a checkpoint of tools/train, a Hugging Face folder or a GGUF file, for other
// programs.
#include <cstdio>

#include <tilegrad/core/base/error.h>
#include "io/interop/json_object.h"
#include "tools/args.h"
#include "tools/export/form.h"
#include "tools/opened_model.h"
#include "tools/run_tool.h"

namespace {

using namespace tg;

const Form forms[] = {
    {"hf", "a Hugging Face folder for transformers", {"f32", "bf16", "f16"}, false, export_hf},
    {"gguf", "a GGUF file for llama.cpp", {"f32", "bf16", "f16", "q8_0"}, false, export_gguf},
    {"peft", "the adapter of train --lora for PEFT", {"f32", "bf16", "f16"}, true, export_peft},
};

// A signal ends the writing between two tensors, so that nothing is left behind.
void check_interrupts(std::uint64_t, std::uint64_t) {
  if (is_asked_to_stop()) throw Error("[export] interrupted: nothing is written");
}

const Form& form_named(const std::string& name) {
  for (const Form& f : forms)
    if (f.name == name) return f;
  throw Error("[export] unknown form " + name);
}

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
                ? "none: tokens are numbers"
                : std::string(source.tokenizer->kind()) + ", " + counted(source.tokenizer->size(), "token"));
  if (!source.dropped.empty())
    print_row(
        "dropped",
        source.dropped[0] +
            (source.dropped.size() > 1 ? " and " + std::to_string(source.dropped.size() - 1) + " more" : ""));
}

void print_adapter(const io::SavedAdapter& adapter) {
  print_row("reads", adapter.where);
  print_row("adapter", "rank " + std::to_string(adapter.config.options.rank) + ", alpha " +
                           short_number(adapter.config.options.alpha) + ", of " + adapter.config.base);
}

// A checkpoint as the form needs it. Throws Error for one that has no adapter, or nothing else.
ExportSource opened(const std::string& path, const Form& form, bool merge) {
  const io::Checkpoint checkpoint(path);
  const std::string where = checkpoint.directory() + "/model.safetensors";
  io::SafeTensors file = checkpoint.load("model.safetensors");
  const bool has_adapter = io::holds_adapter(file.metadata);
  if (!has_adapter && (merge || form.is_adapter))
    throw Error("[export] " + where + " has no adapter, which " +
                (merge ? std::string("--merge") : "--to " + std::string(form.name)) +
                " needs: it is the whole model");
  if (!has_adapter) return {io::source_of_checkpoint(std::move(file), checkpoint.directory())};
  io::SavedAdapter adapter(std::move(file), where);
  if (form.is_adapter) return {.adapter = std::move(adapter)};
  if (!merge)
    throw Error("[export] " + where +
                " has an adapter: --merge adds it to the weights, --to peft writes it alone");
  io::ModelSource base = io::source_at(adapter.config.base);
  return {io::with_adapter(std::move(base), std::move(adapter))};
}

}  // namespace

int main(int argc, char** argv) {
  std::string model, to;
  bool merge = false;
  ExportOptions o{.progress = check_interrupts};
  std::vector<std::string> names, dtypes;
  std::string what;
  for (const Form& f : forms) {
    names.push_back(f.name);
    what += (what.empty() ? "" : "; ") + std::string(f.name) + ": " + f.what;
    for (const std::string& d : f.dtypes)
      if (std::find(dtypes.begin(), dtypes.end(), d) == dtypes.end()) dtypes.push_back(d);
  }
  Args args("export", "Writes a model for other programs.");
  args.option("model", "PATH",
              "a run of train, one of its checkpoints (RUN/best), a Hugging Face folder, or a GGUF file",
              model, {.required = true});
  args.flag("merge", "of a run of train --lora: the model with the adapters added to its weights", merge);
  args.option("to", "FORM", what, to, {.choices = names, .required = true});
  args.option("dtype", "TYPE", "of the weights, which are rounded to it", o.dtype,
              {.choices = dtypes, .shown = "as they are"});
  args.positional("out", "the folder or file to write, which must not exist", o.out, {.required = true});
  args.example("export --model out/train --to hf my-model", "a folder for transformers");
  args.example("export --model out/lora --to peft my-adapter", "an adapter for PEFT");
  args.example("export --model out/lora --merge --to hf my-model", "the model with it");
  args.example("export --model SmolLM-135M --to hf smol-bf16 --dtype bf16", "a folder in another dtype");
  args.example("export --model SmolLM-135M --to gguf smol.gguf --dtype q8_0", "8 bits for llama.cpp");
  return run_tool("export", [&]() -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    const Form& form = form_named(to);
    if (merge && form.is_adapter)
      return args.fail("--merge makes a whole model, --to " + to + " the adapter alone");
    const bool is_run = !is_folder_of_others(model);
    if (!is_run && (merge || form.is_adapter))
      return args.fail("--model " + model + " has no adapter: a run of train --lora has one");
    if (!o.dtype.empty() && std::find(form.dtypes.begin(), form.dtypes.end(), o.dtype) == form.dtypes.end())
      return args.fail("--to " + to + " has no --dtype " + o.dtype);
    ExportSource source = is_run ? opened(model, form, merge) : ExportSource{io::source_at(model)};
    if (form.is_adapter)
      print_adapter(*source.adapter);
    else
      print_source(source.model);
    const OrderlyStop orderly;
    std::printf("%s\n", form.write(source, o).c_str());
    return 0;
  });
}
