// A pair of connected non-blocking sockets: one for the code under test, and one for the test.
#pragma once

#include <gtest/gtest.h>

#include <sys/socket.h>

#include "core/base/file_write.h"

namespace tg::testing {

struct SocketPair {
  FileDescriptor own{-1}, peer{-1};
  SocketPair() {
    int ends[2] = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    own.fd = ends[0], peer.fd = ends[1];
  }
};

}  // namespace tg::testing
