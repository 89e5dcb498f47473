// Records the decisions of GEMMs for calls of any size and memory layout. Covers the kernel of a call, its
// tiles and its workspace. The test needs neither a GPU nor memory for the operands. It compares the records
// with product_plans.txt (golden_records.h).
#include <gtest/gtest.h>

#include "backends/cuda/gemm/matmul.h"
#include "tests/gpu_emulator/draw.h"
#include "tests/gpu_emulator/golden_records.h"

namespace tg::cuda {
namespace {

using testing::Draw;

constexpr std::int64_t far = std::int64_t{1} << 31;

struct NamedGpu {
  const char* name;
  Gpu gpu;
};
constexpr NamedGpu gpus[] = {{"sm_80", {0, 108, 80, 163 << 10}},
                             {"sm_90a", {0, 132, 90, 227 << 10, true}},
                             {"a small sm_90a", {0, 5, 90, 227 << 10, true}}};

std::byte* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{4096});

// Makes a matrix whose rows or columns are contiguous. Some matrices are broadcast or strided, have gaps, or
// start at an odd address.
Arg matrix(Draw& d, DType t, std::int64_t rows, std::int64_t columns) {
  Arg x{t, {{rows, columns}, {columns, 1}}, memory};
  if (d.one_in(3)) x.layout.strides = {1, rows};
  std::int64_t& step = x.layout.strides[x.layout.strides[0] == 1 ? 1 : 0];
  switch (d.below(16)) {
    case 0:
      step = d.of<std::int64_t>({0, -step, step - 1, far - 1, far, far + 8});
      break;
    case 1:
      step += d.of({1, 2, 4, 8});
      break;
    case 2:
      x.layout.strides = {2 * columns, 2};
      break;
    case 3:
      x.data += d.of({2, 4, 8});
      break;
    default:
      break;
  }
  return x;
}

// The sizes of these GEMMs are near the limits of kernels.
std::vector<Arg> drawn(Draw& d) {
  const DType t = d.one_in(12) ? DType::f64 : d.of({DType::bf16, DType::bf16, DType::f16, DType::f32});
  const auto extent = [&](std::initializer_list<std::int64_t> near) {
    return std::max<std::int64_t>(0, d.of(near) + d.below(3) - 1);
  };
  std::int64_t m = extent({1, 1, 1, 4, 8, 16, 16, 32, 64, 64, 128, 256, d.size(512), d.one_in(4) ? far : 1,
                           d.size(4096)}),
               n = extent({8, 64, 8 * 132, 16 * 132, 32 * 132, 128 * 132, d.one_in(4) ? far : 8, d.size(300),
                           d.size(40000)}),
               k = extent({1, 512, 1024, 2048, 4096, d.one_in(4) ? far : 64, d.size(300), d.size(20000),
                           d.size(20000)});
  if (d.one_in(4) && n > 0) k = (d.of({1 << 20, 1 << 22}) / n + 7) / 8 * 8;
  if (!d.one_in(4) && n < far - 8) n = (n + 7) / 8 * 8;
  if (!d.one_in(4) && k < far - 8) k = (k + 7) / 8 * 8;
  if (d.one_in(2) && m <= 512) n = 16 * (1 + d.below(1 << d.below(11)));  // numbers of tiles
  std::vector<Arg> args{matrix(d, t, m, k), matrix(d, t, k, n)};
  const bool wide = d.one_in(6) && t != DType::f64;
  args.push_back(d.one_in(4) ? matrix(d, wide ? DType::f32 : t, m, n)
                             : Arg{wide ? DType::f32 : t, {{m, n}, {n, 1}}, memory});
  switch (d.below(5)) {
    case 0:
      args.insert(args.begin() + 2, matrix(d, args[2].dtype, m, n));
      break;
    case 1:
      args.insert(args.begin() + 2, Arg{args[2].dtype, {{n}, {d.of<std::int64_t>({1, 1, 2, 0})}}, memory});
      break;
    case 2:
      args.insert(args.begin() + 2, Arg{args[2].dtype, {{m, n}, {0, 1}}, memory});
      break;
    default:
      break;
  }
  if (d.one_in(12))
    for (Arg& x : args) {
      x.layout.shape.insert(0, d.of({1, 2}));
      x.layout.strides.insert(0, x.layout.shape[1] * x.layout.strides[1]);
    }
  return args;
}

std::string plan_of(const Call& call, const RowsContext& context) {
  std::string s;
  for (const auto takes : {is_grouped_gemm, is_for_ordered_gemm, is_for_rows_gemm, is_faster_by_rows_gemm})
    s += takes(call) ? "1 " : "0 ";
  if (is_for_ordered_gemm(call)) s += plan_ordered_gemm(call)->choice(call);
  if (is_for_rows_gemm(call))
    s += std::to_string(rows_gemm_workspace(call)) + (normalises_row(call, context) ? " norm " : " ") +
         rows_gemm_choice(call, context);
  return s + "\n";
}

TEST(ProductPlans, MatchTheGoldenFile) {
  testing::GoldenRecords records("product_plans", false);
  Draw d(44);
  for (int group = 1; group <= 20; ++group) {
    std::string text[std::size(gpus)];
    for (int n = 0; n < 2500; ++n) {
      const std::vector<Arg> args = drawn(d);
      RowsContext context;
      if (d.one_in(2)) context.function = d.of({Epilogue::gelu, Epilogue::gelu_tanh});
      if (context.function != Epilogue::none && d.one_in(2)) context.result = args.back().data;
      const bool batch_invariant = d.one_in(6);
      const WrittenMemory written;
      for (std::size_t g = 0; g < std::size(gpus); ++g)
        text[g] += plan_of({{args.data(), args.size() - 1},
                            {&args.back(), 1},
                            nullptr,
                            gpus[g].gpu,
                            false,
                            false,
                            batch_invariant,
                            batch_invariant ? nullptr : &written},
                           context);
    }
    for (std::size_t g = 0; g < std::size(gpus); ++g)
      records.add(std::string(gpus[g].name) + ", to call " + std::to_string(2500 * group), text[g]);
  }
  records.expect_recorded();
}

}  // namespace
}  // namespace tg::cuda
