# Shared functions for tests of the command-line tools. The tests source this file.
set -u
export LC_ALL=C  # treats files as bytes
dir=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# Checks that an invalid input causes one line on stderr that names the error, and the right exit code. The
# command's output is left in $dir/out.
refuses_command() {  # CODE WORD COMMAND...
  local code=$1 word=$2 got
  shift 2
  "$@" >"$dir/out" 2>"$dir/err" </dev/null
  got=$?
  [ $got = "$code" ] || fail "exit code $got, expected $code: $*"
  [ "$(wc -l <"$dir/err")" = 1 ] || fail "the error is not one line for $*: $(cat "$dir/err")"
  grep -q -- "$word" "$dir/err" || fail "no '$word' for $*: $(cat "$dir/err")"
}

# Updates the manifest after a checkpoint's file was changed. The arguments are CHECKPOINT COMMAND.... COMMAND
# reads the checkpoint and fails. Its error contains the current checksum of the file.
reseal() {
  local checkpoint=$1 sums
  shift
  sums=$("$@" 2>&1 </dev/null | sed -n 's/.* has XXH3-128 \([0-9a-f]*\), expected \([0-9a-f]*\) .*/s\/\2\/\1\//p')
  [ -n "$sums" ] || fail "no checksums from $*"
  sed -i "$sums" "$checkpoint/manifest.json"
}
# Creates $dir/changed, a copy of a checkpoint that COMMAND changes. The last argument of COMMAND is the model
# file. TOOL is a tool that reads checkpoints. change_copy CHECKPOINT TOOL COMMAND...
change_copy() {
  local checkpoint=$1 tool=$2
  shift 2
  rm -rf "$dir/changed"
  cp -rL "$checkpoint" "$dir/changed"
  "$@" "$dir/changed/model.safetensors"
  reseal "$dir/changed" "$tool" --model "$dir/changed"
}
# metadata KEY VALUE FILE: sets a metadata key of a safetensors file to a different value. The size of the
# file does not change. If the value is shorter, spaces are added. If it is longer, the value of a norm's
# setting is shortened.
metadata() {
  local old new=\"$1\":\"$2\" spare room
  old=$(grep -aoE "\"$1\":\"[^\"]*\"" "$3" | sed -n 1p)
  spare=$(grep -aoE '"setting\.[^"]*\.eps":"1e-0[56]",' "$3" | sed -n 1p)
  room=$((${#old} + ${#spare} - ${#new}))
  [ -n "$old" ] && [ $room -ge 0 ] || fail "no $1 in $3, or no room"
  sed -i "s/$old/$new$(printf '%*s' $room '')/${spare:+;s/$spare//}" "$3"
}
# Sets the last element of a file of f32 weights to NaN.
plant_nan() { plant '\0\0\300\177' "$1"; }
plant_1e6() { plant '\0\044\164\111' "$1"; }  # 1,000,000, which exceeds f16's range
plant() { printf "$1" | dd of="$2" bs=1 seek=$(($(stat -c %s "$2") - 4)) conv=notrunc status=none; }
# Creates the folder of a golden model. It has 37 tokens, and each token is a single character. letters_folder
# MODEL FOLDER
letters_folder() {
  local vocabulary
  mkdir "$2"
  cp "$(dirname "$0")/../io/pretrained/$1"/{config.json,generation_config.json,model*} "$2"
  vocabulary=$(i=0 && for c in a b c d e f g h i j k l m n o p q r s t u v w x y z Ġ . , ! '?' - A B C D E; do
    printf '%s"%s": %d' "${comma-}" "$c" $i && comma=', ' i=$((i + 1))
  done)
  printf '{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "pre_tokenizer":
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}, "decoder":
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "vocab": {%s}, "merges": []}}' "$vocabulary" >"$2/tokenizer.json"
}
