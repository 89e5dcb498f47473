#include "parallel/rendezvous.h"

#include <array>
#include <system_error>

#include "core/os/file.h"
#include "parallel/message.h"

namespace tg::parallel {

namespace {

// An observer of the join messages can test candidate tokens offline. That attack would find a short token.
constexpr std::size_t shortest = 32, longest = 4096;

std::string trimmed(const std::string& text) {
  const char* spaces = " \t\r\n";
  const std::size_t first = text.find_first_not_of(spaces);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(spaces) - first + 1);
}

std::string read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) { refuse_world("TG_TOKEN_FILE is " + path + ", " + why); };
  const auto check = [&](int error) {
    if (error != 0) refuse("which cannot be read: " + std::generic_category().message(error));
  };
  const os::Opened opened = os::open(path, os::Open::read);
  check(opened.error);
  const os::FileStatus now = os::status(opened.file.fd);
  check(now.error);
  if (!now.is_regular) refuse("which is not a regular file");
  if (!now.is_trusted) refuse("which belongs to another user");
  using std::filesystem::perms;
  if ((now.permissions & (perms::group_all | perms::others_all)) != perms::none)
    refuse("whose mode is " + formatted("%04o", static_cast<unsigned>(now.permissions)) +
           ": expected 0600, so that only its user may read it");
  std::string text(longest + 1, '\0');
  const auto [bytes, error] = os::read_at(opened.file.fd, 0, std::as_writable_bytes(std::span(text)));
  check(error);
  text.resize(bytes);
  return text;
}

}  // namespace

std::string token_of(const Environment& get, const std::string& several) {
  const std::optional<std::string> given = get("TG_TOKEN"), path = get("TG_TOKEN_FILE");
  if (given && path) refuse_world("TG_TOKEN and TG_TOKEN_FILE are both set: expected one of them");
  if (!given && !path)
    refuse_world(several +
                 " but neither TG_TOKEN nor TG_TOKEN_FILE is set: expected a secret, the same on all hosts, "
                 "for example from: openssl rand -hex 32");
  const std::string name = given ? "TG_TOKEN" : "TG_TOKEN_FILE",
                    token = trimmed(given ? *given : read_file(*path));
  check_token(token, name);
  return token;
}

void check_token(const std::string& token, const std::string& name) {
  if (token.size() < shortest || token.size() > longest)
    refuse_world(name + " has " + std::to_string(token.size()) +
                 " characters: expected 32 to 4096, for example from: openssl rand -hex 32");
}

}  // namespace tg::parallel
