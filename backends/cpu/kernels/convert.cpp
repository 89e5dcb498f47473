// Conversion between the storage types in memory and blocks in the compute type.
#include <cstring>

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class S>
inline constexpr bool is_half = std::is_same_v<S, bfloat16> || std::is_same_v<S, float16>;

template <class C, class S>
TG_INLINE C value_of(S x) {
  if constexpr (is_half<S>)
    return static_cast<C>(static_cast<float>(x));
  else
    return static_cast<C>(x);
}

template <class S, class C>
TG_INLINE S stored(C x) {
  if constexpr (is_half<S>)
    return S(x);
  else if constexpr (std::is_same_v<S, bool>)
    return x != C{0};
  else if constexpr (std::is_integral_v<S> && !std::is_integral_v<C>)
    return static_cast<S>(static_cast<i64>(x));
  else
    return static_cast<S>(x);
}

TG_INLINE F32 odd_floats_from(const double* p) {
  return odd_floats(load(p), load(p + lanes<F64>));
}
TG_INLINE F32 odd_floats_from(const i64* p) {
  return odd_floats(load(p), load(p + lanes<I64>));
}

template <class S, class C>
void load_block(void* block, const void* memory, i64 stride, i64 n) {
  C* to = static_cast<C*>(block);
  const S* from = static_cast<const S*>(memory);
  if (stride == 0) {
    const C x = value_of<C>(*from);
    for (i64 i = 0; i < n; ++i) to[i] = x;
  } else if (stride == 1) {
    if constexpr (std::is_same_v<S, C>) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(C));
    } else {
      i64 i = 0;
      if constexpr (is_half<S> && std::is_same_v<C, float>)
        for (; i + lanes<F32> <= n; i += lanes<F32>) store(to + i, load(from + i));
      for (; i < n; ++i) to[i] = value_of<C>(from[i]);
    }
  } else {
    for (i64 i = 0; i < n; ++i) to[i] = value_of<C>(from[i * stride]);
  }
}

template <class S, class C>
void store_block(void* memory, const void* block, i64 stride, i64 n) {
  S* to = static_cast<S*>(memory);
  const C* from = static_cast<const C*>(block);
  if (stride == 1) {
    if constexpr (std::is_same_v<S, C>) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(C));
    } else {
      i64 i = 0;
      if constexpr (is_half<S> && std::is_same_v<C, float>)
        for (; i + lanes<F32> <= n; i += lanes<F32>) store(to + i, load(from + i));
      if constexpr (is_half<S> && !std::is_same_v<C, float>)
        for (; i + lanes<F32> <= n; i += lanes<F32>) store(to + i, odd_floats_from(from + i));
      for (; i < n; ++i) to[i] = stored<S>(from[i]);
    }
  } else {
    for (i64 i = 0; i < n; ++i) to[i * stride] = stored<S>(from[i]);
  }
}

template <class C>
LoadFn load_to(DType memory) {
  switch (memory) {
    case DType::f64:
      return std::is_same_v<C, double> ? &load_block<double, C> : nullptr;
    case DType::f32:
      return std::is_floating_point_v<C> ? &load_block<float, C> : nullptr;
    case DType::bf16:
      return std::is_floating_point_v<C> ? &load_block<bfloat16, C> : nullptr;
    case DType::f16:
      return std::is_floating_point_v<C> ? &load_block<float16, C> : nullptr;
    case DType::i64:
      return &load_block<std::int64_t, C>;
    case DType::i32:
      return &load_block<std::int32_t, C>;
    case DType::u8:
      return &load_block<std::uint8_t, C>;
    case DType::boolean:
      break;
  }
  return &load_block<bool, C>;
}

template <class C>
StoreFn store_from(DType memory) {
  switch (memory) {
    case DType::f64:
      return std::is_same_v<C, double> ? &store_block<double, C> : nullptr;
    case DType::f32:
      return std::is_floating_point_v<C> ? &store_block<float, C> : nullptr;
    case DType::bf16:
      return &store_block<bfloat16, C>;
    case DType::f16:
      return std::is_floating_point_v<C> ? &store_block<float16, C> : nullptr;
    case DType::i64:
      return &store_block<std::int64_t, C>;
    case DType::i32:
      return &store_block<std::int32_t, C>;
    case DType::u8:
      return &store_block<std::uint8_t, C>;
    case DType::boolean:
      break;
  }
  return &store_block<bool, C>;
}

}  // namespace

LoadFn block_load(DType memory, DType block) {
  return block == DType::f64   ? load_to<double>(memory)
         : block == DType::f32 ? load_to<float>(memory)
                               : load_to<i64>(memory);
}

StoreFn block_store(DType block, DType memory) {
  return block == DType::f64   ? store_from<double>(memory)
         : block == DType::f32 ? store_from<float>(memory)
                               : store_from<i64>(memory);
}

}  // namespace tg::cpu::TG_ISA
