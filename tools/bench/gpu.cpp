// A GPU's rates, as measured by programs of this library.
#include <tilegrad/ops/ceilings.h>
#include <tilegrad/ops/ops.h>
#include "tools/bench/machine.h"

namespace tg::bench {

Machine measure_gpu(const Settings& settings) {
  Graph g;
  const Program any = compile(g, {copy(g.input("x", {1}))}, options_of(settings, 0));
  const Ceilings c = measure_ceilings(any, {f32, f64, bf16});
  const auto gflops = [&](std::size_t i) { return c.product[i].second * 1e-9; };
  return {.model = backend(settings.device).name(),
          .peak_f32 = gflops(0),
          .peak_f64 = gflops(1),
          .peak_bf16 = gflops(2),
          .peak_name = "product",
          .copy = c.copy * 1e-9};
}

}  // namespace tg::bench
