// A file of token ids that is mapped into memory:
//   "TGTOKENS" · u64 N (little-endian) · N bytes of JSON · ids, each of 2 or 4 bytes, little-endian
// The JSON is {"version": 1, "bytes_each": 2, "count": 301966, "metadata": {"tokenizer": "bpe", …}}.
// io/text/tokenizer.h creates the tokenizer from the metadata. 16 + N is a multiple of 8.
#pragma once

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/mapped_file.h>
#include <tilegrad/io/text/token_view.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

struct TokenHeader {
  int bytes_each = 0;  // 2 or 4
  std::uint64_t count = 0;
  io::Metadata metadata = {};
  std::size_t begin = 0;  // where the ids begin
};

// The header at the start of a file with these bytes. Throws FormatError, beginning with `where`, for
// anything that breaks a rule, or if the ids do not end at the end of the file.
TokenHeader parse_token_header(std::string_view file, const std::string& where);

class TokenFile {
 public:
  // Throws Error if it cannot be read, FormatError if it is not a token file.
  explicit TokenFile(const std::string& path);
  // Ids without a header: `bytes_each` 2 or 4, each below `vocabulary`. FormatError if the size is not a
  // multiple of bytes_each.
  TokenFile(const std::string& path, int bytes_each, std::int64_t vocabulary);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  TokenView tokens() const;
  const std::string& path() const { return path_; }
  // XXH3-128 of the size, the header and up to 64 pieces of 64 KiB, spread evenly over the file:
  // distinguishes files quickly, however large they are.
  std::string identity() const;

 private:
  std::string path_;
  io::MappedFile file_;
  TokenHeader header_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Writes a token file of any size piece by piece. close() replaces an existing file atomically.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, const Tokenizer& tokenizer);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  void write(std::span<const std::int32_t> ids);  // Error for one outside the tokenizer's [0, size)
  void close();
  std::uint64_t count() const { return header_.count; }

 private:
  std::string path_, temporary_;
  std::int64_t vocabulary_;
  TokenHeader header_;
  io::OutputFile file_;
};

}  // namespace tg::text
