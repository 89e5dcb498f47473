#!/usr/bin/env python3
"""Opens the output of `export --to peft` and `export --merge` with peft and transformers.

usage: open_adapters.py TOOLS        the folder with train and export

Adapters of golden models in tests/io/pretrained are trained for a few steps. PeftModel.from_pretrained() must
open each adapter without a warning and with every tensor. Its results must equal those of the merged model.
Exits with status 77 if peft is not installed."""
import logging
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).parent.parent / "io" / "pretrained"
MODELS = {"gpt2": [], "llama": ["--lora-targets", "q_proj,v_proj"], "phi3": [], "qwen3": ["--lora-alpha", "4.5"], "gemma3": []}


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = []

    def emit(self, record):
        self.add(record.getMessage())

    def add(self, message):
        if "is deprecated" not in message:  # peft's calls of transformers cause these warnings
            self.found.append(message)


records = Records()
transformers.logging.disable_progress_bar()


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")


def opened(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def check(tools, name, options, directory):
    text = directory / "tokens"
    text.write_bytes(bytes(b for i in range(600) for b in ((i * i + i // 5) % 37, 0)))
    out, adapter, merged = (directory / f"{name}-{what}" for what in ("run", "peft", "merged"))
    run(tools / "train", "--model", GOLDEN / name, "--tokens", text, "--plain", "u16", "--context", "24", "--batch", "2", "--warmup", "0",
        "--lr", "1e-2", "--steps", "20", "--sample", "0", "--lora", "3", *options, "--out", out)
    run(tools / "export", "--model", out, "--to", "peft", "--out", adapter)
    run(tools / "export", "--model", out, "--merge", "--weights-dtype", "f32", "--to", "hf", "--out", merged)
    tokens = torch.arange(28).reshape(2, 14) % 37
    base, whole = opened(GOLDEN / name), opened(merged)
    with torch.no_grad():
        plain = base(tokens).logits  # before peft changes the model
    root = logging.getLogger()
    root.addHandler(records)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest, **more: records.add(str(message))
        model = peft.PeftModel.from_pretrained(base, adapter).eval()
    root.removeHandler(records)
    with torch.no_grad():
        logits, expected = model(tokens).logits, whole(tokens).logits
    error = (logits - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    effect = (plain - expected).abs().max().item()
    print(f"{name:8} {error:.1e} of the largest logit from the merged model, {effect:.1f} from the base, {len(records.found)} warnings")
    return error <= 1e-5 and effect > 0.1


def main():
    tools = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as directory:
        good = [check(tools, name, options, pathlib.Path(directory)) for name, options in MODELS.items()]
    for record in records.found:
        print("warning:", record)
    return 0 if all(good) and not records.found else 1


if __name__ == "__main__":
    sys.exit(main())
