// Programs that run one call of flash_attn, paged_attn or ring_attention, with random inputs.
#pragma once

#include <tilegrad/ops/flash_attn.h>
#include "tools/bench/measure.h"

namespace tg::bench {

// A call as recorded, or several one after the other, each with inputs of its own; then these are the last's.
// Inputs are drawn from N(0, 1). With several ranks it is ring_attention, of which each has its tokens.
struct RecordedAttention {
  Graph g;
  Tensor q, k, v;
  AttentionResult out;
  NodeId last;                  // recorded by the call
  std::vector<Tensor> outputs;  // of all calls

  RecordedAttention(const AttentionCell& c, const Settings& settings, bool materialises = false,
                    int calls = 1, int ranks = 1);
  void feed(Program& program) const;

 private:
  int calls_, ranks_;
  std::vector<Tensor> inputs_;  // as they are in memory
  void record(const AttentionCell& c, const Settings& settings, bool materialises);
  void record_paged(const AttentionCell& c, const Settings& settings);
  Tensor add_input(const char* name, const Shape& shape, const Settings& settings);
};

// `ranks`: of one, flash_attn; else those of the settings, whose ring_attention it is.
Program forward_program(const AttentionCell& c, int threads, const Settings& settings, int ranks = 1);
// The backward op alone, on inputs that have the memory layout of the forward's results. Unless they are
// `real`, these are random: enough to count its traffic.
Program backward_program(const AttentionCell& c, int threads, const Settings& settings, bool real = true,
                         int ranks = 1);
// Forward and then backward.
Program both_program(const AttentionCell& c, int threads, const Settings& settings, int ranks = 1);
// Forward, or forward and backward, with the scores in memory.
Program materialised_program(const AttentionCell& c, bool with_backward, const Settings& settings);

}  // namespace tg::bench
