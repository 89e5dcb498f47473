// Shared memory in which tools/launch and its ranks publish their exit states. The launcher creates the
// memory, and each rank maps it. Without communication, the launcher can then read whether a rank is saving a
// checkpoint or was asked to exit.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "core/base/file_write.h"
#include "core/run/saving.h"

namespace tg::parallel {

struct BoardMemory;

// The launcher's side. Each time the launcher starts the ranks, it creates a new LaunchBoard.
class LaunchBoard {
 public:
  LaunchBoard(int ranks, const EndTimes& times);
  ~LaunchBoard();
  LaunchBoard(const LaunchBoard&) = delete;

  static constexpr const char* variable = "TG_LAUNCH";  // environment variable; its value:
  std::string value() const;
  EndState& state(int local_rank) const;

 private:
  FileDescriptor file_;
  BoardMemory* const memory_;
};

// Returns the launcher that started this process, according to TG_LAUNCH and LOCAL_RANK. The first call
// shares this process's EndState with the launcher. Returns null if the process was started without
// tools/launch, or if the memory cannot be opened.
struct Launch {
  int process;
  EndTimes times;
  std::span<const EndState> ranks;  // of the ranks that it started
  std::string path;                 // path of its memory
  std::uint64_t file;               // inode number of that file, which identifies the launcher
};
const Launch* launch_of_this_process();

// A thread of a rank. If the launcher is stopped, and a signal asks the launcher or this rank to exit, the
// thread continues the launcher, because the launcher must then act.
class LaunchWatch {
 public:
  explicit LaunchWatch(const Launch& launch);
  ~LaunchWatch();
  LaunchWatch(const LaunchWatch&) = delete;

 private:
  void run();

  const Launch& launch_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tg::parallel
