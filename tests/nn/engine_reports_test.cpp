// Tests the calls that Engine's report functions may make, and the end of a sequence.
#include <algorithm>
#include <memory>
#include <stdexcept>

#include "tests/support/engine_calls.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using namespace tg::testing;

struct EngineReports : EngineCalls {};

TEST_P(EngineReports, AnEndTokenTheMaximumOrTheReportEndsASequence) {
  const Tokens whole = written(drawn_text);
  const std::int32_t end = whole[7];
  const auto first = std::find(whole.begin(), whole.end(), end) + 1;
  Engine::Request request = drawn_text;
  request.ends = {end, 1000};  // 1000 is not a token
  const auto last = std::make_shared<Engine::End>(Engine::End::no);
  Tokens got;
  request.report = [&, last](const Engine::Token& t) {
    EXPECT_EQ(*last, Engine::End::no);
    EXPECT_EQ(t.logits.size(), request.logits ? 29u : 0u);
    *last = t.end;
    got.push_back(t.token);
    return true;
  };
  engine.add(request);
  run();
  EXPECT_EQ(got, Tokens(whole.begin(), first));
  EXPECT_EQ(*last, Engine::End::token);

  *last = Engine::End::no, request.ends = {1000}, got.clear();  // 1000 is not a token
  request.logits = true;
  engine.add(request);
  run();
  EXPECT_EQ(got, whole);
  EXPECT_EQ(*last, Engine::End::count);

  for (std::size_t wanted = 1; wanted <= 20; ++wanted) {
    got.clear();
    request.report = [&](const Engine::Token& t) {
      got.push_back(t.token);
      return got.size() < wanted;
    };
    engine.add(request);
    run();
    EXPECT_EQ(got, Tokens(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(wanted)));
  }
  engine.add(Engine::Request{.prompt = {1}, .tokens = 3});  // has no report function
  run();
}

TEST_P(EngineReports, AReportMayAddForkAndCancelSequences) {
  const std::vector<Engine::Request> list = several();
  std::vector<Tokens> whole, got(5);
  for (const auto& request : list) whole.push_back(written(request));
  Tokens fork, fork_of_last;
  std::vector<Engine::Handle> handles(5);
  Engine::Request first = list[0];
  first.report = [&](const Engine::Token& t) {
    got[0].push_back(t.token);
    if (got[0].size() == 1) handles[4] = engine.add(into(got[4], list[4]));
    if (got[0].size() == 2) engine.fork(t.sequence, 77, into(fork, {}).report);
    if (got[0].size() == 3) engine.cancel(handles[1]);
    // The report function cancels its own sequence. Afterward, the function's captured variables must still
    // exist.
    if (got[0].size() == 4) engine.cancel(t.sequence), got[0].push_back(-1);
    return true;
  };
  handles[0] = engine.add(first);
  for (const std::size_t i : {1, 2, 3}) handles[i] = engine.add(into(got[i], list[i]));
  run();
  EXPECT_EQ(got[0].back(), -1);
  got[0].pop_back();
  EXPECT_EQ(got[0], Tokens(whole[0].begin(), whole[0].begin() + 4));
  EXPECT_LT(got[1].size(), 4u);
  EXPECT_EQ(got[1], Tokens(whole[1].begin(), whole[1].begin() + std::ssize(got[1])));
  for (const std::size_t i : {2, 3, 4}) EXPECT_EQ(got[i], whole[i]) << i;
  Tokens sequence = list[0].prompt;
  sequence.insert(sequence.end(), whole[0].begin(), whole[0].begin() + 2);
  EXPECT_EQ(fork, drawn(sequence, 7, {}, 77, 2));
}

// The next tokens of both sequences are chosen in the same step, before or after the report.
TEST_P(EngineReports, AReportMayForkAnySequence) {
  const std::vector<Engine::Request> list = several();
  for (const std::size_t forked : {0, 1, 2})
    for (const std::size_t at : {1, 3}) {
      engine.forget();
      std::vector<Tokens> got(3);
      Tokens other, so_far;
      std::vector<Engine::Handle> handles;
      for (const std::size_t i : {0, 1, 2}) {
        Engine::Request request = into(got[i], list[i]);
        if (i == 1)
          request.report = [&, at, forked](const Engine::Token& t) {
            got[1].push_back(t.token);
            if (got[1].size() != at) return true;
            so_far = got[forked];
            engine.fork(handles[forked], 77, into(other, {}).report);
            return true;
          };
        handles.push_back(engine.add(request));
      }
      run();
      Tokens sequence = list[forked].prompt;
      sequence.insert(sequence.end(), so_far.begin(), so_far.end());
      EXPECT_EQ(other, drawn(sequence, list[forked].tokens - std::ssize(so_far), list[forked].sampling, 77,
                             so_far.size()))
          << "text " << forked << " at token " << at;
    }
}

TEST_P(EngineReports, ASequenceHasEndedAfterItsLastReport) {
  int told = 0;
  engine.add(Engine::Request{
      .prompt = {1, 2, 3}, .tokens = 2, .report = [&](const Engine::Token& t) {
        if (++told == 2) {
          EXPECT_EQ(t.end, Engine::End::count);
          EXPECT_NE(error_of([&] { engine.fork(t.sequence, 1); }).find("there is no sequence"),
                    std::string::npos);
          engine.cancel(t.sequence);
        }
        return true;
      }});
  run();
  EXPECT_EQ(told, 2);
}

TEST_P(EngineReports, AReportsExceptionLeavesStepAndNothingIsLost) {
  const std::vector<Engine::Request> list = several();
  std::vector<Tokens> whole;
  for (const auto& request : list) whole.push_back(written(request));
  for (const std::size_t thrower : {0, 1, 2, 4}) {
    engine.forget();
    std::vector<Tokens> got(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      Engine::Request request = list[i];
      request.report = [&, i](const Engine::Token& t) {
        got[i].push_back(t.token);
        if (i == thrower && got[i].size() % 3 == 0) throw std::runtime_error("no more paper");
        return true;
      };
      engine.add(request);
    }
    int thrown = 0;
    bool left = true;
    for (int n = 0; n < 100 && left; ++n) try {
        left = engine.step();
      } catch (const std::runtime_error& e) {
        EXPECT_STREQ(e.what(), "no more paper");
        ++thrown;
      }
    EXPECT_FALSE(left);
    EXPECT_EQ(thrown, std::ssize(whole[thrower]) / 3);
    EXPECT_EQ(got, whole) << "text " << thrower;
    run();
  }
}

TEST_P(EngineReports, AReportMustNotCallStep) {
  const Tokens whole = written(drawn_text);
  Tokens got;
  Engine::Request request = drawn_text;
  request.report = [&](const Engine::Token& t) {
    got.push_back(t.token);
    EXPECT_EQ(error_of([&] { engine.step(); }), "[engine] step() called by a report of step()");
    return true;
  };
  engine.add(request);
  run();
  EXPECT_EQ(got, whole);
}

INSTANTIATE_TEST_SUITE_P(InStepAndAhead, EngineReports, ::testing::Bool(),
                         [](const auto& ahead) { return std::string(ahead.param ? "Ahead" : "InStep"); });

}  // namespace
