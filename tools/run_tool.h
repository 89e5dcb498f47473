// Shared by the tools' main functions.
#pragma once

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/run/backend.h>
#include <tilegrad/core/run/log.h>

namespace tg {

// Sets `device` to the one that --backend names. Returns what is wrong with the name, or "". Throws
// DeviceError if this machine has no such device.
inline std::string take_device(const std::string& name, Device& device) {
  try {
    device = Device::parse(name);
  } catch (const DeviceError& e) {
    return std::string("--backend: ") + e.what();
  }
  backend(device);
  return "";
}

// The exit code that f returns; for an exception 1, with one line on stderr.
template <class F>
int run_tool(const char* tool, F&& f) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file over its limit is then an error of write(), like a full disk
  try {
    log_level();  // reject an invalid TG_LOG up front
    return f();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory\n", tool);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", tool, e.what());
  }
  return 1;
}

}  // namespace tg
