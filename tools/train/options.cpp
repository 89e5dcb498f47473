#include "tools/train/options.h"

namespace tg {

void declare_options(Args& args, TrainOptions& o) {
  declare_data_options(args, o.data);
  declare_model_options(args, o);
  args.option("batch", "N", "rows of tokens in a step; 64 with --task add", o.batch,
              {.min = 1, .max = 65536});
  args.option("steps", "N", "optimizer steps", o.steps, {.min = 1, .max = 1e9});
  declare_optimizer_options(args, o.learning);
  args.option("seed", "N", "of weights, batches, dropout and sample", o.seed, {.min = 0});
  args.option("backend", "NAME", "where to train: cpu, cuda, or cuda:N for another GPU than the first",
              o.backend);
  args.option("dtype", "TYPE",
              "what forward and backward compute in, while weights and optimizer stay f32; tf32: f32 with"
              " products on a GPU's tensor cores, and exact f32 on the CPU",
              o.dtype, {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("threads", "N", "threads; 0 takes TG_THREADS or all cores", o.threads, {.min = 0, .max = 1024});
  args.option("eval-every", "N", "steps between validations", o.eval_every, {.min = 1});
  args.option("eval-batches", "N", "batches of a validation; the last one takes the whole held-out text",
              o.eval_batches, {.min = 1, .max = 400});
  args.option("save-every", "N", "steps between checkpoints; a better validation loss makes one too",
              o.save_every, {.min = 1, .shown = "as --eval-every"});
  args.option("sample", "N", "tokens to write at the end", o.sample, {.min = 0, .max = 1e6});
  args.option(
      "profile", "N",
      "instead of training, run N steps and print where their time goes, beside what this machine can do",
      o.profile, {.min = 0, .max = 1e4});
  args.option("out", "DIR", "where the files go; made if missing", o.out);
  args.flag("recompute",
            "keep of each block only its input for the backward pass, which runs it again: less memory,"
            " about a third more time",
            o.recompute);
  args.flag("trap-nan",
            "when a step is skipped because its gradient is not finite, name the node it comes from and end",
            o.trap_nan);
  args.flag("resume", "go on with the run in --out; options not given are as it was begun with", o.resume);
  args.flag("overwrite", "replace the run in --out", o.overwrite);
  args.example("train --text input.txt",
               "the 0.8 M model of 4 layers, 2000 steps: about half a minute on 2 cores");
  args.example(
      "train --text input.txt --layers 6 --heads 6 --width 384 --context 256 --batch 64 --steps 5000"
      " --dropout 0.2 --out out/big",
      "nanoGPT's 10 M configuration");
  args.example("train --text input.txt --tokenizer bpe --vocabulary 1024", "tokens learned from the text");
  args.example("train --tokens corpus.tokens", "a file that the tool `tokens` made");
  args.example("train --task add",
               "sums of integers, without any data; ends with the share of unseen ones it gets right");
  args.example("train --text input.txt --model llama --key-heads 2", "grouped-query attention");
  args.example("train --text input.txt --model deepseek --latent 32 --rope-width 8",
               "multi-head latent attention");
  args.example("train --resume --out out/big", "go on where that run was stopped, or killed");
}

}  // namespace tg
