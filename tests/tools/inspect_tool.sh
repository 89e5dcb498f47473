#!/usr/bin/env bash
# Tests the output of tools/inspect: inspect_tool.sh PATH/TO/inspect PATH/TO/train
. "$(dirname "$0")/tool.sh"
inspect=$1 train=$2

# Attention layers must copy nothing, in any program. The number of listed steps must equal the printed count.
for model in gpt llama 'llama --key-heads 1' deepseek 'deepseek --query-latent 16'; do
  for program in train evaluate token; do
    "$inspect" --architecture $model --program $program --filter attn --list-steps >"$dir/out" 2>"$dir/err" ||
      fail "$model, $program: $(cat "$dir/err")"
    grep -q '^copies  *0, of 0 bytes$' "$dir/out" || fail "$model, $program: $(grep ^copies "$dir/out")"
    steps=$(sed -n 's/^steps *\([0-9]*\):.*/\1/p' "$dir/out")
    [ "$steps" = "$(grep -c ' → ' "$dir/out")" ] || fail "$model, $program: not $steps steps are listed"
    [ "$(grep -c '/flash_attn: ' "$dir/out")" = 4 ] || fail "$model, $program: not one flash_attn per layer"
  done
done

# The checkpoint must contain the same model as train's options describe.
for i in $(seq 40); do echo "Line $i of a small text: $((i * i)) and $((i * 7 % 11))."; done >"$dir/text"
"$train" --text "$dir/text" --architecture deepseek --layers 1 --heads 2 --width 16 --latent 6 --context 16 --batch 2 --steps 1 \
  --sample 0 --out "$dir/run" >/dev/null || fail "training"
"$inspect" --model "$dir/run" | grep '^model  *DeepSeek: 1 layer, 2 heads, latent 6 + 8, width 16, context 16$' >/dev/null ||
  fail "a different model from the checkpoint's"
"$inspect" --dtype f16 --batch 3 >/dev/null || fail "f16"

# Each view must write its picture and print its numbers. It must print nothing else.
is_png() { [ "$(head -c 8 "$1" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ] || fail "$1 is not a PNG"; }
shows() {  # PATTERN ARGUMENTS...: a line of the output matches, and nothing is printed on stderr
  local pattern=$1
  shift
  "$inspect" "$@" >"$dir/out" 2>"$dir/err" || fail "$*: $(cat "$dir/err")"
  [ ! -s "$dir/err" ] || fail "$*: $(cat "$dir/err")"
  grep -q -- "$pattern" "$dir/out" || fail "no '$pattern' for $*: $(head -3 "$dir/out")"
}
for program in train evaluate token; do
  shows ' = flash_attn(%' --program $program --graph --graphviz "$dir/$program.dot"
  head -1 "$dir/$program.dot" | grep -x 'digraph {' >/dev/null || fail "$program.dot does not begin with digraph"
  if command -v dot >/dev/null; then dot -Tsvg "$dir/$program.dot" >"$dir/svg" || fail "dot rejects $program.dot"; fi
  shows '^steps' --program $program --plot-plan "$dir/$program.png"
  is_png "$dir/$program.png"
done
shows 'eps=1e-05' --program evaluate --graph
shows '/flash_attn: .*tiles of .* queries × .* keys, .*, by one thread$' --program evaluate --threads 1 --list-steps
shows '^all .* 100.00 %$' --architecture llama --parameters
! grep -q ^steps "$dir/out" || fail "--parameters alone shows steps"
shows '^all  *512  *512  *4,096$' --cache --cache-memory 64tokens
grep -q '^  contiguous  *64  *1  *1' "$dir/out" || fail "a cache of 64 tokens: $(cat "$dir/out")"
shows '^cache  *640 bytes per token, ' --architecture deepseek --latent 32 --rope-width 8 --cache
shows '^ *65,536 .* GiB .* GiB ' --batch 1 --heads 8 --width 512 --plot-attention-memory "$dir/memory.png"
is_png "$dir/memory.png"
shows '^ *128 .* optimum$' --heads 1 --width 64 --length 8192 --fast-memory 128 --plot-reads "$dir/reads.png"
is_png "$dir/reads.png"
shows '^model' --model "$dir/run" --prompt 'Line 7 of a text' --plot-attention "$dir/attention.png"
is_png "$dir/attention.png"
cp -r "$dir/run" "$dir/other run"
shows ': 1 step, smoothed train loss .*, best validation loss .* at step 1$' --plot-curves "$dir/curves.png" --run "$dir/run" \
  --run "$dir/other run/"
is_png "$dir/curves.png"
[ "$(wc -l <"$dir/out")" = 2 ] || fail "not a line for each run: $(cat "$dir/out")"

# Tests the cost of a memory budget for a training step. Most of its memory is for logits.
wide=(--vocabulary 4096 --context 64 --layers 1 --heads 2 --width 16 --batch 512 --dtype bf16 --threads 1)
shows '^budget .* by 2 chunks of the loss and 0 steps recomputed, which move' "${wide[@]}" --memory-budget 250MiB
shows '^budget .* by 4 chunks of the loss and 0 steps recomputed, which move' "${wide[@]}" --memory-budget 150MiB

deep=(--vocabulary 64 --context 64 --layers 4 --heads 2 --width 64 --batch 8 --dtype bf16 --threads 1)
shows '^ *[0-9]* of them matmuls or attention, .* GFLOP: recomputing cheap steps does not suffice$' "${deep[@]}" --memory-budget 5MiB

refuses() {  # CODE WORD ARGUMENTS...
  local code=$1 word=$2
  shift 2
  refuses_command "$code" "$word" "$inspect" "$@"
}
refuses 2 --latent --latent 8
refuses 2 --cache-memory --cache --cache-memory 64MB
refuses 2 'needs --cache' --cache-memory 64MiB
refuses 2 --program --program sleep
refuses 2 'size like 500MiB' --memory-budget much
refuses 2 'requires --program train' --memory-budget 1GiB --program token
refuses 1 'needs at least' --memory-budget 64KiB
refuses 2 --heads --width 130 --heads 4
refuses 2 --backend --backend gpu
refuses 1 nowhere --model "$dir/nowhere"
refuses 2 '--layers cannot be used with --model' --model "$dir/run" --layers 3
refuses 2 'expected a name that ends in .png' --plot-plan "$dir/plan.jpg"

# The checksums of this checkpoint are correct, but its tensors do not match its model settings. A wrong size
# must be detected before memory of this size is allocated. So 400 MB must be enough, if the system can limit
# the address space.
limited() {
  if [ "$(uname)" = Linux ] && (ulimit -v 400000 && "$inspect" --help >/dev/null 2>&1); then ulimit -v 400000; fi
  "$inspect" "$@"
}
lies() {  # WORD COMMAND...
  local word=$1
  shift
  change_copy "$dir/run/last" "$inspect" "$@"
  refuses_command 1 "changed/model.safetensors: .*$word" limited --model "$dir/changed"
}
lies 'has no tensor model.layers.1' sed -i 's/"layers":"1"/"layers":"2"/'
lies 'has no tensor model.norm.weight' sed -i 's/"model.norm.weight"/"model.nurm.weight"/'
lies 'embed_tokens.weight is f32 .*, expected f32 .*100000000' metadata width 100000000
lies 'embed_tokens.weight is' metadata vocabulary 100000000
lies 'mlp.gate_proj.weight is f32 .*, expected f32 .7, ' metadata mlp_width 7
lies 'width of the MLP' metadata mlp_width -1
lies 'kv_a_proj_with_mqa.weight is' metadata latent 7
lies 'q_proj.weight is' metadata rope_width 1000000000
lies 'weights are i32\|is i32' sed -i 's/"F32"/"I32"/g'
lies 'i32' sed -i 's/"F32"/"I32"/'
# With rotary positions, no tensor depends on the context length. So inspect must compare the required memory
# with the available memory.
cp -rL "$dir/run/last" "$dir/long"
metadata context 2000000000 "$dir/long/model.safetensors"
reseal "$dir/long" "$inspect" --model "$dir/long"
refuses_command 1 'cache for .* 2,000,000,000 tokens needs .* are free' limited --model "$dir/long" --program token

# If a picture cannot be drawn, an existing file must remain unchanged.
echo before >"$dir/file.png"
keeps() {  # CODE WORD ARGUMENTS...
  refuses "$@"
  [ "$(cat "$dir/file.png")" = before ] || fail "written over by ${*:3}"
}
keeps 2 --model --prompt a --plot-attention "$dir/file.png"
keeps 2 --prompt --model "$dir/run" --plot-attention "$dir/file.png"
keeps 2 --prompt --model "$dir/run" --prompt '' --plot-attention "$dir/file.png"
keeps 2 --plot-attention --model "$dir/run" --prompt a
keeps 1 'more than the model.s context of 16' --overwrite --model "$dir/run" --prompt 'Line 7 of a small' --plot-attention "$dir/file.png"
keeps 1 "'Z'" --overwrite --model "$dir/run" --prompt 'ZZ' --plot-attention "$dir/file.png"
keeps 2 --run --plot-curves "$dir/file.png"
keeps 2 --plot-curves --run "$dir/run"
keeps 1 nowhere/metrics.jsonl --overwrite --plot-curves "$dir/file.png" --run "$dir/run" --run "$dir/nowhere"
mkdir "$dir/empty" "$dir/bad" && : >"$dir/empty/metrics.jsonl" && echo '{"loss":1}' >"$dir/bad/metrics.jsonl"
keeps 1 'has no step' --overwrite --plot-curves "$dir/file.png" --run "$dir/empty"
keeps 1 'line 1' --overwrite --plot-curves "$dir/file.png" --run "$dir/bad"
keeps 2 --plot-reads --length 8192
keeps 1 'more tokens' --overwrite --plot-reads "$dir/file.png" --length 32
keeps 1 'holds all' --overwrite --plot-reads "$dir/file.png" --fast-memory 100000
for view in graphviz plot-plan plot-attention-memory plot-reads; do refuses 1 nowhere/file --$view "$dir/nowhere/file.png"; done
[ $failed = 0 ] && echo "inspect: all checks passed"
exit $failed
