// The dtype ladder: f32, bf16 and f16 against f64 on the same numbers.
#include "autograd/gradcheck_rules.h"

namespace tg::gradcheck {

namespace {

// x·(1 ± u), every element with a random sign.
Point moved(const Point& x, double u, const std::vector<bool>& which, std::uint64_t seed) {
  Point y = x;
  std::uint64_t bits = seed * 0x9E3779B97F4A7C15u + 0x7654321;
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (double& v : y[i]) {
      bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
      if (which[i]) v *= (bits >> 40) & 1 ? 1 + u : 1 - u;
    }
  }
  return y;
}

Point rounded(Point x, const std::vector<DType>& dtypes) {
  alignas(8) std::byte bytes[8];
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (double& v : x[i]) {
      store_element(dtypes[i], bytes, 0, v);
      v = load_element(dtypes[i], bytes, 0);
    }
  }
  return x;
}

// The error that a tensor of outputs or gradients may have.
class Bounds {
 public:
  explicit Bounds(const Point& reference)
      : reference_(reference), moved_(reference.size(), 0.0), plain_(moved_), terms_(moved_) {}

  void saw_moved(const Point& p) { widen(moved_, p, reference_); }
  void saw_plain(const Point& p, const Point& exact) { widen(plain_, p, exact); }
  // The tensor's elements are sums of terms, each of them rounded, whose sizes add up to this.
  void saw_terms(std::size_t tensor, double size) { terms_[tensor] = std::max(terms_[tensor], size); }
  void by_largest() { by_largest_ = true; }

  double of(std::size_t tensor, DType dtype, std::size_t steps) const {
    // Half types compute in f32 and have an error only when they store; an elementary function of f32 has an
    // error of an ulp.
    const double each = compute_type(dtype) == dtype ? 2 : 1;
    const double roundings = each * (static_cast<double>(steps) + 1);
    double size = std::max(largest(reference_[tensor]), terms_[tensor]);
    if (by_largest_)
      for (const Values& v : reference_) size = std::max({size, largest(v), 1.0});
    return roundings * (unit_roundoff(dtype) * size + moved_[tensor] + smallest_positive(dtype)) +
           3 * plain_[tensor];
  }

 private:
  static void widen(std::vector<double>& to, const Point& p, const Point& exact) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const double d = farthest(p[i], exact[i]);
      if (std::isfinite(d)) to[i] = std::max(to[i], d);
    }
  }
  const Point& reference_;
  std::vector<double> moved_, plain_, terms_;
  bool by_largest_ = false;
};

class DTypeCheck {
 public:
  DTypeCheck(const Case& c, View view, DType dtype, Harness& wide, const Options& options,
             const Replay::Substitute& substitute)
      : dtype_(dtype),
        wide_(wide),
        narrow_(c, view, dtype, {.device = options.device, .substitute = substitute}),
        x_(narrow_.draw(options.seed)),
        r_(narrow_.draw_cotangents(options.seed)),
        got_(read(narrow_, x_, r_)),
        expected_(read(wide_, x_, r_)),
        outputs_(expected_.outputs),
        gradients_(expected_.gradients) {
    for (const Leaf& leaf : narrow_.leaves()) {
      floating_.push_back(leaf.floating);
      dtypes_.push_back(leaf.dtype);
      if (leaf.floating) input_shapes_.push_back(leaf.shape);
    }
    if (view == View::expanded || view == View::expanded_last)
      apart_.emplace(c, View::contiguous, f64, HarnessOptions{});
    int decomposed = 0;
    plain_.emplace(c, view, dtype, HarnessOptions{.substitute = decomposed_all(decomposed), .fuse = false});
    if (decomposed == 0) plain_.reset();
  }

  void run(const Options& options, Result& result) {
    if (beyond_range()) {
      result.note = "not compared: the values exceed " + std::string(tg::name_of(dtype_));
      return;
    }
    compare_all(result);
    check_zero_and_repeat(narrow_, options, result);
  }

 private:
  void compare_all(Result& result) {
    const Result before = result;
    judge(4, result);
    if (result.status != Status::mismatch) return;
    // A rounding may have crossed a kink, or terms cancel that are exact in f64: look closer.
    result = before;
    outputs_.by_largest();
    gradients_.by_largest();
    judge(40, result);
  }

  bool beyond_range() const {
    for (const Point* p : {&expected_.outputs, &expected_.gradients})
      for (const Values& v : *p)
        if (largest(v) > 0.25 * largest_finite(dtype_)) return true;
    return false;
  }

  // The elements that the op sees. Under an expanded view they are more than there are numbers, and rounding
  // inside the op affects each of them separately. So each element gets its own number, and their gradients
  // are summed.
  Point seen(const Point& x) const {
    if (!apart_) return x;
    Point all = x;
    for (std::size_t l = 0; l < all.size(); ++l) {
      all[l].clear();
      for (std::int64_t at : narrow_.leaves()[l].seen) all[l].push_back(x[l][static_cast<std::size_t>(at)]);
    }
    return all;
  }

  Read read_seen(const Point& x, const Point& r) {
    if (!apart_) return read(wide_, x, r);
    Read m = read(*apart_, x, r);
    std::size_t number = 0;
    for (const Leaf& leaf : narrow_.leaves()) {
      if (!leaf.floating) continue;
      Values sums(static_cast<std::size_t>(numel(leaf.shape)), 0.0);
      for (std::size_t k = 0; k < leaf.seen.size(); ++k)
        sums[static_cast<std::size_t>(leaf.seen[k])] += m.gradients[number][k];
      const double terms = static_cast<double>(leaf.seen.size()) / std::max<double>(1, sums.size());
      gradients_.saw_terms(number, terms * largest(m.gradients[number]));
      m.gradients[number++] = std::move(sums);
    }
    return m;
  }

  void judge(std::uint64_t draws, Result& result) {
    const double u = unit_roundoff(dtype_);
    const std::vector<bool> all(r_.size(), true);
    for (std::uint64_t s = 0; s < draws; ++s) {
      const Read m = read_seen(moved(seen(x_), u, floating_, s), moved(r_, u, all, s + 100));
      outputs_.saw_moved(m.outputs);
      gradients_.saw_moved(m.gradients);
      if (!plain_) continue;
      // Errors depend on the last bits: those of the decomposition are measured at several neighbouring
      // points.
      const Point x = s == 0 ? x_ : rounded(moved(x_, 8 * u, floating_, s), dtypes_);
      const Read exact = read(wide_, x, r_), p = read(*plain_, x, r_);
      outputs_.saw_plain(p.outputs, exact.outputs);
      gradients_.saw_plain(p.gradients, exact.gradients);
    }
    Tally tally(result);
    compare(got_.outputs, expected_.outputs, outputs_, narrow_.forward_steps(), "output",
            narrow_.output_shapes(), tally);
    compare(got_.gradients, expected_.gradients, gradients_, narrow_.backward_steps(),
            "gradient of floating input", input_shapes_, tally);
  }

  void compare(const Point& got, const Point& expected, const Bounds& bounds, std::size_t steps,
               const char* what, const std::vector<Shape>& shapes, Tally& tally) const {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double allowed = bounds.of(i, dtype_, steps), scale = largest(expected[i]);
      for (std::size_t k = 0; k < expected[i].size(); ++k) {
        if (got[i][k] == expected[i][k] && std::isinf(expected[i][k])) continue;
        tally.add({got[i][k], expected[i][k], allowed, scale, 0}, [&] {
          return std::string(what) + " " + std::to_string(i) + " " +
                 index_text(shapes[i], static_cast<std::int64_t>(k));
        });
      }
    }
  }

  const DType dtype_;
  Harness& wide_;
  Harness narrow_;
  std::optional<Harness> plain_;  // every op decomposed and nothing fused
  std::optional<Harness> apart_;  // in f64, where each element that the op sees is a separate number
  const Point x_, r_;
  const Read got_, expected_;
  Bounds outputs_, gradients_;
  std::vector<bool> floating_;
  std::vector<DType> dtypes_;
  std::vector<Shape> input_shapes_;
};

}  // namespace

void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const Replay::Substitute& substitute) {
  DTypeCheck check(c, view, dtype, wide, options, substitute);
  check.run(options, result);
}

}  // namespace tg::gradcheck
