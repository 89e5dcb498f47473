#include "backends/cuda/chain_source.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "backends/cuda/conversion_source.h"
#include "backends/cuda/pointwise_source.h"

namespace tg::cuda {

Space::Space(std::span<const Arg> in, std::span<const Arg> out) {
  const Layout& first = out[0].layout;
  std::vector<int> order(static_cast<std::size_t>(first.rank()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return first.strides[a] > first.strides[b]; });
  for (int axis : order) {
    const std::int64_t n = first.shape[axis];
    if (n == 1) continue;
    std::vector<std::int64_t> s;
    for (const Arg& a : out) s.push_back(a.layout.strides[axis]);
    for (const Arg& a : in) s.push_back(a.layout.strides[axis]);
    bool merges = !size.empty();
    for (std::size_t o = 0; merges && o < s.size(); ++o) merges = stride.back()[o] == n * s[o];
    if (merges) {
      size.back() *= n;
      stride.back() = s;
    } else {
      size.push_back(n);
      stride.push_back(s);
    }
  }
  if (size.empty()) {
    size.push_back(1);
    stride.emplace_back(out.size() + in.size(), 0);
  }
}

bool Space::is_linear(std::size_t operand) const {
  std::int64_t expected = 1;
  for (std::size_t a = size.size(); a-- > 0; expected *= size[a])
    if (stride[a][operand] != expected) return false;
  return true;
}

int vector_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out) {
  const std::size_t operands = out.size() + in.size();
  const auto operand = [&](std::size_t o) -> const Arg& {
    return o < out.size() ? out[o] : in[o - out.size()];
  };
  std::size_t widest = 1;
  for (std::size_t o = 0; o < operands; ++o) widest = std::max(widest, size_of(operand(o).dtype));
  for (int v = static_cast<int>(16 / widest); v > 1; v /= 2) {
    bool fits = s.size.back() % v == 0;
    for (std::size_t o = 0; fits && o < operands; ++o) {
      const std::size_t bytes = size_of(operand(o).dtype) * static_cast<std::size_t>(v);
      const std::int64_t inner = s.stride.back()[o];
      if (inner == 0 && o >= out.size()) continue;
      fits = inner == 1 && reinterpret_cast<std::uintptr_t>(operand(o).data) % bytes == 0;
      for (std::size_t axis = 0; fits && axis + 1 < s.size.size(); ++axis) fits = s.stride[axis][o] % v == 0;
    }
    if (fits) return v;
  }
  return 1;
}

namespace {

const char* storage(DType t) {
  constexpr const char* names[] = {"double", "float", "bf16", "f16", "i64", "int", "unsigned char", "bool"};
  return names[static_cast<int>(t)];
}
const char* compute_name(DType t) {
  return t == f64 ? "double" : t == f32 ? "float" : "i64";
}

std::string number(double x, DType compute) {
  char text[64];
  if (std::isnan(x)) {
    return std::string("T(") +
           (compute == f64 ? "__longlong_as_double(0x7ff8000000000000ll)" : "__int_as_float(0x7fc00000)") +
           ")";
  }
  if (std::isinf(x)) {
    const std::string inf =
        compute == f64 ? "__longlong_as_double(0x7ff0000000000000ll)" : "__int_as_float(0x7f800000)";
    return "T(" + std::string(x < 0 ? "-" : "") + inf + ")";
  }
  if (compute == i64) {
    std::snprintf(text, sizeof text, "T(%lldll)", static_cast<long long>(x));
  } else {
    std::snprintf(text, sizeof text, "T(%.17g)", x);
  }
  return text;
}

// A cast rounds to its target inside a chain; every other instruction goes by its op's name.
std::string function_of(const FusedAttrs::Instruction& i, DType compute) {
  const bool rounds = i.op->name == "cast" && i.dtype != compute && i.dtype != u8 && i.dtype != i32;
  return "op_" + (rounds ? "cast_" + std::string(name_of(i.dtype)) : i.op->name);
}

std::string digits(std::int64_t x) {
  return std::to_string(x);
}

// The number of vector i along each axis, x0, x1, … from outermost to innermost.
std::string indices(const Space& s, int vector) {
  std::string code = "      I rest = i;\n";
  for (std::size_t a = s.size.size(); a-- > 0;) {
    const std::int64_t size = a + 1 == s.size.size() ? s.size[a] / vector : s.size[a];
    code += "      const I x" + std::to_string(a) + " = rest";
    code += a == 0 ? ";\n" : " % (I)" + digits(size) + "; rest /= (I)" + digits(size) + ";\n";
  }
  return code;
}

// Where operand o has vector i.
std::string offset(const Space& s, std::size_t o, int vector) {
  if (s.is_linear(o)) return "i * (I)" + digits(vector);
  std::string e = "(I)0";
  for (std::size_t a = 0; a < s.size.size(); ++a) {
    const std::int64_t step = s.stride[a][o] * (a + 1 == s.size.size() ? vector : 1);
    if (step != 0) e += " + x" + std::to_string(a) + " * (I)" + digits(step);
  }
  return e;
}

// From the inputs a0, a1, … of one element to the values r0, r1, … of the instructions.
std::string instructions(const FusedAttrs& f) {
  std::string code;
  for (std::size_t c = 0; c < f.code.size(); ++c) {
    code += "        const T r" + std::to_string(c) + " = " + function_of(f.code[c], f.compute) + "<T>(";
    bool first = true;
    for (const FusedAttrs::Operand& o : f.code[c].operands()) {
      code += first ? "" : ", ";
      first = false;
      code += o.kind == FusedAttrs::Operand::input ? "a" + digits(o.index)
              : o.kind == FusedAttrs::Operand::constant
                  ? number(f.constants[static_cast<std::size_t>(o.index)], f.compute)
                  : "r" + digits(o.index);
    }
    code += ");\n";
  }
  return code;
}

}  // namespace

std::string chain_source(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                         std::span<const Arg> out, bool narrow_index) {
  const std::string v = digits(vector), t = digits(times);
  const auto name = [](const char* what, std::size_t i) { return what + std::to_string(i); };
  std::string code = std::string(conversion_source) + pointwise_source + "typedef " +
                     compute_name(f.compute) + " T;\ntypedef " +
                     (narrow_index ? "unsigned" : "unsigned long long") + " I;\n" +
                     "template <class S> struct alignas(sizeof(S) * " + v + ") Vec { S at[" + v + "]; };\n" +
                     "extern \"C\" __global__ void __launch_bounds__(" + digits(chain_block) + ") chain(";
  // An output may take an input's place: no operand is read through the read-only cache.
  for (std::size_t o = 0; o < out.size(); ++o)
    code += std::string(storage(out[o].dtype)) + "* " + name("out", o) + ", ";
  code += "const int* fault";
  for (std::size_t i = 0; i < in.size(); ++i)
    code += std::string(", const ") + storage(in[i].dtype) + "* " + name("in", i);
  std::int64_t numel = 1;
  for (std::int64_t size : s.size) numel *= size;
  const std::string all = "(I)" + digits(numel / vector),
                    each = "    #pragma unroll\n    for (int n = 0; n < " + t + "; ++n) ";
  // A fault of an earlier launch: read as anything is, through the cache, or all warps would queue for one
  // address.
  code += ") {\n  const bool stopped = fault && *fault != 0x7fffffff;\n  const I step = gridDim.x * (I)" +
          digits(chain_block) + ";\n  for (I first = blockIdx.x * (I)" + digits(chain_block) +
          " + threadIdx.x; first < " + all + "; first += step * " + t + ") {\n";
  bool all_linear = true;
  for (std::size_t o = 0; o < out.size() + in.size(); ++o) all_linear = all_linear && s.is_linear(o);
  const std::string place = "      const I i = first + n * step;\n      if (i >= " + all + ") break;\n" +
                            (all_linear ? "" : indices(s, vector));
  const auto is_one = [&](std::size_t i) { return vector == 1 || s.stride.back()[out.size() + i] == 0; };
  std::string loads, widened, results, narrowed, stores;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::string type = storage(in[i].dtype), at = offset(s, out.size() + i, vector);
    code += "    " + (is_one(i) ? type : "Vec<" + type + ">") + " " + name("v", i) + "[" + t + "];\n";
    loads += "      " + name("v", i) + "[n] = " +
             (is_one(i) ? name("in", i) + "[" + at + "];\n"
                        : "*(const Vec<" + type + ">*)(" + name("in", i) + " + (" + at + "));\n");
    widened += "        const T " + name("a", i) + " = (T)widen(" + name("v", i) + "[n]" +
               (is_one(i) ? "" : ".at[e]") + ");\n";
  }
  for (std::size_t o = 0; o < out.size(); ++o) {
    const std::string type = storage(out[o].dtype);
    results += "      Vec<" + type + "> " + name("result", o) + ";\n";
    narrowed +=
        "        " + name("result", o) + ".at[e] = narrow<" + type + ">::of(r" + digits(f.result(o)) + ");\n";
    stores += "      *(Vec<" + type + ">*)(" + name("out", o) + " + (" + offset(s, o, vector) +
              ")) = " + name("result", o) + ";\n";
  }
  if (!in.empty()) code += each + "{\n" + place + loads + "    }\n";
  code += "    if (stopped) return;\n" + each + "{\n" + place + results +
          "      #pragma unroll\n      for (int e = 0; e < " + v + "; ++e) {\n" + widened + instructions(f) +
          narrowed + "      }\n" + stores + "    }\n  }\n}\n";
  return code;
}

}  // namespace tg::cuda
