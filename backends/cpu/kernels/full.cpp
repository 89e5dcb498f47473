// full: every element of the output becomes one number.
#include <tilegrad/core/graph/graph.h>
#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class T>
void fill(Worker& w, T* out, std::int64_t n, T value) {
  const std::int64_t part = 1 << 16;
  w.each((n + part - 1) / part, [&](std::int64_t p) {
    const std::int64_t end = (p + 1) * part < n ? (p + 1) * part : n;
    for (std::int64_t i = p * part; i < end; ++i) out[i] = value;
  });
}

void run(Worker& w, const Call& call) {
  const Arg& out = call.out[0];  // dense: the op lays it out row-major
  const double value = call.attrs->as<FullAttrs>().value;
  const std::int64_t n = out.layout.numel();
  switch (out.dtype) {
    case DType::f64:
      return fill(w, reinterpret_cast<double*>(out.data), n, value);
    case DType::f32:
      return fill(w, reinterpret_cast<float*>(out.data), n, static_cast<float>(value));
    case DType::bf16:
      return fill(w, reinterpret_cast<std::uint16_t*>(out.data), n, bfloat16(static_cast<float>(value)).bits);
    case DType::f16:
      return fill(w, reinterpret_cast<std::uint16_t*>(out.data), n, float16(static_cast<float>(value)).bits);
    case DType::i64:
      return fill(w, reinterpret_cast<std::int64_t*>(out.data), n, static_cast<std::int64_t>(value));
    case DType::i32:
      return fill(w, reinterpret_cast<std::int32_t*>(out.data), n, static_cast<std::int32_t>(value));
    case DType::u8:
      return fill(w, reinterpret_cast<std::uint8_t*>(out.data), n, static_cast<std::uint8_t>(value));
    case DType::boolean:
      return fill(w, reinterpret_cast<bool*>(out.data), n, value != 0);
  }
}

}  // namespace

extern const Kernel full_kernel{&run};

}  // namespace tg::cpu::TG_ISA
