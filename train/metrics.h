// The record of a training run: one JSON object per line, readable by any tool during the run.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/files/file.h>

namespace tg::train {

// A value that was not measured, or is not finite, is NaN here and null in the file.
struct MetricsRow {
  static constexpr float none = std::numeric_limits<float>::quiet_NaN();
  std::int64_t step = 0;
  float train_loss = none, val_loss = none;  // nats per token
  float lr = none, grad_norm = none;
  float tokens_per_s = none;
  float val_accuracy = none;  // share of right answers, 0 to 1; not in the file if the task has no answers
};

// {"step":10,"train_loss":2.5,"val_loss":null,"lr":0.001,"grad_norm":0.7,"tokens_per_s":81000}
std::string to_json(const MetricsRow& row);

class MetricsWriter {
 public:
  // Empties the file or appends to its rows; Error if it cannot be written.
  explicit MetricsWriter(const std::string& path, io::OutputFile::Start start = io::OutputFile::Start::empty);
  void write(const MetricsRow& row);  // hands the row to the operating system; Error on a full disk
  void sync();                        // returns when all rows are on the disk
  void close();

 private:
  io::OutputFile file_;
};

// The rows of such a file. A last line that a killed run left unfinished is dropped; any other line that is
// not a row is a FormatError with its number.
std::vector<MetricsRow> read_metrics(const std::string& path);

// The rows up to `step`; replaces the file by these, so that a writer can append. None if there is no such
// file.
std::vector<MetricsRow> cut_metrics(const std::string& path, std::int64_t step);

}  // namespace tg::train
