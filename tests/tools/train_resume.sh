#!/usr/bin/env bash
# Tests that training resumes bitwise exactly after it is stopped or killed, or runs out of disk space.
#   train_resume.sh PATH/TO/train [KILLS]
# KILLS: number of kills at random moments (default 10).
set -u
train=$1 kills=${2:-10}
# If TMPDIR is not set, runs are in memory, because saving needs 1 ms there instead of 100 ms.
[ -n "${TMPDIR:-}" ] || { [ -w /dev/shm ] && export TMPDIR=/dev/shm; }
dir=$(mktemp -d) || exit 1
mounted=0
trap '[ $mounted = 0 ] || umount "$dir/disk"; rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

text=$dir/text.txt
for i in $(seq 40); do echo "Line $i of a small text, für den Test: $((i * i)) and $((i * 7 % 11))."; done >"$text"
# The learning rate is constant, so the first steps do not depend on the total number of steps.
run=(--text "$text" --layers 1 --heads 2 --width 16 --context 16 --batch 2 --dropout 0.1 --threads 1 --sample 0
     --warmup 0 --min-lr 1e-3 --eval-every 10)
quiet() { "$train" "$@" >"$dir/out" 2>"$dir/err" </dev/null; }

# same RUN REFERENCE: compares all files of the last checkpoint byte by byte. Also compares the weights of the
# best checkpoint, and the rows except for their times.
rows() { sed 's/,"tokens_per_s":[^}]*//' "$1/metrics.jsonl"; }
same() {
  diff -r "$1/last" "$2/last" >"$dir/diff" || fail "$1 has a different checkpoint: $(cat "$dir/diff")"
  for file in model optimizer; do
    cmp "$1/best/$file.safetensors" "$2/best/$file.safetensors" || fail "$1 has a different best checkpoint"
  done
  diff <(rows "$1") <(rows "$2") >"$dir/diff" || fail "$1 has different rows: $(head -4 "$dir/diff")"
  [ "$(find "$1" -maxdepth 1 -name 'step-*' | wc -l)" -le 2 ] || fail "$1 keeps old checkpoints: $(ls "$1")"
  [ -z "$(find "$1" -maxdepth 1 -name '.*tmp*')" ] || fail "$1 keeps temporaries: $(ls -A "$1")"
}
one_line() {  # one_line WORD: checks that the last run failed with one line that contains WORD
  [ "$(wc -l <"$dir/err")" = 1 ] && grep -q -- "$1" "$dir/err" || fail "not one line with '$1': $(cat "$dir/err")"
}
step_of() { readlink "$1/last" 2>/dev/null | tr -dc 0-9 | sed 's/^0*//'; }

quiet "${run[@]}" --steps 20 --out "$dir/whole" || fail "$(cat "$dir/err")"

# 10 + 10 steps must equal 20 steps.
quiet "${run[@]}" --steps 10 --out "$dir/halves" || fail "$(cat "$dir/err")"
quiet --resume --steps 20 --out "$dir/halves" || fail "$(cat "$dir/err")"
# In the first run, the tenth row was the last row. So its validation used all held-out data.
cut -d, -f1,2,4,5 "$dir/whole/metrics.jsonl" >"$dir/whole.rows"
cut -d, -f1,2,4,5 "$dir/halves/metrics.jsonl" | cmp -s - "$dir/whole.rows" || fail "10 + 10 steps give different rows from 20"
for file in model optimizer; do
  cmp "$dir/whole/last/$file.safetensors" "$dir/halves/last/$file.safetensors" || fail "10 + 10 steps are not 20"
done

# Tests this with every optimizer, and with steps of several batches.
for how in '--optimizer sgd --nesterov' '--optimizer adam' '--optimizer muon' '--accumulate 2' '--recompute'; do
  rm -rf "$dir"/how-{whole,halves}
  quiet "${run[@]}" $how --steps 20 --out "$dir/how-whole" || fail "$how: $(cat "$dir/err")"
  quiet "${run[@]}" $how --steps 10 --out "$dir/how-halves" || fail "$how: $(cat "$dir/err")"
  quiet --resume --steps 20 --out "$dir/how-halves" || fail "$how: $(cat "$dir/err")"
  for file in model optimizer; do
    cmp "$dir"/how-{whole,halves}/last/$file.safetensors || fail "10 + 10 steps are not 20 with $how"
  done
done

# Tests Ctrl-C at any step, twice, and resuming with a different number of threads.
quiet "${run[@]}" --steps 1500 --out "$dir/long" || fail "$(cat "$dir/err")"
"$train" "${run[@]}" --steps 1500 --out "$dir/stopped" >"$dir/out" 2>"$dir/err" </dev/null &
for wait_for in 7 500; do
  pid=$!
  for _ in $(seq 400); do
    [ "$(cat "$dir/stopped/metrics.jsonl" 2>/dev/null | wc -l)" -ge $wait_for ] && break
    sleep 0.01
  done
  kill -INT $pid 2>/dev/null
  wait $pid
  [ $? = 130 ] || fail "a stopped run does not end with code 130: $(cat "$dir/err")"
  [ "$(step_of "$dir/stopped")" = "$(wc -l <"$dir/stopped/metrics.jsonl")" ] || fail "Ctrl-C does not save its step"
  "$train" --resume --threads 2 --out "$dir/stopped" >"$dir/out" 2>"$dir/err" </dev/null &
done
wait $! || fail "$(cat "$dir/err")"
same "$dir/stopped" "$dir/long"

# Kills a run at random moments. The run saves at every step. Saved checkpoints must never be lost, and the
# final result must be the same as without kills.
killed=$dir/killed before=0 landed=0
start() {
  if [ -n "$(step_of "$killed")" ]; then
    "$train" --resume --threads 1 --out "$killed" >"$dir/out" 2>"$dir/err" </dev/null &
  else
    "$train" "${run[@]}" --steps 100000000 --save-every 1 --out "$killed" >"$dir/out" 2>"$dir/err" </dev/null &
  fi
}
for _ in $(seq "$kills"); do
  start
  sleep "0.$(printf %03d $((RANDOM % 250)))"
  if kill -9 $! 2>/dev/null; then landed=$((landed + 1)); else fail "it ended by itself: $(cat "$dir/err")"; fi
  wait $! 2>/dev/null
  now=$(step_of "$killed")
  [ "${now:-0}" -ge "$before" ] || fail "the last checkpoint went back from step $before to ${now:-0}"
  before=${now:-0}
done
steps=$((before + 5))
quiet --resume --steps $steps --out "$killed" || fail "not resumed after $landed kills: $(cat "$dir/err")"
quiet "${run[@]}" --steps $steps --save-every 1 --out "$dir/never_killed" || fail "$(cat "$dir/err")"
same "$killed" "$dir/never_killed"
echo "$landed kills, $steps steps"

# If the disk is full, the error must be one line, and the last checkpoint must be complete.
full() {  # full WORD RUN: the last call resumed RUN and must have failed
  local code=$? at
  [ $code = 1 ] || fail "a full disk ($1) ends with code $code"
  one_line "$1"
  at=$(step_of "$2")
  [ "${at:-0}" -ge 20 ] || fail "a full disk ($1) loses the checkpoint"
  rm -rf "$dir/moved"
  cp -r "$2" "$dir/moved"  # moves to a disk with free space
  quiet --resume --steps 1500 --save-every 1000 --out "$dir/moved" || fail "after a full disk ($1): $(cat "$dir/err")"
  cmp "$dir/moved/last/model.safetensors" "$dir/long/last/model.safetensors" || fail "a full disk ($1) changes the run"
  echo "full disk ($1): from step $at"
}
cp -r "$dir/whole" "$dir/limited"
(ulimit -f 40; quiet --resume --steps 1500 --save-every 1 --out "$dir/limited")  # its rows exceed 40 KiB
full 'File too large' "$dir/limited"
mkdir "$dir/disk"
if mount -t tmpfs -o size=224k tmpfs "$dir/disk" 2>/dev/null; then
  mounted=1
  cp -r "$dir/whole" "$dir/disk/run"
  rm "$dir/disk/run/loss.png"
  quiet --resume --steps 1500 --save-every 1 --out "$dir/disk/run"
  full 'No space left' "$dir/disk/run"
  # The disk has no space for a second checkpoint.
  head -c 100000 /dev/zero >"$dir/disk/other" 2>/dev/null
  at=$(step_of "$dir/disk/run")
  quiet --resume --steps 1500 --save-every 1 --out "$dir/disk/run"
  full 'No space left' "$dir/disk/run"
  [ "$(step_of "$dir/disk/run")" = "$at" ] || fail "a checkpoint despite a full disk"
else
  echo "a tmpfs cannot be mounted: only the file size limit was tested"
fi

# If a tool copies a run and follows links, the copy has folders instead of links. Resuming the copy must work
# and must replace these folders by links.
cp -rL "$dir/whole" "$dir/copied"
quiet --resume --steps 30 --out "$dir/copied" || fail "a copy is not resumed: $(cat "$dir/err")"
quiet --resume --steps 30 --out "$dir/whole" || fail "$(cat "$dir/err")"
same "$dir/copied" "$dir/whole"

# Resuming fails for a different configuration, a damaged file or a run in progress. The error must be one
# line, and no byte may change.
refuses() {  # refuses CODE WORD ARGUMENTS...
  local code=$1 word=$2
  shift 2
  rm -rf "$dir/kept"
  cp -a "$dir/whole" "$dir/kept"
  quiet "$@" --out "$dir/whole"
  [ $? = "$code" ] || fail "exit code is not $code: train $*"
  one_line "$word"
  diff -r "$dir/whole" "$dir/kept" >"$dir/diff" || fail "train $* changes $(cat "$dir/diff")"
}
refuses 1 '--width is 32.*with 16' --resume --width 32
refuses 1 '--batch is 3.*with 2' --resume --batch 3
refuses 1 '--lr is 0.01.*with 0.001' --resume --lr 0.01
refuses 1 '--seed is 2.*with 1' --resume --seed 2
refuses 1 '--dropout is 0.2.*with 0.1' --resume --dropout 0.2
refuses 1 'past --steps 20' --resume --steps 20
head -c 1500 "$text" >"$dir/other.txt"
refuses 1 'is not the data of this run' --resume --text "$dir/other.txt"
refuses 1 'missing.txt' --resume --text "$dir/missing.txt"
refuses 1 '--overwrite' "${run[@]}" --steps 20
refuses 2 '--overwrite' --resume --overwrite
cp "$text" "$dir/moved.txt"
quiet --resume --text "$dir/moved.txt" --out "$dir/whole" || fail "the text may not move: $(cat "$dir/err")"

flock "$dir/whole" true && {
  flock "$dir/whole" sleep 5 &
  sleep 0.3
  refuses 1 'another process' --resume
  kill $! 2>/dev/null
  wait $! 2>/dev/null
}
good=$dir/good
cp -a "$dir/whole" "$good"
damage() {  # damage FILE WORD COMMAND...: COMMAND changes FILE of the last checkpoint; the error of resuming
            # must name FILE
  local file=$1 word=$2
  shift 2
  rm -rf "$dir/whole"
  cp -a "$good" "$dir/whole"
  (cd "$dir/whole/last" && "$@") || fail "$*"
  refuses 1 "last/$file.*$word" --resume
}
flip() { printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
damage model.safetensors 'XXH3-128' flip model.safetensors 1000
damage optimizer.safetensors 'XXH3-128' flip optimizer.safetensors 2000
damage run.safetensors 'XXH3-128' flip run.safetensors 40
damage model.safetensors 'bytes, expected' truncate -s -1 model.safetensors
damage optimizer.safetensors 'missing' rm optimizer.safetensors
damage manifest.json 'byte' truncate -s -5 manifest.json
damage manifest.json 'version is 9' sed -i 's/"version": 1/"version": 9/' manifest.json
damage run.safetensors 'not in manifest' sed -i 's/run.safetensors/walk.safetensors/' manifest.json
damage manifest.json 'plain name' sed -i 's/run.safetensors/..\/run.safetensors/' manifest.json

[ $failed = 0 ] && echo "resume: all checks passed"
exit $failed
