#include "autograd/gradcheck/harness.h"

#include <cmath>
#include <limits>
#include <numbers>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/base/rng.h>
#include <tilegrad/core/run/cost.h>
#include <tilegrad/ops/ops.h>
#include "core/base/hash.h"

namespace tg::gradcheck {

namespace {

// Numbers in [0, 1): one stream per (seed, case, leaf).
class Stream {
 public:
  Stream(std::uint64_t seed, std::uint64_t key, std::uint32_t leaf) : key_(node_key(seed, key, leaf)) {}
  double next() {
    const PhiloxBlock b = philox({count_++, 0, 0, 0}, key_);
    return uniform(b[0], b[1]);
  }
  double sign() { return next() < 0.5 ? -1 : 1; }

 private:
  std::uint64_t key_;
  std::uint32_t count_ = 0;
};

Values filled(const Fill& fill, std::int64_t n, Stream& random) {
  Values x(static_cast<std::size_t>(n));
  const auto between = [&] { return fill.low + (fill.high - fill.low) * random.next(); };
  for (std::size_t i = 0; i < x.size(); ++i) {
    switch (fill.kind) {
      case Fill::normal: {
        const double u = 1 - random.next(), angle = 2 * std::numbers::pi * random.next();
        x[i] = std::sqrt(-2 * std::log(u)) * std::cos(angle);
        break;
      }
      case Fill::uniform:
        x[i] = between();
        break;
      case Fill::off_zero:
        x[i] = random.sign() * between();
        break;
      case Fill::index:
        x[i] = std::floor(between());
        break;
      case Fill::bits:
        x[i] = random.next() < 0.5;
        break;
      case Fill::distinct:
        x[i] = fill.low + (fill.high - fill.low) * static_cast<double>(i) / std::max<double>(1, n - 1.0);
        break;
    }
  }
  if (fill.kind == Fill::distinct)
    for (std::size_t i = x.size(); i > 1; --i)
      std::swap(x[i - 1], x[static_cast<std::size_t>(random.next() * static_cast<double>(i))]);
  // If all indices were the lowest one, a kernel that ignores them could pass.
  const bool others = fill.kind == Fill::index && fill.high > fill.low + 1 && !x.empty();
  if (others && std::all_of(x.begin(), x.end(), [&](double i) { return i == fill.low; }))
    x[0] = std::floor(fill.low + 1 + (fill.high - fill.low - 1) * random.next());
  return x;
}

// The value that fills the memory around a view, so that reading it is detected.
double gap(DType dtype) {
  return is_float(dtype)    ? std::numeric_limits<double>::quiet_NaN()
         : dtype == boolean ? 1
         : dtype == u8      ? 255
                            : -(1 << 20);
}

std::uint64_t key_of(const Case& c) {
  Hasher h;
  h.add(c.owner);
  h.add(c.name);
  h.add(static_cast<std::uint64_t>(c.order));
  return h.digest()[0];
}

// The offsets of a tensor's elements in the buffer of its root. The order is the tensor's row-major order.
std::vector<std::int64_t> places(const Layout& layout) {
  std::vector<std::int64_t> p;
  p.reserve(static_cast<std::size_t>(layout.numel()));
  Dims index = Dims::filled(layout.rank(), 0);
  for (std::int64_t i = 0; i < layout.numel(); ++i) {
    std::int64_t at = layout.offset;
    for (int a = 0; a < layout.rank(); ++a) at += index[a] * layout.strides[a];
    p.push_back(at);
    for (int a = layout.rank() - 1; a >= 0 && ++index[a] == layout.shape[a]; --a) index[a] = 0;
  }
  return p;
}

struct Viewed {
  Tensor base, x;
};

Viewed plain(Graph& g, const std::string& name, const Shape& shape, DType dtype) {
  const Tensor base = g.input(name, shape, dtype);
  return {base, base};
}

Viewed transposed(Graph& g, const std::string& name, const Shape& shape, DType dtype) {
  Shape reversed;
  Axes order;
  for (int a = shape.size() - 1; a >= 0; --a) reversed.push_back(shape[a]), order.push_back(a);
  const Tensor base = g.input(name, reversed, dtype);
  return {base, permute(base, order)};
}

Viewed sliced(Graph& g, const std::string& name, const Shape& shape, DType dtype) {
  Shape wide;
  for (int a = 0; a < shape.size(); ++a)
    wide.push_back(a + 1 < shape.size() ? shape[a] + 2 : 2 * shape[a] + 1);
  const Tensor base = g.input(name, wide, dtype);
  Tensor x = base;
  for (int a = 0; a < shape.size(); ++a)
    x = a + 1 < shape.size() ? slice(x, a, 1, shape[a] + 1) : slice(x, a, 1, 2 * shape[a] + 1, 2);
  return {base, x};
}

Viewed offset(Graph& g, const std::string& name, const Shape& shape, DType dtype) {
  const std::int64_t n = numel(shape);
  const Tensor base = g.input(name, {n + 3}, dtype);
  return {base, view(slice(base, 0, 3, n + 3), shape)};
}

Viewed expanded(Graph& g, const std::string& name, const Shape& shape, DType dtype, bool last) {
  int axis = -1;
  for (int a = 0; a < shape.size(); ++a)
    if (shape[a] > 1 && (last || axis < 0)) axis = a;
  if (axis < 0) return plain(g, name, shape, dtype);
  Shape one = shape;
  one[axis] = 1;
  const Tensor base = g.input(name, one, dtype);
  return {base, expand(base, shape)};
}

Viewed make_view(Graph& g, const std::string& name, const SampleInput& input, DType dtype, View view) {
  const Shape& shape = input.shape;
  switch (view) {
    case View::contiguous:
      break;
    case View::transposed:
      if (shape.size() > 1) return transposed(g, name, shape, dtype);
      break;
    case View::sliced:
      if (shape.size() > 0) return sliced(g, name, shape, dtype);
      break;
    case View::offset:
      return offset(g, name, shape, dtype);
    case View::expanded:
    case View::expanded_last:
      if (is_float(dtype) && input.values.empty())  // given values differ between elements
        return expanded(g, name, shape, dtype, view == View::expanded_last);
      break;
  }
  return plain(g, name, shape, dtype);
}

}  // namespace

bool differentiable(const SampleInput& input) {
  return !input.dtype && input.fill.kind != Fill::index && input.fill.kind != Fill::bits;
}

DType input_dtype(const SampleInput& input, DType floating) {
  return input.dtype                      ? *input.dtype
         : input.fill.kind == Fill::index ? i64
         : input.fill.kind == Fill::bits  ? boolean
                                          : floating;
}

void Harness::make_leaf(const SampleInput& spec, View view, DType dtype, std::size_t index) {
  const bool floating = gradcheck::differentiable(spec);
  const DType t = input_dtype(spec, dtype);
  const Viewed v = make_view(graph_, "x" + std::to_string(index), spec, t, view);
  view_applies_ = view_applies_ || view == View::contiguous || v.base != v.x;
  // For a slice, the gradient is with respect to the sliced tensor. Otherwise a fault in the gradient of
  // slice() would be reported for every op. For other views, the gradient is with respect to their base, as
  // in a user's program. Given values are stored in the order of the view's elements.
  const bool by_base = view != View::sliced && view != View::offset && spec.values.empty();
  Leaf leaf{spec,
            {},
            t,
            floating,
            v.base,
            by_base ? v.base : v.x,
            {},
            places(v.x.layout()),
            Array(v.base.shape(), t),
            {},
            {}};
  leaf.shape = leaf.wrt.shape();
  leaf.place = places(leaf.wrt.layout());
  for (std::int64_t i = 0; i < leaf.buffer.numel(); ++i) leaf.buffer.set(i, gap(t));
  leaves_.push_back(std::move(leaf));
  arguments_.push_back(v.x);
}

void Harness::add_parameters(const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters) {
    const Tensor t = graph_.param(p);
    Leaf leaf{
        {p.shape()}, p.shape(), p.dtype(), is_float(p.dtype()), t, t, places(t.layout()), places(t.layout()),
        p.read(),    p,         {}};
    for (std::int64_t i = 0; i < leaf.buffer.numel(); ++i) leaf.start.push_back(leaf.buffer.at(i));
    leaves_.push_back(std::move(leaf));
  }
}

Harness::Harness(const Case& c, View view, DType dtype, const HarnessOptions& options) : key_(key_of(c)) {
  for (std::size_t i = 0; i < c.inputs.size(); ++i) make_leaf(c.inputs[i], view, dtype, i);
  Callable f = c.make(dtype, options.device);
  const auto first = static_cast<NodeId>(graph_.nodes().size());
  std::vector<Tensor> outputs = f.call(arguments_);
  const auto last = static_cast<NodeId>(graph_.nodes().size());
  add_parameters(f.parameters);
  if (options.substitute) {
    Replay again(graph_, graph_, options.substitute);
    again.run(first, last);
    for (Tensor& t : outputs) t = again(t);
  }
  for (const Tensor& t : outputs)
    if (is_float(t.dtype())) out_.push_back(t);
  for (std::size_t i = 0; i < out_.size(); ++i) {
    r_.push_back(graph_.input("r" + std::to_string(i), out_[i].shape(), out_[i].dtype()));
    r_values_.emplace_back(out_[i].shape(), out_[i].dtype());
  }
  std::vector<Tensor> used = out_;
  if (options.twice) {
    Replay again(graph_, graph_);
    again.run(first, last);
    for (const Tensor& t : out_) used.push_back(t);
    for (int k = 0; k < 2; ++k)
      for (const Tensor& t : out_) used.push_back(again(t));
  }
  if (options.shapes_only) return;
  if (!options.forward_only) differentiate(used, options);
  if (options.round_to) round_results(*options.round_to, options.round_fused, first);
  compile_both(options);
}

// Differentiates ⟨outputs, r⟩ with respect to the floating leaves, into z_.
void Harness::differentiate(const std::vector<Tensor>& used, const HarnessOptions& options) {
  std::vector<Tensor> wrt;
  for (std::size_t number = 0; const std::size_t l : floating_leaves())
    if (const std::size_t n = number++; options.differentiate.empty() || options.differentiate[n])
      wrt.push_back(leaves_[l].wrt);
  if (used.empty() || wrt.empty()) return;
  const auto first = static_cast<NodeId>(graph_.nodes().size());
  record_gradients(used, wrt, options);
  if (options.tamper && !z_.empty())
    z_ = options.tamper(std::move(z_), first, static_cast<NodeId>(graph_.nodes().size()));
}

void Harness::record_gradients(const std::vector<Tensor>& used, const std::vector<Tensor>& wrt,
                               const HarnessOptions& options) {
  if (used.size() == 1) {
    z_ = tg::gradients(used[0], wrt, r_[0]);
    return;
  }
  Tensor loss;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!options.use_output.empty() && !options.use_output[i % out_.size()]) continue;
    const Tensor term = sum(used[i] * r_[i % out_.size()]);
    const Tensor same = cast(term, used[0].dtype());
    loss = loss.defined() ? loss + same : same;
  }
  if (loss.defined()) z_ = tg::gradients(loss, wrt);
}

// Records all nodes from `first` again, with floating results rounded.
void Harness::round_results(DType dtype, bool chains, NodeId first) {
  const auto last = static_cast<NodeId>(graph_.nodes().size());
  const auto round = [dtype](Tensor& t) {
    if (is_float(t.dtype())) t = cast(cast(t, dtype), t.dtype());
  };
  const auto rounded = [&](const Node& node,
                           std::span<const Tensor> in) -> std::optional<std::vector<Tensor>> {
    if (node.op->view || node.op->leaf) return std::nullopt;
    std::vector<Tensor> operands(in.begin(), in.end());
    if (!chains && !node.op->pointwise) std::for_each(operands.begin(), operands.end(), round);
    std::vector<Tensor> out = graph_.record(*node.op, operands, node.attrs, node.where);
    if (chains || !node.op->pointwise) std::for_each(out.begin(), out.end(), round);
    return out;
  };
  Replay again(graph_, graph_, rounded);
  for (const Tensor& r : r_) again.put(r, r);
  again.run(first, last);
  for (std::vector<Tensor>* tensors : {&out_, &z_})
    for (Tensor& t : *tensors) {
      t = again(t);
      if (!chains) round(t);
    }
}

void Harness::compile_both(const HarnessOptions& options) {
  // Also fetches every input. Otherwise a program that does not read an input would reject a feed of it.
  std::vector<Tensor> forward = out_, backward = z_;
  backward.insert(backward.end(), r_.begin(), r_.end());
  for (const Leaf& leaf : leaves_) {
    forward.push_back(leaf.fed);
    backward.push_back(leaf.fed);
  }
  const CompileOptions how{
      .device = options.device, .threads = options.threads, .fuse = options.fuse, .verify = options.verify};
  forward_ = compile(graph_, forward, how);
  if (!z_.empty()) backward_ = compile(graph_, backward, how);
}

std::vector<bool> Harness::floating() const {
  std::vector<bool> which;
  for (const Leaf& leaf : leaves_) which.push_back(leaf.floating);
  return which;
}

std::vector<std::size_t> Harness::floating_leaves() const {
  std::vector<std::size_t> which;
  for (std::size_t l = 0; l < leaves_.size(); ++l)
    if (leaves_[l].floating) which.push_back(l);
  return which;
}

std::vector<Shape> Harness::output_shapes() const {
  std::vector<Shape> shapes;
  for (const Tensor& t : out_) shapes.push_back(t.shape());
  return shapes;
}

std::vector<DType> Harness::output_dtypes() const {
  std::vector<DType> dtypes;
  for (const Tensor& t : out_) dtypes.push_back(t.dtype());
  return dtypes;
}

Harness::Roundings Harness::roundings(const std::optional<Program>& program) {
  Roundings r;
  if (!program) return r;
  for (const Step& s : program->steps()) {
    const double n = std::max(1., roundings_of(s));
    r.all += n;
    r.of_a_step = std::max(r.of_a_step, n);
  }
  return r;
}

Point Harness::draw(std::uint64_t seed) const {
  Point x;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const Leaf& leaf = leaves_[i];
    Stream random(seed, key_, static_cast<std::uint32_t>(i));
    Values v = leaf.spec.values;
    if (v.empty()) v = filled(leaf.parameter ? Fill{} : leaf.spec.fill, numel(leaf.shape), random);
    // A parameter stays near its initial value; for example, a gain stays near 1.
    for (std::size_t k = 0; k < v.size(); ++k)
      v[k] = stored_number(leaf.dtype, leaf.parameter ? leaf.start[k] + 0.3 * v[k] : v[k]);
    x.push_back(std::move(v));
  }
  return x;
}

Values Harness::draw_signed(std::uint64_t seed, std::size_t stream, std::int64_t count) const {
  Stream random(seed, key_, static_cast<std::uint32_t>(stream));
  Values v(static_cast<std::size_t>(count));
  for (double& x : v) x = random.sign() * (0.5 + random.next());
  return v;
}

Point Harness::draw_cotangents(std::uint64_t seed) const {
  Point r;
  for (std::size_t i = 0; i < out_.size(); ++i) {
    r.push_back(draw_signed(seed, 1000 + i, out_[i].numel()));
    for (double& r_i : r.back()) r_i = stored_number(out_[i].dtype(), r_i);
  }
  return r;
}

Point Harness::draw_direction(std::uint64_t seed) const {
  Point d;
  for (std::size_t i = 0; i < leaves_.size(); ++i)
    d.push_back(draw_signed(seed, 2000 + i, numel(leaves_[i].shape)));
  return d;
}

void Harness::write(const Leaf& leaf) {
  if (leaf.parameter) {
    Parameter p = *leaf.parameter;
    p.write(leaf.buffer);
    return;
  }
  forward_->feed({leaf.fed, leaf.buffer});
  if (backward_) backward_->feed({leaf.fed, leaf.buffer});
}

void Harness::set(const Point& x) {
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    for (std::size_t k = 0; k < x[i].size(); ++k) leaves_[i].buffer.set(leaves_[i].place[k], x[i][k]);
    write(leaves_[i]);
  }
}

void Harness::set(const Point& x, const Point& r) {
  set(x);
  set_cotangents(r);
}

void Harness::set(std::size_t leaf, std::size_t element, double value) {
  leaves_[leaf].buffer.set(leaves_[leaf].place[element], value);
  write(leaves_[leaf]);
}

void Harness::set_cotangents(const Point& r) {
  for (std::size_t i = 0; i < r_.size(); ++i) {
    for (std::size_t k = 0; k < r[i].size(); ++k) r_values_[i].set(static_cast<std::int64_t>(k), r[i][k]);
    if (backward_) backward_->feed({r_[i], r_values_[i]});
  }
}

namespace {
Point run(Program& program, const std::vector<Tensor>& outputs) {
  program.set_step(0);  // the same random numbers in every run
  program.run();
  Point values;
  for (const Tensor& t : outputs) {
    const Array a = program.fetch(t);
    Values v(static_cast<std::size_t>(a.numel()));
    for (std::size_t k = 0; k < v.size(); ++k) v[k] = a.at(static_cast<std::int64_t>(k));
    values.push_back(std::move(v));
  }
  return values;
}
}  // namespace

Point Harness::outputs() {
  return run(*forward_, out_);
}

Point Harness::gradients() {
  return backward_ ? run(*backward_, z_) : Point();
}

}  // namespace tg::gradcheck
