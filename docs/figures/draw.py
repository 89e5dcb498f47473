#!/usr/bin/env python3
"""Draws the figures of the documentation as SVG: python3 docs/figures/draw.py [FOLDER], by default next to this file."""
import html
import pathlib
import sys

INK, SOFT, LINE, PAPER = "#1f2933", "#5f6c7b", "#c3ccd5", "#ffffff"
BLUE, GREEN, AMBER, RED, VIOLET = "#2f6fb2", "#3a8f5c", "#c98a1b", "#c0504d", "#7a5aa6"
PALE = {BLUE: "#dce9f6", GREEN: "#dff0e5", AMBER: "#faeed3", RED: "#f7dfde", VIOLET: "#eae2f3", SOFT: "#eef1f4"}

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE


class Picture:
    def __init__(self, width, height, title):
        self.width, self.height, self.parts = width, height, []
        self.title = title
        self.rect(0, 0, width, height, PAPER, None, 8)

    def rect(self, x, y, w, h, fill, stroke=INK, radius=0, width=1.2, dash=None):
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius}" fill="{fill or "none"}"'
            + (f' stroke="{stroke}" stroke-width="{width}"' if stroke else "")
            + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")

    def box(self, x, y, w, h, color, radius=6, **more):
        self.rect(x, y, w, h, PALE[color], color, radius, **more)

    def text(self, x, y, words, size=13, color=INK, anchor="start", weight="normal", mono=False, italic=False):
        family = "DejaVu Sans Mono, Menlo, Consolas, monospace" if mono else "DejaVu Sans, Helvetica, Arial, sans-serif"
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-family="{family}" font-size="{size}" fill="{color}" '
            f'text-anchor="{anchor}" font-weight="{weight}"' + (' font-style="italic"' if italic else "")
            + f' xml:space="preserve">{html.escape(words)}</text>')

    def lines(self, x, y, rows, size=13, step=None, **more):
        for n, row in enumerate(rows):
            self.text(x, y + n * (step or size * 1.5), row, size, **more)

    def line(self, x0, y0, x1, y1, color=INK, width=1.4, arrow=False, dash=None):
        self.parts.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{color}" stroke-width="{width}"'
            + (f' marker-end="url(#head-{color[1:]})"' if arrow else "")
            + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")

    def path(self, d, color=INK, width=1.4, arrow=False, fill="none", dash=None):
        self.parts.append(f'<path d="{d}" fill="{fill}" stroke="{color}" stroke-width="{width}"'
                          + (f' marker-end="url(#head-{color[1:]})"' if arrow else "")
                          + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")

    def write(self, name):
        heads = "".join(
            f'<marker id="head-{c[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,1 L10,5 L0,9 z" fill="{c}"/></marker>'
            for c in (INK, SOFT, BLUE, GREEN, AMBER, RED, VIOLET))
        hatch = (f'<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
                 f'<rect width="7" height="7" fill="#f4f6f8"/><line x1="0" y1="0" x2="0" y2="7" stroke="{LINE}" '
                 f'stroke-width="2"/></pattern>')
        text = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}" role="img">\n<title>{html.escape(self.title)}</title>\n'
                f'<defs>{heads}{hatch}</defs>\n' + "\n".join(self.parts) + "\n</svg>\n")
        (FOLDER / name).write_text(text, encoding="utf8")


def data_flow():
    """From the user's call to numbers: record, gradients, compile, run."""
    p = Picture(980, 452, "A graph is recorded, extended by gradients, compiled into a plan, and run")
    left, width, gap, top, bottom = 20, 214, 28, 62, 340
    stages = [("1  record", "ops/ → core/graph", BLUE), ("2  gradients", "autograd/", VIOLET),
              ("3  compile", "lower · merge · plan · prepare", AMBER), ("4  run × N", "backends/", GREEN)]
    at = [left + n * (width + gap) for n in range(4)]
    for x, (name, where, color) in zip(at, stages):
        p.text(x + 2, 30, name, 17, color, weight="bold")
        p.text(x + 2, 49, where, 11.5, SOFT, mono=True)
        p.rect(x, top, width, bottom - top, "#fbfcfd", LINE, 8)
    for x in at[1:]:
        p.line(x - gap + 3, 196, x - 3, 196, INK, 2, arrow=True)

    def node(x, y, number, words, color):
        p.box(x, y, width - 28, 23, color, 4)
        p.text(x + 8, y + 16, number, 11.5, color, mono=True, weight="bold")
        p.text(x + 46, y + 16, words, 11.5, mono=True)

    p.text(at[0] + 14, 86, "loss = sum(gelu(x * w))", 12, mono=True)
    forward = ["input x", "param w", "mul %0 %1", "gelu %2", "sum %3"]
    for n, words in enumerate(forward):
        node(at[0] + 14, 104 + n * 30, f"%{n}", words, BLUE)
    p.lines(at[0] + 14, 284, ["Append-only list of nodes with", "op, dtype, layout, source line.", "Wrong shapes fail here."], 11.5, 17, color=SOFT)

    p.text(at[1] + 14, 86, "gradients(loss, {w})", 12, mono=True)
    for n, (words, color) in enumerate([("to %4, as recorded", BLUE), ("z of %4 = 1", VIOLET), ("expand %5", VIOLET), ("gelu_slope %2", VIOLET),
                                        ("mul %6 %7", VIOLET), ("mul %8 %0", VIOLET)]):
        node(at[1] + 14, 104 + n * 27, "%0" if n == 0 else f"%{n + 4}", words, color)
    p.lines(at[1] + 14, 284, ["The list is walked backwards;", "every vjp appends ordinary", "nodes to the same list."], 11.5, 17, color=SOFT)

    p.text(at[2] + 14, 86, "compile(g, {loss}, {assign})", 11.2, mono=True)
    steps = [("step 0", "x·w, gelu, slope", "fused"), ("step 1", "sum", ""), ("step 2", "w ← w − 0.1·z", "in place")]
    for n, (number, words, note) in enumerate(steps):
        y = 102 + n * 36
        p.box(at[2] + 14, y, width - 28, 29, AMBER, 4)
        p.text(at[2] + 21, y + 12, number, 9.5, AMBER, weight="bold")
        p.text(at[2] + 21, y + 24, words, 11, mono=True)
        p.text(at[2] + width - 20, y + 12, note, 9.5, SOFT, anchor="end")
    p.text(at[2] + 14, 228, "arena", 10, SOFT)
    for x, w, color in ((0, 92, BLUE), (94, 40, VIOLET), (136, 50, SOFT)):
        p.box(at[2] + 14 + x, 233, w, 20, color, 2, width=1)
    p.lines(at[2] + 14, 284, ["Fused steps, an offset for each", "buffer, a kernel for each step.", "The peak is known exactly."], 11.5, 17, color=SOFT)

    p.text(at[3] + 14, 86, "step.run({{x, batch}})", 12, mono=True)
    p.box(at[3] + 14, 102, width - 28, 40, GREEN, 4)
    p.text(at[3] + 22, 119, "CPU", 11.5, GREEN, weight="bold")
    p.text(at[3] + 22, 134, "one dispatch of the thread pool", 10.5)
    p.box(at[3] + 14, 150, width - 28, 40, GREEN, 4)
    p.text(at[3] + 22, 167, "CUDA", 11.5, GREEN, weight="bold")
    p.text(at[3] + 22, 182, "one launch of a CUDA graph", 10.5)
    p.box(at[3] + 14, 204, width - 28, 40, SOFT, 4)
    p.text(at[3] + 22, 221, "fetch(loss)", 10.5, mono=True)
    p.text(at[3] + 22, 236, "parameters hold the new values", 10.5)
    p.lines(at[3] + 14, 284, ["Allocates nothing. Results are", "bitwise identical for any", "number of threads."], 11.5, 17, color=SOFT)

    y = 372
    p.line(at[0] + 10, y, at[2] + width, y, SOFT, 1.4)
    p.text((at[0] + at[2] + width) / 2, y + 22, "once: shapes, strides, kernels and memory are decided before the first run", 13, SOFT, anchor="middle")
    p.line(at[3], y, at[3] + width, y, GREEN, 1.4)
    p.text(at[3] + width / 2, y + 22, "as often as you like", 13, GREEN, anchor="middle")
    p.path(f"M {at[3] + width - 24:.0f} {bottom + 2} C {at[3] + width - 24:.0f} {bottom + 24}, {at[3] + 24:.0f} {bottom + 24}, {at[3] + 24:.0f} {bottom + 6}", GREEN, 1.6, arrow=True)
    p.text(490, 434, "Each stage uses only the result of the previous stage. Gradients consist of the same ops as the forward pass.", 12.5, SOFT, anchor="middle", italic=True)
    p.write("data-flow.svg")


def folders():
    """The folders of the tree with their subfolders: each includes only folders below it."""
    root = HERE.parent.parent

    def subfolders(folder, order=()):  # first the names in `order`, then the others, sorted
        names = sorted(path.name for path in (root / folder).iterdir() if path.is_dir() and any(path.iterdir()))
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    p = Picture(980, 492, "Folders of tilegrad: each includes only folders below it")
    left, right, height, gap = 20, 960, 52, 12

    def row(y, *boxes):  # (folder, relative width, color, contents)
        total, x = sum(box[1] for box in boxes), left
        for folder, part, color, inside in boxes:
            width = (right - left - gap * (len(boxes) - 1)) * part / total
            p.box(x, y, width, height, color)
            p.text(x + 12, y + 21, folder + "/", 14, color, mono=True, weight="bold")
            p.text(x + 12, y + 40, " · ".join(inside), 11.5)
            x += width + gap

    step = height + gap
    row(20, ("tools", 1, SOFT, ["programs"]), ("examples", 1, SOFT, ["complete programs"]), ("tests", 1, SOFT, ["one folder for each folder of the sources"]))
    row(20 + step, ("train", 1, VIOLET, ["the training step and the loop around it: batches, metrics, progress"]))
    row(20 + 2 * step, ("io", 1, VIOLET, subfolders("io")))
    row(20 + 3 * step, ("nn", 3, BLUE, subfolders("nn")), ("parallel", 2, SOFT, ["joining of ranks, and detection of lost ranks"]))
    row(20 + 4 * step, ("autograd", 3, BLUE, ["gradients", *subfolders("autograd")]), ("backends/cuda", 7, GREEN, subfolders("backends/cuda")),
        ("backends/cpu", 2, GREEN, subfolders("backends/cpu")))
    row(20 + 5 * step, ("ops", 1, AMBER, ["shape rule, gradient, decomposition and samples of each op"]))
    row(20 + 6 * step, ("core", 1, AMBER, subfolders("core", ("base", "os", "graph", "run", "compile", "report"))))
    p.text(left, 20 + 7 * step + 12, "A folder includes only folders below it. parallel/ includes core/ only; backends include core/ and the attributes of ops/.", 12, SOFT)
    p.write("folders.svg")


def best_fit(buffers):
    """Assigns offsets to buffers (bytes, first step, last step) as the planner in core/ does: a buffer uses the smallest
    free range that fits. If none fits, the arena grows. Returns the offsets and the size of the arena."""
    free, end, offsets, alive = [], 0, [], []
    for size, first, last in buffers:
        for offset, length, until in [a for a in alive if a[2] < first]:
            alive.remove((offset, length, until))
            free.append([offset, length])
            free.sort()
            merged = []
            for f in free:
                if merged and merged[-1][0] + merged[-1][1] == f[0]:
                    merged[-1][1] += f[1]
                else:
                    merged.append(list(f))
            free = merged
        fits = sorted((f[1], f[0]) for f in free if f[1] >= size)
        if fits:
            length, offset = fits[0]
            free.remove([offset, length])
            if length > size:
                free.append([offset + size, length - size])
                free.sort()
        else:
            offset = end
            if free and free[-1][0] + free[-1][1] == end:
                offset = free.pop()[0]
            end = offset + size
        alive.append((offset, size, last))
        offsets.append(offset)
    return offsets, end


def memory_plan():
    """A training step's buffers: first and last step across, offset in the arena upwards."""
    layers = 6
    buffers, kinds, steps = [], [], 0
    last_step = 4 * layers + 1
    for n in range(layers):  # forward: an activation that is kept, and a temporary
        first = 2 * n
        buffers.append((3, first, last_step - 2 * n))
        kinds.append(("kept for the backward pass", BLUE))
        buffers.append((2, first, first + 1))
        kinds.append(("freed immediately", AMBER))
    buffers.append((2, 2 * layers, 2 * layers + 1))
    kinds.append(("freed immediately", AMBER))
    for n in range(layers):  # backward: the gradient of an activation, and a workspace
        first = 2 * layers + 1 + 2 * n
        buffers.append((3, first, first + 2))
        kinds.append(("gradient of an activation", VIOLET))
        buffers.append((1, first, first))
        kinds.append(("workspace", SOFT))
    order = sorted(range(len(buffers)), key=lambda i: buffers[i][1])
    buffers, kinds = [buffers[i] for i in order], [kinds[i] for i in order]
    offsets, peak = best_fit(buffers)
    total = sum(b[0] for b in buffers)
    steps = max(b[2] for b in buffers) + 1

    p = Picture(980, 470, "Memory plan of a training step: each buffer is a rectangle over the steps during which it is live")
    x0, y0, w, h = 74, 352, 660, 290
    dx, dy = w / steps, h / (peak + 1.5)
    p.text(20, 30, "Memory plan of a training step", 17, INK, weight="bold")
    for s in range(0, steps + 1, 2):
        p.line(x0 + s * dx, y0, x0 + s * dx, y0 - h, "#eef1f4", 1)
    for (size, first, last), offset, (_, color) in zip(buffers, offsets, kinds):
        p.rect(x0 + first * dx + 0.7, y0 - (offset + size) * dy + 0.7, (last - first + 1) * dx - 1.4, size * dy - 1.4, PALE[color], color, 2, 1)
    p.line(x0, y0, x0 + w + 8, y0, INK, 1.6, arrow=True)
    p.line(x0, y0, x0, y0 - h - 6, INK, 1.6, arrow=True)
    p.text(x0 + w / 2, y0 + 40, "step", 13, INK, anchor="middle")
    p.text(x0 - 10, y0 - h + 4, "offset in", 12, INK, anchor="end")
    p.text(x0 - 10, y0 - h + 19, "the arena", 12, INK, anchor="end")
    middle = x0 + (2 * layers + 1) * dx
    p.line(middle, y0 + 4, middle, y0 - h, SOFT, 1.2, dash="4 3")
    p.text(middle - 8, y0 + 20, "forward", 12.5, SOFT, anchor="end")
    p.text(middle + 8, y0 + 20, "backward", 12.5, SOFT)
    p.line(x0, y0 - peak * dy, x0 + w, y0 - peak * dy, RED, 1.4, dash="6 4")
    p.text(x0 + w, y0 - peak * dy - 6, "peak, exact before the first run", 12, RED, anchor="end")
    x = 762
    rows = [(BLUE, "activation, kept for", "the backward pass"), (AMBER, "intermediate result,", "freed immediately"),
            (VIOLET, "gradient of an", "activation"), (SOFT, "workspace of a", "kernel")]
    for n, (color, a, b) in enumerate(rows):
        y = 92 + n * 46
        p.box(x, y, 26, 26, color, 3)
        p.text(x + 36, y + 11, a, 12)
        p.text(x + 36, y + 26, b, 12)
    p.text(x, 296, f"without reuse: {total} units", 12.5, SOFT)
    p.text(x, 316, f"planned: {peak} units", 12.5, RED, weight="bold")
    p.lines(20, 424, ["Horizontally, a buffer extends from the first step that writes it to the last step that reads it. Vertically, it starts at its",
                      "offset: the smallest free range that fits. If none fits, the arena grows. `inspect --plot-plan plan.png` draws this for a model."],
            12.5, 19, color=SOFT)
    p.write("memory-plan.svg")


def score_grid(p, x0, y0, side, queries, keys, row=None, column=None):
    """The matrix A in tiles under a causal mask. Tiles are computed, partly masked or skipped."""
    for i in range(queries):
        for j in range(keys):
            x, y = x0 + j * side, y0 + i * side
            if j > i:
                p.rect(x, y, side, side, "url(#hatch)", LINE, 0, 1)
            else:
                on = (row is None or i == row) and (column is None or j == column)
                p.rect(x, y, side, side, PALE[BLUE] if on else "#ffffff", LINE, 0, 1)
            if j == i:
                p.path(f"M {x} {y} L {x + side} {y + side} L {x + side} {y} Z", LINE, 0.8, fill="url(#hatch)")


def attention_forward():
    p = Picture(980, 520, "A tile of queries is multiplied by all tiles of keys, with an online softmax")
    p.text(20, 30, "flash_attn, forward: a tile of Γ queries is multiplied by tiles of Λ keys", 17, INK, weight="bold")
    side, n, x0, y0, row = 50, 6, 150, 126, 4
    score_grid(p, x0, y0, side, n, n, row=row)
    # Keys and values above, queries on the left.
    for j in range(n):
        color = GREEN if j <= row else SOFT
        p.box(x0 + j * side + 3, y0 - 50, side - 6, 18, color, 2)
        p.box(x0 + j * side + 3, y0 - 28, side - 6, 18, color, 2)
    p.text(x0 - 10, y0 - 37, "K", 13, GREEN, anchor="end", weight="bold")
    p.text(x0 - 10, y0 - 15, "V", 13, GREEN, anchor="end", weight="bold")
    for i in range(n):
        p.box(x0 - 34, y0 + i * side + 3, 22, side - 6, VIOLET if i == row else SOFT, 2)
    p.text(x0 - 44, y0 + (row + 0.5) * side + 5, "Q tile", 12.5, VIOLET, anchor="end", weight="bold")
    p.text(x0 - 44, y0 + (row + 0.5) * side + 21, "kept", 11.5, SOFT, anchor="end")
    y = y0 + (row + 0.5) * side
    for j in range(row + 1):
        p.text(x0 + (j + 0.5) * side, y - 8, f"{j + 1}", 12, BLUE, anchor="middle", weight="bold")
    p.line(x0 + 8, y + 6, x0 + (row + 1) * side - 12, y + 6, BLUE, 2.2, arrow=True)
    p.text(x0 + n * side / 2, y0 + n * side + 22, "A = scale·Q·Kᵀ [L, T], never completely in memory", 12.5, INK, anchor="middle")
    # Legend of tiles.
    lx, ly = 40, 474
    for words, kind in (("computed", "on"), ("partly masked: the diagonal", "half"), ("skipped: no visible key", "off")):
        p.rect(lx, ly - 13, 17, 17, PALE[BLUE] if kind != "off" else "url(#hatch)", LINE, 0, 1)
        if kind == "half":
            p.path(f"M {lx} {ly - 13} L {lx + 17} {ly + 4} L {lx + 17} {ly - 13} Z", LINE, 0.8, fill="url(#hatch)")
        p.text(lx + 24, ly + 1, words, 12, SOFT)
        lx += 34 + 7.0 * len(words) + 18
    p.text(40, 501, "The mask is causal. Windows, lengths and packed sequences also select an interval of keys.", 12, SOFT, italic=True)

    bx, bw = 500, 460
    p.box(bx, 62, bw, 214, BLUE, 8)
    p.text(bx + 16, 86, "for each tile of Λ keys", 13.5, BLUE, weight="bold")
    p.lines(bx + 16, 114, ["A   =  scale·Q·Kᵀ  (softcap, bias, mask)", "c'  =  max(c, A.max)", "E   =  exp(A ⊖ c')",
                           "π   =  exp(c − c')·π + E.sum", "G   =  exp(c − c') ⊛ G + (E ⊛ keep)·V", "c   =  c'"], 13.5, 26, mono=True)
    p.text(bx + bw - 14, 140, "[Γ]", 11.5, SOFT, anchor="end", mono=True)
    p.text(bx + bw - 14, 114, "[Γ, Λ]", 11.5, SOFT, anchor="end", mono=True)
    p.text(bx + bw - 14, 166, "[Γ, Λ]", 11.5, SOFT, anchor="end", mono=True)
    p.text(bx + bw - 14, 192, "[Γ]", 11.5, SOFT, anchor="end", mono=True)
    p.text(bx + bw - 14, 218, "[Γ, dv]", 11.5, SOFT, anchor="end", mono=True)
    p.text(bx + 16, 264, "Registers and first-level cache hold c, π, G and one tile.", 11.5, SOFT)
    p.line(bx + bw / 2, 280, bx + bw / 2, 302, INK, 1.8, arrow=True)
    p.text(bx + bw / 2 + 12, 296, "after the last tile", 12, SOFT)
    p.box(bx, 308, bw, 84, GREEN, 8)
    p.lines(bx + 16, 336, ["O   =  G ⊘ π", "ξ   =  c + log π"], 13.5, 28, mono=True)
    p.text(bx + 190, 336, "the output, written once", 12, SOFT)
    p.text(bx + 190, 364, "saved for the backward, which", 12, SOFT)
    p.text(bx + 190, 380, "recomputes P = exp(A ⊖ ξ)", 12, SOFT)
    p.lines(bx, 420, ["Only O and ξ are stored, so memory is linear in the length.", "FlashAttention's names: m for c, ℓ for π, L or LSE for ξ (notation.md)."], 12.5, 19, color=SOFT)
    p.write("attention-forward.svg")


def attention_backward():
    p = Picture(980, 548, "A block of keys is multiplied by all tiles of queries, and accumulates its gradients")
    p.text(20, 30, "flash_attn, backward: a block of Λ keys is multiplied by tiles of Γ queries", 17, INK, weight="bold")
    side, n, x0, y0, column = 50, 6, 190, 132, 1
    score_grid(p, x0, y0, side, n, n, column=column)
    for j in range(n):
        color = GREEN if j == column else SOFT
        p.box(x0 + j * side + 3, y0 - 50, side - 6, 18, color, 2)
        p.box(x0 + j * side + 3, y0 - 28, side - 6, 18, color, 2)
    p.text(x0 - 8, y0 - 37, "K, V", 12.5, GREEN, anchor="end", weight="bold")
    p.text(x0 - 8, y0 - 15, "z_K, z_V", 12.5, GREEN, anchor="end", weight="bold")
    p.text(x0 + (column + 0.5) * side, y0 - 58, "kept", 11.5, SOFT, anchor="middle")
    # On the left: the operands that are loaded with each tile of queries.
    for i in range(n):
        color = VIOLET if i >= column else SOFT
        for k, w in enumerate((22, 22, 8, 8)):
            p.box(x0 - 96 + (0, 26, 52, 64)[k], y0 + i * side + 3, w, side - 6, color, 2)
    for k, name in enumerate(("Q", "z_O", "ξ", "u")):
        p.text(x0 - 96 + (11, 37, 56, 68)[k], y0 + n * side + 18, name, 12, VIOLET, anchor="middle", weight="bold")
    p.box(x0 + n * side + 14, y0 + 3, 22, n * side - 6, AMBER, 2)
    p.text(x0 + n * side + 25, y0 + n * side + 18, "z_Q", 12, AMBER, anchor="middle", weight="bold")
    x = x0 + (column + 0.5) * side
    for i in range(column, n):
        p.text(x - 12, y0 + (i + 0.5) * side + 5, f"{i - column + 1}", 12, BLUE, anchor="middle", weight="bold")
    p.line(x + 8, y0 + column * side + 22, x + 8, y0 + n * side - 8, BLUE, 2.2, arrow=True)
    y = y0 + 3.5 * side
    p.line(x0 + (column + 1) * side + 4, y, x0 + n * side + 12, y, AMBER, 1.6, arrow=True, dash="5 3")
    p.text(20, 490, "first, for all queries:", 12.5, INK, weight="bold")
    p.text(176, 490, "u = (O ⊛ z_O).sum − z_ξ", 13, INK, mono=True)
    p.text(382, 490, "one element per query,", 12, SOFT)
    p.text(382, 507, "equal to (P ⊛ z_P).sum − z_ξ", 12, SOFT)
    p.text(20, 531, "FlashAttention's names: D for u, dS for z_A, dQ for z_Q (notation.md).", 12, SOFT, italic=True)

    bx, bw = 590, 372
    p.box(bx, 62, bw, 268, BLUE, 8)
    p.text(bx + 14, 86, "for each tile of Γ queries: five products", 13.5, BLUE, weight="bold")
    p.lines(bx + 14, 114, ["A    =  scale·Q·Kᵀ", "P    =  exp(A ⊖ ξ)", "z_V +=  (P ⊛ keep)ᵀ·z_O", "z_P  =  (z_O·Vᵀ) ⊛ keep",
                           "z_A  =  P ⊛ (z_P ⊖ u)", "z_K +=  scale·z_Aᵀ·Q", "z_Q +=  scale·z_A·K"], 13.5, 26, mono=True)
    for n_, (y, words) in enumerate(((114, "1"), (166, "2"), (192, "3"), (244, "4"), (270, "5"))):
        p.box(bx + bw - 34, y - 14, 20, 20, BLUE if n_ < 4 else AMBER, 10)
        p.text(bx + bw - 24, y + 0.5, words, 11.5, BLUE if n_ < 4 else AMBER, anchor="middle", weight="bold")
    p.text(bx + 14, 300, "P is recomputed, never stored. z_K and z_V", 11.5, SOFT)
    p.text(bx + 14, 317, "belong to the block; z_Q is shared by all blocks.", 11.5, SOFT)
    p.box(bx, 344, bw, 166, AMBER, 8)
    p.text(bx + 14, 368, "additions to z_Q, and their order", 13.5, AMBER, weight="bold")
    p.lines(bx + 14, 392, ["CPU, Hopper: blocks add in the order of their keys.", "CUDA, two passes: a pass over queries computes z_Q.",
                           "CUDA, one pass: up to 8 blocks have separate sums,", "which are then added in order.",
                           "CUDA, nondeterministic: all add to the same sums."], 11.5, 19)
    p.text(bx + 14, 495, "All except the last give bitwise identical results.", 11.5, SOFT)
    p.write("attention-backward.svg")


def attention_memory():
    """The forward on Hopper: the contents of each memory, and the copies between them."""
    p = Picture(980, 436, "Contents of HBM, second-level cache, shared memory and registers during a forward block")
    p.text(20, 30, "flash_attn on Hopper: from HBM to registers and back", 17, INK, weight="bold")
    columns = [(20, 172, "HBM", "the whole call", SOFT), (232, 172, "L2 cache", "shared by all blocks", VIOLET),
               (444, 232, "shared memory", "of the block", BLUE), (716, 244, "registers", "of one consumer warpgroup", GREEN)]
    for x, w, name, whose, color in columns:
        p.rect(x, 48, w, 262, "#fbfcfd", LINE, 8)
        p.text(x + 12, 70, name, 14.5, color, weight="bold")
        p.text(x + 12, 87, whose, 11, SOFT)

    def entry(x, y, w, h, color, name, shape="", size=12.5):
        p.box(x, y, w, h, color, 4)
        p.text(x + 9, y + h / 2 + 4.5, name, size, mono=True)
        p.text(x + w - 8, y + h / 2 + 4, shape, 10.5, SOFT, anchor="end", mono=True)

    for n, (name, shape, color) in enumerate((("Q", "[L, d]", VIOLET), ("K", "[T, d]", GREEN), ("V", "[T, dv]", GREEN), ("O", "[L, dv]", AMBER), ("ξ", "[L]", AMBER))):
        entry(32, 102 + n * 39, 148, 30, color, name, shape)
    p.box(244, 141, 148, 69, GREEN, 4)
    p.text(254, 163, "K, V of a", 12.5, mono=True)
    p.text(254, 181, "section's heads", 12.5, mono=True)
    p.text(254, 200, "read by every block", 10.5, SOFT)
    entry(456, 102, 208, 30, VIOLET, "Q tiles", "64 × d each")
    for n, (name, shape) in enumerate((("K, stage 0", "128 × d"), ("K, stage 1", ""), ("V, stage 0", "128 × dv"), ("V, stage 1", ""))):
        entry(456, 141 + n * 31, 208, 26, GREEN, name, shape, 11.5)
    p.text(456, 283, "stages: some are filled while", 11, SOFT)
    p.text(456, 298, "another is multiplied", 11, SOFT)
    entry(728, 102, 220, 30, BLUE, "S, then P", "64 × 128 f32")
    entry(728, 141, 220, 30, BLUE, "P, rounded", "64 × 128 16 bits")
    entry(728, 180, 220, 30, AMBER, "G, then O", "64 × dv f32")
    entry(728, 219, 220, 30, AMBER, "c, π", "64 each")
    p.text(728, 270, "A and P exist only here, as tiles;", 11, RED)
    p.text(728, 285, "no matrix of L × T elements", 11, RED)
    p.text(728, 300, "is ever written to memory", 11, RED)
    for x0, x1, y, color in ((182, 244, 175, GREEN), (394, 456, 175, GREEN), (664, 728, 117, BLUE)):
        p.line(x0 + 2, y, x1 - 3, y, color, 2, arrow=True)
    p.path("M 182 117 L 452 117", VIOLET, 2, arrow=True)
    p.path("M 664 220 L 696 220 L 696 195 L 724 195", GREEN, 2, arrow=True)
    p.text(424, 110, "TMA", 11, SOFT, anchor="middle", weight="bold")
    p.text(424, 168, "TMA", 11, SOFT, anchor="middle", weight="bold")
    p.text(690, 110, "wgmma", 10, SOFT, anchor="middle", weight="bold")
    p.path("M 840 312 L 840 332 L 106 332 L 106 291", AMBER, 2, arrow=True, dash="6 4")
    p.text(470, 326, "O and ξ are stored once: O through the tile of Q by TMA, ξ directly", 11.5, AMBER, anchor="middle")
    for x, w, size, rate in ((20, 172, "141 GB", "4.8 TB/s"), (232, 172, "50 MB", "faster than HBM"), (444, 232, "up to 227 KiB", "128 B per clock"),
                             (716, 244, "65,536 × 32 bits, 256 KiB", "operands of every instruction")):
        p.rect(x, 350, w, 62, PALE[SOFT], None, 6)
        p.text(x + 12, 375, size, 13, weight="bold")
        p.text(x + 12, 397, rate, 12, SOFT)
    p.text(960, 430, "Each of the 132 multiprocessors has this shared memory and these registers.", 10.5, SOFT, anchor="end")
    p.write("attention-memory.svg")


def attention_swizzle():
    """A tile in shared memory: blocks of 64 columns, 16-byte chunks permuted by the row."""
    p = Picture(980, 420, "A swizzled tile: blocks of 64 columns, whose 16-byte chunks are permuted by the row")
    p.text(20, 30, "A tile in shared memory, as TMA writes it and wgmma reads it", 17, INK, weight="bold")
    x0, y0, w, h = 40, 104, 120, 230
    p.text(x0 + w + 4, 62, "the tile [rows, 128]", 13, weight="bold", anchor="middle")
    for n in range(2):
        x = x0 + n * (w + 8)
        p.box(x, y0, w, h, BLUE, 3)
        p.text(x + w / 2, y0 - 24, f"block {n}", 12, BLUE, anchor="middle", weight="bold")
        p.text(x + w / 2, y0 - 9, f"columns {64 * n} … {64 * n + 63}", 11, SOFT, anchor="middle")
        for r in range(1, 8):
            p.line(x, y0 + r * h / 8, x + w, y0 + r * h / 8, "#ffffff", 1)
        for r, words in ((0, "rows 0 … 7"), (1, "rows 8 … 15"), (2, "…")):
            p.text(x + w / 2, y0 + (r + 0.5) * h / 8 + 4, words, 11, anchor="middle", mono=True)
    p.rect(x0 + w + 8, y0, w, h / 8, "none", RED, 2, 2)
    p.text(x0, y0 + h + 20, "a row of a block: 128 bytes", 11.5, SOFT)
    p.text(x0, y0 + h + 37, "8 rows: 1024 bytes", 11.5, SOFT)
    p.text(x0, y0 + h + 54, "a block: rows·128 bytes, then the next", 11.5, SOFT)
    p.line(x0 + 2 * w + 10, y0 + h / 16, 358, y0 + h / 16, RED, 1.4, arrow=True)

    gx, gy, cw, ch = 404, 88, 66, 31
    p.text(gx + 4 * cw, 52, "the chunk of 8 columns (16 bytes) in each slot", 13, weight="bold", anchor="middle")
    for s in range(8):
        p.text(gx + (s + 0.5) * cw, gy - 16, f"slot {s}", 11, SOFT, anchor="middle")
        p.text(gx + (s + 0.5) * cw, gy - 4, f"banks {4 * s}–{4 * s + 3}", 8.5, SOFT, anchor="middle")
    for r in range(8):
        p.text(gx - 8, gy + (r + 0.5) * ch + 4, f"row {r}", 11, SOFT, anchor="end")
        for s in range(8):
            chunk = s ^ r
            if chunk == 0:
                p.box(gx + s * cw, gy + r * ch, cw, ch, AMBER, 0, width=1)
            elif chunk == 1:
                p.box(gx + s * cw, gy + r * ch, cw, ch, GREEN, 0, width=1)
            else:
                p.rect(gx + s * cw, gy + r * ch, cw, ch, "#ffffff", LINE, 0, 1)
            p.text(gx + (s + 0.5) * cw, gy + (r + 0.5) * ch + 4, str(chunk), 12.5, INK, anchor="middle", mono=True,
                   weight="bold" if chunk < 2 else "normal")
    p.lines(372, 362, ["slot = chunk xor (row mod 8). Chunk 0 of eight rows is in eight different slots, so in all 32 banks.",
                       "Reading the same columns of eight rows uses no bank twice. TMA permutes when it writes, and",
                       "wgmma when it reads. Other code that accesses a tile calls SwizzledTile::offset."], 11.5, 18, color=SOFT)
    p.write("attention-swizzle.svg")


def attention_accumulator():
    """The accumulators of each lane: layout, use as a left operand, and the exchange before a store."""
    p = Picture(980, 500, "Accumulators of a warp: layout, P as left operand, and the exchange before a store")
    p.text(20, 30, "Accumulators in registers: warp w of a warpgroup has rows 16w … 16w + 15 of 64", 17, INK, weight="bold")
    x0, y0, cw, ch = 92, 92, 33, 21
    p.text(x0 + 4 * cw, 62, "lane 4g + t, in each 16 × 8 part", 13, weight="bold", anchor="middle")
    for t in range(4):
        p.text(x0 + (2 * t + 1) * cw, y0 - 6, f"t = {t}", 11, SOFT, anchor="middle")
    for r in range(16):
        p.text(x0 - 8, y0 + (r + 0.5) * ch + 4, f"row {r}, g = {r % 8}", 9.5, SOFT, anchor="end")
        for t in range(4):
            mine = r % 8 == 2 and t == 1
            if mine:
                p.box(x0 + 2 * t * cw, y0 + r * ch, 2 * cw, ch, AMBER, 0, width=1.4)
            else:
                p.rect(x0 + 2 * t * cw, y0 + r * ch, 2 * cw, ch, "#ffffff" if r < 8 else "#f7f9fb", LINE, 0, 1)
            p.text(x0 + (2 * t + 1) * cw, y0 + (r + 0.5) * ch + 4, f"{4 * (r % 8) + t}", 10.5, INK if mine else SOFT, anchor="middle", mono=True,
                   weight="bold" if mine else "normal")
    p.lines(20, y0 + 16 * ch + 20, ["Lane 9 (g = 2, t = 1) has rows 2 and 10,", "columns 2 and 3 of every part. A row is in", "four lanes: its maximum needs two shuffles."],
            11.5, 17, color=SOFT)

    bx = 404
    p.text(bx, 62, "P becomes the left operand in place", 13, weight="bold")
    for n, (name, color) in enumerate((("part 2k", BLUE), ("part 2k + 1", VIOLET))):
        x = bx + n * 150
        p.box(x, 78, 140, 62, color, 4)
        p.text(x + 70, 95, name, 11.5, color, anchor="middle", weight="bold")
        for r in range(2):
            p.text(x + 70, 113 + 17 * r, ("row g", "row g + 8")[r] + ": 2t, 2t + 1", 11, anchor="middle")
    p.text(bx + 312, 104, "f32, of", 11.5, SOFT)
    p.text(bx + 312, 120, "one lane", 11.5, SOFT)
    for n, words in enumerate(("row g", "row g + 8", "row g", "row g + 8")):
        color = BLUE if n < 2 else VIOLET
        x = bx + n * 73 + (n // 2) * 4
        p.box(x, 170, 68, 40, color, 4)
        p.text(x + 34, 187, f"x[k][{n}]", 11, anchor="middle", mono=True)
        p.text(x + 34, 202, words, 9.5, SOFT, anchor="middle")
        p.line(x + 34, 143, x + 34, 167, SOFT, 1.2, arrow=True)
    p.text(bx + 312, 187, "two 16-bit", 11.5, SOFT)
    p.text(bx + 312, 203, "numbers each", 11.5, SOFT)
    p.lines(bx, 232, ["wgmma expects step k of a left operand, 16 rows by 16 columns, in exactly these", "lanes. So P is only rounded in place, and never passes through shared memory."], 11.5, 17, color=SOFT)

    p.text(bx, 292, "Storing: the four lanes of a quad exchange words", 13, weight="bold")
    side, colors = 40, (BLUE, GREEN, AMBER, VIOLET)
    for m, title in enumerate(("before", "after")):
        x = bx + 60 + m * 280
        for t in range(4):
            p.text(x - 8, 322 + t * 32 + 18, f"lane {t}", 10.5, SOFT, anchor="end")
            for n in range(4):
                part, lane = (n, t) if m == 0 else (t, n)
                p.box(x + n * (side + 2), 320 + t * 32, side, 26, colors[part], 3, width=1)
                p.text(x + n * (side + 2) + side / 2, 320 + t * 32 + 17, f"{part}.{lane}", 11, anchor="middle", mono=True)
    p.line(bx + 240, 380, bx + 270, 380, INK, 2, arrow=True)
    p.lines(bx, 466, ["Word p.t has columns 2t and 2t + 1 of part p, rounded to 16 bits. After four shuffles, without", "shared memory, a lane has 8 columns (16 bytes) of a row, and a quad 64 consecutive bytes."],
            11.5, 17, color=SOFT)
    p.write("attention-accumulator.svg")


def attention_roles():
    """Roles of a forward block over time: two consumer warpgroups alternate on the tensor cores."""
    p = Picture(980, 424, "Roles of a forward block over time: two warpgroups alternate on the tensor cores")
    p.text(20, 30, "A forward block over time: one warpgroup's softmax runs during the other's products", 17, INK, weight="bold")
    x0, unit, h = 166, 96, 40
    rows = [("scheduler warp", "work items"), ("loading warp", "TMA"), ("warpgroup 1", "queries 0 … 63"), ("warpgroup 2", "queries 64 … 127"),
            ("tensor cores", "")]
    at = [64 + n * 58 for n in range(5)]
    for y, (name, what) in zip(at, rows):
        p.text(20, y + 18, name, 12.5, weight="bold")
        p.text(20, y + 34, what, 10.5, SOFT)
        p.rect(x0, y, 794, h, "#fbfcfd", LINE, 4, 1)

    def block(row, start, length, color, words, small=""):
        p.box(x0 + start * unit + 1, at[row] + 2, length * unit - 2, h - 4, color, 3, width=1)
        p.text(x0 + (start + length / 2) * unit, at[row] + (h / 2 + 4 if not small else 18), words, 11, anchor="middle", mono=True)
        p.text(x0 + (start + length / 2) * unit, at[row] + 32, small, 9.5, SOFT, anchor="middle")

    block(0, 0.1, 1.5, SOFT, "keys of item n + 1")
    for n, words in enumerate(("K j−1", "V j", "K j−2", "V j−1", "K j−3", "V j−2", "K j−4", "V j−3")):
        block(1, 0.1 + n * 1.0, 0.9, GREEN, words)
    for row, shift in ((2, 0), (3, 1)):
        color = BLUE if row == 2 else VIOLET
        for n in range(4):
            start = shift + 2 * n
            if start + 0.36 > 8.2:
                continue
            block(row, start, 0.36, color, "sync")
            block(row, start + 0.36, min(0.5, 8.27 - start - 0.36), SOFT, "wait S") if start + 0.9 < 8.3 else None
            if start + 1.9 < 8.3:
                block(row, start + 0.86, 1.14, AMBER, "softmax j" + (f"−{n}" if n else ""))
        if shift:
            block(row, 0, 0.86, AMBER, "softmax j+1")
    for n in range(8):
        color = BLUE if n % 2 == 0 else VIOLET
        j = f"j−{n // 2}" if n // 2 else "j"
        before = {0: "j+1", 1: "j"}.get(n // 2, f"j−{n // 2 - 1}")
        p.box(x0 + n * unit + 12, at[4] + 2, 44, h - 4, color, 3, width=1)
        p.box(x0 + n * unit + 57, at[4] + 2, 44, h - 4, color, 3, width=1)
        p.text(x0 + n * unit + 34, at[4] + 24, "S " + j, 9.5, anchor="middle", mono=True)
        p.text(x0 + n * unit + 79, at[4] + 24, "PV" + before, 8.5, anchor="middle", mono=True)
    for n in range(1, 8):  # the signal to the other warpgroup
        a, b = (2, 3) if n % 2 else (3, 2)
        x = x0 + (n - 1) * unit + 0.36 * unit
        p.line(x, at[a] + (h if a < b else 0), x0 + n * unit + 4, at[b] + (0 if a < b else h), RED, 1.3, arrow=True)
    p.lines(20, 372, ["sync: wait until the other has started its products, start S = Q·Kᵀ of tile j and G += P·V of the previous tile (PV), then signal it (red).",
                      "The softmax of a tile begins when its S is complete. Its exponentials overlap the warpgroup's own PV and all products of the other.",
                      "Lengths are not to scale. With head size ≤ 64, a third warpgroup joins in the same way."], 11.5, 19, color=SOFT)
    p.write("attention-roles.svg")


def attention_products():
    """The backward on Hopper: five products per tile, and the locations of their operands."""
    p = Picture(980, 446, "Five products of a backward block on Hopper: locations of operands and results")
    p.text(20, 30, "The backward on Hopper: five products per tile of Γ queries, for each warpgroup's 64 keys", 17, INK, weight="bold")
    heads = ((40, "product"), (250, "left operand"), (474, "right operand"), (706, "result (f32)"))
    for x, words in heads:
        p.text(x, 62, words, 12.5, SOFT, weight="bold")
    products = [("1", "S = K·Qᵀ", (GREEN, "K", "64 × d", "shared, kept"), (VIOLET, "Q", "Γ × d", "shared, stage"), (BLUE, "S", "64 × Γ", "registers")),
                ("2", "z_P = V·z_Oᵀ", (GREEN, "V", "64 × dv", "shared, kept"), (VIOLET, "z_O", "Γ × dv", "shared, stage"), (BLUE, "z_P", "64 × Γ", "registers")),
                ("3", "z_V += P·z_O", (BLUE, "P", "64 × Γ", "registers, 16 bits"), (VIOLET, "z_O", "Γ × dv", "shared, transposed"), (AMBER, "z_V", "64 × dv", "registers, whole block")),
                ("4", "z_Q  = z_Aᵀ·K", (BLUE, "z_Aᵀ", "Γ × 128", "shared, from both warpgroups"), (GREEN, "K", "128 × d", "shared, kept"), (RED, "z_Q", "half of Γ × d", "registers, then global")),
                ("5", "z_K += z_A·Q", (BLUE, "z_A", "64 × Γ", "registers, 16 bits"), (VIOLET, "Q", "Γ × d", "shared, transposed"), (AMBER, "z_K", "64 × d", "registers, whole block"))]
    for n, (number, words, *operands) in enumerate(products):
        y = 76 + n * 54 + (28 if n > 1 else 0)
        p.text(20, y + 27, number, 13, BLUE, weight="bold")
        p.text(40, y + 27, words, 13.5, mono=True)
        for (color, name, shape, where), (x, _) in zip(operands, heads[1:]):
            p.box(x, y, 206, 44, color, 4)
            p.text(x + 10, y + 19, name, 13, mono=True, weight="bold")
            p.text(x + 196, y + 19, shape, 11, SOFT, anchor="end", mono=True)
            p.text(x + 10, y + 36, where, 11, SOFT)
        p.text(463, y + 27, "·", 16, INK, anchor="middle", weight="bold")
        p.line(684, y + 22, 702, y + 22, INK, 1.6, arrow=True)
    p.text(40, 201, "P = exp(A − ξ), rounded;  z_A = P ⊛ (z_P − u), rounded, in registers and in shared memory (stmatrix)", 12, BLUE)
    p.lines(20, 398, ["Green: kept for the whole block. Violet: tiles that are loaded into two stages. Blue: temporary values of a tile. Amber: results of this",
                      "block, stored once at its end. Red: accumulated in global memory by the blocks of all keys. z_Q is a sum over all 128 keys of the block,",
                      "so it needs z_A of both warpgroups. Each computes half of it; with head size > 64, it computes the transpose Kᵀ·z_A."], 11.5, 19, color=SOFT)
    p.write("attention-products.svg")


def attention_tickets():
    """The blocks that add to z_Q of each tile of queries, and their order."""
    p = Picture(980, 404, "Tickets: blocks of keys add to the z_Q of a tile of queries in ascending order")
    p.text(20, 30, "Tickets: blocks of keys add to a tile's z_Q one after the other", 17, INK, weight="bold")
    side, n, x0, y0 = 46, 6, 196, 92
    p.text(x0 + n * side / 2, 58, "tiles of queries", 12.5, VIOLET, anchor="middle", weight="bold")
    for i in range(n):
        p.text(x0 + (i + 0.5) * side, y0 - 10, str(i), 12, VIOLET, anchor="middle")
        p.text(x0 - 10, y0 + (i + 0.5) * side + 5, f"keys, block {i}", 12, GREEN, anchor="end")
        for j in range(n):  # row i: block of keys, column j: tile of queries
            first = max(0, j - 2)
            seen = first <= i <= j
            color = GREEN if i == first else BLUE
            if seen:
                p.box(x0 + j * side, y0 + i * side, side, side, color, 0, width=1)
                p.text(x0 + (j + 0.5) * side, y0 + (i + 0.5) * side + 5, str(i - first), 15, color, anchor="middle", weight="bold")
            else:
                p.rect(x0 + j * side, y0 + i * side, side, side, "url(#hatch)", LINE, 0, 1)
    p.text(20, y0 + 0.5 * side + 5, "launched first", 11, SOFT)
    p.text(20, y0 + 5.5 * side + 5, "last", 11, SOFT)
    p.line(30, y0 + side, 30, y0 + 5.1 * side, SOFT, 1.2, arrow=True)
    j = 3
    p.path(f"M {x0 + (j + 0.8) * side:.0f} {y0 + 1.2 * side:.0f} L {x0 + (j + 0.8) * side:.0f} {y0 + 3.75 * side:.0f}", RED, 2, arrow=True)
    p.text(x0 + n * side / 2, y0 + n * side + 22, "a causal window of three blocks; hatched: no query of the tile sees the keys", 11, SOFT, anchor="middle")
    bx = 520
    p.box(bx, 76, 440, 132, BLUE, 8)
    p.text(bx + 14, 100, "for a tile of queries, the block with ticket n", 13.5, BLUE, weight="bold")
    p.lines(bx + 14, 126, ["waits until the tile's counter is n     (acquire)", "n = 0: stores its part of z_Q", "n > 0: adds its part",
                           "then adds 1 to the counter              (release)"], 12, 23, mono=True)
    p.box(bx, 222, 440, 146, GREEN, 8)
    p.text(bx + 14, 246, "why all blocks end, and why results are identical", 13.5, GREEN, weight="bold")
    p.lines(bx + 14, 270, ["A ticket is the number of earlier blocks of this tile. They", "have lower indices in the grid, so they start first. The first",
                           "block that still runs waits for no other, so all blocks end.", "Each element of z_Q is a sum in a fixed order: ascending keys.",
                           "Ticket 0 overwrites, so nothing is cleared first."], 12, 20)
    p.write("attention-tickets.svg")


def attention_speed():
    """Rates of docs/benchmarks.md: causal attention with head size 128 on one H200, with cuDNN and FlashAttention-2."""
    page = (HERE.parent / "benchmarks.md").read_text(encoding="utf8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.split("\n")
            if line.startswith("| flash_attn causal | ") and "×16×" in line and "×128 | bf16" in line]
    machine = next(line for line in page.split("\n") if line.startswith("NVIDIA"))
    p = Picture(980, 340, "Causal attention, head size 128: TFLOP/s of tilegrad, cuDNN and FlashAttention-2")
    p.text(20, 30, "Causal attention, bf16, head size 128, TFLOP/s (higher is better)", 15, weight="bold")
    p.text(20, 50, machine.split(". Measured")[0] + ", by docs/benchmarks.md", 11.5, SOFT)
    for n, (name, color) in enumerate((("tilegrad", BLUE), ("cuDNN", AMBER), ("FlashAttention-2", SOFT))):
        p.rect(640 + n * 95, 20, 12, 12, color, None)
        p.text(657 + n * 95, 31, name, 12)
    for half, (title, column) in enumerate((("forward", 3), ("backward", 6))):
        x0, base, most = 40 + half * 475, 290, 700
        p.text(x0, 84, title, 13.5, weight="bold")
        for level in (0, 200, 400, 600):
            y = base - level / most * 190
            p.line(x0, y, x0 + 440, y, LINE, 1)
            p.text(x0 - 6, y + 4, str(level), 10, SOFT, anchor="end")
        for n, row in enumerate(rows):
            ours, flash, cudnn = float(row[column]), float(row[column + 1]), float(row[column + 2])
            for k, (rate, color) in enumerate(((ours, BLUE), (ours / cudnn, AMBER), (ours / flash, SOFT))):
                height, x = rate / most * 190, x0 + 14 + n * 110 + k * 28
                p.rect(x, base - height, 25, height, color, None)
                p.text(x + 12.5, base - height - 4, f"{rate:.0f}", 9.5, SOFT, anchor="middle")
            p.text(x0 + 14 + n * 110 + 41, base + 18, row[1], 11, anchor="middle", mono=True)
    p.text(20, 330, "Shapes: batch × heads × length × head size. tilegrad's backward pass is deterministic.", 11, SOFT)
    p.write("attention-speed.svg")


data_flow()
folders()
attention_speed()
memory_plan()
attention_forward()
attention_backward()
attention_memory()
attention_swizzle()
attention_accumulator()
attention_roles()
attention_products()
attention_tickets()
