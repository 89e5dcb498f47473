// Sums over the micro-batches of a step: always the same binary tree over all of them, however many ranks
// compute a part each, so that the sums have the same bits.
#pragma once

#include <tilegrad/core/compile/compile.h>

namespace tg::train {

// The sum of `count` values of each of a list of tensors, which one run each of the values' program leaves in
// leaves(). With the values v₀, v₁, … of a tensor it is the tree whose left half has the largest power of two
// below their number: (v₀ + v₁) + (v₂ + v₃) of four. All is added in f32, or f64, of values as their program
// stores them. Sums that wait for their right half are held one for each level, as in a binary counter.
//
// For N ranks with count/N values each, N and count/N powers of two, the sum of the ranks' sums by all_reduce
// has the bits of one rank's.
class GradientTree {
 public:
  // `values`, of one graph, with names for what is held of them. Holds a leaf and log₂(count) sums of each.
  GradientTree(const std::vector<Tensor>& values, const std::vector<std::string>& names, std::int64_t count,
               Device device);
  // The values' program must assign these.
  const std::vector<Assign>& leaves() const { return leaves_; }
  // Prepares add(); options as those of the values' program, without a memory budget.
  void compile(const CompileOptions& options);
  // After run i = 0 … count − 2 of the values' program.
  void add(std::int64_t i);
  // After the last run: the sums as nodes of another graph.
  std::vector<Tensor> sums(Graph& graph) const;
  std::size_t leaf_bytes() const;
  std::size_t bytes() const;  // with what is held

 private:
  // Of tensor `which`: the leaf, and what is held at the levels whose bits are set in `levels`, lowest first.
  Tensor sum(Graph& graph, std::size_t which, std::uint64_t levels) const;

  std::int64_t count_;
  std::vector<Shape> shapes_;                 // by tensor
  std::vector<Assign> leaves_;                // by tensor; may have the elements in another shape
  std::vector<std::vector<Parameter>> held_;  // by level and tensor
  std::vector<Program> programs_;             // by level: each moves a sum there
};

}  // namespace tg::train
