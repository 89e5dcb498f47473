#include <tilegrad/train/examples.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/rng.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>

namespace tg::train {

namespace {

// A node number for random numbers. It is not used by nodes of a graph, BatchSampler or Sums.
constexpr std::uint32_t order_node = 0xfffffffdu;

// Reads a string member.
std::optional<std::string> string_of(io::JsonReader& json, const std::string& key, const std::string& where) {
  if (json.peek() != io::JsonReader::Kind::string)
    throw FormatError(where + ": \"" + key + "\" is " + std::string(json.raw().substr(0, 40)) +
                      ", expected a string");
  return json.string();
}

ExampleText parse_example(std::string_view line, const std::string& where) {
  std::optional<std::string> prompt, completion, text;
  io::JsonReader json(line, where);
  json.begin_object();
  while (const auto key = json.next_key()) {
    std::optional<std::string>* const to = *key == "prompt"       ? &prompt
                                           : *key == "completion" ? &completion
                                           : *key == "text"       ? &text
                                                                  : nullptr;
    if (to == nullptr)
      json.skip();
    else
      *to = string_of(json, *key, where);
  }
  json.end();
  if (text && (prompt || completion))
    throw FormatError(where + ": has \"text\" and \"" + (prompt ? "prompt" : "completion") +
                      "\", expected one of them");
  if (!text && !prompt && !completion)
    throw FormatError(where + ": has no \"text\", and no \"prompt\" and \"completion\"");
  if (!text && !prompt) throw FormatError(where + ": has no \"prompt\"");
  if (!text && !completion) throw FormatError(where + ": has no \"completion\"");
  if ((text ? text : completion)->empty())
    throw FormatError(where + ": \"" + (text ? "text" : "completion") + "\" is empty");
  return text ? ExampleText{.completion = *text} : ExampleText{*prompt, *completion};
}

// The index of an example's first target. The first token is never a target, because nothing precedes it.
std::size_t first_target(const Example& e) {
  return std::max<std::size_t>(e.given, 1);
}

}  // namespace

std::vector<ExampleText> read_examples(const std::string& path) {
  const std::string file = io::read_file(path, "examples");
  std::vector<ExampleText> all;
  std::int64_t number = 0;
  for (std::size_t at = 0; at < file.size();) {
    const std::size_t end = std::min(file.find('\n', at), file.size());
    const std::string_view line = std::string_view(file).substr(at, end - at);
    ++number, at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    all.push_back(parse_example(line, "[examples] " + path + ", line " + std::to_string(number)));
  }
  if (all.empty()) throw Error("[examples] " + path + " has no lines");
  return all;
}

Example encode_example(const ExampleText& text, const text::Tokenizer& tokenizer,
                       std::optional<std::int32_t> end) {
  Example e{tokenizer.encode_whole(text.prompt + text.completion)};
  if (!text.prompt.empty()) {
    const std::vector<std::int32_t> prompt = tokenizer.encode_whole(text.prompt);
    const auto common = std::mismatch(prompt.begin(), prompt.end(), e.tokens.begin(), e.tokens.end());
    e.given = static_cast<std::size_t>(common.first - prompt.begin());
  }
  if (end && (e.tokens.empty() || e.tokens.back() != *end)) e.tokens.push_back(*end);
  return e;
}

// Returns the order of n examples in an epoch. Caches the latest order.
class ExampleBatches::Order {
 public:
  using Places = std::shared_ptr<const std::vector<std::size_t>>;

  Places of(std::uint64_t seed, std::uint64_t pass, std::size_t n) {
    const std::lock_guard lock(mutex_);
    if (places_ && seed == seed_ && pass == pass_) return places_;
    std::vector<std::size_t> places(n);
    std::iota(places.begin(), places.end(), std::size_t{0});
    const std::uint64_t key = node_key(seed, pass, order_node);
    for (std::size_t i = n; i > 1; --i) {
      const PhiloxBlock block = philox(element_counter(i), key);
      const std::uint64_t u = block[0] | std::uint64_t{block[1]} << 32;
      std::swap(places[i - 1], places[static_cast<std::size_t>(static_cast<unsigned __int128>(u) * i >> 64)]);
    }
    places_ = std::make_shared<const std::vector<std::size_t>>(std::move(places));
    seed_ = seed, pass_ = pass;
    return places_;
  }

 private:
  std::mutex mutex_;
  std::uint64_t seed_ = 0, pass_ = 0;
  Places places_;
};

ExampleBatches::ExampleBatches(std::vector<Example> examples, std::int64_t step_rows, std::int64_t batch,
                               std::int64_t context)
    : step_rows_(step_rows), batch_(batch), context_(context), order_(std::make_unique<Order>()) {
  if (step_rows < 1 || batch < 1 || context < 1)
    throw Error("[examples] expected positive numbers of rows and tokens, got " + std::to_string(step_rows) +
                ", " + std::to_string(batch) + " and " + std::to_string(context));
  const auto most = static_cast<std::size_t>(context) + 1;
  for (Example& e : examples) {
    const bool is_cut = e.tokens.size() > most;
    if (is_cut) e.tokens.resize(most);
    if (e.tokens.size() <= first_target(e)) {
      ++left_out_;
      continue;
    }
    cut_ += is_cut;
    examples_.push_back(std::move(e));
  }
  if (examples_.size() < 2)
    throw Error("[examples] expected 2 examples or more, to train on and to hold out, got " +
                std::to_string(examples_.size()) +
                (left_out_ > 0
                     ? ", and " + std::to_string(left_out_) + " that have nothing to learn within " +
                           std::to_string(context) + " tokens"
                     : ""));
  held_out_ = std::max<std::int64_t>(1, std::ssize(examples_) / 10);
}

ExampleBatches::~ExampleBatches() = default;

void ExampleBatches::fill(const Example& e, Tokens x, Tokens y) const {
  for (std::size_t t = 0; t < x.size(); ++t) {
    const std::size_t next = t + 1;
    x[t] = t < e.tokens.size() ? e.tokens[t] : 0;
    y[t] = next >= first_target(e) && next < e.tokens.size() ? e.tokens[next] : ignored_target;
  }
}

void ExampleBatches::training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const {
  const auto length = static_cast<std::size_t>(context_), rows = static_cast<std::size_t>(step_rows_);
  if (x.size() != rows * length || y.size() != x.size() || step < 0)
    throw ShapeError("[examples] got " + std::to_string(x.size()) + " tokens and " +
                     std::to_string(y.size()) + " targets of step " + std::to_string(step) + ", expected " +
                     std::to_string(rows * length));
  const auto n = static_cast<std::uint64_t>(std::ssize(examples_) - held_out_);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::uint64_t number = static_cast<std::uint64_t>(step) * rows + r;
    const std::size_t place = (*order_->of(seed, number / n, n))[number % n];
    fill(examples_[place], x.subspan(r * length, length), y.subspan(r * length, length));
  }
}

std::int64_t ExampleBatches::validation_count() const {
  return (held_out_ + batch_ - 1) / batch_;
}

void ExampleBatches::validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const {
  const auto length = static_cast<std::size_t>(context_), rows = static_cast<std::size_t>(batch_);
  if (x.size() != rows * length || y.size() != x.size() || k < 0 || k >= count || count > validation_count())
    throw ShapeError("[examples] got " + std::to_string(x.size()) + " tokens and " +
                     std::to_string(y.size()) + " targets of batch " + std::to_string(k) + " of " +
                     std::to_string(count) + ", expected " + std::to_string(rows * length) + " and up to " +
                     std::to_string(validation_count()));
  const auto first = static_cast<std::size_t>(k * validation_count() / count) * rows;
  const auto begin = static_cast<std::size_t>(std::ssize(examples_) - held_out_);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t place = first + r;
    fill(place < static_cast<std::size_t>(held_out_) ? examples_[begin + place] : Example{},
         x.subspan(r * length, length), y.subspan(r * length, length));
  }
}

}  // namespace tg::train
