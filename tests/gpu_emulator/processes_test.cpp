// Tests files that one process writes for the next: algorithms of cuBLASLt and compiled code. Also tests
// processes with two GPUs, and processes that run one step at a time. Each case forks. No code here may use a
// GPU before the fork.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include <tilegrad/tilegrad.h>
#include "backends/cuda/runtime/check.h"
#include "tests/support/child_process.h"
#include "tests/support/files.h"

namespace tg::testing {
namespace {

// Runs f in a process with these environment variables. Returns the result or the error of f.
std::string in_process(const std::vector<std::pair<const char*, std::string>>& variables,
                       const std::function<std::string()>& f) {
  return in_child([&] {
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    try {
      return f();
    } catch (const std::exception& e) {
      return std::string("error: ") + e.what();
    }
  });
}

// Returns the only file of a cache.
std::filesystem::path file_of(const TemporaryDirectory& cache) {
  const std::vector<std::filesystem::directory_entry> all(
      std::filesystem::directory_iterator(cache.path / "tilegrad"), {});
  EXPECT_EQ(all.size(), 1u);
  return all.empty() ? std::filesystem::path() : all[0].path();
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}
void write_lines(const std::filesystem::path& path, const std::vector<std::string>& lines) {
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << "\n";
}

TEST(Processes, KeepTheAlgorithmOfAProduct) {
  const TemporaryDirectory folder;
  const auto choice = [&] {
    return in_process({{"XDG_CACHE_HOME", folder.path.string()}}, [] {
      Graph g;
      const Tensor y = matmul(g.input("a", {96, 4096}), g.input("b", {4096, 104}));
      return compile(g, {y}, {.device = Device::cuda()}).choice(0);
    });
  };
  const std::string first = choice();
  ASSERT_NE(first.find("cuBLASLt algorithm "), std::string::npos) << first;
  std::vector<std::string> lines = lines_of(file_of(folder));
  ASSERT_EQ(lines.size(), 1u);
  // An entry is a key of two words and an algorithm of eight words. In the emulator, the first word of the
  // algorithm is its number.
  ASSERT_EQ(lines[0].size(), 10 * 17 - 1u);
  std::string other = lines[0];
  char& number = other[3 * 17 - 2];
  number = static_cast<char>('0' + '1' - number);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(choice(), first);
  EXPECT_EQ(lines_of(file_of(folder)), lines);  // a known entry is not added again

  // The first of several entries for a key is used. A truncated line is ignored.
  write_lines(file_of(folder), {other.substr(0, 9 * 17), other, lines[0]});
  std::string changed = first;
  char& digit = changed[first.find("algorithm ") + 10];
  digit = static_cast<char>('0' + '1' - digit);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(choice(), changed);
}

TEST(Processes, KeepCompiledCode) {
  const TemporaryDirectory folder, none;
  const auto result = [](const std::string& at, const std::string& compiler) {
    std::vector<std::pair<const char*, std::string>> variables{{"XDG_CACHE_HOME", at}};
    if (!compiler.empty()) variables.emplace_back("CXX", compiler);
    return in_process(variables, [] {
      Graph g;
      const Tensor x = g.input("x", {3}), y = exp(x) * 2 + x;
      return std::to_string(
          eval(y, {{x, Array::of(std::vector<float>{0, 1, 2})}}, {.device = Device::cuda()}).at(1));
    });
  };
  EXPECT_EQ(result(folder.path.string(), "").substr(0, 6), "6.4365");  // 2·e + 1
  EXPECT_EQ(result(folder.path.string(), "/bin/false").substr(0, 6), "6.4365");
  EXPECT_NE(result(none.path.string(), "/bin/false").find("[cuda] compiling a kernel"), std::string::npos);
  // An empty file is ignored.
  std::ofstream(file_of(folder), std::ios::trunc);
  EXPECT_EQ(result(folder.path.string(), "").substr(0, 6), "6.4365");
  EXPECT_GT(std::filesystem::file_size(file_of(folder)), 1000u);
}

// Returns the results of programs on some GPUs. The calls for each program are made in a separate thread,
// because each thread has its own current GPU.
std::string sums_on(std::initializer_list<int> gpus) {
  struct Run {
    Graph g;
    Tensor y, z;
    std::optional<Program> program;
    std::string text;
  };
  std::vector<Run> runs(gpus.size());
  const auto each = [&](auto&& call) {
    std::string error;
    for (std::size_t i = 0; i < runs.size(); ++i)
      std::thread([&] {
        try {
          call(runs[i], gpus.begin()[i]);
        } catch (const std::exception& e) {
          error = std::string("error: ") + e.what();
        }
      }).join();
    if (!error.empty()) throw Error(error);
  };
  each([](Run& r, int gpu) {
    const Tensor x = r.g.input("x", {40, 50});
    r.y = sum(softmax(x) * x, {0}), r.z = sum(r.y);
    r.program = compile(r.g, {r.y, r.z}, {.device = Device::cuda(gpu)});
    Array numbers({40, 50}, f32);
    for (std::int64_t i = 0; i < numbers.numel(); ++i) numbers.set(i, static_cast<double>(i % 7 + gpu));
    r.program->feed({x, numbers});
  });
  for (int n = 0; n < 2; ++n) each([](Run& r, int) { r.program->run(); });
  each([](Run& r, int) {
    r.text = std::to_string(r.program->item<float>(r.z)) + " " + std::to_string(r.program->fetch(r.y).at(3));
    if (r.program->profile().size() != r.program->steps().size()) r.text = "steps without times";
  });
  std::string all;
  for (const Run& r : runs) all += r.text + "\n";
  each([](Run& r, int) { r.program.reset(); });
  return all;
}

TEST(Processes, MayHaveTwoGpus) {
  const std::string alone = in_process({}, [] { return sums_on({0}); });
  EXPECT_EQ(alone.find("error"), std::string::npos) << alone;
  const auto on_two = [](std::initializer_list<int> gpus) {
    return in_process({{"TG_EMULATOR_DEVICES", "2"}}, [=] { return sums_on(gpus); });
  };
  const std::string first = on_two({0}), second = on_two({1});
  EXPECT_EQ(first, alone);
  EXPECT_EQ(second.find("error"), std::string::npos) << second;
  EXPECT_NE(second, first);
  EXPECT_EQ(on_two({0, 1}), first + second);
  EXPECT_EQ(on_two({1, 0}), second + first);
  EXPECT_NE(in_process({{"TG_EMULATOR_DEVICES", "2"}}, [] { return sums_on({2}); }).find("no GPU 2"),
            std::string::npos);
}

TEST(Processes, MayRunStepsOneByOne) {
  const std::string alone = in_process({}, [] { return sums_on({0}); });
  EXPECT_EQ(in_process({{"TG_STEPWISE", "1"}}, [] { return sums_on({0}); }), alone);
}

// Some errors of a kernel are sticky, so later CUDA calls also return them. If steps run one by one, the
// message contains the failing step.
TEST(Processes, StickyErrorsSuggestStepwiseRunsUnlessStepsRunOneByOne) {
  const auto message = [](cudaError_t error) {
    try {
      cuda::fail(error, "a copy");
    } catch (const OutOfMemory& e) {
      return std::string("out of memory: ") + e.what();
    } catch (const DeviceError& e) {
      return std::string(e.what());
    }
  };
  const auto messages = [&](const char* stepwise, std::initializer_list<cudaError_t> errors) {
    return in_process({{"TG_STEPWISE", stepwise}}, [&] {
      std::string all;
      for (const cudaError_t e : errors) all += message(e) + "\n";
      return all;
    });
  };
  const auto expected = [](std::initializer_list<cudaError_t> errors, const std::string& advice) {
    std::string all;
    for (const cudaError_t e : errors)
      all += std::string("[cuda] a copy: ") + cudaGetErrorString(e) + advice + "\n";
    return all;
  };
  const auto sticky = {cudaErrorIllegalAddress, cudaErrorMisalignedAddress,  cudaErrorInvalidAddressSpace,
                       cudaErrorInvalidPc,      cudaErrorIllegalInstruction, cudaErrorHardwareStackError,
                       cudaErrorLaunchFailure,  cudaErrorLaunchTimeout,      cudaErrorAssert};
  const auto others = {cudaErrorInvalidValue, cudaErrorNoDevice, cudaErrorInvalidDevice, cudaErrorNotReady};
  const std::string advice =
      "; an earlier step caused this error: run again with TG_STEPWISE=1 in the environment to learn which";
  for (const char* off : {"", "0"}) EXPECT_EQ(messages(off, sticky), expected(sticky, advice)) << off;
  EXPECT_EQ(messages("1", sticky), expected(sticky, ""));
  for (const char* any : {"0", "1"}) {
    EXPECT_EQ(messages(any, others), expected(others, "")) << any;
    EXPECT_EQ(messages(any, {cudaErrorMemoryAllocation}), "out of memory: [cuda] a copy: out of memory\n");
  }
}

TEST(Processes, ReportAnErrorOfCudaOnce) {
  const std::string left = in_process({}, [] {
    try {
      cuda::check(cudaSetDevice(77), "a GPU");
    } catch (const DeviceError&) {
      return std::string(cudaGetErrorString(cudaPeekAtLastError()));
    }
    return std::string("no error is thrown");
  });
  EXPECT_EQ(left, "no error");
}

}  // namespace
}  // namespace tg::testing
