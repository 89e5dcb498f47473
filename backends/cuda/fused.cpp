// Chains of pointwise ops: the source of one kernel per chain and layout, in which sizes and strides are
// numbers. A thread takes `vector` neighbours of the innermost axis at a time where every operand lets it,
// and asks for a few such vectors before it works on the first.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "backends/cuda/check.h"
#include "backends/cuda/code.h"
#include "backends/cuda/conversion_source.h"
#include "backends/cuda/kernels/kernels.h"
#include "backends/cuda/pointwise_source.h"
#include "core/error.h"
#include "core/lower.h"

namespace tg::cuda {

namespace {

// The output's axes from outermost to innermost in memory, neighbours merged where every operand steps over
// the inner one whole. Operand 0 is the output, operand i + 1 input i.
struct Space {
  std::vector<std::int64_t> size;
  std::vector<std::vector<std::int64_t>> stride;  // [axis][operand]

  Space(std::span<const Arg> in, const Arg& out) {
    std::vector<int> order(static_cast<std::size_t>(out.layout.rank()));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return out.layout.strides[a] > out.layout.strides[b]; });
    for (int axis : order) {
      const std::int64_t n = out.layout.shape[axis];
      if (n == 1) continue;
      std::vector<std::int64_t> s{out.layout.strides[axis]};
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
      stride.emplace_back(in.size() + 1, 0);
    }
  }
};

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

// How many neighbours along the innermost axis go together: 16 bytes of the widest operand.
int vector_of(const Space& s, std::span<const Arg> in, const Arg& out) {
  const auto operand = [&](std::size_t o) -> const Arg& { return o == 0 ? out : in[o - 1]; };
  std::size_t widest = 1;
  for (std::size_t o = 0; o <= in.size(); ++o) widest = std::max(widest, size_of(operand(o).dtype));
  for (int v = static_cast<int>(16 / widest); v > 1; v /= 2) {
    bool fits = s.size.back() % v == 0;
    for (std::size_t o = 0; fits && o <= in.size(); ++o) {
      const std::size_t bytes = size_of(operand(o).dtype) * static_cast<std::size_t>(v);
      const std::int64_t inner = s.stride.back()[o];
      if (inner == 0 && o > 0) continue;
      fits = inner == 1 && reinterpret_cast<std::uintptr_t>(operand(o).data) % bytes == 0;
      for (std::size_t axis = 0; fits && axis + 1 < s.size.size(); ++axis) fits = s.stride[axis][o] % v == 0;
    }
    if (fits) return v;
  }
  return 1;
}

bool is_linear(const Space& s, std::size_t operand) {
  std::int64_t expected = 1;
  for (std::size_t a = s.size.size(); a-- > 0; expected *= s.size[a])
    if (s.stride[a][operand] != expected) return false;
  return true;
}

// A cast rounds to its target inside a chain; every other instruction goes by its op's name.
std::string function_of(const FusedAttrs::Instruction& i, DType compute) {
  const bool rounds = i.op->name == "cast" && i.dtype != compute && i.dtype != u8 && i.dtype != i32;
  return "op_" + (rounds ? "cast_" + std::string(name_of(i.dtype)) : i.op->name);
}

constexpr int block = 256;

// Vectors that a thread takes: as many as keep 64 bytes of each operand on their way, few enough for
// registers and for every multiprocessor to have two blocks.
int times_of(std::int64_t vectors, std::size_t operands, const Gpu& gpu) {
  int times = operands <= 3 ? 4 : 2;
  while (times > 1 && vectors < std::int64_t{2} * gpu.processors * block * times) times /= 2;
  return times;
}

struct Plan {
  cudaKernel_t kernel;
  unsigned grid;
};

std::string source_of(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                      const Arg& out, bool narrow_index) {
  const std::string v = std::to_string(vector), t = std::to_string(times);
  const auto n = [](std::int64_t x) { return std::to_string(x); };
  std::string code = std::string(conversion_source) + pointwise_source + "typedef " +
                     compute_name(f.compute) + " T;\ntypedef " +
                     (narrow_index ? "unsigned" : "unsigned long long") + " I;\n" +
                     "template <class S> struct alignas(sizeof(S) * " + v + ") Vec { S at[" + v + "]; };\n" +
                     "extern \"C\" __global__ void __launch_bounds__(" + n(block) + ") chain(" +
                     storage(out.dtype) + "* __restrict__ out, const int* fault";
  for (std::size_t i = 0; i < in.size(); ++i)
    code += std::string(", const ") + storage(in[i].dtype) + "* in" + n(static_cast<std::int64_t>(i));
  // An output may take an input's place: no operand is read through the read-only cache.
  code.replace(code.find(" __restrict__"), 13, "");
  std::int64_t numel = 1;
  for (std::int64_t size : s.size) numel *= size;
  const std::string all = "(I)" + n(numel / vector),
                    each = "    #pragma unroll\n    for (int n = 0; n < " + t + "; ++n) ";
  // A fault of an earlier launch: read as anything is, through the cache, or all warps would queue for one
  // address.
  code += ") {\n  const bool stopped = fault && *fault != 0x7fffffff;\n  const I step = gridDim.x * (I)" +
          n(block) + ";\n  for (I first = blockIdx.x * (I)" + n(block) + " + threadIdx.x; first < " + all +
          "; first += step * " + t + ") {\n";
  bool all_linear = true;
  for (std::size_t o = 0; o <= in.size(); ++o) all_linear = all_linear && is_linear(s, o);
  std::string place = "      const I i = first + n * step;\n      if (i >= " + all + ") break;\n";
  if (!all_linear) {
    place += "      I rest = i;\n";
    for (std::size_t a = s.size.size(); a-- > 0;) {
      const std::int64_t size = a + 1 == s.size.size() ? s.size[a] / vector : s.size[a];
      const std::string x = "      const I x" + n(static_cast<std::int64_t>(a)) + " = ";
      place += a == 0 ? x + "rest;\n" : x + "rest % (I)" + n(size) + "; rest /= (I)" + n(size) + ";\n";
    }
  }
  const auto offset = [&](std::size_t o) {
    if (is_linear(s, o)) return "i * (I)" + v;
    std::string e = "(I)0";
    for (std::size_t a = 0; a < s.size.size(); ++a) {
      const std::int64_t step = s.stride[a][o] * (a + 1 == s.size.size() ? vector : 1);
      if (step != 0) e += " + x" + n(static_cast<std::int64_t>(a)) + " * (I)" + n(step);
    }
    return e;
  };
  const auto is_one = [&](std::size_t i) { return vector == 1 || s.stride.back()[i + 1] == 0; };
  std::string loads;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::string name = n(static_cast<std::int64_t>(i)), type = storage(in[i].dtype);
    code += "    " + (is_one(i) ? type : "Vec<" + type + ">") + " v" + name + "[" + t + "];\n";
    loads += "      v" + name + "[n] = " +
             (is_one(i) ? "in" + name + "[" + offset(i + 1) + "];\n"
                        : "*(const Vec<" + type + ">*)(in" + name + " + (" + offset(i + 1) + "));\n");
  }
  if (!in.empty()) code += each + "{\n" + place + loads + "    }\n";
  code += "    if (stopped) return;\n" + each + "{\n" + place;
  code += std::string("      Vec<") + storage(out.dtype) +
          "> result;\n      #pragma unroll\n      for (int e = 0; e < " + v + "; ++e) {\n";
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::string name = n(static_cast<std::int64_t>(i));
    code +=
        "        const T a" + name + " = (T)widen(v" + name + "[n]" + (is_one(i) ? "" : ".at[e]") + ");\n";
  }
  for (std::size_t c = 0; c < f.code.size(); ++c) {
    code += "        const T r" + n(static_cast<std::int64_t>(c)) + " = " +
            function_of(f.code[c], f.compute) + "<T>(";
    bool first = true;
    for (const FusedAttrs::Operand& o : f.code[c].operands()) {
      code += first ? "" : ", ";
      first = false;
      code += o.kind == FusedAttrs::Operand::input ? "a" + n(o.index)
              : o.kind == FusedAttrs::Operand::constant
                  ? number(f.constants[static_cast<std::size_t>(o.index)], f.compute)
                  : "r" + n(o.index);
    }
    code += ");\n";
  }
  code += std::string("        result.at[e] = narrow<") + storage(out.dtype) + ">::of(r" +
          n(static_cast<std::int64_t>(f.code.size()) - 1) + ");\n      }\n      *(Vec<" + storage(out.dtype) +
          ">*)(out + (" + offset(0) + ")) = result;\n    }\n  }\n}\n";
  return code;
}

std::shared_ptr<const void> plan(const Call& c) {
  const auto& f = c.attrs->as<FusedAttrs>();
  const Arg& out = c.out[0];
  auto p = std::make_shared<Plan>(Plan{nullptr, 0});
  if (out.layout.numel() == 0) return p;
  const Space s(c.in, out);
  const int vector = vector_of(s, c.in, out);
  const std::int64_t vectors = out.layout.numel() / vector;
  const int times = times_of(vectors, c.in.size() + 1, c.gpu);
  std::int64_t reach = out.layout.numel() + block * 1024ll * c.gpu.processors * vector * times;
  for (const Arg& a : c.in) reach = std::max(reach, a.layout.extent());
  reach = std::max(reach, out.layout.extent());
  p->kernel = compiled(source_of(f, s, vector, times, c.in, out, reach < (1ll << 31)), "chain", c.gpu);
  const std::int64_t blocks = (vectors + block * times - 1) / (block * times);
  p->grid = static_cast<unsigned>(std::min<std::int64_t>(blocks, 64ll * c.gpu.processors));
  return p;
}

void launch(const Stream& s, const Call& c) {
  const auto& p = *static_cast<const Plan*>(c.plan);
  if (!p.kernel) return;
  const void* out = c.out[0].data;
  const int* fault = &s.faults.fault->step;
  std::vector<const void*> in;
  for (const Arg& a : c.in) in.push_back(a.data);
  std::vector<void*> arguments{&out, &fault};
  for (const void*& a : in) arguments.push_back(&a);
  check(cudaLaunchKernel(reinterpret_cast<const void*>(p.kernel), dim3(p.grid), dim3(block), arguments.data(),
                         0, s.stream),
        "a chain of pointwise ops");
}

std::string choice(const Call& c) {
  const auto& p = *static_cast<const Plan*>(c.plan);
  if (!p.kernel) return "nothing to do";
  return "compiled by NVRTC, " + std::to_string(p.grid) + " blocks of " + std::to_string(block) + " threads";
}

}  // namespace

const Kernel fused_kernel{&launch, nullptr, &plan, &choice};

// A tensor of one number is a chain without inputs.
namespace {

Call as_chain(const Call& c, Attrs& attrs) {
  const auto& f = c.attrs->as<FullAttrs>();
  const DType compute = compute_type(f.dtype);
  attrs = FusedAttrs{compute, {{&copy_op, f.dtype, 1, {{FusedAttrs::Operand::constant, 0}}}}, {f.value}};
  return {c.in, c.out, &attrs, c.plan, c.gpu, c.tf32, c.in_order};
}

std::shared_ptr<const void> plan_full(const Call& c) {
  Attrs attrs;
  return plan(as_chain(c, attrs));
}

}  // namespace

const Kernel full_kernel{&launch, nullptr, &plan_full};

}  // namespace tg::cuda
