// Running a program: feeds, runs and fetches on the state that compile() created.
#include <tilegrad/core/run/program.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/base/messages.h"
#include "core/base/one_user.h"
#include "core/run/arena_use.h"
#include "core/run/program_state.h"

namespace tg {

namespace {

// Writes the number as an element of the dtype. Returns false if the dtype cannot represent it.
bool write_number(DType dtype, std::byte* to, long double number, bool may_round) {
  return dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      const bool inside = number >= std::numeric_limits<T>::min() && number <= std::numeric_limits<T>::max();
      if (!inside || number != std::trunc(number)) return false;
      const auto element = static_cast<T>(number);
      std::memcpy(to, &element, sizeof element);
      return true;
    } else {
      store_element(dtype, to, 0, static_cast<double>(number));
      const long double stored = load_element(dtype, to, 0);
      return (may_round || stored == number) && (std::isfinite(stored) || !std::isfinite(number));
    }
  });
}

}  // namespace

Feed::Feed(const Tensor& input, long double number, bool may_round)
    : input_(input), data_(nullptr), count_(1), dtype_(input.dtype()) {
  if (!write_number(dtype_, number_, number, may_round))
    throw DTypeError("[feed] the input is " + input.text() + ", which cannot hold " +
                     formatted("%.20Lg", number) + " " + at_line(input.graph().node_of(input.id()).where));
}

void Program::State::check_memory(const char* who) const {
  if (!executable)
    throw Error("[" + std::string(who) + "] this program was compiled with plan_only and has no memory");
}

void Program::State::check_inputs_fed(const char* who) const {
  for (const Input& i : inputs) {
    if (i.fed) continue;
    const Node& node = graph->node_of(i.value);
    throw Error("[" + std::string(who) + "] input " + node.attrs.as<InputAttrs>().name + " " +
                graph->tensor(i.value).text() + " was never fed " + at_line(node.where));
  }
}

void Program::State::check_results() const {
  if (runs == 0) throw Error("[fetch] this program has no results yet: expected a run() before");
  if (void_runs >= runs)
    throw Error("[fetch] the last run of this program failed: it has no results until it runs again");
}

// A GPU reports a failed run in the first wait for a transfer that depends on it. Transfers that were already
// started report it again. The first report invalidates all runs that were started before it.
void Program::State::wait_for(Transfer& t) const {
  try {
    t.wait();
  } catch (...) {
    const std::lock_guard lock(transfers_mutex);
    const auto i = std::ranges::find(transfers, &t, [](const auto& p) { return p.first; });
    if (i == transfers.end() || i->second > void_runs) void_runs = runs.load();
    throw;
  }
}

void Program::State::write_rng() {
  if (rng) executable->feed(rng, reinterpret_cast<const std::byte*>(rng_state), sizeof rng_state);
}

void Program::State::run_once() {
  write_rng();
  executable->run();
}

void Program::State::run_verified() {
  std::vector<Array> before, expected;
  for (const Parameter& p : assigned) before.push_back(p.read());
  twin->rng_state[0] = rng_state[0];
  twin->rng_state[1] = rng_state[1];
  twin->run_once();
  for (const Parameter& p : assigned) expected.push_back(p.read());
  for (std::size_t i = 0; i < assigned.size(); ++i) assigned[i].write(before[i]);
  run_once();
  for (const auto& [v, arg] : fetched) {
    const Tensor t = graph->tensor(v);
    if (!value_of(t).same_bits(twin->value_of(t)))
      throw Error(
          "[verify] the planned program and the one with a buffer per tensor give different bits for " +
          graph->label_of(graph->node_of(v)) + " " + at_line(graph->node_of(v).where));
  }
  for (std::size_t i = 0; i < assigned.size(); ++i)
    if (!assigned[i].read().same_bits(expected[i]))
      throw Error(
          "[verify] the planned program and the one with a buffer per tensor assign different bits to " +
          assigned[i].name());
}

std::vector<double> Program::State::run_timed() {
  write_rng();
  std::vector<double> seconds = executable->profile();
  if (log) log->ran(*this, std::accumulate(seconds.begin(), seconds.end(), 0.), seconds);
  return seconds;
}

void Program::State::run_logged() {
  if (log->level() >= 2 && !twin) {
    run_timed();
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  twin ? run_verified() : run_once();
  executable->transfer({})->wait();
  log->ran(*this, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), {});
}

void Program::refuse() {
  throw Error("[program] an empty Program was used: it was moved from, or made without a state");
}

namespace {

constexpr const char* in_use =
    "this program is already running, in another thread or in the run that called one of its host functions: "
    "compile "
    "another program for that";
thread_local int runs_of_thread = 0;  // nesting depth of runs that host functions start

// A run in progress. A program has one set of buffers, so only one run at a time is possible.
class Run {
 public:
  Run(Program::State& program, const char* who)
      : program_(program), level_(runs_of_thread, who, "host functions run programs without end") {
    program.graph->call_before_run();
    program.check_memory(who);
    program.check_inputs_fed(who);
    user_.emplace(program.running, who, in_use);
    in_progress_.emplace(program, who);
    if (program.arena && !ArenaUse(*program.arena).begin(&program))
      throw Error("[" + std::string(who) + "] another program with the same arena is running");
    ++program.runs;
  }
  ~Run() {
    // It is unknown which parameters a failed run changed, so each gets a new number.
    const std::uint64_t number = Parameter::new_change();
    for (Parameter& p : program_.assigned) p.note_change(is_over_ ? number : Parameter::new_change());
    if (!is_over_) program_.void_runs = program_.runs.load();
    if (program_.arena) ArenaUse(*program_.arena).end();
  }
  Run(const Run&) = delete;

  // Advances the random state, so that the next run draws different numbers.
  void advance() {
    is_over_ = true;
    std::int64_t& step = program_.rng_state[1];
    step = static_cast<std::int64_t>(static_cast<std::uint64_t>(step) + 1);
  }

 private:
  Program::State& program_;
  Nested level_;
  std::optional<OneUser> user_;
  std::optional<RunInProgress> in_progress_;
  bool is_over_ = false;
};

}  // namespace

void Program::run() {
  State& s = state();
  Run run(s, "run");
  if (s.log)
    s.run_logged();
  else if (s.twin)
    s.run_verified();
  else
    s.run_once();
  run.advance();
}

std::vector<double> Program::profile() {
  State& s = state();
  Run run(s, "profile");
  std::vector<double> seconds = s.run_timed();
  run.advance();
  return seconds;
}

void Program::run(std::initializer_list<Feed> feeds) {
  run(std::span<const Feed>(feeds.begin(), feeds.size()));
}

void Program::run(std::span<const Feed> feeds) {
  for (const Feed& f : feeds) feed(f);
  run();
}

namespace {

// Throws the error for a value that the program does not accept.
[[noreturn]] void refuse_feed(const Graph& graph, const Feed& f) {
  const Tensor& x = f.input();
  if (!graph.has(x))
    throw Error("[feed] the tensor to be fed is " +
                std::string(x.defined() ? "not of the program's graph" : "undefined"));
  const Node& node = graph.node_of(x.id());
  if (node.op != &input_op)
    throw Error("[feed] " + graph.label_of(node) + " is not an input " + at_line(node.where));
  const std::string& name = node.attrs.as<InputAttrs>().name;
  const auto got = [&](const std::string& what) {
    return "[feed] input " + name + " is " + x.text() + ", got " + what + " " + at_line(node.where);
  };
  if (f.dtype() != x.dtype()) throw DTypeError(got(std::string(name_of(f.dtype()))));
  if (f.count() != x.numel()) throw ShapeError(got(std::to_string(f.count()) + " elements"));
  if (const auto& shape = f.shape(); shape && *shape != x.shape())
    throw ShapeError(got("an Array of shape " + shape->text()));
  throw Error("[feed] the program does not read input " + name + " " + x.text() +
              ": nothing that it fetches or assigns depends on it; is an assignment missing in "
              "CompileOptions::assign? " +
              at_line(node.where));
}

void check_limit(const Graph& graph, const Feed& f, const Range& range) {
  const Node& node = graph.node_of(f.input().id());
  for (std::int64_t i = 0; i < f.count(); ++i) {
    const double x = load_element(f.dtype(), static_cast<const std::byte*>(f.data()), i);
    if (!range.contains(x))
      throw Error("[feed] " + range_mistake({{"input " + node.attrs.as<InputAttrs>().name, x, range}}) + " " +
                  at_line(node.where));
  }
}

}  // namespace

Program::State::Input* Program::State::input_of(const Tensor& x) {
  if (!graph->has(x)) return nullptr;
  const auto i = std::ranges::find(inputs, x.id(), &Input::value);
  return i == inputs.end() ? nullptr : &*i;
}

void Program::feed(const Feed& f) {
  State& s = state();
  s.check_memory("feed");
  State::Input* const input = s.input_of(f.input());
  const std::optional<Shape>& shape = f.shape();
  if (!input || f.dtype() != input->arg.dtype || f.count() != input->arg.layout.numel() ||
      (shape && *shape != input->arg.layout.shape))
    refuse_feed(*s.graph, f);
  if (const Range* limit = s.graph->limit_of(f.input().id())) check_limit(*s.graph, f, *limit);
  const OneUser user(s.running, "feed", in_use);
  s.executable->feed(input->arg.data, f.data(), static_cast<std::size_t>(f.count()) * size_of(f.dtype()));
  input->fed = true;
  if (s.twin) Program(s.twin).feed(f);
}

bool Program::reads(const Tensor& x) const {
  return state().input_of(x) != nullptr;
}

namespace {

// Bytes from an operand's first element to the end of its last.
std::size_t reach(const Arg& a) {
  Layout from = a.layout;
  from.offset = 0;
  return static_cast<std::size_t>(from.extent()) * size_of(a.dtype);
}

// The elements of `a` in row-major order, from a copy of the memory that its layout covers.
Array in_row_major_order(const Arg& a, const std::byte* raw) {
  Array out(a.layout.shape, a.dtype);
  const Layout& from = a.layout;  // its offset is already added to raw
  if (from.is_contiguous()) {
    if (reach(a) > 0) std::memcpy(out.raw(), raw, reach(a));
    return out;
  }
  const std::size_t size = size_of(a.dtype);
  Dims index = Dims::filled(from.rank(), 0);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    std::int64_t at = 0;
    for (int d = 0; d < from.rank(); ++d) at += index[d] * from.strides[d];
    std::memcpy(out.raw() + static_cast<std::size_t>(i) * size, raw + static_cast<std::size_t>(at) * size,
                size);
    for (int d = from.rank() - 1; d >= 0 && ++index[d] == from.shape[d]; --d) index[d] = 0;
  }
  return out;
}

}  // namespace

const Arg& Program::State::fetched_arg(const Tensor& t) const {
  check_memory("fetch");
  for (const auto& [v, arg] : fetched)
    if (v == t.id() && graph->has(t)) return arg;
  std::string what = "this tensor";
  if (graph->has(t)) {
    const Node& node = graph->node_of(t.id());
    what = graph->label_of(node) + " " + t.text() + " " + at_line(node.where);
  }
  throw Error("[fetch] " + what +
              " was not among the tensors given to compile(): its memory may have been reused");
}

void Program::State::check_arena(const Arg& arg) const {
  const std::byte *at = static_cast<const std::byte*>(arg.data), *first = block.get();
  if (arena && at >= first && at < first + memory.arena && !ArenaUse(*arena).ran_last(this))
    throw Error("[fetch] another program with the same arena has run since");
}

Array Program::State::value_of(const Tensor& t) const {
  const Arg& arg = fetched_arg(t);
  check_arena(arg);
  if (arg.layout.is_contiguous()) {
    Array out(arg.layout.shape, arg.dtype);
    backend->read(out.raw(), arg.data, reach(arg));
    return out;
  }
  Array raw(Shape{static_cast<std::int64_t>(reach(arg))}, u8);
  backend->read(raw.raw(), arg.data, raw.bytes());
  return in_row_major_order(arg, raw.raw());
}

Array Program::fetch(const Tensor& t) const {
  State& s = state();
  s.fetched_arg(t);
  s.check_results();
  // On a GPU, a failure of the last run may not have been reported yet. A read would also report failures of
  // other programs, but these do not affect the results here.
  if (!(s.device == Device::cpu())) s.wait_for(*s.executable->transfer({}));
  return s.value_of(t);
}

Pending Program::fetch_later(std::initializer_list<Tensor> ts) {
  return fetch_later(std::span<const Tensor>(ts.begin(), ts.size()));
}

Pending Program::fetch_later(std::span<const Tensor> ts) {
  State& s = state();
  s.check_memory("fetch");
  s.pieces.clear();
  for (const Tensor& t : ts) s.fetched_arg(t);
  s.check_results();
  for (const Tensor& t : ts) {
    const Arg& arg = s.fetched_arg(t);
    s.check_arena(arg);
    s.pieces.push_back({arg.data, reach(arg)});
  }
  std::shared_ptr<Transfer> transfer = s.executable->transfer(s.pieces);
  const std::lock_guard lock(s.transfers_mutex);
  const auto i = std::ranges::find(s.transfers, transfer.get(), [](const auto& t) { return t.first; });
  if (i == s.transfers.end())
    s.transfers.emplace_back(transfer.get(), s.runs);
  else
    i->second = s.runs;
  return Pending(state_, std::move(transfer));
}

Transfer& Pending::transfer() const {
  if (!transfer_ || !program_)
    throw Error("[pending] an empty Pending was used: only fetch_later() makes one with values");
  return *transfer_;
}

bool Pending::ready() const {
  return transfer().done() && (!earlier_ || earlier_->done());
}

void Pending::wait() const {
  Transfer& own = transfer();
  if (earlier_) earlier_program_->wait_for(*earlier_);
  program_->wait_for(own);
}

void Pending::depend_on(const Pending& earlier) {
  Transfer& other = earlier.transfer();
  if (&other == &transfer()) return;
  earlier_program_ = earlier.program_, earlier_ = earlier.transfer_;
}

const std::byte* Pending::bytes(const Tensor& t) const {
  wait();
  const Arg& arg = program_->fetched_arg(t);
  for (std::size_t i = 0; i < transfer_->pieces.size(); ++i)
    if (transfer_->pieces[i].from == arg.data && transfer_->pieces[i].bytes == reach(arg))
      return transfer_->data[i];
  throw Error("[pending] this tensor was not among those given to fetch_later");
}

Array Pending::fetch(const Tensor& t) const {
  const std::byte* raw = bytes(t);
  return in_row_major_order(program_->fetched_arg(t), raw);
}

const std::byte* Pending::element(const Tensor& t) const {
  const std::byte* raw = bytes(t);
  if (t.numel() != 1) throw ShapeError("[pending] " + t.text() + " does not have exactly one element");
  return raw;
}

const std::byte* Pending::in_order(const Tensor& t) const {
  const std::byte* raw = bytes(t);
  if (!program_->fetched_arg(t).layout.is_contiguous())
    throw ShapeError("[pending] " + t.text() + " is not stored in row-major order: fetch() copies it");
  return raw;
}

void Pending::refuse(const Tensor& t, DType dtype) {
  throw DTypeError("[pending] " + t.text() + " is read as " + std::string(name_of(dtype)));
}

void Program::seed(std::uint64_t seed) {
  state().rng_state[0] = static_cast<std::int64_t>(seed);
}
void Program::set_step(std::int64_t step) {
  state().rng_state[1] = step;
}
MemoryReport Program::memory() const {
  return state().memory;
}
Device Program::device() const {
  return state().device;
}
const PrepareOptions& Program::options() const {
  return state().prepared;
}
std::span<const Step> Program::steps() const {
  return state().steps;
}

std::string Program::choice(std::size_t step) const {
  const State& s = state();
  if (step >= s.steps.size())
    throw Error("[choice] step " + std::to_string(step) + " of " + std::to_string(s.steps.size()));
  return (s.executable ? s.executable : s.planned)->choice(step);
}

std::span<const ArenaBuffer> Program::buffers() const {
  return state().buffers;
}
const Graph& Program::graph() const {
  return *state().graph;
}
std::span<const ValueId> Program::outputs() const {
  return state().outputs;
}

std::string Program::text() const {
  std::string s;
  for (const Step& step : state().steps) {
    s += step.name + ":";
    for (const Arg& a : step.in) s += " " + std::string(name_of(a.dtype)) + a.layout.shape.text();
    s += " →";
    for (const Arg& a : step.out) s += " " + std::string(name_of(a.dtype)) + a.layout.shape.text();
    const std::string attrs = step.attrs.text();
    s += (attrs.empty() ? "" : "  " + attrs) + "  " + at_line(step.where) + "\n";
  }
  return s;
}

}  // namespace tg
