// Tests kernels that no op launches in the emulator: memory fills, copies of pieces, and sums over ranks.
// Each test covers at least three blocks and several items per block. The last item is partial. Also tests
// which steps are joined into a list.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <tilegrad/tilegrad.h>
#include "backends/cuda/collectives/exchange.h"
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/kernels/runtime.h"
#include "ops/norm.h"

namespace tg::cuda {
namespace {

using Bytes = std::vector<unsigned char>;

// The emulator's device memory is host memory, aligned to 16 bytes.
std::byte* at(Bytes& bytes) {
  return reinterpret_cast<std::byte*>(bytes.data());
}
Bytes numbered(std::size_t n, unsigned seed) {
  Bytes bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<unsigned char>((i * 31 + i / 251 + seed) % 253);
  return bytes;
}

Bytes filled(const Bytes& before, SetMemory m, unsigned blocks, std::size_t offset) {
  Bytes memory = before;
  m.to = memory.data() + offset;
  void* arguments[] = {&m};
  using Kernel = void (*)(SetMemory);
  EXPECT_EQ(cudaLaunchKernel(reinterpret_cast<Kernel>(set_memory_kernel()), dim3(blocks),
                             dim3(SetMemory::threads), arguments),
            cudaSuccess);
  return memory;
}

TEST(SetMemory, FillsRowsOfAnyPitchAndElements) {
  const Bytes before = numbered(70000, 1);
  for (const unsigned element : {1u, 2u, 4u})
    for (const auto& [width, rows, pitch, offset] : {std::array<std::size_t, 4>{3 * 4096 + 16, 1, 0, 0},
                                                     {3 * 4096 + 20, 1, 0, 0},
                                                     {4096, 1, 0, 4},
                                                     {2052, 7, 3000, 8},
                                                     {4, 1, 0, 0}}) {
      SetMemory m{nullptr, 0x89abcdef, element, width, rows, pitch};
      Bytes expected = before;
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t i = 0; i < width; ++i)
          expected[offset + r * pitch + i] = static_cast<unsigned char>(m.value >> i % element * 8);
      for (const unsigned blocks : {m.blocks(), 1u, 3u})
        EXPECT_TRUE(filled(before, m, blocks, offset) == expected)
            << rows << " rows of " << width << ", element " << element << ", " << blocks << " blocks";
    }
}

Gpu gpu(int processors) {
  Gpu g;
  g.processors = processors;
  return g;
}

// Chunks have 64 KiB. Pieces have one, two or four chunks. One multiprocessor runs eight blocks. Both the
// source and the target are aligned to 16 bytes, or only one of them, or neither.
TEST(CopyList, CopiesPiecesOfSeveralChunks) {
  constexpr std::size_t chunk = 65536;
  const std::size_t sizes[] = {3 * chunk + 5, 1, 0, chunk, 2 * chunk + 16, 40, 7 * chunk + 1000};
  for (const auto& [shift_from, shift_to] :
       {std::array<std::size_t, 2>{0, 0}, {3, 3}, {1, 1}, {1, 0}, {0, 8}})
    for (const int processors : {132, 1}) {
      std::size_t all = 0;
      for (const std::size_t n : sizes) all += (n + 31) / 16 * 16;
      Bytes from = numbered(all, 5), to = numbered(all, 9), expected = to;
      std::vector<PieceCopy> pieces;
      std::size_t place = 0;
      for (const std::size_t n : sizes) {
        // Every second piece is in the workspace.
        const bool is_workspace = pieces.size() % 2 == 1;
        pieces.push_back(
            {{is_workspace ? nullptr : at(from), place + shift_from}, {at(to), place + shift_to}, n});
        std::memcpy(expected.data() + place + shift_to, from.data() + place + shift_from, n);
        place += (n + 31) / 16 * 16;
      }
      const auto plan = plan_copy_list(pieces);
      const Gpu g = gpu(processors);
      launch_copy_list(Stream{nullptr, g, at(from), {}}, *plan);
      EXPECT_TRUE(to == expected) << "shifts " << shift_from << " and " << shift_to << ", " << processors
                                  << " multiprocessors";
    }
}

// Sums of integers are exact in any order. The tests of ranks check the order of additions in the tree.
// Chunks have 4,096 elements. The rank's own operand starts `shift_own` elements after a multiple of 16
// bytes. The sums start `shift_out` elements after a multiple of 16 bytes.
void expect_sums_of_lists(const std::vector<std::int64_t>& counts, int ranks, std::size_t shift_own,
                          std::size_t shift_out) {
  for (const int processors : {132, 1}) {
    const int rank = ranks / 2;
    std::vector<float> own, out, received;
    std::vector<RankSum> sums;
    std::int64_t all = 0;
    for (const std::int64_t n : counts) all += (n + 3) / 4 * 4;
    const auto whole = static_cast<std::size_t>(all);
    own.resize(whole + shift_own), out.assign(whole + shift_out, -1);
    received.resize(whole * static_cast<std::size_t>(ranks - 1));
    const auto number = [](int of_rank, std::int64_t i) {
      return static_cast<float>((i * 7 + i / 1000 + 13 * of_rank) % 101);
    };
    std::int64_t place = 0;
    for (const std::int64_t n : counts) {
      const auto start = static_cast<std::size_t>(place);
      sums.push_back({reinterpret_cast<const std::byte*>(own.data() + shift_own + start),
                      reinterpret_cast<std::byte*>(out.data() + shift_out + start), start * sizeof(float),
                      whole * sizeof(float), n, DType::f32, DType::f32});
      place += (n + 3) / 4 * 4;
    }
    for (std::int64_t i = 0; i < all; ++i)
      for (int r = 0; r < ranks; ++r) {
        const auto other = static_cast<std::size_t>(r < rank ? r : r - 1);
        (r == rank ? own : received)[(r == rank ? shift_own : other * whole) + static_cast<std::size_t>(i)] =
            number(r, i);
      }
    const auto plan = plan_ordered_sum(sums);
    const Gpu g = gpu(processors);
    launch_ordered_sum(Stream{nullptr, g, reinterpret_cast<std::byte*>(received.data()), {}}, *plan, rank,
                       ranks);
    place = 0;
    for (const std::int64_t n : counts) {
      for (std::int64_t i = place; i < place + (n + 3) / 4 * 4; ++i) {
        float expected = 0;
        for (int r = 0; r < ranks; ++r) expected += number(r, i);
        if (i >= place + n) expected = -1;  // this memory must not be written
        ASSERT_EQ(out[shift_out + static_cast<std::size_t>(i)], expected)
            << "element " << i - place << " of " << n << ", " << ranks << " ranks, shifts " << shift_own
            << " and " << shift_out;
      }
      place += (n + 3) / 4 * 4;
    }
  }
}

TEST(OrderedSum, AddsListsOfSeveralChunks) {
  for (const int ranks : {1, 2, 3, 8})
    expect_sums_of_lists({3 * 4096 + 5, 1, 0, 4096, 9 * 4096 + 12}, ranks, 0, 0);
}

TEST(OrderedSum, AddsListsOfAnyAlignment) {
  expect_sums_of_lists({4096 + 5, 1, 0, 12}, 3, 1, 0);
  expect_sums_of_lists({4096 + 5, 1, 0, 12}, 3, 0, 1);
  expect_sums_of_lists({4096 + 5, 1, 0, 12}, 3, 2, 2);
}

// The kernel of a norm's gradient may also compute the next sum. This sum may overwrite an operand that has
// the same rows, because each row is read before it is written. Otherwise, the sum must not overlap any
// operand.
TEST(NormGradient, ComputesTheFollowingSumUnlessItOverwritesLaterReads) {
  alignas(64) static std::byte memory[8192];
  constexpr std::int64_t rows = 4, n = 16;
  const auto matrix = [&](int at) { return Arg{f32, row_major({rows, n}), memory + at}; };
  enum { x = 0, z = 512, z_x = 1024, other = 1536, scale = 2048, apart = 4096 };
  const Gpu g = gpu(132);
  const Attrs attrs = NormAttrs{1e-5, false, false};
  const auto takes = [&](int total, bool writes_z_x, int of_other = other) {
    const std::vector<Arg> in{matrix(x), matrix(z), {f32, row_major({rows}), memory + scale}},
        out{matrix(z_x)};
    Step sum{};
    sum.in = {matrix(z_x), matrix(of_other)}, sum.out = {matrix(total)};
    return plan_with_sum({in, out, &attrs, g, false, false, false}, sum, writes_z_x) != nullptr;
  };
  for (const bool writes : {false, true}) {
    for (const int total : {int{x}, int{z}, int{other}, int{apart}})
      EXPECT_TRUE(takes(total, writes)) << total;
    for (const int read : {x, z, other})
      for (const int by : {-192, -64, 64, 192}) {
        if (read + by >= 0) {
          EXPECT_FALSE(takes(read + by, writes)) << read << " by " << by;
        }
      }
    EXPECT_FALSE(takes(scale, writes));
    EXPECT_EQ(takes(z_x, writes), !writes);
    EXPECT_FALSE(takes(apart, writes, z_x + 64));
  }
}

TEST(CastList, EndsWithTheSteps) {
  Graph g;
  std::vector<Tensor> casts;
  for (const std::int64_t n : {5, 64, 3, 8})
    casts.push_back(cast(g.input("x" + std::to_string(n), {n}, f32), bf16));
  const Program p = compile(g, casts, {.device = Device::cuda()});
  const std::span<const Step> steps = p.steps();
  ASSERT_EQ(steps.size(), 4u);
  for (std::size_t first = 0; first <= steps.size(); ++first)
    for (std::size_t count = 0; first + count <= steps.size(); ++count)
      EXPECT_EQ(casts_together(steps.subspan(first, count)), count) << "from step " << first;
}

}  // namespace
}  // namespace tg::cuda
