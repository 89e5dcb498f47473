// Functions for the reports of tools: they format numbers, find parts of a model, print table rows, check
// memory and plot losses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/train/metrics.h>
#include <tilegrad/train/training.h>
#include "core/base/messages.h"

namespace tg {

// 1115394 → "1,115,394"
inline std::string grouped(std::int64_t n) {
  std::string s = std::to_string(n);
  for (std::size_t i = s.size(); i > 3; i -= 3) s.insert(i - 3, 1, ',');
  return s;
}

// "1 step", "2,000 steps"
inline std::string counted(std::int64_t n, const std::string& noun) {
  return grouped(n) + " " + noun + (n == 1 ? "" : "s");
}

inline std::string short_number(double x) {
  return formatted("%.3g", x);
}

inline std::string loss_text(double x) {
  return formatted("%.4f", x);
}

inline std::string size_text(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1023.95) break;  // otherwise 1024.0 would be printed
    bytes /= 1024;
    unit = next;
  }
  return formatted(bytes < 10 && *unit != 'B' ? "%.2f %s" : "%.1f %s", bytes, unit);
}

// Throws OutOfMemory if `bytes` more do not fit on the device.
inline void check_memory(Device device, double bytes, const std::string& what) {
  const auto free = static_cast<double>(backend(device).available_bytes());
  if (bytes > free)
    throw OutOfMemory("[memory] " + what + " needs " + size_text(bytes) + ", " + size_text(free) +
                      " are free");
}

// The parts of a model that tools distinguish. Paths of parameters and nodes identify them.
struct ModelPart {
  std::string_view name;
  std::string_view marks[4];  // a path that contains one of these belongs to the part
};
inline constexpr ModelPart model_parts[] = {
    {"embeddings", {".wte.", ".wpe.", ".embed_tokens.", "lm_head."}},
    {"attention", {".attn.", ".self_attn."}},
    {"mlp", {".mlp."}},
    {"norms", {".ln_", ".input_layernorm.", ".post_attention_layernorm.", "model.norm."}}};

// The part of the model to which a parameter ("transformer.wte.weight") or a step
// ("transformer.h.0.attn/flash_attn") belongs: a name from model_parts, or "" if there is none.
inline std::string_view part_of(std::string path) {
  std::replace(path.begin(), path.end(), '/', '.');
  for (const ModelPart& part : model_parts)
    for (const std::string_view mark : part.marks)
      if (!mark.empty() && path.find(mark) != std::string::npos) return part.name;
  return {};
}

// Throws OutOfMemory if needed(batch) bytes are not free. The message contains the largest --batch that fits.
// The parameters and the optimizer state are already allocated.
inline void check_batch(Device device, std::int64_t batch,
                        const std::function<std::size_t(std::int64_t)>& needed) {
  const std::size_t need = needed(batch), free = backend(device).available_bytes();
  if (need <= free) return;
  const std::int64_t largest =
      train::largest_batch(batch, free, [&](std::int64_t b) { return b == batch ? need : needed(b); });
  throw OutOfMemory("[memory] --batch " + std::to_string(batch) + " needs " +
                    size_text(static_cast<double>(need)) + " in addition to the parameters, " +
                    size_text(static_cast<double>(free)) + " are free: " +
                    (largest > 0 ? "the largest that fits is --batch " + std::to_string(largest)
                                 : std::string("not even --batch 1 fits")));
}

inline void print_row(const std::string& name, const std::string& value) {
  std::printf("%-12s %s\n", name.c_str(), printable(value).c_str());
}

// Prints the tensors of a file that the model does not use.
inline void print_dropped(const std::vector<std::string>& tensors) {
  if (tensors.empty()) return;
  const std::size_t more = tensors.size() - 1;
  print_row("dropped", tensors[0] + (more > 0 ? " and " + std::to_string(more) + " more" : ""));
}

inline void print_parameters(const nn::Params& params) {
  std::string parts;
  for (const ModelPart& part : model_parts) {
    std::int64_t n = 0;
    for (const Parameter& p : params.all())
      if (part_of(p.name()) == part.name) n += numel(p.shape());
    parts += (parts.empty() ? "" : ", ") + std::string(part.name) + " " + grouped(n);
  }
  print_row("parameters", grouped(params.count()) + " (" + parts + ")");
}

// Prints memory by purpose, and the exact peaks of training and evaluation, which share one arena. `weights`:
// bytes of the model's parameters.
inline void print_memory(std::size_t weights, const train::TrainingMemory& memory) {
  const MemoryReport &training = memory.training, &evaluation = memory.evaluation;
  const std::size_t peak = memory.peak(), arena = std::max(training.arena, evaluation.arena),
                    workspace = std::max(training.workspace, evaluation.workspace);
  const auto mib = [](std::size_t bytes) { return size_text(static_cast<double>(bytes)); };
  print_row("memory", mib(weights) + " parameters, " + mib(training.parameters - weights) + " optimizer, " +
                          mib(arena) + " activations and gradients,");
  print_row("", mib(workspace) + " workspace, " + mib(memory.without_parameters() - arena - workspace) +
                    " inputs and results; an evaluation uses " + mib(evaluation.arena) +
                    " of the same memory");
  print_row("peak", mib(peak) + " (" + grouped(static_cast<std::int64_t>(peak)) + " bytes)");
}

// Prints the cost of a memory budget in one line, and in a second line if matmuls or attention are
// recomputed. `copy`: bytes per second that the device reads and writes.
inline void print_budget(std::size_t budget, const MemoryReport& training, std::int64_t loss_chunks,
                         double copy) {
  const MemoryReport::Recomputed& again = training.recomputed;
  std::string how;
  if (loss_chunks > 1) how = "head and loss in " + grouped(loss_chunks) + " chunks";
  if (again.steps > 0) how += (how.empty() ? "" : " and ") + counted(again.steps, "step") + " recomputed";
  std::string trade = "nothing is recomputed";
  if (again.saved > 0) {
    const auto arena = static_cast<double>(training.arena);
    trade = "activations and gradients " + size_text(arena + static_cast<double>(again.saved)) + " → " +
            size_text(arena) + " by " + (how.empty() ? "reordering steps" : how);
    if (!how.empty())
      trade += ", which move " + size_text(again.moved) +
               formatted(": about %.3g ms a step at %.3g GB/s", 1e3 * again.price / copy, 1e-9 * copy);
  }
  print_row("budget", size_text(static_cast<double>(budget)) + ": " + trade);
  if (again.products > 0)
    print_row("", "of these steps, " + grouped(again.products) + " are matmuls or attention, " +
                      short_number(1e-9 * again.flops) + " GFLOP: recomputing cheap steps does not suffice");
}

// The loss curves of a run: the training loss of each step (faint), its smoothed mean, and the validation
// loss.
struct LossSeries {
  plot::Series raw, mean, validation;
};
inline LossSeries loss_series(const std::vector<train::MetricsRow>& rows) {
  LossSeries s{.raw = {.faint = true}, .validation = {.markers = true}};
  for (const train::MetricsRow& r : rows) {
    const auto step = static_cast<double>(r.step);
    s.raw.x.push_back(step);
    s.raw.y.push_back(r.train_loss);
    if (std::isnan(r.val_loss)) continue;
    s.validation.x.push_back(step);
    s.validation.y.push_back(r.val_loss);
  }
  s.mean.x = s.raw.x;
  s.mean.y = plot::smoothed(s.raw.y, static_cast<std::int64_t>(rows.size()) / 50);
  return s;
}

// `unit` is the unit over which the loss is a mean, such as "character".
inline void save_loss_curve(const std::string& path, const std::string& title, const std::string& unit,
                            const std::vector<train::MetricsRow>& rows) {
  LossSeries s = loss_series(rows);
  s.mean.label = "train", s.validation.label = "validation";
  s.raw.color = s.mean.color = plot::palette(0), s.validation.color = plot::palette(1);
  plot::save_plot(path, {.title = title,
                         .x_label = "step",
                         .y_label = "loss (nats per " + unit + ")",
                         .series = {s.raw, s.mean, s.validation}});
}

}  // namespace tg
