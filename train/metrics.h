// The metrics of a training run: one JSON object per line, which any tool can read during the run.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/files/file.h>

namespace tg::train {

// The metrics of one step. A value that was not measured or is not finite is NaN here and null in the file.
struct MetricsRow {
  // Marks a value that was not measured.
  static constexpr float none = std::numeric_limits<float>::quiet_NaN();
  std::int64_t step = 0;                     // counted from 1; 0: before the first step
  float train_loss = none, val_loss = none;  // nats per token
  float lr = none, grad_norm = none;         // learning rate; gradient norm before clipping
  float tokens_per_s = none;                 // mean over the steps of this run
  float val_accuracy = none;  // fraction of right answers, 0 to 1; omitted from the file if not measured
};

// Returns a row as JSON:
// {"step":10,"train_loss":2.5,"val_loss":null,"lr":0.001,"grad_norm":0.7,"tokens_per_s":81000}
std::string to_json(const MetricsRow& row);

// Writes metrics.jsonl.
class MetricsWriter {
 public:
  // Replaces the file or appends to it. Throws Error if it cannot be written.
  explicit MetricsWriter(const std::string& path, io::OutputFile::Start start = io::OutputFile::Start::empty);
  // Appends a row and passes it to the operating system. Throws Error if that fails, as on a full disk.
  void write(const MetricsRow& row);
  // Waits until all rows are on disk. Throws Error if that fails.
  void sync();
  // Closes the file. Throws Error if the operating system reports a write error.
  void close();

 private:
  io::OutputFile file_;
};

// Reads the rows of such a file. Drops an incomplete last line, because a killed run may leave one. Throws
// FormatError with the line number for any other line that is not a row.
std::vector<MetricsRow> read_metrics(const std::string& path);

// Returns the rows up to `step` and replaces the file with them, so that a writer can append. Returns no rows
// if the file does not exist.
std::vector<MetricsRow> cut_metrics(const std::string& path, std::int64_t step);

}  // namespace tg::train
