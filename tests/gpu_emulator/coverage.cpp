#include "tests/gpu_emulator/coverage.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "tests/gpu_emulator/early_reads.h"

namespace tg::emulator {

constinit thread_local std::uint64_t work_done = 0;
constinit thread_local Instructions executed;

namespace {

constexpr std::uint64_t enough_blocks = 3;  // as in kernels.py

struct Grid {
  const void* kernel = nullptr;
  std::string generated;
  std::uint64_t blocks = 0, began = 0, least = ~std::uint64_t{0}, most = 0;
};
thread_local Grid grid;

// The coverage of all launches of one kernel.
struct Record {
  std::uint64_t blocks = 0;
  bool ragged = false;  // whether one launch had enough blocks and unequal work
};

class Coverage {
 public:
  bool is_on() const { return path_ != nullptr; }
  // A line is written whenever a record changes, because processes may end without calling destructors.
  void add(const Grid& g) {
    const std::lock_guard lock(mutex_);
    Record& r = records_[{g.kernel, g.generated}];
    const Record before = r;
    r.blocks = std::max(r.blocks, std::min(g.blocks, enough_blocks));
    r.ragged = r.ragged || (g.blocks >= enough_blocks && g.least != g.most);
    if (r.blocks != before.blocks || r.ragged != before.ragged) write(g, r);
  }

 private:
  // Writes with a single call, because several processes append to the file.
  void write(const Grid& g, const Record& r) const {
    Dl_info program{};
    if (g.kernel) ::dladdr(g.kernel, &program);
    const std::string name = g.kernel
                                 ? "+" + std::to_string(reinterpret_cast<std::uintptr_t>(g.kernel) -
                                                        reinterpret_cast<std::uintptr_t>(program.dli_fbase))
                                 : g.generated;
    const std::string line = name + " " + std::to_string(r.blocks) + (r.ragged ? " ragged " : " even ") +
                             std::filesystem::read_symlink("/proc/self/exe").string() + "\n";
    const int file = ::open(path_, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    [[maybe_unused]] const auto written = ::write(file, line.data(), line.size());
    ::close(file);
  }

  const char* const path_ = std::getenv("TG_EMULATED_COVERAGE");
  std::mutex mutex_;
  std::map<std::pair<const void*, std::string>, Record> records_;
};

Coverage& coverage() {
  static Coverage all;
  return all;
}

}  // namespace

void count_copy(int bytes) {
  executed.copies += static_cast<std::uint64_t>(bytes);
  if (is_before_wait()) executed.early += static_cast<std::uint64_t>(bytes);
}

void begin_recorded_grid(const void* kernel, const std::string& generated) {
  begin_grid();
  grid = {kernel, generated};
  grid.began = work_done;
}
void record_block() {
  const std::uint64_t work = work_done - grid.began;
  grid.began = work_done;
  ++grid.blocks;
  grid.least = std::min(grid.least, work), grid.most = std::max(grid.most, work);
}
void end_recorded_grid() {
  if (coverage().is_on()) coverage().add(grid);
}

}  // namespace tg::emulator
