// Source of kernels made for a fused chain of pointwise ops, in which sizes and strides are literals: loops
// over vectors (chain_source.cpp), and tiles for inputs that are transposed (tile_source.cpp).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/step.h>
#include "core/compile/lower.h"

namespace tg::cuda {

// ---- shared by all, whatever their order of access to memory: their parameters, and the work on one element
// ----

constexpr int chain_block = 256;  // threads

const char* storage(DType t);
std::string digits(std::int64_t x);
std::string numbered(const char* name, std::size_t i);  // "in0"

// What the code of chains calls; the types T, of the computation, I, of indices, and Vec<S>, `vector`
// neighbours; the first statements of a kernel; and that of `stopped`, below.
std::string chain_library();
std::string chain_types(DType compute, int vector, bool narrow_index);
extern const char* const chain_begins_early;
extern const char* const chain_stopped;

// Everything up to the body of the kernel chain(outputs…, fault, inputs…): types T, of the computation, I, of
// indices, and Vec<S>, `vector` neighbours; in the body `stopped`, whether an earlier launch met a fault.
std::string chain_begin(const FusedAttrs& f, std::span<const Arg> in, std::span<const Arg> out, int vector,
                        bool narrow_index);

// A block of statements that declares result0, … and computes them, element by element. input(i) is the
// expression for element e of input i.
std::string chain_vector(const FusedAttrs& f, std::span<const Arg> in, std::span<const Arg> out, int vector,
                         const std::function<std::string(std::size_t)>& input);

// The largest offset of an element in one of the operands.
std::int64_t reach_of(std::span<const Arg> in, std::span<const Arg> out);

// An operand of a reduction without the axes that are reduced; of the result, without those of size 1 in
// their place.
Arg without_reduced(const Step& reduction, const Arg& operand);

// ---- loops over vectors ----

// The first output's axes from outermost to innermost in memory. Neighbouring axes are merged where, in every
// operand, the outer stride is the inner stride times the inner size. Operands are the outputs, then the
// inputs.
struct Space {
  std::vector<std::int64_t> size;
  std::vector<std::vector<std::int64_t>> stride;  // [axis][operand]

  Space(std::span<const Arg> in, std::span<const Arg> out);
  bool is_linear(std::size_t operand) const;
  bool is_linear() const;  // in all operands
};

// The number of neighbours along the innermost axis that are loaded together: 16 bytes of the widest operand
// if every operand's strides and address allow it.
int vector_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Statements that declare the index of vector i along each axis, x0, x1, … from outermost to innermost; and
// the offset of vector i in operand o.
std::string indices(const Space& s, int vector);
std::string offset(const Space& s, std::size_t o, int vector);

// The source of loops over vectors, of which the loop's nth is vector i: declarations of what is loaded at a
// time, v0[times], v1[times], …; the loads of inputs; and stores of results to outputs, perhaps with a
// condition before each. The space has `outs` outputs before its inputs.
struct VectorAccess {
  std::string declared, loads, stores;

  VectorAccess(const Space& s, std::size_t outs, int vector, const std::string& times,
               std::span<const Arg> in, std::span<const Arg> stored, const std::string& condition = {});
  // Element e of input i.
  std::string element(std::size_t i) const { return numbered("v", i) + (is_one[i] ? "[n]" : "[n].at[e]"); }

 private:
  std::vector<bool> is_one;  // by input: one number is loaded for all of a vector
};

// Source of a kernel chain(outputs…, fault, inputs…) whose threads process vectors of `vector` neighbours,
// and load `times` vectors before they compute the first.
std::string chain_source(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                         std::span<const Arg> out, bool narrow_index);

// Its loop, of a thread that takes vector `start` and every one that is `step` further.
std::string chain_loop(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                       std::span<const Arg> out, const std::string& start, const std::string& step);

// Such a loop that adds numbers of the only operand, in0, to `sum`.
std::string sum_loop(const Space& s, const std::string& start, const std::string& step);

// ---- tiles ----

// Chains with an input that is transposed relative to the outputs, such as contiguous() of a transposed
// tensor. If it were read along the outputs' innermost axis, each element would cost a whole sector of
// memory. Instead a block loads a square tile over that axis and the one along which the input is contiguous,
// and transposes it in shared memory.
struct Tiles {
  std::size_t axis;          // the axis of the space along which transposed inputs are contiguous
  std::vector<bool> across;  // by input: whether it is transposed
  int vector, side;          // elements
  std::int64_t blocks;
};

// Nothing if no input is transposed, or if an axis is far shorter than the side of a tile.
std::optional<Tiles> tiles_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Source of a kernel chain(outputs…, fault, inputs…) for tiles.blocks blocks.
std::string tile_source(const FusedAttrs& f, const Space& s, const Tiles& tiles, std::span<const Arg> in,
                        std::span<const Arg> out, bool narrow_index);

}  // namespace tg::cuda
