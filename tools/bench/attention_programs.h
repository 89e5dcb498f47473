// Programs that run flash_attn, paged_attn or ring_attention, with random inputs.
#pragma once

#include <tilegrad/ops/flash_attn.h>
#include "tools/bench/measure.h"

namespace tg::bench {

enum class Pass { forward, backward, both };
const char* name_of(Pass pass);

// A call as recorded, or several one after the other, each with inputs of its own; then these are the last's.
// Inputs are drawn from N(0, 1). With several ranks it is ring_attention, of which each has its tokens. The
// cell and the settings must outlive it.
struct RecordedAttention {
  Graph g;
  Tensor q, k, v, z;  // z: the cotangent of o, once there are gradients
  AttentionResult out;
  NodeId last;                  // recorded by the call
  std::vector<Tensor> outputs;  // of all calls

  RecordedAttention(const AttentionCell& c, const Settings& settings, bool materialises = false,
                    int calls = 1, int ranks = 1);
  void add_gradients();          // to the outputs
  Program program(int threads);  // of the outputs
  // The gradients of q, k and v by the backward pass alone, with o and ξ as inputs.
  std::vector<Tensor> backward_of(const Tensor& o, const Tensor& lse, const Tensor& cotangent);

 private:
  const AttentionCell& c_;
  const Settings& settings_;
  int calls_, ranks_;
  std::vector<Tensor> inputs_;  // as they are in memory

  void record(bool materialises);
  void record_paged();
  Tensor add_input(const char* name, const Shape& shape);
};

// `ranks`: of one, flash_attn; else those of the settings, whose ring_attention it is.
Program attention_program(const AttentionCell& c, Pass pass, int threads, const Settings& settings,
                          int ranks = 1);
// The backward op alone, on inputs that have the memory layout of the forward's results. Unless they are
// `real`, these are random: enough to count its traffic.
Program backward_program(const AttentionCell& c, int threads, const Settings& settings, bool real, int ranks);
// Forward, or forward and backward, with the scores in memory.
Program materialised_program(const AttentionCell& c, bool with_backward, const Settings& settings);

}  // namespace tg::bench
