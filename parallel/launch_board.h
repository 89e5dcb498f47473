// What tools/launch and its ranks know of each other's end: memory that launch makes and each rank maps.
// launch reads there that a rank saves a checkpoint, or that it was asked to end, without any help of the
// rank.
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

// launch's side. One for each start of the ranks.
class LaunchBoard {
 public:
  LaunchBoard(int ranks, const EndTimes& times);
  ~LaunchBoard();
  LaunchBoard(const LaunchBoard&) = delete;

  static constexpr const char* variable = "TG_LAUNCH";  // its value for the ranks:
  std::string value() const;
  EndState& state(int local_rank) const;

 private:
  FileDescriptor file_;
  BoardMemory* const memory_;
};

// The launch that started this process, from TG_LAUNCH and LOCAL_RANK. The first call shares this process's
// EndState with it. Null without launch, or if its memory cannot be opened.
struct Launch {
  int process;
  EndTimes times;
  std::span<const EndState> ranks;  // those that it started
  std::string path;                 // of its memory
  std::uint64_t file;               // the number of the file there, by which launch is recognized
};
const Launch* launch_of_this_process();

// A thread of a rank that continues a stopped launch which has to act: a signal asks it, or this rank, to
// end.
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
