"""Measures multi-query associative recall (arXiv 2312.04927) of models of several widths: the task of examples/associative_recall.py.

    PYTHONPATH=build/python recall.py --devices cuda:0 cuda:1 --jobs 12 --log recall.jsonl --plot recall.png
    recall.py --show recall.jsonl --plot recall.png

For each width, kind of attention and seed a model trains on sequences that hold one of --pairs pairs each, and is then asked about each of
these numbers of pairs in new sequences. Heads have 64 channels, so that the state of linear attention grows with the width. --jobs models
train at once, each in a process of its own. The log gets a line for each model as soon as it is ready. A model whose line is there already is
not trained again.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples"))
HEAD = 64  # channels
KINDS = ("gla", "lightning", "softmax")


def train_model(settings):
    """A row: the settings, the accuracy by the number of pairs, and the seconds of the training."""
    import associative_recall
    import glade
    import numpy as np

    options = SimpleNamespace(**settings)
    options.hidden, options.heads = options.width, max(1, options.width // HEAD)
    options.lr *= (HEAD / options.width) ** 0.5
    options.device = glade.Device(options.device)
    begin = time.perf_counter()
    model = associative_recall.train(options.kind, options)
    seconds = time.perf_counter() - begin
    rng = np.random.default_rng([options.seed, 1])
    accuracy = {str(n): associative_recall.accuracy(model, rng, n, options) for n in options.pairs}
    return settings | dict(accuracy=accuracy, seconds=seconds, parameters=sum(x.numel() for x in model.parameters()))


def name_of(row):
    return row["kind"], row["width"], row["seed"]


def measure(options):
    """Trains all models of the grid, a seed after the other, and writes and returns their rows."""
    rows = read(options.log) if os.path.exists(options.log) else []
    done = {name_of(row) for row in rows}
    grid = [(kind, width, seed) for seed in options.seeds for width in sorted(options.widths, reverse=True) for kind in options.kinds]
    grid = [item for item in grid if item not in done]
    common = {name: getattr(options, name) for name in ("pairs", "keys", "layers", "seq_len", "batch", "steps", "lr")}
    context = multiprocessing.get_context("spawn")
    with open(options.log, "a") as log, ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        jobs = {}
        for i, item in enumerate(grid):
            kind, width, seed = item
            device = options.devices[i % len(options.devices)]
            jobs[pool.submit(train_model, dict(common, kind=kind, width=width, seed=seed, device=device))] = item
        for job in as_completed(jobs):
            if error := job.exception():  # the other models may do
                print(f"recall.py: {' '.join(map(str, jobs[job]))}: {error}", file=sys.stderr, flush=True)
                continue
            rows.append(job.result())
            print(json.dumps(rows[-1]), file=log, flush=True)
            kind, width, seed = name_of(rows[-1])
            accuracies = ", ".join(f"{n}: {a:.1%}" for n, a in rows[-1]["accuracy"].items())
            print(f"{kind} {width} seed {seed}: {rows[-1]['seconds']:.0f} s; {accuracies}", flush=True)
    return rows


def read(path):
    try:
        with open(path) as file:
            return [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        sys.exit(f"recall.py: {path} cannot be read as a log: {error}")


def summarize(rows):
    """{(kind, width): {pairs: accuracies of the seeds}}, which is printed as a table of medians."""
    table = {}
    for row in rows:
        for pairs, accuracy in row["accuracy"].items():
            table.setdefault((row["kind"], row["width"]), {}).setdefault(int(pairs), []).append(accuracy)
    pairs = sorted({n for cell in table.values() for n in cell})
    print(f"{'kind':10} {'width':>5} {'seeds':>5}  " + " ".join(f"{n:>4} pairs" for n in pairs))
    for (kind, width), cell in sorted(table.items()):
        seeds = max(map(len, cell.values()))
        print(f"{kind:10} {width:5} {seeds:5}  " + " ".join(f"{statistics.median(cell[n]):10.1%}" if n in cell else " " * 10 for n in pairs))
    return table


def draw(table, path):
    from plotting import pyplot

    plt = pyplot()
    kinds = [kind for kind in KINDS if any(kind == found for found, _ in table)]
    figure, axes = plt.subplots(1, len(kinds), figsize=(4.2 * len(kinds), 3.6), sharey=True, squeeze=False, layout="constrained")
    for kind, axis in zip(kinds, axes[0]):
        for (found, width), cell in sorted(table.items()):
            if found == kind:
                pairs = sorted(cell)
                (line,) = axis.plot(pairs, [statistics.median(cell[n]) for n in pairs], marker="o", label=f"width {width}")
                axis.fill_between(pairs, [min(cell[n]) for n in pairs], [max(cell[n]) for n in pairs], color=line.get_color(), alpha=0.2)
        axis.set_xscale("log", base=2)
        axis.set(title={"gla": "GLA", "lightning": "lightning attention", "softmax": "softmax attention"}[kind], xlabel="pairs", ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("accuracy")
    axes[0][0].legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def option(name, text, default, kind=int, **how):
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        parser.add_argument(name, help=f"{text} (default: {shown})", default=default, type=kind, **how)

    option("--kinds", "kinds of attention", list(KINDS), str, nargs="+", choices=KINDS)
    option("--widths", "sizes of the hidden vectors", [64, 128, 256, 512], nargs="+")
    option("--pairs", "pairs of a sequence", [4, 8, 16, 32, 64], nargs="+")
    option("--seeds", "seeds of the weights and the data", [0, 1, 2], nargs="+")
    option("--keys", "number of different keys, and of values", 128)
    option("--layers", "number of layers", 2)
    option("--seq-len", "tokens of a sequence", 256)
    option("--batch", "sequences of a batch", 64)
    option("--steps", "steps of training", 3000)
    option("--lr", "highest learning rate at a width of 64, which falls with the root of the width", 5e-3, float)
    option("--devices", "devices, used in turn", ["cuda"], str, nargs="+")
    option("--jobs", "models that train at once", 1)
    parser.add_argument("--log", help="JSON lines to write; models that are in it are not trained again")
    parser.add_argument("--show", metavar="LOG", help="trains nothing, and prints and draws this log")
    parser.add_argument("--plot", help="image to draw")
    options = parser.parse_args()
    if bool(options.log) == bool(options.show):
        parser.error("give either --log or --show")
    most = min(options.seq_len // 3, options.keys)
    if max(options.pairs) > most:
        parser.error(f"--pairs {max(options.pairs)}: a sequence of {options.seq_len} with {options.keys} keys holds {most} pairs at most")
    if any(width % HEAD for width in options.widths if width > HEAD):
        parser.error(f"--widths: those above {HEAD} must be multiples of it")
    rows = read(options.show) if options.show else measure(options)
    if not rows:
        sys.exit("recall.py: there are no results")
    table = summarize(rows)
    if options.plot:
        draw(table, options.plot)


if __name__ == "__main__":
    main()
