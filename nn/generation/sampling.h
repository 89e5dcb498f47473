// Choosing the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>

namespace tg::nn {

struct Sampling {
  double temperature = 1;  // 0: the most likely token, the first of equals
  std::int64_t top_k = 0;  // only the k likeliest; 0: all
  double top_p = 1;        // of these, only the likeliest whose probabilities first add up to this
};

// The op `sample` in plain C++. A token drawn from softmax(logits / temperature), restricted to top_k and
// then to top_p, by the uniform number u in [0, 1). Ties go to the first. Logits that are NaN are never
// drawn; throws Error if all are NaN, and for a u or a setting out of its range.
std::int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double u);

// The u of a text's k-th new token: texts with the same seed draw the same numbers.
double sampling_draw(std::uint64_t seed, std::uint64_t k);
// Throws Error that names the setting out of its range: a temperature that is negative or not finite in f32,
// a negative top_k, a top_p outside [0, 1].
void check_sampling(const Sampling& sampling);

}  // namespace tg::nn
