#!/usr/bin/env bash
# Tests the output and the errors of tools/generate: generate_tool.sh PATH/TO/generate PATH/TO/train
. "$(dirname "$0")/tool.sh"
generate=$1 train=$2

text=$dir/text.txt
for i in $(seq 40); do echo "Line $i of a small text, für den Test: $((i * i)) and $((i * 7 % 11))."; done >"$text"
for model in gpt 'llama --key-heads 1' 'deepseek --latent 6 --rope-width 4'; do
  name=${model%% *}
  "$train" --text "$text" --architecture $model --layers 2 --heads 2 --width 16 --context 24 --batch 4 --steps 150 --lr 1e-2 \
    --eval-every 150 --sample 0 --out "$dir/$name" >/dev/null 2>"$dir/err" || fail "training $model: $(cat "$dir/err")"
  run=("$generate" --model "$dir/$name" --prompt 'Line ')

  # Greedy decoding must generate the same text with and without the cache, and for any number of threads.
  # This must also hold beyond the context.
  for length in '' '--max-tokens 20' '--max-tokens 60 --slide'; do
    "${run[@]}" --temperature 0 $length >"$dir/cached" 2>"$dir/err" || fail "$name: $(cat "$dir/err")"
    "${run[@]}" --temperature 0 $length --no-cache --threads 2 >"$dir/plain" 2>/dev/null || fail "$name without a cache"
    cmp -s "$dir/cached" "$dir/plain" || fail "$name, $length: $(cat "$dir/cached") is not $(cat "$dir/plain")"
  done
  # The output contains the prompt, 60 characters (some have two bytes) and a line break.
  [ "$(LC_ALL=C.UTF-8 wc -m <"$dir/cached")" = 66 ] || fail "not 60 tokens: $(cat "$dir/cached")"
  grep -q '^Line ' "$dir/cached" || fail "the text does not begin with the prompt"
  grep -q 'tokens/s' "$dir/err" || fail "no tokens/s: $(cat "$dir/err")"
  [ "$(wc -l <"$dir/err")" = 1 ] || fail "more than one line on stderr: $(cat "$dir/err")"
  "${run[@]}" --temperature 3 --top-k 1 --max-tokens 60 --slide 2>/dev/null | cmp -s - "$dir/plain" || fail "top-k 1 is not greedy"
  "${run[@]}" --temperature 3 --top-p 0 --max-tokens 60 --slide 2>/dev/null | cmp -s - "$dir/plain" || fail "top-p 0 is not greedy"
  for seed in 1 1 2; do "${run[@]}" --temperature 2 --seed $seed 2>/dev/null >>"$dir/$name-drawn"; done
  [ "$(sort -u "$dir/$name-drawn" | wc -l)" -gt 1 ] || fail "every seed generates the same text"
  [ "$("${run[@]}" --temperature 2 --seed 7 2>/dev/null)" = "$("${run[@]}" --temperature 2 --seed 7 2>/dev/null)" ] ||
    fail "a seed generates two different texts"
done
gpt=(--model "$dir/gpt" --prompt 'Line ')
"$generate" "${gpt[@]}" --dtype bf16 >/dev/null 2>&1 || fail "bf16"
# With 16-bit weights, the output must have the same length as with f32. The probabilities are nearly the
# same.
for model in gpt llama deepseek; do
  for type in bf16 f16; do
    "$generate" --model "$dir/$model" --prompt 'Line ' --temperature 0 --weights-dtype $type >"$dir/half" 2>"$dir/err" ||
      fail "--weights-dtype $type: $(cat "$dir/err")"
    [ "$(LC_ALL=C.UTF-8 wc -m <"$dir/half")" = 26 ] || fail "$model with --weights-dtype $type writes: $(cat "$dir/half")"
  done
done
"$generate" "${gpt[@]}" --weights-dtype bf16 --dtype bf16 >/dev/null 2>&1 || fail "--weights-dtype and --dtype of one type"
"$generate" --model "$dir/gpt/best" --max-tokens 3 >/dev/null 2>&1 || fail "the best checkpoint, without a prompt"
# Each token must be written immediately, so that a reader of the first tokens does not wait for the rest.
first=$(timeout 60 "$generate" "${gpt[@]}" --slide --max-tokens 1000000000 2>/dev/null | head -c 20)
[ ${#first} -ge 15 ] || fail "nothing is written before the end"

# Sequences that are generated in parallel must be the same as separate sequences, for any size of the cache.
# They must be in the order of the prompts.
printf 'Line 1\nLine\nLine 2 of\n' >"$dir/prompts"
for model in gpt llama deepseek; do
  many=("$generate" --model "$dir/$model" --prompts "$dir/prompts" --max-tokens 12 --temperature 1 --seed 5)
  "${many[@]}" --samples 3 --slots 4 >"$dir/many" 2>"$dir/err" || fail "$model, many: $(cat "$dir/err")"
  "${many[@]}" --samples 3 --cache-memory 32tokens 2>/dev/null | cmp -s - "$dir/many" || fail "$model: different texts with a small cache"
  : >"$dir/each"
  for p in 1 2 3; do
    for s in 1 2 3; do
      echo "== prompt $p, sample $s" >>"$dir/each"
      "$generate" --model "$dir/$model" --prompt "$(sed -n ${p}p "$dir/prompts")" --max-tokens 12 --temperature 1 --seed $((s + 4)) >>"$dir/each" 2>/dev/null
    done
  done
  cmp -s "$dir/each" "$dir/many" || fail "$model: in parallel $(cat "$dir/many"), separately $(cat "$dir/each")"
  grep -q '^9 sequences, 108 tokens in .*up to 4 in parallel' "$dir/err" || fail "$model: no summary: $(cat "$dir/err")"
  "$generate" --model "$dir/$model" --prompt Line --beams 3 --max-tokens 5 >"$dir/beams" 2>/dev/null || fail "$model, beams"
  [ "$(grep -c '^== prompt 1, beam [123], log p = -' "$dir/beams")" = 3 ] || fail "$model, beams: $(cat "$dir/beams")"
  grep 'log p' "$dir/beams" | sed 's/.*= //' | sort -gr | cmp -s - <(grep 'log p' "$dir/beams" | sed 's/.*= //') || fail "beams are not in order"
done
printf 'Line\\n1\n' >"$dir/escaped"
[ "$("$generate" --model "$dir/gpt" --prompts "$dir/escaped" --max-tokens 1 --temperature 0 2>/dev/null | sed -n 2p)" = Line ] || fail "a line break in a prompt"
# A 16-bit cache must need half the memory.
bytes_of() { "$generate" "${gpt[@]}" "$@" 2>&1 >/dev/null | sed -nE 's/.*cache ([0-9]+)\.0+ KiB.*/\1/p'; }
[ "$(bytes_of)" = $((2 * $(bytes_of --cache-dtype bf16))) ] || fail "cache: $(bytes_of) KiB, in bf16 $(bytes_of --cache-dtype bf16)"
[ "$(bytes_of --samples 2)" = $((2 * $(bytes_of --samples 2 --cache-dtype f16))) ] || fail "f16 cache of parallel sequences"
# If a prompt cannot be continued, a line on stderr reports it, and the other prompts are continued.
printf 'Line\n\nLine 1 of a small text, and more\n' >"$dir/some"
"$generate" --model "$dir/gpt" --prompts "$dir/some" --max-tokens 2 >"$dir/out" 2>"$dir/err" && fail "prompts that do not fit are not a failure"
[ "$(grep -c '^== ' "$dir/out")" = 1 ] || fail "expected one sequence: $(cat "$dir/out")"
grep -q '^generate: prompt 2: .*empty' "$dir/err" && grep -q '^generate: prompt 3: .*context of 24' "$dir/err" || fail "not named: $(cat "$dir/err")"
# A sequence must end before the stop string. Tests a single sequence and parallel sequences.
whole=$("$generate" "${gpt[@]}" --temperature 0 2>/dev/null)
stop=${whole:9:2}
"$generate" "${gpt[@]}" --temperature 0 --stop "$stop" 2>/dev/null >"$dir/stopped"
[ "$(cat "$dir/stopped")" = "${whole%%"$stop"*}" ] || fail "--stop '$stop' of '$whole': $(cat "$dir/stopped")"
"$generate" "${gpt[@]}" --temperature 0 --samples 1 --stop "$stop" 2>/dev/null | tail -n +2 | cmp -s - "$dir/stopped" || fail "--stop with parallel sequences"

# An invalid input must cause one line on stderr that names the error, and the right exit code. Nothing else
# may be printed.
refuses() {  # CODE WORD ARGUMENTS...
  local code=$1 word=$2
  shift 2
  refuses_command "$code" "$word" "$generate" "$@"
  [ -s "$dir/out" ] && fail "text despite an error: generate $*"
}
refuses 2 'missing --model'
refuses 2 --max-tokens "${gpt[@]}" --max-tokens 0
refuses 2 --top-p "${gpt[@]}" --top-p 1.5
refuses 2 --temperature "${gpt[@]}" --temperature -1
refuses 2 'f32, tf32, bf16, f16' "${gpt[@]}" --dtype f64
refuses 2 'requires --prompts' "${gpt[@]}" --slots 2
refuses 2 'exclude each other' "${gpt[@]}" --prompts "$dir/prompts"
refuses 2 'requires a cache' "${gpt[@]}" --cache-dtype bf16 --no-cache
refuses 2 'f32, bf16, f16' "${gpt[@]}" --cache-dtype fp8
refuses 2 'one sequence' --model "$dir/gpt" --prompts "$dir/prompts" --slide
refuses 2 'not for --beams' "${gpt[@]}" --beams 2 --seed 3
refuses 2 'size like 64MiB' "${gpt[@]}" --samples 2 --cache-memory much
refuses 2 'stop is empty' "${gpt[@]}" --stop ''
refuses 1 'whole pages' "${gpt[@]}" --samples 2 --cache-memory 3tokens
refuses 1 'nothing: No such' --model "$dir/gpt" --prompts "$dir/nothing"
: >"$dir/no-lines"
refuses 1 'has no lines' --model "$dir/gpt" --prompts "$dir/no-lines"
printf 'a\\b\n' >"$dir/backslash"
refuses 1 'line 1: a backslash' --model "$dir/gpt" --prompts "$dir/backslash"
refuses 2 'f32, bf16, f16' "${gpt[@]}" --weights-dtype fp8
refuses 2 'weights-dtype bf16 computes in bf16, got --dtype f16' "${gpt[@]}" --weights-dtype bf16 --dtype f16
refuses 2 --backend "${gpt[@]}" --backend gpu
refuses 1 'cuda' "${gpt[@]}" --backend cuda:63
refuses 1 'vocabulary' --model "$dir/gpt" --prompt 'жук'
refuses 1 empty --model "$dir/gpt" --prompt ''
refuses 1 'context of 24: at most --max-tokens 20' "${gpt[@]}" --max-tokens 21
refuses 1 'context of 24.*--slide' --model "$dir/gpt" --prompt 'Line 1 of a small text, and more'
refuses 1 nowhere --model "$dir/nowhere"
refuses 1 "$dir/nowhere: does not exist" --model "$dir/nowhere"
refuses 1 text.txt --model "$text"
mkdir "$dir/empty"
refuses 1 "$dir/empty" --model "$dir/empty"
cp -rL "$dir/gpt/last" "$dir/damaged"
printf x | dd of="$dir/damaged/model.safetensors" bs=1 seek=3000 conv=notrunc 2>/dev/null
refuses 1 'damaged/model.safetensors' --model "$dir/damaged"
# The checksums of this checkpoint match, but its metadata contradicts its tensors.
lies() {  # WORD COMMAND...
  local word=$1
  shift
  change_copy "$dir/gpt/last" "$generate" "$@"
  refuses 1 "changed/model.safetensors: .*$word" --model "$dir/changed"
}
lies 'is not divisible by 3 heads' sed -i 's/"heads":"2"/"heads":"3"/'
lies 'has no tensor transformer.h.2' sed -i 's/"layers":"2"/"layers":"3"/'
lies 'wpe.weight is f32 .24, 16., expected f32 .25' sed -i 's/"context":"24"/"context":"25"/'
lies "got 'gbt', expected one of" sed -i 's/"model":"gpt"/"model":"gbt"/'
lies "tokenizer is 'chart'" sed -i 's/"tokenizer":"chars"/"tokenizer":"chart"/'
lies 'wte.weight is f32 .*, expected f32 .*100000000' metadata width 100000000
lies 'wpe.weight is f32 .*, expected f32 .100000000' metadata context 100000000
lies 'with transformer.h.0.attn.heads = 2, this one has 1' sed -i 's/"heads":"2"/"heads":"1"/'
lies 'ln_f.eps = 2e-05, this one has 1e-05' sed -i 's/ln_f.eps":"1e-05"/ln_f.eps":"2e-05"/'
lies 'the tokenizer has 256 tokens, the model' sed -i 's/"tokenizer":"chars"/"tokenizer":"bytes"/'
lies 'has nan at element' plant_nan
change_copy "$dir/gpt/last" "$generate" plant_1e6
refuses 1 'transformer.wte.weight has 1000000.000000 at element .*, too large for f16' --model "$dir/changed" --weights-dtype f16

# The input is not a regular file, or is endless.
for name in model.safetensors manifest.json; do
  rm -rf "$dir/piped"
  cp -rL "$dir/gpt/last" "$dir/piped"
  rm "$dir/piped/$name" && mkfifo "$dir/piped/$name"
  refuses 1 "piped/$name: not a regular file" --model "$dir/piped"
  ln -sf /dev/zero "$dir/piped/$name"
  refuses 1 "piped/$name: not a regular file" --model "$dir/piped"
done

# While a run saves at every step, its checkpoint must always be complete.
cp -r "$dir/llama" "$dir/running"
"$train" --resume --steps 1000000 --save-every 1 --eval-every 1000000 --threads 1 --out "$dir/running" >/dev/null 2>&1 </dev/null &
running=$!
for i in $(seq 30); do
  "$generate" --model "$dir/running" --prompt Line --max-tokens 1 --threads 1 >/dev/null 2>"$dir/err" || fail "while its run saves, read $i: $(cat "$dir/err")"
done
kill -TERM $running
wait $running
[ $? = 130 ] || fail "the run that was being read ended by itself"

# This Hugging Face folder has 37 single-character tokens. "c" is the end token.
folder=$dir/folder
letters_folder llama "$folder"
run=("$generate" --model "$folder" --prompt 'once upon')
"${run[@]}" --seed 4 >"$dir/cached" 2>"$dir/err" || fail "a folder: $(cat "$dir/err")"
"${run[@]}" --seed 4 --no-cache 2>/dev/null | cmp -s - "$dir/cached" || fail "a folder, without a cache"
"${run[@]}" --seed 4 --samples 1 2>/dev/null | tail -n +2 | cmp -s - "$dir/cached" || fail "a folder, in parallel mode"
grep -q '^once upon[^c]*$' "$dir/cached" || fail "the end token does not end a sequence: $(cat "$dir/cached")"
[ "$(wc -c <"$dir/cached")" -lt 90 ] || fail "no end: $(cat "$dir/cached")"
grep -q '^llama, 16352 parameters in bf16' "$dir/err" || fail "the folder is not described: $(cat "$dir/err")"
"${run[@]}" --max-tokens 9 --weights-dtype bf16 --context 20 >/dev/null 2>"$dir/err" || fail "a folder in bf16: $(cat "$dir/err")"
# If there are several end tokens, each of them must end a sequence or a beam. It must not be written.
sed -i 's/"eos_token_id": 2/"eos_token_id": [2, 5, 14]/' "$folder/generation_config.json"
for how in '--beams 4' '--samples 4'; do
  "${run[@]}" --max-tokens 40 $how 2>/dev/null | sed 's/^once upon//; /^==/d' >"$dir/ended" || fail "$how with three end tokens"
  [ "$(wc -l <"$dir/ended")" = 4 ] && ! grep -q '[cfo]' "$dir/ended" || fail "$how continues after an end token: $(cat "$dir/ended")"
done
refuses 1 'context of 20' --model "$folder" --prompt 'once upon' --context 20 --max-tokens 30
refuses 1 'expected a context up to 24, the model.s, got 25' --model "$dir/gpt" --context 25
refuses 1 'context of 9' --model "$dir/gpt" --prompt 'Line' --context 9 --max-tokens 20
refuses 1 'model_type is "bert", expected one of' --model "$(mkdir "$dir/bert" && echo '{"model_type": "bert"}' >"$dir/bert/config.json" && echo "$dir/bert")"
sed -i 's/"E": 36/"E": 37/' "$folder/tokenizer.json"
refuses 1 'has 38 tokens, the model 37' --model "$folder"
sed -i 's/"c": 2.*"E": 37/"E": 1/; s/"b": 1, //' "$folder/tokenizer.json"
refuses 1 "has 2 tokens, the model's sequences end with 2, its eos_token_id" --model "$folder"
rm "$folder/tokenizer.json"
refuses 1 'tokenizer.json: No such file' --model "$folder"

cp -rL "$dir/gpt/last" "$dir/incomplete"
rm "$dir/incomplete/model.safetensors"
refuses 1 'model.safetensors' --model "$dir/incomplete"
if [ -e /dev/full ]; then
  "$generate" "${gpt[@]}" >/dev/full 2>"$dir/err" && fail "a full disk is not an error"
  [ "$(wc -l <"$dir/err")" = 1 ] || fail "not one line for a full disk: $(cat "$dir/err")"
fi

"$generate" --help | grep '^examples:' >/dev/null || fail "--help has no examples"
[ $failed = 0 ] && echo "generate: all checks passed"
exit $failed
