// Shared by the examples of score and mask functions: inputs, and a comparison of the fused kernels with
// simpler ops that store all scores.
#pragma once

#include <tilegrad/tilegrad.h>
#include <cmath>
#include <cstdio>

namespace example {
using namespace tg;
using X = const ScoreAt&;
constexpr std::int64_t B = 2, H = 4, L = 48, d = 16;

inline Graph graph;
inline std::vector<std::pair<Tensor, Array>> inputs;
inline Tensor q, k, v;
inline double worst = 0;

// An input with values that look random, in −1 … 1.
inline Tensor floats(const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t e = 0; e < values.size(); ++e)
    values[e] = std::sin(static_cast<double>(e + 1) * (7.1 + static_cast<double>(inputs.size())));
  inputs.emplace_back(graph.input("floats", shape, f64), Array::of(shape, values));
  return inputs.back().first;
}

// An input of whole numbers 0 … count − 1, each repeated `run` times.
inline Tensor whole(const Shape& shape, std::int64_t count, std::int64_t run) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t e = 0; e < values.size(); ++e)
    values[e] = static_cast<double>(static_cast<std::int64_t>(e) / run % count);
  inputs.emplace_back(graph.input("whole", shape, i32), Array::of(shape, values).to(i32));
  return inputs.back().first;
}

// The results and gradients of attention with these options, as one list of numbers.
inline std::vector<double> numbers_of(const AttentionResult& y, const std::vector<Tensor>& wrt) {
  std::vector<Tensor> out = gradients(sum(y.o * y.o), wrt);
  out.push_back(y.o);
  Program program = compile(graph, out);
  for (const auto& [tensor, value] : inputs)
    if (program.reads(tensor)) program.feed({tensor, value});
  program.run();
  std::vector<double> numbers;
  for (const Tensor& x : out) {
    const std::vector<double> values = program.fetch(x).values<double>();
    numbers.insert(numbers.end(), values.begin(), values.end());
  }
  return numbers;
}

// Prints the largest difference between both computations.
inline void check(const char* name, const AttentionOptions& options,
                  const std::vector<Tensor>& learned = {}) {
  std::vector<Tensor> wrt{q, k, v};
  wrt.insert(wrt.end(), learned.begin(), learned.end());
  const std::vector<double> fused = numbers_of(flash_attn(q, k, v, options), wrt),
                            stored = numbers_of(standard_attn(q, k, v, options), wrt);
  double apart = 0;
  for (std::size_t e = 0; e < fused.size(); ++e)
    apart = std::isnan(fused[e]) ? INFINITY : std::fmax(apart, std::fabs(fused[e] - stored[e]));
  std::printf("%-24s %.1e\n", name, apart);
  worst = std::fmax(worst, apart);
}

// Runs the checks. Returns the exit status: 0 if the results and the gradients of both computations agree.
inline int run(void (*checks)()) try {
  q = floats({B, H, L, d}), k = floats({B, H, L, d}), v = floats({B, H, L, d});
  checks();
  std::printf("largest difference: %.1e\n", worst);
  return worst < 1e-11 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

}  // namespace example
