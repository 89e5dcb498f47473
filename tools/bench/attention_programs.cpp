#include "tools/bench/attention_programs.h"

#include <numeric>
#include <random>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/ops/ring_attention.h>

namespace tg::bench {

namespace {

const Axes heads_inside{0, 2, 1, 3};  // [B, H, L, d] to [B, L, H, d] and back

void feed_normal(Program& program, const Tensor& input, std::uint64_t seed) {
  program.feed({input, normal_array(input.shape(), input.dtype(), seed)});
}

}  // namespace

const char* name_of(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "both";
}

RecordedAttention::RecordedAttention(const AttentionCell& c, const Settings& settings, bool materialises,
                                     int calls, int ranks)
    : c_(c), settings_(settings), calls_(calls), ranks_(ranks) {
  for (int n = 0; n < calls; ++n) {
    q = add_input("q", {c.B, c.H, c.L / ranks, c.d});
    c.page > 0 ? record_paged() : record(materialises);
    last = static_cast<NodeId>(g.nodes().size() - 1);
    outputs.push_back(out.o), outputs.push_back(out.lse);
  }
}

void RecordedAttention::record(bool materialises) {
  k = add_input("k", {c_.B, c_.Hk, c_.T / ranks_, c_.d});
  v = c_.v_in_k ? k.slice(3, 0, c_.dv) : add_input("v", {c_.B, c_.Hk, c_.T / ranks_, c_.dv});
  AttentionOptions o{.causal = c_.causal};
  o.nondeterministic = c_.nondeterministic;
  o.kernels = settings_.attention.kernels;
  o.softcap = static_cast<double>(c_.softcap);
  if (c_.window >= 0) o.window_left = c_.window;
  if (c_.window >= 0 && !c_.causal) o.window_right = c_.window;
  if (c_.length > 0 || c_.ragged) o.kv_lengths = g.constant(Array::of(c_.lengths()));
  out = materialises ? standard_attn(q, k, v, o) : ring_attention(q, k, v, ranks_, o);
}

// The pages of the sequences are in random order in the pool.
void RecordedAttention::record_paged() {
  const std::int64_t n = (c_.T + c_.page - 1) / c_.page;
  std::vector<std::int32_t> pages(static_cast<std::size_t>(c_.B * n));
  std::iota(pages.begin(), pages.end(), 1);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  const Tensor table = g.constant(Array::of({c_.B, n}, pages)), lengths = g.constant(Array::of(c_.lengths()));
  const auto pool = [&](const char* name, std::int64_t size) {
    return inputs_.emplace_back(g.input(name, {1 + c_.B * n, c_.page, c_.Hk, size}, settings_.dtype));
  };
  k = pool("k", c_.d);
  v = c_.v_in_k ? k.slice(3, 0, c_.dv) : pool("v", c_.dv);
  out = paged_attn(q, k, v, table, lengths,
                   {.window_left = c_.window, .softcap = static_cast<double>(c_.softcap)});
}

Tensor RecordedAttention::add_input(const char* name, const Shape& shape) {
  if (!settings_.attention.by_token) return inputs_.emplace_back(g.input(name, shape, settings_.dtype));
  const Shape in_memory{shape[0], shape[2], shape[1], shape[3]};
  return inputs_.emplace_back(g.input(name, in_memory, settings_.dtype)).permute(heads_inside);
}

void RecordedAttention::add_gradients() {
  z = g.input("z", out.o.shape(), settings_.dtype);
  for (const Tensor& t : gradients(out.o, {q, k, v}, z)) outputs.push_back(t);
}

Program RecordedAttention::program(int threads) {
  CompileOptions options = settings_.compile_options(threads);
  if (ranks_ > 1) options.ranks = settings_.ranks;
  Program program = compile(g, outputs, options);
  const std::size_t each = inputs_.size() / static_cast<std::size_t>(calls_);
  for (std::size_t i = 0; i < each; ++i) {
    const Array x = normal_array(inputs_[i].shape(), inputs_[i].dtype(), i + 1);
    for (std::size_t n = i; n < inputs_.size(); n += each) program.feed({inputs_[n], x});
  }
  if (z.defined()) feed_normal(program, z, 4);
  return program;
}

// Such scores make the weights of a ring's calls irrelevant, so they are 1.
std::vector<Tensor> RecordedAttention::backward_of(const Tensor& o, const Tensor& lse,
                                                   const Tensor& cotangent) {
  std::vector<Tensor> in, results{o, lse};
  if (const CustomGradient* ring = g.custom_gradient_ending_at(last)) {
    for (const ValueId value : ring->in) in.push_back(g.tensor(value));
    for (std::size_t n = results.size(); n < ring->out.size(); ++n) {
      const Tensor weights = g.tensor(ring->out[n]);
      results.push_back(full(g, weights.shape(), 1, weights.dtype()));
    }
    std::vector<Tensor> all = ring->backward(in, results, {cotangent, full(g, lse.shape(), 0, lse.dtype())});
    all.resize(3);  // further gradients are for inputs that contain numbers of keys
    return all;
  }
  const Node& node = g.node_of(out.o.id());
  in = {q, k, v};
  const std::vector<Tensor> cotangents{cotangent, {}};
  const std::vector<bool> needed(3, true);
  return node.op->vjp({in, results, cotangents, node.attrs, needed});
}

Program attention_program(const AttentionCell& c, Pass pass, int threads, const Settings& settings,
                          int ranks) {
  if (pass == Pass::backward) return backward_program(c, threads, settings, true, ranks);
  RecordedAttention r(c, settings, false, 1, ranks);
  if (pass == Pass::both) {
    r.outputs.clear();
    r.add_gradients();
  }
  return r.program(threads);
}

Program backward_program(const AttentionCell& c, int threads, const Settings& settings, bool real,
                         int ranks) {
  RecordedAttention r(c, settings, false, 1, ranks);
  const Tensor o_in_memory = r.out.o.permute(heads_inside);
  const Tensor o = r.g.input("o", o_in_memory.shape(), settings.dtype),
               z = r.g.input("z", o.shape(), settings.dtype),
               lse = r.g.input("lse", r.out.lse.shape(), r.out.lse.dtype());
  r.outputs = r.backward_of(o.permute(heads_inside), lse, z.permute(heads_inside));
  r.z = z;
  Program program = r.program(threads);
  if (!real) {
    feed_normal(program, o, 5);
    feed_normal(program, lse, 6);
    return program;
  }
  r.outputs = {o_in_memory, r.out.lse};
  r.z = {};
  Program before = r.program(threads);
  before.run();
  program.feed({o, before.fetch(o_in_memory)});
  program.feed({lse, before.fetch(r.out.lse)});
  return program;
}

Program materialised_program(const AttentionCell& c, bool with_backward, const Settings& settings) {
  RecordedAttention r(c, settings, true);
  r.outputs.resize(1);  // o
  if (with_backward) r.add_gradients();
  return r.program(settings.threads);
}

}  // namespace tg::bench
