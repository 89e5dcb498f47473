#!/usr/bin/env bash
# Tests that the examples behave as documented: examples.sh PATH/TO/train_loop PATH/TO/trainer
# PATH/TO/own_layer PATH/TO/pretrained PATH/TO/lora
set -u
loop=$1 trainer=$2 own_layer=$3 pretrained=$4 lora=$5
source=$(dirname "$0")/../../examples
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

for file in "$source"/*; do
  [ "$(wc -l <"$file")" -lt 80 ] || fail "$file has 80 lines or more"
done
for example in train_loop lora; do
  [ "$(wc -l <"$source/$example.cpp")" -le 60 ] || fail "$example has more than 60 lines"
done
"$loop" "$dir/loop" >"$dir/out" || fail "train_loop: $(tail -n 3 "$dir/out")"
[ -s "$dir/loop/last/model.safetensors" ] || fail "train_loop writes no checkpoint"

for i in $(seq 60); do echo "Line $i of a small text, for the test: $((i * i)) and $((i * 7 % 11))."; done >"$dir/text"
"$trainer" "$dir/text" "$dir/whole" 200 >"$dir/out" || fail "trainer: $(cat "$dir/out")"
"$trainer" "$dir/text" "$dir/halves" 100 >"$dir/out" || fail "trainer, the first half: $(cat "$dir/out")"
"$trainer" "$dir/text" "$dir/halves" 200 >"$dir/out" || fail "trainer, the second half: $(cat "$dir/out")"
cmp -s "$dir"/{whole,halves}/last/model.safetensors || fail "a resumed run differs from an uninterrupted one"
[ "$(wc -l <"$dir/halves/metrics.jsonl")" = 200 ] || fail "expected one row per step"
"$trainer" "$dir/none" "$dir/x" >/dev/null 2>"$dir/err" && fail "trainer accepts a missing text"
[ "$(wc -l <"$dir/err")" = 1 ] || fail "the error is not one line: $(cat "$dir/err")"

for isa in baseline avx2; do  # the result must not depend on rounding
  TG_ISA=$isa "$own_layer" "$dir/own-$isa" >"$dir/out" 2>"$dir/err" || grep -q "expected one that this machine supports" "$dir/err" ||
    fail "own_layer on $isa: $(cat "$dir/out" "$dir/err")"
done
"$own_layer" "$dir/own" >"$dir/out" || fail "own_layer: $(cat "$dir/out")"
for run in whole halves; do
  [ -s "$dir/own/$run/last/model.safetensors" ] || fail "own_layer writes no checkpoint of the run $run"
done
cmp -s "$dir"/own/{whole,halves}/last/model.safetensors || fail "own_layer: a resumed run differs from an uninterrupted one"

# Compares with the output in docs/interop.md.
root=$(dirname "$0")/../..
(cd "$root" && "$pretrained" tests/io/pretrained/qwen3 3 1 4) >"$dir/out" || fail "pretrained: $(cat "$dir/out")"
sed -n '/^    \$ .*examples\/pretrained/,/^$/p' "$root/docs/interop.md" | sed 1d | sed 's/^    //; /^$/d' | diff - "$dir/out" ||
  fail "docs/interop.md shows a different output"
(cd "$root" && "$lora" tests/io/pretrained/qwen3 "$dir/adapter" 3 1 4 1 5 9 2 6 5 3 5 8) >"$dir/out" || fail "lora: $(cat "$dir/out")"
sed -n '/^    \$ .*examples\/lora/,/^$/p' "$root/docs/interop.md" | sed 1d | sed 's/^    //; /^$/d' | diff - "$dir/out" ||
  fail "docs/interop.md shows a different output of lora"
[ -s "$dir/adapter/adapter_config.json" ] && [ -s "$dir/adapter/adapter_model.safetensors" ] || fail "lora writes no adapter"
[ "$(wc -l <"$source/lora.cpp")" -lt 60 ] || fail "lora has 60 lines or more"

[ $failed = 0 ] && echo "examples: all checks passed"
exit $failed
