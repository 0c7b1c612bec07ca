"""Times a training step of a small GPT beside PyTorch's on the CPU: the same code for both libraries, softmax attention and gelu.

    compare_gpt_cpu.py [--threads 2] [--rounds N] [--steps N] [--json FILE]

The model has nanoGPT's sizes for a CPU: 4 layers, 4 heads, 128 channels, 12 sequences of 64 bytes. A step is forward, loss, backward and
AdamW. Both libraries run in turns in one process from the same weights, and their losses must agree. A time is the median over rounds of
the fastest step of a round, in milliseconds.
"""
import argparse
import json
import os
import statistics
import sys
import time

LAYERS, HEADS, WIDTH, BATCH, LENGTH, VOCABULARY = 4, 4, 128, 12, 64, 256


def make_model(t):
    nn, F = t.nn, t.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def attention(self, x):
            b, n, c = x.shape
            q, k, v = (y.reshape(b, n, HEADS, c // HEADS).transpose(1, 2) for y in self.qkv(x).split(WIDTH, 2))
            scores = (q @ k.transpose(2, 3)) * (c // HEADS) ** -0.5
            later = t.tril(t.ones(n, n)) == 0
            y = F.softmax(scores.masked_fill(later, float("-inf")), -1) @ v
            return self.out(y.transpose(1, 2).reshape(b, n, c))

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, x):
            x = self.tokens(x) + self.places(t.arange(x.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    return GPT()


class Side:
    """One library's model, which starts from the weights `values` by name where they are given."""

    def __init__(self, t, values=None):
        self.t, self.model = t, make_model(t)
        if values is not None:
            self.model.load_state_dict({name: t.tensor(value) for name, value in values.items()})
        self.optimizer = t.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, tokens, targets):
        tokens, targets = self.t.tensor(tokens), self.t.tensor(targets)
        start = time.perf_counter()
        logits = self.model(tokens)
        loss = self.t.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - start, loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="number of threads (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds, in which both libraries take turns (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round (default: %(default)s)")
    parser.add_argument("--json", help="file for the measured times")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import glade
    import numpy as np
    try:
        import torch
    except ImportError as error:
        sys.exit(f"compare_gpt_cpu.py: {error}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    sides = {"PyTorch": Side(torch)}
    sides["glade"] = Side(glade, {name: value.numpy() for name, value in sides["PyTorch"].model.state_dict().items()})
    random = np.random.default_rng(0)
    times = {name: [] for name in sides}
    for _ in range(options.rounds + 1):
        text = random.integers(0, VOCABULARY, (options.steps, BATCH, LENGTH + 1))
        losses = {}
        for name, side in sides.items():
            results = [side.step(batch[:, :-1].copy(), batch[:, 1:].copy()) for batch in text]
            times[name].append(1e3 * min(seconds for seconds, _ in results))
            losses[name] = [loss for _, loss in results]
        if not np.allclose(*losses.values(), rtol=1e-3):
            sys.exit(f"compare_gpt_cpu.py: the losses differ: {losses}")
    medians = {name: statistics.median(rounds[1:]) for name, rounds in times.items()}  # the first round fills caches
    for name, value in medians.items():
        print(f"{name:10}{value:9.2f} ms a step")
    print(f"{'ratio':10}{medians['glade'] / medians['PyTorch']:9.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(dict(threads=options.threads, milliseconds=medians, rounds=times), file, indent=1)


if __name__ == "__main__":
    main()
