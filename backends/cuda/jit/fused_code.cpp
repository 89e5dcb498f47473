#include "backends/cuda/jit/fused_source.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "backends/cuda/jit/conversion_source.h"
#include "backends/cuda/jit/pointwise_source.h"

namespace tg::cuda {

const char* storage(DType t) {
  constexpr const char* names[] = {"double", "float", "bf16", "f16", "i64", "int", "unsigned char", "bool"};
  return names[static_cast<int>(t)];
}

std::string digits(std::int64_t x) {
  return std::to_string(x);
}

std::string numbered(const char* name, std::size_t i) {
  return name + std::to_string(i);
}

namespace {

const char* compute_name(DType t) {
  return t == f64 ? "double" : t == f32 ? "float" : "i64";
}

std::string number(double x, DType compute) {
  const bool wide = compute == f64;
  if (std::isnan(x))
    return wide ? "T(__longlong_as_double(0x7ff8000000000000ll))" : "T(__int_as_float(0x7fc00000))";
  if (std::isinf(x))
    return std::string(x < 0 ? "T(-" : "T(") +
           (wide ? "__longlong_as_double(0x7ff0000000000000ll))" : "__int_as_float(0x7f800000))");
  if (compute == i64) return "T(" + std::to_string(static_cast<std::int64_t>(x)) + "ll)";
  char text[64];
  std::snprintf(text, sizeof text, "T(%.17g)", x);
  return text;
}

// A cast inside a fused kernel rounds to its target dtype. A cast from i64 rounds when it is stored. Some ops
// have a variant for low-precision results. Every other instruction calls the function with the name of its
// op.
std::string function_of(const FusedAttrs::Instruction& i, DType compute) {
  constexpr std::string_view with_half_form[] = {"pow", "gelu", "gelu_slope", "gelu_tanh", "gelu_tanh_slope"};
  if ((i.dtype == bf16 || i.dtype == f16) &&
      std::ranges::find(with_half_form, i.op->name) != std::end(with_half_form))
    return "op_" + i.op->name + "_half";
  const bool rounds = i.op->converts && i.dtype != compute &&
                      (is_float(i.dtype) ? compute != i64 : i.dtype == i64 || i.dtype == boolean);
  return "op_" + (rounds ? "cast_" + std::string(name_of(i.dtype)) : i.op->name);
}

// Generates code for one element. It computes the values r0, r1, … of the instructions from the inputs a0,
// a1, ….
std::string instructions(const FusedAttrs& f) {
  std::string code;
  for (std::size_t c = 0; c < f.code.size(); ++c) {
    code += "        const T r" + std::to_string(c) + " = " + function_of(f.code[c], f.compute) + "<T>(";
    bool first = true;
    for (const FusedAttrs::Source& o : f.code[c].operands()) {
      code += first ? "" : ", ";
      first = false;
      code += o.kind == FusedAttrs::Source::input ? "a" + digits(o.index)
              : o.kind == FusedAttrs::Source::constant
                  ? number(f.constants[static_cast<std::size_t>(o.index)], f.compute)
                  : "r" + digits(o.index);
    }
    code += ");\n";
  }
  return code;
}

}  // namespace

std::string fused_types(DType compute, int vector, bool narrow_index) {
  return std::string("typedef ") + compute_name(compute) + " T;\ntypedef " +
         (narrow_index ? "unsigned" : "unsigned long long") + " I;\n" +
         "template <class S> struct alignas(sizeof(S) * " + digits(vector) + ") Vec { S at[" +
         digits(vector) + "]; };\n";
}

std::string fused_library() {
  return std::string(conversion_source) + pointwise_source;
}

// Lets the next kernel begin and waits for the previous one (begin_early in launch.cuh).
const char* const fused_begins_early = R"(
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
)";

// An ordinary cached load. Otherwise all warps would queue for one address.
const char* const fused_stopped = "  const bool stopped = fault && *fault != 0x7fffffff;\n";

std::string fused_begin(const FusedAttrs& f, std::span<const Arg> in, std::span<const Arg> out, int vector,
                        bool narrow_index) {
  std::string code = fused_library() + fused_types(f.compute, vector, narrow_index) +
                     "extern \"C\" __global__ void __launch_bounds__(" + digits(fused_block) + ") chain(";
  // An output may share memory with an input. No operand is therefore read through the read-only cache.
  for (std::size_t o = 0; o < out.size(); ++o)
    code += std::string(storage(out[o].dtype)) + "* " + numbered("out", o) + ", ";
  code += "const int* fault";
  for (std::size_t i = 0; i < in.size(); ++i)
    code += std::string(", const ") + storage(in[i].dtype) + "* " + numbered("in", i);
  return code + ") {" + fused_begins_early + fused_stopped;
}

std::string fused_vector(const FusedAttrs& f, std::span<const Arg> in, std::span<const Arg> out, int vector,
                         const std::function<std::string(std::size_t)>& input) {
  std::string results, widened, narrowed;
  for (std::size_t o = 0; o < out.size(); ++o) {
    const std::string type = storage(out[o].dtype), name = numbered("result", o);
    results += "      Vec<" + type + "> " + name + ";\n";
    narrowed += "        " + name + ".at[e] = narrow<" + type + ">::of(r" + digits(f.result(o)) + ");\n";
  }
  for (std::size_t i = 0; i < in.size(); ++i)
    widened += "        const T " + numbered("a", i) + " = (T)widen(" + input(i) + ");\n";
  return results + "      #pragma unroll\n      for (int e = 0; e < " + digits(vector) + "; ++e) {\n" +
         widened + instructions(f) + narrowed + "      }\n";
}

}  // namespace tg::cuda
