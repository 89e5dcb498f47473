#!/usr/bin/env bash
# Tests tools/bench/torch_run.py, which repeats a run of train in PyTorch. Also tests that
# tools/bench/loss_curves.py detects differences. Usage: loss_curves.sh PATH/TO/train. Skipped (77) without
# python3. Without PyTorch, only the comparison is tested.
. "$(dirname "$0")/tool.sh"
train=$1 python=${PYTHON:-python3} bench=$(dirname "$0")/../../tools/bench
export PYTHONDONTWRITEBYTECODE=1
"$python" -c '' 2>/dev/null || { echo "skipped: no $python"; exit 77; }

for i in $(seq 200); do echo "Line $i of a small text, für den Test: $((i * i % 977)) and $((i * 31 % 101))."; done >"$dir/text"
# run FOLDER SEED OPTIONS...
run() {
  "$train" --text "$dir/text" --layers 2 --heads 2 --width 32 --context 16 --batch 4 --accumulate 2 --warmup 5 --eval-every 10 \
    --sample 0 --out "$dir/$1" --seed "$2" "${@:3}" >/dev/null || fail "train $*"
}
# compares STATUS WORD RUNS OTHERS: compares two runs with two others
compares() {
  local got
  rm -f "$dir/csv"
  "$python" "$bench/loss_curves.py" --runs "$dir/$3"[12] --others "$dir/$4"[12] --window 10 --csv "$dir/csv" >"$dir/out" 2>&1
  got=$?
  [ $got = "$1" ] || fail "status $got of $3 with $4, expected $1: $(cat "$dir/out")"
  grep -q -- "$2" "$dir/out" || fail "no '$2' in $(cat "$dir/out")"
}

for seed in 1 2; do run ours$seed $seed --steps 30; done
mkdir "$dir"/{swapped,near,late}{1,2}
cp "$dir/ours1/metrics.jsonl" "$dir/swapped2" && cp "$dir/ours2/metrics.jsonl" "$dir/swapped1"
compares 0 'the same within' ours ours
grep -q '1–10 .* 11–20 .* 21–30 .* validation .* 3 of 3 windows' <(tr '\n' ' ' <"$dir/out") || fail "windows: $(cat "$dir/out")"
[ "$(wc -l <"$dir/csv")" = 31 ] || fail "csv: $(head -2 "$dir/csv")"
compares 1 'start .* beyond' ours swapped
for seed in 1 2; do
  sed 's/"val_loss":\([1-9]\)\./"val_loss":9./' "$dir/ours$seed/metrics.jsonl" >"$dir/near$seed/metrics.jsonl"
  sed '/"step":2[1-9]/s/"train_loss":[0-9]*\./"train_loss":7./' "$dir/ours$seed/metrics.jsonl" >"$dir/late$seed/metrics.jsonl"
done
compares 1 'validation .* beyond' ours near
compares 1 '21–30 .* beyond' ours late
sed -i '$d' "$dir/late2/metrics.jsonl"
compares 2 'late2 has 29 steps' ours late
"$python" - "$bench" <<'EOT' || fail "batches"
import sys
sys.path.insert(0, sys.argv[1])
from run_files import philox, validation_starts
# Tests the published test vectors of Random123, and evenly spaced rows.
assert philox((0, 0, 0, 0), 0) == (0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8)
assert philox((2**32 - 1,) * 4, 2**64 - 1) == (0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd)
assert validation_starts(2, 4, 17, 9) == [[0, 4], [8, 12]] and validation_starts(2, 4, 17, 1) == [[0, 12]]
EOT

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "without PyTorch: only the comparison was tested"
  exit $failed
fi
# torch FOLDER RUN START OPTIONS...
torch() {
  "$python" "$bench/torch_run.py" "$dir/$2" "$dir/$3" "$dir/$1" --threads 1 "${@:4}" >/dev/null || fail "torch_run $*"
}
for seed in 1 2; do
  run start$seed $seed --lr 0 --steps 1
  torch torch$seed ours$seed start$seed
  torch decays$seed ours$seed start$seed --change weight-decay=0
done
compares 0 'the same within' ours torch
compares 1 'start .* beyond' ours decays
refuses_command 1 '--seed' "$python" "$bench/torch_run.py" "$dir/ours1" "$dir/start2" "$dir/none"
refuses_command 1 '--lr 0' "$python" "$bench/torch_run.py" "$dir/ours1" "$dir/ours1" "$dir/none"
exit $failed
