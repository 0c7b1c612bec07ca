"""Trains a language model of linear attention on text, byte by byte: the Python form of train_lm, with the same checkpoints.

    python examples/train_lm.py --data text.txt --save model.h5 --plot curves.png
"""

import argparse
import csv
import math
import time
from pathlib import Path

import glade
from glade import nn, optim
from tqdm import tqdm


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="text; its last twentieth is kept for validation")
    parser.add_argument("--model", choices=["gla", "lightning"], default="gla")
    for name, default in dict(layers=2, hidden=128, heads=2, seq_len=128, batch=16, steps=1500, warmup=50, eval_every=250, seed=0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default, help=f"[{default}]")
    for name, default in dict(lr=3e-3, weight_decay=0.1, grad_clip=1.0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=float, default=default, help=f"[{default}]")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--save", help="checkpoint to write at the end and on Ctrl-C")
    parser.add_argument("--resume", help="checkpoint to go on from; give the same options as before")
    parser.add_argument("--log", help="CSV file for the loss of every step")
    parser.add_argument("--plot", help="image of losses, learning rate and speed")
    return parser.parse_args()


class Text:
    """Bytes on the device, and batches of pieces of them with the byte after each."""

    def __init__(self, files, seq_len, device):
        self.bytes = glade.tensor(list(b"".join(file.read_bytes() for file in files)), dtype=glade.uint8, device=device)
        self.training = self.bytes.size - self.bytes.size // 20
        self.seq_len = seq_len
        if self.bytes.size - self.training < seq_len + 1:
            raise SystemExit(f"the data has {self.bytes.size} bytes: too few for sequences of {seq_len}")

    def batch(self, starts):
        positions = starts[:, None] + glade.arange(self.seq_len + 1, device=self.bytes.device)
        tokens = self.bytes[positions].long()
        return tokens[:, :-1], tokens[:, 1:]

    def training_batch(self, size, seed, step):
        generator = glade.Generator()
        generator.state = (~seed % 2**64, step * size)  # pieces depend on seed and step alone, so a run can be resumed
        starts = glade.uniform((size,), 0, self.training - self.seq_len, dtype="float64", device=self.bytes.device, generator=generator)
        return self.batch(starts.long())

    def validation_batches(self, size):
        length = self.bytes.size - self.training
        pieces = min(max(65536 // self.seq_len, 1), length // (self.seq_len + 1))
        starts = glade.arange(pieces, device=self.bytes.device) * (length // pieces) + self.training
        return [self.batch(some) for some in starts.split(size)]


@glade.no_grad()
def validate(model, batches):
    model.eval()
    total = sum(model.loss(x, y).item() * y.size for x, y in batches)
    model.train()
    return total / sum(y.size for _, y in batches)


def plot(history, validation, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (losses, rate, speed) = plt.subplots(3, sharex=True, figsize=(8, 9), layout="constrained")
    steps = [row["step"] for row in history]
    losses.plot(steps, [row["loss"] / math.log(2) for row in history], linewidth=0.7, label="training")
    losses.plot(*zip(*validation), marker="o", label="validation")
    losses.set(ylabel="bits per byte")
    losses.legend()
    rate.plot(steps, [row["learning_rate"] for row in history])
    rate.set(ylabel="learning rate")
    speed.plot(steps, [row["tokens_per_second"] for row in history])
    speed.set(ylabel="tokens/s", xlabel="step")
    figure.savefig(file, dpi=150)


def main():
    options = parse_arguments()
    device = glade.Device(options.device)
    text = Text(options.data, options.seq_len, device)
    validation_batches = text.validation_batches(options.batch)
    glade.manual_seed(options.seed)
    make = nn.models.GLAForCausalLM if options.model == "gla" else nn.models.LightningForCausalLM
    model = make(num_hidden_layers=options.layers, hidden_size=options.hidden, num_heads=options.heads, dtype=options.dtype).to(device)
    optimizer = optim.AdamW(model.named_parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=options.weight_decay)
    scheduler = optim.LRScheduler(optimizer, optim.warmup_cosine_lr(min(options.warmup, options.steps), options.steps))
    first = 0
    if options.resume:
        checkpoint = glade.load(options.resume)
        checkpoint.restore(model, optimizer, scheduler)
        first = checkpoint.step

    step, history, validation = first, [], []
    bar = tqdm(range(first, options.steps), initial=first, total=options.steps, unit="step")
    try:
        for step in bar:
            begin = time.perf_counter()
            loss = model.loss(*text.training_batch(options.batch, options.seed, step))
            loss.backward()
            optim.clip_grad_norm_(model.parameters(), options.grad_clip)
            optimizer.step()
            optimizer.zero_grad()
            row = {"step": step + 1, "loss": loss.item(), "learning_rate": optimizer.lr}
            row["tokens_per_second"] = options.batch * options.seq_len / (time.perf_counter() - begin)
            history.append(row)
            scheduler.step()
            bar.set_postfix_str(f"{row['loss'] / math.log(2):.3f} bits per byte, {row['tokens_per_second'] / 1e3:.1f}k tokens/s")
            if (step + 1) % options.eval_every == 0 or step + 1 == options.steps:
                validation.append((step + 1, validate(model, validation_batches) / math.log(2)))
                bar.write(f"step {step + 1}: validation {validation[-1][1]:.3f} bits per byte")
    except KeyboardInterrupt:
        print(f"interrupted after step {len(history) + first}")
    if options.save:
        glade.save(model, options.save, optimizer=optimizer, scheduler=scheduler, step=len(history) + first)
    if options.log and history:
        with open(options.log, "w", newline="") as file:
            writer = csv.DictWriter(file, history[0])
            writer.writeheader()
            writer.writerows(history)
    if options.plot and history:
        plot(history, validation or [(history[-1]["step"], math.nan)], options.plot)


if __name__ == "__main__":
    main()
