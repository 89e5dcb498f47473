// Checks low-precision dtypes: f32, bf16 and f16 compared with f64 on the same numbers.
#include "autograd/gradcheck/rules.h"

namespace tg::gradcheck {

namespace {

Point rounded(Point x, const std::vector<DType>& dtypes) {
  for (std::size_t i = 0; i < x.size(); ++i)
    for (double& v : x[i]) v = stored_number(dtypes[i], v);
  return x;
}

// The allowed error of each output and gradient tensor. Initially it is the rounding error of the stored
// result. Further measurements increase it.
class Bounds {
 public:
  Bounds(const Point& reference, DType dtype)
      : reference_(reference),
        dtype_(dtype),
        moved_(reference.size(), 0.0),
        rounded_(moved_),
        terms_(moved_) {}

  // Records results for changed inputs. Each input differs by a relative unit roundoff of the compute type.
  void saw_moved(const Point& p) { widen(moved_, p, reference_); }
  // Records results of the same program in f64, run twice: with every result rounded to the dtype, and
  // without rounding (`exact`).
  void saw_rounded(const Point& p, const Point& exact) { widen(rounded_, p, exact); }
  // Records that each element of the tensor is a sum of rounded terms. `size` is the sum of the terms'
  // magnitudes.
  void saw_terms(std::size_t tensor, double size) { terms_[tensor] = std::max(terms_[tensor], size); }

  // Derives the bounds from the largest tensor. If terms cancel inside a kernel, the result is small, but its
  // rounding error is proportional to the terms.
  void by_largest() { by_largest_ = true; }

  double of(std::size_t tensor, const Harness::Roundings& n) const {
    const double stored = 2 * unit_roundoff(dtype_) * largest(reference_[tensor]);
    // During a step, kernels round many times to their compute type. At the end of the step they round once
    // to a narrower dtype.
    const double inside = 2 * (n.all + 1);
    const double at_end = compute_type(dtype_) == dtype_ ? 2 * (n.of_a_step + 1) : 4;
    double size = std::max(largest(reference_[tensor]), terms_[tensor]);
    if (by_largest_)
      for (const Values& v : reference_) size = std::max({size, largest(v), 1.0});
    const double computed = unit_roundoff(compute_type(dtype_)) * size + moved_[tensor];
    return stored + inside * (computed + smallest_positive(dtype_)) + at_end * rounded_[tensor];
  }

 private:
  static void widen(std::vector<double>& to, const Point& p, const Point& exact) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const double d = farthest(p[i], exact[i]);
      if (std::isfinite(d)) to[i] = std::max(to[i], d);
    }
  }
  const Point& reference_;
  const DType dtype_;
  std::vector<double> moved_, rounded_, terms_;
  bool by_largest_ = false;
};

class DTypeCheck {
 public:
  DTypeCheck(const Case& c, View view, DType dtype, Harness& wide, const Options& options,
             const HarnessOptions& planted)
      : case_(c),
        view_(view),
        dtype_(dtype),
        options_(options),
        injected_(on_device(planted)),
        wide_(wide),
        narrow_(c, view, dtype, injected_),
        x_(narrow_.draw(options.seed)),
        r_(narrow_.draw_cotangents(options.seed)),
        got_(read(narrow_, x_, r_)),
        expected_(read(wide_, x_, r_)),
        outputs_(expected_.outputs, dtype),
        gradients_(expected_.gradients, dtype),
        output_dtypes_(narrow_.output_dtypes()),
        floating_(narrow_.floating()) {
    for (const Leaf& leaf : narrow_.leaves()) {
      dtypes_.push_back(leaf.dtype);
      if (leaf.floating) input_shapes_.push_back(leaf.shape);
    }
  }

  void run(Result& result) {
    if (beyond_range()) {
      result.note = "not compared: the values exceed " + std::string(tg::name_of(dtype_));
      return;
    }
    read_twice();
    compare_all(result);
    check_zero_and_repeat(narrow_, options_, result);
  }

 private:
  HarnessOptions on_device(HarnessOptions planted) const {
    planted.device = options_.device;
    return planted;
  }

  // Makes two calls and uses each output twice, so the gradient must be four times as large. If a gradient
  // overwrites another one instead of being added, the error is large.
  void read_twice() {
    if (view_ != View::contiguous) return;
    HarnessOptions how = injected_;
    how.twice = true;
    Harness twice(case_, view_, dtype_, how);
    quarter_ = read(twice, x_, r_).gradients;
    for (Values& v : quarter_)
      for (double& z : v) z /= 4;
    twice_roundings_ = twice.backward_roundings();
  }

  // For most results, the error is at most the rounding error of the stored value. Noise is measured only for
  // the others. A tensor that still fails is checked again more closely. The reason may be a rounding that
  // crosses a kink at some points, or a kernel that rounds intermediate values as its decomposition does.
  void compare_all(Result& result) {
    const Result before = result;
    compare_once(result);
    for (const bool closer : {false, true}) {
      if (result.status != Status::mismatch) return;
      result = before;
      closer ? look_closer() : look();
      compare_once(result);
    }
  }

  void look() {
    if (view_ == View::expanded || view_ == View::expanded_last)
      apart_.emplace(case_, View::contiguous, f64, HarnessOptions{});
    measure(0, 4, rounding_as_compiled());
  }

  void look_closer() {
    int decomposed = 0;
    HarnessOptions how = rounding_as_compiled();
    how.substitute = decomposed_all(decomposed);
    how.fuse = false;
    outputs_.by_largest();
    gradients_.by_largest();
    measure(4, 40, how);
  }

  // Kernels round to their compute type after each operation, and to a narrower dtype when they store a
  // result.
  HarnessOptions rounding_as_compiled() const {
    HarnessOptions how;
    if (dtype_ != f64) how.round_to = dtype_;
    how.round_fused = compute_type(dtype_) == dtype_;
    return how;
  }

  bool beyond_range() const {
    for (const Point* p : {&expected_.outputs, &expected_.gradients})
      for (const Values& v : *p)
        if (largest(v) > 0.25 * largest_finite(dtype_)) return true;
    return false;
  }

  // Returns one number per element that the op sees. An expanded view has more elements than stored numbers,
  // and rounding inside the op affects each element separately. Therefore each element gets a separate
  // number, and the gradients are summed.
  Point seen(const Point& x) const {
    if (!apart_) return x;
    Point all = x;
    for (std::size_t l = 0; l < all.size(); ++l) {
      all[l].clear();
      for (std::int64_t at : narrow_.leaves()[l].seen) all[l].push_back(x[l][static_cast<std::size_t>(at)]);
    }
    return all;
  }

  Read read_seen(Harness& h, const Point& x, const Point& r) {
    Read m = read(h, x, r);
    for (std::size_t number = 0; const std::size_t l : narrow_.floating_leaves()) {
      const Leaf& leaf = narrow_.leaves()[l];
      Values sums(static_cast<std::size_t>(numel(leaf.shape)), 0.0);
      for (std::size_t k = 0; k < leaf.seen.size(); ++k)
        sums[static_cast<std::size_t>(leaf.seen[k])] += m.gradients[number][k];
      const double terms = static_cast<double>(leaf.seen.size()) / std::max<double>(1, sums.size());
      gradients_.saw_terms(number, terms * largest(m.gradients[number]));
      m.gradients[number++] = std::move(sums);
    }
    return m;
  }

  // Errors depend on the last bits of the inputs, so they are measured at neighboring points. The distances
  // range from a few units of roundoff to 1/64. The last digits of an intermediate number near a constant,
  // such as a σ near 1, change only at a larger distance.
  double distance(std::uint64_t s) const {
    const double nearest = 8 * unit_roundoff(dtype_), ratio = std::max(1.0, 1.0 / 64 / nearest);
    return nearest * std::pow(ratio, static_cast<double>(s % 4) / 3);
  }

  void measure(std::uint64_t from, std::uint64_t to, const HarnessOptions& how) {
    Harness rounding(case_, view_, f64, how);
    std::optional<Harness> rounding_apart;
    if (apart_) rounding_apart.emplace(case_, View::contiguous, f64, how);
    const std::vector<bool> all(r_.size(), true);
    const double w = unit_roundoff(compute_type(dtype_));
    for (std::uint64_t s = from; s < to; ++s) {
      const Point x = s == 0 ? x_ : rounded(nudged(x_, distance(s), floating_, s), dtypes_);
      const Point r = s == 0 ? r_ : rounded(nudged(r_, distance(s), all, s + 200), output_dtypes_);
      saw_rounded(read(rounding, x, r), read(wide_, x, r));
      const Point x_moved = nudged(seen(x_), w, floating_, s), r_moved = nudged(r_, w, all, s + 100);
      const Read moved = apart_ ? read_seen(*apart_, x_moved, r_moved) : read(wide_, x_moved, r_moved);
      outputs_.saw_moved(moved.outputs);
      gradients_.saw_moved(moved.gradients);
      if (apart_) saw_rounded(read_seen(*rounding_apart, x_moved, r_moved), moved);
    }
  }

  void saw_rounded(const Read& p, const Read& exact) {
    outputs_.saw_rounded(p.outputs, exact.outputs);
    gradients_.saw_rounded(p.gradients, exact.gradients);
  }

  void compare_once(Result& result) const {
    Tally tally(result);
    compare(got_.outputs, expected_.outputs, outputs_, narrow_.forward_roundings(), "output",
            narrow_.output_shapes(), tally);
    compare(got_.gradients, expected_.gradients, gradients_, narrow_.backward_roundings(),
            "gradient of floating input", input_shapes_, tally);
    if (!quarter_.empty())
      compare(quarter_, expected_.gradients, gradients_, twice_roundings_,
              "quarter of the gradient, used four times, of floating input", input_shapes_, tally);
  }

  void compare(const Point& got, const Point& expected, const Bounds& bounds, const Harness::Roundings& n,
               const char* what, const std::vector<Shape>& shapes, Tally& tally) const {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double allowed = bounds.of(i, n), scale = largest(expected[i]);
      for (std::size_t k = 0; k < expected[i].size(); ++k) {
        // equal infinities have distance 0
        const bool same = got[i][k] == expected[i][k] && std::isinf(expected[i][k]);
        tally.add({same ? 0 : got[i][k], same ? 0 : expected[i][k], allowed, scale, 0}, [&] {
          return std::string(what) + " " + std::to_string(i) + " " +
                 index_text(shapes[i], static_cast<std::int64_t>(k));
        });
      }
    }
  }

  const Case& case_;
  const View view_;
  const DType dtype_;
  const Options& options_;
  const HarnessOptions injected_;
  Harness& wide_;
  Harness narrow_;
  std::optional<Harness> apart_;  // in f64, with a separate number per element
  const Point x_, r_;
  const Read got_, expected_;
  Point quarter_;  // a quarter of the gradient from two calls
  Harness::Roundings twice_roundings_;
  Bounds outputs_, gradients_;
  std::vector<DType> output_dtypes_;
  const std::vector<bool> floating_;
  std::vector<DType> dtypes_;
  std::vector<Shape> input_shapes_;
};

}  // namespace

void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const HarnessOptions& planted) {
  DTypeCheck(c, view, dtype, wide, options, planted).run(result);
}

}  // namespace tg::gradcheck
