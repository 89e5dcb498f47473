#include <tilegrad/nn/generation/scheduler.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/nn/generation/page_pool.h>

namespace tg::nn {

namespace {

// A sequence that has been preempted this often keeps its pages as long as another sequence can be preempted
// instead.
constexpr int most_preemptions = 3;

const Scheduler::Options& checked_limits(const Scheduler::Options& o) {
  if (o.slots < 1 || o.chunk < 1 || o.group < 1 || o.host_pages < 0)
    throw ShapeError(
        "[scheduler] expected positive numbers of slots and of tokens in a chunk and in a group, got " +
        std::to_string(o.slots) + ", " + std::to_string(o.chunk) + " and " + std::to_string(o.group) +
        ", with " + std::to_string(o.host_pages) + " pages on the host");
  return o;
}

}  // namespace

Scheduler::Scheduler(const Options& options)
    : options_(checked_limits(options)), pool_(options.pages, options.page_size) {}

const Scheduler::Sequence& Scheduler::at(Id sequence) const {
  const Sequence* const found = sequences_.find(sequence);
  if (!found) throw Error("[scheduler] there is no sequence " + std::to_string(sequence));
  return *found;
}

const PageTable& Scheduler::table(Id sequence) const {
  const Sequence& t = at(sequence);
  if (!t.table) throw Error("[scheduler] sequence " + std::to_string(sequence) + " waits, and has no pages");
  return *t.table;
}

std::int32_t Scheduler::pages_for(std::int64_t tokens) const {
  const std::int64_t n = detail::pages_for(tokens, options_.page_size);
  return static_cast<std::int32_t>(std::min<std::int64_t>(n, std::numeric_limits<std::int32_t>::max()));
}

Scheduler::Id Scheduler::add(std::vector<std::int32_t> sequence, std::int64_t most) {
  if (sequence.empty()) throw Error("[scheduler] the sequence is empty");
  if (std::ssize(sequence) > most)
    throw Error("[scheduler] a sequence of " + std::to_string(sequence.size()) +
                " tokens, which was to have " + std::to_string(most) + " at most");
  if (pages_for(most) > pool_.pages())
    throw Error("[scheduler] a sequence of up to " + std::to_string(most) +
                " tokens does not fit in a cache of " + std::to_string(pool_.pages()) + " pages of " +
                std::to_string(pool_.page_size()));
  const Id id = next_++;
  sequences_.put(id, std::unique_ptr<Sequence>(new Sequence{id, std::move(sequence), most}));
  waiting_.emplace(id, sequences_.find(id));
  return id;
}

Scheduler::Id Scheduler::fork(Id sequence, ForkOrder order) {
  const Sequence& from = at(sequence);
  const bool waits = order == ForkOrder::last && std::ranges::any_of(waiting_, [](const auto& other) {
                       return !other.second->is_idle();
                     });
  const Id id = add(from.tokens, from.most);
  at(id).read = from.read;
  if (from.table && !waits && std::ssize(running_) < options_.slots) {
    at(id).table.emplace(from.table->fork());
    at(id).is_old = from.is_old;
    running_.insert(waiting_.extract(id));
  }
  return id;
}

void Scheduler::append(Id sequence, std::int32_t token) {
  Sequence& t = at(sequence);
  if (std::ssize(t.tokens) >= t.most)
    throw Error("[scheduler] sequence " + std::to_string(sequence) + " has " + std::to_string(t.most) +
                " tokens already, which were to be all");
  t.tokens.push_back(token);
  t.expected = 0;
}

void Scheduler::expect(Id sequence) {
  Sequence& t = at(sequence);
  if (!t.is_idle() || t.size() >= t.most)  // a sequence that expects a token is not idle
    throw Error("[scheduler] no token can be expected of sequence " + std::to_string(sequence) +
                ", which has read " + std::to_string(t.read) + " of " + std::to_string(t.size()) +
                " tokens and may have " + std::to_string(t.most));
  t.expected = 1;
}

void Scheduler::read_again(Id sequence) {
  Sequence& t = at(sequence);
  t.expected = 0;
  t.read = std::min(t.read, std::ssize(t.tokens) - 1);
}

void Scheduler::remove(Id sequence) {
  drop_from_host(at(sequence));
  running_.erase(sequence), waiting_.erase(sequence), sequences_.erase(sequence);
}

void Scheduler::forget() {
  pool_.forget();
  sequences_.each([&](Sequence& sequence) {
    drop_from_host(sequence);
    sequence.is_old = sequence.table.has_value();
  });
}

void Scheduler::start_again() {
  forget();
  for (const auto& [id, sequence] : running_) sequence->table.reset(), sequence->is_old = false;
  waiting_.merge(running_);
}

std::int64_t Scheduler::cached() const {
  std::int64_t n = 0;
  for (const auto& [id, sequence] : running_) n += sequence->table->length();
  return n;
}

void Scheduler::drop_from_host(Sequence& sequence) {
  host_used_ -= pages_for(sequence.on_host);
  sequence.on_host = 0;
}

void Scheduler::preempt(Sequence& sequence) {
  const std::int64_t held = sequence.table->length();
  const std::int32_t n = pages_for(held);
  // Content that was computed before forget() must not be restored, because other sequences would then find
  // and reuse it.
  if (n > 0 && !sequence.is_old && n <= options_.host_pages - host_used_) {
    const auto& pages = sequence.table->pages();
    plan_.out.push_back({sequence.id, 0, {pages.begin(), pages.begin() + n}});
    sequence.on_host = held;
    host_used_ += n;
  }
  sequence.table.reset();
  sequence.is_old = false;
  ++sequence.preemptions, ++preemptions_;
  waiting_.insert(running_.extract(sequence.id));
}

// Preempts later sequences until there are enough pages. If there are no later sequences, preempts this one.
// Later sequences are not in the plan yet.
bool Scheduler::make_room(Sequence& sequence, std::int64_t count) {
  while (!sequence.table->reserve(count, plan_.copies)) {
    Sequence* last = &sequence;
    for (auto it = running_.rbegin(); it->first != sequence.id; ++it)
      if (last == &sequence ||
          (last->preemptions >= most_preemptions && it->second->preemptions < most_preemptions))
        last = it->second;
    preempt(*last);
    if (last == &sequence) return false;
  }
  return true;
}

// Whether another sequence computes the next page of this sequence in this step.
bool Scheduler::will_be_found(const Sequence& sequence) const {
  const std::int64_t wanted = sequence.table->length() + options_.page_size;
  if (wanted >= std::ssize(sequence.tokens)) return false;
  return std::ranges::any_of(plan_.several, [&](const Part& p) {
    const auto& other = at(p.sequence).tokens;
    return p.begin + p.count >= wanted && p.begin < wanted &&
           std::equal(sequence.tokens.begin(), sequence.tokens.begin() + wanted, other.begin());
  });
}

bool Scheduler::join(Sequence& sequence) {
  sequence.table.emplace(pool_.open(sequence.tokens));
  const std::int64_t found = sequence.table->length(),
                     kept =
                         std::clamp<std::int64_t>(sequence.on_host, found, std::ssize(sequence.tokens) - 1);
  const auto size = std::ssize(sequence.tokens);
  // Keeps some pages free, because running sequences will soon need more pages.
  const std::int32_t free = pool_.free() - (running_.empty() ? 0 : pool_.pages() / 100);
  if (pages_for(size) - pages_for(found) > free || will_be_found(sequence)) {
    sequence.table.reset();
    return false;
  }
  found_ += found;
  if (sequence.on_host > 0) {
    sequence.table->reserve(kept - found, plan_.copies);
    const auto& pages = sequence.table->pages();
    const std::int64_t first = pages_for(found);
    plan_.in.push_back({sequence.id, first, {pages.begin() + first, pages.end()}});
    sequence.table->append(std::span(sequence.tokens).subspan(found, kept - found));
  }
  drop_from_host(sequence);
  running_.insert(waiting_.extract(sequence.id));
  return true;
}

// Adds the sequence's part to the plan if there are enough pages for it.
void Scheduler::read_on(Sequence& sequence) {
  const std::int64_t held = sequence.table->length(), unread = sequence.size() - held,
                     count = unread == 1 ? 1 : std::min(unread, left_);
  if (count == 0 || !make_room(sequence, count)) return;
  (unread == 1 ? plan_.single : plan_.several).push_back({sequence.id, held, count});
  if (unread > 1) left_ -= std::min(left_, detail::pages_for(count, options_.group) * options_.group);
}

// A waiting sequence that expects a token was preempted just now. No other sequence may join before it.
Scheduler::Sequence* Scheduler::next_waiting() {
  for (const auto& [id, sequence] : waiting_)
    if (!sequence->is_idle()) return sequence->expected > 0 ? nullptr : sequence;
  return nullptr;
}

const Scheduler::Plan& Scheduler::plan() {
  plan_.out.clear(), plan_.in.clear(), plan_.copies.clear();
  plan_.single.clear(), plan_.several.clear();
  left_ = options_.chunk;
  const std::int64_t before = preemptions_;
  // make_room() removes only the current sequence and later sequences from the list.
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence& t = *it->second;
    read_on(t);
    it = t.table ? std::next(it) : running_.upper_bound(t.id);
  }
  if (preemptions_ > before && !plan_.is_empty()) return plan_;
  for (Sequence* t = next_waiting(); t && left_ > 0; t = next_waiting()) {
    if (std::ssize(running_) < options_.slots && join(*t)) {
      read_on(*t);
    } else if (plan_.is_empty() && !running_.empty()) {
      preempt(*running_.rbegin()->second);  // all running sequences are idle
    } else {
      break;
    }
  }
  return plan_;
}

void Scheduler::done(const Part& part) {
  Sequence& t = at(part.sequence);
  if (!t.table || part.begin != t.table->length() || part.count < 0 ||
      part.count > std::ssize(t.tokens) - part.begin)
    throw Error("[scheduler] " + std::to_string(part.count) + " tokens from " + std::to_string(part.begin) +
                " of sequence " + std::to_string(part.sequence) + ", which do not follow its cached tokens");
  const auto begin = static_cast<std::size_t>(part.begin), count = static_cast<std::size_t>(part.count);
  t.table->append(std::span(t.tokens).subspan(begin, count));
  t.read = std::max(t.read, part.begin + part.count);
}

}  // namespace tg::nn
