// Tests token files. Written ids and plain ids can be read through the map. Files that break a rule are
// refused.
#include <tilegrad/io/text/token_file.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/text.h>
#include "tests/support/files.h"

namespace tg {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TemporaryDirectory;

void put(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<std::int32_t> all_of(const text::TokenView& view) {
  std::vector<std::int32_t> ids(view.size());
  view.copy(0, ids);
  return ids;
}

TEST(TokenFile, RoundTripPreservesTheIds) {
  const TemporaryDirectory dir;
  const text::Bpe bpe = text::Bpe::train("the other the other", 262);
  const std::vector<std::int32_t> ids = bpe.encode("the other then\n");
  text::TokenFileWriter writer(dir / "t", bpe);
  writer.write(std::span(ids).first(3));
  writer.write(std::span(ids).subspan(3));
  EXPECT_FALSE(fs::exists(dir / "t"));  // the file appears only when it is complete
  writer.close();
  const text::TokenFile file(dir / "t");
  EXPECT_EQ(all_of(file.tokens()), ids);
  EXPECT_EQ(file.tokenizer().decode(all_of(file.tokens())), "the other then\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), {}), 1);  // no temporary file
}

TEST(TokenFile, IdsAbove65535NeedFourBytes) {
  const TemporaryDirectory dir;
  for (const std::int64_t vocabulary : {65536, 65537}) {
    const text::NumberTokenizer numbers(vocabulary);
    const std::vector<std::int32_t> ids{0, 65535, static_cast<std::int32_t>(vocabulary - 1)};
    text::TokenFileWriter writer(dir / "t", numbers);
    writer.write(ids);
    writer.close();
    const text::TokenFile file(dir / "t");
    EXPECT_EQ(all_of(file.tokens()), ids);
    const text::TokenHeader header = text::parse_token_header(io::MappedFile(dir / "t", "test").bytes(), "t");
    EXPECT_EQ(header.bytes_each, vocabulary == 65536 ? 2 : 4);
    EXPECT_EQ(header.begin % 8, 0u);
  }
}

TEST(TokenFile, AWriterThatIsNotClosedLeavesNothing) {
  const TemporaryDirectory dir;
  put(dir / "t", "old");
  { text::TokenFileWriter(dir / "t", text::ByteTokenizer()).write(std::vector<std::int32_t>{1, 2}); }
  EXPECT_EQ(io::read_file(dir / "t", "test"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), {}), 1);
}

// In a file with 16 bits per id, 65537 would become 1.
TEST(TokenFile, AnIdOutsideTheVocabularyIsNotWritten) {
  const TemporaryDirectory dir;
  text::TokenFileWriter writer(dir / "t", text::ByteTokenizer());
  writer.write(std::vector<std::int32_t>{1, 2});
  for (const std::int32_t id : {-1, 256, 65537})
    EXPECT_EQ(error_of([&] {
                writer.write(std::vector<std::int32_t>{3, id});
              }),
              "[tokens] " + dir / "t" + ": got " + std::to_string(id) + " for token 3, expected 0 to 255");
  writer.close();
  EXPECT_EQ(all_of(text::TokenFile(dir / "t").tokens()), (std::vector<std::int32_t>{1, 2}));
}

TEST(TokenFile, PlainIdsAreReadInPlace) {
  const TemporaryDirectory dir;
  put(dir / "p", std::string_view("\x01\x00\x00\x01\xff\x00", 6));
  EXPECT_EQ(all_of(text::TokenFile(dir / "p", 2, 300).tokens()), (std::vector<std::int32_t>{1, 256, 255}));
  put(dir / "q", std::string_view("\x01\x00\x01\x00\x02\x00\x00\x00", 8));
  EXPECT_EQ(all_of(text::TokenFile(dir / "q", 4, 70000).tokens()), (std::vector<std::int32_t>{65537, 2}));
  EXPECT_EQ(error_of([&] { text::TokenFile(dir / "p", 4, 300); }),
            "[tokens] " + dir / "p" + " has 6 bytes, expected a multiple of 4");
  for (const int bytes_each : {-2, 0, 3})
    EXPECT_EQ(error_of([&] { text::TokenFile(dir / "p", bytes_each, 300); }),
              "[tokens] " + dir / "p" + ": got ids of " + std::to_string(bytes_each) +
                  " bytes each, expected 2 or 4");
}

TEST(TokenFile, AnIdOutsideTheVocabularyIsNamedWhenItIsRead) {
  const TemporaryDirectory dir;
  put(dir / "p", std::string_view("\x01\x00\x02\x00\x2c\x01\x03\x00", 8));
  const text::TokenFile file(dir / "p", 2, 300);
  std::vector<std::int32_t> two(2);
  file.tokens().copy(0, two);
  const std::string message =
      "[tokens] " + dir / "p" + ": token 2 is 300, expected below the vocabulary of 300";
  EXPECT_EQ(error_of([&] { file.tokens().copy(1, two); }), message);
  EXPECT_EQ(error_of([&] { file.tokens().part(1, 3).copy(0, two); }), message);
  EXPECT_THROW(file.tokens().copy(3, two), ShapeError);  // an index past the end
  EXPECT_THROW(file.tokens().part(0, 2).copy(1, two), ShapeError);
  EXPECT_THROW(file.tokens().part(3, 2), ShapeError);
  EXPECT_THROW(file.tokens().part(~std::size_t{0}, 2), ShapeError);
  EXPECT_THROW(text::TokenView(two.data(), 1, 8), Error);
  EXPECT_THROW(text::TokenView(two.data(), 1, 4, 1LL << 32), Error);
}

TEST(TokenFile, UnreadableFilesGiveAOneLineError) {
  const TemporaryDirectory dir;
  put(dir / "empty", "");
  put(dir / "other", "some text");
  EXPECT_EQ(error_of([&] { text::TokenFile(dir / "none"); }),
            "[tokens] cannot read " + dir / "none" + ": No such file or directory");
  EXPECT_EQ(error_of([&] { text::TokenFile(dir / "empty"); }),
            "[tokens] cannot read " + dir / "empty" + ": it is empty");
  EXPECT_EQ(error_of([&] { text::TokenFile(dir.path.string()); }),
            "[tokens] cannot read " + dir.path.string() + ": Is a directory");
  EXPECT_EQ(error_of([&] { text::TokenFile(dir / "other"); }),
            "[tokens] " + dir / "other" + ": does not start with TGTOKENS: not a token file");
}

TEST(TokenFile, EveryViolatedRuleIsRefused) {
  const auto refused = [](std::string_view json, std::size_t bytes = 4) {
    const std::uint64_t n = json.size();
    std::string file = "TGTOKENS" + std::string(reinterpret_cast<const char*>(&n), 8) + std::string(json);
    return error_of([&] { text::parse_token_header(file + std::string(bytes, '\0'), "t"); });
  };
  EXPECT_EQ(refused(R"({"version":1,"bytes_each":2,"count":2,"metadata":{},"future":[1]} )"), "no error");
  EXPECT_EQ(refused(R"({"bytes_each":2,"count":2})"), "t: version is -1, expected 1");
  EXPECT_EQ(refused(R"({"version":2,"bytes_each":2,"count":2})"), "t: version is 2, expected 1");
  EXPECT_EQ(refused(R"({"version":1,"bytes_each":3,"count":2})"), "t: bytes_each is 3, expected 2 or 4");
  EXPECT_EQ(refused(R"({"version":1,"bytes_each":2})"), "t: count must be present and not negative");
  EXPECT_EQ(refused(R"({"version":1,"bytes_each":2,"count":-1})"),
            "t: count must be present and not negative");
  const std::string two = R"({"version":1,"bytes_each":2,"count":2})";
  EXPECT_EQ(refused(two, 3), "t: 3 bytes of ids, expected 2 of 2 bytes each");
  EXPECT_EQ(refused(two, 6), "t: 6 bytes of ids, expected 2 of 2 bytes each");
  // The size of 2^63 tokens of 2 bytes is 0 modulo 2^64.
  EXPECT_EQ(refused(R"({"version":1,"bytes_each":4,"count":4611686018427387904})", 0),
            "t: 0 bytes of ids, expected 4611686018427387904 of 4 bytes each");
  EXPECT_NE(refused("[]").find("expected an object"), std::string::npos);
  EXPECT_EQ(error_of([] { text::parse_token_header("TGTOKENS\1\0", "t"); }),
            "t: the file ends in the header");
  EXPECT_EQ(
      error_of([] { text::parse_token_header(std::string_view("TGTOKENS\x05\0\0\0\0\0\0\0{}", 18), "t"); }),
      "t: header of 5 bytes in a file of 18: is the file truncated?");
}

TEST(TokenFile, IdentityDistinguishesFiles) {
  const TemporaryDirectory dir;
  std::string bytes(std::size_t{8} << 20, 'x');
  const auto identity = [&](std::string_view content, std::int64_t vocabulary = 40000) {
    put(dir / "p", content);
    return text::TokenFile(dir / "p", 2, vocabulary).identity();
  };
  const std::string one = identity(bytes);
  EXPECT_EQ(identity(bytes), one);
  EXPECT_NE(identity(bytes, 50000), one);
  EXPECT_NE(identity(std::string_view(bytes).substr(2)), one);
  for (const std::size_t changed : {std::size_t{0}, bytes.size() - 1}) {
    bytes[changed] = 'y';
    EXPECT_NE(identity(bytes), one);
    bytes[changed] = 'x';
  }
}

// Compares every byte. The header has space for a count of 20 digits. It ends at a multiple of 8 bytes.
TEST(TokenFile, BytesMatchTheFormat) {
  const TemporaryDirectory dir;
  for (const std::int64_t vocabulary :
       {300, 4000, 50000, 70000, 800000, 9000000, 10000000, 200000000, 2000000000}) {
    const text::NumberTokenizer numbers(vocabulary);
    const std::string bytes_each = vocabulary <= 65536 ? "2" : "4";
    text::TokenFileWriter writer(dir / "t", numbers);
    std::vector<std::int32_t> ids(12);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(23 * i);
    writer.write(std::span(ids).first(5));
    EXPECT_EQ(writer.count(), 5u);
    writer.write({});
    writer.write(std::span(ids).subspan(5));
    EXPECT_EQ(writer.count(), 12u);
    writer.close();
    const std::string head = "{\"version\": 1, \"bytes_each\": " + bytes_each + ", \"count\": ",
                      tail = ", \"metadata\": {\"tokenizer\": \"numbers\", \"vocabulary\": \"" +
                             std::to_string(vocabulary) + "\"}}";
    std::string json = head + "12" + tail;
    const std::size_t size = (head.size() + 20 + tail.size() + 7) / 8 * 8;
    json.resize(size, ' ');
    std::string expected = "TGTOKENS" + std::string{static_cast<char>(size)} + std::string(7, '\0') + json;
    for (const std::int32_t id : ids) {
      expected += static_cast<char>(id % 256), expected += static_cast<char>(id / 256);
      if (vocabulary > 65536) expected += std::string(2, '\0');
    }
    EXPECT_EQ(io::read_file(dir / "t", "test"), expected);
  }
}

// The checksum of a large file covers 64 pieces of 64 KiB. The first is at the start of the file and the last
// at the end.
TEST(TokenFile, IdentityReadsPiecesAllOverTheFile) {
  const TemporaryDirectory dir;
  constexpr std::size_t piece = 65536, pieces = 64;
  const auto identity = [&] { return text::TokenFile(dir / "p", 2, 40000).identity(); };
  const auto changes = [&](std::size_t at) {
    const std::string before = identity();
    std::fstream file(dir / "p", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)).put('y').flush();
    const bool differs = identity() != before;
    file.seekp(static_cast<std::streamoff>(at)).put('x').flush();
    return differs;
  };
  put(dir / "p", std::string(pieces * piece, 'x'));  // the checksum covers the complete file
  for (const std::size_t at : {std::size_t{0}, piece * 2 / 3, piece * pieces - 1})
    EXPECT_TRUE(changes(at)) << at;
  const std::size_t size = 3 * pieces * piece;
  put(dir / "p", std::string(size, 'x'));
  for (const std::size_t i : {0, 1, 31, 62, 63}) {
    const std::size_t begin = (size - piece) * i / (pieces - 1);
    EXPECT_TRUE(changes(begin)) << i;
    EXPECT_TRUE(changes(begin + piece - 1)) << i;
    EXPECT_TRUE(i == 0 || !changes(begin - 1)) << i;
    EXPECT_TRUE(i == 63 || !changes(begin + piece)) << i;
  }
}

TEST(TokenFile, LimitsOfIdsAndVocabularies) {
  const TemporaryDirectory dir;
  const std::int32_t ids[] = {0, 5, 2147483646};
  for (const std::int64_t vocabulary : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31})
    EXPECT_EQ(error_of([&] { text::TokenView(ids, 3, 4, vocabulary, "f"); }),
              "[tokens] f: got a vocabulary of " + std::to_string(vocabulary) + ", expected 1 to 2147483647");
  EXPECT_EQ(all_of(text::TokenView(ids, 3, 4, 2147483647)).back(), 2147483646);
  EXPECT_EQ(all_of(text::TokenView(ids, 1, 4, 1)), std::vector<std::int32_t>{0});
  std::vector<std::int32_t> one(1), none;
  EXPECT_EQ(error_of([&] { text::TokenView(ids, 3, 4, 5, "f").part(1, 2).copy(0, one); }),
            "[tokens] f: token 1 is 5, expected below the vocabulary of 5");
  text::TokenView(ids, 3, 4, 6).copy(1, one);
  EXPECT_EQ(one[0], 5);
  const text::TokenView view(ids, 3, 4);
  EXPECT_EQ(view.part(3, 0).size(), 0u);
  EXPECT_EQ(view.part(0, 3).size(), 3u);
  view.copy(3, none);
  EXPECT_THROW(view.part(4, 0), ShapeError);
  EXPECT_THROW(view.copy(4, none), ShapeError);
  EXPECT_THROW(view.part(1, 3), ShapeError);
  EXPECT_EQ(all_of(view.part(1, 2).part(1, 1)), std::vector<std::int32_t>{2147483646});
  put(dir / "h", "TGTOKENSxx");
  EXPECT_EQ(error_of([&] { text::TokenFile(dir / "h", 2, 300); }),
            "[tokens] " + dir / "h" + " has a header, expected a file of ids without one");
  put(dir / "o", "TGTOKEN");
  EXPECT_EQ(error_of([&] { text::TokenFile(dir / "o", 2, 300); }),
            "[tokens] " + dir / "o" + " has 7 bytes, expected a multiple of 2");
  put(dir / "e", "TGTOKEN ");
  EXPECT_EQ(text::TokenFile(dir / "e", 4, 2147483647).tokens().size(), 2u);
  EXPECT_THROW(text::TokenFile(dir / "e", 4, 0), Error);
  const std::string path = dir / "e";
  EXPECT_EQ(text::TokenFile(path, 4, 300).path(), path);
  EXPECT_EQ(text::TokenFile(path, 4, 300).tokenizer().size(), 300);
}

}  // namespace
}  // namespace tg
