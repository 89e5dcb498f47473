// Checks the keys of config.json and of GGUF files. config_table.txt and gguf_table.txt contain the cases and
// their results. The results are the settings of each model, the files that are written for it, and refused
// values.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>

#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/files/json_object.h"
#include "io/models/gguf_metadata.h"
#include "io/models/hf_config.h"
#include "io/models/tensor_names.h"
#include "tests/support/gguf_keys.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Rounds numbers with many digits to 6 digits, because further digits depend on the C library's f32
// functions.
std::string rounded(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) || text[end] == '.'))
      ++end;
    const std::string number = text.substr(i, end - i);
    if (number.size() > 12 && number.find('.') != std::string::npos) {
      char shown[40];
      std::snprintf(shown, sizeof shown, "%.6g", std::stod(number));
      out += shown;
    } else {
      out += end > i ? number : std::string(1, text[i]);
    }
    i = std::max(end, i + 1);
  }
  return out;
}

std::string list_of(const std::vector<std::int64_t>& ids) {
  std::string text;
  for (const std::int64_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

Members settings_of(const io::HfConfig& config) {
  Members all = io::to_metadata(config.model);
  for (auto& [key, value] : all) value = rounded(value);
  all["family"] = config.family + " " + config.head;
  if (!config.end_tokens.empty()) all["end"] = list_of(config.end_tokens);
  if (config.start_token) all["start"] = std::to_string(*config.start_token);
  if (config.padding_token) all["pad"] = std::to_string(*config.padding_token);
  return all;
}

Members plain_settings(io::HfConfig config) {
  config.model = io::hf_plain(config.model);
  return settings_of(config);
}

// Returns the members of an object that is written with one member per line.
Members members_of(const std::string& json) {
  Members all;
  std::istringstream lines(json);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  \"")) {
      EXPECT_TRUE(line == "{" || line == "}" || line == "{}") << line;
      continue;
    }
    if (line.ends_with(',')) line.pop_back();
    const std::size_t end = line.find("\": ");
    all[line.substr(3, end - 3)] = rounded(line.substr(end + 3));
  }
  return all;
}

// Makes a file of a model whose weights are zero.
std::string gguf_of(const io::HfConfig& config, std::vector<std::string>& notes,
                    std::set<std::string>& factors) {
  io::GgufStart start;
  io::add_gguf_config(config, "F", start, notes);
  io::add_gguf_tokenizer(nullptr, config, "", "F", start, notes);
  std::string data;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape, std::string bytes) {
    start.add_tensor(name, io::GgufType::f32, shape);
    data += bytes + io::gguf_padding(bytes.size());
  };
  std::set<std::string> seen;
  config.model.each_parameter([&](const std::string& name, const Shape& shape) {
    for (const io::GgufRowOrder& place : io::gguf_rows(config.family, config.model, name, shape))
      if (seen.insert(place.tensor).second)
        add(place.tensor, {place.shape.begin(), place.shape.end()},
            std::string(static_cast<std::size_t>(numel(place.shape)) * 4, '\0'));
  });
  for (const io::GgufFactors& f : io::gguf_factors(config)) {
    factors.insert(f.tensor);
    add(f.tensor, {std::ssize(f.values)},
        std::string(reinterpret_cast<const char*>(f.values.data()), f.values.size() * sizeof(float)));
  }
  return start.bytes() + data;
}

Results gguf_results(const io::HfConfig& config) {
  std::vector<std::string> notes;
  std::set<std::string> factors, read;
  std::string bytes;
  const std::string error = error_of([&] { bytes = gguf_of(config, notes, factors); });
  if (error != "no error") return {{"refused", {{"", rounded(error)}}}};
  const io::Gguf file(bytes, "F");
  Results results{{"gguf", keys_of(file)}};
  for (std::size_t i = 0; i < notes.size(); ++i) results["gguf"]["note " + std::to_string(i)] = notes[i];
  std::vector<std::string_view> in_file = file.keys();
  std::ranges::sort(in_file, {}, [](std::string_view key) { return key.data(); });
  std::uint32_t order = 0;  // a checksum of the keys in file order
  for (const std::string_view key : in_file)
    for (const char c : key) order = order * 31 + static_cast<unsigned char>(c);
  results["order"][""] = std::to_string(order);
  for (std::size_t i = 0; i < file.tensor_count(); ++i) {
    const io::GgufTensor t = file.tensor(i);
    if (t.name.starts_with("blk.") && !t.name.starts_with("blk.0.")) continue;
    results["tensors"][std::string(t.name)] = list_of(t.shape);
  }
  for (const io::GgufFactors& f : io::gguf_factors(config)) {
    std::string& text = results["gguf"][f.tensor];
    for (const float x : f.values)
      text += (text.empty() ? "" : " ") + io::json_number(static_cast<double>(x));
    text = rounded(text);
  }
  Members back;
  const std::string refusal = error_of([&] {
    back = settings_of(io::read_gguf_config(file, &read));
    io::read_gguf_tokenizer(file);
    io::check_gguf_keys(file);
  });
  if (refusal != "no error")
    back = {{"", rounded(refusal)}};
  else
    EXPECT_EQ(read, factors);
  const Members same = settings_of(config);
  if (back != same) results["back"] = differing_entries(back, same);
  return results;
}

std::string json_of(const Members& members) {
  std::string text;
  for (const auto& [key, value] : members) text += (text.empty() ? "{\"" : ", \"") + key + "\": " + value;
  return (text.empty() ? "{" : text) + "}";
}

TEST(ConfigTable, ConfigJsonKeysMatchTheTable) {
  expect_table(TG_TABLES "config_table.txt", [](const Members& all) -> Results {
    Members members = all;
    const auto bad = members.extract("bad");
    if (!bad.empty())
      return {{"errors", {{"", order_of_errors(members, bad.mapped(), [](const Members& m) {
                             return error_of([&] { io::parse_hf_config(json_of(m), "x"); });
                           })}}}};
    const std::string text = json_of(members);
    io::HfConfig config;
    const std::string error = error_of([&] { config = io::parse_hf_config(text, "x"); });
    if (error != "no error") return {{"error", {{"", error}}}};
    Results results = gguf_results(config);
    results["is"] = settings_of(config);
    const std::string json = io::hf_config_json(config, bf16);
    results["out"] = members_of(json);
    results["ids"] = members_of(io::hf_generation_json(config));
    std::string first;
    const std::string refusal = error_of([&] { first = io::hf_config_for(config.model, "m").family; });
    if (first != config.family) results["first"] = {{"", first + (first.empty() ? refusal : "")}};
    if (first.empty()) return results;
    io::HfConfig again = io::parse_hf_config(json, "written");
    EXPECT_EQ(plain_settings(again), plain_settings(config)) << json;
    again.end_tokens.clear(), again.start_token.reset(), again.padding_token.reset();
    io::parse_hf_generation(io::hf_generation_json(config), "written", again);
    EXPECT_EQ(plain_settings(again), plain_settings(config)) << json;
    EXPECT_EQ(io::hf_config_for(config.model, "m", config.family).family, config.family);
    return results;
  });
}

// The table describes a file as "key=kVALUE …", where k is the kind of the value. In an item of kind S, _
// stands for a space. A tensor is described as "+tensor=sizes", or "+tensor=:numbers" for F32.

template <class T>
std::vector<T> items_of(const std::string& text) {
  std::vector<T> all;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    if constexpr (std::is_same_v<T, std::string>) {
      std::ranges::replace(item, '_', ' ');
      all.push_back(item);
    } else {
      all.push_back(static_cast<T>(std::stod(item)));
    }
  }
  return all;
}

void add_key(io::GgufStart& start, const std::string& key, const std::string& text) {
  const std::string value = text.substr(1);
  switch (text[0]) {
    case 'u':
      return start.add(key, static_cast<std::uint32_t>(std::stoul(value)));
    case 'f':
      return start.add(key, std::stof(value));
    case 'b':
      return start.add(key, value == "1");
    case 's':
      return start.add(key, value);
    case 'S':
      return start.add(key, items_of<std::string>(value));
    case 'I':
      return start.add(key, items_of<std::int32_t>(value));
    case 'F':
      return start.add(key, items_of<float>(value));
    case 'B':
      return start.add_booleans(key, items_of<bool>(value));
    default:
      FAIL() << text;
  }
}

std::string file_of(const Members& members) {
  io::GgufStart start;
  std::string data;
  const std::string architecture = members.at("general.architecture").substr(1);
  for (const auto& [name, value] : members) {
    if (name[0] == '+') {
      const bool has_values = value[0] == ':';
      const auto numbers = items_of<float>(has_values ? value.substr(1) : "");
      const auto shape = has_values ? std::vector{std::ssize(numbers)} : items_of<std::int64_t>(value);
      start.add_tensor(name.substr(1), io::GgufType::f32, shape);
      std::string bytes(io::gguf_bytes(io::GgufType::f32, shape), '\0');
      std::memcpy(bytes.data(), numbers.data(), numbers.size() * sizeof(float));
      data += bytes + io::gguf_padding(bytes.size());
      continue;
    }
    const bool is_outer = name.starts_with("general.") || name.starts_with("tokenizer.") ||
                          name.starts_with("split.") || name.starts_with("quantize.") || name[0] == '/';
    add_key(start, name[0] == '/' ? name.substr(1) : is_outer ? name : architecture + "." + name, value);
  }
  return start.bytes() + data;
}

TEST(ConfigTable, GgufKeysMatchTheTable) {
  expect_table(TG_TABLES "gguf_table.txt", [](const Members& all) -> Results {
    Members members = all;
    const auto bad = members.extract("bad");
    if (!bad.empty())
      return {{"errors", {{"", order_of_errors(members, bad.mapped(), [&](const Members& m) {
                             Members now = m;
                             now["general.architecture"] = all.at("general.architecture");
                             for (const auto& [key, value] : all)
                               if (key[0] == '+') now[key] = value;
                             const std::string bytes = file_of(now);
                             return error_of([&] { io::read_gguf_config(io::Gguf(bytes, "F")); });
                           })}}}};
    const std::string bytes = file_of(members);
    const io::Gguf file(bytes, "F");
    Results results;
    std::set<std::string> tensors;
    const std::string error = error_of([&] {
      results["is"] = settings_of(io::read_gguf_config(file, &tensors));
      if (const auto tokenizer = io::read_gguf_tokenizer(file)) {
        const io::JsonObject json(tokenizer->json(), "F"), model = json.object("model");
        for (const std::string& key : json.keys())
          if (key != "model") results["tokenizer"][key] = json.json(key);
        for (const std::string& key : model.keys()) results["tokenizer"]["model." + key] = model.json(key);
      }
      io::check_gguf_keys(file);
    });
    if (error != "no error") return {{"error", {{"", rounded(error)}}}};
    for (const std::string& name : tensors) results["is"]["+" + name] = "read";
    return results;
  });
}

}  // namespace
