"""Reads the files of a `train` run and reproduces its batches, without the library and without packages. It reads safetensors
headers, the rows of metrics.jsonl, and each step's tokens. Batches are drawn again from (seed, step), as defined in
io/text/text.h and core/base/rng.h."""
import array
import json
import struct
import sys

MASK = 2**32 - 1
SAMPLER_NODE = MASK  # as in io/text/text.cpp


def header(path):
    """Returns (metadata, tensors, offset of the data) of a safetensors file. tensors: {name: {"dtype", "shape", "data_offsets"}}."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        tensors = json.loads(file.read(size))
    return tensors.pop("__metadata__", {}), tensors, 8 + size


def options(run):
    """Returns the options of a run, including defaults: {"batch": "12", …}."""
    saved = header(f"{run}/last/run.safetensors")[0]
    return {key.removeprefix("option."): value for key, value in saved.items() if key.startswith("option.")}


def metrics(run):
    """Returns the rows of a run, one per step, starting with step 1."""
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = [row for row in rows if row["step"] > 0]
    if [row["step"] for row in rows] != list(range(1, len(rows) + 1)) or not rows:
        raise ValueError(f"{run}/metrics.jsonl: expected the rows of steps 1, 2, …")
    return rows


def philox(counter, key):
    """Returns four words of 32 bits by Philox4x32-10."""
    a, b, c, d = counter
    k0, k1 = key & MASK, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = p1 >> 32 ^ b ^ k0, p1 & MASK, p0 >> 32 ^ d ^ k1, p0 & MASK
        k0, k1 = k0 + 0x9E3779B9 & MASK, k1 + 0xBB67AE85 & MASK
    return a, b, c, d


def joined(words):
    return words[0] | words[1] << 32


def training_starts(seed, step, rows, tokens, context):
    """Returns the offsets of the rows of a step (0, 1, …) in the training part, which has this number of tokens."""
    key = joined(philox((step & MASK, step >> 32, SAMPLER_NODE, 0), seed))
    return [joined(philox((row, 0, 0, 0), key)) * (tokens - context) >> 64 for row in range(rows)]


def validation_starts(batch, context, tokens, most):
    """Offsets of the rows of at most `most` batches, evenly spaced over a held-out part with this number of tokens."""
    crops = (tokens - 1 + context - 1) // context
    count = min((crops - 1) // batch + 1, most)
    rows, last = count * batch, tokens - context - 1
    starts = [last * row // (rows - 1) if rows > 1 else 0 for row in range(rows)]
    return [starts[k * batch:(k + 1) * batch] for k in range(count)]


def split(tokens):
    """Splits the tokens into the training part and the last tenth."""
    train = len(tokens) * 9 // 10
    return tokens[:train], tokens[train:]


def read_ids(data, bytes_each):
    ids = array.array("H" if bytes_each == 2 else "I", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def read_tokens(options):
    """Returns the token ids of a run's data, according to the run's options. Raises ValueError if the data is not a sequence of tokens, or if only the
    library can compute the tokens."""
    if options["from"] or options["task"] != "none" or options["examples"]:
        raise ValueError("expected a run of train --text or --tokens")
    with open(options["tokens"] or options["text"], "rb") as file:
        data = file.read()
    if options["plain"] != "none":
        return read_ids(data, 2 if options["plain"] == "u16" else 4)
    if options["tokens"]:
        if data[:8] != b"TGTOKENS":
            raise ValueError(f"{options['tokens']} is not a token file")
        begin = 16 + struct.unpack("<Q", data[8:16])[0]
        return read_ids(data[begin:], json.loads(data[16:begin])["bytes_each"])
    if options["tokenizer"] == "bytes":
        return array.array("H", list(data))
    if options["tokenizer"] == "chars":
        text = data.decode()
        ids = {character: id for id, character in enumerate(sorted(set(text)))}
        return array.array("I", [ids[character] for character in text])
    raise ValueError("train learns the tokenizer for --tokenizer bpe: convert the text with `tokens` and use --tokens")
