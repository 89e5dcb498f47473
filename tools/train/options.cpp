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
  args.option(
      "lora", "R",
      "rank of LoRA adapters, which are trained instead of the weights of --model. Checkpoints contain only "
      "adapters and the base model's path. Frozen weights are stored in f32, or in --dtype bf16 or f16",
      o.rank, {.min = 0, .max = 65536, .shown = "0: no adapters"});
  args.option("lora-alpha", "A", "scale of the adapters: their output is multiplied by A/R", o.alpha,
              {.min = 0, .max = 1e9, .shown = "twice R"});
  args.option("lora-targets", "NAMES",
              "comma-separated names of layers that get an adapter, such as q_proj,v_proj", o.targets,
              {.shown = "all linear layers except the head"});
  args.option("lora-dropout", "P", "dropout probability of the adapters' inputs", o.dropout,
              {.min = 0, .max = 0.999});
  args.example(
      "train --model SmolLM-135M --lora 8 --lora-targets q_proj,v_proj --text mine.txt --out out/lora",
      "train only adapters; export --to peft writes them for PEFT, export --merge --to hf adds them to the "
      "model");
}

std::string mistake_in_lora(const Args& args, const LoraTraining& o, bool has_base) {
  if (o.rank > 0 && !has_base) return "--lora requires --model: an adapter needs a trained model";
  for (const char* name : {"lora-alpha", "lora-targets", "lora-dropout"})
    if (args.given(name) && o.rank == 0) return "--" + std::string(name) + " requires --lora R";
  return {};
}

void declare_options(Args& args, TrainOptions& o) {
  declare_data_options(args, o.data);
  args.option("model", "MODEL",
              "model to fine-tune, with its tokenizer, instead of training a new one: a Hugging Face folder "
              "or a GGUF file; --context may be shorter than the model's",
              o.base, {.shown = "none"});
  declare_lora_options(args, o.lora);
  declare_model_options(args, o);
  args.option("batch", "N", "rows of tokens in a batch; 64 by default with --task add", o.batch,
              {.min = 1, .max = 65536});
  args.option("steps", "N", "number of optimizer steps", o.steps, {.min = 1, .max = 1e9});
  declare_optimizer_options(args, o.learning);
  args.option("seed", "N", "random seed of initial weights, batches, dropout and the sample", o.seed,
              {.min = 0});
  declare_device_options(args, o);
  args.option("context-parallel", "N",
              "number of ranks that split each sequence: all ranks, or 1 to split batches instead",
              o.context_parallel, {.min = 1, .max = most_ring_ranks});
  args.option("eval-every", "N", "number of steps between validations", o.eval_every, {.min = 1});
  args.option("eval-batches", "N",
              "number of batches per validation; the final validation covers all held-out data",
              o.eval_batches, {.min = 1, .max = 400});
  args.option("save-every", "N",
              "number of steps between checkpoints; a new best validation loss also saves one", o.save_every,
              {.min = 1, .shown = "same as --eval-every"});
  args.option("sample", "N", "number of tokens to generate after training; 0: none", o.sample,
              {.min = 0, .max = 1e6});
  args.option("profile", "N",
              "run N steps instead of training, and print a profile of their time compared with this "
              "machine's peak rates; 0: train",
              o.profile, {.min = 0, .max = 1e4});
  args.option("out", "PATH", "folder of the run to write; created if missing", o.out);
  args.option("zero", "STAGE",
              "sharding across ranks: 0 for none, 1 for the update and the optimizer state, 2 also for "
              "gradient sums, as soon as they are ready",
              o.zero, {.min = 0, .max = 2});
  args.flag("recompute",
            "keep only the input of each block for the backward pass, which recomputes the rest; this needs "
            "less memory and about a third more time",
            o.recompute);
  args.option(
      "memory-budget", "SIZE",
      "limit for peak memory, such as 8GiB, 500MiB or a number of bytes: compute the loss in chunks and"
      " recompute as few values as possible, matmuls and attention last",
      o.memory_budget, {.shown = "none"});
  args.flag(
      "trap-nan",
      "stop when the gradient of a step is not finite, and name the node that produced the first such value",
      o.trap_nan);
  args.flag("resume",
            "resume the run in --out with its options; --steps, --eval-every, --eval-batches, --save-every, "
            "--sample and --backend"
            " may change",
            o.resume);
  args.flag("overwrite", "replace the run in --out", o.overwrite);
  args.example(
      "train --text input.txt",
      "train the default model: 0.8 M parameters, 4 layers, 2000 steps; about half a minute on 2 cores");
  args.example(
      "train --text input.txt --layers 6 --heads 6 --width 384 --context 256 --batch 64 --steps 5000"
      " --dropout 0.2 --out out/big",
      "nanoGPT's 10 M configuration");
  args.example("train --text input.txt --tokenizer bpe --vocabulary 1024",
               "learn a BPE vocabulary from the text");
  args.example("train --tokens corpus.tokens", "train on a file written by the tool `tokens`");
  args.example(
      "train --task add",
      "learn to add integers, without a data file; reports how many held-out sums are answered correctly");
  args.example("train --text input.txt --architecture llama --key-heads 2", "use grouped-query attention");
  args.example("train --text input.txt --architecture deepseek --latent 32 --rope-width 8",
               "use multi-head latent attention");
  args.example("train --model SmolLM-135M --text mine.txt --out out/ft",
               "fine-tune a model from Hugging Face; export --to hf writes it back");
  args.example("launch -n 4 train --text input.txt --context 4096 --batch 1 --context-parallel 4",
               "split each long sequence among four ranks");
  args.example("train --resume --out out/big", "resume a run that was stopped or killed");
}

std::string mistake_in_context_parallel(const TrainOptions& o, int ranks) {
  const std::int64_t n = o.context_parallel;
  if (n == 1) return {};
  const std::string option = "--context-parallel " + std::to_string(n);
  if (n != ranks)
    return option + " needs the same number of ranks, got " + std::to_string(ranks) +
           "; with 1, ranks split batches, not sequences";
  if (o.model.context % (2 * n) != 0)
    return option + " requires a --context that is a multiple of " + std::to_string(2 * n) + ", not " +
           std::to_string(o.model.context);
  if (o.model.dropout > 0) return option + " does not support --dropout";
  if (o.data.task == "add") return option + " does not support --task add: no rank has a whole answer";
  return {};
}

}  // namespace tg
