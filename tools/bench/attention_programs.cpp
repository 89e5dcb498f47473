#include "tools/bench/attention_programs.h"

#include <numeric>
#include <random>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/ops/ring_attention.h>

namespace tg::bench {

namespace {

const Axes heads_inside{0, 2, 1, 3};  // [B, H, L, d] to [B, L, H, d] and back

AttentionOptions options_for(const AttentionCell& c, const Settings& settings) {
  AttentionOptions o{.causal = c.causal};
  o.free_order = c.free_order;
  o.kernels = settings.attention.kernels;
  o.softcap = static_cast<double>(c.softcap);
  if (c.window >= 0) o.window_left = c.window;
  if (c.window >= 0 && !c.causal) o.window_right = c.window;
  return o;
}

CompileOptions options_for(const Settings& settings, int threads, int ranks) {
  CompileOptions o = options_of(settings, threads);
  if (ranks > 1) o.ranks = settings.ranks;
  return o;
}

// The gradients of q, k and v by the backward pass alone, with o and ξ as inputs. The weights of a ring's
// calls have no effect on such scores and are 1.
std::vector<Tensor> backward_of(RecordedAttention& r, const Tensor& o, const Tensor& lse, const Tensor& z) {
  if (const CustomGradient* ring = r.g.custom_gradient_ending_at(r.last)) {
    std::vector<Tensor> in, out{o, lse};
    for (const ValueId v : ring->in) in.push_back(r.g.tensor(v));
    for (std::size_t n = out.size(); n < ring->out.size(); ++n) {
      const Tensor weights = r.g.tensor(ring->out[n]);
      out.push_back(full(r.g, weights.shape(), 1, weights.dtype()));
    }
    std::vector<Tensor> all = ring->backward(in, out, {z, full(r.g, lse.shape(), 0, lse.dtype())});
    all.resize(3);  // others are of numbers of keys
    return all;
  }
  const Node& node = r.g.node_of(r.out.o.id());
  const std::vector<Tensor> in{r.q, r.k, r.v}, out{o, lse}, cotangents{z, {}};
  const std::vector<bool> needed(3, true);
  return node.op->vjp({in, out, cotangents, node.attrs, needed});
}

}  // namespace

RecordedAttention::RecordedAttention(const AttentionCell& c, const Settings& settings, bool materialises,
                                     int calls, int ranks)
    : calls_(calls), ranks_(ranks) {
  for (int n = 0; n < calls; ++n) {
    q = add_input("q", {c.B, c.H, c.L / ranks, c.d}, settings);
    c.page > 0 ? record_paged(c, settings) : record(c, settings, materialises);
    last = static_cast<NodeId>(g.nodes().size() - 1);
    outputs.push_back(out.o), outputs.push_back(out.lse);
  }
}

void RecordedAttention::record(const AttentionCell& c, const Settings& settings, bool materialises) {
  k = add_input("k", {c.B, c.Hk, c.T / ranks_, c.d}, settings);
  v = c.v_in_k ? k.slice(3, 0, c.dv) : add_input("v", {c.B, c.Hk, c.T / ranks_, c.dv}, settings);
  AttentionOptions options = options_for(c, settings);
  if (c.length > 0 || c.ragged) options.kv_lengths = g.constant(Array::of(c.lengths()));
  out = materialises ? standard_attn(q, k, v, options) : ring_attention(q, k, v, ranks_, options);
}

// Pages of the texts lie in the pool in random order.
void RecordedAttention::record_paged(const AttentionCell& c, const Settings& settings) {
  const std::int64_t n = (c.T + c.page - 1) / c.page;
  std::vector<std::int32_t> pages(static_cast<std::size_t>(c.B * n));
  std::iota(pages.begin(), pages.end(), 1);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  const Tensor table = g.constant(Array::of({c.B, n}, pages)), lengths = g.constant(Array::of(c.lengths()));
  const auto pool = [&](const char* name, std::int64_t size) {
    return inputs_.emplace_back(g.input(name, {1 + c.B * n, c.page, c.Hk, size}, settings.dtype));
  };
  k = pool("k", c.d);
  v = c.v_in_k ? k.slice(3, 0, c.dv) : pool("v", c.dv);
  out = paged_attn(q, k, v, table, lengths,
                   {.window_left = c.window, .softcap = static_cast<double>(c.softcap)});
}

Tensor RecordedAttention::add_input(const char* name, const Shape& shape, const Settings& settings) {
  if (!settings.attention.by_token) return inputs_.emplace_back(g.input(name, shape, settings.dtype));
  const Shape in_memory{shape[0], shape[2], shape[1], shape[3]};
  return inputs_.emplace_back(g.input(name, in_memory, settings.dtype)).permute(heads_inside);
}

void RecordedAttention::feed(Program& program) const {
  const std::size_t each = inputs_.size() / static_cast<std::size_t>(calls_);
  for (std::size_t i = 0; i < each; ++i) {
    const Array x = normal_array(inputs_[i].shape(), inputs_[i].dtype(), i + 1);
    for (std::size_t n = i; n < inputs_.size(); n += each) program.feed({inputs_[n], x});
  }
}

Program forward_program(const AttentionCell& c, int threads, const Settings& settings, int ranks) {
  RecordedAttention r(c, settings, false, 1, ranks);
  Program program = compile(r.g, r.outputs, options_for(settings, threads, ranks));
  r.feed(program);
  return program;
}

Program backward_program(const AttentionCell& c, int threads, const Settings& settings, bool real,
                         int ranks) {
  RecordedAttention r(c, settings, false, 1, ranks);
  const CompileOptions options = options_for(settings, threads, ranks);
  const Tensor o_in_memory = r.out.o.permute(heads_inside);
  const Tensor o = r.g.input("o", o_in_memory.shape(), settings.dtype),
               z = r.g.input("z", o.shape(), settings.dtype),
               lse = r.g.input("lse", r.out.lse.shape(), r.out.lse.dtype());
  Program program =
      compile(r.g, backward_of(r, o.permute(heads_inside), lse, z.permute(heads_inside)), options);
  r.feed(program);
  program.feed({z, normal_array(z.shape(), z.dtype(), 4)});
  if (!real) {
    program.feed({o, normal_array(o.shape(), o.dtype(), 5)});
    program.feed({lse, normal_array(lse.shape(), lse.dtype(), 6)});
    return program;
  }
  Program before = compile(r.g, {o_in_memory, r.out.lse}, options);
  r.feed(before);
  before.run();
  program.feed({o, before.fetch(o_in_memory)});
  program.feed({lse, before.fetch(r.out.lse)});
  return program;
}

Program both_program(const AttentionCell& c, int threads, const Settings& settings, int ranks) {
  RecordedAttention r(c, settings, false, 1, ranks);
  const Tensor z = r.g.input("z", r.out.o.shape(), settings.dtype);
  Program program =
      compile(r.g, gradients(r.out.o, {r.q, r.k, r.v}, z), options_for(settings, threads, ranks));
  r.feed(program);
  program.feed({z, normal_array(z.shape(), z.dtype(), 4)});
  return program;
}

Program materialised_program(const AttentionCell& c, bool with_backward, const Settings& settings) {
  RecordedAttention r(c, settings, true);
  std::vector<Tensor> outputs{r.out.o};
  if (!with_backward) {
    Program program = compile(r.g, outputs, options_of(settings, settings.threads));
    r.feed(program);
    return program;
  }
  const Tensor z = r.g.input("z", r.out.o.shape(), settings.dtype);
  for (const Tensor& t : gradients(r.out.o, {r.q, r.k, r.v}, z)) outputs.push_back(t);
  Program program = compile(r.g, outputs, options_of(settings, settings.threads));
  r.feed(program);
  program.feed({z, normal_array(z.shape(), z.dtype(), 4)});
  return program;
}

}  // namespace tg::bench
