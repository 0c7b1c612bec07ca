"""Compares recipes for training a small language model on the CPU: the bits per byte that each reaches in the same time.

    PYTHONPATH=build/python cpu_recipe.py --data data/bible.txt --seconds 150 --log recipes.jsonl [--recipes recipes.json] [--jobs 14]
    cpu_recipe.py --show recipes.jsonl

A recipe is an object of the fields below, which also shows their defaults; recipes.json is a list of such objects. The defaults are those of
train_lm except for its short convolutions and initial weights: "config": {"use_short_conv": true, "initializer_range": 0.0566}. Each recipe
trains in a process of its own on --threads cores of its own, and is measured on the text that train_lm validates on. The learning rate
follows the time up to --seconds, or the steps up to --steps. The log gets a line for each recipe. --show ranks them.
"""

import argparse
import json
import math
import multiprocessing
import os
import queue
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples"))

FIELDS = dict(
    name="default",
    seed=0,
    # the model; fields of its configuration that are not here go into "config"
    model="gla", layers=2, hidden=128, heads=2, dtype="float32", config={},
    # the training
    batch=8, seq_len=128, lr=4e-3, warmup=50, schedule="cosine", final=0.1, decay=0.2, weight_decay=0.1, grad_clip=1.0, beta2=0.95,
    # shorter sequences, and as many more in a batch, for a share of the time at first
    short_seq_len=128, short_share=0.0,
    # of an exponential moving average of the weights, which is measured instead of them; 0: none
    average=0.0,
)  # fmt: skip


def check(recipes):
    """The recipes with all fields. ValueError for unknown fields, and names that come twice."""
    if not isinstance(recipes, list) or not all(isinstance(recipe, dict) for recipe in recipes):
        raise ValueError("the recipes are no list of objects")
    for recipe in recipes:
        for field, value in recipe.items():
            if field not in FIELDS:
                raise ValueError(f"a recipe has the field {field!r}, expected some of {', '.join(FIELDS)}")
            expected = type(FIELDS[field])
            if not isinstance(value, (int, float) if expected is float else expected):
                raise ValueError(f"the {field} of a recipe is {value!r}, expected one like {FIELDS[field]!r}")
    recipes = [FIELDS | recipe for recipe in recipes]
    names = [(recipe["name"], recipe["seed"]) for recipe in recipes]
    for name, seed in names:
        if names.count((name, seed)) > 1:
            raise ValueError(f"two recipes have the name {name!r} and the seed {seed}")
    return recipes


class Training:
    """The model of a recipe and how it trains, up to so many seconds or steps."""

    def __init__(self, recipe, data, seconds, steps):
        import glade
        from glade import optim

        self.recipe, self.seconds, self.steps, self.step = recipe, seconds, steps, 0
        self.spent = 0.0
        glade.manual_seed(recipe["seed"])
        sizes = dict(hidden_size=recipe["hidden"], num_hidden_layers=recipe["layers"], num_heads=recipe["heads"], dtype=recipe["dtype"])
        config = dict(model_type=recipe["model"], vocab_size=data.tokens.vocab_size, **sizes) | recipe["config"]
        self.model = glade.nn.models.from_config(config)
        groups = optim.decay_matrices(self.model.named_parameters(), recipe["weight_decay"])
        self.optimizer = optim.AdamW(groups, lr=recipe["lr"], betas=(0.9, recipe["beta2"]))
        self.averages = [x.detach().clone() for x in self.model.parameters()] if recipe["average"] else []
        short = recipe["short_seq_len"]
        how = dict(seed=recipe["seed"], end=data.training_size)
        self.loader = glade.data.Loader(data.tokens, recipe["batch"], recipe["seq_len"], **how)
        self.short_loader = glade.data.Loader(data.tokens, recipe["batch"] * recipe["seq_len"] // short, short, **how)

    def done(self):
        """The share of the training that is behind."""
        return min(1.0, self.step / self.steps if self.steps else self.spent / self.seconds)

    def factor(self):
        """Of the learning rate."""
        recipe, final, done = self.recipe, self.recipe["final"], self.done()
        if self.step < recipe["warmup"]:
            return (self.step + 1) / recipe["warmup"]
        if recipe["schedule"] == "wsd":
            return final + (1 - final) * min(1.0, (1 - done) / recipe["decay"])
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))

    def run(self):
        """Returns the seconds and the losses, in nats."""
        losses, begin = [], time.perf_counter()
        while self.done() < 1:
            losses.append(self.take_step())
            self.spent = time.perf_counter() - begin
            if not math.isfinite(losses[-1]):
                break
        return self.spent, losses

    def take_step(self):
        self.optimizer.lr = self.recipe["lr"] * self.factor()
        batch = next(self.short_loader if self.done() < self.recipe["short_share"] else self.loader)
        loss = self.model.loss(batch.inputs, batch.targets)
        loss.backward()
        self.optimizer.step(max_norm=self.recipe["grad_clip"])
        self.optimizer.zero_grad()
        self.step += 1
        self.update_averages()
        return loss.item()

    def update_averages(self, every=5):
        """Fewer at first than what `average` says, so that the initial weights are forgotten."""
        import glade

        if not self.averages or self.step % every:
            return
        kept = min(self.recipe["average"], 1 - 10 / (self.step / every + 10)) ** every
        with glade.no_grad():
            for average, x in zip(self.averages, self.model.parameters()):
                average[:] = average * kept + x.detach() * (1 - kept)

    def validate(self, data):
        """Nats a token, as train_lm measures it."""
        import glade
        from glade import distributed

        with glade.no_grad():
            for average, x in zip(self.averages, self.model.parameters()):
                x[:] = average
            self.model.eval()
            world = distributed.world()
            batches = data.validation_batches(16, glade.Device("cpu"), world, world)
            losses = [(self.model.loss(x, y).item(), counted) for x, y, _, counted in batches]
        return sum(loss * counted for loss, counted in losses) / sum(counted for _, counted in losses)


def run_recipe(recipe, files, seconds, steps, cores, results):
    """In a process of its own: puts the row of a recipe into `results`."""
    os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    import glade
    from lm.data import Data

    try:
        validation = Data(files, 128, False)  # of the same sequences for all recipes
        training = Training(recipe, validation, seconds, steps)
        spent, losses = training.run()
        row = dict(steps=training.step, seconds=spent, tokens_per_s=training.step * recipe["batch"] * recipe["seq_len"] / spent)
        row["parameters"] = sum(x.numel() for x in training.model.parameters())
        row["training_bits"] = statistics.fmean(losses[-50:]) / math.log(2)
        row["bits_per_byte"] = training.validate(validation) / math.log(2)
    except (glade.Error, ValueError) as error:
        row = dict(error=str(error))
    results.put(recipe | row)


def run_all(recipes, options):
    """Yields rows as they come. Each process has cores of its own."""
    available = sorted(os.sched_getaffinity(0))
    jobs = min(options.jobs, len(available) // options.threads)
    if jobs == 0:
        raise ValueError(f"--threads {options.threads}: there are {len(available)} cores")
    context = multiprocessing.get_context("spawn")
    results, waiting = context.Queue(), queue.Queue()
    for recipe in recipes:
        waiting.put(recipe)

    def work(cores):
        while True:
            try:
                recipe = waiting.get_nowait()
            except queue.Empty:
                return
            process = context.Process(target=run_recipe, args=(recipe, options.data, options.seconds, options.steps, cores, results))
            process.start()
            process.join()
            if process.exitcode:
                results.put(recipe | dict(error=f"ended with status {process.exitcode}"))

    for job in range(jobs):
        threading.Thread(target=work, args=(set(available[job * options.threads : (job + 1) * options.threads]),)).start()
    for _ in recipes:
        yield results.get()


def show(rows):
    for row in (row for row in rows if "error" in row):
        print(f"{row['name']}: {row['error']}", file=sys.stderr)
    groups = {}
    for row in rows:
        if "error" not in row:
            groups.setdefault(row["name"], []).append(row)
    print(f"{'recipe':24} {'bits/byte':>9} {'spread':>7} {'seeds':>5} {'training':>9} {'steps':>6} {'seconds':>8} {'tokens/s':>9} {'parameters':>11}")
    for name, group in sorted(groups.items(), key=lambda item: statistics.fmean(row["bits_per_byte"] for row in item[1])):
        bits, row = [row["bits_per_byte"] for row in group], group[0]
        mean = {field: statistics.fmean(row[field] for row in group) for field in ("training_bits", "steps", "seconds", "tokens_per_s")}
        print(f"{name:24} {statistics.fmean(bits):9.4f} {max(bits) - min(bits):7.4f} {len(bits):5} {mean['training_bits']:9.4f} {mean['steps']:6.0f} "
              f"{mean['seconds']:8.1f} {mean['tokens_per_s']:9.0f} {row['parameters']:11}")  # fmt: skip


def main():
    fields = ", ".join(f"{name}={json.dumps(value)}" for name, value in FIELDS.items())
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"Fields: {fields}.", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", help="text files")
    parser.add_argument("--recipes", metavar="JSON", help="file with the recipes, or a list itself (default: the default recipe alone)")
    parser.add_argument("--seconds", type=float, default=60, help="seconds that each trains for (default: %(default)g)")
    parser.add_argument("--steps", type=int, default=0, help="steps that each trains for, instead of --seconds")
    parser.add_argument("--seeds", type=int, nargs="+", help="trains each recipe with each of these seeds, instead of its own")
    parser.add_argument("--jobs", type=int, default=1, help="recipes that train at once (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="cores of each (default: %(default)s)")
    parser.add_argument("--log", help="JSON lines to write")
    parser.add_argument("--show", metavar="LOG", help="trains nothing, and ranks the recipes of this log")
    options = parser.parse_args()
    try:
        if options.show:
            with open(options.show) as file:
                return show([json.loads(line) for line in file])
        if not options.data or not options.log:
            parser.error("give --data and --log, or --show")
        given = options.recipes or "[{}]"
        recipes = json.loads(given if given.lstrip().startswith("[") else open(given).read())
        if options.seeds:
            recipes = [recipe | dict(seed=seed) for seed in options.seeds for recipe in recipes]
        rows = []
        with open(options.log, "w") as log:
            for row in run_all(check(recipes), options):
                rows.append(row)
                print(json.dumps(row), file=log, flush=True)
        show(rows)
    except (OSError, ValueError) as error:
        sys.exit(f"cpu_recipe.py: {error}")


if __name__ == "__main__":
    main()
