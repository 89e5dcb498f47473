#include <tilegrad/nn/optimizers/muon.h>

#include <algorithm>
#include <cmath>

namespace tg::optim {

Tensor orthogonalized(const Tensor& x, int iterations) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;  // Jordan et al., 2024
  const bool tall = x.size(0) > x.size(1);               // products are then of the smaller size
  Tensor y = tall ? transpose(x, 0, 1) : x;
  y = y / (sqrt(sum_squares(x)) + 1e-7);
  for (int i = 0; i < iterations; ++i) {
    const Tensor squares = matmul(y, transpose(y, 0, 1));
    y = a * y + matmul(b * squares + c * matmul(squares, squares), y);
  }
  return tall ? transpose(y, 0, 1) : y;
}

bool Muon::hidden_matrix(const Parameter& p) {
  if (p.shape().size() != 2) return false;
  for (const char* word : {"wte", "wpe", "embed_tokens", "lm_head"})
    if (p.name().find(word) != std::string::npos) return false;
  return true;
}

Muon::Muon(const std::vector<Parameter>& params, Options o)
    : Optimizer(params, o.clip, o.loss_scale),
      adamw_{o.beta1, o.beta2, o.eps},
      momentum_(o.momentum),
      iterations_(o.iterations) {
  const Decay decay = o.decay ? o.decay : decay_of_matrices(o.weight_decay);
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& p = parameters()[i];
    if (o.takes ? o.takes(p) : hidden_matrix(p)) {
      if (p.shape().size() != 2)
        throw ShapeError("[Muon] " + p.name() + " is " + p.shape().text() + ", expected two dimensions");
      matrices_.push_back({i, zero_beside(p, "momentum"), decay(p)});
    } else {
      rest_.push_back(adamw_state(i, p, decay));
    }
  }
}

void Muon::append(const Step& step, std::vector<Assign>& assign) const {
  Graph& graph = step.learning_rate.graph();
  const Tensor taken = not_equal(step.scale, 0);
  for (const Matrix& matrix : matrices_) {
    const Tensor &w = step.weights[matrix.place], b = graph.param(matrix.momentum);
    const DType wide = compute_type(w.dtype());
    const Tensor g = cast(step.gradients[matrix.place], wide) * cast(step.scale, wide);
    const Tensor after = momentum_ * cast(b, wide) + g, rate = cast(step.learning_rate, wide);
    const double size = 0.2 * std::sqrt(static_cast<double>(std::max(w.size(0), w.size(1))));
    const Tensor direction = size * orthogonalized(g + momentum_ * after, iterations_);
    const Tensor p = (1 - rate * matrix.decay) * cast(w, wide) - rate * direction;
    assign.push_back({matrix.momentum, where(taken, cast(after, b.dtype()), b)});
    assign.push_back({parameters()[matrix.place], where(taken, cast(p, w.dtype()), w)});
  }
  append_adamw(rest_, step, adamw_, assign);
}

std::vector<Parameter> Muon::moments() const {
  std::vector<Parameter> all;
  for (const Matrix& m : matrices_) all.push_back(m.momentum);
  for (const AdamWState& s : rest_) all.push_back(s.m), all.push_back(s.v);
  return all;
}

}  // namespace tg::optim
