// Compares a table of function calls with a file (tests/support/golden.h). For each call, the file contains
// the graph with first and second gradients, or the error.
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include <tilegrad/tilegrad.h>
#include "tests/support/golden.h"

namespace tg::testing {

using List = std::vector<Tensor>;

inline constexpr double inf = std::numeric_limits<double>::infinity(),
                        nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::int64_t far = std::int64_t{1} << 53;

// Inputs by letter. Each is created when a call first reads it.
struct In {
  Graph g;
  Tensor in(const char* name, const Shape& shape, DType t = f32) {
    const Tensor x = g.input(name, shape, t);
    if (is_float(t)) wrt.push_back(x);
    return x;
  }
  Tensor x(const Shape& s = {3, 4}) { return in("x", s); }
  Tensor y(const Shape& s = {3, 4}) { return in("y", s); }
  Tensor z(const Shape& s = {3, 4}) { return in("z", s); }
  Tensor h(const Shape& s = {3, 4}) { return in("h", s, bf16); }
  Tensor d(const Shape& s = {3, 4}) { return in("d", s, f64); }
  Tensor i(const Shape& s = {3}) { return in("i", s, i64); }
  Tensor j(const Shape& s = {3}) { return in("j", s, i32); }
  Tensor u(const Shape& s = {3, 4}) { return in("u", s, u8); }
  Tensor b(const Shape& s = {3, 4}) { return in("b", s, boolean); }
  List wrt;
};

inline List many(const std::array<Tensor, 3>& a) {
  return {a[0], a[1], a[2]};
}
inline List many(const AttentionResult& a) {
  return {a.o, a.lse};
}
inline List many(const Tensor& t) {
  return {t};
}
inline List many(List l) {
  return l;
}
inline List many(const std::vector<AdamWResults>& all) {
  List l;
  for (const AdamWResults& r : all) {
    l.insert(l.end(), {r.p, r.m, r.v});
    if (r.copy.defined()) l.push_back(r.copy);
  }
  return l;
}

// Returns a message without its source location.
inline std::string without_line(std::string s) {
  for (const char* file : {".cpp:", ".h:"})
    if (const std::size_t at = s.find(file); at != std::string::npos)
      s.resize(std::min(s.find('\n'), s.rfind('(', at)));
  std::replace(s.begin(), s.end(), '\n', ' ');
  return s;
}

inline std::string result_of(List (*call)(In&)) {
  In in;
  List out;
  try {
    out = call(in);
  } catch (const Error& e) {
    return "refused: " + without_line(e.what());
  }
  std::string text = std::to_string(out.size()) + " results";
  const auto add_graph = [&] {
    GraphChecksum sum;
    sum.add(in.g);
    text += "; " + sum.text();
  };
  add_graph();
  std::erase_if(out, [](const Tensor& y) { return !is_float(y.dtype()); });
  if (in.wrt.empty() || out.empty()) return text;
  try {
    List z;
    for (const Tensor& y : out)
      for (const Tensor& t : gradients(tg::sum(y), in.wrt)) z.push_back(t);
    add_graph();
    if (in.g.nodes().size() > 150) return text;  // second derivatives would be slow
    for (const Tensor& t : z) gradients(tg::sum(t * t), in.wrt);
    add_graph();
  } catch (const Error& e) {
    text += "; " + without_line(e.what());
  }
  return text;
}

struct Call {
  const char* text;
  List (*call)(In&);
};
// A row of a table of calls: its source text and a function.
#define TG_CALL(...)                                                                                 \
  {                                                                                                  \
#__VA_ARGS__,                                                                                    \
        []([[maybe_unused]] tg::testing::In & in) -> tg::testing::List { return many(__VA_ARGS__); } \
  }

inline GoldenLines results_of(std::initializer_list<std::span<const Call>> tables) {
  GoldenLines lines;
  for (const std::span<const Call> table : tables)
    for (const Call& c : table) {
      std::string text = c.text;
      std::erase(text, ' ');  // removes spaces, because they depend on the formatting of the source
      lines[text] = result_of(c.call);
    }
  return lines;
}

}  // namespace tg::testing
