// CPU kernels divide their work and reserve memory for it. Results do not depend on either, so only these
// tests fail if a kernel begins to copy, shares less or needs more memory. The descriptions and scratch sizes
// of many calls are compared with cpu_plans.txt, for each instruction set (tests/support/golden.h).
#define TG_ISA baseline
#include "backends/cpu/kernels/gemm_tiles.h"

#include <gtest/gtest.h>

#include <map>

#include <tilegrad/tilegrad.h>
#include "autograd/gradcheck_harness.h"
#include "backends/cpu/pointwise.h"
#include "core/base/alignment.h"
#include "core/compile/reduced_chains.h"
#include "tests/support/attention_trial.h"
#include "tests/support/golden.h"
#include "tests/support/kernel_team.h"

namespace tg::cpu {

#ifdef TILEGRAD_ISA_avx2
namespace avx2 {
ScratchSize gemm_scratch(const Gemm&, int);
void gemm_choice(const Gemm&, int, char*, std::size_t);
}  // namespace avx2
#endif
#ifdef TILEGRAD_ISA_avx512
namespace avx512 {
ScratchSize gemm_scratch(const Gemm&, int);
void gemm_choice(const Gemm&, int, char*, std::size_t);
}  // namespace avx512
#endif

namespace {

using tg::testing::Checksum;
using Lines = tg::testing::GoldenLines;

// The scratch memory and description of each step's kernel, for each instruction set.
void add_steps(const Program& program, std::map<std::string, Checksum>& by_set) {
  for (const Step& s : program.steps()) {
    const Op& op = s.op == &reduced_chain_op ? *s.attrs.as<ReducedChain>().op : *s.op;
    for (const KernelSet* set : runnable_sets())
      for (const KernelEntry& e : set->kernels) {
        if (e.op != op.name) continue;
        std::shared_ptr<const void> plan;
        if (s.op == &reduced_chain_op)
          plan = plan_reduced_chain(s, *set);
        else if (chain_of(*s.op, s.attrs))
          plan = plan_pointwise(s, *set);
        const Call call{s.in, s.out, &s.attrs, plan.get(), false};
        for (const int threads : {1, 3, 16}) {
          char text[200] = "";
          if (e.kernel->choice) e.kernel->choice(call, threads, text, sizeof text);
          const Scratch size = e.kernel->scratch ? e.kernel->scratch(call, threads) : Scratch{};
          by_set[std::string(set->isa)].add(op.name + " " + std::to_string(size.per_thread) + " " +
                                            std::to_string(size.shared) + " " + text);
        }
      }
  }
}

// One line if all sets have the same, else one for each set.
void add_lines(const std::string& what, const std::map<std::string, Checksum>& by_set, Lines& lines) {
  for (const auto& [set, sum] : by_set) lines[what + ", " + set] = sum.text();
}

Program planned(Graph& g, const std::vector<Tensor>& ts, int threads = 4) {
  return compile(g, ts, {.threads = threads, .plan_only = true});
}

// Samples of all ops, without the types whose products depend on the kind of processor.
void add_samples(Lines& lines) {
  for (const Op* op : all_ops()) {
    if (!op->samples || op->host) continue;
    std::map<std::string, Checksum> by_set;
    for (const Sample& s : op->samples())
      for (const DType dtype : {f32, f64, f16}) {
        Graph g;
        std::vector<Tensor> in, wrt, fetch;
        for (const SampleInput& i : s.inputs) {
          in.push_back(g.input("x", i.shape, gradcheck::input_dtype(i, dtype)));
          if (is_float(in.back().dtype())) wrt.push_back(in.back());
        }
        fetch = s.call(in);
        try {
          for (const Tensor& y : std::vector<Tensor>(fetch))
            if (is_float(y.dtype()) && !wrt.empty())
              for (const Tensor& z : gradients(sum(y), wrt)) fetch.push_back(z);
        } catch (const GradientError&) {
        }
        add_steps(planned(g, fetch), by_set);
      }
    add_lines(op->name, by_set, lines);
  }
}

struct Large {
  const char* name;
  std::vector<Tensor> (*make)(Graph&);
};

Tensor in(Graph& g, const Shape& shape, DType dtype = f32) {
  return g.input("x", shape, dtype);
}
std::vector<Tensor> with_gradients(const Tensor& y, const std::vector<Tensor>& wrt) {
  std::vector<Tensor> all{y};
  for (const Tensor& z : gradients(sum(y), wrt)) all.push_back(z);
  return all;
}
template <Tensor (*f)(TensorArg, const Axes&, bool)>
std::vector<Tensor> reductions(Graph& g) {
  std::vector<Tensor> all;
  for (const DType t : {f64, f32, f16})
    for (const Shape& s :
         {Shape{3, 1 << 20}, Shape{1 << 16, 33}, Shape{600, 700}, Shape{7, 40000, 5}, Shape{257, 129}})
      for (int a = 0; a < s.size(); ++a) {
        const Tensor x = in(g, s, t);
        all.push_back(f(x, {a}, false));
        all.push_back(f(exp(x) * 2, {a}, false));
        all.push_back(f(x, {}, false));
      }
  return all;
}

const Large large[] = {
    {"reductions", reductions<sum>},
    {"extremes", reductions<max>},
    {"means", reductions<mean>},
    {"norms",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const Shape& s :
            {Shape{5000, 64}, Shape{100, 3000}, Shape{8, 8192}, Shape{70, 8}, Shape{1, 70000}}) {
         const Tensor x = in(g, s), w = in(g, {s[1]}), b = in(g, {s[1]});
         for (const Tensor& t : with_gradients(layer_norm(x, w, b), {x, w, b})) all.push_back(t);
         for (const Tensor& t : with_gradients(rms_norm(x, w), {x, w})) all.push_back(t);
       }
       return all;
     }},
    {"rows",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const Shape& s : {Shape{50, 3000}, Shape{8, 70000}, Shape{2000, 7}}) {
         const Tensor x = in(g, s), t = in(g, {s[0]}, i64);
         for (const Tensor& y : with_gradients(softmax(x), {x})) all.push_back(y);
         for (const Tensor& y : with_gradients(log_softmax(x, 0), {x})) all.push_back(y);
         for (const Tensor& y : with_gradients(cross_entropy(x, t), {x})) all.push_back(y);
         all.push_back(logsumexp(x, {1}));
       }
       return all;
     }},
    {"index ops",
     [](Graph& g) {
       const Tensor x = in(g, {1000, 300}), i = in(g, {500}, i64), s = in(g, {500, 300}),
                    all = in(g, {500, 300}, i64);
       std::vector<Tensor> out{index_add(x, 0, i, s), index_select(x, 0, i),     index_assign(x, 0, i, s),
                               gather(x, 0, all),     scatter_add(x, 0, all, s), scatter_add(x, 1, all, s),
                               cumsum(x, 0)};
       for (const std::int64_t k : {1, 7, 300})
         for (const Tensor& t : top_k(x, k)) out.push_back(t);
       return out;
     }},
    {"lists",
     [](Graph& g) {
       const std::vector<Tensor> xs{in(g, {100000}), in(g, {3, 8192}), in(g, {8193})};
       std::vector<Tensor> out{squared_norm(xs), global_norm(xs)};
       for (const Tensor& t : block_norms(xs)) out.push_back(t);
       return out;
     }},
    {"rope",
     [](Graph& g) {
       const Tensor x = in(g, {2, 8, 1000, 64}), p = in(g, {2, 1, 1000}, i64);
       return std::vector<Tensor>{rope(x), rope(x, p), rope(x, p, {.dims = 32, .interleaved = true})};
     }},
    {"attention",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const DType t : {f64, f32, f16})
         for (const std::int64_t L : {1, 3, 9, 60, 100, 1000})
           for (const std::int64_t T : {60, 1000, 3000})
             for (const std::int64_t d : {16, 64, 100, 200, 300})
               for (const std::int64_t heads : {1, 4}) {
                 const Tensor q = in(g, {2, 4, L, d}, t), k = in(g, {2, heads, T, d}, t),
                              v = in(g, {2, heads, T, 48}, t);
                 if (d == 64 || L == 100) {
                   for (const Tensor& y :
                        with_gradients(flash_attn(q, k, v, {.causal = d == 64}).o, {q, k, v}))
                     all.push_back(y);
                 } else {
                   all.push_back(flash_attn(q, k, v, {.softcap = d == 100 ? 2. : 0.}).o);
                 }
               }
       return all;
     }},
    {"chains",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const DType t : {f64, f32, f16})
         for (const Shape& s : {Shape{1000, 1000}, Shape{5000, 1000}, Shape{7, 1 << 20}, Shape{9, 9}}) {
           const Tensor x = in(g, s, t), y = in(g, {s[1], s[0]}, t);
           all.insert(all.end(), {x * x + 1, x + transpose(y, 0, 1), exp(x) * sin(x) + cos(x) * tanh(x)});
         }
       return all;
     }},
    {"products of chunks",
     [](Graph& g) {
       const Tensor x = in(g, {9000, 64}), w = in(g, {64, 5000}), t = in(g, {9000}, i64);
       return with_gradients(linear_cross_entropy(x, w, t, {.chunk_rows = 4096}), {x, w});
     }},
};

// Products, without and with pairs or tiles of bf16, on every set.
struct GemmSet {
  const char* name;
  ScratchSize (*scratch)(const Gemm&, int);
  void (*choice)(const Gemm&, int, char*, std::size_t);
};
std::vector<GemmSet> gemm_sets() {
  std::vector<GemmSet> all = {{"baseline", baseline::gemm_scratch, baseline::gemm_choice}};
#ifdef TILEGRAD_ISA_avx2
  if (machine_has("avx2")) all.push_back({"avx2", avx2::gemm_scratch, avx2::gemm_choice});
#endif
#ifdef TILEGRAD_ISA_avx512
  if (machine_has("avx512")) all.push_back({"avx512", avx512::gemm_scratch, avx512::gemm_choice});
#endif
  return all;
}

constexpr std::int64_t sizes[] = {1, 8, 9, 33, 113, 1000, 5000}, depths[] = {1, 31, 384, 385, 800, 3000};

template <class F>
void each_gemm(F f) {
  static float numbers[1];
  for (const DType type : {f32, f64, bf16, f16})
    for (const int layout : {0, 1, 2, 3, 4})
      for (const int batches : {1, 7})
        for (const bool alone : {false, true}) {
          const std::string what = std::string(name_of(type)) + ", layout " + std::to_string(layout) + ", " +
                                   std::to_string(batches) + (alone ? " products, rows alone" : " products");
          for (const std::int64_t m : sizes)
            for (const std::int64_t n : sizes)
              for (const std::int64_t k : depths) {
                Gemm g;
                g.type = type, g.out_type = batches == 7 && size_of(type) == 2 ? f32 : type, g.m = m, g.n = n,
                g.k = k;
                g.rows_alone = alone, g.batch_rank = 1, g.batch[0] = batches;
                g.a = {numbers, k, 1, {m * k}}, g.b = {numbers, n, 1, {k * n}},
                g.c = {numbers, n, 1, {m * n}};
                if (layout == 1) g.b.row = 1, g.b.col = k;                         // a transposed weight
                if (layout == 2) g.a.row = 1, g.a.col = m, g.d = {numbers, 0, 1};  // a transposed a, a bias
                if (layout == 3) g.c.row = 1, g.c.col = m;                         // a transposed result
                if (layout == 4) g.a.row = 2 * k, g.a.col = 2, g.b.row = 2 * n, g.b.col = 2, g.d = g.c;
                f(what, g);
              }
        }
}

void add_products(Lines& lines) {
  std::map<std::string, std::map<std::string, Checksum>> by_kind;
  each_gemm([&](const std::string& what, Gemm& g) {
    for (const GemmSet& set : gemm_sets())
      for (const Bf16Unit unit : {Bf16Unit::f32, Bf16Unit::pairs, Bf16Unit::tiles}) {
        if (unit != Bf16Unit::f32 && g.type != bf16) continue;
        g.bf16 = unit;
        for (const int threads : {1, 4, 33}) {
          char text[200] = "";
          set.choice(g, threads, text, sizeof text);
          const ScratchSize s = set.scratch(g, threads);
          by_kind[what][set.name].add(std::to_string(s.thread) + " " + std::to_string(s.shared) + " " + text);
        }
      }
    if (g.type != bf16) return;
    for (const int threads : {1, 4, 33}) {
      const baseline::TilePlan p = baseline::plan_tiles(g, threads);
      const ScratchSize s = baseline::tiles_scratch(g, threads);
      std::string text =
          std::to_string(s.thread) + " " + std::to_string(s.shared) + (p.shared_b ? " shared" : "");
      for (const std::int64_t n :
           {p.batches, p.groups, p.panels, p.steps, p.chunk, p.depth, p.pass, p.row_blocks, p.column_blocks,
            p.most_groups(), p.most_panels(), p.a_floats(), p.sum_floats(), p.b_floats(),
            p.group_start(p.row_blocks / 2), p.panel_start(3, p.pass, p.column_blocks / 2)})
        text += " " + std::to_string(n);
      by_kind[what]["tiles"].add(text);
    }
  });
  for (const auto& [what, by_set] : by_kind) add_lines("products of " + what, by_set, lines);
}

// Scratch memory of attention, also of bf16 on the model of tiles.
void add_attention(Lines& lines) {
  static float number;
  const std::pair<const char*, void (*)(AttentionCall&)> options[] = {
      {"plain", [](AttentionCall&) {}},
      {"causal", [](AttentionCall& x) { x.causal = true; }},
      {"softcap and dropout", [](AttentionCall& x) { x.softcap = 1, x.dropout = 0.5; }},
      {"bias",
       [](AttentionCall& x) {
         x.bias = {&number, 0, 0, x.T, 1}, x.z_bias = {&number, 0, 0, x.T, 1};
       }},
      {"sink", [](AttentionCall& x) { x.sink = x.z_sink = &number; }}};
  for (const DType type : {f32, f64, bf16, f16})
    for (const auto& [name, set] : options) {
      std::map<std::string, Checksum> by_set;
      for (const Isa& isa : isas(type))
        for (const int L : {1, 9, 15, 16, 60, 100, 130})
          for (const int T : {15, 16, 130, 200, 300, 700})
            for (const int d : {8, 33, 64, 300})
              for (const int Hk : {1, 4})
                for (const int threads : {1, 4}) {
                  Trial s = shape(2, 4, Hk, L, T, d, d == 33 ? 70 : d, type);
                  set(s.x);
                  const ScratchSize f = isa.forward_scratch(s.x, threads),
                                    b = isa.backward_scratch(s.x, threads);
                  by_set[isa.name].add(std::to_string(f.thread) + " " + std::to_string(f.shared) + " " +
                                       std::to_string(b.thread) + " " + std::to_string(b.shared));
                }
      add_lines("attention of " + std::string(name_of(type)) + ", " + name, by_set, lines);
    }
}

TEST(CpuPlans, AreThoseRecorded) {
  if (!tg::testing::has_release_pieces) GTEST_SKIP() << "other pieces";
  Lines now;
  add_attention(now);
  add_samples(now);
  for (const Large& l : large) {
    Graph g;
    std::map<std::string, Checksum> by_set;
    add_steps(planned(g, l.make(g)), by_set);
    add_lines(std::string("large ") + l.name, by_set, now);
  }
  add_products(now);
  EXPECT_GT(now.size(), 100u);
  tg::testing::expect_golden(GOLDEN_FILES "backends/cpu/cpu_plans.txt", now,
                             false);  // it has sets that a machine may lack
}

// A step is shared if that saves more than two barriers cost: 3 µs at 20 GB/s and 40 GFLOP/s.
std::int64_t first_shared(Tensor (*f)(Graph&, std::int64_t)) {
  std::int64_t low = 1, high = 1 << 24;  // shared at `high`, and not at `low`
  const auto is_shared = [&](std::int64_t n) {
    Graph g;
    const Program p = planned(g, {f(g, n)});
    return p.choice(p.steps().size() - 1).ends_with(", shared by 4 threads");
  };
  EXPECT_TRUE(is_shared(high));
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (is_shared(middle) ? high : low) = middle;
  }
  return high;
}

TEST(CpuPlans, StepsAreSharedFromASizeOn) {
  // Bytes of operands and FLOPs; an instruction of a chain counts as four. n elements are shared if n·seconds
  // > 3 µs.
  const auto from = [](double bytes, double flops) {
    return static_cast<std::int64_t>(3e-6 / (bytes / 20e9 + flops / 40e9)) + 1;
  };
  const auto near = [](std::int64_t got,
                       std::int64_t expected) {  // the quotient may round to the next number
    EXPECT_LE(std::abs(got - expected), 1) << got << " and " << expected;
  };
  near(first_shared([](Graph& g, std::int64_t n) { return in(g, {n}) * 2 + 1; }), from(8, 8));
  near(first_shared([](Graph& g, std::int64_t n) { return in(g, {n}, f64) * 2; }), from(16, 4));
  near(first_shared([](Graph& g, std::int64_t n) { return cumsum(in(g, {n}), 0); }), from(8, 0));
  near(first_shared([](Graph& g, std::int64_t n) { return softmax(in(g, {n, 10})); }), from(80, 250));
  near(first_shared([](Graph& g, std::int64_t n) { return sum(in(g, {n, 10}) * 2, {1}); }), from(44, 40));
  Graph g;
  const Program one = planned(g, {in(g, {1 << 20}) * 2}, 1);
  EXPECT_TRUE(one.choice(0).ends_with(", by one thread"));
}

// The workspace has room for the most that any step needs: for each thread, and for all together.
TEST(CpuPlans, TheWorkspaceHoldsTheLargestStep) {
  for (const int threads : {1, 4}) {
    Graph g;
    const Tensor a = in(g, {300, 500}), b = in(g, {500, 400}), x = in(g, {2000, 70});
    const std::vector<Tensor> fetch{matmul(a, b), sum(in(g, {3, 1 << 20}), {1}), softmax(x), layer_norm(x),
                                    exp(x) * 2};
    const Program p = planned(g, fetch, threads);
    std::size_t own = 0, shared = 0;
    for (std::size_t i = 0; i < p.steps().size(); ++i) {
      const Step& s = p.steps()[i];
      const bool is_shared = p.choice(i).ends_with("threads");
      const Kernel* kernel = find_kernel(s.op->name);
      if (!kernel->scratch) continue;
      std::shared_ptr<const void> plan;
      if (chain_of(*s.op, s.attrs)) plan = plan_pointwise(s, kernel_set());
      const Scratch size =
          kernel->scratch({s.in, s.out, &s.attrs, plan.get(), false}, is_shared ? threads : 1);
      own = std::max(own, aligned_bytes(size.per_thread)),
      shared = std::max(shared, aligned_bytes(size.shared));
    }
    EXPECT_EQ(p.memory().workspace, shared + static_cast<std::size_t>(threads) * own) << threads;
    EXPECT_GT(own, 0u);
    EXPECT_GT(shared, 0u);
  }
}

}  // namespace
}  // namespace tg::cpu
