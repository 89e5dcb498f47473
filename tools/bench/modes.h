// The modes of `bench`, one function each, in the file of its name. Everything runs through the public API
// (graph, compile, run), so that users get the same figures.
#pragma once

#include "tools/bench/machine.h"

namespace tg::bench {

void run_gemm(const Settings& settings, const Machine& machine, Report& report);
void run_attention(const Settings& settings, const Machine& machine, Report& report);
// `bench attention --traffic` and `--once`, instead of rates. Both return an exit code.
int run_attention_traffic(const Settings& settings);
int run_attention_once(const Settings& settings);
void run_decode(const Settings& settings, const Machine& machine, Report& report);
void run_ops(const Settings& settings, const Machine& machine, Report& report);
void run_train(const Settings& settings, const Machine& machine, Report& report);
void report_model(const Settings& settings, const Machine& machine, Report& report);  // of run_train
void run_lora(const Settings& settings, const Machine& machine, Report& report);
void run_overhead(const Settings& settings, const Machine& machine, Report& report);
void run_generate(const Settings& settings, const Machine& machine, Report& report);
void run_serve(const Settings& settings, const Machine& machine, Report& report);
void run_ranks(const Settings& settings, const Machine& machine, Report& report);
// Of run_ranks.
void report_rank_attention(const Settings& settings, Report& report);
void report_rank_steps(const Settings& settings, Report& report);
inline constexpr const char* all_alone = "all alone";  // what shares of ranks together are of
void run_load(const Settings& settings, const Machine& machine, Report& report);
void run_tokens(const Settings& settings, const Machine& machine, Report& report);

// Measures and reports this library's own 1024×1024×1024 f32 product; returns its share of the peak.
double sgemm(const Settings& settings, int threads, const Machine& machine, Report& report);

}  // namespace tg::bench
