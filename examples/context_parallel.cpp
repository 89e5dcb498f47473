// Context parallelism: each rank has some tokens of one sequence. The loss is the loss of the complete
// sequence.
//   build/tools/launch -n 2 build/examples/context_parallel
#include <cstdio>
#include <vector>

#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/parallel/group.h>
#include <tilegrad/tilegrad.h>

using namespace tg;

namespace {

constexpr std::int64_t batch = 1, context = 256, vocabulary = 50;

void compute_loss(const std::shared_ptr<parallel::Group>& group) {
  const int rank = group->communicator().rank(), n = group->communicator().size();
  nn::Params params(/*seed=*/1);
  const nn::Model model(params, {.vocabulary = vocabulary, .context = context, .layers = 2, .width = 32});

  Graph graph;
  const nn::ContextParallel parallel(graph, n);
  const Tensor tokens = graph.input("tokens", {batch, context / n}, i32);
  const Tensor targets = graph.input("targets", {batch, context / n}, i32);
  const Tensor loss = model.loss(model.features(tokens, {.mode = nn::Mode::train}), targets);
  std::vector<Tensor> weights;
  for (const Parameter& p : params.all()) weights.push_back(graph.param(p));
  std::vector<Tensor> own = gradients(loss, weights);
  own.push_back(loss);
  const std::vector<Tensor> sums = all_reduce(own, n);

  Tensor squares = 0 * sums.back();
  for (std::size_t i = 0; i < weights.size(); ++i) squares = squares + sum(sums[i] * sums[i]) / (n * n);
  const Tensor mean_loss = sums.back() / n, norm = sqrt(squares);
  Program program = compile(graph, {mean_loss, norm}, {.ranks = {group, &group->communicator()}});

  std::vector<std::int32_t> local_tokens, local_targets;
  for (const std::int64_t position : ring_positions(rank, n, context)) {
    local_tokens.push_back(static_cast<std::int32_t>(position * 7 % vocabulary));
    local_targets.push_back(static_cast<std::int32_t>((position + 1) * 7 % vocabulary));
  }
  program.run({{tokens, local_tokens}, {targets, local_targets}});
  if (rank == 0)
    std::printf("%d ranks with %lld tokens each: loss %.4f, gradient norm %.4f\n", n,
                static_cast<long long>(context / n), program.fetch(mean_loss).at(0),
                program.fetch(norm).at(0));
}

}  // namespace

int main() {
  std::shared_ptr<parallel::Group> group;
  try {
    group = parallel::join(parallel::world());
    compute_loss(group);
    return 0;
  } catch (const std::exception& e) {
    if (group) group->fail(e.what());
    std::fprintf(stderr, "%s\n", e.what());
    return parallel::exit_code_of(e);
  }
}
