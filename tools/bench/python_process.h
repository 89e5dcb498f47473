// Another library beside this one: a Python script of tools/bench, in a process of its own that answers
// requests.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace tg::bench {

class PythonProcess {
 public:
  // Starts python3 with tools/bench/`script` of the source tree that this tool was built in, or of the
  // current folder. The script's first line is "ready VERSIONS" or "none REASON".
  PythonProcess(const std::string& script, const std::vector<std::string>& arguments);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  bool ready() const { return ready_; }
  const std::string& about() const { return about_; }  // its versions, or why it is not ready
  // The answer to a line: a line; "" if it is not ready or has ended.
  std::string ask(const std::string& request);

 private:
  bool start(const std::string& script, const std::vector<std::string>& arguments);
  std::string line();  // of its output; "" at the end

  int pid_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  bool ready_ = false;
  std::string about_;
};

}  // namespace tg::bench
