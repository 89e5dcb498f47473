#!/usr/bin/env python3
"""Writes io/text/unicode_tables.inc: the character classes and the canonical compositions that tokenizers use.

usage: unicode_tables.py            prints the tables
       unicode_tables.py --check    exits with status 1 if io/text/unicode_tables.inc differs from the output, and with
                                    77 if the required packages are not installed

Needs unicodedata2 16.0.0 and tokenizers 0.23.3 from PyPI. Other versions are rejected, because they contain other
versions of Unicode, and token ids would differ. The classes follow Unicode 16.0. The compositions are the ones that
`tokenizers` implements. Its normalizer follows Unicode 9.0, so later characters have no values. Its numerals, which it
splits into single characters, follow Unicode 17.0, the version of its Rust standard library.
"""
import pathlib
import sys
from importlib import metadata

VERSIONS = {"unicodedata2": "16.0.0", "tokenizers": "0.23.3"}
try:
    found = {name: metadata.version(name) for name in VERSIONS}
except metadata.PackageNotFoundError as error:
    found = str(error)
if found != VERSIONS:
    print(f"needs {VERSIONS}, found {found}", file=sys.stderr)
    sys.exit(77)

import unicodedata2 as unicode
from tokenizers import normalizers, pre_tokenizers

CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
# Characters of \w that are not letters, marks or digits: joiners, and circled letters.
OTHER_WORD = {0x200C, 0x200D, *range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A),
              *range(0x1F170, 0x1F18A)}
LETTER, MARK, NUMBER, PUNCTUATION, SYMBOL, SPACE, WORD, NUMERIC = (1 << i for i in range(8))


def numerals():
    """Characters that Digits of the reference implementation splits off."""
    split = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in CHARACTERS if len(split.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def class_of(c, numeric):
    category = unicode.category(chr(c))
    flags = {"L": LETTER, "M": MARK, "N": NUMBER, "P": PUNCTUATION, "S": SYMBOL}.get(category[0], 0)
    flags |= SPACE * (c in SPACES) | NUMERIC * (c in numeric)
    return flags | WORD * (category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in OTHER_WORD)


def ranges(values):
    """Runs of equal nonzero values as (first, last, value)."""
    runs = []
    for c, value in values:
        if value and runs and runs[-1][1] == c - 1 and runs[-1][2] == value:
            runs[-1][1] = c
        elif value:
            runs.append([c, c, value])
    return runs


def case_of(c):
    """1 for upper and title case letters, 2 for lower case letters, 0 for other characters."""
    return {"Lu": 1, "Lt": 1, "Ll": 2}.get(unicode.category(chr(c)), 0)


def combining(c, nfd=normalizers.NFD()):
    """The combining class, or 0 if the reference does not know it. In that case, the reference does not move
    c before U+0345, which has class 240."""
    value = unicode.combining(chr(c))
    return value if value in (0, 240) or nfd.normalize_str("\u0345" + chr(c))[0] != "\u0345" else 0


def decompositions():
    """({composed: (first, second)}, {character that only decomposes: its characters}), one step each, without Hangul."""
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    pairs, others = {}, {}
    for c in CHARACTERS:
        text = unicode.decomposition(chr(c))
        if not text or text.startswith("<"):
            continue
        parts = [int(part, 16) for part in text.split()]
        if nfd.normalize_str(chr(c)) == chr(c):
            continue
        if len(parts) == 2 and nfc.normalize_str(chr(c)) == chr(c):
            pairs[c] = parts
        else:
            others[c] = parts + [0] * (2 - len(parts))
    return pairs, others


def table(kind, name, rows, comment):
    lines, line = [], " "
    for row in rows:
        cell = " {" + ", ".join(f"0x{x:x}" if x > 9 else str(x) for x in row) + "},"
        if len(line) + len(cell) > 118:
            lines.append(line)
            line = " "
        line += cell
    return [f"// {comment}", f"constexpr {kind} {name}[] = {{", *lines, line, "};", ""]


def content():
    numeric = numerals()
    classes = ranges((c, class_of(c, numeric)) for c in CHARACTERS)
    cases = ranges((c, case_of(c)) for c in CHARACTERS)
    marks = ranges((c, combining(c)) for c in CHARACTERS)
    pairs, others = decompositions()
    return "\n".join(
        ["// Written by tools/unicode_tables.py from Unicode 16.0: do not edit.", "// clang-format off", ""] +
        table("ClassRange", "class_ranges", classes, "first, last, flags of CharClass") +
        table("ClassRange", "case_ranges", cases, "first, last, flags of letter_case") +
        table("ClassRange", "combining_ranges", marks, "first, last, canonical combining class") +
        table("Decomposition", "compositions", [(c, *p) for c, p in pairs.items()],
              "a character and its two components") +
        table("Decomposition", "decompositions", [(c, *p) for c, p in others.items()],
              "a character that is only decomposed, into one or two characters, and never composed") + ["// clang-format on", ""])


if __name__ == "__main__":
    made = content()
    if sys.argv[1:] == ["--check"]:
        path = pathlib.Path(__file__).resolve().parent.parent / "io/text/unicode_tables.inc"
        sys.exit(0 if path.read_text() == made else f"{path} differs: run {__file__} > {path}")
    sys.stdout.write(made)
