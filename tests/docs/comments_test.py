#!/usr/bin/env python3
"""Tests docs/site/comments.py: which comments of a header become documentation, on which line and with which text."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "docs/site/comments.py"
HEADER = """// The file.

// Documents nothing.

// A function.
int f(int x);
int undocumented();
struct S {
  int a = 1;  // a field
  // Both.
  int b, c;
  int d, e = 2;  // one comment
  S() = default;
  S(const S&) = delete;

 private:
  // Hidden.
  int hidden;
  // Derived classes define it.
  virtual int g() = 0;
};
const char* url = "http://x";  // `a<b>` and a<b>
"""
EXPECTED = {
    1: ["/// \\file"],
    6: ["/// A function."],
    7: ["int f(int x);"],
    10: ["int a = 1;", "///< a field"],
    12: ["int b;", "/** Both. */", "int c;"],
    13: ["int d; /**< one comment */", "int e = 2; /**< one comment */"],
    14: [],
    15: [],
    21: ["virtual int g() = 0;"],
    23: ['"http://x";', "///< `a<b>` and a\\<b\\>"],
}

with tempfile.TemporaryDirectory() as folder:
    header = pathlib.Path(folder, "a.h")
    header.write_text(HEADER, encoding="utf8")
    out = subprocess.run([sys.executable, SCRIPT, header], check=True, stdout=subprocess.PIPE).stdout.decode().split("\n")
failed = [f"line {n}: got {out[n - 1]!r}, expected {parts}" for n, parts in EXPECTED.items()
          if not all(part in out[n - 1] for part in parts) or (not parts and out[n - 1].strip())]
text = "\n".join(out)
failed += [f"rendered: {words}" for words in ("/// Documents nothing", "Hidden", "int hidden", "delete") if words in text]
print(*(f"FAILED {line}" for line in failed), f"{len(failed)} failed", sep="\n")
sys.exit(1 if failed else 0)
