"""Measures language models of linear attention on sequences that are far longer than those of their training.

    export PYTHONPATH=build/python
    length.py position --data text.txt --checkpoints gla.h5 lightning.h5 --seq-len 512 --json positions.json --plot positions.png
    length.py needle --json needles.json --plot needles.png

position: the loss of checkpoints of train_lm at each position of held-out text, up to --times the --seq-len of their training.
needle: models of examples/associative_recall.py learn to name, at the end of a sequence of random tokens, the values of the keys that
came somewhere in it, each once, before its value. They train on --seq-len tokens and are then asked about sequences of up to a million.
The states pass from one segment of a sequence to the next, so that memory does not grow.
--json writes what was measured; --show draws it again.
"""

import argparse
import json
import math
import os
import resource
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples"))
SEGMENT = 16384  # tokens of all sequences of a batch that a model reads at once
KEYS = VALUES = 64
NOISE = 64  # tokens are: noise, then the keys, then the values
FIRST_KEY, FIRST_VALUE, VOCABULARY = NOISE, NOISE + KEYS, NOISE + KEYS + VALUES
NOT_ASKED = -100
NAMES = {"gla": "GLA", "lightning": "lightning attention"}


def segments(length, batch):
    """(begin, end) of the segments of sequences."""
    step = max(64, SEGMENT // batch)
    return [(begin, min(begin + step, length)) for begin in range(0, length, step)]


# ---- position ---------------------------------------------------------------------------------------------------------


def position_losses(model, device, tokens):
    """The mean loss at each position of tokens [batch, length + 1]."""
    import glade

    states, losses = glade.nn.models.AttentionStates(), []
    with glade.no_grad():
        for begin, end in segments(tokens.shape[1] - 1, len(tokens)):
            logits = model(glade.tensor(tokens[:, begin:end], device=device), states)
            targets = glade.tensor(tokens[:, begin + 1 : end + 1], device=device)
            losses.append(glade.cross_entropy(logits.float(), targets, reduction="none").cpu().numpy().mean(0))
    return np.concatenate(losses)


def bins(seq_len, times):
    """(begin, end) of the positions whose losses are averaged: halves of halves within the training length, then doubling."""
    edges = [0] + [seq_len >> i for i in range(5, -1, -1) if seq_len >> i > 0]
    while edges[-1] < seq_len * times:
        edges.append(min(edges[-1] * 2, seq_len * times))
    return list(zip(edges, edges[1:]))


def measure_positions(options):
    import glade

    data = glade.data.TokenData(options.data)
    held_out, length = len(data) - len(data) // 20, options.seq_len * options.times
    count = min(options.sequences, (len(data) - held_out) // (length + 1))
    if count == 0:
        raise ValueError(f"the held-out twentieth of {options.data} has {len(data) - held_out} tokens, too few for one sequence of {length + 1}")
    distance = (len(data) - held_out) // count
    tokens = np.stack([data.read(held_out + i * distance, length + 1).numpy() for i in range(count)])
    rows = []
    for path in options.checkpoints:
        model = glade.nn.models.from_checkpoint(glade.load(path)).to(options.device).eval()
        losses = position_losses(model, options.device, tokens)
        for begin, end in bins(options.seq_len, options.times):
            rows.append(dict(model=NAMES[model.config["model_type"]], begin=begin, end=end, loss=float(losses[begin:end].mean()), sequences=count, seq_len=options.seq_len))
    return rows


def show_positions(rows, plot):
    for row in rows:
        print(f"{row['model']:20} positions {row['begin']:7} to {row['end']:7}: {row['loss'] / math.log(2):.4f} bits")
    if not plot:
        return
    axes, save = figure(plot, "position", "bits per token")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        axes.plot([(row["begin"] + row["end"]) / 2 for row in own], [row["loss"] / math.log(2) for row in own], marker="o", label=model)
    axes.axvline(rows[0]["seq_len"], color="gray", linestyle="--", linewidth=1, label="training length")
    save()


# ---- needle -----------------------------------------------------------------------------------------------------------


class Haystack:
    """Sequences of noise with needles, a key and its value each, and at the end the keys in another order, as questions."""

    def __init__(self, rng, batch, length, needles):
        self.rng, self.batch, self.length, self.needles = rng, batch, length, needles
        slots = (length - needles) // 2 - needles + 1
        places = 2 * (np.sort(rng.integers(slots, size=(batch, needles)), axis=1) + np.arange(needles))
        keys = rng.permuted(np.tile(np.arange(KEYS), (batch, 1)), axis=1)[:, :needles]
        values = rng.integers(VALUES, size=(batch, needles))
        order = rng.permuted(np.tile(np.arange(needles), (batch, 1)), axis=1)
        asked = np.arange(length - needles, length) + np.zeros((batch, 1), int)
        self.positions = np.concatenate([places, places + 1, asked], 1)
        self.tokens = np.concatenate([FIRST_KEY + keys, FIRST_VALUE + values, FIRST_KEY + np.take_along_axis(keys, order, 1)], 1)
        self.answers = FIRST_VALUE + np.take_along_axis(values, order, 1)
        self.depths = np.take_along_axis(places, order, 1) / length

    def read(self, begin, end):
        """Tokens [batch, end - begin]."""
        tokens = self.rng.integers(NOISE, size=(self.batch, end - begin))
        rows, columns = np.nonzero((self.positions >= begin) & (self.positions < end))
        tokens[rows, self.positions[rows, columns] - begin] = self.tokens[rows, columns]
        return tokens


def train_needle_model(kind, options):
    """A model of examples/associative_recall.py. The first half of the steps sees shorter sequences, which double in length."""
    import associative_recall
    import glade
    from glade import optim

    glade.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    options.heads = max(1, options.hidden // 64)
    model = associative_recall.Recall(kind, options, VOCABULARY).to(options.device)
    optimizer = optim.AdamW(optim.decay_matrices(model.named_parameters(), 0.1), lr=options.lr, betas=(0.9, 0.95))
    scheduler = optim.LRScheduler(optimizer, optim.warmup_cosine_lr(min(100, options.steps), options.steps, 0.01))
    graphed = associative_recall.graphed_step(model, optimizer, options.device)
    lengths = [length for length in (4 * options.needles << i for i in range(40)) if length < options.seq_len] + [options.seq_len]
    for step in range(1, options.steps + 1):
        length = lengths[min(len(lengths) - 1, 2 * (step - 1) * len(lengths) // options.steps)]
        batch = max(1, options.batch_tokens // length)
        haystack = Haystack(rng, batch, length, options.needles)
        targets = np.full((batch, length), NOT_ASKED)
        targets[:, -options.needles :] = haystack.answers
        (loss,) = graphed([glade.tensor(x, device=options.device) for x in (haystack.read(0, length), targets)])
        scheduler.step()
        if step % 500 == 0 or step == options.steps:
            print(f"{kind} step {step}, {length} tokens: loss {loss.item():.4f}", flush=True)
    return model.eval()


def peak_bytes(device):
    """Of the GPU since its last reset; on the CPU of the process since its start."""
    import glade

    if device.type == "cuda":
        return glade.cuda.memory_stats(device.index)["peak_allocated"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def find_needles(model, length, options):
    """The share of right answers of sequences of a length, that for each fifth of the depth, and what it took."""
    import associative_recall
    import glade

    haystack = Haystack(np.random.default_rng([options.seed, length]), options.sequences, length, options.needles)
    states = [associative_recall.BlockState() for _ in range(options.layers)]
    if options.device.type == "cuda":
        glade.cuda.reset_peak_memory_stats(options.device.index)
    start = time.perf_counter()
    first_asked = length - options.needles
    parts = [*segments(first_asked, options.sequences), (first_asked, length)]
    with glade.no_grad():
        for part in parts:
            logits = model(glade.tensor(haystack.read(*part), device=options.device), states)
        right = logits.argmax(-1).cpu().numpy() == haystack.answers
    fifths = np.minimum((haystack.depths * 5).astype(int), 4)
    by_depth = [float(right[fifths == i].mean()) if (fifths == i).any() else None for i in range(5)]
    seconds = time.perf_counter() - start
    return dict(length=length, accuracy=float(right.mean()), by_depth=by_depth, seconds=seconds, peak_bytes=peak_bytes(options.device))


def measure_needles(options):
    import glade

    options.device = glade.Device(options.device)
    rows = []
    for kind in options.models:
        start = time.perf_counter()
        model = train_needle_model(kind, options)
        seconds = time.perf_counter() - start
        for length in options.lengths:
            row = dict(model=NAMES[kind], seq_len=options.seq_len, steps=options.steps, needles=options.needles, training_s=seconds)
            rows.append(row | dict(sequences=options.sequences) | find_needles(model, length, options))
    return rows


def show_needles(rows, plot):
    for row in rows:
        depths = " ".join("-" if x is None else f"{x:.0%}" for x in row["by_depth"])
        print(f"{row['model']:20} {row['length']:8} tokens: {row['accuracy']:.1%} right, from the first to the last fifth {depths}; "
              f"{row['sequences']} sequences in {row['seconds']:.1f} s, peak {row['peak_bytes'] / 2**20:.0f} MiB")  # fmt: skip
    if not plot:
        return
    axes, save = figure(plot, "tokens", "share of right answers")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        axes.plot([row["length"] for row in own], [row["accuracy"] for row in own], marker="o", label=model)
    axes.axvline(rows[0]["seq_len"], color="gray", linestyle="--", linewidth=1, label="training length")
    axes.set_ylim(0, 1.02)
    save()


# ---- both -------------------------------------------------------------------------------------------------------------


def figure(path, xlabel, ylabel):
    """The axes of a plot over a logarithmic scale, and what writes it."""
    from plotting import pyplot

    plt = pyplot()
    picture, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    axes.set_xscale("log", base=2)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)

    def save():
        axes.legend()
        picture.savefig(path, dpi=120)

    return axes, save


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def add_command(name, text, measure, show, seq_len, sequences):
        command = commands.add_parser(name, help=text)
        command.set_defaults(measure=measure, show_rows=show)

        def option(name, text, default, kind=int, **how):
            shown = " ".join(map(str, default)) if isinstance(default, list) else default
            command.add_argument(name, help=f"{text} (default: {shown})", default=default, type=kind, **how)

        option("--seq-len", "tokens of a sequence in training", seq_len)
        option("--sequences", "sequences of each length to measure, at most", sequences)
        option("--device", "cuda or cpu", "cuda", str)
        command.add_argument("--json", help="file for the rows")
        command.add_argument("--show", metavar="JSON", help="measures nothing, and prints and draws the rows of this file")
        command.add_argument("--plot", help="image to draw")
        return command, option

    command, option = add_command("position", "loss over position", measure_positions, show_positions, 512, 64)
    command.add_argument("--data", help="text or token file; the last twentieth is measured on")
    command.add_argument("--checkpoints", nargs="+", default=[], help="checkpoints of train_lm, of models that trained on such text")
    option("--times", "longest sequences, in lengths of those in training", 32)
    command, option = add_command("needle", "needles in a haystack", measure_needles, show_needles, 32768, 16)
    option("--models", "kinds of attention", ["gla", "lightning"], str, nargs="+", choices=("gla", "lightning"))
    option("--lengths", "tokens of the sequences to measure", [4**i for i in range(5, 11)], nargs="+")
    option("--needles", "needles in a sequence", 8)
    option("--layers", "number of layers", 2)
    option("--hidden", "size of the hidden vectors", 128)
    option("--steps", "steps of training", 3000)
    option("--batch-tokens", "tokens of a batch in training, in one sequence at least", 131072)
    option("--lr", "highest learning rate", 3e-3, float)
    option("--seed", "seed of the weights and the data", 0)
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    try:
        if options.show:
            with open(options.show) as file:
                rows = json.load(file)
        else:
            if options.measure is measure_positions and not (options.data and options.checkpoints):
                parser.error("position needs --data and --checkpoints, or --show")
            if options.measure is measure_needles and min([options.seq_len, *options.lengths]) < 4 * options.needles:
                parser.error(f"--needles {options.needles} need sequences of {4 * options.needles} tokens at least")
            rows = options.measure(options)
    except (OSError, ValueError) as error:
        sys.exit(f"length.py: {error}")
    if options.json:
        with open(f"{options.json}.part", "w") as file:
            json.dump(rows, file, indent=1)
        os.replace(f"{options.json}.part", options.json)
    options.show_rows(rows, options.plot)


if __name__ == "__main__":
    main()
