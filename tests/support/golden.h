// Compares results with a golden file in the source tree. Each line has a name, a tab and a result. After an
// intended change, set TG_WRITE_GOLDEN=1 to write the file instead. The difference of the file is then part
// of the review.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <tilegrad/core/graph/graph.h>

namespace tg::testing {

// Returns the FNV-1a hash of lines.
class Checksum {
 public:
  void add(const std::string& line) {
    for (const char c : line + "\n") value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  std::uint64_t value() const { return value_; }
  static std::string text_of(std::uint64_t value) {
    char s[17];
    std::snprintf(s, sizeof s, "%016llx", static_cast<unsigned long long>(value));
    return s;
  }
  std::string text() const { return text_of(value_); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

// Hashes the nodes of graphs: ops, attributes, operands, and the dtypes and layouts of results. The hash does
// not depend on the order in which nodes are recorded, because compilers may evaluate the arguments of a call
// in any order.
class GraphChecksum {
 public:
  void add(const Graph& g) {
    std::vector<std::uint64_t> values;
    for (const Node& n : g.nodes()) {
      std::string text = n.op->name + " " + n.attrs.text();
      if (n.op == &constant_op) {
        const Array& value = n.attrs.as<ConstantAttrs>().value;
        for (std::int64_t i = 0; i < value.numel() && i < 64; ++i) text += " " + std::to_string(value.at(i));
      }
      for (const ValueId v : n.in) text += " " + Checksum::text_of(values[v]);
      for (std::uint32_t o = 0; o < n.outs; ++o) {
        const Tensor t = g.tensor(n.first_out + o);
        text += " " + t.text() + t.layout().strides.text();
      }
      Checksum node;
      node.add(text);
      for (std::uint32_t o = 0; o < n.outs; ++o) values.push_back(node.value() + o);
      sum_ += node.value() * node.value(), ++nodes_;
    }
  }
  std::string text() const { return std::to_string(nodes_) + " nodes, " + Checksum::text_of(sum_); }

 private:
  int nodes_ = 0;
  std::uint64_t sum_ = 0;
};

using GoldenLines = std::map<std::string, std::string>;

// Compares lines with a file. If `complete` is set, the file must have no other lines. Otherwise, the file
// may have lines from other machines. They do not change.
inline void expect_golden(const std::string& path, const GoldenLines& now, bool complete = true) {
  GoldenLines golden;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (const std::size_t at = line.rfind('\t'); at != std::string::npos)
      golden[line.substr(0, at)] = line.substr(at + 1);
  if (std::getenv("TG_WRITE_GOLDEN")) {
    GoldenLines all = now;
    if (!complete) all.insert(golden.begin(), golden.end());
    std::ofstream to(path);
    for (const auto& [what, result] : all) to << what << '\t' << result << '\n';
    return;
  }
  int wrong = 0;
  for (const auto& [what, result] : now) {
    const auto expected = golden.find(what);
    if (expected != golden.end() && expected->second == result) continue;
    if (++wrong <= 20)
      ADD_FAILURE() << what << ": got " << result << ", expected "
                    << (expected == golden.end() ? "no such line" : expected->second);
  }
  EXPECT_EQ(wrong, 0) << "lines differ from " << path
                      << "; after an intended change, set TG_WRITE_GOLDEN=1 and run this test with CTest, "
                         "which sets the variables that the test depends on";
  if (!complete) return;
  for (const auto& [what, result] : golden) EXPECT_TRUE(now.count(what)) << what << " is only in " << path;
}

}  // namespace tg::testing
