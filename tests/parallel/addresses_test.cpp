// Tests the lookup of the address of rank 0 if ranks are on several hosts.
#include <gtest/gtest.h>

#include <map>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>

#include "parallel/listener.h"
#include "tests/support/joined_ranks.h"
#include "tests/support/virtual_time.h"

// Replaces the system's getaddrinfo(). The new function fails for some names and counts the lists that are
// not yet released.
static const std::map<std::string, int> failures{{"no-name.test", EAI_NONAME}, {"system.test", EAI_SYSTEM}};
static int lists = 0;
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** first) {
  static const auto look_up = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (const auto failure = failures.find(name); failure != failures.end())
    return errno = EIO, failure->second;
  const int error = look_up(name, service, hints, first);
  lists += error == 0;
  return error;
}
extern "C" void freeaddrinfo(addrinfo* first) noexcept {
  static const auto release = reinterpret_cast<decltype(&freeaddrinfo)>(::dlsym(RTLD_NEXT, "freeaddrinfo"));
  --lists;
  release(first);
}

namespace tg {
namespace {

using namespace parallel;

// A port of this host. It is free, or the test itself uses it.
struct Port {
  FileDescriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int number = 0;
  explicit Port(bool is_taken) {
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof a;
    EXPECT_EQ(::bind(socket.fd, reinterpret_cast<const sockaddr*>(&a), n), 0);
    ::getsockname(socket.fd, reinterpret_cast<sockaddr*>(&a), &n);
    number = ntohs(a.sin_port);
    is_taken ? (void)::listen(socket.fd, 9) : (void)::close(std::exchange(socket.fd, -1));
  }
};

// Returns the error that ends the rendezvous of rank 0 or 1 on two hosts.
std::string outcome(int rank, const std::string& address, int port, int join_timeout = 0) {
  testing::VirtualTime time;
  const World world{.rank = rank,
                    .size = 2,
                    .local_rank = 0,
                    .local_size = 1,
                    .launcher = "torchrun",
                    .job = "addresses",
                    .address = address,
                    .port = port,
                    .token = std::string(32, 't')};
  return error_of([&] { meet(world, {.join_timeout = milliseconds(join_timeout)}, "build"); });
}

TEST(Addresses, UnresolvableNamesAreReported) {
  for (const auto& [name, why] :
       {std::pair<std::string, std::string>("no-name.test", gai_strerror(EAI_NONAME)),
        {"system.test", "Input/output error"}}) {
    const std::string line = "MASTER_ADDR is " + name + ", which cannot be found: " + why;
    EXPECT_EQ(outcome(0, name, 29501), "wrong: [ranks] " + line);
    for (const int timeout : {0, 100}) {
      const std::string seconds = timeout == 0 ? "0.0 s" : "0.1 s";
      EXPECT_EQ(outcome(1, name, 29501, timeout),
                "lost: [ranks] rank 0 did not join within " + seconds + " (" + line + ")");
    }
  }
}

TEST(Addresses, AddressListsAreReleased) {
  const Port free(false), taken(true);
  const std::string at = "127.0.0.1:";
  EXPECT_EQ(outcome(1, "127.0.0.1", free.number, 300), "lost: [ranks] rank 0 did not join within 0.3 s (" +
                                                           at + std::to_string(free.number) +
                                                           ": Connection refused)");
  EXPECT_EQ(lists, 0) << "the list of each attempt is released";
  EXPECT_EQ(outcome(0, "127.0.0.1", taken.number), "wrong: [ranks] another process listens on " + at +
                                                       std::to_string(taken.number) +
                                                       ": expected a free port, and TG_PORT sets another");
  EXPECT_EQ(lists, 0);
  EXPECT_EQ(outcome(0, "127.0.0.1", free.number),
            "lost: [ranks] rank 1 did not join within 0.0 s (1 of 2 joined); rank 0 listens on " + at +
                std::to_string(free.number));
  EXPECT_EQ(lists, 0);
}

}  // namespace
}  // namespace tg
