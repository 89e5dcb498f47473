// Reads the keys of a GGUF file and their values as strings, for tables of cases.
#pragma once

#include <string>

#include <tilegrad/io/files/json.h>
#include "io/files/gguf.h"
#include "tests/support/case_table.h"
#include "tests/support/files.h"

namespace tg::testing {

// An array has an entry for its size and an entry for each item. Numbers in f32 are printed with the digits
// of f32.
inline Members keys_of(const io::Gguf& file) {
  Members all;
  for (const std::string_view name : file.keys()) {
    const std::string key(name);
    if (!file.is_array(key)) {
      std::string text = file.text(key);
      if (text.find('.') != std::string::npos && text[0] != '"')
        text = io::json_number(static_cast<float>(file.number(key)));
      all[key] = text;
      continue;
    }
    std::size_t size = 0;
    const auto add = [&](const std::string& item) { all[key + "[" + std::to_string(size++) + "]"] = item; };
    const auto reads = [&](auto&& f) { return error_of(f) == "no error"; };
    if (!reads([&] { file.each_string(key, [&](std::string_view s) { add(std::string(s)); }); }) &&
        !reads([&] { file.each_integer(key, [&](std::int64_t x) { add(std::to_string(x)); }); }))
      file.each_number(key, [&](double x) { add(io::json_number(static_cast<float>(x))); });
    all[key] = "array of " + std::to_string(size);
  }
  return all;
}

}  // namespace tg::testing
