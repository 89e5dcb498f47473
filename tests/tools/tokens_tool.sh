#!/usr/bin/env bash
# Tests the tool `tokens` and training on its files: tokens_tool.sh PATH/TO/tokens PATH/TO/train
. "$(dirname "$0")/tool.sh"
tokens=$1 train=$2

text=$dir/text.txt
for i in $(seq 60); do echo "Line $i of a small text, für den Test: $((i * i)) and $((i * 7 % 11))."; done >"$text"
small=(--layers 1 --heads 2 --width 16 --context 16 --batch 2 --steps 10 --warmup 2 --eval-every 5 --sample 20 --threads 1)
without_rate() { sed 's/,"tokens_per_s":[^}]*//' "$1"; }

# Training on a token file must be bitwise identical to training on its text.
for tokenizer in chars bytes; do
  "$tokens" --text "$text" --tokenizer $tokenizer --out "$dir/$tokenizer.tokens" >"$dir/out" || fail "tokens $tokenizer"
  "$train" --text "$text" --tokenizer $tokenizer "${small[@]}" --out "$dir/$tokenizer-text" >/dev/null || fail "text $tokenizer"
  "$train" --tokens "$dir/$tokenizer.tokens" "${small[@]}" --out "$dir/$tokenizer-file" >/dev/null || fail "file $tokenizer"
  cmp -s "$dir/$tokenizer"-{text,file}/last/model.safetensors || fail "a different model from a token file: $tokenizer"
  [ "$(without_rate "$dir/$tokenizer-text/metrics.jsonl")" = "$(without_rate "$dir/$tokenizer-file/metrics.jsonl")" ] ||
    fail "different metrics from a token file: $tokenizer"
done

# Tests a learned tokenizer, the use of this tokenizer for a second text, and a resumed run.
"$tokens" --text "$text" --vocabulary 300 --out "$dir/bpe.tokens" >"$dir/out" || fail "tokens bpe"
grep -q '^tokenizer  *bpe, 300 tokens' "$dir/out" || fail "the tool prints: $(cat "$dir/out")"
head -n 30 "$text" >"$dir/other.txt"
"$tokens" --text "$dir/other.txt" --like "$dir/bpe.tokens" --out "$dir/like.tokens" >"$dir/out" || fail "tokens --like a file"
grep -q '^tokenizer  *bpe, 300 tokens' "$dir/out" || fail "--like prints: $(cat "$dir/out")"
"$train" --tokens "$dir/bpe.tokens" "${small[@]}" --out "$dir/run" >"$dir/out" || fail "training on bpe tokens"
grep -q '^text .* tokens, 300 in the vocabulary' "$dir/out" || fail "the table is: $(cat "$dir/out")"
"$tokens" --text "$text" --like "$dir/run" --out "$dir/again.tokens" >/dev/null || fail "tokens --like a run"
cmp -s "$dir"/{bpe,again}.tokens || fail "the tokenizer of a run gives different tokens"
"$train" --resume --out "$dir/run" --steps 15 >/dev/null || fail "resuming on tokens"
mv "$dir/bpe.tokens" "$dir/moved.tokens"
"$train" --resume --out "$dir/run" --steps 20 --tokens "$dir/moved.tokens" >/dev/null || fail "resuming after the token file moved"

# Tests a tokenizer.json: ids and tokens of a string, and token files.
folder=$(dirname "$0")/../io/tokenizers/llama3
"$tokens" --tokenizer "$folder" 'Hello <|eot_id|>' >"$dir/out" || fail "tokens of a text"
grep -q '^ids  *901 .* 903$' "$dir/out" || fail "ids are $(cat "$dir/out")"
grep -q '^903  *<|eot_id|>  (added token)$' "$dir/out" || fail "pieces are $(cat "$dir/out")"
"$tokens" --tokenizer "$folder/tokenizer.json" 'Hello <|eot_id|>' | cmp -s - "$dir/out" || fail "a file gives different tokens from its folder"
"$tokens" --text "$text" --tokenizer "$folder" --out "$dir/hf.tokens" >"$dir/out" || fail "tokens by a tokenizer.json"
grep -q '^tokenizer  *hf, 904 tokens' "$dir/out" || fail "the tool prints: $(cat "$dir/out")"
"$train" --tokens "$dir/hf.tokens" "${small[@]}" --out "$dir/hf" >"$dir/out" || fail "training on tokens of a tokenizer.json"
"$tokens" --text "$text" --like "$dir/hf" --out "$dir/again.tokens" --overwrite >/dev/null || fail "tokens --like a run with a tokenizer.json"
cmp -s "$dir"/{hf,again}.tokens || fail "the tokenizer.json of a run gives different tokens"

# Tests plain ids, as other tools write them.
tail -c 400 "$dir/moved.tokens" >"$dir/plain.bin"
"$train" --tokens "$dir/plain.bin" --plain u16 --vocabulary 300 "${small[@]}" --out "$dir/plain" >"$dir/out" || fail "plain ids"
tail -n 1 "$dir/out" | grep -E '^([0-9]+ ){20}$' >/dev/null || fail "the sample of plain ids is: $(tail -n 1 "$dir/out")"
"$train" --resume --out "$dir/plain" --steps 12 >/dev/null || fail "resuming on plain ids"

: >"$dir/empty"
refuses_command 2 --out "$tokens" --text "$text"
refuses_command 2 --like "$tokens" --text "$text" --out "$dir/x" --like "$dir/like.tokens" --vocabulary 300
refuses_command 2 --vocabulary "$tokens" --text "$text" --out "$dir/x" --tokenizer bytes --vocabulary 300
refuses_command 2 'printing the tokens of a string' "$tokens" 'Hello'
refuses_command 2 'printing the tokens of a string' "$tokens" --tokenizer "$folder" --text "$text" 'Hello'
refuses_command 2 required "$tokens" --tokenizer "$folder"
refuses_command 1 'cannot read nowhere' "$tokens" --tokenizer nowhere 'Hello'
head -c 5000 "$folder/tokenizer.json" >"$dir/cut.json"
refuses_command 1 'at byte' "$tokens" --tokenizer "$dir/cut.json" 'Hello'
refuses_command 1 empty "$tokens" --text "$dir/empty" --out "$dir/x"
refuses_command 1 'not a token file' "$tokens" --text "$text" --out "$dir/x" --like "$text"
refuses_command 1 'no/x' "$tokens" --text "$text" --out "$dir/no/x"
cp "$dir/like.tokens" "$dir/x.tokens"  # existing files must remain unchanged
printf 'жук' >"$dir/other_letters"
"$tokens" --text "$text" --tokenizer chars --out "$dir/chars.tokens" --overwrite >/dev/null || fail "tokens chars"
refuses_command 1 'not in the vocabulary' "$tokens" --text "$dir/other_letters" --like "$dir/chars.tokens" --out "$dir/x.tokens" --overwrite
refuses_command 1 'would replace' "$tokens" --text "$dir/x.tokens" --tokenizer bytes --out "$dir/x.tokens"
refuses_command 1 'would replace' "$tokens" --text "$text" --like "$dir/x.tokens" --out "$dir/x.tokens"
cp "$folder/tokenizer.json" "$dir/same.json"
refuses_command 1 'would replace' "$tokens" --text "$text" --tokenizer "$dir/same.json" --out "$dir/same.json" --overwrite
for i in $(seq 40); do cat "$text"; done >"$dir/long"  # 100 KB of tokens do not fit in 4 KiB
(ulimit -f 4; refuses_command 1 'File too large' "$tokens" --text "$dir/long" --tokenizer bytes --out "$dir/x.tokens" --overwrite; exit $failed) || failed=1
cmp -s "$dir"/{like,x}.tokens || fail "a rejected call changes existing files"
rm "$dir/x.tokens"
mkfifo "$dir/pipe"
refuses_command 1 'expected a regular file' "$tokens" --text "$text" --out "$dir/pipe" --overwrite
[ -p "$dir/pipe" ] || fail "a pipe is replaced"
ln -s "$dir/like.tokens" "$dir/link"
cp "$dir/like.tokens" "$dir/kept"
refuses_command 1 'symbolic link' "$tokens" --text "$text" --like "$dir/chars.tokens" --out "$dir/link" --overwrite
[ -L "$dir/link" ] && cmp -s "$dir/kept" "$dir/like.tokens" || fail "a link is followed or replaced"
[ -z "$(find "$dir" -name 'x*')" ] || fail "a rejected call leaves $(find "$dir" -name 'x*')"
refuses_command 2 'one of them' "$train" --tokens "$dir/like.tokens" --text "$text"
refuses_command 2 --tokenizer "$train" --tokens "$dir/like.tokens" --tokenizer bytes
refuses_command 2 --plain "$train" --text "$text" --plain u16
refuses_command 2 --vocabulary "$train" --tokens "$dir/plain.bin" --plain u16
refuses_command 1 'not a token file' "$train" --tokens "$text" --out "$dir/y"
refuses_command 1 'expected below the vocabulary of 100' "$train" --tokens "$dir/plain.bin" --plain u16 --vocabulary 100 "${small[@]}" --out "$dir/y"
refuses_command 1 'is not the data of this run' "$train" --resume --out "$dir/run" --tokens "$dir/like.tokens"
head -c 300 "$dir/moved.tokens" >"$dir/cut.tokens"
refuses_command 1 'truncated\|bytes of ids' "$train" --tokens "$dir/cut.tokens" --out "$dir/y"
# If a file shrinks while it is read, the run must end with a one-line error.
shrinks() {  # FILE COMMAND...
  local file=$1 pid code
  shift
  "$@" >"$dir/out" 2>"$dir/err" </dev/null &
  pid=$!
  for i in $(seq 600); do [ "$(grep -c step "$dir/shrinking/metrics.jsonl" 2>/dev/null)" -ge 1 ] 2>/dev/null && break; sleep 0.1; done
  truncate -s 1000 "$file"
  wait $pid
  code=$?
  [ $code = 1 ] && [ "$(wc -l <"$dir/err")" = 1 ] && grep -q "$file: it shrank" "$dir/err" || fail "code $code after $file shrank: $(cat "$dir/err")"
}
for i in $(seq 20); do cat "$dir/long"; done >"$dir/longer"
"$tokens" --text "$dir/longer" --tokenizer bytes --out "$dir/longer.tokens" >/dev/null || fail "tokens of a long text"
shrinks "$dir/longer.tokens" "$train" --tokens "$dir/longer.tokens" --layers 1 --heads 1 --width 8 --context 16 --batch 2 --threads 1 \
  --sample 0 --steps 100000000 --eval-every 100000000 --out "$dir/shrinking"

"$tokens" --help | grep '^examples:' >/dev/null || fail "--help has no examples"
[ $failed = 0 ] && echo "tokens: all checks passed"
exit $failed
