// How many numbers attention reads from main memory.
#include "tools/inspect/attention_views.h"

#include <algorithm>

#include "tools/train_report.h"

namespace tg {

std::string ReadModel::mistake() const {
  const std::string of = " for " + std::to_string(T) + " tokens and heads of " + std::to_string(d) + ": ";
  if (T <= d) return of + "there must be more tokens than the head's width";
  if (M < 4 * d)
    return of + "fast memory of " + std::to_string(M) +
           " numbers does not hold one query, key, value and result";
  if (M >= T * d)
    return of + "fast memory of " + std::to_string(M) +
           " numbers holds all of a head's keys; it must be smaller";
  return "";
}

double ReadModel::fused(std::int64_t chunk) const {
  const double rows = 2 * static_cast<double>(T) * static_cast<double>(d);
  return rows + rows * static_cast<double>((T + chunk - 1) / chunk);
}

double ReadModel::materialised() const {
  return static_cast<double>(T) * static_cast<double>(T);
}

std::int64_t ReadModel::best_chunk() const {
  return std::min(M / (4 * d), T);
}

std::vector<ReadsRow> reads_by_chunk(const ReadModel& model) {
  const std::int64_t best = model.best_chunk();
  std::vector<std::int64_t> chunks{best, model.T};
  for (std::int64_t chunk = 8; chunk < model.T; chunk *= 2) chunks.push_back(chunk);
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  std::vector<ReadsRow> rows;
  for (const std::int64_t chunk : chunks) rows.push_back({chunk, model.fused(chunk), chunk <= best});
  return rows;
}

plot::Plot reads_plot(const ReadModel& model) {
  const std::int64_t best = model.best_chunk();
  plot::Series fits{.label = "FlashAttention, tiles that fit", .markers = true, .color = plot::palette(0)},
      too_large{.label = "FlashAttention, tiles too large", .faint = true, .color = plot::palette(0)},
      optimum{.label = "optimum: tile of " + std::to_string(best) + ", " +
                       grouped(static_cast<std::int64_t>(model.fused(best))) + " reads",
              .x = {static_cast<double>(best)},
              .y = {model.fused(best)},
              .markers = true,
              .color = plot::palette(1)},
      standard{.label = "standard attention: " + grouped(static_cast<std::int64_t>(model.materialised())) +
                        " reads",
               .color = plot::palette(2)};
  for (const ReadsRow& r : reads_by_chunk(model)) {
    const auto chunk = static_cast<double>(r.chunk);
    if (r.fits) fits.x.push_back(chunk), fits.y.push_back(r.reads);
    if (!r.fits || r.chunk == best) too_large.x.push_back(chunk), too_large.y.push_back(r.reads);
    standard.x.push_back(chunk), standard.y.push_back(model.materialised());
  }
  return {.title = "numbers attention reads from memory: T = " + grouped(model.T) +
                   ", d = " + std::to_string(model.d) + ", M = " + grouped(model.M),
          .x_label = "keys in a tile",
          .y_label = "numbers read",
          .log_x = true,
          .log_y = true,
          .series = {too_large, fits, standard, optimum}};
}

std::string reads_text(const ReadModel& model) {
  std::string text = "    tile     numbers read    of T²\n";
  for (const ReadsRow& r : reads_by_chunk(model)) {
    char line[112];
    std::snprintf(line, sizeof line, "%8s  %15s  %7.3f", grouped(r.chunk).c_str(),
                  grouped(static_cast<std::int64_t>(r.reads)).c_str(), r.reads / model.materialised());
    text += line;
    text += r.chunk == model.best_chunk() ? "  optimum\n" : r.fits ? "\n" : "  too large\n";
  }
  return text;
}

}  // namespace tg
