// Options of train --lora.
#include <algorithm>

#include "tools/train/options.h"

namespace tg {

nn::LoraOptions LoraTraining::options(std::uint64_t seed) const {
  nn::LoraOptions o{.rank = rank, .alpha = alpha == 0 ? 2.0 * static_cast<double>(rank) : alpha};
  o.dropout = dropout, o.seed = seed;
  for (std::size_t at = 0; at < targets.size();) {
    const std::size_t end = std::min(targets.find(',', at), targets.size());
    if (end > at) o.targets.push_back(targets.substr(at, end - at));
    at = end + 1;
  }
  return o;
}

void declare_lora_options(Args& args, LoraTraining& o) {
  args.option(
      "lora", "R",
      "of --from: train low-rank adapters of rank R instead of the weights, which --dtype bf16 and f16 then"
      " hold in that type; the checkpoint has the adapters and names the folder",
      o.rank, {.min = 0, .max = 65536, .shown = "0: no adapters"});
  args.option("lora-alpha", "A", "the adapters' products are scaled by A/R", o.alpha,
              {.min = 0, .max = 1e9, .shown = "twice R"});
  args.option("lora-targets", "NAMES", "layers with an adapter, such as q_proj,v_proj", o.targets,
              {.shown = "all linear ones but the head"});
  args.option("lora-dropout", "P", "share of an adapted layer's inputs that its adapter does not see",
              o.dropout, {.min = 0, .max = 0.999});
  args.example(
      "train --from SmolLM-135M --lora 8 --lora-targets q_proj,v_proj --text mine.txt --out out/lora",
      "train adapters alone; export --to peft gives them to PEFT, --merge --to hf adds them to the model");
}

std::string mistake_in_lora(const Args& args, const LoraTraining& o, bool has_base) {
  if (o.rank > 0 && !has_base) return "--lora is for --from: an adapter is one of a model that is there";
  for (const char* name : {"lora-alpha", "lora-targets", "lora-dropout"})
    if (args.given(name) && o.rank == 0) return "--" + std::string(name) + " is for --lora R";
  return {};
}

}  // namespace tg
