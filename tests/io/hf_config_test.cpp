// Tests the meaning of config.json's keys, in old and new spellings, and refused keys.
#include "io/models/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/tilegrad.h>
#include "io/models/tensor_names.h"
#include "tests/support/hf_folder.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(HfConfig, KeysThatWouldChangeResultsAreRefusedByNameAndValue) {
  const auto error = [](const std::string& text) {
    return error_of([&] { io::parse_hf_config(text, "config.json"); });
  };
  EXPECT_EQ(error(llama_json), "no error");
  EXPECT_EQ(error(llama_with(R"("some_new_key": [1, {"a": null}])")), "no error");
  const auto gpt2_with = [](const std::string& members) {
    return R"({"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_layer": 1, "n_head": 2, "n_embd": 8, )" +
           members + "}";
  };
  EXPECT_EQ(error(gpt2_with(R"("num_attention_heads": 2, "hidden_size": 8)")), "no error");
  const auto gemma_with = [](const std::string& family, const std::string& members) {
    return replaced(replaced(llama_with(members), "\"llama\"", "\"" + family + "\""), "LlamaForCausalLM",
                    family == "gemma2" ? "Gemma2ForCausalLM" : "Gemma3ForCausalLM");
  };
  EXPECT_EQ(error(gemma_with("gemma2", R"("final_logit_softcapping": null)")), "no error");
  EXPECT_EQ(error(gemma_with("gemma3_text", R"("attn_logit_softcapping": null)")), "no error");
  const std::pair<std::string, std::string> cases[] = {
      {replaced(llama_json, "\"llama\"", "\"mamba\""),
       "config.json: model_type is \"mamba\", expected one of " + io::hf_families()},
      {replaced(llama_json, "\"model_type\": \"llama\",", ""),
       "config.json: has no model_type, expected a string"},
      {replaced(llama_json, "\"LlamaForCausalLM\"", "\"LlamaForSequenceClassification\""),
       "config.json: architectures is [\"LlamaForSequenceClassification\"], expected [\"LlamaForCausalLM\"]"},
      {replaced(llama_json, "\"silu\"", "\"relu\""),
       "config.json: hidden_act is \"relu\", expected silu or swish"},
      {replaced(llama_json, "\"vocab_size\": 5", "\"vocab_size\": \"5\""),
       "config.json: vocab_size is \"5\", expected an integer"},
      {replaced(llama_json, "\"vocab_size\": 5", "\"vocab_size\": 5.5"),
       "config.json: vocab_size is 5.5, expected an integer"},
      {replaced(llama_json, "\"hidden_size\": 8,", ""),
       "config.json: has no hidden_size, expected an integer"},
      {replaced(llama_json, "\"num_key_value_heads\": 1", "\"num_key_value_heads\": -1"),
       "config.json: [model] key_heads is out of range: got -1, expected a whole number from 0 to "
       "2147483647"},
      {llama_with(R"("quantization_config": {"quant_method": "fp8"})"),
       "config.json: quantization_config is {\"quant_method\": \"fp8\"}, expected none: quantized weights "
       "cannot be "
       "read"},
      {llama_with("\"quantization_config\": {\n    \"quant_method\": \"fp8\",\r\n\t\"a\": [\n]\n  }"),
       "config.json: quantization_config is { \"quant_method\": \"fp8\", \"a\": [ ] }, expected none: "
       "quantized "
       "weights cannot be read"},
      {llama_with(R"("use_parallel_residual": true)"),
       "config.json: use_parallel_residual is true, expected false"},
      {llama_with(R"("num_local_experts": 8)"),
       "config.json: num_local_experts is 8, expected none: mixture-of-experts layers are not supported"},
      {llama_with(R"("text_config": {"model_type": "llama"})"),
       "config.json: text_config is {\"model_type\": \"llama\"}, expected none: a model of more than text "
       "cannot be read"},
      {llama_with(R"("use_bidirectional_attention": true)"),
       "config.json: use_bidirectional_attention is true, expected false"},
      {llama_with(R"("is_causal": false)"), "config.json: is_causal is false, expected true"},
      {gpt2_with(R"("num_attention_heads": 1)"),
       "config.json: num_attention_heads is 1, expected 2, as n_head"},
      {gemma_with("gemma2", R"("final_logit_softcapping": 0.0)"),
       "config.json: final_logit_softcapping is 0.0, expected a positive number or null"},
      {gemma_with("gemma3_text", R"("attn_logit_softcapping": 50.0)"),
       "config.json: attn_logit_softcapping is 50.0, expected null"},
      {llama_with(R"("rope_scaling": {"type": "su", "factor": 2.0})"),
       "config.json: rope_scaling: type is \"su\", expected default, dynamic, linear, llama3, yarn or "
       "longrope"},
      {llama_with(R"("rope_parameters": {"sliding_attention": {}})"),
       "config.json: rope_parameters: sliding_attention is {}, expected the same rotary positions in all "
       "layers"},
      {llama_with(R"("rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4})"),
       "config.json: rope_parameters: has no short_factor, expected an array of numbers"},
      {llama_with(
           R"("rope_parameters": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1, "2"]})"),
       "config.json: rope_parameters: long_factor is [1, \"2\"], expected an array of numbers"},
      {llama_with(
           R"("rope_parameters": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1]})"),
       "config.json: [model] rope scaling: got 1 factors, expected one for each of 2 pairs"},
      {llama_with(
           R"("rope_parameters": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1, 0]})"),
       "config.json: [rope scaling] long_factor is out of range: got 0, expected a number above 0 and at "
       "most 1e+18"},
      {llama_with(R"("rope_parameters": {"partial_rotary_factor": 0.5})"),
       "config.json: rope_parameters: partial_rotary_factor is 0.5, expected 1"},
      {llama_with(R"("rope_scaling": {"rope_type": "linear"})"),
       "config.json: rope_scaling: has no factor, expected a number"},
      {llama_with(R"("rope_scaling": {"rope_type": "linear", "factor": -1})"),
       "config.json: [rope scaling] factor is out of range: got -1, expected a number above 0 and at most "
       "1e+18"},
      {llama_with(R"("partial_rotary_factor": 0.5)"),
       "config.json: partial_rotary_factor is 0.5, expected 1"},
      {llama_with(R"("head_dim": 7)"), "config.json: [model] heads of width 7 have no rotary pairs"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(error(text), message);

  std::string many = "1";
  for (int i = 0; i < 1000; ++i) many += ", 1";
  EXPECT_EQ(
      error(llama_with("\"eos_token_id\": [" + many + "]")).find("config.json: eos_token_id is [1, 1, "), 0u);
  const std::string mistral = replaced(replaced(llama_json, "\"llama\"", "\"mistral\""), "Llama", "Mistral");
  EXPECT_EQ(error(replaced(mistral, "\"vocab_size\"", "\"sliding_window\": 0, \"vocab_size\"")),
            "config.json: sliding_window is 0, expected a positive number of tokens, or null");
  EXPECT_EQ(
      error(replaced(mistral, "\"vocab_size\"",
                     R"("sliding_window": 8, "layer_types": ["full_attention", "full_attention"],
                              "vocab_size")")),
      "config.json: layer_types is [\"full_attention\", \"full_attention\"], expected sliding_attention in "
      "every layer, as sliding_window specifies");
  EXPECT_EQ(error(replaced(mistral, "\"vocab_size\"",
                           R"("sliding_window": null, "layer_types": ["sliding_attention", "full_attention"],
                              "vocab_size")")),
            "config.json: sliding_window is null, expected a number of tokens: layer_types has "
            "sliding_attention");
  const std::string qwen = replaced(replaced(llama_json, "\"llama\"", "\"qwen2\""), "Llama", "Qwen2");
  EXPECT_EQ(error(replaced(qwen, "\"vocab_size\"", "\"layer_types\": [\"full_attention\"], \"vocab_size\"")),
            "config.json: layer_types is [\"full_attention\"], expected one for each of 2 layers");
  EXPECT_EQ(
      error(replaced(qwen, "\"vocab_size\"", "\"layer_types\": [\"linear_attention\"], \"vocab_size\"")),
      "config.json: layer_types is [\"linear_attention\"], expected full_attention and sliding_attention "
      "only");
  const std::string phi3 = replaced(replaced(llama_json, "\"llama\"", "\"phi3\""), "Llama", "Phi3");
  const auto phi3_error = [&](const std::string& members) {
    return error(replaced(phi3, "\"vocab_size\"", members + ", \"vocab_size\""));
  };
  EXPECT_EQ(
      phi3_error(R"("rope_scaling": {"type": "linear", "factor": 2})"),
      "config.json: rope_scaling: type is \"linear\", expected default or longrope, or su or yarn as its "
      "earlier names");
  EXPECT_EQ(
      phi3_error(R"("partial_rotary_factor": 1.5)"),
      "config.json: partial_rotary_factor is 1.5, expected a share of a head, more than 0 and at most 1");
  EXPECT_EQ(phi3_error(R"("partial_rotary_factor": 0.75)"),
            "config.json: [model] heads of width 3 have no rotary pairs");
  EXPECT_EQ(phi3_error(R"("partial_rotary_factor": 0.1)"),
            "config.json: [model] heads of width 1 have no rotary pairs");
  EXPECT_EQ(phi3_error(R"("partial_rotary_factor": 0.5)"), "no error");
  const std::string gpt2 =
      R"({"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_layer": 1, "n_head": 1,
    "n_embd": 8})";
  EXPECT_EQ(error(gpt2), "no error");
  EXPECT_EQ(error(replaced(gpt2, "{", R"({"scale_attn_by_inverse_layer_idx": true, )")),
            "config.json: scale_attn_by_inverse_layer_idx is true, expected false");
  EXPECT_EQ(error(replaced(gpt2, "{", R"({"activation_function": "relu", )")),
            "config.json: activation_function is \"relu\", expected gelu_new or gelu_pytorch_tanh or gelu");
  const std::string deepseek =
      replaced(replaced(llama_json, "\"llama\"", "\"deepseek_v3\""), "Llama", "DeepseekV3");
  EXPECT_EQ(error(replaced(deepseek, "\"num_key_value_heads\": 1", "\"first_k_dense_replace\": 1")),
            "config.json: first_k_dense_replace is 1, expected 2, the number of layers: mixture-of-experts "
            "layers are "
            "not supported");
}

// Tests the same settings in the spellings of transformers 4 and 5.
TEST(HfConfig, OldAndNewKeysMeanTheSame) {
  const auto metadata = [](const std::string& members) {
    return io::to_metadata(io::parse_hf_config(llama_with(members), "config.json").model);
  };
  EXPECT_EQ(
      metadata(R"("rope_theta": 5e5, "rope_scaling": null, "torch_dtype": "bfloat16")"),
      metadata(R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "dtype": "bfloat16")"));
  EXPECT_EQ(metadata(R"("rope_theta": 500, "rope_scaling": {"type": "linear", "factor": 2.0})"),
            metadata(R"("rope_parameters": {"rope_theta": 500, "rope_type": "linear", "factor": 2})"));
  EXPECT_EQ(metadata(R"("rope_theta": 500, "rope_scaling": {"type": "dynamic", "factor": 2.0})"),
            metadata(R"("rope_theta": 500)"));
  EXPECT_NE(metadata(R"("rope_theta": 5e5)"), metadata(R"("rope_theta": 1e4)"));
  EXPECT_EQ(metadata(R"("rope_theta": 5e5)"),
            metadata(R"("rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5})"));
  for (const std::string type : {"llama3", "yarn", "longrope"}) {  // the outer original context is used
    const std::string rope =
        "{\"rope_type\": \"" + type + R"(", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4,
          "short_factor": [1, 2], "long_factor": [3, 4], "original_max_position_embeddings": )";
    const auto scaled = [&](const std::string& first, const std::string& outer) {
      return metadata(outer + "\"rope_parameters\": " + rope + first + "}");
    };
    EXPECT_EQ(scaled("8", "\"original_max_position_embeddings\": 12, "), scaled("12", "")) << type;
    EXPECT_NE(scaled("8", ""), scaled("12", "")) << type;
    EXPECT_EQ(scaled("null", ""), scaled("16", "")) << type << ": max_position_embeddings";
  }
}

// If a key is missing, its default differs between families.
TEST(HfConfig, MissingKeysHaveTheUsualValuesOfTheFamily) {
  const std::string sizes = R"("vocab_size": 9, "hidden_size": 64, "intermediate_size": 12,
    "num_hidden_layers": 6, "num_attention_heads": 32)";
  const std::pair<const char*, const char*> cases[] = {
      {"llama", R"("max_position_embeddings": 2048, "num_key_value_heads": 32, "head_dim": null,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "hidden_act": "silu",
         "attention_bias": false, "mlp_bias": false)"},
      {"qwen2", R"("max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": null,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "use_sliding_window": false)"},
      {"qwen3", R"("max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "attention_bias": false)"},
      {"mistral", R"("max_position_embeddings": 131072, "num_key_value_heads": 8, "head_dim": null,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": false, "sliding_window": 4096)"},
      {"smollm3", R"("max_position_embeddings": 32768, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
         "rope_theta": 2e6, "tie_word_embeddings": true, "no_rope_layers": [1, 1, 1, 0, 1, 1])"},
      {"olmo2", R"("max_position_embeddings": 2048, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
         "rope_theta": 1e4, "tie_word_embeddings": false)"},
      {"phi3", R"("max_position_embeddings": 4096, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
         "rope_theta": 1e4, "tie_word_embeddings": false, "sliding_window": null)"},
      {"gemma2", R"("max_position_embeddings": 8192, "num_key_value_heads": 4, "head_dim": 256,
         "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "query_pre_attn_scalar": 256,
         "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
                         "sliding_attention", "full_attention"])"},
      {"gemma3_text", R"("max_position_embeddings": 131072, "num_key_value_heads": 4, "head_dim": 256,
         "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": true,
         "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": null,
         "final_logit_softcapping": null, "sliding_window_pattern": 6)"},
      {"deepseek_v2", R"("max_position_embeddings": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
         "rope_theta": 1e4, "tie_word_embeddings": false, "attention_bias": false)"},
      {"deepseek_v3", R"("max_position_embeddings": 4096, "kv_lora_rank": 512, "q_lora_rank": 1536,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
         "rope_theta": 1e4, "tie_word_embeddings": false, "rope_interleave": true)"},
  };
  for (const auto& [family, members] : cases) {
    const std::string given =
        "{\"model_type\": \"" + std::string(family) + "\", \"first_k_dense_replace\": 6, ";
    const auto metadata = [](const std::string& text) {
      return io::to_metadata(io::parse_hf_config(text, "config.json").model);
    };
    EXPECT_EQ(metadata(given + sizes + "}"), metadata(given + sizes + ", " + members + "}")) << family;
  }
  const std::string gpt2 =
      R"({"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_layer": 1, "n_head": 1,
    "n_embd": 8)";
  EXPECT_EQ(io::to_metadata(io::parse_hf_config(gpt2 + "}", "x").model),
            io::to_metadata(io::parse_hf_config(gpt2 + R"(, "n_inner": null, "layer_norm_epsilon": 1e-5,
              "activation_function": "gelu_new", "tie_word_embeddings": true, "reorder_and_upcast_attn": true,
              "scale_attn_weights": true})",
                                                "x")
                                .model));
}

// There are two kinds of layers. rope_parameters has a part for each kind. Older files have separate keys.
TEST(HfConfig, Gemma3HasTwoRopeSettingsInOldAndNewKeys) {
  const std::string gemma =
      R"({"model_type": "gemma3_text", "vocab_size": 9, "hidden_size": 64, "intermediate_size": 12,
    "num_hidden_layers": 4, "num_attention_heads": 4, "sliding_window": 8, )";
  const auto metadata = [&](const std::string& members) {
    return io::to_metadata(io::parse_hf_config(gemma + members + "}", "x").model);
  };
  const std::string layers = R"("layer_types": ["sliding_attention", "full_attention", "sliding_attention",
    "full_attention"])";
  const io::Metadata now = metadata(layers + R"(, "rope_parameters": {
    "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})");
  EXPECT_EQ(metadata(R"("sliding_window_pattern": 2, "rope_theta": 5e5, "rope_local_base_freq": 2e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8})"),
            now);
  EXPECT_EQ(metadata(R"("sliding_window_pattern": 2, "rope_theta": 5e5, "rope_local_base_freq": 2e4,
    "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}})"),
            now);
  EXPECT_EQ(now.at("windows"), "8 0 8 0");
  EXPECT_EQ(now.at("window_theta"), "20000");
  EXPECT_EQ(error_of([&] {
              metadata(R"("rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}})");
            }),
            "x: rope_parameters: sliding_attention is {\"rope_type\": \"linear\", \"factor\": 2}, expected "
            "rope_type default");
}

// Tests the old and new spellings of rope_scaling.
TEST(HfConfig, Phi3HasALongRopeWithThreeNames) {
  const std::string phi3 = replaced(replaced(llama_json, "\"llama\"", "\"phi3\""), "Llama", "Phi3");
  const auto metadata = [&](const std::string& members) {
    const std::string text = replaced(replaced(phi3, "{", "{" + members + ", "), ": 16,", ": 8192,");
    return io::to_metadata(io::parse_hf_config(text, "x").model);
  };
  const std::string lists = R"("short_factor": [1, 1.5], "long_factor": [2, 3])";
  const io::Metadata now = metadata(R"("original_max_position_embeddings": 4096, "rope_parameters": {)" +
                                    lists + R"(, "rope_type": "longrope", "partial_rotary_factor": 1.0})");
  EXPECT_EQ(now.at("rope_first_context"), "4096");
  EXPECT_EQ(now.at("rope_long_factors"), "2 3");
  EXPECT_EQ(std::stod(now.at("rope_magnitude")), std::sqrt(1 + std::log(2.0) / std::log(4096.0)));
  for (const std::string type : {"longrope", "su", "yarn"})
    EXPECT_EQ(metadata("\"rope_scaling\": {" + lists + ", \"type\": \"" + type + "\"}"), now) << type;
  EXPECT_EQ(metadata("\"rope_scaling\": {" + lists + R"(, "type": "su", "attention_factor": 1.25})")
                .at("rope_magnitude"),
            "1.25");
  const std::string half = R"("partial_rotary_factor": 0.5)";
  EXPECT_EQ(metadata(half), metadata("\"rope_parameters\": {" + half + "}"));
  EXPECT_EQ(metadata(half).at("rotary_width"), "2");
  EXPECT_EQ(metadata(R"("partial_rotary_factor": 1.0)"), metadata(R"("rope_theta": 10000)"));
}

// The size of the heads is not width / heads.
TEST(HfConfig, RowsOfJoinedTensorsFollowTheHeads) {
  const std::string text = replaced(llama_with(R"("head_dim": 6)"), "LlamaForCausalLM", "Phi3ForCausalLM");
  const nn::ModelConfig c = io::parse_hf_config(replaced(text, "\"llama\"", "\"phi3\""), "x").model;
  const auto at = [&](const std::string& name, std::int64_t rows) {
    const std::string layer = "model.layers.1.";
    const io::HfTensor t = io::hf_tensor("phi3", c, layer + name, {rows, 8});
    return t.name.substr(layer.size()) + " " + t.shape.text() + " from " + std::to_string(t.first_row);
  };
  const std::string qkv = "self_attn.qkv_proj.weight [24, 8] from ",
                    mlp = "mlp.gate_up_proj.weight [24, 8] from ";
  EXPECT_EQ(at("self_attn.q_proj.weight", 12), qkv + "0");
  EXPECT_EQ(at("self_attn.k_proj.weight", 6), qkv + "12");
  EXPECT_EQ(at("self_attn.v_proj.weight", 6), qkv + "18");
  EXPECT_EQ(at("mlp.gate_proj.weight", 12), mlp + "0");
  EXPECT_EQ(at("mlp.up_proj.weight", 12), mlp + "12");
}

// If the number of key heads is null, the family's default is not used.
TEST(HfConfig, NullKeyHeadsEqualTheNumberOfHeads) {
  for (const char* family : {"qwen2", "qwen3", "smollm3"}) {
    const std::string text = replaced(replaced(llama_json, "\"llama\"", "\"" + std::string(family) + "\""),
                                      "\"architectures\": [\"LlamaForCausalLM\"],", "");
    const auto metadata = [](const std::string& json) {
      return io::to_metadata(io::parse_hf_config(json, "x").model);
    };
    const std::string key = "\"num_key_value_heads\": ";
    EXPECT_EQ(metadata(replaced(text, key + "1", key + "null")).at("key_heads"), "2") << family;
  }
}

TEST(HfConfig, AllSettingsSurviveARoundTripThroughMetadata) {
  for (const char* members :
       {R"("attention_bias": true, "head_dim": 6)",
        R"("mlp_bias": true, "rope_parameters": {"rope_type": "llama3",
         "rope_theta": 5e5, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 3,
         "original_max_position_embeddings": 8})",
        R"("rope_parameters": {"rope_type": "yarn", "factor": 4, "beta_fast": 30, "truncate": false})",
        R"("rope_parameters": {"rope_type": "longrope", "factor": 4, "short_factor": [1, 1.0625],
         "long_factor": [1.1, 0.3333333333333333], "original_max_position_embeddings": 8})"}) {
    const nn::ModelConfig c = io::parse_hf_config(llama_with(members), "config.json").model;
    const io::Metadata saved = io::to_metadata(c);
    EXPECT_GT(saved.size(), io::to_metadata(io::parse_hf_config(llama_json, "config.json").model).size());
    EXPECT_EQ(io::to_metadata(io::model_config(saved, "file")), saved);
  }
}

TEST(HfConfig, GenerationConfigHasPrecedence) {
  io::HfConfig c = io::parse_hf_config(llama_with(R"("eos_token_id": 2, "bos_token_id": 1)"), "config.json");
  EXPECT_EQ(c.end_tokens, std::vector<std::int64_t>{2});
  io::parse_hf_generation(R"({"eos_token_id": [3, 4], "pad_token_id": null})", "generation_config.json", c);
  EXPECT_EQ(c.end_tokens, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(c.start_token, 1);
  EXPECT_FALSE(c.padding_token);
  EXPECT_EQ(
      error_of([&] { io::parse_hf_generation(R"({"eos_token_id": "x"})", "generation_config.json", c); }),
      "generation_config.json: eos_token_id is \"x\", expected an integer or an array of integers");
}

}  // namespace
