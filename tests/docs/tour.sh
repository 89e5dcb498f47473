#!/usr/bin/env bash
# Checks the tour: its C++ code is part of the examples, and its commands print the documented output.
#   tour.sh ROOT BUILD_DIR
. "$(dirname "$0")/../tools/tool.sh"
root=$1 build=$2

# Each ```cpp block of a page must be, up to indentation, a contiguous part of a file in examples/.
fragments() {  # PAGE: prints blocks that are not
  awk '
    { sub(/^ +/, "") }
    FILENAME != page { text[FILENAME] = text[FILENAME] $0 "\n"; next }
    /^```cpp$/ { inside = 1; block = ""; at = FNR; next }
    /^```/ && inside {
      inside = 0; blocks++; found = 0
      for (file in text) found += index("\n" text[file], "\n" block) > 0
      if (!found) { print "line " at ": not in the examples:\n" block; lost++ }
      next
    }
    inside { block = block $0 "\n" }
    END { exit lost > 0 || blocks == 0 }
  ' page="$1" "$root"/examples/*.cpp "$root"/examples/*.h "$1"
}

# Numbers, which may differ, and runs of spaces are each replaced by one character.
masked() { sed -E 's/-?[0-9][0-9.,]*(e[-+]?[0-9]+)?/#/g; s/ +/ /g'; }

# Runs the commands after $ in each ```console block. The lines below a command must be printed in this order;
# "…" matches any lines.
outputs() {  # PAGE: prints lines that are missing
  local line command='' got='' lost=0 ran=0
  mkdir -p "$dir/tour" && ln -sfn "$build" "$dir/tour/build" && ln -sf "$root/LICENSE" "$dir/tour/LICENSE"
  while IFS= read -r line; do
    if [[ $line == '$ '* ]]; then
      command=${line#'$ '} ran=$((ran + 1))
      got=$(cd "$dir/tour" && eval "$command" 2>&1 </dev/null | masked; exit "${PIPESTATUS[0]}") ||
        { echo "$command: fails: $got"; lost=1; }
    elif [ "$line" != … ]; then
      line=$(masked <<<"$line")
      case $'\n'$got$'\n' in
        *$'\n'"$line"$'\n'*) got=${got#*"$line"} ;;
        *) echo "$command: does not print, here: $line"; lost=1 ;;
      esac
    fi
  done < <(awk '/^```console$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$1")
  [ "$ran" -gt 0 ] && [ "$lost" = 0 ]
}

fragments "$root/docs/tour.md" || fail "a fragment of the tour"
outputs "$root/docs/tour.md" || fail "an output of the tour"

# Tests that errors in the tour would be detected.
sed 's/gradients(loss, {w})/gradients(lost, {w})/' "$root/docs/tour.md" >"$dir/page"
fragments "$dir/page" >"$dir/out" && fail "a fragment that is not in the examples is not detected"
[ "$(grep -c 'not in the examples' "$dir/out")" = 1 ] || fail "not one fragment: $(cat "$dir/out")"
: >"$dir/empty"
fragments "$dir/empty" && fail "a page without fragments is not detected"
page() { printf '```console\n%b\n```\n' "$1" >"$dir/page"; }
page '$ printf "a 1\\nb 2.5e-3\\nc\\n"\na 7\n…\nc'
outputs "$dir/page" || fail "a correct output"
for wrong in '$ echo a\nb' '$ echo ab\na' '$ printf "a\\nb\\n"\nb\na' '$ exit 1' '$ echo a\na\na' ''; do
  page "$wrong"
  outputs "$dir/page" >/dev/null && fail "not detected: $wrong"
done
[ $failed = 0 ] && echo "tour: all checks passed"
exit $failed
