// Compares flash_attn with attention by its definition: values, gradients and memory.
//
//   build/examples/attention
//
// Exits with status 0 if they agree and the memory of flash_attn does not grow with the square of the length.
#include <cmath>
#include <cstdio>

#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/tilegrad.h>

using namespace tg;

namespace {

// Returns O = softmax(Q·Kᵀ/√d + M)·V [B, H, L, d], where M is −∞ above the diagonal. P [B, H, L, L] is stored
// in memory.
Tensor by_definition(const Tensor& q, const Tensor& k, const Tensor& v) {
  const std::int64_t L = q.size(2);
  const Tensor later = triu(full(q.graph(), {L, L}, 1, q.dtype()), 1);
  const Tensor scores = matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  return matmul(softmax(where(greater(later, 0), -INFINITY, scores)), v);
}

// Queries, keys and values of one projection, as in a model. Also the results and gradients of both versions.
struct Both {
  Graph g;
  Tensor qkv;
  std::vector<Tensor> fused, plain;

  Both(std::int64_t L, DType dtype) {
    const std::int64_t B = 2, H = 4, d = 16;
    qkv = g.input("qkv", {B, L, 3, H, d}, dtype);
    std::vector<Tensor> parts;  // views: [B, H, L, d] each
    for (int n = 0; n < 3; ++n) parts.push_back(slice(qkv, 2, n, n + 1).squeeze(2).transpose(1, 2));
    const Tensor o = flash_attn(parts[0], parts[1], parts[2], {.causal = true}).o;
    const Tensor same = by_definition(parts[0], parts[1], parts[2]);
    fused = {o, gradients(sum(o * o), {qkv})[0]};
    plain = {same, gradients(sum(same * same), {qkv})[0]};
  }
  static double mib(Graph& g, const std::vector<Tensor>& outputs) {
    const MemoryReport m = compile(g, outputs, {.device = Device::cpu(), .plan_only = true}).memory();
    return static_cast<double>(m.arena + m.workspace) / (1 << 20);
  }
};

}  // namespace

int main() try {
  Both both(50, f64);
  std::vector<double> numbers(static_cast<std::size_t>(both.qkv.numel()));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<double>(i * i % 1009));
  double apart = 0;
  for (std::size_t n = 0; n < 2; ++n) {
    const auto got = eval({both.fused[n], both.plain[n]}, {{both.qkv, numbers}});
    for (std::int64_t i = 0; i < got[0].numel(); ++i) {
      const double d = std::fabs(got[0].at(i) - got[1].at(i));
      apart = std::isnan(d) ? INFINITY : std::fmax(apart, d);
    }
  }
  std::printf("largest difference, outputs and gradients: %.1e\n", apart);

  double before = 0, grown = 0;
  std::printf("length   flash_attn   by definition   (MiB, forward and backward)\n");
  for (const std::int64_t L : {512, 1024, 2048}) {
    Both of(L, f32);
    const double fused = Both::mib(of.g, of.fused), plain = Both::mib(of.g, of.plain);
    std::printf("%6lld %12.1f %15.1f\n", static_cast<long long>(L), fused, plain);
    grown = fused / before, before = fused;
  }
  return apart < 1e-12 && grown < 2.1 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
