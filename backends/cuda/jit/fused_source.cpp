#include "backends/cuda/jit/fused_source.h"

#include <algorithm>
#include <numeric>

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

bool Space::is_linear() const {
  for (std::size_t o = 0; o < stride[0].size(); ++o)
    if (!is_linear(o)) return false;
  return true;
}

std::int64_t reach_of(std::span<const Arg> in, std::span<const Arg> out) {
  std::int64_t reach = 0;
  for (const auto& operands : {in, out})
    for (const Arg& a : operands) reach = std::max(reach, a.layout.extent());
  return reach;
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

std::string indices(const Space& s, int vector) {
  std::string code = "      I rest = i;\n";
  for (std::size_t a = s.size.size(); a-- > 0;) {
    const std::int64_t size = a + 1 == s.size.size() ? s.size[a] / vector : s.size[a];
    code += "      const I x" + std::to_string(a) + " = rest";
    code += a == 0 ? ";\n" : " % (I)" + digits(size) + "; rest /= (I)" + digits(size) + ";\n";
  }
  return code;
}

std::string offset(const Space& s, std::size_t o, int vector) {
  if (s.is_linear(o)) return "i * (I)" + digits(vector);
  std::string e = "(I)0";
  for (std::size_t a = 0; a < s.size.size(); ++a) {
    const std::int64_t step = s.stride[a][o] * (a + 1 == s.size.size() ? vector : 1);
    if (step != 0) e += " + x" + std::to_string(a) + " * (I)" + digits(step);
  }
  return e;
}

VectorAccess::VectorAccess(const Space& s, std::size_t outs, int vector, const std::string& times,
                           std::span<const Arg> in, std::span<const Arg> stored,
                           const std::string& condition) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    is_one.push_back(vector == 1 || s.stride.back()[outs + i] == 0);
    const std::string type = storage(in[i].dtype), at = offset(s, outs + i, vector), from = numbered("in", i),
                      to = numbered("v", i);
    declared += "      " + (is_one[i] ? type : "Vec<" + type + ">") + " " + to + "[" + times + "];\n";
    loads += "      " + to + "[n] = " +
             (is_one[i] ? from + "[" + at + "];\n"
                        : "*(const Vec<" + type + ">*)(" + from + " + (" + at + "));\n");
  }
  for (std::size_t o = 0; o < stored.size(); ++o)
    stores += "      " + condition + "*(Vec<" + storage(stored[o].dtype) + ">*)(" + numbered("out", o) +
              " + (" + offset(s, o, vector) + ")) = " + numbered("result", o) + ";\n";
}

std::string fused_loop(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                       std::span<const Arg> out, const std::string& start, const std::string& step) {
  const std::string t = digits(times);
  std::int64_t numel = 1;
  for (std::int64_t size : s.size) numel *= size;
  const std::string all = "(I)" + digits(numel / vector),
                    each = "    #pragma unroll\n    for (int n = 0; n < " + t + "; ++n) ";
  const VectorAccess access(s, out.size(), vector, t, in, out);
  const std::string place = "      const I i = first + n * step;\n      if (i >= " + all + ") break;\n" +
                            (s.is_linear() ? "" : indices(s, vector));
  return "  const I step = " + step + ";\n  for (I first = " + start + "; first < " + all +
         "; first += step * " + t + ") {\n" + access.declared +
         (in.empty() ? "" : each + "{\n" + place + access.loads + "    }\n") + "    if (stopped) return;\n" +
         each + "{\n" + place +
         fused_vector(f, in, out, vector, [&](std::size_t i) { return access.element(i); }) + access.stores +
         "    }\n  }\n";
}

std::string fused_source(const FusedAttrs& f, const Space& s, int vector, int times, std::span<const Arg> in,
                         std::span<const Arg> out, bool narrow_index) {
  const std::string block = "(I)" + digits(fused_block);
  return fused_begin(f, in, out, vector, narrow_index) +
         fused_loop(f, s, vector, times, in, out, "blockIdx.x * " + block + " + threadIdx.x",
                    "gridDim.x * " + block) +
         "}\n";
}

std::string sum_loop(const Space& s, const std::string& start, const std::string& step) {
  std::int64_t numel = 1;
  for (std::int64_t size : s.size) numel *= size;
  return "  for (I i = " + start + "; i < (I)" + digits(numel) + "; i += " + step + ") {\n" +
         (s.is_linear(0) ? "" : indices(s, 1)) + "      sum += (T)widen(in0[" + offset(s, 0, 1) +
         "]);\n  }\n";
}

}  // namespace tg::cuda
