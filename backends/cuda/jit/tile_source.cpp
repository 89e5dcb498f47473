#include "backends/cuda/jit/fused_source.h"

#include <algorithm>

namespace tg::cuda {

namespace {

constexpr std::int64_t shortest = 16;           // shorter axes are not tiled
constexpr std::int64_t most_shared = 48 << 10;  // available to a block without opt-in
constexpr std::int64_t widest_vector = 4;       // bytes; 32 such vectors have a bank each

// Returns the vector size of a tile kernel. Each load, each store and each cell of the transposed tile has
// this number of elements.
int tile_vector(const Space& s, const Tiles& tiles, std::span<const Arg> in, std::span<const Arg> out) {
  const std::size_t last = s.size.size() - 1;
  std::int64_t widest = 1;
  for (const auto& operands : {in, out})
    for (const Arg& a : operands) widest = std::max(widest, static_cast<std::int64_t>(size_of(a.dtype)));
  for (std::int64_t v = widest_vector / widest; v > 1; v /= 2) {
    bool fits = s.size[last] % v == 0 && s.size[tiles.axis] % v == 0;
    for (std::size_t o = 0; fits && o < out.size() + in.size(); ++o) {
      const bool is_input = o >= out.size();
      const Arg& a = is_input ? in[o - out.size()] : out[o];
      if (is_input && s.stride[last][o] == 0) continue;  // one element for a whole vector
      const std::size_t along = is_input && tiles.across[o - out.size()] ? tiles.axis : last;
      fits = reinterpret_cast<std::uintptr_t>(a.data) % (size_of(a.dtype) * static_cast<std::size_t>(v)) == 0;
      for (std::size_t axis = 0; fits && axis <= last; ++axis)
        fits = axis == along ? s.stride[axis][o] == 1 : s.stride[axis][o] % v == 0;
    }
    if (fits) return static_cast<int>(v);
  }
  return 1;
}

std::int64_t shared_bytes(const Tiles& tiles, int side, std::span<const Arg> in) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < in.size(); ++i)
    if (tiles.across[i])
      bytes += std::int64_t{side} * (side + 1) * static_cast<std::int64_t>(size_of(in[i].dtype));
  return bytes;
}

}  // namespace

std::optional<Tiles> tiles_of(const Space& s, std::span<const Arg> in, std::span<const Arg> out) {
  const std::size_t last = s.size.size() - 1, none = last;
  Tiles tiles{none, std::vector<bool>(in.size(), false), 1, 64, 1};
  if (s.size[last] < shortest) return std::nullopt;
  for (std::size_t o = 0; o < out.size(); ++o)
    if (s.stride[last][o] != 1) return std::nullopt;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::size_t o = out.size() + i;
    if (s.stride[last][o] <= 1) continue;
    for (std::size_t axis = 0; axis < last; ++axis) {
      if (s.stride[axis][o] != 1 || s.size[axis] < shortest) continue;
      if (tiles.axis == none) tiles.axis = axis;  // the first such input selects the axis
      tiles.across[i] = tiles.axis == axis;
    }
  }
  if (tiles.axis == none) return std::nullopt;
  tiles.vector = tile_vector(s, tiles, in, out);
  // The side is 64 elements. If rows would have few bytes, it is 128. If many tiles share the memory, it is
  // 32.
  const bool is_long = std::min(s.size[last], s.size[tiles.axis]) > 64;
  tiles.side = tiles.vector > 1 && is_long ? 128 : 64;
  while (shared_bytes(tiles, tiles.side, in) > most_shared) tiles.side /= 2;
  if (tiles.side < (tiles.vector == 1 ? 32 : 64)) return std::nullopt;
  for (std::size_t axis = 0; axis <= last; ++axis)
    tiles.blocks *=
        axis == last || axis == tiles.axis ? (s.size[axis] + tiles.side - 1) / tiles.side : s.size[axis];
  if (tiles.blocks >= (1ll << 31)) return std::nullopt;
  return tiles;
}

// In the source, l counts along the innermost axis and t along the tile's other axis, from the tile's corner
// l0, t0. A cell of a transposed tile is `vector` adjacent elements along l, so loads and stores move whole
// words. Rows are padded by one cell, so that the cells of a column are in different banks.
std::string tile_source(const FusedAttrs& f, const Space& s, const Tiles& tiles, std::span<const Arg> in,
                        std::span<const Arg> out, bool narrow_index) {
  const std::size_t last = s.size.size() - 1;
  const int cells = tiles.side / tiles.vector;    // per row
  const int loads = cells * cells / fused_block;  // loads per thread, of `vector` vectors each
  const int stores = cells * tiles.side / fused_block, together = std::min(stores, 4);
  const std::string v = digits(tiles.vector), side = digits(tiles.side), c = digits(cells);
  const auto wide = [](std::int64_t x) { return "(I)" + digits(x); };
  const auto each = [](int times) {
    return "#pragma unroll\n  for (int n = 0; n < " + digits(times) + "; ++n) {\n";
  };
  const std::string inside = "t0 + t < " + wide(s.size[tiles.axis]) + " && l0 + l < " + wide(s.size[last]);

  std::string code = fused_begin(f, in, out, tiles.vector, narrow_index) + "  I rest = blockIdx.x;\n";
  const auto corner = [&](const char* name, std::size_t axis) {
    const std::string n = wide((s.size[axis] + tiles.side - 1) / tiles.side);
    code += std::string("  const I ") + name + " = rest % " + n + " * " + side + "; rest /= " + n + ";\n";
  };
  corner("l0", last);
  corner("t0", tiles.axis);
  for (std::size_t a = last; a-- > 0;) {
    if (a == tiles.axis) continue;
    const std::string n = wide(s.size[a]);
    code += "  const I " + numbered("x", a) + " = rest % " + n + "; rest /= " + n + ";\n";
  }
  const auto start = [&](std::size_t o) {  // offset of the tile in operand o
    std::string e = "l0 * " + wide(s.stride[last][o]) + " + t0 * " + wide(s.stride[tiles.axis][o]);
    for (std::size_t a = 0; a < last; ++a)
      if (a != tiles.axis && s.stride[a][o] != 0)
        e += " + " + numbered("x", a) + " * " + wide(s.stride[a][o]);
    return e;
  };
  const auto at = [&](std::size_t o) {
    return "l * " + wide(s.stride[last][o]) + " + t * " + wide(s.stride[tiles.axis][o]);
  };

  const auto is_one = [&](std::size_t i) { return tiles.vector == 1 || s.stride[last][out.size() + i] == 0; };
  std::string ask, transpose, straight, read, write;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::size_t o = out.size() + i;
    const std::string type = storage(in[i].dtype), vec = "Vec<" + type + ">", from = numbered("from", i),
                      held = numbered("v", i), tile = numbered("tile", i);
    code += "  const " + type + "* " + from + " = " + numbered("in", i) + " + (" + start(o) + ");\n";
    if (tiles.across[i]) {
      code += "  __shared__ " + vec + " " + tile + "[" + c + "][" + digits(tiles.side + 1) + "];\n  " + vec +
              " " + held + "[" + digits(loads) + "][" + v + "];\n";
      ask += "    for (int r = 0; r < " + v + "; ++r) " + held + "[n][r] = *(const " + vec + "*)(" + from +
             " + ((l + r) * " + wide(s.stride[last][o]) + " + t));\n";
      transpose += "    for (int e = 0; e < " + v + "; ++e) {\n      " + vec +
                   " cell;\n      for (int r = 0; r < " + v + "; ++r) cell.at[r] = " + held +
                   "[n][r].at[e];\n      " + tile + "[l / " + v + "][t + e] = cell;\n    }\n";
    } else {
      straight += "  " + (is_one(i) ? type : vec) + " " + held + "[" + digits(together) + "];\n";
      read += "    " + held + "[n] = " +
              (is_one(i) ? from + "[" + at(o) + "];\n"
                         : "*(const " + vec + "*)(" + from + " + (" + at(o) + "));\n");
    }
  }
  for (std::size_t o = 0; o < out.size(); ++o) {
    const std::string type = storage(out[o].dtype), to = numbered("to", o);
    code += "  " + type + "* " + to + " = " + numbered("out", o) + " + (" + start(o) + ");\n";
    write += "    *(Vec<" + type + ">*)(" + to + " + (" + at(o) + ")) = " + numbered("result", o) + ";\n";
  }
  const std::string rows = digits(fused_block / cells),  // number of rows that a block processes at a time
      check = "    if (!(" + inside + ")) continue;\n",
                    along_t = "    const I t = threadIdx.x % " + c + " * " + v + ", l = (threadIdx.x / " + c +
                              " + n * " + rows + ") * " + v + ";\n" + check,
                    along_l = "    const I l = threadIdx.x % " + c + " * " + v + ", t = threadIdx.x / " + c +
                              " + (first + n) * " + rows + ";\n" + check;
  const auto element = [&](std::size_t i) {
    if (tiles.across[i]) return numbered("tile", i) + "[l / " + v + "][t].at[e]";
    return numbered("v", i) + "[n]" + (is_one(i) ? "" : ".at[e]");
  };
  code += each(loads) + along_t + ask + "  }\n  if (stopped) return;\n" + each(loads) + along_t + transpose +
          "  }\n  __syncthreads();\n  for (int first = 0; first < " + digits(stores) +
          "; first += " + digits(together) + ") {\n" + straight;
  if (!read.empty()) code += each(together) + along_l + read + "  }\n";
  return code + each(together) + along_l + fused_vector(f, in, out, tiles.vector, element) + write +
         "  }\n  }\n}\n";
}

}  // namespace tg::cuda
