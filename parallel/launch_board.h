// Shared memory in which tools/launch and its ranks publish their exit states. The launcher creates it, and
// each rank maps it. The launcher can therefore read, without help of a rank, whether the rank is saving a
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

// The launcher's side. The launcher creates one each time that it starts the ranks.
class LaunchBoard {
 public:
  LaunchBoard(int ranks, const EndTimes& times);
  ~LaunchBoard();
  LaunchBoard(const LaunchBoard&) = delete;

  static constexpr const char* variable = "TG_LAUNCH";  // environment variable of the ranks; its value:
  std::string value() const;
  EndState& state(int local_rank) const;

 private:
  FileDescriptor file_;
  BoardMemory* const memory_;
};

// The launcher that started this process, found by TG_LAUNCH and LOCAL_RANK. The first call shares this
// process's EndState with the launcher. Null if the process was started without tools/launch, or if the
// memory cannot be opened.
struct Launch {
  int process;
  EndTimes times;
  std::span<const EndState> ranks;  // of the ranks that it started
  std::string path;                 // path of its memory
  std::uint64_t file;               // inode number of that file, which identifies the launcher
};
const Launch* launch_of_this_process();

// A thread of a rank that continues a stopped launcher. It does this if a signal asks the launcher or this
// rank to exit, because the launcher must then act.
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
