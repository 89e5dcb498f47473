// Graph: an append-only list of nodes. The inputs of a node are older than the node, so the index order is a
// topological order. Differentiation appends to the same list.
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

// Index of a node in its graph.
using NodeId = std::uint32_t;

// One recorded call of an op.
struct Node {
  const Op* op;             // the op
  Attrs attrs;              // its attributes
  std::vector<ValueId> in;  // its inputs
  ValueId first_out;        // its outputs are the values first_out … first_out + outs − 1
  std::uint32_t outs;       // number of outputs
  std::uint32_t name;       // index into the graph's names
  std::int32_t segment;     // recompute segment; −1: none
  bool is_derivative;       // whether gradients() recorded it
  Where where;              // the user's source line
};

// One value of a graph: an output of a node.
struct Value {
  DType dtype;    // element type
  Layout layout;  // relative to the memory of `root`
  NodeId node;    // the node that computes it
  ValueId root;   // the value that owns its memory; itself if it is not a view
};

// A range of nodes with a custom gradient, for user-defined ops in graph code and for ops that record several
// nodes.
struct CustomGradient {
  NodeId first, last;            // the range, both included
  std::vector<ValueId> in, out;  // its inputs and outputs
  // Records the gradient: returns z_in for each input. The arguments are the inputs, the outputs and z of
  // each output.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                                    const std::vector<Tensor>& z)>
      backward;
};

// The Graph and all Programs compiled from it share the recorded nodes. A Tensor does not keep the nodes
// alive. It is valid as long as the Graph or one of these Programs exists.
//
// Threads: one thread at a time may record into a graph. During that time, no other thread may use the graph
// or its tensors, for example in compile() or gradients(). record() throws Error if it detects that another
// thread is recording. Several threads may record into different graphs. They may run programs of a graph
// while no thread records into that graph.
class Graph {
 public:
  // An empty graph.
  Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Records an input. Inputs are fed before the first run and keep their value until they are fed again.
  // Throws Error for a name with control characters.
  Tensor input(std::string name, const Shape& shape, DType dtype = f32, Where where = Where::current());
  // Returns a tensor with the parameter's value at the start of the run. Calls with the same parameter return
  // the same tensor. Throws Error for an empty Parameter.
  Tensor param(const Parameter& parameter, Where where = Where::current());
  // Records a constant with this value.
  Tensor constant(Array value, Where where = Where::current());
  // Returns {seed, step} as i64 [2], the input of random ops. Program::seed and Program::set_step set it. The
  // step increases by one per run.
  Tensor rng(Where where = Where::current());

  // Limits an input to a range: Program::feed throws Error for numbers outside of it. Throws Error if the
  // tensor is not an input.
  void limit(const Tensor& input, const Range& range);
  // The limit of an input; null: no limit.
  const Range* limit_of(ValueId input) const;

  // Appends a node and returns its outputs. Throws ShapeError or DTypeError if the op's shape rule rejects
  // the inputs. The message contains the layer and op, the inputs, the attributes that differ from their
  // defaults, and the user's source line:
  //   [h.3.attn/matmul] inner sizes differ: …; got f32 [4, 8], f32 [9, 3] (train.cpp:41)
  std::vector<Tensor> record(const Op& op, std::span<const Tensor> in, Attrs attrs, Where where);

  // All nodes, in recording order. References to nodes and values, including a tensor's shape() and layout(),
  // stay valid while the graph grows.
  const std::deque<Node>& nodes() const;
  // All values, in recording order.
  const std::deque<Value>& values() const;
  // A value by index. Throws Error if the graph has no such value.
  const Value& value(ValueId v) const {
    if (v >= values().size()) refuse_value(v);
    return values()[v];
  }
  // The node that computes a value.
  const Node& node_of(ValueId v) const { return nodes()[value(v).node]; }
  // The path of the Scopes in which the node was recorded, for example "h.3.attn"; empty outside any Scope.
  const std::string& name_of(const Node& n) const;
  // The path and the op: "h.3.attn/matmul".
  std::string label_of(const Node& n) const;
  // A handle on a value.
  Tensor tensor(ValueId v) const;
  // Whether the tensor belongs to this graph.
  bool has(const Tensor& t) const { return t.defined() && t.graph() == *this && t.id() < values().size(); }

  // Substitutes `replacement` for `old` in later calls. Both must have the same dtype and layout.
  // `replacement` must be recorded after `old`, and may read it. Nodes between the two that depend on `old`
  // are recorded again. If record(), compile() or must_assign() is called with an old tensor, it uses the new
  // tensor. Programs that are already compiled do not change. Throws Error for tensors that do not meet these
  // conditions.
  void replace(const Tensor& old, const Tensor& replacement);
  ValueId current(ValueId v) const;  // the value that replaces v, or v itself
  // Combines the condition `own` with earlier conditions of the same loss, using `both`, and returns the
  // combined condition. Tensors that depend on an earlier condition then depend on the combined condition
  // (see replace()). As a result, all optimizers of a loss skip the same steps.
  Tensor common_condition(const Tensor& loss, const Tensor& own,
                          const std::function<Tensor(const Tensor&, const Tensor&)>& both);

  // Requires an assignment. compile() throws Error for a program that computes `value` but does not assign it
  // to `target`. Layers that keep a state, such as a cache, use this function.
  void must_assign(const Parameter& target, const Tensor& value);
  // Registers a function that is called before each run of a program of this graph, to update parameters that
  // the program reads. Only the first function of an owner is registered. `f` may call before_runs();
  // functions that it adds are called before the same run. Throws Error if `f` is empty.
  void before_runs(const void* owner, std::function<void()> f);
  // Calls the functions registered by before_runs(). Program::run() does this.
  void call_before_run() const;
  // A required assignment; see must_assign().
  struct Update {
    Parameter target;  // the parameter to assign
    ValueId value;     // its new value
  };
  // All required assignments.
  std::span<const Update> updates() const;

  // Returns the number of a new recompute segment, for autograd/.
  int new_segment();
  // Registers the gradient of a range of nodes, for autograd/.
  void add_custom_gradient(CustomGradient g);
  // The custom gradient whose last node is n; null if there is none.
  const CustomGradient* custom_gradient_ending_at(NodeId n) const;

  // XXH3-128 hash of the structure. It covers ops, attributes, dtypes, layouts and edges, but not names,
  // values or source lines.
  std::array<std::uint64_t, 2> hash() const;

  // Returns a pointer that keeps the recorded nodes alive, as a Program does.
  std::shared_ptr<const Graph> share() const;
  // Whether both are the same graph. A Tensor's graph() is a different object from the Graph that the user
  // created.
  friend bool operator==(const Graph& a, const Graph& b) { return a.state_ == b.state_; }

 private:
  struct State;
  explicit Graph(State* state) : state_(state) {}
  [[noreturn]] void refuse_value(ValueId v) const;
  std::shared_ptr<State> owner_;  // null in the Graph that is part of the state itself
  State* state_;
};

// The recorded nodes and values.
struct Graph::State : std::enable_shared_from_this<State> {
  Graph graph{this};               // tensors point to it; it lives as long as the state
  std::deque<Node> nodes;          // in recording order
  std::deque<Value> values;        // in recording order
  std::vector<std::string> names;  // paths of Scopes
  std::unordered_map<std::string, std::uint32_t> name_index;              // index in `names`
  std::unordered_map<const void*, ValueId> params;                        // key: Parameter::key()
  std::unordered_map<NodeId, CustomGradient> custom;                      // key: last node of the region
  std::vector<Update> updates;                                            // required assignments
  std::deque<std::pair<const void*, std::function<void()>>> before_runs;  // with the owner of each
  std::atomic<bool> recording = false;                                    // whether a thread is in record()
  std::unordered_map<ValueId, ValueId> replaced;                          // key: the replaced value
  std::unordered_map<ValueId, ValueId> conditions;                        // by loss
  std::vector<std::pair<ValueId, Range>> limits;                          // of inputs
  std::optional<ValueId> rng;                                             // see Graph::rng()
  int segments = 0;                                                       // number of recompute segments
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

// While a Scope exists, nodes recorded by this thread have `name` in their path, for example "h.3.attn".
// These nodes also get the source line of the outermost Scope. An error inside a layer therefore contains the
// layer's name and the line of the user's call.
class Scope {
 public:
  // Enters the scope. Throws Error for a name with control characters.
  explicit Scope(const std::string& name, Where where = Where::current());
  // A scope without a name, with the source line of an op call.
  explicit Scope(const TensorArg& call) : Scope("", call.where()) {}
  // Leaves the scope.
  ~Scope();
  Scope(const Scope&) = delete;

 private:
  std::string path_;
  const std::string* before_;
  bool outermost_;
};

// While a SegmentScope exists, nodes recorded by this thread belong to its recompute segment.
class SegmentScope {
 public:
  // Enters a segment, a number from Graph::new_segment(); −1: no segment.
  explicit SegmentScope(int segment);
  // Restores the previous segment.
  ~SegmentScope();
  SegmentScope(const SegmentScope&) = delete;

 private:
  int before_;
};

// Converts an operand that is a number to a scalar tensor of this dtype. Throws DTypeError, with the op and
// the source line, if an integer dtype cannot represent the number. Also throws it if the number overflows
// the compute type of a floating dtype.
Tensor scalar_operand(const Op& op, Graph& graph, const TensorArg& number, DType dtype);

// Appends a node and returns all outputs. Arguments are tensors or numbers. A number gets the dtype of the
// first tensor.
std::vector<Tensor> record_all(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs = {});
// Same for an op with one output, or if only the first one is needed.
Tensor record(const Op& op, std::initializer_list<TensorArg> in, Attrs attrs = {});

// While a DerivativeScope exists, nodes recorded by this thread are marked as part of a derivative.
class DerivativeScope {
 public:
  // Enters the scope; false marks nodes as ordinary.
  explicit DerivativeScope(bool is_derivative = true);
  // Restores the previous mark.
  ~DerivativeScope();
  DerivativeScope(const DerivativeScope&) = delete;

 private:
  bool before_;
};

// The file name and line of a call: "(train.cpp:41)".
std::string at_line(const Where& where);
// Adds the layer and the source line to an error message. In Scope("h.3.attn"), "[matmul] inner sizes differ"
// becomes "[h.3.attn/matmul] inner sizes differ (train.cpp:41)". The line is that of the outermost Scope, or
// `where` outside of any Scope.
std::string in_context(const std::string& message, const Where& where);

// Attributes of a graph input, a leaf whose value is fed.
struct InputAttrs {
  std::string name;  // the input's name
  Shape shape;       // the input's shape
  DType dtype;       // the input's dtype
  // Lists the fields for printing and hashing (core/base/attrs.h).
  void fields(auto&& field) const { field("name", name), field("shape", shape), field("dtype", dtype); }
};
// Attributes of a parameter leaf.
struct ParameterAttrs {
  Parameter parameter;  // the parameter that is read
  // Lists the fields for printing and hashing.
  void fields(auto&& field) const { field("name", parameter.name()); }
};
// Attributes of a constant leaf.
struct ConstantAttrs {
  Array value;  // the constant's value
  // Lists the fields for printing and hashing.
  void fields(auto&& field) const { field("value", value.text()); }
};
// Attributes of the op `full`.
struct FullAttrs {
  Shape shape;   // shape of the result
  double value;  // the value of every element
  DType dtype;   // dtype of the result
  // Lists the fields for printing and hashing.
  void fields(auto&& field) const { field("shape", shape), field("value", value), field("dtype", dtype); }
};
// The leaf op of Graph::input(). The value of a leaf is set before the run.
extern const Op& input_op;
// The leaf op of Graph::param().
extern const Op& parameter_op;
// The leaf op of Graph::constant().
extern const Op& constant_op;
// The leaf op of Graph::rng().
extern const Op& rng_op;
// The op `full`. It is not a leaf: a kernel fills the tensor, or other kernels use the number directly.
extern const Op& full_op;
// The pointwise op that copies its input to separate memory.
extern const Op& copy_op;
// The pointwise op that converts its input to a different dtype.
extern const Op& cast_op;
// Returns a tensor filled with `value`. Throws DTypeError if the dtype cannot represent it (holds(),
// core/base/host_view.h).
Tensor full(Graph& graph, const Shape& shape, double value, DType dtype = f32,
            Where where = Where::current());

}  // namespace tg
