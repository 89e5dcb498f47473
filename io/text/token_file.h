// A file of token ids that is mapped, not read:
//   "TGTOKENS" · u64 N (little-endian) · N bytes of JSON · ids, each of 2 or 4 bytes, little-endian
// The JSON is {"version": 1, "bytes_each": 2, "count": 301966, "metadata": {"tokenizer": "bpe", …}}, the
// metadata what io/tokenizer.h makes the tokenizer from; 16 + N is a multiple of 8.
#pragma once

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/mapped_file.h>
#include <tilegrad/io/text/token_view.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

struct TokenHeader {
  int bytes_each = 2;
  std::uint64_t count = 0;
  io::Metadata metadata = {};
  std::size_t begin = 0;  // where the ids begin
};

// The header at the start of a file of such bytes. Throws FormatError, beginning with `where`, for anything
// that breaks a rule, or when the ids do not end where the file does.
TokenHeader parse_token_header(std::string_view file, const std::string& where);

class TokenFile {
 public:
  // Throws Error when it cannot be read, FormatError when it is no token file.
  explicit TokenFile(const std::string& path);
  // Ids without a header: `bytes_each` 2 or 4, each below `vocabulary`. FormatError when the size is no
  // multiple.
  TokenFile(const std::string& path, int bytes_each, std::int64_t vocabulary);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  TokenView tokens() const;
  const std::string& path() const { return path_; }
  // XXH3-128 of size, header and, spread evenly over the file, up to 64 pieces of 64 KiB: told apart quickly,
  // however large they are.
  std::string identity() const;

 private:
  std::string path_;
  io::MappedFile file_;
  TokenHeader header_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Writes a token file piece by piece, whatever its size. What is there is replaced by close(), as a whole.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, const Tokenizer& tokenizer);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  void write(std::span<const std::int32_t> ids);  // below the tokenizer's size
  void close();
  std::uint64_t count() const { return header_.count; }

 private:
  std::string path_, temporary_;
  TokenHeader header_;
  io::OutputFile file_;
};

}  // namespace tg::text
