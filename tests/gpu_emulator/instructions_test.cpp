// Counts the instructions that kernels execute. Covers matrix multiplications and other instructions of a
// warp, barriers, and bytes copied to shared memory. A kernel may multiply masked tiles, copy the same bytes
// twice or divide its work badly without changing its results. Therefore the counts of each launch are
// compared with a golden file (golden_records.h), for many calls.
#include <tilegrad/ops/linear_cross_entropy.h>
#include "tests/gpu_emulator/golden_records.h"
#include "tests/support/paged_problem.h"

namespace tg::testing {
namespace {

class KernelInstructions : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::record_runs();
    recorded();
  }
  void add(const std::string& what) { records.add(what, recorded()); }

  GoldenRecords records{"instructions"};
};

TEST_F(KernelInstructions, PagesMatchTheGoldenFile) {
  for (const std::int64_t page : {16, 64})
    for (const std::int64_t L : {1, 5})
      for (const std::int64_t heads : {4, 72}) {
        const bool latents = heads == 72;
        PagedCall c{.H = heads,
                    .Hk = latents ? 1 : 2,
                    .d = latents ? 320 : 64,
                    .dv = 64,
                    .page = page,
                    .dtype = bf16};
        c.v_in_k = latents, c.L = L, c.sink = L == 5;
        c.sequences = {0, 1, 2}, c.lengths = {latents ? 300 : 600, 70, 9};
        c.run({.device = Device::cuda()});
        add("pages of " + std::to_string(page) + ", " + std::to_string(heads) + " heads, " +
            std::to_string(L) + " queries");
        if (latents) continue;
        c.dtype = f32, c.options.window_left = 100;
        c.run({.device = Device::cuda()});
        add("pages of " + std::to_string(page) + ", " + std::to_string(L) + " queries in f32");
      }
  records.expect_recorded();
}

TEST_F(KernelInstructions, ProductsMatchTheGoldenFile) {
  for (const DType t : {bf16, f32})
    for (const std::int64_t m : {1, 3, 9, 17, 40, 70, 130})
      for (const bool along_k : {true, false}) {
        Graph g;
        const Given a = given(g, {m, 264}, t, View::contiguous, 1),
                    b = given(g, along_k ? Shape{136, 264} : Shape{264, 136}, t, View::contiguous, 2);
        const Tensor y = matmul(a.tensor, along_k ? transpose(b.tensor, 0, 1) : b.tensor);
        const Tensor result = m % 2 == 1 && m > 1 ? gelu_tanh(y) : y;
        for (const bool batch_invariant : {true, false}) {
          eval(result, feeds_of({a, b}), {.device = Device::cuda(), .batch_invariant = batch_invariant});
          add(std::to_string(m) + (along_k ? " rows along k" : " rows") + (batch_invariant ? " alone" : "") +
              " in " + std::string(name_of(t)));
        }
      }
  Graph g;
  const Given x = given(g, {150, 72}, bf16, View::contiguous, 1),
              w = given(g, {1096, 72}, bf16, View::contiguous, 2);
  const std::vector<std::int32_t> targets(150, 7);
  const Tensor loss =
      linear_cross_entropy(x.tensor, transpose(w.tensor, 0, 1), g.constant(Array::of(targets)));
  std::vector<Tensor> results = gradients(loss, {x.tensor, w.tensor});
  results.push_back(loss);
  eval(results, feeds_of({x, w}), {.device = Device::cuda()});
  add("a head");
  records.expect_recorded();
}

TEST_F(KernelInstructions, RowsMatchTheGoldenFile) {
  for (const DType t : {bf16, f32})
    for (const auto& [count, n] :
         {std::pair<std::int64_t, std::int64_t>{37, 65}, {37, 384}, {1, 1000}, {5, 2056}, {3, 9000}})
      for (const View view : {View::contiguous, View::transposed}) {
        Graph g;
        const Given x = given(g, {count, n}, t, view, 1), w = given(g, {n}, t, View::contiguous, 2),
                    b = given(g, {n}, t, View::contiguous, 3);
        const std::vector<std::int64_t> classes(static_cast<std::size_t>(count), 3);
        const Tensor targets = g.constant(Array::of(classes));
        std::vector<Tensor> all{softmax(x.tensor),
                                log_softmax(x.tensor),
                                layer_norm(x.tensor, w.tensor, b.tensor),
                                rms_norm(x.tensor, w.tensor),
                                cross_entropy(x.tensor, targets),
                                logsumexp(x.tensor, {1}),
                                sum(x.tensor, {0}),
                                sum(x.tensor, {1}),
                                argmax(x.tensor, {1}),
                                max(x.tensor, {0})};
        for (std::size_t i = 0; i < 5; ++i)
          for (const Tensor& z :
               gradients(weighted_sum(all[i]),
                         i == 2 ? std::vector{x.tensor, w.tensor, b.tensor} : std::vector{x.tensor}))
            all.push_back(z);
        eval(all, feeds_of({x, w, b}), {.device = Device::cuda()});
        add(std::to_string(count) + " rows of " + std::to_string(n) + " in " + std::string(name_of(t)) +
            (view == View::transposed ? ", transposed" : ""));
      }
  for (const DType t : {bf16, i32}) {
    Graph g;
    const Given x = given(g, {29, 70}, t, View::contiguous, 1, 0, 9),
                y = given(g, {300, 70}, t, View::sliced, 2, 0, 9);
    std::vector<std::int64_t> at;
    for (std::int64_t i = 0; i < 300; ++i) at.push_back(i * 7919 % 29);
    const Tensor rows = g.constant(Array::of(at));
    std::vector<Tensor> all{index_add(x.tensor, 0, rows, y.tensor), cumsum(y.tensor, 0), cumsum(y.tensor, 1)};
    for (const Tensor& z : top_k(y.tensor, 17)) all.push_back(z);
    eval(all, feeds_of({x, y}), {.device = Device::cuda()});
    add("by index in " + std::string(name_of(t)));
  }
  records.expect_recorded();
}

// On Hopper, these kernels begin early. Each of them must wait for the previous kernel.
TEST_F(KernelInstructions, OtherOpsMatchTheGoldenFile) {
  for (const DType t : {bf16, f32})
    for (const View view : {View::contiguous, View::sliced}) {
      Graph g;
      const Given x = given(g, {6, 33, 40}, t, view, 1), src = given(g, {6, 90, 40}, t, view, 2),
                  table = given(g, {50, 40}, t, View::contiguous, 3), square = given(g, {33, 40}, t, view, 4);
      std::vector<std::int64_t> at;
      for (std::int64_t i = 0; i < 90; ++i) at.push_back(i * 7919 % 33);
      const Tensor rows = g.constant(Array::of(at)), each = expand(reshape(rows, {1, 90, 1}), {6, 90, 40}),
                   start = g.constant(Array::of(std::vector<std::int64_t>{2}));
      const auto row = [&](std::int64_t i) { return squeeze(slice(table.tensor, 0, i, i + 1), 0); };
      std::vector<Tensor> all{index_select(x.tensor, 1, rows),
                              index_add(x.tensor, 1, rows, src.tensor),
                              index_assign(x.tensor, 1, rows, src.tensor),
                              gather(x.tensor, 1, contiguous(each)),
                              scatter_add(x.tensor, 1, contiguous(each), src.tensor),
                              embedding(table.tensor, rows),
                              concat({x.tensor, src.tensor}, 1),
                              slice_at(src.tensor, 1, reshape(start, {}), 7),
                              rope(x.tensor),
                              rope(x.tensor, {}, {.dims = 16, .interleaved = true}),
                              contiguous(permute(x.tensor, {2, 0, 1})),
                              contiguous(transpose(square.tensor, 0, 1)),
                              exp(x.tensor) * x.tensor + 1,
                              sum(exp(src.tensor), {2}),
                              sum(x.tensor),
                              mean(square.tensor, {0}),
                              cumsum(src.tensor, 1),
                              prod(square.tensor, {1}),
                              argmin(src.tensor, {1}),
                              squared_norm({x.tensor, src.tensor}),
                              cast(src.tensor, t == f32 ? bf16 : f32),
                              dropout(src.tensor, 0.3),
                              uniform(g, {1000}, 0, 1, t),
                              normal(g, {1000}, 0, 1, t),
                              bernoulli(g, {1000}, 0.3),
                              randint(g, {1000}, 0, 9),
                              arange(g, 0, 1000, 1, f32),
                              matmul(square.tensor, transpose(table.tensor, 0, 1)),
                              matmul(x.tensor, transpose(table.tensor, 0, 1))};
      for (const Tensor& y : block_norms({x.tensor, src.tensor})) all.push_back(y);
      for (const Tensor& y : top_k(src.tensor, 5)) all.push_back(y);
      for (const Tensor& z :
           gradients(weighted_sum(layer_norm(x.tensor, row(0), row(1))), {x.tensor, table.tensor}))
        all.push_back(z);
      std::vector<AdamWTensors> list;
      for (const Given* p : {&x, &src})
        list.push_back({p->tensor, p->tensor, p->tensor, abs(p->tensor), 0.1});
      for (const AdamWResults& r : adamw(list, 0.01, 3)) all.insert(all.end(), {r.p, r.m, r.v});
      const Tensor logits = reshape(src.tensor, {6, 3600});
      const std::vector<std::int64_t> keys{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
      all.push_back(sample(logits, 0.8, reshape(g.constant(Array::of(keys)), {6, 2}), 50, 0.9));
      for (std::size_t i = 0; i < all.size(); ++i) {
        eval(all[i], feeds_of({x, src, table, square}), {.device = Device::cuda()});
        add("op " + std::to_string(i) + " in " + std::string(name_of(t)) +
            (view == View::sliced ? ", sliced" : ""));
      }
    }
  records.expect_recorded();
}

}  // namespace
}  // namespace tg::testing
