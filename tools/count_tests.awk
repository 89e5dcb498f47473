# Counts the results of a test run from CTest's JUnit report (the input file) and GoogleTest's reports
# NAME.xml in `dir`. Prints "N passed, N failed[, N skipped]" and exits with status 1 if any test failed. A
# test without its own report (a script, a crash, a binary that was not built) counts as one case. A failed
# build (broken=1) and an empty run also count as one failed case.
function attribute(line, name) {  # value of an attribute of an XML element on one line
  if (!match(line, " " name "=\"[^\"]*\"")) return ""
  return substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
}
/^\t<testcase .* status="notrun">/ {  # a test that skips itself has run, but a test whose binary is missing
                                      # has not
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
  if (!bad && !ok) { bad = 1; cases++ }  # the test crashed, or failed after its last case
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
