// launch starts a program as several ranks of this host, all ranks or a host's share, and ends them together.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <tilegrad/parallel/group.h>
#include "tools/args.h"
#include "tools/run_tool.h"

namespace {

using namespace tg;
using Clock = std::chrono::steady_clock;

struct Options {
  std::int64_t ranks = 0, restarts = 0, grace = 8;
  std::int64_t hosts = 1, host = 0;
  std::string address;         // of host 0
  std::vector<char*> command;  // the program and its arguments, ended by a null
};

struct Rank {
  pid_t process = -1;
  int output = -1;   // the reading end of a pipe; -1: it has launch's own output, or has ended
  std::string line;  // read and not yet printed
  bool is_running = true, was_killed_here = false;
  int status = 0;
};

int signals[2];  // a pipe with the numbers of those that came
void note_signal(int number) {
  const int before = errno;
  const char byte = static_cast<char>(number);
  (void)!::write(signals[1], &byte, 1);
  errno = before;
}

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

// In the new process. Returns only if the program cannot be started.
void become(int rank, const Options& o, const std::string& job, int output, pid_t parent) {
  ::setpgid(0, 0);  // or a terminal's Ctrl-C would come twice, from the terminal and from launch
  for (const int s : {SIGINT, SIGTERM, SIGPIPE, SIGXFSZ}) std::signal(s, SIG_DFL);
#if defined(__linux__)
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // where launch is killed
#endif
  if (::getppid() != parent) ::_exit(parallel::exit_rank_lost);
  if (rank > 0 || ::isatty(0)) {  // one of several may not read from a terminal
    const int none = ::open("/dev/null", O_RDONLY);
    ::dup2(none, 0), ::close(none);
  }
  if (output >= 0) ::dup2(output, 1), ::dup2(output, 2);
  set("RANK", std::to_string(o.host * o.ranks + rank)), set("WORLD_SIZE", std::to_string(o.hosts * o.ranks));
  set("LOCAL_RANK", std::to_string(rank)), set("LOCAL_WORLD_SIZE", std::to_string(o.ranks));
  if (o.hosts > 1) {  // what all hosts know
    set("MASTER_ADDR", o.address), set("MASTER_PORT", "29500");
    if (!std::getenv("TG_JOB")) set("TG_JOB", "launch");
  } else {
    set("MASTER_ADDR", "127.0.0.1"), set("MASTER_PORT", std::to_string(20'000 + parent % 10'000));
    set("TG_JOB", job);
  }
  ::unsetenv("TORCHELASTIC_RUN_ID");
  if (!std::getenv("TG_THREADS"))
    set("TG_THREADS", std::to_string(std::max<std::int64_t>(1, cpu::default_threads() / o.ranks)));
  ::execvp(o.command[0], o.command.data());
}

void signal_all(std::vector<Rank>& ranks, int number) {
  for (const Rank& r : ranks)
    if (r.is_running) ::kill(-r.process, number);
}

// A pipe that programs do not inherit.
void make_pipe(int (&ends)[2]) {
  if (::pipe(ends) != 0) throw Error(std::string("pipe failed: ") + std::strerror(errno));
  for (const int fd : ends) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// Adds the rank to those that run. Throws Error if the program cannot be started.
void start(std::vector<Rank>& ranks, int rank, const Options& o, const std::string& job) {
  const pid_t parent = ::getpid();
  int output[2] = {-1, -1}, trouble[2];
  if (rank > 0) make_pipe(output);
  make_pipe(trouble);
  const pid_t process = ::fork();
  if (process == 0) {
    become(rank, o, job, output[1], parent);
    const int why = errno;
    (void)!::write(trouble[1], &why, sizeof why);
    ::_exit(127);
  }
  int why = process < 0 ? errno : 0;
  if (process > 0) ::setpgid(process, process);  // here too: a signal may be sent before the child does it
  ::close(trouble[1]), ::close(output[1]);
  if (process > 0) ranks.push_back({process, output[0]});
  const bool is_started = process > 0 && ::read(trouble[0], &why, sizeof why) == 0;
  ::close(trouble[0]);
  if (!is_started) throw Error("cannot run " + std::string(o.command[0]) + ": " + std::strerror(why));
  if (rank > 0) ::fcntl(output[0], F_SETFL, O_NONBLOCK);
}

// Throws Error if a rank cannot be started; then no rank runs.
std::vector<Rank> start(const Options& o, const std::string& job) {
  std::vector<Rank> ranks;
  try {
    for (int rank = 0; rank < o.ranks; ++rank) start(ranks, rank, o, job);
  } catch (const Error&) {
    signal_all(ranks, SIGKILL);
    for (const Rank& r : ranks) ::waitpid(r.process, nullptr, 0), ::close(r.output);
    throw;
  }
  return ranks;
}

// In one piece, unless a signal comes while a pipe is full.
void print(std::string_view line) {
  while (!line.empty()) {
    const ssize_t n = ::write(2, line.data(), line.size());
    if (n < 0 && errno != EINTR) return;
    line.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
}

// Prints what a rank wrote, by lines. The last one may have no end. Returns whether there may be more: one
// that writes faster than launch prints must not keep it from all else.
bool forward_output(Rank& r, std::int64_t rank) {
  std::array<char, 65536> bytes;
  const ssize_t n = ::read(r.output, bytes.data(), bytes.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return ::close(std::exchange(r.output, -1)), false;
  for (const char c : std::string_view(bytes.data(), static_cast<std::size_t>(n))) {
    r.line += c;
    if (c != '\n' && r.line.size() < bytes.size()) continue;
    if (c != '\n') r.line += '\n';
    r.line.insert(0, "[rank " + std::to_string(rank) + "] ");
    print(r.line);
    r.line.clear();
  }
  return true;
}

std::string how_it_ended(std::int64_t rank, int status) {
  const std::string who = "rank " + std::to_string(rank);
  if (WIFSIGNALED(status))
    return who + " was ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  return who + " ended with exit code " + std::to_string(WEXITSTATUS(status));
}

// A rank's exit code. Who was killed from outside is as lost as one that others no longer find; a crash is an
// error of its own.
int code_of(int status, bool is_asked_to_stop) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const int s = WTERMSIG(status);
  const bool crashed =
      s == SIGSEGV || s == SIGABRT || s == SIGBUS || s == SIGFPE || s == SIGILL || s == SIGSYS;
  return crashed || is_asked_to_stop ? 128 + s : parallel::exit_rank_lost;
}

struct Ending {
  int code = 0;                   // of the first rank that had an error of its own, else 75 or 0
  std::string why;                // about that rank; "" if all is well
  bool is_asked_to_stop = false;  // by a signal to launch
};

// Until all have ended.
Ending watch(std::vector<Rank>& ranks, const Options& o) {
  Ending ending;
  std::size_t running = ranks.size();
  const auto number_of = [&](std::size_t i) { return o.host * o.ranks + static_cast<std::int64_t>(i); };
  int told = 0;  // how much ending.why tells
  constexpr Clock::time_point never = Clock::time_point::max();
  const int how = WEXITED | WNOHANG | WNOWAIT;
  Clock::time_point kill_at = never;
  while (running > 0) {
    std::vector<pollfd> waited{{signals[0], POLLIN, 0}};
    for (const Rank& r : ranks) waited.push_back({r.output, POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(kill_at - Clock::now()).count();
    ::poll(waited.data(), waited.size(),
           kill_at == never ? -1 : static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (waited[1 + i].revents != 0) forward_output(ranks[i], number_of(i));
    char number;
    while (::read(signals[0], &number, 1) == 1)
      if (number != SIGCHLD) ending.is_asked_to_stop = true, signal_all(ranks, number);
    if (Clock::now() >= kill_at) {
      kill_at = never;
      for (Rank& r : ranks) r.was_killed_here = r.is_running;
      ending.why += "; others still ran " + std::to_string(o.grace) + " s later and were killed";
      signal_all(ranks, SIGKILL);
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      Rank& r = ranks[i];
      // It is not reaped before its group is killed: until then no other group can have its number.
      siginfo_t ended{};
      if (!r.is_running || ::waitid(P_PID, static_cast<id_t>(r.process), &ended, how) != 0 ||
          ended.si_pid == 0)
        continue;
      r.is_running = false, --running;
      r.status = ended.si_code == CLD_EXITED ? ended.si_status << 8 : ended.si_status;  // as waitpid has it
      const int code = code_of(r.status, ending.is_asked_to_stop);
      if (code == 0 || r.was_killed_here) continue;
      // Those that were asked to stop take the time they need.
      if (ending.code == 0 && !ending.is_asked_to_stop)
        kill_at = Clock::now() + std::chrono::seconds(o.grace);
      // An error of its own tells more than a loss, and the rank that was lost more than those that lost it.
      const int tells = code != parallel::exit_rank_lost ? 3 : WIFSIGNALED(r.status) ? 2 : 1;
      if (tells > told) told = tells, ending.code = code, ending.why = how_it_ended(number_of(i), r.status);
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ::kill(-ranks[i].process, SIGKILL);  // what a rank started and left behind
    ::waitpid(ranks[i].process, nullptr, 0);
    while (ranks[i].output >= 0 && forward_output(ranks[i], number_of(i))) {
    }
    if (ranks[i].output >= 0) ::close(ranks[i].output);
    if (!ranks[i].line.empty())
      std::fprintf(stderr, "[rank %s] %s\n", std::to_string(number_of(i)).c_str(), ranks[i].line.c_str());
  }
  return ending;
}

int launch(const Options& o) {
  make_pipe(signals);
  for (const int fd : signals) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  struct sigaction noted {};
  noted.sa_handler = note_signal, noted.sa_flags = SA_RESTART;
  for (const int s : {SIGCHLD, SIGINT, SIGTERM}) ::sigaction(s, &noted, nullptr);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &noted, nullptr);  // ranks ignore it too (nohup)
  std::signal(SIGPIPE, SIG_IGN);
  const std::string job =
      "launch " + std::to_string(::getpid()) + "." + std::to_string(Clock::now().time_since_epoch().count());
  for (std::int64_t restart = 0;; ++restart) {
    std::vector<Rank> ranks = start(o, job + "." + std::to_string(restart));
    const Ending ending = watch(ranks, o);
    const bool again =
        ending.code == parallel::exit_rank_lost && restart < o.restarts && !ending.is_asked_to_stop;
    std::string line = ending.why;
    if (again)
      line += ": starting all again, " + std::to_string(restart + 1) + " of " + std::to_string(o.restarts);
    if (!line.empty() && !ending.is_asked_to_stop) report_failure("launch", line);
    if (!again) return ending.code;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_tool(
      "launch",
      [&] {
        Options o;
        Args args("launch",
                  "Starts a program as several ranks of this host: launch -n N [options] PROGRAM "
                  "[ARGUMENTS]. Its exit code is 0, that of the first rank that failed by itself, or 75 "
                  "if a rank was lost.");
        args.option("ranks", "N", "how many ranks; also -n N", o.ranks,
                    {.min = 1, .max = 1024, .required = true});
        args.option("hosts", "N", "how many hosts run launch, each with as many ranks", o.hosts,
                    {.min = 1, .max = 1024});
        args.option("host", "N", "the number of this host, from 0; rank 0 is on host 0", o.host,
                    {.min = 0, .max = 1023});
        args.option("address", "ADDRESS",
                    "of host 0, where its rank 0 listens; the port is TG_PORT, or 29501", o.address);
        args.option("restarts", "N", "how often to start all again after a rank was lost", o.restarts,
                    {.min = 0, .max = 1e6});
        args.option("grace", "SECONDS", "until the others are killed when a rank has failed", o.grace,
                    {.min = 0, .max = 1e6});
        args.example("launch -n 4 train --text input.txt", "train on 4 processes of this host");
        args.example("launch -n 8 --hosts 2 --host 1 --address 10.0.0.1 train --text input.txt",
                     "ranks 8 to 15, on the second of two hosts; TG_TOKEN_FILE names their token");
        args.example("launch -n 4 --restarts 3 train --resume --out out/big",
                     "resume a run, again from its last checkpoint if a rank is killed");
        std::vector<const char*> own{argv[0]};
        int i = 1;
        for (; i < argc && argv[i][0] == '-' && std::string_view(argv[i]) != "--"; ++i) {
          const bool is_short = std::string_view(argv[i]) == "-n";
          own.push_back(is_short ? "--ranks" : argv[i]);
          for (const char* name :
               {"--ranks", "--hosts", "--host", "--address", "--restarts", "--grace"})  // their values
            if (std::string_view(own.back()) == name && i + 1 < argc) {
              own.push_back(argv[++i]);
              break;
            }
        }
        if (i < argc && std::string_view(argv[i]) == "--") ++i;
        if (const auto code = args.parse(static_cast<int>(own.size()), own.data())) return *code;
        if (i == argc) return args.fail("missing the program to start");
        if (o.host >= o.hosts)
          return args.fail("--host is " + std::to_string(o.host) + " of " + std::to_string(o.hosts) +
                           " hosts: expected 0 to " + std::to_string(o.hosts - 1));
        if ((o.hosts > 1) != args.given("address"))
          return args.fail("several --hosts need --address, the one of host 0; and one host has none");
        o.command.assign(argv + i, argv + argc + 1);  // argv ends with a null
        return launch(o);
      },
      127);
}
