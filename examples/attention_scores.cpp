// Ten score functions of attention, and the gradients of their tables.
//    build/examples/attention_scores
#include "attention_check.h"

using namespace example;

namespace {

void checks() {
  const std::int64_t W = 6;
  const Tensor m = floats({H}), tau = floats({H}), g = floats({H}), a = floats({H});  // one number per head
  const Tensor R = floats({H, 2 * W + 1}), T5 = floats({H, 32}), S = floats({H, 4});
  const Tensor pairs = floats({H, L, L}), F = floats({B, H, L}), dist = whole({B, L, L}, 4, 5);

  // Scores. The backward also returns the gradients of captured tensors.
  check("ALiBi", {.causal = true, .score = [&](X x) { return x.score + x.at(m, {x.h}) * (x.t - x.i); }}, {m});
  check("relative table",
        {.score =
             [&](X x) {
               return x.score + x.at(R, {x.h, clamp(x.t - x.i, -6, 6) + W});
             }},
        {R});
  check("T5",
        {.causal = true,
         .score =
             [&](X x) {
               const Tensor near = x.i - x.t;
               const Tensor far = 16 + floor(log(maximum(near, 1) / 16) * (16 / std::log(8.)));
               return x.score + x.at(T5, {x.h, where(less(near, 16), near, minimum(far, 31))});
             }},
        {T5});
  check("soft cap", {.score = [](X x) { return 2 * tanh(x.score / 2); }});
  check("temperature", {.score = [&](X x) { return x.score * x.at(tau, {x.h}); }}, {tau});
  check("scalable softmax",
        {.causal = true, .score = [&](X x) { return x.score * x.at(a, {x.h}) * log(x.i + 1); }}, {a});
  check("pair bias", {.score = [&](X x) { return x.score + x.at(pairs, {x.h, x.i, x.t}); }}, {pairs});
  check("Graphormer",
        {.score =
             [&](X x) {
               return x.score + x.at(S, {x.h, x.at(dist, {x.b, x.i, x.t})});
             }},
        {S});
  check("forgetting",
        {.causal = true,
         .score =
             [&](X x) {
               return x.score + x.at(F, {x.b, x.h, x.i}) - x.at(F, {x.b, x.h, x.t});
             }},
        {F});
  check("gate", {.score = [&](X x) { return x.score * sigmoid(x.at(g, {x.h}) * x.score); }}, {g});
}

}  // namespace

int main() {
  return run(checks);
}
