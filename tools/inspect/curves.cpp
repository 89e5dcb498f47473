// Plots the losses of several training runs.
#include <tilegrad/core/base/error.h>
#include "tools/inspect/views.h"
#include "tools/train_report.h"

namespace tg {

NamedRun read_run(const std::string& directory) {
  const std::string name = directory.substr(0, directory.find_last_not_of('/') + 1);
  NamedRun run{name.empty() ? directory : name, train::read_metrics(directory + "/metrics.jsonl")};
  if (run.rows.empty()) throw Error("[inspect] " + directory + "/metrics.jsonl has no step");
  return run;
}

plot::Plot curves_plot(const std::vector<NamedRun>& runs) {
  plot::Plot plot{.title = "training and validation loss",
                  .x_label = "step",
                  .y_label = "loss (nats per token)",
                  .width = 1400,
                  .height = 900};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    LossSeries s = loss_series(runs[i].rows);
    s.mean.label = runs[i].name + ", train";
    if (!s.validation.x.empty()) s.validation.label = runs[i].name + ", validation";
    s.raw.color = s.mean.color = plot::palette(2 * i), s.validation.color = plot::palette(2 * i + 1);
    plot.series.insert(plot.series.end(), {s.raw, s.mean, s.validation});
  }
  return plot;
}

std::string runs_text(const std::vector<NamedRun>& runs) {
  std::string text;
  for (const NamedRun& run : runs) {
    const train::MetricsRow* best = nullptr;
    for (const train::MetricsRow& r : run.rows)
      if (!std::isnan(r.val_loss) && (!best || r.val_loss < best->val_loss)) best = &r;
    text +=
        run.name + formatted(": %s, smoothed train loss %.4f", counted(run.rows.back().step, "step").c_str(),
                             loss_series(run.rows).mean.y.back());
    if (best)
      text +=
          formatted(", best validation loss %.4f at step %s", best->val_loss, grouped(best->step).c_str());
    text += "\n";
  }
  return text;
}

}  // namespace tg
