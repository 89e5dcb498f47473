#include <tilegrad/train/sums.h>

#include <algorithm>
#include <limits>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/rng.h>
#include <tilegrad/train/batches.h>

namespace tg::train {
namespace {

constexpr std::uint32_t sums_node = 0xfffffffeu;  // not used by nodes of a graph or by BatchSampler
// An arbitrary constant, so that the held-out sums never change.
constexpr std::uint64_t held_out_key = 0x73756d73686f6c64;

std::int64_t power_of_ten(std::int64_t n) {
  std::int64_t p = 1;
  while (n-- > 0) p *= 10;
  return p;
}

std::int64_t checked_digits(std::int64_t n) {
  if (n < 1 || n > 9) throw Error("[sums] got numbers of " + std::to_string(n) + " digits, expected 1 to 9");
  return n;
}

// Converts 32 random bits to a number below n.
std::int64_t below(std::int64_t n, std::uint32_t bits) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(n) * bits >> 32);
}

std::string padded(std::int64_t x, std::int64_t digits) {
  std::string s = std::to_string(x);
  return std::string(static_cast<std::size_t>(digits) - s.size(), '0') + s;
}

}  // namespace

Sums::Sums(std::int64_t digits, std::int64_t batch, std::int64_t context)
    : digits_(checked_digits(digits)),
      below_(power_of_ten(digits)),
      batch_(batch),
      context_(context),
      vocab_("0123456789+=\n") {
  if (context < tokens(digits))
    throw Error("[sums] a sum of numbers of " + std::to_string(digits) + " digits needs " +
                std::to_string(tokens(digits)) + " tokens, but the context has " + std::to_string(context));
  if (batch < 1 || batch > std::numeric_limits<std::int64_t>::max() / context)
    throw ShapeError("[sums] got batch " + std::to_string(batch) + " and context " + std::to_string(context) +
                     ", expected at least 1, and a product of 64 bits");
}

std::string Sums::question(std::int64_t a, std::int64_t b) const {
  for (const std::int64_t x : {a, b})
    if (x < 0 || x >= below_)
      throw Error("[sums] got the number " + std::to_string(x) + ", expected 0 to " +
                  std::to_string(below_ - 1));
  return padded(a, digits_) + "+" + padded(b, digits_) + "=";
}

std::string Sums::text(std::int64_t a, std::int64_t b) const {
  const std::string asked = question(a, b);
  std::string answer = padded(a + b, digits_ + 1);
  std::reverse(answer.begin(), answer.end());
  return asked + answer + "\n";
}

bool Sums::held_out(std::int64_t a, std::int64_t b) {
  const auto [low, high] = std::minmax(a, b);
  const PhiloxBlock block =
      philox({static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(high), 0, 0}, held_out_key);
  return below(10, block[0]) == 0;
}

std::pair<std::int64_t, std::int64_t> Sums::draw(std::uint64_t key, std::uint64_t number, bool held) const {
  for (std::uint32_t attempt = 0;; ++attempt) {
    const PhiloxBlock block = philox(
        {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), attempt, 0}, key);
    const std::int64_t a = below(below_, block[0]), b = below(below_, block[1]);
    if (held_out(a, b) == held) return {a, b};
  }
}

void Sums::fill(std::uint64_t key, std::uint64_t first_row, bool held, std::span<std::int32_t> x,
                std::span<std::int32_t> y) const {
  const auto size = static_cast<std::size_t>(batch_ * context_);
  if (x.size() != size || y.size() != size)
    throw ShapeError("[sums] got room for " + std::to_string(x.size()) + " and " + std::to_string(y.size()) +
                     " tokens, expected batch · context = " + std::to_string(size));
  const std::int64_t question_tokens = 2 * digits_ + 2;
  for (std::int64_t row = 0; row < batch_; ++row) {
    const auto [a, b] = draw(key, first_row + static_cast<std::uint64_t>(row), held);
    std::string line = text(a, b);
    line.resize(static_cast<std::size_t>(context_) + 1, '\n');
    const std::vector<std::int32_t> ids = vocab_.encode(line);
    const auto at = row * context_;
    std::copy(ids.begin(), ids.end() - 1, x.begin() + at);
    std::fill(y.begin() + at, y.begin() + at + context_, ignored_target);
    std::copy(ids.begin() + question_tokens, ids.begin() + tokens(digits_) + 1,
              y.begin() + at + question_tokens - 1);
  }
}

void Sums::random(std::uint64_t seed, std::uint64_t step, std::int64_t first_row, std::span<std::int32_t> x,
                  std::span<std::int32_t> y) const {
  fill(node_key(seed, step, sums_node), static_cast<std::uint64_t>(first_row), false, x, y);
}

void Sums::evaluation(std::int64_t k, std::span<std::int32_t> x, std::span<std::int32_t> y) const {
  fill(held_out_key, static_cast<std::uint64_t>(k) * static_cast<std::uint64_t>(batch_), true, x, y);
}

std::pair<std::int64_t, std::int64_t> Sums::held_out_sum(std::int64_t i) const {
  return draw(held_out_key, static_cast<std::uint64_t>(i), true);
}

std::int64_t Sums::right_answers(std::span<const std::int32_t> y,
                                 std::span<const std::int64_t> predicted) const {
  if (y.size() != predicted.size() || y.size() % static_cast<std::size_t>(context_) != 0)
    throw ShapeError("[sums] got " + std::to_string(y.size()) + " targets and " +
                     std::to_string(predicted.size()) + " predictions, expected rows of " +
                     std::to_string(context_));
  std::int64_t right = 0;
  for (auto row = static_cast<std::size_t>(0); row < y.size(); row += static_cast<std::size_t>(context_)) {
    bool all = true;
    for (std::size_t t = row; t < row + static_cast<std::size_t>(context_); ++t)
      all = all && (y[t] == ignored_target || y[t] == predicted[t]);
    right += all;
  }
  return right;
}

}  // namespace tg::train
