#!/usr/bin/env python3
"""Compares fine-tuning and `evaluate` with transformers.

usage: tuned_models.py TOOLS        the folder with train, evaluate, generate and export

Checks golden models of tests/io/pretrained, with a tokenizer of single characters.

- The loss of `evaluate` equals the loss of transformers. The loss is computed by the recipe of transformers
  for perplexity with a stride.

- The first validation loss of `train --model` equals the loss of the base model in transformers, also for
  prompts with completions.

- After `export --to hf`, a fine-tuned model opens in transformers. Its loss equals that of `evaluate`, and its text equals
  that of `generate`.

Exits with status 77 if transformers is not installed."""
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

transformers.logging.disable_progress_bar()
GOLDEN = pathlib.Path(__file__).parent.parent / "io" / "pretrained"
TOOLS = pathlib.Path(sys.argv[1])
LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?-ABCDE"
SENTENCE, CONTEXT = "the old tree stood by a river, and said: who are you? ".replace(":", "!"), 24


def run(tool, *arguments):
    done = subprocess.run([TOOLS / tool, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tool} {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def row(table, name):
    return next(line for line in table.splitlines() if line.startswith(name + " "))[len(name):].split()


def number(table, name, place=0):
    return float(row(table, name)[place])


def letters_folder(model, folder):
    shutil.copytree(GOLDEN / model, folder, ignore=lambda *_: ["expected.safetensors"])
    vocabulary = {("Ġ" if c == " " else c): i for i, c in enumerate(LETTERS)}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))


def opened(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager").eval()


def ids_of(text):
    return torch.tensor([[LETTERS.index(c) for c in text]])


def loss_by_recipe(model, ids, context, stride):
    """Returns the windows, one per stride. Tokens that an earlier window has predicted are masked."""
    nats = tokens = before = 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + context, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, :-(end - before)] = -100
        counted = (labels[:, 1:] != -100).sum().item()
        if counted:
            with torch.no_grad():
                nats += model(ids[:, begin:end], labels=labels).loss.double().item() * counted
        tokens += counted
        before = end
        if end == ids.shape[1]:
            break
    return nats / tokens, tokens


def same(what, got, expected, bound=1e-5):
    error = abs(got - expected) / max(1, abs(expected))
    assert error <= bound, f"{what}: {got}, expected {expected}"
    return error


worst = 0
with tempfile.TemporaryDirectory() as place:
    place = pathlib.Path(place)
    text = (SENTENCE * 12)[:10 * CONTEXT - 1]
    ids = ids_of(text)
    (place / "text").write_text(text)
    for name in ["llama", "gpt2", "mistral", "gemma3", "deepseek_v3", "phi3_partial", "phi3_long"]:
        folder, tuned, exported = (place / f"{name}{kind}" for kind in ["", "-run", "-hf"])
        letters_folder(name, folder)
        if name == "phi3_long":  # in windows of up to 30 tokens, this model uses different rotations
            config = folder / "config.json"
            config.write_text(config.read_text().replace('_embeddings": 5', '_embeddings": 30'))
        base = opened(folder)
        for context, stride in [(CONTEXT, CONTEXT), (CONTEXT, 12), (CONTEXT, 5), (96, 48), (96, 96)]:
            table = run("evaluate", "--model", folder, "--text", place / "text", "--context", context, "--stride", stride)
            loss, tokens = loss_by_recipe(base, ids, context, stride)
            what = f"{name}, context {context}, stride {stride}"
            worst = max(worst, same(what, number(table, "loss"), loss))
            same(what, number(table, "perplexity"), math.exp(loss), 1e-4)
            same(what, number(table, "bits/byte"), loss / math.log(2))  # each token is one byte
            assert row(table, "windows")[-2] == str(tokens), (what, row(table, "windows"), tokens)

        # The held-out part is one row. It is the last tenth of the tokens and ends with the end token.
        table = run("train", "--model", folder, "--text", place / "text", "--context", CONTEXT - 1, "--batch", 1, "--steps", 30,
                    "--lr", 1e-3, "--warmup", 0, "--sample", 0, "--out", tuned)
        first = json.loads((tuned / "metrics.jsonl").read_text().splitlines()[0])
        held = torch.cat([ids, torch.tensor([[2]])], 1)[:, -CONTEXT:]
        with torch.no_grad():
            loss = base(held, labels=held).loss.item()
        worst = max(worst, same(f"{name}: the first validation", first["val_loss"], loss))

        run("export", "--model", tuned, "--to", "hf", "--out", exported)
        model, tokenizer = opened(exported), transformers.AutoTokenizer.from_pretrained(exported)
        assert tokenizer(text).input_ids == ids[0].tolist(), f"{name}: different ids"
        table = run("evaluate", "--model", tuned, "--text", place / "text", "--context", CONTEXT, "--stride", 12)
        worst = max(worst, same(f"{name}, tuned", number(table, "loss"), loss_by_recipe(model, ids, CONTEXT, 12)[0]))
        prompt, count = "the old tree", 8 if name == "phi3_long" else 40
        said = run("generate", "--model", tuned, "--prompt", prompt, "--temperature", 0, "--max-tokens", count, "--context", 24 if count == 8 else 96)
        tokens = model.generate(ids_of(prompt), max_new_tokens=count, do_sample=False, pad_token_id=2)[0].tolist()
        expected = "".join(LETTERS[t] for t in tokens).split("c")[0]
        assert said == expected + "\n", f"{name} says {said!r}, expected {expected!r}"
        # Two examples of different lengths are held out, one per batch. Only completions count.
        pairs = [("say " + LETTERS[i:i + 2 + i % 2] + "!", " " + LETTERS[i:i + 1 + i % 3] + ".") for i in range(3, 23)]
        (place / "pairs").write_text("".join(json.dumps(dict(prompt=p, completion=c)) + "\n" for p, c in pairs))
        shutil.rmtree(tuned)
        run("train", "--model", folder, "--examples", place / "pairs", "--batch", 1, "--steps", 1, "--sample", 0, "--out", tuned)
        first = json.loads((tuned / "metrics.jsonl").read_text().splitlines()[0])
        nats = count = 0
        for prompt, completion in pairs[-2:]:
            tokens = torch.cat([ids_of(prompt + completion), torch.tensor([[2]])], 1)
            labels = tokens.clone()
            labels[:, :len(prompt)] = -100
            learned = len(completion) + 1
            with torch.no_grad():
                nats += base(tokens, labels=labels).loss.double().item() * learned
            count += learned
        worst = max(worst, same(f"{name}: the first validation on examples", first["val_loss"], nats / count))
print(f"transformers {transformers.__version__}: all checks passed, losses within {worst:.1e}")
