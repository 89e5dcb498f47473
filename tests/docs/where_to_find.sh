#!/usr/bin/env bash
# Checks names and links in the documentation. Every file that docs/where-to-find.md or another page names must exist.
# Every local link must lead to an existing page and heading. Another page must link to every page of docs/.
#   where_to_find.sh ROOT | --self-test
set -euo pipefail

pages() { find README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs -name '*.md' 2>/dev/null | LC_ALL=C sort; }

# Prints the names in pages, one per line: PAGE LINE KIND WHAT, separated by tabs. KIND is "file" for a path
# in `…`, and "link" for the target of [](…). Fenced text is ignored.
named() {  # named PAGE...
  awk '
    FNR == 1 { fence = 0 }
    /^ *```/ { fence = !fence; next }
    fence { next }
    {
      row = FILENAME == "docs/where-to-find.md" && /^\|/
      rest = $0
      while (match(rest, /\]\([^()]+\)/)) {
        print FILENAME "\t" FNR "\tlink\t" substr(rest, RSTART + 2, RLENGTH - 3)
        rest = substr(rest, RSTART + RLENGTH)
      }
      count = split($0, part, "`")
      for (n = 2; n < count + 1; n += 2) {  # text between two backticks
        what = part[n]
        # Skip placeholders: NAME, …, <…>.
        if (what ~ /[ <>:]/ || what ~ /…/ || what ~ /NAME/ || what ~ /^~/) continue
        known = what ~ /^(\.ci|\.github|autograd|backends|cmake|core|docs|examples|io|nn|ops|parallel|tests|tools)\/[^ ]*\.(h|cpp|cu|cuh|sh|py|awk|cmake|md|yml|svg)$/
        if (known || (row && what ~ /[\/.]/ && what !~ /\(/)) print FILENAME "\t" FNR "\tfile\t" what
      }
    }' "$@"
}

# Prints the anchors of a page, which GitHub derives from the headings.
anchors() {
  awk '
    /^ *```/ { fence = !fence; next }
    !fence && /^#+ / {
      sub(/^#+ +/, ""); $0 = tolower($0); gsub(/[][`*(),.:;?!"\/'"'"'+=<>|&]/, ""); gsub(/ /, "-")
      print
    }' "$1"
}

check() {  # check ROOT: prints broken names and links; fails if there are any
  cd "$1"
  local page line kind what target file anchor found faults=0 in_table=0 linked=()
  wrong() { echo "$page:$line: $*"; faults=$((faults + 1)); }
  mapfile -t all < <(pages)
  while IFS=$'\t' read -r page line kind what; do
    if [ "$kind" = file ]; then
      [ "$page" != docs/where-to-find.md ] || in_table=$((in_table + 1))
      compgen -G "$what" >/dev/null && continue
      found=$(find . -path ./.git -prune -o -path './build*' -prune -o -name "${what##*/}" -print | sed 's|^\./||' | paste -sd ' ')
      wrong "missing file $what${found:+ (is it $found?)}"
    else
      case "$what" in *://* | mailto:*) continue ;; esac
      target=${what%%#*} anchor=
      [ "$target" = "$what" ] || anchor=${what#*#}
      file=$page
      [ -z "$target" ] || file=$(realpath -m --relative-to=. "$(dirname "$page")/$target")
      if [ ! -e "$file" ]; then wrong "the link $what leads to a missing file"; continue; fi
      linked+=("$file")
      [ -z "$anchor" ] || anchors "$file" | grep -Fx -- "$anchor" >/dev/null || wrong "$file has no heading #$anchor"
    fi
  done < <(named "${all[@]}")
  line=1
  for page in "${all[@]}"; do
    [[ $page != docs/* ]] || printf '%s\n' "${linked[@]}" | grep -Fx -- "$page" >/dev/null || wrong "no page links to it"
  done
  page=docs/where-to-find.md
  [ "$in_table" -gt 0 ] || wrong "names no file"
  [ "$faults" = 0 ]
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree"/docs "$tree"/core
  touch "$tree"/core/{a.h,b.cpp}
  plant() { printf '%b' "$2" >"$tree/$1"; }
  local readme='# T\n[find](docs/where-to-find.md) [more](docs/more.md#one-thing)\n'
  local table='| q | file |\n|---|---|\n| a | `core/a.h` (`f`), `core/*.cpp` |\n' more='# One thing\n`core/a.h`, `core/NAME.h`\n'
  clean() { plant README.md "$readme"; plant docs/where-to-find.md "$table"; plant docs/more.md "$more"; }
  clean
  (check "$tree") || { echo "a valid tree was rejected"; exit 1; }
  while IFS='|' read -r file text; do
    clean
    printf '%b' "$text" >>"$tree/$file"
    if (check "$tree") >/dev/null; then echo "not detected in $file: $text"; exit 1; fi
  done <<'EOF'
docs/where-to-find.md|\x7c b \x7c `core/gone.h` \x7c\n
docs/where-to-find.md|\x7c b \x7c `tilegrad.h` \x7c\n
docs/where-to-find.md|\x7c b \x7c `core/*.cu` \x7c\n
docs/more.md|see `core/gone.cpp`\n
docs/more.md|see [this](gone.md)\n
docs/more.md|see [this](where-to-find.md#gone)\n
docs/more.md|see [this](#missing)\n
README.md|see [this](more.md)\n
EOF
  clean
  plant docs/alone.md '# Alone\n'
  if (check "$tree") >/dev/null; then echo "not detected: a page that no page links to"; exit 1; fi
  rm "$tree/docs/alone.md"
  plant docs/where-to-find.md '# Nothing\n'
  if (check "$tree") >/dev/null; then echo "not detected: a table without files"; exit 1; fi
}

if [ "$1" = --self-test ]; then self_test; else check "$1"; fi
