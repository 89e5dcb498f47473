#!/usr/bin/env bash
# Tests that docs/ops.md matches the definitions of ops: ops_reference.sh PATH/TO/gradcheck
# PATH/TO/docs/ops.md PATH/TO/relu_product.so
. "$(dirname "$0")/tool.sh"
gradcheck=$1 page=$2 plugin=$3

"$gradcheck" --reference >"$dir/ops.md" 2>"$dir/err" || fail "gradcheck --reference: $(cat "$dir/err")"
cmp "$dir/ops.md" "$page" || fail "docs/ops.md is outdated: build/tools/gradcheck --reference > docs/ops.md"
# Every op that gradcheck can check must have a row.
"$gradcheck" --list | awk 'NR > 1 && NF == 0 { exit } NR > 1 && $1 !~ /^[A-Z]/ { print $1 }' >"$dir/names"
[ "$(wc -l <"$dir/names")" -gt 80 ] || fail "--list names only $(wc -l <"$dir/names") ops"
while read -r name; do
  [ "$(grep -c "^| \`$name\` | .*→ .* | .* |" "$page")" = 1 ] || fail "not one row for $name"
done <"$dir/names"
# Ops of a plugin must be documented in the same form as built-in ops, and after them.
"$gradcheck" --plugin "$plugin" --reference >"$dir/more.md" 2>"$dir/err" || fail "--plugin --reference: $(cat "$dir/err")"
head -n "$(wc -l <"$page")" "$dir/more.md" | cmp - "$page" || fail "a plugin changes the reference of other ops"
for line in '^## examples/relu_product.h$' '^| `relu_product` | x, y → t | t = max(x ⊛ y, 0) | .* | first order | C++ function |$' \
  '^relu_product/matrix: \[3, 4\], \[3, 4\] → \[3, 4\]$'; do
  [ "$(grep -c "$line" "$dir/more.md")" = 1 ] || fail "not one line '$line': $(tail -n 8 "$dir/more.md")"
done
[ $failed = 0 ] && echo "ops.md: all checks passed"
exit $failed
