#include "tools/bench/python_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

extern char** environ;

namespace tg::bench {

namespace {

// "" if there is none.
std::string path_of(const std::string& script) {
  const std::filesystem::path name = "tools/bench/" + script;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const auto& folder : {self.parent_path().parent_path().parent_path(), std::filesystem::path(".")})
    if (std::filesystem::exists(folder / name, error)) return (folder / name).string();
  return "";
}

}  // namespace

PythonProcess::PythonProcess(const std::string& script, const std::vector<std::string>& arguments) {
  const std::string path = path_of(script);
  if (path.empty()) {
    about_ = "there is no tools/bench/" + script;
  } else if (!start(path, arguments)) {
    about_ = "python3 does not start";
  } else {
    const std::string first = line();
    ready_ = first.starts_with("ready ");
    about_ = ready_                       ? first.substr(6)
             : first.starts_with("none ") ? first.substr(5)
                                          : "python3 does not start";
  }
}

PythonProcess::~PythonProcess() {
  if (to_) std::fclose(to_);  // the script ends with its input
  if (from_) std::fclose(from_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

bool PythonProcess::start(const std::string& script, const std::vector<std::string>& arguments) {
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
  std::vector<std::string> words = {"python3", script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const bool started = ::posix_spawnp(&pid_, "python3", &files, nullptr, pointers.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&files);
  ::close(in[0]), ::close(out[1]);
  to_ = ::fdopen(in[1], "w"), from_ = ::fdopen(out[0], "r");
  if (!started) pid_ = -1;
  return started && to_ && from_;
}

std::string PythonProcess::line() {
  std::string s;
  for (int c; (c = std::fgetc(from_)) != EOF && c != '\n';) s += static_cast<char>(c);
  return s;
}

std::string PythonProcess::ask(const std::string& request) {
  if (!ready_) return "";
  std::fprintf(to_, "%s\n", request.c_str());
  std::fflush(to_);
  return line();
}

}  // namespace tg::bench
