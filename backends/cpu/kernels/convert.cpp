// Conversion between the storage types in memory and blocks in the compute type.
#include <cstring>

#include "backends/cpu/kernels/kernels.h"

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

// No conversion exists from floats to integers or from f64 to narrower floats, except that any dtype can be
// stored as bf16.
template <class S, class C>
inline constexpr bool is_loaded = std::is_integral_v<S> ||
                                  (std::is_floating_point_v<C> && sizeof(S) <= sizeof(C));
template <class S, class C>
inline constexpr bool is_stored = is_loaded<S, C> || std::is_same_v<S, bfloat16>;

}  // namespace

LoadFn block_load(DType memory, DType block) {
  return with_compute_type(block, [memory]<class C>(C) {
    return dispatch(memory, []<class S>(S) -> LoadFn {
      if constexpr (is_loaded<S, C>) return &load_block<S, C>;
      return nullptr;
    });
  });
}

StoreFn block_store(DType block, DType memory) {
  return with_compute_type(block, [memory]<class C>(C) {
    return dispatch(memory, []<class S>(S) -> StoreFn {
      if constexpr (is_stored<S, C>) return &store_block<S, C>;
      return nullptr;
    });
  });
}

}  // namespace tg::cpu::TG_ISA
