// The plan of an attention expression (ops/attention_expression.h): its code as block functions on numbered
// blocks of values. It is plain data, because the kernels of every instruction set read it.
#pragma once

#include <memory>

#include "backends/cpu/kernel.h"
#include "ops/attention_call.h"

namespace tg::cpu {

struct ExpressionPlan {
  static constexpr int block = 512;  // values; a score tile is computed in stretches of whole rows
  static constexpr int max_code = AttentionExpression::max_code + AttentionExpression::max_captures;
  static constexpr int max_captures = AttentionExpression::max_captures;
  // The blocks of the arguments. Constants follow, and then results. The score has no block: it is read from
  // the tile.
  enum Slot : int { score, b, h, i, t, arguments };
  // The arguments that a value depends on, besides b and h: none, i, t, their difference i − t, or the pair.
  // If a tile has one head and consecutive queries, all classes except `pair` have few values per tile.
  enum Class : int { head, query, key, difference, pair, classes };

  struct Step {
    BlockFn run;    // null: reads captured elements
    int capture;    // index in the expression's captures, or −1
    int source[3];  // blocks of the operands; −1: none
    int slot;       // block of the result
  };
  struct Capture {
    int index[max_rank];       // block of each index
    Class index_of[max_rank];  // class of each index
    int rank;
    Class of = head;      // class of the element
    int slope = -1;       // block of ∂A/∂element; −1: no gradient is needed, or the slope is constant
    bool sums = false;    // whether a gradient is needed
    double constant = 1;  // the slope, if it is constant
  };
  // A value of the class `key` or `difference` that steps of pairs read, from a separate block.
  struct Spread {
    Class of;
    int from, to;
  };

  // The steps of class c are first[c] … first[c + 1] − 1.
  int first[classes + 1] = {}, slots = arguments;
  Step step[max_code];
  int spreads = 0;
  Spread spread[max_code];
  int constants = 0;  // constant c is in block arguments + c
  double constant[3 * max_code];
  Capture capture[max_captures];
  int mask = -1, result = -1, slope = -1;  // blocks of results; −1: absent, or a slope that is always 1
};

// Returns the plan of a step of flash_attn or its backward, or null if it has no expression. Throws
// DeviceError if the kernel set has no block function for an op.
std::shared_ptr<const ExpressionPlan> plan_expression(const Step& step, const KernelSet& set);

}  // namespace tg::cpu
