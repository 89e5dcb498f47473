// The options of `bench serve`.
#include "tools/bench/options.h"

namespace tg::bench {

void ServeCommandLine::declare(Args& args) {
  RandomTrace& r = settings.random;
  args.option(
      "trace", "FILE",
      "serve: requests to replay, one a line: the second of its arrival, tokens of its prompt, tokens "
      "to write; # begins a comment",
      settings.trace, {.shown = "made from --seed"});
  args.option("requests", "N", "serve: requests of a trace that is made", r.requests, {.min = 1, .max = 1e6});
  args.option("rate", "R", "serve: their arrivals per second (Poisson); 0: all at once, and no waiting",
              r.rate, {.min = 0, .max = 1e9});
  args.option("shared-prefix", "N", "serve: tokens that all prompts begin with", r.shared_prefix,
              {.min = 0, .max = 1 << 20});
  args.option("seed", "N", "serve: seed of the trace, its tokens and the weights", r.seed,
              {.min = 0, .max = 1 << 30});
  args.option("cache-memory", "SIZE", "serve: memory of each cache, like 64MiB or 16384tokens", cache_memory,
              {.shown = "16 contexts"});
  args.option("page", "N", "serve: tokens in a page", settings.page_size, {.min = 1, .max = 1 << 20});
  args.option("slots", "N", "serve: largest number of texts that are generated at once", settings.seats,
              {.min = 1, .max = 4096});
  args.flag("in-step", "serve: start no step before the tokens of the one before are known",
            settings.in_step);
}

std::string ServeCommandLine::take(const Args& args, const std::string& mode) {
  for (const char* name :
       {"trace", "requests", "rate", "shared-prefix", "seed", "cache-memory", "page", "slots", "in-step"})
    if (args.given(name) && mode != "serve")
      return "--" + std::string(name) + " is an option of the mode serve";
  for (const char* name : {"requests", "rate"})
    if (args.given(name) && args.given("trace"))
      return "--" + std::string(name) + " and --trace exclude each other";
  settings.plot = args.value("plot");
  return args.given("cache-memory") ? parse_cache_memory(cache_memory, settings.cache) : "";
}

std::string serve_shape(const std::string& text) {
  return text == "124M" ? "12x12x768x1024x50304" : text;
}

}  // namespace tg::bench
