// Tests components of checkpoints: the manifest, the names and folders of a run, and converted numbers.
#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/io/checkpoints/manifest.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/layers/layers.h>
#include "io/checkpoints/own_files.h"
#include "io/checkpoints/tensor_check.h"
#include "io/checkpoints/tensor_values.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;
namespace fs = std::filesystem;
using Names = std::set<std::string>;

const std::string sum_a(32, 'a'), sum_0 = "0123456789abcdef0123456789abcdef";

Names names_in(const fs::path& folder) {
  Names names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// ---- Manifests

TEST(ManifestText, MatchesTheExpectedBytes) {
  EXPECT_EQ(
      io::to_json({.step = 7, .best_step = 5, .files = {{"b", {12, sum_a}}, {"a \"é\"", {0, sum_0}}}}),
      "{\n  \"format\": \"tilegrad checkpoint\",\n  \"version\": 1,\n  \"step\": 7,\n  \"best_step\": 5,\n"
      "  \"files\": {\n    \"a \\\"é\\\"\": {\"bytes\": 0, \"xxh3_128\": \"" +
          sum_0 +
          "\"},\n"
          "    \"b\": {\"bytes\": 12, \"xxh3_128\": \"" +
          sum_a + "\"}\n  }\n}\n");
  EXPECT_EQ(
      io::to_json({.step = 1, .unfinished = {"b", "a"}}),
      "{\n  \"format\": \"tilegrad checkpoint\",\n  \"version\": 1,\n  \"step\": 1,\n  \"best_step\": 0,\n"
      "  \"files\": {\n  },\n  \"unfinished\": [\"a\", \"b\"]\n}\n");
}

// Returns a string in which each '|' is replaced by '"'.
std::string quoted(std::string text) {
  std::replace(text.begin(), text.end(), '|', '"');
  return text;
}
std::string parse_error(const std::string& members) {
  return error_of([&] { io::parse_manifest(quoted("{" + members + "}"), "m"); });
}

TEST(ManifestText, MembersMayBeInAnyOrderWithUnknownOnes) {
  const std::string good = "|future|: [1, {}], |files|: {|a|: {|xxh3_128|: |" + sum_0 +
                           "|, |more|: null, |bytes|: 12}, |b|: {|bytes|: 9, |xxh3_128|: |" + sum_a +
                           "|}}, |version|: 1, |best_step|: 0, |step|: 3, |format|: |tilegrad checkpoint|";
  const io::Manifest m = io::parse_manifest(quoted("{" + good + "}"), "m");
  EXPECT_EQ(m.step, 3);
  EXPECT_EQ(m.best_step, 0);
  ASSERT_EQ(m.files.size(), 2u);
  EXPECT_EQ(m.files.at("a").bytes, 12u);
  EXPECT_EQ(m.files.at("a").xxh3_128, sum_0);
  EXPECT_EQ(m.files.at("b").bytes, 9u);
  EXPECT_EQ(m.files.at("b").xxh3_128, sum_a);
  EXPECT_TRUE(m.unfinished.empty());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string s = good;
    s.replace(s.find(from), from.size(), to);
    return parse_error(s).substr(0, parse_error(s).rfind(" at byte"));
  };
  EXPECT_EQ(changed("|step|: 3", "|step|: 0"), "no error");
  EXPECT_EQ(changed("|bytes|: 12", "|bytes|: 0"), "no error");
  const std::string not_negative = "m: step and best_step must be present and not negative";
  EXPECT_EQ(changed("|step|: 3", "|steps|: 3"), not_negative);
  EXPECT_EQ(changed("|step|: 3", "|step|: -1"), not_negative);
  EXPECT_EQ(changed("|best_step|: 0", "|best_step|: -1"), not_negative);
  EXPECT_EQ(changed("|best_step|: 0, ", ""), not_negative);
  EXPECT_EQ(changed("|bytes|: 12", "|bytes|: -1"), "m: file \"a\" has a negative size");
  EXPECT_EQ(changed(", |bytes|: 12", ""), "m: file \"a\" has no size or no checksum");
  EXPECT_EQ(changed(", |xxh3_128|: |" + sum_a + "|", ""), "m: file \"b\" has no size or no checksum");
  for (const std::string& sum :
       {sum_a.substr(1), sum_a + "a", sum_a.substr(1) + "A", sum_a.substr(1) + "g", std::string()})
    EXPECT_EQ(changed("|" + sum_a + "|", "|" + sum + "|"),
              "m: the checksum of \"b\" is not 32 hexadecimal digits")
        << sum;
  EXPECT_EQ(changed("|a|:", "|../a|:"), "m: file \"../a\" is not a plain name");
  EXPECT_EQ(changed("tilegrad checkpoint", "tilegrad"),
            "m: format is \"tilegrad\", expected \"tilegrad checkpoint\"");
  EXPECT_EQ(changed("|version|: 1", "|version|: 0"), "m: version is 0, expected 1");
  EXPECT_EQ(
      parse_error("|step|: 1, |best_step|: 0, |version|: 1, |format|: |tilegrad checkpoint|, |files|: {}"),
      "m: no files: its writer was stopped at byte 87");
  EXPECT_EQ(
      error_of([&] { io::parse_manifest(quoted("{" + good + "} x"), "m"); }).find("m: text after the end"),
      0u);
}

TEST(ManifestText, NamesBeforeAMistakeAreReturned) {
  const io::Manifest finished{.step = 1, .files = {{"a", {1, sum_a}}, {"b", {1, sum_a}}}},
      begun{.step = 1, .files = {{"a", {1, sum_a}}}, .unfinished = {"b", "c"}};
  EXPECT_EQ(io::names_in_manifest(io::to_json(finished)), (Names{"a", "b"}));
  EXPECT_EQ(io::names_in_manifest(io::to_json(begun)), (Names{"a", "b", "c"}));
  const std::string text = io::to_json(begun);
  for (std::size_t n = 0; n <= text.size(); ++n) {
    Names expected;
    if (n >= text.find("\"a\":") + 3) expected.insert("a");
    if (n >= text.find("\"b\"") + 3) expected.insert("b");
    if (n >= text.find("\"c\"") + 3) expected.insert("c");
    const Names names = io::names_in_manifest(text.substr(0, n));
    if (n == text.find("\"a\":") + 3) continue;  // a key or the beginning of a key
    EXPECT_EQ(names, expected) << text.substr(0, n);
    EXPECT_EQ(io::is_manifest(text.substr(0, n)), n >= text.find("point\"") + 6) << n;
  }
  EXPECT_TRUE(io::names_in_manifest("{\"more\": [\"a\"], \"format\": {\"b\": 1}}").empty());
}

// ---- Names and folders

TEST(CheckpointFolder, PlainNamesStayInTheFolder) {
  for (const char* name : {"a", "model.safetensors", "a.", "a b", "é", "-", "a..b", "~"})
    EXPECT_TRUE(io::is_plain_name(name)) << name;
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("/a"),
        std::string("a/"), std::string("a\\b"), std::string("a\0b", 3), std::string("a\n"),
        std::string("\x7f"), std::string("a\xff"), std::string("\xed\xa0\x80")})
    EXPECT_FALSE(io::is_plain_name(name)) << name;
}

TEST(CheckpointFolder, IsRemovedOnlyIfItsManifestListsEveryFile) {
  const std::string listed = io::to_json({.step = 1, .files = {{"a", {1, sum_a}}}, .unfinished = {"b"}}),
                    empty = io::to_json({.step = 1}), foreign = "{\"files\": {\"a\": 1}}",
                    long_one = listed + std::string(io::max_manifest_bytes + 1 - listed.size(), ' ');
  const struct {
    std::string manifest;  // "none": no manifest
    std::vector<std::string> files;
    bool is_checkpoint, is_own;
  } cases[] = {{listed, {"a", "b"}, true, true},
               {listed, {}, true, true},
               {listed, {"a", "c"}, true, false},
               {listed, {"a", ".manifest.json.tmp.12.0"}, true, true},
               {listed, {"a", ".manifest.json.tmp"}, true, false},
               {listed, {"c.safetensors"}, true, false},
               {listed, {"folder/"}, true, false},
               {listed, {"link>"}, true, false},
               {empty, {"c.safetensors"}, true, true},
               {empty, {"c.safetensors.txt"}, true, false},
               {"{\"format\": \"tilegrad checkpoint\", \"st", {"c.safetensors"}, true, true},
               {"", {}, false, true},
               {"", {"c.safetensors"}, false, false},
               {"none", {}, false, true},
               {"none", {"a"}, false, false},
               {"none", {".manifest.json.tmp.1.2"}, false, true},
               {foreign, {}, false, false},
               {foreign, {"a"}, false, false},
               {listed + std::string(io::max_manifest_bytes - listed.size(), ' '), {"a"}, true, true},
               {long_one, {"a"}, false, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE("case " + std::to_string(&c - cases));
    const TemporaryDirectory dir;
    const std::string folder = dir / "c";
    fs::create_directory(folder);
    Names names;
    if (c.manifest != "none") dir.file("c/manifest.json", c.manifest), names.insert("manifest.json");
    for (std::string name : c.files) {
      const char kind = name.back();
      if (kind == '/' || kind == '>') name = "a";
      if (kind == '/')
        fs::create_directory(folder + "/a");
      else if (kind == '>')
        fs::create_symlink("nowhere", folder + "/a");
      else
        dir.file("c/" + name, "x");
      names.insert(name);
    }
    EXPECT_EQ(io::is_checkpoint(folder), c.is_checkpoint);
    EXPECT_EQ(io::holds_only_own_files(folder), c.is_own);
    fs::create_symlink("c", dir / "link");
    EXPECT_FALSE(io::is_checkpoint(dir / "link") || io::holds_only_own_files(dir / "link"));
    EXPECT_TRUE(io::is_directory_itself(folder) && !io::is_directory_itself(dir / "link"));
    io::remove_checkpoint(dir / "link");
    EXPECT_EQ(names_in(folder), names);
    io::remove_checkpoint(folder);
    EXPECT_EQ(fs::exists(folder), !c.is_own);
    if (!c.is_own) {
      EXPECT_EQ(names_in(folder), names);
    }
  }
  EXPECT_FALSE(io::is_directory_itself("/none") || io::holds_only_own_files("/none") ||
               io::is_checkpoint("/dev/null"));
}

// Checks the files and the manifest while a checkpoint is written, and after writing the second file has
// failed.
TEST(CheckpointFolder, IsMarkedBeforeTheFirstFile) {
  const TemporaryDirectory dir;
  const Parameter w("w", Array({2}, f32)), bad("w", Array::of<float>({2}, {1, NAN}));
  const std::vector<io::CheckpointFile> files = {{"a.safetensors", {w}, {}}, {"b.safetensors", {bad}, {}}};
  EXPECT_EQ(error_of([&] {
              io::write_checkpoint(dir / "c", 4, 2, files);
            }).find("[checkpoint] b.safetensors of step 4 is not saved: w has "),
            0u);
  EXPECT_EQ(names_in(dir / "c"), (Names{"a.safetensors", "manifest.json"}));
  EXPECT_EQ(io::read_file(dir / "c/manifest.json", "test"),
            io::to_json({.step = 4, .best_step = 2, .unfinished = {"a.safetensors", "b.safetensors"}}));
  EXPECT_TRUE(io::holds_only_own_files(dir / "c"));
  EXPECT_EQ(error_of([&] {
              io::Checkpoint(dir / "c");
            }).find("[checkpoint] " + (dir / "c/manifest.json") + ": no files: its writer was stopped"),
            0u);
  for (const std::string name : {"c", "file"}) {
    if (name == "file") dir.file(name, "x");
    EXPECT_NE(error_of([&] {
                io::write_checkpoint(dir / name, 4, 2, {files.data(), 1});
              }).find("[checkpoint] cannot create " + (dir / name) + ": "),
              std::string::npos);
  }
  EXPECT_EQ(error_of([&] {
              io::write_checkpoint(dir / "c", 4, 2, {files.data(), 1});
            }),
            "[checkpoint] cannot create " + (dir / "c") + ": it exists; move it away");
  EXPECT_EQ(error_of([&] {
              io::write_checkpoint(dir / "none/c", 4, 2, {files.data(), 1});
            }),
            "[checkpoint] cannot create " + (dir / "none/c") + ": No such file or directory");
  EXPECT_EQ(error_of([&] { io::write_checkpoint(dir / "zero", 0, 0, {files.data(), 1}); }), "no error");
  EXPECT_EQ(io::Checkpoint(dir / "zero").step(), 0);
}

TEST(CheckpointFolder, StepsAreNamesOfEightDigitsOrMore) {
  const TemporaryDirectory dir;
  io::CheckpointStore store(dir / "run");
  const std::pair<std::string, bool> names[] = {{"step-00000005", true},
                                                {"step-0000005", false},
                                                {"step-00000005x", false},
                                                {"step-000000005", true},
                                                {"step-+0000005", false},
                                                {"xstep-00000005", false},
                                                {"step_00000005", false},
                                                {"step-00000004", false},
                                                {"step-00000007", false},
                                                {"step-00000006", true},
                                                {"step-99999999999999999999999999", false}};
  for (const auto& [name, is_refused] : names) {
    fs::create_directory(dir / ("run/" + name));
    EXPECT_EQ(error_of([&] { store.require_free_steps(5, 6); }),
              is_refused ? "[checkpoint] " + (dir / ("run/" + name)) +
                               " is in the way: no manifest marks it as a checkpoint; move it away"
                         : "no error")
        << name;
    fs::remove(dir / ("run/" + name));
  }
  const Parameter w("w", Array({2}, f32));
  const std::vector<io::CheckpointFile> files = {{"a.safetensors", {w}, {}}};
  store.save(123456789012, 3, files);
  EXPECT_EQ(names_in(dir / "run"), (Names{"last", "run.json", "step-123456789012"}));
  EXPECT_EQ(io::Checkpoint(dir / "run").step(), 123456789012);
}

// In the copy of a run, a link has become a folder. The checkpoint that was the target of the link exists or
// is missing.
TEST(CheckpointFolder, CopiedLinksBecomeLinksAgain) {
  const Parameter w("w", Array({2}, f32));
  const std::vector<io::CheckpointFile> files = {{"a.safetensors", {w}, {}}};
  for (const bool has_target : {true, false})
    for (const std::string link : {"last", "best"}) {
      const TemporaryDirectory dir;
      {
        io::CheckpointStore store(dir / "run");
        store.save(1, 1, files), store.save(2, 1, files);
      }
      const std::string target = fs::read_symlink(dir / ("run/" + link)).string();
      fs::remove(dir / ("run/" + link));
      fs::copy(dir / ("run/" + target), dir / ("run/" + link));
      if (!has_target) fs::remove_all(dir / ("run/" + target));
      io::CheckpointStore store(dir / "run");
      EXPECT_EQ(names_in(dir / "run"), (Names{"best", "last", "run.json", "step-00000001", "step-00000002"}));
      EXPECT_EQ(fs::read_symlink(dir / "run/last"), "step-00000002");
      EXPECT_EQ(fs::read_symlink(dir / "run/best"), "step-00000001");
    }
}

TEST(CheckpointFolder, MarkerListsTheNamesOfARun) {
  const TemporaryDirectory dir;
  const auto text = [](const std::string& names) {
    return "{\n  \"format\": \"tilegrad run\",\n  \"version\": 1,\n  \"files\": [" + names + "]\n}\n";
  };
  io::RunMarker marker(dir.path);
  EXPECT_EQ(marker.path(), dir / "run.json");
  EXPECT_FALSE(fs::exists(marker.path()));
  marker.add("last"), marker.add("a \"b\"");
  EXPECT_EQ(io::read_file(marker.path(), "test"), text("\"a \\\"b\\\"\", \"last\""));
  EXPECT_TRUE(marker.has("last") && io::RunMarker(dir.path).has("last") &&
              io::RunMarker(dir.path).has("a \"b\""));
  EXPECT_FALSE(marker.has("best") || io::RunMarker(dir.path).has("best"));
  const auto before = fs::last_write_time(marker.path());
  struct stat one {
  }, two{};
  ASSERT_EQ(::stat(marker.path().c_str(), &one), 0);
  marker.add("last");  // the file is not written again
  ASSERT_EQ(::stat(marker.path().c_str(), &two), 0);
  EXPECT_EQ(one.st_ino, two.st_ino);
  EXPECT_EQ(before, fs::last_write_time(marker.path()));
  marker.remove();
  EXPECT_FALSE(fs::exists(marker.path()) || marker.has("last"));
  // If a name could not be written, the marker does not list it.
  fs::create_directory(marker.path());
  EXPECT_NE(error_of([&] { marker.add("last"); }), "no error");
  EXPECT_FALSE(marker.has("last"));
  fs::remove(marker.path());
  dir.file("run.json", quoted("{|more|: {}, |files|: [|x|], |version|: 1, |format|: |tilegrad run|}"));
  EXPECT_TRUE(io::RunMarker(dir.path).has("x"));
  const std::string is_not =
      "[checkpoint] " + marker.path() + " is not the list of files of a run: got format ";
  for (const auto& [json, got] :
       {std::pair("{|version|: 1, |format|: |tilegrad|}", "\"tilegrad\", version 1"),
        {"{|version|: 2, |format|: |tilegrad run|}", "\"tilegrad run\", version 2"},
        {"{|version|: 1}", "\"\", version 1"},
        {"{|format|: |tilegrad run|}", "\"tilegrad run\", version 0"}}) {
    dir.file("run.json", quoted(json));
    EXPECT_EQ(error_of([&] { io::RunMarker(dir.path).has("x"); }),
              is_not + got + ", expected \"tilegrad run\", version 1; move it away");
  }
  dir.file("run.json", quoted("{|version|: 1, |format|: |tilegrad run|} x"));
  EXPECT_NE(error_of([&] { io::RunMarker(dir.path).has("x"); }).find("text after the end"),
            std::string::npos);
}

// ---- Numbers

// The numbers are at an odd address. They are converted from each floating-point type to each other type.
TEST(ConvertedNumbers, AreRoundedOnceAndTheFirstThatIsTooLargeIsNamed) {
  const std::vector<double> numbers = {1,       1 + 0x1p-8, 1 + 0x1p-11, -0.0,     65504,     -65504,
                                       0x1p-24, 0x1p-25,    3e-39,       INFINITY, -INFINITY, NAN};
  const auto n = std::ssize(numbers);
  for (const DType from : {f64, f32, bf16, f16})
    for (const DType to : {f64, f32, bf16, f16}) {
      Array values({n}, from);
      for (std::int64_t i = 0; i < n; ++i) values.set(i, numbers[static_cast<std::size_t>(i)]);
      std::vector<std::byte> memory(values.bytes() + 1);
      const auto converted = [&](std::int64_t first) {
        std::memcpy(memory.data() + 1, values.raw(), values.bytes());
        return io::converted({from, {n}, std::span(memory).subspan(1)}, {n}, to, "here", "w", first);
      };
      const bool is_lost = to == f16 && from == bf16;  // 65504 becomes 65536 in bf16
      if (is_lost)
        EXPECT_EQ(error_of([&] { converted(100); }),
                  "here: w has 65536.000000 at element 104, too large for f16");
      else
        EXPECT_TRUE(converted(0).same_bits(values.to(to))) << name_of(from) << " to " << name_of(to);
      if (from == f16 || (from == bf16 && to != f16) || to == f64 || (from == f32 && to == f32)) continue;
      values.set(4, 0);
      values.set(5, 0),
          values.set(7, from == f64    ? -1e308
                        : from == bf16 ? -3.3e38
                                       : -3.4e38),
          values.set(8, from == f64    ? 1e308
                        : from == bf16 ? 3.3e38
                                       : 3.4e38);
      const std::string error = error_of([&] { converted(0); });
      if (from == f32 && to == bf16) {
        EXPECT_EQ(error.find("here: w has -339999995"), 0u) << error;
      }
      EXPECT_NE(error.find(" at element 7, too large for " + std::string(name_of(to))), std::string::npos)
          << error;
    }
}

TEST(ConvertedNumbers, FirstNonFiniteIsNumberedFromTheGivenStart) {
  Array values({5}, f32);
  const std::span<const std::byte> bytes(values.raw(), values.bytes());
  EXPECT_EQ(error_of([&] { io::require_finite(bytes, f32, "w", 10); }), "no error");
  values.set(3, NAN);
  EXPECT_EQ(error_of([&] { io::require_finite(bytes, f32, "w", 10); }),
            "w has a number that is not finite at element 13");
  EXPECT_EQ(error_of([&] { io::require_finite(bytes, f32, "w"); }),
            "w has a number that is not finite at element 3");
  for (const DType whole : {i64, i32, u8, boolean})
    EXPECT_EQ(error_of([&] { io::require_finite(bytes, whole, "w"); }), "no error");
}

// ---- Tensors and settings

TEST(TensorCheck, NamesTheDifference) {
  const io::TensorMap tensors = {{"w", {bf16, {2, 3}, {}}}, {"s", {f32, {}, {}}}};
  const auto error = [&](const std::string& name, const Shape& shape, std::optional<DType> dtype) {
    return error_of([&] {
      const io::TensorView& found = io::tensor_like(tensors, name, shape, dtype, "here");
      EXPECT_EQ(&found, &tensors.at(name));
    });
  };
  EXPECT_EQ(error("w", {2, 3}, bf16), "no error");
  EXPECT_EQ(error("w", {2, 3}, std::nullopt), "no error");
  EXPECT_EQ(error("s", {}, f32), "no error");
  EXPECT_EQ(error("v", {2, 3}, bf16), "here: has no tensor v");
  EXPECT_EQ(error("w", {2, 3}, f16), "here: w is bf16 [2, 3], expected f16 [2, 3]");
  EXPECT_EQ(error("w", {3, 2}, std::nullopt), "here: w is bf16 [2, 3], expected bf16 [3, 2]");
  EXPECT_EQ(error("w", {2}, bf16), "here: w is bf16 [2, 3], expected bf16 [2]");
  EXPECT_EQ(error("s", {1}, f32), "here: s is f32 [], expected f32 [1]");
}

TEST(TensorCheck, SettingsOfTheSameLayersAreCompared) {
  nn::Params params;
  nn::RmsNorm(nn::Path(params) / "h" / 0 / "ln", 8, 1e-3);
  const auto error = [&](const std::string& name, const std::string& value,
                         io::OtherSettings others = io::OtherSettings::ignore) {
    return error_of([&] {
      io::check_settings(params.all(), {{name, value}, {"zzz", "1"}, {"a", "1"}}, "here", others);
    });
  };
  const std::string differs = "here: its weights belong to a model with h.0.ln.";
  EXPECT_EQ(error("setting.h.0.ln.eps", "0.001"), "no error");
  EXPECT_EQ(error("setting.h.0.ln.eps", "0.01"), differs + "eps = 0.01, this one has 0.001");
  EXPECT_EQ(error("setting.h.0.ln.more", "1"), differs + "more = 1, this one has no such setting");
  EXPECT_EQ(error("setting.h.0.ln.eps", std::string(90, '7')),
            differs + "eps = " + std::string(80, '7') + "…, this one has 0.001");
  for (const std::string other : {"setting.h.1.ln.eps", "setting.h.0.eps", "setting.eps", "setting.x.eps"}) {
    EXPECT_EQ(error(other, "5"), "no error") << other;
    EXPECT_NE(error(other, "5", io::OtherSettings::refuse), "no error") << other;
  }
  EXPECT_EQ(error("settings.h.0.ln.eps", "5", io::OtherSettings::refuse), "no error");
  io::Metadata metadata{{"k", "v"}};
  io::add_settings(params.all(), metadata);
  EXPECT_EQ(metadata, (io::Metadata{{"k", "v"}, {"setting.h.0.ln.eps", "0.001"}}));
}

}  // namespace
