// Tests members of JSON objects by name and kind. Also tests the keys of adapter_config.json: the options
// that they set, the JSON that is written for these options, and refused values.
#include <gtest/gtest.h>

#include <functional>

#include "io/files/json_object.h"
#include "io/models/adapter_source.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using namespace tg::testing;
using io::JsonObject;

// ---- JsonObject

TEST(JsonObject, MembersAreReadOnlyByTheReaderOfTheirKind) {
  struct Reader {
    const char* expected;
    std::function<std::string(const JsonObject&, const std::string&)> read;
    std::vector<const char*> keys;  // the keys that the reader accepts
    bool has_otherwise = false;     // whether a missing member has a default
  };
  const auto list = [](const auto& items) {
    std::string text;
    for (const auto& x : items)
      if constexpr (std::is_convertible_v<decltype(x), std::string>)
        text += x + ";";
      else
        text += io::json_real(static_cast<double>(x)) + ";";
    return text;
  };
  const std::pair<const char*, const char*> values[] = {{"whole", "-7"},       {"real", "2.5"},
                                                        {"text", "\"a\""},     {"true", "true"},
                                                        {"null", "null"},      {"object", "{\"a\": 1}"},
                                                        {"empty", "[]"},       {"wholes", "[1, 2]"},
                                                        {"reals", "[1.5, 2]"}, {"texts", "[\"x\", \"y\"]"}};
  const Reader readers[] = {
      {"an integer", [](auto& o, auto& k) { return std::to_string(o.integer(k)); }, {"whole"}},
      {"an integer", [](auto& o, auto& k) { return std::to_string(o.integer(k, 9)); }, {"whole"}, true},
      {"a number", [](auto& o, auto& k) { return io::json_real(o.number(k, 9)); }, {"whole", "real"}, true},
      {"a string", [](auto& o, auto& k) { return o.string(k); }, {"text"}},
      {"a string", [](auto& o, auto& k) { return o.string(k, "9"); }, {"text"}, true},
      {"true or false",
       [](auto& o, auto& k) { return std::string(o.boolean(k, false) ? "yes" : "9"); },
       {"true"},
       true},
      {"an object", [](auto& o, auto& k) { return o.object(k).text(); }, {"object"}},
      {"an array of strings", [&](auto& o, auto& k) { return list(o.strings(k)); }, {"texts", "empty"}},
      {"an integer or an array of integers",
       [&](auto& o, auto& k) { return list(o.integers(k)); },
       {"whole", "wholes", "empty"}},
      {"an array of numbers",
       [&](auto& o, auto& k) { return list(o.numbers(k)); },
       {"wholes", "reals", "empty"}},
  };
  const std::map<std::string, std::string> expected{{"whole an integer", "-7"},
                                                    {"whole a number", "-7.0"},
                                                    {"real a number", "2.5"},
                                                    {"text a string", "a"},
                                                    {"true true or false", "yes"},
                                                    {"object an object", "{\n  \"a\": 1\n}\n"},
                                                    {"texts an array of strings", "x;y;"},
                                                    {"whole an integer or an array of integers", "-7.0;"},
                                                    {"wholes an integer or an array of integers", "1.0;2.0;"},
                                                    {"wholes an array of numbers", "1.0;2.0;"},
                                                    {"reals an array of numbers", "1.5;2.0;"}};
  std::string text;
  for (const auto& [key, value] : values)
    text += (text.empty() ? "{\"" : ", \"") + std::string(key) + "\": " + value;
  const JsonObject object(text + "}", "F");
  for (const Reader& reader : readers) {
    const std::string what = std::string(", expected ") + reader.expected;
    for (const auto& [key, value] : values) {
      std::string got;
      const std::string error = error_of([&] { got = reader.read(object, key); });
      const bool reads =
          std::ranges::any_of(reader.keys, [&](const char* k) { return k == std::string(key); });
      if (std::string(key) == "null" && reader.has_otherwise) {
        EXPECT_EQ(error, "no error");
        EXPECT_EQ(got.substr(0, 1), "9");
      } else if (reads) {
        EXPECT_EQ(error, "no error") << key << what;
        const auto found = expected.find(std::string(key) + " " + reader.expected);
        EXPECT_EQ(got, found == expected.end() ? "" : found->second) << key << what;
      } else {
        const bool is_list = std::string(reader.expected).find(" or an array") != std::string::npos;
        EXPECT_EQ(error, "F: " + std::string(key) + " is " + value +
                             (is_list && key == std::string("real") ? ", expected an integer" : what));
      }
    }
    std::string got;
    const std::string error = error_of([&] { got = reader.read(object, "none"); });
    EXPECT_EQ(error, reader.has_otherwise ? "no error" : "F: has no none" + what);
    EXPECT_EQ(got.substr(0, 1), reader.has_otherwise ? "9" : "");
  }
  EXPECT_TRUE(object.has("null") && object.has("text") && !object.has("none"));
  EXPECT_TRUE(!object.is_set("null") && object.is_set("text") && !object.is_set("none"));
  EXPECT_EQ(object.keys(), (std::vector<std::string>{"empty", "null", "object", "real", "reals", "text",
                                                     "texts", "true", "whole", "wholes"}));
  EXPECT_EQ(object.json("reals"), "[1.5, 2]");
}

TEST(JsonObject, NonObjectsAreRefused) {
  EXPECT_EQ(error_of([] { JsonObject("[]", "F"); }), "F: expected an object at byte 0");
  EXPECT_EQ(error_of([] { JsonObject("{\"a\": 1} x", "F"); }).substr(0, 2), "F:");
  EXPECT_EQ(error_of([] { JsonObject("{\"a\": 1, \"a\": 2}", "F"); }), "F: duplicate key \"a\" at byte 12");
  const JsonObject object("{\"a\": {\"b\": \"x\"}}", "F");
  EXPECT_EQ(error_of([&] { object.object("a").integer("b"); }), "F: a: b is \"x\", expected an integer");
}

TEST(JsonObject, ArraysHaveUpToAThousandItems) {
  const auto object_with = [](int count, const std::string& item) {
    std::string text;
    for (int i = 0; i < count; ++i) text += (i > 0 ? "," : "{\"a\":[") + item;
    return JsonObject(text + "]}", "F");
  };
  EXPECT_EQ(object_with(1000, "1").integers("a").size(), 1000u);
  EXPECT_EQ(object_with(1000, "1").numbers("a").size(), 1000u);
  EXPECT_EQ(object_with(1000, "\"\"").strings("a").size(), 1000u);
  EXPECT_THROW(object_with(1001, "1").integers("a"), FormatError);
  EXPECT_THROW(object_with(1001, "1").numbers("a"), FormatError);
  EXPECT_THROW(object_with(1001, "\"\"").strings("a"), FormatError);
}

// The value is on one line and has at most 100 bytes.
TEST(JsonObject, ValuesInMessagesAreShortened) {
  const auto shown = [](const std::string& value) {
    const std::string begin = "F: a is ", end = ", expected an integer";
    const std::string text = error_of([&] { JsonObject("{\"a\": " + value + "}", "F").integer("a"); });
    EXPECT_TRUE(text.starts_with(begin) && text.ends_with(end)) << text;
    return text.substr(begin.size(), text.size() - begin.size() - end.size());
  };
  for (const std::size_t n : {97u, 98u})  // 99 and 100 bytes, with quotes
    EXPECT_EQ(shown("\"" + std::string(n, 'x') + "\""), "\"" + std::string(n, 'x') + "\"");
  EXPECT_EQ(shown("\"" + std::string(99, 'x') + "\""), "\"" + std::string(99, 'x') + "…");
  EXPECT_EQ(shown("\"" + std::string(300, 'x') + "\""), "\"" + std::string(99, 'x') + "…");
  EXPECT_EQ(shown("\"" + std::string(98, 'x') + "ü\""),
            "\"" + std::string(98, 'x') + "…");  // a character is not cut
  EXPECT_EQ(shown("[1,\n \t 2,\r\n3\n]"), "[1, 2, 3 ]");
  EXPECT_EQ(shown("[\n\n\n]"), "[ ]");
  EXPECT_EQ(shown("[1,  2]"), "[1,  2]");
}

TEST(JsonObject, MembersAreWrittenOnePerLine) {
  JsonObject object("{\"b\": [1,2], \"a\": \"x\"}", "F");
  EXPECT_EQ(object.text(), "{\n  \"a\": \"x\",\n  \"b\": [1,2]\n}\n");
  object.set("b", "null"), object.set("c", "3");
  EXPECT_EQ(object.text(), "{\n  \"a\": \"x\",\n  \"b\": null,\n  \"c\": 3\n}\n");
  EXPECT_EQ(JsonObject("{}", "F").text(), "{}\n");
  EXPECT_EQ(io::json_object_text({{"a\"", "1"}}), "{\n  \"a\\\"\": 1\n}\n");
  for (const auto& [x, text] : {std::pair{1.0, "1.0"},
                                {-20.0, "-20.0"},
                                {0.5, "0.5"},
                                {1e-05, "1e-05"},
                                {1e300, "1e+300"},
                                {0.0, "0.0"}})
    EXPECT_EQ(io::json_real(x), text);
}

// ---- adapter_config.json

using Changes = std::map<std::string, std::string>;

std::string peft_json(const Changes& changes) {
  Changes all{{"peft_type", "\"LORA\""},
              {"target_modules", "[\"v_proj\", \"q_proj\"]"},
              {"r", "4"},
              {"lora_alpha", "12"}};
  for (const auto& [key, value] : changes) value.empty() ? void(all.erase(key)) : void(all[key] = value);
  return io::json_object_text(all);
}

// Returns a config on one line.
std::string meaning(const io::PeftConfig& c) {
  const nn::LoraOptions& o = c.options;
  std::string text = "r " + std::to_string(o.rank) + " alpha " + io::json_real(o.alpha) + " dropout " +
                     io::json_real(o.dropout) + (o.rank_stabilized ? " rs" : "") + " on";
  for (const std::string& t : o.targets) text += " " + t;
  for (const auto& [name, r] : o.ranks) text += ", r " + name + " " + std::to_string(r);
  for (const auto& [name, a] : o.alphas) text += ", alpha " + name + " " + io::json_real(a);
  return text + (c.base.empty() ? "" : ", base " + c.base) + (c.fan_in_fan_out ? ", fan" : "") +
         (c.targets_complete ? "" : ", incomplete");
}

TEST(PeftConfig, KeysMatchTheTable) {
  const std::string usual = "r 4 alpha 12.0 dropout 0.0 on q_proj v_proj";
  const auto refused = [](const std::string& key, const std::string& value, const std::string& expected) {
    return "F: " + key + (value.empty() ? "" : " is " + value) + ", expected " + expected;
  };
  const std::string none = "none of this", pattern = "names of modules, or their last parts, as keys";
  const std::string init =
      "true, false, gaussian, orthogonal or eva, which leave the model's weights as they are";
  const struct {
    Changes changes;
    std::string result;
  } cases[] = {
      {{}, usual},
      {{{"peft_type", ""}}, "F: has no peft_type, expected a string"},
      {{{"peft_type", "\"IA3\""}}, refused("peft_type", "\"IA3\"", "LORA")},
      {{{"task_type", "\"CAUSAL_LM\""}, {"bias", "\"none\""}}, usual},
      {{{"task_type", "null"}, {"bias", "null"}}, usual},
      {{{"task_type", "\"SEQ_CLS\""}}, refused("task_type", "\"SEQ_CLS\"", "CAUSAL_LM")},
      {{{"task_type", "5"}}, refused("task_type", "5", "a string")},
      {{{"bias", "\"all\""}}, refused("bias", "\"all\"", "none")},
      {{{"r", ""}}, "r 8 alpha 12.0 dropout 0.0 on q_proj v_proj"},
      {{{"r", "1"}}, "r 1 alpha 12.0 dropout 0.0 on q_proj v_proj"},
      {{{"r", "0"}}, refused("r", "0", "a positive integer")},
      {{{"r", "2147483647"}}, "r 2147483647 alpha 12.0 dropout 0.0 on q_proj v_proj"},
      {{{"r", "2147483648"}}, refused("r", "2147483648", "a positive integer")},
      {{{"r", "4.0"}}, refused("r", "4.0", "an integer")},
      {{{"lora_alpha", ""}}, "r 4 alpha 8.0 dropout 0.0 on q_proj v_proj"},
      {{{"lora_alpha", "0.5"}}, "r 4 alpha 0.5 dropout 0.0 on q_proj v_proj"},
      {{{"lora_alpha", "\"1\""}}, refused("lora_alpha", "\"1\"", "a number")},
      {{{"use_rslora", "true"}}, "r 4 alpha 12.0 dropout 0.0 rs on q_proj v_proj"},
      {{{"use_rslora", "false"}}, usual},
      {{{"use_rslora", "1"}}, refused("use_rslora", "1", "true or false")},
      {{{"lora_dropout", "0.25"}}, "r 4 alpha 12.0 dropout 0.25 on q_proj v_proj"},
      {{{"lora_dropout", "0"}}, usual},
      {{{"lora_dropout", "1"}}, refused("lora_dropout", "1", "a number in [0, 1)")},
      {{{"lora_dropout", "-0.1"}}, refused("lora_dropout", "-0.1", "a number in [0, 1)")},
      {{{"rank_pattern", "{\"q_proj\": 3, \"^model.x-1_y$\": 2}"}}, usual + ", r model.x-1_y 2, r q_proj 3"},
      {{{"alpha_pattern", "{\"q_proj\": 3, \"v_proj\": 0.5}"}},
       usual + ", alpha q_proj 3.0, alpha v_proj 0.5"},
      {{{"rank_pattern", "null"}, {"alpha_pattern", "{}"}}, usual},
      {{{"rank_pattern", "{\"q\": 0}"}}, "F: rank_pattern: q is 0, expected a positive integer"},
      {{{"rank_pattern", "{\"q\": null}"}}, usual + ", r q 8"},
      {{{"rank_pattern", "{\"q\": 1, \"^q\": 2}"}},
       refused("rank_pattern", "{\"q\": 1, \"^q\": 2}", "each module once")},
      {{{"rank_pattern", "{\"q*\": 1}"}}, refused("rank_pattern", "{\"q*\": 1}", pattern)},
      {{{"rank_pattern", "{\"\": 1}"}}, refused("rank_pattern", "{\"\": 1}", pattern)},
      {{{"rank_pattern", "{\"^$\": 1}"}}, refused("rank_pattern", "{\"^$\": 1}", pattern)},
      {{{"rank_pattern", "[]"}}, refused("rank_pattern", "[]", "an object")},
      {{{"target_modules", ""}}, "F: has no target_modules, expected names of modules"},
      {{{"target_modules", "null"}}, refused("target_modules", "null", "names of modules")},
      {{{"target_modules", "[]"}}, refused("target_modules", "[]", "names of modules")},
      {{{"target_modules", "[1]"}}, refused("target_modules", "[1]", "an array of strings")},
      {{{"target_modules", "5"}}, refused("target_modules", "5", "a string")},
      {{{"target_modules", "\"all-linear\""}}, "r 4 alpha 12.0 dropout 0.0 on"},
      {{{"target_modules", "\".*_proj\""}}, "r 4 alpha 12.0 dropout 0.0 on, incomplete"},
      {{{"target_modules", "\".*_proj\""}, {"exclude_modules", "\"x\""}},
       "r 4 alpha 12.0 dropout 0.0 on, incomplete"},
      {{{"exclude_modules", "\"x\""}}, usual + ", incomplete"},
      {{{"layers_to_transform", "[0]"}}, usual + ", incomplete"},
      {{{"layers_pattern", "\"h\""}}, usual + ", incomplete"},
      {{{"exclude_modules", "null"}, {"layers_to_transform", "null"}, {"layers_pattern", "null"}}, usual},
      {{{"base_model_name_or_path", "\"a/b\""}, {"fan_in_fan_out", "true"}}, usual + ", base a/b, fan"},
      {{{"base_model_name_or_path", "null"}, {"fan_in_fan_out", "false"}}, usual},
      {{{"init_lora_weights", "true"}}, usual},
      {{{"init_lora_weights", "false"}}, usual},
      {{{"init_lora_weights", "null"}}, usual},
      {{{"init_lora_weights", "\"gaussian\""}}, usual},
      {{{"init_lora_weights", "\"orthogonal\""}}, usual},
      {{{"init_lora_weights", "\"eva\""}}, usual},
      {{{"init_lora_weights", "\"pissa\""}}, refused("init_lora_weights", "\"pissa\"", init)},
      {{{"use_dora", "false"}, {"modules_to_save", "null"}, {"new_a", "{}"}, {"new_b", "[]"}}, usual},
      {{{"use_dora", "true"}}, refused("use_dora", "true", none)},
      {{{"new", "0"}}, refused("new", "0", none)},
      {{{"new", "\"\""}}, refused("new", "\"\"", none)},
      {{{"auto_mapping", "1"},
        {"corda_config", "1"},
        {"ensure_weight_tying", "1"},
        {"eva_config", "1"},
        {"inference_mode", "true"},
        {"lora_ga_config", "1"},
        {"loftq_config", "1"},
        {"megatron_core", "1"},
        {"peft_version", "\"1\""},
        {"qalora_group_size", "1"},
        {"revision", "\"1\""},
        {"runtime_config", "1"}},
       usual},
  };
  for (const auto& c : cases) {
    const std::string json = peft_json(c.changes);
    std::string got;
    const std::string error = error_of([&] { got = meaning(io::parse_peft_config(json, "F")); });
    EXPECT_EQ(error == "no error" ? got : error, c.result) << json;
    if (error != "no error") continue;
    // If the written JSON is parsed again, the config is the same.
    io::PeftConfig config = io::parse_peft_config(json, "F");
    if (config.options.targets.empty()) continue;
    config.targets_complete = true;
    EXPECT_EQ(meaning(io::parse_peft_config(io::peft_config_json(config, {}), "written")), meaning(config))
        << json;
  }
}

TEST(PeftConfig, WrittenJsonHasEveryKey) {
  io::PeftConfig c{.options = {.rank = 4, .alpha = 12, .targets = {"v", "q", "v"}}};
  const std::string rest =
      "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n  \"layers_pattern\": null,\n  "
      "\"layers_to_transform\": null,\n";
  EXPECT_EQ(
      io::peft_config_json(c, {}),
      "{\n  \"alpha_pattern\": {},\n  \"base_model_name_or_path\": null,\n  \"bias\": \"none\",\n  "
      "\"fan_in_fan_out\": false,\n" +
          rest +
          "  \"lora_alpha\": 12,\n  \"lora_dropout\": 0.0,\n  \"modules_to_save\": null,\n  \"peft_type\": "
          "\"LORA\",\n  \"r\": 4,\n  \"rank_pattern\": {},\n  \"target_modules\": [\n    \"q\",\n    \"v\"\n "
          " ],\n  "
          "\"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": false\n}\n");
  c.options.alpha = 0.5, c.options.dropout = 0.25, c.options.rank_stabilized = true,
  c.options.targets.clear();
  c.options.ranks = {{"a", 2}, {"b", 3}}, c.options.alphas = {{"a", 16}, {"b", 1.5}, {"c", 2e15}};
  c.base = "dir", c.fan_in_fan_out = true;
  std::vector<nn::LoraModule> modules(3);
  modules[0].name = "model.layers.0.q_proj", modules[1].name = "model.layers.1.q_proj",
  modules[2].name = "x.c_attn";
  EXPECT_EQ(
      io::peft_config_json(c, modules),
      "{\n  \"alpha_pattern\": {\n    \"a\": 16,\n    \"b\": 1.5,\n    \"c\": 2e+15\n  },\n  "
      "\"base_model_name_or_path\": \"dir\",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": true,\n" +
          rest +
          "  \"lora_alpha\": 0.5,\n  \"lora_dropout\": 0.25,\n  \"modules_to_save\": null,\n  \"peft_type\": "
          "\"LORA\",\n  \"r\": 4,\n  \"rank_pattern\": {\n    \"a\": 2,\n    \"b\": 3\n  },\n  "
          "\"target_modules\": "
          "[\n    \"c_attn\",\n    \"q_proj\"\n  ],\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": "
          "false,\n  "
          "\"use_rslora\": true\n}\n");
}

}  // namespace
