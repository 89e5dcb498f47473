// Programs that run flash_attn, paged_attn or ring_attention, with random inputs.
#pragma once

#include <tilegrad/ops/flash_attn.h>
#include "tools/bench/measure.h"

namespace tg::bench {

enum class Pass { forward, backward, both };
const char* name_of(Pass pass);

// A recorded call, or several independent calls with separate inputs. In the second case, the fields describe
// the last call. Inputs are drawn from N(0, 1). With several ranks, the call is ring_attention, in which each
// rank has its shard of the tokens. The cell and the settings must outlive this object.
struct RecordedAttention {
  Graph g;
  Tensor q, k, v, z;  // z: the cotangent of o, set by add_gradients()
  AttentionResult out;
  NodeId last;                  // the last node that the call recorded
  std::vector<Tensor> outputs;  // the outputs of all calls

  RecordedAttention(const AttentionCell& c, const Settings& settings, bool materialises = false,
                    int calls = 1, int ranks = 1);
  void add_gradients();          // adds gradients to the outputs
  Program program(int threads);  // compiles a program for the outputs
  // Records only the backward pass, with o and ξ as inputs, and returns the gradients of q, k and v.
  std::vector<Tensor> backward_of(const Tensor& o, const Tensor& lse, const Tensor& cotangent);

 private:
  const AttentionCell& c_;
  const Settings& settings_;
  int calls_, ranks_;
  std::vector<Tensor> inputs_;  // in memory order

  void record(bool materialises);
  void record_paged();
  Tensor add_input(const char* name, const Shape& shape);
};

// A program for the cell. `ranks`: 1 for flash_attn, otherwise ring_attention on the ranks of the settings.
Program attention_program(const AttentionCell& c, Pass pass, int threads, const Settings& settings,
                          int ranks = 1);
// A program for only the backward op. Its inputs have the memory layout of the forward pass. If `real` is
// false, they are random numbers, which is enough to count memory traffic.
Program backward_program(const AttentionCell& c, int threads, const Settings& settings, bool real, int ranks);
// A program for standard attention, which stores its scores in memory. It has a forward pass, or a forward
// and a backward pass.
Program materialised_program(const AttentionCell& c, bool with_backward, const Settings& settings);

}  // namespace tg::bench
