#!/usr/bin/env python3
"""Compares the output of `export --to gguf` with llama.cpp.

usage: compare_gguf.py [--write] TOOLS [MODEL …]        TOOLS: the folder with export

Checks golden models of tests/io/pretrained and tokenizers of tests/io/tokenizers, or only those with the given names.

- Tensors and keys are equal to the output of llama.cpp's own converter in f32, f16, bf16 and q8_0. Every
  tensor is compared byte by byte. Every key that the converter writes for the model is compared, too.
  docs/interop.md lists the known differences.

- From the file, llama.cpp (package xllamacpp) computes the same log probabilities as transformers from the
  folder. Keys and values are in f32, and flash attention is off. The error is at most 3e-5 · max(1, largest
  logit / 8). With GELU, it is at most 1e-2.

- The tokens, types and merges of tokenizers are equal to the converter's. llama.cpp returns the same ids as
  the package `tokenizers` for the strings of tests/io/tokenizers.

With --write, checksums of the converter's tensors are also written to tests/io/gguf_golden.txt, so that
gguf_pretrained_test can compare them without Python.

LLAMA_CPP names a folder of llama.cpp's sources, with conversion/ and gguf-py/. If LLAMA_CPP is not set, the
first check is skipped. Without xllamacpp, the second check is skipped. Exits with status 77 if transformers
is missing, or if both LLAMA_CPP and xllamacpp are missing."""
import importlib.util
import json
import logging
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unicodedata

SOURCES = os.environ.get("LLAMA_CPP")
if SOURCES:
    sys.path[:0] = [SOURCES, SOURCES + "/gguf-py"]
try:
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
HAS_LLAMA = importlib.util.find_spec("xllamacpp") is not None
if not SOURCES and not HAS_LLAMA:
    print("skipped: LLAMA_CPP is not set and xllamacpp is not installed")
    sys.exit(77)

HERE = pathlib.Path(__file__).parent
GOLDEN, TOKENIZERS = HERE.parent / "io" / "pretrained", HERE.parent / "io" / "tokenizers"
DTYPES = ("f32", "f16", "bf16", "q8_0")
# llama.cpp does not support some settings of golden models. The settings of published models replace them.
CHANGES = {
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3": {"query_pre_attn_scalar": 12},
    "deepseek_v2": {"rms_norm_eps": 1e-6},
    "deepseek_v2_yarn": {"rms_norm_eps": 1e-6},
    "smollm3": {"no_rope_layers": [1, 1]},
    # The converter ignores "factor". llama.cpp's contexts have at least 256 tokens, so it uses the long
    # factors.
    "phi3_short": {"max_position_embeddings": 512, "original_max_position_embeddings": 512,
                   "rope_scaling": {"type": "su", "original_max_position_embeddings": 512, "short_factor": [1.1, 1.9], "long_factor": [1.5, 7.0]}},
}
REFUSED = ("deepseek_v3", "deepseek_v3_halves")
UNREAD = ("gpt2_bare",)  # the converter rejects the buffers of this model
# These models have windows of 5 keys, which llama.cpp does not support for them.
SHORT = ("mistral", "qwen2", "phi3")
GELU = ("gpt2", "gpt2_bare", "gemma2", "gemma3")
# These keys that the converter writes have no effect. Some describe experts that no layer has.
EXPERTS = ("expert_", "leading_dense")
failures, golden_lines = [], []


def checksum(tensors):
    """Returns the 64-bit FNV-1a hash of the tensors' names, shapes and bytes, in the order of the names."""
    h = 0xCBF29CE484222325
    for name, (kind, shape, data) in sorted(tensors.items()):
        for byte in f"{name} {kind} {' '.join(map(str, shape))} ".encode() + data:
            h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def fail(text):
    failures.append(text)
    print("FAILED", text)


def export(tools, folder, out, dtype):
    done = subprocess.run([tools / "export", "--model", folder, "--to", "gguf", "--weights-dtype", dtype, "--out", out], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{folder}: {done.stderr}")


def copy_of(name, to):
    shutil.copytree(GOLDEN / name, to)
    config = json.loads((to / "config.json").read_text())
    config.update(CHANGES.get(name, {}))
    # llama.cpp's converter needs a key that transformers no longer writes.
    if config["model_type"] == "gpt2":
        config.setdefault("n_ctx", config["n_positions"])
    (to / "config.json").write_text(json.dumps(config))
    return config


def convert(folder, out, dtype):
    """Converts with llama.cpp's converter, without a tokenizer."""
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture, gguf
    logging.disable(logging.CRITICAL)
    types = dict(f32="ALL_F32", f16="MOSTLY_F16", bf16="MOSTLY_BF16", q8_0="MOSTLY_Q8_0")
    hparams = ModelBase.load_hparams(folder, False)
    # The converter's class for gemma3 counts the tokens in this file.
    vocabulary = {f"t{i}": i for i in range(hparams["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    with torch.inference_mode():
        model = get_model_class(get_model_architecture(hparams, ModelType.TEXT))(folder, getattr(gguf.LlamaFileType, types[dtype]), out)
        model.set_vocab = lambda: None
        model.write()
    (folder / "tokenizer.json").unlink()


def contents(path):
    import gguf
    reader = gguf.GGUFReader(path)
    return {k: f.contents() for k, f in reader.fields.items()}, {t.name: (t.tensor_type.name, tuple(t.shape), t.data.tobytes()) for t in reader.tensors}


def compare_files(tools, name, folder, directory):
    for dtype in DTYPES:
        ours, theirs = directory / f"ours-{dtype}.gguf", directory / f"theirs-{dtype}.gguf"
        export(tools, folder, ours, dtype)
        convert(folder, theirs, dtype)
        (our_keys, our_tensors), (keys, tensors) = contents(ours), contents(theirs)
        golden_lines.append(f"{name} {dtype} {checksum({k: v for k, v in tensors.items() if k != 'rope_freqs.weight'})}")
        for tensor in sorted(tensors.keys() | our_tensors.keys()):
            a, b = our_tensors.get(tensor), tensors.get(tensor)
            if a != b:
                if tensor == "rope_freqs.weight" and a and b and a[:2] == b[:2]:
                    gap = np.abs(np.frombuffer(a[2], np.float32) / np.frombuffer(b[2], np.float32) - 1).max()
                    if gap < 3e-7:
                        continue
                fail(f"{name} {dtype}: tensor {tensor}: ours {a and a[:2]}, theirs {b and b[:2]}")
        for key in sorted(keys):
            part = key.split(".", 1)[1] if "." in key else key
            if key.startswith(("GGUF.", "general.")) and key not in ("general.architecture", "general.type", "general.file_type", "general.quantization_version"):
                continue
            if part.startswith(EXPERTS) or key.startswith("tokenizer."):
                continue
            if key == "general.quantization_version" and dtype != "q8_0":
                continue
            # If there are no factors of LongRoPE, this key has no effect, and the model does not contain it.
            if part == "rope.scaling.original_context_length" and name in ("phi3", "phi3_partial"):
                continue
            if our_keys.get(key) != keys[key]:
                fail(f"{name} {dtype}: key {key}: ours {our_keys.get(key)}, theirs {keys[key]}")
    print(f"{name}: {len(tensors)} tensors and {len(keys)} keys compared in {len(DTYPES)} dtypes")


def prompts_of(name):
    tokens = [3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 33, 8]
    length = 5 if name in SHORT else len(tokens)
    if name == "phi3_long":  # transformers uses short factors for up to 5 tokens; llama.cpp selects factors
                             # by its context
        return [tokens[:n] for n in (6, 13, len(tokens))]
    return [tokens[:n] for n in range(1, length + 1, 1 if length == 5 else 4)] + ([tokens] if length > 5 else [])


def llama_server(path):
    import xllamacpp as x
    p = x.CommonParams()
    p.model.path = str(path)
    p.n_ctx, p.n_parallel, p.warmup, p.cache_prompt = 96, 1, False, False
    p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.n_gpu_layers, p.cpuparams.n_threads, p.cpuparams_batch.n_threads = 0, 1, 1
    return x.Server(p)


def llama_main(path, prompts):
    """Runs in a separate process. Prints the log probabilities of all tokens after each prompt as JSON."""
    server = llama_server(path)
    found = []
    for prompt in json.loads(prompts):
        answer = server.handle_completions({"prompt": prompt, "max_tokens": 1, "n_predict": 1, "n_probs": 37, "logprobs": 37, "temperature": 1,
                                            "cache_prompt": False, "samplers": []})
        answer = json.loads(answer) if isinstance(answer, str) else answer
        choices = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found.append({c["id"]: c["logprob"] for c in choices})
    print("FOUND", json.dumps(found))


def with_tokens(folder, config):
    """Makes a tokenizer of single letters. llama.cpp needs a tokenizer to return text."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    vocabulary = {letters[i]: i for i in range(config["vocab_size"])}
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                 byte_fallback=False, ignore_merges=False, vocab=vocabulary, merges=[])
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    (folder / "tokenizer.json").write_text(json.dumps(dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None,
                                                           pre_tokenizer=level, post_processor=None, decoder=level, model=model)))


def compare_logits(tools, name, folder, config, directory):
    with_tokens(folder, config)
    path = directory / "run.gguf"
    export(tools, folder, path, "f32")
    prompts = prompts_of(name)
    done = subprocess.run([sys.executable, __file__, "--llama", path, json.dumps(prompts)], capture_output=True, text=True)
    line = [x for x in done.stdout.splitlines() if x.startswith("FOUND ")]
    if not line:
        return fail(f"{name}: llama.cpp exited with status {done.returncode}: {done.stderr[-1500:]}")
    found = json.loads(line[0][6:])
    (folder / "tokenizer.json").unlink()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    worst, largest = 0, 0
    for prompt, probabilities in zip(prompts, found):
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, -1].double()
        expected = torch.log_softmax(logits, 0)
        largest = max(largest, logits.abs().max().item())
        if len(probabilities) != config["vocab_size"]:
            return fail(f"{name}: llama.cpp returns {len(probabilities)} of {config['vocab_size']} tokens")
        # Compare only likely tokens, because llama.cpp's probabilities are in f32.
        worst = max(worst, max((abs(p - expected[int(i)].item()) for i, p in probabilities.items() if p > -15), default=math.inf))
    bound = 1e-2 if name in GELU else 3e-5 * max(1, largest / 8)
    (print if worst <= bound else fail)(f"{name}: log probabilities of llama.cpp differ by {worst:.2g}, at most {bound:.2g}; largest logit {largest:.1f}")


def model_with(name, folder):
    """Makes a model with the tokenizer. Its embedding has two more rows than there are tokens."""
    config = copy_of("gpt2", folder)
    shutil.copytree(TOKENIZERS / name, folder, dirs_exist_ok=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    size = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    from safetensors.torch import load_file, save_file
    weights = load_file(folder / "model.safetensors")
    key = next(k for k in weights if k.endswith("wte.weight"))
    weights[key] = torch.zeros(size + 2, weights[key].shape[1], dtype=weights[key].dtype)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config["vocab_size"] = size + 2
    (folder / "config.json").write_text(json.dumps(config))
    return config


def ids_main(path, texts):
    """Runs in a separate process. Prints llama.cpp's ids for the strings of a JSON file as JSON."""
    import urllib.request
    server = llama_server(path)
    found = []
    for text in json.loads(pathlib.Path(texts).read_text()):
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            found.append(json.load(answer)["tokens"])
    print("FOUND", json.dumps(found))


def compare_ids(tools, name):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        model_with(name, directory / "model")
        export(tools, directory / "model", directory / "t.gguf", "f32")
        cases = json.loads((TOKENIZERS / name / "cases.json").read_text())["cases"]
        # llama.cpp rejects an empty string, ends a string at a zero byte, and does not normalize.
        cases = [c for c in cases if c["text"] and "\0" not in c["text"] and (name != "qwen2" or unicodedata.is_normalized("NFC", c["text"]))]
        (directory / "texts.json").write_text(json.dumps([c["text"] for c in cases]))
        done = subprocess.run([sys.executable, __file__, "--ids", directory / "t.gguf", directory / "texts.json"], capture_output=True, text=True)
        line = [x for x in done.stdout.splitlines() if x.startswith("FOUND ")]
        if not line:
            return fail(f"tokenizer {name}: llama.cpp exited with status {done.returncode}: {done.stderr[-1500:]}")
        other = [(c["text"], ids, c["ids"]) for c, ids in zip(cases, json.loads(line[0][6:])) if ids != c["ids"]]
        (fail if other else print)(f"tokenizer {name}: {len(other)} of {len(cases)} strings have different ids in llama.cpp {other[:3] or ''}")


def compare_tokenizer(tools, name):
    from conversion.gpt2 import GPT2Model
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory) / "model"
        config = model_with(name, folder)
        out = pathlib.Path(directory) / "t.gguf"
        export(tools, folder, out, "f32")
        ours, _ = contents(out)
        converter = GPT2Model.__new__(GPT2Model)
        converter.dir_model, converter.hparams = folder, config
        converter.get_vocab_base_pre = lambda tokenizer: "any"
        tokens, types, _ = converter.get_vocab_base()
        import gguf
        special = gguf.SpecialVocab(folder, load_merges=True)
        for key, theirs in (("tokens", tokens), ("token_type", [int(t) for t in types]), ("merges", special.merges)):
            mine = ours[f"tokenizer.ggml.{key}"]
            if list(mine) != list(theirs):
                different = [(i, a, b) for i, (a, b) in enumerate(zip(mine, theirs)) if a != b]
                fail(f"tokenizer {name}: {key} differs, {len(mine)} and {len(theirs)}: {different[:5]}")
        for key, value in special.add_special_token.items():
            if key in ("bos", "eos") and ours.get(f"tokenizer.ggml.add_{key}_token") != value:
                fail(f"tokenizer {name}: add_{key}_token: ours {ours.get(f'tokenizer.ggml.add_{key}_token')}, theirs {value}")
        print(f"tokenizer {name}: {len(tokens)} tokens and {len(special.merges)} merges compared, pre {ours['tokenizer.ggml.pre']}")


def main():
    writes = sys.argv[1] == "--write"
    tools, names = pathlib.Path(sys.argv[1 + writes]), sys.argv[2 + writes:]
    transformers.logging.set_verbosity_error()
    for folder in sorted(GOLDEN.iterdir()):
        name = folder.name
        if not folder.is_dir() or name in REFUSED or (names and name not in names):
            continue
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            config = copy_of(name, directory / "model")
            if SOURCES and name not in UNREAD:
                try:
                    compare_files(tools, name, directory / "model", directory)
                except Exception as error:  # raised by the converter
                    fail(f"{name}: {type(error).__name__}: {error}")
            if HAS_LLAMA:
                compare_logits(tools, name, directory / "model", config, directory)
    for name in ("gpt2", "llama3", "qwen2", "smollm", "deepseek", "deepseek_coder", "deepseek3"):
        if names and name not in names:
            continue
        if SOURCES:
            compare_tokenizer(tools, name)
        if HAS_LLAMA:
            compare_ids(tools, name)
    if writes and SOURCES and not failures:
        (HERE.parent / "io" / "gguf_golden.txt").write_text("\n".join(golden_lines) + "\n")
    print(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--llama"]:
        llama_main(sys.argv[2], sys.argv[3])
    elif sys.argv[1:2] == ["--ids"]:
        ids_main(sys.argv[2], sys.argv[3])
    else:
        main()
