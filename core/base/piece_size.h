// Sizes at which code divides its work.
#pragma once

namespace tg {

// Whether this is a build with TILEGRAD_SMALL_PIECES, in which tests with small tensors have many pieces and
// a ragged last one.
#ifdef TILEGRAD_SMALL_PIECES
inline constexpr bool has_small_pieces = true;
#else
inline constexpr bool has_small_pieces = false;
#endif

// The size of a piece: `fast`, which is chosen for speed, or `small` in a build with small pieces. Results do
// not depend on it, up to the order of additions.
template <class T>
consteval T piece_size(T fast, T small) {
  return has_small_pieces ? small : fast;
}

}  // namespace tg
