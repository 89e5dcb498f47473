// Metrics rows as JSON lines.
#include "io/metrics.h"

#include <string_view>

#include "core/error.h"
#include "io/json.h"

namespace tg {
namespace {

struct Field {
  std::string_view name;
  float MetricsRow::*value;
};
constexpr Field fields[] = {{"train_loss", &MetricsRow::train_loss},
                            {"val_loss", &MetricsRow::val_loss},
                            {"lr", &MetricsRow::lr},
                            {"grad_norm", &MetricsRow::grad_norm},
                            {"tokens_per_s", &MetricsRow::tokens_per_s}};

MetricsRow from_json(std::string_view line, const std::string& where) {
  JsonReader json(line, where);
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
    } else if (json.peek() == JsonReader::Kind::null) {
      json.null();
    } else {
      row.*(field->value) = static_cast<float>(json.number());
    }
  }
  json.end();
  if (!has_step) json.fail("row has no step");
  return row;
}

}  // namespace

std::string to_json(const MetricsRow& row) {
  std::string s = "{\"step\":" + std::to_string(row.step);
  for (const Field& f : fields) {
    s += ",\"";
    s += f.name;
    s += "\":" + json_number(row.*(f.value));
  }
  return s + "}";
}

MetricsWriter::MetricsWriter(const std::string& path) : file_(path, "metrics") {}

void MetricsWriter::write(const MetricsRow& row) {
  file_.write(to_json(row) + "\n");
}

void MetricsWriter::close() {
  file_.close();
}

std::vector<MetricsRow> read_metrics(const std::string& path) {
  const std::string content = read_file(path, "metrics");
  std::string_view rest = content;
  std::vector<MetricsRow> rows;
  for (std::size_t line = 1; !rest.empty(); ++line) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;
    rows.push_back(from_json(rest.substr(0, end), "[metrics] " + path + " line " + std::to_string(line)));
    rest.remove_prefix(end + 1);
  }
  return rows;
}

}  // namespace tg
