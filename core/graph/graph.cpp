#include <tilegrad/core/graph/graph.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/hash.h"
#include "core/base/messages.h"
#include "core/base/one_user.h"

namespace tg {

namespace {

// The scopes that apply to nodes recorded by this thread. The struct has no destructor, because static
// objects may record graphs while they are destroyed. At that time the thread_local objects of the main
// thread no longer exist.
struct Recording {
  const std::string* scope = nullptr;  // the path of the innermost Scope
  std::optional<Where> origin;
  int segment = -1;
  bool is_derivative = false;
};
thread_local Recording recording;

const std::string& path() {
  static const auto& outside = *new std::string;
  return recording.scope ? *recording.scope : outside;
}

// Defines a leaf op. The attributes determine dtype and shape of the value.
const Op* define_leaf(const char* name, OutSpec (*spec)(const Attrs&)) {
  return define_op(
      {.name = name,
       .infer = [spec](std::span<const Operand>, const Attrs& a) { return std::vector{spec(a)}; },
       .not_differentiable = "it is a leaf",
       .leaf = true});
}

}  // namespace

const Op& input_op = *define_leaf("input", [](const Attrs& a) {
  const auto& input = a.as<InputAttrs>();
  return OutSpec{input.dtype, row_major(input.shape)};
});
const Op& parameter_op = *define_leaf("parameter", [](const Attrs& a) {
  const Parameter& p = a.as<ParameterAttrs>().parameter;
  return OutSpec{p.dtype(), row_major(p.shape())};
});
const Op& constant_op = *define_leaf("constant", [](const Attrs& a) {
  const Array& v = a.as<ConstantAttrs>().value;
  return OutSpec{v.dtype(), row_major(v.shape())};
});
const Op& rng_op = *define_leaf("rng", [](const Attrs&) { return OutSpec{i64, row_major({2})}; });

std::string at_line(const Where& where) {
  const std::string file = where.file_name();
  return "(" + file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line()) + ")";
}

std::string in_context(const std::string& message, const Where& where) {
  const bool named = message.starts_with("[") && !path().empty();
  return (named ? "[" + path() + "/" + message.substr(1) : message) + " " +
         at_line(recording.origin.value_or(where));
}

Graph::Graph() : owner_(std::make_shared<State>()), state_(owner_.get()) {}

std::shared_ptr<const Graph> Graph::share() const {
  return {state_->shared_from_this(), &state_->graph};
}

std::string Graph::label_of(const Node& n) const {
  const std::string& path = name_of(n);
  return path.empty() ? n.op->name : path + "/" + n.op->name;
}

Graph& Tensor::graph() const {
  if (!graph_) {
    const std::string what = "[tensor] an undefined tensor was used";
    throw Error(recording.origin ? in_context(what, *recording.origin) : what);
  }
  return *graph_;
}

void TensorArg::refuse() const {
  throw Error(in_context(
      is_number_ ? "[tensor] a number where a tensor is expected" : "[tensor] an undefined tensor was used",
      where_));
}

void Graph::refuse_value(ValueId v) const {
  throw Error("[graph] value " + std::to_string(v) + " was used, of a graph that has " +
              std::to_string(values().size()));
}

const Layout& Tensor::layout() const {
  return graph().value(id_).layout;
}
DType Tensor::dtype() const {
  return graph().value(id_).dtype;
}
std::int64_t Tensor::size(std::int64_t axis) const {
  return shape()[normalize_axis(axis, rank(), "size")];
}
std::string Tensor::text() const {
  return std::string(name_of(dtype())) + " " + shape().text();
}

Scope::Scope(const std::string& name, Where where)
    : path_(path()), before_(recording.scope), outermost_(!recording.origin) {
  check_name("scope", name);
  if (!name.empty()) path_ += (path_.empty() ? "" : ".") + name;
  recording.scope = &path_;
  if (outermost_) recording.origin = where;
}

Scope::~Scope() {
  recording.scope = before_;
  if (outermost_) recording.origin.reset();
}

SegmentScope::SegmentScope(int segment) : before_(recording.segment) {
  recording.segment = segment;
}
SegmentScope::~SegmentScope() {
  recording.segment = before_;
}

DerivativeScope::DerivativeScope(bool is_derivative)
    : before_(std::exchange(recording.is_derivative, is_derivative)) {}
DerivativeScope::~DerivativeScope() {
  recording.is_derivative = before_;
}

namespace {

// Rethrows an error of a shape rule, with op, inputs, attributes and context.
[[noreturn]] void rethrow_with_op(const Op& op, std::span<const Operand> in, const Attrs& attrs,
                                  const Where& where) {
  rethrow_with([&](std::string s) {
    if (s.starts_with("[tensor] ")) s = s.substr(9);
    if (!s.starts_with("[")) s = "[" + op.name + "] " + s;  // layout functions add their own name: "[view] …"
    return in_context(s + detail::got_text(in, attrs), where);
  });
}

// Whether the offset of every element is in 0 … extent − 1.
bool lies_within(const Layout& l, std::int64_t extent) {
  if (l.numel() == 0) return true;
  std::int64_t last = l.offset;
  for (int i = 0; i < l.rank(); ++i) {
    std::int64_t reach = 0;
    if (l.strides[i] < 0 || __builtin_mul_overflow(l.shape[i] - 1, l.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return l.offset >= 0 && last < extent;
}

// Checks the outputs of a shape rule, because users may define shape rules. Later code relies on this check.
void check_outputs(const Op& op, const Graph& graph, std::span<const ValueId> in,
                   std::span<const OutSpec> outs) {
  if (outs.empty() && !op.view) throw Error("its shape rule returned no outputs");
  for (const OutSpec& o : outs) {
    numel(o.layout.shape);
    if (o.layout.strides.size() != o.layout.rank())
      throw ShapeError("its shape rule returned " + std::to_string(o.layout.strides.size()) +
                       " strides for shape " + o.layout.shape.text());
    if (op.view != (o.view_of >= 0) || o.view_of >= static_cast<int>(in.size()))
      throw Error("its shape rule returned a view of input " + std::to_string(o.view_of) +
                  (op.view ? ", which it does not have" : ", but it is not a view op"));
    std::int64_t extent = max_elements;
    if (op.view) {
      const Value& viewed = graph.value(in[static_cast<std::size_t>(o.view_of)]);
      extent = graph.value(viewed.root).layout.extent();
      if (viewed.dtype != o.dtype) throw DTypeError("its shape rule returned a view with a different dtype");
    }
    if (!lies_within(o.layout, extent))
      throw ShapeError("its shape rule returned strides " + o.layout.strides.text() + " for shape " +
                       o.layout.shape.text() + ", beyond its memory");
  }
}

}  // namespace

std::vector<Tensor> Graph::record(const Op& op, std::span<const Tensor> in, Attrs attrs, Where where) {
  if (recording.origin) where = *recording.origin;
  State& g = *state_;
  if (!op.infer) throw Error(in_context("[" + op.name + "] the op has no shape rule (Op::infer)", where));
  std::vector<Operand> operands;
  std::vector<ValueId> ids;
  operands.reserve(in.size());
  ids.reserve(in.size());
  for (const Tensor& t : in) {
    if (!t.defined()) throw Error(in_context("[" + op.name + "] got an undefined tensor", where));
    if (!has(t)) throw Error(in_context("[" + op.name + "] the tensors belong to different graphs", where));
    const ValueId v = current(t.id());
    operands.push_back({g.values[v].dtype, g.values[v].layout});
    ids.push_back(v);
  }
  const OneUser recorder(g.recording, "graph", "two threads record into one graph at the same time");
  std::vector<OutSpec> outs;
  try {
    outs = op.infer(operands, attrs);
    check_outputs(op, *this, ids, outs);
  } catch (...) {
    rethrow_with_op(op, operands, attrs, where);
  }
  if (outs.size() > std::numeric_limits<ValueId>::max() - g.values.size())
    throw Error(in_context("[" + op.name + "] the graph would have more than 2^32 values", where));
  const auto node = static_cast<NodeId>(g.nodes.size());
  const auto [name, fresh] = g.name_index.try_emplace(path(), static_cast<std::uint32_t>(g.names.size()));
  if (fresh) g.names.push_back(name->first);
  const auto first = static_cast<ValueId>(g.values.size());
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const auto v = static_cast<ValueId>(first + i);
    const ValueId root = outs[i].view_of >= 0 ? g.values[ids[outs[i].view_of]].root : v;
    g.values.push_back({outs[i].dtype, outs[i].layout, node, root});
    result.push_back(tensor(v));
  }
  g.nodes.push_back({&op, std::move(attrs), std::move(ids), first, static_cast<std::uint32_t>(outs.size()),
                     name->second, recording.segment, recording.is_derivative, where});
  return result;
}

Tensor Graph::input(std::string name, const Shape& shape, DType dtype, Where where) {
  check_name("input", name);
  const SegmentScope outside(-1);  // leaves are never recomputed
  return record(input_op, {}, InputAttrs{std::move(name), shape, dtype}, where)[0];
}

Tensor Graph::param(const Parameter& parameter, Where where) {
  if (!parameter.key()) throw Error(in_context("[param] an empty Parameter was used", where));
  const auto known = state_->params.find(parameter.key());
  if (known != state_->params.end()) return tensor(known->second);
  const SegmentScope outside(-1);
  const Tensor t = record(parameter_op, {}, ParameterAttrs{parameter}, where)[0];
  state_->params.emplace(parameter.key(), t.id());
  return t;
}

Tensor Graph::constant(Array value, Where where) {
  const SegmentScope outside(-1);
  return record(constant_op, {}, ConstantAttrs{std::move(value)}, where)[0];
}

Tensor Graph::rng(Where where) {
  const SegmentScope outside(-1);
  if (!state_->rng) state_->rng = record(rng_op, {}, {}, where)[0].id();
  return tensor(*state_->rng);
}

void Graph::must_assign(const Parameter& target, const Tensor& value) {
  if (!has(value))
    throw Error("[must_assign] the value for " + target.name() + " is not a tensor of this graph");
  if (!target.key()) throw Error("[must_assign] the Parameter to be assigned is empty");
  state_->updates.push_back({target, current(value.id())});
}

void Graph::limit(const Tensor& input, const Range& range) {
  if (!has(input) || node_of(input.id()).op != &input_op)
    throw Error("[limit] the tensor is not an input of this graph");
  state_->limits.emplace_back(input.id(), range);
}

const Range* Graph::limit_of(ValueId input) const {
  for (const auto& [v, range] : state_->limits)
    if (v == input) return &range;
  return nullptr;
}

ValueId Graph::current(ValueId v) const {
  const auto found = state_->replaced.find(v);
  return found == state_->replaced.end() ? v : found->second;
}

void Graph::replace(const Tensor& old, const Tensor& replacement) {
  if (!has(old) || !has(replacement)) throw Error("[replace] a tensor is not of this graph");
  State& g = *state_;
  const ValueId from = current(old.id()), to = current(replacement.id());
  const NodeId last = g.values[to].node;
  if (last <= g.values[from].node || g.values[to].dtype != g.values[from].dtype ||
      !(g.values[to].layout == g.values[from].layout))
    throw Error("[replace] expected a later tensor of the same dtype and layout, got " + replacement.text() +
                " for " + old.text());
  std::unordered_map<ValueId, ValueId> now{{from, to}};
  for (NodeId n = g.values[from].node + 1; n < last; ++n) {
    const Node node = g.nodes[n];  // a copy, because recording moves the list
    if (std::ranges::none_of(node.in, [&](ValueId v) { return now.contains(v); })) continue;
    std::vector<Tensor> in;
    for (const ValueId v : node.in) {
      const auto found = now.find(v);
      in.push_back(tensor(found == now.end() ? v : found->second));
    }
    const std::vector<Tensor> out = record(*node.op, in, node.attrs, node.where);
    Node& made = g.nodes.back();
    made.name = node.name, made.segment = node.segment, made.is_derivative = node.is_derivative;
    for (std::uint32_t i = 0; i < node.outs; ++i) now.emplace(node.first_out + i, out[i].id());
  }
  for (auto& [_, v] : g.replaced)
    if (const auto found = now.find(v); found != now.end()) v = found->second;
  g.replaced.insert(now.begin(), now.end());
  for (Update& u : g.updates) u.value = current(u.value);
}

Tensor Graph::common_condition(const Tensor& loss, const Tensor& own,
                               const std::function<Tensor(const Tensor&, const Tensor&)>& both) {
  if (!has(loss) || !has(own) || !both) throw Error("[common_condition] a tensor is not of this graph");
  const ValueId root = value(loss.id()).root;  // a view of a scalar is the same loss
  const ValueId key = value(root).layout.numel() == 1 ? root : loss.id();
  const auto [known, fresh] = state_->conditions.try_emplace(key, own.id());
  if (fresh) return own;
  const Tensor others = tensor(current(known->second)), joint = both(others, own);
  replace(others, joint);
  return joint;
}

std::span<const Graph::Update> Graph::updates() const {
  return state_->updates;
}

void Graph::before_runs(const void* owner, std::function<void()> f) {
  if (!f) throw Error("[before_runs] the function is empty");
  for (const auto& [other, _] : state_->before_runs)
    if (other == owner) return;
  state_->before_runs.emplace_back(owner, std::move(f));
}

void Graph::call_before_run() const {
  for (std::size_t i = 0; i < state_->before_runs.size(); ++i)
    state_->before_runs[i].second();  // may add further functions
}

int Graph::new_segment() {
  return state_->segments++;
}

void Graph::add_custom_gradient(CustomGradient g) {
  state_->custom.emplace(g.last, std::move(g));
}

const CustomGradient* Graph::custom_gradient_ending_at(NodeId n) const {
  const auto it = state_->custom.find(n);
  return it == state_->custom.end() ? nullptr : &it->second;
}

std::array<std::uint64_t, 2> Graph::hash() const {
  Hasher h;
  for (const Node& n : nodes()) {
    h.add(n.op->name);
    if (!n.op->leaf) h.add(n.attrs.text());
    for (ValueId v : n.in) h.add(v);
    for (ValueId v = n.first_out; v < n.first_out + n.outs; ++v) {
      h.add(static_cast<std::uint64_t>(values()[v].dtype));
      h.add(values()[v].layout.shape);
      h.add(values()[v].layout.strides);
      h.add(static_cast<std::uint64_t>(values()[v].layout.offset));
    }
  }
  return h.digest();
}

Tensor scalar_operand(const Op& op, Graph& graph, const TensorArg& number, DType dtype) {
  const double n = number.number();
  if (is_float(dtype) ? !holds(compute_type(dtype), n) : !number.is_exact() || !holds(dtype, n))
    throw DTypeError(in_context("[" + op.name + "] a " + std::string(name_of(dtype)) +
                                    " tensor with the number " + detail::attr_text(n) +
                                    ", which that type cannot hold; cast the tensor first",
                                number.where()));
  return graph.record(full_op, {}, FullAttrs{{}, n, dtype}, number.where())[0];
}

std::vector<Tensor> record_all(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs) {
  const TensorArg* first = nullptr;
  for (const TensorArg& a : in) {
    if (a.is_absent()) throw Error(in_context("[" + op.name + "] got an undefined tensor", a.where()));
    if (!first && !a.is_number()) first = &a;
  }
  if (!first) {
    const Where where = in.size() > 0 ? in.begin()->where() : op.where;
    throw Error(in_context("[" + op.name + "] needs at least one tensor among its arguments", where));
  }
  Graph& graph = first->tensor().graph();
  std::vector<Tensor> tensors;
  for (const TensorArg& a : in)
    tensors.push_back(a.is_number() ? scalar_operand(op, graph, a, first->tensor().dtype()) : a.tensor());
  return graph.record(op, tensors, std::move(attrs), first->where());
}

Tensor record(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs) {
  const std::vector<Tensor> out = record_all(op, in, std::move(attrs));
  if (out.empty()) throw Error("[" + op.name + "] it has no output");
  return out[0];
}

Tensor full(Graph& graph, const Shape& shape, double value, DType dtype, Where where) {
  if (!holds(dtype, value))
    throw DTypeError(in_context(
        "[full] " + std::string(name_of(dtype)) + " cannot hold " + detail::attr_text(value), where));
  return graph.record(full_op, {}, FullAttrs{shape, value, dtype}, where)[0];
}

}  // namespace tg
