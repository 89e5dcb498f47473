#!/usr/bin/env bash
# Tests that tools neither replace nor follow files of other programs: foreign_files.sh FOLDER_OF_TOOLS
. "$(dirname "$0")/tool.sh"
tools=$1
train=$tools/train

echo precious >"$dir/outside"
mkdir "$dir/elsewhere" && echo precious >"$dir/elsewhere/file"
text=$dir/text.txt
for i in $(seq 40); do echo "Line $i of a small text: $((i * i)) and $((i * 7 % 11))."; done >"$text"
small=(--text "$text" --layers 1 --heads 1 --width 8 --context 8 --batch 2 --threads 1 --sample 0 --steps 4 --eval-every 2)

# Creates a file of a kind at a path.
plant() {  # KIND PATH
  case $1 in
    file) echo mine >"$2" ;;
    link) ln -s "$dir/outside" "$2" ;;
    folder_link) ln -s "$dir/elsewhere" "$2" ;;
    dangling) ln -s "$dir/nowhere" "$2" ;;
    pipe) mkfifo "$2" ;;
    folder) mkdir "$2" && echo mine >"$2/mine" ;;
  esac
}
kinds='file link folder_link dangling pipe folder'
# Prints all names, kinds, targets and contents below a folder.
content() { (cd "$1" && find . -printf '%p %y %l %i\n' | sort && find . -type f -exec cksum {} + | sort); }
untouched() {
  [ "$(cat "$dir/outside")" = precious ] && [ "$(cat "$dir/elsewhere/file")" = precious ] && [ "$(ls "$dir/elsewhere")" = file ] &&
    [ ! -e "$dir/nowhere" ] || fail "$*: something outside was changed"
}
refuses_all() {  # WHAT FOLDER WORD COMMAND...: the command is rejected and changes nothing in the folder
  local what=$1 folder=$2 word=$3 before
  shift 3
  before=$(content "$folder")
  refuses_command 1 "$word" timeout 60 "$@"
  [ "$(content "$folder")" = "$before" ] || fail "$what: something was changed by $*"
  untouched "$what"
}

# Runs train in a folder with a foreign file, and in the folder of a run to which a foreign file was added.
"$train" "${small[@]}" --out "$dir/good" >/dev/null || fail "training"
for name in last best metrics.jsonl loss.png run.json step-00000002 .checkpoint-tmp .checkpoint-tmp-removed .checkpoint-tmp-last; do
  for kind in $kinds; do
    rm -rf "$dir/into"
    mkdir "$dir/into"
    plant $kind "$dir/into/$name"
    refuses_all "$kind $name" "$dir/into" "into/$name" "$train" "${small[@]}" --out "$dir/into"
    refuses_all "$kind $name" "$dir/into" "into/$name" "$train" "${small[@]}" --out "$dir/into" --overwrite
    case $kind-$name in  # regular files with these names are treated as the run's
      file-metrics.jsonl | file-loss.png) continue ;;
    esac
    rm -rf "$dir/into"
    cp -a "$dir/good" "$dir/into"
    rm -rf "$dir/into/$name"
    plant $kind "$dir/into/$name"
    refuses_all "$kind $name in a run" "$dir/into" "into/" "$train" "${small[@]}" --out "$dir/into" --overwrite
    [ $name = step-00000002 ] && continue  # a resumed run does not write it
    refuses_all "$kind $name in a run" "$dir/into" "into/" "$train" --resume --steps 6 --out "$dir/into"
  done
done
for kind in $kinds; do
  rm -rf "$dir/into"
  cp -a "$dir/good" "$dir/into"
  plant $kind "$dir/into/step-00000006"
  refuses_all "$kind for a later step" "$dir/into" "into/step-00000006" "$train" --resume --steps 6 --out "$dir/into"
done
# train accepts a link to a folder, and other files in this folder.
rm -rf "$dir/into"
mkdir "$dir/into" && ln -s into "$dir/into_link"
for kind in $kinds; do plant $kind "$dir/into/my_$kind"; done
before=$(content "$dir/into")
for extra in '' --overwrite --overwrite; do
  "$train" "${small[@]}" --out "$dir/into_link" $extra >/dev/null || fail "training in a folder with other files, $extra"
done
"$train" --resume --steps 6 --out "$dir/into_link" >/dev/null || fail "resuming there"
for kind in $kinds; do [ -e "$dir/into/my_$kind" ] || [ -L "$dir/into/my_$kind" ] || fail "$kind was removed"; done
untouched "other files"
# A backup may contain hard links to a run's files. The content of these links must not change.
rm -rf "$dir/into"
cp -al "$dir/good" "$dir/into"
before=$(content "$dir/good")
"$train" --resume --steps 6 --out "$dir/into" >/dev/null || fail "resuming a copy of hard links"
[ "$(content "$dir/good")" = "$before" ] || fail "resuming a copy of hard links changes the original"
rm -rf "$dir/into"
cp -al "$dir/good" "$dir/into"
"$train" "${small[@]}" --seed 2 --overwrite --out "$dir/into" >/dev/null || fail "replacing a copy of hard links"
[ "$(content "$dir/good")" = "$before" ] || fail "replacing a copy of hard links changes the original"

# Tests tools that write a single file.
files() {  # NAME COMMAND...: the last argument is an option for a file whose name ends in $suffix
  local name=$1 kind
  shift
  rm -rf "$dir/file"
  mkdir "$dir/file"
  for kind in $kinds; do
    plant $kind "$dir/file/$kind$suffix"
    refuses_command "$code" "file/$kind$suffix" timeout 60 "$@" "$dir/file/$kind$suffix"
    [ $kind = file ] || refuses_command "$code" "file/$kind$suffix" timeout 60 "$@" "$dir/file/$kind$suffix" --overwrite
  done
  untouched "$name"
  [ "$(cat "$dir/file/file$suffix")" = mine ] || fail "$name replaces a file"
  timeout 60 "$@" "$dir/file/file$suffix" --overwrite >/dev/null 2>&1 || fail "$name does not replace a file despite --overwrite"
  [ "$(cat -v "$dir/file/file$suffix")" = mine ] && fail "$name leaves a file with --overwrite"
  timeout 60 "$@" "$dir/file/new$suffix" >/dev/null 2>&1 && [ -s "$dir/file/new$suffix" ] || fail "$name writes no new file"
  [ "$(ls -A "$dir/file" | wc -l)" = 7 ] || fail "$name leaves $(ls -A "$dir/file")"
}
code=1 suffix=
files tokens "$tools/tokens" --text "$text" --tokenizer bytes --out
tiny=(--layers 1 --heads 1 --width 8 --context 8)
files 'inspect --graphviz' "$tools/inspect" "${tiny[@]}" --graphviz
files 'bench --json' "$tools/bench" overhead --quick --shape 10 --json
suffix=.png
for option in --plot-plan --plot-attention-memory; do files "inspect $option" "$tools/inspect" "${tiny[@]}" "$option"; done
files 'inspect --plot-reads' "$tools/inspect" --heads 1 --width 64 --length 512 --fast-memory 64 --plot-reads
files 'inspect --plot-attention' "$tools/inspect" --model "$dir/good" --prompt Line --plot-attention
files 'inspect --plot-curves' "$tools/inspect" --run "$dir/good" --plot-curves
code=2
files 'gradcheck --plot' "$tools/gradcheck" --op exp --quick --dtypes f64 --views contiguous --plot
suffix=
files 'gradcheck --json' "$tools/gradcheck" --op exp --quick --dtypes f64 --views contiguous --json
refuses_command 1 'two outputs' "$tools/inspect" "${tiny[@]}" --plot-plan "$dir/same.png" --plot-reads "$dir/same.png"
"$tools/gradcheck" --op exp --quick --dtypes f64 --json /dev/stdout 2>&1 | grep -q '"name"\|{' || fail "no report on /dev/stdout"

# Tests existing targets of export, and its temporary folder.
for form in hf gguf; do
  for kind in $kinds; do
    rm -rf "$dir/file"
    mkdir "$dir/file"
    plant $kind "$dir/file/new"
    refuses_all "export $form, $kind" "$dir/file" 'file/new' "$tools/export" --model "$dir/good" --to $form --out "$dir/file/new"
    rm -rf "$dir/file/new"
    plant $kind "$dir/file/.new.unfinished"
    refuses_all "export $form, temporary $kind" "$dir/file" 'file/' "$tools/export" --model "$dir/good" --to $form --out "$dir/file/new"
  done
done

# Tools do not replace their own input files.
cp -a "$dir/good" "$dir/read" && cp "$text" "$dir/read/metrics.jsonl"
refuses_all 'train --text' "$dir/read" 'would replace' "$train" --text "$dir/read/metrics.jsonl" "${small[@]:2}" --overwrite --out "$dir/read"
echo 0 8 4 >"$dir/trace"
refuses_command 1 'would replace' "$tools/bench" serve --quick --trace "$dir/trace" --json "$dir/trace" --overwrite
cp "$dir/trace" "$dir/plugin.so"
refuses_command 2 'would replace' "$tools/gradcheck" --op exp --plugin "$dir/plugin.so" --json "$dir/plugin.so" --overwrite

# If an input is a pipe, it must be rejected immediately.
mkfifo "$dir/pipe"
pipe=$dir/pipe
mkdir "$dir/piped" && cp -a "$dir/good/." "$dir/piped" && rm "$dir/piped/metrics.jsonl" && mkfifo "$dir/piped/metrics.jsonl"
refuses_command 2 "$pipe" timeout 20 "$tools/gradcheck" --plugin "$pipe" --op exp
for option in --text --tokens --model; do
  refuses_command 1 "$pipe" timeout 20 "$train" $option "$pipe" $([ $option != --model ] || echo --text "$text") --out "$dir/x"
done
refuses_command 1 "piped/metrics.jsonl" timeout 20 "$train" --resume --steps 6 --out "$dir/piped"
refuses_command 1 "piped/metrics.jsonl" timeout 20 "$tools/inspect" --run "$dir/piped" --plot-curves "$dir/x.png"
refuses_command 1 "$pipe" timeout 20 "$tools/generate" --model "$pipe"
refuses_command 1 "$pipe" timeout 20 "$tools/generate" --model "$pipe"
refuses_command 1 "$pipe" timeout 20 "$tools/generate" --model "$dir/good" --prompts "$pipe"
refuses_command 1 "$pipe" timeout 20 "$tools/evaluate" --model "$dir/good" --text "$pipe"
refuses_command 1 "$pipe" timeout 20 "$tools/export" --model "$pipe" --to hf --out "$dir/x"
refuses_command 1 "$pipe" timeout 20 "$tools/tokens" --tokenizer "$pipe" Hello
refuses_command 1 "$pipe" timeout 20 "$tools/tokens" --text "$text" --like "$pipe" --out "$dir/x"

# If a message contains an unusual file name, it must still be one short line.
refuses_command 3 'no op or layer' "$tools/gradcheck" --op $'a\nb'
mkdir "$dir/long" && { printf '{"model_type": "'; head -c 3000000 /dev/zero | tr '\0' x; printf '"}'; } >"$dir/long/config.json"
refuses_command 1 'config.json' "$tools/generate" --model "$dir/long"
[ "$(wc -c <"$dir/err")" -lt 5000 ] || fail "a message of $(wc -c <"$dir/err") bytes"

[ $failed = 0 ] && echo "foreign files: all checks passed"
exit $failed
