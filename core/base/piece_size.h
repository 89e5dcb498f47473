// Sizes of the chunks into which code divides its work.
#pragma once

namespace tg {

// Whether this is a build with TILEGRAD_SMALL_PIECES, in which tests with small tensors have many chunks and
// a ragged last one.
#ifdef TILEGRAD_SMALL_PIECES
inline constexpr bool has_small_pieces = true;
#else
inline constexpr bool has_small_pieces = false;
#endif

// The chunk size: `fast`, which is chosen for speed, or `small` in a build with small chunks. Results do not
// depend on it, except for the order of additions.
template <class T>
consteval T piece_size(T fast, T small) {
  return has_small_pieces ? small : fast;
}

}  // namespace tg
