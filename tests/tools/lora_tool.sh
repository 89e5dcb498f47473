#!/usr/bin/env bash
# Tests adapters: training, resuming, and exporting them separately or merged. Usage: lora_tool.sh
# FOLDER_OF_TOOLS
. "$(dirname "$0")/tool.sh"
tools=$(cd "$1" && pwd)
export=$tools/export train=$tools/train generate=$tools/generate

folder=$dir/folder text=$dir/text.txt
letters_folder llama "$folder"
for i in $(seq 30); do printf 'the old tree stood by a river and said, good day|who are you, said the bird? i am a tree.|'; done >"$text"
data=(--text "$text" --separator '|' --context 24 --batch 2 --warmup 0 --sample 0 --lr 1e-2 --min-lr 1e-2 --eval-every 10)
tune() { "$train" --model "$folder" "${data[@]}" "$@"; }
value() { sed -n "$2p" "$1/metrics.jsonl" | grep -oE "\"$3\":[^,}]*"; }  # value RUN ROW KEY
say() { "$generate" "$@" --prompt 'the old' --temperature 0 --context 40 2>/dev/null; }

lora=(--lora 4 --lora-targets q_proj,v_proj,down_proj --lora-dropout 0.1)
tune "${lora[@]}" --steps 20 --out "$dir/whole" >"$dir/table" || fail "training adapters"
grep -q '^lora  *rank 4, alpha 8, dropout 0.1, on 6 layers: 1,472 trained parameters in f32; the model.s parameters are frozen in f32$' "$dir/table" ||
  fail "the table is: $(cat "$dir/table")"

# The first loss must be exactly the loss of the base model, as in training of all parameters.
tune --steps 1 --out "$dir/full" >/dev/null || fail "training all"
[ "$(value "$dir/whole" 1 val_loss)" = "$(value "$dir/full" 1 val_loss)" ] || fail "the first loss is $(value "$dir/whole" 1 val_loss), not the base's"

# Tests the same in bf16. The frozen weights are stored in bf16, as in the folder.
tune "${lora[@]}" --steps 1 --dtype bf16 --out "$dir/half-lora" >"$dir/table" && tune --steps 1 --dtype bf16 --out "$dir/half-full" >/dev/null || fail "training in bf16"
grep -q ' are frozen in bf16$' "$dir/table" || fail "the table is: $(cat "$dir/table")"
[ "$(value "$dir/half-lora" 1 val_loss)" = "$(value "$dir/half-full" 1 val_loss)" ] || fail "the first loss in bf16 is $(value "$dir/half-lora" 1 val_loss), not the base's"

# Resuming must be bitwise exact, from any working directory.
(cd "$dir" && tune "${lora[@]}" --steps 10 --out "$dir/halves" >/dev/null) || fail "the first half"
(cd / && "$train" --resume --steps 20 --out "$dir/halves" >"$dir/table") || fail "resuming"
for file in model optimizer; do
  cmp "$dir"/{whole,halves}/last/$file.safetensors || fail "10 + 10 steps are not 20"
done

# Separate and merged adapters must generate the same text. Also tests fused layers, transposed layers, and a
# 16-bit type.
for how in 'llama f32 f32' 'phi3 f32 f32' 'gpt2 bf16 bf16'; do
  read -r model dtype weights <<<"$how"
  rm -rf "$dir"/{model,run,peft,again,merged}
  letters_folder $model "$dir/model"
  "$train" --model "$dir/model" "${data[@]}" --lora 3 --lora-alpha 4.5 --steps 40 --dtype $dtype --out "$dir/run" >"$dir/table" || fail "tuning $model"
  grep -q "alpha 4.5, on .* are frozen in $weights\$" "$dir/table" || fail "the table is: $(cat "$dir/table")"
  last=$(value "$dir/run" 41 val_loss)
  [ "$(printf '%s\n' "${last#*:}" 3.3 | sort -g | head -1)" != 3.3 ] || fail "$model learns nothing: $last"
  "$export" --model "$dir/run" --to peft --out "$dir/peft" >"$dir/table" || fail "exporting $model to peft"
  tail -n 1 "$dir/table" | grep -q "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(\"$dir/model\"), \"$dir/peft\")" ||
    fail "the last line is: $(tail -n 1 "$dir/table")"
  "$export" --model "$dir/run" --merge --weights-dtype f32 --to hf --out "$dir/merged" >/dev/null || fail "merging $model"
  said=$(say --model "$dir/run")
  [ -n "$said" ] && [ "$said" != "$(say --model "$dir/model")" ] || fail "the adapter of $model has no effect: $said"
  for from in "--adapter $dir/peft" "--adapter $dir/run"; do
    [ "$(say --model "$dir/model" $from)" = "$said" ] || fail "$model writes a different text with $from"
  done
  [ "$(say --model "$dir/merged")" = "$said" ] || fail "$model writes a different text when merged"
  config() { grep -v dtype "$1/config.json" | tr -d ' ,' | sort; }
  diff <(config "$dir/model") <(config "$dir/merged") || fail "$model has a different config when merged"
done
"$export" --model "$dir/run" --to peft --weights-dtype bf16 --out "$dir/again" >/dev/null || fail "exporting in bf16"
[ $(($(stat -c %s "$dir/again/adapter_model.safetensors") * 2)) -lt $(($(stat -c %s "$dir/peft/adapter_model.safetensors") * 5 / 4 + 8000)) ] ||
  fail "bf16 needs as much space as f32"

# The error of an invalid input is one line.
refuses_command 2 '--lora requires --model' "$train" --text "$text" --lora 4 --out "$dir/x"
refuses_command 2 '--lora-targets requires --lora' "$train" --model "$folder" "${data[@]}" --lora-targets q_proj --out "$dir/x"
refuses_command 1 'target "q_prj" is not a Linear layer of the model, which has down_proj, gate_proj' "$train" --model "$folder" "${data[@]}" --lora 4 --lora-targets q_prj --out "$dir/x"
refuses_command 1 '--lora is 5, but' "$train" --resume --out "$dir/whole" --lora 5
refuses_command 1 'has an adapter: --merge adds it to the weights, --to peft writes only the adapter' "$export" --model "$dir/whole" --to hf --out "$dir/x"
refuses_command 1 'has no adapter, which --to peft needs' "$export" --model "$dir/full" --to peft --out "$dir/x"
refuses_command 1 'has no adapter, which --merge needs' "$export" --model "$dir/full" --merge --to hf --out "$dir/x"
refuses_command 2 '--merge writes a whole model' "$export" --model "$dir/whole" --merge --to peft --out "$dir/x"
refuses_command 2 "--model $folder has no adapter" "$export" --model "$folder" --to peft --out "$dir/x"
refuses_command 1 "$dir/whole is a run of train" "$generate" --model "$dir/whole" --adapter "$dir/peft"
refuses_command 1 'adapter_config.json: target "c_attn" is not a Linear layer of the model' "$generate" --prompt the --model "$folder" --adapter "$dir/peft"
refuses_command 1 'the adapter is of a model with ' "$generate" --prompt the --model "$folder" --adapter "$dir/run"
refuses_command 1 'there is no checkpoint in' "$generate" --prompt the --model "$folder" --adapter "$dir/nowhere"
change_copy "$dir/whole/last" "$generate" sed -i 's/\\"r\\": 4/\\"r\\": 5/'
refuses_command 1 'lora_A.weight' "$generate" --prompt the --model "$dir/changed"
mv "$folder" "$dir/moved"
refuses_command 1 "$folder" "$generate" --prompt the --model "$dir/whole"
refuses_command 1 "$folder" "$train" --resume --out "$dir/whole"
[ -n "$(say --model "$dir/moved" --adapter "$dir/whole")" ] || fail "a base that was moved"
[ -e "$dir/x" ] && fail "a rejected command leaves files"

[ $failed = 0 ] && echo "train --lora: all checks passed"
exit $failed
