#include "tools/train/options.h"

#include <tilegrad/ops/ring_attention.h>

namespace tg {

nn::LoraOptions LoraTraining::options(std::uint64_t seed) const {
  nn::LoraOptions o{.rank = rank, .alpha = alpha == 0 ? 2.0 * static_cast<double>(rank) : alpha};
  o.dropout = dropout, o.seed = seed, o.targets = words_of(targets);
  std::erase(o.targets, "");
  return o;
}

void declare_lora_options(Args& args, LoraTraining& o) {
  args.option("lora", "R",
              "with --model: train low-rank adapters of rank R instead of the weights, which --dtype bf16 "
              "and f16 then"
              " hold in that type; the checkpoint has the adapters and names the folder",
              o.rank, {.min = 0, .max = 65536, .shown = "0: no adapters"});
  args.option("lora-alpha", "A", "the adapters' products are scaled by A/R", o.alpha,
              {.min = 0, .max = 1e9, .shown = "twice R"});
  args.option("lora-targets", "NAMES", "layers with an adapter, such as q_proj,v_proj", o.targets,
              {.shown = "all linear ones but the head"});
  args.option("lora-dropout", "P", "share of an adapted layer's inputs that its adapter does not see",
              o.dropout, {.min = 0, .max = 0.999});
  args.example(
      "train --model SmolLM-135M --lora 8 --lora-targets q_proj,v_proj --text mine.txt --out out/lora",
      "train adapters alone; export --to peft gives them to PEFT, --merge --to hf adds them to the model");
}

std::string mistake_in_lora(const Args& args, const LoraTraining& o, bool has_base) {
  if (o.rank > 0 && !has_base) return "--lora is for --model: an adapter is one of a model that is there";
  for (const char* name : {"lora-alpha", "lora-targets", "lora-dropout"})
    if (args.given(name) && o.rank == 0) return "--" + std::string(name) + " is for --lora R";
  return {};
}

void declare_options(Args& args, TrainOptions& o) {
  declare_data_options(args, o.data);
  args.option(
      "model", "MODEL",
      "fine-tune this model, a Hugging Face folder or a GGUF file, with its tokenizer, instead of training "
      "a new one; --context may be shorter than the model's",
      o.base, {.shown = "none"});
  declare_lora_options(args, o.lora);
  declare_model_options(args, o);
  args.option("batch", "N", "rows of tokens in a step; 64 with --task add", o.batch,
              {.min = 1, .max = 65536});
  args.option("steps", "N", "optimizer steps", o.steps, {.min = 1, .max = 1e9});
  declare_optimizer_options(args, o.learning);
  args.option("seed", "N", "seed of weights, batches, dropout and sample", o.seed, {.min = 0});
  declare_device_options(args, o);
  args.option("context-parallel", "N",
              "ranks that divide the tokens of each sequence among them: all there are; 1: ranks divide the "
              "batches",
              o.context_parallel, {.min = 1, .max = most_ring_ranks});
  args.option("eval-every", "N", "steps between validations", o.eval_every, {.min = 1});
  args.option("eval-batches", "N",
              "batches per validation; the final validation covers the whole held-out text", o.eval_batches,
              {.min = 1, .max = 400});
  args.option("save-every", "N", "steps between checkpoints; a new best validation loss saves one too",
              o.save_every, {.min = 1, .shown = "as --eval-every"});
  args.option("sample", "N", "tokens to generate at the end", o.sample, {.min = 0, .max = 1e6});
  args.option(
      "profile", "N",
      "instead of training, run N steps and print where their time goes, compared with this machine's peak "
      "rates",
      o.profile, {.min = 0, .max = 1e4});
  args.option("out", "PATH", "folder of the run to write; created if missing", o.out);
  args.option(
      "zero", "STAGE",
      "what ranks divide: 1 the update and the optimizer's state, 2 sums of gradients as well, as soon as "
      "they are there; 0 neither",
      o.zero, {.min = 0, .max = 2});
  args.flag("recompute",
            "keep only the input of each block for the backward pass, which recomputes the rest: less memory,"
            " about a third more time",
            o.recompute);
  args.option(
      "memory-budget", "SIZE",
      "limit for peak memory, such as 8GiB, 500MiB or a number of bytes: compute the loss in chunks and"
      " recompute as few values as possible, matmuls and attention last",
      o.memory_budget, {.shown = "none"});
  args.flag("trap-nan", "when the gradient of a step is not finite, name the node it comes from and stop",
            o.trap_nan);
  args.flag("resume",
            "resume the run in --out with its options; --steps, --eval-every, --eval-batches, --save-every, "
            "--sample and --backend"
            " may change",
            o.resume);
  args.flag("overwrite", "replace the run in --out", o.overwrite);
  args.example("train --text input.txt",
               "the 0.8 M model of 4 layers, 2000 steps: about half a minute on 2 cores");
  args.example(
      "train --text input.txt --layers 6 --heads 6 --width 384 --context 256 --batch 64 --steps 5000"
      " --dropout 0.2 --out out/big",
      "nanoGPT's 10 M configuration");
  args.example("train --text input.txt --tokenizer bpe --vocabulary 1024", "tokens learned from the text");
  args.example("train --tokens corpus.tokens", "a file written by the tool `tokens`");
  args.example("train --task add",
               "sums of integers, without any data; reports the share of held-out sums answered correctly");
  args.example("train --text input.txt --architecture llama --key-heads 2", "grouped-query attention");
  args.example("train --text input.txt --architecture deepseek --latent 32 --rope-width 8",
               "multi-head latent attention");
  args.example("train --model SmolLM-135M --text mine.txt --out out/ft",
               "fine-tune a model from Hugging Face; export --to hf gives it back");
  args.example("launch -n 4 train --text input.txt --context 4096 --batch 1 --context-parallel 4",
               "long sequences, each divided among four ranks");
  args.example("train --resume --out out/big", "resume a run that was stopped or killed");
}

std::string mistake_in_context_parallel(const TrainOptions& o, int ranks) {
  const std::int64_t n = o.context_parallel;
  if (n == 1) return {};
  const std::string option = "--context-parallel " + std::to_string(n);
  if (n != ranks)
    return option + " is for as many ranks, not " + std::to_string(ranks) +
           "; with 1 ranks divide batches, not sequences";
  if (o.model.context % (2 * n) != 0)
    return option + " needs a --context that is a multiple of " + std::to_string(2 * n) + ", not " +
           std::to_string(o.model.context);
  if (o.model.dropout > 0) return option + " has no --dropout";
  if (o.data.task == "add") return option + " is not for --task add: no rank has a whole answer";
  return {};
}

}  // namespace tg
