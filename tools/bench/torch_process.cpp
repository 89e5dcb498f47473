#include "tools/bench/torch_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

extern char** environ;

namespace tg::bench {

namespace {

// "" if there is none.
std::string find_script() {
  const std::filesystem::path name = "tools/bench/torch_attention.py";
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const auto& folder : {self.parent_path().parent_path().parent_path(), std::filesystem::path(".")})
    if (std::filesystem::exists(folder / name, error)) return (folder / name).string();
  return "";
}

double seconds_of(const std::string& ms) {
  return ms.empty() || ms == "-" ? Row::none : std::strtod(ms.c_str(), nullptr) * 1e-3;
}

}  // namespace

TorchProcess::TorchProcess(const Device& device) {
  const std::string script = find_script();
  if (script.empty()) {
    about_ = "there is no tools/bench/torch_attention.py";
  } else if (!start(script, device.text())) {
    about_ = "python3 does not start";
  } else {
    const std::string first = line();
    ready_ = first.starts_with("ready ");
    about_ = ready_                       ? first.substr(6)
             : first.starts_with("none ") ? first.substr(5)
                                          : "python3 does not start";
  }
}

TorchProcess::~TorchProcess() {
  if (to_) std::fclose(to_);  // the script ends with its input
  if (from_) std::fclose(from_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

bool TorchProcess::start(const std::string& script, const std::string& device) {
  std::signal(SIGPIPE, SIG_IGN);  // a process that has ended is noticed by reading from it
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) return false;
  if (::pipe2(out, O_CLOEXEC) != 0) {
    ::close(in[0]), ::close(in[1]);
    return false;
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in[0], 0);
  posix_spawn_file_actions_adddup2(&files, out[1], 1);
  std::string words[] = {"python3", script, device};
  char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const bool started = ::posix_spawnp(&pid_, "python3", &files, nullptr, arguments, environ) == 0;
  posix_spawn_file_actions_destroy(&files);
  ::close(in[0]), ::close(out[1]);
  to_ = ::fdopen(in[1], "w"), from_ = ::fdopen(out[0], "r");
  if (!started) pid_ = -1;
  return started && to_ && from_;
}

std::string TorchProcess::line() {
  std::string s;
  for (int c; (c = std::fgetc(from_)) != EOF && c != '\n';) s += static_cast<char>(c);
  return s;
}

TorchProcess::Seconds TorchProcess::time(const AttentionCell& c, bool backward, const Settings& settings) {
  return ask(backward ? "backward" : "forward", settings.attention.by_token ? "BLHd" : "BHLd", c.words(),
             settings);
}

TorchProcess::Seconds TorchProcess::time_in_graph(const AttentionCell& c, int calls,
                                                  const Settings& settings) {
  return ask("graph", settings.attention.by_token ? "BLHd" : "BHLd",
             c.words() + ",calls=" + std::to_string(calls), settings);
}

double TorchProcess::time_linear(std::int64_t m, std::int64_t n, std::int64_t k, const Settings& settings) {
  const std::string sizes = "m=" + std::to_string(m) + ",n=" + std::to_string(n) + ",k=" + std::to_string(k);
  return ask("linear", "-", sizes, settings).cudnn;
}

TorchProcess::Seconds TorchProcess::ask(const char* what, const char* layout, const std::string& sizes,
                                        const Settings& settings) {
  if (!ready_) return {};
  std::fprintf(to_, "%s %s %s %s\n", what, settings.dtype_name().c_str(), layout, sizes.c_str());
  std::fflush(to_);
  std::istringstream answer(line());
  std::string cudnn, flash;
  answer >> cudnn >> flash;
  return {seconds_of(cudnn), seconds_of(flash)};
}

}  // namespace tg::bench
