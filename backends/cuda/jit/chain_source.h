// The source of a fused chain of pointwise ops as a CUDA kernel, in which sizes and strides are literals.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/step.h>
#include "core/compile/lower.h"

namespace tg::cuda {

// The first output's axes from outermost to innermost in memory. Neighbouring axes are merged where, in every
// operand, the outer stride is the inner stride times the inner size. Operands are the outputs, then the
// inputs.
struct Space {
  std::vector<std::int64_t> size;
  std::vector<std::vector<std::int64_t>> stride;  // [axis][operand]

  Space(std::span<const Arg> in, std::span<const Arg> out);
  bool is_linear(std::size_t operand) const;
};

// The number of neighbours along the innermost axis that are loaded together: 16 bytes of the widest operand
// if every operand's strides and address allow it.
int vector_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Statements that declare the index of vector i along each axis, x0, x1, … from outermost to innermost; and
// the offset of vector i in operand o.
std::string indices(const Space& s, int vector);
std::string offset(const Space& s, std::size_t o, int vector);

// Source of a kernel chain(outputs…, fault, inputs…) whose threads process vectors of `vector` neighbours,
// and load `times` vectors before they compute the first.
std::string chain_source(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                         std::span<const Arg> out, bool narrow_index);

// Its loop, of a thread that takes vector `start` and every one that is `step` further.
std::string chain_loop(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                       std::span<const Arg> out, const std::string& start, const std::string& step);

// Such a loop that adds numbers of the only operand, in0, to `sum`.
std::string sum_loop(const Space& s, const std::string& start, const std::string& step);

}  // namespace tg::cuda
