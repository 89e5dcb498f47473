#include <tilegrad/nn/optimizers/optimizers.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <tuple>

namespace tg::optim {

namespace {

constexpr Range iterations_range = Range::between(0, 100);

// Appends the update of these shards as one step of the program. Writes the new weights to `news`, which is
// indexed by shard.
void append_adamw(const std::vector<AdamWState>& states, const Optimizer::Step& step,
                  const AdamWOptions& options, std::vector<NewWeight>& news, std::vector<Assign>& assign) {
  if (states.empty()) return;
  Graph& graph = step.learning_rate.graph();
  std::vector<AdamWTensors> all;
  for (const AdamWState& s : states)
    all.push_back({step.weights[s.shard], step.gradients[s.shard], graph.param(s.m), graph.param(s.v),
                   s.decay, step.copies[s.shard]});
  const auto after = adamw(all, step.learning_rate, step.number, step.scale, options);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto& [w, m, v, copy] = after[i];
    news[states[i].shard] = {w, copy};
    assign.insert(assign.end(), {{states[i].m, m}, {states[i].v, v}});
  }
}

}  // namespace

Schedule::Kind Schedule::named(std::string_view name) {
  if (name == "cosine") return Kind::cosine;
  if (name == "linear") return Kind::linear;
  if (name == "constant") return Kind::constant;
  if (name == "wsd") return Kind::warmup_stable_decay;
  throw Error("[schedule] got '" + std::string(name) + "', expected cosine, linear, constant or wsd");
}

void Schedule::check() const {
  check_options("schedule", {{"peak", peak, Range::at_least(0)},
                             {"floor", floor, Range::at_least(0)},
                             {"warmup", warmup, Range::whole_from(0)},
                             {"steps", steps, Range::whole_from(0)},
                             {"decay", decay, Range::between(0, 1)}});
}

double Schedule::operator()(std::int64_t t) const {
  check();
  check_options("schedule", {{"step", t, Range::whole_from(0)}});
  if (t < warmup) return peak * (static_cast<double>(t) + 1) / (static_cast<double>(warmup) + 1);
  if (kind == Kind::constant) return peak;
  if (t >= steps) return floor;
  const auto now = static_cast<double>(t), end = static_cast<double>(steps);
  auto begin = static_cast<double>(warmup);  // the step at which the rate begins to fall
  if (kind == Kind::warmup_stable_decay) begin = std::max(begin, end - std::round(decay * end));
  if (now < begin) return peak;
  const double part = (now - begin) / (end - begin);
  const double left = kind == Kind::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * part)) : 1 - part;
  return floor + (peak - floor) * left;
}

Sgd::Sgd(const std::vector<Parameter>& params, Options o)
    : Optimizer(params, o.clip, o.loss_scale, o.ranks), momentum_(o.momentum), nesterov_(o.nesterov) {
  check_options("Sgd", {{"momentum", momentum_, Range::from_below(0, 1)}});
  decays_ = decays(o.weight_decay, o.decay);
  if (o.nesterov && o.momentum == 0) throw Error("[Sgd] nesterov needs a momentum, got 0");
  for (std::size_t i = 0; momentum_ != 0 && i < shards().list().size(); ++i)
    momenta_.push_back(add_moment(i, "momentum"));
}

std::vector<NewWeight> Sgd::append(const Step& step, std::vector<Assign>& assign) const {
  Graph& graph = step.learning_rate.graph();
  const Tensor taken = not_equal(step.scale, 0);
  std::vector<NewWeight> news;
  for (std::size_t i = 0; i < step.weights.size(); ++i) {
    const Tensor& w = step.weights[i];
    const DType wide = compute_type(w.dtype());
    const Tensor p = cast(w, wide), rate = cast(step.learning_rate, wide);
    Tensor g = cast(step.gradients[i], wide) * cast(step.scale, wide);
    if (decays_[i] != 0) g = g + decays_[i] * p;
    Tensor direction = g;
    if (momentum_ != 0) {
      const Tensor b = graph.param(momenta_[i]);
      const Tensor after = momentum_ * cast(b, wide) + g;
      direction = nesterov_ ? g + momentum_ * after : after;
      assign.push_back({momenta_[i], where(taken, cast(after, b.dtype()), b)});
    }
    news.push_back(with_copy(step, i, where(taken, cast(p - rate * direction, w.dtype()), w)));
  }
  return news;
}

AdamW::AdamW(const std::vector<Parameter>& params, Options o)
    : Optimizer(params, o.clip, o.loss_scale, o.ranks), options_{o.beta1, o.beta2, o.eps} {
  options_.check("AdamW");
  const std::vector<double> decay = decays(o.weight_decay, o.decay);
  for (std::size_t i = 0; i < shards().list().size(); ++i)
    states_.push_back({i, add_moment(i, "m"), add_moment(i, "v"), decay[i]});
}

std::vector<NewWeight> AdamW::append(const Step& step, std::vector<Assign>& assign) const {
  std::vector<NewWeight> news(states_.size());
  append_adamw(states_, step, options_, news, assign);
  return news;
}

Tensor orthogonalized(const Tensor& x, int iterations) {
  check_options("orthogonalized", {{"iterations", iterations, iterations_range}});
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;  // Jordan et al., 2024
  const bool tall = x.size(-2) > x.size(-1);             // transposed, for smaller Gram matrices
  Tensor y = tall ? transpose(x, -2, -1) : x;
  // The norm is in f64, because squares of f32 may overflow although the norm does not.
  const Tensor norm = sqrt(sum_squares(cast(y, f64), {-2, -1}, true));
  y = cast(y / cast(norm + 1e-7, compute_type(x.dtype())), x.dtype());
  for (int i = 0; i < iterations; ++i) {
    const Tensor squares = matmul(y, transpose(y, -2, -1));
    y = a * y + matmul(b * squares + c * matmul(squares, squares), y);
  }
  return tall ? transpose(y, -2, -1) : y;
}

namespace {

// Orthogonalizes matrices in batches of equal shape, with matmuls in the given dtype. A batch may contain
// transposed matrices.
std::vector<Tensor> all_orthogonalized(const std::vector<Tensor>& matrices, int iterations,
                                       std::optional<DType> products) {
  const auto is_tall = [](const Tensor& x) { return x.size(0) > x.size(1); };
  std::map<std::tuple<DType, std::int64_t, std::int64_t>, std::vector<std::size_t>> by_shape;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const Tensor& x = matrices[i];
    const auto [least, most] = std::minmax({x.size(0), x.size(1)});
    by_shape[{x.dtype(), least, most}].push_back(i);
  }
  std::vector<Tensor> all(matrices.size());
  for (const auto& [shape, places] : by_shape) {
    std::vector<Tensor> batch;
    for (const std::size_t i : places) {
      const Tensor x = cast(matrices[i], products.value_or(matrices[i].dtype()));
      batch.push_back(is_tall(x) ? transpose(x, 0, 1) : x);
    }
    const std::vector<Tensor> done = unbind(orthogonalized(stack(batch), iterations));
    for (std::size_t k = 0; k < places.size(); ++k) {
      const Tensor& x = matrices[places[k]];
      all[places[k]] = cast(is_tall(x) ? transpose(done[k], 0, 1) : done[k], x.dtype());
    }
  }
  return all;
}

bool is_taken(const Parameter& p, const Muon::Options& o) {
  return o.takes ? o.takes(p) : Muon::hidden_matrix(p);
}

}  // namespace

bool Muon::hidden_matrix(const Parameter& p) {
  if (p.shape().size() != 2) return false;
  for (const char* word : {"wte", "wpe", "embed_tokens", "lm_head"})
    if (p.name().find(word) != std::string::npos) return false;
  return true;
}

Muon::Muon(const std::vector<Parameter>& params, Options o)
    : Optimizer(params, o.clip, o.loss_scale, o.ranks, [&](const Parameter& p) { return !is_taken(p, o); }),
      adamw_{o.beta1, o.beta2, o.eps},
      momentum_(o.momentum),
      iterations_(o.iterations),
      products_(o.products) {
  if (products_ && !is_float(*products_))
    throw Error("[Muon] products is " + std::string(name_of(*products_)) +
                ", expected f64, f32, bf16 or f16");
  adamw_.check("Muon");
  check_options("Muon", {{"momentum", momentum_, Range::from_below(0, 1)},
                         {"iterations", iterations_, iterations_range}});
  const std::vector<double> decay = decays(o.weight_decay, o.decay);
  for (std::size_t i = 0; i < shards().list().size(); ++i) {
    const Parameter& p = parameter_of(i);
    if (is_taken(p, o)) {
      if (p.shape().size() != 2)
        throw ShapeError("[Muon] " + p.name() + " is " + p.shape().text() + ", expected two dimensions");
      matrices_.push_back({i, add_moment(i, "momentum"), decay[i]});
    } else {
      rest_.push_back({i, add_moment(i, "m"), add_moment(i, "v"), decay[i]});
    }
  }
}

std::vector<NewWeight> Muon::append(const Step& step, std::vector<Assign>& assign) const {
  Graph& graph = step.learning_rate.graph();
  const Tensor taken = not_equal(step.scale, 0);
  std::vector<NewWeight> news(step.weights.size());
  std::vector<Tensor> momenta, ahead;
  for (const Matrix& matrix : matrices_) {
    const DType wide = compute_type(step.weights[matrix.shard].dtype());
    const Tensor g = cast(step.gradients[matrix.shard], wide) * cast(step.scale, wide);
    momenta.push_back(momentum_ * cast(graph.param(matrix.momentum), wide) + g);
    ahead.push_back(g + momentum_ * momenta.back());
  }
  const std::vector<Tensor> directions = all_orthogonalized(ahead, iterations_, products_);
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const Matrix& matrix = matrices_[i];
    const Tensor &w = step.weights[matrix.shard], b = graph.param(matrix.momentum);
    const DType wide = compute_type(w.dtype());
    const Tensor rate = cast(step.learning_rate, wide);
    const double size = 0.2 * std::sqrt(static_cast<double>(std::max(w.size(0), w.size(1))));
    const Tensor p = (1 - rate * matrix.decay) * cast(w, wide) - rate * (size * directions[i]);
    assign.push_back({matrix.momentum, where(taken, cast(momenta[i], b.dtype()), b)});
    news[matrix.shard] = with_copy(step, matrix.shard, where(taken, cast(p, w.dtype()), w));
  }
  append_adamw(rest_, step, adamw_, news, assign);
  return news;
}

}  // namespace tg::optim
