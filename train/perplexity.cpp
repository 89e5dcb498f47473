#include <tilegrad/train/perplexity.h>

#include <algorithm>
#include <vector>

#include <tilegrad/core/base/error.h>
#include <tilegrad/train/batches.h>
#include <tilegrad/train/training.h>

namespace tg::train {

namespace {

// A window: tokens first … last − 1. It predicts its tokens starting at index `predicted`.
struct Window {
  std::size_t first, last, predicted;
};

std::vector<Window> windows_of(std::size_t tokens, std::size_t context, std::size_t stride) {
  std::vector<Window> all;
  for (std::size_t first = 0, done = 0; done < tokens; first += stride) {
    const std::size_t last = std::min(first + context, tokens);
    all.push_back({first, last, std::max(done, first + 1)});
    done = last;
  }
  return all;
}

// Writes a row of a batch: the window's tokens, and each predicted token as the target of the position before
// it. Returns the number of targets. The rest of a short row may have any values, because later tokens do not
// affect predictions.
std::int64_t fill(const Window& w, std::span<const std::int32_t> tokens, std::span<std::int32_t> x,
                  std::span<std::int32_t> y) {
  const auto predicted = tokens.subspan(w.predicted, w.last - w.predicted);
  std::ranges::copy(tokens.subspan(w.first, w.last - w.first), x.begin());
  std::ranges::copy(predicted, y.subspan(w.predicted - 1 - w.first).begin());
  return std::ssize(predicted);
}

}  // namespace

Perplexity perplexity(const nn::LanguageModel& model, std::span<const std::int32_t> tokens,
                      const PerplexityOptions& o, const Where& where) {
  const std::int64_t context = model.context,
                     stride = o.stride != 0 ? o.stride : std::max<std::int64_t>(1, context / 2);
  if (tokens.size() < 2)
    throw ShapeError(in_context(
        "[perplexity] expected a text of 2 tokens or more, got " + std::to_string(tokens.size()), where));
  if (stride < 1 || stride > context)
    throw ShapeError(in_context("[perplexity] expected a stride from 1 to the context of " +
                                    std::to_string(context) + ", got " + std::to_string(stride),
                                where));
  EvaluationProgram program(model, {.batch = o.batch, .threads = o.threads, .precision = o.precision}, where);
  const auto length = static_cast<std::size_t>(context), rows = static_cast<std::size_t>(o.batch);
  const std::vector<Window> windows = windows_of(tokens.size(), length, static_cast<std::size_t>(stride));
  std::vector<std::int32_t> x(rows * length), y(x.size());
  Perplexity sum{.windows = std::ssize(windows)};
  for (std::size_t first = 0; first < windows.size(); first += rows) {
    std::int64_t count = 0;
    std::ranges::fill(y, ignored_target);
    const std::size_t last = std::min(first + rows, windows.size());
    for (std::size_t w = first; w < last; ++w) {
      const std::size_t at = (w - first) * length;
      count += fill(windows[w], tokens, std::span(x).subspan(at, length), std::span(y).subspan(at, length));
    }
    // The loss is a mean over the targets, so it is multiplied by their number.
    if (count > 0) sum.nats += static_cast<double>(program.run(x, y)) * static_cast<double>(count);
    sum.tokens += count;
    if (o.progress && !o.progress(static_cast<std::int64_t>(last), sum.windows)) break;
  }
  return sum;
}

}  // namespace tg::train
