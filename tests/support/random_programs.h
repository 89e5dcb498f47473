// Random programs for the compiler. A function records each program. The programs contain GEMMs with addends
// and epilogues, pointwise ops, norms, attention with rotary embeddings, reductions, joins, caches, changing
// parameters, and some gradients.
#pragma once

#include <random>
#include <string>
#include <vector>

#include <tilegrad/ops/ranks.h>
#include "tests/support/compiled_cases.h"

namespace tg::testing {

class RandomProgram {
 public:
  RandomProgram(Recorded& r, unsigned seed, bool has_ranks)
      : r_(r),
        g_(r.g),
        random_(seed),
        type_(seed % 3 == 0 ? bf16 : f32),
        gradient_(seed % 4 == 1),
        has_ranks_(has_ranks) {
    for (int i = 0; i < 2; ++i) {
      tall_.push_back(g_.input("x" + std::to_string(i), {rows, width}, type_));
      square_.push_back(g_.input("w" + std::to_string(i), {width, width}, type_));
      parameters_.push_back(parameter_of("p" + std::to_string(i), {rows, width}));
      const Tensor p = g_.param(parameters_.back());
      tall_.push_back(type_ == f32 ? p : cast(p, type_));
    }
    row_ = g_.input("row", {width}, type_);
    at_ = g_.input("at", {8}, i32);
    const int nodes = 10 + pick(30);
    for (int i = 0; i < nodes; ++i) {
      add();
      if (has_ranks_ && pick(4) == 0) r_.fetch.push_back(reduce_scatter({any(square_)}, 2)[0]);
    }
    // Early values are read late, in reverse order, as in a backward pass.
    Tensor z = any(tall_);
    for (std::size_t i = tall_.size(); i-- > 4 && pick(8) != 0;) z = matmul(z, square_of(tall_[i]));
    if (gradient_) {
      const Tensor late = sum(cast(z * tall_.back(), f32)),
                   early = sum(cast(matmul(tall_[0], square_[0]), f32));
      const std::vector<Tensor> zs = gradients(late + early, {tall_[0], square_[0]});
      r_.fetch.insert(r_.fetch.end(), zs.begin(), zs.end());
      if (has_ranks_) r_.fetch.push_back(reduce_scatter({zs[1]}, 2)[0]);
    } else {
      r_.fetch.push_back(z);
    }
    for (int i = 0; i < 2; ++i) r_.fetch.push_back(pick(2) ? any(tall_) : any(square_));
    for (const Parameter& p : parameters_)
      if (pick(4) != 0) {
        const Tensor old = g_.param(p), change = cast(any(tall_), f32);
        r_.assign.push_back({p, change + (pick(2) ? old : old * 2)});
      }
  }

 private:
  static constexpr std::int64_t rows = 48, width = 16;

  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  // Returns a value, usually a recent value.
  Tensor any(const std::vector<Tensor>& from) {
    const auto n = static_cast<int>(from.size());
    return from[static_cast<std::size_t>(pick(3) ? n - 1 - pick(std::min(n, 5)) : pick(n))];
  }
  Tensor square_of(const Tensor& x) { return matmul(transpose(x, 0, 1), x); }

  void add() {
    const Tensor a = any(tall_), b = any(tall_), w = any(square_);
    const std::int64_t cut = 1 + pick(width - 1), upper = 1 + pick(rows - 1);
    switch (pick(gradient_ ? 14 : 22)) {
      case 0:
        return tall(matmul(a, w));
      case 1:
        return square(square_of(a));
      case 2:
        return tall(gelu(a) * b + 1);
      case 3:
        return tall(gelu_tanh(matmul(a, w)));
      case 4:
        return tall(gelu_tanh(linear(a, w, pick(2) ? row_ : b)));
      case 5: {
        const Tensor product = matmul(a, w);
        return tall(product + (pick(2) ? matmul(b, any(square_)) : b));
      }
      case 6:
        return tall(pick(2) ? layer_norm(a, row_) : rms_norm(a));
      case 7:
        return tall(softmax(a, pick(2)));
      case 8: {
        const int axis = pick(2);
        return tall(
            b * expand(pick(2) ? sum(exp(a) * b, {axis}, true) : max(a - b, {axis}, true), {rows, width}));
      }
      case 9:
        return tall(pick(2) ? concat({slice(a, 1, 0, cut), slice(b, 1, cut, width)}, 1)
                            : concat({slice(a, 0, 0, upper), slice(b, 0, upper, rows)}, 0));
      case 10:
        return tall(pick(2) ? concat({matmul(a, slice(w, 1, 0, cut)), matmul(b, slice(w, 1, cut, width))}, 1)
                            : contiguous(transpose(matmul(w, transpose(a, 0, 1)), 0, 1)));
      case 11:
        return attention(a, b);
      case 12:
        return tall(layer_norm(a) + b);
      case 13: {
        const Tensor is_greater = greater(a, b);
        return tall(where(is_greater, a, b * row_));
      }
      case 14:
        return tall(cast(exp(cast(a, f32)) + 0.3, type_));
      case 15:
        return tall(
            softmax(index_assign(a, 0, at_, slice(b, 0, 0, 8)).view({rows * width}), 0).view({rows, width}));
      case 16:
        return tall(slice_assign(a, slice(b, 0, upper, rows), 0, 0));
      case 17:
        return tall(pick(2) ? dropout(a, 0.1) : cumsum(a, pick(2)));
      case 18: {
        const Tensor scaled = full(g_, {rows, width}, 0.3, type_) * a;
        return tall(scaled - full(g_, {width}, 2, type_));
      }
      case 19: {
        const Tensor number = mean(a * b);
        return tall(a * number), tall(b - number * 2);
      }
      case 20:
        return tall(matmul(transpose(a, 0, 1).reshape({rows, width}), w));
      default:
        return tall(cast(argmax(a, {1}, true), type_) + b);
    }
  }

  void attention(const Tensor& a, const Tensor& b) {
    const auto heads = [](const Tensor& x) { return transpose(x.view({1, rows, 2, width / 2}), 1, 2); };
    const bool turns = pick(2) != 0;
    const Tensor q = turns ? rope(heads(a)) : heads(a), k = turns ? rope(heads(b)) : heads(b);
    tall(transpose(flash_attn(q, k, heads(b), {.causal = true}).o, 1, 2).reshape({rows, width}));
  }
  void tall(const Tensor& x) { tall_.push_back(x); }
  void square(const Tensor& x) { square_.push_back(x); }

  Recorded& r_;
  Graph& g_;
  std::mt19937 random_;
  DType type_;
  bool gradient_, has_ranks_;
  Tensor row_, at_;
  std::vector<Tensor> tall_, square_;
  std::vector<Parameter> parameters_;
};

// Half of the programs are for a GPU, and most must save a part of their arena.
inline std::vector<CompiledCase> random_program_cases() {
  std::vector<CompiledCase> all;
  for (unsigned seed = 0; seed < 160; ++seed)
    all.push_back({.name = "seed " + std::to_string(seed),
                   .record = [seed](Recorded& r) { RandomProgram(r, seed, seed % 7 == 3); },
                   .on_gpu = seed % 2 == 0,
                   .fuse = seed % 10 != 9,
                   .batch_invariant = seed % 9 == 5,
                   .ranks = seed % 7 == 3 ? 2 : 1,
                   .percent_less = seed % 5 * 12});
  return all;
}

}  // namespace tg::testing
