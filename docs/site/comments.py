#!/usr/bin/env python3
"""Prints a header with its // comments as comments that Doxygen reads: comments.py HEADER

A block of // lines directly above a declaration documents that declaration. A // comment after a field or an enum value
documents that field. The first block of a file documents the file. A block that an empty line follows documents nothing.
If one declaration has several names, all of them get its comment. Defaulted and deleted functions are left out: they
have no contract. Every declaration stays on its line, so Doxygen's warnings have the header's line numbers.
"""
import re
import sys

# Code and the comment after it. Strings and character literals may contain two slashes.
AFTER_CODE = re.compile(r'^((?:[^"/\']|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|/(?!/))*?\S\s*)//(?!/) ?(.*)$')
NAME = r"\w+(?:\s*=\s*[^,;(){}]+|\s*\{[^,;(){}]*\})?"
SEVERAL_NAMES = re.compile(rf"^(\s*)((?:[\w:]+(?:<[\w:]+>)?\s+)+)({NAME}(?:,\s*{NAME})+);(\s*///<.*)?$")
OMITTED = re.compile(r"=\s*(?:default|delete);")


def escaped(text):
    """Characters that begin a command, a tag or a link for Doxygen stay characters, except in `code`."""
    indent = text[: len(text) - len(text.lstrip())]
    parts = re.split(r"(`[^`]*`)", text.lstrip())
    return indent + "".join(p if p.startswith("`") else re.sub(r"[<>#@\\%&*_|~$]", lambda m: "\\" + m.group(), p) for p in parts)


def split_names(line, above):
    """One declaration for each name, each with the comment above the line or after it."""
    match = SEVERAL_NAMES.match(line)
    if not match or match[2].split()[0] in ("return", "using", "typedef", "template", "friend"):
        return line
    names = re.split(r",\s*(?=\w+\s*(?:[=,{]|$))", match[3])
    after = (match[4] or "").strip().removeprefix("///<").strip()
    first = f"{match[1]}{match[2]}{names[0]};" + (f" /**< {after} */" if after else "")
    others = [f" /** {above} */ {match[2]}{n};" if above else f" {match[2]}{n};" + (f" /**< {after} */" if after else "")
              for n in names[1:]]
    return first + "".join(others)


def converted(lines, name):
    out, at, column, above, first = [], 0, None, "", True
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith("//"):
            end = at
            while end < len(lines) and lines[end].lstrip().startswith("//"):
                end += 1
            indent = len(line) - len(line.lstrip())
            block = [escaped(re.sub(r"^\s*// ?", "", text)) for text in lines[at:end]]
            if column is not None and indent == column:  # continues the comment after code
                out += [" " * indent + "///< " + text for text in block]
            elif first:
                out += [f"/// \\file {name}"] + ["/// " + text for text in block]
                first = False
            elif end < len(lines) and lines[end].strip():
                out += [" " * indent + "/// " + text for text in block]
                above = " ".join(block)
            else:
                out += lines[at:end]
            at = end
            continue
        match, column = AFTER_CODE.match(line), None
        if match and not match[1].rstrip().endswith(("{", "(", ":")) and not line.startswith("#"):
            column = len(match[1])
            line = match[1] + "///< " + escaped(match[2])
        if OMITTED.search(line):
            line = ""
        out.append(split_names(line, above))
        above = ""
        at += 1
    return out


with open(sys.argv[1], encoding="utf-8") as header:
    print("\n".join(converted(header.read().split("\n"), sys.argv[1])))
