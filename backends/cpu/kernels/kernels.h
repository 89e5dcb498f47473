// Every file of CPU kernels includes this header. It has the interface of a kernel, and declarations that the
// files of an instruction set share.
#pragma once

#include <type_traits>

#include "backends/cpu/kernel.h"
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

inline i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}
inline i64 round_up(i64 n, i64 unit) {
  return ceil_div(n, unit) * unit;
}
// Only for integers. Floating-point numbers would be rounded.
template <class T>
requires std::is_floating_point_v<T>
void at_most(T, T) = delete;
template <class T>
requires std::is_floating_point_v<T>
void at_least(T, T) = delete;
inline i64 at_most(i64 a, i64 b) {
  return a < b ? a : b;
}
inline i64 at_least(i64 a, i64 b) {
  return a > b ? a : b;
}

template <class E>
void swap(E& a, E& b) {
  const E t = a;
  a = b;
  b = t;
}

extern const std::span<const BlockEntry> pointwise_blocks;  // pointwise.cpp
LoadFn block_load(DType memory, DType block);               // convert.cpp
StoreFn block_store(DType block, DType memory);

// Calls f(a value of the compute type of `dtype`): double, float or i64.
template <class F>
TG_INLINE auto with_compute_type(DType dtype, F f) {
  switch (compute_type(dtype)) {
    case DType::f64:
      return f(double{});
    case DType::f32:
      return f(float{});
    default:
      return f(i64{});
  }
}

// Calls f(an unsigned integer of `size` bytes), for kernels that only move elements.
template <class F>
TG_INLINE auto with_bits(std::size_t size, F f) {
  switch (size) {
    case 8:
      return f(std::uint64_t{});
    case 4:
      return f(std::uint32_t{});
    case 2:
      return f(std::uint16_t{});
    default:
      return f(std::uint8_t{});
  }
}

// Kernel::run for ops on floats: computes in f64 if the first operand is f64, otherwise in f32.
using RunFn = void (*)(Worker&, const Call&);
template <RunFn in_f64, RunFn in_f32>
void run_float(Worker& w, const Call& call) {
  call.in[0].dtype == DType::f64 ? in_f64(w, call) : in_f32(w, call);
}

}  // namespace tg::cpu::TG_ISA
