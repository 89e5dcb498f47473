#!/usr/bin/env python3
"""Compares ids with the package `tokenizers` for many strings, and the speed on one thread.

usage: compare_tokenizers.py ENCODE_STRINGS TOKENIZER.JSON... [--random N] [--quick] [--speed TEXT]

ENCODE_STRINGS is the program build/tests/encode_strings (ninja encode_strings). These strings are used for each tokenizer:

- The list in tests/interop/tokenizer_strings.py.

- Every code point, by itself and between letters.

- Every token of the vocabulary.

- N random strings (100,000) of characters, byte letters, words of the vocabulary and added tokens.

The compared ids include the tokens that a template adds around a string. --quick skips code points and pairs.
With --speed, both programs encode the complete file TEXT, and a word of 1 MB. Exits with status 1 if any id
differs, and with 77 if version 0.23.3 is not installed.
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import tokenizers
except ImportError:
    tokenizers = None
if not tokenizers or tokenizers.__version__ != "0.23.3":  # other versions of tokenizers use a different
                                                          # version of Unicode
    print("tokenizers 0.23.3 is not installed: skipped")
    sys.exit(77)
import tokenizer_strings


def ours(program, path, strings):
    """Returns the ids of each string, the number of strings that do not round-trip, and the seconds for
    encoding."""
    with tempfile.TemporaryDirectory() as folder:
        data, ids = pathlib.Path(folder, "strings"), pathlib.Path(folder, "ids")
        with data.open("wb") as f:
            for s in strings:
                f.write(struct.pack("<I", len(s)) + s)
        done = subprocess.run([program, path, data, ids], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{path}: {done.stderr}")
        raw, found, at = ids.read_bytes(), [], 0
        for _ in strings:
            (n,) = struct.unpack_from("<I", raw, at)
            found.append(list(struct.unpack_from(f"<{n}I", raw, at + 4)))
            at += 4 + 4 * n
        lost, seconds = done.stdout.split()
        return found, int(lost), float(seconds)


def compare(program, path, count, quick):
    reference = tokenizers.Tokenizer.from_file(path)
    file = json.loads(pathlib.Path(path).read_text())
    changes = (file["normalizer"] or {}).get("normalizers", True) if file["normalizer"] else False
    changes = changes or '"add_prefix_space": true' in json.dumps(file["pre_tokenizer"])
    changes = changes or any(t["lstrip"] or t["rstrip"] for t in file["added_tokens"])  # in this case, decoding does not return the string
    differences = 0
    for name, strings in tokenizer_strings.groups(reference, count, quick):
        found, lost, _ = ours(program, path, [s.encode() for s in strings])
        bad = [(s, a, b) for s, a in zip(strings, found) if a != (b := reference.encode(s).ids)]
        lost = 0 if changes else lost
        differences += len(bad) + lost
        print(f"{path}: {name}: {len(strings)} strings, {len(bad)} differ, {lost} do not round-trip", flush=True)
        for s, a, b in bad[:5]:
            print(f"  {s[:200]!a}\n    ours      {a[:40]}\n    reference {b[:40]}")
    return differences


def speed(program, path, text):
    reference = tokenizers.Tokenizer.from_file(path)
    data = pathlib.Path(text).read_text()
    for name, s in [(f"{len(data.encode()) / 1e6:.1f} MB of text", data), ("a word of 1 MB", "a" * 1_000_000)]:
        theirs = []
        for _ in range(3):
            start = time.perf_counter()
            expected = reference.encode(s).ids
            theirs.append(time.perf_counter() - start)
        mine = []
        for _ in range(3):
            found, _, seconds = ours(program, path, [s.encode()])
            mine.append(seconds)
        size = len(s.encode()) / 1e6
        same = "equal ids" if found[0] == expected else "DIFFERENT IDS"
        print(f"{path}: {name}: {size / min(mine):.1f} MB/s, tokenizers {size / min(theirs):.2f} MB/s, {same}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizers", nargs="+")
    parser.add_argument("--random", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--speed")
    options = parser.parse_args()
    total = 0
    for one in options.tokenizers:
        if options.random:
            total += compare(options.program, one, options.random, options.quick)
        if options.speed:
            speed(options.program, one, options.speed)
    print(f"tokenizers {tokenizers.__version__}: {total} differences")
    sys.exit(total > 0)
