// Harness: one case in one view and dtype. It is compiled as two programs, one for outputs and one for
// gradients. Both run repeatedly on different numbers. Internal to gradcheck.
#pragma once

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/core/compile/compile.h>
#include "autograd/replay.h"

namespace tg::gradcheck {

using Values = std::vector<double>;
using Point = std::vector<Values>;  // values of every leaf (or output), in row-major order

struct HarnessOptions {
  Device device = Device::cpu();
  Replay::Substitute substitute = {};  // its result replaces the call's nodes
  // Changes the recorded gradients z of the floating leaves. Nodes first … last − 1 compute z.
  std::function<std::vector<Tensor>(std::vector<Tensor> z, NodeId first, NodeId last)> tamper = {};
  // Rounds the result of every node to this dtype. If `round_fused` is false, only stored results are
  // rounded, and inner results of fused elementwise steps are not. In an f64 program, the rounding simulates
  // the program in that dtype without its kernels and gradients.
  std::optional<DType> round_to = {};
  bool round_fused = true;
  bool fuse = true;
  bool verify = false;
  bool shapes_only = false;   // do not differentiate or compile
  bool forward_only = false;  // do not differentiate
  int threads = 1;
  bool twice = false;                    // two calls, each output used twice: 4 × the gradient
  std::vector<bool> use_output = {};     // floating outputs that the loss depends on; empty: all
  std::vector<bool> differentiate = {};  // floating leaves that get gradients; empty: all
};

// An input or parameter of the case. The gradient is with respect to `wrt`. This is the base of an expanded
// view, otherwise the op's operand.
struct Leaf {
  SampleInput spec;
  Shape shape;  // of wrt
  DType dtype;
  bool floating;  // has the dtype under test and gets a gradient
  Tensor fed, wrt;
  std::vector<std::int64_t> place;  // offsets of wrt's elements in the buffer that is fed
  std::vector<std::int64_t> seen;   // offsets of the operand's elements in that buffer
  Array buffer;
  std::optional<Parameter> parameter;
  Values start;  // a parameter's initial values
};

// Whether an input has the dtype under test and gets a gradient.
bool differentiable(const SampleInput& input);
// The dtype of an input. It is `floating` if the input has no given dtype and is not filled with indices or
// booleans.
DType input_dtype(const SampleInput& input, DType floating);

class Harness {
 public:
  Harness(const Case& c, View view, DType dtype, const HarnessOptions& options);
  Harness(const Harness&) = delete;

  const std::vector<Leaf>& leaves() const { return leaves_; }
  std::vector<bool> floating() const;  // per leaf
  std::vector<std::size_t> floating_leaves() const;
  // Shapes of the floating outputs, in order.
  std::vector<Shape> output_shapes() const;
  std::vector<DType> output_dtypes() const;
  bool differentiable() const { return !z_.empty() && !r_.empty(); }
  // The number of consecutive roundings (Op::roundings) between inputs and results, and the maximum within
  // one step.
  struct Roundings {
    double all = 0, of_a_step = 0;
  };
  Roundings forward_roundings() const { return roundings(forward_); }
  Roundings backward_roundings() const { return roundings(backward_); }
  bool view_changes_something() const { return view_applies_; }

  // Draws random values for every leaf and rounds them to its dtype. Before this rounding, the values are the
  // same for every dtype.
  Point draw(std::uint64_t seed) const;
  Point draw_cotangents(std::uint64_t seed) const;  // ±[0.5, 1.5), rounded to the dtype
  Point draw_direction(std::uint64_t seed) const;   // ±[0.5, 1.5) for every element of every leaf
  void set(const Point& x);
  void set(const Point& x, const Point& r);  // sets both
  void set(std::size_t leaf, std::size_t element, double value);
  void set_cotangents(const Point& r);

  Point outputs();    // the floating outputs
  Point gradients();  // of the floating leaves that get gradients, in order

 private:
  // `count` values ±[0.5, 1.5) from a separate stream.
  Values draw_signed(std::uint64_t seed, std::size_t stream, std::int64_t count) const;
  void make_leaf(const SampleInput& spec, View view, DType dtype, std::size_t index);
  void add_parameters(const std::vector<Parameter>& parameters);
  void differentiate(const std::vector<Tensor>& used, const HarnessOptions& options);
  void record_gradients(const std::vector<Tensor>& used, const std::vector<Tensor>& wrt,
                        const HarnessOptions& options);
  void round_results(DType dtype, bool chains, NodeId first);
  void compile_both(const HarnessOptions& options);
  void write(const Leaf& leaf);
  static Roundings roundings(const std::optional<Program>& program);

  Graph graph_;
  std::vector<Leaf> leaves_;
  std::vector<Tensor> arguments_;    // of the case's call
  std::vector<Tensor> out_, r_, z_;  // floating outputs, their cotangents, gradients of the floating leaves
  std::vector<Array> r_values_;
  std::optional<Program> forward_, backward_;
  std::uint64_t key_;
  bool view_applies_ = false;
};

}  // namespace tg::gradcheck
