#include "parallel/rendezvous.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file_write.h"
#include "parallel/message.h"

namespace tg::parallel {

namespace {

// Whoever listens to the ranks meeting can try tokens, and would find a short one.
constexpr std::size_t shortest = 32, longest = 4096;

std::string trimmed(const std::string& text) {
  const char* spaces = " \t\r\n";
  const std::size_t first = text.find_first_not_of(spaces);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(spaces) - first + 1);
}

std::string read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) { refuse_world("TG_TOKEN_FILE is " + path + ", " + why); };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (file.fd < 0 || fstat(file.fd, &about) != 0)
    refuse("which cannot be read: " + std::string(std::strerror(errno)));
  if (!S_ISREG(about.st_mode)) refuse("which is no file");
  if (about.st_uid != geteuid() && about.st_uid != 0) refuse("which belongs to another user");
  if (about.st_mode & (S_IRWXG | S_IRWXO)) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(about.st_mode & 07777));
    refuse("whose mode is " + std::string(mode) + ": expected 0600, so that only its user may read it");
  }
  std::string text(longest + 1, '\0');
  const ssize_t n = ::read(file.fd, text.data(), text.size());
  if (n < 0) refuse("which cannot be read: " + std::string(std::strerror(errno)));
  text.resize(static_cast<std::size_t>(n));
  return text;
}

}  // namespace

std::string token_of(const Environment& get, const std::string& several) {
  const std::optional<std::string> given = get("TG_TOKEN"), path = get("TG_TOKEN_FILE");
  if (given && path) refuse_world("TG_TOKEN and TG_TOKEN_FILE are both set: expected one of them");
  if (!given && !path)
    refuse_world(several +
                 " but neither TG_TOKEN nor TG_TOKEN_FILE is set: expected a secret, the same on all hosts, "
                 "as of: openssl rand -hex 32");
  const std::string name = given ? "TG_TOKEN" : "TG_TOKEN_FILE",
                    token = trimmed(given ? *given : read_file(*path));
  check_token(token, name);
  return token;
}

void check_token(const std::string& token, const std::string& name) {
  if (token.size() < shortest || token.size() > longest)
    refuse_world(name + " has " + std::to_string(token.size()) +
                 " characters: expected 32 to 4096, as of: openssl rand -hex 32");
}

}  // namespace tg::parallel
