// The graph: an append-only list of nodes. A node's inputs are older than the node itself, so index order is
// a topological order, and differentiating appends to the same list.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>

#include <tilegrad/core/base/array.h>
#include <tilegrad/core/base/range.h>
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
  std::uint32_t name;    // index into the graph's names
  std::int32_t segment;  // recompute segment, -1 for none
  bool is_derivative;    // recorded by gradients()
  Where where;           // the user's line
};

struct Value {
  DType dtype;
  Layout layout;  // within the buffer of `root`
  NodeId node;
  ValueId root;  // the value whose memory this one is a view of; itself when it is not a view
};

// A range of nodes with a gradient of its own (user-defined ops given as graph code).
struct CustomGradient {
  NodeId first, last;
  std::vector<ValueId> in, out;
  std::function<std::vector<Tensor>(const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                                    const std::vector<Tensor>& z)>
      backward;
};

// What is recorded is shared by the Graph and by every Program compiled from it. Tensors do not keep it
// alive: they may be used as long as the Graph or one of its Programs exists.
//
// Threads: one thread at a time may record into a graph, and no other thread may use the graph or its tensors
// meanwhile, compile() and gradients() included. record() throws Error if it finds another thread recording.
// Several threads may record into different graphs, and may run the programs of a graph that nobody records
// into.
class Graph {
 public:
  Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Leaves. Inputs are fed before the first run and keep their value until fed again.
  Tensor input(std::string name, const Shape& shape, DType dtype = f32, Where where = Where::current());
  // The parameter's value at the start of the run. The same parameter gives the same tensor.
  Tensor param(const Parameter& parameter, Where where = Where::current());
  Tensor constant(Array value, Where where = Where::current());
  // i64 [2] = {seed, step}: the input that random ops read. Set by Program::seed and Program::set_step; the
  // step advances once per run.
  Tensor rng(Where where = Where::current());

  // Program::feed throws Error for numbers of this input that are out of the range.
  void limit(const Tensor& input, const Range& range);
  const Range* limit_of(ValueId input) const;  // null: none

  // Appends a node and returns its outputs. Throws ShapeError or DTypeError as the op's shape rule does, with
  // the layer and op, the inputs, the attributes that are not at their defaults, and the user's line:
  //   [h.3.attn/matmul] inner sizes differ: …; got f32 [4, 8], f32 [9, 3] (train.cpp:41)
  std::vector<Tensor> record(const Op& op, std::span<const Tensor> in, Attrs attrs, Where where);

  // References to nodes and values, and so to a tensor's shape() and layout(), stay valid while the graph
  // grows.
  const std::deque<Node>& nodes() const;
  const std::deque<Value>& values() const;
  const Value& value(ValueId v) const {  // throws Error if the graph has no such value
    if (v >= values().size()) refuse_value(v);
    return values()[v];
  }
  const Node& node_of(ValueId v) const { return nodes()[value(v).node]; }
  // The path of the Scopes in which a node was recorded: "h.3.attn"; empty outside any.
  const std::string& name_of(const Node& n) const;
  // The path and the op: "h.3.attn/matmul".
  std::string label_of(const Node& n) const;
  Tensor tensor(ValueId v) const;
  bool has(const Tensor& t) const { return t.defined() && t.graph() == *this && t.id() < values().size(); }

  // From now on `replacement` stands for `old`, an earlier tensor of the same dtype and layout, which the
  // replacement itself may read. Everything recorded between the two that depends on `old` is recorded again.
  // record(), compile() and must_assign() read the new tensors when they are given the old ones. Programs
  // already compiled do not change.
  void replace(const Tensor& old, const Tensor& replacement);
  ValueId current(ValueId v) const;  // the value that stands for v, v itself if it was not replaced
  // Joins `own` with the conditions that were given for the same loss before, by `both`, and returns the
  // joint condition. Tensors that were recorded with an earlier one now depend on the joint one (replace()).
  // So all optimizers of a loss change their parameters in the same steps.
  Tensor common_condition(const Tensor& loss, const Tensor& own,
                          const std::function<Tensor(const Tensor&, const Tensor&)>& both);

  // For layers that keep a state, such as a cache: compile() throws Error for a program that computes `value`
  // and does not assign it to the parameter.
  void must_assign(const Parameter& target, const Tensor& value);
  // f is called before each run of a program of this graph, to bring parameters up to date that it reads. Of
  // one owner the first f counts. f may call before_runs() too: what it adds is called before the same run.
  void before_runs(const void* owner, std::function<void()> f);
  void call_before_run() const;
  struct Update {
    Parameter target;
    ValueId value;
  };
  std::span<const Update> updates() const;

  // Marks: recompute segments and custom gradients; used by autograd/.
  int new_segment();
  void add_custom_gradient(CustomGradient g);
  const CustomGradient* custom_gradient_ending_at(NodeId n) const;

  // XXH3-128 of the structure: ops, attributes, dtypes, layouts and edges; not names, values or source lines.
  std::array<std::uint64_t, 2> hash() const;

  // Keeps what is recorded, as a Program does.
  std::shared_ptr<const Graph> share() const;
  // Whether both are the same graph; a Tensor's graph() is not the Graph object that the user made.
  friend bool operator==(const Graph& a, const Graph& b) { return a.state_ == b.state_; }

 private:
  struct State;
  explicit Graph(State* state) : state_(state) {}
  [[noreturn]] void refuse_value(ValueId v) const;
  std::shared_ptr<State> owner_;  // null in the Graph that lies in the state itself
  State* state_;
};

struct Graph::State : std::enable_shared_from_this<State> {
  Graph graph{this};  // what tensors point to: it lives as long as the state
  std::deque<Node> nodes;
  std::deque<Value> values;
  std::vector<std::string> names;
  std::unordered_map<std::string, std::uint32_t> name_index;
  std::unordered_map<const void*, ValueId> params;
  std::unordered_map<NodeId, CustomGradient> custom;
  std::vector<Update> updates;
  std::deque<std::pair<const void*, std::function<void()>>> before_runs;  // with the owner of each
  std::atomic<bool> recording = false;                                    // whether a thread is in record()
  std::unordered_map<ValueId, ValueId> replaced;    // by the value that another stands for
  std::unordered_map<ValueId, ValueId> conditions;  // by loss
  std::vector<std::pair<ValueId, Range>> limits;    // of inputs
  std::optional<ValueId> rng;
  int segments = 0;
};

inline const std::deque<Node>& Graph::nodes() const {
  return state_->nodes;
}
inline const std::deque<Value>& Graph::values() const {
  return state_->values;
}
inline const std::string& Graph::name_of(const Node& n) const {
  return state_->names[n.name];
}
inline Tensor Graph::tensor(ValueId v) const {
  return {&state_->graph, v};
}

// While alive, nodes this thread records get `name` appended to their path ("h.3.attn"), and the source line
// of the outermost scope: an error inside a layer names the layer and points at the user's call.
class Scope {
 public:
  explicit Scope(const std::string& name, Where where = Where::current());
  explicit Scope(const TensorArg& call) : Scope("", call.where()) {}
  ~Scope();
  Scope(const Scope&) = delete;

 private:
  std::string path_;
  const std::string* before_;
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

// A number that an op takes beside tensors of this dtype, as a scalar. Throws DTypeError with the op and the
// line for a number that is none of an integer type's, or too large for what a kernel computes a floating
// type in.
Tensor scalar_operand(const Op& op, Graph& graph, const TensorArg& number, DType dtype);

// Appends a node whose arguments are tensors or numbers; numbers become scalars of the first tensor's dtype.
std::vector<Tensor> record_all(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs = {});
Tensor record(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs = {});

// While alive, nodes this thread records belong to a derivative.
class DerivativeScope {
 public:
  explicit DerivativeScope(bool is_derivative = true);
  ~DerivativeScope();
  DerivativeScope(const DerivativeScope&) = delete;

 private:
  bool before_;
};

// "(train.cpp:41)"
std::string at_line(const Where& where);
// An error's message with its layer and line. In Scope("h.3.attn"), "[matmul] inner sizes differ" becomes
// "[h.3.attn/matmul] inner sizes differ (train.cpp:41)", with the line of the outermost scope; outside any
// Scope the line is `where`.
std::string in_context(const std::string& message, const Where& where);

// The leaf ops: the value of such a node is given from outside the run.
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
extern const Op &input_op, &parameter_op, &constant_op, &rng_op;
// Not a leaf: a kernel fills it, or its number is folded into the kernels that read it.
extern const Op& full_op;
extern const Op& copy_op;  // pointwise: its input, in memory of its own
extern const Op& cast_op;  // pointwise: its input in another dtype
// Throws DTypeError for a value that the dtype does not have (holds(), core/base/host_view.h).
Tensor full(Graph& graph, const Shape& shape, double value, DType dtype = f32,
            Where where = Where::current());

}  // namespace tg
