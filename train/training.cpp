#include <tilegrad/train/training.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <tilegrad/core/report/bad_node.h>
#include <tilegrad/core/run/cost.h>
#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/ops/ranks.h>
#include "core/base/alignment.h"
#include "core/compile/budget.h"
#include "core/run/arena_use.h"
#include "train/gradient_tree.h"
#include "train/local_tokens.h"

namespace tg::train {

namespace {

std::shared_ptr<const LocalTokens> local_tokens(const nn::LanguageModel& model,
                                                const ProgramOptions& options) {
  check_options<ShapeError>("training", {{"batch", options.batch, Range::whole_from(1)},
                                         {"the model's context", model.context, Range::whole_from(1)},
                                         {"threads", options.threads, Range::whole_from(0)}});
  return std::make_shared<LocalTokens>(options.context_parallel ? options.ranks.get() : nullptr,
                                       model.context);
}

Tensor token_input(Graph& graph, const char* name, const ProgramOptions& options, const LocalTokens& own,
                   const Where& where) {
  return graph.input(name, {options.batch, own.in_row()}, i32, where);
}

// Returns the mean loss of a training step.
Tensor model_loss(const nn::LanguageModel& model, TensorArg tokens, const Tensor& targets,
                  const ProgramOptions& o, const LocalTokens& own, std::int64_t chunks,
                  nn::LowPrecisionCopies* copies) {
  const nn::ContextParallel parallel(tokens.tensor().graph(), own.ranks());
  const nn::Autocast autocast(tokens.tensor().graph(), o.precision, true, copies);
  const Tensor x = model.features_of(tokens, {.mode = nn::Mode::train, .recompute = o.recompute});
  const std::int64_t rows = targets.numel();
  return model.loss_of({x, tokens.where()}, targets,
                       {.chunk_rows = chunks > 1 ? (rows - 1) / chunks + 1 : 0});
}

// Returns the logits of an evaluation.
Tensor model_logits(const nn::LanguageModel& model, TensorArg tokens, nn::Precision precision,
                    const LocalTokens& own) {
  const nn::ContextParallel parallel(tokens.tensor().graph(), own.ranks());
  const nn::Autocast autocast(tokens.tensor().graph(), precision, true);
  return model.logits(tokens, {.mode = nn::Mode::evaluate});
}

CompileOptions compile_options(const ProgramOptions& o) {
  return {.threads = o.threads,
          .tf32 = o.precision == nn::Precision::tf32,
          .arena = o.arena,
          .ranks = o.ranks,
          .verify = o.verify,
          .plan_only = o.plan_only};
}

std::vector<Tensor> results_of(const Tensor& loss, const optim::Optimizer::Update& update) {
  std::vector<Tensor> results{loss, update.grad_norm, update.skipped};
  if (update.loss_scale.defined()) results.insert(results.end(), {update.overflowed, update.loss_scale});
  return results;
}

// Returns the fraction of the step's targets that a part has. Gradients and losses of parts are weighted by
// it, so that their sums are means over all targets.
double share_of(std::span<const std::int32_t> part, std::span<const std::int32_t> targets) {
  const std::int64_t all = count_targets(targets);
  return all == 0 ? 0 : static_cast<double>(count_targets(part)) / static_cast<double>(all);
}

std::size_t bytes_of_all(const std::vector<Parameter>& parameters) {
  std::size_t bytes = 0;
  for (const Parameter& p : parameters) bytes += aligned_bytes(p.bytes());
  return bytes;
}

// The memory of a program without its parameters and the shared arena.
std::size_t own_bytes(const MemoryReport& m) {
  return m.inputs + m.constants + m.results;
}

// Returns the bytes that steps read and write.
double bytes_moved(std::span<const Step> steps) {
  double bytes = 0;
  for (const Step& s : steps) {
    for (const Arg& a : s.in) bytes += bytes_of(a);
    for (const Arg& a : s.out) bytes += bytes_of(a);
  }
  return bytes;
}

// Returns the keys of the parameters that steps read.
std::unordered_set<const void*> parameters_read(const Graph& graph) {
  std::unordered_set<const void*> keys;
  for (const Node& n : graph.nodes()) {
    if (n.op->view) continue;
    for (ValueId v : n.in)
      if (const Node& root = graph.node_of(graph.values()[v].root); root.op == &parameter_op)
        keys.insert(root.attrs.as<ParameterAttrs>().parameter.key());
  }
  return keys;
}

Program compiled(Graph& graph, const std::vector<Tensor>& results, const std::vector<Assign>& assign,
                 const ProgramOptions& o) {
  CompileOptions options = compile_options(o);
  options.assign = assign, options.memory_budget = o.memory_budget, options.memory_held = o.memory_held;
  return compile(graph, results, options);
}

}  // namespace

TrainingProgram::TrainingProgram(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                                 const ProgramOptions& options, std::uint64_t seed, const Where& where)
    : TrainingProgram(model, optimizer, options, variant_for(model, optimizer, options, where), seed, where) {
}

// Tries several numbers of chunks, each twice the previous number. With more chunks, more bytes are moved but
// less must be recomputed.
TrainingProgram::Variant TrainingProgram::variant_for(const nn::LanguageModel& model,
                                                      const optim::Optimizer& optimizer,
                                                      const ProgramOptions& options, const Where& where) {
  constexpr std::int64_t most = 64, least_rows = 128;  // GEMMs of fewer rows are slow
  check_options("training", {{"loss_chunks", options.loss_chunks, Range::whole_from(0)}});
  const std::int64_t first = std::max<std::int64_t>(1, options.loss_chunks);
  const bool may_copy = options.low_precision_copies && nn::low_precision_dtype(options.precision);
  if (options.memory_budget == 0) return {first, may_copy};
  struct Plan {
    Variant variant;
    double moved;  // by all steps, without recomputation
    MemoryReport memory;
    std::size_t nodes;  // of its graph
    // Matmuls are recomputed only if every variant requires it.
    std::pair<bool, double> rank() const {
      return {memory.recomputed.products > 0, moved + memory.recomputed.price};
    }
  };
  const auto plan_of = [&](const Variant& variant, std::size_t budget) {
    ProgramOptions o = options;
    o.plan_only = true, o.memory_budget = budget;
    const TrainingProgram p(model, optimizer, o, variant, 0, where);
    const MemoryReport memory = p.program_->memory();
    return Plan{variant, bytes_moved(p.program_->steps()) - memory.recomputed.moved, memory,
                p.graph_.nodes().size()};
  };
  std::optional<Plan> best;
  std::optional<BudgetTooSmall> refused;
  const auto try_variant = [&](const Variant& variant) -> std::optional<Plan> {
    try {
      const Plan plan = plan_of(variant, options.memory_budget);
      if (!best || plan.rank() < best->rank()) best = plan;
      return plan;
    } catch (const BudgetTooSmall& e) {
      if (!refused || e.least < refused->least) refused.emplace(e);
      return std::nullopt;
    }
  };
  const std::int64_t rows = options.batch * local_tokens(model, options)->in_row();
  std::size_t nodes = 0;  // of the previous variant
  const auto is_possible = [&](std::int64_t n) {
    return options.loss_chunks == 0 && n <= most && rows / n >= least_rows;
  };
  for (std::int64_t n = first; n == first || is_possible(n); n *= 2) {
    if (may_copy)
      if (const auto plan = try_variant({n, true}); plan && plan->memory.recomputed.steps == 0) break;
    const auto plan = try_variant({n, false});
    if (!plan) continue;
    // Either more chunks cannot help, or the model's loss has no chunks.
    if (plan->memory.recomputed.steps == 0 || plan->nodes == nodes) break;
    nodes = plan->nodes;
  }
  if (!best) throw *refused;
  Variant chosen = best->variant;
  if (chosen.chunks == 1 || options.loss_chunks > 0) return chosen;
  const Plan whole = plan_of({1, chosen.has_copies}, 0);
  chosen.moved = best->moved - whole.moved, chosen.whole = whole.memory.arena;
  return chosen;
}

TrainingProgram::TrainingProgram(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                                 const ProgramOptions& options, const Variant& variant, std::uint64_t seed,
                                 const Where& where)
    : variant_(variant),
      copies_(variant.has_copies
                  ? std::optional(nn::LowPrecisionCopies(*nn::low_precision_dtype(options.precision)))
                  : std::nullopt),
      hoist_collectives_(options.hoist_collectives),
      own_(local_tokens(model, options)),
      tokens_(token_input(graph_, "tokens", options, *own_, where)),
      targets_(token_input(graph_, "targets", options, *own_, where)),
      loss_(model_loss(model, {tokens_, where}, targets_, options, *own_, variant.chunks,
                       copies_ ? &*copies_ : nullptr)),
      seed_(seed),
      threads_(options.threads),
      accumulate_(options.accumulate),
      ranks_(options.ranks) {
  check_options("training", {{"accumulate", accumulate_, Range::whole_from(1)}});
  if (divides_batches() && accumulate_ % ranks_->size() != 0)
    throw Error("[training] accumulate is " + std::to_string(accumulate_) + ", expected a multiple of the " +
                std::to_string(ranks_->size()) + " ranks, which share the batches of a step");
  if (accumulate_ > 1 || divides_tokens()) {
    share_ = graph_.input("share", {}, compute_type(loss_.dtype()));
    loss_ = reshape(loss_, {}) * share_;
  }
  ProgramOptions shared = options;
  if (!shared.arena && (own_batches() > 1 || optimizer.shards().ranks()))
    shared.arena = std::make_shared<SharedArena>();
  own_batches() == 1 ? compile_whole(optimizer, shared) : compile_parts(optimizer, shared);
  compile_gather(optimizer, shared);
  program_->seed(seed);
}

bool TrainingProgram::divides_tokens() const {
  return own_->ranks() > 1;
}

optim::WeightReading TrainingProgram::reading_of(const optim::Optimizer& optimizer) const {
  if (!copies_) return {};
  optim::WeightReading reading{.copies = copies_->of(optimizer.parameters())};
  if (!optimizer.shards().ranks()) return reading;
  const std::unordered_set<const void*> read = parameters_read(graph_);
  for (std::size_t i = 0; i < reading.copies.size(); ++i)
    reading.only_copies.push_back(reading.copies[i].key() && !read.contains(optimizer.parameters()[i].key()));
  return reading;
}

void TrainingProgram::update_by(const optim::Optimizer& optimizer, std::vector<Tensor> sums) {
  if (optimizer.shards().ranks() && optimizer.shards().ranks() != ranks_)
    throw Error("[training] the optimizer divides its update among ranks that are not those of the program");
  if (ranks_ && !optimizer.shards().ranks()) sums = all_reduce(sums, ranks_->size(), {.wide = true});
  loss_ = sums.back();
  sums.pop_back();
  update_ = optimizer.update(
      loss_, sums,
      {.reading = reading_, .hoist_collectives = hoist_collectives_, .norm_of_blocks = accumulate_ > 1});
  loss_ = update_.loss;
  results_ = results_of(loss_, update_);
}

void TrainingProgram::compile_gather(const optim::Optimizer& optimizer, const ProgramOptions& options) {
  const std::vector<Assign> whole = optimizer.shards().whole_weights(gather_graph_, reading_);
  if (whole.empty()) return;
  ProgramOptions o = options;
  o.memory_budget = 0;
  gather_.emplace(compiled(gather_graph_, {}, whole, o));
}

// The bytes of the shards that the step does not store. Some weights have only this rank's shard in the step.
std::size_t TrainingProgram::bytes_of_missing_shards(const optim::Optimizer& optimizer) const {
  std::size_t bytes = 0;
  for (const optim::Shard& s : optimizer.shards().list()) {
    if (s.kind == optim::Shard::Kind::whole || !optim::detail::is_by_copy(reading_, s.place)) continue;
    const Parameter& p = optimizer.parameters()[s.place];
    if (s.kind == optim::Shard::Kind::piece) bytes += aligned_bytes(p.bytes());
    bytes -= aligned_bytes(static_cast<std::size_t>(s.count) * size_of(p.dtype()));
  }
  return bytes;
}

void TrainingProgram::gather_weights() {
  if (gather_ && std::exchange(is_scattered_, false)) gather_->run();
}

std::vector<Tensor> TrainingProgram::gradients_and_loss(const optim::Optimizer& optimizer) {
  std::vector<Tensor> z = optimizer.differentiate(loss_);
  reading_ = reading_of(optimizer);
  scattered_bytes_ = bytes_of_missing_shards(optimizer);
  z.push_back(loss_);
  return z;
}

void TrainingProgram::compile_whole(const optim::Optimizer& optimizer, ProgramOptions options) {
  update_by(optimizer, gradients_and_loss(optimizer));
  options.memory_held += scattered_bytes_;
  program_.emplace(compiled(graph_, results_, update_.assign, options));
}

void TrainingProgram::compile_parts(const optim::Optimizer& optimizer, ProgramOptions options) {
  const std::vector<Tensor> z = gradients_and_loss(optimizer);
  std::vector<std::string> names;
  for (const Parameter& p : optimizer.parameters()) names.push_back(p.name());
  names.push_back("loss");
  parts_ = std::make_unique<Parts>();
  parts_->sums = std::make_shared<GradientTree>(z, names, own_batches(), optimizer.parameters()[0].device());
  parts_->state_bytes = bytes_of_all(optimizer.state());
  const std::unordered_set<const void*> read = parameters_read(graph_);
  for (const Parameter& p : optimizer.parameters())
    if (!read.contains(p.key())) parts_->state_bytes += aligned_bytes(p.bytes());
  update_by(optimizer, parts_->sums->sums(parts_->graph));
  // The larger program is compiled first, so that the other program fits into its arena. With a budget, the
  // first program must know how much memory the other one needs.
  const std::size_t budget = std::exchange(options.memory_budget, 0);
  ProgramOptions batch = options;
  if (budget > 0) {
    ProgramOptions planned = options;
    planned.plan_only = true;
    const MemoryReport update = compiled(parts_->graph, results_, update_.assign, planned).memory();
    ArenaUse(*options.arena).expect(update.arena, update.workspace);
    // Leaves are parameters of the program and must not be counted twice.
    const std::size_t held = parts_->sums->bytes() - parts_->sums->leaf_bytes();
    batch.memory_budget = budget, batch.memory_held += parts_->state_bytes + held + own_bytes(update);
  }
  program_.emplace(compiled(graph_, {}, parts_->sums->leaves(), batch));
  parts_->sums->compile(compile_options(options));
  parts_->program.emplace(compiled(parts_->graph, results_, update_.assign, options));
}

// Returns the inputs for one batch of a step, including its fraction of the step's targets.
std::vector<Feed> TrainingProgram::feeds_of(std::int64_t batch, const std::vector<std::int32_t>& tokens,
                                            const std::vector<std::int32_t>& targets) const {
  const std::size_t size = batch_size(tokens, targets), from = static_cast<std::size_t>(batch) * size;
  const std::span<const std::int32_t> x = std::span(tokens).subspan(from, size),
                                      y = std::span(targets).subspan(from, size);
  if (divides_tokens()) {
    std::vector<std::int32_t> own = own_->of(y);
    const double share = share_of(own, targets);
    return {{tokens_, own_->of(x)}, {targets_, std::move(own)}, {share_, share}};
  }
  std::vector<Feed> feeds{{tokens_, x}, {targets_, y}};
  if (share_.defined()) feeds.emplace_back(share_, share_of(y, targets));
  return feeds;
}

Pending TrainingProgram::start(const std::vector<std::int32_t>& tokens,
                               const std::vector<std::int32_t>& targets, double learning_rate) {
  check_options("training", {{"learning_rate", learning_rate, optim::learning_rates}});
  const Feed rate(update_.learning_rate, learning_rate);
  is_scattered_ = true;
  if (!share_.defined()) {
    program_->run({{tokens_, tokens}, {targets_, targets}, rate});
    return program_->fetch_later(results_);
  }
  batch_size(tokens, targets);  // a rejected call does not count as a step
  const std::int64_t step = step_++, own = own_batches();
  for (std::int64_t i = 0; i < own; ++i) {
    const std::int64_t batch = first_own() + i;
    std::vector<Feed> feeds = feeds_of(batch, tokens, targets);
    if (!parts_) feeds.push_back(rate);
    // Ranks that split sequences use different step numbers, so that dropout differs.
    program_->set_step((step * accumulate_ + batch) * own_->ranks() + own_->rank());
    program_->run(feeds);
    if (i + 1 < own) parts_->sums->add(i);
  }
  if (!parts_) return program_->fetch_later(results_);
  // A batch may have failed. The update does not notice that, so its result is fetched.
  const Pending batches = program_->fetch_later({});
  parts_->program->run({rate});
  Pending updated = parts_->program->fetch_later(results_);
  updated.depend_on(batches);
  return updated;
}

std::size_t TrainingProgram::batch_size(const std::vector<std::int32_t>& tokens,
                                        const std::vector<std::int32_t>& targets) const {
  const auto size = static_cast<std::size_t>(numel(tokens_.shape()) * own_->ranks());
  const std::size_t expected = size * static_cast<std::size_t>(accumulate_);
  if (tokens.size() != expected || targets.size() != expected)
    throw ShapeError("[training] got " + std::to_string(tokens.size()) + " tokens and " +
                     std::to_string(targets.size()) + " targets, expected " + std::to_string(accumulate_) +
                     " times " + Shape{tokens_.size(0), tokens_.size(1) * own_->ranks()}.text());
  return size;
}

std::string TrainingProgram::first_bad_node(const std::vector<std::int32_t>& tokens,
                                            const std::vector<std::int32_t>& targets, std::int64_t step) {
  if (ranks_) throw Error("[training] the first bad node is looked for on one rank only");
  for (std::int64_t part = 0; part < accumulate_; ++part) {
    std::vector<Feed> feeds = feeds_of(part, tokens, targets);
    if (!parts_) feeds.emplace_back(update_.learning_rate, 0);  // 0, so that no new weight overflows
    std::string bad = tg::first_bad_node(graph_, feeds, seed_, step * accumulate_ + part, threads_);
    if (!bad.empty()) return bad;
  }
  return {};
}

void TrainingProgram::set_step(std::int64_t step) {
  std::int64_t runs = 0;
  if (step < 0 || __builtin_mul_overflow(step, accumulate_, &runs))
    throw Error("[training] step " + std::to_string(step) + " is not the number of steps run before");
  step_ = step;
  program_->set_step(runs);
}

MemoryReport TrainingProgram::memory() const {
  MemoryReport both = program_->memory();
  both.recomputed.moved += variant_.moved, both.recomputed.price += variant_.moved;
  if (variant_.whole > both.arena) both.recomputed.saved = variant_.whole - both.arena;
  // The copies are parameters, but they belong to the program.
  const std::size_t copies = copies_ ? copies_->bytes() : 0;
  both.constants += copies, both.parameters -= copies;
  if (!parts_) both.parameters += scattered_bytes_;
  if (gather_) {
    const MemoryReport gather = gather_->memory();
    both.arena = std::max(both.arena, gather.arena),
    both.workspace = std::max(both.workspace, gather.workspace);
  }
  if (!parts_) return both;
  const MemoryReport more = parts_->program->memory();  // this program uses the same arena
  both.arena = std::max(both.arena, more.arena), both.alive = std::max(both.alive, more.alive);
  both.workspace = std::max(both.workspace, more.workspace);
  both.inputs += more.inputs, both.constants += more.constants, both.results += more.results;
  both.constants += parts_->sums->bytes();
  // The leaves are counted among the first program's parameters.
  both.parameters += parts_->state_bytes - parts_->sums->leaf_bytes();
  return both;
}

TrainingProgram::Result TrainingProgram::result(const Pending& step) const {
  Result result{static_cast<float>(step.number(loss_)), step.item<float>(update_.grad_norm),
                static_cast<std::int64_t>(step.item<float>(update_.skipped))};
  if (update_.loss_scale.defined()) {
    result.overflowed = static_cast<std::int64_t>(step.item<float>(update_.overflowed));
    result.loss_scale = step.item<float>(update_.loss_scale);
  }
  return result;
}

EvaluationProgram::EvaluationProgram(const nn::LanguageModel& model, const ProgramOptions& options,
                                     const Where& where)
    : own_(local_tokens(model, options)),
      tokens_(token_input(graph_, "tokens", options, *own_, where)),
      targets_(token_input(graph_, "targets", options, *own_, where)),
      logits_(model_logits(model, {tokens_, where}, options.precision, *own_)),
      loss_(cross_entropy({logits_, where}, targets_)),
      predictions_(options.predictions ? argmax(logits_, {-1}) : Tensor()),
      results_(options.predictions ? std::vector{loss_, predictions_} : std::vector{loss_}),
      program_(compile(graph_, results_, compile_options(options))) {}

Pending EvaluationProgram::start(const std::vector<std::int32_t>& tokens,
                                 const std::vector<std::int32_t>& targets) {
  program_.run({{tokens_, own_->of(tokens)}, {targets_, own_->of(targets)}});
  return program_.fetch_later(results_);
}

std::int64_t EvaluationProgram::own_targets(const std::vector<std::int32_t>& targets) const {
  return count_targets(own_->of(targets));
}

std::size_t TrainingMemory::without_parameters() const {
  return std::max(training.arena, evaluation.arena) + std::max(training.workspace, evaluation.workspace) +
         own_bytes(training) + own_bytes(evaluation);
}

void TrainingMemory::require(std::size_t budget) const {
  if (budget == 0 || peak() <= budget) return;
  throw OutOfMemory("[training] a step and an evaluation on one arena need " + bytes_text(peak()) +
                    ", the evaluation " + bytes_text(evaluation.arena) +
                    " for intermediate results; memory_budget is " + bytes_text(budget));
}

namespace {

struct JointPlan {
  ProgramOptions options;   // see sharing_memory
  MemoryReport evaluation;  // the planned memory of the evaluation
};

JointPlan shared_by_both(const nn::LanguageModel& model, ProgramOptions options, const Where& where) {
  ProgramOptions planned = options;
  planned.plan_only = true;
  const MemoryReport evaluation = EvaluationProgram(model, planned, where).program().memory();
  if (!options.arena) options.arena = std::make_shared<SharedArena>(evaluation.arena, evaluation.workspace);
  options.memory_held += own_bytes(evaluation);
  return {std::move(options), evaluation};
}

}  // namespace

ProgramOptions sharing_memory(const nn::LanguageModel& model, ProgramOptions options, const Where& where) {
  return shared_by_both(model, std::move(options), where).options;
}

TrainingMemory plan_memory(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                           ProgramOptions options) {
  options.plan_only = true;
  const JointPlan shared = shared_by_both(model, options, Where::current());
  const TrainingProgram program(model, optimizer, shared.options);
  const TrainingMemory memory{program.memory(), shared.evaluation, program.loss_chunks()};
  memory.require(options.memory_budget);
  return memory;
}

std::int64_t largest_batch(std::int64_t too_large, std::size_t free,
                           const std::function<std::size_t(std::int64_t)>& needed) {
  if (too_large <= 1) return 0;
  std::int64_t fits = 1, over = too_large;
  auto low = static_cast<double>(needed(fits)), high = static_cast<double>(needed(over));
  const auto room = static_cast<double>(free);
  if (low > room) return 0;
  for (int i = 0; over - fits > 1; ++i) {
    // Tries the intersection of `free` with the line through both ends. Every third time it tries the middle,
    // in case memory is not linear.
    const double part = i % 3 == 2 ? 0.5 : (room - low) / std::max(high - low, 1.0);
    const double step = part * static_cast<double>(over - fits);
    const std::int64_t b = std::clamp(fits + static_cast<std::int64_t>(step), fits + 1, over - 1);
    const auto bytes = static_cast<double>(needed(b));
    if (bytes <= room)
      fits = b, low = bytes;
    else
      over = b, high = bytes;
  }
  return fits;
}

}  // namespace tg::train
