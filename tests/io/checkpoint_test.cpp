// Tests checkpoints: saving and loading, invalid files, and the links of a store.
#include <tilegrad/io/checkpoints/checkpoint_store.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/train/metrics.h>
#include <tilegrad/train/training.h>
#include "core/base/hash.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
namespace fs = std::filesystem;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;

nn::ModelConfig small(double dropout = 0) {
  return {.vocabulary = 13, .context = 16, .layers = 2, .heads = 2, .width = 32, .dropout = dropout};
}

void put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const FormatError& e) {
    return e.what();
  }
  return "no FormatError";
}

// A model in training. The batches depend only on the step.
struct Training {
  nn::Params params;
  nn::Model model;
  optim::AdamW optimizer;
  train::TrainingProgram program;
  explicit Training(std::uint64_t seed, int threads = 1)
      : params(seed),
        model(params, small(0.2)),
        optimizer(params.all()),
        program(model, optimizer, {.batch = 2, .threads = threads}, 5) {}

  std::vector<float> run(std::int64_t first, std::int64_t last) {
    std::vector<float> losses;
    for (std::int64_t step = first; step <= last; ++step) {
      std::vector<std::int32_t> x, y;
      for (std::int64_t i = 0; i < 2 * 16; ++i) {
        x.push_back(static_cast<std::int32_t>((i * i + step) % 13));
        y.push_back(static_cast<std::int32_t>((i * step) % 13));
      }
      const auto result = program.run(x, y, 1e-2);
      losses.push_back(result.loss), losses.push_back(result.grad_norm);
    }
    return losses;
  }
  std::vector<io::CheckpointFile> files() const {
    return {{"model.safetensors", params.all(), {{"characters", "abc"}}},
            {"optimizer.safetensors", optimizer.state()}};
  }
  std::vector<Array> values() const {
    std::vector<Array> all;
    for (const io::CheckpointFile& f : files())
      for (const Parameter& p : f.parameters) all.push_back(p.read());
    return all;
  }
};

void expect_same_bits(const std::vector<Array>& a, const std::vector<Array>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].same_bits(b[i])) << i;
}

TEST(Checkpoint, TenPlusTenStepsEqualTwentyByteForByte) {
  const TemporaryDirectory dir;
  Training whole(1);
  const auto losses = whole.run(1, 20);
  Training first(1);
  auto halves = first.run(1, 10);
  io::write_checkpoint(dir / "c", 10, 0, first.files());

  Training second(2, 2);  // different weights and threads
  const io::Checkpoint checkpoint(dir / "c");
  EXPECT_EQ(checkpoint.step(), 10);
  EXPECT_EQ(checkpoint.load("model.safetensors").metadata.at("characters"), "abc");
  checkpoint.restore(second.files());
  expect_same_bits(second.values(), first.values());
  second.program.program().set_step(checkpoint.step());
  const auto rest = second.run(11, 20);
  halves.insert(halves.end(), rest.begin(), rest.end());
  EXPECT_EQ(halves, losses);
  expect_same_bits(second.values(), whole.values());
}

TEST(Checkpoint, RefusesEveryChangedByteAndChangesNothing) {
  const TemporaryDirectory dir;
  const Parameter w("w", Array::of<float>({2, 3}, {1, 2, 3, 4, 5, 6})), m("m", Array({3}, f32));
  const std::vector<io::CheckpointFile> files = {{"model.safetensors", {w}, {{"step", "3"}}},
                                                 {"optimizer.safetensors", {m}}};
  io::write_checkpoint(dir / "c", 3, 3, files);
  const std::vector<Array> before = {w.read(), m.read()};
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string path = dir / ("c/" + std::string(name)), good = io::read_file(path, "test");
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 0x11);
      put(path, bad);
      try {
        const io::Checkpoint c(dir / "c");
        c.restore(files);
        // The manifest's checksum covers everything except the steps.
        EXPECT_TRUE(c.step() != 3 || c.best_step() != 3) << name << " byte " << i;
      } catch (const FormatError& e) {
        EXPECT_NE(std::string(e.what()).find(dir / "c/"), std::string::npos) << e.what();
        expect_same_bits({w.read(), m.read()}, before);
      }
    }
    for (const std::size_t cut : {std::size_t{0}, good.size() / 2, good.size() - 2}) {
      put(path, good.substr(0, cut));
      EXPECT_THROW(io::Checkpoint(dir / "c").restore(files), FormatError) << name << " cut at " << cut;
    }
    put(path, good);
  }
  EXPECT_NO_THROW(io::Checkpoint(dir / "c").restore(files));
}

// The parameters differ from the files. If the second file is refused, the first file must not be loaded,
// although it is valid.
TEST(Checkpoint, ARefusedFileKeepsAllParameters) {
  const TemporaryDirectory dir;
  Parameter w("w", Array::of<float>({2}, {1, 2}));
  const Parameter m("m", Array({3}, f32)), longer("m", Array({4}, f32));
  io::write_checkpoint(dir / "c", 3, 3,
                       std::vector<io::CheckpointFile>{{"a.safetensors", {w}}, {"b.safetensors", {m}}});
  w.write(Array::of<float>({2}, {7, 8}));
  EXPECT_THROW(io::Checkpoint(dir / "c").restore(
                   std::vector<io::CheckpointFile>{{"a.safetensors", {w}}, {"b.safetensors", {longer}}}),
               FormatError);
  EXPECT_EQ(w.read().values<float>(), (std::vector<float>{7, 8}));
}

TEST(Checkpoint, ErrorsStateTheExpectation) {
  const TemporaryDirectory dir;
  const Parameter w("w", Array({2, 3}, f32)), wide("w", Array({2, 4}, f32)), half("w", Array({2, 3}, bf16)),
      other("v", Array({2, 3}, f32));
  const auto with = [](const std::vector<Parameter>& p) {
    return std::vector<io::CheckpointFile>{{"model.safetensors", p}};
  };
  io::write_checkpoint(dir / "c", 1, 0, with({w}));
  const std::string file = "[checkpoint] " + (dir / "c/model.safetensors") + ": ";
  const auto restoring = [&](const std::vector<Parameter>& p) {
    return message_of([&] { io::Checkpoint(dir / "c").restore(with(p)); });
  };
  EXPECT_EQ(restoring({wide}), file + "w is f32 [2, 3], expected f32 [2, 4]");
  EXPECT_EQ(restoring({half}), file + "w is f32 [2, 3], expected bf16 [2, 3]");
  EXPECT_EQ(restoring({other}), file + "has no tensor v");
  EXPECT_EQ(restoring({}), file + "has a tensor w that the model does not have");
  EXPECT_EQ(message_of([&] { io::Checkpoint(dir / "c").load("run.safetensors"); }),
            "[checkpoint] " + (dir / "c/run.safetensors") + ": is not in manifest.json");
  fs::remove(dir / "c/model.safetensors");
  EXPECT_EQ(restoring({w}), file + "is missing, though it is in manifest.json");
  try {
    io::Checkpoint(dir / "nothing");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "[checkpoint] there is no checkpoint in " + (dir / "nothing"));
  }
}

TEST(Checkpoint, AMatchingChecksumDoesNotMakeAnInvalidFileValid) {
  const TemporaryDirectory dir;
  const Parameter w("w", Array({2}, f32));
  const std::vector<io::CheckpointFile> files = {{"model.safetensors", {w}}};
  io::write_checkpoint(dir / "c", 1, 0, files);
  std::string content = io::read_file(dir / "c/model.safetensors", "test");
  content.replace(content.find("[0,8]"), 5, "[8,0]");
  put(dir / "c/model.safetensors", content);
  const std::string_view piece = content;
  put(dir / "c/manifest.json",
      io::to_json(io::Manifest{1, 0, {{"model.safetensors", {content.size(), xxh3_128({&piece, 1})}}}}));
  EXPECT_NE(message_of([&] { io::Checkpoint(dir / "c").restore(files); }).find("begins at 8, a hole"),
            std::string::npos);
}

TEST(Checkpoint, ANonFiniteParameterIsNamed) {
  Parameter ids("ids", Array::of<std::int64_t>({2}, {1, 2})), w("w", Array::of<float>({2, 2}, {1, 2, 3, 4}));
  EXPECT_NO_THROW(io::check_finite({ids, w}, "here"));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    w.write(Array::of<float>({2, 2}, {1, 2, bad, 4}));
    const std::string m = message_of([&] { io::check_finite({ids, w}, "here"); });
    EXPECT_EQ(m.find("here: w has "), 0u) << m;
    EXPECT_NE(m.find(" at element 2"), std::string::npos) << m;
  }
}

// Without the check, only the second parameter would be saved.
TEST(Checkpoint, TwoParametersOfOneNameAreRefusedWhenSavedOrLoaded) {
  const TemporaryDirectory dir;
  const Parameter w("w", Array({2}, f32)), twin("w", Array({2}, f32));
  const std::string two =
      ": two parameters are named w: a file holds one of that name, so give them different names or "
      "separate files";
  const std::string path = dir / "one.safetensors";
  EXPECT_EQ(error_of([&] { io::save_parameters(path, {w, twin}); }), "[checkpoint] " + path + two);
  EXPECT_FALSE(fs::exists(path));
  const std::vector<io::CheckpointFile> files = {{"model.safetensors", {w, twin}}};
  io::CheckpointStore store(dir / "run");
  EXPECT_EQ(error_of([&] { store.save(3, 0, files); }), "[checkpoint] model.safetensors of step 3" + two);
  EXPECT_FALSE(store.has_checkpoint());
  io::save_parameters(path, {w});
  EXPECT_EQ(error_of([&] { io::load_parameters(path, {w, twin}); }), "[checkpoint] " + path + two);
  // The step counts of two optimizers have the same name.
  Training a(1), b(2);
  std::vector<Parameter> states = a.optimizer.state();
  for (const Parameter& p : b.optimizer.state()) states.push_back(p);
  EXPECT_NE(error_of([&] { io::save_parameters(path, states); }).find("two parameters are named optimizer."),
            std::string::npos);
}

TEST(Checkpoint, NonFiniteWeightsAreRejectedAndLastSaveKept) {
  const TemporaryDirectory dir;
  Parameter w("w", Array::of<float>({3}, {1, 2, 3}));
  const std::vector<io::CheckpointFile> files = {{"model.safetensors", {w}}};
  io::CheckpointStore store(dir / "run");
  store.save(1, 1, files);
  io::save_parameters(dir / "alone", {w});
  const std::string before = io::read_file(dir / "alone", "test");
  for (const DType dtype : {f32, f64, bf16, f16})
    for (const double bad :
         {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
      Array values({3}, dtype);
      values.set(2, bad);
      const Parameter lost("w", values);
      const std::vector<io::CheckpointFile> others = {{"model.safetensors", {lost}}};
      EXPECT_NE(error_of([&] {
                  store.save(2, 2, others);
                }).find("model.safetensors of step 2 is not saved: w has "),
                std::string::npos);
      EXPECT_NE(error_of([&] { io::save_parameters(dir / "alone", {lost}); }).find("at element 2"),
                std::string::npos);
    }
  EXPECT_EQ(io::Checkpoint(dir / "run").step(), 1);
  EXPECT_NO_THROW(io::Checkpoint(dir / "run").restore(files));
  EXPECT_EQ(io::read_file(dir / "alone", "test"), before);
  EXPECT_EQ(w.read().at(2), 3);
}

TEST(Manifest, ReadsExactlyItsOwnFormat) {
  const io::Manifest m{7, 5, {{"a.safetensors", {12, std::string(32, 'a')}}}};
  const std::string good = io::to_json(m);
  const io::Manifest back = io::parse_manifest(good, "m");
  EXPECT_EQ(back.step, 7);
  EXPECT_EQ(back.best_step, 5);
  EXPECT_EQ(back.files.at("a.safetensors").bytes, 12u);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string s = good;
    s.replace(s.find(from), from.size(), to);
    return message_of([&] { io::parse_manifest(s, "m"); });
  };
  EXPECT_NE(changed("tilegrad checkpoint", "archive").find("format is \"archive\""), std::string::npos);
  EXPECT_NE(changed("\"version\": 1", "\"version\": 2").find("version is 2, expected 1"), std::string::npos);
  EXPECT_NE(changed("\"step\": 7", "\"step\": -7").find("not negative"), std::string::npos);
  EXPECT_NE(changed("\"best_step\"", "\"worst_step\"").find("must be present"), std::string::npos);
  EXPECT_NE(changed("12", "-12").find("negative size"), std::string::npos);
  EXPECT_NE(changed("aaaa", "aaa").find("32 hexadecimal digits"), std::string::npos);
  EXPECT_NE(changed("\"bytes\"", "\"bites\"").find("no size"), std::string::npos);
  for (const char* name : {"/etc/passwd", "../a", ".", "..", "", "b/c", "a\\u0000"})
    EXPECT_NE(changed("a.safetensors", name).find("not a plain name"), std::string::npos) << name;
}

TEST(Hash, PiecesMatchTheWholeAndXxh128sum) {
  const std::string_view whole = "a checkpoint", pieces[] = {"a ", "", "check", "point"};
  EXPECT_EQ(xxh3_128(pieces), xxh3_128({&whole, 1}));
  EXPECT_EQ(xxh3_128({}), "99aa06d3014798d86001c324468d497f");
}

class Store : public ::testing::Test {
 protected:
  std::vector<std::string> names(const std::string& run) const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(dir / run))
      if (entry.path().filename() != "run.json") all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }
  std::string target(const std::string& link) const { return fs::read_symlink(dir / link).string(); }
  using Names = std::vector<std::string>;

  TemporaryDirectory dir;
  const Parameter w{"w", Array({2}, f32)};
  const std::vector<io::CheckpointFile> files = {{"model.safetensors", {w}}};
};

TEST_F(Store, KeepsTheLastAndTheBest) {
  io::CheckpointStore store(dir / "a/run");
  EXPECT_FALSE(store.has_checkpoint());
  store.save(1, 1, files);
  EXPECT_EQ(names("a/run"), (Names{"best", "last", "step-00000001"}));
  store.save(2, 1, files);
  store.save(3, 1, files);
  EXPECT_EQ(names("a/run"), (Names{"best", "last", "step-00000001", "step-00000003"}));
  EXPECT_EQ(io::Checkpoint(dir / "a/run").step(), 3);
  EXPECT_EQ(io::Checkpoint(dir / "a/run/best").step(), 1);
  store.save(4, 4, files);
  EXPECT_EQ(names("a/run"), (Names{"best", "last", "step-00000004"}));
  EXPECT_THROW(io::CheckpointStore(dir / "a/run"), Error);  // a reader uses it
  store.clear();
  EXPECT_EQ(names("a/run"), Names{});
}

TEST_F(Store, RemovesOnlyTheLeftoversOfAKilledRun) {
  io::CheckpointStore(dir / "run").save(5, 5, files);
  fs::create_directory(dir / "run/.checkpoint-tmp");
  put(dir / "run/.checkpoint-tmp/manifest.json", io::to_json(io::Manifest{6, 5}));
  put(dir / "run/.checkpoint-tmp/model.safetensors", "cut");
  fs::create_symlink("step-00000006", dir / "run/.checkpoint-tmp-last");
  fs::copy(dir / "run/step-00000005", dir / "run/step-00000003");
  put(dir / "run/step-by-step.txt", "mine");
  io::CheckpointStore store(dir / "run");
  EXPECT_EQ(names("run"), (Names{"best", "last", "step-00000005", "step-by-step.txt"}));
}

// If another program wrote a file with a name that a run uses, the store refuses to open.
TEST_F(Store, ForeignFilesAreRefusedBeforeAnythingChanges) {
  const std::string elsewhere = dir / "elsewhere";
  fs::create_directory(elsewhere);
  put(elsewhere + "/manifest.json", io::to_json(io::Manifest{2, 0}));
  put(dir / "outside", "precious");
  const std::pair<const char*, std::function<void(const std::string&)>> foreign[] = {
      {"file", [](const std::string& path) { put(path, "mine"); }},
      {"folder",
       [](const std::string& path) {
         fs::create_directory(path);
         put(path + "/precious", "mine");
       }},
      {"other manifest",
       [](const std::string& path) {
         fs::create_directory(path);
         put(path + "/manifest.json", "{\"manifest_version\": 3}");
       }},
      {"link to a file", [&](const std::string& path) { fs::create_symlink(dir / "outside", path); }},
      {"link to a checkpoint elsewhere",
       [&](const std::string& path) { fs::create_symlink(elsewhere, path); }},
      {"dangling link", [](const std::string& path) { fs::create_symlink("nowhere", path); }},
      {"pipe", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }}};
  for (const std::string name :
       {"last", "best", "step-00000001", ".checkpoint-tmp", ".checkpoint-tmp-removed", ".checkpoint-tmp-last",
        ".checkpoint-tmp-best", "run.json"})
    for (const auto& [kind, make] : foreign)
      for (const bool after_run : {false, true}) {
        fs::remove_all(dir / "run");
        fs::create_directory(dir / "run");
        if (after_run) io::CheckpointStore(dir / "run").save(5, 5, files);
        fs::remove_all(dir / ("run/" + name));
        make(dir / ("run/" + name));
        const auto before = names("run");
        const std::string error = error_of([&] {
          io::CheckpointStore store(dir / "run");
          store.require_free_steps(1, 4);
        });
        EXPECT_NE(error.find(dir / ("run/" + name)), std::string::npos)
            << name << ", " << kind << ": " << error;
        EXPECT_EQ(names("run"), before) << name << ", " << kind;
        if (after_run && name != "last" && name != "run.json") {
          EXPECT_EQ(io::Checkpoint(dir / "run").step(), 5) << name << ", " << kind;
        }
      }
  EXPECT_EQ(io::read_file(dir / "outside", "test"), "precious");
  EXPECT_TRUE(fs::exists(elsewhere + "/manifest.json"));
}

// If a directory with such a name appears while the store is open, the store neither removes nor replaces it.
TEST_F(Store, ForeignFoldersThatAppearLaterAreKept) {
  io::CheckpointStore store(dir / "run");
  store.save(1, 1, files);
  fs::create_directory(dir / "run/step-00000002");  // an empty directory
  fs::create_directory(dir / "run/step-00000003");
  put(dir / "run/step-00000003/precious", "mine");
  store.save(4, 4, files);
  EXPECT_EQ(names("run"), (Names{"best", "last", "step-00000002", "step-00000003", "step-00000004"}));
  EXPECT_EQ(error_of([&] { store.save(3, 3, files); }),
            "[checkpoint] " + (dir / "run/step-00000003") +
                " is in the way: no manifest marks it as a checkpoint; move it away");
  fs::create_directory(dir / "run/.checkpoint-tmp");
  put(dir / "run/.checkpoint-tmp/precious", "mine");
  EXPECT_EQ(error_of([&] { store.save(5, 5, files); }),
            "[checkpoint] cannot create " + (dir / "run/.checkpoint-tmp") + ": it exists; move it away");
  EXPECT_EQ(io::Checkpoint(dir / "run").step(), 4);
  EXPECT_EQ(io::read_file(dir / "run/.checkpoint-tmp/precious", "test"), "mine");
}

// Links and files without a mark in run.json do not belong to a run, even if they look like it.
TEST_F(Store, OnlyMarkedNamesAreReplaced) {
  io::CheckpointStore(dir / "run").save(5, 5, files);
  put(dir / "run/metrics.jsonl", "mine");
  {
    io::CheckpointStore store(dir / "run");
    EXPECT_EQ(error_of([&] { store.claim("metrics.jsonl"); }),
              "[checkpoint] " + (dir / "run/metrics.jsonl") +
                  " is in the way: no run.json marks it as written by a run; move it away");
    fs::remove(dir / "run/metrics.jsonl");
    store.claim("metrics.jsonl");
    put(dir / "run/metrics.jsonl", "the run's");
  }
  {
    io::CheckpointStore store(dir / "run");
    EXPECT_NO_THROW(store.require_own("metrics.jsonl"));
    fs::remove(dir / "run/metrics.jsonl");
    fs::create_symlink("elsewhere", dir / "run/metrics.jsonl");
    EXPECT_NE(error_of([&] { store.require_own("metrics.jsonl"); }).find("symbolic link"), std::string::npos);
  }
  fs::remove(dir / "run/run.json");
  EXPECT_EQ(error_of([&] { io::CheckpointStore store(dir / "run"); }),
            "[checkpoint] " + (dir / "run/last") +
                " is in the way: no run.json marks it as written by a run; move it away");
}

// If another program puts a file into a checkpoint, the store removes neither the file nor the checkpoint.
TEST_F(Store, FilesAddedToACheckpointAreKept) {
  const std::string in_the_way =
      " is in the way: it has files that its manifest does not list, or that are not "
      "regular files; move it away";
  {
    io::CheckpointStore store(dir / "run");
    store.save(1, 1, files);
    put(dir / "run/step-00000001/notes.txt", "mine");
    store.save(2, 2, files);
    store.save(3, 3, files);
  }
  io::CheckpointStore store(dir / "run");
  EXPECT_EQ(names("run"), (Names{"best", "last", "step-00000001", "step-00000003"}));
  EXPECT_EQ(error_of([&] { store.require_free_steps(1, 9); }),
            "[checkpoint] " + (dir / "run/step-00000001") + in_the_way);
  EXPECT_EQ(error_of([&] { store.require_free_steps(2, 9); }), "no error");
  store.clear();
  EXPECT_EQ(names("run"), (Names{"step-00000001"}));
  EXPECT_EQ(io::read_file(dir / "run/step-00000001/notes.txt", "test"), "mine");
}

// If a process is killed while it creates or removes a checkpoint, the next run removes the leftovers.
TEST_F(Store, RemovesPartialCheckpoints) {
  io::CheckpointStore(dir / "run").save(5, 5, files);
  for (const std::string name : {".checkpoint-tmp", ".checkpoint-tmp-removed"})
    for (const std::string content : {"none", "", "{\"format\": \"tilegrad checkpoint\", \"st"}) {
      fs::create_directory(dir / ("run/" + name));
      if (content != "none") put(dir / ("run/" + name + "/manifest.json"), content);
      if (content.size() > 4) put(dir / ("run/" + name + "/model.safetensors"), "cut");
      { io::CheckpointStore store(dir / "run"); }
      EXPECT_EQ(names("run"), (Names{"best", "last", "step-00000005"})) << name << ", " << content;
    }
  // Removal starts with a rename. So if a folder still has its original name, it is complete.
  fs::copy(dir / "run/step-00000005", dir / "run/step-00000003");
  { io::CheckpointStore store(dir / "run"); }
  EXPECT_EQ(names("run"), (Names{"best", "last", "step-00000005"}));
}

// A writer replaces the checkpoint continuously, and a reader always reads exactly one checkpoint.
TEST_F(Store, AConcurrentReaderSeesWholeCheckpoints) {
  Parameter a("a", Array({64}, f32)), b("b", Array({64}, f32));
  const std::vector<io::CheckpointFile> two = {{"a.safetensors", {a}}, {"b.safetensors", {b}}};
  const auto save = [&](io::CheckpointStore& store, std::int64_t step) {
    for (Parameter* p : {&a, &b}) p->write(Array::of(std::vector<float>(64, static_cast<float>(step))));
    store.save(step, 0, two);
  };
  io::CheckpointStore store(dir / "run");
  save(store, 1);
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> saved{1};
  std::thread writer([&] {
    for (std::int64_t step = 2; !stop; saved = step++) save(store, step);
  });
  for (int i = 0; i < 300; ++i) {
    try {
      Parameter x("a", Array({64}, f32)), y("b", Array({64}, f32));
      const io::Checkpoint checkpoint(dir / "run");
      if (i % 10 == 0)  // until the store has removed it
        for (const std::int64_t now = saved; saved < now + 2;) std::this_thread::yield();
      checkpoint.restore(std::vector<io::CheckpointFile>{{"a.safetensors", {x}}, {"b.safetensors", {y}}});
      EXPECT_EQ(x.read().at(63), static_cast<double>(checkpoint.step()));
      EXPECT_EQ(y.read().at(0), static_cast<double>(checkpoint.step()));
      if (i % 10 == 0) {
        EXPECT_GT(io::Checkpoint(dir / "run").step(), checkpoint.step());
      }
    } catch (const Error& e) {
      ADD_FAILURE() << "read " << i << ": " << e.what();
    }
  }
  stop = true;
  writer.join();
}

// This writer only renames checkpoints. A rename can happen between any two calls of the reader.
TEST_F(Store, AReaderWhoseCheckpointIsRemovedReadsTheNext) {
  fs::create_directory(dir / "run");
  io::write_checkpoint(dir / "kept", 1, 0, files);
  const auto name = [&](int n) { return dir / ("run/step-" + std::to_string(n)); };
  const auto save = [&](int n) {
    fs::create_directory(name(n));
    for (const char* file : {"manifest.json", "model.safetensors"})
      fs::create_hard_link(dir / "kept" + "/" + file, name(n) + "/" + file);
    fs::create_symlink(name(n), dir / "run/fresh");
    fs::rename(dir / "run/fresh", dir / "run/last");
    if (n == 0) return;
    for (const char* file : {"/model.safetensors", "/manifest.json", ""}) fs::remove(name(n - 1) + file);
  };
  save(0);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int n = 1; !stop; ++n) save(n);
  });
  for (int i = 0; i < 5000 && !HasFailure(); ++i)
    EXPECT_EQ(error_of([&] { io::Checkpoint(dir / "run").load("model.safetensors"); }), "no error")
        << "read " << i;
  stop = true;
  writer.join();
}

TEST_F(Store, CompletesLinksAfterAKillBetweenRenameAndLink) {
  io::CheckpointStore(dir / "run").save(5, 5, files);
  // The run was killed before it created the first link.
  fs::remove(dir / "run/last"), fs::remove(dir / "run/best");
  { EXPECT_TRUE(io::CheckpointStore(dir / "run").has_checkpoint()); }
  EXPECT_EQ(target("run/last"), "step-00000005");
  EXPECT_EQ(target("run/best"), "step-00000005");
  // The run was killed between the two links.
  io::write_checkpoint(dir / "run/step-00000009", 9, 9, files);
  fs::remove(dir / "run/last");
  fs::create_symlink("step-00000009", dir / "run/last");
  { io::CheckpointStore store(dir / "run"); }
  EXPECT_EQ(target("run/best"), "step-00000009");
  EXPECT_EQ(names("run"), (Names{"best", "last", "step-00000009"}));
}

TEST_F(Store, LeavesADamagedRunUnchanged) {
  io::CheckpointStore(dir / "run").save(5, 5, files);
  fs::copy(dir / "run/step-00000005", dir / "run/step-00000003");
  put(dir / "run/last/manifest.json", "{");
  { io::CheckpointStore store(dir / "run"); }
  EXPECT_EQ(names("run"), (Names{"best", "last", "step-00000003", "step-00000005"}));
  EXPECT_THROW(io::Checkpoint(dir / "run"), FormatError);
}

TEST_F(Store, AFailedSaveLeavesEverythingUnchanged) {
  io::CheckpointStore store(dir / "run");
  store.save(5, 5, files);
  const auto before = names("run");
  const std::vector<io::CheckpointFile> bad = {{"model.safetensors", {w}}, {"no/such/directory", {w}}};
  EXPECT_THROW(store.save(6, 6, bad), Error);
  EXPECT_EQ(names("run"), before);
  EXPECT_EQ(io::Checkpoint(dir / "run").step(), 5);
}

// If a manifest contained these names, neither the manifest nor the checkpoint could be loaded.
TEST_F(Store, UnloadableNamesAreNotSaved) {
  io::CheckpointStore store(dir / "run");
  for (const std::string name : {"", "..", "../weights", "/tmp/weights", "a/b", ".hidden", "\xff", "a\nb"}) {
    const std::vector<io::CheckpointFile> bad = {{name, {w}}};
    EXPECT_NE(error_of([&] { store.save(1, 1, bad); }).find("expected a name without a folder"),
              std::string::npos);
  }
  EXPECT_THROW(store.save(-1, 0, files), Error);
  EXPECT_THROW(store.save(1, -1, files), Error);
  EXPECT_THROW(store.save(1, 1, {}), Error);
  EXPECT_EQ(names("run"), Names{});
}

TEST_F(Store, ABlockedLinkIsAnError) {
  io::CheckpointStore store(dir / "run");
  fs::create_symlink("step-00000001", dir / "run/step-00000001");
  EXPECT_NE(error_of([&] { store.save(1, 1, files); }).find("is in the way"), std::string::npos);
}

TEST(Metrics, RowsAfterACheckpointAreRemoved) {
  const TemporaryDirectory dir;
  const std::string path = dir / "metrics.jsonl";
  EXPECT_TRUE(train::cut_metrics(path, 3).empty());
  EXPECT_FALSE(fs::exists(path));
  put(path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n{\"st");
  EXPECT_EQ(train::cut_metrics(path, 9).size(), 4u);  // without the unfinished line
  EXPECT_EQ(train::cut_metrics(path, 2).size(), 2u);
  train::MetricsWriter(path, io::OutputFile::Start::append).write({.step = 3});
  const auto rows = train::read_metrics(path);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].step, 3);
  put(path, "{\"step\":1}\nnonsense\n");
  EXPECT_THROW(train::cut_metrics(path, 1), FormatError);
}

// The weights of the two models have the same names and shapes, but the models compute different functions.
void expect_refused(const std::function<void(nn::Params&)>& saved,
                    const std::function<void(nn::Params&)>& loaded, const std::string& what) {
  const TemporaryDirectory dir;
  const std::string path = dir / "model.safetensors";
  nn::Params params(1), same(2), other(3);
  saved(params), saved(same), loaded(other);
  io::save_parameters(path, params.all());
  EXPECT_NO_THROW(io::load_parameters(path, same.all()));
  const Array before = other.all()[0].read();
  EXPECT_EQ(error_of([&] { io::load_parameters(path, other.all()); }),
            "[checkpoint] " + path + ": its weights belong to a model with " + what);
  EXPECT_TRUE(other.all()[0].read().same_bits(before));
}

TEST(Settings, InvisibleSettingsAreSavedAndCompared) {
  const auto self = [](std::int64_t heads) {
    return [=](nn::Params& p) { nn::SelfAttention(nn::Path(p) / "h" / 0, 24, heads); };
  };
  expect_refused(self(6), self(3), "h.0.heads = 6, this one has 3");
  const auto grouped = [](nn::GroupedAttention::Options o, std::int64_t heads = 4) {
    return [=](nn::Params& p) { nn::GroupedAttention(p, 32, heads, o); };
  };
  expect_refused(grouped({}), grouped({.rope = {.theta = 5e5}}), "theta = 10000, this one has 5e+05");
  expect_refused(grouped({.rotate = false}), grouped({}), "rotate = false, this one has true");
  expect_refused(grouped({.rope = {.interleaved = true}}), grouped({}),
                 "interleaved = true, this one has false");
  expect_refused(grouped({.rope = {.dims = 4}}), grouped({}), "dims = 4, this one has 8");
  expect_refused(grouped({.rope = {.frequencies = {1, 0.5, 0.25, 0.1}}}), grouped({}),
                 "frequencies = 1 0.5 0.25 0.1, this one has no such setting");
  expect_refused(grouped({.rotate = false}), grouped({.head_width = 16, .rotate = false}, 2),
                 "heads = 4, this one has 2");
  const auto latent = [](double theta) {
    return
        [=](nn::Params& p) { nn::LatentAttention(p, 32, 2, {.latent = 6, .rope_width = 4, .theta = theta}); };
  };
  expect_refused(latent(1e4), latent(2e4), "theta = 10000, this one has 20000");
  const auto norm = [](double eps) {
    return [=](nn::Params& p) { nn::RmsNorm(nn::Path(p) / "ln", 8, eps); };
  };
  expect_refused(norm(1e-6), norm(1e-5), "ln.eps = 1e-06, this one has 1e-05");
  const auto layer_norm = [](double eps) {
    return [=](nn::Params& p) { nn::LayerNorm(nn::Path(p) / "ln", 8, true, eps); };
  };
  expect_refused(layer_norm(1e-5), layer_norm(1e-6), "ln.eps = 1e-05, this one has 1e-06");
}

TEST(Settings, AreComparedInCheckpoints) {
  const TemporaryDirectory dir;
  nn::Params six(1), three(2);
  nn::SelfAttention(nn::Path(six) / "attn", 24, 6), nn::SelfAttention(nn::Path(three) / "attn", 24, 3);
  const auto files = [](const nn::Params& p) {
    return std::vector<io::CheckpointFile>{{"model.safetensors", p.all()}};
  };
  io::write_checkpoint(dir / "c", 1, 0, files(six));
  EXPECT_EQ(message_of([&] { io::Checkpoint(dir / "c").restore(files(three)); }),
            "[checkpoint] " + (dir / "c/model.safetensors") +
                ": its weights belong to a model with attn.heads = 6, this one has 3");
}

// Files of other programs do not contain settings. Parameters without a model have no settings.
TEST(Settings, MissingSettingsAreNotCompared) {
  const TemporaryDirectory dir;
  const std::string path = dir / "model.safetensors";
  nn::Params params;
  nn::RmsNorm(nn::Path(params) / "ln", 8, 1e-3);
  const Parameter bare("ln.weight", Array({8}, f32));
  io::save_parameters(path, {bare});
  EXPECT_NO_THROW(io::load_parameters(path, params.all()));
  io::save_parameters(path, params.all());
  EXPECT_NO_THROW(io::load_parameters(path, {bare}));
  EXPECT_EQ(io::load_parameters(path, params.all()).at("setting.ln.eps"), "0.001");
}

TEST(Parameters, RoundTripIsBitwiseExact) {
  const TemporaryDirectory dir;
  const std::string path = dir / "model.safetensors";
  nn::Params params(1), fresh(2), wrong(3);
  const nn::Model model(params, small()), restored(fresh, small());
  nn::ModelConfig wider = small();
  wider.context = 17;
  const nn::Model misfit(wrong, wider);
  io::save_parameters(path, params.all(), {{"characters", "abc"}});
  EXPECT_EQ(io::load_parameters(path, fresh.all()).at("characters"), "abc");
  for (std::size_t i = 0; i < params.all().size(); ++i)
    EXPECT_TRUE(fresh.all()[i].read().same_bits(params.all()[i].read()));
  const Array before = wrong.all()[0].read();
  EXPECT_THROW(io::load_parameters(path, wrong.all()), FormatError);
  EXPECT_TRUE(wrong.all()[0].read().same_bits(before));
  nn::Params one;
  const Parameter part = one.create("transformer.wte.weight", {13, 32}, nn::Init::zeros());
  EXPECT_THROW(io::load_parameters(path, one.all()), FormatError);
  EXPECT_EQ(part.read().at(0), 0);
}

// Loads a parameter of any dtype from a file with any dtype.
TEST(Parameters, AreConvertedToADifferentFloatingDtypeOnRequest) {
  const TemporaryDirectory dir;
  const std::string path = dir / "w.safetensors";
  // The numbers include ties between neighbors of bf16 and f16, which round to even, and numbers that are
  // subnormal in f16.
  const std::vector<float> values{1,     1.00390625f, 1.01171875f, 1.00048828125f, -3.1415927f, 65000,
                                  3e-7f, 0,           -0.f};
  for (const DType from : {f64, f32, bf16, f16})
    for (const DType to : {f64, f32, bf16, f16}) {
      const Array saved = Array::of({9}, values).to(from);
      io::save_parameters(path, {Parameter("w", saved)});
      const Parameter w("w", Array({9}, to));
      if (from != to) {
        EXPECT_EQ(error_of([&] { io::load_parameters(path, {w}); }),
                  "[checkpoint] " + path + ": w is " + std::string(name_of(from)) + " [9], expected " +
                      std::string(name_of(to)) + " [9]");
        EXPECT_EQ(w.read().at(0), 0);
      }
      io::load_parameters(path, {w}, io::Dtypes::convert);
      EXPECT_TRUE(w.read().same_bits(saved.to(to))) << name_of(from) << " to " << name_of(to);
    }
  // Array::to() rounds to nearest, ties to even.
  const Array half = Array::of({9}, values).to(bf16);
  EXPECT_EQ(half.at(1), 1);
  EXPECT_EQ(half.at(2), 1.015625);
  EXPECT_EQ(Array::of({9}, values).to(f16).at(3), 1);
  io::save_parameters(path, {Parameter("w", Array::of<float>({1}, {65519}))});
  const Parameter w("w", Array({1}, f16));
  io::load_parameters(path, {w}, io::Dtypes::convert);
  EXPECT_EQ(w.read().at(0), 65504);
}

TEST(Parameters, UnrepresentableValuesAreRefusedByName) {
  const TemporaryDirectory dir;
  const std::string path = dir / "w.safetensors";
  io::save_parameters(path, {Parameter("a", Array::of<float>({2}, {1, 2})),
                             Parameter("b", Array::of<float>({3}, {1, -65520, 70000}))});
  const std::vector<Parameter> narrow{Parameter("a", Array({2}, f16)), Parameter("b", Array({3}, f16))};
  EXPECT_EQ(error_of([&] { io::load_parameters(path, narrow, io::Dtypes::convert); }),
            "[checkpoint] " + path + ": b has -65520.000000 at element 1, too large for f16");
  EXPECT_EQ(narrow[0].read().at(0), 0);  // the parameters have not changed
  io::save_parameters(path, {Parameter("a", Array::of<float>({1}, {3.4e38f}))});
  EXPECT_EQ(error_of([&] {
              io::load_parameters(path, {Parameter("a", Array({1}, bf16))}, io::Dtypes::convert);
            }).substr(0, path.size() + 13 + 8),
            "[checkpoint] " + path + ": a has ");
  // Integers are not converted. Floating-point numbers are not converted to integers.
  io::save_parameters(path, {Parameter("a", Array::of<std::int64_t>({1}, {3}))});
  EXPECT_THROW(io::load_parameters(path, {Parameter("a", Array({1}, f32))}, io::Dtypes::convert),
               FormatError);
  EXPECT_THROW(io::load_parameters(path, {Parameter("a", Array({1}, i32))}, io::Dtypes::convert),
               FormatError);
  EXPECT_THROW(io::load_parameters(path, {Parameter("a", Array({2}, i64))}, io::Dtypes::convert),
               FormatError);
}

}  // namespace
