// Shared by all kernels of fused chains, whatever their order of access to memory: their parameters, and the
// work on one element.
#pragma once

#include <functional>
#include <span>
#include <string>

#include <tilegrad/core/run/step.h>
#include "core/compile/lower.h"

namespace tg::cuda {

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

}  // namespace tg::cuda
