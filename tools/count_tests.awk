# Adds up a test run from CTest's JUnit report, given as the file, and GoogleTest's reports NAME.xml in `dir`:
# "N passed, N failed[, N skipped]", exit 1 if any failed. A test that left no report of its own (a script, a crash, a
# binary that was not built) counts as one case, and so does a build that failed (broken=1) and a run of nothing.
function attribute(line, name) {  # of an XML element on one line
  if (!match(line, " " name "=\"[^\"]*\"")) return ""
  return substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
}
/^\t<testcase .* status="notrun">/ {  # one that skips itself was run, one whose binary is missing was not
  getline reason
  if (reason ~ /message="SKIP_/) { skipped++; next }
}
/^\t<testcase / {
  report = dir "/" attribute($0, "name") ".xml"
  cases = bad = omitted = 0
  while ((getline line < report) > 0) {
    if (line ~ /^<testsuites /) {
      cases = attribute(line, "tests") - attribute(line, "disabled")
      bad = attribute(line, "failures") + 0
    }
    if (line ~ /^  <testsuite /) omitted += attribute(line, "skipped")
  }
  ok = attribute($0, "status") == "run"
  if (!cases && ok) cases = 1
  if (!bad && !ok) { bad = 1; cases++ }  # it crashed, or failed after its last case
  passed += cases - bad - omitted; failed += bad; skipped += omitted
}
END {
  failed += broken
  if (!(passed + failed)) failed = 1
  printf "%d passed, %d failed", passed, failed
  if (skipped) printf ", %d skipped", skipped
  print ""
  exit failed > 0
}
