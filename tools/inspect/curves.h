// The losses of several training runs together.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/train/metrics.h>

namespace tg {

struct NamedRun {
  std::string name;
  std::vector<train::MetricsRow> rows;  // not empty
};

// The metrics.jsonl that train wrote to the directory, whose name becomes the run's name. Throws Error if
// there is none or it has no step, FormatError for a line that is not a row.
NamedRun read_run(const std::string& directory);

// Each run in two colours: the training loss faint under its smoothed mean; validation with markers.
plot::Plot curves_plot(const std::vector<NamedRun>& runs);

// A line for each run: steps, the smoothed training loss at the end, the best validation loss.
std::string runs_text(const std::vector<NamedRun>& runs);

}  // namespace tg
