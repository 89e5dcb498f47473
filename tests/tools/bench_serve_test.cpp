// Tests components of `bench serve`: traces, and the history of the cache, which records the owner of each
// part.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include <tilegrad/core/base/error.h>
#include "tools/bench/cache_history.h"
#include "tools/bench/trace.h"

namespace tg::bench {
namespace {

std::string mistake(std::string_view text) {
  try {
    parse_trace(text, "trace.txt", 100);
  } catch (const FormatError& e) {
    return e.what();
  }
  return "";
}

TEST(Trace, LinesAreParsed) {
  const std::vector<Arrival> expected = {{0, 60, 41}, {0.5, 1, 1}, {0.5, 99, 2}};
  EXPECT_EQ(
      parse_trace("# seconds prompt output\n\n0 60 41\n  .5\t1  1 # short\r\n5e-1 99 2", "trace.txt", 100),
      expected);
}

TEST(Trace, ErrorsNameFileAndLine) {
  for (const char* line : {"1 2", "1 2 3 4", "1 2 3.5", "1 2 x", "a 2 3", "-1 2 3", "1 0 3", "1 2 0",
                           "1 -2 3", "inf 2 3", "nan 2 3", "1,2,3", "1 2 99999999999999999999", "0.25 2 3",
                           "1 101 1", "1 60 42", "1 2 9223372036854775807"}) {
    const std::string said = mistake("0.5 2 3\n\n" + std::string(line) + "\n2 3 4\n");
    EXPECT_NE(said.find("trace.txt:3 got '" + std::string(line) + "'"), std::string::npos)
        << line << ": " << said;
  }
  EXPECT_EQ(mistake("# nothing\n"), "[trace] trace.txt has no requests");
}

TEST(Trace, ArbitraryBytesParseOrThrow) {
  const std::string whole = "0 60 41\n 0.5\t1 1#\r\n1e0 99 2";
  for (std::size_t n = 0; n <= whole.size(); ++n) mistake(whole.substr(0, n));
  for (std::size_t n = 0; n < whole.size(); ++n)
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = whole;
      changed[n] = static_cast<char>(byte);
      mistake(changed);
    }
}

TEST(Trace, RandomTraceHasExpectedLengthsAndArrivals) {
  const RandomTrace options{.requests = 20000, .rate = 4, .shared_prefix = 10, .seed = 3};
  const std::vector<Arrival> trace = random_trace(options, 100000);
  ASSERT_EQ(trace.size(), 20000u);
  EXPECT_EQ(trace, random_trace(options, 100000));
  double prompt = 0, output = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    EXPECT_GE(trace[i].prompt, 26);
    EXPECT_LE(trace[i].prompt, 266);
    EXPECT_GE(trace[i].output, 1);
    EXPECT_GE(trace[i].seconds, i > 0 ? trace[i - 1].seconds : 0);
    prompt += static_cast<double>(trace[i].prompt), output += static_cast<double>(trace[i].output);
  }
  // Tolerances are five standard deviations of each mean. The standard deviations of a request are 69.6, 128
  // and ¼. The standard deviation of a mean is smaller by a factor of √20000.
  EXPECT_NEAR(prompt / 20000, 146, 2.5);
  EXPECT_NEAR(output / 20000, 128.5, 4.6);
  EXPECT_NEAR(trace.back().seconds / 20000, 0.25, 0.009);
  for (const Arrival& a : random_trace({.requests = 2000, .shared_prefix = 20}, 64)) {
    EXPECT_EQ(a.seconds, 0);
    EXPECT_LE(a.prompt, 64);
    EXPECT_GE(a.output, 1);
    EXPECT_LE(a.prompt + a.output - 1, 64);
  }
}

TEST(Trace, PromptsShareOnlyThePrefix) {
  const std::vector<Arrival> trace = {{0, 40, 1}, {0, 60, 1}, {0, 5, 1}};
  const auto prompts = random_prompts(trace, 20, 1000, 1);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(std::ssize(prompts[i]), trace[i].prompt);
    EXPECT_TRUE(std::equal(prompts[i].begin(),
                           prompts[i].begin() + std::min<std::ptrdiff_t>(20, std::ssize(prompts[i])),
                           prompts[0].begin()));
    for (const std::int32_t token : prompts[i]) EXPECT_TRUE(token >= 0 && token < 1000) << token;
  }
  EXPECT_FALSE(std::equal(prompts[0].begin() + 20, prompts[0].end(), prompts[1].begin() + 20));
  EXPECT_EQ(prompts, random_prompts(trace, 20, 1000, 1));
  EXPECT_NE(prompts, random_prompts(trace, 20, 1000, 2));
}

TEST(CacheHistory, RecordsOwnersSharingAndReuse) {
  using State = CacheHistory::State;
  nn::PagePool pool(6, 4);
  CacheHistory history(pool, 2, 100);
  std::vector<nn::PageCopy> copies;
  std::vector<std::int32_t> tokens(9);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto states = [&](const nn::PageTable& table, std::int64_t step) {
    std::vector<State> list;
    for (const std::int32_t page : table.pages())
      for (int half = 0; half < 2; ++half) list.push_back(history.at((page - 1) * 2 + half, step).state);
    return list;
  };
  EXPECT_EQ(history.rows(), 12);
  {
    nn::PageTable a = pool.open(tokens);
    ASSERT_TRUE(a.reserve(9, copies));
    a.append(tokens);
    history.add({{7, &a, &tokens}});  // step 0
    EXPECT_EQ(states(a, 0), (std::vector<State>{State::used, State::used, State::used, State::used,
                                                State::used, State::reserved}));
    EXPECT_EQ(history.at((a.pages()[0] - 1) * 2, 0).request, 7);
    nn::PageTable b = pool.open(tokens);
    history.add({{7, &a, &tokens}, {8, &b, &tokens}});  // step 1
    EXPECT_EQ(states(b, 1), (std::vector<State>(4, State::shared)));
    history.add({{7, &a, &tokens}});
  }
  history.add({});  // step 3
  nn::PageTable c = pool.open(tokens);
  history.add({{9, &c, &tokens}});  // step 4
  EXPECT_EQ(states(c, 4), (std::vector<State>(4, State::found)));
  EXPECT_EQ(states(c, 3), (std::vector<State>(4, State::free)));
  EXPECT_EQ(history.steps(), 5);
}

TEST(CacheHistory, DropsEverySecondStepWhenFull) {
  const nn::PagePool pool(1, 4);
  CacheHistory history(pool, 4, 2);
  for (int i = 0; i < 1000; ++i) history.add({});
  EXPECT_EQ(history.steps(), 1000);
  EXPECT_EQ(history.at(0, 999).state, CacheHistory::State::free);
}

}  // namespace
}  // namespace tg::bench
