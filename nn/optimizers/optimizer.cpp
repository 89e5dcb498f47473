#include <tilegrad/nn/optimizers/optimizer.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>

namespace tg::optim {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double largest_scale = 0x1p60;  // with zero gradients, the scale would grow without limit
constexpr double largest_count = 0x1p24;  // f32 cannot count further

// If an f32 weight was used in a 16-bit type, its gradient ends with a cast to f32, which is exact. The ops
// global_norm and adamw compute in f32 even for 16-bit inputs. They therefore read the gradient before the
// cast, which saves a pass over memory.
Tensor before_cast(const Tensor& z) {
  const Node& maker = z.graph().node_of(z.id());
  if (!maker.op->converts || z.dtype() != f32) return z;
  const Tensor narrow = z.graph().tensor(maker.in[0]);
  return narrow.dtype() == bf16 || narrow.dtype() == f16 ? narrow : z;
}

Parameter zero_parameter(const std::string& name, const Shape& shape, DType dtype, Device device) {
  return {"optimizer." + name, Array(shape, dtype), device};
}

std::vector<Parameter> not_frozen(const std::vector<Parameter>& parameters) {
  if (parameters.empty()) throw Error("[optimizer] there are no parameters");
  std::vector<Parameter> trained;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].key()) throw Error("[optimizer] parameter " + std::to_string(i) + " is empty");
    if (!parameters[i].is_frozen()) trained.push_back(parameters[i]);
  }
  if (trained.empty())
    throw Error("[optimizer] each of the " + std::to_string(parameters.size()) +
                " parameters is frozen, the first of which is " + parameters[0].name());
  return trained;
}

std::vector<Parameter> checked_parameters(std::vector<Parameter> parameters) {
  std::unordered_set<const void*> seen;
  for (const Parameter& p : parameters) {
    if (!seen.insert(p.key()).second)
      throw Error("[optimizer] parameter " + p.name() + " is given twice: it would be updated twice");
    if (!is_float(p.dtype()))
      throw DTypeError("[optimizer] parameter " + p.name() + " is " + std::string(name_of(p.dtype())) +
                       ", expected a floating type");
  }
  return parameters;
}

}  // namespace

void LossScale::check() const {
  check_options("loss scale", {{"initial", initial, Range::between(1, largest_scale)},
                               {"growth", growth, Range::at_least(1)},
                               {"backoff", backoff, Range::above_to(0, 1)},
                               {"interval", interval, Range::between(1, largest_count)}});
}

Optimizer::Decay Optimizer::decay_of_matrices(double decay) {
  return [decay](const Parameter& p) { return p.shape().size() >= 2 ? decay : 0; };
}

Optimizer::Optimizer(const std::vector<Parameter>& parameters, double clip,
                     const std::optional<LossScale>& loss_scale, std::shared_ptr<Communicator> ranks,
                     const std::function<bool(const Parameter&)>& is_divisible)
    : shards_(checked_parameters(not_frozen(parameters)), std::move(ranks), is_divisible),
      clip_(clip),
      loss_scale_(loss_scale) {
  check_options("optimizer", {{"clip", clip, Range::at_least(0)}});
  if (loss_scale_) loss_scale_->check();
  const Device device = this->parameters()[0].device();
  step_ = zero_parameter("step", {}, f32, device);
  skipped_ = zero_parameter("skipped", {}, f32, device);
  if (!loss_scale_) return;
  const auto initial = static_cast<float>(loss_scale_->initial);
  scale_ = Parameter("optimizer.loss_scale", Array::of<float>({}, {initial}), device);
  good_steps_ = zero_parameter("good_steps", {}, f32, device);
  overflowed_ = zero_parameter("overflowed", {}, f32, device);
}

std::vector<double> Optimizer::decays(double weight_decay, const Decay& each) const {
  check_options("optimizer", {{"weight_decay", weight_decay, Range::at_least(0)}});
  const Decay decay = each ? each : decay_of_matrices(weight_decay);
  std::vector<double> all;
  for (std::size_t i = 0; i < shards_.list().size(); ++i) {
    all.push_back(decay(parameter_of(i)));
    check_options("optimizer", {{"decay of " + parameter_of(i).name(), all.back(), Range::at_least(0)}});
  }
  return all;
}

Parameter Optimizer::add_moment(std::size_t shard, const std::string& what) {
  Moment& all = moments_[what];
  all.resize(shards_.list().size());
  return all[shard] = zeros_like_shard(shard, what);
}

Parameter Optimizer::zeros_like_shard(std::size_t shard, const std::string& what) const {
  if (shard >= shards_.list().size())
    throw Error("[optimizer] there is no shard " + std::to_string(shard) + " among " +
                std::to_string(shards_.list().size()));
  const Parameter& p = parameter_of(shard);
  return zero_parameter(what + "." + p.name(), shards_.shape_of(shard), p.dtype(), p.device());
}

std::vector<Tensor> Optimizer::differentiate(const Tensor& loss) const {
  const Scope scope("optimizer");
  Graph& graph = loss.graph();
  std::vector<Tensor> weights;
  for (const Parameter& p : parameters()) weights.push_back(graph.param(p));
  // With loss scaling, the backward pass starts with the scale.
  Tensor start;
  if (loss_scale_) start = reshape(cast(graph.param(scale_), loss.dtype()), loss.shape());
  std::vector<Tensor> z = gradients(loss, weights, start);
  if (std::none_of(weights.begin(), weights.end(), [&](const Tensor& w) { return depends_on(loss, w); }))
    throw GradientError("[optimizer] the loss " + graph.label_of(graph.node_of(loss.id())) + " " +
                        loss.text() + " depends on none of the parameters, the first of which is " +
                        parameters()[0].name() + " " + at_line(graph.node_of(loss.id()).where));
  for (Tensor& z_w : z) z_w = before_cast(z_w);
  return z;
}

Optimizer::Update Optimizer::update(const Tensor& loss, const std::vector<Tensor>& z,
                                    const UpdateOptions& o) const {
  const std::vector<Parameter>& copies = o.reading.copies;
  if (z.size() != parameters().size())
    throw Error("[optimizer] got " + std::to_string(z.size()) + " gradients for " +
                std::to_string(parameters().size()) + " parameters");
  for (std::size_t i = 0; i < z.size(); ++i)
    if (!z[i].defined() || z[i].shape() != parameters()[i].shape())
      throw ShapeError("[optimizer] the gradient of " + parameters()[i].name() + " is " +
                       (z[i].defined() ? z[i].text() : "undefined") + ", the parameter has shape " +
                       parameters()[i].shape().text());
  if (!copies.empty() && copies.size() != parameters().size())
    throw Error("[optimizer] got " + std::to_string(copies.size()) + " copies of " +
                std::to_string(parameters().size()) + " parameters");
  const std::vector<bool>& only = o.reading.only_copies;
  if (!only.empty() && only.size() != parameters().size())
    throw Error("[optimizer] only_copies is of " + std::to_string(only.size()) + " of " +
                std::to_string(parameters().size()) + " parameters");
  for (std::size_t i = 0; i < only.size(); ++i)
    if (only[i] && !detail::copy_type(o.reading, i))
      throw Error("[optimizer] only a copy of " + parameters()[i].name() + " is read, but there is none");
  const Scope scope("optimizer");
  Graph& graph = loss.graph();
  const Tensor loss_scale = loss_scale_ ? graph.param(scale_) : Tensor();
  const auto [total_loss, sums] = shards_.sums(loss, z, o.hoist_collectives);
  Tensor norm = o.norm_of_blocks || shards_.ranks() ? shards_.norm(sums) : global_norm(sums);
  if (loss_scale.defined()) norm = norm / loss_scale;
  const Tensor finite = graph.common_condition(
      loss, less(norm, infinity),  // false for NaN
      [](const Tensor& others, const Tensor& own) { return logical_and(others, own); });
  Tensor factor = clip_ > 0 ? clip_ / maximum(norm, clip_) : ones_like(norm);
  if (loss_scale.defined()) factor = factor / loss_scale;

  Step step;
  step.weights = shards_.weights(graph, o.reading);
  step.gradients = sums;
  for (const Shard& s : shards_.list()) step.copies.push_back(detail::copy_type(o.reading, s.place));
  step.scale = where(finite, factor, 0);
  step.number = graph.param(step_) + finite.to(f32);
  Update update;
  update.loss = total_loss;
  update.learning_rate = step.learning_rate = graph.input("learning_rate", {}, f32);
  graph.limit(step.learning_rate, learning_rates);
  update.grad_norm = norm.to(f32);
  Tensor skip = logical_not(finite);
  if (loss_scale.defined()) {
    const Tensor curable = logical_and(less(abs(reshape(total_loss, {})), infinity), greater(loss_scale, 1));
    adapt_scale(finite, logical_and(skip, curable), update);
    skip = logical_and(skip, logical_not(curable));
  }
  update.skipped = graph.param(skipped_) + skip.to(f32);
  update.assign.insert(update.assign.end(), {{step_, step.number}, {skipped_, update.skipped}});
  std::vector<NewWeight> news = append(step, update.assign);
  news.resize(step.weights.size());
  for (std::size_t i = 0; i < news.size(); ++i)
    if (!news[i].weight.defined())
      throw Error("[optimizer] " + parameter_of(i).name() +
                  " gets no update: the optimizer was moved from, or its append() left it out");
  shards_.assign(news, o.reading, update.assign);
  for (const Assign& a : update.assign) graph.must_assign(a.target, a.value);
  return update;
}

NewWeight Optimizer::with_copy(const Step& step, std::size_t shard, const Tensor& weight) {
  const std::optional<DType> copy = step.copies[shard];
  return {weight, copy ? cast(weight, *copy) : Tensor()};
}

void Optimizer::adapt_scale(const Tensor& finite, const Tensor& overflow, Update& update) const {
  const LossScale& o = *loss_scale_;
  Graph& graph = finite.graph();
  const Tensor scale = graph.param(scale_), good = graph.param(good_steps_) + 1;
  const Tensor due = greater_equal(good, static_cast<double>(o.interval));
  const Tensor kept = where(due, minimum(scale * o.growth, largest_scale), scale);
  update.loss_scale = where(finite, kept, maximum(scale * o.backoff, 1));
  update.overflowed = graph.param(overflowed_) + overflow.to(f32);
  update.assign.insert(update.assign.end(),
                       {{scale_, update.loss_scale},
                        {good_steps_, where(logical_and(finite, logical_not(due)), good, 0)},
                        {overflowed_, update.overflowed}});
}

std::vector<Parameter> Optimizer::counters() const {
  std::vector<Parameter> all{step_, skipped_};
  if (loss_scale_) all.insert(all.end(), {scale_, good_steps_, overflowed_});
  return all;
}

// Calls f(first shard of a parameter, moment) for each moment of each parameter, in the order of the state.
template <class F>
void Optimizer::each_moment(F f) const {
  const std::vector<Shard>& list = shards_.list();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == Shard::Kind::rest) continue;
    for (const auto& [what, m] : moments_)
      if (m[i].key()) f(i, m);
  }
}

std::vector<Parameter> Optimizer::state() const {
  std::vector<Parameter> all;
  each_moment([&](std::size_t shard, const Moment& m) {
    all.push_back(m[shard]);
    if (shards_.has_rest(shard)) all.push_back(m[shard + 1]);
  });
  for (const Parameter& p : counters()) all.push_back(p);
  return all;
}

std::vector<Parameter> Optimizer::whole_state() const {
  std::vector<Parameter> all;
  each_moment([&](std::size_t shard, const Moment& m) { all.push_back(shards_.whole(shard, m)); });
  for (const Parameter& p : counters()) all.push_back(p);
  return all;
}

void Optimizer::gather_state(const std::vector<Parameter>& to) const {
  if (!to.empty()) check_count("gather_state", to.size());
  std::size_t next = 0;
  each_moment([&](std::size_t shard, const Moment& m) {
    shards_.gather(shard, m, to.empty() ? Parameter() : to[next++]);
  });
}

void Optimizer::set_state(std::span<const Array> values) const {
  check_count("set_state", values.size());
  check_state(values);
  std::size_t next = 0;
  each_moment([&](std::size_t shard, const Moment& m) { shards_.scatter(shard, m, values[next++]); });
  for (Parameter p : counters()) p.write(values[next++]);
}

// Checks all values before anything is written.
void Optimizer::check_state(std::span<const Array> values) const {
  std::size_t next = 0;
  each_moment([&](std::size_t shard, const Moment& m) { shards_.check(shard, m, values[next++]); });
  for (const Parameter& p : counters()) {
    const Array& value = values[next++];
    detail::check_value(p, p.shape(), value);
    const bool is_scale = p.key() == scale_.key();
    check_options("set_state",
                  {{p.name(), value.at(0),
                    is_scale ? Range::between(1, largest_scale) : Range::between(0, largest_count)}});
  }
}

void Optimizer::check_count(const std::string& who, std::size_t count) const {
  std::size_t expected = counters().size();
  each_moment([&](std::size_t, const Moment&) { ++expected; });
  if (count != expected)
    throw Error("[" + who + "] got " + std::to_string(count) + " values, the optimizer's state has " +
                std::to_string(expected));
}

}  // namespace tg::optim
