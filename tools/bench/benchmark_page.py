#!/usr/bin/env python3
"""Runs the benchmarks of docs/benchmarks.md on one device and writes their tables into the page: benchmark_page.py cpu|cuda

Each section below is a table of the page with the commands that measure it. A table has one line per measurement and one
column per pass. A comparator of the same run, such as cuDNN, has a column with the speedup of tilegrad. The part of the page
between the lines `<!-- cpu -->` and `<!-- end of cpu -->` (or cuda) is replaced.
"""
import argparse
import datetime
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import textwrap

# Suffixes of the rows of other libraries, or their names, and the titles of their columns.
COMPARATORS = {", cuDNN": "cuDNN", ", FA2": "FlashAttention-2", ", PyTorch": "PyTorch", "PyTorch, eager": "PyTorch, eager",
               "PyTorch, compiled": "PyTorch, compiled", "PyTorch, CUDA graphs": "PyTorch, CUDA graphs"}
OPS = ("add", "gelu", "softmax", "layer_norm", "rms_norm", "cross_entropy", "rope", "adamw")
PASSES = ("", "forward", "backward", "both", "step")  # in the order of the columns
GPT2 = ["--layers", "12", "--heads", "12", "--width", "768", "--context", "1024", "--vocabulary", "50304", "--batch", "32"]
TOY = ["--layers", "4", "--heads", "4", "--width", "128", "--context", "64", "--batch", "12"]


class Section:
    def __init__(self, title, text, commands, value="rate", keep=lambda row: True):
        """A table of the page. `commands` is a list, or a dictionary whose keys label the lines of each command. `value` is
        the field that the table shows: "rate", "ms", or "share". `keep` selects the rows."""
        self.title, self.text, self.value, self.keep = title, text, value, keep
        self.labels = list(commands) if isinstance(commands, dict) else [""] * len(commands)
        self.commands = list(commands.values()) if isinstance(commands, dict) else commands

    def rows(self, measured):
        return [{**row, "label": label} for label, command in zip(self.labels, self.commands)
                for row in (measured.get(command) or {"rows": []})["rows"] if self.keep(row)]


def starts_with(*names):
    return lambda row: row["name"].startswith(names) and not row["name"].endswith(("products", "memory", "/ full"))


SECTIONS = {
    "cuda": [
        Section("Attention, bf16", "TFLOP/s. FLOPs are 2·B·H·(d + dv) for each visible pair of a query and a key, and the "
                "backward pass counts as 2.5 forward passes. The backward pass of tilegrad is deterministic; cuDNN's and "
                "FlashAttention-2's are not.",
                ["attention --dtype bf16 --compare"], keep=starts_with("flash_attn")),
        Section("Attention, f32", "TFLOP/s, in the precision of TF32 and with the error of f32.",
                ["attention --dtype tf32 --shape 4x16x2048x64", "attention --dtype f32 --shape 4x16x2048x64"],
                keep=starts_with("flash_attn")),
        Section("Decoding, bf16", "GB/s of keys and values that are read. Shapes are B × H/Hk × L/T × d.",
                ["decode --dtype bf16 --compare"], keep=lambda r: starts_with("flash_attn", "paged_attn page 64")(r) and " of " not in r["shape"]),
        Section("Training steps, bf16", "Milliseconds, AdamW and clipping included.",
                {"GPT-2 124M": "train --dtype bf16 --compare " + " ".join(GPT2),
                 "Llama 114M": "train --dtype bf16 --compare --architecture llama --key-heads 4 " + " ".join(GPT2),
                 "character GPT": "train --dtype bf16 --compare --layers 6 --heads 6 --width 384 --context 256 --batch 64"},
                value="ms", keep=lambda r: r["pass"] == "step" and not r["name"].endswith("median")),
        Section("Generation, GPT-2 124M, bf16", "Tokens per second, with a contiguous and a paged cache.",
                {"1 request": "serve --dtype bf16 --shape 124M --requests 1 --compare",
                 "64 requests": "serve --dtype bf16 --shape 124M --requests 64 --compare",
                 "384 requests, small cache": "serve --dtype bf16 --shape 124M --requests 384 --cache-memory 16384tokens"},
                keep=lambda r: r["unit"] == "tokens/s"),
        Section("Ops, f32 and bf16", "Fraction of the measured copy bandwidth, on 4096 × 4096 elements.",
                ["ops --dtype f32", "ops --dtype bf16"], value="share", keep=lambda r: r["name"] in OPS),
    ],
    "cpu": [
        Section("GEMM, f32", "Fraction of the measured multiply-add peak.", ["gemm --threads 1"], value="share",
                keep=lambda r: r["dtype"] == "f32" and r["shape"] in ("1024×1024×1024", "2048×2048×2048")),
        Section("Attention, f32", "GFLOP/s.", ["attention --threads 1"],
                keep=lambda r: starts_with("flash_attn")(r) and r["shape"].startswith("1×8×")),
        Section("Decoding, f32", "GB/s of keys and values that are read. Shapes are B × H/Hk × L/T × d.",
                ["decode --threads 1"], keep=starts_with("flash_attn decode", "flash_attn v in k")),
        Section("Training step of a GPT", "Milliseconds, AdamW and clipping included.",
                {"small GPT": "train --threads 1 " + " ".join(TOY),
                 "small GPT, 16-bit": "train --threads 1 --dtype bf16 " + " ".join(TOY)}, value="ms",
                keep=lambda r: r["pass"] == "step" and not r["name"].endswith("median")),
        Section("Generation, a GPT of 0.8 M parameters, f32", "Milliseconds per token, in a context of 64 tokens.",
                ["generate --threads 1 --shape 64 --filter engine"], value="ms", keep=lambda r: r["shape"].startswith("MHA")),
        Section("Ops, f32", "Fraction of the measured copy bandwidth, on 4096 × 4096 elements.", ["ops --threads 1"],
                value="share", keep=lambda r: r["name"] in OPS),
    ],
}


def bench(binary, device, arguments, log):
    """Returns the machine and the rows of one command, or None if it fails. Appends the command's output to `log`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "rows.json")
        command = [binary, *arguments.split(), "--backend", device, "--json", str(file)]
        print(" ".join(command), flush=True)
        with open(log, "a", encoding="utf8") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT)
        return json.loads(file.read_text()) if done.returncode == 0 else None


def torch_rows():
    """Returns PyTorch's times in f32 by (name, shape, dtype, pass). Empty if PyTorch is not installed."""
    script = pathlib.Path(__file__).with_name("torch_compare.py")
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(r["name"], r["shape"], r["dtype"], r["pass"]): r["ms"] for r in rows if "ms" in r}


def wrapped(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def shown(row, value):
    number = row[value]
    if number is None:
        return ""
    if value == "ms":
        return f"{number:.3g}"
    return f"{number:.2f}" if value == "share" else f"{number * scale(row):,.0f}"


def scale(row):
    return 1e-3 if row["unit"] == "GFLOP/s" and row["rate"] and row["rate"] >= 1e4 else 1


def table(section, rows):
    """Returns a table with a line for each name, shape and dtype, and a column for each pass and each comparator of a pass."""
    lines, columns, ratios = {}, [], {}
    for row in rows:
        suffix = next((s for s in COMPARATORS if row["name"].endswith(s)), "")
        name = row["name"].removesuffix(suffix)
        key = (" ".join(filter(None, [row["label"], "" if name == "step" else name])), row["shape"], row["dtype"])
        column = (row["pass"], COMPARATORS.get(suffix, ""))
        if column not in columns:
            columns.append(column)
        lines.setdefault(key, {})[column] = row
    columns.sort(key=lambda c: (PASSES.index(c[0]), c[1]))
    head = ["", "shape", "dtype"] + [f"× {c[1]}" if c[1] else c[0] or section.value for c in columns]
    out = []
    for key, cells in lines.items():
        if not any(not c[1] for c in cells):
            continue
        line = list(key)
        for column in columns:
            row, ours = cells.get(column), cells.get((column[0], ""))
            if row is None:
                line.append("")
            elif not column[1]:
                line.append(shown(row, section.value))
            else:
                ratio = row["ms"] / ours["ms"]
                ratios.setdefault(column, []).append(ratio)
                line.append(f"{ratio:.2f}")
        out.append(line)
    means = "; ".join(f"{p or section.value} {math.exp(sum(map(math.log, r)) / len(r)):.2f} × {who}"
                      for (p, who), r in ratios.items())
    text = "\n".join("| " + " | ".join(x) + " |" for x in [head, ["---"] * len(head)] + out)
    return text + ("\n\n" + wrapped(f"Geometric means: {means}.") if means else "")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("device", choices=SECTIONS, help="device to measure")
    p.add_argument("--bench", default="build/tools/bench", help="path of the tool")
    p.add_argument("--commit", required=True, help="commit of the tool")
    p.add_argument("--page", default="docs/benchmarks.md", type=pathlib.Path, help="page to change")
    p.add_argument("--rows", type=pathlib.Path, default="benchmarks.json", help="JSON file for all measured rows")
    p.add_argument("--from", dest="read", type=pathlib.Path, help="measure nothing: use the rows of this file")
    p.add_argument("--date", default=datetime.date.today(), help="date of the measurement")
    p.add_argument("--log", default="benchmarks.log", help="file for the output of the commands")
    o = p.parse_args()
    begin, end = f"<!-- {o.device} -->", f"<!-- end of {o.device} -->"
    page = o.page.read_text(encoding="utf8")
    if begin not in page or end not in page:
        sys.exit(f"benchmark_page.py: {o.page} does not contain the lines {begin} and {end}")

    measured = json.loads(o.read.read_text()) if o.read else {}
    for command in [] if o.read else [c for section in SECTIONS[o.device] for c in section.commands]:
        measured[command] = bench(o.bench, o.device, command, o.log)
        o.rows.write_text(json.dumps(measured, indent=1))  # after each command, in case a later one is killed
    machine = next((m["machine"] for m in measured.values() if m), None)
    theirs = torch_rows() if o.device == "cuda" and not o.read else {}
    if machine is None:
        sys.exit(f"benchmark_page.py: no command succeeded; {o.log} has their output")
    peak = "bf16" if o.device == "cuda" else "f32"
    parts = [wrapped(f"{machine['model']}, {o.date}, commit {o.commit}. Measured peaks: "
             f"{machine[f'peak_{peak}_gflops'] / 1e3:,.2f} TFLOP/s in {peak}, {machine['copy_gbytes']:,.0f} GB/s for copies "
             "(bytes read and written).")]
    for section in SECTIONS[o.device]:
        rows = section.rows(measured)
        for row in list(rows):
            ms = theirs.get((row["name"], row["shape"], row["dtype"], row["pass"]))
            if ms:
                rows.append({**row, "name": row["name"] + ", PyTorch", "ms": ms})
        if rows:
            commands = "\n".join(f"    bench {c} --backend {o.device}" for c in section.commands if measured.get(c))
            parts.append(f"### {section.title}\n\n{wrapped(section.text)}\n\n{commands}\n\n{table(section, rows)}")
    before, rest = page.split(begin, 1)
    o.page.write_text(before + begin + "\n\n" + "\n\n".join(parts) + "\n\n" + end + rest.split(end, 1)[1], encoding="utf8")


main()
