// The options of `bench attention`.
#include "tools/bench/options.h"

#include <tilegrad/core/base/error.h>
#include "tools/bench/attention_counters.h"
#include "tools/bench/measure.h"

namespace tg::bench {

namespace {

// BxHxLxd, without and with a causal mask, or a cell by its words.
std::vector<AttentionCell> cells_of(const std::string& text) {
  if (text.find('=') != std::string::npos) return {parse_cell(text)};
  const std::vector<std::int64_t> n = parse_shape(text);
  if (n.size() != 4) throw Error("expected 4 sizes joined by x, or words like B=4,H=32,L=4096,d=128,causal");
  const std::string cell = "B=" + std::to_string(n[0]) + ",H=" + std::to_string(n[1]) +
                           ",L=" + std::to_string(n[2]) + ",d=" + std::to_string(n[3]);
  return {parse_cell(cell), parse_cell(cell + ",causal")};
}

// Of --shape for the mode ranks those that are cells.
std::vector<std::string> ring_shapes(std::vector<std::string> shapes) {
  std::erase_if(shapes, [](const std::string& s) { return !is_cell(s); });
  return shapes;
}

// What ring attention does not have; "": nothing.
std::string mistake_in_ring(const AttentionCell& c) {
  if (c.L != c.T || c.length > 0 || c.page > 0 || c.ragged || c.v_in_k)
    return "--shape got '" + c.words() +
           "': ring attention has no T= other than L=, length=, page=, ragged and v_in_k";
  return "";
}

}  // namespace

bool is_cell(const std::string& shape) {
  return shape.find('=') != std::string::npos || parse_shape(shape).size() == 4;
}

void AttentionCommandLine::declare(Args& args) {
  args.option("suite", "NAME", "attention: the cells to measure", suite,
              {.choices = {"cpu", "gpu", "gpu-free-order", "masks", "few-queries"}, .shown = "by device"});
  args.option("layout", "NAME", "attention: q, k and v in memory; BLHd is what a projection leaves", layout,
              {.choices = {"BHLd", "BLHd"}});
  args.option("kernels", "NAME",
              "attention, decode without pages: the kernels that run it; an error where they cannot "
              "(AttentionKernels in ops/flash_attn.h)",
              kernels, {.choices = {"best", "plain", "tensor_cores", "wgmma"}});
  args.flag(
      "compare",
      "attention and decode on a GPU: beside PyTorch's cuDNN and FlashAttention-2, and F.linear; generate "
      "and serve: beside PyTorch, compiled, and llama.cpp on the CPU; train: beside PyTorch, eager, compiled "
      "and with CUDA graphs",
      compare);
  args.flag("traffic", "attention: bytes of memory by a model, and by ncu's counters, instead of rates",
            traffic);
  args.option("once", "NAME",
              "attention: run one program of each cell once, for a profiler, and print nothing", once,
              {.choices = {once_forward, once_backward, once_materialised, once_materialised_both},
               .shown = "measure"});
}

std::string AttentionCommandLine::take(const Args& args, const std::string& mode,
                                       const std::vector<std::string>& shapes, Settings& settings) const {
  if (args.given("compare") && mode != "attention" && mode != "decode" && mode != "generate" &&
      mode != "serve" && mode != "train")
    return "--compare is an option of the modes attention, decode, generate, serve and train";
  if (args.given("kernels") && mode != "attention" && mode != "decode")
    return "--kernels is an option of the modes attention and decode";
  for (const char* name : {"suite", "layout", "traffic", "once"})
    if (args.given(name) && mode != "attention")
      return "--" + std::string(name) + " is an option of the mode attention";
  AttentionKernels asked = AttentionKernels::best;
  for (const AttentionKernels k :
       {AttentionKernels::plain, AttentionKernels::tensor_cores, AttentionKernels::wgmma})
    if (kernels == name_of(k)) asked = k;
  settings.compare = compare, settings.attention.kernels = asked;
  if (mode == "decode")
    return take_cells(shapes, settings.device.kind == Device::cpu_kind ? "decode" : "gpu-decode", settings);
  if (mode == "ranks") {
    std::string mistake = add_cells(ring_shapes(shapes), settings);
    for (const AttentionCell& c : settings.attention.cells)
      if (mistake.empty()) mistake = mistake_in_ring(c);
    return mistake;
  }
  if (mode != "attention") return "";
  if (args.given("suite") && !shapes.empty()) return "--suite and --shape exclude each other";
  for (const char* name : {"compare", "plot", "json"})
    if (args.given(name) && (traffic || !once.empty()))
      return "--" + std::string(name) + " needs rates, which --traffic and --once do not measure";
  if (traffic && !once.empty()) return "--traffic and --once exclude each other";
  settings.attention = {.by_token = layout == "BLHd", .plot = args.value("plot"), .once = once};
  settings.attention.kernels = asked;
  for (const std::string& shape : shapes)
    if (shape.find("page=") != std::string::npos) return "page= is for the mode decode";
  const char* own = settings.device.kind == Device::cpu_kind ? "cpu" : "gpu";
  return take_cells(shapes, suite.empty() ? own : suite, settings);
}

std::string AttentionCommandLine::take_cells(const std::vector<std::string>& shapes, const std::string& name,
                                             Settings& settings) const {
  AttentionSettings& a = settings.attention;
  a.whole_suite = shapes.empty() && suite.empty();
  if (shapes.empty()) a.cells = attention_suite(name);
  return add_cells(shapes, settings);
}

std::string AttentionCommandLine::add_cells(const std::vector<std::string>& shapes, Settings& settings) {
  for (const std::string& shape : shapes) {
    try {
      for (const AttentionCell& c : cells_of(shape)) settings.attention.cells.push_back(c);
    } catch (const Error& e) {
      return "--shape got '" + shape + "': " + e.what();
    }
  }
  return "";
}

}  // namespace tg::bench
