#!/usr/bin/env bash
# docs/ops.md is what the ops' definitions say: ops_reference.sh PATH/TO/gradcheck PATH/TO/docs/ops.md
. "$(dirname "$0")/tool.sh"
gradcheck=$1 page=$2

"$gradcheck" --reference >"$dir/ops.md" 2>"$dir/err" || fail "gradcheck --reference: $(cat "$dir/err")"
cmp "$dir/ops.md" "$page" || fail "it has changed: build/tools/gradcheck --reference > docs/ops.md"
# Every op that can be checked has its row.
"$gradcheck" --list | awk 'NR > 1 && NF == 0 { exit } NR > 1 && $1 !~ /^[A-Z]/ { print $1 }' >"$dir/names"
[ "$(wc -l <"$dir/names")" -gt 80 ] || fail "--list names only $(wc -l <"$dir/names") ops"
while read -r name; do
  [ "$(grep -c "^| \`$name\` | .*→ .* | .* |" "$page")" = 1 ] || fail "not one row for $name"
done <"$dir/names"
[ $failed = 0 ] && echo "ops.md: all as it must be"
exit $failed
