// Sums over the micro-batches of a step. The additions form the same binary tree for every number of ranks,
// so the sums are bitwise identical.
#pragma once

#include <tilegrad/core/compile/compile.h>

namespace tg::train {

// Adds `count` values of each tensor in a list. Each run of the values' program writes one value of each
// tensor to leaves(). If a tensor has n values v₀, v₁, …, the left half of the tree has the first 2^k of
// them, where 2^k is the largest power of two below n. For four values, the sum is (v₀ + v₁) + (v₂ + v₃).
// Values are stored in their dtype and added in f32 or f64. One partial sum per level is kept until the right
// half is complete, as in a binary counter.
//
// N ranks with count/N values each can split the tree if N and count/N are powers of two. The all_reduce of
// their sums is then bitwise identical to the sum on one rank.
class GradientTree {
 public:
  // `values` belong to one graph. `names` are used in the names of the partial sums. Keeps one leaf and
  // log₂(count) partial sums per tensor.
  GradientTree(const std::vector<Tensor>& values, const std::vector<std::string>& names, std::int64_t count,
               Device device);
  // The assignments that the program of the values must compute.
  const std::vector<Assign>& leaves() const { return leaves_; }
  // Prepares add(). Use the options of the values' program, but without a memory budget.
  void compile(const CompileOptions& options);
  // Adds the leaves to the partial sums. Must be called after run i = 0 … count − 2 of the program of the
  // values.
  void add(std::int64_t i);
  // Returns the sums as nodes of `graph`. Run its program after the last run of the program of the values.
  std::vector<Tensor> sums(Graph& graph) const;
  // The memory of the leaves in bytes.
  std::size_t leaf_bytes() const;
  // The memory of the leaves and the partial sums in bytes.
  std::size_t bytes() const;

 private:
  // For tensor `which`: the leaf plus the partial sums at the levels whose bits are set in `levels`, lowest
  // first.
  Tensor sum(Graph& graph, std::size_t which, std::uint64_t levels) const;

  std::int64_t count_;
  std::vector<Shape> shapes_;                 // by tensor
  std::vector<Assign> leaves_;                // by tensor; may hold the elements in a different shape
  std::vector<std::vector<Parameter>> held_;  // by level and tensor
  std::vector<Program> programs_;             // by level: each writes a sum to that level
};

}  // namespace tg::train
