#!/usr/bin/env bash
# Checks pages in docs/. Their C++ must be in the examples. Their commands must print the output that the page
# shows.
#
#   pages.sh ROOT BUILD_DIR PAGE...  checks these pages, such as docs/quickstart.md.
#   pages.sh --self-test             checks that wrong pages are rejected.
. "$(dirname "$0")/../tools/tool.sh"

# Each ```cpp block of a page is, up to indentation, a contiguous part of a file of examples/.
fragments() {  # PAGE: prints the blocks that are not in the examples
  awk '
    { sub(/^ +/, "") }
    FILENAME != page { text[FILENAME] = text[FILENAME] $0 "\n"; next }
    /^```cpp$/ { inside = 1; block = ""; at = FNR; next }
    /^```/ && inside {
      inside = 0; found = 0
      for (file in text) found += index("\n" text[file], "\n" block) > 0
      if (!found || block !~ /[^\n]/) { print "line " at ": not in the examples:\n" block; lost++ }
      next
    }
    inside { block = block $0 "\n" }
    END { if (inside) print "line " at ": a block without an end"; exit lost > 0 || inside }
  ' page="$1" "$root"/examples/*.cpp "$root"/examples/*.h "$1"
}

# Replaces each number, because numbers may differ, and each run of spaces by one character.
masked() { sed -E 's/-?[0-9][0-9.,]*(e[-+]?[0-9]+)?/#/g; s/ +/ /g'; }

# Runs the command after each $ of the ```console blocks. All commands of a page run in one folder. A command
# may continue on the next line after a backslash. The command must print the lines that follow it, in order.
# "…" stands for any lines.
outputs() {  # PAGE: prints the lines that the commands do not print
  local line command='' got='' lost=0 more=0 folder name
  folder=$(mktemp -d -p "$dir") && ln -s "$build" "$folder/build" || return 1
  for name in LICENSE docs examples tests tools; do ln -s "$root/$name" "$folder/$name"; done
  while IFS= read -r line; do
    if [ $more = 1 ]; then
      command+=$'\n'$line
    elif [[ $line == '$ '* ]]; then
      command=${line#'$ '}
    elif [ "$line" = … ]; then
      continue
    else
      line=$(masked <<<"$line")
      case $'\n'$got$'\n' in
        *$'\n'"$line"$'\n'*) got=${got#*"$line"} ;;
        *) echo "$command: does not print, here: $line"; lost=1 ;;
      esac
      continue
    fi
    [[ $line == *\\ ]] && more=1 && continue
    more=0
    got=$(cd "$folder" && eval "$command" 2>&1 </dev/null | masked; exit "${PIPESTATUS[0]}") ||
      { echo "$command: ends with an error: $got"; lost=1; }
  done < <(awk '/^```console$/ { inside = 1; print "$ :"; next } /^```/ { inside = 0 } inside' "$1")
  [ "$lost" = 0 ] && [ $more = 0 ]
}

blocks() { grep -qE '^```(cpp|console)$' "$1" || { echo "has neither \`\`\`cpp nor \`\`\`console blocks"; return 1; }; }

check() { blocks "$1" && fragments "$1" && outputs "$1"; }

self_test() {
  local wrong
  root=$(cd "$(dirname "$0")/../.." && pwd) build=$dir
  page() { printf '```%s\n%b\n```\n' "$1" "$2" >"$dir/page"; }
  page cpp 'using namespace tg;\n\n  int main() try {'
  check "$dir/page" || fail "rejected: a block that is in an example"
  page console '$ printf "a 1\\nb 2.5e-3\\nc\\n"\na 7\n…\nc\n$ printf "%s" \\\n    d\nd'
  check "$dir/page" || fail "rejected: an output that is right"
  page console '$ echo a >file\n```\n\n```console\n$ cat file\na'
  check "$dir/page" || fail "rejected: a command that reads the file of an earlier one"
  for wrong in 'using namespace tg;\nint main() try {' 'int main() try' '' 'return 3;\n```\n\n```cpp\nint main() try {'; do
    page cpp "$wrong"
    check "$dir/page" >/dev/null && fail "accepted, but in no example: $wrong"
  done
  for wrong in '$ echo a\nb' '$ echo ab\na' '$ printf "a\\nb\\n"\nb\na' '$ exit 1' '$ echo a\na\na' 'a' '$ echo a \\' \
               '$ echo a\n```\n\n```console\na' '$ cat file'; do
    page console "$wrong"
    check "$dir/page" >/dev/null && fail "accepted, with another output: $wrong"
  done
  printf 'No blocks.\n' >"$dir/page"
  check "$dir/page" >/dev/null && fail "accepted: a page without blocks"
  printf '```cpp\nint main() try {\n' >"$dir/page"
  check "$dir/page" >/dev/null && fail "accepted: a block without an end"
}

if [ "$*" = --self-test ]; then
  self_test
elif [ $# -ge 3 ]; then
  root=$(cd "$1" && pwd) build=$(cd "$2" && pwd)
  shift 2
  for page; do check "$page" || fail "$page"; done
else
  echo "usage: pages.sh ROOT BUILD_DIR PAGE... | --self-test" >&2
  exit 2
fi
[ $failed = 0 ] && echo "pages: all as they must be"
exit $failed
