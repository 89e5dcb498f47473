#!/usr/bin/env bash
# Tests the output and the errors of tools/train: train_tool.sh PATH/TO/train
. "$(dirname "$0")/tool.sh"
train=$1

text=$dir/text.txt
for i in $(seq 40); do echo "Line $i of a small text, für den Test: $((i * i)) and $((i * 7 % 11))."; done >"$text"
tiny=(--text "$text" --layers 1 --heads 2 --width 16 --context 16 --batch 2)
small=("${tiny[@]}" --steps 20 --eval-every 10 --warmup 5 --sample 30)

# A successful run must write every file and print a table before it starts.
"$train" "${small[@]}" --out "$dir/a/deep" >"$dir/a.txt" 2>"$dir/a.err" || fail "a valid run: $(cat "$dir/a.err")"
for file in {last,best}/{model.safetensors,manifest.json} metrics.jsonl loss.png; do
  [ -s "$dir/a/deep/$file" ] || fail "no $file"
done
[ "$(wc -l <"$dir/a/deep/metrics.jsonl")" = 20 ] || fail "metrics.jsonl does not have 20 rows"
[ "$(grep -c '"val_loss":[0-9]' "$dir/a/deep/metrics.jsonl")" = 2 ] || fail "not two validation losses"
[ "$(head -c 4 "$dir/a/deep/loss.png" | tail -c 3)" = PNG ] || fail "loss.png is not a PNG"
for word in parameters memory peak 'step 20/20' sample; do
  grep -q "^$word" "$dir/a.txt" || fail "the output has no line '$word'"
done
[ -s "$dir/a.err" ] && fail "a valid run writes to stderr: $(cat "$dir/a.err")"

# Equal seeds must give equal bytes for any number of threads. A different seed must give different bytes.
without_rate() { sed 's/,"tokens_per_s":[^}]*//' "$1"; }
for threads in 1 2 3; do
  "$train" "${small[@]}" --dropout 0.1 --threads $threads --out "$dir/t$threads" >/dev/null || fail "threads $threads"
  cmp -s "$dir/t1/last/model.safetensors" "$dir/t$threads/last/model.safetensors" || fail "different weights with $threads threads"
  [ "$(without_rate "$dir/t1/metrics.jsonl")" = "$(without_rate "$dir/t$threads/metrics.jsonl")" ] ||
    fail "different metrics with $threads threads"
done
"$train" "${small[@]}" --dropout 0.1 --seed 2 --out "$dir/s2" >/dev/null || fail "seed 2"
cmp -s "$dir/t1/last/model.safetensors" "$dir/s2/last/model.safetensors" && fail "two seeds give the same weights"

# With a memory budget, the memory must be within the budget, and the result must not change. The cost must be
# printed. If the budget is too small, the error must report the minimum.
deep=(--text "$text" --layers 4 --heads 2 --width 16 --context 16 --batch 2 --steps 4 --eval-every 2 --warmup 2 --sample 0
  --dropout 0.1)
"$train" "${deep[@]}" --out "$dir/free" >"$dir/free.txt" || fail "without a budget"
peak() { sed -n 's/^peak .*(\(.*\) bytes)$/\1/p' "$1" | tr -d ,; }
budget=$(($(peak "$dir/free.txt") * 97 / 100))
"$train" "${deep[@]}" --memory-budget $budget --out "$dir/limited" >"$dir/limited.txt" || fail "with a budget"
[ "$(peak "$dir/limited.txt")" -le $budget ] || fail "the budget is $budget, the peak $(peak "$dir/limited.txt")"
grep -q '^budget .* → .* steps* recomputed, which move .* ms a step at' "$dir/limited.txt" || fail "no cost: $(grep ^budget "$dir/limited.txt")"
cmp -s "$dir/free/last/model.safetensors" "$dir/limited/last/model.safetensors" || fail "different weights with a budget"
"$train" "${deep[@]}" --memory-budget 1GiB --out "$dir/wide" >"$dir/wide.txt" || fail "with a wide budget"
grep -q '^budget .*1.00 GiB: nothing is recomputed' "$dir/wide.txt" || fail "a wide budget: $(grep ^budget "$dir/wide.txt")"

# Training must work in every dtype, and weights must be written in f32. On the CPU, tf32 is identical to f32,
# but the 16-bit types differ.
for dtype in f32 tf32 bf16 f16; do
  "$train" "${small[@]}" --dtype $dtype --out "$dir/$dtype" >"$dir/$dtype.txt" || fail "dtype $dtype"
  grep -q "^training.* $dtype," "$dir/$dtype.txt" || fail "the table does not contain $dtype"
  head -c 4000 "$dir/$dtype/last/model.safetensors" | grep -a 'F32' >/dev/null || fail "no f32 weights with $dtype"
  head -c 4000 "$dir/$dtype/last/model.safetensors" | grep -aE '"(BF16|F16)"' >/dev/null && fail "16-bit weights with $dtype"
done
cmp -s "$dir/f32/last/model.safetensors" "$dir/tf32/last/model.safetensors" || fail "tf32 is not f32 on the CPU"
cmp -s "$dir/f32/last/model.safetensors" "$dir/bf16/last/model.safetensors" && fail "bf16 gives the weights of f32"
cmp -s "$dir/f16/last/model.safetensors" "$dir/bf16/last/model.safetensors" && fail "bf16 gives the weights of f16"
grep -q '^loss scale *65,536; 0 steps' "$dir/f16.txt" || fail "no loss scale with f16"
grep -q '^loss scale' "$dir/bf16.txt" && fail "a loss scale with bf16"

# Training with every tokenizer must run and be resumable. The learned tokenizer must be saved in the
# checkpoint.
for tokenizer in chars bytes bpe; do
  run=("${tiny[@]}" --tokenizer $tokenizer --eval-every 10 --warmup 5 --sample 30 --out "$dir/tok-$tokenizer")
  [ $tokenizer = bpe ] && run+=(--vocabulary 300)
  "$train" "${run[@]}" --steps 10 >"$dir/tok.txt" || fail "tokenizer $tokenizer"
  head -c 2000 "$dir/tok-$tokenizer/last/model.safetensors" | grep -a "\"tokenizer\":\"$tokenizer\"" >/dev/null ||
    fail "no tokenizer $tokenizer in the checkpoint"
  "$train" --resume --out "$dir/tok-$tokenizer" --steps 20 >"$dir/tok.txt" || fail "resuming with $tokenizer"
done
grep -q '^text .* tokens, 300 in the vocabulary; ' "$dir/tok.txt" || fail "bpe: $(grep ^text "$dir/tok.txt")"
# BPE is learned from the training part. The end of the text is held out. So if this end changes, merges must
# not change.
for end in xy zw; do
  { head -c 1800 "$text"; printf "$end%.0s" $(seq 100); } >"$dir/$end"
  "$train" --text "$dir/$end" "${tiny[@]:2}" --tokenizer bpe --vocabulary 300 --steps 1 --sample 0 --out "$dir/tok-$end" \
    >/dev/null || fail "a text that ends with $end"
done
merges() { grep -aoE '"merges":"[^"]*"' "$dir/tok-$1/last/model.safetensors"; }
[ -n "$(merges xy)" ] && [ "$(merges xy)" = "$(merges zw)" ] || fail "held-out text changes the tokenizer"
printf 'ab\377cd%.0s' $(seq 100) >"$dir/any"
"$train" "${tiny[@]}" --text "$dir/any" --tokenizer bytes --steps 2 --out "$dir/any-bytes" >/dev/null 2>&1 &&
  fail "--text twice is accepted"
"$train" --text "$dir/any" "${tiny[@]:2}" --tokenizer bytes --steps 2 --out "$dir/any-bytes" >/dev/null || fail "bytes that are not text"

# Tests the task: the accuracy in the metrics and at the end, and resuming. Results must be bitwise identical
# for any number of threads.
task=(--task add --digits 1 --layers 1 --heads 2 --width 16 --context 16 --batch 2 --steps 20 --eval-every 10 --sample 30)
for threads in 1 2; do
  "$train" "${task[@]}" --threads $threads --out "$dir/add$threads" >"$dir/add.txt" || fail "the task"
done
cmp -s "$dir"/add{1,2}/last/model.safetensors || fail "a different model of the task with 2 threads"
[ "$(grep -c '"val_accuracy":[0-9]' "$dir/add1/metrics.jsonl")" = 2 ] || fail "no accuracy in the metrics of the task"
grep -q '^exact match  *[0-9.]* % of 800 unseen answers' "$dir/add.txt" || fail "no exact match: $(cat "$dir/add.txt")"
grep -q '^  [0-9]+[0-9]=' "$dir/add.txt" || fail "no unseen sums are printed"
"$train" --resume --out "$dir/add1" --steps 30 >/dev/null || fail "resuming the task"
grep -q val_accuracy "$dir/a/deep/metrics.jsonl" && fail "an accuracy in the metrics of a text"

# Training must work for every architecture. A resumed run must have the same weights as an uninterrupted run.
for model in 'llama --key-heads 1' 'deepseek --latent 6 --query-latent 5 --rope-width 2'; do
  name=${model%% *}
  "$train" "${small[@]}" --architecture $model --save-every 10 --out "$dir/$name" >"$dir/$name.txt" || fail "model $model"
  grep -qi "^model *$name: " "$dir/$name.txt" || fail "the table does not contain $name"
  cp -r "$dir/$name" "$dir/$name-again"
  "$train" --resume --steps 25 --out "$dir/$name" >/dev/null || fail "resuming $model"
  "$train" --resume --steps 25 --threads 1 --out "$dir/$name-again" >/dev/null || fail "resuming $model again"
  cmp -s "$dir/$name/last/model.safetensors" "$dir/$name-again/last/model.safetensors" || fail "different weights, $model"
done

"$train" "${small[@]}" --init pytorch --out "$dir/pytorch" >"$dir/pytorch.txt" || fail "PyTorch's initial weights"
grep -q "^model.*weights from PyTorch's layers" "$dir/pytorch.txt" || fail "the table does not show the initialization"
"$train" --resume --steps 21 --out "$dir/pytorch" >/dev/null || fail "resuming with PyTorch's initial weights"
cmp -s "$dir/pytorch/best/model.safetensors" "$dir/f32/best/model.safetensors" && fail "PyTorch's weights are GPT-2's"

# Training must work with every schedule. The learning rate of the last step depends on the schedule.
for schedule in 'cosine 0.00010' 'linear 0.00016' 'constant 0.001' 'wsd 0.00032'; do
  "$train" "${small[@]}" --schedule ${schedule% *} --out "$dir/${schedule% *}" >"$dir/out" || fail "schedule $schedule"
  tail -n 1 "$dir/${schedule% *}/metrics.jsonl" | grep "\"lr\":${schedule#* }" >/dev/null || fail "the last rate of $schedule"
done

# --trap-nan must name the node. Without this option, the run continues and reports the number of skipped
# steps.
wild=("${tiny[@]}" --optimizer sgd --lr 1000 --clip 0 --warmup 0 --steps 30 --eval-every 30 --sample 0)
"$train" "${wild[@]}" --out "$dir/wild" >"$dir/out" || fail "a run with steps to skip"
grep -q '^skipped ' "$dir/out" || fail "no skipped steps: $(cat "$dir/out")"
"$train" "${wild[@]}" --trap-nan --out "$dir/trap" >/dev/null 2>"$dir/err" && fail "--trap-nan does not end the run"
grep -qE '^train: \[trap-nan\] step [0-9]+: [a-z_]+ \(.*\) made .* of f32 \[.*\] from finite numbers \(.*:[0-9]+\)$' "$dir/err" ||
  fail "--trap-nan prints: $(cat "$dir/err")"

# A profile must print the time of each step and write no files.
"$train" "${tiny[@]}" --profile 2 --threads 1 --out "$dir/profile" >"$dir/profile.txt" || fail "a profile"
for word in 'one run: ' 'ceilings: copy' ' matmul$' 'flash_attn_backward$' 'ceiling  step$'; do
  grep -q -- "$word" "$dir/profile.txt" || fail "the profile has no '$word'"
done
[ -z "$(find "$dir/profile" -type f 2>/dev/null)" ] || fail "a profile leaves files"

# An invalid input must cause one line on stderr that names the error, and the right exit code. Nothing else
# may be printed.
refuses() {  # CODE WORD ARGUMENTS...
  local code=$1 word=$2
  shift 2
  refuses_command "$code" "$word" "$train" "$@"
}
: >"$dir/empty"
printf 'ab\377cd' >"$dir/latin"
printf 'short text' >"$dir/short"
refuses 2 -- 
refuses 2 --frobnicate --text "$text" --frobnicate
refuses 2 --steps --text "$text" --step 7
refuses 2 --steps --text "$text" --steps none
refuses 2 --steps --text "$text" --steps 0
refuses 2 --heads --text "$text" --width 130 --heads 4
refuses 2 --latent --text "$text" --latent 8
refuses 2 --key-heads --text "$text" --architecture deepseek --key-heads 2
refuses 2 --theta --text "$text" --theta 100
refuses 2 --init-std --text "$text" --init pytorch --init-std 0.1
refuses 2 'key heads' --text "$text" --architecture llama --key-heads 3
refuses 2 rotary --text "$text" --architecture deepseek --rope-width 3
refuses 2 'gpt, llama, deepseek' --text "$text" --architecture bert
refuses 2 --min-lr --text "$text" --lr 1e-3 --min-lr 1
refuses 2 --momentum --text "$text" --momentum 0.5
refuses 2 --nesterov --text "$text" --nesterov
refuses 2 --decay-part --text "$text" --decay-part 0.5
refuses 2 --weight-decay --text "$text" --optimizer adam --weight-decay 0.1
refuses 2 --dropout --text "$text" --dropout 1
refuses 2 'f32, tf32, bf16, f16' --text "$text" --dtype fp8
refuses 2 --dtype --text "$text" --dtype bf16 --dtype f16
refuses 2 '--text.*--task' --text "$text" --task add
refuses 2 --digits --text "$text" --digits 3
refuses 2 --tokenizer --task add --tokenizer bytes
refuses 2 --vocabulary --text "$text" --vocabulary 300
refuses 2 'chars, bytes, bpe' --text "$text" --tokenizer words
refuses 1 'needs 12 tokens' --task add --digits 3 --context 8 --out "$dir/x"
refuses 1 'is not the data of this run' --resume --text "$dir/any" --out "$dir/tok-bytes"
refuses 1 missing.txt --text "$dir/missing.txt" --out "$dir/x"
refuses 1 empty --text "$dir/empty" --out "$dir/x"
refuses 1 UTF-8 --text "$dir/latin" --out "$dir/x"
refuses 1 context --text "$dir/short" --out "$dir/x"
refuses 1 "$dir" --text "$dir" --out "$dir/x"
refuses 1 "$text" "${small[@]}" --out "$text"
refuses 1 'needs at least' "${deep[@]}" --memory-budget 64KiB --out "$dir/x"
refuses 2 'size like 500MiB' "${deep[@]}" --memory-budget much --out "$dir/x"
refuses 1 memory --text "$text" --context 16 --width 16384 --heads 1 --layers 256 --out "$dir/x"
# If a batch is too large, the error must report the required memory, the free memory, and the largest batch
# that fits.
large=(--text "$text" --layers 64 --width 64 --heads 1 --context 128)
refuses 1 '--batch 65536 needs .* are free: the largest that fits is --batch [1-9]' "${large[@]}" --batch 65536 --out "$dir/x"
if [ "$(uname)" = Linux ] && (ulimit -v 400000 && "$train" --help >/dev/null 2>&1); then  # CUDA's libraries need more
  fits() { (ulimit -v 400000; "$train" --text "$text" --layers 1 --heads 2 --width 16 --context 16 --threads 2 --steps 1 --sample 0 \
    --out "$dir/fits$1" --batch "$1") >"$dir/out" 2>"$dir/err"; }
  fits 60000 && fail "a batch of 60000 fits in 400 MB"
  batch=$(sed -n 's/.*the largest that fits is --batch //p' "$dir/err")
  fits $((batch * 9 / 10)) || fail "nine tenths of the largest batch, $batch, do not fit: $(cat "$dir/err")"
  fits $((batch * 11 / 10)) && fail "the largest batch is not $batch"
fi
[ -e "$dir/x/metrics.jsonl" ] && fail "a rejected run leaves metrics"
if [ "$(id -u)" != 0 ]; then
  mkdir "$dir/locked" && chmod a-w "$dir/locked"
  refuses 1 locked "${small[@]}" --out "$dir/locked/run"
fi
# A file reaches its size limit when a row is written. 1 KiB holds 12 rows.
(ulimit -f 1; refuses 1 'metrics.jsonl.*File too large' "${tiny[@]}" --steps 1000 --eval-every 1000 --sample 0 --out "$dir/full"; exit $failed) || failed=1

# The checkpoint has correct checksums, but its metadata contradicts its tensors. It must be rejected, and no
# byte of the run may change.
lies() {  # FILE WORD COMMAND...: COMMAND changes FILE, which is appended to its arguments
  local file=$1 word=$2
  shift 2
  rm -rf "$dir/changed" "$dir/kept"
  cp -a "$dir/f32" "$dir/changed"
  "$@" "$dir/changed/last/$file"
  reseal "$dir/changed/last" "$train" --resume --steps 30 --out "$dir/changed"
  cp -a "$dir/changed" "$dir/kept"
  refuses 1 "changed/last/$file: .*$word" --resume --steps 30 --out "$dir/changed"
  diff -r "$dir/changed" "$dir/kept" >"$dir/diff" || fail "a changed checkpoint is changed: $(cat "$dir/diff")"
}
lies model.safetensors "heads '4', but the run was started with '2'" sed -i 's/"heads":"2"/"heads":"4"/'
lies model.safetensors "context '17', but the run was started with '16'" sed -i 's/"context":"16"/"context":"17"/'
lies model.safetensors "tokenizer is 'chart'" sed -i 's/"tokenizer":"chars"/"tokenizer":"chart"/'
lies model.safetensors 'has nan at element' plant_nan
lies optimizer.safetensors 'has nan at element' plant_nan

# Tests impossible values in the state.
lies run.safetensors "best_loss 'nan'" metadata best_loss nan
lies run.safetensors "best_loss '-1'" metadata best_loss -1
lies run.safetensors "step 19" sed -i 's/"step":"20"/"step":"19"/'
lies run.safetensors "step 21 and best_step .*, but manifest.json has 20" sed -i 's/"step":"20"/"step":"21"/'
lies model.safetensors "step '19', but the run is at step 20" sed -i 's/"step":"20"/"step":"19"/'
lies model.safetensors 'with transformer.ln_f.eps = 2e-05, this one has 1e-05' sed -i 's/ln_f.eps":"1e-05"/ln_f.eps":"2e-05"/'
place() {  # FILE TENSOR: the offset of the tensor's first byte
  local header=$(od -An -tu8 -N8 "$1" | tr -d ' ')
  local begin=$(head -c $((8 + header)) "$1" | tail -c "$header" | sed 's/.*"'"$2"'":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
  echo $((8 + header + begin))
}
plant() {  # TENSOR BYTES FILE: sets the tensor's first element
  printf "$2" | dd of="$3" bs=1 seek="$(place "$3" "$1")" conv=notrunc status=none
}
minus_one='\0\0\200\277' minus_five='\0\0\240\300' nineteen='\0\0\230\101' infinity='\0\0\200\177'
lies optimizer.safetensors 'optimizer.v.*wte.weight has -1.*never negative' plant optimizer.v.transformer.wte.weight "$minus_one"
lies optimizer.safetensors 'optimizer.step has -5.*never negative' plant optimizer.step "$minus_five"
lies optimizer.safetensors 'are 19, but the run is at step 20' plant optimizer.step "$nineteen"
lies optimizer.safetensors 'optimizer.skipped has inf' plant optimizer.skipped "$infinity"

# A user's directory must never be removed, regardless of its name.
mkdir -p "$dir/kept-out/step-00000007" "$dir/kept-out/.checkpoint-tmp-old"
echo mine | tee "$dir/kept-out/step-00000007/precious" >"$dir/kept-out/.checkpoint-tmp-old/precious"
"$train" "${tiny[@]}" --steps 3 --out "$dir/kept-out" >/dev/null || fail "a run next to a user's directory"
"$train" --resume --steps 5 --save-every 1 --out "$dir/kept-out" >/dev/null || fail "resumed next to a user's directory"
"$train" "${tiny[@]}" --steps 3 --overwrite --out "$dir/kept-out" >/dev/null || fail "--overwrite next to a user's directory"
[ "$(cat "$dir/kept-out/step-00000007/precious" "$dir/kept-out/.checkpoint-tmp-old/precious")" = $'mine\nmine' ] ||
  fail "a user's directory was removed"

# A value that a checkpoint cannot store is rejected before training, not at the first save.
cp "$text" "$dir/t"$'\xff'
refuses 2 'is not UTF-8' "${tiny[@]:2}" --text "$dir/t"$'\xff' --out "$dir/x"
refuses 2 "'gpt.n'" --text "$text" --architecture $'gpt\n'
refuses 1 'no.nsuch' --text $'no\nsuch'

# If rows cannot be written, the run must report this and save the steps.
"$train" "${tiny[@]}" --steps 1000000 --save-every 200 --eval-every 1000000 --out "$dir/rowless" >/dev/null 2>"$dir/err" </dev/null &
for _ in $(seq 1000); do [ -s "$dir/rowless/metrics.jsonl" ] && break; sleep 0.01; done
mv "$dir/rowless/metrics.jsonl" "$dir/taken" && mkdir "$dir/rowless/metrics.jsonl"
wait $!
[ $? = 1 ] || fail "rows are lost without an error"
[ "$(wc -l <"$dir/err")" = 1 ] && grep -q 'metrics.jsonl was re' "$dir/err" || fail "lost rows are reported as: $(cat "$dir/err")"
[ "$(readlink "$dir/rowless/last")" = "$(printf step-%08d "$(wc -l <"$dir/taken")")" ] || fail "steps are lost with their rows"

# The last line of the progress shows the last validation loss.
"$train" "${tiny[@]}" --steps 20 --eval-every 10 --sample 0 --out "$dir/shown" >"$dir/out" || fail "a run with progress"
shown=$(sed -n 's/^step 20\/20 .*| val \([0-9.]*\) .*/\1/p' "$dir/out")
[ -n "$shown" ] && grep -q "validation loss $shown\$" "$dir/out" || fail "the last line shows a different loss: $(grep -E '^(step|done)' "$dir/out")"

"$train" "${tiny[@]}" --steps 1 --sample 0 --out "$dir/one" >"$dir/out" || fail "one step"
grep -q '^training *1 step of ' "$dir/out" && grep -q '^done *1 step in ' "$dir/out" || fail "one step: $(cat "$dir/out")"

# If a device does not exist or its name is invalid, the error must be one line, on any build and any machine.
for name in gpu cuda: cuda:x cuda:-1 cuda:1e1 cuda:99999999999 CUDA ''; do
  refuses 2 '--backend' "${small[@]}" --backend "$name" --out "$dir/x"
done
refuses 1 'cuda' "${small[@]}" --backend cuda:63 --out "$dir/x"
export CUDA_VISIBLE_DEVICES=  # hides GPUs from the tool
refuses 1 'no CUDA backend\|no GPU' "${small[@]}" --backend cuda --out "$dir/x"
unset CUDA_VISIBLE_DEVICES
[ -e "$dir/x/metrics.jsonl" ] && fail "a rejected run leaves metrics"

"$train" --help | grep '^examples:' >/dev/null || fail "--help has no examples"
[ $failed = 0 ] && echo "train: all checks passed"
exit $failed
