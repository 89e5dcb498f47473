#!/usr/bin/env bash
# Tests TG_LOG with the tools: log_tool.sh PATH/TO/train PATH/TO/generate PATH/TO/gradcheck
. "$(dirname "$0")/tool.sh"
train=$1 generate=$2 gradcheck=$3

for i in $(seq 40); do echo "Line $i of a small text: $((i * i)) and $((i * 7 % 11))."; done >"$dir/text"
run=("$train" --text "$dir/text" --layers 1 --heads 2 --width 16 --context 16 --batch 2 --steps 3 --sample 0 --threads 1)
say=("$generate" --model "$dir/run0" --prompt Line --max-tokens 5 --temperature 0)
unset TG_LOG
"${run[@]}" --out "$dir/run0" >"$dir/plain" 2>"$dir/err" || fail "train: $(cat "$dir/err")"
[ -s "$dir/err" ] && fail "train without TG_LOG logs: $(cat "$dir/err")"
"${say[@]}" >"$dir/text0" 2>"$dir/err" || fail "generate: $(cat "$dir/err")"
[ "$(wc -l <"$dir/err")" = 1 ] || fail "generate without TG_LOG logs: $(cat "$dir/err")"

# Each level must log its own lines and the lines of the previous level. The output of the tools must not
# change.
before=1
for level in 1 2 3 4; do
  TG_LOG=$level "${run[@]}" --out "$dir/run$level" >"$dir/out" 2>"$dir/err" || fail "train, level $level"
  cmp -s "$dir"/run{0,$level}/last/model.safetensors || fail "level $level trains a different model"
  [ "$(grep -c '^\[program [0-9]*\] run ' "$dir/err")" -ge 4 ] || fail "not every run is logged on level $level"
  lines=$(wc -l <"$dir/err")
  [ "$lines" -gt $before ] || fail "level $level logs $lines lines, the previous one $before"
  before=$lines
  grep -v '^\[program [0-9]*\] ' "$dir/err" >"$dir/other" && fail "a line without a program: $(head -n 1 "$dir/other")"
  TG_LOG=$level "${say[@]}" 2>/dev/null | cmp -s - "$dir/text0" || fail "level $level generates a different text"
done
TG_LOG=1 "$gradcheck" --op exp --quick --dtypes f32 --views contiguous 2>&1 >/dev/null | grep 'compiled in' >/dev/null || fail "gradcheck logs nothing"

# An invalid level must be rejected at the start.
for bad in 5 -1 all; do
  export TG_LOG=$bad
  refuses_command 1 "TG_LOG is '$bad', expected 0 to 4" "${run[@]}" --out "$dir/bad"
  refuses_command 1 "TG_LOG is '$bad', expected 0 to 4" "${say[@]}"
  refuses_command 2 "TG_LOG is '$bad', expected 0 to 4" "$gradcheck" --op exp
done
[ -e "$dir/bad" ] && fail "a refused run leaves its folder"
[ $failed = 0 ] && echo "log: all checks passed"
exit $failed
