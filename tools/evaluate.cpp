// evaluate: measures how well a model predicts a text, from a checkpoint of tools/train, a Hugging Face
// folder or a GGUF file.
#include <cmath>
#include <cstdio>
#include <optional>

#include <tilegrad/io/files/file.h>
#include <tilegrad/train/perplexity.h>
#include "tools/args.h"
#include "tools/common_options.h"
#include "tools/opened_model.h"
#include "tools/run_tool.h"
#include "tools/share_progress.h"

namespace {

using namespace tg;

struct Options : DeviceOptions {
  std::string model, text;
  std::int64_t context = 0, stride = 0, batch = 4;
};

constexpr std::int64_t most_context = 1024;  // default of --context, at most

void declare_options(Args& args, Options& o) {
  declare_model(args, o.model);
  args.option("text", "FILE", "UTF-8 text to predict", o.text, {.required = true});
  args.option("context", "N", "number of tokens in a window", o.context,
              {.min = 2, .max = 1e9, .shown = "the model's context, at most 1024"});
  args.option("stride", "N",
              "number of tokens between the starts of two windows; each token is predicted once, from at "
              "least context − stride earlier tokens (except at the start of the text)",
              o.stride, {.min = 1, .max = 1e9, .shown = "half of --context"});
  args.option("batch", "N", "rows of tokens in a batch: number of windows evaluated together", o.batch,
              {.min = 1, .max = 65536});
  declare_device_options(args, o);
  args.example("evaluate --model SmolLM-135M --text book.txt", "measure the perplexity of a text");
  args.example(
      "evaluate --model out/ft/best --text book.txt --context 512 --stride 512",
      "evaluate a fine-tuned model in windows that do not overlap: faster, but the loss is slightly higher");
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
                                                 .threads = o.thread_count(),
                                                 .precision = o.precision(),
                                                 .progress = [&](std::int64_t done, std::int64_t all) {
                                                   if (!progress) progress.emplace(all, "windows");
                                                   progress->update(done);
                                                   return true;
                                                 }});
  progress.reset();
  print_row("windows", grouped(p.windows) + " of up to " + grouped(opened.context) + ", which predict " +
                           grouped(p.tokens) + " " + std::string(opened.tokenizer->unit()) + "s");
  print_row("loss", formatted("%.6f nats per ", p.loss()) + std::string(opened.tokenizer->unit()));
  print_row("perplexity", formatted("%.6g", p.value()));
  // Some tokens are not predicted: the first one, and perhaps the first one of a window. Their loss is
  // assumed to be the mean.
  print_row("bits/byte", formatted("%.6f", p.loss() / std::log(2.0) * static_cast<double>(tokens.size()) /
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
    take_device(o, o.backend);
    return evaluate(o);
  });
}
