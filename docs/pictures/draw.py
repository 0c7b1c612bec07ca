"""Draws the pictures of the pages, docs/pictures/*.svg: `python docs/pictures/draw.py`.

The plots show raw results in benchmarks/results. Lines and letters have colours that can be read on white and on black, and sizes that
can be read on a phone.
"""

import json
import math
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
WIDTH = 480
GRAY, BLUE, ORANGE, GREEN = "#7a7f87", "#2f74c0", "#cf6a1b", "#2f9460"


class Picture:
    """Shapes one over the other; y goes down."""

    def __init__(self, title, height):
        self.head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="14">\n<title>{title}</title>\n'
            f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{GRAY}"/></marker></defs>\n'
        )
        self.shapes = []

    def box(self, x, y, width, height, fill, opacity=1.0):
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" fill-opacity="{opacity:g}"/>')

    def circle(self, x, y, radius, fill):
        self.shapes.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}"/>')

    def text(self, x, y, words, fill=GRAY, anchor="start", size=14, weight="normal"):
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">{words}</text>')

    def line(self, points, stroke=GRAY, width=1.5, arrow=False, opacity=1.0):
        path = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self.shapes.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}" stroke-opacity="{opacity:g}"{tip}/>')

    def area(self, points, fill):
        self.shapes.append(f'<polygon points="{" ".join(f"{x:g},{y:g}" for x, y in points)}" fill="{fill}"/>')

    def svg(self):
        return self.head + "\n".join(self.shapes) + "\n</svg>\n"


def house():
    """Folders; what is above may include what is below."""
    picture = Picture("Folders of glade: each includes only what lies below it", 350)
    for i, name in enumerate(["bindings", "examples", "tools", "benchmarks", "tests"]):
        picture.box(10 + 93 * i, 10, 88, 36, GRAY)
        picture.text(54 + 93 * i, 33, name, "white", "middle", 12, "bold")
    layers = [
        ("nn", "modules, layers, losses, optimizers, data,", "models, checkpoints, several processes"),
        ("ops", "one folder per family: elementwise, reduce, matmul,", "norm, loss, ..., linear_attention"),
        ("autograd", "the tape: nodes, engine, gradcheck,", "functions of your own"),
        ("core", "Tensor, Storage, DType, Device, Stream, Graph,", "Generator, ProcessGroup, errors"),
    ]
    for i, (name, first, second) in enumerate(layers):
        y = 72 + 70 * i
        picture.line([(240, y - 25), (240, y - 3)], arrow=True)
        picture.box(10, y, 460, 44, BLUE)
        picture.text(24, y + 27, name, "white", "start", 16, "bold")
        picture.text(116, y + 18, first, "white", size=13)
        picture.text(116, y + 35, second, "white", size=13)
    picture.text(240, 342, "Arrows say: includes. None goes up.", anchor="middle")
    return picture.svg()


def recurrence():
    """The same outputs token by token, and in chunks."""
    picture = Picture("The gated recurrence token by token, and in chunks", 392)
    picture.text(10, 18, "recurrent: token by token", size=15, weight="bold")
    for t in range(6):
        x = 62 + 76 * t
        if t < 5:
            picture.line([(x + 17, 56), (x + 57, 56)], arrow=True)
        picture.circle(x, 56, 16, BLUE)
        picture.text(x, 61, f"S{'₁₂₃₄₅₆'[t]}", "white", "middle")
        picture.line([(x - 9, 112), (x - 9, 75)], arrow=True)
        picture.line([(x + 9, 73), (x + 9, 110)], arrow=True)
        picture.text(x - 9, 127, "k v", BLUE, "middle", 13)
        picture.text(x + 12, 127, "o", ORANGE, "middle", 13)
    picture.text(10, 152, "Every step decays the state S, adds k vᵀ to it, and reads it with q.", size=13)

    picture.text(10, 196, "chunk: 64 tokens at a time", size=15, weight="bold")
    for c in range(3):
        x = 64 + 150 * c
        picture.line([(x - 22, 258), (x - 2, 258)], arrow=True)
        picture.box(x, 212, 92, 92, GRAY, 0.25)
        picture.area([(x, 212), (x, 304), (x + 92, 304)], ORANGE)
        picture.text(x + 29, 280, "q kᵀ", "white", "middle", 14, "bold")
        picture.circle(x - 40, 258, 16, BLUE)
        picture.text(x - 40, 263, f"S{'₀₁₂'[c]}", "white", "middle")
    picture.box(10, 322, 14, 14, ORANGE)
    picture.text(32, 334, "pairs of tokens in a chunk: matrix products, all at once", size=13)
    picture.circle(17, 356, 8, BLUE)
    picture.text(32, 361, "the state between chunks: what came before them", size=13)
    picture.text(10, 386, "A chunk's output is the sum of both.", size=13)
    return picture.svg()


def time_over_length():
    """Forward and backward over the length of sequences, from benchmarks/compare_fla.py."""
    rows = json.loads((RESULTS / "2026-11-22_h200" / "compare_fla_chunk.json").read_text())
    prefix = "chunk/forward_backward/gk/B"
    times = {}
    for row in rows:
        if row["name"].startswith(prefix) and "_H8_K128_V128" in row["name"]:
            batch, length = (int(part[1:]) for part in row["name"].split("/")[3].split("_")[:2])
            if batch * length == 131072:
                times[length] = row
    lengths = sorted(times)
    low, high = math.log10(1.5), math.log10(300)
    left, right, top, bottom = 40, 456, 54, 300

    def place(length, milliseconds):
        return (
            left + (right - left) * math.log2(length / lengths[0]) / math.log2(lengths[-1] / lengths[0]),
            bottom - (bottom - top) * (math.log10(milliseconds) - low) / (high - low),
        )

    picture = Picture("Time of forward and backward over the length of sequences: constant for linear attention, growing for softmax attention", 348)
    picture.text(10, 18, "forward and backward, 131072 tokens in all (ms)", size=15, weight="bold")
    picture.text(10, 38, "one H200, 8 heads of 128 channels, bfloat16", size=13)
    for value in (3, 10, 30, 100, 300):
        y = place(lengths[0], value)[1]
        picture.line([(left, y), (right, y)], width=1, opacity=0.35)
        picture.text(left - 8, y + 5, str(value), anchor="end", size=13)
    for length in lengths[::2]:
        x = place(length, 1)[0]
        picture.text(x, bottom + 20, f"{length // 1024}k" if length >= 1024 else str(length), anchor="middle", size=13)
    picture.text((left + right) / 2, bottom + 42, "tokens of a sequence", anchor="middle", size=13)
    lines = [
        ("sdpa_ms", "softmax: PyTorch, flash attention", GREEN, 6, -14),
        ("fla_ms", "GLA: fla", ORANGE, 0, -10),
        ("glade_ms", "GLA: glade", BLUE, 3, 22),
    ]
    for key, label, color, at, offset in lines:
        points = [place(length, times[length][key]) for length in lengths]
        picture.line(points, color, 2.5)
        for x, y in points:
            picture.circle(x, y, 3.5, color)
        anchor, gap = ("end", -14) if key == "sdpa_ms" else ("start", 0)
        picture.text(points[at][0] + gap, points[at][1] + offset, label, color, anchor, 14, "bold")
    return picture.svg()


def step_memory():
    """Peak memory of a training step beside fla's, from benchmarks/compare_train_fla.py."""
    rows = {row["name"]: row for row in json.loads((RESULTS / "2026-11-22_h200" / "compare_train_fla.json").read_text())}
    picture = Picture("Peak memory of a training step", 236)
    picture.text(10, 18, "peak memory of a training step (GiB)", size=15, weight="bold")
    picture.text(10, 38, "one H200, GLA models, bfloat16", size=13)
    y = 52
    for size, batch in (("374M", "8 x 2048 tokens"), ("134M", "16 x 2048 tokens")):
        picture.text(10, y + 18, f"{size} parameters, {batch}", size=13)
        for name, key, color in (("glade", f"train glade gla {size}", BLUE), ("fla", f"train fla {size}", ORANGE)):
            y += 28
            gibibytes = rows[key]["peak_bytes"] / 2**30
            picture.text(52, y + 14, name, color, "end", 14, "bold")
            picture.box(60, y, 15 * gibibytes, 20, color)
            picture.text(66 + 15 * gibibytes, y + 15, f"{gibibytes:.1f}", size=14)
        y += 34
    return picture.svg()


PICTURES = {"house": house, "recurrence": recurrence, "time_over_length": time_over_length, "step_memory": step_memory}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw(), encoding="utf-8")
