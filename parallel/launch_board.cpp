#include "parallel/launch_board.h"

#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/message.h"
#include "parallel/own_thread.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

namespace {

constexpr std::uint64_t board_magic = 0x6472616f62206774;  // "tg board"

// The n-th of the numbers in a text, which are divided by ':'; -1, which is no process or file, if it is not
// a number.
int field(std::string_view text, int n) {
  for (; n > 0; --n) {
    const std::size_t colon = text.find(':');
    if (colon == text.npos) return -1;
    text.remove_prefix(colon + 1);
  }
  text = text.substr(0, text.find(':'));
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

struct BoardMemory {
  std::uint64_t magic;
  std::int32_t process, ranks;
  EndTimes times;
  std::array<EndState, most_ranks> states;
};

LaunchBoard::LaunchBoard(int ranks, const EndTimes& times)
    : file_(unnamed_file(sizeof(BoardMemory))),
      memory_(static_cast<BoardMemory*>(map_shared(file_.fd, sizeof(BoardMemory)))) {
  memory_->process = getpid(), memory_->ranks = ranks, memory_->times = times;
  memory_->magic = board_magic;
}

LaunchBoard::~LaunchBoard() {
  munmap(memory_, sizeof(BoardMemory));
}

// Called by the new process, too.
std::string LaunchBoard::value() const {
  return std::to_string(memory_->process) + ":" + std::to_string(file_.fd);
}

EndState& LaunchBoard::state(int local_rank) const {
  return memory_->states[static_cast<std::size_t>(local_rank)];
}

const Launch* launch_of_this_process() {
  static const auto& launch = *new auto([]() -> std::optional<Launch> {
    const char *where = std::getenv(LaunchBoard::variable), *rank = std::getenv("LOCAL_RANK");
    if (!where || !rank) return std::nullopt;
    const int process = field(where, 0), number = field(where, 1), slot = field(rank, 0);
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
    // That number may be another process's by now, and the file anything.
    const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat about {};
    if (file.fd < 0 || fstat(file.fd, &about) != 0 ||
        about.st_size != static_cast<off_t>(sizeof(BoardMemory)) || !is_sealed(file.fd))
      return std::nullopt;
    // Mapped until the process ends: signal handlers use it.
    auto* memory = static_cast<BoardMemory*>(map_shared(file.fd, sizeof(BoardMemory)));
    if (memory->magic != board_magic || memory->process != process || memory->ranks > most_ranks ||
        slot < 0 || slot >= memory->ranks)
      return std::nullopt;
    EndState& state = memory->states[static_cast<std::size_t>(slot)];
    state.saving = 0, state.writing = 0;  // an earlier process of this rank may have been killed in a save
    state.process = getpid();
    share_end_state(state);
    return Launch{process, memory->times,
                  std::span(memory->states).first(static_cast<std::size_t>(memory->ranks)), path,
                  about.st_ino};
  }());
  return launch ? &*launch : nullptr;
}

StopState stop_state(pid_t process) {
  StopState seen;
  std::error_code error;
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  for (std::filesystem::directory_iterator it(threads, error), end; !error && it != end;
       it.increment(error)) {
    std::FILE* file = std::fopen((it->path() / "status").c_str(), "re");
    if (!file) continue;
    std::array<char, 256> line;
    std::uint64_t pending = 0, blocked = 0, caught = 0;
    while (std::fgets(line.data(), line.size(), file)) {
      char name[16] = {}, value[32] = {};
      if (std::sscanf(line.data(), "%15[^:]: %31s", name, value) != 2) continue;
      const std::string_view is = name;
      if (is == "State" && value[0] == 'T') seen.is_stopped = true;
      const std::uint64_t set = std::strtoull(value, nullptr, 16);
      if (is == "SigPnd" || is == "ShdPnd") pending |= set;
      if (is == "SigBlk") blocked = set;
      if (is == "SigCgt") caught = set;
    }
    std::fclose(file);
    // A thread may also be stopped before the first instruction of its handler, which blocks the signal. The
    // system's library blocks all signals for moments.
    if (std::popcount(blocked) < 16) pending |= blocked & caught;
    for (const int signal : {SIGHUP, SIGINT, SIGTERM})
      if (pending >> (signal - 1) & 1) seen.asked_by = signal;
  }
  if (!seen.is_stopped) seen.asked_by = 0;
  return seen;
}

LaunchWatch::LaunchWatch(const Launch& launch) : launch_(launch), thread_(start_thread([this] { run(); })) {}

LaunchWatch::~LaunchWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void LaunchWatch::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::milliseconds(250), [&] { return ends_; })) {
    const StopState seen = stop_state(launch_.process);
    const bool is_asked = seen.asked_by != 0 || own_end_state().asked_by.load(std::memory_order_relaxed) != 0;
    if (!seen.is_stopped || !is_asked) continue;
    struct stat about {};
    if (stat(launch_.path.c_str(), &about) == 0 && about.st_ino == launch_.file)
      ::kill(launch_.process, SIGCONT);
  }
}

}  // namespace tg::parallel
