// Records the decisions of attention's host code for many calls of any size. Covers kernels, tiles, splits of
// keys, ranges and workspace. The test needs neither a GPU nor memory for the operands. It compares the
// records with attention_plans.txt (golden_records.h).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes.h"
#include "tests/gpu_emulator/draw.h"
#include "tests/gpu_emulator/golden_records.h"

namespace tg::cuda::attention {
namespace {

using testing::Draw;

struct NamedGpu {
  const char* name;
  Gpu gpu;
};
constexpr NamedGpu gpus[] = {{"sm_80", {0, 108, 80, 163 << 10}},
                             {"sm_86", {0, 46, 86, 99 << 10}},
                             {"sm_90", {0, 132, 90, 227 << 10}},
                             {"sm_90a", {0, 132, 90, 227 << 10, true}},
                             {"a small sm_90a", {0, 5, 90, 227 << 10, true}}};

constexpr std::int64_t far = 1 << 30;

AttentionCall drawn(Draw& d) {
  AttentionCall x;
  x.type = d.of({DType::bf16, DType::bf16, DType::f16, DType::f32, DType::f32, DType::f64});
  x.tf32 = d.one_in(2);
  const bool pages = d.one_in(3), latents = d.one_in(5);
  x.Hk = static_cast<int>(latents ? 1 : d.of({1, 1, 2, 8, 66, 1000}));
  x.H = static_cast<int>(x.Hk * d.of({1, 1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 65, 70, 128}));
  x.B = d.of<std::int64_t>({0, 1, 1, 2, 3, 64, 1024, 1025, 70000, d.size(5000), d.size(5000)});
  x.L = static_cast<int>(
      d.of<std::int64_t>({0, 1, 1, 1, 2, 4, 5, 8, d.size(300), d.size(9000), d.size(70000)}));
  x.T = static_cast<int>(
      d.one_in(4) ? x.L : d.of<std::int64_t>({0, 1, 64, 65, d.size(5000), d.size(300000), d.size(far)}));
  x.d = static_cast<int>(latents ? d.of({264, 320, 512, 576})
                                 : d.of({8, 32, 40, 64, 64, 65, 72, 96, 128, 128, 136, 192, 200, 256, 584}));
  x.dv = static_cast<int>(latents       ? d.of({64, 256, 512, 520})
                          : d.one_in(2) ? x.d
                                        : d.of({0, 8, 32, 64, 96, 104, 128, 136, 192, 256, 264}));
  x.scale = 0.1;
  void* const somewhere = reinterpret_cast<void*>(std::uintptr_t{4096});
  const bool projected = d.one_in(3);
  const auto operand = [&](int heads, int rows, int size) {
    AttentionCall::TensorView a{somewhere, std::int64_t{heads} * rows * size, std::int64_t{rows} * size,
                                size};
    if (projected) a.head = size, a.row = std::int64_t{heads} * size;
    switch (d.below(24)) {
      case 0:
        a.batch = 0;
        break;
      case 1:
        a.head = 0;
        break;
      case 2:
        a.row = 0;
        break;
      case 3:
        a.row += 4;
        break;
      case 4:
        a.data = static_cast<std::byte*>(somewhere) + 8;
        break;
      default:
        break;
    }
    return a;
  };
  x.q = x.z_q = operand(x.H, x.L, x.d), x.k = x.z_k = operand(x.Hk, x.T, x.d);
  x.v = x.z_v = operand(x.Hk, x.T, x.dv), x.o = operand(x.H, x.L, x.dv), x.z_o = operand(x.H, x.L, x.dv);
  if (pages) {
    static const std::int32_t table = 0;
    x.table = &table;
    x.page = static_cast<int>(d.of<std::int64_t>({0, 1, 4, 16, 24, 64, 256}));
    x.pages = x.page > 0 ? x.T / x.page : 0;
    x.T = x.page * x.pages;
    x.pool = static_cast<int>(d.of<std::int64_t>({0, 1, 1000, d.size(1 << 20), d.size(far)}));
    for (AttentionCall::TensorView* a : {&x.k, &x.v}) {
      const int size = a == &x.k ? x.d : x.dv;
      a->head = size, a->row = std::int64_t{x.Hk} * size, a->batch = a->row * x.page;
    }
    x.causal = true;
  }
  if (latents && !d.one_in(6)) x.v = x.k;
  if (d.one_in(2)) x.causal = true;
  if (d.one_in(6)) x.window_left = static_cast<int>(d.size(1000));
  if (d.one_in(6)) x.softcap = 2;
  if (d.one_in(12)) x.dropout = 0.1;
  if (d.one_in(12)) x.bias.data = somewhere;
  if (d.one_in(8)) x.lengths = somewhere;
  if (d.one_in(12)) x.cu_q = x.cu_k = static_cast<const std::int32_t*>(somewhere), x.segments = 3;
  x.nondeterministic = d.one_in(4), x.fixed_positions = d.one_in(2);
  using enum AttentionKernels;
  x.kernels = d.one_in(4) ? d.of({plain, tensor_cores, wgmma}) : best;
  return x;
}

class Words {
 public:
  template <class... N>
  Words& operator()(const char* what, N... numbers) {
    text_ += what;
    ((text_ += " " + std::to_string(numbers)), ...);
    text_ += ", ";
    return *this;
  }
  std::string text() const { return text_ + "\n"; }

 private:
  std::string text_;
};

void add_operand(Words& w, const char* name, const AttentionCall::TensorView& a) {
  w(name, a.batch, a.head, a.row);
}

std::string plan_of(const AttentionCall& x, bool backward, const Gpu& gpu, bool batch_invariant) {
  const Choice c(x, backward, gpu, nullptr, batch_invariant);
  Words w;
  w(c.describe().c_str(), static_cast<int>(c.family()));
  w("workspace", c.bytes(), c.work.bytes, c.work.workers, c.work.parts, c.work.width);
  if (c.split) {
    w("split", c.split->terms, c.split->width, c.split->count, c.split->bytes);
    for (int n = 0; n < c.split->count; ++n)
      w("operand", c.split->operand[n].heads, c.split->operand[n].rows, c.split->operand[n].size,
        c.split->operand[n].keys, c.split->operand[n].chunks());
  }
  const AttentionCall to = c.operands();
  add_operand(w, "q", to.q), add_operand(w, "k", to.k), add_operand(w, "v", to.v),
      add_operand(w, "z_o", to.z_o);
  const auto add_tiles = [&](const decoding::Tiles& t) { w("tiles", t.first, t.count, t.of_entry, t.rows); };
  if (c.family() == KernelFamily::hopper && !backward) {
    const AttentionCall rows = with_heads_as_rows(x);
    const ForwardTile tile = forward_tile(rows);
    w("rows", rows.H, rows.L, tile.queries, tile.keys, tile.blocks);
    add_operand(w, "q", rows.q), add_operand(w, "o", rows.o);
  }
  if (c.family() == KernelFamily::hopper && backward)
    w("backward", last_stores(x), backward_width(x), backward_blocks(c.work.width));
  if (c.family() == KernelFamily::decoding) {
    w("decoding", decoding::uses_split_kv(x, c.work.parts, gpu), decoding::ranges_of(x),
      decoding::bytes_of_counters(x));
    for (int n = 0; n < 3; ++n) add_tiles(decoding::tiles_of_launch(x, n));
  }
  if (c.family() == KernelFamily::latents) {
    w("latents", decoding::takes_few_heads(x), decoding::ranges_by_wgmma(x).each, decoding::pieces_of(x),
      decoding::heads_of_piece(x));
    for (int n = 0; n < 3; ++n) add_tiles(decoding::queries_of_launch(x, n));
  }
  return w.text();
}

TEST(AttentionPlans, MatchTheGoldenFile) {
  testing::GoldenRecords records("attention_plans", false);
  Draw d(44);
  for (int group = 0; group < 20; ++group) {
    std::string text[std::size(gpus)];
    for (int n = 0; n < 1000; ++n) {
      const AttentionCall x = drawn(d);
      const bool backward = !x.table && d.one_in(2), batch_invariant = d.one_in(4);
      for (std::size_t g = 0; g < std::size(gpus); ++g) {
        try {
          text[g] += plan_of(x, backward, gpus[g].gpu, batch_invariant);
        } catch (const DeviceError& e) {
          text[g] += std::string(e.what()) + "\n";
        }
      }
    }
    for (std::size_t g = 0; g < std::size(gpus); ++g)
      records.add(std::string(gpus[g].name) + ", to call " + std::to_string(1000 * (group + 1)), text[g]);
  }
  records.expect_recorded();
}

// The table of kernels in the code must equal the table in the README of attention.
TEST(AttentionKernelTable, MatchesTheReadme) {
  std::string rows;
  for (const AttentionKernel& k : attention_kernels())
    rows += std::string("| ") + (k.backward ? "backward" : "forward") + " | " + k.description + " | " +
            k.condition + " |\n";
  std::ifstream file(GOLDEN_FILES "../../backends/cuda/attention/README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(readme.find("|---|---|---|\n" + rows + "\n"), std::string::npos) << rows;
}

}  // namespace
}  // namespace tg::cuda::attention
