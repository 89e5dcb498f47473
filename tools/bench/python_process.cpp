// A Python script in a process of its own that answers requests.
#include "tools/bench/other_libraries.h"

#include <filesystem>

#include "core/os/process.h"
#include "core/os/signals.h"
#include "core/os/streams.h"

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
  if (pid_ > 0) os::reap(pid_);
}

bool PythonProcess::start(const std::string& script, const std::vector<std::string>& arguments) {
  os::ignore_signal(os::signals::closed_pipe);  // a process that has ended is noticed by reading from it
  os::Pipe in, out;
  if (os::open_pipe(in) != 0) return false;
  if (os::open_pipe(out) != 0) {
    os::close_stream(in.reader), os::close_stream(in.writer);
    return false;
  }
  os::Command command{.words = {"python3", script},
                      .input = in.reader,
                      .output = out.writer,
                      .end_signal = os::signals::kill};  // it may be busy when bench is ended
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  const bool is_started = os::start(command, pid_) == 0;
  os::close_stream(in.reader), os::close_stream(out.writer);
  to_ = os::file_of(in.writer, "w"), from_ = os::file_of(out.reader, "r");
  return is_started && to_ && from_;
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
