#include "core/compile/buffers.h"

#include <algorithm>

#include "core/compile/fused_reductions.h"
#include "core/compile/scheduler.h"

namespace tg {

namespace {

// Fetched results of at most this number of bytes are stored together. One copy then transfers all of them to
// the host.
constexpr std::size_t small_result = 1024;

// Visits the steps in order and creates a buffer for each new value.
class BufferList {
 public:
  BufferList(const Graph& graph, const Joined& joined) : graph_(graph), joined_(joined) {
    made_.of.assign(graph.values().size(), -1);
  }

  void in_parameter(ValueId v, const Parameter& target) {
    made_.of[v] = static_cast<int>(made_.list.size());
    made_.list.push_back({.kind = Buffer::parameter, .owner = target});
  }

  void use(ValueId v, int step) {
    const ValueId root = graph_.values()[v].root;
    const auto found = joined_.find(root);
    const ValueId owner = found == joined_.end() ? root : found->second.whole;
    if (made_.of[owner] < 0) {
      made_.of[owner] = static_cast<int>(made_.list.size());
      made_.list.push_back(buffer_for(owner, step));
    }
    Buffer& b = made_.list[made_.of[owner]];
    b.last = std::max(b.last, step);
    made_.of[root] = made_.of[owner];
  }

  void fetch(ValueId v) {
    Buffer& b = made_.list[made_.of[graph_.values()[v].root]];
    if (b.kind == Buffer::arena && b.bytes <= small_result) b.kind = Buffer::result;
  }

  Buffers result() { return std::move(made_); }

 private:
  Buffer buffer_for(ValueId v, int step) const {
    const Value& value = graph_.values()[v];
    const Node& maker = graph_.node_of(v);
    Buffer b{.bytes = static_cast<std::size_t>(value.layout.extent()) * size_of(value.dtype), .first = step};
    if (maker.op == &parameter_op) {
      b.kind = Buffer::parameter;
      b.owner = maker.attrs.as<ParameterAttrs>().parameter;
    } else if (maker.op->leaf) {
      b.kind = maker.op == &constant_op ? Buffer::constant : Buffer::input;
    }
    return b;
  }

  const Graph& graph_;
  const Joined& joined_;
  Buffers made_;
};

// Whether `next` reads rows that the preceding index_assign writes. An example is attention that reads a
// cache. One kernel may then compute both steps, so the assigned values stay in memory until `next` has
// finished.
bool reads_assigned_value(const Graph& graph, const LoweredStep& assign, const LoweredStep& next) {
  if (!assign.op->assigns) return false;
  return std::any_of(next.in.begin(), next.in.end(), [&](ValueId v) {
    return std::ranges::find(assign.out, graph.values()[v].root) != assign.out.end();
  });
}

// Whether `next` is an epilogue that a backend may compute in the preceding GEMM. The backend does not
// compute it in the GEMM if the epilogue would overwrite operands of the GEMM. The decision affects rounding,
// so it must not depend on buffer offsets. A GEMM that adds a whole matrix never computes an epilogue.
bool may_round_otherwise(const Graph& graph, const LoweredStep& product, const LoweredStep& next) {
  return is_rounding_epilogue(graph, product, next) && graph.values()[next.in[0]].root == product.out[0] &&
         (product.in.size() < 3 ||
          graph.values()[product.in[2]].layout.numel() < graph.values()[product.out[0]].layout.numel());
}

}  // namespace

Buffers buffers_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                   const Outputs& outputs, const std::vector<Assign>& assign,
                   const std::vector<bool>& directly) {
  BufferList buffers(graph, joined);
  for (std::size_t i = 0; i < assign.size(); ++i)
    if (directly[i]) buffers.in_parameter(outputs.assigned[i], assign[i].target);
  // Per step: the last step that a kernel may compute together with it. The inputs may be read until that
  // step.
  std::vector<int> end(steps.size());
  for (int s = static_cast<int>(steps.size()); s-- > 0;) end[s] = steps[s].with_next ? end[s + 1] : s;
  for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
    for (ValueId v : steps[s].out) buffers.use(v, s);
    for (ValueId v : steps[s].in) buffers.use(v, end[s]);
    if (s > 0 && reads_assigned_value(graph, steps[s - 1], steps[s]))
      for (std::size_t i = 1; i < steps[s - 1].in.size(); i += 2) buffers.use(steps[s - 1].in[i], s);
    if (s > 0 && may_round_otherwise(graph, steps[s - 1], steps[s]))
      for (ValueId v : steps[s - 1].in) buffers.use(v, s);
  }
  for (ValueId v : outputs.all()) buffers.use(v, static_cast<int>(steps.size()));
  for (ValueId v : outputs.fetched) buffers.fetch(v);
  return buffers.result();
}

bool can_overwrite(const Graph& graph, const LoweredStep& step, ValueId v, std::size_t input) {
  const Value &in = graph.values()[step.in[input]], &out = graph.values()[v];
  if (in.dtype != out.dtype || !(in.layout == out.layout)) return false;
  if (step.op->pointwise || step.op == &fused_reduction_op) return true;
  // A node's outputs have consecutive numbers.
  return step.op->may_share(static_cast<int>(v - step.out[0]), static_cast<int>(input));
}

void share_in_place(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                    Buffers& buffers) {
  const auto root_of = [&](ValueId v) { return graph.values()[v].root; };
  // Whether output v may overwrite every input of the step in this buffer.
  const auto can_overwrite_all = [&](const LoweredStep& step, ValueId v, int buffer) {
    for (std::size_t i = 0; i < step.in.size(); ++i)
      if (buffers.of[root_of(step.in[i])] == buffer && !can_overwrite(graph, step, v, i)) return false;
    return true;
  };
  for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
    const LoweredStep& step = steps[s];
    std::vector<int> reused;  // by the outputs of this step so far
    for (ValueId v : step.out) {
      Buffer& own = buffers.list[buffers.of[v]];
      if (joined.contains(v) || own.kind != Buffer::arena) continue;
      for (ValueId input : step.in) {
        const int from = buffers.of[root_of(input)];
        Buffer& b = buffers.list[from];
        if (b.kind != Buffer::arena || b.last != s) continue;
        if (b.bytes != own.bytes || !can_overwrite_all(step, v, from)) continue;
        if (std::find(reused.begin(), reused.end(), from) != reused.end()) continue;
        b.last = own.last;
        own.bytes = 0;
        own.last = own.first;
        buffers.of[v] = from;
        reused.push_back(from);
        break;
      }
    }
  }
}

std::vector<Parameter> parameters_of(const Buffers& buffers, std::span<const LoweredStep> steps,
                                     Device device) {
  std::vector<Parameter> all;
  const auto add = [&](const Parameter& p) {
    if (!(p.device() == device))
      throw DeviceError("[compile] parameter " + p.name() + " lives on " + p.device().text() +
                        ", the program runs on " + device.text());
    const auto same = [&](const Parameter& known) { return known.key() == p.key(); };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(p);
  };
  for (const Buffer& b : buffers.list)
    if (b.kind == Buffer::parameter) add(b.owner);
  for (const LoweredStep& s : steps)
    if (s.target) add(*s.target);
  return all;
}

}  // namespace tg
