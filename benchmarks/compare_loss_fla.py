"""Trains a GLA model in glade or in fla on the same text, and draws the losses of both over tokens and over time.

    export PYTHONPATH=build/python
    compare_loss_fla.py train source.txt --side glade --size 134M --tokens 20e6 --seed 0 --log glade_134M_0.jsonl
    compare_loss_fla.py train source.txt --side fla --size 134M --tokens 20e6 --seed 0 --log fla_134M_0.jsonl
    compare_loss_fla.py show *.jsonl --plot loss.png

train: both sides have the same configuration, initial weights (glade draws them by the seed, and fla reads them), sequences in the same
order, AdamW with the same settings for the same parameters, warm-up and cosine, clipping to norm 1, and bfloat16 activations over float32
parameters (fla: autocast). The text is read in bytes, or as the tokens of a token file; its last twentieth is held out. The log has a line
of settings, a line for every few steps, and at the end one with the loss on the held-out part. Its seconds are those of training: the first
steps, in which kernels are compiled, tuned and captured, and the evaluation are timed apart.
show: prints and draws logs of any sides, sizes and seeds.

fla tunes its kernels at first use, for minutes. --configurations bounds the candidates of each kernel; TRITON_CACHE_DIR keeps compiled ones.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

STARTED = time.perf_counter()
FIRST_STEPS = 3  # for compiling, tuning and capturing
HELD_OUT_TOKENS = 1 << 20
BETAS, EPS, WEIGHT_DECAY, MAX_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0


class Size(NamedTuple):
    hidden: int
    layers: int
    heads: int
    batch: int
    seq_len: int
    lr: float


# As in train_throughput: named by their parameters with a vocabulary of 32000.
SIZES = {
    "374M": Size(1024, 24, 4, 8, 2048, 1e-3),
    "134M": Size(768, 12, 4, 16, 2048, 1.5e-3),
    "tiny": Size(64, 2, 2, 4, 128, 5e-3),  # to try this program
}


class Text:
    """Sequences for training in an order drawn by the seed, and held-out ones."""

    def __init__(self, path, seq_len, seed):
        import glade
        import numpy as np

        self.data, self.seq_len = glade.data.TokenData(path), seq_len
        self.held_out = len(self.data) - len(self.data) // 20
        self.vocab_size = self.data.vocab_size
        count = self.held_out // seq_len
        if count == 0 or len(self.data) - self.held_out < seq_len:
            raise ValueError(f"{path} has {len(self.data)} tokens, too few for sequences of {seq_len}")
        self.order = np.random.default_rng(seed).permutation(count)
        self.stack = np.stack

    def read(self, starts):
        """Tokens [len(starts), seq_len], int64."""
        return self.stack([self.data.read(int(start), self.seq_len).numpy() for start in starts])

    def batch(self, step, size):
        places = (self.order[(step * size + i) % len(self.order)] for i in range(size))
        return self.read([place * self.seq_len for place in places])

    def held_out_batches(self, size):
        count = min((len(self.data) - self.held_out) // self.seq_len, max(1, HELD_OUT_TOKENS // self.seq_len))
        starts = [self.held_out + i * self.seq_len for i in range(count)]
        for i in range(0, count, size):
            yield self.read(starts[i : i + size])


def make_model(size, vocab_size, seed):
    """glade's model, on the CPU, with the weights that both sides begin with."""
    import glade

    glade.manual_seed(seed)
    return glade.nn.models.GLAForCausalLM(
        hidden_size=size.hidden, num_hidden_layers=size.layers, num_heads=size.heads, vocab_size=vocab_size, dtype="bfloat16"
    )


class Glade:
    """Predicts each token of a sequence but the first from those before it, as fla's models do where labels are the inputs."""

    def __init__(self, device, size, vocab_size, seed, lr, factor):
        import glade
        from glade import optim

        self.glade, self.device = glade, glade.Device(device)
        self.model = make_model(size, vocab_size, seed).to(self.device)
        groups = optim.decay_matrices(self.model.named_parameters(), WEIGHT_DECAY)
        self.optimizer = optim.AdamW(groups, lr=lr, betas=BETAS, eps=EPS)
        self.scheduler = optim.LRScheduler(self.optimizer, factor)
        self.graphed = glade.cuda.GraphedFunction(self.device, self._step)
        self.parameters = sum(x.numel() for x in self.model.parameters())

    def _step(self, batch):
        loss = self.model.loss(*batch)
        loss.backward()
        self.optimizer.step(max_norm=MAX_NORM)
        self.optimizer.zero_grad()
        return [loss.detach()]

    def _tensors(self, tokens):
        targets = tokens.copy()
        targets[:, :-1], targets[:, -1] = tokens[:, 1:], -100
        return [self.glade.tensor(x, device=self.device) for x in (tokens, targets)]

    def step(self, tokens):
        (loss,) = self.graphed(self._tensors(tokens))
        self.scheduler.step()
        return loss

    def values(self, losses):
        return self.glade.stack(losses).tolist()

    def evaluate(self, tokens):
        with self.glade.no_grad():
            return self.model.loss(*self._tensors(tokens)).item()

    def peak_bytes(self):
        return self.glade.cuda.memory_stats(self.device.index)["peak_allocated"] if self.device.type == "cuda" else 0


class Fla:
    def __init__(self, device, size, vocab_size, seed, lr, factor):
        import torch
        from fla.models import GLAForCausalLM

        if device == "cpu":
            raise ImportError("fla needs --device cuda")
        self.torch, self.device = torch, device
        with tempfile.TemporaryDirectory() as folder:
            make_model(size, vocab_size, seed).save_pretrained(folder)
            self.model = GLAForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).train()
        parameters = list(self.model.parameters())
        groups = [dict(params=[x for x in parameters if (x.ndim >= 2) == is_matrix], weight_decay=WEIGHT_DECAY * is_matrix) for is_matrix in (True, False)]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=BETAS, eps=EPS, fused=device == "cuda")
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.parameters = sum(x.numel() for x in parameters)

    def _loss(self, tokens):
        # Pinned, or the copy would wait for the step before; glade copies through pinned memory by itself.
        tokens = self.torch.from_numpy(tokens).pin_memory().to(self.device, non_blocking=True)
        with self.torch.autocast(self.device, self.torch.bfloat16):
            return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss

    def step(self, tokens):
        loss = self._loss(tokens)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss.detach()

    def values(self, losses):
        return self.torch.stack(losses).tolist()

    def evaluate(self, tokens):
        with self.torch.no_grad():
            return self._loss(tokens).item()

    def peak_bytes(self):
        return self.torch.cuda.max_memory_allocated() if self.device == "cuda" else 0


def train(options):
    from glade import optim

    size = SIZES[options.size]
    lr = options.lr or size.lr
    steps = math.ceil(options.tokens / (size.batch * size.seq_len))
    text = Text(options.text, size.seq_len, options.seed)
    factor = optim.warmup_cosine_lr(min(options.warmup, steps), steps)
    if options.side == "fla" and options.configurations:
        import fla_tuning

        fla_tuning.tune_briefly(options.configurations, fla_tuning.time_briefly)
    side = {"glade": Glade, "fla": Fla}[options.side](options.device, size, text.vocab_size, options.seed, lr, factor)
    settings = dict(side=options.side, size=options.size, parameters=side.parameters, vocab_size=text.vocab_size, seed=options.seed, steps=steps)
    settings |= dict(batch=size.batch, seq_len=size.seq_len, lr=lr, warmup=options.warmup, text=os.path.basename(options.text), text_tokens=len(text.data))
    with open(options.log, "w") as log:

        def write(row):
            print(json.dumps(row), file=log, flush=True)

        write(settings)
        end = train_steps(side, text, size, steps, options.every, write)
        begin = time.perf_counter()
        losses = [(side.evaluate(tokens), len(tokens)) for tokens in text.held_out_batches(size.batch)]
        held_out = sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
        write(end | dict(held_out_loss=held_out, evaluation_s=time.perf_counter() - begin, peak_bytes=side.peak_bytes()))
    print(f"{options.side} {options.size} seed {options.seed}: held-out loss {held_out:.4f} after {steps} steps in {end['seconds']:.1f} s, "
          f"{end['tokens_per_s']:.0f} tokens/s, first steps {end['first_steps_s']:.1f} s after {end['start_s']:.1f} s")  # fmt: skip


def train_steps(side, text, size, steps, every, write):
    """Writes a row for each `every` steps. Returns the figures of the whole."""
    start_s, seconds, first_steps_s, pending = time.perf_counter() - STARTED, 0.0, 0.0, []
    mark = time.perf_counter()
    for step in range(1, steps + 1):
        pending.append(side.step(text.batch(step - 1, size.batch)))
        if step <= FIRST_STEPS or (step - FIRST_STEPS) % every == 0 or step == steps:
            losses, pending = side.values(pending), []
            now = time.perf_counter()
            if step <= FIRST_STEPS:
                first_steps_s += now - mark
            else:
                seconds += now - mark
            mark = now
            write(dict(step=step, tokens=step * size.batch * size.seq_len, seconds=seconds, loss=statistics.fmean(losses)))
            if not math.isfinite(losses[-1]):
                sys.exit(f"compare_loss_fla.py: the loss of step {step} is {losses[-1]}")
    rate = (steps - FIRST_STEPS) * size.batch * size.seq_len / seconds if seconds else 0.0
    return dict(seconds=seconds, tokens_per_s=rate, start_s=start_s, first_steps_s=first_steps_s)


# ---- show -------------------------------------------------------------------------------------------------------------


def read_log(path):
    """The settings, the rows, and the figures of the whole, which are absent from a log that was cut off."""
    try:
        with open(path) as file:
            settings, *rows = map(json.loads, file)
        curve = [row for row in rows if "step" in row]
        return settings, curve, next((row for row in rows if "held_out_loss" in row), None)
    except (OSError, ValueError) as error:
        sys.exit(f"compare_loss_fla.py: {path} cannot be read as a log: {error}")


def smooth(curve, half=5):
    """The losses, each averaged with its neighbours'."""
    losses = [row["loss"] for row in curve]
    return [statistics.fmean(losses[max(0, i - half) : i + half + 1]) for i in range(len(losses))]


def seconds_to(curve, loss):
    """When the smooth loss is first at most `loss`."""
    return next((row["seconds"] for row, value in zip(curve, smooth(curve)) if value <= loss), math.nan)


def summarize(logs):
    """A row for each side and size, and for each size how the sides differ."""
    keys = sorted({(settings["size"], settings["side"]) for settings, *_ in logs})
    groups = {key: [log for log in logs if (log[0]["size"], log[0]["side"]) == key and log[2]] for key in keys}
    print(f"{'size':6} {'side':6} {'seeds':>5} {'held-out':>9} {'spread':>7} {'tokens/s':>9} {'GiB':>6} {'first steps':>12}")
    for (size, side), group in groups.items():
        if group:
            held_out = [end["held_out_loss"] for *_, end in group]
            rate, peak, first = (statistics.median(end[name] for *_, end in group) for name in ("tokens_per_s", "peak_bytes", "first_steps_s"))
            print(f"{size:6} {side:6} {len(group):5} {statistics.fmean(held_out):9.4f} {max(held_out) - min(held_out):7.4f} {rate:9.0f} {peak / 2**30:6.2f} {first:10.1f} s")
    for size in sorted({size for size, _ in keys}):
        compare_sides(size, groups.get((size, "glade")), groups.get((size, "fla")))


def compare_sides(size, glade, fla):
    if not glade or not fla:
        return
    pairs = [(a, b) for a in glade for b in fla if a[0]["seed"] == b[0]["seed"] and len(a[1]) == len(b[1])]
    if pairs:
        differences = [abs(x - y) for a, b in pairs for x, y in zip(smooth(a[1]), smooth(b[1]))]
        print(f"{size}: smooth losses of the same seed and tokens differ by {max(differences):.4f} at most, {statistics.fmean(differences):.4f} on average")
    goal = max(smooth(curve)[-1] for _, curve, _ in glade + fla)
    ours, theirs = (statistics.fmean(seconds_to(curve, goal) for _, curve, _ in group) for group in (glade, fla))
    if ours > 0:
        print(f"{size}: loss {goal:.4f} after {ours:.1f} s in glade and {theirs:.1f} s in fla, {theirs / ours:.2f} times as long")


def draw(logs, path):
    from plotting import pyplot

    plt = pyplot()
    plt.rcParams["font.size"] = 13  # to be read on a phone
    sizes = sorted({settings["size"] for settings, *_ in logs})
    figure, axes = plt.subplots(len(sizes), 2, figsize=(8, 3.4 * len(sizes)), squeeze=False, layout="constrained")
    colors = {"glade": "tab:blue", "fla": "tab:orange"}
    for settings, curve, _ in logs:
        rows = axes[sizes.index(settings["size"])]
        for axis, column, scale in ((rows[0], "tokens", 1e6), (rows[1], "seconds", 1)):
            label = settings["side"] if not axis.get_legend_handles_labels()[1].count(settings["side"]) else None
            axis.plot([row[column] / scale for row in curve], smooth(curve), color=colors[settings["side"]], linewidth=1.5, alpha=0.8, label=label)
    for size, (tokens, seconds) in zip(sizes, axes):
        losses = sorted(value for settings, curve, _ in logs if settings["size"] == size for value in smooth(curve))
        for axis, label in ((tokens, "million tokens"), (seconds, "seconds of training")):
            axis.set(title=f"GLA {size}", xlabel=label, ylim=(losses[0] * 0.95, losses[len(losses) * 9 // 10]))
            axis.grid(alpha=0.3)
            axis.legend()
        tokens.set_ylabel("loss, nats per token")
    figure.savefig(path, dpi=120)


def show(options):
    logs = [read_log(path) for path in options.logs]
    summarize(logs)
    if options.plot:
        draw(logs, options.plot)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train", help="train a model on one side")
    command.set_defaults(call=train)
    command.add_argument("text", help="text or token file")
    command.add_argument("--side", choices=("glade", "fla"), required=True, help="what trains")
    command.add_argument("--size", choices=SIZES, default="134M", help="the model (default: %(default)s)")
    command.add_argument("--tokens", type=float, default=30e6, help="tokens to train on (default: %(default)g)")
    command.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the order of the sequences (default: %(default)s)")
    command.add_argument("--lr", type=float, help="highest learning rate, instead of the size's")
    command.add_argument("--warmup", type=int, default=100, help="steps until the learning rate is highest (default: %(default)s)")
    command.add_argument("--every", type=int, default=10, help="steps of a row of the log (default: %(default)s)")
    command.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    command.add_argument("--configurations", type=int, default=0, help="most candidates of each of fla's kernels in tuning (default: 0, all)")
    command.add_argument("--log", required=True, help="JSON lines to write")
    command = commands.add_parser("show", help="print and draw logs")
    command.set_defaults(call=show)
    command.add_argument("logs", nargs="+", help="logs of train")
    command.add_argument("--plot", help="image to draw")
    options = parser.parse_args()
    try:
        options.call(options)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"compare_loss_fla.py: {error}")


if __name__ == "__main__":
    main()
