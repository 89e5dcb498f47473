// Options of train --lora.
#pragma once

#include <string>

#include <tilegrad/nn/models/lora.h>
#include "tools/args.h"

namespace tg {

struct LoraTraining {
  std::int64_t rank = 0;  // 0: the whole model is trained
  double alpha = 0;       // 0: twice the rank
  double dropout = 0;
  std::string targets;  // names between commas; empty: all Linear layers but the head

  nn::LoraOptions options(std::uint64_t seed) const;
};

void declare_lora_options(Args& args, LoraTraining& o);
// What is wrong with a combination of options, or nothing.
std::string mistake_in_lora(const Args& args, const LoraTraining& o, bool has_base);

}  // namespace tg
