#!/usr/bin/env bash
# Tests that docs/ops.md and docs/notes/op-samples.md match the definitions of ops: ops_reference.sh PATH/TO/gradcheck
# PATH/TO/docs PATH/TO/relu_product.so
. "$(dirname "$0")/tool.sh"
gradcheck=$1 page=$2/ops.md samples=$2/notes/op-samples.md plugin=$3

# generate OPTION FILE [gradcheck options]
generate() {
  local option=$1 file=$2
  shift 2
  "$gradcheck" "$@" "$option" >"$file" 2>"$dir/err" || fail "gradcheck $* $option: $(cat "$dir/err")"
}
generate --reference "$dir/ops.md"
generate --op-samples "$dir/samples.md"
cmp "$dir/ops.md" "$page" || fail "docs/ops.md is outdated: build/tools/gradcheck --reference > docs/ops.md"
cmp "$dir/samples.md" "$samples" ||
  fail "docs/notes/op-samples.md is outdated: build/tools/gradcheck --op-samples > docs/notes/op-samples.md"
# Every op that gradcheck can check must have a row.
"$gradcheck" --list | awk 'NR > 1 && NF == 0 { exit } NR > 1 && $1 !~ /^[A-Z]/ { print $1 }' >"$dir/names"
[ "$(wc -l <"$dir/names")" -gt 80 ] || fail "--list names only $(wc -l <"$dir/names") ops"
while read -r name; do
  [ "$(grep -c "^| \`$name\` | .*→ .* | .* |" "$page")" = 1 ] || fail "not one row for $name"
done <"$dir/names"
# Ops of a plugin must be documented in the same form as built-in ops, and after them.
generate --reference "$dir/more.md" --plugin "$plugin"
generate --op-samples "$dir/more_samples.md" --plugin "$plugin"
for pair in "$page $dir/more.md" "$samples $dir/more_samples.md"; do
  read -r built_in more <<<"$pair"
  head -n "$(wc -l <"$built_in")" "$more" | cmp - "$built_in" || fail "a plugin changes what $built_in says of other ops"
done
grep -q '^| `relu_product` | x, y → t | t = max(x ⊛ y, 0) | .* | first order | C++ function | `examples/relu_product.h` |$' \
  "$dir/more.md" || fail "no row for the plugin: $(tail -n 8 "$dir/more.md")"
[ "$(grep -c '^## examples/relu_product.h$' "$dir/more_samples.md")" = 1 ] || fail "not one section for the plugin"
grep -q '^relu_product/matrix: \[3, 4\], \[3, 4\] → \[3, 4\]$' "$dir/more_samples.md" ||
  fail "no sample of the plugin: $(tail -n 8 "$dir/more_samples.md")"
[ $failed = 0 ] && echo "ops.md: all checks passed"
exit $failed
