// User-defined ops: a forward with its own backward [Stratos, Efficient Attention §C], as graph code or as
// C++ functions on host memory. Both give a CustomOp, which is called like any op; gradients() uses the given
// backward.
#pragma once

#include <memory>

#include <tilegrad/core/graph/graph.h>

namespace tg {

class CustomOp {
 public:
  // Records the op on its arguments, at least one of them a tensor; errors carry the caller's line.
  std::vector<Tensor> all(std::initializer_list<TensorArg> in) const;
  std::vector<Tensor> all(std::span<const Tensor> in, Where where) const;
  // The first output, for ops that have one.
  Tensor operator()(std::initializer_list<TensorArg> in) const {
    return all(in)[0];
  }  // there is at least one
  Tensor operator()(TensorArg a) const { return all({a})[0]; }
  Tensor operator()(TensorArg a, TensorArg b) const { return all({a, b})[0]; }
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

// As graph code. `backward` gets the inputs, the outputs and z = ∂L/∂out of each output (zeros where no
// gradient arrives), and returns z_in of each input, undefined for inputs without a gradient. What it records
// can be differentiated again. `forward` may use only its arguments and constants: reading a parameter or
// another tensor throws Error, since its gradient would be lost.
struct GraphFunctions {
  std::function<std::vector<Tensor>(const std::vector<Tensor>& in)> forward = {};
  std::function<std::vector<Tensor>(const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                                    const std::vector<Tensor>& z)>
      backward;
};
// Throws Error without a forward or a backward.
CustomOp custom_op(std::string name, GraphFunctions functions);

// As C++ functions on host memory, run by one thread. In a CUDA program operands are copied to the host and
// results back. Operands are row-major: others are copied first.
struct HostGradient {
  std::span<const HostView> in, out, z;
  std::span<const HostView> z_in;  // to be written: one per floating input, in order
};
struct HostOp {
  std::string name;
  std::string doc = {};  // see Op
  // Dtype and shape of each output; layouts are row-major. Default: one output like the first input.
  std::function<std::vector<OutSpec>(std::span<const Operand>)> infer = {};
  // May itself compile and run other programs. An exception ends the run with an Error (see Program::run).
  std::function<void(std::span<const HostView> in, std::span<const HostView> out)> forward = {};
  std::function<void(const HostGradient&)> backward =
      {};  // optional: without it the op is not differentiable
  // For gradcheck and the tests: a name and the inputs; without `call` the op itself is called.
  std::vector<Sample> samples = {};
  Where where = Where::current();  // see Op
};
// Adds the op to all_ops(), from any thread; its backward is an op too, which has no derivative. Throws Error
// if there is an op of that name, or no name or no forward.
CustomOp register_host_op(HostOp op);

}  // namespace tg
