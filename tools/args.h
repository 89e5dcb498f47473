// Command-line parser of all tools: a table of options with typed destinations, parsed strictly. An error is
// reported in one line on stderr, with exit code 2. --help prints the table with the defaults, and the
// examples.
//
//   std::int64_t steps = 2000; std::string text; bool quiet = false;
//   tg::Args args("train", "Trains a character GPT on a text.");
//   args.option("text", "FILE", "text to learn", text, {.required = true});
//   args.option("steps", "N", "optimizer steps", steps, {.min = 1});
//   args.flag("quiet", "no progress line", quiet);
//   args.example("train --text input.txt --steps 500", "a first run");
//   if (const auto code = args.parse(argc, argv)) return *code;
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tilegrad/core/base/error.h>
#include <tilegrad/version.h>
#include "core/base/messages.h"

namespace tg {

// An error in the command line. run_tool() reports it in one line, with exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Throws UsageError with this message if it is not empty.
inline void check_usage(const std::string& mistake) {
  if (!mistake.empty()) throw UsageError(mistake);
}

// The shortest decimal representation that parses back to the same number.
inline std::string exact_text(double x) {
  char digits[40];
  return {digits, std::to_chars(digits, digits + sizeof digits, x).ptr};
}

// Splits a list at commas: "a,b" → {"a", "b"}.
inline std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words(1);
  for (const char c : list) {
    if (c == ',')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

// Levenshtein distance: insertions, deletions and substitutions between two names.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row[b.size()];
}

struct ArgLimits {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices;  // the only values that a string may have
  bool required = false;
  std::string shown;        // the default in --help, if the destination's value does not describe it
  std::string suffix = {};  // required ending of a string, such as ".png"
};

class Args {
 public:
  Args(std::string tool, std::string about) : tool_(std::move(tool)), about_(std::move(about)) {}

  // The destination's value is the default. Destinations must outlive parse(). A list gets one value each
  // time that the option is given.
  using Destination = std::variant<std::int64_t*, double*, std::string*, std::vector<std::string>*, bool*>;
  template <class T>
  void option(std::string name, std::string metavar, std::string help, T& to, ArgLimits limits = {}) {
    options_.push_back(
        {"--" + name, std::move(name), std::move(metavar), std::move(help), &to, std::move(limits)});
    show_default(options_.back());
  }
  void flag(std::string name, std::string help, bool& to) {
    options_.push_back({"--" + name, std::move(name), "", std::move(help), &to, {}});
  }
  // Declares a positional argument (without dashes). The order of declaration is the order on the command
  // line.
  void positional(std::string name, std::string help, std::string& to, ArgLimits limits = {}) {
    std::string title = name;
    for (char& c : title) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    const auto end = options_.begin() + static_cast<std::ptrdiff_t>(positionals_++);
    show_default(*options_.insert(
        end, {std::move(title), std::move(name), "", std::move(help), &to, std::move(limits)}));
  }
  void example(std::string command, std::string what) {
    examples_.emplace_back(std::move(command), std::move(what));
  }

  // Returns an exit code if the program must end: 0 after --help or --version, 2 after a usage error. Returns
  // nothing if the program may continue.
  std::optional<int> parse(int argc, const char* const* argv, std::FILE* out = stdout,
                           std::FILE* err = stderr) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == "--help" || word == "-h") {
        std::fputs(usage().c_str(), out);
        return 0;
      }
      if (word == "--version") {
        std::fprintf(out, "%s (tilegrad) %s\n", tool_.c_str(), TILEGRAD_VERSION);
        return 0;
      }
    }
    try {
      std::size_t seen = 0;  // number of positionals seen
      for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word.size() > 1 && word[0] == '-')
          take_option(word, i, argc, argv);
        else if (seen == positionals_)
          throw UsageError("unexpected argument '" + std::string(word) + "'");
        else
          assign(options_[seen++], word);
      }
      for (const Option& o : options_)
        if (o.limits.required && !o.given) throw UsageError("missing " + o.usage());
    } catch (const UsageError& e) {
      return fail(e.what(), err);
    }
    return std::nullopt;
  }

  // Reports an error that only the tool can detect, such as "--width 130 is not divisible by --heads 4". Like
  // other errors, it is one line, with exit code 2.
  int fail(const std::string& mistake, std::FILE* err = stderr) const {
    std::fprintf(err, "%s: %s (see %s --help)\n", tool_.c_str(), printable(mistake).c_str(), tool_.c_str());
    return 2;
  }

  // Whether the option or positional with this name was on the command line.
  bool given(std::string_view name) const {
    const auto o = std::ranges::find(options_, name, &Option::name);
    return o != options_.end() && o->given;
  }

  // Names of all options, in order of declaration.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (std::size_t i = positionals_; i < options_.size(); ++i) all.push_back(options_[i].name);
    return all;
  }

  // An option's current value, as a string that set() converts back exactly. The items of a list are joined
  // by commas.
  std::string value(std::string_view name) const {
    const auto o = std::ranges::find(options_, name, &Option::name);
    return o == options_.end() ? "" : text_of(*o);
  }

  // Sets an option to a value that was not on the command line, such as a saved value. given() does not
  // change. Throws UsageError if the option cannot have this value.
  void set(std::string_view name, std::string_view value) const {
    const auto o = std::ranges::find(options_, name, &Option::name);
    if (o == options_.end()) throw UsageError("unknown option --" + std::string(name));
    Option unset = *o;
    unset.given = false;
    assign(unset, value);
  }

  std::string usage() const {
    std::string s = tool_ + ": " + about_ + "\n\nusage: " + tool_;
    std::size_t width = 9;  // of --version
    for (std::size_t i = 0; i < options_.size(); ++i) {
      const Option& o = options_[i];
      if (o.limits.required)
        s += " " + o.usage();
      else if (i < positionals_)
        s += " [" + o.title + "]";
      width = std::max(width, o.usage().size());
    }
    s += " [options]\n\n";
    const auto row = [&](const std::string& left, const std::string& right) {
      s += "  " + left + std::string(width + 2 - left.size(), ' ') + right + "\n";
    };
    for (const Option& o : options_) row(o.usage(), described(o));
    row("--help", "print this page");
    row("--version", "print the version of the library");
    if (!examples_.empty()) s += "\nexamples:\n";
    for (const auto& [command, what] : examples_) s += "  " + command + "\n      " + what + "\n";
    s += "\nenvironment:\n"
         "  TG_LOG=1 to 4  log compiled programs to standard error: 1 runs, 2 steps, 3 memory plan, 4 "
         "kernels\n"
         "  TG_THREADS=N   number of threads on the CPU\n";
    return s;
  }

 private:
  struct Option {
    std::string title;  // as printed: "--text", or "MODE" for a positional
    std::string name, metavar, help;
    Destination to;
    ArgLimits limits;
    bool given = false;

    std::string usage() const { return metavar.empty() ? title : title + " " + metavar; }
  };

  static std::string number(double x) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.12g", x);
    return buffer;
  }
  static std::string text_of(const Option& o) {
    if (auto* const* to = std::get_if<std::int64_t*>(&o.to)) return std::to_string(**to);
    if (auto* const* to = std::get_if<std::string*>(&o.to)) return **to;
    if (auto* const* to = std::get_if<std::vector<std::string>*>(&o.to)) return joined(**to);
    if (auto* const* to = std::get_if<bool*>(&o.to)) return **to ? "true" : "false";
    return exact_text(**std::get_if<double*>(&o.to));
  }
  static std::string joined(const std::vector<std::string>& words) {
    std::string s;
    for (const std::string& w : words) s += (s.empty() ? "" : ", ") + w;
    return s;
  }
  static std::string described(const Option& o) {
    std::string s = o.help;
    if (!o.limits.choices.empty()) s += ": " + joined(o.limits.choices);
    if (o.limits.required) return s + " (required)";
    return o.limits.shown.empty() ? s : s + " [" + o.limits.shown + "]";
  }
  static void show_default(Option& o) {
    if (!o.limits.shown.empty()) return;
    auto* const* real = std::get_if<double*>(&o.to);
    o.limits.shown = real ? number(**real) : text_of(o);
  }

  // Reads "--name value" or "--name=value" at argv[i] and advances i past the value.
  void take_option(std::string_view word, int& i, int argc, const char* const* argv) {
    const std::size_t equals = word.find('=');
    const std::string name(word.substr(0, equals));
    const auto option = std::ranges::find(options_, name, &Option::title);
    if (option == options_.end()) throw UsageError("unknown option " + name + hint(name));
    if (bool* const* to = std::get_if<bool*>(&option->to)) {
      if (equals != std::string_view::npos) throw UsageError(name + " does not accept a value");
      option->given = ** to = true;
      return;
    }
    std::string_view value = word.substr(equals + 1);
    // A value may begin with one dash (a negative number) but not with two, because that is the next option.
    if (equals == std::string_view::npos) {
      if (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--"))
        throw UsageError(name + " needs a value: " + option->usage());
      value = argv[++i];
    }
    // An empty string is often an unset variable of a script. It does not select the default.
    if (value.empty() && option->metavar != "TEXT" && option->limits.choices.empty() &&
        !std::holds_alternative<std::int64_t*>(option->to) && !std::holds_alternative<double*>(option->to))
      throw UsageError(name + " got '', expected " + option->metavar);
    assign(*option, value);
  }

  [[noreturn]] static void refuse(const Option& o, std::string_view value, const std::string& expected) {
    throw UsageError(o.title + " got '" + std::string(value) + "', expected " + expected);
  }

  template <class T>
  static void assign_number(const Option& o, std::string_view value, T& to, const std::string& kind) {
    T x{};
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, x);
    if (error == std::errc::result_out_of_range) refuse(o, value, kind + " in range");
    if (error != std::errc() || stop != end) refuse(o, value, kind);
    if (!std::isfinite(static_cast<double>(x))) refuse(o, value, "a finite number");
    const auto [min, max] = std::pair(o.limits.min, o.limits.max);
    if (static_cast<double>(x) < min || static_cast<double>(x) > max) {
      if (std::isinf(max)) refuse(o, value, kind + " of at least " + number(min));
      if (std::isinf(min)) refuse(o, value, kind + " of at most " + number(max));
      refuse(o, value, kind + " from " + number(min) + " to " + number(max));
    }
    to = x;
  }

  static void assign(Option& o, std::string_view value) {
    auto* const* list = std::get_if<std::vector<std::string>*>(&o.to);
    if (o.given && !list) throw UsageError(o.title + " is given twice");
    if (auto* const* to = std::get_if<std::int64_t*>(&o.to)) {
      assign_number(o, value, **to, "a whole number");
    } else if (auto* const* real = std::get_if<double*>(&o.to)) {
      assign_number(o, value, **real, "a number");
    } else if (auto* const* flag = std::get_if<bool*>(&o.to)) {
      **flag = value == "true";
    } else {
      const auto& choices = o.limits.choices;
      if (!choices.empty() && std::ranges::find(choices, value) == choices.end())
        refuse(o, value, "one of " + joined(choices));
      if (!value.empty() && !value.ends_with(o.limits.suffix))
        refuse(o, value, "a name that ends in " + o.limits.suffix);
      if (list && !o.given) (*list)->clear();  // values on the command line replace the default
      if (list)
        (*list)->emplace_back(value);
      else
        *std::get<std::string*>(o.to) = value;
    }
    o.given = true;
  }

  // ", did you mean --steps?" if a name is similar enough to be a typo.
  std::string hint(std::string_view word) const {
    word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
    std::string nearest;
    std::size_t least = 1 + (word.size() + 2) / 3;  // two swapped letters count as two edits
    for (const std::string& name : names()) {
      const std::size_t d = !word.empty() && name.starts_with(word) ? 1 : edit_distance(word, name);
      if (d < least) least = d, nearest = name;
    }
    return nearest.empty() ? "" : ", did you mean --" + nearest + "?";
  }

  std::string tool_, about_;
  std::vector<Option> options_;  // positionals come first
  std::size_t positionals_ = 0;
  std::vector<std::pair<std::string, std::string>> examples_;
};

}  // namespace tg
