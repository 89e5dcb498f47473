#include <tilegrad/nn/generation/scheduler.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/nn/generation/page_pool.h>

namespace tg::nn {

namespace {

// A text that has lost its pages so often keeps them, while there is another to take them from.
constexpr int most_preemptions = 3;

const Scheduler::Options& checked(const Scheduler::Options& o) {
  if (o.seats < 1 || o.chunk < 1 || o.group < 1 || o.host_pages < 0)
    throw ShapeError(
        "[scheduler] expected positive numbers of seats and of tokens in a chunk and in a group, got " +
        std::to_string(o.seats) + ", " + std::to_string(o.chunk) + " and " + std::to_string(o.group) +
        ", with " + std::to_string(o.host_pages) + " pages on the host");
  return o;
}

}  // namespace

Scheduler::Scheduler(const Options& options)
    : options_(checked(options)), pool_(options.pages, options.page_size) {}

const Scheduler::Text& Scheduler::at(Id text) const {
  const Text* const found = texts_.find(text);
  if (!found) throw Error("[scheduler] there is no text " + std::to_string(text));
  return *found;
}

const PageTable& Scheduler::table(Id text) const {
  const Text& t = at(text);
  if (!t.table) throw Error("[scheduler] text " + std::to_string(text) + " waits, and has no pages");
  return *t.table;
}

std::int32_t Scheduler::pages_for(std::int64_t tokens) const {
  const std::int64_t n = detail::pages_for(tokens, options_.page_size);
  return static_cast<std::int32_t>(std::min<std::int64_t>(n, std::numeric_limits<std::int32_t>::max()));
}

Scheduler::Id Scheduler::add(std::vector<std::int32_t> text, std::int64_t most) {
  if (text.empty()) throw Error("[scheduler] the text is empty");
  if (std::ssize(text) > most)
    throw Error("[scheduler] a text of " + std::to_string(text.size()) + " tokens, which was to have " +
                std::to_string(most) + " at most");
  if (pages_for(most) > pool_.pages())
    throw Error("[scheduler] a text of up to " + std::to_string(most) +
                " tokens does not fit in a cache of " + std::to_string(pool_.pages()) + " pages of " +
                std::to_string(pool_.page_size()));
  const Id id = next_++;
  texts_.put(id, std::unique_ptr<Text>(new Text{id, std::move(text), most}));
  waiting_.emplace(id, texts_.find(id));
  return id;
}

Scheduler::Id Scheduler::fork(Id text, Turn turn) {
  const Text& from = at(text);
  const bool waits = turn == Turn::last && std::ranges::any_of(waiting_, [](const auto& other) {
                       return !other.second->is_idle();
                     });
  const Id id = add(from.tokens, from.most);
  at(id).read = from.read;
  if (from.table && !waits && std::ssize(running_) < options_.seats) {
    at(id).table.emplace(from.table->fork());
    at(id).is_old = from.is_old;
    running_.insert(waiting_.extract(id));
  }
  return id;
}

void Scheduler::append(Id text, std::int32_t token) {
  Text& t = at(text);
  if (std::ssize(t.tokens) >= t.most)
    throw Error("[scheduler] text " + std::to_string(text) + " has " + std::to_string(t.most) +
                " tokens already, which were to be all");
  t.tokens.push_back(token);
  t.expected = 0;
}

void Scheduler::expect(Id text) {
  Text& t = at(text);
  if (!t.is_idle() || t.size() >= t.most)  // it is not idle while a token is expected
    throw Error("[scheduler] no token can be expected of text " + std::to_string(text) + ", which has read " +
                std::to_string(t.read) + " of " + std::to_string(t.size()) + " tokens and may have " +
                std::to_string(t.most));
  t.expected = 1;
}

void Scheduler::read_again(Id text) {
  Text& t = at(text);
  t.expected = 0;
  t.read = std::min(t.read, std::ssize(t.tokens) - 1);
}

void Scheduler::remove(Id text) {
  drop_from_host(at(text));
  running_.erase(text), waiting_.erase(text), texts_.erase(text);
}

void Scheduler::forget() {
  pool_.forget();
  texts_.each([&](Text& text) {
    drop_from_host(text);
    text.is_old = text.table.has_value();
  });
}

void Scheduler::start_again() {
  forget();
  for (const auto& [id, text] : running_) text->table.reset(), text->is_old = false;
  waiting_.merge(running_);
}

std::int64_t Scheduler::cached() const {
  std::int64_t n = 0;
  for (const auto& [id, text] : running_) n += text->table->length();
  return n;
}

void Scheduler::drop_from_host(Text& text) {
  host_used_ -= pages_for(text.on_host);
  text.on_host = 0;
}

void Scheduler::preempt(Text& text) {
  const std::int64_t held = text.table->length();
  const std::int32_t n = pages_for(held);
  // Of what was read before forget(), nothing may come back: from then on others would find it.
  if (n > 0 && !text.is_old && n <= options_.host_pages - host_used_) {
    const auto& pages = text.table->pages();
    plan_.out.push_back({text.id, 0, {pages.begin(), pages.begin() + n}});
    text.on_host = held;
    host_used_ += n;
  }
  text.table.reset();
  text.is_old = false;
  ++text.preemptions, ++preemptions_;
  waiting_.insert(running_.extract(text.id));
}

// Takes pages from texts that came after this one, and if there is none, from this one. Those have no part in
// the plan yet.
bool Scheduler::make_room(Text& text, std::int64_t count) {
  while (!text.table->reserve(count, plan_.copies)) {
    Text* last = &text;
    for (auto it = running_.rbegin(); it->first != text.id; ++it)
      if (last == &text ||
          (last->preemptions >= most_preemptions && it->second->preemptions < most_preemptions))
        last = it->second;
    preempt(*last);
    if (last == &text) return false;
  }
  return true;
}

// Whether a text that is read in this step will have the next page of this one too.
bool Scheduler::will_be_found(const Text& text) const {
  const std::int64_t wanted = text.table->length() + options_.page_size;
  if (wanted >= std::ssize(text.tokens)) return false;
  return std::ranges::any_of(plan_.several, [&](const Part& p) {
    const auto& other = at(p.text).tokens;
    return p.begin + p.count >= wanted && p.begin < wanted &&
           std::equal(text.tokens.begin(), text.tokens.begin() + wanted, other.begin());
  });
}

bool Scheduler::join(Text& text) {
  text.table.emplace(pool_.open(text.tokens));
  const std::int64_t found = text.table->length(),
                     kept = std::clamp<std::int64_t>(text.on_host, found, std::ssize(text.tokens) - 1);
  const auto size = std::ssize(text.tokens);
  // Those that run will soon want another page, so some stay free.
  const std::int32_t free = pool_.free() - (running_.empty() ? 0 : pool_.pages() / 100);
  if (pages_for(size) - pages_for(found) > free || will_be_found(text)) {
    text.table.reset();
    return false;
  }
  found_ += found;
  if (text.on_host > 0) {
    text.table->reserve(kept - found, plan_.copies);
    const auto& pages = text.table->pages();
    const std::int64_t first = pages_for(found);
    plan_.in.push_back({text.id, first, {pages.begin() + first, pages.end()}});
    text.table->append(std::span(text.tokens).subspan(found, kept - found));
  }
  drop_from_host(text);
  running_.insert(waiting_.extract(text.id));
  return true;
}

// Gives the text its part of the plan, if it has pages for it.
void Scheduler::read_on(Text& text) {
  const std::int64_t held = text.table->length(), unread = text.size() - held,
                     count = unread == 1 ? 1 : std::min(unread, left_);
  if (count == 0 || !make_room(text, count)) return;
  (unread == 1 ? plan_.single : plan_.several).push_back({text.id, held, count});
  if (unread > 1) left_ -= std::min(left_, detail::pages_for(count, options_.group) * options_.group);
}

// A text of which a token is expected has just left, and nobody overtakes it.
Scheduler::Text* Scheduler::next_waiting() {
  for (const auto& [id, text] : waiting_)
    if (!text->is_idle()) return text->expected > 0 ? nullptr : text;
  return nullptr;
}

const Scheduler::Plan& Scheduler::plan() {
  plan_.out.clear(), plan_.in.clear(), plan_.copies.clear();
  plan_.single.clear(), plan_.several.clear();
  left_ = options_.chunk;
  const std::int64_t before = preemptions_;
  // make_room() takes texts out of the list, but none up to the current one except itself.
  for (auto it = running_.begin(); it != running_.end();) {
    Text& t = *it->second;
    read_on(t);
    it = t.table ? std::next(it) : running_.upper_bound(t.id);
  }
  if (preemptions_ > before && !plan_.is_empty()) return plan_;
  for (Text* t = next_waiting(); t && left_ > 0; t = next_waiting()) {
    if (std::ssize(running_) < options_.seats && join(*t)) {
      read_on(*t);
    } else if (plan_.is_empty() && !running_.empty()) {
      preempt(*running_.rbegin()->second);  // all that run are idle
    } else {
      break;
    }
  }
  return plan_;
}

void Scheduler::done(const Part& part) {
  Text& t = at(part.text);
  if (!t.table || part.begin != t.table->length() || part.count < 0 ||
      part.count > std::ssize(t.tokens) - part.begin)
    throw Error("[scheduler] " + std::to_string(part.count) + " tokens from " + std::to_string(part.begin) +
                " of text " + std::to_string(part.text) + ", which does not follow what is in the cache");
  const auto begin = static_cast<std::size_t>(part.begin), count = static_cast<std::size_t>(part.count);
  t.table->append(std::span(t.tokens).subspan(begin, count));
  t.read = std::max(t.read, part.begin + part.count);
}

}  // namespace tg::nn
