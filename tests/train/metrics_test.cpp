// Tests the metrics file and the progress line.
#include <tilegrad/train/metrics.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/train/progress.h>
#include "tests/support/files.h"

namespace tg {
namespace {

using testing::TemporaryDirectory;

TEST(Metrics, RowIsOneJsonObjectWithNullForNan) {
  const train::MetricsRow row{
      .step = 7, .train_loss = 2.5f, .lr = 1e-3f, .grad_norm = INFINITY, .tokens_per_s = 81000};
  EXPECT_EQ(
      train::to_json(row),
      R"({"step":7,"train_loss":2.5,"val_loss":null,"lr":0.001,"grad_norm":null,"tokens_per_s":81000})");
  const std::string text = train::to_json(row);
  io::JsonReader json(text, "test");
  EXPECT_NO_THROW(json.skip());
}

TEST(Metrics, RowsRoundTripExactly) {
  const TemporaryDirectory dir;
  const float third = 1.0f / 3.0f;
  train::MetricsWriter out(dir / "metrics.jsonl");
  out.write({.step = 1,
             .train_loss = third,
             .val_loss = 1e-30f,
             .lr = 3e-4f,
             .grad_norm = 1e30f,
             .tokens_per_s = 1});
  out.write({.step = 2, .train_loss = NAN});
  out.close();
  const auto rows = train::read_metrics(dir / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].step, 1);
  EXPECT_EQ(rows[0].train_loss, third);
  EXPECT_EQ(rows[0].val_loss, 1e-30f);
  EXPECT_EQ(rows[0].grad_norm, 1e30f);
  EXPECT_EQ(rows[1].step, 2);
  EXPECT_TRUE(std::isnan(rows[1].train_loss) && std::isnan(rows[1].val_loss));
}

TEST(Metrics, EachRowIsFlushedImmediately) {
  const TemporaryDirectory dir;
  train::MetricsWriter out(dir / "m");
  for (int step = 1; step <= 3; ++step) {
    out.write({.step = step});
    EXPECT_EQ(train::read_metrics(dir / "m").size(), static_cast<std::size_t>(step));
  }
}

TEST(Metrics, IncompleteLastLineIsDroppedAndInvalidLineReported) {
  const TemporaryDirectory dir;
  std::ofstream(dir / "cut") << "{\"step\":1}\n{\"step\":2,\"tra";
  EXPECT_EQ(train::read_metrics(dir / "cut").size(), 1u);
  std::ofstream(dir / "bad") << "{\"step\":1}\n{\"loss\":2}\n";
  try {
    train::read_metrics(dir / "bad");
    FAIL() << "accepted";
  } catch (const FormatError& e) {
    EXPECT_EQ(std::string(e.what()), "[metrics] " + (dir / "bad") + " line 2: row has no step at byte 10");
  }
}

TEST(Metrics, FullDiskAndMissingDirectoryAreReported) {
  train::MetricsWriter full("/dev/full");
  try {
    full.write({.step = 1});
    FAIL() << "the full device accepted a row";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[metrics] cannot write /dev/full: No space left on device");
  }
  EXPECT_THROW(train::MetricsWriter("/no/such/directory/m"), Error);
}

TEST(Progress, NumbersStayShort) {
  EXPECT_EQ(train::short_count(0), "0");
  EXPECT_EQ(train::short_count(1234), "1.23k");
  EXPECT_EQ(train::short_count(950.4), "950");
  EXPECT_EQ(train::short_count(999.7), "1.00k");
  EXPECT_EQ(train::short_count(81300), "81.3k");
  EXPECT_EQ(train::short_count(99960), "100k");
  EXPECT_EQ(train::short_count(1.2e6), "1.20M");
  EXPECT_EQ(train::short_count(NAN), "-");
  EXPECT_EQ(train::short_time(0), "00:00");
  EXPECT_EQ(train::short_time(59.6), "01:00");
  EXPECT_EQ(train::short_time(3723), "1:02:03");
  EXPECT_EQ(train::short_time(-1), "--:--");
}

TEST(Progress, LineContainsStepLossRateAndRemainingTime) {
  EXPECT_EQ(train::progress_line({.step = 500,
                                  .steps = 2000,
                                  .loss = 2.48171,
                                  .lr = 9.8e-4,
                                  .tokens_per_s = 81300,
                                  .seconds_left = 14}),
            "step  500/2000 [##--------]  25% | loss 2.4817 | lr 9.8e-04 | 81.3k tok/s | ETA 00:14");
  EXPECT_NE(
      train::progress_line({.step = 1, .steps = 1, .loss = NAN, .val_loss = 2.5}).find("| val 2.5000 |"),
      std::string::npos);
}

std::string content(std::FILE* f) {
  std::string s(static_cast<std::size_t>(std::ftell(f)), '\0');
  std::rewind(f);
  s.resize(std::fread(s.data(), 1, s.size(), f));
  std::fclose(f);
  return s;
}

TEST(Progress, FileGetsPlainLinesAndTheLastStep) {
  std::FILE* f = std::tmpfile();
  {
    train::Progress p(f, 0, 100, 64, 1e9);
    for (int step = 1; step <= 100; ++step) p.update(step, 2.0, 1e-3);
    p.note("done");
    EXPECT_GT(p.tokens_per_s(), 0);
  }
  const std::string text = content(f);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("step 100/100 [##########] 100% | loss 2.0000"), 0u) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(Progress, RequiresAFile) {
  EXPECT_THROW(train::Progress(nullptr, 0, 100, 64), Error);
}

TEST(Progress, PlainLinesAreWrittenPeriodically) {
  std::FILE* f = std::tmpfile();
  {
    train::Progress p(f, 10, 20, 64, 0.0);
    for (int step = 11; step <= 20; ++step) p.update(step, 2.0, 1e-3);
  }
  const std::string text = content(f);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10) << text;
}

TEST(Progress, LastLineShowsTheLastValidation) {
  std::FILE* f = std::tmpfile();
  {
    train::Progress p(f, 0, 20, 64, 1e9);
    for (int step = 1; step <= 20; ++step) {
      p.update(step, 2.0, 1e-3);
      if (step % 10 == 0) p.validation(step);
    }
  }
  const std::string text = content(f);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("| val 20.0000 |"), std::string::npos) << text;
}

TEST(Progress, TerminalLineIsRewrittenAndTruncated) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const winsize size{.ws_row = 24, .ws_col = 40};
  std::FILE* f = std::fopen(ptsname(terminal), "w");
  ASSERT_NE(f, nullptr);
  ASSERT_EQ(ioctl(fileno(f), TIOCSWINSZ, &size), 0);
  {
    train::Progress p(f, 0, 100, 64);
    p.update(100, 2.0, 1e-3);
    p.note("a remark");
  }
  const std::string line = "\rstep 100/100 [##########] 100% | loss 2\x1b[K";  // 39 columns: 40 would wrap
  const std::string expected = line + "\r\x1b[Ka remark\r\n" + line + "\r\n";
  std::string got;
  char buffer[4096];
  for (pollfd ready{terminal, POLLIN, 0}; got.size() < expected.size() && poll(&ready, 1, 5000) == 1;) {
    const ssize_t n = read(terminal, buffer, sizeof buffer);
    if (n <= 0) break;
    got.append(buffer, static_cast<std::size_t>(n));
  }
  EXPECT_EQ(got, expected);
  std::fclose(f);
  close(terminal);
}

}  // namespace
}  // namespace tg
