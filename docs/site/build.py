#!/usr/bin/env python3
"""Builds the documentation site: build.py OUTPUT

OUTPUT/html is a static site with the pages of docs/ and a reference of the public headers. Doxygen reads the
headers' comments, Breathe and Sphinx render them with the pages. Any warning is an error. Examples are a
public declaration without a comment, and a link to a page, heading or file that does not exist. Exit status:
0 if the site is complete, otherwise 1.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
# The areas of the reference, in the order of the menu: folders of the public headers.
AREAS = [
    ("Tensors and graphs", ["tilegrad.h", "version.h", "core/base", "core/graph"]),
    ("Ops", ["ops"]),
    ("Gradients", ["autograd"]),
    ("Programs", ["core/compile", "core/run", "core/report"]),
    ("Layers and models", ["nn/layers", "nn/models"]),
    ("Optimizers and training", ["nn/optimizers", "train"]),
    ("Generation", ["nn/generation"]),
    ("Files and text", ["io"]),
    ("Several processes", ["parallel"]),
]
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^\s*(```|~~~)")


def public_headers():
    listed = (ROOT / "cmake/public_headers.cmake").read_text(encoding="utf8")
    return re.findall(r"^\s+(\S+\.h)$", listed, re.M)


def stage_page(path, to, missing):
    """Copies a page. Keeps links to pages. Replaces links to other files of the repository by names, because
    the site has no copy of the sources. A link to a file that does not exist is added to `missing`."""

    def link(match):
        target = (path.parent / match[2]).resolve()
        if not target.exists():
            missing.append(f"{path.relative_to(ROOT)}: no such file: {match[2]}")
        elif target.suffix == ".md" and (target.is_relative_to(ROOT / "docs") or target == ROOT / "README.md"):
            return match[0]
        elif target.suffix in (".svg", ".png"):
            return match[0]
        return "](SOURCE)"

    out, fenced = [], False
    for line in path.read_text(encoding="utf8").split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        if not fenced:
            line = LINK.sub(link, line)
            line = re.sub(r"(?<!!)\[([^\[\]]+)\]\(SOURCE\)", r"\1", line)
        out.append(line)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("\n".join(out), encoding="utf8")


def stage_reference(headers, to):
    """Writes one page for each header, and one for each area."""
    to.mkdir(parents=True)
    listed = set()
    for name, folders in AREAS:
        mine = [h for h in headers if any(h == f or h.startswith(f + "/") for f in folders)]
        listed |= set(mine)
        area = re.sub(r"\W+", "-", name.lower())
        lines = [name, "=" * len(name), "", ".. toctree::", "   :maxdepth: 1", ""]
        for header in mine:
            page = header.replace("/", "-").removesuffix(".h")
            lines.append(f"   {header} <{page}>")
            title = f"<tilegrad/{header}>"
            (to / f"{page}.rst").write_text(
                f"{title}\n{'=' * len(title)}\n\n.. doxygenfile:: {header}\n   :project: tilegrad\n", encoding="utf8")
        (to / f"{area}.rst").write_text("\n".join(lines) + "\n", encoding="utf8")
    if listed != set(headers):
        sys.exit(f"build.py: no area of the reference has {sorted(set(headers) - listed)}")


def tidy_classes(xml):
    """Sorts each list of classes by declaration instead of by name. Removes the name of their header, which is the title
    of the page."""
    trees = {path.stem: ElementTree.parse(path) for path in xml.glob("*.xml")}
    line = {}
    for tree in trees.values():
        for compound in tree.iter("compounddef"):
            if compound.find("location") is not None:
                line[compound.get("id")] = int(compound.find("location").get("line", 0))
    for name, tree in trees.items():
        for compound in tree.iter("compounddef"):
            places = [i for i, e in enumerate(compound) if e.tag == "innerclass"]
            ordered = sorted((compound[i] for i in places), key=lambda e: line.get(e.get("refid"), 0))
            for i, element in zip(places, ordered):
                compound[i] = element
            for element in compound.findall("includes"):
                compound.remove(element)
        tree.write(xml / f"{name}.xml", encoding="UTF-8", xml_declaration=True)


def run(command, log):
    """Runs a command. Returns its lines of output, which are warnings."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log.write_text(done.stdout, encoding="utf8")
    lines = [line for line in done.stdout.split("\n") if line.strip()]
    return lines or ([f"{command[0]} failed with status {done.returncode}"] if done.returncode else [])


def bundle_theme_script(folder):
    """Replaces the import in the script of Debian's package of the theme, which browsers reject, by the imported file."""
    script, statement = folder / "furo.js", 'import Gumshoe from "./gumshoe-patched.js";'
    text = script.read_text(encoding="utf8")
    if statement in text:
        script.write_text(text.replace(statement, (folder / "gumshoe-patched.js").read_text(encoding="utf8")), encoding="utf8")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1]).resolve()
    source, xml, missing = out / "source", out / "doxygen", []
    shutil.rmtree(out, ignore_errors=True)
    source.mkdir(parents=True)
    xml.mkdir()
    for path in sorted((ROOT / "docs").glob("**/*.md")):
        if SITE not in path.parents:
            stage_page(path, source / path.relative_to(ROOT / "docs"), missing)
    with open(source / "notes/README.md", "a", encoding="utf8") as notes:
        notes.write("\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n")
    stage_page(ROOT / "README.md", out / "README.md", missing)
    shutil.copytree(ROOT / "docs/figures", source / "figures", ignore=shutil.ignore_patterns("*.py"))
    for name in ("index.md", "conf.py", "site.css"):
        shutil.copy(SITE / name, source / name)
    headers = public_headers()
    stage_reference(headers, source / "reference")

    settings = (SITE / "Doxyfile").read_text(encoding="utf8")
    (out / "Doxyfile").write_text(f"{settings}INPUT = {' '.join(headers)}\nOUTPUT_DIRECTORY = {xml}\n", encoding="utf8")
    warnings = missing + run(["doxygen", str(out / "Doxyfile")], out / "doxygen.log")
    tidy_classes(xml / "xml")
    sphinx = ["sphinx-build", "-q", "-j", "auto", "-b", "html", str(source), str(out / "html")]
    warnings += run(sphinx, out / "sphinx.log")
    bundle_theme_script(out / "html/_static/scripts")
    print("\n".join(warnings[:200]))
    print(f"{out}/html/index.html: {len(list((out / 'html').glob('**/*.html')))} pages, {len(warnings)} warnings")
    sys.exit(1 if warnings else 0)


main()
