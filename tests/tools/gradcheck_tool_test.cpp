// Runs tools/gradcheck and tests its output, its files and its exit codes.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <cstdio>
#include <cstdlib>

#include <filesystem>
#include <string>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>

namespace {

struct Ended {
  int code;
  std::string text;  // stdout and stderr
};

Ended run(const std::string& arguments) {
  std::FILE* pipe = popen((std::string(GRADCHECK) + " " + arguments + " 2>&1").c_str(), "r");
  if (!pipe) return {-1, "popen failed"};
  Ended e{0, {}};
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) e.text.append(buffer, n);
  const int status = pclose(pipe);
  e.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return e;
}

int lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

#define EXPECT_ENDS(arguments, expected, says)                                      \
  do {                                                                              \
    const Ended e = run(arguments);                                                 \
    EXPECT_EQ(e.code, expected) << arguments << "\n" << e.text;                     \
    EXPECT_NE(e.text.find(says), std::string::npos) << arguments << "\n" << e.text; \
  } while (false)

const std::string faulty = "--plugin " FAULTY_PLUGIN " ";

TEST(GradcheckTool, ExitsWith0IfAllChecksPass) {
  EXPECT_ENDS("--op exp", 0, "exp/3d");
  EXPECT_ENDS("--op exp --quick --dtypes f64,bf16 --views sliced,expanded", 0, "exp/3d");
  EXPECT_ENDS("--op mul/broadcast --order 2", 0, "mul/broadcast");
  EXPECT_ENDS("--op less", 0, "its result is boolean");
  EXPECT_ENDS(faulty + "--op square_right", 0, "square_right/vector");
}

TEST(GradcheckTool, ExitsWith1AndLocatesAMismatch) {
  for (const char* fast : {"", " --quick"}) {
    const Ended e =
        run(faulty + "--op square_right --op square_wrong --dtypes f64 --views contiguous" + fast);
    EXPECT_EQ(e.code, 1) << e.text;
    EXPECT_NE(e.text.find("input 0 ["), std::string::npos) << e.text;
    EXPECT_NE(e.text.find("analytic"), std::string::npos) << e.text;
    EXPECT_NE(e.text.find("again: "), std::string::npos) << e.text;
    EXPECT_NE(e.text.find("1 ok, 1 mismatch"), std::string::npos) << e.text;
  }
}

TEST(GradcheckTool, PrintedCommandRepeatsTheCheck) {
  const Ended first = run(faulty + "--op square_wrong --dtypes f64 --views offset --seed 3");
  const std::size_t at = first.text.find("again: ") + 7;
  const std::string command = first.text.substr(at, first.text.find('\n', at) - at);
  ASSERT_EQ(command.find(GRADCHECK), 0u) << command;
  const Ended again = run(command.substr(std::string(GRADCHECK).size()));
  EXPECT_EQ(again.code, 1);
  const auto worst = [](const std::string& text) {
    const std::size_t begin = text.find("worst: ");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(worst(again.text), worst(first.text));
}

TEST(GradcheckTool, ExitsWith2AndOneLineOnUsageErrors) {
  for (const char* arguments :
       {"", "--no-such-flag", "--op", "--op exp --dtypes f8", "--op exp --views sideways",
        "--op exp --order 3", "--op exp --seed x", "--all --op exp", "--all --plot x.png",
        "--op exp --backend abacus", "--op exp --plugin /no/such/library.so", "--collectives",
        "--collectives --all", "--collectives --quick", "--op exp --json /no/such/folder/x.json",
        "--op exp --plot /no/such/folder/x.png", "exp"}) {
    const Ended e = run(arguments);
    EXPECT_EQ(e.code, 2) << arguments << "\n" << e.text;
    EXPECT_NE(e.text.find("gradcheck"), std::string::npos) << e.text;
  }
  EXPECT_EQ(lines(run("--op exp --dtypes f8").text), 1);
}

TEST(GradcheckTool, ExitsWith3IfACheckDidNotRun) {
  EXPECT_ENDS("--op no_such_op", 3, "no op or layer is named 'no_such_op'");
  EXPECT_ENDS("--op relux", 3, "did you mean relu?");
  EXPECT_ENDS("--op exp --op no_such_op", 3, "no_such_op");
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // hides all GPUs
  EXPECT_ENDS("--op exp --backend cuda", 3, "[cuda]");
  EXPECT_ENDS(faulty + "--op unsampled", 3, "no sample");
  EXPECT_ENDS(faulty + "--op no_kernel", 3, "no CPU kernel");
  EXPECT_ENDS(faulty + "--list", 3, "square_wrong");
}

TEST(GradcheckTool, ExitsWith4OnNonFiniteNumbers) {
  EXPECT_ENDS(faulty + "--op square_nan", 4, "non-finite");
  EXPECT_ENDS(faulty + "--op square_nan --op square_wrong", 4, "non-finite");
}

TEST(GradcheckTool, ListsOpsAndHelps) {
  EXPECT_ENDS("--list", 0, "flash_attn");
  EXPECT_ENDS("--list --op less", 0, "no: its result is boolean");
  EXPECT_ENDS("--help", 0, "examples:");
  for (const char* view : {"contiguous", "transposed", "sliced", "offset", "expanded", "expanded_last"})
    EXPECT_ENDS("--help", 0, std::string(view));
  EXPECT_ENDS("--help", 0, "expanded,expanded_last");
  EXPECT_ENDS("--op exp/3d --views expanded_last -v", 0, "expanded_last");
}

TEST(GradcheckTool, MutantsOfACorrectOpAreKilledAndCounted) {
  EXPECT_ENDS("--op mul --mutate", 0, " injected bugs caught");
  EXPECT_ENDS("--op less --mutate", 3, "0 cases");
}

TEST(GradcheckTool, RefusesToMutateAWrongGradient) {
  EXPECT_ENDS(faulty + "--op square_wrong --mutate", 1, "fails without a fault");
  EXPECT_ENDS(faulty + "--op square_nan --mutate", 4, "fails without a fault");
  EXPECT_ENDS(faulty + "--op square_right --mutate", 0, "0 cases refused");
}

TEST(GradcheckTool, ReportsMutantsItCouldNotInject) {
  const Ended e = run("--op mul/same --mutate --quick");
  EXPECT_NE(e.text.find("not injected:"), std::string::npos) << e.text;
  EXPECT_NE(e.text.find("1 stale outputs: the gradient stays the same"), std::string::npos) << e.text;
}

TEST(GradcheckTool, MutatesLayersAndOpsByDecomposition) {
  for (const char* name : {"Linear", "layer_norm_backward"}) {
    const Ended e = run(std::string("--op ") + name + " --mutate --quick -v");
    EXPECT_EQ(e.code, 0) << e.text;
    for (const char* word : {"caught", "bf16 contiguous", "f64 transposed", "f64 expanded_last"})
      EXPECT_NE(e.text.find(word), std::string::npos) << name << ": " << word << "\n" << e.text;
  }
}

// The file is checked before the checks run, because otherwise their results would be lost.
TEST(GradcheckTool, RejectsAnUnwritableFileBeforeChecking) {
  for (const char* option : {"--json", "--plot"}) {
    for (const char* path : {"/no/such/folder/x.png", "/tmp"}) {
      const Ended e = run(std::string("--op exp ") + option + " " + path);
      EXPECT_EQ(e.code, 2) << e.text;
      EXPECT_EQ(lines(e.text), 1) << e.text;
      EXPECT_NE(e.text.find(path), std::string::npos) << e.text;
    }
  }
}

TEST(GradcheckTool, WritesItsResultsAsJson) {
  const std::string file = testing::TempDir() + "gradcheck.json";
  EXPECT_EQ(run(faulty + "--op square_wrong --dtypes f64 --seed 7 --overwrite --json " + file).code, 1);
  const std::string text = tg::io::read_file(file, "test");
  tg::io::JsonReader json(text, "test");
  std::int64_t seed = -1, code = -1;
  int results = 0;
  std::string replay;
  json.begin_object();
  while (auto key = json.next_key()) {
    if (*key == "seed") {
      seed = json.integer();
    } else if (*key == "exit_code") {
      code = json.integer();
    } else if (*key == "results") {
      json.begin_array();
      while (json.next_item()) {
        ++results;
        json.begin_object();
        while (auto field = json.next_key()) {
          if (*field == "replay")
            replay = json.string();
          else
            json.skip();
        }
      }
    } else {
      json.skip();
    }
  }
  json.end();
  EXPECT_EQ(seed, 7);
  EXPECT_EQ(code, 1);
  EXPECT_EQ(results, 5);  // the views of a vector
  EXPECT_NE(replay.find("--op square_wrong/vector"), std::string::npos) << replay;
  EXPECT_NE(replay.find("--seed 7"), std::string::npos) << replay;
  std::filesystem::remove(file);
}

TEST(GradcheckTool, DrawsTheVCurve) {
  const std::string file = testing::TempDir() + "vcurve.png";
  EXPECT_ENDS("--op exp --overwrite --plot " + file, 0, file);
  EXPECT_EQ(tg::io::read_file(file, "test").substr(1, 3), "PNG");
  std::filesystem::remove(file);
  EXPECT_ENDS("--op less --plot " + file, 3, "no selected case has a gradient");
}

TEST(GradcheckTool, ChecksThePluginOfTheExamples) {
  EXPECT_ENDS("--plugin " EXAMPLE_PLUGIN " --op relu_product --op relu_product_graph --op relu_product_layer",
              0, "relu_product_layer/twice");
}

}  // namespace
