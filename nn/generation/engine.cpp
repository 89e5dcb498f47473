#include <tilegrad/nn/generation/engine.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include <tilegrad/nn/generation/page_pool.h>
#include "core/base/one_user.h"
#include "nn/generation/programs.h"

namespace tg::nn {

namespace {

using i64 = std::int64_t;

using detail::pages_for;

constexpr const char* used_by_two_threads = "two threads use one engine at the same time";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const Engine::Options& checked_options(const Engine::Options& o) {
  check_options<ShapeError>("engine", {{"slots", o.slots, Range::whole_from(1)},
                                       {"cache_tokens", o.cache_tokens, Range::whole_from(0)},
                                       {"page_size", o.page_size, Range::whole_from(1)},
                                       {"chunk", o.chunk, Range::whole_from(1)},
                                       {"host_tokens", o.host_tokens, Range::whole_from(0)},
                                       {"threads", o.threads, Range::whole_from(0)}});
  return o;
}

Scheduler::Options scheduling(const Engine::Options& o, i64 context) {
  constexpr i64 most = std::numeric_limits<std::int32_t>::max();
  const i64 size = std::min(o.page_size, most), sequence = std::max<i64>(context, 0),
            tokens = o.cache_tokens > 0          ? o.cache_tokens
                     : sequence > most / o.slots ? most
                                                 : o.slots * pages_for(sequence, size) * size,
            pages = tokens / o.page_size, host = o.host_tokens / o.page_size;
  if (pages < 1 || tokens > most || host > most)
    throw ShapeError("[engine] a cache of " + std::to_string(tokens) + " tokens in pages of " +
                     std::to_string(o.page_size) + ", expected 1 to 2^31 - 1 in whole pages");
  return {.pages = static_cast<std::int32_t>(pages),
          .page_size = static_cast<std::int32_t>(o.page_size),
          .slots = o.slots,
          .chunk = o.chunk,
          .group = group_size,
          .host_pages = static_cast<std::int32_t>(host)};
}

// Rounds n up to one of a few program sizes. The size 80 exists because of the H200: the time of its GEMMs
// with 65 to 128 rows grows with the number of sequences.
i64 one_of(std::initializer_list<i64> sizes, i64 n, i64 most) {
  for (const i64 size : sizes)
    if (n <= size) return std::min(size, most);
  return std::min((n + 63) / 64 * 64, most);
}
i64 sequences_in_program(i64 sequences, i64 most) {
  return one_of({1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96}, sequences, most);
}
// Rounds up the number of sequences in a run that also reads prompts. Such a run has many rows in any case.
i64 sequences_beside_groups(i64 sequences, i64 most) {
  return one_of({0, 16, 64, 80, 96}, sequences, most);
}
i64 groups_in_program(i64 groups, i64 most) {
  return one_of({2, 4, 8, 16, 24, 32}, groups, most);
}

}  // namespace

struct Engine::Sequence {
  Request request;
  i64 written = 0;  // number of generated and reported tokens
  std::shared_ptr<Beams> search = {};
  std::int32_t place = 0;  // index in last_ of the latest token
  // The sequence's part of the next step, which starts before the current step is reported. It reads a token
  // that is not known yet.
  std::optional<Scheduler::Part> part = {};
  std::map<std::string, Array> rows = {};  // rows of the cache, kept on the host while it waits
  // Whether the sequence continues after the next token.
  bool goes_on() const { return written + 1 < request.tokens; }
};

struct Engine::Beams {
  Handle handle;
  BeamSearch search;
  std::function<void(std::vector<Hypothesis>)> report;
  std::vector<Handle> sequences;  // of the live beams, in the same order
};

Engine::Engine(LanguageModel model, const Options& options, const std::source_location& where)
    : model_(std::move(model)),
      options_(checked_options(options)),
      where_(where),
      scheduler_(scheduling(options_, model_.context)),
      cache_(scheduler_.pool().pages(), options_.page_size, model_.device(), options_.cache_dtype) {
  if (options_.ahead.value_or(model_.device().kind == Device::cuda_kind))
    last_ = Parameter("engine.last", Array({options_.slots}, i32), model_.device());
  vocabulary_ = run_of(1, 0).logits.size(-1);  // creates the cache's tensors
}
Engine::~Engine() = default;

Engine::Run& Engine::run_of(i64 singles, i64 groups) {
  std::unique_ptr<Run>& run = runs_[{singles, groups}];
  const i64 room = std::min<i64>(pages_for(model_.context, options_.page_size), scheduler_.pool().pages());
  if (!run)
    run = std::make_unique<Run>(model_, cache_, singles, groups, room, options_, last_, arena_, where_);
  return *run;
}

// The maximum number of groups in a run.
i64 Engine::most_groups() const {
  constexpr i64 most_rows = 1024;
  return pages_for(std::min(options_.chunk, most_rows), group_size);
}

void Engine::prepare() {
  const OneThread user(user_, "engine", used_by_two_threads);
  const i64 slots = std::min<i64>(options_.slots, scheduler_.pool().pages()), most = most_groups();
  std::set<std::pair<i64, i64>> sizes;
  for (i64 sequences = 0; sequences <= slots; ++sequences) {
    if (sequences > 0) sizes.emplace(sequences_in_program(sequences, options_.slots), 0);
    for (i64 groups = 1; groups <= most; ++groups)
      sizes.emplace(sequences_beside_groups(sequences, options_.slots), groups_in_program(groups, most));
  }
  for (const auto& [singles, groups] : sizes) {
    Run& run = run_of(singles, groups);
    for (std::size_t b = 0; b < run.length.size(); ++b) run.set_empty(b);
    run.feed();
    run.program.run();
    run.program.fetch_later({run.next}).wait();
  }
}

// Returns the number of tokens that a sequence will get. Throws Error if the prompt or the number does not
// fit.
i64 Engine::room_for(const std::vector<std::int32_t>& prompt, i64 tokens) const {
  const auto refuse = [](const std::string& what) { throw Error("[engine] " + what); };
  if (prompt.empty()) refuse("the prompt is empty");
  for (std::size_t i = 0; i < prompt.size(); ++i)
    if (prompt[i] < 0 || prompt[i] >= vocabulary_)
      refuse("token " + std::to_string(prompt[i]) + " at position " + std::to_string(i) +
             " of the prompt; the model has " + std::to_string(vocabulary_));
  // The last token is generated but not read.
  const i64 size = std::ssize(prompt), context = model_.context;
  check_options("engine", {{"tokens", tokens, Range::whole_from(0)}});
  if (tokens == 0) tokens = std::max<i64>(1, context - size + 1);
  if (size > context || tokens - 1 > context - size)
    refuse("a prompt of " + std::to_string(size) + " tokens and " + std::to_string(tokens) +
           " more exceed the model's context of " + std::to_string(context));
  return tokens;
}

Engine::Handle Engine::add(Request request) {
  const OneThread user(user_, "engine", used_by_two_threads);
  request.tokens = room_for(request.prompt, request.tokens);
  check_sampling(request.sampling);
  const Handle sequence = scheduler_.add(request.prompt, std::ssize(request.prompt) + request.tokens - 1);
  sequences_.put(sequence, std::make_shared<Sequence>(Sequence{std::move(request)}));
  return sequence;
}

Engine::Handle Engine::search(Search s) {
  const OneThread user(user_, "engine", used_by_two_threads);
  const i64 tokens = room_for(s.prompt, s.tokens), most = std::ssize(s.prompt) + tokens - 1,
            pages = pages_for(most, options_.page_size), room = scheduler_.pool().pages();
  const i64 most_beams = std::min<i64>(options_.slots, room / pages);  // limited by slots and pages
  check_options("engine", {{"beams", s.beams, Range::between(1, static_cast<double>(most_beams))}});
  const Handle sequence = scheduler_.add(s.prompt, most);
  auto search = std::make_shared<Beams>(
      Beams{sequence, {s.beams, tokens, std::move(s.ends)}, std::move(s.report), {sequence}});
  sequences_.put(sequence, std::make_shared<Sequence>(Sequence{{.prompt = std::move(s.prompt)}, 0, search}));
  searches_.emplace(sequence, std::move(search));
  return sequence;
}

Engine::Handle Engine::fork(Handle sequence, std::uint64_t seed, std::function<bool(const Token&)> report) {
  const OneThread user(user_, "engine", used_by_two_threads);
  const Sequence* const found = sequences_.find(sequence);
  if (!found || found->search)
    throw Error("[engine] there is no sequence " + std::to_string(sequence) + " to fork");
  auto copy = std::make_shared<Sequence>(Sequence{found->request, found->written});
  // A run in flight draws the next token of the original sequence. The copy draws a separate token, so it
  // must read the last token again.
  const Request& r = copy->request;
  const auto draws = [&](std::span<const Drawn> drawn) {
    return std::ranges::find(drawn, sequence, &Drawn::sequence) != drawn.end();
  };
  const bool is_drawn = draws(std::span(now_.drawn).subspan(reported_)) || draws(next_.drawn);
  const Handle other = is_drawn
                           ? scheduler_.add(scheduler_.tokens(sequence), std::ssize(r.prompt) + r.tokens - 1)
                           : scheduler_.fork(sequence);
  copy->request.seed = seed;
  copy->request.report = std::move(report);
  sequences_.put(other, std::move(copy));
  return other;
}

void Engine::remove(Handle sequence) {
  if (sequences_.erase(sequence)) scheduler_.remove(sequence);
  if (sequences_.empty()) next_.clear();  // no sequence needs the tokens of the next step
}

void Engine::cancel(Handle handle) {
  const OneThread user(user_, "engine", used_by_two_threads);
  const auto search = searches_.find(handle);
  if (search != searches_.end()) {
    for (const Handle sequence : search->second->sequences) remove(sequence);
    searches_.erase(search);
  } else if (const Sequence* const sequence = sequences_.find(handle); sequence && !sequence->search) {
    remove(handle);
  }
}

void Engine::move(const Scheduler::Plan& plan) {
  if ((plan.out.empty() && plan.in.empty() && plan.copies.empty()) || cache_.tensors().empty()) return;
  if (!move_) move_ = std::make_unique<Move>(cache_, arena_);
  const i64 size = options_.page_size;
  // Calls `run` for batches of cache rows, with the index of the first row of a batch.
  std::vector<std::int32_t> a(Move::rows_moved), b(Move::rows_moved);
  const auto in_runs = [&](const std::vector<std::int32_t>& pages, const std::vector<std::int32_t>* to,
                           const auto& run) {
    const i64 rows = std::ssize(pages) * size;
    for (i64 at = 0; at < rows; at += Move::rows_moved) {
      const i64 n = std::min(rows - at, Move::rows_moved);
      for (i64 i = 0; i < Move::rows_moved; ++i) {
        const i64 page = (at + i) / size, place = (at + i) % size;
        a[i] = i < n ? static_cast<std::int32_t>((pages[page] - 1) * size + place) : 0;
        if (to) b[i] = i < n ? static_cast<std::int32_t>(((*to)[page] - 1) * size + place) : -1;
      }
      run(at, n);
    }
  };
  for (const Scheduler::Moved& m : plan.out) {
    Sequence& sequence = *sequences_.find(m.sequence);
    sequence.rows.clear();
    for (const auto& [name, held] : cache_.tensors()) {
      const Shape& s = held.shape();
      sequence.rows.emplace(name, Array({std::ssize(m.pages) * size, s[1], s[2]}, held.dtype()));
    }
    in_runs(m.pages, nullptr, [&](i64 at, i64 n) {
      move_->leave->run({{move_->out, a}});
      for (auto& [name, rows] : sequence.rows) {
        const Array moved = move_->leave->fetch(move_->left.at(name));
        const std::size_t row = moved.bytes() / Move::rows_moved;
        std::memcpy(rows.raw() + at * row, moved.raw(), n * row);
      }
    });
  }
  for (const Scheduler::Moved& m : plan.in) {
    Sequence& sequence = *sequences_.find(m.sequence);
    in_runs(m.pages, &m.pages, [&](i64 at, i64 n) {
      for (const auto& [name, rows] : sequence.rows) {
        const Tensor& input = move_->back.at(name);
        Array moved(input.shape(), input.dtype());
        const std::size_t row = moved.bytes() / Move::rows_moved;
        std::memcpy(moved.raw(), rows.raw() + (m.first * size + at) * row, n * row);
        move_->come_back->feed({input, moved});
      }
      move_->come_back->run({{move_->in, b}});
    });
    sequence.rows.clear();
  }
  std::vector<std::int32_t> from, to;
  for (const PageCopy& c : plan.copies) from.push_back(c.from), to.push_back(c.to);
  in_runs(from, &to, [&](i64, i64) { move_->copy->run({{move_->from, a}, {move_->to, b}}); });
}

void Engine::forget() {
  const OneThread user(user_, "engine", used_by_two_threads);
  scheduler_.forget();
  sequences_.each([](Sequence& sequence) { sequence.rows.clear(); });
}

// Starts the runs that read the tokens of the scheduler's plan. Later runs, copies and transfers follow on
// the device. The tokens therefore count as cached immediately, and pages that a sequence releases during the
// run can be reused immediately.
void Engine::start(Step& step) {
  const Scheduler::Plan& plan = scheduler_.plan();
  move(plan);
  std::vector<Scheduler::Part> groups;
  for (const Scheduler::Part& p : plan.several)
    for (i64 done = 0; done < p.count; done += group_size)
      groups.push_back({p.sequence, p.begin + done, std::min(group_size, p.count - done)});
  std::span<const Scheduler::Part> left = groups;
  std::span<const Scheduler::Part> singles = plan.single;
  // One run reads single tokens and prompts. Further runs read the rest of the prompts. Prompts are last in a
  // run, so their drawn tokens do not overwrite tokens that the other sequences still have to read.
  const i64 most = most_groups();
  while (!singles.empty() || !left.empty()) {
    const auto now = left.first(std::min(left.size(), static_cast<std::size_t>(most)));
    const i64 sequences = std::ssize(singles), n = std::ssize(now);
    start(step, singles, now,
          n == 0 ? run_of(sequences_in_program(sequences, options_.slots), 0)
                 : run_of(sequences_beside_groups(sequences, options_.slots), groups_in_program(n, most)));
    singles = {}, left = left.subspan(now.size());
  }
}

void Engine::start(Step& step, std::span<const Scheduler::Part> singles,
                   std::span<const Scheduler::Part> groups, Run& run) {
  const std::size_t first = step.drawn.size();
  bool logits = false;
  const auto put = [&](std::size_t b, const Scheduler::Part& p) {
    Sequence& t = *sequences_.find(p.sequence);
    const std::vector<std::int32_t>& tokens = scheduler_.tokens(p.sequence);
    const i64 end = p.begin + p.count;
    const bool is_known = end <= std::ssize(tokens), is_last = end >= std::ssize(tokens);
    const std::int32_t read = is_known ? 0 : t.place;
    run.set(b, p.begin, end, tokens, scheduler_.table(p.sequence));
    if (!is_last) return run.set_unread(b);
    t.place = static_cast<std::int32_t>(step.drawn.size());
    step.drawn.push_back({p.sequence, step.runs.size(), static_cast<i64>(b)});
    logits = logits || t.request.logits || t.search;
    if (!is_known) t.part = p;
    run.set_sampling(b, t.request.sampling, t.request.seed, end - std::ssize(t.request.prompt));
    run.set_places(b, read, t.place);
  };
  const auto fill = [&](std::size_t begin, i64 count, std::span<const Scheduler::Part> parts) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      if (i < parts.size())
        put(begin + i, parts[i]);
      else
        run.set_empty(begin + i);
  };
  fill(0, run.singles, singles);
  fill(static_cast<std::size_t>(run.singles), run.groups, groups);
  run.feed();
  const auto start = std::chrono::steady_clock::now();
  run.program.run();
  step.runs.push_back(
      {&run, logits ? run.program.fetch_later({run.next, run.logits}) : run.program.fetch_later({run.next}),
       logits});
  run_seconds_ += seconds_since(start);
  for (const auto parts : {singles, groups})
    for (const Scheduler::Part& p : parts)
      if (p.begin + p.count <= std::ssize(scheduler_.tokens(p.sequence))) scheduler_.done(p);
  if (last_)
    for (const Drawn& d : std::span(step.drawn).subspan(first))
      if (const Sequence& t = *sequences_.find(d.sequence); !t.part && !t.search && t.goes_on())
        scheduler_.expect(d.sequence);
}

void Engine::wait(Step& step) {
  if (step.runs.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  for (Step::Started& s : step.runs) {
    s.tokens = s.values.values<std::int32_t>(s.run->next);
    if (s.has_logits) s.logits = s.values.values<float>(s.run->logits);
  }
  run_seconds_ += seconds_since(start);
}

// After an error, results that have not been reported are lost, and only some rows of the cache may have been
// written. Every sequence is therefore recomputed from its first token.
void Engine::lose_steps() {
  for (Step* const step : {&now_, &next_}) {
    for (const Step::Started& s : step->runs) try {
        s.values.wait();
      } catch (const std::exception&) {
        // Only the first error is thrown. Errors of other steps in flight are dropped here, so that later
        // runs do not throw them.
      }
    for (const Drawn& d : step->drawn)
      if (Sequence* const sequence = sequences_.find(d.sequence)) {
        sequence->part.reset();
        scheduler_.read_again(d.sequence);
      }
    step->clear();
  }
  reported_ = 0;
  scheduler_.start_again();
  forget();
}

bool Engine::step() {
  const OneThread user(user_, "engine", used_by_two_threads);
  if (stepping_) throw Error("[engine] step() called by a report of step()");
  if (reported_ == now_.drawn.size()) try {  // otherwise the previous call ended with an error
      std::swap(now_, next_);
      next_.clear(), reported_ = 0;
      if (now_.runs.empty()) start(now_);
      // During a search no step starts ahead, because the host chooses among the tokens of all beams.
      if (last_ && searches_.empty() && !now_.runs.empty()) start(next_);
      wait(now_);
    } catch (...) {
      lose_steps();
      throw;
    }
  struct Stepping {
    bool& now;
    explicit Stepping(bool& b) : now(b) { now = true; }
    ~Stepping() { now = false; }
  } const stepping(stepping_);
  while (reported_ < now_.drawn.size()) report(now_.drawn[reported_++]);
  return !sequences_.empty();
}

void Engine::end_with(Handle handle, const std::string& why) {
  cancel(handle);
  throw Error("[engine] sequence " + std::to_string(handle) + " ends: " + why);
}

void Engine::report(const Drawn& drawn) {
  const Handle sequence = drawn.sequence;
  if (!sequences_.find(sequence)) return;  // canceled by the report of another sequence
  const std::shared_ptr<Sequence> kept = sequences_.owner(sequence);  // its report may cancel the sequence
  Sequence& t = *kept;
  const Step::Started& run = now_.runs[drawn.run];
  const std::int32_t token = run.tokens[static_cast<std::size_t>(drawn.row)];
  std::span<const float> logits;
  if (t.request.logits || t.search)
    logits = run.logits.subspan(static_cast<std::size_t>(drawn.row * vocabulary_),
                                static_cast<std::size_t>(vocabulary_));
  if (t.search) {
    Beams& s = *t.search;
    try {
      s.search.offer(static_cast<std::size_t>(std::ranges::find(s.sequences, sequence) - s.sequences.begin()),
                     logits);
    } catch (const Error& e) {
      end_with(s.handle, e.what());
    }
    if (s.search.complete()) advance(s);
    return;
  }
  if (token < 0) end_with(sequence, "every logit is NaN");
  ++t.written;
  End end = t.written >= t.request.tokens ? End::count : End::no;
  if (std::ranges::find(t.request.ends, token) != t.request.ends.end()) end = End::token;
  if (end == End::no) {
    scheduler_.append(sequence, token);
    if (t.part) {
      scheduler_.done(*t.part);
      t.part.reset();
      if (t.goes_on()) scheduler_.expect(sequence);
    }
  } else {
    remove(sequence);
  }
  const bool goes_on = !t.request.report || t.request.report({sequence, token, end, logits});
  if (!goes_on) remove(sequence);
}

// Each live beam continues in the sequence of its parent. If a parent has several live beams, the others
// continue in forks of that sequence.
void Engine::advance(Beams& beams) {
  const std::shared_ptr<Beams> keep = searches_.at(beams.handle);
  const std::vector<std::size_t> parents = beams.search.advance();
  if (parents.empty()) {
    cancel(beams.handle);
    if (beams.report) beams.report(beams.search.results());
    return;
  }
  std::vector<Handle> before = std::exchange(beams.sequences, {});
  for (std::size_t b = 0; b < before.size(); ++b)
    if (std::ranges::find(parents, b) == parents.end()) remove(before[b]);  // first, to release its slot
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const Handle parent = before[parents[i]];
    const bool is_last = std::find(parents.begin() + static_cast<std::ptrdiff_t>(i) + 1, parents.end(),
                                   parents[i]) == parents.end();
    const Handle sequence = is_last ? parent : scheduler_.fork(parent, Scheduler::ForkOrder::of_parent);
    if (!is_last)
      sequences_.put(sequence,
                     std::make_shared<Sequence>(Sequence{sequences_.find(parent)->request, 0, keep}));
    beams.sequences.push_back(sequence);
  }
  for (std::size_t i = 0; i < parents.size(); ++i)
    scheduler_.append(beams.sequences[i], beams.search.live()[i].tokens.back());
}

}  // namespace tg::nn
