// The tiles that attention's kernels work on, by head size and GPU.
#include "tools/bench/attention_traffic.h"

#include <span>

namespace tg::bench {

namespace {

// What a kernel compiled for q and k of at most `d` numbers and v of at most `dv` works on.
struct KernelTile {
  std::int64_t d, dv;
  Tile tile;
};

constexpr KernelTile hopper_forward[] = {
    {64, 64, {192, 128, 3}}, {192, 128, {128, 128, 2}}, {256, 256, {128, 80, 2}}, {576, 512, {64, 64, 1}}};
constexpr KernelTile hopper_few_keys = {64, 64, {256, 64, 8}};  // forward, T below 2048
constexpr KernelTile hopper_short[] = {{64, 64, {64, 64, 3}}, {128, 128, {64, 64, 2}}};  // forward, L to 64
constexpr KernelTile hopper_backward[] = {
    {64, 64, {128, 128, 2}}, {128, 128, {80, 128, 2}}, {192, 128, {48, 128, 2}}, {256, 256, {64, 64, 2}}};
constexpr KernelTile hopper_backward_few_keys = {128, 128, {64, 128, 2}};  // T to 1024, masked 2048; in order
// Of f32 as two f16 terms.
constexpr KernelTile hopper_forward_f32[] = {{64, 64, {192, 64, 3}}, {128, 128, {128, 64, 2}}},
                     hopper_backward_f32[] = {{64, 64, {64, 128, 2}}, {128, 128, {32, 128, 2}}};
// Kernels for other GPUs have as many stages as shared memory has room for, two in most cases; the forward of
// 256 has one.
constexpr KernelTile forward_16_bits[] = {{64, 64, {128, 64, 2}},   {96, 96, {128, 32, 2}},
                                          {128, 128, {128, 64, 2}}, {192, 128, {128, 32, 2}},
                                          {256, 256, {64, 64, 1}},  {576, 512, {64, 32, 2}}};
constexpr KernelTile forward_f32[] = {{64, 64, {128, 32, 2}}, {128, 128, {64, 16, 2}}};
constexpr KernelTile one_pass[] = {
    {128, 128, {64, 128, 2}}, {256, 256, {64, 64, 2}}, {576, 512, {64, 32, 2}}};

// The first kernel that heads of this size fit; null if there is none.
const KernelTile* find_tile(std::span<const KernelTile> tiles, const AttentionCell& c) {
  for (const KernelTile& kernel : tiles)
    if (c.d <= kernel.d && c.dv <= kernel.dv) return &kernel;
  return nullptr;
}

bool is_hopper(const std::string& gpu) {
  for (const char* name : {"H100", "H200", "H800", "H20", "GH200"})
    if (gpu.find(name) != std::string::npos) return true;
  return false;
}

}  // namespace

std::int64_t Tile::on_chip(const AttentionCell& c, bool backward, std::int64_t size) const {
  if (!backward) return (queries * c.d + stages * keys * (c.d + c.dv)) * size;
  return (keys * (c.d + c.dv) + stages * queries * (c.d + c.dv) + queries * keys) * size;
}

Tile tile_of(const AttentionCell& c, bool backward, std::int64_t size, const std::string& gpu) {
  using Tiles = std::span<const KernelTile>;
  if (gpu.empty()) return backward ? Tile{96, 192} : Tile{64, 128};
  if (is_hopper(gpu) && size == 4)
    if (const KernelTile* kernel =
            find_tile(backward ? Tiles(hopper_backward_f32) : Tiles(hopper_forward_f32), c))
      return kernel->tile;
  if (is_hopper(gpu) && size == 2) {
    const KernelTile* few_queries = backward || c.L > 64 ? nullptr : find_tile(hopper_short, c);
    if (few_queries) return few_queries->tile;
    if (const KernelTile* kernel = find_tile(backward ? Tiles(hopper_backward) : Tiles(hopper_forward), c)) {
      const bool masked = c.causal || c.window >= 0;
      if (backward && kernel == &hopper_backward[1] && !c.free_order && c.T <= (masked ? 2048 : 1024))
        return hopper_backward_few_keys.tile;
      return !backward && kernel == hopper_forward && c.T < 2048 ? hopper_few_keys.tile : kernel->tile;
    }
  }
  const Tiles tiles = backward ? Tiles(one_pass) : size == 2 ? Tiles(forward_16_bits) : Tiles(forward_f32);
  const KernelTile* const kernel = find_tile(tiles, c);
  return kernel ? kernel->tile : tiles.back().tile;
}

}  // namespace tg::bench
