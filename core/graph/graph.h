// The graph: an append-only list of nodes. A node's inputs are older than itself, so index order is a
// topological order, and differentiating appends to the same list.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include <tilegrad/core/base/array.h>
#include <tilegrad/core/graph/op.h>
#include <tilegrad/core/graph/parameter.h>

namespace tg {

using NodeId = std::uint32_t;

struct Node {
  const Op* op;
  Attrs attrs;
  std::vector<ValueId> in;
  ValueId first_out;  // outputs are the values first_out … first_out + outs - 1
  std::uint32_t outs;
  std::uint32_t name;          // index into the graph's names
  std::int32_t segment;        // recompute segment, -1 for none
  std::source_location where;  // the user's line
};

struct Value {
  DType dtype;
  Layout layout;  // within the buffer of `root`
  NodeId node;
  ValueId root;  // the value whose memory this one looks into; itself when it is not a view
};

// A stretch of nodes with a gradient of its own (user-defined ops given as graph code).
struct CustomGradient {
  NodeId first, last;
  std::vector<ValueId> in, out;
  std::function<std::vector<Tensor>(const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                                    const std::vector<Tensor>& z)>
      backward;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Leaves. Inputs are fed before a run and keep their value until fed again.
  Tensor input(std::string name, const Shape& shape, DType dtype = f32,
               std::source_location where = std::source_location::current());
  // The parameter's value at the start of the run. The same parameter gives the same tensor.
  Tensor param(const Parameter& parameter, std::source_location where = std::source_location::current());
  Tensor constant(Array value, std::source_location where = std::source_location::current());
  // i64 [2] = {seed, step}: the input that random ops read. Fed by Program::seed and advanced once per run.
  Tensor rng(std::source_location where = std::source_location::current());

  // Appends a node. Shape and dtype errors come out with the op's name and the user's line.
  std::vector<Tensor> record(const Op& op, std::span<const Tensor> in, Attrs attrs,
                             std::source_location where);

  // References to nodes and values, and so to a tensor's shape() and layout(), stay good while the graph
  // grows.
  const std::deque<Node>& nodes() const { return nodes_; }
  const std::deque<Value>& values() const { return values_; }
  const Node& node_of(ValueId v) const { return nodes_[values_[v].node]; }
  const std::string& name_of(const Node& n) const { return names_[n.name]; }
  Tensor tensor(ValueId v) { return {this, v}; }

  // Marks: recompute segments and custom gradients; used by autograd/.
  int new_segment() { return segments_++; }
  void add_custom_gradient(CustomGradient g) { custom_.emplace(g.last, std::move(g)); }
  const CustomGradient* custom_gradient_ending_at(NodeId n) const;

  // XXH3-128 of the structure: ops, attributes, dtypes, layouts and edges; not names, values or source lines.
  std::array<std::uint64_t, 2> hash() const;

 private:
  std::deque<Node> nodes_;
  std::deque<Value> values_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t> name_index_;
  std::unordered_map<const void*, ValueId> params_;
  std::unordered_map<NodeId, CustomGradient> custom_;
  std::optional<ValueId> rng_;
  int segments_ = 0;
};

// While alive, nodes this thread records get `name` as a further path element ("h0.attn"), and the source
// line of the outermost scope: an error inside a layer points at the user's call.
class Scope {
 public:
  explicit Scope(const std::string& name, std::source_location where = std::source_location::current());
  explicit Scope(const TensorArg& call) : Scope("", call.where()) {}
  ~Scope();
  Scope(const Scope&) = delete;

 private:
  std::size_t path_length_;
  bool outermost_;
};

// While alive, nodes this thread records belong to a recompute segment.
class SegmentScope {
 public:
  explicit SegmentScope(int segment);
  ~SegmentScope();
  SegmentScope(const SegmentScope&) = delete;

 private:
  int before_;
};

// Appends a node whose arguments are tensors or numbers; numbers become scalars of `number_dtype` (the dtype
// of the first tensor unless said).
std::vector<Tensor> record_all(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs = {});
Tensor record(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs = {});

// "(train.cpp:41)"
std::string at_line(const std::source_location& where);

// The leaf ops; a node with one of these has its value from outside the run.
struct InputAttrs {
  std::string name;
  Shape shape;
  DType dtype;
  void fields(auto&& field) const { field("name", name), field("shape", shape), field("dtype", dtype); }
};
struct ParameterAttrs {
  Parameter parameter;
  void fields(auto&& field) const { field("name", parameter.name()); }
};
struct ConstantAttrs {
  Array value;
  void fields(auto&& field) const { field("value", value.text()); }
};
struct FullAttrs {
  Shape shape;
  double value;
  DType dtype;
  void fields(auto&& field) const { field("shape", shape), field("value", value), field("dtype", dtype); }
};
extern const Op input_op, parameter_op, constant_op, rng_op;
extern const Op
    full_op;  // not a leaf: a kernel fills it, or its number is folded into the kernels that read it
extern const Op copy_op;  // pointwise: its input, in memory of its own
extern const Op cast_op;  // pointwise: its input in another dtype
Tensor full(Graph& graph, const Shape& shape, double value, DType dtype = f32,
            std::source_location where = std::source_location::current());

}  // namespace tg
