"""Times a training step of a small GLA model beside the same model in eager PyTorch, on the same cores.

    compare_train_cpu.py [--threads N] [--rounds N] [--steps N] [--json FILE]

A step is forward, loss, backward, clipping and AdamW on 16 sequences of 128 bytes, in float32. PyTorch's model computes the
recurrence in chunks of 64, as matrix products, and uses PyTorch's fused operations where it has them (linear, rms_norm,
cross_entropy, AdamW). Each side runs in a process of its own, in turns, from the same weights, and the losses of all steps must
agree. Variables that choose OpenBLAS's kernels are unset: each side picks its own for the processor. A time is the fastest step of
all rounds, in milliseconds; the median of all steps is shown beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

LAYERS, HIDDEN, HEADS, BATCH, SEQ_LEN, CHUNK = 2, 128, 2, 16, 128, 64
LR, BETAS, WEIGHT_DECAY, MAX_NORM = 3e-3, (0.9, 0.95), 0.1, 1.0


def batches(count):
    """Sequences with structure enough that the loss falls, and the token after each."""
    random = np.random.default_rng(0)
    text = np.concatenate([np.arange(n, n + 40) % 256 for n in random.integers(0, 256, 4000)])
    for _ in range(count):
        starts = random.integers(0, len(text) - SEQ_LEN - 1, BATCH)
        tokens = text[starts[:, None] + np.arange(SEQ_LEN + 1)]
        yield tokens[:, :-1], tokens[:, 1:]


def timed(steps, step, convert):
    """Calls `step` on each batch, which it returns the loss of: the losses and the seconds of each."""
    losses, seconds = [], []
    for inputs, targets in batches(steps):
        inputs, targets = convert(inputs), convert(targets)
        start = time.perf_counter()
        losses.append(step(inputs, targets).item())
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def glade_model():
    import glade

    glade.manual_seed(0)
    return glade.nn.models.GLAForCausalLM(num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_heads=HEADS)


def run_glade(steps, weights):
    import glade

    model = glade_model()
    groups = glade.optim.decay_matrices(model.named_parameters(), WEIGHT_DECAY)
    optimizer = glade.optim.AdamW(groups, lr=LR, betas=BETAS)

    def step(inputs, targets):
        loss = model.loss(inputs, targets)
        loss.backward()
        glade.optim.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return timed(steps, step, glade.tensor)


def run_torch(steps, weights):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    p = {name: torch.from_numpy(values).requires_grad_() for name, values in np.load(weights).items()}

    def attention(name, x):
        def heads(y):  # [B, H, chunks, CHUNK, size]
            return y.reshape(BATCH, SEQ_LEN // CHUNK, CHUNK, HEADS, -1).permute(0, 3, 1, 2, 4)

        q, k, v = (heads(F.linear(x, p[f"{name}.{which}_proj.weight"])) for which in "qkv")
        low = F.linear(x, p[name + ".gk_proj.0.weight"])
        gk = heads(F.logsigmoid(F.linear(low, p[name + ".gk_proj.1.weight"], p[name + ".gk_proj.1.bias"])) / 16)
        q = q * q.size(-1) ** -0.5
        sums = gk.cumsum(-2)
        last = sums[..., -1:, :]
        # Decays of pairs are measured from the middle of the chunk, which is safe for gates as weak as these.
        scores = ((q * (sums - last / 2).exp()) @ (k * (last / 2 - sums).exp()).mT).tril()
        added, total = (k * (last - sums).exp()).mT @ v, last.exp().mT
        state, states = torch.zeros_like(added[:, :, 0]), []
        for i in range(SEQ_LEN // CHUNK):
            states.append(state)
            state = state * total[:, :, i] + added[:, :, i]
        o = scores @ v + (q * sums.exp()) @ torch.stack(states, 2)
        o = F.rms_norm(o.permute(0, 2, 3, 1, 4), (o.size(-1),), p[name + ".g_norm.weight"], 1e-6).reshape(BATCH, SEQ_LEN, -1)
        return F.linear(o * F.silu(F.linear(x, p[name + ".g_proj.weight"])), p[name + ".o_proj.weight"])

    def norm(name, x):
        return F.rms_norm(x, (HIDDEN,), p[name + ".weight"], 1e-6)

    def loss_of(inputs, targets):
        x = F.embedding(inputs, p["model.embeddings.weight"])
        for i in range(LAYERS):
            layer = f"model.layers.{i}"
            x = x + attention(layer + ".attn", norm(layer + ".attn_norm", x))
            y = norm(layer + ".mlp_norm", x)
            gate, up = (F.linear(y, p[f"{layer}.mlp.{which}_proj.weight"]) for which in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, p[layer + ".mlp.down_proj.weight"])
        logits = F.linear(norm("model.norm", x), p["lm_head.weight"])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    groups = [{"params": [x for x in p.values() if x.ndim >= 2], "weight_decay": WEIGHT_DECAY},
              {"params": [x for x in p.values() if x.ndim < 2], "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)

    def step(inputs, targets):
        loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return timed(steps, step, torch.from_numpy)


SIDES = {"glade": run_glade, "torch": run_torch}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="number of threads (default: all cores)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, in which both libraries take turns (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="steps of a round; the first five are not timed (default: %(default)s)")
    parser.add_argument("--json", help="file for the times of all steps")
    parser.add_argument("--run", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(SIDES[options.run](options.steps, options.weights)))
        return
    try:
        from torch.nn.functional import rms_norm  # noqa: F401  (of PyTorch 2.4)
    except ImportError as error:
        sys.exit(f"compare_train_cpu.py: {error}")

    with tempfile.NamedTemporaryFile(suffix=".npz") as weights:
        np.savez(weights, **{name: x.numpy() for name, x in glade_model().state_dict().items()})
        weights.flush()
        seconds, losses = {side: [] for side in SIDES}, {}
        for _ in range(options.rounds):
            for side in SIDES:
                command = [sys.executable, __file__, "--run", side, "--weights", weights.name, "--steps", str(options.steps)]
                environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
                environment["OMP_NUM_THREADS"] = str(options.threads)
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
                losses[side], times = json.loads(output)
                seconds[side] += times[5:]
    differences = [abs(a - b) for a, b in zip(losses["glade"], losses["torch"])]
    difference = max(differences)
    # Rounding alone at first; it grows from step to step.
    assert differences[0] < 1e-5 and max(differences[:5]) < 1e-3 and difference < 0.02, f"the losses differ by {differences}"

    print(f"{options.threads} threads; loss {losses['glade'][0]:.4f} to {losses['glade'][-1]:.4f}, apart by up to {difference:.1e}")
    print("milliseconds a step   fastest   median")
    for side, times in seconds.items():
        print(f"{side:19}  {1e3 * min(times):8.2f} {1e3 * statistics.median(times):8.2f}")
    print(f"glade is {min(seconds['torch']) / min(seconds['glade']):.2f} times as fast as PyTorch")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"threads": options.threads, "seconds": seconds, "losses": losses}, file)


if __name__ == "__main__":
    main()
