// Compares the plans of CPU kernels with cpu_plans.txt. A plan determines how a kernel divides its work and
// how much memory it reserves. Results do not depend on the plan. So only these tests fail if a kernel starts
// to copy, shares less work or needs more memory. The file contains the descriptions and scratch sizes of
// many calls for each instruction set (tests/support/golden.h).
#define TG_ISA baseline
#include "backends/cpu/kernels/gemm_tiles.h"

#include <gtest/gtest.h>

#include <map>

#include <tilegrad/tilegrad.h>
#include "autograd/gradcheck/harness.h"
#include "backends/cpu/pointwise.h"
#include "core/base/alignment.h"
#include "core/base/piece_size.h"
#include "core/compile/fused_reductions.h"
#include "tests/support/attention_trial.h"
#include "tests/support/golden.h"
#include "tests/support/kernel_team.h"

namespace tg::cpu {

#ifdef TILEGRAD_ISA_avx2
namespace avx2 {
Scratch gemm_scratch(const Gemm&, int);
void gemm_choice(const Gemm&, int, char*, std::size_t);
}  // namespace avx2
#endif
#ifdef TILEGRAD_ISA_avx512
namespace avx512 {
Scratch gemm_scratch(const Gemm&, int);
void gemm_choice(const Gemm&, int, char*, std::size_t);
}  // namespace avx512
#endif

namespace {

using tg::testing::Checksum;
using Lines = tg::testing::GoldenLines;

// All numbers of the plan of a fused step.
std::string text_of(const PointwisePlan& p) {
  std::string text = "; plan";
  const auto add = [&](std::initializer_list<std::int64_t> numbers) {
    text += ",";
    for (const std::int64_t n : numbers) text += " " + std::to_string(n);
  };
  add({p.rank, p.numel, p.tile_axis, p.inputs, p.outputs, p.stored, p.reduced, p.code_size, p.compute_size,
       p.slots, p.tile_axis < 0 ? -1 : p.tile_slot});
  for (int a = 0; a < p.rank; ++a) add({p.shape[a]});
  const auto add_access = [&](const PointwisePlan::Access& o, int slot) {
    add({o.direct, o.converts, o.across, o.size, o.direct ? -1 : slot});
    for (int a = 0; a < p.rank; ++a) add({o.strides[a]});
  };
  for (int i = 0; i < p.inputs; ++i) add_access(p.input[i], p.input_slot[i]);
  for (int o = 0; o < p.outputs; ++o) add_access(p.output[o], p.output_slot[o]), add({p.output[o].streams});
  for (int c = 0; c < p.code_size; ++c) {
    add({p.code[c].slot});
    for (const PointwisePlan::Source& s : p.code[c].source) add({s.kind, s.index});
  }
  return text;
}

// Returns the op that a step's kernel computes.
const Op& op_of(const Step& s) {
  return s.op == &fused_reduction_op ? *s.attrs.as<FusedReduction>().op : *s.op;
}

// Calls f(isa, kernel, call) with the step's kernel for each instruction set. If the step has a
// PointwisePlan, call.plan is this plan.
template <class F>
void each_kernel(const Step& s, F&& f) {
  for (const KernelSet* set : runnable_sets())
    for (const KernelEntry& e : set->kernels) {
      if (e.op != op_of(s).name) continue;
      std::shared_ptr<const void> plan;
      if (s.op == &fused_reduction_op)
        plan = plan_fused_reduction(s, *set);
      else if (fused_text_of(*s.op, s.attrs))
        plan = plan_pointwise(s, *set);
      f(std::string(set->isa), *e.kernel, Call{s.in, s.out, &s.attrs, plan.get(), false});
    }
}

// For each instruction set, adds each step's scratch memory and kernel description. Also adds the plans of
// fused steps.
void add_steps(const Program& program, std::map<std::string, Checksum>& by_set) {
  for (const Step& s : program.steps())
    each_kernel(s, [&](const std::string& isa, const Kernel& kernel, const Call& call) {
      for (const int threads : {1, 3, 16}) {
        char text[200] = "";
        if (kernel.choice) kernel.choice(call, threads, text, sizeof text);
        const Scratch size = kernel.scratch ? kernel.scratch(call, threads) : Scratch{};
        by_set[isa].add(op_of(s).name + " " + std::to_string(size.per_thread) + " " +
                        std::to_string(size.shared) + " " + text);
      }
      if (call.plan) by_set[isa].add(text_of(*static_cast<const PointwisePlan*>(call.plan)));
    });
}

// Adds one line if the result is the same for all instruction sets. Otherwise adds one line for each set.
void add_lines(const std::string& what, const std::map<std::string, Checksum>& by_set, Lines& lines) {
  for (const auto& [set, sum] : by_set) lines[what + ", " + set] = sum.text();
}

Program planned(Graph& g, const std::vector<Tensor>& ts, int threads = 4) {
  return compile(g, ts, {.threads = threads, .plan_only = true});
}

// Adds the samples of all ops. Omits types whose GEMMs depend on the processor model.
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
    {"chains of views",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const Shape& s : {Shape{8, 8}, Shape{7, 9}, Shape{9, 7}, Shape{8, 7}, Shape{1, 5},
                              Shape{2048, 2048}, Shape{2048, 2047}, Shape{1024, 1024}, Shape{1024, 1023}}) {
         const Tensor x = in(g, s), y = in(g, {s[1], s[0]}), h = in(g, {s[1], s[0]}, bf16);
         all.insert(all.end(),
                    {x * 2 + 1, x + transpose(y, 0, 1), x + transpose(h, 0, 1), cast(x + 1, bf16)});
       }
       for (const DType t : {f32, f64, f16, i64}) {
         const Tensor x = in(g, {4, 6, 10}, t), y = in(g, {10, 4, 6}, t), row = in(g, {6, 1}, t);
         const Tensor sum = permute(x, {2, 0, 1}) + y, half = slice(x, 2, 1, 9, 2) + 1, spread = x * row,
                      same = x + x;
         all.insert(all.end(),
                    {sum, sum * 2, half, spread, same * same, same - x, less(x, row),
                     where(less(x, row), x, 0), expand(row, {4, 6, 10}) + 1, slice(y, 0, 3, 4) * 3});
         Tensor chain = x;
         for (int i = 0; i < 12; ++i) chain = chain * row + x;
         all.push_back(chain);
       }
       return all;
     }},
    {"products of chunks",
     [](Graph& g) {
       const Tensor x = in(g, {9000, 64}), w = in(g, {64, 5000}), t = in(g, {9000}, i64);
       return with_gradients(linear_cross_entropy(x, w, t, {.chunk_rows = 4096}), {x, w});
     }},
};

// Adds GEMMs on every instruction set. Covers processors without bf16 units, with bf16 pairs and with bf16
// tiles.
struct GemmSet {
  const char* name;
  Scratch (*scratch)(const Gemm&, int);
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
                                   std::to_string(batches) +
                                   (alone ? " products, batch-invariant" : " products");
          for (const std::int64_t m : sizes)
            for (const std::int64_t n : sizes)
              for (const std::int64_t k : depths) {
                Gemm g;
                g.type = type, g.out_type = batches == 7 && size_of(type) == 2 ? f32 : type, g.m = m, g.n = n,
                g.k = k;
                g.batch_invariant = alone, g.batch_rank = 1, g.batch[0] = batches;
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
          const Scratch s = set.scratch(g, threads);
          by_kind[what][set.name].add(std::to_string(s.per_thread) + " " + std::to_string(s.shared) + " " +
                                      text);
        }
      }
    if (g.type != bf16) return;
    for (const int threads : {1, 4, 33}) {
      const baseline::TilePlan p = baseline::plan_tiles(g, threads);
      const Scratch s = baseline::tiles_scratch(g, threads);
      std::string text =
          std::to_string(s.per_thread) + " " + std::to_string(s.shared) + (p.shared_b ? " shared" : "");
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

// ---- parts ----

// Reads the private counters of Team. They count the parts that were handed out in each stretch. An explicit
// instantiation may name a private member. No other code needs to read these counters.
std::string (*read_counters)(const Team&);
template <auto stretches>
struct CountersOf {
  static std::string read(const Team& team) {
    std::string text;
    const std::size_t used =
        std::min<std::size_t>(static_cast<std::size_t>(team.threads), std::size(team.*stretches));
    for (const auto& stretch : std::span(team.*stretches).first(used)) {
      std::string queues;
      for (const std::atomic<std::int64_t>& taken : stretch.taken)
        if (taken > 0) queues += (queues.empty() ? "" : "+") + std::to_string(taken);
      text += (text.empty() ? "" : " ") + (queues.empty() ? "0" : queues);
    }
    return text;
  }
  static inline const bool is_set = (read_counters = read) != nullptr;
};
template struct CountersOf<&Team::stretch_>;

// The counters after a step's last phase. One thread runs all parts. After the n parts of a stretch, it
// requests one more part, which does not exist.
std::string parts_of(const Kernel& kernel, const Call& call, int threads) {
  struct Alone final : Job {
    Alone(const Kernel& kernel, const Call& call, std::byte* own, std::byte* shared)
        : kernel(kernel), call(call), own(own), shared(shared) {}
    int next(int) override { return std::exchange(stage, end); }
    void share(Worker& w, int) override {
      w.scratch = own, w.shared = shared;
      kernel.run(w, call);
    }
    const Kernel& kernel;
    const Call& call;
    std::byte *own, *shared;
    int stage = 0;
  };
  const Scratch size = kernel.scratch ? kernel.scratch(call, threads) : Scratch{};
  const AlignedBytes own(size.per_thread), shared(size.shared);
  Team team(threads);
  Alone job(kernel, call, own.data, shared.data);
  team.run(job);
  return read_counters(team);
}

Large divided[] = {
    {"full",
     [](Graph& g) {
       return std::vector<Tensor>{full(g, {200000}, 2), full(g, {65536}, 2, f64)};
     }},
    {"copies",
     [](Graph& g) {
       const Tensor x = in(g, {70000}), y = in(g, {300}), i = in(g, {1}, i64);
       return std::vector<Tensor>{concat({x, y, x}), slice_assign(x, y, 0, 5), slice_at(x, 0, i, 66000)};
     }},
    {"slices",
     [](Graph& g) {
       const Tensor x = in(g, {9, 33000}), y = in(g, {900, 30}), i = in(g, {5}, i64), j = in(g, {1700}, i64);
       return std::vector<Tensor>{index_select(x, 0, i),
                                  index_select(y, 0, j),
                                  index_select(x, 1, j),
                                  index_assign(y, 0, j, in(g, {1700, 30})),
                                  index_assign(x, 0, i, in(g, {5, 33000})),
                                  index_add(y, 0, j, in(g, {1700, 30}))};
     }},
    {"elements by index",
     [](Graph& g) {
       const Tensor x = in(g, {40, 900}), i = in(g, {40, 900}, i64);
       return std::vector<Tensor>{gather(x, 0, i), gather(x, 1, i), scatter_add(x, 0, i, in(g, {40, 900})),
                                  scatter_add(x, 1, i, in(g, {40, 900}))};
     }},
    {"lines",
     [](Graph& g) {
       const Tensor x = in(g, {200, 300}), y = in(g, {9000, 3});
       std::vector<Tensor> all{cumsum(x, 0), cumsum(x, 1), cumsum(y, 1), cumsum(y, 0)};
       for (const Tensor& t : top_k(x, 2, 0)) all.push_back(t);
       for (const Tensor& t : top_k(y, 1)) all.push_back(t);
       return all;
     }},
    {"numbers",
     [](Graph& g) {
       return std::vector<Tensor>{arange(g, 0, 1000),
                                  uniform(g, {20000}),
                                  normal(g, {8193}),
                                  bernoulli(g, {8192}, 0.5),
                                  randint(g, {5}, 0, 7),
                                  dropout(in(g, {30000}), 0.5),
                                  attention_keep_mask(g.rng(), {2, 3, 5, 7}, 0.5, 1)};
     }},
    {"positions",
     [](Graph& g) {
       return std::vector<Tensor>{argmax(in(g, {300, 100}), {1}), argmin(in(g, {3, 9000}), {0})};
     }},
    {"sums",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const Shape& s : {Shape{700, 100}, Shape{5, 70000}, Shape{2000, 600}, Shape{3, 5}})
         for (const int a : {0, 1}) all.push_back(sum(in(g, s), {a})), all.push_back(max(exp(in(g, s)), {a}));
       return all;
     }},
    {"rows",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const Shape& s : {Shape{50, 3000}, Shape{3, 9000}, Shape{3000, 7}}) {
         const Tensor x = in(g, s), t = in(g, {s[0]}, i64), w = in(g, {s[1]});
         for (const Tensor& y : with_gradients(softmax(x), {x})) all.push_back(y);
         for (const Tensor& y : with_gradients(cross_entropy(x, t), {x})) all.push_back(y);
         for (const Tensor& y : with_gradients(layer_norm(x, w, w), {x, w})) all.push_back(y);
         all.push_back(logsumexp(x, {1}));
       }
       const Tensor x = in(g, {2, 4, 40, 16});
       all.push_back(rope(x)), all.push_back(rope(x, in(g, {2, 4, 40}, i64)));
       all.push_back(sample(in(g, {20, 300}), 0, in(g, {20, 2}, i64)));
       return all;
     }},
    {"lists",
     [](Graph& g) {
       const std::vector<Tensor> xs{in(g, {20000}), in(g, {3, 8192}), in(g, {5})};
       std::vector<Tensor> all = block_norms(xs);
       std::vector<AdamWTensors> steps;
       for (const Tensor& x : xs) steps.push_back({x, x, x, x});
       for (const AdamWResults& r : adamw(steps, 0.1, 1)) all.push_back(r.p);
       all.push_back(global_norm(xs));
       return all;
     }},
    {"chains",
     [](Graph& g) {
       const Tensor x = in(g, {300, 200}), y = in(g, {200, 300});
       return std::vector<Tensor>{x * x + 1, x + transpose(y, 0, 1), in(g, {1025}) * 2, in(g, {9}) * 2};
     }},
    {"products",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const DType t : {f32, f16})
         for (const auto& [m, n, k] : {std::array{3, 700, 200}, {100, 300, 64}, {500, 40, 20}, {1, 1, 5}})
           for (const bool column : {false, true})
             all.push_back(
                 matmul(in(g, {m, k}, t), column ? transpose(in(g, {n, k}, t), 0, 1) : in(g, {k, n}, t)));
       return all;
     }},
    {"attention",
     [](Graph& g) {
       std::vector<Tensor> all;
       for (const std::int64_t L : {1, 64, 65, 20})
         for (const std::int64_t heads : {1, 4}) {
           const Tensor q = in(g, {2, 4, L, 16}), k = in(g, {2, heads, 200, 16}), bias = in(g, {4, L, 200});
           for (const Tensor& t : with_gradients(flash_attn(q, k, k, {.bias = bias}).o, {q, k, bias}))
             all.push_back(t);
           for (const std::int64_t T : {1, 511, 512, 513})
             if (L != 64) all.push_back(flash_attn(q, in(g, {2, heads, T, 16}), in(g, {2, heads, T, 16})).o);
         }
       return all;
     }},
};

void add_parts(Lines& lines) {
  for (const Large& d : divided) {
    Graph g;
    Program p = compile(g, d.make(g), {.threads = 1});
    for (const Node& n : g.nodes())
      if (const Tensor x = n.op == &input_op ? g.tensor(n.first_out) : Tensor(); x.defined() && p.reads(x))
        p.feed({x, Array(x.shape(), x.dtype())});
    p.run();
    std::map<std::string, int> nth;
    for (const Step& s : p.steps()) {
      const std::string& op = op_of(s).name;
      const std::string what =
          std::string("parts of ") + d.name + ", " + op + " " + std::to_string(nth[op]++);
      each_kernel(s, [&](const std::string& isa, const Kernel& kernel, const Call& call) {
        std::string& text = lines[what + ", " + isa];
        for (const int threads : {2, 5}) text += (text.empty() ? "" : "; ") + parts_of(kernel, call, threads);
      });
    }
  }
}

// Adds the scratch memory of attention, including bf16 on the model of tiles.
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
                for ([[maybe_unused]] const int threads : {1, 4}) {
                  Trial s = shape(2, 4, Hk, L, T, d, d == 33 ? 70 : d, type);
                  set(s.x);
                  const Scratch f = isa.forward->scratch(s.x), b = isa.backward->scratch(s.x);
                  by_set[isa.name].add(std::to_string(f.per_thread) + " " + std::to_string(f.shared) + " " +
                                       std::to_string(b.per_thread) + " " + std::to_string(b.shared));
                }
      add_lines("attention of " + std::string(name_of(type)) + ", " + name, by_set, lines);
    }
}

TEST(CpuPlans, MatchTheGoldenFile) {
  if (tg::has_small_pieces) GTEST_SKIP() << "other pieces";
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
                             false);  // the file has lines for other machines' instruction sets
}

// Packing copies in the order of memory. If the steps of a line are contiguous, it copies line by line.
// Otherwise it copies step by step.
TEST(CpuPlans, BlocksArePackedInTheOrderOfMemory) {
  for (const bool along : {true, false}) {
    std::vector<std::pair<std::int64_t, std::int64_t>> order, expected;
    baseline::in_order_of(along, 2, 3, [&](std::int64_t i, std::int64_t s) { order.emplace_back(i, s); });
    for (std::int64_t n = 0; n < 6; ++n)
      along ? expected.emplace_back(n / 3, n % 3) : expected.emplace_back(n % 2, n / 2);
    EXPECT_EQ(order, expected);
  }
}

// Compares the number of parts of each kernel, for two and five threads.
TEST(CpuPlans, PartsMatchTheGoldenFile) {
  if (tg::has_small_pieces) GTEST_SKIP() << "other pieces";
  Lines now;
  add_parts(now);
  EXPECT_GT(now.size(), 100u);
  tg::testing::expect_golden(GOLDEN_FILES "backends/cpu/cpu_parts.txt", now, false);
}

// Returns the smallest size at which threads share the step. They share it if this saves more than 3 µs, the
// cost of two barriers. The estimate assumes 20 GB/s and 40 GFLOP/s.
std::int64_t first_shared(Tensor (*f)(Graph&, std::int64_t)) {
  std::int64_t low = 1, high = 1 << 24;  // the step is shared at `high` but not at `low`
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

TEST(CpuPlans, LargeStepsAreShared) {
  // Estimates the time of one element from the bytes of its operands and its FLOPs. An instruction of a fused
  // step counts as four FLOPs. Threads share n elements if n·seconds > 3 µs.
  const auto from = [](double bytes, double flops) {
    return static_cast<std::int64_t>(3e-6 / (bytes / 20e9 + flops / 40e9)) + 1;
  };
  const auto near = [](std::int64_t got,
                       std::int64_t expected) {  // rounding may add or remove 1
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

// The workspace has two parts. One part is private to each thread, and all threads share the other. Each part
// has the size of the largest request of any step.
TEST(CpuPlans, TheWorkspaceFitsTheLargestStep) {
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
      if (fused_text_of(*s.op, s.attrs)) plan = plan_pointwise(s, kernel_set());
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
