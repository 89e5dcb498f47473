#!/usr/bin/env bash
# Tests the export to other programs: export_tool.sh FOLDER_OF_TOOLS. tests/interop/open_exported.py checks
# the result with transformers.
. "$(dirname "$0")/tool.sh"
tools=$1
export=$tools/export train=$tools/train generate=$tools/generate

text=$dir/text.txt
for i in $(seq 60); do echo "Line $i of a small text, für den Test: $((i * i)) and $((i * 7 % 11))."; done >"$text"
small=(--layers 2 --heads 2 --width 16 --context 32 --batch 2 --steps 20 --warmup 2 --sample 0 --threads 1)
say() { "$generate" "$@" --prompt 'Line 7' --temperature 0 --max-tokens 24 --threads 1 2>/dev/null; }

# For each architecture and kind of tokenizer, the exported folder must generate the same text as the
# checkpoint.
for model in gpt llama deepseek; do
  for tokenizer in chars bytes bpe; do
    run=$dir/$model-$tokenizer folder=$dir/$model-$tokenizer-hf
    "$train" --text "$text" --architecture $model --tokenizer $tokenizer $([ $tokenizer = bpe ] && echo --vocabulary 280) "${small[@]}" \
      --out "$run" >/dev/null || fail "training $model with $tokenizer"
    "$export" --model "$run" --to hf --out "$folder" >"$dir/out" || fail "exporting $model with $tokenizer"
    tail -n 1 "$dir/out" | grep -q "^from transformers import AutoModelForCausalLM, AutoTokenizer; .*from_pretrained(\"$folder\")" ||
      fail "the last line is: $(tail -n 1 "$dir/out")"
    [ "$(say --model "$run")" = "$(say --model "$folder")" ] || fail "a different text from $folder"
    ls "$dir"/.[a-z]* >/dev/null 2>&1 && fail "left behind: $(ls -A "$dir")"
  done
done
# Tests the same for a GGUF file, which is also read again.
for model in gpt-bytes llama-bpe llama-chars; do
  "$export" --model "$dir/$model" --to gguf --out "$dir/$model.gguf" >"$dir/out" || fail "exporting $model to GGUF"
  tail -n 1 "$dir/out" | grep -q "^llama-completion -m $dir/$model.gguf" || fail "the last line is: $(tail -n 1 "$dir/out")"
  [ $model = gpt-bytes ] || [ "$(say --model "$dir/$model")" = "$(say --model "$dir/$model.gguf")" ] ||
    fail "a different text from $model.gguf"
done
grep -q '^note .*GELU' "$dir/out" && fail "a note about GELU for llama"
"$export" --model "$dir/llama-bpe-hf" --to gguf --weights-dtype q8_0 --out "$dir/q.gguf" >"$dir/out" || fail "exporting to q8_0"
grep -q "^writes  *$dir/q.gguf: llama, Q8_0, " "$dir/out" && grep -q '^note  *rows that are not a multiple of 32' "$dir/out" ||
  fail "the table is: $(cat "$dir/out")"
"$export" --model "$dir/llama-bpe.gguf" --to hf --out "$dir/from-gguf" >/dev/null || fail "exporting a GGUF file"
cmp -s "$dir"/{from-gguf,llama-bpe-hf}/model.safetensors || fail "different weights by way of GGUF"
run=$dir/llama-bpe
"$export" --model "$run" --to hf --out "$dir/table" >"$dir/out" || fail "exporting"
grep -q "^reads  *$run/last" "$dir/out" && grep -q '^model  *Llama: 2 layers, .* parameters in f32$' "$dir/out" &&
  grep -q '^tokenizer  *bpe, 280 tokens$' "$dir/out" && grep -q "^writes  *$dir/table: LlamaForCausalLM, f32, " "$dir/out" ||
  fail "the table is: $(cat "$dir/out")"

# Tests a folder that is converted to a different dtype, and notes about files that a folder lacks.
"$export" --model "$dir/table" --to hf --weights-dtype bf16 --out "$dir/half" >"$dir/out" || fail "exporting a folder"
grep -q '"dtype": "bfloat16"' "$dir/half/config.json" || fail "config.json says $(cat "$dir/half/config.json")"
cmp -s "$dir"/{table,half}/tokenizer.json || fail "a different tokenizer"
"$export" --model "$dir/half" --to hf --out "$dir/again" >/dev/null || fail "exporting an unchanged folder"
diff -r "$dir/half" "$dir/again" >/dev/null || fail "an exported folder differs from its source"
golden=$(dirname "$0")/../io/pretrained
"$export" --model "$golden/mistral" --to hf --out "$dir/bare" >"$dir/out" || fail "exporting a golden model"
grep -q '^tokenizer  *none$' "$dir/out" && grep -q '^dropped  *model.layers.0.self_attn.rotary_emb.inv_freq$' "$dir/out" ||
  fail "the table of mistral is: $(cat "$dir/out")"
tail -n 1 "$dir/out" | grep -q AutoTokenizer && fail "the printed line loads a tokenizer that does not exist"

# The export of a fine-tuned model must be the original folder with different weights.
"$train" --model "$dir/table" --text "$text" --context 16 --batch 2 --steps 4 --sample 0 --threads 1 --out "$dir/tuned" >/dev/null ||
  fail "fine-tuning a folder"
"$export" --model "$dir/tuned" --to hf --out "$dir/tuned-hf" >"$dir/out" || fail "exporting a fine-tuned model"
grep -q "^reads  *$dir/tuned/last: llama of Hugging Face$" "$dir/out" || fail "its table is: $(cat "$dir/out")"
for file in config.json tokenizer.json tokenizer_config.json; do
  cmp -s "$dir"/{table,tuned-hf}/$file || fail "a different $file after fine-tuning"
done
cmp -s "$dir"/{table,tuned-hf}/model.safetensors && fail "the same weights after fine-tuning"
[ "$(say --model "$dir/tuned")" = "$(say --model "$dir/tuned-hf")" ] || fail "a different text from a fine-tuned model"

# Tests a model without a tokenizer.
head -c 2000 "$text" >"$dir/plain.bin"
"$train" --tokens "$dir/plain.bin" --plain u16 --vocabulary 60000 "${small[@]}" --out "$dir/plain" >/dev/null || fail "training on plain ids"
"$export" --model "$dir/plain" --to hf --out "$dir/plain-hf" >"$dir/out" || fail "exporting a model of plain ids"
grep -q '^tokenizer  *none: tokens are printed as numbers$' "$dir/out" || fail "the table of plain ids is: $(cat "$dir/out")"
[ "$(ls "$dir/plain-hf")" = "$(printf 'config.json\nmodel.safetensors')" ] || fail "files are $(ls "$dir/plain-hf")"

# The error of an invalid input is one line, and no files are left.
before=$(ls -A "$dir" | grep -vx 'err\|out')
refuses_command 2 'missing --model' "$export" --to hf --out "$dir/x"
refuses_command 2 'given twice' "$export" --model "$run" --model "$dir/half" --to hf --out "$dir/x"
refuses_command 2 --to "$export" --model "$run" --out "$dir/x"
refuses_command 2 'does not support --weights-dtype q8_0' "$export" --model "$run" --to hf --weights-dtype q8_0 --out "$dir/x"
refuses_command 1 "$dir/q.gguf exists" "$export" --model "$run" --to gguf --out "$dir/q.gguf"
refuses_command 2 onnx "$export" --model "$run" --to onnx --out "$dir/x"
refuses_command 2 'missing --out' "$export" --model "$run" --to hf
refuses_command 1 "$dir/half exists" "$export" --model "$run" --to hf --out "$dir/half"
refuses_command 1 "$dir/nowhere: does not exist" "$export" --model "$dir/nowhere" --to hf --out "$dir/x"
refuses_command 1 "$dir/no/x" "$export" --model "$run" --to hf --out "$dir/no/x"
(ulimit -f 8
  refuses_command 1 'cannot write .*model.safetensors: File too large' "$export" --model "$run" --to hf --out "$dir/x"
  exit $failed) || failed=1
# The tokenizer of an older checkpoint has no word rule in the metadata.
change_copy "$run/last" "$generate" sed -i 's/"words":/"older":/'
refuses_command 1 'as older checkpoints do' "$export" --model "$dir/changed" --to hf --out "$dir/x"
rm -r "$dir/changed"
[ "$before" = "$(ls -A "$dir" | grep -vx 'err\|out')" ] || fail "left behind: $(ls -A "$dir")"

# If export is killed at any moment, the folder must be missing or complete. The next export removes hidden
# temporary files.
for ms in 2 4 6 8 12 20; do
  rm -rf "$dir/killed"
  "$export" --model "$run" --to hf --out "$dir/killed" >/dev/null 2>&1 &
  sleep 0.0$(printf %02d $ms)
  kill -KILL $! 2>/dev/null
  wait $! 2>/dev/null  # waits until it has exited and released its lock
  [ ! -e "$dir/killed" ] || say --model "$dir/killed" >/dev/null || fail "an incomplete folder after $ms ms"
done
rm -rf "$dir/killed"
"$export" --model "$run" --to hf --out "$dir/killed" >/dev/null || fail "exporting after a kill"
diff -r "$dir/killed" "$dir/table" || fail "a different folder after a kill"
ls -d "$dir"/.[a-z]* >/dev/null 2>&1 && fail "left behind: $(ls -A "$dir")"

[ $failed = 0 ] && echo "export: all checks passed"
exit $failed
