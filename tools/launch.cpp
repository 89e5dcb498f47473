// launch: starts a program as several ranks on this host and stops them together. With several hosts, it
// starts only the ranks of this host.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <tilegrad/parallel/group.h>
#include "core/os/process.h"
#include "core/os/signals.h"
#include "core/os/streams.h"
#include "parallel/launch_board.h"
#include "tools/args.h"
#include "tools/run_tool.h"

namespace {

using namespace tg;
using Clock = std::chrono::steady_clock;

struct Options {
  std::int64_t ranks = 0, restarts = 0, grace = 8, save_grace = 120;
  std::int64_t hosts = 1, host = 0;
  std::string address;               // address of host 0
  std::vector<std::string> command;  // the program and its arguments
};

struct Rank {
  os::ProcessId process = -1;
  int output = -1;   // read end of a pipe; -1: the rank writes to launch's own output, or has closed its
                     // output
  int trouble = -1;  // pipe that receives an error number if the program cannot be started, otherwise nothing
  std::string line;  // incomplete line read so far
  bool is_running = true, is_stopped = false, was_killed_here = false;
  os::ExitStatus status;
};

os::Pipe signals;  // the signal handler writes the number of each signal
void note_signal(int number, os::ProcessId) {
  const char byte = static_cast<char>(number);
  os::write_some(signals.writer, {&byte, 1});
}
// Returns the next signal, or 0 if there is none.
int next_signal() {
  char byte;
  return os::read_some(signals.reader, {&byte, 1}) == 1 ? byte : 0;
}

// State that all ranks of a start share.
struct Start {
  std::string job;
  std::optional<parallel::LaunchBoard> board;  // empty if the system has no shared memory for it
};

os::Command command(int rank, const Options& o, const Start& start, int output, int trouble) {
  const bool reads = rank == 0 && !os::is_terminal(stdin);  // a background rank must not read from a terminal
  os::Command c{.words = o.command,
                .environment = {{"RANK", std::to_string(o.host * o.ranks + rank)},
                                {"WORLD_SIZE", std::to_string(o.hosts * o.ranks)},
                                {"LOCAL_RANK", std::to_string(rank)},
                                {"LOCAL_WORLD_SIZE", std::to_string(o.ranks)},
                                {"TORCHELASTIC_RUN_ID", std::nullopt}},
                .input = reads ? os::Command::inherited : os::Command::nothing,
                .output = output,
                .errors = output,
                .end_signal = os::signals::terminate,  // if launch is killed
                .default_signals = {os::signals::interrupt, os::signals::terminate, os::signals::closed_pipe,
                                    os::signals::file_too_large, os::signals::child_changed},
                .leads_group = true,  // otherwise Ctrl-C would arrive twice, from the terminal and from
                                      // launch
                .report = trouble};
  if (!os::is_ignored(os::signals::hangup)) c.default_signals.push_back(os::signals::hangup);
  const auto set = [&](const char* name, std::string value) { c.environment[name] = std::move(value); };
  if (o.hosts > 1) {  // must be equal on all hosts
    set("MASTER_ADDR", o.address), set("MASTER_PORT", "29500");
    if (!std::getenv("TG_JOB")) set("TG_JOB", "launch");
  } else {
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(20'000 + os::process_id() % 10'000));
    set("TG_JOB", start.job);
  }
  if (start.board) set(parallel::LaunchBoard::variable, start.board->value());
  if (!std::getenv("TG_THREADS"))
    set("TG_THREADS", std::to_string(std::max<std::int64_t>(1, cpu::default_threads() / o.ranks)));
  return c;
}

// Signals the process groups of all ranks. The number of a group cannot be reused before finish() reaps its
// rank.
void signal_all(const std::vector<Rank>& ranks, int number) {
  for (const Rank& r : ranks) os::signal_group(r.process, number);
}

os::Pipe make_pipe() {
  os::Pipe pipe;
  if (const int error = os::open_pipe(pipe)) throw Error(std::string("pipe failed: ") + std::strerror(error));
  return pipe;
}

// Starts a rank and adds it to `ranks`. Throws Error if that fails.
void start(std::vector<Rank>& ranks, int rank, const Options& o, const Start& common) {
  os::Pipe output;
  if (rank > 0) output = make_pipe();
  const os::Pipe trouble = make_pipe();
  Rank started{.output = output.reader, .trouble = trouble.reader};
  const int error = os::start(command(rank, o, common, output.writer, trouble.writer), started.process);
  for (const int writer : {trouble.writer, output.writer}) os::close_stream(writer);
  for (const int reader : {output.reader, trouble.reader})
    if (reader >= 0) os::make_nonblocking(reader);
  if (error != 0) throw Error("cannot start " + o.command[0] + ": " + std::strerror(error));
  ranks.push_back(std::move(started));
}

// Starts all ranks. If a rank cannot be started, kills the others and throws Error.
std::vector<Rank> start(const Options& o, const Start& common) {
  std::vector<Rank> ranks;
  try {
    for (int rank = 0; rank < o.ranks; ++rank) start(ranks, rank, o, common);
  } catch (const Error&) {
    signal_all(ranks, os::signals::kill);
    for (const Rank& r : ranks) os::reap(r.process), os::close_stream(r.output);
    throw;
  }
  return ranks;
}

// Buffers the lines of the ranks for standard error, because the reader of standard error may be slow or
// stopped.
class Printer {
 public:
  bool is_empty() const { return lines_.empty(); }
  void add(const std::string& line) { lines_ += line; }
  // Writes as much as possible without blocking. A line of up to 4,096 bytes is written in one piece.
  void print() {
    while (!lines_.empty() && os::has_room(os::standard_error)) {
      const std::string_view next = std::string_view(lines_).substr(0, os::whole_write);
      const std::size_t end = next.rfind('\n');
      const std::ptrdiff_t n =
          os::write_some(os::standard_error, next.substr(0, end == next.npos ? end : end + 1));
      if (n == 0) lines_.clear();
      if (n > 0) lines_.erase(0, static_cast<std::size_t>(n));
    }
  }

 private:
  std::string lines_;
};

// Adds a rank's output to the printer, line by line. The last line may have no line break. Returns whether
// there may be more output. Between two calls, the caller does other work. Otherwise a rank that writes
// faster than launch prints would block launch.
bool forward_output(Rank& r, std::int64_t rank, Printer& printer) {
  std::array<char, 65536> bytes;
  const std::ptrdiff_t n = os::read_some(r.output, bytes);
  if (n == os::none_now) return false;
  if (n == 0) return os::close_stream(std::exchange(r.output, -1)), false;
  for (const char c : std::string_view(bytes.data(), static_cast<std::size_t>(n))) {
    r.line += c;
    if (c != '\n' && r.line.size() < bytes.size()) continue;
    if (c != '\n') r.line += '\n';
    r.line.insert(0, "[rank " + std::to_string(rank) + "] ");
    printer.add(r.line);
    r.line.clear();
  }
  return true;
}

std::string how_it_ended(std::int64_t rank, const os::ExitStatus& status) {
  const std::string who = "rank " + std::to_string(rank);
  if (status.signal != 0)
    return who + " was ended by signal " + std::to_string(status.signal) + " (" +
           os::signal_text(status.signal) + ")";
  return who + " ended with exit code " + std::to_string(status.code);
}

// A rank's exit code. A rank that was killed from outside counts as lost and has the same code as ranks that
// detect a loss. A crash has a different code.
int code_of(const os::ExitStatus& status, bool is_asked_to_stop) {
  if (status.signal == 0) return status.code;
  return os::is_crash(status.signal) || is_asked_to_stop ? 128 + status.signal : parallel::exit_rank_lost;
}

struct Ending {
  int code = 0;      // code of the first rank that failed by itself; otherwise 75 or 0
  std::string why;   // why that rank failed; "" after success
  int asked_by = 0;  // first stop signal received by launch or a rank; 0: none
};

// Monitors the ranks of a start until all have exited.
class Watch {
 public:
  Watch(std::vector<Rank> ranks, const Options& o, Start& common)
      : ranks_(std::move(ranks)), o_(o), common_(common) {}

  // Throws Error if a program cannot be started.
  Ending run() {
    while (is_any_running() || !printer_.is_empty()) {
      wait();
      printer_.print();
      while (const int number = next_signal())
        if (number != os::signals::child_changed) ask(number);
      look_at_requests();
      for (std::size_t i = 0; i < ranks_.size(); ++i) look_at(i);
      kill_at_deadline();
      if (was_killed_ && !is_any_running()) break;  // the reader of the remaining output may have exited
    }
    finish();
    return ending_;
  }

 private:
  std::int64_t number_of(std::size_t i) const { return o_.host * o_.ranks + static_cast<std::int64_t>(i); }
  EndState* state(std::size_t i) const {
    return common_.board ? &common_.board->state(static_cast<int>(i)) : nullptr;
  }

  // Whether the rank's process group contains a program that publishes its state. The program is either
  // the rank's process itself or, if that is a script, a process that the script started.
  bool has_program(std::size_t i) const {
    const os::ProcessId program = state(i) ? state(i)->process.load() : 0;
    return program > 0 && os::is_in_group(program, ranks_[i].process);
  }
  // A signal may end a script before its program has saved.
  bool is_running(std::size_t i) const {
    return ranks_[i].is_running ||
           (deadline_from_ != 0 && has_program(i) && state(i)->process != ranks_[i].process);
  }
  bool is_any_running() const {
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      if (is_running(i)) return true;
    return false;
  }

  void wait() {
    std::vector<os::Polled> waited{{signals.reader}};
    waited.push_back({printer_.is_empty() ? -1 : os::standard_error, true});
    for (const Rank& r : ranks_) {
      waited.push_back({printer_.is_empty() ? r.output : -1});
      waited.push_back({r.trouble});
    }
    // Polls at least every 200 ms, because some events do not wake launch: changes of the board, and signals
    // to a stopped rank.
    os::poll(waited, static_cast<int>(std::clamp<std::int64_t>(time_left(), 0, 200)));
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (waited[2 + 2 * i].is_ready) forward_output(ranks_[i], number_of(i), printer_);
      if (waited[3 + 2 * i].is_ready) look_at_trouble(ranks_[i]);
    }
  }

  void look_at_trouble(Rank& r) {
    const std::optional<int> error = os::start_error(r.trouble);
    if (!error) return;
    os::close_stream(std::exchange(r.trouble, -1));
    if (*error == 0) return;
    kill_all();
    for (const Rank& other : ranks_) os::reap(other.process);
    throw Error("cannot run " + o_.command[0] + ": " + std::strerror(*error));
  }

  // The first signal asks all ranks to stop. A second one kills them.
  void ask(int signal) {
    const std::int64_t now = monotonic_ms();
    if (ending_.asked_by == 0) {
      ending_.asked_by = signal, asked_at_ = now;
      if (deadline_from_ == 0) deadline_from_ = now;
      signal_all(ranks_, signal);
      signal_all(ranks_, os::signals::resume);  // a stopped rank could not react
    } else if (!was_killed_ && now - asked_at_ > stop_signals::same_request_ms) {
      ending_.why = "a second signal killed the ranks";
      kill_all();
    }
  }

  // A signal to one rank stops all of them.
  void look_at_requests() {
    for (std::size_t i = 0; i < ranks_.size() && ending_.asked_by == 0; ++i) {
      if (const EndState* s = state(i); s && s->asked_by != 0) ask(s->asked_by);
      if (!ranks_[i].is_running || !ranks_[i].is_stopped || ending_.asked_by != 0) continue;
      if (const os::StopState seen = os::stop_state(ranks_[i].process); seen.asked_by != 0)
        ask(seen.asked_by);
    }
  }

  void look_at(std::size_t i) {
    Rank& r = ranks_[i];
    if (!r.is_running) return;
    os::note_stops(r.process, r.is_stopped);
    // The rank is reaped only after its group is killed, so its group number cannot be reused before.
    const std::optional<os::ExitStatus> status = os::exit_status(r.process);
    if (!status) return;
    if (r.trouble >= 0) look_at_trouble(r);
    look_at_requests();  // it may have exited because of a signal
    r.is_running = false, r.status = *status;
    const int code = code_of(r.status, ending_.asked_by != 0);
    if (code == 0 || r.was_killed_here) return;
    if (deadline_from_ == 0) deadline_from_ = monotonic_ms();
    // The order in which reasons are reported: first a rank that failed by itself, then a rank that was
    // killed, then ranks that noticed the loss.
    const int priority = code != parallel::exit_rank_lost ? 3 : r.status.signal != 0 ? 2 : 1;
    if (priority <= priority_) return;
    priority_ = priority, ending_.code = code;
    if (ending_.asked_by == 0) ending_.why = how_it_ended(number_of(i), r.status);
  }

  // Time in ms until running ranks are killed. While one rank saves, the longer limit for saving applies to
  // all ranks, because other ranks may wait for the rank that saves.
  std::int64_t time_left() const {
    const bool has_deadline = ending_.asked_by != 0 || (deadline_from_ != 0 && is_any_running());
    if (!has_deadline || was_killed_) return 200;
    const EndTimes times{1'000 * o_.grace, std::max(1'000 * o_.save_grace, 1'000 * o_.grace)};
    const std::int64_t now = monotonic_ms();
    std::int64_t most = time_to_end(now, deadline_from_, times, 0, 0);
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      if (const EndState* s = state(i); is_running(i) && has_program(i))
        most = std::max(most, time_to_end(now, deadline_from_, times, s->saving, s->saved));
    return most;
  }

  void kill_at_deadline() {
    if (was_killed_ || time_left() > 0) return;
    if (!is_any_running()) {  // all ranks have exited, but no process reads their lines
      was_killed_ = true;
      return;
    }
    std::string names;
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      if (is_running(i)) names += (names.empty() ? "" : ", ") + std::to_string(number_of(i));
    const std::int64_t waited = (monotonic_ms() - deadline_from_ + 500) / 1'000;
    const std::string after = " s later and were killed";
    if (ending_.asked_by != 0)
      ending_.why = "after " + os::signal_text(ending_.asked_by) + ", ranks " + names + " still ran " +
                    std::to_string(waited) + after;
    else
      ending_.why += "; others still ran " + std::to_string(waited) + after;
    kill_all();
  }

  void kill_all() {
    was_killed_ = true;
    for (Rank& r : ranks_) r.was_killed_here = r.is_running;
    signal_all(ranks_, os::signals::kill);
  }

  void finish() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& r = ranks_[i];
      os::signal_group(r.process, os::signals::kill);  // kills processes that the rank left running
      os::reap(r.process);
      while (r.output >= 0 && forward_output(r, number_of(i), printer_)) {
      }
      for (const int reader : {r.output, r.trouble}) os::close_stream(reader);
      if (!r.line.empty()) printer_.add("[rank " + std::to_string(number_of(i)) + "] " + r.line + "\n");
    }
    // Waits for a slow reader of the lines, but not beyond the deadline of a stop signal.
    while (!printer_.is_empty() && !was_killed_ && (ending_.asked_by == 0 || time_left() > 0)) {
      os::Polled waited[] = {{signals.reader}, {os::standard_error, true}};
      os::poll(waited, 200);
      while (const int number = next_signal())
        if (number != os::signals::child_changed) was_killed_ = true;
      printer_.print();
    }
    printer_.print();
    // The signal is more important than the exit codes of ranks that were killed or noticed a loss.
    const bool has_own_code = ending_.code != 0 && ending_.code != parallel::exit_rank_lost;
    if (ending_.asked_by != 0 && !has_own_code && (was_killed_ || ending_.code != 0))
      ending_.code = 128 + ending_.asked_by;
  }

  std::vector<Rank> ranks_;
  const Options& o_;
  Start& common_;
  Printer printer_;
  Ending ending_;
  int priority_ = 0;                // priority of the reason in ending_
  std::int64_t asked_at_ = 0;       // when the first stop signal arrived
  std::int64_t deadline_from_ = 0;  // time when a rank failed or all ranks were asked to stop; 0: neither
  bool was_killed_ = false;         // whether running ranks were killed; their output may be lost
};

int launch(const Options& o) {
  signals = make_pipe();
  for (const int end : {signals.reader, signals.writer}) os::make_nonblocking(end);
  for (const int s : {os::signals::child_changed, os::signals::interrupt, os::signals::terminate})
    os::catch_signal(s, note_signal);
  if (!os::is_ignored(os::signals::hangup))
    os::catch_signal(os::signals::hangup, note_signal);  // if launch ignores it (nohup), the ranks do too
  os::ignore_signal(os::signals::closed_pipe);
  const std::string job = "launch " + std::to_string(os::process_id()) + "." +
                          std::to_string(Clock::now().time_since_epoch().count());
  for (std::int64_t restart = 0;; ++restart) {
    Start common{.job = job + "." + std::to_string(restart), .board = {}};
    try {
      common.board.emplace(static_cast<int>(o.ranks), EndTimes{1'000 * o.grace, 1'000 * o.save_grace});
    } catch (const Error&) {  // without the board, launch does not know whether a rank is saving
    }
    const Ending ending = Watch(start(o, common), o, common).run();
    const bool is_asked = ending.asked_by != 0;
    const bool again = ending.code == parallel::exit_rank_lost && restart < o.restarts && !is_asked;
    std::string line = ending.why;
    if (again)
      line += ": starting all again, " + std::to_string(restart + 1) + " of " + std::to_string(o.restarts);
    if (!line.empty()) report_failure("launch", line);
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
                  "Starts a program as several ranks on this host: launch -n N [options] PROGRAM "
                  "[ARGUMENTS]. Its exit code is 0, the code of the first rank that failed by itself, or 75 "
                  "if a rank was lost.");
        args.option("ranks", "N", "number of ranks on this host; also -n N", o.ranks,
                    {.min = 1, .max = 1024, .required = true});
        args.option("hosts", "N", "number of hosts; launch runs on each, with the same number of ranks",
                    o.hosts, {.min = 1, .max = 1024});
        args.option("host", "N", "index of this host, from 0; rank 0 is on host 0", o.host,
                    {.min = 0, .max = 1023});
        args.option("address", "ADDRESS",
                    "host name or IP address of host 0, on which rank 0 listens; its port is TG_PORT "
                    "(default: 29501)",
                    o.address);
        args.option("restarts", "N", "maximum number of restarts of all ranks after a rank is lost",
                    o.restarts, {.min = 0, .max = 1e6});
        args.option("grace", "SECONDS",
                    "time for the ranks to exit after one failed, or after a signal to launch or a rank; "
                    "then they are killed",
                    o.grace, {.min = 0, .max = 1e6});
        args.option("save-grace", "SECONDS", "the limit instead of --grace while a rank saves a checkpoint",
                    o.save_grace, {.min = 0, .max = 1e6});
        args.example("launch -n 4 train --text input.txt", "train with 4 processes on this host");
        args.example("launch -n 8 --hosts 2 --host 1 --address 10.0.0.1 train --text input.txt",
                     "start ranks 8 to 15 on the second of two hosts; TG_TOKEN_FILE names the file of the "
                     "shared secret");
        args.example("launch -n 4 --restarts 3 train --resume --out out/big",
                     "resume a run; if a rank is killed, restart from the last checkpoint");
        std::vector<const char*> own{argv[0]};
        int i = 1;
        for (; i < argc && argv[i][0] == '-' && std::string_view(argv[i]) != "--"; ++i) {
          const bool is_short = std::string_view(argv[i]) == "-n";
          own.push_back(is_short ? "--ranks" : argv[i]);
          for (const std::string& name : args.names())  // skips the values of options
            if ("--" + name == own.back() && i + 1 < argc) {
              own.push_back(argv[++i]);
              break;
            }
        }
        if (i < argc && std::string_view(argv[i]) == "--") ++i;
        if (const auto code = args.parse(static_cast<int>(own.size()), own.data())) return *code;
        if (i == argc) throw UsageError("missing the program to start");
        if (o.host >= o.hosts)
          throw UsageError("--host is " + std::to_string(o.host) + " of " + std::to_string(o.hosts) +
                           " hosts: expected 0 to " + std::to_string(o.hosts - 1));
        if ((o.hosts > 1) != args.given("address"))
          return args.fail("several --hosts need --address, the one of host 0; and one host has none");
        o.command.assign(argv + i, argv + argc);
        return launch(o);
      },
      127);
}
