// Harness: one case in one view and dtype, as two compiled programs for outputs and gradients that run
// repeatedly on different numbers. Internal to gradcheck.
#pragma once

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/core/compile/compile.h>
#include "autograd/replay.h"

namespace tg::gradcheck {

using Values = std::vector<double>;
using Point = std::vector<Values>;  // values of every leaf (or output), in row-major order

struct HarnessOptions {
  Device device = Device::cpu();
  Replay::Substitute substitute = {};  // recorded instead of the call's own nodes
  // Changes the gradients of the floating leaves after they are recorded as nodes first … last − 1.
  std::function<std::vector<Tensor>(std::vector<Tensor> z, NodeId first, NodeId last)> tamper = {};
  // Rounds results to this dtype: of every node, or, if `round_fused` is off, only stored results, which are
  // all except inner ones of fused elementwise steps. On an f64 program this simulates the program in that
  // dtype without using its kernels or gradients.
  std::optional<DType> round_to = {};
  bool round_fused = true;
  bool fuse = true;
  bool verify = false;
  bool shapes_only = false;   // do not differentiate or compile
  bool forward_only = false;  // do not differentiate
  int threads = 1;
  bool twice = false;                    // make the call twice and use each output twice: 4 × the gradient
  std::vector<bool> use_output = {};     // floating outputs that the loss depends on; empty: all
  std::vector<bool> differentiate = {};  // floating leaves that get gradients; empty: all
};

// An input or parameter of the case. `wrt` is the tensor with respect to which it is differentiated: the base
// of an expanded view, otherwise the tensor that the op sees.
struct Leaf {
  SampleInput spec;
  Shape shape;  // of wrt
  DType dtype;
  bool floating;  // has the dtype under test and gets a gradient
  Tensor fed, wrt;
  std::vector<std::int64_t> place;  // offsets of wrt's elements in the buffer that is fed
  std::vector<std::int64_t> seen;   // offsets, in that buffer, of the elements that the op sees
  Array buffer;
  std::optional<Parameter> parameter;
  Values start;  // a parameter's initial values
};

// Whether an input has the dtype under test and gets a gradient.
bool differentiable(const SampleInput& input);
// `floating` for an input that has no dtype and is not filled with indices or booleans.
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
  // Number of consecutive roundings (Op::roundings) between inputs and results, and their maximum within one
  // step.
  struct Roundings {
    double all = 0, of_a_step = 0;
  };
  Roundings forward_roundings() const { return roundings(forward_); }
  Roundings backward_roundings() const { return roundings(backward_); }
  bool view_changes_something() const { return view_applies_; }

  // Random values for every leaf, rounded to its dtype; the same for every dtype except for rounding.
  Point draw(std::uint64_t seed) const;
  Point draw_cotangents(std::uint64_t seed) const;  // ±[0.5, 1.5), rounded to the dtype
  Point draw_direction(std::uint64_t seed) const;   // ±[0.5, 1.5) for every element of every leaf
  void set(const Point& x);
  void set(const Point& x, const Point& r);  // sets both
  void set(std::size_t leaf, std::size_t element, double value);
  void set_cotangents(const Point& r);

  Point outputs();    // floating outputs
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
