// Chains with an input that is transposed relative to the outputs, such as contiguous() of a transposed
// tensor. If it were read along the outputs' innermost axis, each element would cost a whole sector of
// memory. Instead a block loads a square tile over that axis and the one along which the input is contiguous,
// and transposes it in shared memory.
#pragma once

#include <optional>

#include "backends/cuda/jit/chain_source.h"

namespace tg::cuda {

struct Tiles {
  std::size_t axis;          // the axis of the space along which transposed inputs are contiguous
  std::vector<bool> across;  // by input: whether it is transposed
  int vector, side;          // elements
  std::int64_t blocks;
};

// Nothing if no input is transposed, or if an axis is far shorter than the side of a tile.
std::optional<Tiles> tiles_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Source of a kernel chain(outputs…, fault, inputs…) for tiles.blocks blocks.
std::string tile_source(const FusedAttrs& f, const Space& s, const Tiles& tiles, std::span<const Arg> in,
                        std::span<const Arg> out, bool narrow_index);

}  // namespace tg::cuda
