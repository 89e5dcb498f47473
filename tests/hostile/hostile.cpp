// hostile: runs random programs of public calls with hostile arguments, in a child process. Each program must
// end with values or with tg::Errors. If it crashes, hangs, throws any other exception or reports a
// "[verify]" difference, its number and calls are printed. Then the next program runs.
//
//   hostile [FIRST [COUNT]]
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/hostile/world.h"

namespace {

constexpr int seconds = 20;  // seconds per program
// Limit of the address space in bytes. If results fit into this limit, they can also be computed within the
// time limit. The address sanitizer has a separate limit.
constexpr rlim_t memory = 1LL << 30;

// The state of the child, which the parent reads after the child has died.
struct Shared {
  long program;
  char trace[1 << 16];
};

void say(Shared& shared, const std::string& trace) {
  const std::size_t n = std::min(trace.size(), sizeof shared.trace - 1);
  std::memcpy(shared.trace, trace.data() + (trace.size() - n), n);
  shared.trace[n] = 0;
}

// Runs programs until number `end`. Exits with 1 at the first exception that is not an Error.
[[noreturn]] void run(Shared& shared, long end) {
#ifndef __SANITIZE_ADDRESS__
  const rlimit limit{memory, memory};
  setrlimit(RLIMIT_AS, &limit);
#endif
  for (; shared.program < end; ++shared.program) {
    alarm(seconds);
    std::string trace;
    try {
      tg::hostile::World w(static_cast<std::uint64_t>(shared.program));
      w.on_call = [&](const std::string& t) { say(shared, t); };
      tg::hostile::run_program(w);
    } catch (const std::exception& e) {
      std::strncat(shared.trace, "-> not an Error: ", sizeof shared.trace - std::strlen(shared.trace) - 1);
      std::strncat(shared.trace, e.what(), sizeof shared.trace - std::strlen(shared.trace) - 1);
      _exit(1);
    }
  }
  std::_Exit(0);
}

}  // namespace

// The sanitizer's allocator also refuses sizes that exceed every machine's memory.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=128";
}

int main(int argc, char** argv) {
  const long first = argc > 1 ? std::atol(argv[1]) : 0, count = argc > 2 ? std::atol(argv[2]) : 300;
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  shared->program = first;
  std::string directory = std::filesystem::temp_directory_path() / "hostile-XXXXXX";  // for files
  if (!mkdtemp(directory.data()) || chdir(directory.c_str()) != 0) return std::perror("mkdtemp"), 2;
  long failed = 0;
  for (; shared->program < first + count; ++shared->program) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) run(*shared, first + count);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    ++failed;
    std::printf("program %ld: ", shared->program);
    if (WIFSIGNALED(status))
      std::printf("signal %s\n", strsignal(WTERMSIG(status)));
    else
      std::printf("exit %d\n", WEXITSTATUS(status));
    std::printf("%s\n\n", shared->trace);
  }
  std::filesystem::remove_all(directory);
  std::printf("%ld programs, %ld failed\n", count, failed);
  return failed == 0 ? 0 : 1;
}
