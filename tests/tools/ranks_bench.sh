#!/usr/bin/env bash
# Tests `bench ranks` on several ranks: its rows, a picture from the files of several runs, and errors. Rows of ring
# attention and of steps must contain the rate relative to separate ranks.
#   ranks_bench.sh LAUNCH BENCH
set -euo pipefail
launch=$1 bench=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "ranks_bench: $*" >&2; exit 1; }
# has FILE PATTERN: checks that exactly one line matches the pattern.
has() { [ "$(grep -cE "$2" "$dir/$1")" = 1 ] || fail "$1 has not one line '$2': $(cat "$dir/$1")"; }
refuses() {  # refuses CODE MESSAGE OPTIONS…
  local code=0 wanted=$1 message=$2
  shift 2
  "$bench" ranks "$@" >"$dir/out" 2>"$dir/err" || code=$?
  [ $code = "$wanted" ] || fail "bench ranks $* ended with $code, not $wanted: $(cat "$dir/err")"
  [ "$(wc -l <"$dir/err")" = 1 ] && grep -q -- "$message" "$dir/err" || fail "bench ranks $*: $(cat "$dir/err"), expected $message"
}

cell=H=2,Hk=1,L=64,d=16
for n in 1 2; do
  "$launch" -n $n "$bench" ranks --quick --shape $cell,causal --shape $cell,window=5 --shape 64 --json "$dir/a$n.json" >"$dir/a$n"
  "$launch" -n $n "$bench" ranks --quick --layers 1 --heads 1 --width 16 --context 8 --batch 2 --vocabulary 13 --json "$dir/m$n.json" >"$dir/m$n"
  for pass in forward backward both; do
    has a$n "^ring_attention causal +1×2/1×64×16 +f32 +$pass .* TFLOP/s .* of separate ranks"
    has a$n "^ring_attention window 5 .* $pass .* of separate ranks"
    has a$n "^flash_attn causal .* $pass .* TFLOP/s *$"
  done
  has a$n "^reduce_scatter .* $n ranks "
  for way in "whole update" "divided update" "early sums" "divided sequences"; do has m$n "^step, $way .* $n ranks .* of separate ranks"; done
  grep -q "\"ranks\": $n," "$dir/a$n.json" || fail "a$n.json does not contain $n ranks"
done
# On one rank, rate × milliseconds must be the number of FLOPs. A forward pass has 2·B·H·pairs·(d + dv) FLOPs.
# A backward pass has 2.5 times this number.
grep 'attention causal\|attn causal' "$dir/a1.json" | sed 's/.*"pass": "\([a-z]*\)".*"ms": \([^,]*\), "rate": \([^,]*\),.*/\1 \2 \3/' |
  awk '{ want = 2 * 2 * 64 * 65 / 2 * 32 * ($1 == "forward" ? 1 : $1 == "backward" ? 2.5 : 3.5); have = $2 * $3 * 1e9
         if (have < 0.999 * want || have > 1.001 * want) { print $0 ": " have " FLOPs, not " want; bad = 1 } }
       END { exit bad || NR != 6 }' || fail "FLOPs in a1.json"
"$launch" -n 2 "$bench" ranks --quick --layers 1 --heads 1 --width 16 --context 6 --batch 2 --vocabulary 13 >"$dir/uneven"
has uneven "^skipped step with divided sequences: --context 6 is not a multiple of 4"

files="--rows $dir/a1.json --rows $dir/m2.json --rows $dir/a2.json --rows $dir/m1.json"
"$bench" ranks $files --plot "$dir/scaling.png"
[ "$(head -c 8 "$dir/scaling.png" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ] || fail "scaling.png is not a PNG"
refuses 2 "together" --plot "$dir/x.png"
refuses 2 "together" --rows "$dir/a1.json"
refuses 2 "--layers and --rows" $files --plot "$dir/x.png" --layers 2
refuses 2 "--json and --rows" $files --plot "$dir/x.png" --json "$dir/x.json"
refuses 1 "two files have a row 'step, whole update, f32 2x8' for 2 ranks" $files --rows "$dir/m2.json" --plot "$dir/x.png"
"$bench" gemm --quick --shape 8x8x8 --json "$dir/gemm.json" >/dev/null
refuses 1 "gemm.json has no rows of the mode ranks" --rows "$dir/gemm.json" --plot "$dir/x.png"
sed 's/"model": "[^"]*"/"model": "other"/' "$dir/a2.json" >"$dir/other.json"
refuses 1 "is from a different machine: other" --rows "$dir/a1.json" --rows "$dir/other.json" --plot "$dir/x.png"
echo '{"machine": {' >"$dir/broken.json"
refuses 1 "broken.json" --rows "$dir/broken.json" --plot "$dir/x.png"
refuses 2 "ring attention requires T = L" --quick --shape L=8,T=16,d=4
[ ! -e "$dir/x.png" ] || fail "a picture was drawn despite an error"
echo "ranks_bench: passed"
