#!/usr/bin/env python3
"""Opens the output of `export --to hf` with transformers.

usage: open_exported.py TOOLS SAVE_BY_SETTINGS        TOOLS: the folder with export, train, generate and tokens

Every folder must open without new warnings, and without missing, unexpected or mismatched tensors.

- Each golden model of tests/io/pretrained is exported unchanged: tensors, config and logits must be equal. It
  is also exported in f32, f16 and bf16. In addition, it is exported from its settings only, like a model that
  was created here.

- Models of each architecture are trained here for a few steps, with each kind of tokenizer. Generation in
  transformers must give the same text as `generate`. AutoTokenizer must return the same ids.

Version 5 of transformers wrote the config.json of golden models. With version 4, only models that are
exported from their settings are opened. Exits with status 77 if transformers is not installed."""
import json
import logging
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import tokenizers
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

HERE = pathlib.Path(__file__).parent
GOLDEN, TOKENIZERS = HERE.parent / "io" / "pretrained", HERE.parent / "io" / "tokenizers"
IS_OLD = int(transformers.__version__.split(".")[0]) < 5
DTYPES = dict(f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16)
PROMPT, LENGTH = "First line: ", 40
STRINGS = ["", " ", "First line", "two  spaces\n\n\tand tabs", "naïve café — “quoted” 1234567", "don't they'RE 'ſ", "日本語 テスト",
           "\U0001f333\u200d x", "<s> </s> <|eot_id|> <|endoftext|>", "a\r\n\r\nb"]


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = []

    def emit(self, record):
        self.found.append(record.getMessage())


records = Records()
transformers.logging.disable_progress_bar()
transformers.logging.get_logger("transformers").addHandler(records)
warnings.showwarning = lambda message, *rest, **more: records.found.append(str(message))


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def opened(folder, **options):
    """Returns the model of a folder, and the warnings."""
    records.found.clear()
    getattr(logging.Logger.warning_once, "cache_clear", lambda: None)()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True,
                                                                    attn_implementation="eager", **options)
    wrong = {key: list(value) for key, value in info.items() if value}
    return model.eval(), records.found + ([f"loading info {wrong}"] if wrong else [])


def logits(model, tokens):
    with torch.no_grad():
        return model(tokens).logits.float()


def tensors_of(folder):
    """Returns every tensor of a folder, by name."""
    found = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as f:
            assert f.metadata() == {"format": "pt"}, file
        found.update(load_file(file))
    return found


def check_tensors(folder, source):
    ours, theirs = tensors_of(folder), tensors_of(source)
    for name, tensor in ours.items():
        other = theirs.get(name, theirs.get(name.removeprefix("transformer.")))
        assert tensor.dtype == other.dtype and torch.equal(tensor, other), f"{folder}: {name} differs"


def check_golden(tools, by_settings, source, out):
    expected = load_file(source / "expected.safetensors")
    tokens, wanted = expected["tokens"].long(), expected["logits"]
    bound = 1e-5 * max(1, wanted.abs().max().item())
    if IS_OLD and any(kind in (source / "config.json").read_text() for kind in ("yarn", "short_factor")):
        return  # version 4 warns about the sizes of these models, or expects a rope_scaling with three members
    known = set() if IS_OLD else set(opened(source, dtype=torch.float32)[1])

    def checked(folder, what, **options):
        model, warned = opened(folder, **options)
        new = [message for message in warned if message not in known]
        assert not new, f"{source.name} {what}: {new}"
        return model

    for which in ("first", "same"):
        folder = out / f"settings_{which}"
        run(by_settings, source, folder, which)
        model = checked(folder, f"by settings, {which}", dtype=torch.float32)
        error = (logits(model, tokens) - wanted).abs().max().item()
        assert error <= bound, f"{source.name} by its settings as {model.config.model_type}: {error}"
        ids = (model.generation_config.eos_token_id, model.config.eos_token_id)
        assert which == "same" or ids == (None, None), f"{source.name}: ends at {ids}"
    if IS_OLD:
        return
    same = out / "same"
    run(tools / "export", "--model", source, "--to", "hf", "--out", same)
    model = checked(same, "unchanged", dtype=torch.float32)
    assert torch.equal(logits(model, tokens), wanted), f"{source.name}: different logits"
    check_tensors(same, source)
    for file in ("config.json", "generation_config.json"):
        assert json.loads((same / file).read_text()) == json.loads((source / file).read_text()), f"{source.name}: {file}"
    for name, dtype in DTYPES.items():
        run(tools / "export", "--model", source, "--to", "hf", "--weights-dtype", name, "--out", out / name)
        model = checked(out / name, name)
        assert model.dtype == dtype, f"{source.name}: config.json has {model.dtype}, not {dtype}"
        rounded = opened(source, dtype=dtype)[0].float()
        assert torch.equal(logits(model.float(), tokens), logits(rounded, tokens)), f"{source.name}: {name}"


def text_of(out):
    lines = [f"First line: number {i} of a small text, für den Test: {i * i} and {i * 7 % 11}." for i in range(120)]
    path = out / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def check_trained(tools, out, name, options):
    run(tools / "train", *options, "--out", out / name, "--layers", 2, "--heads", 4, "--width", 32, "--context", 64,
        "--batch", 8, "--steps", 60, "--sample", 0, "--threads", 1)
    folder = out / f"{name}_hf"
    shown = run(tools / "export", "--model", out / name, "--to", "hf", "--out", folder)
    loaded = {}
    exec(shown.splitlines()[-1], loaded)  # the printed line that loads the model
    model, warned = opened(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=LENGTH, do_sample=False)[0]
    warned += records.found
    assert not warned, f"{name}: {warned}"
    ours = run(tools / "generate", "--model", out / name, "--prompt", PROMPT, "--temperature", 0, "--max-tokens", LENGTH)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert text + "\n" == ours, f"{name}: {text!r}, ours {ours!r}"
    return tokenizer, model, folder


def check_ids(tools, tokenizer, folder, original=None):
    for string in STRINGS:
        ids = tokenizer(string)["input_ids"]
        if original:
            assert ids == original.encode(string).ids, f"{folder}: {string!r}"
        if string:
            shown = run(tools / "tokens", "--tokenizer", folder, string).splitlines()[0].split()[1:]
            assert ids == [int(i) for i in shown], f"{folder}: {string!r} is {ids}, ours {shown}"


def main(tools, by_settings):
    goldens = sorted(p for p in GOLDEN.iterdir() if p.is_dir())
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name)
        for source in goldens:
            (out / source.name).mkdir()
            check_golden(tools, by_settings, source, out / source.name)
        text, trained = text_of(out), 0
        for architecture in (["gpt"], ["llama", "--key-heads", 2], ["deepseek", "--query-latent", 8]):
            for kind in (["chars"], ["bytes"], ["bpe", "--vocabulary", 300]):
                name = f"{architecture[0]}_{kind[0]}"
                tokenizer, model, folder = check_trained(
                    tools, out, name, ["--text", text, "--architecture", *architecture, "--tokenizer", *kind])
                if kind[0] != "chars":  # this tokenizer lacks tokens for most strings
                    check_ids(tools, tokenizer, folder)
                trained += 1
        for kind in ("gpt2", "llama2", "llama3", "qwen2", "deepseek3"):
            run(tools / "tokens", "--text", text, "--tokenizer", TOKENIZERS / kind, "--out", out / f"{kind}.tokens")
            tokenizer, model, folder = check_trained(tools, out, kind, ["--tokens", out / f"{kind}.tokens", "--architecture", "llama"])
            check_ids(tools, tokenizer, folder, tokenizers.Tokenizer.from_file(str(TOKENIZERS / kind / "tokenizer.json")))
            trained += 1
    print(f"transformers {transformers.__version__}: {len(goldens)} golden models and {trained} trained ones, all as expected")


if len(sys.argv) != 3:
    sys.exit(__doc__)
main(pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2]).absolute())
