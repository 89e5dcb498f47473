#!/usr/bin/env bash
# Tests randomly damaged checkpoints.
#   damage.sh FOLDER_OF_TOOLS [COUNT [SEED]]
#
# COUNT is the number of runs (default 40). Each run is damaged once. Both train --resume and generate must
# reject it within a minute, with at most 2 GB. The error must be one line that names the run, and no byte may
# change. If they accept the run, the result must be unaffected. If the checksums of the damaged file were
# corrected, the result may differ, because such weights look valid. The error may also name an undamaged file
# that contradicts the damaged file. If TMPDIR is not set, runs are in memory, because saving needs 1 ms there
# instead of 100 ms.
[ -n "${TMPDIR:-}" ] || { [ -w /dev/shm ] && export TMPDIR=/dev/shm; }
. "$(dirname "$0")/tool.sh"
tools=$1 count=${2:-40} seed=${3:-1}
train=$tools/train generate=$tools/generate

text=$dir/text.txt
for i in $(seq 40); do echo "Line $i of a small text, für den Test: $((i * i)) and $((i * 7 % 11))."; done >"$text"
run=(--text "$text" --layers 1 --heads 2 --width 16 --context 16 --batch 2 --threads 1 --sample 0 --warmup 0 --min-lr 1e-3)
"$train" "${run[@]}" --steps 10 --eval-every 5 --out "$dir/good" >/dev/null || fail "training"
"$train" "${run[@]}" --steps 10 --eval-every 5 --seed 2 --out "$dir/other" >/dev/null || fail "training another"
resume=("$train" --resume --steps 11 --threads 1)
say=("$generate" --prompt Line --max-tokens 5 --temperature 0 --threads 1)
cp -a "$dir/good" "$dir/expected"
"${resume[@]}" --out "$dir/expected" >/dev/null || fail "resuming"
"${say[@]}" --model "$dir/good" >"$dir/expected.txt" 2>/dev/null || fail "generating"
files=(model.safetensors optimizer.safetensors run.safetensors manifest.json)

RANDOM=$seed
below() { echo $(((RANDOM << 15 | RANDOM) % $1)); }
put_bytes() { dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }  # FILE OFFSET: writes standard input there

# Damages $dir/run once and describes the damage in $what.
harm() {
  local file=${files[$(below 4)]} at=$dir/run/last size
  local path=$at/$file
  size=$(stat -c %s "$path")
  local offset=$(below "$size") kind=$(below 16)
  resealed=0
  case $kind in
    0 | 1) what="byte $offset of $file"; printf "\\x$(printf %02x "$(below 256)")" | put_bytes "$path" "$offset" ;;
    2) what="bytes from $offset of $file are ones"; head -c $((1 + $(below 64))) /dev/zero | tr '\0' '\377' | put_bytes "$path" "$offset" ;;
    3) what="bytes from $offset of $file are zero"; head -c $((1 + $(below 64))) /dev/zero | put_bytes "$path" "$offset" ;;
    4) what="$file is cut at $offset"; truncate -s "$offset" "$path" ;;
    5) what="$file is longer"; head -c $((1 + $(below 100))) /dev/urandom >>"$path" ;;
    6) what="$file is missing"; rm "$path" ;;
    7) what="$file is a directory"; rm "$path" && mkdir "$path" ;;
    8) what="$file is a pipe"; rm "$path" && mkfifo "$path" ;;
    9) what="$file is /dev/zero"; ln -sf /dev/zero "$path" ;;
    10) what="$file is as long as a disk"; truncate -s 1T "$path" 2>/dev/null || truncate -s 1G "$path" ;;
    11) what="$file is from a different run"; cp "$dir/other/last/$file" "$path" ;;
    12) local second=${files[$(below 4)]}; what="$file and $second are exchanged"
      mv "$path" "$dir/swapped" && cp "$at/$second" "$path" 2>/dev/null; mv "$dir/swapped" "$at/$second" ;;
    13) case $(below 4) in
        0) what="last is missing"; rm "$at" ;;
        1) what="last leads nowhere"; ln -sfn step-99999999 "$at" ;;
        2) what="last leads to itself"; ln -sfn last "$at" ;;
        3) what="best leads nowhere"; ln -sfn step-99999999 "$dir/run/best" ;;
      esac ;;
    14) what="a byte of metrics.jsonl"
      size=$(stat -c %s "$dir/run/metrics.jsonl")
      printf "\\x$(printf %02x "$(below 256)")" | put_bytes "$dir/run/metrics.jsonl" "$(below "$size")" ;;
    15) file=${files[$(below 3)]}; path=$at/$file; offset=$(below 600); what="byte $offset of the header of $file, resealed"
      resealed=1
      printf "\\x$(printf %02x $((32 + $(below 95))))" | put_bytes "$path" "$offset"
      sums=$("${resume[@]}" --out "$dir/run" 2>&1 </dev/null | sed -n 's/.* has XXH3-128 \([0-9a-f]*\), expected \([0-9a-f]*\) .*/s\/\2\/\1\//p')
      [ -z "$sums" ] || sed -i "$sums" "$at/manifest.json" ;;
  esac
}
content() { (cd "$dir/run" && find step-* -type f -size -100M -exec cksum {} + | sort); }
# Checks that the error is one line that names the run, and that nothing crashed.
told() {  # CODE COMMAND
  [ "$1" = 1 ] || fail "damage $i, $what: $2 ends with code $1: $(head -c 300 "$dir/err")"
  [ "$(wc -l <"$dir/err")" = 1 ] && { [ $resealed = 1 ] || grep -qa "$dir/run" "$dir/err"; } || fail "damage $i, $what: $2 says: $(head -c 300 "$dir/err")"
}

refused=0 harmless=0
for i in $(seq "$count"); do
  rm -rf "$dir/run"
  cp -a "$dir/good" "$dir/run"
  harm
  (ulimit -v 2000000; exec timeout 60 "${say[@]}" --model "$dir/run") >"$dir/out" 2>"$dir/err" </dev/null
  code=$?
  if [ $code != 0 ]; then
    told $code generate
  elif [ $resealed = 0 ]; then
    cmp -s "$dir/out" "$dir/expected.txt" || fail "damage $i, $what: generate writes a different text"
  fi
  content >"$dir/before"
  (ulimit -v 2000000; exec timeout 60 "${resume[@]}" --out "$dir/run") >"$dir/out" 2>"$dir/err" </dev/null
  code=$?
  if [ $code != 0 ]; then
    told $code train
    content | cmp -s - "$dir/before" || fail "damage $i, $what: train changes a run that it rejects"
    refused=$((refused + 1))
  else
    harmless=$((harmless + 1))
    for file in model optimizer; do
      [ $resealed = 1 ] || cmp -s "$dir"/{run,expected}/last/$file.safetensors || fail "damage $i, $what: the resumed run differs"
    done
  fi
done
echo "$count damages, seed $seed: $refused refused, $harmless without effect"
[ $failed = 0 ] && echo "damage: all checks passed"
exit $failed
