// A user's program. Its folders and names are the same as in tilegrad.
#include <tilegrad/tilegrad.h>

#include <cstdio>
#include <string>

#include "core/log.h"
#include "io/file.h"
#include "nn/model.h"

#if __has_include("core/graph/graph.h") || __has_include("ops/ops.h") || __has_include("tilegrad.h")
#error "headers of tilegrad can be included without <tilegrad/…>"
#endif
static_assert(TILEGRAD_VERSION_MAJOR == 0 && TILEGRAD_VERSION_MINOR == 1 && TILEGRAD_VERSION_PATCH >= 0);

int main() {
  tg::Graph graph;
  tg::Parameter w("w", tg::Array::of<float>({3}, {1, 2, 3}));
  const tg::Tensor x = graph.input("x", {3});
  const tg::Tensor loss = tg::sum(x * graph.param(w));
  const tg::Tensor z = tg::gradients(loss, {graph.param(w)})[0];
  tg::Program step = tg::compile(graph, {loss}, {.assign = {{w, graph.param(w) - 0.5 * z}}});
  for (int i = 0; i < 2; ++i) step.run({{x, std::vector<float>{1, -1, 2}}});

  tg::nn::Params params(/*seed=*/1);
  const tg::nn::ModelConfig config{
      .architecture = tg::nn::Llama{.key_heads = 2}, .vocabulary = 65, .heads = 8};
  const Model model(params);
  profile(std::to_string(model.inner().context()) + " tokens");
  const File file{full(1)};
  const float value = step.fetch(loss).item<float>();  // 5 - 0.5·(1 + 1 + 4)
  std::printf("%s: %g, %d, %s, %s", TILEGRAD_VERSION, static_cast<double>(value), file.lines, backend(),
              logged.c_str());
  return value == 2 && config.parameters() > 0 ? 0 : 1;
}
