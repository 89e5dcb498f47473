#include "tools/train/options.h"

#include <tilegrad/ops/ring_attention.h>
#include "backends/cpu/pool.h"

namespace tg {

void declare_options(Args& args, TrainOptions& o) {
  declare_data_options(args, o.data);
  args.option("from", "FOLDER",
              "fine-tune the model of a Hugging Face folder or a GGUF file, with its tokenizer, instead of "
              "training a new one;"
              " --context may be shorter than the model's",
              o.from, {.shown = "none"});
  declare_lora_options(args, o.lora);
  declare_model_options(args, o);
  args.option("batch", "N", "rows of tokens in a step; 64 with --task add", o.batch,
              {.min = 1, .max = 65536});
  args.option("steps", "N", "optimizer steps", o.steps, {.min = 1, .max = 1e9});
  declare_optimizer_options(args, o.learning);
  args.option("seed", "N", "seed of weights, batches, dropout and sample", o.seed, {.min = 0});
  args.option("backend", "NAME", "device to train on: cpu, cuda, or cuda:N for GPU N", o.backend);
  args.option("dtype", "TYPE",
              "precision of forward and backward; weights and optimizer stay f32; tf32: f32 with"
              " matmuls on a GPU's tensor cores, exact f32 on the CPU",
              o.dtype, {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("context-parallel", "N",
              "ranks that divide the tokens of each sequence among them: all there are; 1: ranks divide the "
              "batches",
              o.context_parallel, {.min = 1, .max = most_ring_ranks});
  args.option("threads", "N", "threads; 0: TG_THREADS or all cores", o.threads,
              {.min = 0, .max = cpu::max_threads});
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
  args.option("out", "DIR", "output directory; created if missing", o.out);
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
  args.example("train --from SmolLM-135M --text mine.txt --out out/ft",
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

std::string not_for_from(const Args& args, TrainOptions& o) {
  std::vector<std::string> names = {"architecture", "init", "init-std", "tokenizer",
                                    "vocabulary",   "task", "digits"};
  for (const ModelOption& option : model_options(o))
    if (option.name() != "context") names.push_back(option.name());
  for (const std::string& name : names)
    if (args.given(name)) return "--" + name + " is not for --from: the model says it";
  return {};
}

}  // namespace tg
