// Generates the source of fused elementwise kernels. Sizes and strides are literals. Kernels loop over
// vectors (fused_source.cpp), or use tiles for transposed inputs (tile_source.cpp).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/step.h>
#include "core/compile/lower.h"

namespace tg::cuda {

// ---- shared by all memory access patterns: the kernel's parameters, and the work on one element ----

constexpr int fused_block = 256;  // threads per block

const char* storage(DType t);
std::string digits(std::int64_t x);
std::string numbered(const char* name, std::size_t i);  // "in0"

// Parts of the source:
// - the functions that fused kernels call
// - the type definitions T (computation), I (indices) and Vec<S> (`vector` adjacent elements)
// - the first statements of a kernel
// - the definition of `stopped` (see below)
std::string fused_library();
std::string fused_types(DType compute, int vector, bool narrow_index);
extern const char* const fused_begins_early;
extern const char* const fused_stopped;

// Returns the source up to the body of kernel `chain(outputs…, fault, inputs…)`. It defines the types T
// (computation), I (indices) and Vec<S> (`vector` adjacent elements). In the body, `stopped` is true if an
// earlier launch set a fault.
std::string fused_begin(const FusedAttrs& f, std::span<const Arg> in, std::span<const Arg> out, int vector,
                        bool narrow_index);

// Returns a block of statements that declares result0, … and computes them, element by element. input(i)
// returns the expression for element e of input i.
std::string fused_vector(const FusedAttrs& f, std::span<const Arg> in, std::span<const Arg> out, int vector,
                         const std::function<std::string(std::size_t)>& input);

// Returns the largest offset of an element in any operand.
std::int64_t reach_of(std::span<const Arg> in, std::span<const Arg> out);

// Returns a reduction's operand without the reduced axes, or its result without the corresponding axes of
// size 1.
Arg without_reduced(const Step& reduction, const Arg& operand);

// ---- loops over vectors ----

// The first output's axes from outermost to innermost in memory. Two adjacent axes are merged if, in every
// operand, the outer stride equals the inner stride times the inner size. Operands are the outputs, followed
// by the inputs.
struct Space {
  std::vector<std::int64_t> size;
  std::vector<std::vector<std::int64_t>> stride;  // [axis][operand]

  Space(std::span<const Arg> in, std::span<const Arg> out);
  bool is_linear(std::size_t operand) const;
  bool is_linear() const;  // whether is_linear(o) holds for every operand
};

// Returns the number of adjacent elements along the innermost axis that are loaded at a time. If the strides
// and address of every operand allow it, this is 16 bytes of the widest operand.
int vector_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Return statements that declare two things: the index of vector i along each axis (x0, x1, … from outermost
// to innermost), and the offset of vector i in operand o.
std::string indices(const Space& s, int vector);
std::string offset(const Space& s, std::size_t o, int vector);

// The source of the memory accesses in a loop over vectors. Iteration n processes vector i. The source
// consists of the declarations v0[times], v1[times], …, the loads of inputs, and the stores of results. Each
// store may have a condition. The operands of the space are `outs` outputs, then the inputs.
struct VectorAccess {
  std::string declared, loads, stores;

  VectorAccess(const Space& s, std::size_t outs, int vector, const std::string& times,
               std::span<const Arg> in, std::span<const Arg> stored, const std::string& condition = {});
  // Returns the expression for element e of input i.
  std::string element(std::size_t i) const { return numbered("v", i) + (is_one[i] ? "[n]" : "[n].at[e]"); }

 private:
  std::vector<bool> is_one;  // for each input: whether one element is loaded for a whole vector
};

// Returns the source of a kernel `chain(outputs…, fault, inputs…)`. A thread processes vectors of `vector`
// adjacent elements. It loads `times` vectors before it computes any of them.
std::string fused_source(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                         std::span<const Arg> out, bool narrow_index);

// Returns the kernel's loop. A thread processes vector `start` and then every `step`-th vector.
std::string fused_loop(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                       std::span<const Arg> out, const std::string& start, const std::string& step);

// Returns a loop that adds the elements of the only operand, in0, to `sum`.
std::string sum_loop(const Space& s, const std::string& start, const std::string& step);

// ---- tiles ----

// Tiles for fused kernels with a transposed input, such as contiguous() of a transposed tensor. Such an input
// is transposed relative to the outputs. If it were read along the outputs' innermost axis, each element
// would cost a whole memory sector. Instead a block loads a square tile and transposes it in shared memory.
// The tile spans the outputs' innermost axis and the axis along which the input is contiguous.
struct Tiles {
  std::size_t axis;          // the axis of the space along which transposed inputs are contiguous
  std::vector<bool> across;  // for each input: whether it is transposed
  int vector, side;          // elements
  std::int64_t blocks;
};

// Returns nullopt if no input is transposed, or if an axis is far shorter than the side of a tile.
std::optional<Tiles> tiles_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Returns the source of a kernel `chain(outputs…, fault, inputs…)` for tiles.blocks blocks.
std::string tile_source(const FusedAttrs& f, const Space& s, const Tiles& tiles, std::span<const Arg> in,
                        std::span<const Arg> out, bool narrow_index);

}  // namespace tg::cuda
