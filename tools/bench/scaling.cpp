#include "tools/bench/scaling.h"

#include <algorithm>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "tools/bench/measure.h"
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

struct RankRun {
  std::string machine;
  int ranks = 0;
  std::vector<Row> rows;
};

double number_or_none(io::JsonReader& json) {
  if (json.peek() == io::JsonReader::Kind::number) return json.number();
  json.null();
  return Row::none;
}

Row read_row(io::JsonReader& json) {
  Row row;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "name")
      row.name = json.string();
    else if (*key == "shape")
      row.shape = json.string();
    else if (*key == "dtype")
      row.dtype = json.string();
    else if (*key == "pass")
      row.pass = json.string();
    else if (*key == "unit")
      row.unit = json.string();
    else if (*key == "of")
      row.of = json.string();
    else if (*key == "rate")
      row.rate = number_or_none(json);
    else if (*key == "share")
      row.share = number_or_none(json);
    else
      json.skip();
  }
  return row;
}

void read_machine(io::JsonReader& json, RankRun& run) {
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "model")
      run.machine = json.string();
    else if (*key == "ranks")
      run.ranks = static_cast<int>(json.integer());
    else
      json.skip();
  }
}

RankRun read_run(const std::string& file) {
  RankRun run;
  const std::string text = io::read_file(file, "bench");
  io::JsonReader json(text, "[bench] " + file);
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "machine") {
      read_machine(json, run);
    } else if (*key == "rows") {
      json.begin_array();
      while (json.next_item()) run.rows.push_back(read_row(json));
    } else {
      json.skip();
    }
  }
  json.end();
  if (run.ranks < 1) throw Error("[bench] " + file + " has no rows of the mode ranks");
  return run;
}

void add_value(std::vector<ScalingRow>& rows, const std::string& label, int ranks, double value) {
  auto at = std::ranges::find(rows, label, &ScalingRow::label);
  if (at == rows.end()) at = rows.insert(rows.end(), {label, {}});
  if (!at->by_ranks.insert({ranks, value}).second)
    throw Error("[bench] two files have a row '" + label + "' of " + std::to_string(ranks) +
                " ranks: expected one for each number of ranks");
}

}  // namespace

Scaling read_scaling(const std::vector<std::string>& files) {
  Scaling s;
  for (const std::string& file : files) {
    const RankRun run = read_run(file);
    if (s.machine.empty()) s.machine = run.machine;
    if (run.machine != s.machine)
      throw Error("[bench] " + file + " is of another machine: " + run.machine + ", not " + s.machine);
    if (!std::ranges::count(s.ranks, run.ranks)) s.ranks.push_back(run.ranks);
    for (const Row& row : run.rows) {
      const std::string pass = row.pass.ends_with(" ranks") ? "" : " " + row.pass,
                        label = row.name + pass + ", " + row.dtype + " " + row.shape;
      if (row.of == all_alone)
        add_value(s.times, label, run.ranks, row.share * run.ranks);
      else if (row.unit == "GB/s" && run.ranks > 1)
        add_value(s.rates, label, run.ranks, row.rate);
    }
  }
  std::ranges::sort(s.ranks);
  if (s.times.empty() && s.rates.empty()) throw Error("[bench] these files have no row to draw");
  return s;
}

}  // namespace tg::bench
