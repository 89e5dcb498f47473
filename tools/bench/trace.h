// Traces of requests, which `bench serve` replays: when each arrives, and how long its prompt and its text
// are. The tokens of prompts are made from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tg::bench {

struct Arrival {
  double seconds = 0;       // after the start
  std::int64_t prompt = 1;  // tokens
  std::int64_t output = 1;  // tokens that the model writes
  bool operator==(const Arrival&) const = default;
};

// Poisson arrivals, prompts of 16 to 256 tokens, all equally likely, and texts of an exponential length.
struct RandomTrace {
  std::int64_t requests = 256;
  double rate = 0;                 // per second; 0: all arrive at once
  std::int64_t shared_prefix = 0;  // tokens that all prompts begin with, before those 16 to 256
  std::int64_t seed = 1;
};

// The same on every machine. A prompt and its text are cut to the context: the last token is not read.
std::vector<Arrival> random_trace(const RandomTrace& options, std::int64_t context);

// One request a line: the second at which it arrives, the tokens of its prompt and those to write, separated
// by spaces or tabs. Lines are in the order of arrival; empty ones, and what follows a #, are ignored. Throws
// FormatError with `name` and the number of the line for anything else, and for a request that exceeds the
// context.
std::vector<Arrival> parse_trace(std::string_view text, const std::string& name, std::int64_t context);

// The prompt of each request. They begin with the same `shared_prefix` tokens, as far as they are so long.
std::vector<std::vector<std::int32_t>> random_prompts(const std::vector<Arrival>& trace,
                                                      std::int64_t shared_prefix, std::int64_t vocabulary,
                                                      std::int64_t seed);

}  // namespace tg::bench
