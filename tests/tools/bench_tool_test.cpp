// tools/bench: every mode prints a table and writes the same rows as JSON; mistakes are one line and exit
// code 2.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>

namespace tg {
namespace {

struct Outcome {
  int code;
  std::string output;  // stdout and stderr
};

Outcome bench(const std::string& arguments) {
  std::FILE* pipe = popen((std::string(TG_BENCH) + " " + arguments + " 2>&1 </dev/null").c_str(), "r");
  std::string output;
  for (int c; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

// Null where a number does not apply.
std::optional<double> number_or_null(io::JsonReader& json) {
  if (json.peek() != io::JsonReader::Kind::null) return json.number();
  json.null();
  return {};
}

struct Mode {
  const char *name, *shape;
  std::set<std::string> rows;  // some of those it must have
};

void PrintTo(const Mode& m, std::ostream* out) {
  *out << m.name;
}

class BenchModes : public testing::TestWithParam<Mode> {};

TEST_P(BenchModes, PrintATableAndWriteTheSameRowsAsJson) {
  const std::string path =
      testing::TempDir() + "bench_" + GetParam().name + std::to_string(getpid()) + ".json";
  const Outcome run = bench(std::string(GetParam().name) + " --quick --threads 2 --shape " +
                            GetParam().shape + " --json " + path);
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_NE(run.output.find("multiply-add"), std::string::npos);
  EXPECT_NE(run.output.find("threads"), std::string::npos);

  // Every row has its numbers below the head's: wide names do not move them.
  std::istringstream lines(run.output.substr(run.output.find("\n\n") + 2));
  std::string head;
  std::getline(lines, head);
  const std::size_t place = head.find("threads") + 6;
  for (std::string line; std::getline(lines, line);) {
    std::erase_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; });  // characters
    ASSERT_GT(line.size(), place) << line;
    EXPECT_TRUE((line[place] == '1' || line[place] == '2') && line[place - 1] == ' ' &&
                line[place + 1] == ' ')
        << line;
  }

  const std::string text = io::read_file(path, "test");
  std::remove(path.c_str());
  io::JsonReader json(text, path);
  std::set<std::string> names;
  json.begin_object();
  while (const auto part = json.next_key()) {
    if (*part == "machine") {
      json.begin_object();
      while (const auto key = json.next_key()) {
        if (*key == "model" || *key == "isa")
          EXPECT_FALSE(json.string().empty());
        else
          EXPECT_GT(json.number(), 0) << *key;
      }
      continue;
    }
    ASSERT_EQ(*part, "rows");
    json.begin_array();
    while (json.next_item()) {
      std::set<std::string> keys;
      json.begin_object();
      while (const auto key = json.next_key()) {
        keys.insert(*key);
        if (*key == "threads") {
          const std::int64_t threads = json.integer();
          EXPECT_TRUE(threads == 1 || threads == 2) << threads;
        } else if (json.peek() == io::JsonReader::Kind::string) {
          const std::string value = json.string();
          if (*key == "name") names.insert(value);
          EXPECT_NE(run.output.find(value), std::string::npos) << value;
        } else {
          EXPECT_GE(number_or_null(json).value_or(0), 0) << *key;
        }
      }
      EXPECT_EQ(keys, (std::set<std::string>{"name", "shape", "dtype", "pass", "threads", "ms", "rate",
                                             "unit", "share", "of", "share_sgemm"}));
    }
  }
  json.end();
  for (const std::string& row : GetParam().rows) EXPECT_TRUE(names.contains(row)) << row << " is missing";
}

const Mode all_modes[] = {
    {"gemm", "33x20x17", {"sgemm NN", "sgemm NT", "sgemm TN", "dgemm NN", "gemm NN", "sgemm NN, all / one"}},
    {"attention", "1x2x33x16", {"flash_attn", "flash_attn causal", "flash_attn causal / full"}},
    {"ops",
     "16x24",
     {"add", "gelu", "softmax", "layer_norm", "cross_entropy", "copy of transposed", "sum of all"}},
    {"overhead", "50", {"dispatch", "plan memory", "GPT 12 layers: all"}},
    {"generate", "8", {"whole text", "cached"}},
    {"train", "1x2x16x8x2", {"GPT step", "matmul", "flash_attn", "adamw"}},
};
INSTANTIATE_TEST_SUITE_P(Bench, BenchModes, testing::ValuesIn(all_modes),
                         [](const auto& m) { return m.param.name; });

TEST(Bench, HelpHasExamples) {
  const Outcome run = bench("--help");
  EXPECT_EQ(run.code, 0);
  EXPECT_NE(run.output.find("examples:"), std::string::npos);
}

TEST(Bench, MistakesAreOneLineAndExitCodeTwo) {
  for (const char* arguments :
       {"", "flops", "gemm --threads 0", "gemm --shape 4", "gemm --shape 4xx4", "gemm --shape 4x0x4",
        "ops --speed 3", "ops --quick --filter nothing-has-this-name"}) {
    const Outcome run = bench(arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    const std::size_t said = run.output.find("bench: ");
    ASSERT_NE(said, std::string::npos) << arguments;
    EXPECT_EQ(run.output.find("bench: ", said + 1), std::string::npos) << arguments << ": " << run.output;
  }
  EXPECT_EQ(bench("gemm --quick --shape 8x8x8 --json /nowhere/rows.json").code, 1);
}

}  // namespace
}  // namespace tg
