// Element types: the eight dtypes of tensors, with their names, sizes and C++ storage types.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace tg {

// Element type of a tensor.
enum class DType : std::uint8_t {
  f64,     // IEEE binary64
  f32,     // IEEE binary32
  bf16,    // bfloat16: the upper 16 bits of an f32
  f16,     // IEEE binary16
  i64,     // 64-bit signed integer
  i32,     // 32-bit signed integer
  u8,      // 8-bit unsigned integer
  boolean  // boolean of one byte, 0 or 1
};

// Short names of the floating dtypes.
inline constexpr DType f64 = DType::f64, f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
// Short names of the integer dtypes and of bool.
inline constexpr DType i64 = DType::i64, i32 = DType::i32, u8 = DType::u8, boolean = DType::boolean;

// All dtypes.
inline constexpr DType all_dtypes[] = {f64, f32, bf16, f16, i64, i32, u8, boolean};

// Size of one element in bytes.
constexpr std::size_t size_of(DType t) {
  constexpr std::size_t bytes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  return bytes[static_cast<int>(t)];
}

// The name, such as "bf16" or "bool".
constexpr std::string_view name_of(DType t) {
  constexpr std::string_view names[] = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
  return names[static_cast<int>(t)];
}

// Whether the dtype is floating.
constexpr bool is_float(DType t) {
  return t <= DType::f16;
}
// Whether the dtype is an integer type; false for booleans.
constexpr bool is_int(DType t) {
  return t == DType::i64 || t == DType::i32 || t == DType::u8;
}

// The dtype in which kernels compute: f32 for bf16 and f16, i64 for integers and booleans.
constexpr DType compute_type(DType t) {
  return t == f64 ? f64 : is_float(t) ? f32 : i64;
}

// Rounds x to f32 with round-to-odd: if f32 cannot represent x, the result is the neighbor with the last bit
// 1. If the result is then rounded to nearest in a 16-bit type, the effect is the same as rounding x
// directly. The reason is that f32 has more than two extra bits at every exponent of both 16-bit types.
// Rounding x to the nearest f32 is not sufficient, because the nearest f32 could be halfway between two
// 16-bit numbers.
[[gnu::always_inline]] constexpr float odd_float(double x) {
  const auto nearest = static_cast<float>(x);
  const double back = nearest, magnitude = x < 0 ? -x : x, reached = back < 0 ? -back : back;
  std::uint32_t u = std::bit_cast<std::uint32_t>(nearest);
  u -= reached > magnitude;                              // towards zero
  u |= (reached > magnitude) | (back < x) | (back > x);  // inexact, and not NaN
  return std::bit_cast<float>(u);
}
// Returns x.
[[gnu::always_inline]] constexpr float odd_float(float x) {
  return x;
}
// Same for integers. A 64-bit integer has up to 11 bits more than f64. The last bit of the f64 records
// whether any of the additional bits is set.
template <std::integral T>
[[gnu::always_inline]] constexpr float odd_float(T x) {
  if constexpr (sizeof(T) == 8) {
    constexpr T beyond = 2047;
    if ((x >> 53) != 0 && (x >> 53) != static_cast<T>(-1) && (x & beyond) != 0)
      x = (x & ~beyond) | (beyond + 1);
  }
  return odd_float(static_cast<double>(x));
}

// bfloat16: the upper half of an f32. A conversion from any number rounds once, to nearest even. NaN stays
// NaN.
struct bfloat16 {
  std::uint16_t bits = 0;  // the encoding
  // Zero.
  bfloat16() = default;
  // Converts any number, rounding once.
  template <class T>
  [[gnu::always_inline]] constexpr explicit bfloat16(T x) : bfloat16(odd_float(x)) {}
  // Converts an f32, rounding to nearest even.
  constexpr explicit bfloat16(float x) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    bits = (u & 0x7fffffffu) > 0x7f800000u
               ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
               : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  // The exact value.
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

// IEEE binary16, with subnormals, infinities and NaN. A conversion from any number rounds once, to nearest
// even.
struct float16 {
  std::uint16_t bits = 0;  // the encoding
  // Zero.
  float16() = default;
  // Converts any number, rounding once.
  template <class T>
  [[gnu::always_inline]] constexpr explicit float16(T x) : float16(odd_float(x)) {}
  // Converts an f32, rounding to nearest even.
  constexpr explicit float16(float x) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x), magnitude = u & 0x7fffffffu;
    const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) {  // NaN
      bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // rounds to 2^16 or more
      bits = static_cast<std::uint16_t>(sign | 0x7c00u);
    } else if (magnitude >= 0x38800000u) {  // normal: rebias the exponent, round the low 13 bits away
      const std::uint32_t r = magnitude - 0x38000000u;
      bits = static_cast<std::uint16_t>(sign | ((r + 0xfffu + ((r >> 13) & 1u)) >> 13));
    } else {  // subnormal or zero: adding 0.5 places the result in the low mantissa bits, rounded by the FPU
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
  }
  // The exact value.
  constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 31u) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0u) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
};

// The C++ types of elements, in the order of DType.
using StorageTypes =
    std::tuple<double, float, bfloat16, float16, std::int64_t, std::int32_t, std::uint8_t, bool>;
// The C++ type of a dtype: storage_t<DType::bf16> is bfloat16.
template <DType T>
using storage_t = std::tuple_element_t<static_cast<std::size_t>(T), StorageTypes>;

namespace detail {
template <class T, class... Types>
consteval DType find_dtype(std::type_identity<std::tuple<Types...>>) {
  static_assert((std::is_same_v<T, Types> || ...), "no dtype for this type");
  int before = 0;
  (void)((std::is_same_v<T, Types> || (++before, false)) || ...);
  return static_cast<DType>(before);
}
}  // namespace detail
// The dtype of a C++ type: dtype_of<float> is f32.
template <class T>
inline constexpr DType dtype_of = detail::find_dtype<T>(std::type_identity<StorageTypes>());

// Calls f with a value-initialized object of the dtype's C++ type and returns its result: dispatch(t, [](auto
// zero) { using T = decltype(zero); … }).
template <class F>
decltype(auto) dispatch(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f(double{});
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bfloat16{});
    case DType::f16:
      return f(float16{});
    case DType::i64:
      return f(std::int64_t{});
    case DType::i32:
      return f(std::int32_t{});
    case DType::u8:
      return f(std::uint8_t{});
    case DType::boolean:
      break;
  }
  return f(bool{});
}

}  // namespace tg
