#!/usr/bin/env bash
# Tests every tool with closed or full streams, a reader that exits, signals, and an invalid environment:
# streams.sh FOLDER_OF_TOOLS
. "$(dirname "$0")/tool.sh"
tools=$1
train=$tools/train generate=$tools/generate inspect=$tools/inspect

text=$dir/text.txt
for i in $(seq 40); do echo "Line $i of a small text, für den Test: $((i * i)) and $((i * 7 % 11))."; done >"$text"
tiny=(--text "$text" --layers 1 --heads 2 --width 16 --context 16 --batch 2 --threads 1 --sample 0 --warmup 0)
"$train" "${tiny[@]}" --steps 20 --out "$dir/run" >/dev/null || fail "training"
rows() { wc -l <"$1/metrics.jsonl"; }

# If standard streams are closed, a file that is opened must not get their numbers. Otherwise, output would be
# written into this file.
for closed in '<&-' '>&-' '2>&-' '<&- >&-' '<&- >&- 2>&-'; do
  rm -rf "$dir/closed"
  eval '"$train" "${tiny[@]}" --steps 40 --save-every 1 --out "$dir/closed" '"$closed" >"$dir/ignored" 2>&1 ||
    eval '"$train" "${tiny[@]}" --steps 40 --save-every 1 --out "$dir/closed" --overwrite '"$closed"
  [ "$(grep -c '^{"step":[0-9]*,.*}$' "$dir/closed/metrics.jsonl")" = 40 ] && [ "$(rows "$dir/closed")" = 40 ] ||
    fail "with $closed the rows are: $(head -n 3 "$dir/closed/metrics.jsonl")"
  "$train" --resume --steps 41 --out "$dir/closed" >/dev/null 2>"$dir/err" || fail "not resumed after $closed: $(cat "$dir/err")"
done

# If a tool cannot write its output, it must report an error. But train must still save its weights.
if [ -e /dev/full ]; then
  full() {  # CODE COMMAND...
    local code=$1 got
    shift
    "$@" >/dev/full 2>"$dir/err" </dev/null
    got=$?
    [ $got = "$code" ] || fail "exit code $got, expected $code, with a full output: $*"
    [ "$(wc -l <"$dir/err")" = 1 ] && grep -q 'write' "$dir/err" || fail "a full output is reported as: $(cat "$dir/err")"
  }
  for tool in train generate evaluate inspect tokens export bench; do full 1 "$tools/$tool" --help; done
  full 2 "$tools/gradcheck" --help
  full 2 "$tools/gradcheck" --op exp --quick --dtypes f64 --views contiguous
  full 2 "$tools/gradcheck" --reference
  full 1 "$inspect" --layers 1 --list-steps
  full 1 "$tools/tokens" --text "$text" --vocabulary 260 --out "$dir/tokens" --overwrite
  full 1 "$train" "${tiny[@]}" --steps 20 --out "$dir/full"
  cmp -s "$dir"/{run,full}/last/model.safetensors || fail "a full output changes the trained weights"
fi

# If the reader of the output exits, training must continue, save and report this.
(set +o pipefail; "$train" "${tiny[@]}" --steps 20 --out "$dir/left" 2>"$dir/err"; echo $? >"$dir/code") | head -n 1 >/dev/null
[ "$(rows "$dir/left")" = 20 ] || fail "a reader that exits ends training: $(rows "$dir/left") rows"
cmp -s "$dir"/{run,left}/last/model.safetensors || fail "a reader that exits changes the trained weights"

# A closed terminal must have the same effect as Ctrl-C: the run stops and saves the step. With nohup, the
# signal is ignored.
stops() {  # SIGNAL
  env --default-signal=HUP "$train" "${tiny[@]}" --steps 1000000 --save-every 1000000 --eval-every 1000000 --out "$dir/$1" >"$dir/out" 2>"$dir/err" </dev/null &
  for _ in $(seq 1000); do [ "$(rows "$dir/$1" 2>/dev/null || echo 0)" -ge 5 ] && break; sleep 0.01; done
  kill -"$1" $!
  wait $!
  [ $? = 130 ] || fail "$1 does not end with code 130: $(cat "$dir/err")"
  [ "$(readlink "$dir/$1/last")" = "$(printf step-%08d "$(rows "$dir/$1")")" ] || fail "$1 does not save its step"
  grep -q '^stopped .*, not validated yet (step ' "$dir/out" && ! grep -q best/ "$dir/out" || fail "$1 prints $(tail -n 2 "$dir/out")"
}
for signal in HUP TERM INT; do stops $signal; done
(trap '' HUP; exec "$train" "${tiny[@]}" --steps 3000 --out "$dir/nohup" >/dev/null 2>&1 </dev/null) &
for _ in $(seq 1000); do [ "$(rows "$dir/nohup" 2>/dev/null || echo 0)" -ge 5 ] && break; sleep 0.01; done
kill -HUP $!
wait $! || fail "a run that ignores SIGHUP is stopped by it"

# Every tool must validate the environment variables, even those that it does not use.
for bad in abc '' 0 -1 1e3 4097 100000 ' 2'; do
  export TG_THREADS=$bad
  for tool in train generate evaluate inspect tokens export bench; do
    refuses_command 1 "TG_THREADS is '$bad': expected a number from 1 to 4096" "$tools/$tool" --help
  done
  refuses_command 2 "TG_THREADS is '$bad'" "$tools/gradcheck" --help
done
export TG_THREADS=4096
"$generate" --model "$dir/run" --threads 1 >/dev/null 2>"$dir/err" || fail "TG_THREADS=4096: $(cat "$dir/err")"
unset TG_THREADS
for tool in 'train --text x' 'generate --model x' inspect 'bench gemm'; do
  refuses_command 2 'to 4096' "$tools/"$tool --threads 4097
done

# generate does not read standard input. If there is input, it must report this.
echo ROMEO: | "$generate" --model "$dir/run" --max-tokens 2 >/dev/null 2>"$dir/err" || fail "generate with a pipe"
grep -q 'standard input is ignored: use --prompt' "$dir/err" || fail "standard input is ignored without a message"
echo ROMEO: | "$generate" --model "$dir/run" --max-tokens 2 --prompt Line 2>"$dir/err" >/dev/null
grep -q 'standard input' "$dir/err" && fail "a prompt and standard input: $(cat "$dir/err")"

[ $failed = 0 ] && echo "streams: all checks passed"
exit $failed
