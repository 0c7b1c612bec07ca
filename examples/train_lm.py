"""Trains a language model of linear attention on text, byte by byte, or on token files: the Python form of train_lm, with the same
checkpoints.

    python examples/train_lm.py --data text.txt --save model.h5 --plot curves.png
"""

import argparse
import csv
import math
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import glade
from glade import nn, optim
from glade.data import Loader, TokenData, make_batch
from tqdm import tqdm


AUTO = Path("auto")  # of --resume
LOSS_SCALE = "loss_scale."  # of its state in a checkpoint's data


def at_least(least, kind=int, most=math.inf):
    """The type of an option."""

    def parse(text):
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}, expected at {f'most {most}' if value > most else f'least {least}'}")
        return value

    parse.__name__ = kind.__name__
    return parse


def file_name(text):
    """The type of an option."""
    if not text:
        raise argparse.ArgumentTypeError("an empty file name")
    return Path(text)


def is_same_file(a, b):
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


def check_outputs(parser, options):
    """An error for files that could not be written after the training, or would destroy the data or one another."""
    inputs = [("data", path) for path in options.data]
    resumed = [("resume", options.resume)] if options.resume and options.resume != AUTO else []
    outputs = [(name, getattr(options, name)) for name in ("save", "log", "profile", "plot") if getattr(options, name)]
    for i, (name, path) in enumerate(outputs):
        if not path.parent.is_dir():
            parser.error(f"--{name} {path}: there is no folder {path.parent}")
        for other, file in inputs + outputs[:i] + (resumed if name != "save" else []):
            if is_same_file(path, file):
                parser.error(f"--{name} {path}: that is a file of --{other}")
    if not options.save and (options.save_every > 0 or options.keep > 0 or options.resume == AUTO):
        parser.error("--save-every, --keep and --resume auto need --save")
    steps = min(options.steps, options.stop_at or options.steps)
    if options.profile and steps <= StepProfile.BEFORE:
        parser.error(f"--profile begins after {StepProfile.BEFORE} steps: {steps} of them are too few")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", type=file_name, required=True, help="text or token files; the last twentieth is kept for validation")
    parser.add_argument("--packed", action="store_true", help="keep documents apart: a state begins and ends with its document")
    parser.add_argument("--model", choices=["gla", "lightning"], default="gla")
    for name, default in dict(layers=2, hidden=128, heads=2, seq_len=128, batch=16, accumulate=1, steps=1500).items():
        parser.add_argument("--" + name.replace("_", "-"), type=at_least(1), default=default, help=f"[{default}]")
    parser.add_argument("--warmup", type=at_least(0), default=50, help="[50]")
    parser.add_argument("--seed", type=at_least(0, most=2**64 - 1), default=0, help="[0]")
    for name, default in dict(lr=3e-3, weight_decay=0.1, grad_clip=1.0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=at_least(0, float), default=default, help=f"[{default}]")
    parser.add_argument("--eval-every", type=at_least(0), default=250, metavar="N", help="steps between validations; 0: only at the end [250]")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="of activations; float16 with a loss scale")
    parser.add_argument("--save", type=file_name, help="checkpoint to write at the end and on Ctrl-C")
    parser.add_argument("--save-every", type=at_least(0), default=0, metavar="N", help="steps between checkpoints; 0: only at the end [0]")
    parser.add_argument("--keep", type=at_least(0), default=0, metavar="N", help="checkpoints to keep, with their step in the name; 0: one, under its own name [0]")
    parser.add_argument("--resume", metavar="FILE|auto", type=file_name, help="checkpoint to go on from, with the same options as before; auto: the newest good one of --save, or none")
    parser.add_argument("--stop-at", type=at_least(0), default=0, metavar="N", help="step to stop after, as on Ctrl-C; 0: none [0]")
    parser.add_argument("--log", type=file_name, help="CSV file for the loss of every step; --resume appends to it")
    parser.add_argument("--profile", metavar="FILE.json", type=file_name, help="Chrome trace of steps 6 to 15 of this run, of which a table is printed at the end")
    parser.add_argument("--plot", type=file_name, help="image of losses, learning rate and speed")
    options = parser.parse_args()
    check_outputs(parser, options)
    return options


def validation_batches(tokens, begin, options, device):
    """The same sequences at every call: at most 65536 tokens from `begin` on, spread evenly."""
    length = len(tokens) - begin
    if length < options.seq_len + 1:
        raise SystemExit(f"the data has {len(tokens)} tokens: too few for sequences of {options.seq_len}")
    pieces = min(max(65536 // options.seq_len, 1), length // (options.seq_len + 1))
    starts = [begin + i * (length // pieces) for i in range(pieces)]
    for first in range(0, pieces, options.batch):
        yield on(device, make_batch(tokens, starts[first : first + options.batch], options.seq_len, options.packed))


def on(device, batch):
    return batch.inputs.to(device), batch.targets.to(device), batch.cu_seqlens, batch.counted


@glade.no_grad()
def validate(model, batches):
    model.eval()
    total = sum(model.loss(x, y, cu_seqlens).item() * counted for x, y, cu_seqlens, counted in batches)
    model.train()
    return total / sum(counted for *_, counted in batches)


def backward(model, batches, scaler):
    """The loss, and gradients, as of one batch of all their sequences: every target counts the same."""
    counted = sum(batch.counted for batch in batches)
    total = 0
    for batch in batches:
        with glade.profiler.range("forward"):
            loss = model.loss(batch.inputs, batch.targets, batch.cu_seqlens)
            if len(batches) > 1:
                loss = loss * (batch.counted / counted)
        with glade.profiler.range("backward"):
            (scaler.scale(loss) if scaler else loss).backward()
        total = total + loss.detach()
    return total


def plot(history, validation, unit, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (losses, rate, speed) = plt.subplots(3, sharex=True, figsize=(8, 9), layout="constrained")
    steps = [row["step"] for row in history]
    losses.plot(steps, [row["loss"] / math.log(2) for row in history], linewidth=0.7, label="training")
    losses.plot(*zip(*validation), marker="o", label="validation")
    losses.set(ylabel=f"bits per {unit}")
    losses.legend()
    rate.plot(steps, [row["learning_rate"] for row in history])
    rate.set(ylabel="learning rate")
    speed.plot(steps, [row["tokens_per_second"] for row in history])
    speed.set(ylabel="tokens/s", xlabel="step")
    figure.savefig(file, dpi=150)


class StepProfile:
    """Records ten steps, after five that are not like the others, and writes them as a Chrome trace."""

    BEFORE, STEPS = 5, 10

    def __init__(self, path, device):
        self.path, self.device = path, device
        self.steps, self.profile = 0, None

    def begin_step(self):
        if self.steps == self.BEFORE:
            glade.profiler.start(self.device)
        self.steps += 1

    def end_step(self, last):
        if self.steps == self.BEFORE + self.STEPS or (last and self.BEFORE < self.steps < self.BEFORE + self.STEPS):
            self.stop()

    def stop(self):
        self.profile = glade.profiler.stop()
        self.path.write_text(self.profile.chrome_trace())

    def finish(self):
        """Prints where the time of the recorded steps went."""
        if self.steps > self.BEFORE and self.profile is None:  # after an interrupt
            self.stop()
        if self.profile is None:
            print(f"the run was too short for a profile: {self.path} is not written")
        else:
            recorded = min(self.steps - self.BEFORE, self.STEPS)
            print(f"where the time of {recorded} steps went\n{self.profile.table(recorded)}the trace is in {self.path}")


def open_resumed(options):
    """The checkpoint that --resume asks for, or None."""
    if options.resume == AUTO:
        return glade.open_newest_checkpoint(options.save)
    return glade.CheckpointFile(options.resume) if options.resume else None


def catch_interrupts():
    """The list to which SIGINT (Ctrl-C) and SIGTERM are added: checkpoints are of whole steps. A second one ends the program."""
    received = []

    def receive(number, _):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, receive)
    return received


def main():
    options = parse_arguments()
    device = glade.Device(options.device)
    tokens = TokenData(options.data)
    unit = "byte" if tokens.is_text else "token"
    end = len(tokens) - len(tokens) // 20
    kept = list(validation_batches(tokens, end, options, device))
    loader = Loader(tokens, options.batch, options.seq_len, packed=options.packed, seed=options.seed, end=end, device=device)
    glade.manual_seed(options.seed)
    make = nn.models.GLAForCausalLM if options.model == "gla" else nn.models.LightningForCausalLM
    sizes = dict(num_hidden_layers=options.layers, hidden_size=options.hidden, num_heads=options.heads, vocab_size=tokens.vocab_size)
    model = make(**sizes, dtype=options.dtype).to(device)
    optimizer = optim.AdamW(model.named_parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=options.weight_decay)
    scheduler = optim.LRScheduler(optimizer, optim.warmup_cosine_lr(min(options.warmup, options.steps), options.steps))
    scaler = optim.LossScaler(device) if options.dtype == "float16" else None
    step = 0
    resumed = open_resumed(options)
    if resumed:
        resumed.restore(model, optimizer, scheduler)
        loader.load_state_dict(resumed.data)
        scale = {name.removeprefix(LOSS_SCALE): x for name, x in resumed.data.items() if name.startswith(LOSS_SCALE)}
        if scaler and scale:
            scaler.load_state_dict(scale)
        step = resumed.step
        print(f"resuming from {resumed.path} after step {step}")
    last = min(options.steps, options.stop_at or options.steps)

    history, validation = [], []
    received = catch_interrupts()
    with ExitStack() as stack:
        if options.save:
            saver = stack.enter_context(glade.CheckpointSaver(options.save, keep=options.keep))
        if options.log:
            file = stack.enter_context(open(options.log, "a" if resumed else "w", newline="", buffering=1))
            log = csv.DictWriter(file, ["step", "loss", "learning_rate", "tokens_per_second"])
            if file.tell() == 0:
                log.writeheader()
        bar = stack.enter_context(tqdm(initial=step, total=options.steps, unit="step"))

        def save():
            scale = {LOSS_SCALE + name: x for name, x in scaler.state_dict().items()} if scaler else {}
            saver.save(model, optimizer=optimizer, scheduler=scheduler, step=step, data=loader.state_dict() | scale)

        profile = StepProfile(options.profile, device) if options.profile else None
        while step < last and not received:
            if profile:
                profile.begin_step()
            begin = time.perf_counter()
            with glade.profiler.range("data"):
                batches = [next(loader) for _ in range(options.accumulate)]
            loss = backward(model, batches, scaler)
            with glade.profiler.range("optimizer"):
                optimizer.step(max_norm=options.grad_clip, scaler=scaler)
                optimizer.zero_grad()
            step += 1
            if profile:
                profile.end_step(step == last)
            row = {"step": step, "loss": loss.item(), "learning_rate": optimizer.lr}
            row["tokens_per_second"] = options.accumulate * options.batch * options.seq_len / (time.perf_counter() - begin)
            if not math.isfinite(row["loss"]):  # before the last good checkpoint is replaced
                raise SystemExit(f"the loss of step {step} is {row['loss']}: try a smaller --lr")
            history.append(row)
            scheduler.step()
            if options.log:
                log.writerow(row)
            bar.set_postfix_str(f"{row['loss'] / math.log(2):.3f} bits per {unit}, {row['tokens_per_second'] / 1e3:.1f}k tokens/s")
            bar.update()
            if step == options.steps or (options.eval_every and step % options.eval_every == 0):
                validation.append((step, validate(model, kept) / math.log(2)))
                bar.write(f"step {step}: validation {validation[-1][1]:.3f} bits per {unit}")
            if options.save:
                saver.check()  # raises the error of a save that failed meanwhile
                if options.save_every and step % options.save_every == 0 and step < last:
                    save()
        if profile:
            profile.finish()
        if options.save:
            save()
    if received:
        print(f"interrupted after step {step}")
    if options.plot and history:
        plot(history, validation or [(history[-1]["step"], math.nan)], unit, options.plot)
    return 128 + received[0] if received else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (glade.Error, OSError) as error:
        sys.exit(f"train_lm.py: {error}")
