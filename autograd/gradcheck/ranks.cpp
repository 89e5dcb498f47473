#include "autograd/gradcheck/ranks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/base/rng.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/ops/ranks.h>
#include "autograd/gradcheck/tally.h"
#include "core/run/ranks.h"

namespace tg::gradcheck {

namespace {

// Used instead of a rank for numbers that are equal on all ranks.
constexpr int all_ranks = -1;

// The value of element i of a tensor on one rank, in ±[0.5, 1.5).
double drawn(std::uint64_t seed, int rank, std::size_t tensor, std::int64_t i) {
  const std::uint64_t key =
      node_key(seed, static_cast<std::uint64_t>(rank + 1), static_cast<std::uint32_t>(tensor));
  const PhiloxBlock b = philox({static_cast<std::uint32_t>(i), 0, 0, 0}, key);
  return (b[2] & 1 ? -1 : 1) * (0.5 + uniform(b[0], b[1]));
}

// A case as one program for results and gradients, in one dtype, on this rank.
class OnRank {
 public:
  OnRank(const RankCase& c, DType dtype, const std::shared_ptr<Communicator>& ranks, const Options& options)
      : rank_(ranks->rank()) {
    std::vector<Tensor> x;
    for (const SampleInput& i : c.f.inputs) x.push_back(graph_.input("x", i.shape, dtype));
    const Callable f = c.f.make(dtype, options.device);
    if (!f.parameters.empty())
      throw Error("[gradcheck] " + c.f.text() + " has parameters, which are not checked over ranks");
    const std::vector<Tensor> y = f.call(x);
    for (std::size_t k = 0; k < x.size(); ++k)
      add_feed(x[k], options.seed, c.is_input_replicated ? all_ranks : rank_, k);
    Tensor loss;
    for (std::size_t k = 0; k < y.size(); ++k) {
      const Tensor w = graph_.input("w", y[k].shape(), y[k].dtype());
      add_feed(w, options.seed, c.is_output_replicated ? all_ranks : rank_, x.size() + k);
      const Tensor own = sum(w * y[k]);
      loss = loss.defined() ? loss + cast(own, loss.dtype()) : own;
    }
    results_ = {loss};
    results_.insert(results_.end(), y.begin(), y.end());
    first_gradient_ = results_.size();
    for (const Tensor& z : gradients(loss, x)) results_.push_back(z);
    program_.emplace(compile(graph_, results_, {.device = options.device, .threads = 1, .ranks = ranks}));
  }

  std::size_t inputs() const { return results_.size() - first_gradient_; }
  std::size_t outputs() const { return first_gradient_ - 1; }
  std::size_t steps() const { return program_->steps().size(); }
  Array& input(std::size_t k) { return feeds_[k].second; }
  Array& cotangent(std::size_t k) { return feeds_[inputs() + k].second; }

  void run() {
    std::vector<Feed> feeds;
    for (const auto& [tensor, values] : feeds_) feeds.emplace_back(tensor, values);
    program_->run(feeds);
  }
  double loss() { return program_->fetch(results_[0]).at(0); }
  // Returns the results, then the gradients.
  std::vector<Array> tensors() {
    std::vector<Array> all;
    for (std::size_t i = 1; i < results_.size(); ++i) all.push_back(program_->fetch(results_[i]));
    return all;
  }
  // Returns the loss. If `moves` is true, element i of input k is changed first.
  double loss_at(bool moves, std::size_t k, std::int64_t i, double value) {
    const double before = input(k).at(i);
    if (moves) input(k).set(i, value);
    run();
    if (moves) input(k).set(i, before);
    return loss();
  }

 private:
  void add_feed(const Tensor& t, std::uint64_t seed, int rank, std::size_t number) {
    Array a(t.shape(), t.dtype());
    for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, drawn(seed, rank, number, i));
    feeds_.emplace_back(t, a);
  }

  const int rank_;
  Graph graph_;
  std::vector<std::pair<Tensor, Array>> feeds_;
  std::vector<Tensor> results_;  // loss, results, gradients
  std::size_t first_gradient_ = 0;
  std::optional<Program> program_;
};

std::string name_of_tensor(const OnRank& p, std::size_t t) {
  return t < p.outputs() ? "output " + std::to_string(t) : "input " + std::to_string(t - p.outputs());
}

void check_replicated(Communicator& ranks, const Array& a, const std::string& what, Tally& tally) {
  const std::size_t bytes = static_cast<std::size_t>(a.numel()) * size_of(a.dtype());
  const std::vector<std::byte> all = gather(ranks, std::span<const std::byte>(a.raw(), bytes));
  for (int r = 1; r < ranks.size(); ++r)
    if (std::memcmp(all.data(), all.data() + static_cast<std::size_t>(r) * bytes, bytes) != 0)
      tally.fail(what + " is replicated, but rank " + std::to_string(r) + " differs bitwise from rank 0");
}

void check_all_replicated(const RankCase& c, OnRank& p, const std::vector<Array>& tensors,
                          Communicator& ranks, Tally& tally) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const bool is_output = t < p.outputs();
    if (is_output ? c.is_output_replicated : c.is_input_replicated)
      check_replicated(ranks, tensors[t], (is_output ? "" : "the gradient of ") + name_of_tensor(p, t),
                       tally);
  }
}

void check_differences(const RankCase& c, const std::shared_ptr<Communicator>& ranks, const Options& options,
                       Result& result) {
  OnRank p(c, f64, ranks, options);
  Tally tally(result);
  p.run();
  const std::vector<Array> tensors = p.tensors();
  check_all_replicated(c, p, tensors, *ranks, tally);
  const int movers = c.is_input_replicated ? 1 : ranks->size();
  for (std::size_t k = 0; k < p.inputs(); ++k)
    for (int mover = 0; mover < movers; ++mover)
      for (std::int64_t i = 0; i < p.input(k).numel(); ++i) {
        const bool moves = c.is_input_replicated || mover == ranks->rank();
        const double x = p.input(k).at(i), h = options.h * std::max(1.0, std::abs(x));
        std::array<double, 4> own;
        for (std::size_t s = 0; s < 4; ++s) {
          constexpr double at[] = {-2, -1, 1, 2};
          own[s] = p.loss_at(moves, k, i, x + at[s] * h);
        }
        const auto all = gather_one(*ranks, own);
        if (!moves) continue;  // only the rank that changes the element knows h
        std::array<double, 4> loss{};
        for (const auto& l : c.is_output_replicated ? std::vector(1, own) : all)
          for (std::size_t s = 0; s < 4; ++s) loss[s] += l[s];
        const double numeric = (8 * (loss[2] - loss[1]) - (loss[3] - loss[0])) / (12 * h);
        tally.add({tensors[p.outputs() + k].at(i), numeric, options.tol.allowed(numeric), 0, h}, [&] {
          return "rank " + std::to_string(ranks->rank()) + ", input " + std::to_string(k) + " " +
                 index_text(p.input(k).shape(), i);
        });
      }
}

double largest_on_any_rank(Communicator& ranks, const Array& a) {
  double most = 1;
  for (std::int64_t i = 0; i < a.numel(); ++i) most = std::max(most, std::abs(a.at(i)));
  return std::ranges::max(gather_one(ranks, most));
}

void check_dtype(const RankCase& c, DType dtype, const std::shared_ptr<Communicator>& ranks,
                 const Options& options, Result& result) {
  OnRank p(c, dtype, ranks, options), wide(c, f64, ranks, options);
  Tally tally(result);
  for (std::size_t k = 0; k < p.inputs(); ++k)
    for (std::int64_t i = 0; i < p.input(k).numel(); ++i) wide.input(k).set(i, p.input(k).at(i));
  for (std::size_t k = 0; k < p.outputs(); ++k)
    for (std::int64_t i = 0; i < p.cotangent(k).numel(); ++i) wide.cotangent(k).set(i, p.cotangent(k).at(i));
  p.run();
  wide.run();
  const std::vector<Array> got = p.tensors(), expected = wide.tensors();
  check_all_replicated(c, p, got, *ranks, tally);
  for (std::size_t t = 0; t < got.size(); ++t) {
    const double m = largest_on_any_rank(*ranks, expected[t]), steps = static_cast<double>(p.steps());
    const double allowed = 2 * unit_roundoff(got[t].dtype()) * m + 2 * (steps + 1) * unit_roundoff(f32) * m;
    for (std::int64_t i = 0; i < got[t].numel(); ++i)
      tally.add({got[t].at(i), expected[t].at(i), allowed, m}, [&] {
        return "rank " + std::to_string(ranks->rank()) + ", " + name_of_tensor(p, t) + " " +
               index_text(got[t].shape(), i);
      });
  }
}

// A rank's result, in the form that is sent to all other ranks.
struct Shown {
  Status status;
  std::int64_t checked;
  double max_abs, max_rel, ratio, analytic, numeric, h, ulp;
  char where[96], note[160];
};

template <std::size_t n>
void copy_text(char (&to)[n], const std::string& text) {
  text.copy(to, n - 1);
}

// Replaces the result on each rank by the worst result of all ranks.
void join_results(Communicator& ranks, Result& r) {
  Shown own{r.status,        r.checked, r.max_abs,   r.max_rel, r.ratio, r.worst.analytic,
            r.worst.numeric, r.worst.h, r.worst.ulp, {},        {}};
  copy_text(own.where, r.worst.where);
  copy_text(own.note, r.note);
  const std::vector<Shown> all = gather_one(ranks, own);
  r.checked = 0, r.note.clear();
  for (const Shown& s : all) {
    r.status = std::max(r.status, s.status);
    r.checked += s.checked;
    r.max_abs = std::max(r.max_abs, s.max_abs), r.max_rel = std::max(r.max_rel, s.max_rel);
    if (r.note.find(s.note) == std::string::npos)
      r.note += (r.note.empty() ? "" : "; ") + std::string(s.note);
  }
  const auto worst = std::ranges::max_element(all, {}, &Shown::ratio);
  r.ratio = worst->ratio;
  r.worst = {worst->where, worst->analytic, worst->numeric, worst->h, worst->ulp};
}

}  // namespace

std::vector<Result> check_ranks(const RankCase& c, const std::shared_ptr<Communicator>& ranks,
                                const Options& options) {
  std::vector<Result> results;
  for (DType dtype : options.dtypes) {
    if (!c.in_half_types && size_of(dtype) == 2) continue;
    Result r{.owner = c.f.owner, .name = c.f.name, .dtype = dtype};
    dtype == f64 ? check_differences(c, ranks, options, r) : check_dtype(c, dtype, ranks, options, r);
    join_results(*ranks, r);
    results.push_back(std::move(r));
  }
  return results;
}

std::vector<RankCase> rank_cases(int n) {
  using Call = std::function<TensorList(const TensorList&)>;
  struct Owner {
    const char* name;
    bool is_input_replicated, is_output_replicated;
  };
  const Owner sums{"all_reduce", false, true}, spread{"all_reduce_gradient", true, false},
      gathers{"all_gather", false, false}, scatters{"reduce_scatter", false, false},
      exchanges{"all_to_all", false, false}, shifts{"ppermute", false, false},
      pieces{"local_shard", true, false};
  std::vector<RankCase> cases;
  const auto add = [&](const Owner& of, const char* name, const std::vector<Shape>& shapes,
                       const Call& call) {
    Case f{of.name, name, {}, [call](DType, Device) {
             return Callable{{}, [call](std::span<const Tensor> x) { return call({x.begin(), x.end()}); }};
           }};
    for (const Shape& s : shapes) f.inputs.push_back({s});
    cases.push_back({std::move(f), of.is_input_replicated, of.is_output_replicated});
  };
  const std::vector<Shape> rows{{2 * n, 3}}, columns{{3, 2 * n}}, list{{2 * n, 3}, {n}, {n, 1, 2}};
  const ReduceOptions wide{.wide = true};
  add(sums, "rows", rows, [n](auto& x) { return all_reduce(x, n); });
  add(sums, "list", list, [n](auto& x) { return all_reduce(x, n); });
  add(sums, "wide", rows, [n, wide](auto& x) { return all_reduce(x, n, wide); });
  add(spread, "list", list, [n](auto& x) { return all_reduce_gradient(x, n); });
  add(gathers, "rows", rows, [n](auto& x) { return all_gather(x, n); });
  add(gathers, "list", list, [n](auto& x) { return all_gather(x, n); });
  add(gathers, "columns", columns, [n](auto& x) { return all_gather(x, n, 1); });
  add(scatters, "rows", rows, [n](auto& x) { return reduce_scatter(x, n); });
  add(scatters, "list", list, [n](auto& x) { return reduce_scatter(x, n); });
  add(scatters, "columns, wide", columns, [n, wide](auto& x) { return reduce_scatter(x, n, 1, wide); });
  add(exchanges, "rows", rows, [n](auto& x) { return all_to_all(x, n); });
  add(exchanges, "list", list, [n](auto& x) { return all_to_all(x, n); });
  add(exchanges, "columns", columns, [n](auto& x) { return all_to_all(x, n, 1); });
  add(shifts, "to the next", rows, [n](auto& x) { return ppermute(x, n, 1); });
  add(shifts, "list, back", list, [n](auto& x) { return ppermute(x, n, -1); });
  add(pieces, "rows", rows, [n](auto& x) { return local_shard(x, n); });
  add(pieces, "list", list, [n](auto& x) { return local_shard(x, n); });
  add(pieces, "columns", columns, [n](auto& x) { return local_shard(x, n, 1); });
  add({"ranks", true, true}, "several ops", rows, [n](auto& x) {
    const Tensor piece = local_shard({tanh(x[0])}, n)[0];
    const Tensor shifted = ppermute({piece * piece}, n, 1)[0];
    return all_reduce({all_gather({shifted}, n)[0] * all_reduce_gradient(x, n)[0]}, n);
  });
  cases.back().in_half_types = false;
  return cases;
}

}  // namespace tg::gradcheck
