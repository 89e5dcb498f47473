#include "tools/train/run_state.h"

#include <array>
#include <cmath>
#include <optional>
#include <span>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "core/run/ranks.h"
#include "io/files/utf8.h"
#include "tools/train/data.h"

namespace tg {
namespace {

constexpr std::string_view option_prefix = "option.";

// Options that apply only to this invocation. They are neither saved nor compared.
constexpr std::string_view of_this_call[] = {"out",  "resume",  "overwrite", "threads", "context-parallel",
                                             "zero", "trap-nan"};
// Saved options that may change when a run is resumed. The contents of files are compared, but not their
// paths.
constexpr std::string_view may_change[] = {"text",       "examples",     "tokens",     "backend", "steps",
                                           "eval-every", "eval-batches", "save-every", "sample"};
// Options that may differ between ranks. The contents of files are compared, but not their paths.
constexpr std::string_view of_this_rank[] = {"out", "text", "examples", "tokens", "model", "threads"};

struct Difference {
  std::size_t rank, text;
};

// Returns the first string that differs between a rank and rank 0, if there is one. All ranks must pass the
// same number of strings.
std::optional<Difference> first_difference(std::span<const std::string> texts, Communicator& ranks) {
  std::vector<std::array<char, 32>> own(texts.size());
  for (std::size_t i = 0; i < own.size(); ++i) identity_of(texts[i]).copy(own[i].data(), own[i].size());
  const auto all = gather(ranks, std::span<const std::array<char, 32>>(own));
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] != all[i % own.size()]) return Difference{i / own.size(), i % own.size()};
  return std::nullopt;
}

[[noreturn]] void fail_as_other(std::size_t rank, const std::string& what) {
  throw Error("[ranks] rank " + std::to_string(rank) + " has " + what +
              " from rank 0: expected the same on all ranks");
}

template <std::size_t n>
bool contains(const std::string_view (&list)[n], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

const std::string& value_of(const io::Metadata& saved, const std::string& key, const std::string& where) {
  const auto found = saved.find(key);
  if (found == saved.end()) throw FormatError(where + ": metadata has no " + key);
  return found->second;
}

template <class T>
T number(const io::Metadata& saved, const std::string& key, const std::string& where) {
  const std::string& text = value_of(saved, key, where);
  T x{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size())
    throw FormatError(where + ": metadata has " + key + " '" + text + "', expected a number");
  return x;
}

}  // namespace

io::Metadata to_metadata(const RunState& state, const Args& args) {
  io::Metadata m = {{"step", std::to_string(state.step)},
                    {"best_step", std::to_string(state.best_step)},
                    {"best_loss", exact_text(state.best_loss)},
                    {"data.xxh3_128", state.data_sum}};
  for (const std::string& name : args.names())
    if (!contains(of_this_call, name)) m[std::string(option_prefix) + name] = args.value(name);
  return m;
}

std::string not_saveable(const Args& args) {
  for (const std::string& name : args.names()) {
    const std::string value = args.value(name);
    if (!contains(of_this_call, name) && io::utf8_valid_bytes(value) != value.size())
      return "--" + name + " '" + value + "' is not UTF-8: checkpoints save the command line";
  }
  return {};
}

RunState run_state(const io::Metadata& saved, const std::string& where) {
  RunState s;
  s.step = number<std::int64_t>(saved, "step", where);
  s.best_step = number<std::int64_t>(saved, "best_step", where);
  s.best_loss = number<double>(saved, "best_loss", where);
  s.data_sum = value_of(saved, "data.xxh3_128", where);
  if (s.step < 0 || s.best_step < 0) throw FormatError(where + ": metadata has a negative step");
  if (s.best_step > s.step)
    throw FormatError(where + ": metadata has best_step " + std::to_string(s.best_step) + " after step " +
                      std::to_string(s.step));
  const bool is_loss =
      s.best_step > 0 ? s.best_loss >= 0 && std::isfinite(s.best_loss) : s.best_loss == RunState{}.best_loss;
  if (!is_loss)
    throw FormatError(where + ": metadata has best_loss '" + value_of(saved, "best_loss", where) +
                      "', expected a possible validation loss");
  return s;
}

void take_options(Args& args, const io::Metadata& saved, const std::string& where) {
  for (const auto& [key, value] : saved) {
    if (!key.starts_with(option_prefix)) continue;
    const std::string name = key.substr(option_prefix.size());
    if (contains(of_this_call, name)) continue;
    if (args.given(name)) {
      if (!contains(may_change, name) && args.value(name) != value)
        throw Error("[resume] --" + name + " is " + args.value(name) + ", but the run in " + where +
                    " was started with " + value + ": omit it, or start a new run in a different --out");
      continue;
    }
    try {
      args.set(name, value);
    } catch (const UsageError& e) {
      throw FormatError(where + ": " + e.what());
    }
  }
}

void expect_same_on_all(const Args& args, const std::string& data_sum, Communicator& ranks) {
  std::vector<std::string> what, texts;
  for (const std::string& name : args.names())
    if (!contains(of_this_rank, name))
      what.push_back("a different --" + name), texts.push_back(args.value(name));
  what.push_back("different data"), texts.push_back(data_sum);
  if (const auto other = first_difference(texts, ranks)) fail_as_other(other->rank, what[other->text]);
}

void expect_same_on_all(const std::vector<Parameter>& weights, Communicator& ranks) {
  if (ranks.size() == 1) return;
  std::string sums;
  for (const Parameter& p : weights) {
    const Array values = p.read();
    sums += identity_of({static_cast<const char*>(values.share().get()), values.bytes()});
  }
  if (const auto other = first_difference({&sums, 1}, ranks)) fail_as_other(other->rank, "different weights");
}

void expect_same_on_all(const io::Checkpoint& checkpoint, const std::string& out, Communicator& ranks) {
  const std::string text = io::read_file(checkpoint.directory() + "/" + io::manifest_name, "resume");
  if (const auto other = first_difference({&text, 1}, ranks))
    throw Error("[resume] rank " + std::to_string(other->rank) + " finds a different checkpoint in " + out +
                " from rank 0: expected a directory that all hosts share");
}

}  // namespace tg
