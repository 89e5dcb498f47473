// Traces of requests for `bench serve`: the arrival time, the prompt length and the output length of each
// request. Prompt tokens are generated from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tg::bench {

struct Arrival {
  double seconds = 0;       // after the start
  std::int64_t prompt = 1;  // tokens
  std::int64_t output = 1;  // tokens to generate
  bool operator==(const Arrival&) const = default;
};

// Poisson arrivals, uniformly distributed prompt lengths from 16 to 256 tokens, and exponentially distributed
// output lengths.
struct RandomTrace {
  std::int64_t requests = 256;
  double rate = 0;                 // requests per second; 0: all arrive at the start
  std::int64_t shared_prefix = 0;  // length of a common prefix of all prompts, before the other 16 to 256
                                   // tokens
  std::int64_t seed = 1;
};

// Generates the same trace on every machine. Prompts and outputs are shortened to fit in the context. The
// last output token is not read and needs no room.
std::vector<Arrival> random_trace(const RandomTrace& options, std::int64_t context);

// Parses a trace. Each line has the arrival time in seconds, the number of prompt tokens and the number of
// output tokens, separated by spaces or tabs. Lines are in order of arrival. Empty lines, and the rest of a
// line after #, are ignored. Throws FormatError with `name` and the line number if a line is invalid, or if a
// request exceeds the context.
std::vector<Arrival> parse_trace(std::string_view text, const std::string& name, std::int64_t context);

// Generates the prompt of each request. All prompts start with the same `shared_prefix` tokens, or with a
// part of them if the prompt is shorter.
std::vector<std::vector<std::int32_t>> random_prompts(const std::vector<Arrival>& trace,
                                                      std::int64_t shared_prefix, std::int64_t vocabulary,
                                                      std::int64_t seed);

}  // namespace tg::bench
