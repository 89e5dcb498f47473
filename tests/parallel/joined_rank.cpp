// A multi-rank program that computes nothing, for tests/tools/launch_tool.sh. Like a real program, it joins,
// runs steps, and exits with the documented exit codes. Usage:
//   joined_rank STEPS [FAULT RANK STEP [FILE]]
// FAULT affects RANK at STEP: kill, fail, hang, deaf or slow. "kill" is applied only if FILE is missing, and
// creates FILE. A deaf rank creates FILE and then does nothing, even if signals request it to end. The others
// may wait for it.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include <tilegrad/parallel/group.h>

namespace {

using namespace tg;

volatile std::sig_atomic_t is_asked_to_stop = 0;

int run(int argc, char** argv, std::shared_ptr<parallel::Group>& group) {
  const parallel::World world = parallel::world();
  const bool is_patient = argc > 2 && std::string(argv[2]) == "deaf";
  group = parallel::join(world, {.join_timeout = std::chrono::seconds(is_patient ? 60 : 5),
                                 .step_timeout = std::chrono::milliseconds(is_patient ? 0 : 1500),
                                 .end_after = std::chrono::milliseconds(300)});
  if (const char* ready = std::getenv("TG_READY"))  // each rank creates a file when it handles signals
    ::close(::open((std::string(ready) + "." + std::to_string(world.rank)).c_str(), O_CREAT, 0600));
  Communicator& ranks = group->communicator();
  const int steps = std::atoi(argv[1]);
  const std::string fault = argc > 4 && std::atoi(argv[3]) == world.rank ? argv[2] : "";
  int sum = 0;
  for (int step = 0; step < steps; ++step) {
    if (!fault.empty() && step == std::atoi(argv[4])) {
      if (fault == "kill" && (argc < 6 || ::open(argv[5], O_CREAT | O_EXCL, 0600) >= 0)) std::raise(SIGKILL);
      if (fault == "fail") throw Error("[test] planted");
      if (fault == "hang") std::this_thread::sleep_for(std::chrono::seconds(60));
      if (fault == "deaf") {
        if (argc > 5) ::close(::open(argv[5], O_CREAT, 0600));
        for (;;) std::this_thread::sleep_for(std::chrono::seconds(60));
      }
    }
    int stop = is_asked_to_stop;
    ranks.share(std::as_bytes(std::span(&stop, 1)), [&](std::span<const std::byte* const> shown) {
      for (const std::byte* s : shown) {
        int other = 0;
        std::memcpy(&other, s, sizeof other);
        stop = std::max(stop, other);
      }
      sum += static_cast<int>(shown.size());
    });
    group->progress(step);
    if (stop) return 130;
    if (fault == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::printf("rank %d of %d: %d by %s threads\n", world.rank, world.size, sum, std::getenv("TG_THREADS"));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) std::signal(s, [](int) { is_asked_to_stop = 1; });
  std::shared_ptr<parallel::Group> group;
  try {
    return run(argc, argv, group);
  } catch (const std::exception& e) {
    if (group) group->fail(e.what());
    std::fprintf(stderr, "joined_rank: %s\n", e.what());
    return parallel::exit_code_of(e);
  }
}
