// What decoding's kernels are told. A kernel's arguments come from memory, 64 bytes at a time, when they are
// first used: a short call would wait for most of an AttentionCall and a Workspace, which are 1 KiB.
#pragma once

#include "backends/cuda/attention/decoding.h"
#include "backends/cuda/attention/score.cuh"

namespace tg::cuda::attention::decoding {

struct Plan {
  AttentionCall::Operand q, k, v, o;
  const void *lengths, *sink;
  float* lse;
  // Results of ranges: O [B, Hk, ranges, rows, dv] and ξ [B, Hk, ranges, rows] in units of log 2; counters.
  float *range_o, *range_xi;
  int* counters;
  float factor, cap;  // as Score has them
  int B, H, Hk, L, T, d, dv, window_left, window_right;
  int range, ranges;  // keys of a range; how many there can be
  bool causal, top_left, lengths_are_i64;

  Plan(const AttentionCall& x, const Workspace& work)
      : q(x.q),
        k(x.k),
        v(x.v),
        o(x.o),
        lengths(x.lengths),
        sink(x.sink),
        lse(static_cast<float*>(x.lse)),
        range_o(work.o),
        range_xi(work.lse),
        counters(work.counters),
        factor(static_cast<float>(factor_of(x))),
        cap(static_cast<float>(cap_of(x))),
        B(static_cast<int>(x.B)),
        H(x.H),
        Hk(x.Hk),
        L(x.L),
        T(x.T),
        d(x.d),
        dv(x.dv),
        window_left(x.window_left),
        window_right(x.window_right),
        range(work.range),
        ranges(work.parts),
        causal(x.causal),
        top_left(x.top_left),
        lengths_are_i64(x.lengths_are_i64) {}

  // Of a key head.
  TG_HOST_DEVICE int rows() const { return H / Hk * L; }
  // The keys that queries of an entry see.
  TG_HOST_DEVICE Band band(int b) const {
    AttentionCall x;
    x.L = L, x.T = T;
    x.lengths = lengths, x.lengths_are_i64 = lengths_are_i64;
    x.causal = causal, x.top_left = top_left;
    x.window_left = window_left, x.window_right = window_right;
    return {x, sequence_of_query(x, b, 0)};
  }
};

}  // namespace tg::cuda::attention::decoding
