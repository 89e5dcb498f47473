// The command line of every tool: a table of options with typed destinations, parsed strictly. A mistake is
// reported in one line on stderr, with exit code 2; --help prints the table, the defaults and the examples.
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

#include <tilegrad/version.h>
#include "core/base/messages.h"

namespace tg {

struct ArgLimits {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices;  // the only values a string may take
  bool required = false;
  std::string shown;        // the default in --help, if the destination's value does not describe it
  std::string suffix = {};  // with which a string must end, such as ".png"
};

class Args {
 public:
  Args(std::string tool, std::string about) : tool_(std::move(tool)), about_(std::move(about)) {}

  // The destination's value is the default. Destinations must outlive parse(). A list gets one value each
  // time the option is given.
  using Destination = std::variant<std::int64_t*, double*, std::string*, std::vector<std::string>*, bool*>;
  template <class T>
  void option(std::string name, std::string metavar, std::string help, T& to, ArgLimits limits = {}) {
    options_.push_back({std::move(name), std::move(metavar), std::move(help), &to, std::move(limits)});
    show_default(options_.back());
  }
  void flag(std::string name, std::string help, bool& to) {
    options_.push_back({std::move(name), "", std::move(help), &to, {}});
  }
  // A word without dashes, in the order declared.
  void positional(std::string name, std::string help, std::string& to, ArgLimits limits = {}) {
    positionals_.push_back({std::move(name), "", std::move(help), &to, std::move(limits)});
    show_default(positionals_.back());
  }
  void example(std::string command, std::string what) {
    examples_.emplace_back(std::move(command), std::move(what));
  }

  // Nothing if the program may continue; otherwise its exit code: 0 after --help or --version, 2 after a
  // mistake.
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
    std::string mistake;
    std::size_t positionals_seen = 0;
    for (int i = 1; i < argc && mistake.empty(); ++i) {
      const std::string_view word = argv[i];
      if (word.size() > 1 && word[0] == '-') {
        mistake = take_option(word, i, argc, argv);
      } else if (positionals_seen == positionals_.size()) {
        mistake = "unexpected argument '" + std::string(word) + "'";
      } else {
        mistake = assign(positionals_[positionals_seen++], word);
      }
    }
    for (const std::vector<Option>* list : {&positionals_, &options_}) {
      for (const Option& o : *list) {
        if (mistake.empty() && o.limits.required && !o.given) mistake = "missing " + title(o);
      }
    }
    if (mistake.empty()) return std::nullopt;
    return fail(mistake, err);
  }

  // For mistakes that only the tool can detect ("--width 130 is not divisible by --heads 4"): the same line
  // and exit code.
  int fail(const std::string& mistake, std::FILE* err = stderr) const {
    std::fprintf(err, "%s: %s (see %s --help)\n", tool_.c_str(), printable(mistake).c_str(), tool_.c_str());
    return 2;
  }

  // Whether the option (or positional) of that name was on the command line.
  bool given(std::string_view name) const {
    for (const std::vector<Option>* list : {&positionals_, &options_}) {
      for (const Option& o : *list) {
        if (o.name == name) return o.given;
      }
    }
    return false;
  }

  // Names of all options, in the order declared.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Option& o : options_) all.push_back(o.name);
    return all;
  }

  // An option's current value, as text that set() converts back exactly; a list's items are joined by commas.
  std::string value(std::string_view name) const {
    for (const Option& o : options_)
      if (o.name == name) return text_of(o);
    return {};
  }

  // Sets an option to a value that was not on the command line (a saved one); given() does not change.
  // Returns what is wrong with the value, or nothing.
  std::string set(std::string_view name, std::string_view value) {
    for (Option& o : options_) {
      if (o.name != name) continue;
      Option unset = o;
      unset.given = false;
      return assign(unset, value);
    }
    return "unknown option --" + std::string(name);
  }

  std::string usage() const {
    std::string s = tool_ + ": " + about_ + "\n\nusage: " + tool_;
    for (const Option& o : positionals_) s += o.limits.required ? " " + upper(o) : " [" + upper(o) + "]";
    for (const Option& o : options_) {
      if (o.limits.required) s += " --" + o.name + " " + o.metavar;
    }
    s += " [options]\n\n";
    std::size_t width = 6;
    for (const Option& o : options_) width = std::max(width, o.name.size() + o.metavar.size() + 3);
    for (const Option& o : positionals_) width = std::max(width, o.name.size());
    const auto row = [&](const std::string& left, const std::string& right) {
      s += "  " + left + std::string(width + 2 - left.size(), ' ') + right + "\n";
    };
    for (const Option& o : positionals_) row(upper(o), described(o));
    for (const Option& o : options_)
      row("--" + o.name + (o.metavar.empty() ? "" : " " + o.metavar), described(o));
    row("--help", "this page");
    row("--version", "the version of the library");
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
    std::string name, metavar, help;
    Destination to;
    ArgLimits limits;
    bool given = false;
  };

  static std::string upper(const Option& o) {
    std::string s = o.name;
    for (char& c : s) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return s;
  }
  std::string title(const Option& o) const {
    const bool word =
        !positionals_.empty() && &o >= positionals_.data() && &o < positionals_.data() + positionals_.size();
    return word ? upper(o) : "--" + o.name + (o.metavar.empty() ? "" : " " + o.metavar);
  }
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
    char digits[40];
    const double x = **std::get_if<double*>(&o.to);
    return {digits, std::to_chars(digits, digits + sizeof digits, x).ptr};
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
    if (auto* const* to = std::get_if<std::int64_t*>(&o.to)) o.limits.shown = std::to_string(**to);
    if (auto* const* to = std::get_if<double*>(&o.to)) o.limits.shown = number(**to);
    if (auto* const* to = std::get_if<std::string*>(&o.to)) o.limits.shown = **to;
    if (auto* const* to = std::get_if<std::vector<std::string>*>(&o.to)) o.limits.shown = joined(**to);
  }

  // "--name value" or "--name=value" at argv[i]; moves i over the value. Returns what is wrong, or nothing.
  std::string take_option(std::string_view word, int& i, int argc, const char* const* argv) {
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    Option* option = nullptr;
    for (Option& o : options_) {
      if (name.starts_with("--") && name.substr(2) == o.name) option = &o;
    }
    if (option == nullptr) return "unknown option " + std::string(name) + hint(name);
    if (bool* const* to = std::get_if<bool*>(&option->to)) {
      if (equals != std::string_view::npos) return std::string(name) + " takes no value";
      option->given = ** to = true;
      return {};
    }
    std::string_view value = word.substr(equals + 1);
    // A value may begin with one dash (a negative number) but not with two: that is the next option.
    if (equals == std::string_view::npos) {
      if (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--"))
        return std::string(name) + " needs a value: " + title(*option);
      value = argv[++i];
    }
    // An empty name is that of a variable that a script did not set: it does not stand for the default.
    if (value.empty() && option->metavar != "TEXT" && option->limits.choices.empty() &&
        !std::holds_alternative<std::int64_t*>(option->to) && !std::holds_alternative<double*>(option->to))
      return std::string(name) + " got '', expected " + option->metavar;
    return assign(*option, value);
  }

  template <class T>
  std::string assign_number(Option& o, std::string_view value, T& to, const char* kind) const {
    T x{};
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, x);
    const std::string got = title_only(o) + " got '" + std::string(value) + "', expected ";
    if (error == std::errc::result_out_of_range) return got + kind + std::string(" in range");
    if (error != std::errc() || stop != end) return got + kind;
    if (!std::isfinite(static_cast<double>(x))) return got + "a finite number";
    const auto [min, max] = std::pair(o.limits.min, o.limits.max);
    if (static_cast<double>(x) < min || static_cast<double>(x) > max) {
      if (std::isinf(max)) return got + kind + " of at least " + number(min);
      if (std::isinf(min)) return got + kind + " of at most " + number(max);
      return got + kind + " from " + number(min) + " to " + number(max);
    }
    to = x;
    return {};
  }

  std::string assign(Option& o, std::string_view value) const {
    if (o.given && !std::holds_alternative<std::vector<std::string>*>(o.to))
      return title_only(o) + " is given twice";
    if (auto* const* to = std::get_if<std::int64_t*>(&o.to)) {
      if (auto mistake = assign_number(o, value, **to, "a whole number"); !mistake.empty()) return mistake;
    } else if (auto* const* real = std::get_if<double*>(&o.to)) {
      if (auto mistake = assign_number(o, value, **real, "a number"); !mistake.empty()) return mistake;
    } else if (auto* const* flag = std::get_if<bool*>(&o.to)) {
      **flag = value == "true";
    } else {
      const auto& choices = o.limits.choices;
      if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
        return title_only(o) + " got '" + std::string(value) + "', expected one of " + joined(choices);
      }
      if (!value.empty() && !value.ends_with(o.limits.suffix))
        return title_only(o) + " got '" + std::string(value) + "', expected a name that ends in " +
               o.limits.suffix;
      if (auto* const* text = std::get_if<std::string*>(&o.to)) {
        **text = value;
      } else {
        std::vector<std::string>& list = *std::get<std::vector<std::string>*>(o.to);
        if (!o.given) list.clear();  // what is given replaces the default
        list.emplace_back(value);
      }
    }
    o.given = true;
    return {};
  }

  std::string title_only(const Option& o) const {
    const std::string s = title(o);
    return s.substr(0, s.find(' '));
  }

  // Levenshtein distance: insertions, deletions and substitutions between two names.
  static std::size_t distance(std::string_view a, std::string_view b) {
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

  // ", did you mean --steps?" if a name is similar enough to be a typing error.
  std::string hint(std::string_view word) const {
    word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
    const Option* nearest = nullptr;
    std::size_t least = 1 + (word.size() + 2) / 3;  // two letters swapped count two
    for (const Option& o : options_) {
      const std::size_t d = !word.empty() && o.name.starts_with(word) ? 1 : distance(word, o.name);
      if (d < least) least = d, nearest = &o;
    }
    return nearest == nullptr ? "" : ", did you mean --" + nearest->name + "?";
  }

  std::string tool_, about_;
  std::vector<Option> options_, positionals_;
  std::vector<std::pair<std::string, std::string>> examples_;
};

}  // namespace tg
