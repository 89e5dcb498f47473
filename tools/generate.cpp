// generate: generates text with a model from a checkpoint of tools/train, a Hugging Face folder or a GGUF
// file. It prints a single sequence token by token, or generates many sequences in parallel.
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
              "LoRA adapter for --model, which must be a Hugging Face folder or a GGUF file; the adapter is "
              "a PEFT folder or a run of "
              "train --lora",
              o.adapter, {.shown = "none"});
  args.option("context", "N", "maximum sequence length in tokens; memory is reserved for it", o.context,
              {.min = 1, .max = 1e9, .shown = "the model's full context"});
  args.option("prompt", "TEXT", "text that the model continues", o.prompt, {.shown = "a line break"});
  args.option("prompts", "FILE",
              "file with one prompt per line, where \\n is a line break and \\\\ a backslash; sequences are "
              "generated in parallel",
              o.prompts);
  args.option(
      "samples", "N",
      "number of sequences for each prompt; the first is sampled with --seed, the next with --seed + 1, …",
      o.samples, {.min = 1, .max = 1e6});
  args.option("beams", "N",
              "use beam search with N beams instead of sampling, and print its N most likely sequences for "
              "each prompt",
              o.beams, {.min = 1, .max = 4096, .shown = "no beam search"});
  args.option("slots", "N",
              "maximum number of sequences generated in parallel, with --prompts, --samples or --beams",
              o.slots, {.min = 1, .max = 4096});
  args.option("cache-memory", "SIZE",
              "memory for the key-value cache, such as 64MiB or 16384tokens, with --prompts, --samples or "
              "--beams; sequences wait while it is full",
              o.cache_memory, {.shown = "a full context for each slot"});
  args.option("stop", "TEXT", "string that ends a sequence and is not printed; may be repeated", o.stops);
  args.option("max-tokens", "N", "maximum number of tokens to generate for each sequence", o.max_tokens,
              {.min = 1, .max = 1e9, .shown = "until the context is full"});
  args.option("temperature", "X",
              "sampling temperature, by which logits are divided; 0: always choose the most likely token",
              o.sampling.temperature, {.min = 0, .max = 1e6});
  args.option("top-k", "N", "number of most likely tokens to sample from; 0: all", o.sampling.top_k,
              {.min = 0, .max = 1e9});
  args.option("top-p", "P",
              "sample only from the most likely tokens (of those that --top-k leaves) whose probabilities "
              "add up to P",
              o.sampling.top_p, {.min = 0, .max = 1});
  args.option("seed", "N", "random seed for sampling", o.seed, {.min = 0});
  declare_device_options(args, o);
  args.option(
      "weights-dtype", "TYPE",
      "dtype in which the weights are stored; bf16 and f16 need half the memory, and select the same --dtype",
      o.weights, {.choices = {"f32", "bf16", "f16"}});
  args.option("cache-dtype", "TYPE",
              "dtype of the key-value cache and of the attention that reads it; bf16 and f16 need half the "
              "memory of f32",
              o.cache_type, {.choices = {"f32", "bf16", "f16"}, .shown = "same as --dtype"});
  args.flag("slide",
            "continue beyond the context: drop the oldest tokens, and recompute the "
            "whole window for each token",
            o.slide);
  args.flag("no-cache",
            "recompute the whole sequence for every token; the output is the same, only slower (for testing)",
            o.no_cache);
  args.example("generate --model out/train --prompt 'ROMEO:'", "from the last checkpoint of a run");
  args.example("generate --model out/train/best --temperature 0 --max-tokens 20",
               "greedy decoding from the best checkpoint");
  args.example("generate --model out/train --max-tokens 500 --slide --top-k 20 --top-p 0.95",
               "more tokens than the context, sampled only from likely tokens");
  args.example("generate --model SmolLM-135M --prompt 'Once upon' --temperature 0",
               "from a Hugging Face folder");
  args.example("generate --model out/train --prompts prompts.txt --samples 4 --stop END",
               "four sequences for each line of a file, generated in parallel");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Throws Error if the prompt and the generated tokens do not fit into the context. The last token is
// generated but never read.
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
  double first = 0;  // time when the first token was sampled
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

// Returns a message if the options contradict each other, otherwise "". Sets cache_size.
std::string mistake_in(const Args& args, GenerateOptions& o) {
  for (const std::string& stop : o.stops)
    if (stop.empty()) return "--stop is empty";
  if (args.given("prompts") && args.given("prompt")) return "--prompts and --prompt exclude each other";
  if (o.no_cache && args.given("cache-dtype")) return "--cache-dtype requires a cache, got --no-cache";
  for (const char* option : {"slide", "no-cache"})
    if (asks_for_many(args) && args.given(option))
      return "--" + std::string(option) + " supports only one sequence, not --prompts, --samples or --beams";
  for (const char* option : {"samples", "stop", "temperature", "top-k", "top-p", "seed"})
    if (args.given("beams") && args.given(option))
      return "--" + std::string(option) + " is for sampling, not for --beams";
  for (const char* option : {"slots", "cache-memory"})
    if (!asks_for_many(args) && args.given(option))
      return "--" + std::string(option) + " requires --prompts, --samples or --beams";
  if (o.weights != "f32" && args.given("dtype") && o.dtype != o.weights)
    return "--weights-dtype " + o.weights + " computes in " + o.weights + ", got --dtype " + o.dtype;
  return o.cache_memory.empty() ? "" : parse_cache_memory(o.cache_memory, o.cache_size.emplace());
}

}  // namespace

int main(int argc, char** argv) {
  GenerateOptions o;
  Args args("generate",
            "Generates text with a model (a run of train, a Hugging Face folder or a GGUF file), and prints "
            "it as it is "
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
      std::fprintf(stderr, "generate: standard input is ignored: use --prompt TEXT\n");
    return 0;
  });
}
