// Tests programs on a simulated device that runs asynchronously to the host. Covers runs that become invalid
// after a failure, and the call that reports the failure. Also covers the bytes that fetch() and Pending
// copy.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <numeric>

#include <tilegrad/tilegrad.h>
#include "core/run/arena_use.h"
#include "core/run/program_state.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

// This transfer copies immediately. The test decides when it is complete and whether it throws.
struct PlayedTransfer final : Transfer {
  explicit PlayedTransfer(std::span<const Piece> copied) { copy(copied); }
  void copy(std::span<const Piece> copied) {
    pieces.assign(copied.begin(), copied.end());
    bytes.clear(), data.clear();
    for (const Piece& p : pieces) bytes.emplace_back(p.from, p.from + p.bytes);
    for (const auto& b : bytes) data.push_back(b.data());
  }
  bool done() override { return is_done; }
  void wait() override {
    ++waits;
    if (!error.empty()) throw Error(std::exchange(error, ""));
  }
  std::vector<std::vector<std::byte>> bytes;
  bool is_done = false;
  int waits = 0;
  std::string error;
};

struct PlayedBackend final : Backend {
  std::string name() const override { return "played"; }
  std::shared_ptr<std::byte> allocate(std::size_t, const std::string&) override { return nullptr; }
  std::size_t available_bytes() override { return SIZE_MAX; }
  void write(std::byte*, const std::byte*, std::size_t) override {}
  void read(std::byte* host, const std::byte* device, std::size_t bytes) override {
    reads.push_back(bytes);
    std::memcpy(host, device, bytes);
  }
  std::unique_ptr<Executable> prepare(std::span<const Step>, const PrepareOptions&) override { return {}; }
  std::vector<std::size_t> reads;
};

struct PlayedExecutable final : Executable {
  std::size_t workspace_bytes() const override { return 0; }
  void bind(std::span<const Step>, const ProgramMemory&) override {}
  void feed(std::byte* input, const std::byte* host, std::size_t bytes) override {
    fed.push_back(bytes);
    std::memcpy(input, host, bytes);
  }
  void run() override {
    ++runs;
    if (!error.empty()) throw Error(std::exchange(error, ""));
  }
  std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) override {
    if (reused) {
      reused->copy(pieces);
      return std::exchange(reused, nullptr);
    }
    transfers.push_back(std::make_shared<PlayedTransfer>(pieces));
    transfers.back()->error = std::exchange(next_error, "");
    return transfers.back();
  }
  std::vector<double> profile() override {
    ++profiles;
    return {0.5, 0.25};
  }
  std::string choice(std::size_t step) const override { return "kernel " + std::to_string(step); }

  int runs = 0, profiles = 0;
  std::string error, next_error;  // errors of the next run and of the next transfer
  std::vector<std::size_t> fed;
  std::vector<std::shared_ptr<PlayedTransfer>> transfers;
  std::shared_ptr<PlayedTransfer> reused;  // the next transfer reuses this one
};

// The program has an input and results of several layouts, in memory that the test owns.
struct Played {
  explicit Played(Device device = Device::cuda()) {
    std::iota(memory.begin(), memory.end(), 0.f);
    state->graph = graph.share();
    state->backend = &backend;
    state->device = device;
    state->executable.reset(executable);
    state->memory.arena = 64;
    add(whole, row_major({2, 3}), 4);
    add(transposed, {{3, 2}, {1, 3}, 4}, 4);  // a view of the same numbers
    add(part, {{2, 2}, {4, 2}, 1}, 21);
    add(one, row_major({}), 30);
    add(start, row_major({2}), 4);  // a part of `whole`
    state->inputs.push_back({x.id(), arg(row_major({2}), 40), false});
  }
  Arg arg(const Layout& layout, std::size_t at) {
    return {f32, layout, reinterpret_cast<std::byte*>(&memory[at])};
  }
  void add(const Tensor& t, const Layout& layout, std::size_t at) {
    state->fetched.emplace_back(t.id(), arg(layout, at));
  }
  void run() {
    state->inputs[0].fed = true;
    program.run();
  }
  std::string fetched() {
    return error_of([&] { program.fetch(whole); });
  }

  Graph graph;
  Tensor x = graph.input("x", {2}), whole = graph.input("whole", {2, 3}),
         transposed = graph.input("transposed", {3, 2}), part = graph.input("part", {2, 2}),
         one = graph.input("one", {}), start = graph.input("start", {2}), other = graph.input("other", {2});
  std::vector<float> memory = std::vector<float>(64);
  PlayedBackend backend;
  PlayedExecutable* executable = new PlayedExecutable;  // `state` owns it
  std::shared_ptr<Program::State> state = std::make_shared<Program::State>();
  Program program{state};
};

const std::string failed =
    "[fetch] the last run of this program failed: it has no results until it runs again";

TEST(FakeDevice, AFailureInvalidatesAllRunsStartedBeforeItsReport) {
  Played p;
  p.run();
  const Pending first = p.program.fetch_later({p.whole});
  p.run();
  const Pending second = p.program.fetch_later({p.whole});
  p.executable->transfers[0]->error = p.executable->transfers[1]->error = "it failed";
  EXPECT_EQ(p.fetched(), "no error") << "nobody knows it yet";
  EXPECT_EQ(error_of([&] { first.wait(); }), "it failed");
  EXPECT_EQ(p.fetched(), failed);
  EXPECT_EQ(error_of([&] { p.program.fetch_later({p.whole}); }), failed);
  p.run();
  EXPECT_EQ(p.fetched(), "no error");
  EXPECT_EQ(error_of([&] { second.wait(); }), "it failed") << "reported once more";
  EXPECT_EQ(p.fetched(), "no error") << "the third run is not void";
}

// If a transfer is reused, its values come from a later run.
TEST(FakeDevice, AReusedTransferReportsALaterRun) {
  Played p;
  p.run();
  (void)p.program.fetch_later({p.whole});
  const std::shared_ptr<PlayedTransfer> transfer = p.executable->transfers[0];
  p.executable->error = "at once";
  EXPECT_EQ(error_of([&] { p.run(); }), "at once");
  EXPECT_EQ(p.fetched(), failed);
  for (int n = 0; n < 2; ++n) p.run();
  p.executable->reused = transfer;
  const Pending again = p.program.fetch_later({p.whole});
  EXPECT_EQ(p.state->transfers.size(), 1u);
  transfer->error = "it failed";
  EXPECT_EQ(error_of([&] { again.wait(); }), "it failed");
  EXPECT_EQ(p.fetched(), failed);
}

TEST(FakeDevice, FetchWaitsForTheRun) {
  Played p;
  EXPECT_EQ(p.fetched(), "[fetch] this program has no results yet: expected a run() before");
  p.run();
  p.executable->next_error = "it failed";
  EXPECT_EQ(p.fetched(), "it failed");
  EXPECT_TRUE(p.backend.reads.empty());
  EXPECT_EQ(p.fetched(), failed);
  p.run();
  EXPECT_EQ(p.fetched(), "no error");
  ASSERT_EQ(p.executable->transfers.size(), 2u);
  for (const auto& t : p.executable->transfers) {
    EXPECT_EQ(t->waits, 1);
    EXPECT_TRUE(t->pieces.empty());
  }
  Played cpu(Device::cpu());  // on a CPU, run() waits for the end
  cpu.run();
  EXPECT_EQ(cpu.fetched(), "no error");
  EXPECT_TRUE(cpu.executable->transfers.empty());
}

// fetch() copies all bytes from the first element to the last. It then converts them to row-major order.
TEST(FakeDevice, ResultsAreCopiedFromTheirFirstElementToTheirLast) {
  Played p;
  p.run();
  struct Case {
    Tensor t;
    std::vector<float> values;
    std::size_t elements;
  };
  const Case cases[] = {{p.whole, {4, 5, 6, 7, 8, 9}, 6},
                        {p.transposed, {4, 7, 5, 8, 6, 9}, 6},
                        {p.part, {21, 23, 25, 27}, 7},
                        {p.one, {30}, 1},
                        {p.start, {4, 5}, 2}};
  std::vector<Tensor> all;
  for (const Case& c : cases) {
    EXPECT_EQ(p.program.fetch(c.t).values<float>(), c.values);
    EXPECT_EQ(p.backend.reads.back(), 4 * c.elements);
    all.push_back(c.t);
  }
  EXPECT_EQ(p.backend.reads.size(), std::size(cases));
  (void)p.program.fetch_later({p.one});
  const Pending later = p.program.fetch_later(all);
  const PlayedTransfer& transfer = *p.executable->transfers.back();
  ASSERT_EQ(transfer.pieces.size(), std::size(cases));
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(transfer.pieces[i].bytes, 4 * cases[i].elements);
    EXPECT_EQ(transfer.pieces[i].from, p.state->fetched[i].second.data);
  }
  std::fill(p.memory.begin(), p.memory.end(), -1.f);  // a later run would overwrite the results
  for (const Case& c : cases) EXPECT_EQ(later.fetch(c.t).values<float>(), c.values);
  EXPECT_EQ(later.values<float>(p.start)[1], 5);
  EXPECT_EQ(later.values<float>(p.whole)[5], 9);
  EXPECT_EQ(later.item<float>(p.one), 30);
  EXPECT_EQ(later.number(p.one), 30);
  EXPECT_EQ(error_of([&] { (void)later.values<float>(p.transposed); }),
            "[pending] f32 [3, 2] is not stored in row-major order: fetch() copies it");
  EXPECT_EQ(error_of([&] { (void)later.item<float>(p.start); }),
            "[pending] f32 [2] does not have exactly one element");
  EXPECT_EQ(error_of([&] { (void)later.item<double>(p.one); }), "[pending] f32 [] is read as f64");
  EXPECT_EQ(error_of([&] { (void)later.values<std::int32_t>(p.start); }), "[pending] f32 [2] is read as i32");
  const Pending few = p.program.fetch_later({p.start, p.one});
  EXPECT_EQ(error_of([&] { (void)few.fetch(p.whole); }),
            "[pending] this tensor was not among those given to fetch_later");
  EXPECT_EQ(error_of([&] { (void)few.fetch(p.other); }).find("[fetch] input f32 [2] (fake_device_test.cpp:"),
            0u);
}

TEST(FakeDevice, PendingWaitsFirstForItsDependency) {
  Played a, b, c;
  for (Played* p : {&a, &b, &c}) p->run();
  const Pending first = a.program.fetch_later({a.one}), replaced = c.program.fetch_later({c.one});
  Pending second = b.program.fetch_later({b.one});
  PlayedTransfer &of_a = *a.executable->transfers[0], &of_b = *b.executable->transfers[0],
                 &of_c = *c.executable->transfers[0];
  second.depend_on(second);  // has no effect
  second.wait();
  EXPECT_EQ(of_b.waits, 1);
  second.depend_on(replaced);
  second.depend_on(first);
  second.depend_on(second);
  for (const auto& [own, earlier] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    of_b.is_done = own, of_a.is_done = earlier;
    EXPECT_EQ(second.ready(), own && earlier);
  }
  second.wait();
  EXPECT_EQ(of_a.waits, 1);
  EXPECT_EQ(of_b.waits, 2);
  EXPECT_EQ(of_c.waits, 0);
  of_a.error = "it failed";
  EXPECT_EQ(error_of([&] { (void)second.item<float>(b.one); }), "it failed");
  EXPECT_EQ(of_b.waits, 2);
  EXPECT_EQ(a.fetched(), failed);
  EXPECT_EQ(b.fetched(), "no error");
  // Several copies may wait for one transfer.
  Pending copy = second;
  EXPECT_EQ(copy.item<float>(b.one), 30);
  EXPECT_EQ(of_a.waits, 3);
  const std::string empty = "[pending] an empty Pending was used: only fetch_later() makes one with values";
  EXPECT_EQ(error_of([&] { second.depend_on({}); }), empty);
  EXPECT_EQ(error_of([] { Pending().depend_on({}); }), empty);
  EXPECT_EQ(error_of([] { Pending().wait(); }), empty);
}

// A different program has run in a shared arena. After this, results in the arena are invalid.
TEST(FakeDevice, OnlyResultsInTheArenaAreLostToOtherPrograms) {
  Played p;
  p.state->arena = std::make_shared<SharedArena>();
  p.state->block = {p.state, reinterpret_cast<std::byte*>(&p.memory[16])};  // elements 16 to 31
  p.state->fetched.clear();
  const std::pair<Tensor, std::size_t> results[] = {{p.one, 15}, {p.x, 16}, {p.start, 30}, {p.other, 32}};
  for (const auto& [t, at] : results) p.add(t, row_major(t.shape()), at);
  p.run();
  for (const auto& [t, at] : results) EXPECT_EQ(p.program.fetch(t).at(0), static_cast<double>(at));
  ArenaUse(*p.state->arena).begin(&p);
  ArenaUse(*p.state->arena).end();
  const std::string lost = "[fetch] another program with the same arena has run since";
  for (const auto& [t, at] : results) {
    const std::string expected = at == 16 || at == 30 ? lost : "no error";
    EXPECT_EQ(error_of([&, &t = t] { p.program.fetch(t); }), expected) << at;
    EXPECT_EQ(error_of([&, &t = t] { p.program.fetch_later({t}); }), expected) << at;
  }
  p.state->block = nullptr, p.state->arena = nullptr;
}

TEST(FakeDevice, FeedsAreCheckedAndCopiedOnce) {
  Played p;
  EXPECT_EQ(error_of([&] { p.program.run(); }).find("[run] input x f32 [2] was never fed"), 0u);
  p.state->twin = std::make_shared<Program::State>();
  auto* const of_twin = new PlayedExecutable;
  std::vector<float> there(2);
  p.state->twin->graph = p.state->graph;
  p.state->twin->executable.reset(of_twin);
  p.state->twin->inputs.push_back(
      {p.x.id(), {f32, row_major({2}), reinterpret_cast<std::byte*>(there.data())}});
  p.program.feed({p.x, std::vector<float>{3, 4}});
  EXPECT_EQ(p.executable->fed, std::vector<std::size_t>{8});
  EXPECT_EQ(of_twin->fed, std::vector<std::size_t>{8});
  EXPECT_EQ(p.memory[41], 4);
  EXPECT_EQ(there[1], 4);
  EXPECT_TRUE(p.state->inputs[0].fed && p.state->twin->inputs[0].fed);
  p.state->twin = nullptr;
  p.program.run();
  EXPECT_EQ(p.executable->runs, 1);
  // The program writes the seed and the number of the run to the device.
  std::int64_t random[2] = {-1, -1};
  p.state->rng = reinterpret_cast<std::byte*>(random);
  p.program.seed(7);
  p.program.run();
  EXPECT_EQ(p.executable->fed, (std::vector<std::size_t>{8, 16}));
  EXPECT_EQ(random[0], 7);
  EXPECT_EQ(random[1], 1);
  EXPECT_EQ(p.program.profile(), (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(random[1], 2);
  EXPECT_EQ(p.executable->profiles, 1);
  EXPECT_EQ(p.executable->runs, 2);
}

// A failed run may have changed any parameter of the program.
TEST(FakeDevice, RunsGiveAssignedParametersOneChangeNumber) {
  Played p;
  const Parameter a("a", Array({1}, f32)), b("b", Array({1}, f32)), read("read", Array({1}, f32));
  p.state->assigned = {a, b}, p.state->parameters = {a, b, read};
  const std::uint64_t before = read.last_change();
  p.run();
  const std::uint64_t first = a.last_change();
  EXPECT_GT(first, before);
  EXPECT_EQ(b.last_change(), first);
  p.run();
  EXPECT_GT(a.last_change(), first);
  EXPECT_EQ(b.last_change(), a.last_change());
  const std::uint64_t second = a.last_change();
  p.executable->error = "at once";
  EXPECT_THROW(p.run(), Error);
  EXPECT_GT(a.last_change(), second);
  EXPECT_GT(b.last_change(), second);
  EXPECT_NE(a.last_change(), b.last_change());
  EXPECT_EQ(read.last_change(), before);
}

// With TG_LOG, run() returns after the run has finished. At level 2 or higher, each step is timed.
TEST(FakeDevice, LoggingWaitsForTheRun) {
  for (const char* level : {"1", "2"}) {
    Played p;
    setenv("TG_LOG", level, 1);
    p.state->log = ProgramLog::begin();
    unsetenv("TG_LOG");
    const bool is_timed = *level == '2';
    const Op op{.name = "op"};
    p.state->steps.assign(2, Step{&op, {}, {}, {}, "op", {}});
    ::testing::internal::CaptureStderr();
    p.run();
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(p.executable->runs, is_timed ? 0 : 1);
    EXPECT_EQ(p.executable->profiles, is_timed ? 1 : 0);
    ASSERT_EQ(p.executable->transfers.size(), is_timed ? 0u : 1u);
    if (is_timed) {
      EXPECT_NE(log.find("750.000 ms"), std::string::npos) << log;
    } else {
      EXPECT_EQ(p.executable->transfers[0]->waits, 1);
    }
    ::testing::internal::CaptureStderr();
    p.program.profile();
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("750.000 ms"), std::string::npos);
  }
}

}  // namespace
