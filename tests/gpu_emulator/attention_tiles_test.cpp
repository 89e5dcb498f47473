// Tests the tiles in the bench tool's traffic model (tools/bench/attention_traffic.cpp). They must equal the
// tiles of the kernels that run.
#include <gtest/gtest.h>

#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/shapes_sm90.h"
#include "tools/bench/attention_traffic.h"

namespace tg::cuda::attention {
namespace {

using bench::AttentionCell;
using bench::Tile;

struct NamedGpu {
  const char* name;
  Gpu gpu;
};
const NamedGpu gpus[] = {{"NVIDIA H200", {0, 132, 90, 227 << 10, true}},
                         {"NVIDIA A100-SXM4-80GB", {0, 108, 80, 163 << 10}}};

std::vector<AttentionCell> cells() {
  std::vector<AttentionCell> list;
  for (const char* suite : {"gpu", "gpu-nondeterministic", "masks", "few-queries"})
    for (const AttentionCell& c : bench::attention_suite(suite)) list.push_back(c);
  for (std::int64_t length : {40, 100, 512, 2048})
    for (std::int64_t size : {8, 32, 64, 72, 96, 104, 128, 136, 192, 200, 256, 576})
      for (std::int64_t values : {size, std::min<std::int64_t>(size, 128), std::int64_t{32}})
        list.push_back(
            {.L = length, .T = length, .d = size, .dv = std::min<std::int64_t>(values, 512), .causal = true});
  return list;
}

AttentionCall call_of(const AttentionCell& c, DType type) {
  AttentionCall x;
  x.type = type;
  x.B = c.B, x.H = static_cast<int>(c.H), x.Hk = static_cast<int>(c.Hk);
  x.L = static_cast<int>(c.L), x.T = static_cast<int>(c.T);
  x.d = static_cast<int>(c.d), x.dv = static_cast<int>(c.dv);
  x.causal = c.causal, x.nondeterministic = c.nondeterministic;
  const auto rows = [](std::int64_t heads, std::int64_t n, std::int64_t size) {
    return AttentionCall::TensorView{nullptr, heads * n * size, n * size, size};
  };
  x.q = x.z_q = rows(c.H, c.L, c.d), x.k = x.z_k = rows(c.Hk, c.T, c.d), x.v = x.z_v = rows(c.Hk, c.T, c.dv);
  x.o = x.z_o = rows(c.H, c.L, c.dv);
  return x;
}

template <class TileShape>
Tile tile_of_shape(int stages) {
  return {TileShape::queries, TileShape::keys, stages};
}

Tile kernel_tile_on_hopper(const Choice& choice, bool backward) {
  if (choice.split && backward)  // f32 split into two f16
    return with_constant<64, 128>(choice.work.width, [](auto d) {
      using TileShape = backward_sm90::TileShape<d, d, false, two_f16>;
      return tile_of_shape<TileShape>(TileShape::stages);
    });
  if (choice.split)
    return forward_sm90::with_f32_shape(
        choice.x, [](auto shape) { return tile_of_shape<decltype(shape)>(shape.stages); });
  if (backward)
    return with_constant<64, 128, 192, 256>(choice.work.width, [&](auto d) {
      using TileShape = backward_sm90::TileShape<d, values_beside(d), false>;
      using StoringLast = backward_sm90::TileShape<d, values_beside(d), d <= 128>;
      return last_stores(choice.x) ? tile_of_shape<StoringLast>(TileShape::stages)
                                   : tile_of_shape<TileShape>(TileShape::stages);
    });
  if (choice.x.d > 256 || choice.x.dv > 256) {
    using TileShape = forward_576_sm90::TileShape<false>;
    return tile_of_shape<TileShape>(TileShape::k_stages);
  }
  return forward_sm90::with_shape(choice.x,
                                  [](auto shape) { return tile_of_shape<decltype(shape)>(shape.stages); });
}

// The number of stages of these kernels depends on the GPU's shared memory. The model assumes two.
Tile portable_kernel_tile(const Choice& choice, bool backward) {
  if (backward)
    return one_pass::with_shape(choice.x, [](auto d, auto dv, auto options) {
      return tile_of_shape<one_pass::TileShape<one_pass::by_key, d, dv, options>>(2);
    });
  if (choice.family() == KernelFamily::f32)
    return with_shape<32, 64, 128>(choice.x, [](auto size, auto, auto options) {
      return tile_of_shape<forward::TileShape<two_f16, size, size, options>>(2);
    });
  return with_shape<32, 64, 96, 128, 192, 256, 576>(choice.x, [](auto d, auto dv, auto options) {
    using TileShape = forward::TileShape<of_16_bits, d, dv, options>;
    return tile_of_shape<TileShape>(TileShape::most_stages);
  });
}

TEST(AttentionTiles, HostDivisionMatchesTheKernels) {
  for (const AttentionCell& c : cells()) {
    const AttentionCall x = call_of(c, bf16);
    const ForwardTile tile = forward_tile(x);
    const auto expect_tile = [&](auto shape) {
      EXPECT_EQ(tile.queries, shape.queries) << c.words();
      EXPECT_EQ(tile.keys, shape.keys) << c.words();
      EXPECT_EQ(tile.blocks, shape.blocks) << c.words();
    };
    if (x.d > 256 || x.dv > 256)
      expect_tile(forward_576_sm90::TileShape<true>());
    else
      forward_sm90::with_shape(x, expect_tile);
  }
}

std::string describe(const Tile& t) {
  return std::to_string(t.queries) + "×" + std::to_string(t.keys) + ", " + std::to_string(t.stages) +
         " stages";
}

TEST(AttentionTiles, TrafficModelMatchesTheKernels) {
  for (const auto& [name, gpu] : gpus)
    for (const AttentionCell& c : cells())
      for (bool backward : {false, true})
        for (DType type : {bf16, f32}) {
          const Choice choice(call_of(c, type), backward, gpu);
          if (choice.family() == KernelFamily::plain || (choice.family() == KernelFamily::f32 && backward))
            continue;
          // The model uses the tiles for prompts. A block of short_heads has all rows of a head.
          if (choice.family() == KernelFamily::decoding || choice.family() == KernelFamily::short_heads)
            continue;
          const Tile kernel = choice.family() == KernelFamily::hopper
                                  ? kernel_tile_on_hopper(choice, backward)
                                  : portable_kernel_tile(choice, backward);
          const Tile model = bench::tile_of(c, backward, static_cast<std::int64_t>(size_of(type)), name);
          EXPECT_EQ(describe(model), describe(kernel))
              << name << " " << c.words() << (backward ? ", backward " : ", forward ") << choice.describe();
        }
}

}  // namespace
}  // namespace tg::cuda::attention
