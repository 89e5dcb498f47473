#include "backends/cuda/epilogue.h"

#include "core/compile/lower.h"

namespace tg::cuda {

bool is_gelu_of(const Step& product, const Step& next) {
  if (product.op->name != "matmul" || next.op != &fused_op || next.in.size() != 1) return false;
  const auto& code = next.attrs.as<FusedAttrs>().code;
  if (code.size() != 1 || code[0].op->name != "gelu_tanh") return false;
  const Arg &made = product.out[0], &read = next.in[0], &out = next.out[0];
  return read.data == made.data && read.dtype == made.dtype && out.dtype == made.dtype &&
         read.layout.is_contiguous() && out.layout.is_contiguous() &&
         read.layout.numel() == made.layout.numel();
}

}  // namespace tg::cuda
