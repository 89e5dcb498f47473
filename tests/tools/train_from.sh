#!/usr/bin/env bash
# Tests fine-tuning, resuming and exporting models from Hugging Face folders: train_from.sh FOLDER_OF_TOOLS
. "$(dirname "$0")/tool.sh"
tools=$1
export=$tools/export train=$tools/train generate=$tools/generate evaluate=$tools/evaluate tokens=$tools/tokens
golden=$(dirname "$0")/../io/pretrained

folder=$dir/folder text=$dir/text.txt
letters_folder llama "$folder"
for i in $(seq 30); do printf 'the old tree stood by a river and said, good day|who are you, said the bird? i am a tree.|'; done >"$text"
tr '|' ' ' <"$text" >"$dir/plain.txt"
data=(--text "$text" --separator '|' --context 24 --batch 2 --warmup 0 --sample 0)
# The learning rate is constant, so the first steps do not depend on the total number of steps.
rate=(--lr 1e-3 --min-lr 1e-3 --eval-every 10)
tune() { "$train" --model "$folder" "${data[@]}" "$@"; }
value() { sed -n "$2p" "$1/metrics.jsonl" | grep -oE "\"$3\":[^,}]*"; }  # value RUN ROW KEY

tune "${rate[@]}" --steps 20 --dropout 0.1 --out "$dir/whole" >"$dir/table" || fail "fine-tuning"
grep -q "^from  *$folder: llama, weights in bf16, 31.9 KiB\$" "$dir/table" &&
  grep -q '^tokenizer  *hf, 37 tokens; token 2, "c", ends a document$' "$dir/table" &&
  grep -q "^model  *Llama: 2 layers, 4 heads, .*, context 96, weights from $folder, dropout 0.1\$" "$dir/table" &&
  grep -q '^training  *20 steps of 2 × 24 tokens, adamw, lr 0.001' "$dir/table" && grep -q '^before  *validation loss 4\.[0-9]*$' "$dir/table" ||
  fail "the table is: $(cat "$dir/table")"
# A document consists of its 48 or 40 characters and the end token.
grep -q '^text  *.*: 2,700 tokens, 37 in the vocabulary; 2,430 to train on, 270 held out$' "$dir/table" || fail "documents: $(cat "$dir/table")"
[ "$(value "$dir/whole" 1 step)" = '"step":0' ] && [ "$(value "$dir/whole" 1 train_loss)" = '"train_loss":null' ] ||
  fail "the first row is $(head -1 "$dir/whole/metrics.jsonl")"

# Resuming must not need the folder and must be bitwise exact.
letters_folder llama "$dir/gone"
"$train" --model "$dir/gone" "${data[@]}" "${rate[@]}" --steps 10 --dropout 0.1 --out "$dir/halves" >/dev/null || fail "the first half"
rm -r "$dir/gone"
"$train" --resume --steps 20 --out "$dir/halves" >"$dir/table" || fail "resuming"
grep -q "^from  *$dir/gone: llama, weights in the run\$" "$dir/table" || fail "the table is: $(cat "$dir/table")"
for file in model optimizer; do
  cmp "$dir"/{whole,halves}/last/$file.safetensors || fail "10 + 10 steps are not 20"
done
# the last row of a run is a validation on all held-out data
columns() { sed 's/,"tokens_per_s":[^}]*//' "$1/metrics.jsonl" | sed 11d; }
diff <(columns "$dir/whole") <(columns "$dir/halves") >/dev/null || fail "10 + 10 steps give different rows from 20"

# With a learning rate of 0, the model must not change: the loss and the bytes equal those of the base model.
tune --lr 0 --steps 2 --eval-every 1 --out "$dir/base" >/dev/null || fail "a rate of 0"
first=$(value "$dir/base" 1 val_loss)
[ "$first" = "$(value "$dir/base" 2 val_loss)" ] && [ "$first" = "$(value "$dir/whole" 1 val_loss)" ] || fail "the first loss is not the base's: $first"
"$export" --model "$dir/base" --to hf --weights-dtype bf16 --out "$dir/base-hf" >/dev/null || fail "exporting"
"$export" --model "$folder" --to hf --out "$dir/folder-hf" >/dev/null || fail "exporting the base"
diff -r "$dir/folder-hf" "$dir/base-hf" || fail "an unchanged model differs after the export"

# A tuned model must be exported with the settings of its original folder. The exported folder must generate
# the same text.
say() { "$generate" "$@" --prompt 'the old' --temperature 0 --context 40 2>/dev/null; }
for how in 'llama f32' 'gpt2 bf16' 'gemma3 f16' 'deepseek_v3 f32'; do
  read -r model dtype <<<"$how"
  rm -rf "$dir/model" "$dir/run" "$dir/hf"
  letters_folder $model "$dir/model"
  "$train" --model "$dir/model" "${data[@]}" --lr 3e-3 --steps 40 --dtype $dtype --out "$dir/run" >"$dir/table" || fail "tuning $model in $dtype"
  last=$(value "$dir/run" 41 val_loss)
  [ "$(printf '%s\n' "${last#*:}" 3.0 | sort -g | head -1)" != 3.0 ] || fail "$model learns nothing in $dtype: $last"
  "$export" --model "$dir/run" --to hf --out "$dir/hf" >/dev/null || fail "exporting $model"
  diff <(sed '/dtype/d' "$dir/model/config.json") <(sed '/dtype/d' "$dir/hf/config.json") || fail "$model has a different config"
  cmp "$dir"/{model,hf}/tokenizer.json || fail "$model has a different tokenizer"
  [ "$(say --model "$dir/run")" = "$(say --model "$dir/hf")" ] || fail "$model writes a different text"
done
# LongRoPE's rotations depend on the context of the model: here, on whether it is above 30. Checkpoints do not
# depend on it.
letters_folder phi3_long "$dir/long"
sed -i '/original_max_position_embeddings/s/5/30/' "$dir/long/config.json"
"$train" --model "$dir/long" "${data[@]}" --lr 3e-3 --steps 4 --out "$dir/long-run" >/dev/null || fail "tuning with LongRoPE"
"$train" --resume --steps 8 --out "$dir/long-run" >/dev/null || fail "resuming with LongRoPE"
"$export" --model "$dir/long-run" --to hf --out "$dir/long-hf" >/dev/null || fail "exporting with LongRoPE"
loss() { "$evaluate" --model "$1" --text "$dir/plain.txt" --context $2 --stride 8 | grep '^loss'; }
for context in 20 70; do
  [ "$(loss "$dir/long-run" $context)" = "$(loss "$dir/long-hf" $context)" ] || fail "with LongRoPE it predicts otherwise in a context of $context"
done
[ "$(say --model "$dir/long-run")" = "$(say --model "$dir/long-hf")" ] || fail "with LongRoPE it writes a different text"
# The model must learn that a sequence ends before the context is full. The sequences are short, so the model
# learns them for any rounding.
for i in $(seq 60); do printf 'a tree stood by a river|who are you?|'; done >"$dir/short.txt"
"$train" --model "$folder" --text "$dir/short.txt" "${data[@]:2}" --lr 5e-3 --steps 400 --out "$dir/learned" >/dev/null || fail "learning"
said=$("$generate" --model "$dir/learned" --prompt 'who are' --temperature 0 2>/dev/null)
[ "$said" = 'who are you?' ] || fail "it generates: $said"

# Tests token files with the folder's tokenizer, without a tokenizer, and, if the folder has none, with the
# tokenizer of the file.
tr '|' c <"$text" >"$dir/joined.txt"
"$tokens" --text "$dir/joined.txt" --tokenizer "$folder" --out "$dir/text.tokens" >/dev/null || fail "tokens"
short=(--context 24 --batch 2 --steps 2 --warmup 0 --sample 0 --overwrite --out "$dir/short")
"$train" --model "$folder" --tokens "$dir/text.tokens" "${short[@]}" >/dev/null || fail "its own tokens"
printf '\1\0\2\0\3\0\4\0\5\0\6\0\7\0\10\0%.0s' $(seq 50) >"$dir/plain"
"$train" --model "$folder" --tokens "$dir/plain" --plain u16 "${short[@]}" >/dev/null || fail "plain tokens"
"$train" --model "$golden/gpt2" --tokens "$dir/plain" --plain u16 "${short[@]}" >"$dir/table" || fail "plain tokens of a folder without tokenizer"
grep -q '^tokenizer  *none in the folder; token 2 ends a document$' "$dir/table" || fail "the table is: $(cat "$dir/table")"
"$train" --resume --steps 4 --out "$dir/short" >/dev/null || fail "resuming without a tokenizer"

# There may be several end tokens, here c and f. The tokenizer's end token must end a document, also after
# resuming. If the tokenizer has no end token, the first end token must end a document.
letters_folder llama3 "$dir/chat"
ends() {  # TOKEN EOS_TOKEN
  echo "{\"eos_token\": $2}" >"$dir/chat/tokenizer_config.json"
  "$train" --model "$dir/chat" "${data[@]}" --steps 1 --overwrite --out "$dir/short" >"$dir/table" || fail "eos_token $2"
  "$train" --resume --steps 2 --out "$dir/short" >>"$dir/table" || fail "resuming with eos_token $2"
  [ "$(grep -c "^tokenizer  *hf, 37 tokens; token $1, " "$dir/table")" = 2 ] || fail "eos_token $2: $(cat "$dir/table")"
}
ends 5 '"f"'
ends 5 '{"content": "f", "special": true}'
ends 2 '"z"'
ends 2 null
echo '{' >"$dir/chat/tokenizer_config.json"
refuses_command 1 'chat: tokenizer_config.json' "$train" --model "$dir/chat" "${data[@]}" --overwrite --out "$dir/short"

# Completions are learned, including the end token. Prompts are not learned. The model must also answer
# held-out prompts.
for a in a b d e h k; do
  for b in l m n o p q; do
    echo "{\"prompt\": \"say $a$b$a!\", \"completion\": \" $a$b$a.\", \"id\": 7}"
  done
done >"$dir/examples.jsonl"
echo '{"text": "a tree"}' >>"$dir/examples.jsonl"
asked=("$train" --model "$folder" --examples "$dir/examples.jsonl" --batch 4 --warmup 0 --lr 3e-3 --min-lr 3e-3)
"${asked[@]}" --steps 600 --sample 60 --out "$dir/asked" >"$dir/table" || fail "examples"
grep -q "^examples  *$dir/examples.jsonl: 37 examples of up to 14 tokens, 222 of 511 tokens to learn; 34 to train on, 3 held out\$" "$dir/table" &&
  grep -q '^training  *600 steps of 4 × 13 tokens' "$dir/table" && grep -q '^held-out prompt 1$' "$dir/table" || fail "the table is: $(cat "$dir/table")"
said=$("$generate" --model "$dir/asked" --prompt 'say hoh!' --temperature 0 2>/dev/null)
[ "$said" = 'say hoh! hoh.' ] || fail "asked to say hoh, it generates: $said"
"${asked[@]}" --steps 7 --sample 0 --out "$dir/asked-7" >/dev/null && "$train" --resume --steps 14 --out "$dir/asked-7" >/dev/null || fail "resuming examples"
"${asked[@]}" --steps 14 --sample 0 --out "$dir/asked-14" >/dev/null
cmp "$dir"/asked-{7,14}/last/model.safetensors || fail "7 + 7 steps on examples are not 14"
"${asked[@]}" --context 11 --steps 1 --sample 0 --out "$dir/cut" >"$dir/table"
grep -q '; 36 are cut to the context$' "$dir/table" || fail "the table is: $(cat "$dir/table")"

# A GGUF file must give the same numbers in f32 and the same exported models as the folder.
"$export" --model "$folder" --to gguf --out "$dir/base.gguf" --weights-dtype f32 >/dev/null || fail "exporting the base to GGUF"
"$train" --model "$dir/base.gguf" "${data[@]}" "${rate[@]}" --steps 20 --dropout 0.1 --out "$dir/whole-gguf" >"$dir/table" || fail "fine-tuning a GGUF file"
grep -q "^from  *$dir/base.gguf: llama, weights in f32, 63.9 KiB\$" "$dir/table" &&
  grep -q '^tokenizer  *hf, 37 tokens; token 2, "c", ends a document$' "$dir/table" &&
  grep -q '^text  *.*: 2,700 tokens, 37 in the vocabulary; 2,430 to train on, 270 held out$' "$dir/table" || fail "the table of a GGUF file is: $(cat "$dir/table")"
diff <(columns "$dir/whole") <(columns "$dir/whole-gguf") >/dev/null || fail "a GGUF file is tuned differently from its folder"
rm "$dir/base.gguf"
"$train" --resume --steps 22 --out "$dir/whole-gguf" >/dev/null || fail "resuming without the GGUF file"
"$train" --resume --steps 22 --out "$dir/whole" >/dev/null || fail "resuming"
[ "$(say --model "$dir/whole-gguf")" = "$(say --model "$dir/whole")" ] || fail "a tuned GGUF file writes a different text"
for form in hf gguf; do
  "$export" --model "$dir/whole-gguf" --to $form --out "$dir/whole-gguf.$form" >/dev/null || fail "exporting a tuned GGUF file to $form"
  [ "$(say --model "$dir/whole-gguf")" = "$(say --model "$dir/whole-gguf.$form")" ] || fail "a tuned GGUF file writes a different text in $form"
done
# With a learning rate of 0, the bytes must not change. This is also true for Q8_0, because dequantized values
# are quantized to the same blocks.
for dtype in bf16 q8_0; do
  "$export" --model "$folder" --to gguf --out "$dir/$dtype.gguf" --weights-dtype $dtype >/dev/null || fail "exporting the base in $dtype"
  "$train" --model "$dir/$dtype.gguf" "${data[@]}" --lr 0 --steps 1 --overwrite --out "$dir/base-gguf" >/dev/null || fail "a rate of 0 in $dtype"
  "$export" --model "$dir/base-gguf" --to gguf --out "$dir/$dtype" --weights-dtype $dtype >/dev/null || fail "exporting an unchanged model in $dtype"
  "$export" --model "$dir/$dtype.gguf" --to gguf --out "$dir/$dtype-again" --weights-dtype $dtype >/dev/null || fail "exporting $dtype.gguf"
  [ "$(tail -c 20000 "$dir/$dtype" | cksum)" = "$(tail -c 20000 "$dir/$dtype-again" | cksum)" ] || fail "$dtype.gguf, not tuned, has different bytes"
done
# Tests adapters on a GGUF model, separate and merged.
"$train" --model "$dir/q8_0.gguf" "${data[@]}" --lr 1e-2 --lora 4 --steps 20 --out "$dir/lora" >/dev/null || fail "adapters on a GGUF file"
"$train" --resume --steps 22 --out "$dir/lora" >/dev/null || fail "resuming adapters on a GGUF file"
"$export" --model "$dir/lora" --merge --to gguf --out "$dir/merged.gguf" --weights-dtype f32 >/dev/null || fail "merging into a GGUF file"
[ "$(say --model "$dir/lora")" = "$(say --model "$dir/merged.gguf")" ] || fail "a merged GGUF file writes a different text"
[ "$(say --model "$dir/lora")" = "$(say --model "$dir/q8_0.gguf" --adapter "$dir/lora")" ] || fail "a GGUF file with an adapter writes a different text"
# Without a tokenizer, training uses token ids.
"$export" --model "$golden/gpt2" --to gguf --out "$dir/bare.gguf" >/dev/null || fail "exporting without a tokenizer"
"$train" --model "$dir/bare.gguf" --tokens "$dir/plain" --plain u16 "${short[@]}" >"$dir/table" || fail "plain tokens of a GGUF file"
grep -q '^tokenizer  *none in the file; token 2 ends a document$' "$dir/table" || fail "the table is: $(cat "$dir/table")"

# The error of an invalid input is one line.
refuses() {  # CODE WORD ARGUMENTS...
  local code=$1 word=$2
  shift 2
  refuses_command "$code" "$word" "$train" "$@" --out "$dir/refused"
  [ -e "$dir/refused" ] && fail "a rejected run leaves a directory: $*" && rm -r "$dir/refused"
}
for option in '--architecture llama' '--width 32' '--layers 2' '--heads 4' '--tokenizer chars' '--vocabulary 37' '--init gpt2' '--init-std 0.1' '--theta 5' '--key-heads 2'; do
  refuses 2 "${option% *} cannot be used with --model: the model determines it" --model "$folder" --text "$text" $option
done
refuses 2 '--task cannot be used with --model' --model "$folder" --task add
refuses 2 'missing --text' --model "$folder"
refuses 2 '--context 97 exceeds the model.s 96' --model "$folder" --text "$text" --context 97
refuses 2 '--examples requires --model' --examples "$dir/examples.jsonl"
refuses 1 'nothing.jsonl: No such file' --model "$folder" --examples "$dir/nothing.jsonl"
refuses 2 'give only one of them' --model "$folder" --text "$text" --examples "$dir/examples.jsonl"
refuses 1 'has no tokenizer .*, which --examples needs' --model "$golden/gpt2" --examples "$dir/examples.jsonl"
refuses 1 'and 36 that have nothing to learn within 7 tokens' --model "$folder" --examples "$dir/examples.jsonl" --context 7
sed '5s/completion/answer/' "$dir/examples.jsonl" >"$dir/bad.jsonl"
refuses 1 'bad.jsonl, line 5: has no "completion"' --model "$folder" --examples "$dir/bad.jsonl"
refuses_command 1 'bad.jsonl is not the data of this run' "$train" --resume --out "$dir/asked" --examples "$dir/bad.jsonl"
refuses 2 '--separator requires --model' --text "$text" --separator '|'
refuses 2 '--separator requires --text' --model "$folder" --tokens "$dir/text.tokens" --separator '|'
refuses 1 'has no tokenizer .*, which --text needs' --model "$dir/bare.gguf" --text "$text"
refuses 1 'text.txt: does not begin with GGUF' --model "$text" --text "$text"
head -c 2000 "$dir/q8_0.gguf" >"$dir/cut.gguf"
refuses 1 'cut.gguf: ' --model "$dir/cut.gguf" --text "$text"
refuses 1 "$dir/nowhere: does not exist" --model "$dir/nowhere" --text "$text"
refuses 1 'has no tokenizer .*, which --text needs' --model "$golden/gpt2" --text "$text"
"$tokens" --text "$text" --tokenizer bytes --out "$dir/bytes.tokens" >/dev/null
refuses 1 'bytes.tokens has 256 tokens, the model 37' --model "$folder" --tokens "$dir/bytes.tokens"
"$tokens" --text "$text" --tokenizer chars --out "$dir/chars.tokens" >/dev/null
refuses 1 'chars.tokens was written with a different tokenizer' --model "$folder" --tokens "$dir/chars.tokens"
printf '\45\0%.0s' $(seq 400) >"$dir/high"
refuses_command 1 'high: ' "$train" --model "$folder" --tokens "$dir/high" --plain u16 --context 24 --steps 2 --out "$dir/high-run"
printf 'tree tree tree~tree' >"$dir/strange"
sed 's/"E": 36/"E": 37/' "$folder/tokenizer.json" >"$dir/tokenizer.json"
cp "$folder/tokenizer.json" "$dir/saved.json" && cp "$dir/tokenizer.json" "$folder/tokenizer.json"
refuses 1 'tokenizer.json: has 38 tokens, the model 37' --model "$folder" --text "$text"
cp "$dir/saved.json" "$folder/tokenizer.json"
refuses_command 1 'is not the data of this run' "$train" --resume --out "$dir/whole" --text "$dir/strange"
refuses_command 1 '--context is 12, but' "$train" --resume --out "$dir/whole" --context 12
refuses_command 1 '--separator is X, but' "$train" --resume --out "$dir/whole" --separator X
refuses_command 1 '--model is ' "$train" --resume --out "$dir/whole" --model "$dir/elsewhere"
change_copy "$dir/whole/last" "$generate" sed -i 's/"folder.config.json":"{/"folder\/config.json":"[/'
refuses_command 1 'changed/model.safetensors: config.json' "$generate" --model "$dir/changed"

# Tests ranks that read different weights.
cp -r "$folder" "$dir/of0" && cp -r "$folder" "$dir/of1"
on_two() { "$tools/launch" -n 2 bash -c 'exec "$0" --model "$1$RANK" "${@:2}"' "$train" "$dir/of" "${data[@]}" --steps 2 --out "$dir/ranks"; }
on_two >/dev/null || fail "two ranks with the same weights ended with $?"
rm -r "$dir/ranks"
weights=$(find "$dir/of1" -name '*.safetensors' | head -n 1)
printf '\1' | dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 2)) conv=notrunc status=none
on_two >/dev/null 2>"$dir/err" && fail "ranks with different weights train"
grep -q '\[ranks\] rank 1 has different weights from rank 0: expected the same on all ranks$' "$dir/err" || fail "ranks with different weights: $(cat "$dir/err")"

[ $failed = 0 ] && echo "train --model: all checks passed"
exit $failed
