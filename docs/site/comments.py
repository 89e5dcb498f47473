#!/usr/bin/env python3
"""Turns the comments of a header into comments that Doxygen reads: comments.py HEADER, to standard output.

A block of // lines directly above a declaration documents it, and a // comment after a field or an enum value documents
that. A block that an empty line follows documents nothing; the first one of a file documents the file.
"""
import re
import sys

CODE_WITH_COMMENT = re.compile(r'^((?:[^"/\']|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|/(?!/))*?\S\s*)//(?!/) ?(.*)$')


def escaped(text):
    """Characters that begin a command, a tag or a link for Doxygen stay characters, outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"[<>#@\\%&*_|~]", lambda m: "\\" + m.group(), p) for p in parts)


def item(text):
    """The text of a comment's line: a dash that begins an item stays one."""
    indent = text[: len(text) - len(text.lstrip())]
    return indent + escaped(text.lstrip())


def converted(lines, name):
    out, at, column = [], 0, None
    seen_code = False
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith("//"):
            end = at
            while end < len(lines) and lines[end].lstrip().startswith("//"):
                end += 1
            indent = len(line) - len(line.lstrip())
            block = [re.sub(r"^\s*// ?", "", text) for text in lines[at:end]]
            if column is not None and indent == column:  # goes on after code
                out += [" " * indent + "///< " + item(text) for text in block]
            elif not seen_code:
                out += ["/// \\file " + name] + ["/// " + item(text) for text in block]
                seen_code = True
            elif end < len(lines) and lines[end].strip():
                out += [" " * indent + "/// " + item(text) for text in block]
            else:
                out += lines[at:end]
            at = end
            continue
        match = CODE_WITH_COMMENT.match(line)
        column = None
        if match and not match.group(1).rstrip().endswith(("{", "(", ":")) and not line.startswith("#"):
            column = len(match.group(1))
            line = match.group(1) + "///< " + item(match.group(2))
        out.append(line)
        at += 1
    return out


with open(sys.argv[1], encoding="utf-8") as header:
    name = sys.argv[1]
    print("\n".join(converted(header.read().split("\n"), name)))
