// Reads a table of cases for readers and writers of settings from a text file. A line "NAME: key=value
// key=value …" is a case. Later lines "NAME key=value -key" are cases that change this case, their base. They
// set or remove some members. Values contain no spaces. The results of a case follow in lines that begin with
// two spaces. A result is a word, and entries "key=value" separated by " | ". If a case has a base, only the
// entries that differ from the base's entries are listed. Empty lines and comments, which begin with a number
// sign, are ignored.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace tg::testing {

using Members = std::map<std::string, std::string>;
using Results = std::map<std::string, Members>;  // results by word; a case that fails has only "error"

inline std::string result_line(const std::string& word, const Members& entries) {
  std::string line;
  for (const auto& [key, value] : entries)
    line += (line.empty() ? "  " + word + " " : " | ") + key + (key.empty() ? "" : "=") + value;
  for (std::size_t at; (at = line.find('\n')) != std::string::npos;) line.replace(at, 1, "\\n");
  return line;
}

// Returns the entries that are not in the base, and "-key" for keys that are only in the base.
inline Members differing_entries(const Members& all, const Members& base) {
  Members others;
  for (const auto& [key, value] : all)
    if (const auto found = base.find(key); found == base.end() || found->second != value) others[key] = value;
  for (const auto& [key, value] : base)
    if (!key.empty() && !all.contains(key)) others[""] += (others[""].empty() ? "-" : " -") + key;
  return others;
}

inline std::vector<std::string> result_lines(const Results& results, const Results& base) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& line) {
    if (!line.empty()) lines.push_back(line);
  };
  for (const auto& [word, entries] : results) {
    const auto found = base.find(word);
    add(result_line(word, found == base.end() ? entries : differing_entries(entries, found->second)));
  }
  for (const auto& [word, entries] : base)
    if (!results.contains(word) && !results.contains("error")) add("  no " + word);
  return lines;
}

// Evaluates every case in the file and compares the results. If results differ, writes a table with the
// current results to a temporary file. The message names this file.
inline void expect_table(const std::string& path, const std::function<Results(const Members&)>& evaluate) {
  struct Base {
    Members members;
    Results results;
  };
  std::map<std::string, Base> bases;
  std::ifstream file(path);
  ASSERT_TRUE(file.good()) << path;
  std::string now, line, of_case;
  std::vector<std::string> actual, expected;
  int cases = 0, wrong = 0;
  const auto finish = [&] {
    if (actual != expected && ++wrong <= 5) {
      EXPECT_EQ(::testing::PrintToString(actual), ::testing::PrintToString(expected)) << of_case;
    }
    for (const std::string& result : actual) now += result + "\n";
    actual.clear(), expected.clear();
  };
  while (std::getline(file, line)) {
    if (line.starts_with("  ")) {
      expected.push_back(line);
      continue;
    }
    finish();
    now += line + "\n";
    if (line.empty() || line[0] == '#') continue;
    ++cases, of_case = line;
    std::istringstream words(line);
    std::string name, word;
    words >> name;
    const bool is_base = name.ends_with(':');
    if (is_base) name.pop_back();
    Base made = is_base ? Base{} : bases.at(name);
    const Results before = made.results;
    while (words >> word) {
      const std::size_t end = word.find('=');
      if (word[0] == '-' && end == std::string::npos) {
        EXPECT_EQ(made.members.erase(word.substr(1)), 1u) << line;
      } else {
        made.members[word.substr(0, end)] = word.substr(end + 1);
      }
    }
    made.results = evaluate(made.members);
    actual = result_lines(made.results, before);
    if (is_base) bases[name] = made;
  }
  finish();
  EXPECT_GT(cases, 0);
  if (wrong == 0) return;
  const std::string written = ::testing::TempDir() + path.substr(path.rfind('/') + 1);
  std::ofstream(written) << now;
  ADD_FAILURE() << wrong << " of " << cases << " cases of " << path
                << " differ; current results: " << written;
}

// Returns the keys of a case in the order in which their errors are reported. First sets all keys to `bad`,
// or removes them if `bad` is "-". Then repeatedly corrects the key in the error message.
inline std::string order_of_errors(const Members& members, const std::string& bad,
                                   const std::function<std::string(const Members&)>& error) {
  Members now;
  for (const auto& [key, value] : members)
    if (bad != "-") now[key] = bad;
  for (std::string order;; order += " ") {
    const std::string message = error(now);
    if (message == "no error") return order;
    std::string next;
    std::size_t first = std::string::npos;
    for (const auto& [key, value] : members) {
      const std::size_t at = message.find(key);
      const auto found = now.find(key);
      if (at == std::string::npos || (found != now.end() && found->second == value)) continue;
      if (at < first || (at == first && key.size() > next.size())) first = at, next = key;
    }
    if (next.empty()) return order + message;
    now[next] = members.at(next);
    order += next;
  }
}

}  // namespace tg::testing
