#!/usr/bin/env bash
# Tests that Python's safetensors opens a checkpoint. Names and shapes must be the same as in nanoGPT's
# state_dict. Usage: checkpoint_in_python.sh PATH/TO/train. Skipped (77) if the package is not installed.
set -eu
train=$1
python=${PYTHON:-python3}
if ! "$python" -c 'import safetensors.numpy' 2>/dev/null; then
  echo "skipped: the Python package safetensors is not installed"
  exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for i in $(seq 40); do echo "Line $i of a small text, für den Test: $((i * i))."; done >"$dir/text.txt"
"$train" --text "$dir/text.txt" --layers 2 --heads 2 --width 16 --context 8 --batch 2 --steps 3 --sample 0 \
  --out "$dir/run" >/dev/null
"$python" - "$dir/run/last" "$dir/text.txt" <<'EOF'
import json, os, sys
import safetensors, safetensors.numpy
import numpy

where, text = sys.argv[1:]
model = safetensors.numpy.load_file(f"{where}/model.safetensors")
optimizer = safetensors.numpy.load_file(f"{where}/optimizer.safetensors")
with safetensors.safe_open(f"{where}/model.safetensors", "np") as f:
    about = f.metadata()
with safetensors.safe_open(f"{where}/run.safetensors", "np") as f:
    run = f.metadata()
    assert list(f.keys()) == []

characters = "".join(sorted(set(open(text, encoding="utf-8").read())))
V, C, T, L = len(characters), 16, 8, 2
expected = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (T, C), "transformer.ln_f.weight": (C,)}
for i in range(L):
    block = f"transformer.h.{i}."
    expected |= {block + "ln_1.weight": (C,), block + "attn.c_attn.weight": (3 * C, C),
               block + "attn.c_proj.weight": (C, C), block + "ln_2.weight": (C,),
               block + "mlp.c_fc.weight": (4 * C, C), block + "mlp.c_proj.weight": (C, 4 * C)}
assert {name: a.shape for name, a in model.items()} == expected, model.keys()
assert all(a.dtype == numpy.float32 and numpy.isfinite(a).all() for a in model.values())
assert about["characters"] == characters and about["step"] == run["step"] == "3"
for name, a in model.items():
    for moment in "mv":
        assert optimizer[f"optimizer.{moment}.{name}"].shape == a.shape
assert optimizer["optimizer.step"] == 3
assert run["option.layers"] == "2" and float(run["option.lr"]) == 1e-3

manifest = json.load(open(f"{where}/manifest.json"))
assert set(manifest["files"]) == set(os.listdir(where)) - {"manifest.json"}
for name, file in manifest["files"].items():
    content = open(f"{where}/{name}", "rb").read()
    assert len(content) == file["bytes"]
    try:
        import xxhash
        assert xxhash.xxh3_128(content).hexdigest() == file["xxh3_128"]
    except ImportError:
        pass
print("opened", ", ".join(sorted(manifest["files"])), "with safetensors", safetensors.__version__)
EOF
