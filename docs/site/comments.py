#!/usr/bin/env python3
"""Prints a header with its // comments as comments that Doxygen reads: comments.py HEADER

A block of // lines directly above a declaration documents that declaration. A // comment after a field or an
enum value documents that field. The first block of a file documents the file. A block before an empty line
documents nothing. If one declaration has several names, all of them get its comment. Lines that are indented
by two or more spaces, except the following lines of a list item, are preformatted. Private members are left
out, except virtual functions. Deleted functions, and defaulted functions without a comment, are left out too.
None of these has a contract. The file's comment begins with an added line. After it, every line stays in order,
so the line numbers in Doxygen's warnings are one too large.
"""
import re
import sys
import textwrap

# Code and the comment after it. Strings and character literals may contain two slashes. A ' between digits separates them.
AFTER_CODE = re.compile(
    r'^((?:[^"/\']|(?<=[\da-fA-F])\'(?=[\da-fA-F])|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|/(?!/))*?\S\s*)//(?!/) ?(.*)$')
# The type of a declaration of variables, and one of its names with the initializer.
TYPE = re.compile(r"^(\s*)((?:(?:extern|static|inline|constexpr|const)\s+)*(?!(?:return|using|typedef|template|friend|class"
                  r"|struct|enum|extern|else|case|throw|delete|goto)\b)[\w:]+(?:<[^;={}()]*>)?(?:\s+|(?=[*&])))(?=[*&\w])")
DECLARATOR = re.compile(r"^[*&]*\w+(?:\[[^\]]*\])*\s*(?:$|[={])", re.S)
OMITTED = re.compile(r"=\s*(?:default|delete);\s*$")
PRIVATE = re.compile(r"^( +)private:$")


def escaped(text):
    """Escapes characters that begin a command, a tag or a link for Doxygen. A zero-width space is inserted
    before a number or a sign that would begin a list item. In `code` and in a "string" on one line, nothing
    is escaped."""
    text = re.sub(r"^(\s*)(?=(?:\+|\d+[.)])\s)", "\\1\u200b", text, flags=re.M)
    parts = re.split(r'(`[^`]*`|"[^"\n]*")', text)
    return "".join(part if at % 2 else re.sub(r"---?|[<>#@\\%&*_|~$]", lambda m: "\\" + m.group(), part)
                   for at, part in enumerate(parts))


def documentation(lines):
    """Converts the lines of a // comment to text for Doxygen, line by line. Indented lines are preformatted.
    The command that begins them is appended to the previous line, so that no line is added."""
    lines = [re.sub(r"^\s*// ?", "", line) for line in lines]
    kinds, item = [], False
    for line in lines:
        item = line.startswith("- ") or (item and line.startswith("  "))
        kinds.append("code" if line.startswith("  ") and not item else "text" if line else "")
    for at in range(1, len(lines) - 1):  # an empty line between preformatted lines
        if not kinds[at] and kinds[at - 1] == kinds[at + 1] == "code":
            kinds[at] = "code"
    out, at = [], 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and (kinds[end] == "code") == (kinds[at] == "code"):
            end += 1
        if kinds[at] == "code":
            code = textwrap.dedent("\n".join(lines[at:end])).split("\n")
            code[-1] += " \\endverbatim"
            if out:
                out[-1] += " \\verbatim"
            else:
                code[0] = "\\verbatim " + code[0]
            out += code
        else:
            out += escaped("\n".join(lines[at:end])).split("\n")
        at = end
    return out


def block_comment(block, indent):
    """A comment that Doxygen reads. Preformatted lines would keep the slashes of a /// comment."""
    if any("\\verbatim" in line for line in block):
        return [" " * indent + "/** " + block[0]] + block[1:-1] + [block[-1] + " */"]
    return [" " * indent + "/// " + line for line in block]


def declarators(text):
    """The names of a declaration with their initializers, as text without the type: split at commas outside brackets."""
    names, depth = [""], 0
    for at, c in enumerate(text):
        opens_template = c == "<" and text[at - 1 : at].isalnum()
        closes_template = c == ">" and text[at - 1 : at] != "-" and depth > 0
        depth += (c in "([{" or opens_template) - (c in ")]}" or closes_template)
        if c == "," and depth == 0:
            names.append("")
        else:
            names[-1] += c
    return [name.strip() for name in names]


def split_names(code, above, after):
    """One declaration for each name of `code`, each with the comment above the declaration or after it."""
    comment = f" /**< {after} */" if after else ""
    match = TYPE.match(code)
    if match and code.rstrip().endswith(";"):
        names = declarators(code.rstrip()[match.end() : -1])
        if len(names) > 1 and all(DECLARATOR.match(name) for name in names):
            before = f" /** {above} */ " if above and not after else " "
            return match[1] + before.join(f"{match[2]}{name};{comment}" for name in names)
    return code + (f"///< {after}" if after else "")


def without_private(lines):
    """The lines, with empty ones instead of private sections. Keeps virtual functions, because derived
    classes define them."""
    out, inside, label = [], None, 0
    for at, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if inside is not None and line and indent <= inside:
            inside = None
        if inside is None and PRIVATE.match(line):
            inside, label = indent, at
        out.append(line if inside is None else "")
        if inside is not None and indent == inside + 1 and line.lstrip().startswith("virtual "):
            first = at
            while lines[first - 1].lstrip().startswith("//"):
                first -= 1
            out[label] = lines[label]
            out[first:] = lines[first : at + 1]
    return out


def converted(lines, name):
    out, at, above, first = [], 0, "", True
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith("//"):
            end = at
            while end < len(lines) and lines[end].lstrip().startswith("//"):
                end += 1
            indent = len(line) - len(line.lstrip())
            block = documentation(lines[at:end])
            if first:
                out += block_comment([f"\\file {name}"] + block, 0)
                first = False
            elif end < len(lines) and lines[end].strip():
                out += block_comment(block, indent)
                above = " ".join(block)
            else:
                out += lines[at:end]
            at = end
            continue
        end, after = at + 1, ""
        # A declaration of variables may continue on the next line.
        while TYPE.match(line) and line.endswith((",", " =")) and "(" not in line and end < len(lines):
            line += " " + lines[end].strip()
            end += 1
        match = AFTER_CODE.match(line)
        if match and not match[1].rstrip().endswith(("{", "(", ":")) and not line.startswith("#"):
            line, after = match[1], escaped(match[2])
            while end < len(lines) and re.match(rf"^ {{{lines[end - 1].index('//')}}}//", lines[end]):
                after += " " + escaped(re.sub(r"^\s*// ?", "", lines[end]))
                end += 1
        if OMITTED.search(line) and (not (above or after) or "delete" in line):
            line, after = "", ""
            while above and out[-1].strip():
                out.pop()
                at -= 1
        # Doxygen reads the ' of 1'000 as the start of a character literal
        line = re.sub(r"(?<=\d)'(?=\d{3})", "", line)
        out += [split_names(line, above, after)] + [""] * (end - at - 1)
        above = ""
        at = end
    return out


with open(sys.argv[1], encoding="utf-8") as header:
    print("\n".join(converted(without_private(header.read().split("\n")), sys.argv[1])))
