// Sizes of the chunks into which code divides its work.
#pragma once

namespace tg {

// True in builds with TILEGRAD_SMALL_PIECES. There, even the small tensors of tests have many chunks and a
// partial last chunk.
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
