#include <tilegrad/io/text/token_file.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "core/base/file_write.h"
#include "core/base/hash.h"
#include "core/base/messages.h"

namespace tg::text {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::string_view token_magic = "TGTOKENS";
constexpr std::uint64_t max_token_header = 100'000'000;

// The header has the same size for any count. It can therefore be written before the ids, and again when
// their number is known.
std::string json_of(const TokenHeader& header) {
  std::string json = "{\"version\": 1, \"bytes_each\": " + std::to_string(header.bytes_each) +
                     ", \"count\": " + std::to_string(header.count) + ", \"metadata\": {";
  json += list_text(header.metadata, ", ", [](const auto& entry) {
    return io::json_string(entry.first) + ": " + io::json_string(entry.second);
  });
  json += "}}";
  const std::size_t widest = json.size() + 20 - std::to_string(header.count).size();
  json.resize((widest + 7) / 8 * 8, ' ');
  return json;
}

std::string bytes_of(const TokenHeader& header) {
  const std::string json = json_of(header);
  const std::uint64_t n = json.size();
  return std::string(token_magic) + std::string(reinterpret_cast<const char*>(&n), 8) + json;
}

}  // namespace

TokenHeader parse_token_header(std::string_view file, const std::string& where) {
  const auto refuse = [&](const std::string& what) { throw FormatError(where + ": " + what); };
  if (!file.starts_with(token_magic)) refuse("does not start with TGTOKENS: not a token file");
  std::uint64_t n = 0;
  if (file.size() < 16) refuse("the file ends in the header");
  std::memcpy(&n, file.data() + 8, 8);
  if (n > max_token_header || n > file.size() - 16)
    refuse("header of " + std::to_string(n) + " bytes in a file of " + std::to_string(file.size()) +
           ": is the file truncated?");
  TokenHeader header;
  header.begin = 16 + static_cast<std::size_t>(n);
  std::int64_t version = -1, bytes_each = -1, count = -1;
  io::JsonReader json(file.substr(16, static_cast<std::size_t>(n)), where + ": header");
  json.object({{"version", [&] { version = json.integer(); }},
               {"bytes_each", [&] { bytes_each = json.integer(); }},
               {"count", [&] { count = json.integer(); }},
               {"metadata", [&] {
                  json.object({}, [&](const std::string& name) { header.metadata[name] = json.string(); });
                }}});
  json.end();
  if (version != 1) refuse("version is " + std::to_string(version) + ", expected 1");
  if (bytes_each != 2 && bytes_each != 4)
    refuse("bytes_each is " + std::to_string(bytes_each) + ", expected 2 or 4");
  if (count < 0) refuse("count must be present and not negative");
  header.bytes_each = static_cast<int>(bytes_each);
  header.count = static_cast<std::uint64_t>(count);
  const std::uint64_t available = file.size() - header.begin;
  if (available % header.bytes_each != 0 || available / header.bytes_each != header.count)
    refuse(std::to_string(available) + " bytes of ids, expected " + std::to_string(count) + " of " +
           std::to_string(bytes_each) + " bytes each");
  return header;
}

TokenFile::TokenFile(const std::string& path) : path_(path), file_(path, "tokens") {
  const std::string where = "[tokens] " + path;
  header_ = parse_token_header(file_.bytes(), where);
  file_.check();
  tokenizer_ = load_tokenizer(header_.metadata, where);
}

TokenFile::TokenFile(const std::string& path, int bytes_each, std::int64_t vocabulary)
    : path_(path), file_(path, "tokens"), tokenizer_(std::make_unique<NumberTokenizer>(vocabulary)) {
  detail::check_bytes_each(bytes_each, "[tokens] " + path);
  const std::string_view bytes = file_.bytes();
  if (bytes.starts_with(token_magic))
    throw FormatError("[tokens] " + path + " has a header, expected a file of ids without one");
  if (bytes.size() % static_cast<std::size_t>(bytes_each) != 0)
    throw FormatError("[tokens] " + path + " has " + std::to_string(bytes.size()) +
                      " bytes, expected a multiple of " + std::to_string(bytes_each));
  header_.bytes_each = bytes_each;
  header_.count = bytes.size() / static_cast<std::size_t>(bytes_each);
}

TokenView TokenFile::tokens() const {
  return {file_.bytes().data() + header_.begin,
          static_cast<std::size_t>(header_.count),
          header_.bytes_each,
          tokenizer_->size(),
          path_,
          file_.pages()};
}

std::string TokenFile::identity() const {
  constexpr std::size_t pieces = 64, piece = std::size_t{64} << 10;
  const std::string_view bytes = file_.bytes();
  std::string sizes = std::to_string(bytes.size()) + " " + std::to_string(tokenizer_->size());
  std::vector<std::string_view> parts{sizes, bytes.substr(0, header_.begin)};
  const std::string_view ids = bytes.substr(header_.begin);
  if (ids.size() <= pieces * piece) {
    parts.push_back(ids);
  } else {
    for (std::size_t i = 0; i < pieces; ++i)
      parts.push_back(ids.substr((ids.size() - piece) * i / (pieces - 1), piece));
  }
  std::string sum = xxh3_128(parts);
  file_.check();
  return sum;
}

namespace {

// Creates a temporary file next to the file that close() replaces. Rejects a device, because the start of a
// token file is written twice.
std::string temporary_for(const std::string& path) {
  std::string name;
  is_replaceable(path, "tokens");
  create_temporary(path, name, "tokens");
  return name;
}

}  // namespace

TokenFileWriter::TokenFileWriter(const std::string& path, const Tokenizer& tokenizer)
    : path_(path),
      temporary_(temporary_for(path)),
      vocabulary_(tokenizer.size()),
      header_{.bytes_each = tokenizer.size() <= 65536 ? 2 : 4, .metadata = tokenizer.metadata()},
      file_(temporary_, "tokens", io::OutputFile::Start::append) {
  file_.write(bytes_of(header_));
}

TokenFileWriter::~TokenFileWriter() {
  std::error_code error;
  if (!temporary_.empty()) std::filesystem::remove(temporary_, error);
}

void TokenFileWriter::write(std::span<const std::int32_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocabulary_)
      throw Error("[tokens] " + path_ + ": got " + std::to_string(ids[i]) + " for token " +
                  std::to_string(header_.count + i) + ", expected 0 to " + std::to_string(vocabulary_ - 1));
  if (header_.bytes_each == 2) {
    const std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
    file_.write({reinterpret_cast<const char*>(narrow.data()), 2 * narrow.size()});
  } else {
    file_.write({reinterpret_cast<const char*>(ids.data()), 4 * ids.size()});
  }
  header_.count += ids.size();
}

void TokenFileWriter::close() {
  file_.close();
  io::overwrite_start(temporary_, bytes_of(header_), "tokens");
  is_replaceable(path_, "tokens");
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) throw Error("[tokens] cannot write " + path_ + ": " + error.message());
  temporary_.clear();
  const std::string directory = std::filesystem::path(path_).parent_path().string();
  io::sync_directory(directory.empty() ? "." : directory, "tokens");
}

}  // namespace tg::text
