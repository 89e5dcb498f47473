#!/usr/bin/env bash
# Tests evaluate: evaluate_tool.sh FOLDER_OF_TOOLS. tests/train/perplexity_test.cpp and
# tests/interop/tuned_models.py verify the printed numbers.
. "$(dirname "$0")/tool.sh"
tools=$1
evaluate=$tools/evaluate train=$tools/train export=$tools/export

folder=$dir/folder text=$dir/text.txt
letters_folder llama "$folder"
for i in $(seq 10); do printf 'the old tree stood by a river and said, good day'; done >"$text"
value() { sed -n "s/^$1  *\([0-9.]*\).*/\1/p" "$dir/out"; }
measure() { "$evaluate" --text "$text" "$@" >"$dir/out" 2>"$dir/err" || fail "evaluate $*: $(cat "$dir/err")"; }

measure --model "$folder"
grep -q '^model  *llama, 16352 parameters in bf16' "$dir/out" && grep -q "^text  *$text: 480 bytes, 480 tokens\$" "$dir/out" &&
  grep -q '^windows  *9 of up to 96, which predict 479 tokens$' "$dir/out" && grep -q '^loss  *[0-9.]* nats per token$' "$dir/out" ||
  fail "the table is: $(cat "$dir/out")"
whole=$(value loss)
awk -v loss="$whole" -v p="$(value perplexity)" -v b="$(value bits.byte)" \
  'BEGIN { exit !((p / exp(loss) - 1) ^ 2 < 1e-9 && (b * log(2) / loss - 1) ^ 2 < 1e-9) }' || fail "the numbers are inconsistent: $(cat "$dir/out")"
# The result does not depend on the number of windows per batch or the number of threads. In 16-bit precision,
# it is nearly the same.
for how in '--batch 1' '--batch 7 --threads 2' '--context 96 --stride 48'; do
  measure --model "$folder" $how
  awk -v a="$whole" -v b="$(value loss)" 'BEGIN { exit !((a - b) ^ 2 < 1e-10) }' || fail "$how gives $(value loss), not $whole"
done
measure --model "$folder" --dtype bf16
awk -v a="$whole" -v b="$(value loss)" 'BEGIN { exit !((a - b) ^ 2 < 1e-2 && a != b) }' || fail "in bf16 it is $(value loss), not $whole"
# If the stride equals the context, the first token of each window is not predicted.
measure --model "$folder" --context 50 --stride 50
grep -q '^windows  *10 of up to 50, which predict 470 tokens$' "$dir/out" || fail "the table is: $(cat "$dir/out")"

# Evaluates a checkpoint and the exported folder, and new models.
"$train" --model "$folder" --text "$text" --context 24 --batch 2 --steps 30 --warmup 0 --lr 3e-3 --sample 0 --out "$dir/run" >/dev/null || fail "tuning"
measure --model "$dir/run"
tuned=$(value loss)
awk -v a="$whole" -v b="$tuned" 'BEGIN { exit !(b < a - 1) }' || fail "fine-tuning on this text does not reduce the loss: $tuned"
"$export" --model "$dir/run" --to hf --out "$dir/hf" >/dev/null
measure --model "$dir/hf"
[ "$(value loss)" = "$tuned" ] || fail "exported it has a loss of $(value loss), not $tuned"
"$train" --text "$text" --layers 1 --heads 2 --width 16 --context 16 --batch 2 --steps 2 --sample 0 --out "$dir/own" >/dev/null || fail "training"
measure --model "$dir/own/best"
grep -q '^loss .* nats per character$' "$dir/out" || fail "characters: $(cat "$dir/out")"

# The error of an invalid input is one line.
refuses() {  # CODE WORD ARGUMENTS...
  local code=$1 word=$2
  shift 2
  refuses_command "$code" "$word" "$evaluate" "$@"
}
refuses 2 'missing --model' --text "$text"
refuses 2 'missing --text' --model "$folder"
refuses 2 --stride --model "$folder" --text "$text" --stride 0
refuses 1 'stride got 21, expected at most 20' --model "$folder" --text "$text" --context 20 --stride 21
refuses 1 'context up to 96, the model.s, got 97' --model "$folder" --text "$text" --context 97
refuses 1 "$dir/nowhere: does not exist" --model "$dir/nowhere" --text "$text"
refuses 1 'nothing.txt: No such file' --model "$folder" --text "$dir/nothing.txt"
printf a >"$dir/short"
refuses 1 '2 tokens or more, got 1' --model "$folder" --text "$dir/short"
: >"$dir/empty"
refuses 1 '2 tokens or more, got 0' --model "$folder" --text "$dir/empty"
printf 'a|b' >"$dir/strange"
refuses 1 'byte 0x7c has no token' --model "$folder" --text "$dir/strange"
rm "$folder/tokenizer.json"
refuses 1 'tokenizer.json: No such file' --model "$folder" --text "$text"

"$evaluate" --help | grep '^examples:' >/dev/null || fail "--help has no examples"
[ $failed = 0 ] && echo "evaluate: all checks passed"
exit $failed
