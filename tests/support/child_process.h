// Runs a function in a separate process, for tests that change the environment or the user.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace tg::testing {

// Runs f in a child process and returns its result.
inline std::string in_child(const std::function<std::string()>& f) {
  int ends[2];
  if (::pipe(ends) != 0) return "pipe failed";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = f();
    ::_exit(::write(ends[1], text.data(), text.size()) != static_cast<ssize_t>(text.size()));
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return text;
}

}  // namespace tg::testing
