"""Multi-query associative recall (arXiv 2312.04927): how many pairs can the state of linear attention hold?

A sequence lists pairs of a key and a value; after them come its keys again, in another order and at random distances, and for each
the model must name the value. Both models train on 4 to 24 pairs and are then asked about every number of pairs:

    python examples/associative_recall.py --plot recall.png
"""

import time

import glade
import numpy as np
from glade import nn, optim
from glade.progress import Progress

from lm import program
from lm.program import Parser, UsageError, positive, size

KEYS = VALUES = 64
BLANK = 0  # tokens are: blank, then the keys, then the values
VOCABULARY = 1 + KEYS + VALUES
NOT_ASKED = -100  # cross_entropy leaves these targets out


def parse_options():
    parser = Parser(__doc__.splitlines()[0])
    parser.option("--models", "gla, lightning or both", ["gla", "lightning"], nargs="+", choices=["gla", "lightning"])
    parser.option("--pairs", "Pairs in a sequence, in training one of these a batch", [4, 8, 16, 24], nargs="+", type=size, metavar="N")
    parser.option("--layers", "Number of layers", 2, type=size, metavar="N")
    parser.option("--hidden", "Size of the hidden vectors", 64, type=size, metavar="N")
    parser.option("--heads", "Number of heads in a layer", 1, type=size, metavar="N")
    parser.option("--seq-len", "Tokens in a sequence", 96, type=size, metavar="N")
    parser.option("--batch", "Sequences in a batch", 32, type=size, metavar="N")
    parser.option("--steps", "Steps of training", 800, type=size, metavar="N")
    parser.option("--lr", "Highest learning rate", 5e-3, type=positive, metavar="NUMBER")
    parser.option("--seed", "Seed for the weights and the data", 0, type=program.seed, metavar="N")
    parser.option("--device", "auto, cpu, cuda or cuda:N", "auto", metavar="DEVICE")
    parser.option("--plot", "Image of the accuracy over the number of pairs", type=program.file_name, metavar="FILE.png")
    options = parser.parse_args()
    if options.plot:
        program.check_folder("--plot", options.plot)
        program.check_package("--plot", "matplotlib")
    most = most_pairs(options.seq_len)
    if max(options.pairs) > most:
        raise UsageError(f"--pairs {max(options.pairs)}: a sequence of {options.seq_len} holds {most} pairs at most")
    return options


def most_pairs(seq_len):
    """A pair and a question take three places."""
    return min(seq_len // 3, KEYS)


def make_batch(rng, size, pairs, seq_len, device):
    """Tokens [size, seq_len], and at the positions of the questions the values to be named."""
    keys = 1 + rng.permuted(np.tile(np.arange(KEYS), (size, 1)), axis=1)[:, :pairs]
    values = 1 + KEYS + rng.integers(VALUES, size=(size, pairs))
    tokens = np.full((size, seq_len), BLANK)
    tokens[:, : 2 * pairs : 2] = keys
    tokens[:, 1 : 2 * pairs : 2] = values
    # The distance of a question from the pairs follows a power law; the largest sums of log weight and Gumbel noise are a
    # draw of positions by weight, without repetition.
    weight = np.arange(1.0, seq_len - 2 * pairs + 1) ** -0.99
    noisy = np.log(weight) + rng.gumbel(size=(size, weight.size))
    asked = 2 * pairs + np.argsort(-noisy, axis=1)[:, :pairs]
    targets = np.full((size, seq_len), NOT_ASKED)
    np.put_along_axis(tokens, asked, keys, axis=1)
    np.put_along_axis(targets, asked, values, axis=1)
    return glade.tensor(tokens, device=device), glade.tensor(targets, device=device)


class Block(nn.Module):
    """The convolution lets a value see the key before it; the attention remembers what it saw."""

    def __init__(self, hidden, attention):
        super().__init__()
        self.convolution_norm = nn.RMSNorm(hidden)
        self.convolution = nn.ShortConvolution(hidden)
        self.attention_norm = nn.RMSNorm(hidden)
        self.attention = attention

    def forward(self, x):
        convolved, _ = self.convolution(self.convolution_norm(x))
        x = x + convolved
        return x + self.attention(self.attention_norm(x))


class Recall(nn.Module):
    def __init__(self, kind, layers, hidden, heads):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.blocks = nn.ModuleList()
        for i in range(layers):
            if kind == "gla":
                attention = nn.GatedLinearAttention(hidden, num_heads=heads, expand_k=1, use_short_conv=True)
            else:
                attention = nn.LightningAttention(hidden, i, layers, num_heads=heads)
            self.blocks.append(Block(hidden, attention))
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@glade.no_grad()
def accuracy(model, rng, pairs, options):
    """The share of questions answered right, of 512 sequences."""
    right = asked = 0
    for _ in range(8):
        tokens, targets = make_batch(rng, 64, pairs, options.seq_len, options.device)
        right += (model(tokens).argmax(-1) == targets).sum().item()
        asked += 64 * pairs
    return right / asked


def train(kind, options):
    glade.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    model = Recall(kind, options.layers, options.hidden, options.heads).to(options.device)
    optimizer = optim.AdamW(optim.decay_matrices(model.named_parameters(), 0.1), lr=options.lr)
    scheduler = optim.LRScheduler(optimizer, optim.warmup_cosine_lr(min(50, options.steps), options.steps))
    with Progress() as progress:
        for step in range(1, options.steps + 1):
            tokens, targets = make_batch(rng, options.batch, rng.choice(options.pairs), options.seq_len, options.device)
            loss = glade.cross_entropy(model(tokens), targets)
            loss.backward()
            optim.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            progress.show(step / options.steps, f"{kind} step {step}", f"loss {loss.item():.3f}")
    return model.eval()


def plot(pairs, results, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for kind, accuracies in results.items():
        axes.plot(pairs, accuracies, marker="o", label={"gla": "GLA", "lightning": "lightning attention"}[kind])
    axes.set(xlabel="pairs", ylabel="accuracy", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=150)


def main():
    options = parse_options()
    options.device = glade.Device(options.device)
    pairs = sorted({*options.pairs, *range(4, most_pairs(options.seq_len) + 1, 4)})
    results = {}
    for kind in options.models:
        begin = time.perf_counter()
        model = train(kind, options)
        seconds = time.perf_counter() - begin
        rng = np.random.default_rng(options.seed + 1)
        results[kind] = [accuracy(model, rng, n, options) for n in pairs]
        print(f"{kind}: trained in {seconds:.0f} s; accuracy " + ", ".join(f"{n} pairs {a:.1%}" for n, a in zip(pairs, results[kind])))
    if options.plot:
        plot(pairs, results, options.plot)


if __name__ == "__main__":
    program.run(main)
