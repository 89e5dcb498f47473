#!/usr/bin/env bash
# What tools/inspect shows: inspect_tool.sh PATH/TO/inspect PATH/TO/train
. "$(dirname "$0")/tool.sh"
inspect=$1 train=$2

# No attention layer copies anything, in any program; the lists show the steps that were counted.
for model in gpt llama 'llama --key-heads 1' deepseek 'deepseek --query-latent 16'; do
  for program in train evaluate token; do
    "$inspect" --model $model --program $program --steps attn --list >"$dir/out" 2>"$dir/err" ||
      fail "$model, $program: $(cat "$dir/err")"
    grep -q '^copies  *0, of 0 bytes$' "$dir/out" || fail "$model, $program: $(grep ^copies "$dir/out")"
    steps=$(sed -n 's/^steps *\([0-9]*\):.*/\1/p' "$dir/out")
    [ "$steps" = "$(grep -c ' → ' "$dir/out")" ] || fail "$model, $program: not $steps steps are listed"
    [ "$(grep -c '/flash_attn: ' "$dir/out")" = 4 ] || fail "$model, $program: not one flash_attn a layer"
  done
done

# What a checkpoint holds is what train was told to make.
for i in $(seq 40); do echo "Line $i of a small text: $((i * i)) and $((i * 7 % 11))."; done >"$dir/text"
"$train" --text "$dir/text" --model deepseek --layers 1 --heads 2 --width 16 --latent 6 --context 16 --batch 2 --steps 1 \
  --sample 0 --out "$dir/run" >/dev/null || fail "training"
"$inspect" --checkpoint "$dir/run" | grep -q '^model  *DeepSeek: 1 layer, 2 heads, latent 6 + 8, width 16, context 16$' ||
  fail "another model than the checkpoint's"
"$inspect" --dtype f16 --batch 3 >/dev/null || fail "f16"

refuses() {  # CODE WORD ARGUMENTS...
  local code=$1 word=$2
  shift 2
  refuses_command "$code" "$word" "$inspect" "$@"
}
refuses 2 --latent --latent 8
refuses 2 --program --program sleep
refuses 2 --heads --width 130 --heads 4
refuses 2 --backend --backend gpu
refuses 1 nowhere --checkpoint "$dir/nowhere"
[ $failed = 0 ] && echo "inspect: all as it must be"
exit $failed
