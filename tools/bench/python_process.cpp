// A Python script in a process of its own that answers requests.
#include "tools/bench/other_libraries.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <csignal>
#include <filesystem>

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
  std::vector<std::string> words = {"python3", script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
#if defined(__linux__)
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it may be busy when bench is ended
#endif
    if (::getppid() == parent && ::dup2(in[0], 0) == 0 && ::dup2(out[1], 1) == 1)
      ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  ::close(in[0]), ::close(out[1]);
  to_ = ::fdopen(in[1], "w"), from_ = ::fdopen(out[0], "r");
  return pid_ > 0 && to_ && from_;
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
