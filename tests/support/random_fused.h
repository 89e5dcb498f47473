// Random graphs of pointwise ops and reductions. Tests check that fused programs are bitwise identical to
// unfused ones.
#pragma once

#include <deque>
#include <random>

#include <tilegrad/tilegrad.h>

namespace tg::testing {

// Values are integers that are exact in f32 and f64. So a backend may contract a·b + c. Every value with a
// 16-bit type is an output, because fused kernels do not round values that are not stored.
class RandomFused {
 public:
  Graph g;
  std::vector<Tensor> outputs;
  std::vector<Feed> feeds;

  explicit RandomFused(unsigned seed) : random_(seed), size_(pick(2) ? 40 : 37) {
    constexpr DType types[] = {f32, bf16, f64, i64, boolean, i32, u8, f16};
    const DType main = types[seed % std::size(types)];  // the dtype of most values
    for (const DType t : {main, main, main, f32, boolean}) add_input(t, {size_, size_});
    add_input(main, {size_});
    add_input(main, {size_, 1});
    for (int i = 0; i < 24; ++i) {
      const Tensor y = next();
      values_.push_back(y);
      if (y.dtype() == bf16 || y.dtype() == f16 || pick(3) == 0 || i == 23) outputs.push_back(y);
      if (pick(5) == 0) outputs.push_back(reduced(y));
    }
  }

  // Describes the output elements that differ between two sets of compile options.
  std::string difference(const CompileOptions& one, const CompileOptions& other) const {
    const std::vector<Array> a = eval(outputs, feeds, one), b = eval(outputs, feeds, other);
    std::string text;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].same_bits(b[i])) continue;
      text += " value " + std::to_string(i) + ":";
      for (std::int64_t e = 0, reported = 0; e < a[i].numel() && reported < 3; ++e)
        if (a[i].at(e) != b[i].at(e))
          text += " " + std::to_string(a[i].at(e)) + " and " + std::to_string(b[i].at(e)), ++reported;
    }
    return text;
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void add_input(DType t, const Shape& shape) {
    Array a(shape, t);
    for (std::int64_t i = 0; i < a.numel(); ++i)
      a.set(i, t == boolean ? pick(2) : t == u8 ? pick(4) : pick(5) - 2);
    const Tensor x = g.input("x" + std::to_string(feeds.size()), shape, t);
    arrays_.push_back(std::move(a));
    feeds.emplace_back(x, arrays_.back());
    const Tensor whole = expand(x, {size_, size_});
    values_.push_back(pick(3) ? whole : transpose(whole, 0, 1));
  }

  // The maximum of +0 and -0 may be either zero.
  Tensor reduced(const Tensor& y) {
    const int axis = pick(2);
    return is_float(y.dtype()) && pick(2) ? abs(max(y, {axis}, true)) : sum(y, {axis});
  }

  Tensor operand(DType t) {
    for (int tries = 0; tries < 20; ++tries) {
      const Tensor& x = values_[static_cast<std::size_t>(pick(static_cast<int>(values_.size())))];
      if (x.dtype() == t) return pick(12) ? x : transpose(x, 0, 1);
    }
    const Tensor& x = values_[static_cast<std::size_t>(pick(static_cast<int>(values_.size())))];
    return is_int(t) ? cast(cast(x, i64), t) : cast(x, t);
  }

  Tensor next() {
    if (pick(16) == 0) return cast(operand(values_[0].dtype()), f32) + operand(f32);
    const DType t = values_[static_cast<std::size_t>(pick(static_cast<int>(values_.size())))].dtype();
    const Tensor a = operand(t), b = operand(t);
    if (t == boolean) {
      switch (pick(4)) {
        case 0:
          return logical_and(a, b);
        case 1:
          return logical_or(a, logical_not(b));
        case 2:
          return where(a, b, operand(boolean));
        default:
          return equal(a, b);
      }
    }
    switch (pick(t == u8 ? 6 : 9)) {
      case 0:
        return a + b;
      case 1:
        return t == u8 ? a * b : minimum(maximum(a * b, -16), 16);
      case 2:
        return where(operand(boolean), a, b);
      case 3:
        return less(a, b);
      case 4:
        return maximum(a, b);
      case 5:
        return where(greater(a, b), a, copy(b));
      case 6:
        return a - b;
      case 7:
        return abs(a) + 1;
      default:
        return minimum(-a, b);
    }
  }

  std::mt19937 random_;
  std::int64_t size_;
  std::vector<Tensor> values_;
  std::deque<Array> arrays_;  // owns the memory of the feeds
};

}  // namespace tg::testing
