// Sizes of the chunks of work.
#pragma once

namespace tg {

// True in builds with TILEGRAD_SMALL_PIECES. In these builds, even small tensors of tests have many chunks
// and an incomplete last chunk.
#ifdef TILEGRAD_SMALL_PIECES
inline constexpr bool has_small_pieces = true;
#else
inline constexpr bool has_small_pieces = false;
#endif

// The chunk size. It is `small` in a build with small chunks, otherwise `fast`. Except for the order of
// additions, results do not depend on it.
template <class T>
consteval T piece_size(T fast, T small) {
  return has_small_pieces ? small : fast;
}

}  // namespace tg
