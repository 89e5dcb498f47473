// Tests that if a mapped file shrinks, its readers get an error instead of a signal.
#include <tilegrad/io/files/mapped_file.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/io/text/token_file.h>
#include <tilegrad/nn/models/llama.h>
#include "io/models/model_source.h"
#include "tests/support/count_allocations.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;
namespace fs = std::filesystem;

std::size_t sum_of(std::string_view bytes) {
  std::size_t sum = 0;
  for (const char c : bytes) sum += static_cast<unsigned char>(c);
  return sum;
}

TEST(MappedFile, ShrunkFileReadsAsZerosAndIsAnError) {
  const TemporaryDirectory dir;
  const std::size_t size = 100'000;
  for (const std::size_t left : {std::size_t{0}, std::size_t{1}, std::size_t{8192}, size - 1}) {
    const io::MappedFile file(dir.file("data", std::string(size, 'x')), "load");
    EXPECT_NO_THROW(file.check());
    fs::resize_file(dir / "data", left);
    EXPECT_EQ(sum_of(file.bytes()), left * 'x');
    EXPECT_EQ(error_of([&] { file.check(); }), "[load] cannot read " + (dir / "data") +
                                                   ": it shrank while it was read, from 100000 to " +
                                                   std::to_string(left) + " bytes");
    fs::resize_file(dir / "data", size);  // the lost data does not return
    EXPECT_EQ(error_of([&] { file.check(); }) == "no error", left == size - 1) << left;
  }
}

TEST(MappedFile, FileReplacedByRenameIsRead) {
  const TemporaryDirectory dir;
  const io::MappedFile file(dir.file("data", std::string(50'000, 'x')), "load");
  dir.file("other", "short");
  fs::rename(dir / "other", dir / "data");
  EXPECT_EQ(sum_of(file.bytes()), 50'000u * 'x');
  EXPECT_NO_THROW(file.check());
}

TEST(MappedFile, ThreadsThatReadAShrunkFileAllSeeTheError) {
  const TemporaryDirectory dir;
  for (int round = 0; round < 10; ++round) {
    const io::MappedFile file(dir.file("data", std::string(1 << 20, 'x')), "load");
    std::atomic<int> errors{0};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
          for (int i = 0; i < 1000; ++i) {
            if (sum_of(file.bytes()) == (1u << 20) * 'x') continue;
            if (error_of([&] { file.check(); }) != "no error") ++errors;
            return;
          }
        });
      fs::resize_file(dir / "data", 4096u * static_cast<unsigned>(round));
    }
    EXPECT_EQ(errors, 4);
  }
}

TEST(MappedFile, RangeOfAClosedFileIsReused) {
  const TemporaryDirectory dir;
  for (int i = 0; i < 100; ++i) {
    const io::MappedFile lost(dir.file("lost", std::string(10'000, 'x')), "load");
    const io::MappedFile kept(dir.file("kept", std::string(10'000, 'y')), "load");
    fs::resize_file(dir / "lost", 0);
    EXPECT_EQ(sum_of(lost.bytes()), 0u);
    EXPECT_THROW(lost.check(), Error);
    EXPECT_NO_THROW(kept.check());
  }
}

TEST(MappedFile, NewFilesReuseRangesOfClosedOnes) {
  const TemporaryDirectory dir;
  const std::string path = dir.file("data", "x");
  const auto made = [&] {
    const long before = allocations;
    std::vector<io::MappedFile> files;
    for (int i = 0; i < 64; ++i) files.emplace_back(path, "load");
    return allocations - before;
  };
  const long first = made(), second = made();
  EXPECT_LT(second, first);
  EXPECT_EQ(made(), second);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) EXPECT_EQ(line.find(path), line.npos) << line;
}

// Maps a file without the library and truncates it to zero bytes.
const volatile char* foreign_lost_page() {
  const TemporaryDirectory dir;
  dir.file("foreign", "x");
  std::FILE* file = std::fopen((dir / "foreign").c_str(), "r");
  void* at = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, ::fileno(file), 0);
  fs::resize_file(dir / "foreign", 0);
  return static_cast<const char*>(at);
}

void map_something() {
  const TemporaryDirectory dir;
  const io::MappedFile file(dir.file("data", std::string(10'000, 'x')), "load");
  fs::resize_file(dir / "data", 0);
  if (sum_of(file.bytes()) != 0) ::_exit(1);
}

TEST(MappedFileDeathTest, AnEarlierHandlerGetsOtherFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // this is the first mapping of a new process
  for (const bool has_details : {false, true}) {
    const auto program = [=] {
      struct sigaction own {};
      own.sa_flags = has_details ? SA_SIGINFO : 0;
      if (has_details)
        own.sa_sigaction = [](int, siginfo_t* info, void*) { ::_exit(info->si_addr != nullptr ? 7 : 1); };
      else
        own.sa_handler = [](int) { ::_exit(7); };
      ::sigaction(SIGBUS, &own, nullptr);
      map_something();
      static_cast<void>(*foreign_lost_page());
      ::_exit(0);
    };
    EXPECT_EXIT(program(), ::testing::ExitedWithCode(7), "");
    const auto sent = [=] {
      struct sigaction own {};
      own.sa_handler = [](int) { ::_exit(8); };
      ::sigaction(SIGBUS, &own, nullptr);
      map_something();
      ::raise(SIGBUS);
      ::_exit(0);
    };
    EXPECT_EXIT(sent(), ::testing::ExitedWithCode(8), "");
  }
}

TEST(MappedFileDeathTest, OtherFaultsEndTheProcessAsBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    std::signal(SIGBUS, SIG_DFL);
    map_something();
    static_cast<void>(*foreign_lost_page());
    ::_exit(0);
  };
  EXPECT_EXIT(fault(), ::testing::KilledBySignal(SIGBUS), "");
  const auto sent = [] {
    std::signal(SIGBUS, SIG_DFL);
    map_something();
    ::raise(SIGBUS);
    ::_exit(0);
  };
  EXPECT_EXIT(sent(), ::testing::KilledBySignal(SIGBUS), "");
}

// The library's handler has the same mask as the earlier handler. It also has the same flags, as far as they
// affect the return from a handler.
TEST(MappedFileDeathTest, HandlerHasTheMaskAndFlagsOfTheEarlierOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int flags : {0, SA_NODEFER, SA_RESTART, SA_NODEFER | SA_RESTART | SA_NOCLDSTOP}) {
    const auto program = [=] {
      struct sigaction own {
      }, now{};
      own.sa_handler = [](int) { ::_exit(7); };
      own.sa_flags = flags;
      ::sigemptyset(&own.sa_mask), ::sigaddset(&own.sa_mask, SIGUSR2);
      ::sigaction(SIGBUS, &own, nullptr);
      map_something();
      ::sigaction(SIGBUS, nullptr, &now);
      constexpr int all = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART | SA_NOCLDSTOP | SA_RESETHAND;
      const bool has_mask =
          ::sigismember(&now.sa_mask, SIGUSR2) == 1 && ::sigismember(&now.sa_mask, SIGUSR1) == 0;
      const int expected = SA_SIGINFO | SA_ONSTACK | (flags & (SA_NODEFER | SA_RESTART));
      ::_exit((now.sa_flags & all) == expected && has_mask ? 0 : 1);
    };
    EXPECT_EXIT(program(), ::testing::ExitedWithCode(0), "") << flags;
  }
}

TEST(MappedFileDeathTest, EarlierHandlerForOneSignalGetsOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const bool has_details : {false, true})
    for (const int signals : {1, 2}) {
      const auto program = [=] {
        static volatile std::sig_atomic_t handled = 0;
        struct sigaction own {};
        own.sa_flags = static_cast<int>(SA_RESETHAND) | (has_details ? SA_SIGINFO : 0);
        if (has_details)
          own.sa_sigaction = [](int, siginfo_t*, void*) { handled = handled + 1; };
        else
          own.sa_handler = [](int) { handled = handled + 1; };
        ::sigaction(SIGBUS, &own, nullptr);
        map_something();
        for (int i = 0; i < signals; ++i) ::raise(SIGBUS);
        ::_exit(handled);
      };
      if (signals == 1)
        EXPECT_EXIT(program(), ::testing::ExitedWithCode(1), "");
      else
        EXPECT_EXIT(program(), ::testing::KilledBySignal(SIGBUS), "");
    }
}

TEST(MappedFileDeathTest, IgnoredSignalIsIgnoredUnlessItIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto program = [](bool faults) {
    std::signal(SIGBUS, SIG_IGN);
    map_something();
    ::raise(SIGBUS), ::raise(SIGBUS);
    map_something();
    if (faults) static_cast<void>(*foreign_lost_page());
    ::_exit(5);
  };
  EXPECT_EXIT(program(false), ::testing::ExitedWithCode(5), "");
  EXPECT_EXIT(program(true), ::testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFile, LostPageDoesNotChangeErrno) {
  const TemporaryDirectory dir;
  const io::MappedFile file(dir.file("data", std::string(10'000, 'x')), "load");
  fs::resize_file(dir / "data", 0);
  errno = ENOTTY;
  EXPECT_EQ(sum_of(file.bytes()), 0u);
  EXPECT_EQ(errno, ENOTTY);
}

TEST(MappedFile, MovedFromFileIsEmpty) {
  const TemporaryDirectory dir;
  io::MappedFile file(dir.file("data", "content"), "load");
  const io::MappedFile other = std::move(file);
  EXPECT_EQ(other.bytes(), "content");
  EXPECT_NE(other.pages(), nullptr);
  EXPECT_TRUE(file.bytes().empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(file.pages(), nullptr);   // NOLINT(bugprone-use-after-move)
  EXPECT_NO_THROW(file.check());      // NOLINT(bugprone-use-after-move)
  std::byte byte;
  EXPECT_THROW(file.read(0, {&byte, 1}), Error);  // NOLINT(bugprone-use-after-move)
}

// Returns the number of a mapping's pages that are resident in memory.
std::size_t resident_pages(const io::MappedFile& file) {
  std::ifstream maps("/proc/self/smaps");
  char begin[32];
  std::snprintf(begin, sizeof begin, "%zx-", reinterpret_cast<std::size_t>(file.bytes().data()));
  std::string line;
  for (bool is_here = false; std::getline(maps, line);) {
    is_here = is_here || line.starts_with(begin);
    if (is_here && line.starts_with("Rss:"))
      return std::stoul(line.substr(4)) * 1024 / static_cast<std::size_t>(::getpagesize());
  }
  return 0;
}

// Only complete pages of the range are released.
TEST(MappedFile, ReleasedPagesLeaveMemoryAndCanBeReadAgain) {
  const TemporaryDirectory dir;
  const auto page = static_cast<std::size_t>(::getpagesize());
  const std::size_t size = 16 * page + 100;
  const io::MappedFile file(dir.file("data", std::string(size, 'x')), "load");
  const struct {
    std::size_t offset, bytes, released;
  } cases[] = {{0, size, 16},
               {0, 16 * page, 16},
               {0, 16 * page - 1, 15},
               {1, size - 1, 15},
               {page, page, 1},
               {page, page - 1, 0},
               {page - 1, page + 1, 1},
               {page - 1, page, 0},
               {page + 1, 2 * page, 1},
               {3 * page, 0, 0},
               {size, 0, 0},
               {0, size + 1, 0},
               {size + 1, 0, 0},
               {page, size, 0},
               {page, ~std::size_t{0}, 0},
               {15 * page, page + 100, 1},
               {size + page, 17 * page, 0}};
  for (const auto& c : cases) {
    EXPECT_EQ(sum_of(file.bytes()), size * 'x');
    ASSERT_EQ(resident_pages(file), 17u);
    file.release(c.offset, c.bytes);
    EXPECT_EQ(resident_pages(file), 17 - c.released) << c.offset << ", " << c.bytes;
  }
}

// ---- Readers

bool names_loss(const std::string& message, const std::string& path) {
  return message.find(path) != std::string::npos && (message.find("shrank") != std::string::npos ||
                                                     message.find("it ends at byte") != std::string::npos);
}

TEST(ShrunkFile, TokensAreNotUsed) {
  const TemporaryDirectory dir;
  text::TokenFileWriter writer(dir / "t", text::ByteTokenizer());
  writer.write(std::vector<std::int32_t>(50'000, 'x'));
  writer.close();
  const text::TokenFile file(dir / "t");
  const text::TokenView tokens = file.tokens().part(10'000, 10'000);
  std::vector<std::int32_t> out(100);
  EXPECT_NO_THROW(tokens.copy(0, out));
  fs::resize_file(dir / "t", 4096);
  EXPECT_TRUE(names_loss(error_of([&] { tokens.copy(0, out); }), dir / "t"));
  EXPECT_TRUE(names_loss(error_of([&] { (void)file.identity(); }), dir / "t"));
}

TEST(ShrunkFile, WeightsAreNotUsed) {
  const TemporaryDirectory dir;
  const nn::ModelConfig config{
      .architecture = nn::Llama{}, .vocabulary = 300, .context = 16, .layers = 2, .heads = 2, .width = 32};
  nn::Params params(1);
  const nn::Model model(params, config);
  nn::save_pretrained(dir / "hf", model, config);
  nn::save_gguf(dir / "m.gguf", model, config);
  const std::string weights = dir / "hf/model.safetensors";
  for (const bool is_gguf : {false, true}) {
    const std::string path = is_gguf ? dir / "m.gguf" : weights;
    const io::ModelSource source = is_gguf ? io::source_of_gguf(path) : io::source_of_folder(dir / "hf");
    const std::string whole = io::read_file(path, "test");
    fs::resize_file(path, whole.size() / 2);
    std::string first;
    for (const Parameter& p : params.all())
      if (first.empty() || first == "no error") first = error_of([&] { source.weights->read(p.name()); });
    EXPECT_TRUE(names_loss(first, path)) << first;
    dir.file(is_gguf ? "m.gguf" : "hf/model.safetensors", whole);
  }
  const io::MappedSafeTensors mapped = io::map_safetensors(weights, "load");
  fs::resize_file(weights, 100);
  EXPECT_TRUE(names_loss(error_of([&] { mapped.file.check(); }), weights));
}

}  // namespace
