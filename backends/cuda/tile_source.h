// Chains of which some input lies transposed to the outputs, as contiguous() of a transposed tensor is: read
// along the outputs' innermost axis, each element would cost a whole sector of memory. A block takes a square
// of that axis and the one that these inputs are contiguous along, and turns it in shared memory.
#pragma once

#include <optional>

#include "backends/cuda/chain_source.h"

namespace tg::cuda {

struct Tiles {
  std::size_t axis;          // of the space, that the inputs across are contiguous along
  std::vector<bool> across;  // by input
  int vector, side;          // elements
  std::int64_t blocks;
};

// Nothing where no input lies across, or a side of the squares would be far shorter than a tile.
std::optional<Tiles> tiles_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out);

// Source of a kernel chain(outputs…, fault, inputs…) for that many blocks.
std::string tile_source(const FusedAttrs& f, const Space& s, const Tiles& tiles, std::span<const Arg> in,
                        std::span<const Arg> out, bool narrow_index);

}  // namespace tg::cuda
