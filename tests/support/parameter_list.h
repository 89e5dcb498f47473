// Parameters for tests of the optimizer ops on lists, on every backend.
#pragma once

#include <deque>

#include "tests/support/op_testing.h"

namespace tg::testing {

// Parameters of several shapes and types. One parameter is longer than the share that a thread processes at a
// time. Gradients have narrower types and different memory layouts. Only the last parameter is in f64.
struct ParameterList {
  Graph g;
  std::deque<Array> held;  // owns the data of the feeds
  std::vector<Feed> feeds;
  std::vector<AdamWTensors> all;

  ParameterList() {
    std::uint64_t seed = 1;
    const auto add = [&](const Shape& s, DType p, DType z, View view = View::contiguous) {
      const Given in[] = {given(g, s, p, View::contiguous, seed), given(g, s, z, view, seed + 1),
                          given(g, s, p, View::contiguous, seed + 2),
                          given(g, s, p, View::contiguous, seed + 3, 0, 1)};
      for (const Given& x : in) held.push_back(x.array), feeds.push_back({x.input, held.back()});
      all.push_back(
          {in[0].tensor, in[1].tensor, in[2].tensor, in[3].tensor, 0.01 * static_cast<double>(seed)});
      seed += 4;
    };
    add({5, 33}, f32, f32), add({}, f32, f32), add({0, 3}, f32, f32), add({64, 128}, f32, f32);
    add({130, 157}, f32, bf16), add({77}, f32, f16), add({9, 31}, f32, f32, View::transposed);
    add({64}, bf16, bf16), add({12, 4}, f32, bf16, View::sliced), add({31}, f16, f16);
    add({33, 7}, f64, f64);
  }

  // The same list, with low-precision copies of parameters if they may have copies.
  std::vector<AdamWTensors> with_copies() const {
    std::vector<AdamWTensors> copied = all;
    for (std::size_t i = 0; i < copied.size(); ++i)
      if (copied[i].p.dtype() == f32 || copied[i].p.dtype() == f64) copied[i].copy = i % 2 ? bf16 : f16;
    return copied;
  }
};

}  // namespace tg::testing
