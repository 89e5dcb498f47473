#!/usr/bin/env bash
# Tests training on several ranks, with the commands of users. Files must be bitwise identical on 1, 2 and 4
# ranks. Killed and stopped runs are resumed on a different number of ranks. Invalid combinations must be
# rejected.
#   ranks_tool.sh LAUNCH TRAIN
set -euo pipefail
launch=$1 train=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "ranks_tool: $*" >&2; exit 1; }
for i in $(seq 400); do echo "line $i of a text with numbers $((i * i % 97)) and $((i * 7 % 31))"; done >"$dir/text"

options="--text $dir/text --layers 1 --heads 2 --width 64 --context 16 --batch 2 --accumulate 4 --steps 300 --eval-every 20 --eval-batches 5
  --threads 1 --dropout 0.1 --dtype bf16 --sample 0"
run() {  # run N DIR OPTIONS…
  local n=$1 out=$2
  shift 2
  "$launch" -n "$n" "$train" $options --out "$dir/$out" "$@"
}
same() {  # same DIR DIR: checks that the files of two runs are equal, except for times in the metrics
  for file in last/model.safetensors last/optimizer.safetensors best/model.safetensors; do
    cmp "$dir/$1/$file" "$dir/$2/$file" || fail "$file differs between $1 and $2"
  done
  cmp <(sed 's/,"tokens_per_s.*//' "$dir/$1/metrics.jsonl") <(sed 's/,"tokens_per_s.*//' "$dir/$2/metrics.jsonl") ||
    fail "metrics.jsonl differs between $1 and $2"
}

"$train" $options --out "$dir/alone" >/dev/null
for n in 1 2 4; do
  run $n on$n >"$dir/on$n.txt" || fail "$n ranks ended with $?"
  same alone on$n
done
grep -q '^ranks  *4 on this host, each 1 of 4 batches' "$dir/on4.txt" || fail "the table does not contain 4 ranks"

# Without --accumulate, each rank must get one batch per step.
"$launch" -n 2 "$train" --text "$dir/text" --layers 1 --heads 1 --width 16 --context 8 --batch 2 --steps 2 --sample 0 --out "$dir/two" >"$dir/two.txt"
grep -q '2 steps of 2 × 2 × 8 tokens' "$dir/two.txt" || fail "--accumulate is not the number of ranks"

# If a rank is killed, all ranks end and one line names the killed rank. The run then continues from its
# checkpoint on a different number of ranks.
"$launch" -n 4 "$train" $options --out "$dir/killed" >/dev/null 2>"$dir/killed.txt" &
pid=$!
while [ ! -e "$dir/killed/last" ]; do sleep 0.01; done
for process in $(pgrep -P $pid); do
  grep -qz '^RANK=2$' /proc/$process/environ 2>/dev/null && kill -9 $process
done
code=0
wait $pid || code=$?
[ $code = 75 ] || [ $code = 137 ] || fail "after a killed rank launch ended with $code: $(cat "$dir/killed.txt")"
grep -q 'rank 2' "$dir/killed.txt" || fail "no line names rank 2: $(cat "$dir/killed.txt")"
[ -z "$(pgrep -P $pid || true)" ] || fail "processes remain"
"$launch" -n 2 "$train" --resume --out "$dir/killed" --threads 1 >/dev/null
same alone killed

# If one rank receives a request to stop, all ranks stop and report it.
"$launch" -n 2 "$train" $options --out "$dir/asked" >"$dir/asked.txt" 2>&1 &
pid=$!
while [ ! -e "$dir/asked/last" ]; do sleep 0.01; done
for process in $(pgrep -P $pid); do
  grep -qz '^RANK=1$' /proc/$process/environ 2>/dev/null && kill -TERM $process
done
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "after one rank was asked to stop launch ended with $code: $(cat "$dir/asked.txt")"
grep -q '^stopped ' "$dir/asked.txt" || fail "rank 0 does not report that it stopped: $(cat "$dir/asked.txt")"
"$train" --resume --out "$dir/asked" --threads 1 >/dev/null
same alone asked

# A run is stopped and then resumed by one process.
"$launch" -n 2 "$train" $options --out "$dir/stopped" >"$dir/stopped.txt" 2>&1 &
pid=$!
while [ ! -e "$dir/stopped/last" ]; do sleep 0.01; done
kill -INT $pid
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "after an interrupt launch ended with $code: $(cat "$dir/stopped.txt")"
"$train" --resume --out "$dir/stopped" --threads 1 >/dev/null
same alone stopped

refused() {  # refused CODE WORDS COMMAND…: COMMAND must end with this code and print a line with WORDS
  local wanted=$1 words=$2 code=0
  shift 2
  "$@" >/dev/null 2>"$dir/refused" || code=$?
  [ $code = "$wanted" ] || fail "'$*' ended with $code, not $wanted: $(cat "$dir/refused")"
  grep -q -- "$words" "$dir/refused" || fail "'$*' does not print '$words': $(cat "$dir/refused")"
}
refused 1 'accumulate is 4, expected a multiple of the 3 ranks' "$launch" -n 3 "$train" $options --out "$dir/three"
refused 1 'holds a run' "$launch" -n 2 "$train" $options --out "$dir/on2"
refused 2 'RANK' env RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "$train" $options --out "$dir/none"
# Tests ranks with different options. Most of these options do not change the program. The path of the
# training data may differ.
small="--layers 1 --heads 1 --width 16 --context 8 --batch 2 --steps 4 --sample 0"
unlike() { "$launch" -n 2 sh -c 'eval "exec \"$0\" $1"' "$train" "$small --out $dir/unlike --overwrite $*"; }
for option in '--seed $RANK' '--lr 0.0$((1 + RANK))' '--save-every $((1 + RANK))' '--zero $RANK'; do
  refused 1 "\[ranks\] rank 1 has a different ${option%% *} from rank 0: expected the same on all ranks" unlike --text "$dir/text" "$option"
done
cp "$dir/text" "$dir/text.0" && sed 's/line/lien/' "$dir/text" >"$dir/text.1"
refused 1 '\[ranks\] rank 1 has different data from rank 0' unlike --text "$dir/text."'$RANK'
cp "$dir/text" "$dir/text.1"
unlike --text "$dir/text."'$RANK' '--threads $((1 + RANK))' >/dev/null || fail "texts with the same content are rejected"
# Rank 0 must report the ranks for which it is waiting.
RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3 "$train" $options --out "$dir/none" >/dev/null 2>"$dir/waits" &
pid=$!
for _ in $(seq 300); do [ -s "$dir/waits" ] && break || sleep 0.1; done
kill $pid
wait $pid 2>/dev/null || true
grep -q '^train: \[ranks\] waiting for ranks 1 and 2 (1 of 3 joined)$' "$dir/waits" || fail "rank 0 does not say for whom it waits: $(cat "$dir/waits")"
"$launch" -n 4 "$train" $options --profile 2 --out "$dir/profile" >"$dir/profile.txt" || fail "--profile ended with $?"
grep -qE '^communication between ranks: [0-9.]+ .* if run one by one, [0-9.]+ .* exposed$' "$dir/profile.txt" || fail "no exchanges in the profile"
refused 2 'for one rank' "$launch" -n 2 "$train" $options --trap-nan --out "$dir/none"

# If sequences are split across ranks, the losses must equal the losses of one rank, up to rounding.
long="--text $dir/text --layers 2 --heads 2 --width 32 --context 32 --batch 2 --accumulate 3 --steps 40 --eval-every 20 --eval-batches 3
  --threads 1 --sample 0"
losses() { grep -oE '_loss":[0-9][0-9.e+-]*' "$dir/$1/metrics.jsonl" | cut -d: -f2; }
"$train" $long --out "$dir/long1" >/dev/null
for n in 2 4; do
  "$launch" -n $n "$train" $long --context-parallel $n --out "$dir/long$n" >"$dir/long$n.txt" || fail "--context-parallel $n ended with $?"
  grep -q "^ranks  *$n on this host, each $((32 / n)) of 32 tokens of each row" "$dir/long$n.txt" || fail "the table does not show how tokens are split"
  [ "$(losses long$n | wc -l)" = "$(losses long1 | wc -l)" ] || fail "--context-parallel $n has a different number of rows"
  paste <(losses long1) <(losses long$n) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d < 1e-3 * $1)) bad = 1 } END { exit bad || NR < 40 }' ||
    fail "losses of --context-parallel $n differ from one rank's"
done
"$launch" -n 2 "$train" --resume --steps 50 --context-parallel 2 --out "$dir/long4" >/dev/null || fail "a run of --context-parallel 4 does not resume with 2"
"$train" --resume --steps 60 --out "$dir/long4" >/dev/null || fail "nor with one rank"
refused 2 'needs the same number of ranks, got 1' "$train" $long --context-parallel 2 --out "$dir/none"
refused 2 'a --context that is a multiple of 6' "$launch" -n 3 "$train" $long --context-parallel 3 --out "$dir/none"
refused 2 'does not support --dropout' "$launch" -n 2 "$train" $long --context-parallel 2 --dropout 0.1 --out "$dir/none"
refused 2 'no rank has a whole answer' "$launch" -n 2 "$train" --task add --context 24 --context-parallel 2 --out "$dir/none"
echo "ranks_tool: passed"
