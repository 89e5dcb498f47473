// Tests safetensors. A written file can be read again. If a file breaks a rule, the error names the rule. A
// failed write changes nothing. If Python's package safetensors is installed, each library must read the
// files of the other.
#include <tilegrad/io/files/safetensors.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "io/files/safetensors_start.h"
#include "tests/support/files.h"

namespace tg {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

template <class T>
io::TensorView view(const std::vector<T>& v, std::vector<std::int64_t> shape) {
  return {dtype_of<T>, std::move(shape), std::as_bytes(std::span(v))};
}

std::string file_of(std::string_view header, std::string_view data = "") {
  const std::uint64_t n = header.size();
  std::string file(reinterpret_cast<const char*>(&n), 8);
  return file.append(header).append(data);
}

std::string error_of(std::string file) {
  try {
    io::parse_safetensors(std::move(file), "m");
  } catch (const FormatError& e) {
    return e.what();
  }
  return "accepted";
}

// Returns a file with one tensor. The tensor has the given members and `bytes` bytes of data.
std::string one(std::string_view members, std::size_t bytes = 8) {
  return error_of(file_of("{\"a\":{" + std::string(members) + "}}", std::string(bytes, 'x')));
}

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST(SafeTensors, EveryDtypeAndShapeSurvivesARoundTripBitwise) {
  const TemporaryDirectory dir;
  const std::vector<double> a{1.0, -0.0, std::nan(""), 1e308};
  const std::vector<float> b{1.5f, std::numeric_limits<float>::infinity(), -2.0f};
  const std::vector<bfloat16> c{bfloat16(3.0f)};
  const std::vector<float16> d{float16(0.1f), float16(-7.0f)};
  const std::vector<std::int64_t> e{std::numeric_limits<std::int64_t>::min()};
  const std::vector<std::int32_t> f{-1, 2, 3, 4, 5, 6};
  const std::vector<std::uint8_t> g{0, 255, 7};
  const std::vector<std::uint8_t> h{1, 0, 1};
  io::TensorMap in{
      {"a", view(a, {2, 2})},    {"b.weight", view(b, {3})},   {"scalar", view(c, {})},
      {"d", view(d, {1, 2, 1})}, {"e", view(e, {1})},          {"f", view(f, {2, 3})},
      {"g", view(g, {3})},       {"empty", {f32, {0, 5}, {}}}, {"naïve \"name\"", view(g, {3, 1})}};
  in["h"] = {boolean, {3}, std::as_bytes(std::span(h))};
  const io::Metadata metadata{{"step", "12"}, {"text", "line\n\"quoted\" é"}};
  io::save_safetensors(dir / "m.safetensors", in, metadata);
  const io::SafeTensors out = io::load_safetensors(dir / "m.safetensors");
  EXPECT_EQ(out.metadata, metadata);
  ASSERT_EQ(out.tensors.size(), in.size());
  for (const auto& [name, t] : in) {
    ASSERT_TRUE(out.tensors.contains(name)) << name;
    const io::TensorView& got = out.tensors.at(name);
    EXPECT_EQ(got.dtype, t.dtype) << name;
    EXPECT_EQ(got.shape, t.shape) << name;
    ASSERT_EQ(got.bytes.size(), t.bytes.size()) << name;
    EXPECT_TRUE(t.bytes.empty() || std::memcmp(got.bytes.data(), t.bytes.data(), t.bytes.size()) == 0)
        << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.bytes.data()) % size_of(t.dtype), 0u) << name;
  }
}

TEST(SafeTensors, DataStartsAtAMultipleOfEightAndAnEmptyFileIsValid) {
  const TemporaryDirectory dir;
  for (const std::string name : {"a", "ab", "abc", "abcd", "abcde"}) {
    const std::vector<float> x{1.0f};
    io::save_safetensors(dir / "m", {{name, view(x, {1})}});
    const std::string file = io::read_file(dir / "m", "test");
    std::uint64_t n = 0;
    std::memcpy(&n, file.data(), 8);
    EXPECT_EQ((8 + n) % 8, 0u);
  }
  io::save_safetensors(dir / "m", {});
  EXPECT_TRUE(io::load_safetensors(dir / "m").tensors.empty());
}

// Tensors are ordered by the width of their elements, widest first, then by name. The header is padded with
// spaces.
TEST(SafeTensors, FileMatchesTheExpectedBytes) {
  const std::vector<double> d{1.0};
  const std::vector<float16> h{float16(1.0f), float16(2.0f), float16(3.0f)};
  const std::vector<std::uint8_t> u{7, 8};
  const io::TensorMap tensors{
      {"a", view(u, {1, 2})}, {"b\"", view(h, {3})}, {"c", view(d, {})}, {"e", view(h, {3, 1})}};
  const std::string header =
      R"({"__metadata__":{"k":"v","l":"\n"},"c":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
      R"("b\"":{"dtype":"F16","shape":[3],"data_offsets":[8,14]},"e":{"dtype":"F16","shape":[3,1],"data_offsets":[14,20]},)"
      R"("a":{"dtype":"U8","shape":[1,2],"data_offsets":[20,22]}})";
  const auto content = io::safetensors_content(tensors, {{"k", "v"}, {"l", "\n"}}, "here");
  std::string file;
  for (const std::string_view piece : content.pieces()) file += piece;
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const auto bytes = [](const auto& v) {
    return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof v[0]);
  };
  EXPECT_EQ(file, file_of(padded, bytes(d) + bytes(h) + bytes(h) + bytes(u)));
  const auto start =
      io::safetensors_start({{"a", {u8, {2, 3}}}, {"b", {f32, {}}}, {"c", {u8, {0}}}}, {}, "here");
  EXPECT_EQ(start.order, (std::vector<std::string>{"b", "a", "c"}));
  const std::string json =
      R"({"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]},)"
      R"("c":{"dtype":"U8","shape":[0],"data_offsets":[10,10]}})";
  EXPECT_EQ(start.bytes, file_of(json + std::string((8 - json.size() % 8) % 8, ' ')));
}

TEST(SafeTensors, StartRefusesUnreadableContents) {
  const auto error = [](const std::string& name, const io::TensorKind& kind,
                        const io::Metadata& metadata = {}) {
    return testing::error_of([&] { io::safetensors_start({{name, kind}}, metadata, "here"); });
  };
  EXPECT_EQ(error("a", {f64, {0, std::numeric_limits<std::int64_t>::max()}}), "no error");
  EXPECT_EQ(error("a", {f64, {std::int64_t{1} << 60}}), "no error");
  EXPECT_EQ(error("a", {f64, {std::int64_t{1} << 61}}),
            "here: tensor \"a\" has a shape [2305843009213693952] beyond 64 bits");
  EXPECT_EQ(error("a", {f64, {2, -1}}), "here: tensor \"a\" has a shape [2,-1] beyond 64 bits");
  EXPECT_EQ(error("\xff", {f64, {1}}), "here: \"\xef\xbf\xbd\" is not UTF-8");
  EXPECT_EQ(error("a\n", {f64, {1}}), "here: tensor \"a\\n\" has control characters in its name");
  EXPECT_EQ(error("__metadata__", {f64, {1}}), "here: a tensor cannot be named __metadata__");
  EXPECT_EQ(error("a", {f64, {1}}, {{"\xff", "v"}}), "here: \"\xef\xbf\xbd\" is not UTF-8");
  EXPECT_EQ(error("a", {f64, {1}}, {{"k", "v\xff"}}), "here: \"v\xef\xbf\xbd\" is not UTF-8");
  EXPECT_NE(error_of(file_of("{\"a\\n\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"))
                .find("has control characters in its name"),
            std::string::npos);
}

TEST(SafeTensors, ViewsSurviveAMove) {
  io::SafeTensors a =
      io::parse_safetensors(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"), "m");
  const io::SafeTensors b = std::move(a);
  EXPECT_EQ(static_cast<char>(b.tensors.at("a").bytes[0]), 'x');
}

TEST(SafeTensors, AcceptsEverythingThatTheFormatAllows) {
  EXPECT_EQ(error_of(file_of("{}")), "accepted");
  EXPECT_EQ(error_of(file_of("{}     ")), "accepted");
  EXPECT_EQ(error_of(file_of(R"({"__metadata__":{}})")), "accepted");
  EXPECT_EQ(one(R"("dtype":"F64","shape":[],"data_offsets":[0,8])"), "accepted");
  EXPECT_EQ(one(R"("dtype":"F64","shape":[0,9223372036854775807],"data_offsets":[0,0])", 0), "accepted");
  EXPECT_EQ(one(R"("future":[1],"dtype":"F64","shape":[1],"data_offsets":[0,8])"), "accepted");
  // The order of tensors in the header may differ from the order of the data, and empty tensors may share an
  // offset.
  EXPECT_EQ(error_of(file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                             R"("e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                             R"("d":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                             "xy")),
            "accepted");
}

TEST(SafeTensors, NonzeroBytesOfABoolBecomeOne) {
  const auto f = io::parse_safetensors(
      file_of(R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", std::string("\0\2\xff", 3)), "m");
  const auto bytes = f.tensors.at("a").bytes;
  EXPECT_EQ(std::vector<std::byte>(bytes.begin(), bytes.end()),
            (std::vector<std::byte>{std::byte{0}, std::byte{1}, std::byte{1}}));
}

TEST(SafeTensors, RefusesABadLength) {
  EXPECT_SAYS(error_of(""), "file of 0 bytes, expected at least 8");
  EXPECT_SAYS(error_of("1234567"), "file of 7 bytes");
  const auto with_length = [](std::uint64_t n) {
    std::string f = file_of("{}");
    std::memcpy(f.data(), &n, 8);
    return error_of(f);
  };
  EXPECT_SAYS(with_length(3), "header of 3 bytes in a file of 10: is the file truncated?");
  EXPECT_SAYS(with_length(100'000'001), "expected at most 100000000");
  EXPECT_SAYS(with_length(100'000'000), "is the file truncated?");
  EXPECT_SAYS(with_length(std::numeric_limits<std::uint64_t>::max()), "expected at most");
  EXPECT_SAYS(with_length(std::numeric_limits<std::uint64_t>::max() - 7),
              "expected at most");  // 8 + N would overflow to 0
  EXPECT_SAYS(with_length(1), "object is not closed");
  EXPECT_SAYS(with_length(0), "does not start with '{'");
}

TEST(SafeTensors, ReportsThatAFileIsJson) {
  EXPECT_SAYS(error_of("{\"model_type\": \"llama\"}"),
              "begins with '{', as JSON does, and is not a safetensors file");
}

TEST(SafeTensors, RefusesABadHeader) {
  EXPECT_SAYS(error_of(file_of(" {}")), "does not start with '{'");
  EXPECT_SAYS(error_of(file_of("[]")), "does not start with '{'");
  EXPECT_SAYS(error_of(file_of("{\"\xff\":1}")), "not UTF-8 at byte 2");
  EXPECT_SAYS(error_of(file_of("{} x")), "text after the end of the JSON value");
  EXPECT_SAYS(error_of(file_of(std::string("{}\0", 3))), "text after the end of the JSON value");
  EXPECT_SAYS(error_of(file_of(R"({"a":1})")), "expected an object");
  EXPECT_SAYS(error_of(file_of(R"({"__metadata__":{"a":1}})")), "expected a string");
  EXPECT_SAYS(error_of(file_of(R"({"__metadata__":null})")), "expected an object");
  EXPECT_SAYS(error_of(file_of(R"({"__metadata__":{"a":"1","a":"2"}})")), "duplicate key \"a\"");
  EXPECT_SAYS(error_of(file_of(R"({"__metadata__":{},"__metadata__":{}})")), "duplicate key");
  EXPECT_SAYS(error_of(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})")),
              "duplicate key \"a\"");
  EXPECT_SAYS(one(R"("dtype":"F64","dtype":"F64","shape":[1],"data_offsets":[0,8])"),
              "duplicate key \"dtype\"");
}

TEST(SafeTensors, RefusesABadEntry) {
  EXPECT_SAYS(one(R"("shape":[1],"data_offsets":[0,8])"), "tensor \"a\" has no dtype");
  EXPECT_SAYS(one(R"("dtype":"F64","data_offsets":[0,8])"), "has no shape");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1])"), "has no data_offsets");
  EXPECT_SAYS(one(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"),
              "has dtype \"F8_E4M3\", expected F64");
  EXPECT_SAYS(one(R"("dtype":"f64","shape":[1],"data_offsets":[0,8])"), "has dtype \"f64\"");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[-1],"data_offsets":[0,8])"), "negative dimension");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1.0],"data_offsets":[0,8])"), "expected a 64-bit integer");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":1,"data_offsets":[0,8])"), "expected an array");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[0])"), "not two numbers");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[])"), "not two numbers");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[0,8,8])"), "not two numbers");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[-8,0])"), "negative offset");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[0,18446744073709551624])"), "64-bit integer");
}

TEST(SafeTensors, RefusesInconsistentSizes) {
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[2],"data_offsets":[0,8])"),
              "has 8 bytes, expected 16 for F64 [2]");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[0,16])"), "has 16 bytes, expected 8");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[2],"data_offsets":[0,16])"), "ends at 16 of 8 data bytes");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[0,8])", 9), "cover 8 of 9 data bytes");
  EXPECT_SAYS(error_of(file_of("{}", "x")), "cover 0 of 1 data bytes");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[1],"data_offsets":[8,0])"), "begins at 8, a hole");
  EXPECT_SAYS(one(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])", 0),
              "beyond 64 bits");
  EXPECT_SAYS(one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
              "beyond 64 bits");
}

TEST(SafeTensors, RefusesGapsAndOverlaps) {
  const auto two = [](const char* a, const char* b) {
    const auto entry = [](const char* name, const char* offsets) {
      return "\"" + std::string(name) + "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + offsets +
             "}";
    };
    return error_of(file_of("{" + entry("a", a) + "," + entry("b", b) + "}", "wxyz"));
  };
  EXPECT_EQ(two("[0,2]", "[2,4]"), "accepted");
  EXPECT_SAYS(two("[0,2]", "[1,3]"), "tensor \"b\" begins at 1, an overlap: expected 2");
  EXPECT_SAYS(two("[0,2]", "[0,2]"), "an overlap");
  EXPECT_SAYS(two("[0,2]", "[3,5]"), "begins at 3, a hole: expected 2");
  EXPECT_SAYS(two("[1,3]", "[3,5]"), "begins at 1, a hole: expected 0");
}

TEST(SafeTensors, EveryTruncationIsRefused) {
  const std::string file = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  ASSERT_EQ(error_of(file), "accepted");
  for (std::size_t n = 0; n < file.size(); ++n) EXPECT_NE(error_of(file.substr(0, n)), "accepted") << n;
}

TEST(SafeTensors, LoadErrorsAreOneLineWithThePath) {
  const TemporaryDirectory dir;
  const auto message = [](const std::string& path) {
    try {
      io::load_safetensors(path);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(dir / "none"),
            "[load_safetensors] cannot read " + (dir / "none") + ": No such file or directory");
  EXPECT_EQ(message(dir.path), "[load_safetensors] cannot read " + dir.path.string() + ": Is a directory");
  std::ofstream(dir / "short") << "x";
  EXPECT_EQ(message(dir / "short"),
            "[load_safetensors] " + (dir / "short") + ": file of 1 bytes, expected at least 8");
}

TEST(SafeTensors, WriterRefusesUnreadableTensors) {
  const TemporaryDirectory dir;
  const std::vector<float> x{1.0f, 2.0f};
  EXPECT_THROW(io::save_safetensors(dir / "m", {{"a", view(x, {3})}}), ShapeError);
  EXPECT_THROW(io::save_safetensors(dir / "m", {{"a", view(x, {-2})}}), ShapeError);
  EXPECT_THROW(io::save_safetensors(dir / "m", {{"__metadata__", view(x, {2})}}), FormatError);
  EXPECT_THROW(io::save_safetensors(dir / "m", {{"\xff", view(x, {2})}}), FormatError);
  EXPECT_THROW(io::save_safetensors(dir / "m", {}, {{"a", "\xff"}}), FormatError);
  EXPECT_TRUE(fs::is_empty(dir.path));
}

std::string save_error(const std::string& path, const io::TensorMap& tensors) {
  try {
    io::save_safetensors(path, tensors);
  } catch (const Error& e) {
    return e.what();
  }
  return "saved";
}

TEST(SafeTensors, AFailedWriteReportsTheReasonAndKeepsTheOldFile) {
  const TemporaryDirectory dir;
  const std::vector<float> x(4, 1.0f), big(1 << 16, 2.0f);
  io::save_safetensors(dir / "m", {{"a", view(x, {4})}});
  const std::string before = io::read_file(dir / "m", "test");
  // With a file-size limit, write() writes less and then fails, as on a full disk.
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = save_error(dir / "m", {{"a", view(big, {1 << 16})}});
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "[save_safetensors] cannot write " + (dir / "m") + ": File too large");
  EXPECT_EQ(io::read_file(dir / "m", "test"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), {}), 1) << "the temporary file was left behind";
}

TEST(SafeTensors, AFullDeviceAndAnUnwritableDirectoryGiveAOneLineError) {
  const TemporaryDirectory dir;
  const std::vector<float> x(4, 1.0f);
  const io::TensorMap tensors{{"a", view(x, {4})}};
  EXPECT_EQ(save_error("/dev/full", tensors),
            "[save_safetensors] cannot write /dev/full: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_EQ(save_error(dir / "none/m", tensors),
            "[save_safetensors] cannot create " + (dir / "none/m") + ": No such file or directory");
  EXPECT_EQ(save_error(dir.path, tensors),
            "[save_safetensors] cannot write " + dir.path.string() + ": Is a directory");
  EXPECT_NE(save_error("/proc/m.safetensors", tensors), "saved");
  if (geteuid() != 0) {  // root may write anywhere
    fs::permissions(dir.path, fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_EQ(save_error(dir / "m", tensors),
              "[save_safetensors] cannot create " + (dir / "m") + ": Permission denied");
    fs::permissions(dir.path, fs::perms::owner_all);
  }
}

TEST(SafeTensors, ReplacingAFileKeepsItsPermissionsAndDoesNotFollowLinks) {
  const TemporaryDirectory dir;
  const std::vector<float> x(4, 1.0f);
  io::save_safetensors(dir / "real", {});
  fs::permissions(dir / "real", fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  io::save_safetensors(dir / "real", {{"a", view(x, {4})}});
  EXPECT_EQ(io::load_safetensors(dir / "real").tensors.size(), 1u);
  fs::create_symlink("real", dir / "link");
  EXPECT_EQ(save_error(dir / "link", {}), "[save_safetensors] cannot write " + (dir / "link") +
                                              ": it is a symbolic link, expected a regular file");
  EXPECT_EQ(io::load_safetensors(dir / "real").tensors.size(), 1u);
  EXPECT_EQ(fs::status(dir / "real").permissions(),
            fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
}

TEST(SafeTensors, PythonsPackageReadsOursAndWeReadTheirs) {
  if (std::system("python3 -c 'import numpy, safetensors.numpy' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "python3 cannot import safetensors and numpy";
  }
  const TemporaryDirectory dir;
  const std::vector<double> a{1.0, -2.5};
  const std::vector<float> b{0.5f, 1.0f, 2.0f, 4.0f, 8.0f, 16.0f};
  const std::vector<bfloat16> c{bfloat16(3.0f)};
  const std::vector<float16> d{float16(0.1f)};
  const std::vector<std::int64_t> e{-5};
  const std::vector<std::int32_t> f{7, 8};
  const std::vector<std::uint8_t> g{255, 1, 0};
  io::TensorMap tensors{{"a", view(a, {2})}, {"b é\"", view(b, {2, 3})}, {"c", view(c, {1, 1})},
                        {"d", view(d, {})},  {"e", view(e, {1})},        {"f", view(f, {2})},
                        {"g", view(g, {3})}, {"z", {f32, {0, 2}, {}}}};
  const std::vector<std::uint8_t> bits{1, 0};
  tensors["h"] = {boolean, {2}, std::as_bytes(std::span(bits))};
  io::save_safetensors(dir / "ours", tensors, {{"k", "v"}});
  std::ofstream(dir / "check.py") << R"(
import sys, numpy, safetensors, safetensors.numpy
d = sys.argv[1]
data = open(d + '/ours', 'rb').read()
with open(d + '/seen', 'w', encoding='utf-8') as out:
    for name, t in sorted(safetensors.deserialize(data)):
        out.write('%s|%s|%s|%s\n' % (name, t['dtype'], list(t['shape']), bytes(t['data']).hex()))
with safetensors.safe_open(d + '/ours', framework='numpy') as f:
    assert f.metadata() == {'k': 'v'}, f.metadata()
    assert f.get_tensor('b é"').tolist() == [[0.5, 1, 2], [4, 8, 16]]
safetensors.numpy.save_file({'w': numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
                             'i': numpy.array(-3, dtype=numpy.int64),
                             'e': numpy.zeros((2, 0), dtype=numpy.float16),
                             'm': numpy.array([True, False])}, d + '/theirs', metadata={'from': 'python é'})
)";
  ASSERT_EQ(std::system(("python3 " + (dir / "check.py") + " " + dir.path.string()).c_str()), 0);

  constexpr const char* names[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL"};
  std::ostringstream expected;
  for (const auto& [name, t] : tensors) {
    expected << name << '|' << names[static_cast<int>(t.dtype)] << "|[";
    for (std::size_t i = 0; i < t.shape.size(); ++i) expected << (i ? ", " : "") << t.shape[i];
    expected << "]|";
    for (const std::byte x : t.bytes)
      expected << "0123456789abcdef"[int(x) >> 4] << "0123456789abcdef"[int(x) & 15];
    expected << '\n';
  }
  EXPECT_EQ(io::read_file(dir / "seen", "test"), expected.str());

  const io::SafeTensors theirs = io::load_safetensors(dir / "theirs");
  EXPECT_EQ(theirs.metadata, (io::Metadata{{"from", "python é"}}));
  ASSERT_EQ(theirs.tensors.size(), 4u);
  const io::TensorView& w = theirs.tensors.at("w");
  EXPECT_EQ(w.dtype, f32);
  EXPECT_EQ(w.shape, (std::vector<std::int64_t>{2, 3}));
  float values[6];
  ASSERT_EQ(w.bytes.size(), sizeof values);
  std::memcpy(values, w.bytes.data(), sizeof values);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values[i], float(i));
  EXPECT_TRUE(theirs.tensors.at("i").shape.empty());
  EXPECT_EQ(theirs.tensors.at("e").shape, (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(theirs.tensors.at("m").dtype, boolean);
}

}  // namespace
}  // namespace tg
