// What `bench attention` does instead of measuring rates. Both return an exit code.
#pragma once

#include "tools/bench/measure.h"

namespace tg::bench {

int run_attention_traffic(const Settings& settings);
int run_attention_once(const Settings& settings);

}  // namespace tg::bench
