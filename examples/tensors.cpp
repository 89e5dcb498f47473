// Tensors and gradients. A graph is recorded once, differentiated by appending nodes to it, compiled once,
// and run many times with different inputs.
//    build/examples/tensors
// Exits with status 0 if every number agrees with its formula.
#include <cmath>
#include <cstdio>

#include <tilegrad/tilegrad.h>

using namespace tg;

int main() try {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64), w = g.input("w", {3}, f64);

  // w is broadcast over the rows of x; transpose and slice are views of x, without a copy.
  const Tensor y = sigmoid(sum(x * w, {1}));  // [2]
  const Tensor column = slice(x.transpose(0, 1), 0, 1, 2);
  const Tensor loss = sum(y);

  // Gradients are nodes of the same graph, so they can be differentiated again.
  const Tensor z_w = gradients(loss, {w})[0];
  const Tensor z_ww = gradients(slice(z_w, 0, 0, 1).view({}), {w})[0];

  Program program = compile(g, {y, column, z_w, z_ww});
  std::printf("%s", program.text().c_str());

  const std::vector<double> xs{0.1, -0.2, 0.3, 1.5, 0.5, -1.0};
  double worst = 0;
  const auto compare = [&](double got, double expected) {
    const double apart = std::fabs(got - expected);
    worst = std::isnan(apart) ? INFINITY : std::fmax(worst, apart);
  };
  for (const double scale : {1.0, -2.0, 0.5}) {  // the same program with different numbers
    const std::vector<double> ws{0.4 * scale, 0.9 * scale, -0.7 * scale};
    program.run({{x, xs}, {w, ws}});
    const Array first = program.fetch(z_w), second = program.fetch(z_ww), middle = program.fetch(column);
    double expected_w[3] = {}, expected_ww[3] = {};
    for (int r = 0; r < 2; ++r) {
      const double* row = &xs[static_cast<std::size_t>(3 * r)];
      const double s = 1 / (1 + std::exp(-(row[0] * ws[0] + row[1] * ws[1] + row[2] * ws[2])));
      for (int i = 0; i < 3; ++i) {
        expected_w[i] += s * (1 - s) * row[i];
        expected_ww[i] += s * (1 - s) * (1 - 2 * s) * row[0] * row[i];
      }
      compare(middle.at(r), row[1]);
    }
    for (int i = 0; i < 3; ++i) {
      compare(first.at(i), expected_w[i]);
      compare(second.at(i), expected_ww[i]);
    }
    std::printf("dloss/dw = %.6f %.6f %.6f\n", first.at(0), first.at(1), first.at(2));
  }
  std::printf("largest difference from the formulas: %.1e\n", worst);
  return worst < 1e-12 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
