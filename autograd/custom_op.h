// User-defined ops. The user provides a forward and a backward [Stratos, Efficient Attention §C], as graph
// code or as C++ functions on host memory. The result is a CustomOp, which is called like any other op.
// gradients() uses the user's backward.
#pragma once

#include <memory>

#include <tilegrad/core/graph/graph.h>

namespace tg {

// A user-defined op that can be called like a built-in one.
class CustomOp {
 public:
  // Records the op and returns all outputs. At least one argument must be a tensor. Error messages contain
  // the caller's source line.
  std::vector<Tensor> all(std::initializer_list<TensorArg> in) const;
  // Same with the source line as an argument.
  std::vector<Tensor> all(std::span<const Tensor> in, Where where) const;
  // Records the op and returns its first output, for ops with one output.
  Tensor operator()(std::initializer_list<TensorArg> in) const { return all(in)[0]; }
  // Same with one argument.
  Tensor operator()(TensorArg a) const { return all({a})[0]; }
  // Same with two arguments.
  Tensor operator()(TensorArg a, TensorArg b) const { return all({a, b})[0]; }
  // Same with three arguments.
  Tensor operator()(TensorArg a, TensorArg b, TensorArg c) const { return all({a, b, c})[0]; }

 private:
  friend CustomOp custom_op(std::string, struct GraphFunctions);
  friend CustomOp register_host_op(struct HostOp);
  using Record = std::function<std::vector<Tensor>(const std::vector<Tensor>&, Where)>;
  explicit CustomOp(std::string name, Record record)
      : name_(std::move(name)), record_(std::make_shared<const Record>(std::move(record))) {}

  std::string name_;
  std::shared_ptr<const Record> record_;
};

// A user-defined op as graph code. Its nodes can be differentiated again.
struct GraphFunctions {
  // Computes the outputs. The function may use only its arguments and constants. If it reads a parameter or
  // another tensor, Error is thrown, because the gradient of that tensor would be lost.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& in)> forward = {};
  // Computes z_in for each input. The arguments are the inputs, the outputs and, for each output, z =
  // ∂L/∂out. z_in may be undefined for an input without a gradient. z is zero if no gradient arrives.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                                    const std::vector<Tensor>& z)>
      backward;
};
// Creates an op from graph code. Throws Error unless both functions are set.
CustomOp custom_op(std::string name, GraphFunctions functions);

// The arguments of HostOp::backward.
struct HostGradient {
  std::span<const HostView> in;    // inputs of the op
  std::span<const HostView> out;   // its outputs
  std::span<const HostView> z;     // z = ∂L/∂out of each output
  std::span<const HostView> z_in;  // results: one per floating input, in order
};
// A user-defined op as C++ functions on host memory. One thread runs them. In a CUDA program, operands are
// copied to the host, and results are copied back. Operands that are not row-major are copied first.
struct HostOp {
  std::string name;      // unique name; see Op::name
  std::string doc = {};  // see Op::doc
  // Returns the dtype and shape of each output. Outputs are row-major. By default there is one output with
  // the dtype and shape of the first input.
  std::function<std::vector<OutSpec>(std::span<const Operand>)> infer = {};
  // Computes the outputs. It may compile and run other programs. An exception fails the run with an Error
  // (see Program::run).
  std::function<void(std::span<const HostView> in, std::span<const HostView> out)> forward = {};
  // Computes the gradients of the floating inputs. Optional: without it the op is not differentiable.
  std::function<void(const HostGradient&)> backward = {};
  // Samples for gradcheck and the tests. A sample needs only a name and inputs: without `call`, it calls this
  // op.
  std::vector<Sample> samples = {};
  Where where = Where::current();  // see Op::where
};
// Registers the op in all_ops(). Any thread may call this function. The backward becomes a separate op, which
// is not differentiable. Throws Error if the name is empty or in use, or if there is no forward.
CustomOp register_host_op(HostOp op);

}  // namespace tg
