// Errors, message buffers and threads of this folder.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>

#include <tilegrad/parallel/world.h>
#include "core/base/messages.h"
#include "core/os/signals.h"

namespace tg::parallel {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

[[noreturn]] inline void fail(const std::string& what) {
  throw Error("[ranks] " + what);
}
[[noreturn]] inline void refuse_world(const std::string& what) {
  throw WorldError("[ranks] " + what);
}

[[noreturn]] inline void fail_call(const std::string& call, int error) {
  fail(call + " failed: " + std::strerror(error));
}

// The bytes of a message struct.
template <class T>
auto raw_bytes(T& x) {
  if constexpr (std::is_const_v<T>)
    return std::as_bytes(std::span(&x, 1));
  else
    return std::as_writable_bytes(std::span(&x, 1));
}

// Strings in a message, always terminated.
template <std::size_t n>
void put(std::array<char, n>& to, const std::string& text) {
  to = {};
  std::copy_n(text.begin(), std::min(text.size(), n - 1), to.begin());
}
template <std::size_t n>
std::string text_of(const std::array<char, n>& from) {
  return {from.data(), strnlen(from.data(), n)};
}

// Returns a duration as a string, such as "0.5 s" or "60 s".
inline std::string seconds_text(std::chrono::duration<double> t) {
  return formatted(t.count() < 10 ? "%.1f s" : "%.0f s", t.count());
}

// Starts a thread that receives no signals. Other threads of the program handle the signals.
inline std::thread start_thread(std::function<void()> f) {
  const os::BlockedSignals blocked;
  return std::thread(std::move(f));
}

}  // namespace tg::parallel
