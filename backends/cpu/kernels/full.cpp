// full: every element of the output becomes one number, converted once and then copied.
#include <tilegrad/core/graph/graph.h>
#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

namespace {

// Bits: an unsigned integer of the element's size.
template <class Bits>
void fill(Worker& w, std::byte* to, std::int64_t n, const std::byte* element) {
  Bits value;
  __builtin_memcpy(&value, element, sizeof value);
  Bits* out = reinterpret_cast<Bits*>(to);
  const std::int64_t part = piece_size(1 << 16, 64);
  w.each((n + part - 1) / part, [&](std::int64_t p) {
    const std::int64_t end = (p + 1) * part < n ? (p + 1) * part : n;
    for (std::int64_t i = p * part; i < end; ++i) out[i] = value;
  });
}

void run(Worker& w, const Call& call) {
  const Arg& out = call.out[0];  // dense: the op lays it out row-major
  const double value = call.attrs->as<FullAttrs>().value;
  const std::int64_t n = out.layout.numel();
  alignas(8) std::byte element[8];
  block_store(DType::f64, out.dtype)(element, &value, 1, 1);
  switch (size_of(out.dtype)) {
    case 8:
      return fill<std::uint64_t>(w, out.data, n, element);
    case 4:
      return fill<std::uint32_t>(w, out.data, n, element);
    case 2:
      return fill<std::uint16_t>(w, out.data, n, element);
    default:
      return fill<std::uint8_t>(w, out.data, n, element);
  }
}

}  // namespace

extern const Kernel full_kernel{&run};

}  // namespace tg::cpu::TG_ISA
