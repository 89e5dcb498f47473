// An MLP learns in a second which points are between two circles.
//
//   build/examples/mlp
//
// The example shows layers, an optimizer, and a single Program for the complete step. Exits with status 0 if
// more than 97 % of unseen points are classified correctly.
#include <cstdio>
#include <random>

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/tilegrad.h>

using namespace tg;

namespace {

struct Points {
  std::vector<float> xy;             // [n, 2], in a square
  std::vector<std::int32_t> inside;  // [n]: 1 between the circles

  Points(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> in_square(-1, 1);
    for (std::size_t i = 0; i < n; ++i) {
      const float x = in_square(random), y = in_square(random), r2 = x * x + y * y;
      xy.insert(xy.end(), {x, y});
      inside.push_back(r2 > 0.2f && r2 < 0.7f);
    }
  }
};

}  // namespace

int main() try {
  constexpr std::int64_t n = 256;
  nn::Params params(/*seed=*/1);
  const nn::Path root = params;
  const nn::Linear first(root / "first", 2, 32, {.init = nn::Init::pytorch()}),
      second(root / "second", 32, 32, {.init = nn::Init::pytorch()}),
      third(root / "third", 32, 2, {.init = nn::Init::pytorch()});
  const auto logits = [&](const Tensor& xy) { return third(relu(second(relu(first(xy))))); };

  Graph g;
  const Tensor xy = g.input("xy", {n, 2}), inside = g.input("inside", {n}, i32);
  const Tensor loss = cross_entropy(logits(xy), inside);
  const optim::AdamW optimizer(params.all(), {.weight_decay = 0});
  const optim::Optimizer::Update update = optimizer.minimize(loss);
  Program step = compile(g, {loss}, {.assign = update.assign, .threads = 1});

  Graph h;
  const Tensor seen = h.input("xy", {n, 2});
  const Tensor told = argmax(logits(seen), {1});
  Program guess = compile(h, {told}, {.threads = 1});

  for (unsigned k = 1; k <= 600; ++k) {
    const Points batch(n, k);
    step.run({{xy, batch.xy}, {inside, batch.inside}, {update.learning_rate, 0.01}});
    if (k % 200 == 0) std::printf("step %u  loss %.4f\n", k, step.fetch(loss).at(0));
  }

  int right = 0;
  for (unsigned k = 0; k < 8; ++k) {
    const Points batch(n, 1000000 + k);
    guess.run({{seen, batch.xy}});
    const Array answers = guess.fetch(told);
    for (std::int64_t i = 0; i < n; ++i)
      right += static_cast<std::int32_t>(answers.at(i)) == batch.inside[static_cast<std::size_t>(i)];
  }
  const double share = right / (8.0 * n);
  std::printf("%.1f %% of %lld new points are classified correctly\n", 100 * share,
              static_cast<long long>(8 * n));
  return share > 0.97 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
