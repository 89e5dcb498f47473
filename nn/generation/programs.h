// Functions that Generator and Engine share, and the programs of an Engine. These programs read tokens of
// sequences or move rows of the cache.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/ops/ops.h>
#include "core/base/piece_size.h"

namespace tg::nn {

namespace detail {

// Throws Error for an attention layer that does not use the cache. A layer that uses the cache has a length
// input.
inline void check_cached_attention(const Graph& graph, const std::string& who) {
  for (const Node& n : graph.nodes())
    if (const AttentionAttrs* a = attention_of(*n.op, n.attrs); a && !a->has_lengths)
      throw Error("[" + who + "] " + graph.name_of(n) +
                  " reads no key-value cache: its layer has to use CallArgs::cache" +
                  (who == "generate" ? ", or the Generator {.cache = false} " : " ") + at_line(n.where));
}

// A run over few tokens is short. If it needs fewer multiplications by weights than this number, a single
// thread is faster than several threads.
inline int threads_for(const LanguageModel& model, std::int64_t tokens, int threads) {
  constexpr std::int64_t worth_threads = std::int64_t{1} << 22;
  return threads == 0 && model.count() < worth_threads / tokens ? 1 : threads;
}

inline CompileOptions options_for(const LanguageModel& model, std::int64_t tokens, int threads,
                                  Precision precision) {
  return {.threads = threads_for(model, tokens, threads), .tf32 = precision == Precision::tf32};
}

}  // namespace detail

// Number of consecutive prompt tokens that are read together. The smallest GPU attention tiles have this
// number of rows. Larger groups would add padding rows at the end of each prompt.
constexpr std::int64_t group_size = 8;

// A program that reads single tokens and groups of tokens. For each single token and for the last token of
// each group, it computes the next token's logits and draws a token. Results of single tokens precede results
// of groups. If `last` is given, drawn tokens are also stored there for the next step, and single tokens may
// be read from there.
struct Engine::Run {
  const std::int64_t singles, groups;
  Graph graph;
  Tensor tokens;                           // i32 [rows, 1]; −1: read from `last`
  Tensor temperature, keys, top_k, top_p;  // [singles + groups], keys [singles + groups, 2]
  Tensor from, to;                         // i32 [rows], [singles + groups]: indices into `last`; −1: none
  Tensor logits, next;                     // f32 [singles + groups, vocabulary], i32 [singles + groups]
  CacheCall cache;
  Program program;
  std::vector<std::int32_t> token, row, position, length, table, place, new_place;  // input values
  std::vector<double> temperatures, top_ps;
  std::vector<std::int64_t> key, top_ks;
  bool is_sampling_fed = false;  // whether the current values were fed; a program keeps them

  Run(const LanguageModel& model, KvCache& into, std::int64_t singles, std::int64_t groups, std::int64_t room,
      const Options& o, const std::optional<Parameter>& last, const std::shared_ptr<SharedArena>& arena,
      const std::source_location& where)
      : singles(singles),
        groups(groups),
        tokens(graph.input("tokens", {singles + groups * group_size, 1}, i32, where)),
        cache(graph, into, {singles, groups, group_size, room}),
        program(build(model, o, last, arena, where)) {
    const auto rows = static_cast<std::size_t>(tokens.numel());
    const auto entries = static_cast<std::size_t>(singles + groups);
    for (auto* const of_rows : {&token, &row, &position, &place}) of_rows->resize(rows);
    for (auto* const of_entries : {&length, &new_place}) of_entries->resize(entries);
    table.resize(entries * static_cast<std::size_t>(room)), key.resize(2 * entries);
    temperatures.resize(entries), top_ps.resize(entries), top_ks.resize(entries);
  }

  Program build(const LanguageModel& model, const Options& o, const std::optional<Parameter>& last,
                const std::shared_ptr<SharedArena>& arena, const std::source_location& where) {
    const std::int64_t rows = tokens.numel(), entries = singles + groups;
    std::vector<Assign> assign;
    Tensor read = tokens;
    if (last && singles > 0) {
      from = graph.input("from", {rows}, i32, where);
      // Computes in i64, because elementwise ops in i64 are fused into one step.
      const Tensor drawn = cast(view(index_select(graph.param(*last), 0, from), {rows, 1}), i64),
                   known = cast(tokens, i64);
      // If all logits are NaN, the drawn value is −1, which is not a token. That sequence is about to end, so
      // it reads token 0.
      read = cast(tg::where(less(known, 0), maximum(drawn, 0), known), i32);
    }
    if (last) to = graph.input("to", {entries}, i32, where);
    {
      const Autocast autocast(graph, o.precision);
      const Tensor x = ends_of(model.features_of({read, where}, {.cache = &cache}));
      logits = contiguous(squeeze(cast(model.head_of({x, where}), f32), 1));
    }
    temperature = graph.input("temperature", {entries}, f64, where);
    keys = graph.input("keys", {entries, 2}, i64, where);
    top_k = graph.input("top_k", {entries}, i64, where);
    top_p = graph.input("top_p", {entries}, f64, where);
    next = sample({logits, where}, temperature, keys, top_k, top_p);
    if (last) assign.push_back({*last, index_assign(graph.param(*last), 0, to, next)});
    detail::check_cached_attention(graph, "engine");
    assign.insert(assign.end(), cache.assign().begin(), cache.assign().end());
    CompileOptions options = detail::options_for(model, tokens.numel(), o.threads, o.precision);
    options.assign = assign, options.batch_invariant = true, options.arena = arena;
    return compile(graph, {next, logits}, options);
  }
  // Selects from x [rows, 1, …] the rows from which tokens are drawn. Returns [singles + groups, 1, …].
  Tensor ends_of(const Tensor& x) const {
    std::vector<Tensor> parts;
    if (singles > 0) parts.push_back(slice(x, 0, 0, singles));
    if (groups > 0) parts.push_back(slice(x, 0, singles + group_size - 1, x.size(0), group_size));
    return parts.size() == 1 ? parts[0] : concat(parts, 0);
  }

  // Sets entry b of the call, which is a single token or a group, to tokens [begin, end) of a sequence. The
  // entry must have a row for each token. Only the last token may be unknown.
  void set(std::size_t b, std::int64_t begin, std::int64_t end, std::span<const std::int32_t> sequence,
           const PageTable& pages) {
    const auto [at, n] = rows_of(b);
    const std::int64_t known = std::ssize(sequence);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t t = end - static_cast<std::int64_t>(n - i);
      token[at + i] = t < 0 ? 0 : t < known ? sequence[static_cast<std::size_t>(t)] : -1;
      // The pool counts pages from 1, the cache from 0.
      row[at + i] = t < begin ? -1 : static_cast<std::int32_t>(pages.row(t) - pages.page_size());
      position[at + i] = static_cast<std::int32_t>(std::max<std::int64_t>(t, 0));
    }
    length[b] = static_cast<std::int32_t>(end);
    const std::size_t room = table.size() / length.size(), held = std::min(room, pages.pages().size());
    for (std::size_t i = 0; i < held; ++i) table[b * room + i] = pages.pages()[i] - 1;
  }
  // Returns the first row and the number of rows of entry b.
  std::pair<std::size_t, std::size_t> rows_of(std::size_t b) const {
    const auto s = static_cast<std::size_t>(singles), n = static_cast<std::size_t>(group_size);
    return b < s ? std::pair(b, std::size_t{1}) : std::pair(s + (b - s) * n, n);
  }
  void set_sampling(std::size_t b, const Sampling& s, std::uint64_t seed, std::int64_t k) {
    const auto put = [&](auto& to, auto value) {
      is_sampling_fed = is_sampling_fed && to == value, to = value;
    };
    put(temperatures[b], s.temperature), put(top_ks[b], s.top_k), put(top_ps[b], s.top_p);
    if (s.temperature == 0) return;  // no random number is needed
    put(key[2 * b], static_cast<std::int64_t>(seed)), put(key[2 * b + 1], k);
  }
  void set_places(std::size_t b, std::int32_t read, std::int32_t written) {
    const auto [at, n] = rows_of(b);
    for (std::size_t i = 0; i < n; ++i) place[at + i] = read;
    new_place[b] = written;
  }
  void set_empty(std::size_t b) {
    const auto [at, n] = rows_of(b);
    for (std::size_t i = 0; i < n; ++i) token[at + i] = 0, row[at + i] = -1, position[at + i] = 0;
    length[b] = 0;
    set_unread(b);
  }
  // No token is drawn after entry b.
  void set_unread(std::size_t b) {
    set_sampling(b, {.temperature = 0}, 0, 0);
    set_places(b, 0, -1);
  }
  // Feeds the inputs in the order in which they were recorded, so that one copy transfers all of them.
  void feed() {
    const auto feed = [&](const Tensor& input, const auto& values) {
      if (program.reads(input)) program.feed({input, values});  // a model without attention reads no cache
    };
    feed(tokens, token), feed(cache.rows(), row), feed(cache.positions(), position);
    feed(cache.lengths(), length), feed(cache.table(), table);
    if (from.defined()) feed(from, place);
    if (to.defined()) feed(to, new_place);
    if (is_sampling_fed) return;
    feed(temperature, temperatures), feed(keys, key), feed(top_k, top_ks), feed(top_p, top_ps);
    is_sampling_fed = true;
  }
};

// A program that copies rows of all cache tensors to other rows, to the host, and back. Entries with −1 copy
// nothing.
struct Engine::Move {
  static constexpr std::int64_t rows_moved = piece_size(256, 3);  // per run
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
