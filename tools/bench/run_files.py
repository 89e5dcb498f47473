"""The files of a run of `train`, read without the library and without packages: the header of a safetensors file, and the
rows of metrics.jsonl."""
import json
import struct


def header(path):
    """(metadata, tensors, offset of the data) of a safetensors file; tensors as {name: {"dtype", "shape", "data_offsets"}}."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        tensors = json.loads(file.read(size))
    return tensors.pop("__metadata__", {}), tensors, 8 + size


def options(run):
    """The command line of a run, {"batch": "12", …}, with defaults."""
    saved = header(f"{run}/last/run.safetensors")[0]
    return {key.removeprefix("option."): value for key, value in saved.items() if key.startswith("option.")}


def metrics(run):
    """The rows of a run, step by step, from step 1 on."""
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = [row for row in rows if row["step"] > 0]
    if [row["step"] for row in rows] != list(range(1, len(rows) + 1)) or not rows:
        raise ValueError(f"{run}/metrics.jsonl: expected the rows of steps 1, 2, …")
    return rows
