// Reads and writes metrics rows as JSON lines.
#include <tilegrad/train/metrics.h>

#include <cmath>
#include <string_view>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "core/base/file_write.h"

namespace tg::train {
namespace {

struct Field {
  std::string_view name;
  float MetricsRow::*value;
  bool may_be_missing = false;
};
constexpr Field fields[] = {{"train_loss", &MetricsRow::train_loss},
                            {"val_loss", &MetricsRow::val_loss},
                            {"lr", &MetricsRow::lr},
                            {"grad_norm", &MetricsRow::grad_norm},
                            {"tokens_per_s", &MetricsRow::tokens_per_s},
                            {"val_accuracy", &MetricsRow::val_accuracy, true}};

MetricsRow from_json(std::string_view line, const std::string& where) {
  io::JsonReader json(line, where);
  MetricsRow row;
  bool has_step = false;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "step") {
      row.step = json.integer();
      has_step = true;
      continue;
    }
    const Field* field = nullptr;
    for (const Field& f : fields) {
      if (f.name == *key) field = &f;
    }
    if (field == nullptr) {
      json.skip();
    } else if (json.peek() == io::JsonReader::Kind::null) {
      json.null();
    } else {
      row.*(field->value) = static_cast<float>(json.number());
    }
  }
  json.end();
  if (!has_step) json.fail("row has no step");
  return row;
}

// Parses the complete lines of a file's content. Returns each row with the offset of its end.
std::vector<std::pair<MetricsRow, std::size_t>> rows_of(std::string_view content, const std::string& path) {
  std::vector<std::pair<MetricsRow, std::size_t>> rows;
  std::size_t begin = 0;
  for (std::size_t end; (end = content.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    const std::string where = "[metrics] " + path + " line " + std::to_string(rows.size() + 1);
    rows.emplace_back(from_json(content.substr(begin, end - begin), where), end + 1);
  }
  return rows;
}

}  // namespace

std::string to_json(const MetricsRow& row) {
  std::string s = "{\"step\":" + std::to_string(row.step);
  for (const Field& f : fields) {
    if (f.may_be_missing && std::isnan(row.*(f.value))) continue;
    s += ",\"";
    s += f.name;
    s += "\":" + io::json_number(row.*(f.value));
  }
  return s + "}";
}

MetricsWriter::MetricsWriter(const std::string& path, io::OutputFile::Start start)
    : file_(path, "metrics", start) {}

void MetricsWriter::write(const MetricsRow& row) {
  file_.write(to_json(row) + "\n");
}

void MetricsWriter::sync() {
  file_.sync();
}

void MetricsWriter::close() {
  file_.close();
}

std::vector<MetricsRow> read_metrics(const std::string& path) {
  std::vector<MetricsRow> rows;
  for (const auto& [row, end] : rows_of(io::read_file(path, "metrics"), path)) rows.push_back(row);
  return rows;
}

std::vector<MetricsRow> cut_metrics(const std::string& path, std::int64_t step) {
  if (!is_replaceable(path, "metrics")) return {};
  std::vector<MetricsRow> rows;
  std::size_t kept = 0;
  const std::string content = io::read_file(path, "metrics");
  for (const auto& [row, end] : rows_of(content, path)) {
    if (row.step > step) break;
    rows.push_back(row);
    kept = end;
  }
  const std::string_view rest = std::string_view(content).substr(0, kept);
  io::replace_file(path, {&rest, 1}, "metrics");
  return rows;
}

}  // namespace tg::train
