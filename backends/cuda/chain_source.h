// The source of a chain of pointwise ops as a CUDA kernel, in which sizes and strides are numbers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/step.h>
#include "core/compile/lower.h"

namespace tg::cuda {

// The first output's axes from outermost to innermost in memory, neighbours merged where every operand steps
// over the inner one whole. Operands are the outputs, then the inputs.
struct Space {
  std::vector<std::int64_t> size;
  std::vector<std::vector<std::int64_t>> stride;  // [axis][operand]

  Space(std::span<const Arg> in, std::span<const Arg> out);
  bool is_linear(std::size_t operand) const;
};

// How many neighbours along the innermost axis go together: 16 bytes of the widest operand, where every
// operand lets them.
int vector_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Source of a kernel chain(outputs…, fault, inputs…) whose threads take `vector` neighbours at a time, and
// ask for `times` such vectors before they work on the first.
std::string chain_source(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                         std::span<const Arg> out, bool narrow_index);

}  // namespace tg::cuda
