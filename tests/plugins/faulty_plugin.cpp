// Defines faulty ops and cases. Each causes one of the exit codes of tools/gradcheck.
#include <limits>

#include <tilegrad/autograd/custom_op.h>
#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/ops/ops.h>

namespace {

using namespace tg;

void add_square(const std::string& name, double factor) {
  register_host_op({.name = name,
                    .forward =
                        [](std::span<const HostView> in, std::span<const HostView> out) {
                          for (std::int64_t i = 0; i < out[0].numel(); ++i)
                            out[0].set(i, in[0].at(i) * in[0].at(i));
                        },
                    .backward =
                        [factor](const HostGradient& g) {
                          for (std::int64_t i = 0; i < g.z[0].numel(); ++i)
                            g.z_in[0].set(i, factor * g.in[0].at(i) * g.z[0].at(i));
                        },
                    .samples = {{"vector", {{{5}, {Fill::off_zero, 0.4, 2}}}, {}}}});
}

}  // namespace

extern "C" void tilegrad_plugin() {
  add_square("square_right", 2);
  add_square("square_wrong", 2.00001);
  add_square("square_nan", std::numeric_limits<double>::quiet_NaN());
  register_host_op(
      {.name = "unsampled", .forward = [](auto, auto) {}, .backward = [](const HostGradient&) {}});
  register_op({.name = "no_kernel",
               .infer =
                   [](std::span<const Operand> in, const Attrs&) {
                     return std::vector<OutSpec>{{in[0].dtype, in[0].layout}};
                   },
               .vjp = [](const Backprop& g) { return std::vector<Tensor>{g.z[0]}; },
               .samples =
                   [] {
                     return std::vector<Sample>{{"vector", {{{5}}}, [](std::span<const Tensor> x) {
                                                   return std::vector<Tensor>{
                                                       record(*find_op("no_kernel"), {x[0]})};
                                                 }}};
                   }});
}
