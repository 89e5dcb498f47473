// Compares adapters of PEFT folders with the results of peft from the same files.
// tests/interop/make_peft_golden.py writes these files.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include <tilegrad/io/models/peft.h>
#include "io/models/adapter_source.h"
#include "tests/support/files.h"
#include "tests/support/golden_models.h"

namespace {

using namespace tg;
using namespace tg::testing;

const std::string golden_adapters = GOLDEN_FOLDERS "../adapters/";

// The name of an adapter is the name of its golden model plus a suffix for the adapted part.
std::string base_of(const std::string& adapter) {
  return golden_folders + adapter.substr(0, adapter.find("_head"));
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// If the head has an adapter, PEFT also saves the weight of the head. We do not save it, because it belongs
// to the base.
const std::string head_weight = "base_model.model.lm_head.base_layer.weight";

class Adapter : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string folder = golden_adapters + GetParam();
  const io::SafeTensors expected = io::load_safetensors(folder + "/expected.safetensors");
  Array of(const std::string& name) const { return array_of(expected.tensors.at(name)); }
};

TEST_P(Adapter, LogitsLossAndGradientsMatchPeft) {
  nn::Pretrained model = nn::from_pretrained(base_of(GetParam()));
  nn::load_adapter(model, folder);
  const Computed c = compute(model, of("tokens"));
  const Array logits = of("logits");
  EXPECT_LE(difference(c.logits, logits), 1e-5 * std::max(1.0, largest(logits)));
  EXPECT_LE(difference(c.loss, of("loss")), 1e-5);
  std::size_t compared = 0;
  for (std::size_t i = 0; i < c.gradients.size(); ++i) {
    const Parameter& p = model.model.parameters()[i];
    const auto found = expected.tensors.find("grad.base_model.model." + p.name());
    EXPECT_EQ(found != expected.tensors.end(), !p.is_frozen()) << p.name();
    if (found == expected.tensors.end()) continue;
    const Array z = array_of(found->second);
    EXPECT_LE(difference(c.gradients[i], z), 1e-4 * largest(z)) << p.name();
    ++compared;
  }
  EXPECT_EQ(compared + 3, expected.tensors.size());
}

TEST_P(Adapter, IsSavedAsItWasRead) {
  const TemporaryDirectory directory;
  nn::Pretrained model = nn::from_pretrained(base_of(GetParam()));
  nn::load_adapter(model, folder);
  const std::string out = directory / "adapter";
  const io::SafeTensors theirs = io::load_safetensors(folder + "/adapter_model.safetensors");
  nn::save_adapter(out, model, {.dtype = theirs.tensors.begin()->second.dtype});
  EXPECT_EQ(content(out + "/adapter_config.json"), content(folder + "/adapter_config.json"));
  if (!theirs.tensors.contains(head_weight)) {
    EXPECT_EQ(content(out + "/adapter_model.safetensors"), content(folder + "/adapter_model.safetensors"));
  }
  const io::SafeTensors ours = io::load_safetensors(out + "/adapter_model.safetensors");
  EXPECT_EQ(ours.tensors.size() + theirs.tensors.count(head_weight), theirs.tensors.size());
  for (const auto& [name, tensor] : ours.tensors)
    EXPECT_TRUE(array_of(tensor).same_bits(array_of(theirs.tensors.at(name)))) << name;
}

// The config that we write has the same meaning as PEFT's config.
TEST_P(Adapter, OurConfigDescribesTheSameAdapter) {
  const TemporaryDirectory directory;
  nn::Pretrained model = nn::from_pretrained(base_of(GetParam()));
  nn::load_adapter(model, folder);
  const std::vector<nn::LoraModule> modules = model.model.lora()->modules;
  nn::LoraOptions options = model.model.lora()->options;
  std::vector<Array> values;
  for (const Parameter& p : model.model.lora()->parameters()) values.push_back(p.read());
  nn::remove_lora(model.model);
  options.origin.clear();
  nn::add_lora(model, options);
  for (std::size_t i = 0; i < values.size(); ++i)
    Parameter(model.model.lora()->parameters()[i]).write(values[i]);
  nn::save_adapter(directory / "adapter", model);
  nn::remove_lora(model.model);
  nn::load_adapter(model, directory / "adapter");
  const nn::Lora& again = *model.model.lora();
  ASSERT_EQ(again.modules.size(), modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    EXPECT_EQ(again.modules[i].name, modules[i].name);
    EXPECT_EQ(again.modules[i].rank, modules[i].rank);
    EXPECT_EQ(again.modules[i].scale, modules[i].scale);
    EXPECT_EQ(difference(again.modules[i].b.read(), modules[i].b.read()), 0);
  }
  EXPECT_EQ(again.options.dropout, options.dropout);
}

// Compares in f64, so that rounding cannot hide differences. tests/nn/lora_test.cpp compares in f32.
TEST_P(Adapter, MergedComputesTheSame) {
  nn::Pretrained model = nn::from_pretrained(base_of(GetParam()), Device::cpu(), {.dtype = f64});
  nn::load_adapter(model, folder);
  const Array apart = compute(model, of("tokens")).logits;
  nn::merge_lora(model.model);
  EXPECT_LE(difference(compute(model, of("tokens")).logits, apart), 1e-13 * std::max(1.0, largest(apart)));
}

std::vector<std::string> golden_adapter_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_adapters))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Adapter, ::testing::ValuesIn(golden_adapter_names()),
                         [](const auto& adapter) { return adapter.param; });

TEST(HeadAdapter, ADifferentBaseWeightIsRefused) {
  const TemporaryDirectory directory;
  const std::string folder = directory / "adapter", path = folder + "/adapter_model.safetensors";
  std::filesystem::copy(golden_adapters + "llama_head", folder);
  std::string bytes = content(path);
  const io::SafeTensors file = io::load_safetensors(path);
  const auto& head = file.tensors.at(head_weight).bytes;
  const std::string_view values(reinterpret_cast<const char*>(head.data()), head.size());
  const std::size_t at = bytes.find(values);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write(path, bytes);
  nn::Pretrained model = nn::from_pretrained(base_of("llama_head"));
  EXPECT_EQ(error_of([&] { nn::load_adapter(model, folder); }),
            "[load_adapter] " + path + ": " + head_weight +
                " has different values from lm_head.weight of the model: expected the adapter's own base");
  EXPECT_EQ(model.model.lora(), nullptr);
}

// A copy of the golden adapter of llama, which a test damages.
class DamagedAdapter : public ::testing::Test {
 protected:
  DamagedAdapter() {
    std::filesystem::create_directory(folder);
    for (const char* name : {"/adapter_config.json", "/adapter_model.safetensors"})
      std::filesystem::copy_file(golden_adapters + "llama" + name, folder + name);
  }
  void replace(const std::string& from, const std::string& to) {
    std::string text = content(golden_adapters + "llama/adapter_config.json");
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    write(folder + "/adapter_config.json", text);
  }
  std::string refusal() {
    std::string e = error_of([&] { nn::load_adapter(model, folder); });
    EXPECT_FALSE(model.model.lora()) << e;
    EXPECT_EQ(e.find('\n'), std::string::npos) << e;
    if (const auto at = e.find(folder); at != std::string::npos) e.replace(at, folder.size(), "DIR");
    return e;
  }
  const TemporaryDirectory directory;
  const std::string folder = directory / "adapter";
  nn::Pretrained model = nn::from_pretrained(golden_folders + "llama");
};

TEST_F(DamagedAdapter, IsRefusedByKeyAndValue) {
  const struct {
    const char *from, *to, *message;
  } cases[] = {
      {"\"LORA\"", "\"IA3\"", "DIR/adapter_config.json: peft_type is \"IA3\", expected LORA"},
      {"\"CAUSAL_LM\"", "\"SEQ_CLS\"", "task_type is \"SEQ_CLS\", expected CAUSAL_LM"},
      {"\"bias\": \"none\"", "\"bias\": \"lora_only\"", "bias is \"lora_only\", expected none"},
      {"\"use_dora\": false", "\"use_dora\": true", "use_dora is true, expected none of this"},
      {"\"use_qalora\": false", "\"use_qalora\": true", "use_qalora is true"},
      {"\"use_bdlora\": null", "\"use_bdlora\": {\"a\": 1}", "use_bdlora is {\"a\": 1}"},
      {"\"lora_bias\": false", "\"lora_bias\": true", "lora_bias is true"},
      {"\"layer_replication\": null", "\"layer_replication\": [[0, 1]]", "layer_replication is [[0, 1]]"},
      {"\"target_parameters\": null", "\"target_parameters\": [\"x\"]", "target_parameters is [\"x\"]"},
      {"\"trainable_token_indices\": null", "\"trainable_token_indices\": [3]",
       "trainable_token_indices is [3]"},
      {"\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]", "modules_to_save is [\"lm_head\"]"},
      {"\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"", "init_lora_weights is \"pissa\""},
      {"\"use_dora\": false", "\"use_newlora\": true", "use_newlora is true"},
      {"\"r\": 8", "\"r\": 0", "r is 0, expected a positive integer"},
      {"\"r\": 8", "\"r\": 4",
       "DIR/adapter_model.safetensors: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight is f32 "
       "[8, "
       "32], expected a floating type and [4, 32]"},
      {"\"lora_dropout\": 0.1", "\"lora_dropout\": 1.0", "lora_dropout is 1.0"},
      {"\"rank_pattern\": {}", "\"rank_pattern\": {\"q_.*\": 3}", "rank_pattern is {\"q_.*\": 3}"},
      {"\"v_proj\"", "\"v_prj\"",
       "DIR/adapter_config.json: target \"v_prj\" is not a Linear layer of the model"},
      {"\"v_proj\"", "\"k_proj\"", "DIR/adapter_model.safetensors: has no tensor"},
  };
  for (const auto& c : cases) {
    replace(c.from, c.to);
    EXPECT_NE(refusal().find(c.message), std::string::npos) << c.message << "\n" << refusal();
  }
  // The config has fewer targets than the file has tensors.
  const std::string text = content(golden_adapters + "llama/adapter_config.json");
  const std::size_t begin = text.find("\"target_modules\": ["), end = text.find(']', begin);
  write(folder + "/adapter_config.json",
        text.substr(0, begin) + "\"target_modules\": [\"q_proj\"" + text.substr(end));
  EXPECT_NE(refusal().find("has an adapter of model.layers.0.self_attn.v_proj, which is none"),
            std::string::npos);
}

TEST_F(DamagedAdapter, UnexpectedTensorsAreRefused) {
  const io::SafeTensors file = io::load_safetensors(folder + "/adapter_model.safetensors");
  const auto with = [&](const std::string& name, const Array& a) {
    io::TensorMap all = file.tensors;
    all[name] = {a.dtype(), {a.shape().begin(), a.shape().end()}, {a.raw(), a.bytes()}};
    io::save_safetensors(folder + "/adapter_model.safetensors", all);
    return refusal();
  };
  const Array one({1, 1}, f32);
  const std::string root = "base_model.model.", what = "DIR/adapter_model.safetensors: has a tensor ";
  for (const std::string& name :
       {root + ".lora_A.weight", std::string("base_model.model.lora_A.weight"), root + ".lora_B.weight",
        root + ".base_layer.weight", std::string("x.lora_A.weight"), root + "x.lora_C.weight"})
    EXPECT_EQ(with(name, one), "[load_adapter] " + what + name +
                                   ", expected base_model.model.MODULE.lora_A.weight or lora_B.weight");
  EXPECT_EQ(with(root + "x.lora_A.weight", one),
            "[load_adapter] DIR/adapter_model.safetensors: has an adapter of x, which is none of the model's "
            "layers "
            "that target_modules of adapter_config.json names");
  EXPECT_EQ(with(root + "model.layers.0.self_attn.q_proj.base_layer.weight", one),
            "[load_adapter] " + what + root +
                "model.layers.0.self_attn.q_proj.base_layer.weight, expected weights of the model only of "
                "its head, "
                "with an adapter");
  const std::string a = root + "model.layers.0.self_attn.q_proj.lora_A.weight",
                    b = root + "model.layers.0.self_attn.q_proj.lora_B.weight";
  const std::string expected = ", expected a floating type and ";
  EXPECT_EQ(with(a, Array({8, 31}, f32)),
            "[load_adapter] DIR/adapter_model.safetensors: " + a + " is f32 [8, 31]" + expected +
                "[8, 32] by the rank in adapter_config.json and the model's layer");
  EXPECT_EQ(with(a, Array({8, 32}, i32)),
            "[load_adapter] DIR/adapter_model.safetensors: " + a + " is i32 [8, 32]" + expected +
                "[8, 32] by the rank in adapter_config.json and the model's layer");
  EXPECT_EQ(with(b, Array({32, 9}, f32)),
            "[load_adapter] DIR/adapter_model.safetensors: " + b + " is f32 [32, 9]" + expected +
                "[32, 8] by the model's layer and the rank in adapter_config.json");
}

TEST(SaveAdapter, InvalidNumbersAndDtypesAreRefused) {
  const TemporaryDirectory directory;
  nn::Pretrained model = nn::from_pretrained(golden_folders + "llama");
  nn::add_lora(model, {.rank = 2, .targets = {"q_proj"}});
  const std::string folder = directory / "a";
  EXPECT_EQ(error_of([&] { nn::save_adapter(folder, model, {.dtype = i32}); }),
            "[save_adapter] expected a floating dtype, got i32");
  nn::save_adapter(directory / "half", model, {.dtype = bf16});
  const io::SafeTensors half = io::load_safetensors(directory / "half/adapter_model.safetensors");
  EXPECT_EQ(half.metadata, (io::Metadata{{"format", "pt"}}));
  for (const Parameter& p : model.model.lora()->parameters()) {
    const io::TensorView& t = half.tensors.at("base_model.model." + p.name());
    EXPECT_EQ(t.dtype, bf16);
    EXPECT_TRUE(array_of(t).same_bits(p.read().to(bf16))) << p.name();
  }
  const io::PeftConfig config = io::parse_peft_config(content(directory / "half/adapter_config.json"), "t");
  EXPECT_EQ(config.base, golden_folders + "llama");
  EXPECT_FALSE(config.fan_in_fan_out);
  EXPECT_EQ(config.options.rank, 2);
  Parameter b = model.model.lora()->modules[0].b;
  Array values = b.read().copy();
  values.set(3, 1e38);
  b.write(values);
  EXPECT_EQ(error_of([&] { nn::save_adapter(folder, model, {.dtype = f16}); }).substr(0, 17 + folder.size()),
            "[save_adapter] " + folder + ": ");
  values.set(3, NAN);
  b.write(values);
  EXPECT_EQ(error_of([&] { nn::save_adapter(folder, model); }),
            "[save_adapter] " + b.name() + " has a number that is not finite at element 3");
  EXPECT_FALSE(std::filesystem::exists(folder));
  nn::Pretrained gpt = nn::from_pretrained(golden_folders + "gpt2");
  nn::add_lora(gpt, {.rank = 2});
  nn::save_adapter(folder, gpt);
  EXPECT_TRUE(io::parse_peft_config(content(folder + "/adapter_config.json"), "t").fan_in_fan_out);
}

// As in peft, such patterns do not affect results. They are saved unchanged.
TEST_F(DamagedAdapter, MayHavePatternsOfModulesWithoutAdapters) {
  for (const char* pattern : {"rank_pattern", "alpha_pattern"}) {
    const std::string key = "\"" + std::string(pattern) + "\": {";
    replace(key + "}", key + "\"k_proj\": 3, \"lm_head\": 2}");
    nn::Pretrained base = nn::from_pretrained(golden_folders + "llama");
    nn::load_adapter(base, folder);
    EXPECT_EQ(base.model.lora()->modules[0].rank, 8);
    EXPECT_EQ(base.model.lora()->modules[0].alpha, 16);
    const std::string again = directory / pattern;
    nn::save_adapter(again, base);
    for (const char* name : {"/adapter_config.json", "/adapter_model.safetensors"})
      EXPECT_EQ(content(again + name), content(folder + name)) << name;
  }
}

TEST_F(DamagedAdapter, AdapterOfADifferentModelOrWithoutFilesIsRefused) {
  nn::Pretrained other = nn::from_pretrained(golden_folders + "gpt2");
  EXPECT_NE(
      error_of([&] { nn::load_adapter(other, folder); })
          .find(
              "adapter_config.json: target \"q_proj\" is not a Linear layer of the model, which has c_attn, "
              "c_fc, c_proj"),
      std::string::npos);
  nn::Pretrained wide = nn::from_pretrained(golden_folders + "llama3");  // a different number of key heads
  EXPECT_NE(
      error_of([&] { nn::load_adapter(wide, folder); }).find("v_proj.lora_B.weight is f32 [16, 8], expected"),
      std::string::npos);

  std::string tensors = content(folder + "/adapter_model.safetensors");
  std::string damaged = tensors;
  damaged.replace(damaged.find("lora_A"), 6, "lora_X");
  write(folder + "/adapter_model.safetensors", damaged);
  EXPECT_NE(refusal().find("lora_X.weight, expected base_model.model.MODULE.lora_A.weight"),
            std::string::npos);
  damaged = tensors;
  for (std::size_t i = damaged.size() - 4; i < damaged.size(); ++i) damaged[i] = '\xff';
  write(folder + "/adapter_model.safetensors", damaged);
  EXPECT_NE(refusal().find("not finite"), std::string::npos);
  std::filesystem::remove(folder + "/adapter_model.safetensors");
  EXPECT_EQ(refusal(), "[load_adapter] DIR: has no adapter_model.safetensors");
  write(folder + "/adapter_model.bin", "");
  EXPECT_NE(refusal().find("a pickle"), std::string::npos);
  EXPECT_NE(error_of([&] { nn::load_adapter(other, golden_folders + "gpt2"); }).find("it is a model"),
            std::string::npos);
  EXPECT_NE(error_of([&] { nn::save_adapter(directory / "x", other); }).find("has no adapter"),
            std::string::npos);
  EXPECT_NE(error_of([&] { nn::load_adapter(other, directory / "nothing"); }).find("has no adapter_config"),
            std::string::npos);
}

}  // namespace
