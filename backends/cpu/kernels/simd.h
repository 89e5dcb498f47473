// Vectors of the translation unit's instruction set: F32, F64 and integers of the same sizes. Loads and
// stores convert from and to the storage types. Partial loads and stores are for edges. Other functions are
// single instructions. Arithmetic and comparisons use the compiler's vector operators. A comparison returns
// an integer vector of 0 and -1, which is a mask for `select`. Elementary functions are in simd_math.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <tilegrad/core/base/dtype.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TG_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define TG_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define TG_VECTOR_BYTES 32
#else
#define TG_VECTOR_BYTES 16
#endif

namespace tg::cpu::TG_ISA {

using i64 = std::int64_t;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(TG_VECTOR_BYTES)));
};
template <class T>
using vector_of = typename VectorOf<T>::type;
using F32 = vector_of<float>;
using F64 = vector_of<double>;
using I32 = vector_of<std::int32_t>;
using U32 = vector_of<std::uint32_t>;
using I64 = vector_of<std::int64_t>;
using U64 = vector_of<std::uint64_t>;

// The compute type of a storage type: its scalar, its vector and the mask that a comparison returns.
template <class T>
struct Compute {  // f32, bf16, f16
  using scalar = float;
  using vector = F32;
  using mask = I32;
};
template <>
struct Compute<double> {
  using scalar = double;
  using vector = F64;
  using mask = I64;
};
template <class T>
using compute_t = typename Compute<T>::scalar;
template <class T>
using vector_t = typename Compute<T>::vector;

template <class V>
inline constexpr int lanes = TG_VECTOR_BYTES / sizeof(V{}[0]);

template <class To, class From>
TG_INLINE To bits_as(From v) {  // reinterprets the bits
  static_assert(sizeof(To) == sizeof(From));
  return (To)v;
}
template <class V, class S>
TG_INLINE V splat(S x) {
  using E = decltype(V{}[0] + V{}[0]);
  return static_cast<E>(x) - V{};  // x - 0 is x for every x, including -0
}

// Calls f(0), … f(count − 1) with constants.
template <class F, int... i>
TG_INLINE void each_of(F f, std::integer_sequence<int, i...>) {
  (f(std::integral_constant<int, i>()), ...);
}
template <int count, class F>
TG_INLINE void each_constant(F f) {
  each_of(f, std::make_integer_sequence<int, count>());
}

// ---- loads and stores, unaligned; `n` in a partial one is the number of elements, 0 … lanes ----

template <class T>
TG_INLINE auto load(const T* p) {
  vector_of<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T, class V>
TG_INLINE void store(T* p, V v) {
  static_assert(std::is_same_v<V, vector_of<T>>);
  __builtin_memcpy(p, &v, sizeof v);
}

TG_INLINE F32 load(const bfloat16* p) {
#if TG_VECTOR_BYTES == 64
  return (F32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif TG_VECTOR_BYTES == 32
  return (F32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
  U32 u = {};
  for (int i = 0; i < lanes<U32>; ++i) u[i] = static_cast<std::uint32_t>(p[i].bits) << 16;
  return (F32)u;
#endif
}
TG_INLINE U32 bf16_bits(F32 v) {  // in the lower half of each lane; rounds to nearest even, keeps NaN a NaN
  const U32 u = (U32)v;
  const U32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const I32 number = v == v;
  return ((U32)number & rounded) | (~(U32)number & ((u >> 16) | 0x40u));
}
TG_INLINE void store(bfloat16* p, F32 v) {
  const U32 h = bf16_bits(v);
#if TG_VECTOR_BYTES == 64
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)h));
#elif TG_VECTOR_BYTES == 32
  const __m256i packed = _mm256_packus_epi32((__m256i)h, (__m256i)h);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  for (int i = 0; i < lanes<U32>; ++i) p[i].bits = static_cast<std::uint16_t>(h[i]);
#endif
}
TG_INLINE F32 load(const float16* p) {
#if TG_VECTOR_BYTES == 64
  return (F32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif TG_VECTOR_BYTES == 32
  return (F32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  F32 v;
  for (int i = 0; i < lanes<F32>; ++i) v[i] = static_cast<float>(p[i]);
  return v;
#endif
}
TG_INLINE void store(float16* p, F32 v) {  // rounds to nearest even
#if TG_VECTOR_BYTES == 64
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif TG_VECTOR_BYTES == 32
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  for (int i = 0; i < lanes<F32>; ++i) p[i] = float16(v[i]);
#endif
}

// Copies whole vectors to memory and bypasses the caches, so the overwritten memory is not read first. It is
// for results that are too large for the caches. `to` must be aligned to a vector. Before another thread
// reads, stream_end() must be called.
TG_INLINE void stream_copy(std::byte* to, const std::byte* from, i64 bytes) {
  for (i64 i = 0; i < bytes; i += TG_VECTOR_BYTES) {
    const I32 v = load(reinterpret_cast<const std::int32_t*>(from + i));
#if TG_VECTOR_BYTES == 64
    _mm512_stream_si512((__m512i*)(to + i), (__m512i)v);
#elif TG_VECTOR_BYTES == 32
    _mm256_stream_si256((__m256i*)(to + i), (__m256i)v);
#elif defined(__x86_64__)
    _mm_stream_si128((__m128i*)(to + i), (__m128i)v);
#else
    store(reinterpret_cast<std::int32_t*>(to + i), v);
#endif
  }
}
TG_INLINE void stream_end() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <class T>
TG_INLINE auto load_partial(const T* p, int n) {  // the missing lanes are 0
  T full[lanes<vector_t<T>>] = {};
  for (int i = 0; i < n; ++i) full[i] = p[i];
  return load(full);
}
template <class T, class V>
TG_INLINE void store_partial(T* p, V v, int n) {
  T full[lanes<V>];
  store(full, v);
  for (int i = 0; i < n; ++i) p[i] = full[i];
}
#if TG_VECTOR_BYTES == 64
TG_INLINE F32 load_partial(const float* p, int n) {
  return (F32)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
TG_INLINE F64 load_partial(const double* p, int n) {
  return (F64)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
TG_INLINE void store_partial(float* p, F32 v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
}
TG_INLINE void store_partial(double* p, F64 v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1), (__m512d)v);
}
#elif TG_VECTOR_BYTES == 32
TG_INLINE __m256i partial_mask32(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
TG_INLINE __m256i partial_mask64(int n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
TG_INLINE F32 load_partial(const float* p, int n) {
  return (F32)_mm256_maskload_ps(p, partial_mask32(n));
}
TG_INLINE F64 load_partial(const double* p, int n) {
  return (F64)_mm256_maskload_pd(p, partial_mask64(n));
}
TG_INLINE void store_partial(float* p, F32 v, int n) {
  _mm256_maskstore_ps(p, partial_mask32(n), (__m256)v);
}
TG_INLINE void store_partial(double* p, F64 v, int n) {
  _mm256_maskstore_pd(p, partial_mask64(n), (__m256d)v);
}
#endif

// ---- one-instruction operations ----

template <class M, class V>
TG_INLINE V select(M mask, V a, V b) {  // mask ? a : b, lane by lane
  return mask ? a : b;
}

// Whether any lane is not 0.
template <class M>
TG_INLINE bool is_any(M mask) {
#if TG_VECTOR_BYTES == 64
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif TG_VECTOR_BYTES == 32
  return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#else
  auto any = mask[0];
  for (int l = 1; l < lanes<M>; ++l) any |= mask[l];
  return any != 0;
#endif
}

// a·b + c, fused if the instruction set supports it.
template <class V>
TG_INLINE V fma(V a, V b, V c) {
#if TG_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<V, F32>) return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif TG_VECTOR_BYTES == 32
  if constexpr (std::is_same_v<V, F32>) return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
  return a * b + c;
}

// max(a, b) is a > b ? a : b, and min(a, b) is a < b ? a : b. If either is NaN, the result is b. GCC
// generates one instruction for that, except with a constant.
template <class V>
TG_INLINE V max(V a, V b) {
#if TG_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<V, F32>) return (V)_mm512_max_ps((__m512)a, (__m512)b);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif TG_VECTOR_BYTES == 32
  if constexpr (std::is_same_v<V, F32>) return (V)_mm256_max_ps((__m256)a, (__m256)b);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm256_max_pd((__m256d)a, (__m256d)b);
#endif
  return a > b ? a : b;
}
template <class V>
TG_INLINE V min(V a, V b) {
#if TG_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<V, F32>) return (V)_mm512_min_ps((__m512)a, (__m512)b);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm512_min_pd((__m512d)a, (__m512d)b);
#elif TG_VECTOR_BYTES == 32
  if constexpr (std::is_same_v<V, F32>) return (V)_mm256_min_ps((__m256)a, (__m256)b);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm256_min_pd((__m256d)a, (__m256d)b);
#endif
  return a < b ? a : b;
}
template <class V>
TG_INLINE V sqrt(V a) {
  V r;
  for (int i = 0; i < lanes<V>; ++i) r[i] = sizeof(r[0]) == 4 ? __builtin_sqrtf(a[i]) : __builtin_sqrt(a[i]);
  return r;
}

TG_INLINE F32 round(F32 a) {  // to nearest even
#if TG_VECTOR_BYTES == 64
  return (F32)_mm512_roundscale_ps((__m512)a, 8);
#elif TG_VECTOR_BYTES == 32
  return (F32)_mm256_round_ps((__m256)a, 8);
#else  // adding 1.5·2^23 leaves no fraction bits; larger magnitudes have none already
  const F32 magic = splat<F32>(0x1.8p23f);
  const I32 small = (I32)((U32)a & 0x7fffffffu) < 0x4b000000;
  return select(small, (a + magic) - magic, a);
#endif
}

// The largest integer that is at most a.
template <class V>
TG_INLINE V floor(V a) {
#if TG_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<V, F32>) return (V)_mm512_roundscale_ps((__m512)a, 9);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm512_roundscale_pd((__m512d)a, 9);
#elif TG_VECTOR_BYTES == 32
  if constexpr (std::is_same_v<V, F32>) return (V)_mm256_floor_ps((__m256)a);
  if constexpr (std::is_same_v<V, F64>) return (V)_mm256_floor_pd((__m256d)a);
#endif
  for (int i = 0; i < lanes<V>; ++i) a[i] = std::floor(a[i]);
  return a;
}

// 1/a for a normal number with a normal reciprocal, with an error of at most 1.5 ulp.
TG_INLINE F32 reciprocal(F32 a) {
#if TG_VECTOR_BYTES == 64  // a Newton step from 14 bits costs an eighth of a division
  const F32 r = (F32)_mm512_rcp14_ps((__m512)a);
  return fma(r, fma(-a, r, splat<F32>(1.f)), r);
#else
  return 1.f / a;
#endif
}

TG_INLINE F32 abs(F32 a) {
  return (F32)((U32)a & 0x7fffffffu);
}
TG_INLINE F64 abs(F64 a) {
  return (F64)((I64)a & INT64_MAX);
}
TG_INLINE F32 copysign(F32 magnitude, F32 sign) {
  return (F32)(((U32)magnitude & 0x7fffffffu) | ((U32)sign & 0x80000000u));
}
TG_INLINE F64 copysign(F64 magnitude, F64 sign) {
  return (F64)(((I64)magnitude & INT64_MAX) | ((I64)sign & INT64_MIN));
}

TG_INLINE I32 to_int(F32 a) {
  return __builtin_convertvector(a, I32);
}  // toward zero; |a| < 2^31
TG_INLINE F32 to_float(I32 a) {
  return __builtin_convertvector(a, F32);
}

// ---- f64 and the two halves of an f32 vector ----

typedef float HalfF32 __attribute__((vector_size(TG_VECTOR_BYTES / 2)));
typedef std::int32_t HalfI32 __attribute__((vector_size(TG_VECTOR_BYTES / 2)));

template <int... i>
TG_INLINE F32 join(HalfF32 low, HalfF32 high, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(low, high, i...);
}
TG_INLINE F32 join(HalfF32 low, HalfF32 high) {
  return join(low, high, std::make_integer_sequence<int, lanes<F32>>());
}
template <int first, int... i>
TG_INLINE F64 widened(F32 v, std::integer_sequence<int, i...>) {
  return __builtin_convertvector(__builtin_shufflevector(v, v, (first + i)...), F64);
}
TG_INLINE F64 low_half(F32 v) {
  return widened<0>(v, std::make_integer_sequence<int, lanes<F64>>());
}
TG_INLINE F64 high_half(F32 v) {
  return widened<lanes<F64>>(v, std::make_integer_sequence<int, lanes<F64>>());
}
TG_INLINE HalfF32 nearest_float(F64 v) {
  return __builtin_convertvector(v, HalfF32);
}
// odd_float() of core/base/dtype.h for two vectors. Storing the result in a 16-bit type is then equivalent to
// a single rounding.
#if TG_VECTOR_BYTES == 64
TG_INLINE HalfF32 odd_float(F64 v) {
  const __m256 cut = _mm512_cvt_roundpd_ps((__m512d)v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(cut), (__m512d)v, _CMP_NEQ_OQ);
  return (HalfF32)_mm256_mask_or_epi32((__m256i)cut, inexact, (__m256i)cut, _mm256_set1_epi32(1));
}
TG_INLINE F32 odd_floats(F64 low, F64 high) {
  return join(odd_float(low), odd_float(high));
}
#else
TG_INLINE HalfF32 odd_float(F64 v) {
  const HalfF32 nearest = nearest_float(v);
  const F64 back = __builtin_convertvector(nearest, F64);
  const I64 beyond = abs(back) > abs(v), inexact = (back < v) | (back > v);  // -1 if so
  const HalfI32 towards_zero = (HalfI32)nearest + __builtin_convertvector(beyond, HalfI32);
  return (HalfF32)(towards_zero | (__builtin_convertvector(inexact, HalfI32) & 1));
}
TG_INLINE F64 odd_in_24_bits(F64 v) {  // NaN stays NaN
  constexpr std::int64_t beyond = (1 << 29) - 1;
  const I64 bits = (I64)v;
  return (F64)((bits | ((bits & beyond) + beyond)) & ~beyond);
}
// Numbers of 24 bits are exact in f32, except in its subnormal range.
TG_INLINE F32 odd_floats(F64 low, F64 high) {
  const F32 fast = join(nearest_float(odd_in_24_bits(low)), nearest_float(odd_in_24_bits(high)));
  const I32 is_subnormal = ((U32)fast & 0x7fffffffu) - 1 < 0x7fffffu;
  if (__builtin_expect(is_any(is_subnormal), 0)) return join(odd_float(low), odd_float(high));
  return fast;
}
#endif
// Converts integers to f64 so that odd_float() of the result equals odd_float() of the integer.
TG_INLINE F64 to_double(I64 x) {
  const I64 beyond = x & 2047, size = x >> 53, kept = (x & ~std::int64_t{2047}) | 2048;
  x = select((size != 0) & (size != -1) & (beyond != 0), kept, x);
#if TG_VECTOR_BYTES == 64
  return __builtin_convertvector(x, F64);
#else  // the halves of x as the low bits of numbers near 2^84 and 2^52
  const U64 low = ((U64)x & 0xffffffffu) | 0x4330000000000000u, high = ((U64)x >> 32) ^ 0x4530000080000000u;
  return ((F64)high - splat<F64>(0x1.00000801p84)) + (F64)low;
#endif
}
TG_INLINE F32 odd_floats(I64 low, I64 high) {
  constexpr std::uint64_t exact = 1 << 24;  // f32 represents all integers up to this one
  if (__builtin_expect(!is_any((((U64)low + exact) | ((U64)high + exact)) & ~(2 * exact - 1)), 1))
    return join(__builtin_convertvector(__builtin_convertvector(low, HalfI32), HalfF32),
                __builtin_convertvector(__builtin_convertvector(high, HalfI32), HalfF32));
  return odd_floats(to_double(low), to_double(high));
}

// Rounds f64 numbers to a 16-bit type, once, to nearest even.
template <class Half>
TG_INLINE F64 rounded(F64 x) {
  constexpr bool is_bf16 = sizeof(Half) == 2 && __is_same(Half, bfloat16);
  constexpr int surplus = is_bf16 ? 45 : 42;               // bits of f64's 52
  constexpr double least = is_bf16 ? 0x1p-126 : 0x1p-14;   // normal number
  constexpr double last_bit = is_bf16 ? 0x1p-81 : 0x1p28;  // has the last bit of the subnormals
  constexpr double above = is_bf16 ? 0x1p128 : 0x1p16;
  const F64 size = select(x == x, abs(x), F64{});  // 0 for NaN, to avoid overflow
  const I64 bits = (I64)size, up = bits + ((i64{1} << (surplus - 1)) - 1) + ((bits >> surplus) & 1);
  const F64 normal = (F64)(up & ~((i64{1} << surplus) - 1));
  F64 y = select(size < splat<F64>(least), (size + splat<F64>(last_bit)) - splat<F64>(last_bit), normal);
  y = select(y >= splat<F64>(above), splat<F64>(__builtin_inf()), y);
  return select(x == x, copysign(y, x), x);
}
// Horizontal sums and maxima, always in the same order of lanes: halves are combined pairwise.
template <class V, class F, int... i>
TG_INLINE auto fold_halves(V v, F f, std::integer_sequence<int, i...>) {
  constexpr int half = sizeof...(i);
  if constexpr (half == 1)
    return f(v[0], v[1]);
  else
    return fold_halves(f(__builtin_shufflevector(v, v, i...), __builtin_shufflevector(v, v, (i + half)...)),
                       f, std::make_integer_sequence<int, half / 2>());
}
template <class V, class F>
TG_INLINE auto fold_lanes(V v, F f) {
  return fold_halves(v, f, std::make_integer_sequence<int, lanes<V> / 2>());
}
template <class V>
TG_INLINE auto reduce_add(V v) {
  return fold_lanes(v, [](auto a, auto b) { return a + b; });
}
template <class V>
TG_INLINE auto reduce_max(V v) {
  return fold_lanes(v, [](auto a, auto b) { return a > b ? a : b; });
}

}  // namespace tg::cpu::TG_ISA
