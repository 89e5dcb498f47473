#!/usr/bin/env python3
"""Compares what `export --to gguf` writes with what llama.cpp's own converter writes, and runs it in llama.cpp.

usage: compare_gguf.py TOOLS CONVERTER [FAMILY…]       TOOLS: the folder with export
                                                       CONVERTER: llama.cpp's convert_hf_to_gguf.py

For small models of each family, made here with transformers and a tokenizer of tests/io/tokenizers, in f32, f16, bf16
and q8_0: tensors must have equal names, types, shapes and bytes, and every key that both have an equal value; the
converter's other keys are listed. Then xllamacpp, where it is installed, must give the log probabilities of transformers.
Exits with status 77 where transformers, gguf or the converter is missing."""
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent / "io" / "tokenizers"

SIZES = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, max_position_embeddings=128,
             bos_token_id=0, eos_token_id=1, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)
# name: family's config class, tokenizer, its name in llama.cpp, settings, bound of log probabilities
FAMILIES = {
    "gpt2": ("GPT2Config", "gpt2", "gpt-2", dict(n_embd=64, n_layer=3, n_head=4, n_positions=128, n_ctx=128), 1e-2),
    "llama": ("LlamaConfig", "llama3", "llama-bpe", dict(num_key_value_heads=2, head_dim=32, attention_bias=True), 3e-5),
    "llama3": ("LlamaConfig", "llama3", "llama-bpe", dict(num_key_value_heads=2, rope_parameters=LLAMA3, tie_word_embeddings=True), 3e-5),
    "llama_yarn": ("LlamaConfig", "llama3", "llama-bpe", dict(num_key_value_heads=2, rope_parameters=YARN), 3e-5),
    "mistral": ("MistralConfig", "llama3", "llama-bpe", dict(num_key_value_heads=2, sliding_window=None), 3e-5),
    "qwen2": ("Qwen2Config", "qwen2", "qwen2", dict(num_key_value_heads=2), 3e-5),
    "qwen3": ("Qwen3Config", "qwen2", "qwen2", dict(num_key_value_heads=2, head_dim=32), 3e-5),
    "smollm3": ("SmolLM3Config", "smollm", "smollm", dict(num_key_value_heads=2, num_hidden_layers=5), 3e-5),
    "olmo2": ("Olmo2Config", "gpt2", "gpt-2", dict(num_key_value_heads=2), 3e-5),
    "phi3": ("Phi3Config", "gpt2", "gpt-2", dict(num_key_value_heads=2, sliding_window=None), 3e-5),
    "gemma2": ("Gemma2Config", "gpt2", "gpt-2", dict(num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=64,
                                                     hidden_activation="gelu_pytorch_tanh"), 1e-2),
    "gemma3": ("Gemma3TextConfig", "gpt2", "gpt-2", dict(num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=64,
                                                         num_hidden_layers=7, hidden_activation="gelu_pytorch_tanh"), 1e-2),
}
NOT_OURS = ("general.size_label", "general.quantized_by", "general.sampling")


def make(folder, name):
    config_class, tokenizer, _, settings, _ = FAMILIES[name]
    ids = json.loads((TOKENIZERS / tokenizer / "tokenizer.json").read_text())
    size = max([*ids["model"]["vocab"].values(), *(t["id"] for t in ids["added_tokens"])]) + 1
    begin = [i for x in (ids["post_processor"] or {}).get("special_tokens", {}).values() for i in x["ids"]]
    sizes = {} if config_class == "GPT2Config" else SIZES
    config = getattr(transformers, config_class)(vocab_size=size + 3, **{**sizes, **settings})
    config.bos_token_id, config.eos_token_id = begin[0] if begin else 0, 1
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval()
    model.save_pretrained(folder)
    shutil.copy(TOKENIZERS / tokenizer / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return model


def convert(converter, folder, out, pre, dtype):
    """Runs the converter, which knows tokenizers by their ids of a text, with the name of this one's rule."""
    program = f"""
import runpy, sys
sys.path.insert(0, {str(converter.parent / 'gguf-py')!r}); sys.path.insert(0, {str(converter.parent)!r})
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: {pre!r}
try:
    from conversion import phi, gemma
    phi.Phi3MiniModel.set_vocab = base.TextModel._set_vocab_gpt2
    gemma.Gemma2Model.set_vocab = base.TextModel._set_vocab_gpt2
except ImportError: pass
import conversion.llama
conversion.llama.LlamaModel._set_vocab_llama_hf = base.TextModel._set_vocab_gpt2
sys.argv = ["convert", {str(folder)!r}, "--outfile", {str(out)!r}, "--outtype", {dtype!r}]
runpy.run_path({str(converter)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if not out.exists():
        raise SystemExit(f"the converter failed: {done.stderr[-2000:]}")


def values_of(field):
    value = field.contents()
    return value if not isinstance(value, float) else numpy.float32(value)


def compare(own_path, their_path):
    own, theirs = gguf.GGUFReader(own_path), gguf.GGUFReader(their_path)
    a, b = {t.name: t for t in own.tensors}, {t.name: t for t in theirs.tensors}
    assert a.keys() == b.keys(), f"tensors: {a.keys() ^ b.keys()}"
    for name in a:
        x, y = a[name], b[name]
        assert x.tensor_type == y.tensor_type, f"{name}: {x.tensor_type.name}, the converter has {y.tensor_type.name}"
        assert list(x.shape) == list(y.shape), f"{name}: {x.shape}, the converter has {y.shape}"
        assert x.data.tobytes() == y.data.tobytes(), f"{name} differs in {(x.data != y.data).sum()} of {x.data.size} numbers"
    keys = {k for k in own.fields if not k.startswith("GGUF.")}
    their_keys = {k for k in theirs.fields if not k.startswith("GGUF.")}
    for key in sorted(keys & their_keys - {"general.name"}):
        assert own.fields[key].types == theirs.fields[key].types, f"{key}: {own.fields[key].types} {theirs.fields[key].types}"
        assert values_of(own.fields[key]) == values_of(theirs.fields[key]), \
            f"{key} is {str(own.fields[key].contents())[:200]}, the converter's is {str(theirs.fields[key].contents())[:200]}"
    missing = {k for k in their_keys - keys if not k.startswith(NOT_OURS)}
    return missing, keys - their_keys


def run_llama_cpp(path, model, bound):
    try:
        import xllamacpp
    except ImportError:
        return "llama.cpp is not installed"
    p = xllamacpp.CommonParams()
    p.model.path = str(path)
    p.n_ctx, p.n_batch, p.warmup, p.n_gpu_layers = 128, 128, False, 0
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(p)
    ids = [5, 9, 33, 120, 7, 64, 8, 8, 21, 90, 11, 200]
    answer = server.handle_completions({"prompt": ids, "max_tokens": 1, "logprobs": 8, "temperature": 0})
    answer = answer if isinstance(answer, dict) else json.loads(answer)
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    logits = model(torch.tensor([ids])).logits[0, -1].detach()
    expected = torch.log_softmax(logits, -1)
    error = max(abs(t["logprob"] - float(expected[t["id"]])) for t in top)
    most = bound * max(1, float(logits.abs().max()) / 8)
    assert error <= most, f"log probabilities differ by {error:.1e}, at most {most:.1e}"
    return f"log probabilities within {error:.1e} of {most:.0e}"


def main(tools, converter, names):
    if not converter.exists():
        print(f"skipped: no {converter}")
        sys.exit(77)
    for name in names or FAMILIES:
        with tempfile.TemporaryDirectory() as t:
            temp = pathlib.Path(t)
            model = make(temp / "model", name)
            extra = set()
            for dtype in ("f32", "f16", "bf16", "q8_0"):
                own, theirs = temp / f"own-{dtype}.gguf", temp / f"theirs-{dtype}.gguf"
                done = subprocess.run([tools / "export", "--from", temp / "model", "--to", "gguf", own, "--dtype", dtype],
                                      capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                convert(converter, temp / "model", theirs, FAMILIES[name][2], dtype)
                missing, more = compare(own, theirs)
                extra |= {f"without {k}" for k in missing} | {f"with {k}" for k in more}
            said = run_llama_cpp(temp / "own-f32.gguf", model, FAMILIES[name][4])
        print(f"{name}: equal in f32, f16, bf16, q8_0; {said}; {', '.join(sorted(extra)) or 'the same keys'}", flush=True)


main(pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2]).absolute(), sys.argv[3:])
