// flash_attn: 4·B·H·L²·d FLOPs forward and 2.5 times as many backward (of which causal attention needs half),
// as a share of the machine's multiply-add rate and of this library's own matrix product.
#include "autograd/gradients.h"
#include "ops/flash_attn.h"
#include "ops/ops.h"
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

struct AttentionCase {
  std::int64_t batch, heads, key_heads, length, width;
  bool causal;

  std::string name() const {
    return std::string("flash_attn") + (causal ? " causal" : "") + (key_heads < heads ? " grouped" : "");
  }
  std::string shape() const {
    const std::int64_t sizes[] = {batch, heads, length, width};
    return joined(sizes) + (key_heads < heads ? ", " + std::to_string(key_heads) + " key heads" : "");
  }
  double gflop() const {
    const double pairs =
        static_cast<double>(length) * static_cast<double>(causal ? length + 1 : length * 2) / 2;
    return 4e-9 * static_cast<double>(batch * heads * width) * pairs;
  }
};

struct Recorded {
  Graph g;
  Tensor q, k, v;
  AttentionResult out;

  explicit Recorded(const AttentionCase& c) {
    q = g.input("q", {c.batch, c.heads, c.length, c.width});
    k = g.input("k", {c.batch, c.key_heads, c.length, c.width});
    v = g.input("v", k.shape());
    out = flash_attn(q, k, v, {.causal = c.causal});
  }
  void feed(Program& program) {
    for (const Tensor& x : {q, k, v}) program.feed({x, random_array(x.shape(), f32)});
  }
};

Timing forward(const AttentionCase& c, int threads, const Settings& settings) {
  Recorded r(c);
  Program program = compile(r.g, {r.out.o, r.out.lse}, {.threads = threads});
  r.feed(program);
  return best_run_and_peak(program, f32, threads, settings);
}

// The backward op alone, on results that are inputs and lie in memory as the forward leaves them.
Timing backward(const AttentionCase& c, int threads, const Settings& settings) {
  Recorded r(c);
  const Axes heads_inside{0, 2, 1, 3};
  const Tensor o_in_memory = r.out.o.permute(heads_inside);
  Program before = compile(r.g, {o_in_memory, r.out.lse});
  r.feed(before);
  before.run();

  const Tensor o = r.g.input("o", o_in_memory.shape()), z = r.g.input("z", o.shape()),
               lse = r.g.input("lse", r.out.lse.shape());
  const std::vector<Tensor> in{r.q, r.k, r.v}, out{o.permute(heads_inside), lse},
      cotangents{z.permute(heads_inside), {}};
  const Node& node = r.g.node_of(r.out.o.id());
  const std::vector<bool> wanted(3, true);
  Program program =
      compile(r.g, node.op->vjp({in, out, cotangents, node.attrs, wanted}), {.threads = threads});
  r.feed(program);
  program.feed({o, before.fetch(o_in_memory)});
  program.feed({lse, before.fetch(r.out.lse)});
  program.feed({z, random_array(z.shape(), f32)});
  return best_run_and_peak(program, f32, threads, settings);
}

// Bytes besides inputs and results, by the plan.
void memory(const AttentionCase& c, bool with_backward, const Settings& settings, Report& report) {
  Recorded r(c);
  std::vector<Tensor> wanted{r.out.o, r.out.lse};
  if (with_backward) {
    const Tensor z = r.g.input("z", r.out.o.shape());
    for (const Tensor& t : gradients(r.out.o, {r.q, r.k, r.v}, z)) wanted.push_back(t);
  }
  const MemoryReport m = compile(r.g, wanted, {.threads = settings.threads}).memory();
  double extra = static_cast<double>(m.peak() - m.inputs);
  for (const Tensor& t : wanted)
    extra -= static_cast<double>(t.numel()) * static_cast<double>(size_of(t.dtype()));
  report.add({.name = c.name() + " extra memory",
              .shape = c.shape(),
              .dtype = "f32",
              .pass = with_backward ? "both" : "forward",
              .threads = settings.threads,
              .rate = extra / (1 << 20),
              .unit = "MiB"});
}

std::vector<AttentionCase> attention_cases(const Settings& settings) {
  std::vector<AttentionCase> list;
  if (!settings.shapes.empty()) {
    for (const auto& s : settings.shapes)
      for (bool causal : {false, true}) list.push_back({s[0], s[1], s[1], s[2], s[3], causal});
    return list;
  }
  for (std::int64_t width : {64, 128})
    for (std::int64_t length : {1024, 4096})
      for (std::int64_t heads : {1, 8})
        for (bool causal : {false, true}) list.push_back({1, heads, heads, length, width, causal});
  list.push_back({1, 8, 2, 1024, 64, true});
  for (bool causal : {false, true}) list.push_back({12, 4, 4, 64, 32, causal});  // the small character GPT
  return list;
}

}  // namespace

void run_attention(const Settings& settings, const Machine&, Report& report) {
  const double product = sgemm(settings, settings.threads, report);
  for (const char* pass : {"forward", "backward"}) {
    const bool is_forward = pass == std::string("forward");
    double full = 0;  // seconds of the row before
    for (const AttentionCase& c : attention_cases(settings)) {
      if (!report.wants(c.name())) continue;
      const double gflop = c.gflop() * (is_forward ? 1 : 2.5);
      const auto run = [&](int threads) {
        return is_forward ? forward(c, threads, settings) : backward(c, threads, settings);
      };
      const Timing t = run(settings.threads);
      const double rate = gflop / t.seconds;
      report.add({c.name(), c.shape(), "f32", pass, settings.threads, t.seconds * 1e3, rate, "GFLOP/s",
                  rate / t.peak, "multiply-add", rate / t.peak / product});
      if (c.causal && full > 0)
        report.add({c.name() + " / full", c.shape(), "f32", pass, settings.threads, t.seconds * 1e3,
                    t.seconds / full, "×"});
      full = c.causal ? 0 : t.seconds;
      if (settings.threads == 1 || c.causal) continue;
      const double alone = run(1).seconds;
      report.add({c.name() + ", all / one", c.shape(), "f32", pass, settings.threads, t.seconds * 1e3,
                  alone / t.seconds, "×", alone / t.seconds / settings.threads, "threads"});
    }
  }
  if (!settings.shapes.empty()) return;
  for (bool with_backward : {false, true})
    if (report.wants("flash_attn extra memory"))
      memory({1, 1, 1, 32768, 64, false}, with_backward, settings, report);
}

}  // namespace tg::bench
