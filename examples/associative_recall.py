"""Multi-query associative recall (arXiv 2312.04927): how many pairs can the state of linear attention hold?

A sequence lists pairs of a key and a value; after them come its keys again, in another order and at random distances, and for each
the model must name the value. Models train on 4 to 24 pairs and are then asked about every number of pairs:

    python examples/associative_recall.py --plot recall.png

Softmax attention (--models softmax), which keeps all pairs, is the ceiling. benchmarks/recall.py compares models of several widths.
"""

import time

import glade
import numpy as np
from glade import nn, optim
from glade.progress import Progress

from lm import program
from lm.program import Parser, UsageError, positive, size

MODELS = {"gla": "GLA", "lightning": "lightning attention", "softmax": "softmax attention"}
BLANK = 0  # tokens are: blank, then the keys, then the values
NOT_ASKED = -100  # cross_entropy leaves these targets out


def parse_options():
    parser = Parser(__doc__.splitlines()[0])
    parser.option("--models", f"Some of {', '.join(MODELS)}", ["gla", "lightning"], nargs="+", choices=list(MODELS), metavar="MODEL")
    parser.option("--pairs", "Pairs in a sequence, in training one of these a batch", [4, 8, 16, 24], nargs="+", type=size, metavar="N")
    parser.option("--keys", "Number of different keys, and of values", 64, type=size, metavar="N")
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
        program.check_plot(options.plot)
    most = most_pairs(options)
    if max(options.pairs) > most:
        raise UsageError(f"--pairs {max(options.pairs)}: a sequence of {options.seq_len} holds {most} pairs at most")
    return options


def most_pairs(options):
    """A pair and a question take three places; every key comes once."""
    return min(options.seq_len // 3, options.keys)


def make_batch(rng, size, pairs, options):
    """Tokens [size, seq_len], and at the positions of the questions the values to be named."""
    seq_len, device = options.seq_len, options.device
    keys = 1 + rng.permuted(np.tile(np.arange(options.keys), (size, 1)), axis=1)[:, :pairs]
    values = 1 + options.keys + rng.integers(options.keys, size=(size, pairs))
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

    def forward(self, x, state=None):
        """`state`, a BlockState, is what came before x and then what came up to its end; not with softmax attention."""
        convolved, window = self.convolution(self.convolution_norm(x), state and state.window)
        x = x + convolved
        if state is None:
            return x + self.attention(self.attention_norm(x))
        state.window = window
        return x + self.attention(self.attention_norm(x), state.attention)


class BlockState:
    """What a block remembers of the tokens so far: the last ones that the convolution sees, and the state of the attention."""

    def __init__(self):
        self.window, self.attention = None, nn.AttentionState()


class SoftmaxAttention(nn.Module):
    """Causal; the convolutions of the blocks tell it the order of neighbours."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv_proj = nn.Linear(hidden, 3 * hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x):
        batch, length, hidden = x.shape
        qkv = self.qkv_proj(x).reshape(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        out = glade.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        return self.o_proj(out.permute(0, 2, 1, 3).reshape(batch, length, hidden))


def make_attention(kind, layer, options):
    if kind == "gla":
        return nn.GatedLinearAttention(options.hidden, num_heads=options.heads, expand_k=1, use_short_conv=True)
    if kind == "lightning":
        return nn.LightningAttention(options.hidden, layer, options.layers, num_heads=options.heads)
    return SoftmaxAttention(options.hidden, options.heads)


class Recall(nn.Module):
    def __init__(self, kind, options, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, options.hidden)
        self.blocks = nn.ModuleList(Block(options.hidden, make_attention(kind, i, options)) for i in range(options.layers))
        self.norm = nn.RMSNorm(options.hidden)
        self.head = nn.Linear(options.hidden, vocabulary, bias=False)

    def forward(self, tokens, states=None):
        """Logits [batch, length, vocabulary]; `states` are those of the blocks, where a sequence comes in parts."""
        x = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, states and states[i])
        return self.head(self.norm(x))


@glade.no_grad()
def accuracy(model, rng, pairs, options):
    """The share of questions answered right, of 512 sequences."""
    right = asked = 0
    for _ in range(8):
        tokens, targets = make_batch(rng, 64, pairs, options)
        right += (model(tokens).argmax(-1) == targets).sum().item()
        asked += 64 * pairs
    return right / asked


def graphed_step(model, optimizer, device):
    """A step of training on [tokens, targets], which returns [loss]; on a GPU it is captured as a CUDA graph."""

    def step(batch):
        tokens, targets = batch
        loss = glade.cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step(max_norm=1.0)
        optimizer.zero_grad()
        return [loss.detach()]

    return glade.cuda.GraphedFunction(device, step)


def train(kind, options):
    glade.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    model = Recall(kind, options, 1 + 2 * options.keys).to(options.device)
    optimizer = optim.AdamW(optim.decay_matrices(model.named_parameters(), 0.1), lr=options.lr)
    scheduler = optim.LRScheduler(optimizer, optim.warmup_cosine_lr(min(50, options.steps), options.steps))
    graphed = graphed_step(model, optimizer, options.device)
    with Progress() as progress:
        for step in range(1, options.steps + 1):
            (loss,) = graphed(make_batch(rng, options.batch, rng.choice(options.pairs), options))
            scheduler.step()
            if step % 10 == 0:  # each time a GPU waits
                progress.show(step / options.steps, f"{kind} step {step}", f"loss {loss.item():.3f}")
    return model.eval()


def plot(pairs, results, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for kind, accuracies in results.items():
        axes.plot(pairs, accuracies, marker="o", label=MODELS[kind])
    axes.set(xlabel="pairs", ylabel="accuracy", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=150)


def main():
    options = parse_options()
    options.device = glade.Device(options.device)
    pairs = sorted({*options.pairs, *range(4, most_pairs(options) + 1, 4)})
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
