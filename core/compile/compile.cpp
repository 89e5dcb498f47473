#include <tilegrad/core/compile/compile.h>

#include <algorithm>

#include "core/compile/join.h"
#include "core/compile/merge.h"
#include "core/compile/planner.h"
#include "core/run/program_state.h"

namespace tg {

namespace {

// Fetched tensors up to this size lie side by side, so that one copy brings them to the host.
constexpr std::size_t small_result = 1024;

// One buffer of the program. Arena buffers live from step `first` to step `last`; the others always.
struct Buffer {
  enum Kind { arena, result, input, constant, parameter } kind = arena;
  std::size_t bytes = 0;
  int first = 0, last = -1;
  std::byte* memory = nullptr;
  std::size_t offset = 0;  // in the arena, or in the block of leaves and results
};

// The last step that reads a parameter, and as which of its inputs.
struct Reads {
  int step = -1;
  std::vector<std::size_t> inputs;
};

Device device_of(const Graph& graph, const CompileOptions& options) {
  if (options.device) return *options.device;
  if (!options.assign.empty()) return options.assign[0].target.device();
  for (const Node& n : graph.nodes())
    if (n.op == &parameter_op) return n.attrs.as<ParameterAttrs>().parameter.device();
  return Device::cpu();
}

std::size_t rounded(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

class Compiler {
 public:
  Compiler(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
           bool poison)
      : graph_(graph),
        options_(options),
        device_(device_of(graph, options)),
        reuse_(reuse),
        poison_(poison),
        state_(std::make_shared<Program::State>()) {
    state_->graph = graph.share();
    state_->backend = &backend(device_);
    state_->device = device_;
    state_->prepared = {options.threads, options.tf32, options.verify};
    take_wanted(fetch);
    lowered_ = lower(graph_, wanted_, options.fuse);
    inside_ = join_in_place(graph_, lowered_, wanted_);
    if (options.fuse) merge_fused(graph_, lowered_, wanted_);
    append_copies();
    make_buffers();
    share_buffers();
    place_and_bind(fetch);
  }

  std::shared_ptr<Program::State> take() { return state_; }

  // Every buffer, for the log: the arena's in the order of their first step, then the others.
  std::vector<PlannedBuffer> plan() const {
    constexpr const char* names[] = {"arena", "result", "input", "constant", "parameter"};
    std::vector<PlannedBuffer> all;
    for (const Buffer& b : buffers_) all.push_back({names[b.kind], "", b.bytes, b.offset, b.first, b.last});
    std::vector<int> held(buffers_.size());
    for (ValueId v = 0; v < buffer_of_.size(); ++v) {
      if (buffer_of_[v] < 0 || value(v).root != v) continue;
      const auto at = static_cast<std::size_t>(buffer_of_[v]);
      if (held[at]++ == 0) all[at].holds = text_of(v);
    }
    for (std::size_t i = 0; i < all.size(); ++i)
      if (held[i] > 1) all[i].holds += " and " + std::to_string(held[i] - 1) + " more";
    std::erase_if(all, [](const PlannedBuffer& b) { return b.bytes == 0; });
    std::stable_sort(all.begin(), all.end(), [](const PlannedBuffer& a, const PlannedBuffer& b) {
      const bool in_arena = a.kind == "arena";
      return in_arena != (b.kind == "arena") ? in_arena : in_arena && a.first < b.first;
    });
    return all;
  }

 private:
  const Value& value(ValueId v) const { return graph_.values()[v]; }

  void check(const Assign& a) const {
    if (!a.value.defined() || a.value.graph() != graph_)
      throw Error("[compile] the value for " + a.target.name() + " is not a tensor of this graph");
    if (a.value.shape() != a.target.shape())
      throw ShapeError("[compile] " + a.target.name() + " has shape " + a.target.shape().text() +
                       ", its new value " + a.value.shape().text());
    if (a.value.dtype() != a.target.dtype())
      throw DTypeError("[compile] " + a.target.name() + " is " + std::string(name_of(a.target.dtype())) +
                       ", its new value " + std::string(name_of(a.value.dtype())));
  }

  // A value that looks into a parameter which this program assigns must be copied before the parameter
  // changes.
  ValueId before_assignment(const Tensor& t) {
    const Node& maker = graph_.node_of(value(t.id()).root);
    if (maker.op != &parameter_op) return t.id();
    for (const Assign& a : options_.assign)
      if (a.target.key() == maker.attrs.as<ParameterAttrs>().parameter.key()) return copy_of(t);
    return t.id();
  }

  ValueId copy_of(const Tensor& t) {
    const Node& maker = graph_.node_of(t.id());
    return graph_.record(copy_op, std::span(&t, 1), {}, maker.where)[0].id();
  }

  void take_wanted(const std::vector<Tensor>& fetch) {
    for (const Tensor& t : fetch) {
      if (!t.defined() || t.graph() != graph_)
        throw Error("[compile] a fetched tensor is not of this graph");
      fetch_values_.push_back(before_assignment(t));
      wanted_.push_back(fetch_values_.back());
    }
    for (const Assign& a : options_.assign) {
      check(a);
      assign_values_.push_back(before_assignment(a.value));
      wanted_.push_back(assign_values_.back());
    }
  }

  static constexpr ValueId to_parameter =
      ~ValueId{0};  // stands for "the assigned parameter" as a copy's output

  // Each assignment becomes either a producer that writes straight into the parameter, or a copy at the end.
  void append_copies() {
    steps_before_copies_ = static_cast<int>(lowered_.size());
    direct_.assign(options_.assign.size(), false);
    if (options_.assign.empty()) return;
    std::unordered_map<ValueId, int> producer;
    std::unordered_map<const void*, Reads> last_read;  // of each parameter
    std::unordered_map<ValueId, int> wanted_count;
    for (ValueId v : wanted_) ++wanted_count[value(v).root];
    for (int s = 0; s < steps_before_copies_; ++s) {
      for (ValueId v : lowered_[s].out) producer[v] = s;
      for (std::size_t i = 0; i < lowered_[s].in.size(); ++i) {
        const Node& maker = graph_.node_of(value(lowered_[s].in[i]).root);
        if (maker.op != &parameter_op) continue;
        Reads& r = last_read[maker.attrs.as<ParameterAttrs>().parameter.key()];
        if (r.step != s) r = {s, {}};
        r.inputs.push_back(i);
      }
    }
    for (std::size_t i = 0; i < options_.assign.size(); ++i) {
      const Assign& a = options_.assign[i];
      const ValueId v = assign_values_[i];
      const auto made = producer.find(v);
      const auto read = last_read.find(a.target.key());
      const bool whole = made != producer.end() && value(v).root == v && value(v).layout.is_contiguous() &&
                         value(v).layout.offset == 0 && wanted_count[v] == 1;
      direct_[i] = whole && (read == last_read.end() || read->second.step < made->second ||
                             (read->second.step == made->second && may_overwrite(read->second, v)));
      if (!direct_[i]) lowered_.push_back({&copy_op, {}, {v}, {to_parameter}, value(v).node});
    }
  }

  // Whether the step that reads a parameter may write output v over its memory meanwhile.
  bool may_overwrite(const Reads& r, ValueId v) const {
    return std::all_of(r.inputs.begin(), r.inputs.end(),
                       [&](std::size_t i) { return same_place(lowered_[r.step], v, i); });
  }

  // Output v may take the place of input i: allowed by the op, and element for element the same layout.
  bool same_place(const LoweredStep& s, ValueId v, std::size_t i) const {
    const Value &in = value(s.in[i]), &out = value(v);
    if (in.dtype != out.dtype || !(in.layout == out.layout)) return false;
    if (s.op->pointwise) return true;
    return s.op->may_share(static_cast<int>(v - s.out[0]), static_cast<int>(i));  // outputs are in sequence
  }

  // The value in whose memory v lies.
  ValueId owner_of(ValueId v) const {
    const auto found = inside_.find(value(v).root);
    return found == inside_.end() ? value(v).root : found->second.whole;
  }

  void make_buffers() {
    buffer_of_.assign(graph_.values().size(), -1);
    const auto buffer_for = [&](ValueId v, int step) {
      const ValueId root = owner_of(v);
      if (buffer_of_[root] < 0) {
        buffer_of_[root] = static_cast<int>(buffers_.size());
        Buffer b;
        b.bytes = static_cast<std::size_t>(value(root).layout.extent()) * size_of(value(root).dtype);
        b.first = step;
        const Node& maker = graph_.node_of(root);
        if (maker.op == &parameter_op) {
          b.kind = Buffer::parameter;
          b.memory = use(maker.attrs.as<ParameterAttrs>().parameter);
        } else if (maker.op == &constant_op) {
          b.kind = Buffer::constant;
        } else if (maker.op->leaf) {
          b.kind = Buffer::input;
        }
        buffers_.push_back(b);
      }
      Buffer& b = buffers_[buffer_of_[root]];
      b.last = std::max(b.last, step);
      buffer_of_[value(v).root] = buffer_of_[root];
    };
    for (std::size_t i = 0; i < options_.assign.size(); ++i) {
      if (!direct_[i]) continue;
      Buffer b;
      b.kind = Buffer::parameter;
      b.memory = use(options_.assign[i].target);
      buffer_of_[assign_values_[i]] = static_cast<int>(buffers_.size());
      buffers_.push_back(b);
    }
    for (int s = 0; s < static_cast<int>(lowered_.size()); ++s) {
      for (ValueId v : lowered_[s].out)
        if (v != to_parameter) buffer_for(v, s);
      for (ValueId v : lowered_[s].in) buffer_for(v, s);
    }
    for (ValueId v : wanted_) buffer_for(v, static_cast<int>(lowered_.size()));
    for (ValueId v : fetch_values_) {
      Buffer& b = buffers_[buffer_of_[value(v).root]];
      if (b.kind == Buffer::arena && b.bytes <= small_result) b.kind = Buffer::result;
    }
  }

  std::byte* use(const Parameter& p) {
    if (!(p.device() == device_))
      throw DeviceError("[compile] parameter " + p.name() + " lives on " + p.device().text() +
                        ", the program runs on " + device_.text());
    for (const Parameter& known : state_->parameters)
      if (known.key() == p.key()) return p.memory();
    state_->parameters.push_back(p);
    state_->memory.parameters += rounded(p.bytes());
    return p.memory();
  }

  // In place: an output takes over the buffer of an input that dies at its step.
  void share_buffers() {
    if (!reuse_) return;
    for (int s = 0; s < static_cast<int>(lowered_.size()); ++s) {
      const LoweredStep& step = lowered_[s];
      std::vector<int> taken;
      for (ValueId v : step.out) {
        if (v == to_parameter || inside_.contains(v) || buffers_[buffer_of_[v]].kind != Buffer::arena)
          continue;
        for (std::size_t i = 0; i < step.in.size(); ++i) {
          const ValueId root = value(step.in[i]).root;
          const int from = buffer_of_[root], mine = buffer_of_[v];
          Buffer& b = buffers_[from];
          if (from == mine || b.kind != Buffer::arena || b.last != s || b.first == s) continue;
          if (b.bytes != buffers_[mine].bytes || !all_same_place(step, v, from)) continue;
          if (std::find(taken.begin(), taken.end(), from) != taken.end()) continue;
          b.last = buffers_[mine].last;
          buffers_[mine].bytes = 0;
          buffers_[mine].last = buffers_[mine].first;
          buffer_of_[v] = from;
          taken.push_back(from);
          break;
        }
      }
    }
  }

  bool all_same_place(const LoweredStep& step, ValueId v, int buffer) const {
    for (std::size_t i = 0; i < step.in.size(); ++i)
      if (buffer_of_[value(step.in[i]).root] == buffer && !same_place(step, v, i)) return false;
    return true;
  }

  Arg arg(ValueId v) const {
    const auto found = inside_.find(v);
    return {value(v).dtype, found == inside_.end() ? value(v).layout : found->second.layout, nullptr};
  }

  // A leaf's name or the op that makes it, dtype and shape.
  std::string text_of(ValueId v) const {
    const Node& maker = graph_.node_of(v);
    std::string name = graph_.name_of(maker);
    name += (name.empty() ? "" : "/") + maker.op->name;
    if (maker.op == &input_op) name = maker.attrs.as<InputAttrs>().name;
    if (maker.op == &parameter_op) name = maker.attrs.as<ParameterAttrs>().parameter.name();
    return name + " " + std::string(name_of(value(v).dtype)) + value(v).layout.shape.text();
  }

  void make_steps() {
    std::size_t next_copy = 0;
    std::vector<std::size_t> copies;  // indices of assignments made by copies, in order
    for (std::size_t i = 0; i < direct_.size(); ++i)
      if (!direct_[i]) copies.push_back(i);
    for (const LoweredStep& l : lowered_) {
      const Node& node = graph_.nodes()[l.node];
      Step step{l.op, l.attrs, {}, {}, graph_.name_of(node), node.where};
      step.name += (step.name.empty() ? "" : "/") + (l.op == &fused_op ? node.op->name : l.op->name);
      step.in.reserve(l.in.size());
      step.out.reserve(l.out.size());
      for (ValueId v : l.in) step.in.push_back(arg(v));
      for (ValueId v : l.out) {
        if (v == to_parameter) {
          const Parameter& target = options_.assign[copies[next_copy++]].target;
          step.out.push_back({target.dtype(), row_major(target.shape()), use(target)});
        } else {
          step.out.push_back(arg(v));
        }
      }
      if (l.op == &copy_op && step.in.size() == 1) as_fused(step);
      state_->steps.push_back(std::move(step));
    }
  }

  // A copy made by the compiler, in the form pointwise kernels take.
  static void as_fused(Step& step) {
    const DType t = step.out[0].dtype;
    step.op = &fused_op;
    step.attrs = FusedAttrs{compute_type(t), {{&copy_op, t, 1, {{FusedAttrs::Operand::input, 0}}}}, {}};
  }

  void place_and_bind(const std::vector<Tensor>& fetch) {
    make_steps();
    // Arena buffers, in order of their first step.
    std::vector<int> order;
    for (int i = 0; i < static_cast<int>(buffers_.size()); ++i)
      if (buffers_[i].kind == Buffer::arena && buffers_[i].bytes > 0) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return buffers_[a].first < buffers_[b].first; });
    std::vector<Lifetime> lives;
    for (int i : order) lives.push_back({buffers_[i].bytes, buffers_[i].first, buffers_[i].last});
    const Placement placement = plan_memory(lives, reuse_);
    for (std::size_t i = 0; i < order.size(); ++i) {
      Buffer& b = buffers_[order[i]];
      b.offset = placement.offset[i];
      state_->buffers.push_back({b.offset, rounded(b.bytes), b.first, b.last});
    }
    state_->outputs = wanted_;

    MemoryReport& m = state_->memory;
    m.arena = placement.peak;
    m.alive = placement.alive;
    m.results = state_->backend->status_bytes();
    for (const Buffer& b : buffers_) {
      if (b.kind == Buffer::input) m.inputs += rounded(b.bytes);
      if (b.kind == Buffer::constant) m.constants += rounded(b.bytes);
      if (b.kind == Buffer::result) m.results += rounded(b.bytes);
    }
    const std::size_t leaves = m.inputs + m.constants + m.results;
    if (options_.plan_only) {
      m.workspace = state_->backend->prepare(state_->steps, state_->prepared)->workspace_bytes();
      return;
    }
    if (const std::size_t free = state_->backend->available_bytes(); m.arena + leaves > free)
      throw OutOfMemory("[compile] the program needs " + std::to_string(m.arena >> 20) +
                        " MiB for intermediate results and " + std::to_string(leaves >> 20) +
                        " MiB for inputs and constants; " + std::to_string(free >> 20) + " MiB are free");
    state_->block = state_->backend->allocate(m.arena, "the program's intermediate results");
    state_->leaf_block = state_->backend->allocate(leaves, "the program's inputs and constants");
    for (std::size_t i = 0; i < order.size(); ++i)
      buffers_[order[i]].memory = state_->block.get() + buffers_[order[i]].offset;
    const ProgramMemory given = place_others();
    bind_leaves();
    bind_steps();
    if (poison_) add_poison(order, given);
    state_->executable = state_->backend->prepare(state_->steps, state_->prepared);
    m.workspace = state_->executable->workspace_bytes();
    state_->workspace = state_->backend->allocate(m.workspace, "the kernels' workspace");
    state_->executable->bind(state_->steps, {state_->workspace.get(), given.results, given.results_bytes});
    for (std::size_t i = 0; i < fetch.size(); ++i) {
      Arg a = arg(fetch_values_[i]);
      a.data = address(fetch_values_[i]);
      state_->fetched.emplace_back(fetch[i].id(), a);
    }
    for (const Assign& a : options_.assign) state_->assigned.push_back(a.target);
  }

  // Inputs in the order they were recorded in, the state of random numbers after them: a feed of all of them
  // is one stretch of memory. Then results, behind the executable's status, and constants. Returns where the
  // results are.
  ProgramMemory place_others() {
    std::byte* next = state_->leaf_block.get();
    const auto place = [&](Buffer& b) {
      b.memory = next;
      b.offset = static_cast<std::size_t>(next - state_->leaf_block.get());
      next += rounded(b.bytes);
    };
    for (const bool rng : {false, true})
      for (ValueId v = 0; v < buffer_of_.size(); ++v)
        if (buffer_of_[v] >= 0 && value(v).root == v && buffers_[buffer_of_[v]].kind == Buffer::input &&
            (graph_.node_of(v).op == &rng_op) == rng)
          place(buffers_[buffer_of_[v]]);
    const ProgramMemory given{nullptr, next, state_->memory.results};
    next += state_->backend->status_bytes();
    for (Buffer::Kind kind : {Buffer::result, Buffer::constant})
      for (Buffer& b : buffers_)
        if (b.kind == kind) place(b);
    return given;
  }

  std::byte* address(ValueId v) const {
    const Buffer& b = buffers_[buffer_of_[value(v).root]];
    return b.memory + arg(v).layout.offset * static_cast<std::int64_t>(size_of(value(v).dtype));
  }

  void bind_leaves() {
    for (ValueId v = 0; v < buffer_of_.size(); ++v) {
      if (buffer_of_[v] < 0 || value(v).root != v) continue;
      const Node& maker = graph_.node_of(v);
      Buffer& b = buffers_[buffer_of_[v]];
      if (maker.op == &constant_op)
        state_->backend->write(b.memory, maker.attrs.as<ConstantAttrs>().value.raw(), b.bytes);
      if (maker.op == &input_op) {
        Arg a = arg(v);
        a.data = b.memory;
        const bool empty = numel(a.layout.shape) == 0;
        state_->inputs.push_back({v, a, empty});
        state_->not_fed += !empty;
      }
      if (maker.op == &rng_op) state_->rng = b.memory;
    }
  }

  void bind_steps() {
    for (std::size_t s = 0; s < lowered_.size(); ++s) {
      for (std::size_t i = 0; i < lowered_[s].in.size(); ++i)
        state_->steps[s].in[i].data = address(lowered_[s].in[i]);
      for (std::size_t i = 0; i < lowered_[s].out.size(); ++i)
        if (lowered_[s].out[i] != to_parameter) state_->steps[s].out[i].data = address(lowered_[s].out[i]);
    }
  }

  // Fills every arena buffer with bytes that are NaN in each floating type right after its last step, and the
  // whole arena and the results before the first.
  void add_poison(const std::vector<int>& order, const ProgramMemory& given) {
    std::vector<Step> steps;
    const auto fill = [&](std::byte* memory, std::size_t bytes) {
      const Shape shape{static_cast<std::int64_t>(bytes)};
      steps.push_back(
          {&full_op, FullAttrs{shape, 255, u8}, {}, {{u8, row_major(shape), memory}}, "poison", {}});
    };
    fill(state_->block.get(), state_->memory.arena);
    const std::size_t status = state_->backend->status_bytes();
    fill(given.results + status, given.results_bytes - status);
    std::vector<std::vector<int>> dying(lowered_.size() + 1);
    for (int i : order) dying[buffers_[i].last].push_back(i);
    for (std::size_t s = 0; s < lowered_.size(); ++s) {
      steps.push_back(std::move(state_->steps[s]));
      for (int i : dying[s]) fill(buffers_[i].memory, buffers_[i].bytes);
    }
    state_->steps = std::move(steps);
  }

  Graph& graph_;
  const CompileOptions& options_;
  const Device device_;
  const bool reuse_, poison_;
  std::shared_ptr<Program::State> state_;
  std::vector<ValueId> fetch_values_, assign_values_, wanted_;
  std::vector<LoweredStep> lowered_;
  std::unordered_map<ValueId, Inside> inside_;  // values that lie inside another's memory
  int steps_before_copies_ = 0;
  std::vector<bool> direct_;  // per assignment: its producer writes the parameter itself
  std::vector<Buffer> buffers_;
  std::vector<int> buffer_of_;
};

}  // namespace

Program compile(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options) {
  std::unique_ptr<ProgramLog> log = ProgramLog::begin();
  Compiler compiler(graph, fetch, options, options.reuse, options.verify);
  auto state = compiler.take();
  if (log) log->compiled(*state, log->level() >= 3 ? compiler.plan() : std::vector<PlannedBuffer>());
  state->log = std::move(log);
  if (options.verify && !options.plan_only) state->twin = Compiler(graph, fetch, options, false, true).take();
  return Program(std::move(state));
}

std::vector<Array> eval(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds,
                        const CompileOptions& options) {
  if (ts.empty()) return {};
  Program program = compile(ts[0].graph(), ts, options);
  program.run(feeds);
  std::vector<Array> out;
  for (const Tensor& t : ts) out.push_back(program.fetch(t));
  return out;
}

Array eval(const Tensor& t, const std::vector<Feed>& feeds, const CompileOptions& options) {
  return eval(std::vector<Tensor>{t}, feeds, options)[0];
}

}  // namespace tg
