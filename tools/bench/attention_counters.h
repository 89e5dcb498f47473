// Bytes of a GPU's memory that a cell really moves, by the counters that NVIDIA's profiler ncu reads.
#pragma once

#include <optional>
#include <string_view>

#include "tools/bench/attention_traffic.h"
#include "tools/bench/measure.h"

namespace tg::bench {

// What `--once` may name: one program, run once.
constexpr const char* once_forward = "forward";
constexpr const char* once_backward = "backward";
constexpr const char* once_materialised = "materialised";            // the forward
constexpr const char* once_materialised_both = "materialised-both";  // the forward and the backward

// This tool itself under ncu, with --once; nothing if ncu has no rights to read counters, or memory is short.
// Only the kernels of the one run count. Caches are emptied before each.
std::optional<Bytes> counted(const AttentionCell& c, const char* once, const Settings& settings);

// The sums over all kernels in ncu's CSV; nothing if there are none.
std::optional<Bytes> parse_counters(std::string_view csv);

}  // namespace tg::bench
