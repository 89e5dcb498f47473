#!/usr/bin/env python3
"""Runs the output of `export --to gguf` in llama.cpp's engine (package xllamacpp).

usage: run_in_llama_cpp.py TOOLS RANDOM_MODEL ENCODE_STRINGS [--only WORD] [--transformers] [--table]

For every family, and for every option of its config.json, RANDOM_MODEL writes a small model with random
weights. If this library refuses to read it, the error must name a key of the option. If `export` refuses it,
the error must be about llama.cpp. Otherwise the file is written. From this file, the engine must compute the
same log probabilities as this library computes from the folder. This library must compute the same logits
from both. No family may be refused without an option.

For every tokenizer below, `export` refuses it, or the engine returns the same ids as this library for a few hundred strings.
With --transformers, this library's logits are also compared with transformers. With --table, a row is printed for each option.

The error bound of log probabilities is 3e-5 · max(1, largest logit / 8), because both compute in f32 but sum
in different orders. It is 1e-2 for GELU, because llama.cpp uses a table in f16. The script exits with status
77 if xllamacpp is not installed."""
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
VOCABULARY, CONTEXT = 37, 256  # the smallest context of the engine
TOKENS = [3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 33, 8, 32, 7, 9, 5, 0, 28, 8, 4, 19, 7, 16, 9, 36, 9, 3, 7]
LENGTHS = (1, 5, 17, 40)
ORIGINAL = 30  # LongRoPE uses short factors up to this length; the engine selects factors by its context
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
DEEPSEEK = dict(SIZES, num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=2,
                q_lora_rank=16, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, rms_norm_eps=1e-6)
GEMMA = dict(SIZES, head_dim=12, sliding_window=5, query_pre_attn_scalar=12, tie_word_embeddings=True)
FAMILIES = {
    "gpt2": dict(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
    "llama": dict(SIZES),
    "mistral": dict(SIZES, sliding_window=None),
    "qwen2": dict(SIZES),
    "qwen3": dict(SIZES, head_dim=12),
    "smollm3": dict(SIZES, num_hidden_layers=4, pad_token_id=None),
    "olmo2": dict(SIZES, pad_token_id=None),
    "phi3": dict(SIZES, pad_token_id=None),
    "gemma2": dict(GEMMA),
    "gemma3_text": dict(GEMMA, layer_types=["sliding_attention", "full_attention"]),
    "deepseek_v2": dict(DEEPSEEK),
    "deepseek_v3": dict(DEEPSEEK),
}
GELU = ("gpt2", "gemma2", "gemma3_text")


def rope(kind, **keys):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=100.0, **keys))


YARN = dict(factor=4.0, original_max_position_embeddings=64)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
# rope_parameters of every type, with each optional key present or absent.
ROPES = {
    "rope_theta": rope("default"),
    "linear": rope("linear", factor=2.5),
    "linear below 1": rope("linear", factor=0.5),
    "linear mscale_all_dim": rope("linear", factor=2.5, mscale_all_dim=0.7),
    "dynamic": rope("dynamic", factor=2.0),
    "llama3": rope("llama3", **LLAMA3),
    "yarn": rope("yarn", **YARN),
    "yarn below 1": rope("yarn", **dict(YARN, factor=0.5)),
    "yarn 1": rope("yarn", **dict(YARN, factor=1.0)),
    "yarn without original": rope("yarn", factor=4.0),
    "yarn beta_fast": rope("yarn", beta_fast=8, **YARN),
    "yarn beta_slow": rope("yarn", beta_slow=2, **YARN),
    "yarn attention_factor": rope("yarn", attention_factor=0.8, **YARN),
    "yarn attention_factor 1": rope("yarn", attention_factor=1.0, **YARN),
    "yarn mscale": rope("yarn", mscale=0.7, **YARN),
    "yarn mscale_all_dim": rope("yarn", mscale_all_dim=0.7, **YARN),
    "yarn mscale_all_dim 1": rope("yarn", mscale_all_dim=1.0, **YARN),
    "yarn both mscales": rope("yarn", mscale=0.7, mscale_all_dim=0.7, **YARN),
    "yarn two mscales": rope("yarn", mscale=1.0, mscale_all_dim=0.7, **YARN),
    "yarn all": rope("yarn", mscale=1.0, mscale_all_dim=0.7, attention_factor=0.9, **YARN),
    "yarn truncate": rope("yarn", truncate=False, **YARN),
    # Some frequencies are interpolated. Here, the bounds of this range are in the wrong order.
    "yarn original_max_position_embeddings": dict(rope_parameters=dict(rope_type="yarn", rope_theta=3.0, factor=4.0, original_max_position_embeddings=20000)),
}


def divisors(pairs, first, step):
    return [first + step * i for i in range(pairs)]


def longropes(pairs, original, outer=True):
    where = dict(original_max_position_embeddings=original) if outer else {}
    lists = dict(short_factor=divisors(pairs, 1.1, 0.2), long_factor=divisors(pairs, 1.5, 0.9))
    same = dict(short_factor=divisors(pairs, 1.5, 0.9), long_factor=divisors(pairs, 1.5, 0.9))
    inner = dict(original_max_position_embeddings=original)
    return {
        "longrope": dict(rope("longrope", **lists, **inner), **where),
        "longrope factor": dict(rope("longrope", factor=3.0, **lists, **inner), **where),
        "longrope attention_factor": dict(rope("longrope", attention_factor=0.8, **lists, **inner), **where),
        "longrope equal lists": dict(rope("longrope", attention_factor=1.0, **same, **inner), **where),
        "longrope equal lists attention_factor": dict(rope("longrope", attention_factor=0.8, **same, **inner), **where),
    }


COMMON = {
    "unchanged": {},
    "tie_word_embeddings": lambda c: dict(tie_word_embeddings=not c.get("tie_word_embeddings", True)),
    "one key head": dict(num_key_value_heads=1),
    "as many key heads": dict(num_key_value_heads=4),
    "rms_norm_eps": dict(rms_norm_eps=1e-3),
    "one layer": lambda c: dict(num_hidden_layers=1, first_k_dense_replace=1, **({"layer_types": c["layer_types"][:1]} if "layer_types" in c else {})),
    "partial_rotary_factor": lambda c: dict(partial_rotary_factor=0.5, rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5)),
}
LLAMAS = dict(COMMON, **ROPES, **{"head_dim": dict(head_dim=16), "head_dim 6": dict(head_dim=6), "hidden_act": dict(hidden_act="gelu")})
BIASES = {"attention_bias": dict(attention_bias=True), "mlp_bias": dict(mlp_bias=True), "both biases": dict(attention_bias=True, mlp_bias=True)}
ODD = [2, 3, 1, 2]


def types(*kinds):
    return [{"s": "sliding_attention", "f": "full_attention"}[k] for k in kinds]


WINDOWS = {
    "sliding_window": dict(use_sliding_window=True, sliding_window=17, max_window_layers=0),
    "layer_types": dict(use_sliding_window=True, sliding_window=17, layer_types=types("s", "f")),
}
GEMMAS = dict(LLAMAS, **{
    "attention_bias": dict(attention_bias=True),
    "query_pre_attn_scalar": dict(query_pre_attn_scalar=20),
    "final_logit_softcapping": dict(final_logit_softcapping=4.0),
    "final_logit_softcapping null": dict(final_logit_softcapping=None),
    "attn_logit_softcapping": dict(attn_logit_softcapping=3.0),
    "attn_logit_softcapping null": dict(attn_logit_softcapping=None),
    "all windows": dict(layer_types=types("s", "s")),
    "no windows": dict(layer_types=types("f", "f")),
    "other windows": dict(layer_types=types("f", "s")),
    "large window": dict(sliding_window=1000),
    "hidden_activation": dict(hidden_activation="gelu"),
})


def both(full, sliding):
    return dict(rope_parameters=dict(full_attention=full, sliding_attention=sliding))


GEMMA3_ROPES = {k: both(v["rope_parameters"], dict(rope_type="default", rope_theta=50.0)) for k, v in ROPES.items()}
OPTIONS = {
    "gpt2": {
        "unchanged": {}, "tie_word_embeddings": dict(tie_word_embeddings=False), "n_inner": dict(n_inner=40), "layer_norm_epsilon": dict(layer_norm_epsilon=1e-3),
        "activation_function gelu": dict(activation_function="gelu"), "activation_function gelu_pytorch_tanh": dict(activation_function="gelu_pytorch_tanh"),
        "activation_function relu": dict(activation_function="relu"), "scale_attn_weights": dict(scale_attn_weights=False),
        "scale_attn_by_inverse_layer_idx": dict(scale_attn_by_inverse_layer_idx=True), "one layer": dict(n_layer=1), "two heads": dict(n_head=2)},
    "llama": dict(LLAMAS, **BIASES, **longropes(4, ORIGINAL, False)),
    "mistral": dict(LLAMAS, **longropes(4, ORIGINAL, False), **{"sliding_window": dict(sliding_window=17)}),
    "qwen2": dict(LLAMAS, **WINDOWS, **longropes(4, ORIGINAL, False)),
    "qwen3": dict(LLAMAS, **WINDOWS, **longropes(6, ORIGINAL, False), **{"attention_bias": dict(attention_bias=True)}),
    "smollm3": dict({k: v for k, v in LLAMAS.items() if k != "one layer"}, **BIASES, **longropes(4, ORIGINAL, False), **{
        "no_rope_layer_interval": dict(no_rope_layer_interval=2), "no_rope_layers": dict(no_rope_layers=[1, 1, 1, 1]),
        "sliding_window": dict(use_sliding_window=True, sliding_window=17)}),
    "olmo2": dict(LLAMAS, **longropes(4, ORIGINAL, False), **{"attention_bias": dict(attention_bias=True)}),
    "phi3": dict({k: v for k, v in LLAMAS.items()}, **longropes(4, ORIGINAL), **{"sliding_window": dict(sliding_window=17)}, **{
        k + ", short": v for k, v in longropes(4, CONTEXT).items()}, **{"longrope partial": dict(
            longropes(2, ORIGINAL)["longrope"], partial_rotary_factor=0.5)}),
    "gemma2": dict(GEMMAS, **longropes(6, ORIGINAL, False)),
    "gemma3_text": dict(GEMMAS, **GEMMA3_ROPES, **{
        "rope_local_base_freq": both(dict(rope_type="default", rope_theta=5000.0), dict(rope_type="default", rope_theta=70.0)),
        "scaled windows": both(dict(rope_type="default", rope_theta=5000.0), dict(rope_type="linear", factor=2.0, rope_theta=70.0)),
        "llama3 in full layers": both(dict(rope_type="llama3", rope_theta=5000.0, **LLAMA3), dict(rope_type="default", rope_theta=70.0))}),
    "deepseek_v2": dict(COMMON, **ROPES, **longropes(4, ORIGINAL, False), **{
        "q_lora_rank": dict(q_lora_rank=None), "attention_bias": dict(attention_bias=True), "v_head_dim": dict(v_head_dim=12), "mlp_bias": dict(mlp_bias=True)}),
}
OPTIONS["deepseek_v3"] = dict(OPTIONS["deepseek_v2"], **{"rope_interleave": dict(rope_interleave=False)})

# llama.cpp does not support these windows. The file is correct for sequences that are no longer than the
# window, and export prints a note.
BOUNDED = {"sliding_window": 17, "layer_types": 17}


def config_of(family, change):
    config = dict(FAMILIES[family], model_type=family)
    config.update(change(config) if callable(change) else change)
    return config


def fail(text):
    failures.append(text)
    print("FAILED", text)


failures = []


def log_softmax(logits):
    top = max(logits)
    total = math.log(sum(math.exp(x - top) for x in logits)) + top
    return [x - total for x in logits]


def with_letters(folder, size):
    """Makes a tokenizer of single letters. The engine's server needs a tokenizer to return text."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                 byte_fallback=False, ignore_merges=False, vocab={letters[i]: i for i in range(size)}, merges=[])
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    (folder / "tokenizer.json").write_text(json.dumps(dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None,
                                                           pre_tokenizer=level, post_processor=None, decoder=level, model=model)))


# ---- The engine runs in a separate process, which it terminates if it rejects a file.


def server_of(path):
    import xllamacpp as x
    p = x.CommonParams()
    p.model.path = str(path)
    p.n_ctx, p.n_parallel, p.warmup, p.cache_prompt = CONTEXT, 1, False, False
    p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.n_gpu_layers, p.cpuparams.n_threads, p.cpuparams_batch.n_threads = 0, 1, 1
    return x.Server(p)


def numbers_of(job):
    server = server_of(job["path"])
    found = []
    for length in job["lengths"]:
        answer = server.handle_completions({"prompt": TOKENS[:length], "max_tokens": 1, "n_predict": 1, "n_probs": VOCABULARY, "logprobs": VOCABULARY,
                                            "temperature": 1, "cache_prompt": False, "samplers": []})
        answer = json.loads(answer) if isinstance(answer, str) else answer
        found.append({c["id"]: c["logprob"] for c in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]})
    return found


def ids_of(job):
    import urllib.request
    server = server_of(job["path"])
    found = []
    for text in job["texts"]:
        body = json.dumps({"content": text, "add_special": job["whole"], "parse_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            found.append(json.load(answer)["tokens"])
    return found


def engine_main(jobs):
    for job in json.loads(pathlib.Path(jobs).read_text()):
        print("BEGIN", job["name"], flush=True)
        print("FOUND", json.dumps((ids_of if "texts" in job else numbers_of)(job)), flush=True)


def in_engine(jobs, directory):
    """Returns the results of the jobs by name. If a job terminates the process, its result is the last error
    message."""
    results = {}
    while jobs:
        (directory / "jobs.json").write_text(json.dumps(jobs))
        done = subprocess.run([sys.executable, __file__, "--engine", directory / "jobs.json"], capture_output=True, text=True,
                              env=dict(os.environ, GGML_NO_BACKTRACE="1"))
        name = None
        for line in done.stdout.splitlines():
            if line.startswith("BEGIN "):
                name = line[6:]
            elif line.startswith("FOUND "):
                results[name] = json.loads(line[6:])
                name = None
        if name is None:
            left = [j for j in jobs if j["name"] not in results]
            if left:
                sys.exit(f"the engine returns nothing: {done.stderr[-2000:]}")
            break
        words = [x for x in done.stderr.splitlines() if "rror" in x or "ASSERT" in x or "wrong" in x]
        results[name] = "ends: " + (words[-1] if words else f"status {done.returncode}")
        jobs = [j for j in jobs if j["name"] not in results]
    return results


# ---- Models


class Models:
    def __init__(self, tools, random_model, directory, only):
        self.tools, self.random_model, self.directory, self.only = tools, random_model, directory, only
        self.outcomes = {}  # (family, option): result

    def run(self, *command):
        return subprocess.run(command, capture_output=True, text=True)

    def refused(self, kind, name, key, error, reasons):
        """Records that an option was refused, either by `export` or when the folder was read. The error must
        contain one of the reasons."""
        error = error.strip()
        self.outcomes[key] = f"{kind}: " + error.split(": llama.cpp " if kind == "refused" else ": ", 1)[-1]
        if key[1] == "unchanged" or not any(r in error for r in reasons):
            fail(f"{name}: {kind} without naming {' or '.join(reasons)}: {error}")

    def logits(self, path):
        done = self.run(self.random_model, "logits", path, str(CONTEXT), *map(str, TOKENS))
        return [[float(x) for x in line.split()] for line in done.stdout.splitlines()] if done.returncode == 0 else done.stderr.strip()

    def prepare(self, family, option, change):
        """Returns a job for the engine, or None if the option is refused."""
        name = f"{family}: {option}"
        place = self.directory / f"{len(self.outcomes)}"
        config = self.directory / "config.json"
        changed = config_of(family, change)
        config.write_text(json.dumps(changed))
        made = self.run(self.random_model, "make", config, place)
        if made.returncode:
            keys = [k for k, v in changed.items() if FAMILIES[family].get(k) != v and k != "model_type"]
            return self.refused("unread", name, (family, option), made.stderr, keys)
        with_letters(place, VOCABULARY)
        path = place.with_suffix(".gguf")
        done = self.run(self.tools / "export", "--model", place, "--to", "gguf", "--weights-dtype", "f32", "--out", path)
        if done.returncode:
            return self.refused("refused", name, (family, option), done.stderr, ["llama.cpp"])
        self.outcomes[family, option] = "exported"
        bounded, approximate = "it is right for sequences of up to" in done.stdout, "computes GELU by tanh" in done.stdout
        lengths = [n for n in LENGTHS if not bounded or n <= BOUNDED.get(option, 5)]
        return dict(name=name, path=str(path), place=str(place), family=family, option=option, lengths=lengths, bounded=bounded, approximate=approximate)

    def compare(self, job, found):
        key = job["family"], job["option"]
        if isinstance(found, str):
            self.outcomes[key] = found
            return fail(f"{job['name']}: llama.cpp {found}")
        ours, read = self.logits(job["place"]), self.logits(job["path"])
        if isinstance(ours, str) or isinstance(read, str):
            self.outcomes[key] = "not read back"
            return fail(f"{job['name']}: {ours if isinstance(ours, str) else read}")
        largest = max(abs(x) for n in job["lengths"] for x in ours[n - 1])
        bound = 1e-2 if job["family"] in GELU else 3e-5 * max(1, largest / 8)
        worst = 0
        for length, probabilities in zip(job["lengths"], found):
            expected = log_softmax(ours[length - 1])
            if len(probabilities) != VOCABULARY:
                return fail(f"{job['name']}: llama.cpp returns {len(probabilities)} of {VOCABULARY} tokens")
            # Compare only likely tokens, because the engine's probabilities are in f32.
            worst = max(worst, max(abs(p - expected[int(i)]) for i, p in probabilities.items() if p > -15))
        back = max(abs(a - b) for x, y in zip(ours[:job["lengths"][-1]], read) for a, b in zip(x, y))
        self.outcomes[key] = f"equal up to {job['lengths'][-1]} tokens" if job["bounded"] else "equal"
        if not worst <= bound:
            self.outcomes[key] = f"differs by {worst:.2g}"
            fail(f"{job['name']}: log probabilities of llama.cpp differ by {worst:.2g}, at most {bound:.2g}; largest logit {largest:.1f}")
        if not back <= (1e-2 if job["approximate"] else 3e-5 * max(1, largest / 8)):
            self.outcomes[key] += f", read back with {back:.2g}"
            fail(f"{job['name']}: logits of the file differ by {back:.2g}")

    def with_transformers(self, job):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(job["place"], dtype=torch.float32, attn_implementation="eager").eval()
            with torch.no_grad():
                theirs = model(torch.tensor([TOKENS])).logits[0].tolist()
        except Exception as error:
            return print(f"note: {job['name']}: transformers: {type(error).__name__}: {str(error)[:200]}")
        ours = self.logits(job["place"])
        gap = max(abs(a - b) for x, y in zip(ours, theirs) for a, b in zip(x, y))
        if gap > 1e-5 * max(1, max(abs(x) for row in theirs for x in row)) * 3:
            fail(f"{job['name']}: logits of transformers differ by {gap:.2g}")

    def all(self, asks_transformers):
        jobs = []
        for family, options in OPTIONS.items():
            for option, change in options.items():
                if self.only in f"{family}: {option}":
                    job = self.prepare(family, option, change)
                    jobs += [job] if job else []
        results = in_engine(jobs, self.directory)
        for job in jobs:
            self.compare(job, results[job["name"]])
            if asks_transformers:
                self.with_transformers(job)

    def table(self):
        for family in (*OPTIONS, "tokenizers"):
            rows = {o: t for (f, o), t in self.outcomes.items() if f == family}
            if rows:
                print(f"\n{family}")
                for option, outcome in rows.items():
                    print(f"  {option:40} {outcome}")


# ---- Tokenizers


def changed(name, change):
    """Returns the tokenizer.json of a golden tokenizer with a change."""
    file = json.loads((HERE.parent / "io" / "tokenizers" / name / "tokenizer.json").read_text())
    change(file)
    return file


def of_added(**options):
    return lambda file: file["added_tokens"][-1].update(options)


def normalizer(*steps):
    def change(file):
        file["normalizer"] = dict(type="Sequence", normalizers=list(steps)) if steps else None
    return change


def metaspace(scheme, split=False):
    def change(file):
        file["normalizer"], file["pre_tokenizer"] = None, dict(type="Metaspace", replacement="▁", prepend_scheme=scheme, split=split)
    return change


def more_tokens(*texts, **options):
    def change(file):
        size = len(file["model"]["vocab"]) + sum(t["content"] not in file["model"]["vocab"] for t in file["added_tokens"])
        for i, text in enumerate(texts):
            token = dict(id=file["model"]["vocab"].get(text, size + i), content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
            file["added_tokens"].append(dict(token, **options))
    return change


def as_phi3(file):
    more_tokens("<|endoftext|>")(file)
    more_tokens("<|end|>", "<|user|>", rstrip=True)(file)
    file["added_tokens"][2]["rstrip"] = True  # </s>


def without_merges(file):
    file["model"]["merges"] = file["model"]["merges"][::2]


REPLACE, PREPEND = dict(type="Replace", pattern=dict(String=" "), content="▁"), dict(type="Prepend", prepend="▁")
GOLDEN = ("gpt2", "llama3", "qwen2", "qwen35", "gpt4o", "tekken", "smollm", "deepseek", "deepseek_coder", "deepseek3", "prefix_space", "added",
          "llama2", "sentencepiece", "metaspace_first", "metaspace_always")
TOKENIZERS = {
    **{name: (name, lambda file: None) for name in GOLDEN},
    **{f"{name} {option}": (name, of_added(**{option: True})) for name in ("gpt2", "sentencepiece") for option in ("lstrip", "rstrip", "single_word", "normalized")},
    "gpt2 not special": ("gpt2", of_added(special=False)),
    "gpt2 overlaps": ("gpt2", more_tokens("<|end", "endo<|", special=False)),
    "gpt2 within each other": ("gpt2", more_tokens("<|endoftext|><|endoftext|>", "<|endoftext|> <", special=False)),
    "sentencepiece Replace": ("sentencepiece", normalizer(REPLACE)),
    "sentencepiece Prepend last": ("sentencepiece", normalizer(REPLACE, PREPEND)),
    **{f"sentencepiece Metaspace {k}{' split' * split}": ("sentencepiece", metaspace(k, split)) for k in ("first", "always", "never") for split in (False, True)},
    "sentencepiece user tokens": ("sentencepiece", more_tokens("<a>", "b c", special=False)),
    "sentencepiece ▁ token": ("sentencepiece", more_tokens("x▁y", special=False)),
    "sentencepiece ▁ token of merges": ("sentencepiece", more_tokens("▁the", special=False)),
    "sentencepiece without merges": ("sentencepiece", without_merges),
    "sentencepiece without byte_fallback": ("sentencepiece", lambda file: file["model"].update(byte_fallback=False)),
    "sentencepiece ignore_merges": ("sentencepiece", lambda file: file["model"].update(ignore_merges=True)),
    "phi3": ("sentencepiece", as_phi3),
}


def texts_for(file):
    sys.path.insert(0, str(HERE))
    import random
    import tokenizer_strings
    draw = random.Random(3)
    added = [t["content"] for t in file["added_tokens"]] or ["<|x|>"]
    pieces = [*added, *added, "a", "the", "▁", "_", "1", ".", "é", "天", "\n", "\t"]
    texts = [*tokenizer_strings.HARD, *(t + x for t in added for x in ("", " a", "  a", "\na", "b", "1", "<"))]
    texts += ["".join(draw.choice(pieces) + " " * draw.choice((0, 0, 1, 2)) for _ in range(draw.randrange(1, 9))) for _ in range(300)]
    # The engine rejects an empty string, and ends a string at a zero byte.
    return [t for t in texts if t and "\0" not in t]


class Tokenizers(Models):
    def ids(self, tokenizer, texts):
        import struct
        strings, found = self.directory / "strings", self.directory / "ids"
        strings.write_bytes(b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts))
        done = self.run(self.encode_strings, tokenizer, strings, found)
        if done.returncode:
            sys.exit(done.stderr)
        data, all_ids, at = found.read_bytes(), [], 0
        for _ in texts:
            count, = struct.unpack_from("<I", data, at)
            all_ids.append(list(struct.unpack_from(f"<{count}i", data, at + 4)))
            at += 4 + 4 * count
        return all_ids

    def all(self, encode_strings):
        import unicodedata
        self.encode_strings = encode_strings
        jobs = []
        for name, (golden, change) in TOKENIZERS.items():
            if self.only not in name:
                continue
            file = changed(golden, change)
            place = self.directory / f"tokenizer{len(self.outcomes)}"
            size = 1 + max([*file["model"]["vocab"].values(), *(t["id"] for t in file["added_tokens"])])
            config = self.directory / "config.json"
            config.write_text(json.dumps(dict(FAMILIES["llama"], model_type="llama", num_hidden_layers=1, vocab_size=size + 2)))
            made = self.run(self.random_model, "make", config, place)
            if made.returncode:
                sys.exit(made.stderr)
            (place / "tokenizer.json").write_text(json.dumps(file))
            path = place.with_suffix(".gguf")
            done = self.run(self.tools / "export", "--model", place, "--to", "gguf", "--weights-dtype", "f32", "--out", path)
            if done.returncode:
                self.refused("refused", name, ("tokenizers", name), done.stderr, ["llama.cpp"])
                continue
            self.outcomes["tokenizers", name] = "exported"
            texts = texts_for(file)
            if "for those in NFC" in done.stdout:
                texts = [t for t in texts if unicodedata.is_normalized("NFC", t)]
            if "treats ▁ as a space" in done.stdout:
                texts = [t for t in texts if "▁" not in t]
            if "only ASCII's white space" in done.stdout:
                texts = [t for t in texts if not any(c.isspace() and c > "\x7f" for c in t)]
            jobs.append(dict(name=name, path=str(path), place=str(place), texts=texts, whole=True))
        results = in_engine(jobs, self.directory)
        for job in jobs:
            name, found = job["name"], results[job["name"]]
            if isinstance(found, str):
                self.outcomes["tokenizers", name] = found
                fail(f"tokenizer {name}: llama.cpp {found}")
                continue
            ours = self.ids(pathlib.Path(job["place"]) / "tokenizer.json", job["texts"])
            other = [(t, a, b) for t, a, b in zip(job["texts"], ours, found) if a != b]
            self.outcomes["tokenizers", name] = f"equal for {len(ours)} strings" if not other else f"differs for {len(other)} of {len(ours)} strings"
            if other:
                fail(f"tokenizer {name}: {len(other)} of {len(ours)} strings have different ids in llama.cpp: {other[:2]}")


def main(arguments):
    if importlib.util.find_spec("xllamacpp") is None:
        print("skipped: xllamacpp is not installed")
        return 77
    tools, random_model, encode_strings = (pathlib.Path(a).resolve() for a in arguments[:3])
    only = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
    with tempfile.TemporaryDirectory() as directory:
        models = Models(tools, random_model, pathlib.Path(directory), only)
        models.all("--transformers" in arguments)
        tokenizers = Tokenizers(tools, random_model, pathlib.Path(directory), only)
        tokenizers.all(encode_strings)
        models.outcomes.update(tokenizers.outcomes)
        if "--table" in arguments:
            models.table()
    words = [t.split(" ")[0].rstrip(":,") for t in models.outcomes.values()]
    print(f"{len(words)} options: " + ", ".join(f"{words.count(w)} {w}" for w in sorted(set(words))))
    print(f"{len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine_main(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
