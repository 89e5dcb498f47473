// Returns the error number of a system call.
#pragma once

#include <cerrno>

namespace tg::os {

inline int error_unless(bool is_done) {
  return is_done ? 0 : errno;
}

}  // namespace tg::os
