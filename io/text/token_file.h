// A file of token ids, read by mapping it into memory:
//    "TGTOKENS" · u64 N (little-endian) · N bytes of JSON · ids of 2 or 4 bytes each, little-endian
// The JSON is {"version": 1, "bytes_each": 2, "count": 301966, "metadata": {"tokenizer": "bpe", …}}.
// io/text/tokenizer.h creates the tokenizer from the metadata. 16 + N is a multiple of 8.
#pragma once

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/mapped_file.h>
#include <tilegrad/io/text/token_view.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

// The header of a token file.
struct TokenHeader {
  int bytes_each = 0;          // size of an id: 2 or 4
  std::uint64_t count = 0;     // number of ids
  io::Metadata metadata = {};  // describes the tokenizer
  std::size_t begin = 0;       // byte offset of the first id
};

// Parses the header of a file with these bytes. Throws FormatError if the header breaks a rule, or if the ids
// do not end at the end of the file. The message begins with `where`.
TokenHeader parse_token_header(std::string_view file, const std::string& where);

// A token file, mapped into memory.
class TokenFile {
 public:
  // Throws Error if the file cannot be read, and FormatError if it is not a token file.
  explicit TokenFile(const std::string& path);
  // Maps a file of ids without a header. Ids have `bytes_each` bytes (2 or 4) and must be below `vocabulary`.
  // Throws FormatError if the file size is not a multiple of bytes_each.
  TokenFile(const std::string& path, int bytes_each, std::int64_t vocabulary);

  // The tokenizer of the header's metadata, or a NumberTokenizer for a file without a header.
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Returns a view of all ids.
  TokenView tokens() const;
  // The path as given to the constructor.
  const std::string& path() const { return path_; }
  // Returns an identifier of the content, cheap for files of any size. It is the XXH3-128 hash of the sizes,
  // the header, and up to 64 evenly spaced pieces of 64 KiB.
  std::string identity() const;

 private:
  std::string path_;
  io::MappedFile file_;
  TokenHeader header_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Writes a token file of any size piece by piece.
class TokenFileWriter {
 public:
  // Writes to a temporary file until close(). Throws Error if it cannot be created.
  TokenFileWriter(const std::string& path, const Tokenizer& tokenizer);
  // Removes the temporary file unless close() was called.
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // Appends ids. Throws Error for an id outside the tokenizer's [0, size), or if writing fails.
  void write(std::span<const std::int32_t> ids);
  // Finishes the file, which atomically replaces an existing one. Throws Error if that fails.
  void close();
  // The number of ids written so far.
  std::uint64_t count() const { return header_.count; }

 private:
  std::string path_, temporary_;
  std::int64_t vocabulary_;
  TokenHeader header_;
  io::OutputFile file_;
};

}  // namespace tg::text
