#!/usr/bin/env python3
"""Measures this library and PyTorch on the first GPU in one run. Writes the rows next to each other into a file, between the
lines `<!-- gpu-bench -->` and `<!-- end of gpu-bench -->`. `tools/dev gpu-bench` calls it."""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

BEGIN, END = "<!-- gpu-bench -->", "<!-- end of gpu-bench -->"
GPT = "6x6x384x256x64"


def bench(binary, *arguments):
    """The machine and the rows that `bench ARGUMENTS` measures."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "rows.json")
        subprocess.run([binary, *arguments, "--backend", "cuda", "--json", file], check=True)
        return json.loads(file.read_text())


def torch_rows(script):
    """PyTorch's rows by (name, shape, dtype, pass), and its version; nothing if PyTorch is not installed."""
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    version = next((r["version"] for r in rows if r["name"] == "PyTorch"), None)
    return {(r["name"], r["shape"], r["dtype"], r["pass"]): r["ms"] for r in rows if "ms" in r}, version


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def beside(row, dtype, comparator, rate=True):
    """The cells of a row: name, our result, PyTorch's result, and the speedup of ours."""
    theirs = comparator.get((row["name"], row["shape"], dtype, row["pass"]))
    cells = [row["name"], row["shape"], dtype, row["pass"], f"{row['ms']:.3f}"]
    if rate:
        cells.append(f"{row['rate']:.0f}")
    if theirs is None:
        return cells + ["", ""]
    their_cell = f"{row['rate'] * row['ms'] / theirs:.0f}" if rate else f"{theirs:.3f}"
    return cells + [their_cell, f"{theirs / row['ms']:.2f} ×"]


def attention_rows(data, nondeterministic):
    """A row for each cell and pass: sizes, mask, TFLOP/s, share of the GEMM rate, and TFLOP/s of cuDNN and FlashAttention-2,
    each with the speedup of ours. The nondeterministic (free-order) backward pass follows the deterministic one."""
    rows = {(r["shape"], r["name"], r["pass"]): r for r in data["rows"] + nondeterministic["rows"] if r["unit"].endswith("FLOP/s")}
    for (shape, name, way), row in rows.items():
        if not name.startswith("flash_attn") or ", " in name or (way == "forward" and name.endswith(" nondeterministic")):
            continue
        mask = name.removeprefix("flash_attn").strip()
        cells = [shape, mask, way, f"{tera(row):.0f}", f"{row['share']:.2f}"]
        for who in (", cuDNN", ", FA2"):
            theirs = rows.get((shape, name.removesuffix(" nondeterministic") + who, way))
            cells += [f"{tera(theirs):.0f}", f"{tera(row) / tera(theirs):.2f} ×"] if theirs else ["", ""]
        yield cells


def tera(row):
    return row["rate"] * (1 if row["unit"] == "TFLOP/s" else 1e-3)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--bench", default="build/tools/bench")
    args.add_argument("--commit", required=True)
    args.add_argument("--out", default="docs/benchmarks.md", type=pathlib.Path)
    args = args.parse_args()
    text = args.out.read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"gpu_report: {args.out} does not contain the lines {BEGIN} and {END}")

    comparator, version = torch_rows(pathlib.Path(__file__).with_name("torch_compare.py"))
    bf16 = [bench(args.bench, "attention", "--dtype", "bf16", *options)
            for options in (["--compare"], ["--suite", "gpu-nondeterministic"])]
    attention = [(bench(args.bench, "attention", "--dtype", t, "--shape", "4x16x2048x64"), t) for t in ("tf32", "f32")]
    steps = [(bench(args.bench, "train", "--dtype", t, "--shape", GPT), t) for t in ("bf16", "tf32", "f32")]
    ops = [(bench(args.bench, "ops", "--dtype", t), t) for t in ("f32", "bf16")]
    machine = bf16[0]["machine"]
    f32, tf32 = steps[2][0]["machine"], steps[1][0]["machine"]

    parts = [
        f"### {machine['model']}, {datetime.date.today()}, commit {args.commit}",
        f"Measured by `tools/dev gpu-bench`, PyTorch {version or '(not installed)'} in the same run. This library's "
        f"products: {machine['peak_bf16_gflops'] / 1e3:.0f} TFLOP/s bf16, {tf32['peak_f32_gflops'] / 1e3:.0f} TF32 and "
        f"{f32['peak_f32_gflops'] / 1e3:.0f} f32; its copy {machine['copy_gbytes'] / 1e3:.2f} TB/s.",
        "flash_attn in bf16 compared with PyTorch's cuDNN and FlashAttention-2, TFLOP/s, by `bench attention --compare`; "
        "FLOPs count visible pairs only, and the backward counts 2.5 times the forward. PyTorch's backward is nondeterministic.",
        table(["B×H/Hk×L/T×d/dv", "mask", "pass", "TFLOP/s", "of product", "cuDNN", "faster", "FA2", "faster"],
              list(attention_rows(*bf16))),
        "In f32, compared with PyTorch's memory-efficient kernel, TFLOP/s.",
        table(["op", "B×H×L×d", "dtype", "pass", "ms", "TFLOP/s", "PyTorch", "faster"],
              [beside(r, t, comparator) for data, t in attention for r in data["rows"] if r["unit"] == "TFLOP/s"]),
        "The character GPT's training step, including AdamW and clipping, compared with PyTorch compiled into CUDA graphs.",
        table(["", "layers×heads×width×context×batch", "dtype", "pass", "ms", "PyTorch", "faster"],
              [beside(r, t, comparator, rate=False) for data, t in steps for r in data["rows"]
               if r["name"] == "GPT step"]),
        "Host time of a replayed step, tokens fed and loss fetched, shortest (median): " +
        ", ".join(" ".join(f"{r['rate']:.1f} µs {t}" if r["name"] == "GPT step, host" else f"({r['rate']:.1f})"
                           for r in data["rows"] if r["name"].startswith("GPT step, host"))
                  for data, t in steps) + ".",
        "Ops on rows of 4096, 256 MiB of them, share of copy bandwidth.",
        table(["op", "pass"] + [t for _, t in ops],
              [[name, way] + [next((f"{r['share']:.2f}" for r in data["rows"]
                                    if (r["name"], r["pass"]) == (name, way)), "") for data, _ in ops]
               for name, way in dict.fromkeys((r["name"], r["pass"]) for data, _ in ops for r in data["rows"])]),
    ]
    before, rest = text.split(BEGIN, 1)
    args.out.write_text(before + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + rest.split(END, 1)[1])


main()
