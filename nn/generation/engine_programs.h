// The programs of an Engine: those that read tokens of texts, and those that move rows of its cache.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/ops/ops.h>
#include "nn/generation/run_options.h"

namespace tg::nn {

// The last `length` tokens of each of some texts → the logits of its very last one, and a token drawn from
// them. With `last`, that token is put there for the next step, and a single token may come from there.
struct Engine::Run {
  Graph graph;
  Tensor tokens;                           // i32 [texts, length]; −1: in `last`
  Tensor temperature, keys, top_k, top_p;  // [texts], keys [texts, 2]
  Tensor from, to;                         // i32 [texts]: places in `last`; −1: nowhere
  Tensor logits, next;                     // f32 [texts, vocabulary], i32 [texts]
  CacheCall cache;
  Program program;
  std::vector<std::int32_t> token, row, length, table, place, new_place;  // what is fed
  std::vector<double> temperatures, top_ps;
  std::vector<std::int64_t> key, top_ks;
  bool is_sampling_fed = false;  // as it is now: programs keep what they were fed

  Run(const LanguageModel& model, KvCache& into, std::int64_t texts, std::int64_t n, std::int64_t room,
      const Options& o, const std::optional<Parameter>& last, const std::shared_ptr<SharedArena>& arena,
      const std::source_location& where)
      : tokens(graph.input("tokens", {texts, n}, i32, where)),
        cache(graph, into, texts, n, room),
        program(build(model, n, o, last, arena, where)),
        token(static_cast<std::size_t>(texts * n)),
        row(token.size()),
        length(static_cast<std::size_t>(texts)),
        table(static_cast<std::size_t>(texts * room)),
        place(length.size()),
        new_place(length.size()),
        temperatures(length.size()),
        top_ps(length.size(), 1),
        key(2 * length.size()),
        top_ks(length.size()) {}

  Program build(const LanguageModel& model, std::int64_t n, const Options& o,
                const std::optional<Parameter>& last, const std::shared_ptr<SharedArena>& arena,
                const std::source_location& where) {
    const std::int64_t texts = tokens.size(0);
    std::vector<Assign> assign;
    Tensor read = tokens;
    if (last && n == 1) {
      from = graph.input("from", {texts}, i32, where);
      // In i64, of which a chain of ops is one step.
      const Tensor drawn = cast(view(index_select(graph.param(*last), 0, from), {texts, 1}), i64),
                   known = cast(tokens, i64);
      // −1, of logits that are all NaN, is no token: that text is about to end.
      read = cast(tg::where(less(known, 0), maximum(drawn, 0), known), i32);
    }
    if (last) to = graph.input("to", {texts}, i32, where);
    {
      const Autocast autocast(graph, o.precision);
      const Tensor x = slice(model.features_of({read, where}, {.cache = &cache}), 1, n - 1, n);
      logits = contiguous(squeeze(cast(model.head_of({x, where}), f32), 1));
    }
    temperature = graph.input("temperature", {texts}, f64, where);
    keys = graph.input("keys", {texts, 2}, i64, where);
    top_k = graph.input("top_k", {texts}, i64, where);
    top_p = graph.input("top_p", {texts}, f64, where);
    next = sample({logits, where}, temperature, keys, top_k, top_p);
    if (last) assign.push_back({*last, index_assign(graph.param(*last), 0, to, next)});
    detail::check_cached_attention(graph, "engine");
    assign.insert(assign.end(), cache.assign().begin(), cache.assign().end());
    CompileOptions options{.assign = assign,
                           .threads = detail::threads_for(model, tokens.numel(), o.threads),
                           .tf32 = o.precision == Precision::tf32,
                           .rows_alone = true,
                           .arena = arena};
    return compile(graph, {next, logits}, options);
  }

  // Entry b of the call: a part of a text, of which all tokens are known but perhaps its last.
  void set(std::size_t b, const Scheduler::Part& part, std::span<const std::int32_t> text,
           const PageTable& pages) {
    const std::size_t n = token.size() / length.size(), room = table.size() / length.size();
    const std::int64_t end = part.begin + part.count, first = end - static_cast<std::int64_t>(n),
                       known = std::ssize(text);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t at = first + static_cast<std::int64_t>(i);
      token[b * n + i] = at < 0 ? 0 : at < known ? text[static_cast<std::size_t>(at)] : -1;
      // The pool counts pages from 1, the cache from 0.
      row[b * n + i] = at < part.begin ? -1 : static_cast<std::int32_t>(pages.row(at) - pages.page_size());
    }
    length[b] = static_cast<std::int32_t>(end);
    const auto held = std::min(room, pages.pages().size());
    for (std::size_t i = 0; i < held; ++i) table[b * room + i] = pages.pages()[i] - 1;
  }
  void set_sampling(std::size_t b, const Sampling& s, std::uint64_t seed, std::int64_t k) {
    const auto put = [&](auto& to, auto value) {
      is_sampling_fed = is_sampling_fed && to == value, to = value;
    };
    put(temperatures[b], s.temperature), put(top_ks[b], s.top_k), put(top_ps[b], s.top_p);
    if (s.temperature == 0) return;  // nothing is drawn
    put(key[2 * b], static_cast<std::int64_t>(seed)), put(key[2 * b + 1], k);
  }
  void set_places(std::size_t b, std::int32_t read, std::int32_t written) {
    place[b] = read, new_place[b] = written;
  }
  void set_empty(std::size_t b) {
    const std::size_t n = token.size() / length.size();
    for (std::size_t i = 0; i < n; ++i) token[b * n + i] = 0, row[b * n + i] = -1;
    length[b] = 0;
    set_sampling(b, {.temperature = 0}, 0, 0);
    set_places(b, 0, -1);
  }
  // In the order in which the inputs were recorded: they are copied in one piece.
  void feed() {
    const auto feed = [&](const Tensor& input, const auto& values) {
      if (program.reads(input)) program.feed({input, values});  // a model without attention reads no cache
    };
    feed(tokens, token), feed(cache.rows(), row), feed(cache.lengths(), length), feed(cache.table(), table);
    if (from.defined()) feed(from, place);
    if (to.defined()) feed(to, new_place);
    if (is_sampling_fed) return;
    feed(temperature, temperatures), feed(keys, key), feed(top_k, top_ks), feed(top_p, top_ps);
    is_sampling_fed = true;
  }
};

// Rows of all tensors of the cache: copied to other rows, to the host, and back. −1 and what is after the
// rows to be moved is moved nowhere.
struct Engine::Move {
  static constexpr std::int64_t rows_moved = 256;  // in one run
  Graph copying, leaving, returning;
  Tensor from, to, out, in;  // i32 [rows_moved]
  std::map<std::string, Tensor> left, back;
  std::optional<Program> copy, leave, come_back;

  Move(const KvCache& cache, const std::shared_ptr<SharedArena>& arena) {
    from = copying.input("from", {rows_moved}, i32), to = copying.input("to", {rows_moved}, i32);
    out = leaving.input("out", {rows_moved}, i32), in = returning.input("in", {rows_moved}, i32);
    std::vector<Assign> copied, returned;
    std::vector<Tensor> fetched;
    for (const auto& [name, held] : cache.tensors()) {
      const Tensor all = copying.param(held);
      copied.push_back({held, index_assign(all, 0, to, index_select(all, 0, from))});
      fetched.push_back(left[name] = index_select(leaving.param(held), 0, out));
      const Shape& s = held.shape();
      const Tensor rows = back[name] = returning.input(name, {rows_moved, s[1], s[2]}, held.dtype());
      returned.push_back({held, index_assign(returning.param(held), 0, in, rows)});
    }
    copy = compile(copying, {}, {.assign = copied, .arena = arena});
    leave = compile(leaving, fetched, {.arena = arena});
    come_back = compile(returning, {}, {.assign = returned, .arena = arena});
  }
};

}  // namespace tg::nn
