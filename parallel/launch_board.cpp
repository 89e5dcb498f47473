#include "parallel/launch_board.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "core/os/memory.h"
#include "core/os/process.h"
#include "parallel/message.h"
#include "parallel/shared_memory.h"

namespace tg::parallel {

namespace {

constexpr std::uint64_t board_magic = 0x6472616f62206774;  // "tg board"

// Returns the n-th number in a string. Numbers are separated by ':'. If the n-th part is not a number,
// returns −1, which is neither a process id nor a descriptor.
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
    : file_(new_memory(sizeof(BoardMemory))),
      memory_(static_cast<BoardMemory*>(map_memory(file_.fd, sizeof(BoardMemory)))) {
  memory_->process = os::process_id(), memory_->ranks = ranks, memory_->times = times;
  memory_->magic = board_magic;
}

LaunchBoard::~LaunchBoard() {
  os::unmap(memory_, sizeof(BoardMemory));
}

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
    const std::string path = os::path_of_descriptor(process, number);
    const os::SharedFile found = os::open_shared_memory(path, sizeof(BoardMemory));
    const FileDescriptor file(found.descriptor);
    if (file.fd < 0) return std::nullopt;
    // The memory stays mapped until the process exits, because signal handlers use it.
    auto* memory = static_cast<BoardMemory*>(map_memory(file.fd, sizeof(BoardMemory)));
    if (memory->magic != board_magic || memory->process != process || memory->ranks > most_ranks ||
        slot < 0 || slot >= memory->ranks)
      return std::nullopt;
    EndState& state = memory->states[static_cast<std::size_t>(slot)];
    state.saving = 0,
    state.writing = 0;  // an earlier process of this rank may have been killed during a save
    state.process = os::process_id();
    share_end_state(state);
    return Launch{process, memory->times,
                  std::span(memory->states).first(static_cast<std::size_t>(memory->ranks)), path,
                  found.number};
  }());
  return launch ? &*launch : nullptr;
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
    const os::StopState seen = os::stop_state(launch_.process);
    const bool is_asked = seen.asked_by != 0 || own_end_state().asked_by.load(std::memory_order_relaxed) != 0;
    if (seen.is_stopped && is_asked && os::has_file(launch_.path, launch_.file))
      os::continue_process(launch_.process);
  }
}

}  // namespace tg::parallel
