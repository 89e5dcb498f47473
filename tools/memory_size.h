// Parsing of memory sizes in options.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tg {

// Splits a positive number and its unit: "1.5GiB" → 1.5 and "GiB".
inline std::optional<std::pair<double, std::string_view>> number_with_unit(std::string_view text) {
  double n = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  if (error != std::errc() || !(n > 0)) return std::nullopt;
  return std::pair(n, std::string_view(stop, static_cast<std::size_t>(end - stop)));
}

// Converts "64MiB", "1.5GiB" or "4096" to bytes. Returns nothing if the string is not a size, or is 2^62
// bytes or more.
inline std::optional<double> bytes_named(std::string_view text) {
  const auto parts = number_with_unit(text);
  for (const auto& [unit, factor] :
       {std::pair<std::string_view, double>("", 1), {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}})
    if (parts && parts->second == unit && parts->first * factor < 0x1p62) return parts->first * factor;
  return std::nullopt;
}

// Parses the value of an option into `bytes` if it is not empty. Returns an error message, or "" if the value
// is valid.
inline std::string take_bytes(const std::string& option, const std::string& text, std::size_t& bytes) {
  if (text.empty()) return "";
  const auto named = bytes_named(text);
  if (!named || *named < 1)
    return "--" + option + " got '" + text + "', expected a size like 500MiB or 1.5GiB";
  bytes = static_cast<std::size_t>(*named);
  return "";
}

}  // namespace tg
