// paged_attn on a GPU: against its definition, and that a row's bits depend on nothing but the row. Skipped
// where there is no GPU.
#include "backends/cuda/cuda.h"
#include "tests/support/paged_problem.h"

namespace tg {
namespace {

using namespace testing;

class CudaPagedAttn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

const CompileOptions on_gpu{.device = Device::cuda(), .verify = true};

TEST_F(CudaPagedAttn, IsItsDefinition) {
  for (const DType t : float_dtypes)
    for (const std::int64_t page : {1, 3, 16, 64})
      for (const bool sink : {false, true}) {
        PagedCall c{.H = 4, .Hk = 2, .d = 12, .dv = 8, .page = page, .dtype = t, .sink = sink};
        c.v_in_k = page == 16, c.L = page == 3 ? 5 : 2;
        c.texts = {0, 1, 2, 1, 3}, c.lengths = {63, 64, 65, 64, 0}, c.room = 1;
        if (sink) c.options = {.scale = 0.3, .window_left = 40, .softcap = 3};
        expect_defined(c, on_gpu);
        if (HasFatalFailure()) return;
      }
}

// Queries in another division and another company, in other pages.
TEST_F(CudaPagedAttn, ARowHasTheSameBitsInAnyCompany) {
  for (const DType t : {f32, bf16}) {
    PagedCall all{.H = 2, .Hk = 1, .d = 16, .dv = 16, .page = 16, .dtype = t, .sink = true, .L = 70};
    all.texts = {0, 1}, all.lengths = {130, 70}, all.options.window_left = 80;
    const PagedCall::Result together = all.run(on_gpu);
    PagedCall one = all;
    one.texts = {0}, one.page = 5, one.order = 3, one.room = 4;
    for (const auto& [first, L] : {std::pair{0, 64}, {3, 1}, {64, 6}, {69, 1}}) {
      one.L = L, one.lengths = {60 + first + L};
      const PagedCall::Result alone = one.run(on_gpu);
      EXPECT_EQ(rows(alone.o, 0, 0, L), rows(together.o, 0, first, L)) << first;
      EXPECT_EQ(rows(alone.lse, 0, 0, L), rows(together.lse, 0, first, L)) << first;
    }
  }
}

TEST_F(CudaPagedAttn, RefusesTablesAndLengthsThatLeaveThePool) {
  Graph g;
  const Tensor q = g.input("q", {2, 1, 1, 4}), k = g.input("k", {3, 4, 1, 4}),
               table = g.input("table", {2, 2}, i32), lengths = g.input("lengths", {2}, i32);
  const Tensor o = paged_attn(q, k, k, table, lengths).o;
  const std::vector<float> ones(8, 1.f), pool(48, 1.f);
  const auto run = [&](std::vector<std::int32_t> pages, std::vector<std::int32_t> n) {
    eval(o, {{q, ones}, {k, pool}, {table, pages}, {lengths, n}}, {.device = Device::cuda()});
  };
  run({2, 99, 0, -7}, {4, 0});  // no keys there
  expect_error<Error>([&] { run({2, 3, 1, 2}, {5, 8}); }, {"paged_attn", "3", "out of range"});
  expect_error<Error>([&] { run({2, 1, -1, 2}, {5, 1}); }, {"paged_attn", "-1", "out of range"});
  expect_error<Error>([&] { run({2, 1, 1, 2}, {9, 1}); }, {"paged_attn", "9", "out of range"});
}

}  // namespace
}  // namespace tg
