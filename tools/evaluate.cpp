// evaluate: how well a model predicts a text, from a checkpoint of tools/train or a Hugging Face folder.
#include <cmath>
#include <cstdio>
#include <optional>

#include <tilegrad/io/files/file.h>
#include <tilegrad/train/perplexity.h>
#include "tools/args.h"
#include "tools/dtype_named.h"
#include "tools/opened_model.h"
#include "tools/run_tool.h"
#include "tools/share_progress.h"

namespace {

using namespace tg;

struct Options {
  std::string model, text, backend = "cpu", dtype = "f32";
  std::int64_t context = 0, stride = 0, batch = 4, threads = 0;
  Device device;
};

constexpr std::int64_t most_context = 1024;  // where there is no --context

void declare_options(Args& args, Options& o) {
  args.option("model", "PATH",
              "a run of train, one of its checkpoints (RUN/best), a Hugging Face folder, or a GGUF file",
              o.model, {.required = true});
  args.option("text", "FILE", "text to predict", o.text, {.required = true});
  args.option("context", "N", "tokens in a window", o.context,
              {.min = 2, .max = 1e9, .shown = "the model's context, at most 1024"});
  args.option(
      "stride", "N",
      "tokens from a window to the next: each token is predicted once, from at least context − stride others",
      o.stride, {.min = 1, .max = 1e9, .shown = "half of --context"});
  args.option("batch", "N", "windows at once", o.batch, {.min = 1, .max = 65536});
  args.option("backend", "NAME", "cpu, cuda, or cuda:N for GPU N", o.backend);
  args.option("dtype", "TYPE", "precision, as for train --dtype", o.dtype,
              {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("threads", "N", "threads; 0: TG_THREADS or all cores", o.threads,
              {.min = 0, .max = cpu::max_threads});
  args.example("evaluate --model SmolLM-135M --text book.txt", "perplexity of a text");
  args.example("evaluate --model out/ft/best --text book.txt --context 512 --stride 512",
               "of a fine-tuned model, in windows that do not overlap: faster, and a little higher");
}

std::string number_text(const char* format, double x) {
  char s[64];
  std::snprintf(s, sizeof s, format, x);
  return s;
}

int evaluate(const Options& o) {
  OpenedModel opened = open_model(o.model);
  opened.limit_context(o.context > 0 ? o.context : std::min(most_context, opened.context));
  if (o.stride > opened.context)
    throw Error("--stride got " + std::to_string(o.stride) + ", expected at most " +
                std::to_string(opened.context) + ", the context of a window");
  const std::string text = io::read_file(o.text, "evaluate");
  const std::vector<std::int32_t> tokens = opened.tokenizer->encode_whole(text);
  print_row("model", opened.title);
  print_row("tokenizer",
            std::string(opened.tokenizer->kind()) + ", " + counted(opened.tokenizer->size(), "token"));
  print_row("text", o.text + ": " + counted(std::ssize(text), "byte") + ", " +
                        counted(std::ssize(tokens), std::string(opened.tokenizer->unit())));
  std::fflush(stdout);

  const nn::LanguageModel model = opened.load(f32, o.device);
  std::optional<ShareProgress> progress;
  const train::Perplexity p = train::perplexity(model, tokens,
                                                {.stride = o.stride,
                                                 .batch = o.batch,
                                                 .threads = static_cast<int>(o.threads),
                                                 .precision = nn::precision_named(o.dtype),
                                                 .progress = [&](std::int64_t done, std::int64_t all) {
                                                   if (!progress) progress.emplace(all, "windows");
                                                   progress->update(done);
                                                   return true;
                                                 }});
  progress.reset();
  print_row("windows", grouped(p.windows) + " of up to " + grouped(opened.context) + ", which predict " +
                           grouped(p.tokens) + " " + std::string(opened.tokenizer->unit()) + "s");
  print_row("loss", number_text("%.6f nats per ", p.loss()) + std::string(opened.tokenizer->unit()));
  print_row("perplexity", number_text("%.6g", p.value()));
  // Of what was not predicted, the first token and perhaps those that begin windows, the loss is taken to be
  // the mean.
  print_row("bits/byte", number_text("%.6f", p.loss() / std::log(2.0) * static_cast<double>(tokens.size()) /
                                                 static_cast<double>(text.size())));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  Args args("evaluate",
            "Measures how well a model predicts a text: the mean loss of its tokens and the perplexity.");
  declare_options(args, o);
  return run_tool("evaluate", [&]() -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    if (const std::string mistake = take_device(o.backend, o.device); !mistake.empty())
      return args.fail(mistake);
    return evaluate(o);
  });
}
