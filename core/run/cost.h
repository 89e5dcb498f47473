// The kind of a step and its cost, according to its op.
#pragma once

#include <algorithm>

#include <tilegrad/core/run/step.h>

namespace tg {

// The name under which steps are summed: the op's name, or `fused to gelu` for a fused elementwise step that
// ends in gelu.
inline std::string kind_of(const Step& s) {
  const std::string last = s.name.substr(s.name.find_last_of('/') + 1);
  return s.op->name == last ? last : "fused to " + last;
}

// A step's inputs and outputs, as arguments for functions of the op.
struct StepOperands {
  std::vector<Operand> in, out;  // the inputs and outputs
  // Copies dtypes and layouts of a step.
  explicit StepOperands(const Step& s) {
    for (const Arg& a : s.in) in.push_back({a.dtype, a.layout});
    for (const Arg& a : s.out) out.push_back({a.dtype, a.layout});
  }
};

// Op::cost of the step, or zeros if the op has no cost function. The bytes of the operands are not included.
inline Cost cost_of(const Step& s) {
  if (!s.op->cost) return {};
  const StepOperands operands{s};
  return s.op->cost(operands.in, operands.out, s.attrs);
}

// Op::roundings of the step.
inline double roundings_of(const Step& s) {
  if (!s.op->roundings) return 1;
  const StepOperands operands{s};
  return s.op->roundings(operands.in, operands.out, s.attrs);
}

// Bytes of memory that an operand occupies. An expanded operand has more elements than memory; a strided
// operand spans more memory than its elements need.
inline double bytes_of(DType dtype, Layout l) {
  l.offset = 0;
  return static_cast<double>(std::min(l.numel(), l.extent())) * static_cast<double>(size_of(dtype));
}
// Same for an operand of a step.
inline double bytes_of(const Arg& a) {
  return bytes_of(a.dtype, a.layout);
}

// FLOPs, and bytes moved, counting each operand once.
inline Cost work_of(const Step& s) {
  Cost c = cost_of(s);
  for (const Arg& a : s.in) c.bytes += bytes_of(a);
  for (const Arg& a : s.out) c.bytes += bytes_of(a);
  return c;
}

// Number of GEMM FLOPs that a device computes while it copies one byte. An H200 computes about 700 TFLOP/s in
// a 16-bit dtype and copies 4.2 TB/s. In other dtypes, the ratio is about a tenth of that, as on a CPU.
inline double flops_of_a_byte(DType dtype) {
  return dtype == bf16 || dtype == f16 ? 160 : 16;
}

// The time of a step on operands of `dtype`. The unit is the time of copying one byte. The result is the
// larger of the copy time and the arithmetic time.
inline double price_of(Cost work, DType dtype) {
  return std::max(work.bytes, work.flops / flops_of_a_byte(dtype));
}

}  // namespace tg
