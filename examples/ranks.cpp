// Data parallelism without a Trainer: each rank computes the gradient for its own rows, and all_reduce adds
// the gradients.
//   build/tools/launch -n 2 build/examples/ranks
#include <cmath>
#include <cstdio>
#include <vector>

#include <tilegrad/parallel/group.h>
#include <tilegrad/tilegrad.h>

using namespace tg;

namespace {

constexpr std::int64_t rows = 8, width = 3;

// Creates the rows of one rank and their targets, which are computed with the weights 1, -2 and 0.5.
void make_rows(int rank, std::vector<float>& x, std::vector<float>& y) {
  constexpr float weights[width] = {1, -2, 0.5f};
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const auto k = static_cast<float>(rank * rows * width + i);
    x.push_back(std::sin(k * k));
    if (i % width == 0) y.push_back(0);
    y.back() += weights[i % width] * x.back();
  }
}

void fit(const std::shared_ptr<parallel::Group>& group) {
  const int rank = group->communicator().rank(), n = group->communicator().size();
  std::vector<float> own_x, own_y;
  make_rows(rank, own_x, own_y);

  Graph graph;
  const Parameter w("w", Array::of<float>({width, 1}, {0, 0, 0}));
  const Tensor x = graph.input("x", {rows, width}), y = graph.input("y", {rows, 1});
  const Tensor error = matmul(x, graph.param(w)) - y;
  const Tensor loss = mean(error * error);
  const Tensor gradient = gradients(loss, {graph.param(w)})[0];

  const std::vector<Tensor> sums = all_reduce({loss, gradient}, n);
  const Tensor mean_loss = sums[0] / n;
  Program step = compile(
      graph, {mean_loss},
      {.assign = {{w, graph.param(w) - 0.5 * sums[1] / n}}, .ranks = {group, &group->communicator()}});

  for (int i = 0; i < 200; ++i) {
    step.run({{x, own_x}, {y, own_y}});
    group->progress(i);
  }
  const Array found = w.read();
  if (rank == 0)
    std::printf("%d ranks: loss %.1e, weights %.3f %.3f %.3f\n", n, step.fetch(mean_loss).at(0), found.at(0),
                found.at(1), found.at(2));
}

}  // namespace

int main() {
  std::shared_ptr<parallel::Group> group;
  try {
    group = parallel::join(parallel::world());
    fit(group);
    return 0;
  } catch (const std::exception& e) {
    if (group) group->fail(e.what());
    std::fprintf(stderr, "%s\n", e.what());
    return parallel::exit_code_of(e);
  }
}
