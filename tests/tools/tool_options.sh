#!/usr/bin/env bash
# Tests that an option has the same value and meaning in all tools. Each tool must have --version. Usage:
# tool_options.sh TOOLS
. "$(dirname "$0")/tool.sh"
tools=$1

# These options have different descriptions in different tools. A row has the name, the value, and words. Each
# help text must contain these words.
cat >"$dir/table" <<'END'
backend        NAME      device
batch          N         rows of tokens
cache-memory   SIZE      memory
context        N         tokens
dtype          TYPE      precision
filter         TEXT      whose name contains TEXT
json           FILE      also write
memory-budget  SIZE      peak memory
model          MODEL     Hugging Face folder
out            PATH      to write
overwrite      -         replace
plot           FILE.png  draw
prompt         TEXT      text
quick          -         quick run
recompute      -         keep only the input of each block
seed           N         seed
slots          N         maximum number of sequences
text           FILE      text
threads        N         threads
tokenizer      KIND      tokens are characters
vocabulary     N         tokens
weights-dtype  TYPE      dtype in which the weights
END

for source in "$(dirname "$0")"/../../tools/*.cpp; do
  tool=$(basename "$source" .cpp)
  "$tools/$tool" --version >"$dir/out" 2>&1 || fail "$tool --version: $(cat "$dir/out")"
  grep -x "$tool (tilegrad) [0-9][0-9.]*" "$dir/out" >/dev/null || fail "$tool --version prints: $(cat "$dir/out")"
  "$tools/$tool" --help >"$dir/out" 2>&1 || fail "$tool --help: $(cat "$dir/out")"
  # A row of the help has the tool, the name, the value or -, and the meaning. If the meaning begins with a
  # mode of bench, the mode is omitted.
  sed -nE -e 's/ \[[^][]*\]$//' -e 's/^  --([a-z0-9-]+)  +/\1 - /p;s/^  --([a-z0-9-]+) ([^ ]+)  +/\1 \2 /p' "$dir/out" |
    sed -E "s/^([^ ]+ [^ ]+) (train|serve|ranks|attention): /\1 /;s/^/$tool /" >>"$dir/options"
done
[ "$(wc -l <"$dir/options")" -gt 150 ] || fail "only $(wc -l <"$dir/options") options are read"

awk -v table="$dir/table" '
  BEGIN {
    while ((getline line < table) > 0) {
      split(line, word)
      value[word[1]] = word[2]
      sub(/^[^ ]+ +[^ ]+ +/, "", line)
      meaning[word[1]] = line
    }
  }
  {
    tool = $1; name = $2; metavar = $3
    help = $0
    sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", help)
    if (metavar ~ /^(DIR|FOLDER)$/) print tool " --" name " " metavar ": a run is RUN, a model MODEL, another path PATH"
    if ((metavar == "FILE.png") != (name ~ /^plot(-|$)/)) print tool " --" name " " metavar ": a picture is --plot or --plot-… FILE.png"
    if (name in value) {
      ++used[name]
      if (metavar != value[name]) print tool " --" name " " metavar ": expected " value[name]
      if (index(help, meaning[name]) == 0) print tool " --" name ": \"" help "\" does not contain \"" meaning[name] "\""
    } else if (name in first) {
      if (metavar " " help != first[name]) print tool " --" name " " metavar " " help ": in " owner[name] " it is " first[name]
    } else {
      first[name] = metavar " " help
      owner[name] = tool
    }
  }
  END {
    for (name in value) if (used[name] < 2) print "the table has --" name ", which " used[name] + 0 " tools use"
  }' "$dir/options" >"$dir/wrong"
while read -r line; do fail "$line"; done <"$dir/wrong"
[ $failed = 0 ] && echo "options: all checks passed"
exit $failed
