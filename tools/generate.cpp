// generate writes text with a model from a checkpoint of tools/train or a Hugging Face folder: one as it
// comes, or many at once.
#include <chrono>
#include <cstdio>
#include <new>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/io/text/text_stream.h>
#include <tilegrad/nn/generation/generate.h>
#include "core/os/streams.h"
#include "tools/generate/many.h"
#include "tools/run_tool.h"

namespace {

using namespace tg;

void declare_options(Args& args, GenerateOptions& o) {
  declare_model(args, o.model);
  args.option("adapter", "PATH",
              "a LoRA adapter for --model, which is then a folder or a GGUF file: a PEFT folder, or a run of "
              "train --lora",
              o.adapter, {.shown = "none"});
  args.option("context", "N", "maximum sequence length in tokens; memory is reserved for it", o.context,
              {.min = 1, .max = 1e9, .shown = "as many as the model was made for"});
  args.option("prompt", "TEXT", "beginning of the text", o.prompt, {.shown = "a line break"});
  args.option(
      "prompts", "FILE",
      "a prompt for each line, with \\n for a line break and \\\\ for a backslash: many texts at once",
      o.prompts);
  args.option("samples", "N", "texts for each prompt, drawn with --seed, the next seed, …", o.samples,
              {.min = 1, .max = 1e6});
  args.option("beams", "N", "instead: the likeliest texts for each prompt that a search with N beams finds",
              o.beams, {.min = 1, .max = 4096, .shown = "none"});
  args.option("slots", "N", "with several texts: largest number of texts that are generated at once", o.slots,
              {.min = 1, .max = 4096});
  args.option(
      "cache-memory", "SIZE",
      "of many texts, memory for keys and values, such as 64MiB or 16384tokens; texts wait if it is full",
      o.cache_memory, {.shown = "a whole context for each text at once"});
  args.option("stop", "TEXT", "ends a text before this; may be given several times", o.stops);
  args.option("max-tokens", "N", "tokens to generate, unless the text ends before", o.max_tokens,
              {.min = 1, .max = 1e9, .shown = "as many as fit in the model's context"});
  args.option("temperature", "X", "divides the logits; 0: always the most likely token",
              o.sampling.temperature, {.min = 0, .max = 1e6});
  args.option("top-k", "N", "sample only from the N most likely tokens; 0: from all", o.sampling.top_k,
              {.min = 0, .max = 1e9});
  args.option("top-p", "P", "of these, only from the most likely ones whose probabilities add up to P",
              o.sampling.top_p, {.min = 0, .max = 1});
  args.option("seed", "N", "seed of the random draws", o.seed, {.min = 0});
  declare_device_options(args, o);
  args.option(
      "weights-dtype", "TYPE",
      "dtype in which the weights are held; with bf16 or f16 they take half the memory, and everything is "
      "computed in it",
      o.weights, {.choices = {"f32", "bf16", "f16"}});
  args.option(
      "cache-dtype", "TYPE",
      "dtype in which keys and values are kept, and attention with them is computed; bf16 and f16 take "
      "half of f32's memory",
      o.cache_type, {.choices = {"f32", "bf16", "f16"}, .shown = "as they are computed"});
  args.flag("slide",
            "continue beyond the context: the oldest tokens are dropped, and each token needs a run over the "
            "whole window",
            o.slide);
  args.flag("no-cache", "process the whole text again for every token: the same text, slower; for checks",
            o.no_cache);
  args.example("generate --model out/train --prompt 'ROMEO:'", "from the last checkpoint of a run");
  args.example("generate --model out/train/best --temperature 0 --max-tokens 20",
               "the most likely text, from the best checkpoint");
  args.example("generate --model out/train --max-tokens 500 --slide --top-k 20 --top-p 0.95",
               "more than the context holds, from likely tokens only");
  args.example("generate --model SmolLM-135M --prompt 'Once upon' --temperature 0",
               "from a Hugging Face folder");
  args.example("generate --model out/train --prompts prompts.txt --samples 4 --stop END",
               "four texts for each line of a file, many at once");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Throws Error unless prompt and text fit. The last token is written but not read.
void check_room(std::int64_t prompt, std::int64_t tokens, std::int64_t context) {
  if (prompt - 1 + tokens <= context) return;
  const std::string head = "[generate] a prompt of " + std::to_string(prompt) + " tokens";
  const std::string tail = " the model's context of " + std::to_string(context) + ": ";
  if (prompt > context) throw Error(head + " exceeds" + tail + "a shorter one, or --slide");
  throw Error(head + " and " + std::to_string(tokens) + " more exceed" + tail + "at most --max-tokens " +
              std::to_string(context - prompt + 1) + ", or --slide");
}

nn::Model loaded(const GenerateOptions& o, const OpenedModel& opened) {
  return opened.load(dtype_named(o.weights), o.device);
}

void generate_one(const GenerateOptions& o, const OpenedModel& opened) {
  const text::Tokenizer& tokenizer = *opened.tokenizer;
  std::vector<std::int32_t> text = tokenizer.encode_whole(o.prompt);
  if (text.empty()) throw Error("[generate] the prompt is empty");
  const auto prompt = std::ssize(text);
  const std::int64_t tokens =
      o.max_tokens > 0 ? o.max_tokens : std::max<std::int64_t>(1, opened.context - prompt + 1);
  if (!o.slide) check_room(prompt, tokens, opened.context);

  const nn::Model model = loaded(o, opened);
  if (!o.no_cache) check_cache_memory(model, 1, o.precision(), o.cache_dtype());
  nn::Generator generator(model, {.threads = o.thread_count(),
                                  .precision = o.precision(),
                                  .cache_dtype = o.cache_dtype(),
                                  .cache = !o.no_cache});

  write_text(o.prompt);
  text::TextStream stream(tokenizer, o.stops);
  const auto start = std::chrono::steady_clock::now();
  double first = 0;  // when the prompt had been read and the first token drawn
  std::int64_t written = 0;
  generator.extend(text, tokens, o.sampling, static_cast<std::uint64_t>(o.seed), [&](std::int32_t token) {
    if (written++ == 0) first = seconds_since(start);
    if (opened.is_end(token)) return false;
    write_text(stream.add(token));
    return !stream.stopped();
  });
  const double rest = seconds_since(start) - first;
  write_text(stream.finish() + "\n");
  std::fprintf(stderr, "%s: prompt of %lld and first token in %.1f ms", printable(opened.title).c_str(),
               static_cast<long long>(prompt), 1e3 * first);
  if (written > 1)
    std::fprintf(stderr, ", then %.0f tokens/s, %.3f ms each", static_cast<double>(written - 1) / rest,
                 1e3 * rest / static_cast<double>(written - 1));
  if (!o.no_cache)
    std::fprintf(stderr, "; cache %s", size_text(static_cast<double>(generator.cache().bytes())).c_str());
  std::fprintf(stderr, "\n");
}

bool asks_for_many(const Args& args) {
  return args.given("prompts") || args.given("samples") || args.given("beams");
}

// What is wrong with a combination of options, or nothing. Sets cache_size.
std::string mistake_in(const Args& args, GenerateOptions& o) {
  for (const std::string& stop : o.stops)
    if (stop.empty()) return "--stop is empty";
  if (args.given("prompts") && args.given("prompt")) return "--prompts and --prompt exclude each other";
  if (o.no_cache && args.given("cache-dtype")) return "--cache-dtype needs a cache, got --no-cache";
  for (const char* option : {"slide", "no-cache"})
    if (asks_for_many(args) && args.given(option))
      return "--" + std::string(option) + " is for one text, not for --prompts, --samples or --beams";
  for (const char* option : {"samples", "stop", "temperature", "top-k", "top-p", "seed"})
    if (args.given("beams") && args.given(option))
      return "--" + std::string(option) + " is for texts that are drawn, not for --beams";
  for (const char* option : {"slots", "cache-memory"})
    if (!asks_for_many(args) && args.given(option))
      return "--" + std::string(option) + " needs --prompts, --samples or --beams";
  if (o.weights != "f32" && args.given("dtype") && o.dtype != o.weights)
    return "--weights-dtype " + o.weights + " computes in " + o.weights + ", got --dtype " + o.dtype;
  return o.cache_memory.empty() ? "" : parse_cache_memory(o.cache_memory, o.cache_size.emplace());
}

}  // namespace

int main(int argc, char** argv) {
  GenerateOptions o;
  Args args(
      "generate",
      "Generates text with a model trained by train or from a Hugging Face folder, and prints it as it is "
      "generated.");
  declare_options(args, o);
  return run_tool("generate", [&]() -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    check_usage(mistake_in(args, o));
    take_device(o, o.backend);
    OpenedModel opened = open_model(o.model, o.adapter);
    if (o.context > 0) opened.limit_context(o.context);
    if (asks_for_many(args)) return write_many(loaded(o, opened), opened, o) == 0 ? 0 : 1;
    generate_one(o, opened);
    if (!args.given("prompt") && os::bytes_to_read(stdin) > 0)
      std::fprintf(stderr, "generate: standard input is not read: --prompt TEXT begins the text\n");
    return 0;
  });
}
