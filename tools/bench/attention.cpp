// flash_attn: 4·B·H·L²·d FLOPs forward and 2.5 times as many backward (of which causal attention needs half),
// as a share of the machine's multiply-add rate and of this library's own matrix product.
#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/ops/ops.h>
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

struct AttentionCase {
  std::int64_t batch, heads, key_heads, length, width;
  bool causal, free_order = false;

  std::string name() const {
    return std::string("flash_attn") + (causal ? " causal" : "") + (key_heads < heads ? " grouped" : "") +
           (free_order ? " free order" : "");
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

  Recorded(const AttentionCase& c, DType dtype) {
    q = g.input("q", {c.batch, c.heads, c.length, c.width}, dtype);
    k = g.input("k", {c.batch, c.key_heads, c.length, c.width}, dtype);
    v = g.input("v", k.shape(), dtype);
    out = flash_attn(q, k, v, {.causal = c.causal, .free_order = c.free_order});
  }
  void feed(Program& program) {
    for (const Tensor& x : {q, k, v}) program.feed({x, random_array(x.shape(), x.dtype())});
  }
};

Timing forward(const AttentionCase& c, int threads, const Settings& settings, const Machine& machine) {
  Recorded r(c, settings.dtype);
  Program program = compile(r.g, {r.out.o, r.out.lse}, options_of(settings, threads));
  r.feed(program);
  return run_and_peak(program, settings.dtype, threads, settings, machine);
}

// The backward op alone, on inputs that have the memory layout of the forward's results.
Timing backward(const AttentionCase& c, int threads, const Settings& settings, const Machine& machine) {
  Recorded r(c, settings.dtype);
  const Axes heads_inside{0, 2, 1, 3};
  const Tensor o_in_memory = r.out.o.permute(heads_inside);
  Program before = compile(r.g, {o_in_memory, r.out.lse}, options_of(settings, threads));
  r.feed(before);
  before.run();

  const Tensor o = r.g.input("o", o_in_memory.shape(), settings.dtype),
               z = r.g.input("z", o.shape(), settings.dtype),
               lse = r.g.input("lse", r.out.lse.shape(), r.out.lse.dtype());
  const std::vector<Tensor> in{r.q, r.k, r.v}, out{o.permute(heads_inside), lse},
      cotangents{z.permute(heads_inside), {}};
  const Node& node = r.g.node_of(r.out.o.id());
  const std::vector<bool> needed(3, true);
  Program program =
      compile(r.g, node.op->vjp({in, out, cotangents, node.attrs, needed}), options_of(settings, threads));
  r.feed(program);
  program.feed({o, before.fetch(o_in_memory)});
  program.feed({lse, before.fetch(r.out.lse)});
  program.feed({z, random_array(z.shape(), z.dtype())});
  return run_and_peak(program, settings.dtype, threads, settings, machine);
}

// Bytes besides inputs and results, by the plan.
void memory(const AttentionCase& c, bool with_backward, const Settings& settings, Report& report) {
  Recorded r(c, settings.dtype);
  std::vector<Tensor> outputs{r.out.o, r.out.lse};
  if (with_backward) {
    const Tensor z = r.g.input("z", r.out.o.shape(), settings.dtype);
    for (const Tensor& t : gradients(r.out.o, {r.q, r.k, r.v}, z)) outputs.push_back(t);
  }
  const MemoryReport m = compile(r.g, outputs, options_of(settings, settings.threads)).memory();
  double extra = static_cast<double>(m.peak() - m.inputs);
  for (const Tensor& t : outputs)
    extra -= static_cast<double>(t.numel()) * static_cast<double>(size_of(t.dtype()));
  report.add({.name = c.name() + " extra memory",
              .shape = c.shape(),
              .dtype = settings.dtype_name(),
              .pass = with_backward ? "both" : "forward",
              .threads = settings.threads,
              .rate = extra / (1 << 20),
              .unit = "MiB"});
}

std::vector<AttentionCase> attention_cases(const Settings& settings, bool is_forward) {
  std::vector<AttentionCase> list;
  const auto add = [&](std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t width) {
    // Only a GPU's backward in half types uses free order.
    const bool both_orders = settings.device.kind != Device::cpu_kind && settings.dtype != f32 &&
                             settings.dtype != f64 && !is_forward;
    for (bool free_order : {false, true})
      for (bool causal : {false, true})
        if (!free_order || both_orders)
          list.push_back({batch, heads, heads, length, width, causal, free_order});
  };
  if (!settings.shapes.empty()) {
    for (const auto& s : settings.shapes) add(s[0], s[1], s[2], s[3]);
    return list;
  }
  if (settings.device.kind != Device::cpu_kind) {  // 16,384 tokens of width 2048
    for (std::int64_t width : {64, 128})
      for (std::int64_t length : {2048, 4096, 8192, 16384}) add(16384 / length, 2048 / width, length, width);
    return list;
  }
  for (std::int64_t width : {64, 128})
    for (std::int64_t length : {1024, 4096})
      for (std::int64_t heads : {1, 8}) add(1, heads, length, width);
  list.push_back({1, 8, 2, 1024, 64, true});
  add(12, 4, 64, 32);  // the small character GPT
  return list;
}

}  // namespace

void run_attention(const Settings& settings, const Machine& machine, Report& report) {
  const bool on_cpu = settings.device.kind == Device::cpu_kind;
  const double product = on_cpu ? sgemm(settings, settings.threads, machine, report) : Row::none;
  const std::string dtype = settings.dtype_name();
  for (const char* pass : {"forward", "backward"}) {
    const bool is_forward = pass == std::string("forward");
    double full = 0;  // seconds of the row before
    for (const AttentionCase& c : attention_cases(settings, is_forward)) {
      if (!report.selects(c.name())) continue;
      const double gflop = c.gflop() * (is_forward ? 1 : 2.5);
      const auto run = [&](int threads) {
        return is_forward ? forward(c, threads, settings, machine) : backward(c, threads, settings, machine);
      };
      const Timing t = run(settings.threads);
      const double rate = gflop / t.seconds;
      Row row{c.name(), c.shape(), dtype, pass, settings.threads, t.seconds * 1e3};
      set_rate(row, rate, t.peak, machine);
      row.share_sgemm = row.share / product;
      report.add(row);
      if (c.causal && full > 0)
        report.add({c.name() + " / full", c.shape(), dtype, pass, settings.threads, t.seconds * 1e3,
                    t.seconds / full, "×"});
      full = c.causal ? 0 : t.seconds;
      if (settings.threads == 1 || c.causal) continue;
      const double alone = run(1).seconds;
      report.add({c.name() + ", all / one", c.shape(), dtype, pass, settings.threads, t.seconds * 1e3,
                  alone / t.seconds, "×", alone / t.seconds / settings.threads, "threads"});
    }
  }
  if (!settings.shapes.empty()) return;
  for (bool with_backward : {false, true})
    if (report.selects("flash_attn extra memory"))
      memory({1, 1, 1, 32768, 64, false}, with_backward, settings, report);
}

}  // namespace tg::bench
