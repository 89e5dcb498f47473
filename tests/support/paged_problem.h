// A call of paged_attn, and its definition in f64. Its numbers are functions of sequence, position, head and
// column. So they do not depend on the order of pages or on the rest of the batch. Values that no query may
// read are NaN. They are in page 0, in unused pages, and in the unused part of a sequence's last page.
#pragma once

#include <random>

#include "tests/support/op_testing.h"

namespace tg::testing {

struct PagedCall {
  std::int64_t H = 4, Hk = 2, d = 8, dv = 8, page = 16;
  DType dtype = f32;
  PagedAttentionOptions options = {};
  bool sink = false, v_in_k = false;
  // The functions of `options` on numbers, for the definition: A of a capped score, and whether a pair is
  // visible.
  std::function<double(double s, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t t)> score = {};
  std::function<bool(std::int64_t b, std::int64_t i, std::int64_t t)> mask = {};
  std::int64_t L = 1;
  // For each batch entry, the index of its sequence and its number of keys. Entries of the same sequence
  // share pages.
  std::vector<int> sequences = {0};
  std::vector<std::int64_t> lengths = {1};
  std::int64_t room = 0;    // additional pages, in the table and in the pool
  std::uint64_t order = 1;  // seed of the order of pages
  // Whether an earlier step computes the pools, or the table and the lengths.
  bool computed_keys = false, computed_places = false;

  std::int64_t B() const { return static_cast<std::int64_t>(sequences.size()); }
  std::int64_t n() const {
    return room + (*std::max_element(lengths.begin(), lengths.end()) + page - 1) / page;
  }

  enum Kind { of_q, of_k, of_v, of_sink };
  // Returns a number that is approximately normal and exact in every dtype. If keys contain the values, v and
  // k have the same number.
  double number(Kind kind, std::int64_t sequence, std::int64_t t, std::int64_t head, std::int64_t e) const {
    if (kind == of_v && v_in_k) kind = of_k;
    std::uint64_t x = 0x9e3779b97f4a7c15u;
    for (const std::int64_t i : {std::int64_t{kind}, sequence, t, head, e})
      x = (x ^ static_cast<std::uint64_t>(i + 1)) * 0xbf58476d1ce4e5b9u, x ^= x >> 29;
    return static_cast<double>(x % 32 + x / 32 % 32 + x / 1024 % 32) / 16 - 2.875;
  }

  struct Result {
    Array o, lse;
    std::string choice;  // the chosen kernels
  };
  struct Recorded {
    AttentionResult r;
    std::vector<Tensor> operands;
  };
  // Adds the call to a graph, and its inputs to the feeds. Calls in the same graph need different names.
  Recorded record(Graph& g, std::vector<Feed>& feeds, const std::string& call = "") const {
    const auto input = [&](const char* name, const Array& a) {
      const Tensor x = g.input(name + call, a.shape(), a.dtype());
      feeds.emplace_back(x, a);
      return x;
    };
    // Copies all rows with a kernel of the library, because the emulator does not detect writes of generated
    // kernels.
    const auto input_or_computed = [&](const char* name, const Array& a, bool computed) {
      const Tensor x = input(name, a);
      if (!computed) return x;
      std::vector<std::int64_t> all(static_cast<std::size_t>(a.shape()[0]));
      std::iota(all.begin(), all.end(), 0);
      return index_select(x, 0, input((std::string("rows of ") + name).c_str(), Array::of(all)));
    };
    Array q({B(), H, L, d}, dtype);
    std::int64_t at = 0;
    for (std::size_t b = 0; b < sequences.size(); ++b)
      for (std::int64_t h = 0; h < H; ++h)
        for (std::int64_t i = 0; i < L; ++i)
          for (std::int64_t e = 0; e < d; ++e)
            q.set(at++, number(of_q, sequences[b], lengths[b] - L + i, h, e));
    const Pages pages = placed();
    const Array counts = Array::of(std::vector<std::int32_t>(lengths.begin(), lengths.end()));
    const Tensor tq = input("q", q), k = input_or_computed("k", pages.k, computed_keys),
                 v = v_in_k ? slice(k, 3, 0, dv) : input_or_computed("v", pages.v, computed_keys),
                 table = input_or_computed("table", pages.table, computed_places),
                 n = input_or_computed("lengths", counts, computed_places);
    PagedAttentionOptions o = options;
    if (sink) {
      Array s({H}, dtype);
      for (std::int64_t h = 0; h < H; ++h) s.set(h, number(of_sink, 0, 0, h, 0));
      o.sink = input("sink", s);
    }
    std::vector<Tensor> operands{tq, k, v, table, n};
    if (sink) operands.push_back(o.sink);
    return {paged_attn(tq, k, v, table, n, o), operands};
  }
  Result run(const CompileOptions& how = {}, bool decomposed = false) const {
    Graph g;
    std::vector<Feed> feeds;
    const Recorded call = record(g, feeds);
    std::vector<Tensor> results{call.r.o, call.r.lse};
    if (decomposed) {
      const Node& node = g.nodes().back();
      results = node.op->decompose(call.operands, node.attrs);
    }
    Program p = compile(g, results, how);
    for (const Feed& f : feeds) p.feed(f);
    p.run();
    Result got{p.fetch(results[0]), p.fetch(results[1]), {}};
    for (std::size_t s = 0; s < p.steps().size(); ++s)
      if (p.steps()[s].op->name == "paged_attn") got.choice = p.choice(s);
    return got;
  }

  // Computes the results by definition. `spread` is o, computed from |v| instead of v.
  struct Defined {
    Vector o, lse, spread;
  };
  Defined defined() const {
    Defined all;
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(d)));
    for (std::size_t b = 0; b < sequences.size(); ++b)
      for (std::int64_t h = 0; h < H; ++h)
        for (std::int64_t i = 0; i < L; ++i) {
          const std::int64_t own = lengths[b] - L + i, key_head = h / (H / Hk),
                             from = options.window_left < 0 ? 0 : own - options.window_left;
          double sum = sink ? std::exp(number(of_sink, 0, 0, h, 0)) : 0;
          Vector o(static_cast<std::size_t>(dv)), spread = o;
          for (std::int64_t t = std::max<std::int64_t>(from, 0); t <= own; ++t) {
            double a = 0;
            if (mask && !mask(static_cast<std::int64_t>(b), own, t)) continue;
            for (std::int64_t e = 0; e < d; ++e)
              a += number(of_q, sequences[b], own, h, e) * number(of_k, sequences[b], t, key_head, e);
            a *= scale;
            if (options.softcap > 0) a = options.softcap * std::tanh(a / options.softcap);
            if (score) a = score(a, static_cast<std::int64_t>(b), h, own, t);
            const double p = std::exp(a);
            sum += p;
            for (std::int64_t e = 0; e < dv; ++e) {
              const double v = number(of_v, sequences[b], t, key_head, e);
              o[static_cast<std::size_t>(e)] += p * v, spread[static_cast<std::size_t>(e)] += p * std::abs(v);
            }
          }
          for (const double e : o) all.o.push_back(sum == 0 ? 0 : e / sum);
          for (const double e : spread) all.spread.push_back(sum == 0 ? 0 : e / sum);
          all.lse.push_back(std::log(sum));
        }
    return all;
  }

 private:
  struct Pages {
    Array k, v, table;
  };
  Pages placed() const {
    const std::int64_t P = 1 + (B() + 1) * n();
    std::vector<std::int32_t> free(static_cast<std::size_t>(P - 1));
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), std::mt19937_64(order));
    Pages p{Array({P, page, Hk, d}, dtype), Array({P, page, Hk, dv}, dtype), Array({B(), n()}, i32)};
    for (Array* a : {&p.k, &p.v})
      for (std::int64_t e = 0; e < a->numel(); ++e) a->set(e, std::numeric_limits<double>::quiet_NaN());
    for (std::size_t b = 0; b < sequences.size(); ++b) {
      const auto like = static_cast<std::size_t>(std::find(sequences.begin(), sequences.end(), sequences[b]) -
                                                 sequences.begin());
      for (std::int64_t t = 0; t < lengths[b]; ++t) {
        const std::int64_t place = static_cast<std::int64_t>(b) * n() + t / page;
        if (t % page == 0) {
          const bool held = like < b && t < lengths[like];
          p.table.set(place,
                      held ? p.table.at(static_cast<std::int64_t>(like) * n() + t / page) : free.back());
          if (!held) free.pop_back();
        }
        const std::int64_t row = static_cast<std::int64_t>(p.table.at(place)) * page + t % page;
        for (std::int64_t h = 0; h < Hk; ++h) {
          for (std::int64_t e = 0; e < d; ++e)
            p.k.set((row * Hk + h) * d + e, number(of_k, sequences[b], t, h, e));
          for (std::int64_t e = 0; e < dv; ++e)
            p.v.set((row * Hk + h) * dv + e, number(of_v, sequences[b], t, h, e));
        }
      }
    }
    return p;
  }
};

// Expects the results of the definition. The error bound is one rounding of the result, plus the rounding
// errors of sums in the compute type. These sums have about 100 terms up to about 10. Tensor cores also round
// exp(A − c).
inline void expect_defined(const PagedCall& c, const PagedCall::Result& got, bool tensor_cores = false) {
  const PagedCall::Defined expected = c.defined();
  const double terms = c.dtype == f64 ? 1e-12 : 1e-5;
  const auto compare = [&](const Array& a, const Vector& e, double rounded, const char* what,
                           const Vector* spread = nullptr) {
    ASSERT_EQ(static_cast<std::size_t>(a.numel()), e.size());
    const Vector values = doubles(a);
    for (std::size_t i = 0; i < e.size(); ++i) {
      if (std::isinf(e[i])) {
        ASSERT_EQ(values[i], e[i]) << what << " at " << i;
      } else {
        const double factors = spread ? rounding(c.dtype) * (*spread)[i] : 0;
        ASSERT_NEAR(values[i], e[i],
                    rounded * (std::abs(e[i]) + factors) + factors + terms * std::max(1.0, std::abs(e[i])))
            << what << " at " << i;
      }
    }
  };
  compare(got.o, expected.o, rounding(c.dtype), "o", tensor_cores ? &expected.spread : nullptr);
  compare(got.lse, expected.lse, 0, "lse");
}
inline void expect_defined(const PagedCall& c, const CompileOptions& how = {}, bool tensor_cores = false) {
  expect_defined(c, c.run(how), tensor_cores);
}

// Returns the elements of o or ξ for `count` queries starting at `from`. Tests compare them bitwise.
inline Vector rows(const Array& x, std::int64_t b, std::int64_t from, std::int64_t count) {
  const Shape& s = x.shape();  // [B, H, L] or [B, H, L, dv]
  const std::int64_t size = s.size() == 4 ? s[3] : 1;
  Vector out;
  for (std::int64_t h = 0; h < s[1]; ++h)
    for (std::int64_t e = 0; e < count * size; ++e)
      out.push_back(x.at(((b * s[1] + h) * s[2] + from) * size + e));
  return out;
}

}  // namespace tg::testing
