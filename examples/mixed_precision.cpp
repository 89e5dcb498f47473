// Mixed precision in a custom training loop.
//
//   build/examples/mixed_precision
//
// A small GPT computes in bf16. Its weights and the state of AdamW are stored in f32. The optimizer also
// writes the bf16 copies of the weights that the next step reads. Exits with status 0 if the loss of a
// repeated batch becomes small.
#include <tilegrad/tilegrad.h>

#include <cstdio>

using namespace tg;

int main() try {
  constexpr std::int64_t batch = 4, context = 16;
  nn::Params params(/*seed=*/1);
  const nn::Model model(params,
                        {.vocabulary = 32, .context = context, .layers = 2, .width = 32, .std = 0.08});
  const optim::AdamW optimizer(params.all());

  Graph graph;
  const Tensor tokens = graph.input("tokens", {batch, context}, i32),
               targets = graph.input("targets", {batch, context}, i32);
  nn::LowPrecisionCopies copies(bf16);
  Tensor loss;
  {
    const nn::Autocast autocast(graph, nn::Precision::bf16, false, &copies);
    loss = cross_entropy(model(tokens), targets);
  }
  const auto update = optimizer.minimize(loss, copies.of(optimizer.parameters()));
  Program step = compile(graph, {loss}, {.assign = update.assign});

  std::vector<std::int32_t> x(batch * context), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<std::int32_t>(i * i % 31), y[i] = (x[i] + 7) % 32;
  for (int i = 0; i <= 60; ++i) {
    step.run({{tokens, x}, {targets, y}, {update.learning_rate, 1e-2}});
    if (i % 30 == 0) std::printf("step %2d: loss %.2f\n", i, step.fetch(loss).at(0));
  }
  std::printf("copies of %zu bytes\n", copies.bytes());
  return step.fetch(loss).at(0) < 0.5 ? 0 : 1;
} catch (const Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 2;
}
