// Sums of squares for norms. Squares in these sums neither overflow nor underflow.
#pragma once

#include <concepts>
#include <limits>

namespace tg {

// Limits of Σ x² for a few numbers of type C that are also summed in C. Outside of these limits, squares may
// have overflowed or underflowed. The numbers are then scaled by SquareSums::factor_for() and summed again in
// f64.
template <class C>
inline constexpr C least_squares = sizeof(C) == 4 ? static_cast<C>(0x1p-90) : static_cast<C>(0x1p-900);
template <class C>
inline constexpr C most_squares = sizeof(C) == 4 ? std::numeric_limits<C>::max() : static_cast<C>(0x1p900);
template <class C>
[[gnu::always_inline]] constexpr bool is_in_range(C squares) {
  return squares >= least_squares<C> && squares <= most_squares<C>;
}

// Σ x² = mid + big·2¹²⁰⁰ + small·2⁻¹²⁰⁰. Numbers of f32 and narrower types only use `mid`.
struct SquareSums {
  double mid = 0, big = 0, small = 0;

  // The factor by which numbers of type C are multiplied before they are squared and summed again.
  template <class C>
  [[gnu::always_inline]] static constexpr double factor_for(C squares) {
    return sizeof(C) == 4 ? 1 : squares < 1 ? 0x1p600 : 0x1p-600;
  }
  [[gnu::always_inline]] constexpr void add(double squares, double factor) {
    if (factor < 1)
      big += squares;
    else if (factor > 1)
      small += squares;
    else
      mid += squares;
  }
  [[gnu::always_inline]] constexpr void add(const SquareSums& other) {
    mid += other.mid, big += other.big, small += other.small;
  }
  [[gnu::always_inline]] constexpr double total() const {
    return mid + big * 0x1p600 * 0x1p600 + small * 0x1p-600 * 0x1p-600;
  }
  // √Σ x². It is a template for the same reason as normal_pair in core/base/random.h.
  template <std::same_as<double> Real = double>
  [[gnu::always_inline]] constexpr Real norm() const {
    if (big > 0 || big != big) return __builtin_sqrt(big + mid * 0x1p-600 * 0x1p-600) * 0x1p600;
    if (mid > 0 || mid != mid) return __builtin_sqrt(mid + small * 0x1p-600 * 0x1p-600);
    return __builtin_sqrt(small) * 0x1p-600;
  }
};

}  // namespace tg
