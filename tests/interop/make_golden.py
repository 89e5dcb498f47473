#!/usr/bin/env python3
"""Writes the golden files of tests/io/pretrained_test.cpp. For each model below, it writes a Hugging Face folder with random
weights, and expected.safetensors with the results of transformers in f32.
  It contains tokens [2, L], logits [2, L, V], loss, grad.NAME for every parameter, and greedy [prompt + 64].
  greedy is the beginning of the first row, continued with the most likely tokens.

  make_golden.py [NAME ...]        needs torch, transformers, safetensors (made with 5.24.0)
  make_golden.py --check           only checks that the installed transformers computes the same from the folders

Weights are large (0.3·N(0, 1)), so that errors are visible. They are rounded to the dtype of the file. Rows
are longer than two windows. The seed is incremented until the two most likely tokens clearly differ in every
step."""
import copy
import json
import pathlib
import shutil
import sys

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

FOLDERS = pathlib.Path(__file__).parent.parent / "io" / "pretrained"
LENGTH, PROMPT, GREEDY, LEAST_GAP = 14, 6, 64, 2e-3

# The original context is 80. With heads of size 8, llama3 and yarn then interpolate one pair, and yarn's
# rounding is visible.
SIZES = dict(vocab_size=37, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=96, bos_token_id=1, eos_token_id=2)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=80)
DEEPSEEK = dict(SIZES, num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=2,
                kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, rms_norm_eps=1e-5)

# name: (model_type, config, dtype of the file, change of the folder afterwards)
MODELS = {
    "gpt2": ("gpt2", dict(vocab_size=37, n_positions=96, n_embd=32, n_layer=2, n_head=4, bos_token_id=1,
                          eos_token_id=2), "bfloat16", []),
    "gpt2_bare": ("gpt2", dict(vocab_size=37, n_positions=80, n_embd=32, n_layer=1, n_head=2, n_inner=40,
                               layer_norm_epsilon=1e-3, activation_function="gelu", tie_word_embeddings=False,
                               bos_token_id=1, eos_token_id=2), "float32", ["bare"]),
    "llama": ("llama", dict(SIZES, num_key_value_heads=2, rms_norm_eps=1e-5), "bfloat16", ["shards"]),
    "llama_biased": ("llama", dict(SIZES, head_dim=12, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                   rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.5)),
                     "float16", ["old"]),
    "llama3": ("llama", dict(SIZES, num_key_value_heads=1, tie_word_embeddings=True, eos_token_id=[2, 5],
                             rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0,
                                                  low_freq_factor=1.0, high_freq_factor=4.0,
                                                  original_max_position_embeddings=80)), "bfloat16", ["old"]),
    "llama_yarn": ("llama", dict(SIZES, rope_parameters=YARN), "bfloat16", []),
    "qwen2": ("qwen2", dict(SIZES, num_key_value_heads=2, tie_word_embeddings=True, use_sliding_window=True,
                            sliding_window=5, max_window_layers=1), "bfloat16", ["old"]),
    "qwen3": ("qwen3", dict(SIZES, num_key_value_heads=2, head_dim=16), "bfloat16", []),
    "mistral": ("mistral", dict(SIZES, num_key_value_heads=2, sliding_window=5), "bfloat16", ["old", "buffers"]),
    "mistral_whole": ("mistral", dict(SIZES, num_hidden_layers=1, num_key_value_heads=4, sliding_window=None),
                      "bfloat16", []),
    "smollm3": ("smollm3", dict(SIZES, num_key_value_heads=2, no_rope_layer_interval=2, pad_token_id=None), "bfloat16",
                []),
    "olmo2": ("olmo2", dict(SIZES, num_key_value_heads=2, pad_token_id=None), "bfloat16", []),
    "phi3": ("phi3", dict(SIZES, num_key_value_heads=2, sliding_window=5, pad_token_id=None), "bfloat16", ["old"]),
    "phi3_partial": ("phi3", dict(SIZES, num_key_value_heads=2, pad_token_id=None, num_hidden_layers=1,
                                  rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5)),
                     "bfloat16", []),
    # Either the original context is shorter than 6 tokens, or it is longer than all rows. So the factors do
    # not change within a row.
    "phi3_long": ("phi3", dict(SIZES, num_key_value_heads=2, pad_token_id=None, tie_word_embeddings=True,
                               original_max_position_embeddings=5,
                               rope_parameters=dict(LONGROPE, partial_rotary_factor=0.75, short_factor=[1.0, 1.3, 1.7],
                                                    long_factor=[1.2, 2.5, 6.0])), "bfloat16", []),
    "phi3_short": ("phi3", dict(SIZES, num_key_value_heads=2, pad_token_id=None, max_position_embeddings=80,
                                original_max_position_embeddings=80,
                                rope_parameters=dict(LONGROPE, partial_rotary_factor=0.5, short_factor=[1.1, 1.9],
                                                     long_factor=[1.5, 7.0], factor=4.0)), "bfloat16", ["old"]),
    "gemma2": ("gemma2", dict(SIZES, head_dim=12, num_key_value_heads=2, sliding_window=5, query_pre_attn_scalar=20,
                              final_logit_softcapping=4.0, attn_logit_softcapping=3.0, pad_token_id=None), "bfloat16",
               []),
    "gemma3": ("gemma3_text", dict(SIZES, head_dim=12, num_key_value_heads=2, sliding_window=5,
                                   layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=20,
                                   pad_token_id=None, rope_parameters={
                                       "sliding_attention": dict(rope_type="default", rope_theta=100.0),
                                       "full_attention": dict(rope_type="linear", rope_theta=5000.0, factor=3.0)}),
               "bfloat16", []),
    "deepseek_v2": ("deepseek_v2", dict(DEEPSEEK, q_lora_rank=None), "bfloat16", ["old"]),
    # eps is large. The norms of latents use 1e-6 instead. If they used this eps, the results would visibly
    # differ.
    "deepseek_v2_yarn": ("deepseek_v2", dict(DEEPSEEK, q_lora_rank=16, rms_norm_eps=1e-2,
                                             rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707)),
                         "bfloat16", ["old"]),
    "deepseek_v3": ("deepseek_v3", dict(DEEPSEEK, q_lora_rank=16, attention_bias=True,
                                        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.7)),
                    "bfloat16", ["further"]),
    "deepseek_v3_halves": ("deepseek_v3", dict(DEEPSEEK, q_lora_rank=None, num_hidden_layers=1,
                                               first_k_dense_replace=1, rope_interleave=False), "bfloat16", []),
}


def make(model_type, options, dtype, seed):
    config = transformers.AutoConfig.for_model(model_type, **options)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            gain = "norm" in name or "ln_" in name
            start = 1 if gain and name.endswith("weight") and "gemma" not in model_type else 0
            p.copy_(0.3 * torch.randn(p.shape) + start)
            p.copy_(p.to(getattr(torch, dtype)).float())
    return model


def continued(model, tokens):
    """Returns the generated tokens, and the smallest difference between the largest and the second largest
    logit."""
    least = float("inf")
    with torch.no_grad():
        for _ in range(GREEDY):
            best = model(tokens[None]).logits[0, -1].topk(2)
            least = min(least, (best.values[0] - best.values[1]).item())
            tokens = torch.cat([tokens, best.indices[:1]])
    return tokens, least


def expected_of(model):
    tokens = torch.randint(0, model.config.vocab_size, (2, LENGTH))
    out = model(tokens, labels=tokens)
    out.loss.backward()
    greedy, gap = continued(model, tokens[0, :PROMPT])
    tensors = {"grad." + name: p.grad.contiguous() for name, p in model.named_parameters()}
    tensors.update(tokens=tokens.int(), logits=out.logits.detach(), loss=out.loss.detach(), greedy=greedy.int())
    return tensors, gap


def edit(path, change):
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config, indent=1) + "\n")


def old_keys(config):
    """Makes configs in the format of transformers 4."""
    config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters", {})
    config["rope_theta"] = rope.pop("rope_theta", 10000.0)
    kind = rope.pop("rope_type", "default")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if kind == "longrope":
        config["rope_scaling"] = dict(rope, type="su")
    elif kind != "default":
        config["rope_scaling"] = dict(rope, type=kind) if kind == "linear" else dict(rope, rope_type=kind)
    else:
        config["rope_scaling"] = None


def change_folder(folder, changes, layers):
    file = folder / "model.safetensors"
    for change in changes:
        if change == "old":
            edit(folder / "config.json", old_keys)
            continue
        if change == "shards":
            continue
        tensors = load_file(file)
        if change == "bare":  # like the original GPT-2 file: without a prefix, with the mask's buffers
            tensors = {name.removeprefix("transformer."): t for name, t in tensors.items()}
            tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
        if change == "buffers":
            tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        if change == "further":  # a layer that predicts further tokens
            tensors[f"model.layers.{layers}.eh_proj.weight"] = torch.ones(2, 4, dtype=torch.bfloat16)
        save_file(tensors, file, metadata={"format": "pt"})


def write(name):
    model_type, options, dtype, changes = MODELS[name]
    for seed in range(1000):
        model = make(model_type, options, dtype, seed)
        tensors, gap = expected_of(model)
        if gap > LEAST_GAP:
            break
    folder = FOLDERS / name
    shutil.rmtree(folder, ignore_errors=True)
    stored = copy.deepcopy(model).to(getattr(torch, dtype))
    transformers.logging.disable_progress_bar()
    stored.save_pretrained(folder, max_shard_size="12KB" if "shards" in changes else "50GB")
    change_folder(folder, changes, model.config.num_hidden_layers)
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    with torch.no_grad():
        assert torch.equal(again(tensors["tokens"].long()).logits, tensors["logits"]), name
    save_file(tensors, folder / "expected.safetensors")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: seed {seed}, gap {gap:.4f}, largest logit {tensors['logits'].abs().max():.2f}, {size >> 10} KiB, "
          f"{len(list(folder.glob('*.safetensors'))) - 1} file(s)")


def check(name):
    expected = load_file(FOLDERS / name / "expected.safetensors")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDERS / name, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    dropped = {key for key in report["unexpected_keys"] if "eh_proj" not in key}
    assert not (report["missing_keys"] or report["mismatched_keys"] or dropped), (name, report)
    with torch.no_grad():
        logits = model.eval()(expected["tokens"].long()).logits
    error = (logits - expected["logits"]).abs().max().item()
    assert error <= 1e-5 * max(1, expected["logits"].abs().max().item()), f"{name}: logits differ by {error}"


if sys.argv[1:] == ["--check"]:
    for known in MODELS:
        check(known)
    print(f"transformers {transformers.__version__}: {len(MODELS)} models, all as expected")
else:
    for chosen in sys.argv[1:] or MODELS:
        write(chosen)
