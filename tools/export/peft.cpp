// export --to peft: the adapter of a run of train --lora as a PEFT folder.
#include <algorithm>

#include <tilegrad/core/base/error.h>
#include "io/checkpoints/tensor_values.h"
#include "io/files/staged_folder.h"
#include "io/interop/adapter_source.h"
#include "tools/dtype_named.h"
#include "tools/export/form.h"

namespace tg {

std::string export_peft(ExportSource& source, const ExportOptions& options) {
  io::require_new_folder(options.out, "export");
  const io::SavedAdapter& adapter = *source.adapter;
  io::TensorMap tensors = adapter.file.tensors;
  std::vector<Array> rounded;  // what tensors of another dtype look into
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
              "peft with transformers 5 takes DeepSeek's MLP layers for experts and cannot open adapters "
              "of them: --merge it, or train others (--lora-targets)");
  io::write_peft_folder(options.out, adapter.config_text, tensors);
  const std::string base = python_string(adapter.config.base);
  return "from transformers import AutoModelForCausalLM; from peft import PeftModel; model = "
         "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(" +
         base + "), " + python_string(options.out) + ")";
}

}  // namespace tg
