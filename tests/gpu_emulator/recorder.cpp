#include "tests/gpu_emulator/recorder.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

namespace tg::emulator {

namespace {

bool is_on = false, runs_are_recorded = false;
std::vector<std::string> lines;

// Maps the offsets of this program's functions to their symbols. nm prints the symbols.
std::map<std::uintptr_t, std::string> symbols() {
  std::map<std::uintptr_t, std::string> all;
  const std::string command = "nm -p /proc/" + std::to_string(::getpid()) + "/exe";
  std::FILE* out = ::popen(command.c_str(), "r");
  if (!out) return all;
  unsigned long long at = 0;
  char kind = 0;
  static char name[1 << 16], line[1 << 17];
  while (std::fgets(line, sizeof line, out))
    if (std::sscanf(line, "%llx %c %65535s", &at, &kind, name) == 3 &&
        (kind == 't' || kind == 'T' || kind == 'W'))
      all.emplace(at, name);
  ::pclose(out);
  return all;
}

void drop(std::string& text, const std::string& part) {
  for (std::size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
}

// Removes the result type and the parameters. The parameters begin at the first ( outside of angle brackets.
std::string plain(std::string name) {
  for (const char* part : {"(anonymous namespace)::", "tg::cuda::", "attention::", "tg::"}) drop(name, part);
  std::size_t depth = 0, from = 0, end = name.size();
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    depth += c == '<', depth -= c == '>' && depth > 0;
    if (depth > 0) continue;
    if (c == ' ' && i + 1 < name.size()) from = i + 1;
    if (c == '(') {
      end = i;
      break;
    }
  }
  return name.substr(from, end - from);
}

}  // namespace

void only_record() {
  is_on = true;
  ::setenv("XDG_CACHE_HOME", "/dev/null", 1);  // other processes must not use this process's caches
}
bool only_records() {
  return is_on;
}

void record_runs() {
  runs_are_recorded = true;
}

void record(const std::string& line) {
  if (is_on) lines.push_back(line);
}
void record_run(const void* kernel, dim3 grid, const Instructions& before) {
  if (!runs_are_recorded) return;
  lines.push_back(kernel_name(kernel) + " blocks " + std::to_string(grid.x) + "," + std::to_string(grid.y) +
                  "," + std::to_string(grid.z) + " warps " + std::to_string(executed.warps - before.warps) +
                  " barriers " + std::to_string(executed.barriers - before.barriers) + " copies " +
                  std::to_string(executed.copies - before.copies) + " early " +
                  std::to_string(executed.early - before.early) + " products " +
                  std::to_string(executed.products - before.products));
}
void record(cudaStream_t s, const std::string& line) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(s, &status);
  if (status == cudaStreamCaptureStatusActive) record(line);
}

std::vector<std::string> take_recorded() {
  return std::exchange(lines, {});
}

std::string kernel_name(const void* kernel) {
  static const std::map<std::uintptr_t, std::string> all = symbols();
  static std::map<const void*, std::string> known;
  std::string& name = known[kernel];
  if (!name.empty()) return name;
  Dl_info program{};
  ::dladdr(kernel, &program);
  const auto found = all.find(reinterpret_cast<std::uintptr_t>(kernel) -
                              reinterpret_cast<std::uintptr_t>(program.dli_fbase));
  if (found == all.end()) return name = "a kernel without a symbol";
  int status = 0;
  char* const text = abi::__cxa_demangle(found->second.c_str(), nullptr, nullptr, &status);
  name = text ? plain(text) : found->second;
  std::free(text);
  return name;
}

}  // namespace tg::emulator
