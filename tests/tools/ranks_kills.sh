#!/usr/bin/env bash
# Kills ranks at random moments, repeatedly. All ranks must end soon, and no process may remain. The result of
# the resumed run must be bitwise identical to that of an undisturbed run.
#   ranks_kills.sh LAUNCH TRAIN [KILLS [SEED]]
# KILLS is the number of kills (default 6). Most kills hit one rank. Some hit two ranks at the same time, or
# launch itself. A run is killed up to five times. Each time, it is resumed on 1, 2 or 4 ranks.
set -euo pipefail
launch=$1 train=$2 kills=${3:-6} RANDOM=${4:-1}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "ranks_kills: $*" >&2; exit 1; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
for i in $(seq 400); do echo "line $i of a text with numbers $((i * i % 97)) and $((i * 7 % 31))"; done >"$dir/text"
options="--text $dir/text --layers 1 --heads 2 --width 32 --context 16 --batch 2 --accumulate 4 --steps 600 --eval-every 40
  --save-every 10 --eval-batches 3 --threads 1 --dropout 0.1 --dtype bf16 --sample 0"

# A run may be killed after it writes the first checkpoint and before it creates the link `last`. Then only
# --resume can continue it.
holds_a_run() { compgen -G "$1/step-*" >/dev/null; }
start() {  # start OUT: starts launch as $pid; its output is in $dir/output
  local n=$((1 << (RANDOM % 3)))
  if holds_a_run "$1"; then
    "$launch" -n $n "$train" --resume --out "$1" --threads 1 >"$dir/output" 2>&1 &
  else
    "$launch" -n $n "$train" $options --out "$1" >"$dir/output" 2>&1 &
  fi
  pid=$!
}
are_gone() {  # are_gone PROCESS…
  local p
  for p; do [ ! -e "/proc/$p" ] || grep -qs '^State:[[:space:]]*Z' "/proc/$p/status" || return 1; done
}

"$launch" -n 2 "$train" $options --out "$dir/calm" >/dev/null
begin=$(milliseconds)
"$launch" -n 2 "$train" $options --out "$dir/calm" --overwrite >/dev/null
whole=$(($(milliseconds) - begin))

killed=0 runs=0 longest=0 hangs=0 early=0
while [ $killed -lt "$kills" ]; do
  out=$dir/run$((++runs))
  for _ in 1 2 3 4 5; do
    start "$out"
    sleep "$(printf '%d.%03d' $((whole * (RANDOM % 100) / 100000)) $((whole * (RANDOM % 100) / 100 % 1000)))"
    ranks=($(pgrep -P $pid || true))
    if [ ${#ranks[@]} -eq 0 ]; then  # all ranks have ended, or none has started
      wait $pid || fail "an undisturbed run ended with $?: $(cat "$dir/output")"
      break
    fi
    victims=("${ranks[RANDOM % ${#ranks[@]}]}")
    case $((RANDOM % 10)) in
      0) victims+=("${ranks[RANDOM % ${#ranks[@]}]}") ;;
      1) victims=($pid) ;;
    esac
    begin=$(milliseconds)
    kill -9 "${victims[@]}" 2>/dev/null || true
    code=0
    wait $pid 2>/dev/null || code=$?
    until are_gone "${ranks[@]}" || [ $(($(milliseconds) - begin)) -gt 20000 ]; do sleep 0.01; done
    took=$(($(milliseconds) - begin))
    [ $took -le $longest ] || longest=$took
    [ $took -le 20000 ] || { hangs=$((hangs + 1)); fail "$took ms after a kill a rank still runs: $(cat "$dir/output")"; }
    case $code in
      0) early=$((early + 1)); break ;;  # the run had ended before the kill
      75 | 137) killed=$((killed + 1)) ;;
      *) fail "launch ended with $code: $(cat "$dir/output")" ;;
    esac
  done
  until [ -e "$out/last" ] && cmp -s "$out/last/model.safetensors" "$dir/calm/last/model.safetensors"; do
    start "$out"
    wait $pid || fail "an undisturbed run ended with $?: $(cat "$dir/output")"
    [ -z "${again-}" ] || fail "run $runs has different weights from an undisturbed run"
    again=1
  done
  unset again
  for file in last/model.safetensors last/optimizer.safetensors best/model.safetensors; do
    cmp "$out/$file" "$dir/calm/$file" || fail "$file of run $runs differs from an undisturbed run's"
  done
  cmp <(sed 's/,"tokens_per_s.*//' "$out/metrics.jsonl") <(sed 's/,"tokens_per_s.*//' "$dir/calm/metrics.jsonl") ||
    fail "metrics.jsonl of run $runs differs from an undisturbed run's"
  rm -rf "$out"
done
echo "ranks_kills: $killed kills in $runs runs of $whole ms, all ended within $longest ms, hangs $hangs, all runs equal"
