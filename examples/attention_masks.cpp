// Ten mask functions of attention: which keys a query may see.
//    build/examples/attention_masks
#include "attention_check.h"

using namespace example;

namespace {

void checks() {
  const std::int64_t W = 6, w = 8;
  const Tensor D = whole({B, L}, 5, 10), G = whole({B, L}, 3, 9);  // document and group of each token
  const Tensor p = whole({B}, 20, 1), n = whole({B}, 9, 1), anc = whole({B, L, L}, 2, 3);

  // Masks: whether a query at position i may see the key at position t.
  check("causal", {.mask = [](X x) { return less_equal(x.t, x.i); }});
  check("window", {.causal = true, .mask = [&](X x) { return less(x.i - x.t, W); }});
  check("prefix", {.mask = [&](X x) { return logical_or(less_equal(x.t, x.i), less(x.t, x.at(p, {x.b}))); }});
  check("documents", {.causal = true, .mask = [&](X x) {
                        return equal(x.at(D, {x.b, x.i}), x.at(D, {x.b, x.t}));
                      }});
  check("first keys, window",
        {.causal = true, .mask = [&](X x) { return logical_or(less(x.t, 4), less(x.i - x.t, W)); }});
  check("dilated", {.causal = true, .mask = [](X x) { return equal(remainder(x.i - x.t, 3), 0); }});
  check("neighborhood of w × w", {.mask = [&](X x) {
          const Tensor rows = abs(floor(x.i / w) - floor(x.t / w)),
                       columns = abs(remainder(x.i, w) - remainder(x.t, w));
          return logical_and(less_equal(rows, 2), less_equal(columns, 2));
        }});
  check("block diffusion", {.mask = [](X x) { return less_equal(floor(x.t / 8), floor(x.i / 8)); }});
  check("tree after n[b] keys", {.causal = true, .mask = [&](X x) {
                                   const Tensor first = x.at(n, {x.b}), t = maximum(x.t - first, 0);
                                   const Tensor seen = x.at(anc, {x.b, maximum(x.i - first, 0), t});
                                   return logical_or(less(x.t, first), not_equal(seen, 0));
                                 }});
  check("shared prefix", {.causal = true, .mask = [&](X x) {
                            const Tensor own = x.at(G, {x.b, x.t});
                            return logical_or(equal(own, 0), equal(own, x.at(G, {x.b, x.i})));
                          }});
}

}  // namespace

int main() {
  return run(checks);
}
