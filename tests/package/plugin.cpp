// A user's plugin. The installed gradcheck checks its op.
#include <tilegrad/tilegrad.h>

extern "C" void tilegrad_plugin() {
  tg::register_host_op({.name = "twice",
                        .doc = "x → y: y = 2x",
                        .forward =
                            [](std::span<const tg::HostView> in, std::span<const tg::HostView> out) {
                              for (std::int64_t i = 0; i < in[0].numel(); ++i) out[0].set(i, 2 * in[0].at(i));
                            },
                        .backward =
                            [](const tg::HostGradient& g) {
                              for (std::int64_t i = 0; i < g.z[0].numel(); ++i)
                                g.z_in[0].set(i, 2 * g.z[0].at(i));
                            },
                        .samples = {{"vector", {{{5}}}}}});
}
