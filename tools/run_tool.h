// Error handling shared by the main functions of all tools.
#pragma once

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/run/log.h>
#include "backends/cpu/pool.h"
#include "core/base/messages.h"
#include "core/os/signals.h"
#include "core/os/streams.h"
#include "tools/args.h"
#include "tools/stop_signals.h"

namespace tg {

inline void report_failure(const char* tool, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", tool, printable(what).c_str());
}

// Calls f, which also parses the command line, and returns its exit code. Returns 2 after a UsageError.
// Returns `failure` after any other exception, or if output cannot be written. Each error is reported in one
// line on stderr.
template <class F>
int run_tool(const char* tool, F&& f, int failure = 1) {
  os::open_standard_streams();
  stop_signals::install(tool);
  os::ignore_signal(os::signals::file_too_large);  // exceeding the file size limit is then an error of
                                                   // write(), like a full disk
  int code = failure;
  try {
    log_level();  // reject an invalid TG_LOG or TG_THREADS up front
    cpu::default_threads();
    code = f();
  } catch (const UsageError& e) {
    report_failure(tool, e.what() + std::string(" (see ") + tool + " --help)");
    code = 2;
  } catch (const std::bad_alloc&) {
    report_failure(tool, "out of memory");
  } catch (const std::exception& e) {
    report_failure(tool, e.what());
  }
  const bool is_flushed = std::fflush(stdout) == 0;
  if ((!is_flushed || std::ferror(stdout)) && code == 0) {
    report_failure(tool, "cannot write all of the output: is the disk full, or the pipe closed?");
    code = failure;
  }
  return code;
}

}  // namespace tg
