// World contains the values of a random program and draws arguments from them. Most arguments are ordinary,
// so that many calls succeed. Some are hostile: null and moved-from handles, tensors of another graph,
// extreme sizes and numbers, any dtype, empty functions.
#pragma once

#include <functional>
#include <optional>
#include <random>

#include <tilegrad/core/report/graph_text.h>
#include <tilegrad/tilegrad.h>

namespace tg::hostile {

struct World {
  explicit World(std::uint64_t seed);

  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : random() % n; }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random) < p; }
  bool hostile() { return chance(hostility); }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[below(all.size())];
  }

  std::mt19937_64 random;
  double hostility;  // the probability that a drawn value is hostile
  Graph graph, other;
  std::vector<Tensor> tensors;
  std::vector<Array> arrays;
  std::vector<Parameter> parameters;
  std::vector<Program> programs;
  std::vector<Pending> pendings;
  std::vector<Layout> layouts;
  std::string trace;  // the calls so far, one per line
  std::function<void(const std::string&)> on_call = [](const std::string&) {
  };  // receives the trace before each call

  void keep(const Tensor& t) { tensors.push_back(t); }
  void keep(const Array& a) { arrays.push_back(a); }
  void keep(const Parameter& p) { parameters.push_back(p); }
  void keep(const Program& p) { programs.push_back(p); }
  void keep(const Pending& p) { pendings.push_back(p); }
  void keep(const Layout& l) { layouts.push_back(l); }
  void keep(const AttentionResult& r) { keep(r.o), keep(r.lse); }
  void keep(const AdamWResults& r) {
    keep(r.p), keep(r.m), keep(r.v);
    if (r.copy.defined()) keep(r.copy);
  }
  void keep(const auto&) {}
  template <class T>
  void keep(const std::vector<T>& all) {
    for (const T& x : all) keep(x);
  }
  template <class T, std::size_t n>
  void keep(const std::array<T, n>& all) {
    for (const T& x : all) keep(x);
  }
};

// Random values with this shape. They sometimes include hostile numbers.
Array filled(World& w, const Shape& shape, DType dtype);

// Draws an argument of type T.
template <class T>
struct Draw;
#define TG_DRAWN(T)        \
  template <>              \
  struct Draw<T> {         \
    static T of(World& w); \
  }
TG_DRAWN(bool);
TG_DRAWN(int);
TG_DRAWN(std::int64_t);
TG_DRAWN(std::uint32_t);
TG_DRAWN(std::uint64_t);
TG_DRAWN(double);
TG_DRAWN(float);
TG_DRAWN(std::string);
TG_DRAWN(DType);
TG_DRAWN(Device);
TG_DRAWN(Dims);
TG_DRAWN(Layout);
TG_DRAWN(Array);
TG_DRAWN(Tensor);
TG_DRAWN(TensorArg);
TG_DRAWN(Parameter);
TG_DRAWN(Program);
TG_DRAWN(Pending);
TG_DRAWN(Feed);
TG_DRAWN(Assign);
TG_DRAWN(Graph&);
TG_DRAWN(std::source_location);
TG_DRAWN(Reduction);
TG_DRAWN(CrossEntropyOptions);
TG_DRAWN(LinearCrossEntropyOptions);
TG_DRAWN(ReduceOptions);
TG_DRAWN(RopeOptions);
TG_DRAWN(AdamWOptions);
TG_DRAWN(AdamWTensors);
TG_DRAWN(ScoreFunction);
TG_DRAWN(AttentionOptions);
TG_DRAWN(PagedAttentionOptions);
TG_DRAWN(CompileOptions);
TG_DRAWN(GraphFunctions);
TG_DRAWN(HostOp);
TG_DRAWN(std::function<std::vector<Tensor>(const std::vector<Tensor>&)>);
#undef TG_DRAWN

template <class T>
struct Draw<std::vector<T>> {
  static std::vector<T> of(World& w) {
    std::vector<T> all;
    for (std::uint64_t n = w.below(4); n > 0; --n) all.push_back(Draw<T>::of(w));
    if (!all.empty() && w.hostile()) all.push_back(all[0]);  // adds the same value again
    return all;
  }
};

std::string text_of(bool x);
std::string text_of(std::int64_t x);
std::string text_of(double x);
std::string text_of(const std::string& s);
std::string text_of(DType t);
std::string text_of(const Dims& d);
std::string text_of(const Tensor& t);
std::string text_of(const TensorArg& t);
std::string text_of(const Array& a);
std::string text_of(const auto&) {
  return "…";
}
template <class T>
std::string text_of(const std::vector<T>& all) {
  std::string s;
  for (const auto& x : all) s += (s.empty() ? "" : ", ") + text_of(x);
  return "{" + s + "}";
}

struct Call {
  std::string name;
  std::function<void(World&)> run;
};

namespace detail {

template <class A>
using Stored = std::conditional_t<std::is_same_v<A, Graph&>, Graph&, std::decay_t<A>>;

// Calls f with arguments that are drawn in order.
template <class R, class... A>
void run(World& w, const std::string& name, const std::function<R(Stored<A>...)>& f) {
  std::tuple<Stored<A>...> arguments{Draw<Stored<A>>::of(w)...};
  std::string text;
  std::apply([&](const auto&... a) { ((text += (text.empty() ? "" : ", ") + text_of(a)), ...); }, arguments);
  w.trace += name + "(" + text + ")\n";
  w.on_call(w.trace);
  if constexpr (std::is_void_v<R>)
    std::apply(f, std::move(arguments));
  else
    w.keep(std::apply(f, std::move(arguments)));
}

}  // namespace detail

template <class R, class... A>
Call call(const std::string& name, R (*f)(A...)) {
  return {name, [=](World& w) {
            detail::run<R, A...>(w, name, [=](detail::Stored<A>... a) -> R { return f(a...); });
          }};
}
template <class C, class R, class... A>
Call call(const std::string& name, R (C::*f)(A...) const) {
  return {name, [=](World& w) {
            detail::run<R, C, A...>(w, name,
                                    [=](const C& c, detail::Stored<A>... a) -> R { return (c.*f)(a...); });
          }};
}
template <class C, class R, class... A>
Call call(const std::string& name, R (C::*f)(A...)) {
  return {name, [=](World& w) {
            detail::run<R, C, A...>(w, name, [=](C c, detail::Stored<A>... a) -> R { return (c.*f)(a...); });
          }};
}

// The calls of the public functions and methods, grouped by header.
std::vector<Call> core_calls();      // core/, autograd/
std::vector<Call> op_calls();        // ops/
std::vector<Call> model_calls();     // nn/
std::vector<Call> file_calls();      // io/
std::vector<Call> parallel_calls();  // parallel/

// Runs a program of random calls. Then some tensors are differentiated, compiled and run.
void run_program(World& w);

}  // namespace tg::hostile
