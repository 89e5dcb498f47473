// Tests files of a model with a tensor of more than 2²⁰ numbers, the maximum of one conversion step.
#include <tilegrad/io/models/pretrained.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <tilegrad/nn/models/model.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;

struct LargeModel {
  nn::ModelConfig config{.vocabulary = 33'001, .context = 4, .layers = 1, .heads = 2, .width = 32};
  nn::Params params{1};
  nn::Model model{params, config};
  Parameter table = *params.find("transformer.wte.weight");
  // The files have biases, which are zero.
  Array numbers_of(const Parameter& theirs) const {
    const auto ours = params.find(theirs.name());
    return ours ? ours->read() : Array(theirs.shape(), f32);
  }
};

// The progress reports contain the number of bytes that are already written, and the total number.
struct Reports {
  std::vector<std::uint64_t> written, all;
  std::function<void(std::uint64_t, std::uint64_t)> hear() {
    return [this](std::uint64_t now, std::uint64_t total) { written.push_back(now), all.push_back(total); };
  }
  void expect(std::uint64_t bytes) const {
    EXPECT_TRUE(std::ranges::is_sorted(written, std::less_equal<>()));
    ASSERT_FALSE(written.empty());
    EXPECT_EQ(written.back(), bytes);
    for (const std::uint64_t total : all) EXPECT_EQ(total, bytes);
  }
};

TEST(LargeTensors, FoldersHaveThemInEveryDtype) {
  LargeModel m;
  const TemporaryDirectory dir;
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const std::string folder = dir / std::string(name_of(dtype));
    Reports reports;
    nn::save_pretrained(folder, m.model, m.config, nullptr, {.dtype = dtype, .written = reports.hear()});
    const nn::Pretrained read = nn::from_pretrained(folder, Device::cpu(), {.dtype = dtype});
    std::uint64_t bytes = 0;
    for (const Parameter& p : read.model.parameters()) {
      EXPECT_TRUE(p.read().same_bits(m.numbers_of(p).to(dtype))) << p.name();
      bytes += static_cast<std::uint64_t>(numel(p.shape())) * size_of(dtype);
    }
    reports.expect(bytes);
  }
}

TEST(LargeTensors, GgufFilesHaveThemInEveryType) {
  LargeModel m;
  const TemporaryDirectory dir;
  for (const std::string type : {"f32", "f16", "bf16", "q8_0"}) {
    Reports reports;
    nn::save_gguf(dir / type, m.model, m.config, nullptr, {.dtype = type, .written = reports.hear()});
    const nn::Pretrained read = nn::from_pretrained(dir / type);
    std::uint64_t bytes = 0;
    for (const Parameter& p : read.model.parameters()) {
      const Array got = p.read(), whole = m.numbers_of(p);
      const auto n = static_cast<std::uint64_t>(numel(p.shape()));
      if (type == "f32" || p.shape().size() == 1 || p.name() == "transformer.wpe.weight") {
        EXPECT_TRUE(got.same_bits(whole)) << p.name();
        bytes += 4 * n;
      } else if (type != "q8_0") {
        EXPECT_TRUE(got.same_bits(whole.to(type == "f16" ? f16 : bf16).to(f32))) << p.name();
        bytes += 2 * n;
      } else {  // integers of at most 127 steps for each 32 numbers, and the step in f16
        bytes += n / 32 * 34;
        if (p.name() != m.table.name()) continue;
        for (std::int64_t i = 0; i < whole.numel(); i += 32) {
          double largest = 0;
          for (std::int64_t k = i; k < i + 32; ++k) largest = std::max(largest, std::abs(whole.at(k)));
          for (std::int64_t k = i; k < i + 32; ++k)
            ASSERT_LE(std::abs(got.at(k) - whole.at(k)), largest / 127 * (0.5 + 127 * 0x1p-11)) << k;
        }
      }
    }
    reports.expect(bytes);
  }
}

TEST(LargeTensors, NumbersThatDoNotFitAreNamedByTheirIndex) {
  LargeModel m;
  const TemporaryDirectory dir;
  constexpr std::int64_t at = 1'050'000;
  for (const double x : {1e30, HUGE_VAL}) {
    Array numbers = m.table.read();
    numbers.set(at, x);
    m.table.write(numbers);
    const std::string place = "at element " + std::to_string(at);
    const auto expect = [&](const std::string& error, const std::string& dtype) {
      EXPECT_NE(error.find(x == 1e30 ? place + ", too large for " + dtype : "not finite " + place),
                std::string::npos)
          << error;
    };
    expect(error_of([&] { nn::save_pretrained(dir / "a", m.model, m.config, nullptr, {.dtype = f16}); }),
           "f16");
    expect(error_of([&] { nn::save_gguf(dir / "b", m.model, m.config, nullptr, {.dtype = "f16"}); }), "f16");
  }
}

}  // namespace
